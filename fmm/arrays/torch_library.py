"""The adapters for torch tensors, on CUDA devices and on the host."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np
import torch

from fmm.arrays import host_memory
from fmm.arrays.library import CallAllocations, Operand, Processor, ProductSetting, contiguous_operand, product_shape
from fmm.arrays.numpy_library import make_order_sensitive_values, scalar_as_int_if_integral, tensor_as_numpy
from fmm.arrays.torch_calls import (
    PLAIN_DISPATCH_KEYS,
    TORCH_BMM,
    TORCH_MATMUL,
    are_torch_calls_recorded,
    is_plain_call,
    is_tracing,
)
from fmm.dtypes import DTYPES, INTEGERS, STORED_TYPES
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.cpu.triangle_product import MIRROR_IN_PLACE, mirror_tasks
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES


def torch_gemm(a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any = None) -> Any:
    """Return alpha A B + beta C by torch's own functions, which record gradients.

    If `out` is not None, the result is written to `out`.
    """
    check_integer_factors(a, alpha, beta)
    alpha, beta = (as_torch_factor(a, factor) for factor in (alpha, beta))
    return _torch_gemm_with_factors(a, b, c, alpha, beta, out)


def _torch_gemm_with_factors(a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
    """Return alpha A B + beta C by torch's own functions; the caller has converted alpha and beta for torch."""
    axes = a.dim()
    if c is None and not (a.layout is b.layout is torch.strided):  # torch has no empty addend for sparse tensors
        value = TORCH_MATMUL(a, b) * alpha
        return value if out is None else out.copy_(value)
    if axes == 2 == b.dim():
        if alpha == 1 == beta and out is None and c is not None:
            return torch.addmm(c, a, b)  # alpha and beta are omitted: parsing them takes torch a microsecond
        addend = _unused_addend(a, (), beta) if c is None else c
        return torch.addmm(addend, a, b, beta=beta, alpha=alpha, out=out)
    if axes == 3 == b.dim() and len(a) == len(b):
        addend = _unused_addend(a, (1, 1, 1), beta) if c is None else c
        return torch.baddbmm(addend, a, b, beta=beta, alpha=alpha, out=out)
    value = TORCH_MATMUL(a, b) * alpha
    value = value + c * beta if beta else value
    return value if out is None else out.copy_(value)


def _unused_addend(like: Any, shape: tuple[int, ...], beta: Any) -> Any:
    """Return a tensor that torch's functions accept as the addend where a call has no addend.

    If beta is 0, torch does not read the addend.
    """
    return like.new_zeros(shape) if beta else like.new_empty(shape)


def check_integer_factors(x: Any, *factors: Any) -> None:
    """Raise RuntimeError if alpha or beta of a product of integer tensors is a float, as torch.add does.

    Without this error, torch.addmm would truncate the float.
    """
    if not (x.is_floating_point() or x.is_complex()) and any(isinstance(factor, float) for factor in factors):
        raise RuntimeError("alpha and beta must be whole numbers for tensors of whole numbers")


def as_torch_factor(x: Any, factor: Any) -> Any:
    """Return alpha or beta in a type that torch accepts.

    For tensors of floats an int is converted to a float, since torch rejects an int of more than 64 bits.
    """
    is_int = isinstance(factor, int) and (x.is_floating_point() or x.is_complex())
    return float(factor) if is_int else factor


# ---- products into `out`


def matmul_into(multiply: Callable[..., Any], a: Any, b: Any, out: Any) -> Any:
    """Return torch's product in `out`.

    If `out` overlaps an operand, the product is first computed in a new tensor, as NumPy does: torch itself would write
    `out` over the operands while it reads them.
    """
    if out is not a and out is not b and not _do_tensors_overlap(out, a) and not _do_tensors_overlap(out, b):
        return multiply(a, b, out=out)
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out))
    c = None if wants_gradients else multiply(a, b)
    if c is None or c.shape != out.shape or c.dtype != out.dtype:
        return multiply(a, b, out=out)  # torch raises its own error, or warns that the shape of `out` changes
    return out.copy_(c)


def _do_tensors_overlap(x: Any, y: Any) -> bool:
    try:
        if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
            return False
        (first, end), (other, last) = _address_range(x), _address_range(y)
    except RuntimeError:  # sparse tensors have no storage
        return False
    return first < last and other < end


