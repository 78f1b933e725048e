"""What torch does to a call besides multiplying: where it does anything, the call is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

PLAIN = (torch.Tensor, torch.nn.Parameter)
MATMUL: Any = torch._C._VariableFunctions.matmul  # torch.matmul, also where somebody has put another in its place

is_compiling = torch.compiler.is_compiling
# The same in torch.compile's own eyes, which is where a plain tensor can come by it: without a second call.
is_compiled = getattr(torch.compiler, "is_dynamo_compiling", is_compiling)
tracing_state = torch._C._get_tracing_state
function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
function_mode: Callable[[], Any] = getattr(torch._C, "_is_torch_function_mode_enabled", function_modes)
transform = torch._C._functorch.peek_interpreter_stack
deterministic = torch._C._get_deterministic_algorithms
dispatch_keys: Any = torch._C._dispatch_keys
# For any kind of device: that of one is asked by its name, which takes three times as long.
autocast_somewhere: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def is_exporting() -> bool:
    """As torch.compiler.is_exporting says outside of compilers: that of torch 2.11 takes its answer for true always."""
    return bool(torch.compiler._is_exporting_flag)


def _bits(*names: str) -> int:
    """Keys of torch's dispatcher, a bit each."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


# What a plain tensor on the host or a CUDA device has. All else is another memory layout, or somebody who wants to see
# what is done to the tensor: a transform, a trace, a mode.
PLAIN_KEYS = _bits("CPU", "AutogradCPU", "AutocastCPU", "CUDA", "AutogradCUDA", "AutocastCUDA", "ADInplaceOrView")
MARKED_KEYS = _bits("Conjugate", "Negative")
_PLAIN_OR_MARKED = PLAIN_KEYS | MARKED_KEYS


def has_plain_keys(keys: int) -> bool:
    """Of a plain tensor, which may be marked as a conjugate or a negative?"""
    return not keys & ~_PLAIN_OR_MARKED


def is_observed() -> bool:
    """Does somebody see the calls of torch's functions, to record or change them? Then he is to see torch.matmul, not
    what fmm asks of the tensors before it.

    torch.compile and torch.export, torch.jit.trace, modes of torch functions; but not the mode by which torch keeps the
    default device, which no product depends on.
    """
    return is_compiling() or tracing_state() is not None or (function_modes() > 0 and _modes_but_devices())


def is_tracing() -> bool:
    """The same for those who ask nothing of a tensor but its bytes, of which torch.jit.trace takes no note."""
    return is_compiled() or (bool(function_mode()) and _modes_but_devices())


def is_recording() -> bool:
    """The same, but for compilers: while one works, products of real numbers are computed as ever."""
    return tracing_state() is not None or (function_modes() > 0 and _modes_but_devices())


def _modes_but_devices() -> bool:
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in range(function_modes()))


def explain_torch_fallback(a: Any, b: Any, out: Any = None) -> str:
    """Why a call that is not plain (`plain_call`) is left to torch."""
    return f"this call is torch's own: {_what_is_not_plain(a, b, out)}"


def _what_is_not_plain(a: Any, b: Any, out: Any) -> str:
    if is_observed():
        return "somebody records torch's calls, or compiles them"
    given = {"a": a, "b": b} | ({} if out is None else {"out": out})
    for name, x in given.items():
        if type(x) not in PLAIN:
            return f"{name} is a {type(x).__name__}, not a plain tensor"
        if x.layout is not torch.strided or x.device.type not in ("cpu", "cuda"):
            return f"{name} is a {x.layout} tensor on {x.device}".replace("torch.", "")
    if transform() is not None or forward_ad._current_level >= 0 or dispatch_modes():
        return "a transform, forward gradients or a mode is in force"
    if any(x.device != a.device for x in given.values()):
        return f"the tensors are on {' and '.join(dict.fromkeys(str(x.device) for x in given.values()))}"
    if out is not None and not writable(out, a):
        return "out requires gradients, overlaps itself or cannot be written"
    if autocast_somewhere() and torch.is_autocast_enabled(a.device.type):
        return "autocast chooses the types of products"
    return "deterministic algorithms are asked for" if deterministic() else "its tensors are not plain ones"


def plain_call(a: Any, b: Any, out: Any) -> bool:
    """Plain tensors on one device, and nothing that torch does to them behind the call: no transform of functions, no
    forward gradients, no mode that changes what a product is or forbids that its last digits differ."""
    if is_observed() or type(a) not in PLAIN:
        return False
    keys = dispatch_keys(a).raw_repr()
    if b is not a:
        if type(b) not in PLAIN or a.get_device() != b.get_device():
            return False
        keys |= dispatch_keys(b).raw_repr()
    return (
        not keys & ~_PLAIN_OR_MARKED
        and (out is None or writable(out, a))
        and forward_ad._current_level < 0
        and transform() is None
        and not dispatch_modes()
        and not (autocast_somewhere() and torch.is_autocast_enabled("cuda" if a.is_cuda else "cpu"))
        and not deterministic()
    )


def writable(out: Any, like: Any) -> bool:
    """Does torch write there, without an error or a second thought?"""
    plain = type(out) in PLAIN and not dispatch_keys(out).raw_repr() & ~PLAIN_KEYS
    return plain and not (out.requires_grad or refused_out(out)) and bool(out.get_device() == like.get_device())


OVERLAPS = 1  # several entries in one place, certainly


def refused_out(out: Any) -> bool:
    """Where torch writes no product: an expanded tensor, one of whose gradients it keeps record, one of its inference
    mode outside of that."""
    if not isinstance(out, torch.Tensor):
        return True
    recorded = out.requires_grad and torch.is_grad_enabled()
    frozen = out.is_inference() and not torch.is_inference_mode_enabled()
    return recorded or frozen or bool(torch._debug_has_internal_overlap(out) == OVERLAPS)


def as_plain_tensor(x: Any) -> Any:
    """A tensor as NumPy and CuPy can read it: without marks, and in a type that they have. TypeError for one whose
    numbers do not lie in memory, or are not all there is to it: of transforms, forward gradients, other layouts."""
    if not has_plain_keys(dispatch_keys(x).raw_repr()) or transform() is not None or _has_tangent(x):
        raise TypeError(
            "a plain tensor is wanted, not one that is sparse, on no device, or in the midst of a transform"
        )
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x.double() if x.dtype is torch.bfloat16 else x


def _has_tangent(x: Any) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def resolve_marks(a: Any, b: Any) -> tuple[Any, Any]:
    """Conjugates and negatives as numbers: torch keeps them as marks on unchanged ones."""
    if a.is_conj() or a.is_neg() or b.is_conj() or b.is_neg():
        return a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    return a, b
