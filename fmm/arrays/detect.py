"""Functions that detect an array's library and device without importing the library.

CuPy arrays and torch tensors are recognised by the module of their class. Tensor-like objects are recognised by
`__torch_function__`. Other arrays on a CUDA device are recognised by the CUDA array interface or DLPack.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from fmm.dtypes import DTYPES

ArrayKind = Literal["host", "cupy", "torch", "other"]  # other: a CUDA array of a library other than CuPy and torch
DLPACK_CUDA_TYPES = (2, 13)  # device types kDLCUDA and kDLCUDAManaged

# The kind of array for each class, as `array_kind` returns it. The kind is None for classes with host arrays and device
# arrays: array_kind then examines each object.
_kinds_by_class: dict[type, ArrayKind | None] = {
    np.ndarray: "host",
    list: "host",
    tuple: "host",
    int: "host",
    float: "host",
}


def array_kind(x: Any) -> ArrayKind:
    """Return the kind of an array; each class's kind is cached, unless torch compiles the caller."""
    cls = type(x)
    if cls in _kinds_by_class:
        kind = _kinds_by_class[cls]
    else:
        kind = _array_kind_of_class(cls)
        if can_cache_array_kind(kind):
            _kinds_by_class[cls] = kind
    return kind or _array_kind_of_object(x)


def can_cache_array_kind(kind: ArrayKind | None) -> bool:
    """Return True if a class's kind may be cached.

    Return False while torch compiles or exports, since torch records changes of the cache.
    """
    if kind != "torch":
        return True
    try:
        from torch.compiler import is_compiling
    except ImportError:  # a class of another library, in a module named torch
        return True
    return not is_compiling()


def _array_kind_of_object(x: Any) -> ArrayKind:
    if "torch" in sys.modules and hasattr(type(x), "__torch_function__"):
        return "torch"
    return "other" if is_on_cuda(x) else "host"


def _array_kind_of_class(cls: type) -> ArrayKind | None:
    """Return the kind of array of a class ("host", "cupy", "torch" or "other"), found from its base classes.

    Return None if every object of the class must be examined.
    """
    for base in cls.__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "ndarray" and root in ("numpy", "cupy"):
            return "host" if root == "numpy" else "cupy"
        if base.__name__ in ("Tensor", "TensorBase") and root == "torch":
            return "torch"
    return "host" if issubclass(cls, np.generic) else None


def is_on_cuda(x: Any) -> bool:
    """Return True if the object declares CUDA memory by the CUDA array interface or by DLPack."""
    try:
        if getattr(x, "__cuda_array_interface__", None) is not None:
            return True
        device = getattr(x, "__dlpack_device__", None)
        return device is not None and device()[0] in DLPACK_CUDA_TYPES
    except Exception:  # reading the attribute raises for sparse arrays and for arrays on other devices
        return False


def is_on_device(x: Any) -> bool:
    """Return True if the array is in the memory of a CUDA device."""
    kind = array_kind(x)
    return kind in ("cupy", "other") or (kind == "torch" and str(getattr(x, "device", "")).startswith("cuda"))


def type_name(dtype: Any) -> str:
    """Return the name of an element type; `dtype` is a name (also "tf32") or a type of NumPy, CuPy or torch.

    If `dtype` is another object, raise a TypeError that lists the valid names.
    """
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    try:
        return str(np.dtype(dtype).name)
    except TypeError:
        raise TypeError(f"unknown dtype {dtype!r}; valid: {', '.join(DTYPES)}") from None


def is_complex(x: Any) -> bool:
    """Return True for an array of complex numbers, of NumPy, CuPy or torch."""
    dtype = x.dtype
    return bool(dtype.is_complex if hasattr(dtype, "is_complex") else dtype.kind == "c")


# ---- errors that name the arrays


def device_mismatch_error(a: Any, b: Any, out: Any = None) -> ValueError:
    """Return the error for arrays on different devices; the message names each array's device."""
    return ValueError(f"{_describe_arrays(a=a, b=b, out=out)}: fmm.matmul moves nothing between devices")


def mixed_arrays_error(**arrays: Any) -> TypeError:
    """Return the error for arrays of different libraries.

    The message names the library of each array that is not None.
    """
    has_tensor = any(array_kind(x) == "torch" and not is_on_device(x) for x in arrays.values())
    hint = ""
    if has_tensor and any(isinstance(x, np.ndarray) for x in arrays.values()):
        hint = " (torch.from_numpy(x) makes a tensor of an array, x.numpy() an array of a tensor)"
    problem = "fmm moves nothing between host and device, or between libraries"
    return TypeError(f"{_describe_arrays(**arrays)}: {problem}{hint}")


def check_dense(function: str, *arrays: Any) -> None:
    """Raise TypeError for sparse matrices of SciPy and CuPy; NumPy would wrap them in arrays of objects."""
    for x in arrays:
        if hasattr(x, "tocsr"):
            raise TypeError(f"{function} takes dense matrices, not a {type(x).__name__}")


def _describe_arrays(**arrays: Any) -> str:
    return ", ".join(f"{name} is {describe_array(x)}" for name, x in arrays.items() if x is not None)


def describe_array(x: Any) -> str:
    """Return an array's library and device as text, for example "a torch tensor on cuda:0"."""
    kind = array_kind(x)
    if kind == "cupy":
        return f"a CuPy array on cuda:{x.data.device_id}"
    if kind == "torch" and hasattr(x, "device"):
        return f"a torch tensor on {x.device}"
    if isinstance(x, np.ndarray):
        return "a NumPy array on the host"
    where = " on a CUDA device" if kind == "other" else ""
    return f"a {type(x).__module__.partition('.')[0]} {type(x).__name__}{where}"


def describe_value(value: Any) -> str:
    """Return an invalid argument as text.

    A long integer is described by its number of bits, since Python prints at most 4300 digits.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a{' negative' * (value < 0)} number of {value.bit_length()} bits"
    return repr(value)