def _address_range(x: Any) -> tuple[int, int]:
    """Return the address of the first element and the end address of the last element."""
    reach = sum((length - 1) * step for length, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.itemsize


# Types are looked up by name, since older versions of torch have uint8 as their only unsigned type.
TYPE_NAMES = {getattr(torch, name): name for name in (*STORED_TYPES, *INTEGERS) if hasattr(torch, name)}
TYPES_BY_NAME = {name: dtype for dtype, name in TYPE_NAMES.items()}
# types that NumPy's BLAS multiplies
HOST_TYPES = tuple(TYPES_BY_NAME[name] for name in STORED_TYPES if not DTYPES[name].sums_wider)

float32 = torch.float32
# torch's function that returns the precision of float32 products; None in older versions of torch. In versions of torch
# that have this function, a read of the older setting `allow_tf32` can raise an error.
_precision_getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)


def float32_precision() -> str:
    """Return torch's precision of float32 products on CUDA devices.

    The precision is "ieee", "tf32" or another text. If the user set no precision, the text is "none", and torch
    multiplies as with "ieee".
    """
    if _precision_getter is None:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    precision: str = _precision_getter("cuda", "matmul")
    return precision


# The function of newer versions of torch that returns torch.backends.cuda.matmul.allow_fp16_accumulation.
_accumulates_in_float16: Any = getattr(torch._C, "_get_cublas_allow_fp16_accumulation", lambda: False)


@lru_cache(maxsize=1)
def _missing_cupy_reason() -> str:
    """Return the reason why plans cannot run on CUDA tensors without CuPy; empty if CuPy is installed."""
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"fmm's kernels need CuPy ({error})"
    return ""


