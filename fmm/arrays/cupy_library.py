"""The adapter for CuPy arrays; the vendor's product of two matrices is one direct call of cuBLAS.

For small products, cupy.matmul takes longer on the host than the kernel takes on the device. The direct call of cuBLAS
takes half of cupy.matmul's time on the host. The direct call passes the same arguments to cuBLAS as cupy.matmul, so
both results are equal bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any, NamedTuple, Self

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime
from cupy_backends.cuda.libs import cublas

from fmm.arrays.detect import array_kind, device_mismatch_error
from fmm.arrays.library import (
    CallAllocations,
    Operand,
    Processor,
    ProductSetting,
    contiguous_operand,
    occupied_bytes,
    product_shape,
)
from fmm.arrays.numpy_library import NumpyLikeLibrary, make_order_sensitive_values
from fmm.dtypes import DTYPES, INTEGERS, STORED_TYPES, DType
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES

try:
    from cupy._core import _routines_linalg as _linalg
except ImportError:  # this version of CuPy lacks the imported module
    _linalg = None

COMPUTE_DEFAULT, COMPUTE_PEDANTIC, COMPUTE_FP16, COMPUTE_BF16, COMPUTE_TF32 = 1, 2, 3, 6, 7  # CuPy's compute types
MAX_CUBLAS_SIDE = (1 << 31) - 1  # cuBLAS's sizes are C ints
GEMM_ALGORITHM = 99  # cuBLAS's CUBLAS_GEMM_DEFAULT_TENSOR_OP, which CuPy passes
# CuPy's function that returns the compute type of cupy.matmul; the environment or set_compute_type sets this type.
get_compute_type: Callable[[Any], int] | None = getattr(_linalg, "get_compute_type", None)
# The function that cupy.matmul and the operator `@` call. cupy.matmul checks its options first, which takes up to 20
# microseconds.
core_matmul: Callable[[Any, Any], Any] | None = getattr(_linalg, "matmul", None)
ndarray, current_device = cupy.ndarray, runtime.getDevice
alloc, get_current_stream = cupy.cuda.alloc, cupy.cuda.get_current_stream
cublas_handle, cublas_gemm = cupy.cuda.device.get_cublas_handle, cublas.gemmEx


class _GemmType(NamedTuple):
    cuda_type: int  # cudaDataType
    compute_types: dict[int, int]  # value of cublasComputeType_t for each compute type of CuPy
    one: int  # address of the scalar 1 in host memory
    zero: int  # address of the scalar 0 in host memory
    scalars: Any  # host array that holds the scalars 1 and 0


def _gemm_type(row: DType) -> _GemmType:
    scalars: Any = np.array([1, 0], row.scalar)
    single = row.scalar in ("float32", "complex64") and not row.sums_wider
    computes = {COMPUTE_DEFAULT: row.compute_type} | ({COMPUTE_TF32: DTYPES["tf32"].compute_type} if single else {})
    return _GemmType(row.cuda_type, computes, scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize, scalars)


# For each element type, the arguments of cublasGemmEx. The table has no bfloat16, since NumPy has no bfloat16.
_GEMM_TYPES = {np.dtype(name): _gemm_type(DTYPES[name]) for name in STORED_TYPES if name != "bfloat16"}


def cublas_product(a: Any, b: Any) -> Any:
    """Return the product of two CuPy matrices by one call of cuBLAS; None if only cupy.matmul can compute it."""
    if a.ndim != 2 or b.ndim != 2 or get_compute_type is None:
        return None
    dtype = a.dtype
    gemm_type = _GEMM_TYPES.get(dtype)
    if gemm_type is None or b.dtype != dtype:
        return None
    compute = gemm_type.compute_types.get(get_compute_type(dtype))
    (m, k), (inner, n) = a.shape, b.shape
    if m == n == 1:  # CuPy computes inner products with another function of cuBLAS
        return None
    if (
        compute is None
        or k != inner
        or not (0 < m <= MAX_CUBLAS_SIDE and 0 < n <= MAX_CUBLAS_SIDE and 0 < k <= MAX_CUBLAS_SIDE)
    ):
        return None
    left, right = a.data, b.data
    if not (a._c_contiguous or a._f_contiguous) or not (b._c_contiguous or b._f_contiguous):
        return None
    if not left.device_id == right.device_id == current_device():
        return None
    c, cuda_type = ndarray((m, n), dtype), gemm_type.cuda_type
    # cuBLAS is column-major, so C^T = B^T A^T is computed in the same memory. For a matrix of one row or one column,
    # several leading dimensions are valid; the one that cupy.matmul passes is used.
    transpose_a, lda = (0, k) if a._c_contiguous else (1, m)
    transpose_b, ldb = (1, k) if b._f_contiguous else (0, n)
    x, y, z = right.ptr, left.ptr, c.data.ptr
    head = cublas_handle(), transpose_b, transpose_a, n, m, k, gemm_type.one
    cublas_gemm(*head, x, cuda_type, ldb, y, cuda_type, lda, gemm_type.zero, z, cuda_type, n, compute, GEMM_ALGORITHM)
    return c


try:  # CuPy's own function, even if a program sets `cupy.matmul = fmm.matmul`
    from cupy.linalg._product import matmul
except ImportError:  # some versions of CuPy lack this attribute
    matmul = cupy.matmul

# The NumPy type for the name of each element type. The table has no bfloat16, since NumPy has no bfloat16.
_NUMPY_TYPES = {name: np.dtype(name) for name in (*STORED_TYPES, *INTEGERS) if name != "bfloat16"}
NO_OPTIONS: Mapping[str, Any] = {}


class CupyLibrary(NumpyLikeLibrary):
    """The adapter for CuPy arrays, with the options of one cupy.matmul call."""

    module = cupy
    name, vendor_name = "CuPy", "cupy.matmul"
    is_differentiable, gemm_name = False, ""
    is_tracing = None
    processor: Processor = "cuda"
    out_of_memory_error: type[BaseException] = MemoryError  # the base class of CuPy's OutOfMemoryError
    cached_calls: dict[Hashable, Any]

    def __init__(self, options: Mapping[str, Any] = NO_OPTIONS) -> None:
        self.options = options
        self.cached_calls = {}

    def adapter_for_matmul_options(self, options: Mapping[str, Any]) -> Self:
        return type(self)(options) if options else self

    def fast_vendor_product(self, a: Any, b: Any) -> Any:
        if a.ndim == 2 and (c := cublas_product(a, b)) is not None:
            return c
        if a.data.device_id != b.data.device_id:
            raise device_mismatch_error(a, b)
        if core_matmul is not None and a.ndim == 3 == b.ndim and a.dtype == b.dtype:
            (count, _, k), (others, inner, _) = a.shape, b.shape
            if count == others and k == inner:
                return core_matmul(a, b)
        return matmul(a, b)

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        if self.options or out is not None:
            return matmul(a, b, out=out, **self.options)
        return self.fast_vendor_product(a, b) if type(a) is type(b) is ndarray else matmul(a, b)

    def gram_signature(self, a: Any) -> Hashable:
        memory, compute = a.data, get_compute_type(a.dtype) if get_compute_type else None
        return a.shape, a.strides, a.dtype, memory.device_id, memory.ptr % VECTOR_BYTES == 0, compute

    def has_symmetric_gram(self, a: Any) -> bool:
        if type(a) is not ndarray or a.dtype.kind != "f" or a.data.ptr % VECTOR_BYTES:
            return False
        key = "symmetric gram", self.gram_signature(a)
        found: bool | None = self.cached_calls.get(key)
        if found is None:
            stream = get_current_stream().ptr
            if stream and runtime.streamIsCapturing(stream):
                return False
            found = self.cached_calls[key] = self._is_gram_symmetric(a)
        return found

    def _is_gram_symmetric(self, a: Any) -> bool:
        """Return True if the result of CuPy's kernel for A times its transpose is symmetric bit for bit.

        A kernel adds in an order that depends on the shape and the layout of A, not on A's entries. To find the order
        of additions, another matrix with the shape and the layout of A is multiplied by its transpose. The product is
        not symmetric if the order of additions differs between two mirrored entries.
        """
        is_transposed = not a.flags.c_contiguous
        shape = a.swapaxes(-1, -2).shape if is_transposed else a.shape
        if is_transposed and not a.swapaxes(-1, -2).flags.c_contiguous:
            return False
        try:
            x = cupy.sin(1e3 * cupy.arange(a.size, dtype=np.float64)).reshape(shape).astype(a.dtype)
            x = make_order_sensitive_values(x.swapaxes(-1, -2) if is_transposed else x)
            product = self.vendor_product(x, x.swapaxes(-1, -2))
            return bool((product == product.swapaxes(-1, -2)).all())
        except self.out_of_memory_error:
            return False

    def wrap_foreign_arrays(self, a: Any, b: Any, out: Any) -> tuple[Any, Any, Any] | None:
        if type(a) is ndarray and type(b) is ndarray and (out is None or type(out) is ndarray):
            return None
        if not any(array_kind(x) == "other" for x in (a, b, out)):
            return None
        x, y, z = (as_cupy(v) if array_kind(v) == "other" else v for v in (a, b, out))
        return x, y, z

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        if self.options or type(a) is not ndarray or (b is not None and type(b) is not ndarray):
            return None
        dtype = a.dtype
        common = dtype if b is None or b.dtype is dtype else _promoted_type(dtype, b.dtype)
        mode = get_compute_type(common) if get_compute_type is not None and common.kind in "fc" else 0
        target = None
        if out is not None:
            if type(out) is not ndarray:
                return None
            target = out.shape, out.strides, out.dtype, out.data.device_id
        if b is None:
            return mode, a.shape, a.strides, dtype, current_device(), a.data.device_id, target
        where = current_device(), a.data.device_id, b.data.device_id, a.data.ptr == b.data.ptr
        return mode, a.shape, a.strides, dtype, b.shape, b.strides, b.dtype, where, target

    def array_signature(self, a: Any, b: Any, c: Any, out: Any) -> Hashable:
        of_c = None if c is None else (c.shape, c.strides, c.dtype, c.data.device_id, c is out)
        return self.call_key(a, b, out), of_c

    def decline_key_without_sizes(self, a: Any, b: Any) -> Hashable:
        dtype, other, left = a.dtype, b.dtype, a.data
        common = dtype if other is dtype else _promoted_type(dtype, other)
        mode = get_compute_type(common) if get_compute_type and common.kind in "fc" else 0
        # If A and B have one address, B may be A's transposed view, and the product may have a plan of its own.
        return dtype, other, mode, current_device() == left.device_id, left.ptr == b.data.ptr

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        current = current_device()
        if self.options:
            return ProductSetting(current, refusal=f"{', '.join(self.options)} was passed")
        arrays = [x for x in (a, b, out) if x is not None]
        if any(type(x) is not ndarray for x in arrays):
            return ProductSetting(current, refusal="these are not all plain CuPy arrays")
        if len({x.data.device_id for x in arrays}) > 1:
            raise device_mismatch_error(a, b, out)
        if any(x.data.device_id != current for x in arrays):
            return ProductSetting(current, refusal=f"the arrays are not on the current device, cuda:{current}")
        dtype = np.promote_types(a.dtype, b.dtype) if a.dtype != b.dtype else a.dtype
        common = _common_type(a, b)
        mode = get_compute_type(dtype) if get_compute_type is not None and dtype.name in STORED_TYPES else 0
        is_gram = _same_memory_transposed(a, b)
        if mode == COMPUTE_TF32 and dtype.name == "float32":
            return ProductSetting(current, common, "tf32", b_is_transposed_a=is_gram)
        has_other_mode = mode in (COMPUTE_PEDANTIC, COMPUTE_FP16, COMPUTE_BF16, COMPUTE_TF32)
        refusal = f"CuPy's compute type for {dtype.name} is set" if has_other_mode else ""
        return ProductSetting(current, common, refusal=refusal, b_is_transposed_a=is_gram)

    def device_number(self, x: Any) -> int:
        return int(x.data.device_id)

    def describe_operand(self, x: Any) -> Operand:
        item = x.itemsize
        is_aligned = not any(step % item for step in x.strides) and x.data.ptr % item == 0
        if not is_aligned:
            return Operand(x.shape, None, x.dtype.name, occupied_bytes(x.shape, x.strides, item))
        return Operand(x.shape, tuple(step // item for step in x.strides), x.dtype.name)

    def describe_result(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        return contiguous_operand(shape, dtype)

    def data_pointer(self, x: Any) -> int:
        return int(x.data.ptr)

    def can_multiply_operands(self, a: Any, b: Any) -> bool:
        try:
            shape = product_shape(a.shape, b.shape)
            return shape is not None and 0 not in shape and _common_type(a, b) is not None
        except (AttributeError, TypeError):  # an operand is no array, or the operands have no common type
            return False

    def allocate_arrays(self, call: CallAllocations, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        dtype = _NUMPY_TYPES.get(call.dtype, a.dtype)
        if call.copies:
            a, b = (x.astype(dtype, order="C") if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        # The workspace is allocated before C, so that the workspace gets the pool's block that the last call's
        # workspace used, and C does not take a part of that block.
        memory = alloc(call.workspace) if call.workspace else None
        c = ndarray(call.shape, dtype) if out is None else out
        return a.data.ptr, b.data.ptr, c.data.ptr, memory.ptr if memory else 0, c, (a, b, memory)

    def copy_with_scratch_tail(self, x: Any, order: str, nbytes: int) -> Any:
        copy = ndarray(x.shape, x.dtype, alloc(nbytes), order=order)
        copy[...] = x
        return copy

    def copy_into(self, source: Any, out: Any) -> None:
        out[...] = source

    def record_array_change(self, out: Any) -> None:
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


@lru_cache(maxsize=256)
def _promoted_type(x: Any, y: Any) -> Any:
    """Return the common element type of two types; x if there is none, so that the product raises the error."""
    try:
        return np.promote_types(x, y)
    except TypeError:
        return x


def _common_type(a: Any, b: Any) -> str | None:
    """Return the name of the element type of the product of a and b.

    Return None if one array is bfloat16 and the other is not: CuPy rejects the two types, or casts the arrays by a rule
    that fmm does not know.
    """
    if a.dtype == b.dtype:
        return str(a.dtype.name)
    return None if "bfloat16" in (a.dtype.name, b.dtype.name) else str(np.promote_types(a.dtype, b.dtype).name)


def _same_memory_transposed(a: Any, b: Any) -> bool:
    if a.ndim < 2 or a.ndim != b.ndim or a.data.ptr != b.data.ptr or a.dtype != b.dtype:
        return False
    (*stack, rows, cols), (*steps, down, right) = a.shape, a.strides
    return bool((*stack, cols, rows) == b.shape and (*steps, right, down) == b.strides)


CUPY = CupyLibrary()


# ---- arrays of other libraries


def as_cupy(x: Any) -> Any:
    """Return a CuPy array in the same memory, by DLPack if possible.

    With DLPack, CuPy's stream waits for the other library's stream, and the host does not wait.
    """
    if isinstance(x, cupy.ndarray):
        return x
    return cupy.from_dlpack(x) if hasattr(x, "__dlpack__") else cupy.asarray(x)


class _ForeignStream:
    """A CUDA stream of another library, described for CuPy by the protocol `__cuda_stream__`."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address  # 0 is the version of the protocol `__cuda_stream__`


def stream_at_address(address: int) -> Any:
    """Return a CuPy stream for the CUDA stream of another library at this address."""
    if hasattr(cupy.cuda.Stream, "from_external"):
        return cupy.cuda.Stream.from_external(_ForeignStream(address))
    return cupy.cuda.ExternalStream(address)  # newer versions of CuPy deprecate ExternalStream


def to_callers_library(c: Any, a: Any, b: Any) -> Any:
    """Return the product as a Numba or JAX array if the first operand without an adapter is a Numba or JAX array."""
    foreign = next((x for x in (a, b) if array_kind(x) == "other"), None)
    library = type(foreign).__module__.partition(".")[0]
    if library == "numba":
        from numba import cuda

        return cuda.as_cuda_array(c)
    if library in ("jax", "jaxlib"):
        from jax import dlpack

        return dlpack.from_dlpack(c)
    return c
