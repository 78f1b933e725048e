"""Scale matrices so that no singular value exceeds 1: divide by the Frobenius norm or by the caller's bound."""

from __future__ import annotations

import sys
from math import isfinite
from numbers import Real
from typing import Any

import numpy as np

from fmm.arrays.detect import describe_value

SMALLEST_NORM = 1e-7  # smallest divisor, as in torch's Muon: a zero matrix divided by this number stays zero


def checked_norm_bound(bound: Any) -> float | None:
    """Return the bound of the singular values as a float or None; ValueError unless it is positive and finite."""
    if bound is None:
        return None
    if isinstance(bound, bool) or not isinstance(bound, Real) or not isfinite(bound) or bound <= 0:
        raise ValueError(f"bound must be a positive finite number, not {describe_value(bound)}")
    return float(bound)


def scaled_tensor(x: Any, bound: float | None, out: Any = None) -> Any:
    """Return torch matrices divided by the caller's bound of their singular values, or else by their Frobenius norms.

    The norms are computed in float64, since the sum of the squares can exceed the largest number of a narrower type.
    """
    torch = sys.modules["torch"]
    divisor: Any = bound
    if bound is None:
        wide = torch.promote_types(x.dtype, torch.float32)
        widest = torch.float64 if x.device.type in ("cpu", "cuda") else wide
        norms = torch.linalg.vector_norm(x, dim=(-2, -1), keepdim=True, dtype=widest)
        divisor = norms.clamp(min=SMALLEST_NORM).to(wide)
    return torch.div(x, divisor, out=out) if out is not None else torch.div(x, divisor).to(x.dtype)


def scaled_array(x: Any, bound: float | None, out: Any = None) -> Any:
    """Return NumPy or CuPy matrices divided by the bound of their singular values, or else by Frobenius norms."""
    module = sys.modules["cupy"] if type(x).__module__.startswith("cupy") else np
    wide = np.promote_types(x.dtype, np.float32)
    divisor: Any
    if bound is not None:
        divisor = wide.type(bound)  # a Python float would be rounded to float16
    else:
        squares = module.square(x, dtype=np.float64).sum(axis=(-2, -1), keepdims=True)
        divisor = module.maximum(module.sqrt(squares), SMALLEST_NORM).astype(wide)
    if out is not None:
        return module.divide(x, divisor, out=out, casting="same_kind")
    return (x / divisor).astype(x.dtype, copy=False)
