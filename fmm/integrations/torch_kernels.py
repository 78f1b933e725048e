"""torch's products below autograd: aten::mm, addmm, bmm, baddbmm and their other forms, on CUDA devices or on the host.

A kernel of ours stands at the dispatcher's key of the device, and torch's own is kept: it answers whatever no plan
makes faster. Gradients, nn.Linear, mixed precision, checkpoints, sharded tensors and the like come down to these
operators, and so need nothing of fmm. In front stands a hook in C++ (torch_kernels.cpp), which declines small products
without asking Python; where it cannot be compiled, one in Python does the same in some microseconds.
"""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch

from fmm.arrays.torch_calls import (
    MATMUL,
    PLAIN,
    calls_are_recorded,
    deterministic,
    dispatch_keys,
    is_compiling,
    plain_bits,
    without_marks,
    writable,
)
from fmm.arrays.torch_library import TORCH, TORCH_ON_HOST, TorchHostLibrary, TorchLibrary
from fmm.integrations import compiled_hook
from fmm.integrations.places import CannotInstallError
from fmm.integrations.report import noted, reporting
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime import matmul
from fmm.runtime.calls.prepare import prepared
from fmm.runtime.decisions.left_to_vendor import (
    SMALL,
    SMALL_HALF,
    SMALL_UNALIGNED,
    just_left_to_vendor,
    remember_vendor,
)
from fmm.runtime.decisions.left_to_vendor import small_enough_for_vendor as small_enough
from fmm.runtime.decisions.limits import NO_WISHES
from fmm.runtime.gemm import Update, gemm_product, update_wishes

Undo = Callable[[], None]
PRODUCT = Update()


@dataclass(frozen=True)
class Operator:
    """One of aten's, and what Python is asked in its place: a tensor, or None if torch's own kernel is to answer."""

    name: str  # in aten
    axes: int  # of both operands
    question: str  # its schema in the library fmm_hook
    first: int = 0  # where the left operand stands among the arguments
    in_place: bool = False  # does the result take the place of what is added?


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


def install_on_cuda() -> Undo:
    """Nothing of this touches a device: processes that only start others are not to have contexts there, nor are those
    that fork."""
    if torch.cuda.device_count() == 0:
        raise CannotInstallError("this torch finds no CUDA device (its products on the host: 'torch-cpu')")
    if find_spec("cupy") is None:
        raise CannotInstallError("fmm's kernels need CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)")
    return install_at("CUDA")


def install_on_host() -> Undo:
    return install_at("CPU")


def install_at(key: str, compiled: bool = True) -> Undo:
    """At this key of the dispatcher, with the hook in C++ if it can be had; CannotInstallError, and nothing changed."""
    kernels = own_kernels(key)
    hook = compiled_hook.loaded_hook() if compiled else None
    answers = Answers(_HookedDevice(kernels) if key == "CUDA" else _HookedHost(kernels), hook)
    return _with_vendor_passing(answers.install_compiled(key) if hook else answers.install_python(key, kernels))


def own_kernels(key: str) -> dict[str, Any]:
    """torch's own kernels at the key, by operator."""
    get_kernel = getattr(torch.library, "get_kernel", None)
    if get_kernel is None:
        raise CannotInstallError(f"torch {torch.__version__} does not hand out its kernels; 2.11 does")
    try:
        return {row.name: get_kernel(f"aten::{row.name}", key) for row in OPERATORS}
    except RuntimeError as error:  # a torch that was built without
        raise CannotInstallError(str(error)) from error


# ---- torch's own product, for fmm


_passing = threading.local()


@contextmanager
def own_kernels_answer() -> Iterator[None]:
    """Whatever this thread asks torch for: as if nothing were installed."""
    before, _passing.on = getattr(_passing, "on", False), True
    try:
        yield
    finally:
        _passing.on = before


def own_product(a: Any, b: Any, out: Any = None) -> Any:
    """torch.matmul that comes down to torch's own kernels."""
    if is_compiling():
        return MATMUL(a, b) if out is None else MATMUL(a, b, out=out)
    with own_kernels_answer():
        return MATMUL(a, b) if out is None else MATMUL(a, b, out=out)


