"""Compute products A A^H on the CPU: one triangle by BLAS's syrk or herk, then the other triangle as a mirror image.

NumPy does not expose syrk and herk. If NumPy uses OpenBLAS, fmm calls the functions of this OpenBLAS, which then use
the same BLAS threads. If NumPy uses another BLAS, fmm calls syrk and herk through SciPy. If SciPy is not installed,
numpy.matmul computes the whole product.

`hermitian_product` computes products of complex matrices with few rows.
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

# Values of the enumerations in cblas.h for layout, triangle and transposition.
ROW_MAJOR, UPPER, LOWER, NOT_TRANSPOSED, TRANSPOSED, ADJOINT = 101, 121, 122, 111, 112, 113
RANK_FUNCTIONS = {"float32": "ssyrk", "float64": "dsyrk", "complex64": "cherk", "complex128": "zherk"}
TRANSPOSED_ROWS = 128  # largest number of rows that are transposed at once
# One task mirrors this number of rows, in tiles of at most this number of columns. A tile is so small that each cache
# line stays in the cache until all its bytes are written.
MIRROR_BAND_ROWS = 1024
PANEL_ROWS = 64  # number of rows in a panel of `hermitian_product`
# From this number of complex multiply-adds on, computing one triangle in panels is faster than the whole product.
MIN_TRIANGLE_WORK = 1 << 19

UNNAMED_PLACE = Place("C", 0, 0, 0, 0)  # the place in a `Mirror` if the arrays are passed as arguments
MIRROR_IN_PLACE = Mirror(UNNAMED_PLACE, UNNAMED_PLACE)

RankUpdateFunction = Callable[["GramFactor", Array, bool, Any, Any], None]


class GramFactor(NamedTuple):
    """The row-major matrix X of a product X X^H, or of the product X^H X if `transposed`."""

    matrix: Array
    transposed: bool

    @property
    def inner_size(self) -> int:
        return int(self.matrix.shape[0 if self.transposed else 1])


# ---- the lower triangle


def triangle_product(left: Array, right: Array, dest: Array, params: GemmParams) -> None:
    """Compute the lower triangle of dest = alpha * left * right + beta * dest, where left * right is its own adjoint.

    The upper triangle stays unchanged, unless `fill` is "loose".
    """
    if not dest.size:
        return
    rank = _rank_update_function(dest.dtype.name) if params.op == "gram" and params.alpha else None
    lower = _is_row_major(dest)
    if not lower:  # compute the upper triangle of the row-major C^T = B^T A^T
        left, right, dest = right.T, left.T, dest.T
    factor = _row_major_factor(left, right)
    if rank is not None and factor is not None and factor.inner_size and _is_row_major(dest):
        rank(factor, dest, lower, params.alpha, params.beta)
    elif params.fill == "loose" and (params.alpha, params.beta) == (1, 0):
        matmul(left, right, out=dest)
    else:
        _add_triangle(matmul(left, right), dest, lower, params)


def _add_triangle(product: Array, dest: Array, lower: bool, params: GemmParams) -> None:
    """Write dest = alpha * product + beta * dest in the lower triangle; if `lower` is False, in the upper triangle."""
    if not lower:
        product, dest = product.T, dest.T
    for top in range(0, len(dest), MIRROR_BAND_ROWS):
        mirror_rows(Mirror(UNNAMED_PLACE, UNNAMED_PLACE, params.alpha, params.beta, "lower"), product, dest, top)


def _is_row_major(x: Array) -> bool:
    """Return True if BLAS can read the matrix as a row-major matrix."""
    (rows, cols), (down, right), item = x.shape, x.strides, x.itemsize
    return (cols <= 1 or right == item) and (rows <= 1 or (down >= cols * item and down % item == 0))


def _row_major_factor(left: Array, right: Array) -> GramFactor | None:
    """Return one row-major matrix of two mutually adjoint matrices; None if neither is row-major."""
    if _is_row_major(left):
        return GramFactor(left, False)
    return GramFactor(right, True) if _is_row_major(right) else None


@lru_cache(maxsize=len(RANK_FUNCTIONS))
def _rank_update_function(dtype: str) -> RankUpdateFunction | None:
    """Return a function that calls syrk or herk for this type; None if neither OpenBLAS nor SciPy has the function."""
    name = RANK_FUNCTIONS.get(dtype)
    if name is None:
        return None
    if (found := cblas_function(name)) is not None:
        return partial(_rank_update_by_cblas, *found)
    try:
        from scipy.linalg import blas
    except ImportError:
        return None
    return partial(_rank_update_by_scipy, getattr(blas, name))


def _rank_update_by_cblas(
    function: Any, integer_type: Any, factor: GramFactor, dest: Array, lower: bool, alpha: complex, beta: complex
) -> None:
    """Call OpenBLAS's syrk or herk, which write directly to dest, with any leading dimension."""
    x, size, real = factor.matrix, len(dest), dest.real.dtype
    scalar = ctypes.c_float if real.itemsize == 4 else ctypes.c_double
    operation = (ADJOINT if dest.dtype.kind == "c" else TRANSPOSED) if factor.transposed else NOT_TRANSPOSED
    head = ROW_MAJOR, LOWER if lower else UPPER, operation, integer_type(size), integer_type(factor.inner_size)
    operand = scalar(_real_part(alpha)), _data_pointer(x), integer_type(_leading_dimension(x))
    function(*head, *operand, scalar(_real_part(beta)), _data_pointer(dest), integer_type(_leading_dimension(dest)))


