"""Inverses of matrices by recursion: most of the work is products of blocks."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fmm import api
from fmm.linalg.arguments import check_choice, check_limit, common_arrays, is_square, write_result
from fmm.linalg.cholesky_factors import cholesky
from fmm.linalg.halving_rules import (
    INVERSE_SIDES,
    POSITIVE_INVERSE_RULE,
    TRIANGULAR_RULE,
    block_side_after_halvings,
    diagonal_block_side,
    first_half_rows_rounded,
    solver_halving_count,
)
from fmm.linalg.lu_recursion import factor_matrix, lu_panel_width
from fmm.linalg.products import aligned_copy, has_aligned_rows
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.triangular_recursion import (
    TriangularBlocks,
    inverts_diagonal_blocks,
    solve_blocks,
    solve_in_place,
    triangular_block_side,
    triangular_blocks,
)

MATRIX_KINDS = ("gen", "pos")
LU_INVERTED_SIDE = 512  # largest side of the inverted blocks of L and U: larger blocks of U are often ill-conditioned


def inv(
    a: Any,
    /,
    *,
    assume_a: Literal["gen", "pos"] = "gen",
    out: Any = None,
    max_error_growth: float | None = None,
) -> Any:
    """Return the inverse of a matrix, as numpy.linalg.inv does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch.
    assume_a : {"gen", "pos"}, optional
        "pos" for a Hermitian positive definite matrix. If products compute the inverse, only the lower triangle of a
        is read, and the inverse is Hermitian bit for bit.
    out : array, optional
        Array for the inverse. `out` may be `a`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The inverse; `out` if it was passed.

    Raises
    ------
    LinAlgError
        The matrix is singular. With "pos", if products compute the inverse: the matrix is not positive definite. The
        exception is the library's own.
    ValueError
        assume_a has an unknown value.

    Notes
    -----
    With "gen", a is factored by fmm.linalg.lu_factor, and two triangular systems are solved by products. The library's
    own function inverts matrices for which no gain is predicted, singular matrices, and tensors that require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.inv(np.array([[2.0, 0.0], [0.0, 4.0]]))
    array([[0.5 , 0.  ],
           [0.  , 0.25]])
    """
    check_choice("assume_a", assume_a, MATRIX_KINDS)
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    gains = is_square(a) and is_inverse_faster_by_products(library, a, assume_a, max_error_growth)
    if not gains or not library.is_plain(a) or library.needs_gradient(a):
        inverse = library.inv(a)
    elif assume_a == "pos":
        inverse = invert_positive_definite_stacks(library, a, max_error_growth)
    else:
        inverse = invert_stacks(library, a, max_error_growth)
    return write_result(library, out, inverse)


def inverse_panel_width(library: NumpySolvers, a: Any, limit: float | None) -> int:
    """Return the number of columns of a panel of the LU factors.

    Return 0 if the library's own function must invert the matrix, or must reject it.
    """
    return lu_panel_width(library, a, limit, INVERSE_SIDES) if is_square(a) else 0


def is_inverse_faster_by_products(library: NumpySolvers, a: Any, assume_a: str, limit: float | None) -> bool:
    """Return True if inverses of an array are predicted to be faster by products than by the library's function."""
    return (positive_definite_block_side if assume_a == "pos" else inverse_panel_width)(library, a, limit) > 0


def positive_definite_block_side(library: NumpySolvers, a: Any, limit: float | None) -> int:
    """Return the number of rows of the diagonal blocks in the inversion of positive definite matrices.

    Return 0 if the library's own function must invert the matrices.
    """
    if inverts_diagonal_blocks(library, a):
        return diagonal_block_side(library, a, a.shape[-1], limit, POSITIVE_INVERSE_RULE)
    levels = solver_halving_count(library, a, None, limit, TRIANGULAR_RULE)
    return block_side_after_halvings(a.shape[-1], levels) if levels else 0


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def invert_stacks(library: NumpySolvers, a: Any, limit: float | None) -> Any:
    """Return the inverses of a stack by LU and two triangular solves."""
    n, width, inverse = a.shape[-1], inverse_panel_width(library, a, limit), library.empty(tuple(a.shape), a)
    side = min(triangular_block_side(library, a, n, limit), LU_INVERTED_SIDE)
    for i in np.ndindex(*a.shape[:-2]):
        if (factors := factor_matrix(library, a[i], width, limit)) is None:
            return library.inv(a)
        x = aligned_copy(library, library.identity(n, a))
        library.exchange_rows(x, factors.pivots, 0)
        for lower in (True, False):
            solve_in_place(library, factors.lu, x, (lower, lower), side, limit)
        library.overwrite(inverse[i], x)
    return inverse


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def invert_positive_definite_stacks(library: NumpySolvers, a: Any, limit: float | None) -> Any:
    """Return the inverses of a stack of positive definite matrices, each as Y^H Y with Y = L^-1 and the factor L."""
    side = positive_definite_block_side(library, a, limit)
    inverse = cholesky(a, max_error_growth=limit)
    for i in np.ndindex(*a.shape[:-2]):
        factor = inverse[i] if has_aligned_rows(library, inverse[i]) else aligned_copy(library, inverse[i])
        blocks = triangular_blocks(library, factor, True, False, side, limit)
        if not all(blocks.is_usable or ()):
            return library.inv(a)
        invert_triangle_in_place(blocks, factor)
        library.overwrite(inverse[i], api.gram(factor, max_error_growth=limit))
    return inverse


def invert_triangle_in_place(blocks: TriangularBlocks, a: Any, index: int = 0) -> None:
    """Replace a lower triangular matrix L by its inverse Y; the block of Y below the diagonal is -(Y22 L21) L11^-1.

    L21 is the block of L below the diagonal, L11 and Y22 are blocks on the diagonals of L and Y. Because Y22 L21 is
    computed first, Y L - I is small, and the inverse Y^H Y of L L^H is as accurate as LAPACK's. If `a` is a part of a
    larger triangular matrix, `index` is the number of diagonal blocks above `a`.
    """
    library, side, n = blocks.library, blocks.side, a.shape[0]
    if n <= side:
        is_inverted = blocks.inverses is not None and index < len(blocks.inverses)
        inverse = blocks.inverses[index] if is_inverted else library.identity(n, a)
        if not is_inverted:
            library.solve_block(a, inverse, True, False)
        library.overwrite(a, inverse)
        return
    h = first_half_rows_rounded(n, side)
    first, panel, rest = a[:h, :h], a[h:, :h], a[h:, h:]
    invert_triangle_in_place(blocks, rest, index + h // side)
    library.overwrite(panel, api.gemm(rest, panel, alpha=-1, max_error_growth=blocks.limit))
    # X L = P is solved as L^T X^T = P^T
    inverses = blocks.inverses if blocks.inverses is None else library.transpose(blocks.inverses)
    upper = blocks._replace(lower=False, inverses=inverses)
    solve_blocks(upper, library.transpose(first), library.transpose(panel), index)
    invert_triangle_in_place(blocks, first, index)
