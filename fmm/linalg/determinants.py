"""fmm.linalg.det and slogdet, from LU factors."""

from __future__ import annotations

from typing import Any, NamedTuple

from fmm.linalg.arguments import check_limit, common_arrays, is_square
from fmm.linalg.lu_factors import lu_of_stacks
from fmm.linalg.lu_recursion import lu_panel_width
from fmm.linalg.solver_library import LuFactors, NumpySolvers


class SlogdetResult(NamedTuple):
    """The sign of a determinant (the phase of a complex one), and the logarithm of its magnitude."""

    sign: Any
    logabsdet: Any


def det(a: Any, /, *, max_error_growth: float | None = None) -> Any:
    """Return the determinant of a matrix, as numpy.linalg.det does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    number or array
        The determinant; for a stack, an array of determinants. Determinants of large matrices may overflow: use
        slogdet for them.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> print(fmm.linalg.det(np.array([[0.0, 1.0], [1.0, 0.0]])))
    -1.0
    """
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    if (factors := _lu_factors_of_matrix(library, a, max_error_growth)) is None:
        return library.det(a)
    diagonal = _diagonals_of_u(library, factors)
    return _permutation_signs(library, factors, diagonal) * diagonal.prod(-1)


def slogdet(a: Any, /, *, max_error_growth: float | None = None) -> SlogdetResult:
    """Return the sign and the logarithm of the determinant of a matrix, as numpy.linalg.slogdet does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    sign : number or array
        The sign of the determinant: 1, 0 or -1. For a complex matrix, the determinant divided by its magnitude, or 0.
    logabsdet : number or array
        The natural logarithm of the determinant's magnitude; -inf for a singular matrix.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> sign, logarithm = fmm.linalg.slogdet(np.array([[0.0, 1.0], [1.0, 0.0]]))
    >>> print(sign, logarithm)
    -1.0 0.0
    """
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    if (factors := _lu_factors_of_matrix(library, a, max_error_growth)) is None:
        return SlogdetResult(*library.slogdet(a))
    diagonal = _diagonals_of_u(library, factors)
    magnitudes = abs(diagonal)
    sign = _permutation_signs(library, factors, diagonal) * (diagonal / magnitudes).prod(-1)
    return SlogdetResult(sign, library.module.log(magnitudes).sum(-1))


def _lu_factors_of_matrix(library: NumpySolvers, a: Any, limit: float | None) -> LuFactors | None:
    if (
        not is_square(a)
        or not lu_panel_width(library, a, limit)
        or not library.is_plain(a)
        or library.needs_gradient(a)
    ):
        return None
    return lu_of_stacks(library, a, limit)


def _diagonals_of_u(library: NumpySolvers, factors: LuFactors) -> Any:
    """Return the diagonal of U for each matrix of a stack."""
    return library.module.diagonal(factors.lu, 0, -2, -1)


def _permutation_signs(library: NumpySolvers, factors: LuFactors, like: Any) -> Any:
    """Return 1 for an even number of row exchanges and -1 for an odd number, in the element type of `like`."""
    moved = factors.pivots != library.row_numbers(factors.pivots.shape[-1], factors.pivots)
    return 1 - 2 * library.cast(moved.sum(-1) % 2, library.type_name(like))
