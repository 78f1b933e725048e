"""Products that are their own adjoints, on the host: BLAS's syrk and herk, and the upper half as the lower's mirror.

NumPy has these functions but no way to call them: they are called in the very library that NumPy multiplies with, whose
threads are then the same; where that is no OpenBLAS, in SciPy's; else numpy.matmul computes a whole product (of one
memory and its transpose by syrk, too).
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from fmm.kernels.cpu.host_arrays import Array, matmul
from fmm.kernels.cpu.openblas import cblas_function
from fmm.kernels.cpu.worker_threads import run_uninterrupted
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.sums import Mirror, Place

ROW_MAJOR, UPPER, LOWER, AS_IT_IS, TRANSPOSED, ADJOINT = 101, 121, 122, 111, 112, 113  # as cblas.h has them
NAMES = {"float32": "ssyrk", "float64": "dsyrk", "complex64": "cherk", "complex128": "zherk"}
TILE = 128  # rows that are transposed at a time
BAND = 1024  # rows that one task mirrors, and columns of a tile: the cache keeps a tile's lines until they are full

ANYWHERE = Place("C", 0, 0, 0, 0)  # the arrays are given beside it
MIRROR_IN_PLACE = Mirror(ANYWHERE, ANYWHERE)

Rank = Callable[["GramFactor", Array, bool, Any, Any], None]


class GramFactor(NamedTuple):
    """The one matrix X of a product X X^H (or, `turned`, X^H X), row by row in memory."""

    matrix: Array
    turned: bool

    @property
    def inner(self) -> int:
        return int(self.matrix.shape[0 if self.turned else 1])


# ---- the lower half, by a leaf


def triangle_product(left: Array, right: Array, dest: Array, asked: GemmParams) -> None:
    """The lower half of dest = alpha left right + beta dest; of the upper one nothing is written unless it is loose."""
    if not dest.size:
        return
    rank = _rank_function(dest.dtype.name) if asked.op == "gram" and asked.alpha else None
    lower = _rows_contiguous(dest)
    if not lower:  # C^T = B^T A^T, whose upper half lies row by row
        left, right, dest = right.T, left.T, dest.T
    factor = _factor(left, right)
    if rank is not None and factor is not None and factor.inner and _rows_contiguous(dest):
        rank(factor, dest, lower, asked.alpha, asked.beta)
    elif asked.fill == "loose" and (asked.alpha, asked.beta) == (1, 0):
        matmul(left, right, out=dest)
    else:
        _updated(matmul(left, right), dest, lower, asked)


def _updated(product: Array, dest: Array, lower: bool, asked: GemmParams) -> None:
    """A whole product's half, added to what stands there."""
    if not lower:
        product, dest = product.T, dest.T
    for top in range(0, len(dest), BAND):
        mirror_band(Mirror(ANYWHERE, ANYWHERE, asked.alpha, asked.beta, "lower"), product, dest, top)


def _rows_contiguous(x: Array) -> bool:
    """Can BLAS read it row by row?"""
    (rows, cols), (down, right), item = x.shape, x.strides, x.itemsize
    return (cols <= 1 or right == item) and (rows <= 1 or (down >= cols * item and down % item == 0))


def _factor(left: Array, right: Array) -> GramFactor | None:
    """Of the two, which are each other's adjoints, the one that lies row by row."""
    if _rows_contiguous(left):
        return GramFactor(left, False)
    return GramFactor(right, True) if _rows_contiguous(right) else None


@lru_cache(maxsize=len(NAMES))
def _rank_function(dtype: str) -> Rank | None:
    """What computes X X^H here; None if nothing does."""
    name = NAMES.get(dtype)
    if name is None:
        return None
    if (found := cblas_function(name)) is not None:
        return partial(_by_cblas, *found)
    try:
        from scipy.linalg import blas
    except ImportError:
        return None
    return partial(_by_scipy, getattr(blas, name))


def _by_cblas(
    function: Any, integer: Any, factor: GramFactor, dest: Array, lower: bool, alpha: complex, beta: complex
) -> None:
    """In place, whatever the distance of dest's rows."""
    x, size, real = factor.matrix, len(dest), dest.real.dtype
    scalar = ctypes.c_float if real.itemsize == 4 else ctypes.c_double
    turned = (ADJOINT if dest.dtype.kind == "c" else TRANSPOSED) if factor.turned else AS_IT_IS
    head = ROW_MAJOR, LOWER if lower else UPPER, turned, integer(size), integer(factor.inner)
    operand = scalar(_real(alpha)), _pointer(x), integer(_leading(x))
    function(*head, *operand, scalar(_real(beta)), _pointer(dest), integer(_leading(dest)))


