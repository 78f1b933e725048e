"""Select the adapter for a call's arrays.

CuPy and torch are imported at the first call with their arrays.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.arrays.detect import array_kind, can_cache_array_kind, describe_array, mixed_arrays_error
from fmm.arrays.library import Library
from fmm.arrays.numpy_library import NUMPY

# The adapter for each of the classes cupy.ndarray, torch.Tensor and torch.nn.Parameter, added at the first call with
# the class. Callers look up an array's class in this table before they call `library_of`, which takes longer.
PLAIN_TYPES: dict[type, Library] = {}
# The adapter for each class that `library_of` has found once: numpy.ndarray, and the array classes of CuPy and torch
# with their subclasses.
_libraries: dict[type, Library] = {np.ndarray: NUMPY}


def library_of(a: Any, b: Any, out: Any = None, third_name: str = "out") -> Library:
    """Return the adapter for these arrays; NumPy's for lists, and for host arrays of libraries without an adapter.

    Raise TypeError if the arrays belong to different libraries. `third_name` is the name of the third argument in error
    messages.
    """
    cls = type(a)
    cached = _libraries.get(cls)
    if cached is not None and type(b) is cls and (out is None or type(out) is cls):
        return cached
    found = _select_library(a, b, out, third_name)
    if (
        found is not NUMPY
        and type(b) is cls
        and (kind := array_kind(a)) in ("cupy", "torch")
        and can_cache_array_kind(kind)
    ):
        _libraries[cls] = found
    return found


def _select_library(a: Any, b: Any, out: Any, third_name: str) -> Library:
    if out is None and array_kind(a) == "host" == array_kind(b):
        return NUMPY
    arrays = (a, b) if out is None else (a, b, out)
    kinds = {array_kind(x) for x in arrays}
    if kinds == {"host"}:
        return NUMPY
    # A list or another sequence as one operand is no error: it is converted to an array of the other operand's library.
    if any(isinstance(x, np.ndarray) for x in arrays) or ("torch" in kinds and kinds - {"torch", "host"}):
        raise mixed_arrays_error(a=a, b=b, **{third_name: out})
    if "torch" in kinds:
        return _load_torch_library()
    try:
        return cupy_library()
    except ImportError as error:
        operands = f"a is {describe_array(a)}, b is {describe_array(b)}"
        raise TypeError(f"{operands}: fmm.matmul needs CuPy to read them") from error


def cupy_library() -> Library:
    """Return the adapter for CuPy; the first call imports CuPy. Raise ImportError if CuPy is not installed."""
    from fmm.arrays.cupy_library import CUPY, ndarray

    PLAIN_TYPES[ndarray] = CUPY
    return CUPY


def _load_torch_library() -> Library:
    from fmm.arrays.torch_calls import PLAIN_TENSORS
    from fmm.arrays.torch_library import TORCH

    if can_cache_array_kind("torch"):
        PLAIN_TYPES.update(dict.fromkeys(PLAIN_TENSORS, TORCH))
    return TORCH
