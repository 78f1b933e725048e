"""Scale matrices so that no singular value exceeds 1: divide by the Frobenius norm or by the caller's bound."""

from __future__ import annotations

import sys
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from fmm.arrays.detect import describe_value

SMALLEST_NORM = 1e-7  # smallest divisor: a zero matrix divided by this number stays zero


def checked_norm_bound(bound: Any) -> float | None:
    """Return the bound of the singular values as a float or None; ValueError unless it is positive and finite."""
    if bound is None:
        return None
    if isinstance(bound, bool) or not isinstance(bound, Real) or not isfinite(bound) or bound <= 0:
        raise ValueError(f"bound must be a positive finite number, not {describe_value(bound)}")
    return float(bound)


def scaled_tensor(x: Any, bound: float | None, out: Any = None) -> Any:
    """Return torch matrices divided by the caller's bound of their singular values, or else by their Frobenius norms.

    For float16, the norms are computed in float32: a sum of squares easily exceeds the largest float16 number.
    """
    torch = sys.modules["torch"]
    divisor: Any = bound
    if bound is None:
        wide = torch.promote_types(x.dtype, torch.float32)
        norms = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=wide)
        divisor = norms.clamp(min=SMALLEST_NORM)
    return torch.div(x, divisor, out=out) if out is not None else torch.div(x, divisor).to(x.dtype)


def scaled_array(x: Any, bound: float | None, out: Any = None) -> Any:
    """Return NumPy or CuPy matrices divided by the bound of their singular values, or else by Frobenius norms."""
    module = sys.modules["cupy"] if type(x).__module__.startswith("cupy") else np
    divisor: Any = bound
    if bound is None:
        wide = np.promote_types(x.dtype, np.float32)
        squares = module.square(x, dtype=wide).sum(axis=(-2, -1), keepdims=True)
        divisor = module.maximum(module.sqrt(squares), wide.type(SMALLEST_NORM))
    if out is not None:
        return module.divide(x, divisor, out=out, casting="same_kind")
    return (x / divisor).astype(x.dtype, copy=False)
