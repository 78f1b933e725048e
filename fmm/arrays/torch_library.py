"""torch's tensors as fmm multiplies them: on CUDA devices by plans of their own, on the host through NumPy's view.

Tensors are read by address, so every type that fmm multiplies is there, bfloat16 among them, whatever NumPy or CuPy
know. Inputs that require gradients get them: forward and backward are products by fmm.
"""

from __future__ import annotations

from collections.abc import Hashable
from contextlib import AbstractContextManager
from functools import lru_cache
from typing import Any

import torch
from torch.autograd import forward_ad

from fmm.arrays.library import ANYTHING, EXACT, Operand, Setting, Wanted, hopeless
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.runtime.decide import Decision
from fmm.runtime.device_call import explained, lost, prepared, product
from fmm.runtime.prepare import Call, NotOursError, product_shape

PLAIN = (torch.Tensor, torch.nn.Parameter)
NAMES = {
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
    torch.complex64: "complex64",
    torch.complex128: "complex128",
}
TYPES = {name: dtype for dtype, name in NAMES.items()}
ITS_OWN = "this call is its own (see fmm.matmul)"
HOST_TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


# A torch with the newer switches of float32's precision: the older ones may refuse to answer there.
_getter: Any = getattr(torch._C, "_get_fp32_precision_getter", None)


def _precision() -> str:
    """How torch multiplies float32 on CUDA devices: "ieee", "none" (the same), "tf32" or something of its own."""
    if _getter is None:
        return "tf32" if torch.backends.cuda.matmul.allow_tf32 else "ieee"
    return str(_getter("cuda", "matmul"))


@lru_cache(maxsize=1)
def _no_kernels() -> str:
    """Why plans cannot run on CUDA tensors here, if they cannot: the kernels are launched through CuPy."""
    try:
        import cupy  # noqa: F401
    except ImportError as error:
        return f"fmm's kernels need CuPy ({error})"
    return ""


