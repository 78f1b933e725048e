"""Powers of two that make lines of a matrix alike in size, by NumPy."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.plans.steps.rescaling import LineExponents, Rescaled

ROWS = 256 * 1024  # numbers that are looked at or scaled at a time


def rescaled_arrays(step: LineExponents | Rescaled, reads: Sequence[Array], dest: Array) -> None:
    """Do the step. Symbols, which have no size, have the exponent 0."""
    if isinstance(step, LineExponents):
        dest[0, :] = 0 if dest.dtype == object else _exponents(step, reads)
    elif dest.dtype == object:
        if dest is not reads[0]:
            dest[...] = reads[0]
    else:
        _rescale(step, reads, dest)


def _exponents(step: LineExponents, reads: Sequence[Array]) -> Array:
    source = reads[0] if step.axis == 0 else reads[0].T
    found = np.empty(len(source), np.int64)
    along = step.sign * _whole(reads[1]) if step.sign else None
    height = max(ROWS // source.shape[1], 1)
    for top in range(0, len(source), height):
        found[top : top + height] = _largest_exponents(source[top : top + height], along)
    return np.right_shift(found - _whole(reads[-1]), 1) if step.against else found


def _largest_exponents(rows: Array, along: Array | None) -> Array:
    with np.errstate(all="ignore"):
        size = np.maximum(abs(rows.real), abs(rows.imag)) if rows.dtype.kind == "c" else abs(rows)
        finite = np.isfinite(size).all(axis=1)
        exponents = np.frexp(np.where(np.isfinite(size), size, 0))[1].astype(np.int64)
    exponents += 0 if along is None else along
    exponents[size == 0] = LEAST
    largest = exponents.max(axis=1)
    return np.where(finite & (largest > LEAST), largest, 0)


LEAST = -(1 << 20)


def _rescale(step: Rescaled, reads: Sequence[Array], dest: Array) -> None:
    source, vectors = reads[0], [_whole(x) for x in reads[1:]]
    rows = step.row_sign * vectors.pop(0)[:, None] if step.row_sign else 0
    cols = step.col_sign * vectors.pop(0)[None, :] if step.col_sign else 0
    exponents = np.broadcast_to(rows + cols, source.shape)
    height = max(ROWS // source.shape[1], 1)
    with np.errstate(all="ignore"):
        for top in range(0, len(source), height):
            band = slice(top, top + height)
            by = exponents[band].astype(np.int32)
            if dest.dtype.kind == "c":
                np.ldexp(source[band].real, by, out=dest[band].real)
                np.ldexp(source[band].imag, by, out=dest[band].imag)
            else:
                np.ldexp(source[band], by, out=dest[band])


def _whole(vector: Array) -> Array:
    found: Array = vector[0].real.astype(np.int64)
    return found
