"""fmm.linalg.lu_factor and lu_solve: by recursion if its products are fast enough, else by the library's functions."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.linalg.arguments import (
    check_limit,
    check_right_sides,
    check_square,
    checked_trans_option,
    common_arrays,
    is_square,
    write_result,
)
from fmm.linalg.lu_recursion import factor_matrix, lu_panel_width
from fmm.linalg.solver_library import NUMPY_SOLVERS, LuFactors, NumpySolvers, TorchSolvers
from fmm.linalg.triangular import solve_triangular


def lu_factor(a: Any, /, *, out: Any = None, max_error_growth: float | None = None) -> tuple[Any, Any]:
    """Return the LU factors of a matrix with partial pivoting, as scipy.linalg.lu_factor does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch.
    out : array, optional
        Array for the factors. `out` may be `a`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    lu : array
        U in the upper triangle, and L, whose diagonal is 1, below the diagonal; `out` if it was passed.
    pivots : array of int32
        Row i was exchanged with row pivots[i]. Rows are counted from 0, or for torch tensors from 1, as in
        torch.linalg.lu_factor.

    Raises
    ------
    RuntimeError
        A matrix of torch is singular; torch.linalg.lu_factor raises the exception. For singular matrices of NumPy and
        CuPy, SciPy and CuPy warn.

    Notes
    -----
    The columns are halved until panels remain. On a GPU of compute capability 9.0 a kernel factors a panel of float32
    or float64 in the registers of one cluster. Of several entries with the largest magnitude, the first row's is the
    pivot, as in LAPACK. The library's own function factors tensors that require gradients, and matrices that are not
    square, are singular, have inf or NaN, or for which no gain is predicted.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> lu, pivots = fmm.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> lu
    array([[4.  , 4.  ],
           [0.25, 1.  ]])
    """
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    factors = None
    if (
        is_square(a)
        and lu_panel_width(library, a, max_error_growth)
        and library.is_plain(a)
        and not library.needs_gradient(a)
    ):
        factors = lu_of_stacks(library, a, max_error_growth)
    if factors is None:
        lu, pivots = library.lu_factor(a)
    else:
        lu, pivots = factors.lu, factors.pivots + library.first_pivot
    return write_result(library, out, lu), pivots


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def lu_of_stacks(library: NumpySolvers, a: Any, limit: float | None) -> LuFactors | None:
    """Return the LU factors of a stack; None if the library's own function must factor the stack."""
    if not (width := lu_panel_width(library, a, limit)):
        return None
    lu = library.empty(tuple(a.shape), a)
    pivots = library.empty_pivots(int(np.prod(a.shape[:-1])), a).reshape(a.shape[:-1])
    for i in np.ndindex(*a.shape[:-2]):
        factors = factor_matrix(library, a[i], width, limit, lu[i])
        if factors is None:
            return None
        library.overwrite(pivots[i], factors.pivots)
    return LuFactors(lu, pivots)