class TorchArrays:
    """torch's side of `arrays.Arrays`."""

    name = "torch"
    out_of_memory: type[BaseException] = torch.OutOfMemoryError

    def __init__(self) -> None:
        self.calls: dict[Hashable, Any] = {}
        self.mm = torch.matmul

    def matmul(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Any:
        if options:
            raise TypeError(f"torch.matmul takes no {', '.join(options)}")
        if wanted is ANYTHING and out is None and type(a) in PLAIN and type(b) in PLAIN:
            return self.plain(a, b)
        return self._judged(a, b, out, wanted)

    def plain(self, a: Any, b: Any) -> Any:
        try:
            (m, k), (_, n) = a.shape, b.shape
        except ValueError:  # not two matrices
            return self._judged(a, b, None, ANYTHING)
        if hopeless(m, k, n, a.itemsize) or lost(self, self.short(a, b)):
            return self.mm(a, b)
        return self._judged(a, b, None, ANYTHING)

    def _judged(self, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
        if not self._ours(a, b, out):
            return self._refused(a, b, out, wanted, ITS_OWN)
        if a.is_conj() or a.is_neg() or b.is_conj() or b.is_neg():
            a, b = (x.resolve_conj().resolve_neg() for x in (a, b))  # torch keeps these as marks on unchanged numbers
        if torch.is_grad_enabled() and (a.requires_grad or b.requires_grad):
            return self._recorded(a, b, out, wanted)
        return product(self, a, b, out, wanted) if a.is_cuda else _host_product(a, b, out, wanted)

    def explain(self, a: Any, b: Any, out: Any, options: dict[str, Any], wanted: Wanted) -> Decision:
        if options:
            raise TypeError(f"torch.matmul takes no {', '.join(options)}")
        if not self._ours(a, b, out):
            return _torchs(wanted, ITS_OWN)
        return explained(self, a, b, out, wanted) if a.is_cuda else _host_decision(a, b, out, wanted)

    def _ours(self, a: Any, b: Any, out: Any) -> bool:
        """Plain tensors on one device, and nothing that torch does to them behind the call: no transform of functions,
        no forward gradients, no mode that changes what a product is."""
        return (
            not torch.compiler.is_compiling()
            and type(a) in PLAIN
            and type(b) in PLAIN
            and a.device == b.device
            and a.device.type in ("cuda", "cpu")
            and a.layout is b.layout is torch.strided
            and (out is None or self._writable(out, a))
            and forward_ad._current_level < 0
            and not torch.is_autocast_enabled(a.device.type)
            and torch._C._functorch.peek_interpreter_stack() is None
            and not torch._C._len_torch_dispatch_stack()
        )

    def _writable(self, out: Any, like: Any) -> bool:
        marked = type(out) not in PLAIN or out.requires_grad or out.is_conj() or out.is_neg()
        return not marked and bool(out.device == like.device)

    def _refused(self, a: Any, b: Any, out: Any, wanted: Wanted, why: str) -> Any:
        if wanted.plan not in (None, VENDOR):
            self.vendor(a, b)  # torch's own exception, if it rejects the call
        _torchs(wanted, why)
        return self.vendor(a, b, out)

    def _recorded(self, a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
        """A product that gradients will be asked of; torch's own where no plan pays, and where torch rejects it."""
        if out is not None or min(a.dim(), b.dim()) < 2 or not self._wins(a, b, wanted):
            return self.vendor(a, b, out)
        return Product.apply(a, b, wanted)

    def _wins(self, a: Any, b: Any, wanted: Wanted) -> bool:
        if not a.is_cuda:
            chosen = wanted.plan or _host_decision(a, b, None, wanted).plan
            return chosen != VENDOR and not _torchs_alone(a, b, None)
        return prepared(self, a, b, None, wanted).tape is not None

    def vendor(self, a: Any, b: Any, out: Any = None, /, **options: Any) -> Any:
        return torch.matmul(a, b) if out is None else torch.matmul(a, b, out=out)

    def short(self, a: Any, b: Any) -> Hashable:
        dtype = a.dtype
        return a.shape, b.shape, dtype, _precision() if dtype is torch.float32 else ""

    def key(self, a: Any, b: Any, out: Any, wanted: Wanted) -> Hashable:
        dtype = a.dtype
        math = _precision() if dtype is torch.float32 or dtype is torch.complex64 else ""
        if out is None:
            return wanted, math, a.shape, a.stride(), dtype, b.shape, b.stride(), b.dtype, a.get_device()
        target = out.shape, out.stride(), out.dtype
        return wanted, math, a.shape, a.stride(), dtype, b.shape, b.stride(), b.dtype, a.get_device(), target

    def device(self, x: Any) -> int:
        return int(x.get_device())

    def setting(self, a: Any, b: Any, out: Any) -> Setting:
        device = a.get_device()
        single = a.dtype is torch.float32 or a.dtype is torch.complex64
        precision = _precision() if single else "ieee"
        if precision == "tf32" and a.dtype is torch.float32:
            return Setting(device, "tf32", _no_kernels())
        if precision not in ("ieee", "none"):
            return Setting(device, refusal=f"{a.dtype} products in {precision} are its own")
        return Setting(device, refusal=_no_kernels())

    def operand(self, x: Any) -> Operand:
        return Operand(tuple(x.shape), tuple(x.stride()), NAMES.get(x.dtype, str(x.dtype)))

    def pointer(self, x: Any) -> int:
        return int(x.data_ptr())

    def common_type(self, a: Operand, b: Operand) -> str | None:
        return a.dtype if a.dtype == b.dtype else None

    def places(self, call: Call, a: Any, b: Any, out: Any) -> tuple[int, int, int, int, Any, Any]:
        if call.copies:
            form = torch.contiguous_format
            a, b = (x.clone(memory_format=form) if pack else x for x, pack in zip((a, b), call.packs, strict=True))
        c = a.new_empty(call.shape) if out is None else out
        memory = torch.empty(call.workspace, dtype=torch.uint8, device=a.device)
        return a.data_ptr(), b.data_ptr(), c.data_ptr(), memory.data_ptr(), c, (a, b, memory)

    def copy(self, source: Any, out: Any) -> None:
        out.copy_(source)

    def free_bytes(self, device: int) -> int:
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return int(torch.cuda.mem_get_info(device)[0] + kept)

    def current(self, device: int) -> tuple[int, AbstractContextManager[Any] | None]:
        return torch._C._cuda_getCurrentRawStream(device), _cupy_on(device)

    def written(self, out: Any) -> None:
        torch.autograd.graph.increment_version(out)  # what was saved of it for a backward pass is no longer there


TORCH = TorchArrays()
EXACT.update(dict.fromkeys(PLAIN, TORCH))


# ---- gradients


class Product(torch.autograd.Function):  # type: ignore[misc]
    """A product by fmm, whose gradients are products by fmm (and so can be differentiated again)."""

    @staticmethod
    def forward(a: Any, b: Any, wanted: Wanted) -> Any:
        return product(TORCH, a, b, None, wanted) if a.is_cuda else _host_product(a, b, None, wanted)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, Any, Wanted], output: Any) -> None:
        a, b, wanted = inputs
        ctx.save_for_backward(a, b)
        ctx.wanted = wanted._replace(plan=None)  # a plan that was given was meant for this product's size

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> tuple[Any, Any, None]:
        (grad,), (a, b), wanted = gradients, ctx.saved_tensors, ctx.wanted
        left = _matmul(grad, b.mH, wanted).sum_to_size(a.shape) if ctx.needs_input_grad[0] else None
        right = _right_gradient(a, b, grad, wanted) if ctx.needs_input_grad[1] else None
        return left, right, None


def _right_gradient(a: Any, b: Any, grad: Any, wanted: Wanted) -> Any:
    if b.dim() == 2:  # one matrix for a whole stack: one product of all rows, rather than a sum of products
        tall, gradients = a.reshape(-1, a.shape[-1]), grad.reshape(-1, grad.shape[-1])
        return _matmul(tall.mH, gradients, wanted)
    return _matmul(a.mH, grad, wanted).sum_to_size(b.shape)


def _matmul(a: Any, b: Any, wanted: Wanted) -> Any:
    return TORCH.matmul(a, b, None, {}, wanted)


# ---- tensors on the host


def _host_product(a: Any, b: Any, out: Any, wanted: Wanted) -> Any:
    """By NumPy's view of the same memory where a plan pays; torch's own product, with its BLAS, where none does."""
    if why := _torchs_alone(a, b, out):
        return TORCH._refused(a, b, out, wanted, why)
    if (wanted.plan or _host_decision(a, b, out, wanted).plan) == VENDOR:
        return TORCH.vendor(a, b, out)
    from fmm.api import matmul

    if out is None:
        return torch.from_numpy(matmul(_view(a), _view(b), **_wishes(wanted)))
    matmul(_view(a), _view(b), out.numpy(), **_wishes(wanted))
    TORCH.written(out)
    return out


def _view(x: Any) -> Any:
    """NumPy's view of the same memory."""
    return x.detach().resolve_conj().resolve_neg().numpy()


def _wishes(wanted: Wanted) -> dict[str, Any]:
    """As fmm.matmul takes them."""
    return {"plan": wanted.plan, "max_error_growth": wanted.error_growth, "workspace": wanted.workspace}


def _torchs_alone(a: Any, b: Any, out: Any) -> str:
    """Why no plan can run, if none can."""
    if not _host_types(a, b, out):
        return "NumPy has no products of these types or vectors"
    try:
        shape = product_shape(TORCH.operand(a), TORCH.operand(b))
    except NotOursError as reason:
        return str(reason)
    return "" if out is None or out.shape == shape else "out has another shape than the product"


def _host_types(a: Any, b: Any, out: Any) -> bool:
    return (
        a.dtype in HOST_TYPES
        and min(a.dim(), b.dim()) >= 2
        and all(x.dtype is a.dtype for x in (b, out) if x is not None)
    )


def _host_decision(a: Any, b: Any, out: Any, wanted: Wanted) -> Decision:
    if why := _torchs_alone(a, b, out):
        return _torchs(wanted, why)
    from fmm.api import explain
    from fmm.runtime.host_call import SIDE

    if wanted.plan is None and min(*a.shape[-2:], b.shape[-1]) < SIDE and a.dim() == b.dim() == 2:
        return _torchs(wanted, "too small for any plan")
    return explain(_view(a), _view(b), **_wishes(wanted))


def _torchs(wanted: Wanted, why: str) -> Decision:
    """The decision for a call that torch answers; PlanError if another plan was given."""
    if wanted.plan not in (None, VENDOR):
        raise PlanError(f"the plan {wanted.plan} cannot run here: {why}")
    return Decision(VENDOR, None, f"torch answers: {why}")


# ---- CuPy's current device, while the kernels are launched


def _cupy_on(device: int) -> AbstractContextManager[Any] | None:
    cuda = _cupy().cuda
    return None if cuda.runtime.getDevice() == device else cuda.Device(device)


@lru_cache(maxsize=1)
def _cupy() -> Any:
    import cupy

    return cupy
