"""torch's own kernels of products, and by which way fmm itself asks for them while it is installed in front."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fmm.arrays.torch_calls import MATMUL, is_compiling
from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST, TorchHostLibrary, TorchLibrary
from fmm.integrations.install_targets import CannotInstallError, Undo


def own_kernels(key: str) -> dict[str, Any]:
    """torch's own kernels at this key of its dispatcher, by operator."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        raise CannotInstallError(f"torch {torch.__version__} does not hand out its kernels; 2.11 does")
    try:
        return {row.name: get_kernel(f"aten::{row.name}", key) for row in OPERATORS}
    except RuntimeError as error:  # a torch that was built without
        raise CannotInstallError(str(error)) from error


# ---- while fmm itself asks torch


passing = threading.local()  # its attribute `on`: this thread's calls pass fmm by


@contextmanager
def own_kernels_answer() -> Iterator[None]:
    """Whatever this thread asks torch for: as if nothing were installed."""
    before, passing.on = getattr(passing, "on", False), True
    try:
        yield
    finally:
        passing.on = before


def own_product(a: Any, b: Any, out: Any = None) -> Any:
    """torch.matmul that comes down to torch's own kernels."""
    if is_compiling():
        return MATMUL(a, b) if out is None else MATMUL(a, b, out=out)
    with own_kernels_answer():
        return MATMUL(a, b) if out is None else MATMUL(a, b, out=out)


_installed: list[Undo] = []


def with_vendor_passing(undo: Undo) -> Undo:
    """While anything is installed, what fmm.matmul leaves to torch does not come back to fmm."""

    def leave() -> None:
        undo()
        _installed.remove(undo)
        for library in (TORCH, TORCH_ON_HOST) if not _installed else ():
            library.quick_vendor = MATMUL

    _installed.append(undo)
    for library in (TORCH, TORCH_ON_HOST):
        library.quick_vendor = own_product
    return leave


# ---- the libraries of tensors that come from the dispatcher


class HookedDevice(TorchLibrary):
    """Tensors on a CUDA device whose vendor is the kernel that was there before."""

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.calls = TORCH.calls
        self.kernels, self.keys = kernels, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return _by_kernel(self, a, b, out)


class HookedHost(TorchHostLibrary):
    """The same on the host."""

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.calls = TORCH_ON_HOST.calls
        self.kernels, self.keys = kernels, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return _by_kernel(self, a, b, out)


Hooked = HookedDevice | HookedHost


def _by_kernel(library: Hooked, a: Any, b: Any, out: Any) -> Any:
    name = "mm" if a.dim() == 2 else "bmm"
    if out is None:
        return library.kernels[name].call_boxed(library.keys, a, b)
    return library.kernels[f"{name}.out"].call_boxed(library.keys, a, b, out=out)


@dataclass(frozen=True)
class Operator:
    """One of aten's, and what Python is asked in its place: a tensor, or None if torch's own kernel is to answer."""

    name: str  # in aten
    axes: int  # of both operands
    question: str  # its schema in the library fmm_hook
    first: int = 0  # where the left operand stands among the arguments
    in_place: bool = False  # does the result take the place of what is added?

    @property
    def shown(self) -> str:
        """As torch has it in Python: the forms with `out` are not other functions there."""
        return f"torch.{self.name.removesuffix('.out')}"


_FACTORS = "Tensor a, Tensor b, Scalar beta, Scalar alpha"
_ADDED = f"Tensor added, {_FACTORS}"
OPERATORS = (
    Operator("mm", 2, "mm(Tensor a, Tensor b) -> Tensor?"),
    Operator("mm.out", 2, "mm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    Operator("bmm", 3, "bmm(Tensor a, Tensor b) -> Tensor?"),
    Operator("bmm.out", 3, "bmm_out(Tensor a, Tensor b, Tensor(a!) out) -> Tensor?"),
    Operator("addmm", 2, f"addmm({_ADDED}) -> Tensor?", 1),
    Operator("addmm.out", 2, f"addmm_out({_ADDED}, Tensor(a!) out) -> Tensor?", 1),
    Operator("addmm_", 2, f"addmm_(Tensor(a!) added, {_FACTORS}) -> Tensor?", 1, True),
    Operator("baddbmm", 3, f"baddbmm({_ADDED}) -> Tensor?", 1),
    Operator("baddbmm.out", 3, f"baddbmm_out({_ADDED}, Tensor(a!) out) -> Tensor?", 1),
    Operator("baddbmm_", 3, f"baddbmm_(Tensor(a!) added, {_FACTORS}) -> Tensor?", 1, True),
)
