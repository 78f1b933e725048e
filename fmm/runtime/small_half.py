"""Halves of few rows, of NumPy's arrays: by BLAS at once, since no plan for halves was seen to win, and since to ask
for one costs 50 microseconds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.numpy_library import read_in_place
from fmm.kernels.cpu.host_arrays import matmul
from fmm.kernels.cpu.triangle_product import hermitian_product, uses_panels

SMALL_SIDE = 1024  # rows and columns of the product up to which that is so
LONG_SIDE, FEW = 4096, 64  # and with an inner side of no more than the second
ndarray = np.ndarray
# NumPy has one object for each of its types; an array that has another one goes the usual way.
FLOAT64, FLOAT32, COMPLEX128, COMPLEX64 = map(np.dtype, ("float64", "float32", "complex128", "complex64"))


def small_half(a: Any, rows: bool, out: Any) -> Any:
    """The whole product of NumPy's array and its adjoint; None: the usual way. Of a real matrix and its transpose in
    place, NumPy's own product calls BLAS's function for halves."""
    dtype = a.dtype
    if a.ndim != 2 or (a.size > SMALL_SIDE and not _has_few_rows(a, rows)):  # small ones without a second call
        return None
    if out is not None and (type(out) is not ndarray or out.dtype is not dtype or out.ndim != 2):
        return None
    try:
        if dtype is FLOAT64 or dtype is FLOAT32:
            flags = a.flags
            if not (flags.carray or (flags.forc and flags.aligned) or read_in_place(a)):
                a = a.copy()
            if out is None:
                return matmul(a, a.T) if rows else matmul(a.T, a)
            return matmul(a, a.T, out) if rows else matmul(a.T, a, out)
    except ValueError:  # `out` has another shape: the usual way says so in words of fmm's
        return None
    if dtype is COMPLEX128 or dtype is COMPLEX64:
        side = a.shape[not rows]
        return hermitian_product(a, rows, out) if out is None or out.shape == (side, side) else None
    return None


def _has_few_rows(a: Any, rows: bool) -> bool:
    """Are they so few that no plan is asked for? Certainly, of SMALL_SIDE numbers or fewer."""
    side, inner = a.shape if rows else a.shape[::-1]
    return bool(a.size <= SMALL_SIDE or side <= SMALL_SIDE or (side <= LONG_SIDE and inner <= FEW))


def small_half_kernel(a: Any, rows: bool, out: Any) -> str:
    """What computes one that is complex, or copied before, in words; none if it is not answered here."""
    if type(a) is not ndarray or a.ndim != 2 or a.dtype not in (FLOAT64, FLOAT32, COMPLEX128, COMPLEX64):
        return ""
    if not _has_few_rows(a, rows) or (out is not None and (type(out) is not ndarray or out.dtype is not a.dtype)):
        return ""
    if a.dtype.kind == "f":
        copied = not ((a.flags.forc and a.flags.aligned) or read_in_place(a))
        return "numpy.matmul of a copy: BLAS's syrk, one half, and NumPy's mirror" if copied else ""
    side, inner = a.shape if rows else a.shape[::-1]
    if uses_panels(side, inner):
        return "numpy.matmul: one half in panels of rows, each of which is mirrored"
    return "numpy.matmul: a whole product, of which one half is mirrored"
