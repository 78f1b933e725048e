"""fmm.linalg.cholesky and cho_solve: by recursion if products gain, else by the library's own functions."""

from __future__ import annotations

from typing import Any

from fmm.linalg.arguments import common_arrays, write_result
from fmm.linalg.cholesky_recursion import cholesky_side, factor_stacks
from fmm.linalg.triangular import solve_triangular


def cholesky(a: Any, /, *, upper: bool = False, out: Any = None, max_error_growth: float | None = None) -> Any:
    """Return the Cholesky factor of a Hermitian positive definite matrix, as numpy.linalg.cholesky does.

    Parameters
    ----------
    a : array
        A matrix, or a stack, of NumPy, CuPy or torch. Only the lower triangle is read, with `upper` the upper one.
    upper : bool, optional
        Return U with a = U^H U instead of L with a = L L^H.
    out : array, optional
        Array for the factor; it may be a.
    max_error_growth : float, optional
        The largest error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The factor; the other triangle is zero. `out` if it was passed.

    Raises
    ------
    LinAlgError
        The matrix is not positive definite: numpy.linalg.LinAlgError or torch.linalg.LinAlgError, by the library's own
        function. CuPy's cupyx.errstate decides for CuPy arrays.

    Notes
    -----
    The matrix is halved as long as the product of halves is predicted to gain enough; blocks are factored by the
    library's own function, and so are matrices that do not gain. Where a block has no factor, the library's own
    function factors the whole matrix, and raises. Tensors that require gradients get them.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    library, (a,) = common_arrays(a)
    if not cholesky_side(library, a, max_error_growth) or not library.is_plain(a):
        factor = library.cholesky(a, upper)
    elif library.needs_gradient(a):
        from fmm.linalg.torch_gradients import CholeskyFactor

        factor = CholeskyFactor.apply(library.adjoint(a) if upper else a, max_error_growth)
        factor = library.adjoint(factor) if upper else factor
    else:
        try:
            factor = factor_stacks(library, library.adjoint(a) if upper else a, max_error_growth)
            factor = library.adjoint(factor) if upper else factor
        except library.linalg_error:
            factor = library.cholesky(a, upper)
    return write_result(library, out, factor)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, *, out: Any = None, max_error_growth: float | None = None) -> Any:
    """Return the solution x of a x = b from the Cholesky factor of a, as scipy.linalg.cho_solve does.

    Parameters
    ----------
    c_and_lower : pair of an array and a bool
        The factor, and True if it is lower: a = c c^H; False: a = c^H c. The other triangle is not read.
    b : array
        The right sides: a vector, a matrix or a stack.
    out : array, optional
        Array for the solution; it may be b.
    max_error_growth : float, optional
        The largest error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        x, of the shape of b; `out` if it was passed.

    Raises
    ------
    LinAlgError, ValueError, ImportError
        As fmm.linalg.solve_triangular raises them.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> factor = fmm.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> fmm.linalg.cho_solve((factor, True), np.array([8.0, 12.0]))
    array([1., 2.])
    """
    c, lower = c_and_lower
    for trans in ("N", "C") if lower else ("C", "N"):
        b = solve_triangular(c, b, trans, bool(lower), max_error_growth=max_error_growth)
    return write_result(common_arrays(b)[0], out, b)
