"""fmm.linalg.qr: tall matrices by Cholesky factors of Gram matrices, all other matrices by the library's own
function."""

from __future__ import annotations

from typing import Any, Literal

from fmm.linalg.arguments import check_choice, check_limit, common_arrays
from fmm.linalg.cholesky_qr import qr_of_tall_stacks, step_conditions
from fmm.linalg.qr_steps import is_cholesky_qr_faster
from fmm.linalg.solver_library import NumpySolvers

QR_MODES = ("reduced", "r")


def qr(a: Any, /, mode: Literal["reduced", "r"] = "reduced", *, max_error_growth: float | None = None) -> Any:
    """Return the reduced QR factors of a matrix, a = Q R, as numpy.linalg.qr does.

    Parameters
    ----------
    a : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch.
    mode : {"reduced", "r"}, optional
        "r" returns R alone.
    max_error_growth : float, optional
        Limit on the error growth of the products, as in fmm.matmul.

    Returns
    -------
    tuple of two arrays, or an array
        Q and R; in mode "r", R. The diagonal of R is positive if products compute the factors; the library's own
        function may choose other signs.

    Raises
    ------
    ValueError
        mode has an unknown value.
    LinAlgError
        The array is no matrix; the library's own function raises the exception.

    Notes
    -----
    Tall matrices on a GPU for which the model predicts a gain are factored by Cholesky QR. Each of its two passes
    computes A^H A, the Cholesky factor of A^H A, and a product with the factor's inverse. If ||Q^H Q - I|| is above
    0.25 after the first pass, a third pass follows. If the norm is above 0.25 again, the library's own function factors
    the matrix. So Q is as orthogonal as the Q of Householder's method. The library's own function also factors singular
    matrices, wide matrices, and matrices for which no gain is predicted. In mode "reduced", gradients are computed for
    tensors that require gradients.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> q, r = fmm.linalg.qr(np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 2.0]]))
    >>> np.allclose(q @ r, [[3, 1], [4, 2], [0, 2]])
    True
    """
    check_choice("mode", mode, QR_MODES)
    check_limit(max_error_growth)
    library, (a,) = common_arrays(a)
    if not prefers_cholesky_qr(library, a, mode == "reduced", max_error_growth):
        return library.qr(a, mode)
    if library.needs_gradient(a):
        if mode == "r":
            return library.qr(a, mode)
        from fmm.linalg.torch_gradients import QrFactors

        return QrFactors.apply(a, max_error_growth)
    q, r = qr_of_tall_stacks(library, a, max_error_growth, mode == "reduced")
    return (q, r) if mode == "reduced" else r


def prefers_cholesky_qr(library: NumpySolvers, a: Any, with_q: bool, limit: float | None) -> bool:
    """Return True if Cholesky QR is predicted to be faster than the library's QR for matrices of this shape."""
    if a.ndim < 2 or not library.is_plain(a):
        return False
    return is_cholesky_qr_faster(*a.shape[-2:], step_conditions(library, a, limit), with_q)
