"""fmm.linalg.qr: tall matrices by Cholesky factors of Gram matrices, all others by the library's own function."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np

from fmm.linalg.arguments import common_arrays
from fmm.linalg.cholesky_qr import cholesky_qr, step_conditions
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


@np.errstate(all="ignore")  # numpy.linalg does not warn of inf and NaN
def factor_tall_stacks(library: NumpySolvers, a: Any, limit: float | None, with_q: bool = True) -> tuple[Any, Any]:
    """Return Q and R of a stack, Q being None without `with_q`; the library's own where Cholesky QR fails."""
    if a.ndim == 2:
        return factor_tall(library, a, limit, with_q)
    *stack, _, n = a.shape
    q = library.empty(tuple(a.shape), a) if with_q else None
    r = library.empty((*stack, n, n), a)
    for i in np.ndindex(*stack):
        one_q, one_r = factor_tall(library, a[i], limit, with_q)
        library.write(r[i], one_r)
        if q is not None:
            library.write(q[i], one_q)
    return q, r


def factor_tall(library: NumpySolvers, a: Any, limit: float | None, with_q: bool) -> tuple[Any, Any]:
    """Return Q and R of one matrix, Q being None without `with_q`; the library's own where Cholesky QR fails."""
    if (factors := cholesky_qr(library, a, limit, with_q)) is not None:
        return factors
    own = library.qr(a, "reduced" if with_q else "r")
    return own if with_q else (None, own)
