"""The vendor's product of plain CuPy matrices by one call of cuBLAS: what cupy.matmul computes, in half the time.

Small products take less time on the device than cupy.matmul takes on the host, so a shorter way to cuBLAS makes them
faster. The call is the very one that CuPy makes in the end, so the results are its own, to the last bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Self

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.libs import cublas

from fmm.arrays.detect import device_mismatch_error, kind_of
from fmm.arrays.library import (
    CopiedOperands,
    Operand,
    Processor,
    Setting,
    contiguous_operand,
    occupied_bytes,
    product_shape,
)
from fmm.arrays.numpy_library import NumpyLike
from fmm.dtypes import DTYPES, INTEGERS, STORED, DType

try:
    from cupy._core import _routines_linalg as _linalg
except ImportError:  # a CuPy without it
    _linalg = None

USUAL, PEDANTIC, FP16, BF16, TF32 = 1, 2, 3, 6, 7  # compute types of CuPy
LARGEST = (1 << 31) - 1  # a side that fits into cuBLAS's arguments
ALGORITHM = 99  # CUBLAS_GEMM_DEFAULT_TENSOR_OP, as CuPy has it
# What cupy.matmul computes in, set by the environment or by set_compute_type.
get_compute_type: Callable[[Any], int] | None = getattr(_linalg, "get_compute_type", None)
ndarray, handle, current_device, gemm = (
    cupy.ndarray,
    cupy.cuda.device.get_cublas_handle,
    runtime.getDevice,
    cublas.gemmEx,
)


class _GemmType(NamedTuple):
    """What cuBLAS is told of a type: its number, by CuPy's compute type how to compute, and where one and zero are."""

    number: int
    computes: dict[int, int]
    one: int
    zero: int
    kept: Any  # the scalars, which must live as long as their addresses


def _gemm_type(row: DType) -> _GemmType:
    kept: Any = np.array([1, 0], row.scalar)
    single = row.scalar in ("float32", "complex64") and not row.sums_wider
    computes = {USUAL: row.compute_type} | ({TF32: DTYPES["tf32"].compute_type} if single else {})
    return _GemmType(row.cuda_type, computes, kept.ctypes.data, kept.ctypes.data + kept.itemsize, kept)


# Of the types that NumPy has a name for.
_GEMM_TYPES = {np.dtype(name): _gemm_type(DTYPES[name]) for name in STORED if name != "bfloat16"}


def cublas_product(a: Any, b: Any) -> Any:
    """a b of two plain CuPy arrays; None where cupy.matmul itself must see them."""
    dtype = a.dtype
    kind = _GEMM_TYPES.get(dtype)
    if kind is None or get_compute_type is None or b.dtype != dtype or a.ndim != 2 or b.ndim != 2:
        return None
    mode = get_compute_type(dtype)
    compute = kind.computes.get(mode)
    (m, k), (inner, n) = a.shape, b.shape
    if m == n == 1:  # an inner product, which CuPy sums up in another way
        return None
    if compute is None or k != inner or not 0 < m <= LARGEST or not 0 < n <= LARGEST or not 0 < k <= LARGEST:
        return None
    left, right = a.data, b.data
    if not (a._c_contiguous or a._f_contiguous) or not (b._c_contiguous or b._f_contiguous):
        return None
    if not left.device_id == right.device_id == current_device():
        return None
    c, number = ndarray((m, n), dtype), kind.number
    # cuBLAS counts in columns: C^T = B^T A^T, in the same memory. A single row or column is as CuPy sees it.
    of_a, rows = (0, k) if a._c_contiguous else (1, m)
    of_b, cols = (1, k) if b._f_contiguous else (0, n)
    x, y, z = right.ptr, left.ptr, c.data.ptr
    head = handle(), of_b, of_a, n, m, k, kind.one
    gemm(*head, x, number, cols, y, number, rows, kind.zero, z, number, n, compute, ALGORITHM)
    return c


try:  # cupy.matmul, also where somebody has put another in its place: `cupy.matmul = fmm.matmul`
    from cupy.linalg._product import matmul
