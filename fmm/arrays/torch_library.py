"""torch's own products with a place for the result, with factors and with a summand, as its functions compute them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any, Self

import numpy as np
import torch

from fmm.arrays import host_memory
from fmm.arrays.library import CopiedOperands, Operand, Processor, Setting, contiguous_operand, product_shape
from fmm.arrays.numpy_library import as_integer_factor, tensor_as_numpy
from fmm.arrays.torch_calls import MATMUL, is_observed, is_tracing
from fmm.dtypes import DTYPES, INTEGERS, STORED
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.cpu.triangle_product import MIRROR_IN_PLACE, mirror_tasks


def torch_gemm(a: Any, b: Any, c: Any, alpha: Any, beta: Any, out: Any = None) -> Any:
    """alpha a b + beta c by torch's own functions, in `out` if that is given; they record what they do."""
    check_integer_factors(a, alpha, beta)
    alpha, beta = (as_torch_factor(a, factor) for factor in (alpha, beta))
    if a.dim() == b.dim() == 2:
        added = a.new_zeros(()) if c is None else c
        return torch.addmm(added, a, b, beta=beta, alpha=alpha, out=out)
    if a.dim() == b.dim() == 3 and len(a) == len(b):
        added = a.new_zeros((1, 1, 1)) if c is None else c
        return torch.baddbmm(added, a, b, beta=beta, alpha=alpha, out=out)
    value = MATMUL(a, b) * alpha
    value = value + c * beta if beta else value
    return value if out is None else out.copy_(value)


def check_integer_factors(x: Any, *factors: Any) -> None:
    """RuntimeError, as torch.add has it, for other factors of whole numbers: torch.addmm would drop their fractions."""
    if not (x.is_floating_point() or x.is_complex()) and any(isinstance(factor, float) for factor in factors):
        raise RuntimeError("alpha and beta must be whole numbers for tensors of whole numbers")


def as_torch_factor(x: Any, factor: Any) -> Any:
    """A factor as torch takes it: of whole numbers none beyond 64 bits, unless as a float."""
    whole = isinstance(factor, int) and (x.is_floating_point() or x.is_complex())
    return float(factor) if whole else factor


# ---- a place that may lie on a factor


def matmul_into(multiply: Callable[..., Any], a: Any, b: Any, out: Any) -> Any:
    """torch's product into `out`. Where that lies on a factor, which torch would overwrite as it reads it, by way of a
    new tensor, as NumPy does it."""
    if out is not a and out is not b and not _lies_on(out, a) and not _lies_on(out, b):
        return multiply(a, b, out=out)
    wants_gradients = torch.is_grad_enabled() and any(x.requires_grad for x in (a, b, out))
    c = None if wants_gradients else multiply(a, b)
    if c is None or c.shape != out.shape or c.dtype != out.dtype:
        return multiply(a, b, out=out)  # with torch's own error, or its warning that it changes the shape
    return out.copy_(c)


def _lies_on(x: Any, y: Any) -> bool:
    """Have they numbers between the same addresses? (No, where there are none.)"""
    try:
        if x.untyped_storage().data_ptr() != y.untyped_storage().data_ptr():
            return False
        (first, end), (other, last) = _addresses(x), _addresses(y)
    except RuntimeError:  # sparse tensors and the like
        return False
    return first < last and other < end


def _addresses(x: Any) -> tuple[int, int]:
    """Of the first number, and behind the last one."""
    reach = sum((length - 1) * step for length, step in zip(x.shape, x.stride(), strict=True)) if x.numel() else -1
    return x.data_ptr(), x.data_ptr() + (reach + 1) * x.itemsize


# Older versions have no unsigned types but that of bytes.
NAMES = {getattr(torch, name): name for name in (*STORED, *INTEGERS) if hasattr(torch, name)}
TYPES = {name: dtype for dtype, name in NAMES.items()}
HOST_TYPES = tuple(TYPES[name] for name in STORED if not DTYPES[name].sums_wider)  # that NumPy's BLAS multiplies