_installed: list[Undo] = []


def _with_vendor_passing(undo: Undo) -> Undo:
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


class _HookedDevice(TorchLibrary):
    """Tensors on a CUDA device whose vendor is the kernel that was there before."""

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.kernels, self.calls, self.keys = kernels, TORCH.calls, torch._C.DispatchKeySet(torch._C.DispatchKey.CUDA)

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return _own(self, a, b, out)


class _HookedHost(TorchHostLibrary):
    """The same on the host."""

    def __init__(self, kernels: dict[str, Any]) -> None:
        super().__init__()
        self.kernels, self.keys = kernels, torch._C.DispatchKeySet(torch._C.DispatchKey.CPU)
        self.calls = TORCH_ON_HOST.calls

    def vendor(self, a: Any, b: Any, out: Any = None) -> Any:
        return _own(self, a, b, out)


def _own(library: _HookedDevice | _HookedHost, a: Any, b: Any, out: Any) -> Any:
    name = "mm" if a.dim() == 2 else "bmm"
    if out is None:
        return library.kernels[name].call_boxed(library.keys, a, b)
    return library.kernels[f"{name}.out"].call_boxed(library.keys, a, b, out=out)


# ---- what Python answers


class Answers:
    """The products that fmm multiplies, of those that torch's dispatcher asks for at one key."""

    def __init__(self, library: _HookedDevice | _HookedHost, hook: Any) -> None:
        self.library = library
        self.hook = hook  # stands in front and declines small products; None: nobody does

    def product(self, a: Any, b: Any, out: Any = None) -> Any:
        """A product of two matrices, or of two stacks of as many; None: torch's own kernel is to answer."""
        return None if self._not_now() else self._answer(a, b, out)

    def sum_with_product(self, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """beta * added + alpha * a @ b, or None.

        Alpha and beta are factors of the plan's last sums, which read what is added where it lies, a row for all rows
        of the product perhaps. Without beta it is not looked at, be it inf or NaN.
        """
        if self._not_now() or not (_can_be_added(added, a, b) and _are_factors(alpha, beta, a)):
            return None
        return self._answer(a, b, out, Update(alpha, beta), added if beta else None)

    def _answer(self, a: Any, b: Any, out: Any, update: Update = PRODUCT, added: Any = None) -> Any:
        """alpha a b + beta added, or None."""
        if self.hook is None and not reporting() and self._quick_no(a, b):
            return None
        if not plain_operands(a, b) or not (out is None or takes(out, a, b)):
            return None
        a, b = without_marks(a, b)
        if added is not None and added is not out:
            added = without_marks(added, added)[0]
        wishes = update_wishes(self.library, a, b, added, out, update) if update != PRODUCT else NO_WISHES
        noted(
            f"torch.{'mm' if a.dim() == 2 else 'bmm'}", a, b, lambda: matmul.explained(self.library, a, b, out, wishes)
        )
        ready = prepared(self.library, a, b, out, wishes)
        if ready.plan is None or (ready.plan == VENDOR and ready.decision.trial is None):
            if update == PRODUCT:
                remember_vendor(self.library, a, b, ready.decision)
            return None
        if update == PRODUCT:
            return matmul.product(self.library, a, b, out, wishes)
        with own_kernels_answer():  # whatever torch is asked for meanwhile
            return gemm_product(self.library, a, b, added, out, update, NO_WISHES)

    def _not_now(self) -> bool:
        """Is it torch's whatever it is: because fmm itself asks, or somebody records torch's calls? Then it is not
        remembered as declined."""
        declined = getattr(_passing, "on", False) or calls_are_recorded()
        if self.hook is not None and (declined or reporting()):  # a report counts each product
            self.hook.only_now()
        return declined

    def sum_in_place(self, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """The same in the place of what is added."""
        return self.sum_with_product(added, a, b, beta, alpha, added)

    def answer(self, row: Operator) -> Callable[..., Any]:
        if row.in_place:
            return self.sum_in_place
        return self.sum_with_product if row.first else self.product

    def _quick_no(self, a: Any, b: Any) -> bool:
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        small = small_enough(m, k, n, a.element_size())
        return small or (a.dim() == 2 and just_left_to_vendor(self.library, a, b))

    # ---- in the dispatcher

    def install_compiled(self, key: str) -> Undo:
        """Behind the hook in C++."""
        hook = self.hook
        _define_questions(key)
        _answering[key] = self
        hook.least_work(*((0, 0, 0) if reporting() else (SMALL, SMALL_HALF, SMALL_UNALIGNED)))
        if failure := hook.install(key == "CUDA", [(row.name, row.first) for row in OPERATORS]):
            raise CannotInstallError(failure)

        def undo() -> None:
            hook.uninstall(key == "CUDA")
            _answering.pop(key, None)

        return undo

    def install_python(self, key: str, kernels: dict[str, Any]) -> Undo:
        """Without it."""
        library = torch.library.Library("aten", "IMPL")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a kernel replaces another one is what is asked for
            for row in OPERATORS:
                library.impl(row.name, _python_kernel(row, self.answer(row), kernels[row.name]), key, with_keyset=True)
        _ever_installed.extend(own_kernels(key).values())
        return library._destroy  # type: ignore[no-any-return]


# Kernels of ours that ever stood in the dispatcher: a thread may still be in one when it is taken out.
_ever_installed: list[Any] = []
_answering: dict[str, Answers] = {}  # by key: whom the hook in C++ asks
_questions: list[Any] = []  # the library fmm_hook, once it is defined; and the keys at which it is
_asked_at: set[str] = set()


def _define_questions(key: str) -> None:
    """What the hook in C++ asks, defined once in a process: a thread may ask when it has just been taken out."""
    if not _questions:
        _questions.append(torch.library.Library("fmm_hook", "DEF"))
        for row in OPERATORS:
            _questions[0].define(row.question)
    if key not in _asked_at:
        for row in OPERATORS:
            _questions[0].impl(row.question.partition("(")[0], _question(row, key), key)
        _asked_at.add(key)


def _question(row: Operator, key: str) -> Callable[..., Any]:
    def asked(*operands: Any) -> Any:
        answers = _answering.get(key)
        return None if answers is None else answers.answer(row)(*operands)

    return asked


def _python_kernel(row: Operator, answer: Callable[..., Any], own: Any) -> Callable[..., Any]:
    """Stands in the dispatcher: asks, and calls torch's own kernel if it is declined."""

    def kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        rest = (options.get("beta", 1), options.get("alpha", 1)) if row.first else ()
        found = answer(*operands, *rest, options.get("out"))
        return own.call_boxed(keys, *operands, **options) if found is None else found

    return kernel


# ---- which products, and what is added


def plain_operands(a: Any, b: Any) -> bool:
    """Two plain tensors of one type on one device that torch would multiply."""
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and a.dtype is b.dtype
        and plain_bits(dispatch_keys(a).raw_repr() | dispatch_keys(b).raw_repr())
        and a.dim() == b.dim()
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and a.get_device() == b.get_device()
        and not deterministic()
    )


def takes(out: Any, a: Any, b: Any) -> bool:
    """Is it a place for the product as it is? Torch makes others fit, or says what is wrong."""
    return writable(out, a) and out.dtype is a.dtype and out.shape == (*a.shape[:-1], b.shape[-1])


def _can_be_added(added: Any, a: Any, b: Any) -> bool:
    shape = *a.shape[:-1], b.shape[-1]
    return (
        type(added) in PLAIN
        and added.dtype is a.dtype
        and added.get_device() == a.get_device()
        and plain_bits(dispatch_keys(added).raw_repr())
        and added.dim() <= len(shape)
        and all(x in (1, y) for x, y in zip(reversed(added.shape), reversed(shape), strict=False))
    )


def _are_factors(alpha: Any, beta: Any, a: Any) -> bool:
    """Numbers by which torch would multiply such a matrix."""
    factors = alpha, beta
    return not any(isinstance(x, bool) or (isinstance(x, complex) and not a.is_complex()) for x in factors)
