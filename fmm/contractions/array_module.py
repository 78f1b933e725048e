"""The functions that contractions need from an array's library, such as permuted dimensions and strides.

NumPy, CuPy, torch and JAX share most names; the functions here cover the differences.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import numpy as np

from fmm import api
from fmm.arrays.detect import array_kind


def is_jax_array(x: Any) -> bool:
    """Return True for a JAX array and for a JAX tracer."""
    jax_array = getattr(sys.modules.get("jax"), "Array", None)  # missing while another thread imports JAX
    return jax_array is not None and isinstance(x, jax_array)


def array_module(x: Any) -> Any:
    """Return the module of an array's library (numpy, cupy, torch or jax.numpy); numpy for lists and numbers."""
    if array_kind(x) == "torch":
        return sys.modules["torch"]
    if array_kind(x) == "cupy":
        return sys.modules["cupy"]
    return sys.modules["jax"].numpy if is_jax_array(x) else np


def has_plain_layout(x: Any) -> bool:
    """Return True for an array of NumPy (no subclass), CuPy, torch or JAX: its strides locate its elements."""
    return type(x) is np.ndarray or array_kind(x) in ("cupy", "torch") or is_jax_array(x)


def as_array(x: Any) -> Any:
    """Return an array unchanged; convert a list or number to a NumPy array."""
    return x if hasattr(x, "shape") else np.asarray(x)


def permute_dimensions(x: Any, order: Sequence[int]) -> Any:
    """Return a view of an array with its dimensions in this order."""
    if tuple(order) == tuple(range(x.ndim)):
        return x
    return x.permute(*order) if array_kind(x) == "torch" else x.transpose(tuple(order))


def element_strides(x: Any) -> tuple[int, ...]:
    """Return the strides of an array, in elements; a JAX array has the strides of a contiguous array."""
    if is_jax_array(x):
        return tuple(int(np.prod(x.shape[i + 1 :], dtype=np.int64)) for i in range(x.ndim))
    if array_kind(x) == "torch":
        return tuple(x.stride())
    return tuple(stride // x.itemsize for stride in x.strides)


def is_real_array(x: Any) -> bool:
    """Return True if the array's elements are real numbers: neither complex numbers nor Python objects."""
    return not x.is_complex() if array_kind(x) == "torch" else np.dtype(x.dtype).kind in "biuf"


def multiply_matrices(a: Any, b: Any) -> Any:
    """Return fmm.matmul of two matrices or stacks; cuBLAS's GEMV multiplies a CuPy matrix by a vector instead."""
    if is_jax_array(a) or is_jax_array(b):
        return import_module("fmm.jax").matmul(a, b)  # fmm.jax imports JAX, so only JAX arrays load it
    if array_kind(a) == "cupy" and a.ndim == b.ndim == 2:
        if b.shape[1] == 1 and can_use_gemv(a, b):
            return multiply_by_vector(a, b).reshape(-1, 1)
        if a.shape[0] == 1 and can_use_gemv(b, a):
            return multiply_by_vector(b.T, a).reshape(1, -1)
    return api.matmul(a, b)


def can_use_gemv(matrix: Any, vector: Any) -> bool:
    """Return True if cuBLAS's GEMV accepts this CuPy matrix and vector; the sizes of GEMV are 32-bit integers."""
    is_contiguous = matrix.flags.c_contiguous or matrix.flags.f_contiguous
    return is_contiguous and matrix.dtype == vector.dtype and matrix.dtype.char in "fdFD" and 0 < matrix.size < 1 << 31


def multiply_by_vector(matrix: Any, vector: Any) -> Any:
    """Return a matrix times a vector by cuBLAS's GEMV; cupy.matmul calls GEMM, which reads a wide matrix slower."""
    cupy = sys.modules["cupy"]
    result = cupy.empty(matrix.shape[0], matrix.dtype)
    import_module("cupy.cublas").gemv("N", 1.0, matrix, cupy.ascontiguousarray(vector).reshape(-1), 0.0, result)
    return result


def with_common_type(arrays: list[Any]) -> list[Any]:
    """Return the arrays converted to their common type, which numpy.einsum multiplies and adds in.

    Tensors are returned unchanged: torch has no products of two types.
    """
    if len({x.dtype for x in arrays}) == 1 or array_kind(arrays[0]) == "torch":
        return arrays
    common = array_module(arrays[0]).result_type(*arrays)
    return [x if x.dtype == common else x.astype(common) for x in arrays]


def write_to(out: Any, result: Any) -> Any:
    """Copy a result into `out` and return `out`; if `out` is None, return the result.

    Raise ValueError if `out` has another shape, and TypeError if the copy would lose digits or imaginary parts.
    """
    if out is None:
        return result
    if not hasattr(out, "shape") or tuple(out.shape) != tuple(result.shape):
        shape = tuple(out.shape) if hasattr(out, "shape") else type(out).__name__
        raise ValueError(f"out has the shape {shape}, and the result {tuple(result.shape)}")
    if array_kind(out) == "torch":
        if not sys.modules["torch"].can_cast(result.dtype, out.dtype):
            raise TypeError(f"out is of the type {out.dtype}, to which {result.dtype} cannot be cast")
        return out.copy_(result)
    if not np.can_cast(result.dtype, out.dtype, "safe"):
        raise TypeError(f"out is of the type {out.dtype}, to which {result.dtype} cannot be cast without loss")
    out[...] = result
    return out