class _TorchLibraryBase:
    """Base class of the adapters for tensors on CUDA devices and for tensors on the host."""

    name, vendor_name = "torch", "torch.matmul"
    is_differentiable, gemm_name = True, "torch.addmm"
    addmm_functions: Mapping[int, Callable[[Any, Any, Any], Any]]
    cached_calls: dict[Hashable, Any]

    def __init__(self, calls: dict[Hashable, Any] | None = None) -> None:
        self.cached_calls = {} if calls is None else calls
        self.addmm_functions = {2: torch.addmm, 3: torch.baddbmm}
        self.fast_vendor_product, self.are_torch_calls_recorded, self.is_tracing = (
            TORCH_MATMUL,
            are_torch_calls_recorded,
            is_tracing,
        )
        self.fast_stack_product = TORCH_BMM

    def adapter_for_matmul_options(self, options: Mapping[str, Any]) -> Self:
        if options:
            raise TypeError(f"torch.matmul takes no {', '.join(options)}")
        return self

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        return self.fast_vendor_product(a, b) if out is None else matmul_into(self.fast_vendor_product, a, b, out)

    def wrap_foreign_arrays(self, a: Any, b: Any, out: Any) -> None:
        """Return None, since torch does not multiply arrays of other libraries."""

    def describe_operand(self, x: Any) -> Operand:
        return Operand(tuple(x.shape), tuple(x.stride()), TYPE_NAMES.get(x.dtype, str(x.dtype)))

    def describe_result(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        return contiguous_operand(shape, dtype)

    def data_pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def transposed_view(self, x: Any) -> Any:
        return x.mT

    def new_zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_zeros(shape)

    def conjugated_copy(self, x: Any) -> Any:
        return x.conj().resolve_conj()

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return a, b, c  # torch does not promote types: it rejects operands of different types

    def broadcast_copy(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_empty(shape).copy_(x)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape)

    def vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, addend: Any = None) -> Any:
        addend = c if addend is None else addend
        if c is not None and (
            _do_tensors_overlap(c, a) or _do_tensors_overlap(c, b)
        ):  # torch would write C over operands that it reads
            return c.copy_(torch_gemm(a, b, addend if beta else None, alpha, beta))
        return torch_gemm(a, b, addend, alpha, beta, c)

    def fast_vendor_gemm(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any) -> Any:
        if type(alpha) is float or type(beta) is float:
            check_integer_factors(a, alpha, beta)
        if alpha == 0:  # with alpha = 0, a and b are not read
            a, b, alpha = a[..., :0], b[..., :0, :], 1
        if c is None and alpha == 1:
            return self.vendor_product(a, b, out)
        if out is None:
            return _torch_gemm_with_factors(a, b, c, alpha, beta, None)
        if (
            _do_tensors_overlap(out, a)
            or _do_tensors_overlap(out, b)
            or (c is not None and c is not out and _do_tensors_overlap(out, c))
        ):
            arrays = (a, b, out) if c is None else (a, b, c, out)
            if not (torch.is_grad_enabled() and any(x.requires_grad for x in arrays)):  # else torch raises an error
                return out.copy_(_torch_gemm_with_factors(a, b, c, alpha, beta, None))
        return _torch_gemm_with_factors(a, b, c, alpha, beta, out)

    def is_plain_product(self, a: Any, b: Any, out: Any, c: Any = None) -> bool:
        if not is_plain_call(a, b, out, c, PLAIN_DISPATCH_KEYS):
            return False
        if not torch.is_grad_enabled():
            return True
        return not (a.requires_grad or b.requires_grad or (c is not None and c.requires_grad))

    def gram_function(self, a: Any) -> Callable[[Any, Any], Any]:
        function: Callable[[Any, Any], Any] = self.fast_stack_product if a.ndim == 3 else self.fast_vendor_product
        return function

    def gram_signature(self, a: Any) -> Hashable:
        dtype = a.dtype
        is_aligned = a.data_ptr() % VECTOR_BYTES == 0
        precision = float32_precision() if dtype is float32 else ""
        return a.shape, a.stride(), dtype, a.get_device(), is_aligned, precision

    def has_symmetric_gram(self, a: Any) -> bool:
        return False

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        if out.dtype is not product.dtype:  # torch does not cast a product to the type of `out`
            raise RuntimeError(f"out is of {out.dtype}, the product of {product.dtype}")
        if alpha != 1 or beta != 0:
            if not (product.is_floating_point() or product.is_complex()):
                alpha, beta = scalar_as_int_if_integral(alpha), scalar_as_int_if_integral(beta)
                check_integer_factors(product, alpha, beta)
            alpha, beta = as_torch_factor(product, alpha), as_torch_factor(product, beta)
        value = product if alpha == 1 else product * alpha
        value = value + out * beta if beta else value
        if value.is_complex():
            value.imag.diagonal(dim1=-2, dim2=-1).zero_()
        if fill == "full":
            out.copy_(value.tril() + value.tril(-1).mH)
        else:
            out.copy_(torch.where(torch.ones_like(out, dtype=torch.bool).tril(), value, out))

    def can_multiply_operands(self, a: Any, b: Any) -> bool:
        try:
            shape = product_shape(tuple(a.shape), tuple(b.shape))
            return shape is not None and 0 not in shape and bool(a.dtype == b.dtype)
        except AttributeError:  # not a tensor
            return False

    def copy_into(self, source: Any, out: Any) -> None:
        out.copy_(source)

    def record_array_change(self, out: Any) -> None:
        torch.autograd.graph.increment_version(out)  # a backward pass that needs the values before this write fails

    def decline_key_without_sizes(self, a: Any, b: Any) -> Hashable:
        dtype, device = a.dtype, a.get_device()
        try:  # a matrix times its own transpose (in the same memory) may have another plan
            same_address = device >= 0 and a.data_ptr() == b.data_ptr()
        except RuntimeError:
            same_address = False
        return dtype, b.dtype, device, same_address, float32_precision() if dtype is float32 and device >= 0 else ""

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        dtype = a.dtype
        math: object = float32_precision() if dtype is torch.float32 or dtype is torch.complex64 else ""
        math = _accumulates_in_float16() if dtype is torch.float16 else math
        target = None if out is None else (out.shape, out.stride(), out.dtype)
        if b is None:
            return math, a.shape, a.stride(), dtype, a.get_device(), target
        where = a.get_device(), _have_same_address(a, b)
        return math, a.shape, a.stride(), dtype, b.shape, b.stride(), b.dtype, where, target

    def array_signature(self, a: Any, b: Any, c: Any, out: Any) -> Hashable:
        of_c = None if c is None else (c.shape, c.stride(), c.dtype, c.get_device(), c is out)
        return self.call_key(a, b, out), of_c


