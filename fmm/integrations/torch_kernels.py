"""torch's product operators, torch's own kernels of these operators, and calls of torch that bypass an installed fmm.

Each product of torch calls aten::mm, addmm, bmm or baddbmm, or a variant of these operators (with `out`, or in
place).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fmm.arrays.torch_calls import (
    PLAIN_DISPATCH_KEYS,
    TORCH_BMM,
    TORCH_MATMUL,
    are_plain_tensors,
    is_compiling,
    is_deterministic,
)
from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST, TorchHostLibrary, TorchLibrary
from fmm.integrations.install_targets import CannotInstallError, UndoFunction

# ---- the operators


@dataclass(frozen=True)
class TorchOperator:
    """An operator of aten, and the schema of its replacement in torch's library fmm_hook (which may return None)."""

    name: str  # the operator's name in aten
    axes: int  # number of axes of each operand
    schema: str  # schema of the operator in torch's library fmm_hook
    left_index: int = 0  # index of the left operand in the argument list
    in_place: bool = False  # True if the result overwrites the addend

    @property
    def python_name(self) -> str:
        """The name of torch's Python function for the operator; the variant with `out` has the same name."""
        return f"torch.{self.name.removesuffix('.out')}"


_FACTORS_SCHEMA = "Tensor a, Tensor b, Scalar beta, Scalar alpha"
_ADDEND_SCHEMA = f"Tensor addend, {_FACTORS_SCHEMA}"
TORCH_OPERATORS = (
    TorchOperator("mm", 2, "mm(Tensor a, Tensor b) -> Tensor?"),
    TorchOperator("mm.out", 2, "mm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    TorchOperator("bmm", 3, "bmm(Tensor a, Tensor b) -> Tensor?"),
    TorchOperator("bmm.out", 3, "bmm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    TorchOperator("addmm", 2, f"addmm({_ADDEND_SCHEMA}) -> Tensor?", 1),
    TorchOperator("addmm.out", 2, f"addmm_out({_ADDEND_SCHEMA}, Tensor(a!) out) -> Tensor?", 1),
    TorchOperator("addmm_", 2, f"addmm_(Tensor(a!) addend, {_FACTORS_SCHEMA}) -> Tensor?", 1, True),
    TorchOperator("baddbmm", 3, f"baddbmm({_ADDEND_SCHEMA}) -> Tensor?", 1),
    TorchOperator("baddbmm.out", 3, f"baddbmm_out({_ADDEND_SCHEMA}, Tensor(a!) out) -> Tensor?", 1),
    TorchOperator("baddbmm_", 3, f"baddbmm_(Tensor(a!) addend, {_FACTORS_SCHEMA}) -> Tensor?", 1, True),
)


def vendor_kernels(key: str) -> dict[str, Any]:
    """Return a dictionary from each operator's name to torch's own kernel at this dispatch key."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        raise CannotInstallError(f"torch {torch.__version__} does not provide its kernels; torch 2.11 does")
    try:
        return {operator.name: get_kernel(f"aten::{operator.name}", key) for operator in TORCH_OPERATORS}
    except RuntimeError as error:  # torch was built without a kernel of the operator for this key
        raise CannotInstallError(str(error)) from error


# ---- fmm's own calls of torch

bypass_state = threading.local()  # while its attribute `on` is True in a thread, the thread's calls of torch bypass fmm


@contextmanager
def bypass_fmm() -> Iterator[None]:
    """Let this thread's calls of torch bypass fmm inside the `with` block."""
    before, bypass_state.on = getattr(bypass_state, "on", False), True
    try:
        yield
    finally:
        bypass_state.on = before


def vendor_matmul(a: Any, b: Any, out: Any = None) -> Any:
    """Return torch.matmul's result, computed by torch's own kernels."""
    if is_compiling():
        return TORCH_MATMUL(a, b) if out is None else TORCH_MATMUL(a, b, out=out)
    before, bypass_state.on = getattr(bypass_state, "on", False), True  # `bypass_fmm` takes a microsecond longer
    try:
        return TORCH_MATMUL(a, b) if out is None else TORCH_MATMUL(a, b, out=out)
    finally:
        bypass_state.on = before


_active_undos: list[UndoFunction] = []


def bypass_fmm_for_vendor(undo: UndoFunction) -> UndoFunction:
    """Let products that fmm.matmul passes to torch run torch's own kernels, until the returned function is called.

    The returned function calls `undo`, which removes one installation, and ends the bypass when no installation is
    left.
    """

    def undo_installation() -> None:
        undo()
        _active_undos.remove(undo)
        for library in (TORCH, TORCH_ON_HOST) if not _active_undos else ():
            library.fast_vendor_product, library.fast_stack_product = TORCH_MATMUL, TORCH_BMM

    _active_undos.append(undo)
    for library in (TORCH, TORCH_ON_HOST):
        library.fast_vendor_product = library.fast_stack_product = vendor_matmul
    return undo_installation


# ---- the libraries of tensors that come from the dispatcher


class HookedDeviceLibrary(TorchLibrary):
    """The adapter for CUDA tensors that torch's dispatcher passes to fmm.

    `vendor_product` calls torch's own kernel.
    """

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.cached_calls = TORCH.cached_calls
        self.kernels, self.keys = kernels, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        return _call_torch_kernel(self, a, b, out)

    def is_plain_product(self, a: Any, b: Any, out: Any, c: Any = None) -> bool:
        # torch's dispatcher records gradients and casts operands before it calls the hook
        return are_plain_tensors(a, b, out, c, PLAIN_DISPATCH_KEYS) and not is_deterministic()


class HookedHostLibrary(TorchHostLibrary):
    """The adapter for host tensors that torch's dispatcher passes to fmm.

    `vendor_product` calls torch's own kernel.
    """

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.cached_calls = TORCH_ON_HOST.cached_calls
        self.kernels, self.keys = kernels, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def vendor_product(self, a: Any, b: Any, out: Any = None) -> Any:
        return _call_torch_kernel(self, a, b, out)


HookedLibrary = HookedDeviceLibrary | HookedHostLibrary


def _call_torch_kernel(library: HookedLibrary, a: Any, b: Any, out: Any) -> Any:
    name = "mm" if a.dim() == 2 else "bmm"
    if out is None:
        return library.kernels[name].call_boxed(library.keys, a, b)
    return library.kernels[f"{name}.out"].call_boxed(library.keys, a, b, out=out)