except ImportError:  # a CuPy that keeps it elsewhere
    matmul = cupy.matmul

ndarray, alloc, get_current_stream = cupy.ndarray, cupy.cuda.alloc, cupy.cuda.get_current_stream
current_device = runtime.getDevice
# By name; of bfloat16 NumPy itself knows nothing.
_TYPES = {name: np.dtype(name) for name in (*STORED, *INTEGERS) if name != "bfloat16"}
NO_OPTIONS: Mapping[str, Any] = {}


class CupyLibrary(NumpyLike):
    """CuPy, as a library of `fmm.arrays.library`; with the options of cupy.matmul that a call has."""

    module = cupy
    name, vendor_name = "CuPy", "cupy.matmul"
    differentiable, gemm_name = False, ""
    is_tracing = None
    processor: Processor = "cuda"
    out_of_memory: type[BaseException] = cupy.cuda.memory.OutOfMemoryError
    calls: dict[Hashable, Any]

    def __init__(self, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.options = options
        self.calls = {}

    def with_options(self, options: Mapping[str, Any]) -> Self:
        return type(self)(options) if options else self

    def quick_vendor(self, a: Any, b: Any) -> Any:
        found = cublas_product(a, b)
        if found is not None:
            return found
        if a.data.device_id != b.data.device_id:
            raise device_mismatch_error(a, b)
        return matmul(a, b)

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        if self.options or out is not None:
            return matmul(a, b, out=out, **self.options)
        return self.quick_vendor(a, b) if type(a) is type(b) is ndarray else matmul(a, b)

    def adopt_arrays(self, a: Any, b: Any, out: Any) -> tuple[Any, Any, Any] | None:
        if type(a) is ndarray and type(b) is ndarray and (out is None or type(out) is ndarray):
            return None
        if not any(kind_of(x) == "other" for x in (a, b, out)):
            return None
        x, y, z = (as_cupy(v) if kind_of(v) == "other" else v for v in (a, b, out))
        return x, y, z

    def to_callers_library(self, c: Any, a: Any, b: Any) -> Any:
        like = next((x for x in (a, b) if kind_of(x) == "other"), None)
        give = None if like is None else _GIVERS.get(type(like).__module__.partition(".")[0])
        return give(c) if give else c

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if self.options or type(a) is not ndarray:
            return None
        dtype = a.dtype
        mode = get_compute_type(dtype) if get_compute_type is not None and dtype.kind in "fc" else 0
        target = None
        if out is not None:
            if type(out) is not ndarray:
                return None
            target = out.shape, out.strides, out.dtype, out.data.device_id
        if b is None:
            return mode, a.shape, a.strides, dtype, current_device(), a.data.device_id, target
        if type(b) is not ndarray:
            return None
        where = current_device(), a.data.device_id, b.data.device_id, a.data.ptr == b.data.ptr
        return mode, a.shape, a.strides, dtype, b.shape, b.strides, b.dtype, where, target

    def type_key(self, a: Any, b: Any) -> Hashable:
        dtype, left = a.dtype, a.data
        mode = get_compute_type(dtype) if get_compute_type and dtype.kind in "fc" else 0
        # A product with its own transpose may be another plan's.
        return dtype, b.dtype, mode, current_device() == left.device_id, left.ptr == b.data.ptr

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        current = current_device()
        if self.options:
            return Setting(current, refusal=f"{', '.join(self.options)} was given")
        arrays = [x for x in (a, b, out) if x is not None]
        if any(type(x) is not ndarray for x in arrays):
            return Setting(current, refusal="these are not all plain CuPy arrays")
        if len({x.data.device_id for x in arrays}) > 1:
            raise device_mismatch_error(a, b, out)
        if any(x.data.device_id != current for x in arrays):
            return Setting(current, refusal=f"the arrays are not on the current device, cuda:{current}")
        dtype = np.promote_types(a.dtype, b.dtype) if a.dtype != b.dtype else a.dtype
        common = _common_type(a, b)
        mode = get_compute_type(dtype) if get_compute_type is not None and dtype.name in STORED else 0
        adjoint = _same_memory_transposed(a, b)
        if mode == TF32 and dtype.name == "float32":
            return Setting(current, common, "tf32", adjoint=adjoint)
        unusual = mode in (PEDANTIC, FP16, BF16, TF32)
        refusal = f"CuPy's compute type for {dtype.name} is set" if unusual else ""
        return Setting(current, common, refusal=refusal, adjoint=adjoint)

    def device_number(self, x: Any) -> int:
        return int(x.data.device_id)

    def operand(self, x: Any) -> Operand:
        item = x.itemsize
        whole = not any(step % item for step in x.strides) and x.data.ptr % item == 0
        if not whole:
            return Operand(x.shape, None, x.dtype.name, occupied_bytes(x.shape, x.strides, item))
        return Operand(x.shape, tuple(step // item for step in x.strides), x.dtype.name)

    def result_operand(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        return contiguous_operand(shape, dtype)

    def pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def accepts_operands(self, a: Any, b: Any) -> bool:
        try:
            shape = product_shape(a.shape, b.shape)
            return shape is not None and 0 not in shape and _common_type(a, b) is not None
        except (AttributeError, TypeError):  # no array, or types that have nothing in common
            return False

    def allocate(self, call: CopiedOperands, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        dtype = _TYPES.get(call.dtype, a.dtype)
        if call.copies:
            a, b = (x.astype(dtype, order="C") if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        # Before C, which would break up the block that held the last workspace.
        memory = alloc(call.workspace) if call.workspace else None
        c = ndarray(call.shape, dtype) if out is None else out
        return a.data.ptr, b.data.ptr, c.data.ptr, memory.ptr if memory else 0, c, (a, b, memory)

    def copy_with_scratch_tail(self, x: Any, order: str, room: int) -> Any:
        found = ndarray(x.shape, x.dtype, alloc(room), order=order)
        found[...] = x
        return found

    def copy(self, source: Any, out: Any) -> None:
        out[...] = source

    def written(self, out: Any) -> None:
        pass

    def free_bytes(self, number: int) -> int:
        if number != current_device():
            with cupy.cuda.Device(number):
                return self.free_bytes(number)
        pool = cupy.get_default_memory_pool()
        free = int(runtime.memGetInfo()[0] + pool.free_bytes())
        limit = int(pool.get_limit())
        return min(free, limit - int(pool.used_bytes())) if limit else free

    def current_stream(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        return get_current_stream().ptr, None


def _common_type(a: Any, b: Any) -> str | None:
    """The type of the product; None where CuPy rejects the pair, or has a rule of its own."""
    if a.dtype == b.dtype:
        return str(a.dtype.name)
    return None if "bfloat16" in (a.dtype.name, b.dtype.name) else str(np.promote_types(a.dtype, b.dtype).name)


def _same_memory_transposed(a: Any, b: Any) -> bool:
    """Is b the transpose of a, in place?"""
    if a.ndim < 2 or a.ndim != b.ndim or a.data.ptr != b.data.ptr or a.dtype != b.dtype:
        return False
    (*stack, rows, cols), (*steps, down, right) = a.shape, a.strides
    return bool((*stack, cols, rows) == b.shape and (*steps, right, down) == b.strides)


CUPY = CupyLibrary()


# ---- arrays of other libraries


def as_cupy(x: Any) -> Any:
    """A CuPy array on the same memory. DLPack first: it orders the two libraries' streams without waiting."""
    if isinstance(x, cupy.ndarray):
        return x
    return cupy.from_dlpack(x) if hasattr(x, "__dlpack__") else cupy.asarray(x)


def _numba(c: Any) -> Any:
    from numba import cuda

    return cuda.as_cuda_array(c)


def _jax(c: Any) -> Any:
    from jax import dlpack  # type: ignore[import-not-found]

    return dlpack.from_dlpack(c)


# The libraries for which we know how to make an array of a CuPy array.
_GIVERS: dict[str, Callable[[Any], Any]] = {"numba": _numba, "jax": _jax, "jaxlib": _jax}
