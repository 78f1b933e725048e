"""Detection of calls that torch must compute itself: modes, transforms, tracing, autocast, unusual tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.autograd import forward_ad
from torch.utils._device import DeviceContext

PLAIN_TENSORS = (torch.Tensor, torch.nn.Parameter)
# torch's own function, even if a program sets `torch.matmul = fmm.matmul`
TORCH_MATMUL: Any = torch._C._VariableFunctions.matmul
# torch's own product of two stacks of equal length; on the host, this call is 4 microseconds shorter than torch.matmul
TORCH_BMM: Any = torch._C._VariableFunctions.bmm

is_compiling = torch.compiler.is_compiling
# A faster replacement of torch.compiler.is_compiling: in Python a call returns False, and in code that torch.compile
# traces, the compiler replaces the call by True.
is_compiled = getattr(torch.compiler, "is_dynamo_compiling", is_compiling)
tracing_state = torch._C._get_tracing_state
count_function_modes, count_dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack
is_function_mode_enabled: Callable[[], Any] = getattr(torch._C, "_is_torch_function_mode_enabled", count_function_modes)
active_transforms = torch._C._functorch.peek_interpreter_stack
is_deterministic = torch._C._get_deterministic_algorithms
dispatch_keys: Any = torch._C._dispatch_keys
# torch's function that returns True if autocast is on for any type of device. Asking torch about one type of device
# takes three times as long, since torch parses the type's name.
is_any_autocast_enabled: Callable[[], bool] = getattr(torch._C, "_is_any_autocast_enabled", lambda: True)


def is_exporting() -> bool:
    """Return True during torch.export.

    torch.compiler.is_exporting is not called, since in torch 2.11 it returns True in compiled code too.
    """
    return bool(torch.compiler._is_exporting_flag)


def _dispatch_key_bits(*names: str) -> int:
    """Return the named keys of torch's dispatcher as a bit set."""
    bits = 0
    for name in names:
        bits |= torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)).raw_repr()
    return bits


# The keys that torch's dispatcher has for tensors with strided memory. A tensor with any other dispatcher key has
# another memory layout, or a transform, a trace or a mode records the tensor's calls.
PLAIN_DISPATCH_KEYS = _dispatch_key_bits(
    "CPU", "AutogradCPU", "AutocastCPU", "CUDA", "AutogradCUDA", "AutocastCUDA", "ADInplaceOrView"
)
CONJ_NEG_DISPATCH_KEYS = _dispatch_key_bits("Conjugate", "Negative")
_PLAIN_OR_MARKED = PLAIN_DISPATCH_KEYS | CONJ_NEG_DISPATCH_KEYS


def has_only_dense_dispatch_keys(keys: int) -> bool:
    """Return True if the dispatcher's keys are those of a strided tensor; conjugate and negative marks are allowed."""
    return not keys & ~_PLAIN_OR_MARKED


def are_torch_calls_recorded() -> bool:
    """Return True while torch.compile, torch.export, torch.jit.trace or a function mode records torch's calls.

    While calls are recorded, only torch.matmul may be called on the tensors: even a read of a shape would be recorded.
    The function mode that sets torch's default device is ignored, since no product depends on the default device.
    """
    return is_compiling() or tracing_state() is not None or (count_function_modes() > 0 and _has_recording_mode())


def is_tracing() -> bool:
    """Return the value of `are_torch_calls_recorded()`, but False if only torch.jit.trace records calls.

    This function is for code that reads no property of a tensor except its size in bytes: torch.jit.trace does not
    record that read.
    """
    if is_compiled():
        return True
    return _has_recording_mode() if is_function_mode_enabled() else False  # `bool()` would take as long as the queries


def is_recording_outside_compiler() -> bool:
    """Return the value of `are_torch_calls_recorded()`, but False while a compiler traces a program.

    While torch.compile or torch.export traces a program, the products of the compiler's example tensors are not
    recorded.
    """
    return tracing_state() is not None or (count_function_modes() > 0 and _has_recording_mode())


def _has_recording_mode() -> bool:
    """Return True if a function mode is active, apart from the function mode that sets torch's default device."""
    return any(type(torch._C._get_function_stack_at(i)) is not DeviceContext for i in range(count_function_modes()))


def explain_torch_fallback(a: Any, b: Any, out: Any = None) -> str:
    """Return the reason why torch must compute a call for which `is_plain_call` returns False, as text."""
    return f"this call is torch's own: {_fallback_reason(a, b, out)}"