float32 = torch.float32
# A torch with the newer switches of float32's precision: the older ones may refuse to answer there.
_getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)


def _precision() -> str:
    """How torch multiplies float32 on CUDA devices: "ieee", "none" (the same), "tf32" or something of its own."""
    if _getter is None:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    found: str = _getter("cuda", "matmul")
    return found


@lru_cache(maxsize=1)
def _no_kernels() -> str:
    """Why plans cannot run on CUDA tensors here, if they cannot: the kernels are launched through CuPy."""
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"fmm's kernels need CuPy ({error})"
    return ""


def _current_bytes(stats: Mapping[str, Any], what: str) -> int:
    """Of torch's own memory on a device; none where it has not been used yet."""
    return int(stats.get(f"{what}_bytes", {}).get("all", {}).get("current", 0))


class _TorchTensors:
    """What tensors on a device and on the host have in common."""

    name, vendor_name = "torch", "torch.matmul"
    differentiable, gemm_name = True, "torch.addmm"
    calls: dict[Hashable, Any]

    def __init__(self) -> None:
        self.calls = {}
        self.quick_vendor, self.is_observed, self.is_tracing = MATMUL, is_observed, is_tracing

    def with_options(self, options: Mapping[str, Any]) -> Self:
        if options:
            raise TypeError(f"torch.matmul takes no {', '.join(options)}")
        return self

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return self.quick_vendor(a, b) if out is None else matmul_into(self.quick_vendor, a, b, out)

    def lacks(self, x: Any) -> bool:
        return False

    def adopt_arrays(self, a: Any, b: Any, out: Any) -> None:
        """torch reads no arrays but tensors."""

    def to_callers_library(self, c: Any, a: Any, b: Any) -> Any:
        return c

    def operand(self, x: Any) -> Operand:
        return Operand(tuple(x.shape), tuple(x.stride()), NAMES.get(x.dtype, str(x.dtype)))

    def result_operand(self, a: Any, b: Any, shape: tuple[int, ...], dtype: str) -> Operand:
        return contiguous_operand(shape, dtype)

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def adjoint(self, x: Any) -> Any:
        return x.mH.resolve_conj()

    def transposed(self, x: Any) -> Any:
        return x.mT

    def zeros(self, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_zeros(shape)

    def conjugated(self, x: Any) -> Any:
        return x.conj().resolve_conj()

    def is_complex(self, x: Any) -> bool:
        return bool(x.is_complex())

    def promote_operands(self, a: Any, b: Any, c: Any) -> tuple[Any, Any, Any]:
        return a, b, c  # torch rejects tensors of different types

    def copied(self, x: Any, shape: tuple[int, ...], like: Any) -> Any:
        return like.new_empty(shape).copy_(x)

    def broadcast_view(self, x: Any, shape: tuple[int, ...]) -> Any:
        return x.expand(shape)

    def updated(self, a: Any, b: Any, c: Any, alpha: Any, beta: Any) -> Any:
        return torch_gemm(a, b, c, alpha, beta, c)

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        if out.dtype is not product.dtype:  # torch casts no product
            raise RuntimeError(f"out is of {out.dtype}, the product of {product.dtype}")
        if not (product.is_floating_point() or product.is_complex()):
            alpha, beta = as_integer_factor(alpha), as_integer_factor(beta)
            check_integer_factors(product, alpha, beta)
        alpha, beta = (as_torch_factor(product, factor) for factor in (alpha, beta))
        value = product if alpha == 1 else product * alpha
        value = value + out * beta if beta else value
        if value.is_complex():
            value.imag.diagonal(dim1=-2, dim2=-1).zero_()
        if fill == "full":
            out.copy_(value.tril() + value.tril(-1).mH)
        else:
            out.copy_(torch.where(torch.ones_like(out, dtype=torch.bool).tril(), value, out))

    def accepts_operands(self, a: Any, b: Any) -> bool:
        try:
            shape = product_shape(tuple(a.shape), tuple(b.shape))
            return shape is not None and 0 not in shape and bool(a.dtype == b.dtype)
        except AttributeError:  # no tensor
            return False

    def copy(self, source: Any, out: Any) -> None:
        out.copy_(source)

    def written(self, out: Any) -> None:
        torch.autograd.graph.increment_version(out)  # what was saved of it for a backward pass is no longer there


class TorchLibrary(_TorchTensors):
    """torch on CUDA devices, as a library of `fmm.arrays.library`."""

    processor: Processor = "cuda"
    out_of_memory: type[BaseException] = torch.OutOfMemoryError

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        dtype = a.dtype
        math = _precision() if dtype is torch.float32 or dtype is torch.complex64 else ""
        target = None if out is None else (out.shape, out.stride(), out.dtype)
        if b is None:
            return math, a.shape, a.stride(), dtype, a.get_device(), target
        where = a.get_device(), _begin_alike(a, b)
        return math, a.shape, a.stride(), dtype, b.shape, b.stride(), b.dtype, where, target

    def type_key(self, a: Any, b: Any) -> Hashable:
        dtype = a.dtype
        try:  # a product with its own transpose may be another plan's
            alike = a.data_ptr() == b.data_ptr()
        except RuntimeError:
            alike = False
        return dtype, b.dtype, alike, _precision() if dtype is float32 else ""

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        device = a.get_device()
        common = NAMES.get(a.dtype, str(a.dtype)) if a.dtype == b.dtype else None
        single = a.dtype is torch.float32 or a.dtype is torch.complex64
        precision = _precision() if single else "ieee"
        adjoint = _same_memory_transposed(a, b)
        if precision == "tf32" and a.dtype is torch.float32:
            return Setting(device, common, "tf32", _no_kernels(), adjoint=adjoint)
        if precision not in ("ieee", "none"):
            return Setting(device, common, refusal=f"{a.dtype} products in {precision} are its own")
        # (Where nobody asks for a precision, newer versions say "none", and older ones cannot tell. Of float64 nobody
        # can ask for one.)
        unasked = not single or _getter is None or precision == "none"
        lacking = self.lacks(a)
        return Setting(device, common, refusal=_no_kernels(), emulation=unasked, adjoint=adjoint, lacking=lacking)

    def lacks(self, x: Any) -> bool:
        """torch has no products of integers on CUDA devices."""
        return bool(x.is_cuda) and NAMES.get(x.dtype) in INTEGERS

    def device_number(self, x: Any) -> int:
        return int(x.get_device())

    def allocate(self, call: CopiedOperands, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        if call.copies:
            form = torch.contiguous_format
            a, b = (x.clone(memory_format=form) if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        # Before C, which would break up the block that held the last workspace.
        memory = torch.empty(call.workspace, dtype=torch.uint8, device=a.device) if call.workspace else None
        c = a.new_empty(call.shape) if out is None else out
        at = 0 if memory is None else memory.data_ptr()
        return a.data_ptr(), b.data_ptr(), c.data_ptr(), at, c, (a, b, memory)

    def copy_with_scratch_tail(self, x: Any, order: str, room: int) -> Any:
        block = torch.empty(room, dtype=torch.uint8, device=x.device)
        lines, length = x.shape if order == "C" else x.mT.shape
        found = block[: x.numel() * x.element_size()].view(x.dtype).view(lines, length)
        return (found if order == "C" else found.mT).copy_(x.detach())

    def free_bytes(self, number: int) -> int:
        stats = torch.cuda.memory_stats_as_nested_dict(number)  # once: to ask for it takes longer than all the rest
        reserved, allocated, scraps = (
            _current_bytes(stats, what) for what in ("reserved", "allocated", "inactive_split")
        )
        # Scraps are left over of blocks that are partly in use: free, but no large block can be had of them.
        return int(torch.cuda.mem_get_info(number)[0] + max(reserved - allocated - scraps, 0))

    def current_stream(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        return torch._C._cuda_getCurrentRawStream(device), _cupy_on(device)


class TorchHostLibrary(_TorchTensors):
    """torch on the host: plans run on NumPy's view of the same memory."""

    processor: Processor = "cpu"
    out_of_memory: type[BaseException] = MemoryError

    def call_key(self, a: Any, b: Any, out: Any) -> Hashable | None:
        operands = a.shape, a.stride(), a.dtype, b.shape, b.stride(), b.dtype
        target = () if out is None else (out.shape, out.stride(), out.dtype)
        return blas_threads(), _same_memory_transposed(a, b), *operands, *target

    def type_key(self, a: Any, b: Any) -> Hashable:
        return a.dtype, b.dtype

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        number = blas_threads()
        arrays = [x for x in (a, b, out) if x is not None]
        types = dict.fromkeys(str(x.dtype).removeprefix("torch.") for x in arrays)
        if len(types) > 1:
            return Setting(number, refusal=f"torch casts no operands or results, which are {' and '.join(types)}")
        if a.dtype not in HOST_TYPES or min(a.dim(), b.dim()) < 2:
            whose = "of vectors" if a.dtype in HOST_TYPES else f"of {', '.join(types)} on the host"
            return Setting(number, refusal=f"products {whose} are torch's own")
        better = ""
        if _same_memory_transposed(a, b):
            better = "b is a transposed in place, of which its own product may make use"
        return Setting(number, NAMES[a.dtype], vendor_advantage=better, adjoint=bool(better))

    def device_number(self, x: Any) -> int:
        return blas_threads()

    def free_bytes(self, number: int) -> int:
        return host_memory.available_bytes()

    def as_numpy(self, x: Any) -> Any:
        return tensor_as_numpy(x)

    def new_array(self, result: Operand) -> Any:
        return torch.empty(result.shape, dtype=TYPES[result.dtype], device="cpu")

    def returned(self, c: Any) -> Any:
        return c

    def vendor_call(self, a: Any, b: Any, out: Any) -> Callable[[], Any]:
        return partial(matmul_into, MATMUL, a, b, out)

    def write_triangle(self, product: Any, out: Any, alpha: float, beta: float, fill: str) -> None:
        """A whole product with nothing to be added is mirrored where it stands, tile by tile, without temporaries."""
        if fill != "full" or (alpha, beta) != (1, 0) or not out.dtype == product.dtype in HOST_TYPES:
            super().write_triangle(product, out, alpha, beta, fill)
            return
        view = self.as_numpy(product)
        for index in np.ndindex(*view.shape[:-2]):
            for task in mirror_tasks(MIRROR_IN_PLACE, view[index], view[index]):
                task()
        if out is not product:
            out.copy_(product)


def _begin_alike(a: Any, b: Any) -> bool:
    """Do they begin at the same place in memory? (Some tensors, of traces and transforms, have none.)"""
    try:
        return bool(a.data_ptr() == b.data_ptr())
    except RuntimeError:
        return False


def _same_memory_transposed(a: Any, b: Any) -> bool:
    """Is b the transpose of a, in place?"""
    if a.dim() < 2 or a.dim() != b.dim() or not _begin_alike(a, b):
        return False
    turned = a.mT
    return bool(turned.shape == b.shape and turned.stride() == b.stride())


TORCH = TorchLibrary()
TORCH_ON_HOST = TorchHostLibrary()


def torch_library_of(x: Any) -> TorchLibrary | TorchHostLibrary:
    """Whose arrays such tensors are, by where they lie."""
    return TORCH if x.is_cuda else TORCH_ON_HOST


# ---- CuPy's current device, while the kernels are launched


def _cupy_on(device: int) -> AbstractContextManager[Any] | None:
    cuda = _cupy().cuda
    return None if cuda.runtime.getDevice() == device else cuda.Device(device)


@lru_cache(maxsize=1)
def _cupy() -> Any:
    import cupy

    return cupy
