"""The product of a complex matrix of few rows and its adjoint, on the host: its own adjoint bit for bit.

NumPy has no function for one half of it, and its whole product is not quite its own adjoint. So the lower half is
computed in panels of rows, each of which is mirrored while a cache has it. Of few columns the product is mostly written
and not computed, so that BLAS's herk and a mirror behind it, which pass over it three times, take longer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np

from fmm.kernels.cpu.host_arrays import Array, matmul
from fmm.kernels.cpu.triangle_product import TILE, above_diagonal, imaginary_diagonal, make_hermitian
from fmm.kernels.cpu.worker_threads import run_uninterrupted

PANEL = 64  # rows
# Multiply-adds of complex numbers up to which one half saves less than its panels cost.
LEAST_HALVED = 1 << 19


def in_panels(side: int, inner: int) -> bool:
    """Is one half of such a product computed, and not the whole?"""
    return side > TILE or side * side * inner >= LEAST_HALVED


def hermitian_product(a: Array, rows: bool, out: Array | None) -> Array:
    """a a^H (or, not of its `rows`, a^H a), in `out` of its shape and type, or as a new array.

    What a signal raises leaves `out` complete or untouched.
    """
    adjoint = np.conjugate(a).T
    left, right = (a, adjoint) if rows else (adjoint, a)
    side, inner = left.shape
    if not in_panels(side, inner):
        c: Array = matmul(left, right)
        make_hermitian(c)
    elif out is None or side <= TILE or not out.flags.carray or np.may_share_memory(a, out):
        c = np.empty((side, side), a.dtype)
        for step in _panel_steps(left, right, c):
            step()
    else:
        _fill(left, right, out)
        return out
    if out is None:
        return c
    out[...] = c
    return out


def _fill(left: Array, right: Array, out: Array) -> None:
    """In panels, in one call of C; if one of them fails, the whole at once."""
    with np.errstate(all="ignore"):  # of an overflow BLAS's own halves do not tell either
        try:
            run_uninterrupted(_panel_steps(left, right, out))
        except BaseException:
            matmul(left, right, out)
            raise


def _panel_steps(left: Array, right: Array, c: Array) -> Iterator[Callable[[], object]]:
    """The product's lower half, and the upper one as its adjoint, in steps each of which is one call of C."""
    conjugate, side = np.conjugate, len(c)
    for top in range(0, side, PANEL):
        rows, left_of_end = slice(top, top + PANEL), slice(0, top + PANEL)
        yield partial(matmul, left[rows], right[:, left_of_end], c[rows, left_of_end])
        if top:
            yield partial(conjugate, c[rows, :top].T, c[:top, rows])
        block = c[rows, rows]
        yield partial(conjugate, block.T, block, where=above_diagonal(len(block)))
    yield partial(imaginary_diagonal(c).fill, 0.0)