def _fallback_reason(a: Any, b: Any, out: Any) -> str:
    if are_torch_calls_recorded():
        return "torch's calls are being recorded or compiled"
    tensors = {"a": a, "b": b} | ({} if out is None else {"out": out})
    for name, x in tensors.items():
        if type(x) not in PLAIN_TENSORS:
            return f"{name} is a {type(x).__name__}, not a plain tensor"
        if x.layout is not torch.strided or x.device.type not in ("cpu", "cuda"):
            return f"{name} is a {x.layout} tensor on {x.device}".replace("torch.", "")
    if active_transforms() is not None or forward_ad._current_level >= 0 or count_dispatch_modes():
        return "a transform, forward gradients or a mode is active"
    if any(x.device != a.device for x in tensors.values()):
        return f"the tensors are on {' and '.join(dict.fromkeys(str(x.device) for x in tensors.values()))}"
    if out is not None and (out.is_conj() or out.is_neg()):
        return "out has torch's conjugate or negative bit"
    if out is not None and not is_writable_out(out, a):
        return "out requires gradients, overlaps itself or cannot be written"
    if is_any_autocast_enabled() and torch.is_autocast_enabled(a.device.type):
        return "autocast chooses the types of products"
    return "deterministic algorithms are required" if is_deterministic() else "the tensors are not plain"


def is_plain_call(a: Any, b: Any, out: Any, c: Any = None, allowed_keys: int = _PLAIN_OR_MARKED) -> bool:
    """Return True if all tensors are plain (see `are_plain_tensors`) and torch would only multiply them.

    Return False under a transform, forward gradients, autocast, a dispatch mode or deterministic algorithms.
    """
    return (
        not are_torch_calls_recorded()
        and are_plain_tensors(a, b, out, c, allowed_keys)
        and forward_ad._current_level < 0
        and active_transforms() is None
        and not count_dispatch_modes()
        and not (is_any_autocast_enabled() and torch.is_autocast_enabled("cuda" if a.is_cuda else "cpu"))
        and not is_deterministic()
    )


def are_plain_tensors(a: Any, b: Any, out: Any, c: Any, allowed_keys: int) -> bool:
    """Return True if all tensors are strided tensors on one device; `c` is the addend, or None.

    `allowed_keys` are the dispatcher's keys that the operands and the addend may have.
    """
    if type(a) not in PLAIN_TENSORS:
        return False
    keys = dispatch_keys(a).raw_repr()
    if b is not a:
        if type(b) not in PLAIN_TENSORS or a.get_device() != b.get_device():
            return False
        keys |= dispatch_keys(b).raw_repr()
    if c is not None:
        if type(c) not in PLAIN_TENSORS or a.get_device() != c.get_device():
            return False
        keys |= dispatch_keys(c).raw_repr()
    return not keys & ~allowed_keys and (out is None or is_writable_out(out, a))


def is_writable_out(out: Any, like: Any) -> bool:
    """Return True if torch accepts `out`: a strided tensor that records no gradients, on the device of `like`."""
    plain = type(out) in PLAIN_TENSORS and not dispatch_keys(out).raw_repr() & ~PLAIN_DISPATCH_KEYS
    return (
        plain
        and not (out.requires_grad or is_out_rejected_by_torch(out))
        and bool(out.get_device() == like.get_device())
    )


MEMORY_OVERLAPS = 1  # torch's MemOverlap::Yes: several entries share memory for certain


def is_out_rejected_by_torch(out: Any) -> bool:
    """Return True if torch raises an error for `out`.

    torch raises an error if `out` is expanded, records gradients or is an inference tensor.
    """
    if not isinstance(out, torch.Tensor):
        return True
    recorded = out.requires_grad and torch.is_grad_enabled()
    frozen = out.is_inference() and not torch.is_inference_mode_enabled()
    return recorded or frozen or bool(torch._debug_has_internal_overlap(out) == MEMORY_OVERLAPS)


def as_plain_tensor(x: Any) -> Any:
    """Return a tensor that NumPy and CuPy can read, with torch's conj and neg bits resolved; bfloat16 becomes float64.

    Raise TypeError in three cases: the tensor has a layout without strides, for example a sparse layout; a transform of
    torch.func is active; the tensor has a tangent (forward gradients).
    """
    if (
        not has_only_dense_dispatch_keys(dispatch_keys(x).raw_repr())
        or active_transforms() is not None
        or _has_tangent(x)
    ):
        raise TypeError("fmm needs a plain tensor, not a sparse one, one on another device, or one of a transform")
    if x.is_conj() or x.is_neg():
        x = x.resolve_conj().resolve_neg()
    return x.double() if x.dtype is torch.bfloat16 else x


def _has_tangent(x: Any) -> bool:
    return forward_ad._current_level >= 0 and forward_ad.unpack_dual(x).tangent is not None


def resolve_conj_and_neg_bits(a: Any, b: Any) -> tuple[Any, Any]:
    """Return both tensors without conjugate and negative marks; unmarked tensors are not copied."""
    if a.is_conj() or a.is_neg() or b.is_conj() or b.is_neg():
        return a.resolve_conj().resolve_neg(), b.resolve_conj().resolve_neg()
    return a, b
