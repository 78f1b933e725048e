"""Which library multiplies these arrays? Found without importing one that nobody has used."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.detect import describe_array, kind_of, may_cache_type, mixed_arrays_error
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY

# The plain types of CuPy and torch, once they have been used: two arrays of one of them need no second look.
PLAIN_TYPES: dict[type, Library] = {}
# Types of which two are always their library's, subclasses of CuPy's and torch's among them.
_known: dict[type, Library] = {np.ndarray: NUMPY}


def library_of(a: Any, b: Any, out: Any = None, third: str = "out") -> Library:
    """The library whose arrays these are; NumPy for what is on the host and of no other. TypeError for a mixture, which
    calls `out` by the name `third`."""
    cls = type(a)
    known = _known.get(cls)
    if known is not None and type(b) is cls and (out is None or type(out) is cls):
        return known
    found = _judged(a, b, out, third)
    if found is not NUMPY and type(b) is cls and (kind := kind_of(a)) in ("cupy", "torch") and may_cache_type(kind):
        _known[cls] = found
    return found


def _judged(a: Any, b: Any, out: Any, third: str) -> Library:
    if out is None and kind_of(a) == "host" == kind_of(b):
        return NUMPY
    given = (a, b) if out is None else (a, b, out)
    kinds = {kind_of(x) for x in given}
    if kinds == {"host"}:
        return NUMPY
    # (Lists and the like are whatever the library takes them for.)
    if any(isinstance(x, np.ndarray) for x in given) or ("torch" in kinds and kinds - {"torch", "host"}):
        raise mixed_arrays_error(a=a, b=b, **{third: out})
    return _torch() if "torch" in kinds else _cupy_for(a, b)


def _cupy_for(a: Any, b: Any) -> Library:
    try:
        return cupy_library()
    except ImportError as error:
        words = f"a is {describe_array(a)}, b is {describe_array(b)}"
        raise TypeError(f"{words}: fmm.matmul needs CuPy to read them") from error


def cupy_library() -> Library:
    """CuPy, which is loaded now; ImportError without it."""
    from fmm.arrays.cupy_library import CUPY, ndarray

    PLAIN_TYPES[ndarray] = CUPY
    return CUPY


def _torch() -> Library:
    from fmm.arrays.torch_calls import PLAIN
    from fmm.arrays.torch_library import TORCH

    if may_cache_type("torch"):
        PLAIN_TYPES.update(dict.fromkeys(PLAIN, TORCH))
    return TORCH
