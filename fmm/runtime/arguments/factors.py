"""alpha and beta of whole numbers: whole, and such as the numbers' type holds."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.detect import type_name
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY
from fmm.dtypes import INTEGERS

NAMES = "alpha", "beta"


def fitting_factors(library: Library, arrays: tuple[Any, ...], alpha: Any, beta: Any) -> tuple[Any, Any]:
    """The factors of a product of these arrays (None: there is none), as it can be multiplied by them.

    Of whole numbers by whole ones, be they written 2 or 2.0. (Of tensors torch itself refuses what does not fit.)
    """
    if library.differentiable or (alpha in (0, 1) and beta in (0, 1)):
        return alpha, beta
    dtype = _whole_type(library, arrays)
    if dtype is None:
        return alpha, beta
    x, y = (_whole_factor(*named, dtype) for named in zip(NAMES, (alpha, beta), strict=True))
    return x, y


def _whole_type(library: Library, arrays: tuple[Any, ...]) -> np.dtype[Any] | None:
    """Of the product, if its numbers are whole."""
    given = [np.asanyarray(x) if library is NUMPY else x for x in arrays if x is not None]
    names = [type_name(x.dtype) for x in given]
    if any(name not in INTEGERS for name in names):
        return None
    found = np.result_type(*names)
    return found if found.name in INTEGERS else None  # (int64 and uint64 are multiplied in float64)


def _whole_factor(name: str, value: Any, dtype: np.dtype[Any]) -> Any:
    if isinstance(value, complex):
        return value
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, float):
        raise TypeError(f"{name} must be a whole number, not {value!r}: cannot cast such multiples to {dtype}")
    least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
    if not least <= value <= most:
        raise ValueError(f"{name} must be a number that {dtype} holds, {least} to {most}, not {value!r}")
    return value
