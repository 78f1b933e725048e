"""Whose array is it? Told without importing the libraries that make them.

CuPy's arrays and torch's tensors are known by the module of their type; what stands for a tensor by the method that
torch looks for; anything else on a CUDA device by the attributes of the two protocols for exchanging arrays.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

import numpy as np

from fmm.dtypes import DTYPES

Kind = Literal["host", "cupy", "torch", "other"]  # other: on a CUDA device, of a library that is none of the three
DLPACK_CUDA = (2, 13)  # kDLCUDA, kDLCUDAManaged

# By type; None where only the object itself can tell.
_kinds: dict[type, Kind | None] = {np.ndarray: "host", list: "host", tuple: "host", int: "host", float: "host"}


def kind_of(x: Any) -> Kind:
    """Whose array `x` is. A type is judged once; objects of a type that may be on a device or not, each time."""
    cls = type(x)
    if cls in _kinds:
        kind = _kinds[cls]
    else:
        kind = _kind_of_type(cls)
        if may_cache_type(kind):
            _kinds[cls] = kind
    return kind or _kind_of_object(x)


def may_cache_type(kind: Kind | None) -> bool:
    """May it be kept of what kind a type is? Not of tensors while torch compiles or exports a call: it takes note of
    all that the call changes, and warns."""
    if kind != "torch":
        return True
    try:
        from torch.compiler import is_compiling
    except ImportError:  # another's type, which says that it is torch's
        return True
    return not is_compiling()


def _kind_of_object(x: Any) -> Kind:
    if "torch" in sys.modules and hasattr(type(x), "__torch_function__"):
        return "torch"
    return "other" if on_cuda(x) else "host"


def _kind_of_type(cls: type) -> Kind | None:
    """By the modules that the type and its ancestors come from."""
    for base in cls.__mro__:
        root = base.__module__.partition(".")[0]
        if base.__name__ == "ndarray" and root in ("numpy", "cupy"):
            return "host" if root == "numpy" else "cupy"
        if base.__name__ in ("Tensor", "TensorBase") and root == "torch":
            return "torch"
    return "host" if issubclass(cls, np.generic) else None


def on_cuda(x: Any) -> bool:
    """Does one of the protocols say that the object is in CUDA memory?"""
    try:
        if getattr(x, "__cuda_array_interface__", None) is not None:
            return True
        ask = getattr(x, "__dlpack_device__", None)
        return ask is not None and ask()[0] in DLPACK_CUDA
    except Exception:  # an attribute that raises says no in its own way: sparse arrays, arrays on another device
        return False


def on_device(x: Any) -> bool:
    """Is it an array in a device's memory?"""
    kind = kind_of(x)
    return kind in ("cupy", "other") or (kind == "torch" and str(getattr(x, "device", "")).startswith("cuda"))


def type_name(dtype: Any) -> str:
    """A type's name, however it is given: a name ("tf32" too), or a type of NumPy's, CuPy's or torch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    if type(dtype).__module__ == "torch":
        return str(dtype).removeprefix("torch.")
    return str(np.dtype(dtype).name)


# ---- errors that name the arrays


def device_mismatch_error(a: Any, b: Any, out: Any = None) -> ValueError:
    """The error for arrays on different devices, all of them named."""
    return ValueError(f"{_named(a=a, b=b, out=out)}: fmm.matmul moves nothing between devices")


def mixed_arrays_error(**arrays: Any) -> TypeError:
    """The error for arrays of different kinds, all of them named; None is none."""
    words = "fmm moves nothing between host and device, or between libraries"
    return TypeError(f"{_named(**arrays)}: {words}{_how_to_mend(*arrays.values())}")


def _how_to_mend(*given: Any) -> str:
    """What makes arrays of one library of NumPy's and torch's on the host."""
    tensors = any(kind_of(x) == "torch" and not on_device(x) for x in given)
    both = tensors and any(isinstance(x, np.ndarray) for x in given)
    return " (torch.from_numpy(x) makes a tensor of an array, x.numpy() an array of a tensor)" if both else ""


def check_dense(function: str, *arrays: Any) -> None:
    """TypeError for sparse matrices of SciPy's and CuPy's, of which NumPy would make something else."""
    for x in arrays:
        if hasattr(x, "tocsr"):
            raise TypeError(f"{function} takes dense matrices, not a {type(x).__name__}")


def _named(**arrays: Any) -> str:
    return ", ".join(f"{name} is {describe_array(x)}" for name, x in arrays.items() if x is not None)


def describe_array(x: Any) -> str:
    """Whose array it is, and where."""
    kind = kind_of(x)
    if kind == "cupy":
        return f"a CuPy array on cuda:{x.data.device_id}"
    if kind == "torch" and hasattr(x, "device"):
        return f"a torch tensor on {x.device}"
    if isinstance(x, np.ndarray):
        return "a NumPy array on the host"
    where = " on a CUDA device" if kind == "other" else ""
    return f"a {type(x).__module__.partition('.')[0]} {type(x).__name__}{where}"


def describe_value(value: Any) -> str:
    """Return a wrong argument as text. Python prints no whole number of more than some thousand digits."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"a{' negative' * (value < 0)} number of {value.bit_length()} bits"
    return repr(value)