def _rank_update_by_scipy(
    function: Any, factor: GramFactor, dest: Array, lower: bool, alpha: complex, beta: complex
) -> None:
    """Call SciPy's syrk or herk, and add the resulting triangle to dest, because SciPy cannot write to submatrices.

    SciPy reads column-major matrices, so the transpose of the row-major matrix is passed.
    """
    product = function(1, factor.matrix.T, trans=0 if factor.transposed else 2, lower=not lower).T
    _add_triangle(product, dest, lower, GemmParams(_real_part(alpha), _real_part(beta)))


def _real_part(c: complex) -> float:
    return complex(c).real


def _data_pointer(x: Array) -> ctypes.c_void_p:
    return ctypes.c_void_p(x.__array_interface__["data"][0])


def _leading_dimension(x: Array) -> int:
    return int(max(x.strides[0] // x.itemsize if len(x) > 1 else 1, x.shape[1], 1))


# ---- the upper triangle


def mirror_tasks(step: Mirror, source: Array, dest: Array) -> Iterator[Callable[[], None]]:
    """Yield tasks for dest = alpha * source + beta * dest in the lower triangle.

    If `fill` is "full", the tasks also write the mirror image of the lower triangle. Each task processes consecutive
    rows, and the tasks are independent.
    """
    for top in range(0, len(dest), MIRROR_BAND_ROWS):
        yield partial(mirror_rows, step, source, dest, top)


def mirror_rows(step: Mirror, source: Array, dest: Array, top: int) -> None:
    """Write rows of the lower triangle, from row `top` on; if `fill` is "full", also the mirror image of these rows."""
    full, bottom = step.fill == "full", min(top + MIRROR_BAND_ROWS, len(dest))
    for row in range(top, bottom, TRANSPOSED_ROWS):
        rows = slice(row, min(row + TRANSPOSED_ROWS, bottom))
        for col in range(0, row, MIRROR_BAND_ROWS):
            cols = slice(col, min(col + MIRROR_BAND_ROWS, row))
            _update_block(step, source[rows, cols], dest[rows, cols], None)
            if full:
                _copy_adjoint(dest[rows, cols], dest[cols, rows], None)
        block = dest[rows, rows]
        above = above_diagonal_mask(len(block))
        _update_block(step, source[rows, rows], block, ~above)
        if dest.dtype.kind == "c":
            np.einsum("ii->i", block).imag[...] = 0
        if full:
            _copy_adjoint(block.copy(), block, above)


def _update_block(step: Mirror, source: Array, dest: Array, where: Array | None) -> None:
    """Write dest = alpha * source + beta * dest for all elements, or only for those selected by the mask `where`."""
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
    """Overwrite the upper triangle with the adjoint of the lower triangle and make the diagonal real, on one thread."""
    if len(c) > TRANSPOSED_ROWS:
        for mirrored in mirror_tasks(MIRROR_IN_PLACE, c, c):
            mirrored()
        return
    np.copyto(c, np.conjugate(c).T, where=above_diagonal_mask(len(c)))
    imaginary_diagonal(c).fill(0.0)


def imaginary_diagonal(c: Array) -> Array:
    """Return a view of the diagonal's imaginary parts in a contiguous square matrix."""
    return c.reshape(-1)[:: len(c) + 1].imag


@lru_cache(maxsize=TRANSPOSED_ROWS + 1)
def above_diagonal_mask(rows: int) -> Array:
    """Return a mask of the entries above the diagonal of a square matrix with at most TRANSPOSED_ROWS rows."""
    return ~np.tri(rows, dtype=bool)


# ---- exactly Hermitian products of a complex matrix with few rows and its adjoint
#
# numpy.matmul rounds the entries (i, j) and (j, i) of A A^H differently, so its product is not exactly Hermitian.
# Therefore the lower triangle is computed in panels of rows, and each panel is mirrored while it is in a cache. If the
# inner dimension is short, writing the result takes most of the time. herk of BLAS and a separate mirror step take
# longer, because the result then passes through the caches three times.


def uses_triangle_panels(side: int, inner: int) -> bool:
    """Return True if the lower triangle is computed in panels; False if numpy.matmul computes the whole product."""
    return side > TRANSPOSED_ROWS or side * side * inner >= MIN_TRIANGLE_WORK


def hermitian_product(a: Array, rows: bool, out: Array | None) -> Array:
    """Return A A^H (A^H A if not `rows`) for the matrix `a`; if `out` is an array, the result is in `out`.

    After an exception of a signal handler, `out` is complete or unchanged.
    """
    adjoint = np.conjugate(a).T
    left, right = (a, adjoint) if rows else (adjoint, a)
    side, inner = left.shape
    if not uses_triangle_panels(side, inner):
        c: Array = matmul(left, right)
        make_hermitian(c)
    elif out is None or side <= TRANSPOSED_ROWS or not out.flags.carray or np.may_share_memory(a, out):
        c = np.empty((side, side), a.dtype)
        for step in _triangle_panel_calls(left, right, c):
            step()
    else:
        _compute_triangle_in_panels(left, right, out)
        return out
    if out is None:
        return c
    out[...] = c
    return out


def _compute_triangle_in_panels(left: Array, right: Array, out: Array) -> None:
    """Write the product in panels; if a panel fails, write the whole product with numpy.matmul and raise the error.

    One C function runs all steps, so no signal handler runs between two panels.
    """
    with np.errstate(all="ignore"):  # BLAS's syrk does not report overflow, and this code does not either
        try:
            run_uninterrupted(_triangle_panel_calls(left, right, out))
        except BaseException:
            matmul(left, right, out)
            raise


def _triangle_panel_calls(left: Array, right: Array, c: Array) -> Iterator[Callable[[], object]]:
    """Yield the calls that write the lower triangle and its mirror; each call is a C function with bound arguments."""
    conjugate, side = np.conjugate, len(c)
    for top in range(0, side, PANEL_ROWS):
        rows, left_of_end = slice(top, top + PANEL_ROWS), slice(0, top + PANEL_ROWS)
        yield partial(matmul, left[rows], right[:, left_of_end], c[rows, left_of_end])
        if top:
            yield partial(conjugate, c[rows, :top].T, c[:top, rows])
        block = c[rows, rows]
        yield partial(conjugate, block.T, block, where=above_diagonal_mask(len(block)))
    yield partial(imaginary_diagonal(c).fill, 0.0)