def _by_scipy(function: Any, factor: GramFactor, dest: Array, lower: bool, alpha: complex, beta: complex) -> None:
    """Into a new array, whose half is then copied: SciPy writes no blocks. It reads column by column, the transpose."""
    product = function(1, factor.matrix.T, trans=0 if factor.turned else 2, lower=not lower).T
    _updated(product, dest, lower, GemmParams(_real(alpha), _real(beta)))


def _real(c: complex) -> float:
    return complex(c).real


def _pointer(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.__array_interface__["data"][0])


def _leading(x: Array) -> int:
    return int(max(x.strides[0] // x.itemsize if len(x) > 1 else 1, x.shape[1], 1))


# ---- the upper half


def mirror_tasks(step: Mirror, source: Array, dest: Array) -> Iterator[Callable[[], None]]:
    """The lower half of dest = alpha source + beta dest, and the upper one as its mirror if it is wanted, in bands of
    rows that do not disturb each other."""
    for top in range(0, len(dest), BAND):
        yield partial(mirror_band, step, source, dest, top)


def mirror_band(step: Mirror, source: Array, dest: Array, top: int) -> None:
    """Of rows from `top` on, what lies on and below the diagonal; and its mirror."""
    full, bottom = step.fill == "full", min(top + BAND, len(dest))
    for row in range(top, bottom, TILE):
        rows = slice(row, min(row + TILE, bottom))
        for col in range(0, row, BAND):
            cols = slice(col, min(col + BAND, row))
            _update(step, source[rows, cols], dest[rows, cols], None)
            if full:
                _copy_adjoint(dest[rows, cols], dest[cols, rows], None)
        block = dest[rows, rows]
        above = above_diagonal(len(block))
        _update(step, source[rows, rows], block, ~above)
        if dest.dtype.kind == "c":
            np.einsum("ii->i", block).imag[...] = 0
        if full:
            _copy_adjoint(block.copy(), block, above)


def _update(step: Mirror, source: Array, dest: Array, where: Array | None) -> None:
    """dest = alpha source + beta dest, where that is wanted."""
    if source.__array_interface__["data"] == dest.__array_interface__["data"]:
        return
    value = source if step.alpha == 1 else source * dest.dtype.type(step.alpha)
    if step.beta:
        value = value + (dest if step.beta == 1 else dest * dest.dtype.type(step.beta))
    np.copyto(dest, value, where=True if where is None else where)


def _copy_adjoint(source: Array, dest: Array, where: Array | None) -> None:
    if where is not None:
        np.copyto(dest, source.conj().T, where=where)
    elif source.dtype.kind == "c":
        np.conjugate(source.T, out=dest)
    else:
        np.copyto(dest, source.T)


def make_hermitian(c: Array) -> None:
    """The upper half becomes the adjoint of the lower one, the diagonal real: of few enough rows for one thread."""
    if len(c) > TILE:
        for mirrored in mirror_tasks(MIRROR_IN_PLACE, c, c):
            mirrored()
        return
    np.copyto(c, np.conjugate(c).T, where=above_diagonal(len(c)))
    imaginary_diagonal(c).fill(0.0)


def imaginary_diagonal(c: Array) -> Array:
    """Of a square matrix without gaps, as a view of it: its `fill` is one call of C, and takes less than `flat`."""
    return c.reshape(-1)[:: len(c) + 1].imag


@lru_cache(maxsize=TILE + 1)
def above_diagonal(rows: int) -> Array:
    """Of at most TILE rows."""
    return ~np.tri(rows, dtype=bool)


PANEL = 64  # rows
# Multiply-adds of complex numbers up to which one half saves less than its panels cost.
LEAST_HALVED = 1 << 19


def uses_panels(side: int, inner: int) -> bool:
    """Is one half of such a product computed, and not the whole?"""
    return side > TILE or side * side * inner >= LEAST_HALVED


def hermitian_product(a: Array, rows: bool, out: Array | None) -> Array:
    """a a^H (or, not of its `rows`, a^H a), in `out` of its shape and type, or as a new array.

    What a signal raises leaves `out` complete or untouched.
    """
    adjoint = np.conjugate(a).T
    left, right = (a, adjoint) if rows else (adjoint, a)
    side, inner = left.shape
    if not uses_panels(side, inner):
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
