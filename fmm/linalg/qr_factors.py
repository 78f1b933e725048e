"""fmm.linalg.qr: tall matrices by Cholesky factors of Gram matrices, all other matrices by the library's own
function."""

from __future__ import annotations

from typing import Any, Literal

from fmm.linalg.arguments import common_arrays
from fmm.linalg.cholesky_qr import factor_tall_stacks, step_conditions
from fmm.linalg.qr_steps import gains_by_products
from fmm.linalg.solver_library import NumpySolvers

QR_MODES = ("reduced", "r")


def qr(a: Any, /, mode: Literal["reduced", "r"] = "reduced", *, max_error_growth: float | None = None) -> Any:
    """Return the reduced QR factors of a matrix, a = Q R, as numpy.linalg.qr does.

    Parameters
    ----------
    a : array
        A matrix, or a stack, of NumPy, CuPy or torch.
    mode : {"reduced", "r"}, optional
        "r" returns R alone.
    max_error_growth : float, optional
        The largest error growth of the products, as in fmm.matmul.

    Returns
    -------
    tuple of two arrays, or an array
        Q and R; in mode "r", R. The diagonal of R is positive where products factor; the library's own function may
        choose other signs.

    Raises
    ------
    ValueError
        mode has an unknown value.
    LinAlgError
        By the library's own function, for an array that is no matrix.

    Notes
    -----
    Tall matrices on a GPU, for which the model predicts a gain, are factored by Cholesky QR: two passes, each a product
    A^H A, its Cholesky factor, and a product with the factor's inverse. Before the last pass ||Q^H Q - I|| is measured;
    where it is above 0.25 a third pass follows, and then the library's own function. So Q is as orthogonal as
    Householder's. Singular matrices, wide ones and matrices that do not gain are the library's own. Tensors that
    require gradients get them in mode "reduced".

    Examples
    --------
    >>> import numpy as np, fmm
    >>> q, r = fmm.linalg.qr(np.array([[3.0, 1.0], [4.0, 2.0], [0.0, 2.0]]))
    >>> np.allclose(q @ r, [[3, 1], [4, 2], [0, 2]])
    True
    """
    if mode not in QR_MODES:
        raise ValueError(f"unknown mode {mode!r}; valid: {', '.join(QR_MODES)}")
    library, (a,) = common_arrays(a)
    if not factors_by_products(library, a, mode == "reduced", max_error_growth):
        return library.qr(a, mode)
    if library.needs_gradient(a):
        if mode == "r":
            return library.qr(a, mode)
        from fmm.linalg.torch_gradients import QrFactors

        return QrFactors.apply(a, max_error_growth)
    q, r = factor_tall_stacks(library, a, max_error_growth, mode == "reduced")
    return (q, r) if mode == "reduced" else r


def factors_by_products(library: NumpySolvers, a: Any, with_q: bool, limit: float | None) -> bool:
    """Return True if Cholesky QR is predicted to gain for each matrix of a stack."""
    if a.ndim < 2 or not library.is_plain(a):
        return False
    return gains_by_products(*a.shape[-2:], step_conditions(library, a, limit), with_q)
