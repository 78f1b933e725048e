"""fmm.linalg.lstsq: tall systems by Cholesky factors of Gram matrices, other systems by the library's own function."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmm import api
from fmm.linalg.arguments import check_limit, common_arrays
from fmm.linalg.cholesky_factors import cho_solve
from fmm.linalg.cholesky_qr import run_cholesky_qr_passes
from fmm.linalg.qr_factors import prefers_cholesky_qr
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.triangular import solve_triangular

FULL_RANK_PASSES = 2  # a matrix that needs a third pass may be singular: the library solves its system, and sets a rank


class LeastSquares(NamedTuple):
    """The results of lstsq, in the order of the results of the library's own function."""

    solution: Any
    residuals: Any
    rank: Any
    singular_values: Any


def lstsq(a: Any, b: Any, /, *, max_error_growth: float | None = None) -> LeastSquares:
    """Return the x for which the norm of b - a x is smallest, as numpy.linalg.lstsq does.

    Parameters
    ----------
    a : array
        The matrix, of NumPy, CuPy or torch.
    b : array
        The right-hand sides: a vector or a matrix; for torch a matrix.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    LeastSquares
        A tuple of the solution, the squared norms of the columns of b - a x, the rank, and the singular values of a. If
        products compute the solution, a has full rank, and the array of singular values is empty.

    Raises
    ------
    LinAlgError, RuntimeError
        The library's own function failed.

    Notes
    -----
    Tall systems on a GPU for which the model predicts a gain are solved by Cholesky QR, x = R^-1 Q^H b. If two passes
    of Cholesky QR suffice, a has full rank. The library's own function solves all other systems, stacks, and tensors
    that require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> x = fmm.linalg.lstsq(np.array([[1.0, 0.0], [0.0, 2.0], [0.0, 0.0]]), np.array([3.0, 4.0, 5.0])).solution
    >>> np.round(x, 12)
    array([3., 2.])
    """
    check_limit(max_error_growth)
    library, (a, b) = common_arrays(a, b)
    if not is_solved_by_cholesky_qr(library, a, b, max_error_growth):
        return LeastSquares(*library.lstsq(a, b))
    return solve_tall_system(library, a, b, max_error_growth) or LeastSquares(*library.lstsq(a, b))


def is_solved_by_cholesky_qr(library: NumpySolvers, a: Any, b: Any, limit: float | None) -> bool:
    """Return True if Cholesky QR is predicted to be faster than the library's lstsq, and no gradient is needed."""
    matches = a.ndim == 2 and b.ndim in library.right_side_axes and b.shape[0] == a.shape[0] and b.dtype == a.dtype
    if not matches or not library.is_plain(a, b) or library.needs_gradient(a, b):
        return False
    return prefers_cholesky_qr(library, a, False, limit)


@np.errstate(all="ignore")  # numpy.linalg does not warn of inf and NaN
def solve_tall_system(library: NumpySolvers, a: Any, b: Any, limit: float | None) -> LeastSquares | None:
    """Return the solution of one system; None if a may be singular.

    With a = Q R after the first pass of Cholesky QR and Q^H Q = L L^H, x is the solution of R x = (L L^H)^-1 Q^H b.
    """
    if (passes := run_cholesky_qr_passes(library, a, limit, FULL_RANK_PASSES)) is None:
        return None
    sides = b[:, None] if b.ndim == 1 else b
    projected = api.matmul(library.adjoint(passes.q), sides, max_error_growth=limit)
    projected = cho_solve((passes.last_factor, True), projected, max_error_growth=limit)
    x = solve_triangular(passes.r, projected, max_error_growth=limit)
    rest = abs(sides - api.matmul(a, x, max_error_growth=limit))
    n = a.shape[1]
    singular_values = (rest * rest).reshape(-1)[:0]
    residuals = (rest * rest).sum(0) if a.shape[0] > n else singular_values
    return LeastSquares(x[:, 0] if b.ndim == 1 else x, residuals, library.rank(n, a), singular_values)
