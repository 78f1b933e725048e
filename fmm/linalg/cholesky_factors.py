"""fmm.linalg.cholesky and cho_solve: by recursion if its products are fast enough, else by the library's functions."""

from __future__ import annotations

from typing import Any

from fmm.linalg.arguments import check_limit, common_arrays, write_result
from fmm.linalg.cholesky_recursion import cholesky_block_side, cholesky_of_stacks
from fmm.linalg.triangular import solve_triangular


def cholesky(a: Any, /, *, upper: bool = False, out: Any = None, max_error_growth: float | None = None) -> Any:
    """Return the Cholesky factor of a Hermitian positive definite matrix, as numpy.linalg.cholesky does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch. Only the lower triangle is read; if `upper` is True,
        only the upper triangle.
    upper : bool, optional
        Return U with a = U^H U instead of L with a = L L^H.
    out : array, optional
        Array for the factor. `out` may be `a`.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    array
        The factor; `out` if it was passed. The entries on the other side of the diagonal are zero.

    Raises
    ------
    LinAlgError
        The matrix is not positive definite. The exception is numpy.linalg.LinAlgError or torch.linalg.LinAlgError. For
        CuPy arrays, cupyx.errstate decides whether an exception is raised.

    Notes
    -----
    The matrix is halved as long as a large enough speedup is predicted for the products of the halves. The library's
    own function factors the blocks on the diagonal, and whole matrices for which no gain is predicted. If a block has
    no factor, the library's own function factors the whole matrix, and raises its exception. Gradients are computed for
    tensors that require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> fmm.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    array([[2., 0.],
           [1., 2.]])
    """
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    if not cholesky_block_side(library, a, max_error_growth) or not library.is_plain(a):
        factor = library.cholesky(a, upper)
    elif library.needs_gradient(a):
        from fmm.linalg.torch_gradients import CholeskyFactor

        factor = CholeskyFactor.apply(library.adjoint(a) if upper else a, max_error_growth)
        factor = library.adjoint(factor) if upper else factor
    else:
        try:
            factor = cholesky_of_stacks(library, library.adjoint(a) if upper else a, max_error_growth)
            factor = library.adjoint(factor) if upper else factor
        except library.linalg_error:
            factor = library.cholesky(a, upper)
    return write_result(library, out, factor)


def cho_solve(c_and_lower: tuple[Any, bool], b: Any, *, out: Any = None, max_error_growth: float | None = None) -> Any:
    """Return the solution x of a x = b from the Cholesky factor of a, as scipy.linalg.cho_solve does.

    Parameters
    ----------
    c_and_lower : pair of an array and a bool
        The factor c and a bool: True if c is lower triangular (a = c c^H), False if c is upper triangular (a = c^H c).
        The entries of c on the other side of the diagonal are not read.
    b : array
        The right-hand sides: a vector, a matrix, or a stack of matrices.
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
    >>> factor = fmm.linalg.cholesky(np.array([[4.0, 2.0], [2.0, 5.0]]))
    >>> fmm.linalg.cho_solve((factor, True), np.array([8.0, 12.0]))
    array([1., 2.])
    """
    c, lower = c_and_lower
    library, (c, b) = common_arrays(c, b, as_in_scipy=True)
    x = b[:, None] if b.ndim == 1 else b
    for trans in ("N", "C") if lower else ("C", "N"):
        x = solve_triangular(c, x, trans, bool(lower), max_error_growth=max_error_growth)
    return write_result(library, out, x[..., 0] if b.ndim == 1 else x)
