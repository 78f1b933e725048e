"""fmm.orthogonalize: check the arguments, and choose launches for a whole stack or products of arrays."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np

from fmm.arrays.detect import array_kind, check_dense, mixed_arrays_error, type_name
from fmm.config.environment import is_disabled
from fmm.newton_schulz.array_iteration import iteration_step_by_fmm, iteration_step_by_torch, run_steps
from fmm.newton_schulz.coefficients import StepCoefficients, step_coefficients
from fmm.newton_schulz.scaling import checked_norm_bound, scaled_array, scaled_tensor

REAL_TYPES = ("bfloat16", "float16", "float32", "float64")


def orthogonalize(
    x: Any,
    steps: int = 5,
    coefficients: str | Sequence[Any] = "muon",
    *,
    bound: float | None = None,
    out: Any = None,
) -> Any:
    """Return a matrix with the singular vectors of x, and singular values near 1, by the Newton-Schulz iteration.

    Each step replaces X by a X + b (X X^T) X + c (X X^T)^2 X. The iteration approximates U V^T for x = U S V^T, as the
    optimizer Muon does with each update.

    Parameters
    ----------
    x : array
        A matrix, or a stack of matrices, of NumPy, CuPy or torch, in bfloat16, float16, float32 or float64. The
        iteration runs in this type.
    steps : int, optional
        Number of steps.
    coefficients : str or sequence, optional
        "muon": the same polynomial in each step; singular values above 0.01 times the norm end between about 0.7 and
        1.2. "polar-express": polynomials that converge to 1 for singular values above 0.001 times the norm. Otherwise
        three numbers (a, b, c) for all steps, or a sequence of three numbers for each step; the last three are used
        again if there are more steps.
    bound : float, optional
        An upper bound of the largest singular value; x is divided by the bound. By default each matrix is divided by
        its Frobenius norm.
    out : array, optional
        Array for the result; `out` may be x.

    Returns
    -------
    array
        The result, of the shape and type of x; `out` if it was passed.

    Raises
    ------
    ValueError, TypeError
        x is no matrix of real floating-point numbers, `out` does not match x, or an option is invalid.

    Notes
    -----
    A step computes A = X X^T (X^T X for a tall matrix), B = b A + c A A, and a X + B X. A and B are symmetric, so only
    one triangle of A and B is computed where this is faster. In bfloat16 and float16 on Hopper, a step of a whole stack
    is three launches. For long matrices on Hopper, steps run in pairs: A of the second step is computed from A of the
    first step, without X. For tensors that require gradients, torch's own products compute the result and record the
    gradients.

    A norm below 1e-7 counts as 1e-7, so zeros stay zeros. The norm must be a finite number of float32; for float64, its
    square must be a finite number.

    Examples
    --------
    >>> import numpy as np, fmm
    >>> x = np.array([[3.0, 0.0, 0.0], [0.0, 0.0, -4.0]])
    >>> abs(fmm.orthogonalize(x, 8, "polar-express").round(3))
    array([[1., 0., 0.],
           [0., 0., 1.]])
    """
    chosen, limit = step_coefficients(coefficients, steps), checked_norm_bound(bound)
    check_dense("fmm.orthogonalize", x, out)
    x = np.asarray(x) if array_kind(x) == "host" else x
    _check_arrays(x, out)
    if x.size == 0 if isinstance(x, np.ndarray) else 0 in x.shape:
        return _copy_to_out(x, out)
    if array_kind(x) != "host" and not is_disabled():
        from fmm.newton_schulz.hopper_iteration import orthogonalize_on_hopper

        result = orthogonalize_on_hopper(x, chosen, limit, out)
        if result is not None:
            return result
    return _copy_to_out(_orthogonalize_by_products(x, chosen, limit), out)


def _check_arrays(x: Any, out: Any) -> None:
    """Raise TypeError or ValueError unless x is a stack of real matrices and `out` can hold the result."""
    if array_kind(x) == "other" or (out is not None and array_kind(out) != array_kind(x)):
        raise mixed_arrays_error(x=x, out=out)
    if x.ndim < 2:
        raise ValueError(f"expected a matrix or a stack of matrices, not the shape {tuple(x.shape)}")
    if type_name(x.dtype) not in REAL_TYPES:
        raise ValueError(f"expected an array of {', '.join(REAL_TYPES)}, not of {type_name(x.dtype)}")
    if out is not None and (tuple(out.shape) != tuple(x.shape) or out.dtype != x.dtype):
        raise ValueError(
            f"out is {tuple(out.shape)} of {type_name(out.dtype)}, x is {tuple(x.shape)} of {type_name(x.dtype)}"
        )


def _orthogonalize_by_products(x: Any, coefficients: Sequence[StepCoefficients], bound: float | None) -> Any:
    """Return the result of all steps, computed by products of arrays."""
    if array_kind(x) != "torch":
        return run_steps(scaled_array(x, bound), coefficients, iteration_step_by_fmm)
    matrices = x.flatten(0, -3) if x.ndim > 3 else x
    step = iteration_step_by_fmm if _may_be_faster_by_plans(matrices) else iteration_step_by_torch
    return run_steps(scaled_tensor(matrices, bound), coefficients, step).reshape(x.shape)


# Smallest matrix side for which fmm's products may be faster than torch's own products in float32 and float64. For
# matrices with a smaller side, fmm would choose torch's products, and the choice takes longer than the products.
MIN_PLAN_SIDE = 1024


def _may_be_faster_by_plans(x: Any) -> bool:
    """Return True if fmm's products may be faster than torch's own products, and torch only multiplies."""
    from fmm.arrays.torch_calls import is_plain_call

    torch = sys.modules["torch"]
    if x.dtype not in (torch.float32, torch.float64) or min(x.shape[-2:]) < MIN_PLAN_SIDE:
        return False
    return is_plain_call(x, x, None) and not (torch.is_grad_enabled() and x.requires_grad)


def _copy_to_out(result: Any, out: Any) -> Any:
    """Return the result; if `out` was passed, copy the result into `out` and return `out`."""
    if out is None:
        return result
    if array_kind(out) == "torch":
        return out.copy_(result)
    out[...] = result
    return out