def lu_solve(
    lu_and_pivots: tuple[Any, Any],
    b: Any,
    trans: int | str = 0,
    *,
    out: Any = None,
    max_error_growth: float | None = None,
) -> Any:
    """Return the solution x of op(a) x = b from the LU factors of a, as scipy.linalg.lu_solve does.

    Parameters
    ----------
    lu_and_pivots : pair of arrays
        The result of fmm.linalg.lu_factor, or of the library's own lu_factor.
    b : array
        The right-hand sides: a vector, a matrix, or a stack of matrices.
    trans : {0, 1, 2, "N", "T", "C"}, optional
        op(a) is a (0 or "N"), its transpose (1 or "T"), or its conjugate transpose (2 or "C").
    out : array, optional
        Array for the solution. `out` may be `b`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The solution x, with the shape of b; `out` if it was passed.

    Raises
    ------
    LinAlgError, ValueError, ImportError
        For the same reasons as in fmm.linalg.solve_triangular.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> factors = fmm.linalg.lu_factor(np.array([[1.0, 2.0], [4.0, 4.0]]))
    >>> fmm.linalg.lu_solve(factors, np.array([5.0, 12.0]))
    array([1., 2.])
    """
    check_limit(max_error_growth)
    lu, pivots = lu_and_pivots
    library, (lu, b) = common_arrays(lu, b, as_in_scipy=True)
    check_square(lu)
    pivots = np.asarray(pivots) if library is NUMPY_SOLVERS else pivots
    if (shape := tuple(np.shape(pivots))) != tuple(lu.shape[:-1]):
        raise ValueError(f"shapes of the factors {tuple(lu.shape)} and pivots {shape} are incompatible")
    column = b[:, None] if b.ndim == 1 else b
    check_right_sides(lu, column)
    trans = checked_trans_option(trans)
    if isinstance(library, TorchSolvers) and not (library.is_plain(lu, b) and library.is_plain(pivots)):
        x = library.lu_solve(LuFactors(lu, pivots), column, trans)
    else:
        rows = library.empty_pivots(int(np.prod(shape)), pivots).reshape(shape)  # contiguous, as the kernel reads them
        library.overwrite(rows, library.cast(pivots, "int32") - library.first_pivot)
        x = solve_by_factors(library, LuFactors(lu, rows), column, max_error_growth, trans)
    return write_result(library, out, x[..., 0] if b.ndim == 1 else x)


def solve_by_factors(library: NumpySolvers, factors: LuFactors, b: Any, limit: float | None, trans: str = "N") -> Any:
    """Return the solutions of op(a) x = b from the LU factors of a; `trans` is "N", "T" or "C"."""
    lu, order = factors.lu, row_orders_after_exchanges(library, factors.pivots)
    options: dict[str, Any] = {"max_error_growth": limit}
    if trans == "N":
        y = solve_triangular(lu, permute_rows(library, b, order), 0, True, True, **options)
        return solve_triangular(lu, y, 0, False, **options)
    y = solve_triangular(lu, b, trans, False, **options)
    y = solve_triangular(lu, y, trans, True, True, **options)
    return permute_rows(library, y, library.module.argsort(order, -1))


def solve_systems(
    library: NumpySolvers, a: Any, b: Any, assume_a: str, limit: float | None
) -> tuple[Any, LuFactors | None]:
    """Return the solutions and the LU factors; the factors are None if the library's function solved the systems."""
    if (factors := lu_of_stacks(library, a, limit)) is None:
        return library.solve(a, b, assume_a), None
    return solve_by_factors(library, factors, b, limit), factors


def row_orders_after_exchanges(library: NumpySolvers, pivots: Any) -> Any:
    """Return the order of the rows after all exchanges by the pivots, for each matrix of a stack."""
    n = pivots.shape[-1]
    if pivots.ndim == 1:
        return _row_order_after_exchanges(library, pivots, n)
    if 0 in pivots.shape:
        return library.cast(pivots, "int64")
    orders = [_row_order_after_exchanges(library, pivots[i], n) for i in np.ndindex(*pivots.shape[:-1])]
    return library.module.stack(orders).reshape(tuple(pivots.shape))


def _row_order_after_exchanges(library: NumpySolvers, pivots: Any, n: int) -> Any:
    order = library.row_numbers(n, pivots)
    if n:
        targets, sources = library.moved_row_indices(pivots, 0)
        order[targets] = sources
    return order


def permute_rows(library: NumpySolvers, x: Any, order: Any) -> Any:
    """Return the matrices x with their rows in the order `order`, which has one row for each matrix."""
    if order.ndim == 1:
        return x[..., order, :]
    batch = np.broadcast_shapes(tuple(x.shape[:-2]), tuple(order.shape[:-1]))
    broadcast = library.module.broadcast_to
    return library.reorder_rows(broadcast(x, (*batch, *x.shape[-2:])), broadcast(order, (*batch, order.shape[-1])))