class TorchLibrary(_TorchLibraryBase):
    """The adapter for tensors on CUDA devices."""

    processor: Processor = "cuda"
    out_of_memory_error: type[BaseException] = torch.OutOfMemoryError

    def has_symmetric_gram(self, a: Any) -> bool:
        key = "symmetric gram", self.gram_signature(a)
        found: bool | None = self.cached_calls.get(key)
        if found is None:
            if torch.cuda.is_current_stream_capturing():
                return False
            found = self.cached_calls[key] = is_gram_symmetric(a, self.gram_function(a))
        return found

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        device = a.get_device()
        common = TYPE_NAMES.get(a.dtype, str(a.dtype)) if a.dtype == b.dtype else None
        single = a.dtype is torch.float32 or a.dtype is torch.complex64
        precision = float32_precision() if single else "ieee"
        is_gram = same_memory_transposed(a, b)
        if precision == "tf32" and a.dtype is torch.float32:
            return ProductSetting(device, common, "tf32", _missing_cupy_reason(), b_is_transposed_a=is_gram)
        if precision not in ("ieee", "none"):
            return ProductSetting(device, common, refusal=f"{a.dtype} products in {precision} have no plan")
        if a.dtype is torch.float16 and _accumulates_in_float16():
            return ProductSetting(device, common, refusal="float16 products with sums in float16 have no plan")
        # Plans may emulate float32 unless the user set torch's precision to "ieee". If the user set no precision, newer
        # versions of torch return "none". Older versions of torch have only `allow_tf32`, so "ieee" can be the default
        # there, and plans may emulate. torch has no precision setting for float64.
        may_emulate = not single or _precision_getter is None or precision == "none"
        return ProductSetting(
            device,
            common,
            refusal=_missing_cupy_reason(),
            may_emulate=may_emulate,
            b_is_transposed_a=is_gram,
            no_vendor_product=bool(a.is_cuda) and TYPE_NAMES.get(a.dtype) in INTEGERS,
        )

    def device_number(self, x: Any) -> int:
        return int(x.get_device())

    def allocate_arrays(self, call: CallAllocations, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        if call.copies:
            row_major = torch.contiguous_format
            a, b = (x.clone(memory_format=row_major) if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        # The workspace is allocated before C, so that the workspace gets the pool's block that the last call's
        # workspace used, and C does not take a part of that block.
        memory = torch.empty(call.workspace, dtype=torch.uint8, device=a.device) if call.workspace else None
        c = a.new_empty(call.shape) if out is None else out
        workspace = 0 if memory is None else memory.data_ptr()
        return a.data_ptr(), b.data_ptr(), c.data_ptr(), workspace, c, (a, b, memory)

    def copy_with_scratch_tail(self, x: Any, order: str, nbytes: int) -> Any:
        block = torch.empty(nbytes, dtype=torch.uint8, device=x.device)
        lines, length = x.shape if order == "C" else x.mT.shape
        copy = block[: x.numel() * x.element_size()].view(x.dtype).view(lines, length)
        return (copy if order == "C" else copy.mT).copy_(x.detach())

    def free_bytes(self, number: int) -> int:
        # all statistics are read at once, since each read takes long
        stats = torch.cuda.memory_stats_as_nested_dict(number)
        # `get` with a default is used, since the statistics lack these keys before the pool's first use
        kinds = ("reserved_bytes", "allocated_bytes", "inactive_split_bytes")
        reserved, allocated, fragments = (int(stats.get(kind, {}).get("all", {}).get("current", 0)) for kind in kinds)
        # Fragments are not counted as free: they are free memory inside segments that are partly in use, and are too
        # small for a large allocation.
        return int(torch.cuda.mem_get_info(number)[0] + max(reserved - allocated - fragments, 0))

    def current_stream(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        return torch._C._cuda_getCurrentRawStream(device), _cupy_device(device)


def is_gram_symmetric(a: Any, multiply: Callable[[Any, Any], Any]) -> bool:
    """Return True if the product of a tensor like `a` and its transpose is symmetric bit for bit.

    `multiply` returns the product of two tensors. A kernel adds in an order that depends on the shape and the layout of
    a tensor, not on the tensor's entries. To find the order of additions, another tensor with the same shape and layout
    is multiplied by its transpose. The product is not symmetric if the order of additions differs between two mirrored
    entries.
    """
    if a.is_complex() or a.data_ptr() % VECTOR_BYTES:
        return False
    try:
        x = torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device)
        x.normal_(generator=torch.Generator(a.device).manual_seed(0))
        make_order_sensitive_values(x)
        product = multiply(x, x.mT)
        return bool(torch.equal(product, product.mT))
    except RuntimeError:  # the memory ran out, or elements share memory
        return False


MIRROR_IN_TILES_ENTRIES = 128**2  # number of entries of the smallest product that is mirrored tile by tile


class TorchHostLibrary(_TorchLibraryBase):
    """The adapter for tensors on the host; plans run on NumPy views of the tensors."""

    processor: Processor = "cpu"
    out_of_memory_error: type[BaseException] = MemoryError

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        operands = a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype
        target = () if out is None else (out.shape, out.stride(), out.dtype)
        return blas_threads(), same_memory_transposed(a, b), *operands, *target

    def product_setting(self, a: Any, b: Any, out: Any) -> ProductSetting:
        number = blas_threads()
        arrays = [x for x in (a, b, out) if x is not None]
        types = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in arrays)
        if len(types) > 1:
            return ProductSetting(
                number, refusal=f"torch casts no operands or results, which are {' and '.join(types)}"
            )
        if a.dtype not in HOST_TYPES or min(a.dim(), b.dim()) < 2:
            operands = "vectors" if a.dtype in HOST_TYPES else f"{', '.join(types)} on the host"
            return ProductSetting(number, refusal=f"products of {operands} have no plan")
        is_gram = same_memory_transposed(a, b)
        advantage = "b is a transposed in place, and torch's own product may use that" if is_gram else ""
        return ProductSetting(number, TYPE_NAMES[a.dtype], vendor_advantage=advantage, b_is_transposed_a=is_gram)

    def device_number(self, x: Any) -> int:
        return blas_threads()

    def free_bytes(self, number: int) -> int:
        return host_memory.available_bytes()

    def as_numpy(self, x: Any) -> Any:
        return tensor_as_numpy(x)

    def new_array(self, result: Operand) -> Any:
        return torch.empty(result.shape, dtype=TYPES_BY_NAME[result.dtype], device="cpu")

    def unwrap_scalar(self, c: Any) -> Any:
        return c

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(matmul_into, TORCH_MATMUL, a, b, out)

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """Write the lower triangle to `out`; if `fill` is "full", mirror it too.

        A large product with alpha 1 and beta 0 is mirrored in place, tile by tile.
        """
        is_small = product.numel() < MIRROR_IN_TILES_ENTRIES  # torch.tril is faster on smaller products
        has_factors = alpha != 1 or beta != 0
        if is_small or fill != "full" or has_factors or not out.dtype == product.dtype in HOST_TYPES:
            super().write_triangle(product, out, alpha, beta, fill)
            return
        view = self.as_numpy(product)
        for index in np.ndindex(*view.shape[:-2]):
            for task in mirror_tasks(MIRROR_IN_PLACE, view[index], view[index]):
                task()
        if out is not product:
            out.copy_(product)


def _have_same_address(a: Any, b: Any) -> bool:
    """Return True if two tensors begin at the same address; False for tensors of transforms, which have no address."""
    try:
        return bool(a.data_ptr() == b.data_ptr())
    except RuntimeError:
        return False


def same_memory_transposed(a: Any, b: Any) -> bool:
    """Return True if `b` is a transposed view of `a`, in the same memory."""
    if a.dim() < 2 or a.dim() != b.dim() or not _have_same_address(a, b):
        return False
    transpose = a.mT
    return bool(transpose.shape == b.shape and transpose.stride() == b.stride())


TORCH = TorchLibrary()
# Both adapters for torch share one cache of calls, since a cached decline is looked up before the tensor's device is
# read. The keys of the cache include the tensor's device.
TORCH_ON_HOST = TorchHostLibrary(TORCH.cached_calls)


def torch_library_of(x: Any) -> TorchLibrary | TorchHostLibrary:
    """Return the adapter for tensors on this tensor's device."""
    return TORCH if x.is_cuda else TORCH_ON_HOST


def _cupy_device(device: int) -> AbstractContextManager[Any] | None:
    """Return a context that selects the device in CuPy; None if the device is selected already."""
    cuda = _imported_cupy().cuda
    return None if cuda.runtime.getDevice() == device else cuda.Device(device)


@lru_cache(maxsize=1)
def _imported_cupy() -> Any:
    import cupy

    return cupy
