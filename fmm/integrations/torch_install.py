"""fmm in torch's dispatcher, below autograd: installation on CUDA devices or on the host, and its removal.

fmm registers a kernel at the device's dispatch key and calls torch's own kernel where no plan pays. Gradients,
nn.Linear, mixed precision, checkpoints and sharded tensors come down to these operators, so they need nothing of fmm.
A hook in C++ (torch_hook.cpp) declines small products without calling Python. Where the hook cannot be compiled, a
kernel in Python declines them in some microseconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from fmm.integrations import torch_hook
from fmm.integrations.install_targets import CannotInstallError, Undo
from fmm.integrations.report import is_reporting, watch_counting
from fmm.integrations.torch_answers import DispatcherProducts
from fmm.integrations.torch_hook import CompiledHook
from fmm.integrations.torch_kernels import (
    OPERATORS,
    HookedDevice,
    HookedHost,
    Operator,
    bypass_for_vendor,
    vendor_kernels,
)
from fmm.runtime.decisions.early_declines import (
    SMALL_MULTIPLY_ADDS,
    SMALL_MULTIPLY_ADDS_16_BIT,
    SMALL_MULTIPLY_ADDS_UNALIGNED,
)


def install_on_cuda() -> Undo:
    """Install on CUDA devices without touching one: a process that forks or starts others must not have a context."""
    if torch.cuda.device_count() == 0:
        raise CannotInstallError("this torch finds no CUDA device (its products on the host: 'torch-cpu')")
    if find_spec("cupy") is None:
        raise CannotInstallError("fmm's kernels need CuPy: pip install 'fmm-tune[cuda13]' (or cuda12)")
    return install_at("CUDA")


def install_on_host() -> Undo:
    """Install on the host."""
    return install_at("CPU")


def install_at(key: str, compiled: bool = True) -> Undo:
    """Install at this dispatch key, with the C++ hook if possible; raise CannotInstallError with nothing changed."""
    kernels = vendor_kernels(key)
    hook = torch_hook.loaded_hook() if compiled else None
    answers = DispatcherProducts(HookedDevice(kernels) if key == "CUDA" else HookedHost(kernels), hook)
    return bypass_for_vendor(install_compiled(answers, key) if hook else install_python(answers, key))


# ---- with the hook in C++


_active: dict[str, DispatcherProducts] = {}  # the installed products by dispatch key
_hook_library: list[Any] = []  # torch's library fmm_hook, once it is defined
_implemented_keys: set[str] = set()  # dispatch keys for which fmm_hook has kernels


def install_compiled(answers: DispatcherProducts, key: str) -> Undo:
    """Install the hook; Python computes the products that the hook does not decline."""
    hook = answers.hook
    _define_hook_operators(key)
    _active[key] = answers
    _set_least_work(hook)
    if failure := hook.install(key == "CUDA", [(operator.name, operator.left_index) for operator in OPERATORS]):
        raise CannotInstallError(failure)
    stop_watching = watch_counting(partial(_set_least_work, hook))

    def undo() -> None:
        stop_watching()
        hook.uninstall(key == "CUDA")
        _active.pop(key, None)

    return undo


def _set_least_work(hook: CompiledHook) -> None:
    """Set the multiply-adds from which the hook calls Python; zero while a report counts all products."""
    hook.least_work(
        *(
            (0, 0, 0)
            if is_reporting()
            else (SMALL_MULTIPLY_ADDS, SMALL_MULTIPLY_ADDS_16_BIT, SMALL_MULTIPLY_ADDS_UNALIGNED)
        )
    )


def _define_hook_operators(key: str) -> None:
    """Define the operators that the hook calls, once in a process: a thread may call one just after the removal."""
    if not _hook_library:
        _hook_library.append(torch.library.Library("fmm_hook", "DEF"))
        for operator in OPERATORS:
            _hook_library[0].define(operator.schema)
    if key not in _implemented_keys:
        for operator in OPERATORS:
            _hook_library[0].impl(operator.schema.partition("(")[0], _hook_operator(operator, key), key)
        _implemented_keys.add(key)


def _hook_operator(operator: Operator, key: str) -> Callable[..., Any]:
    def compute(*operands: Any) -> Any:
        answers = _active.get(key)
        return None if answers is None else answers.answer(operator)(*operands)

    return compute


# ---- without the hook


# All kernels that were ever registered, so that none is freed: a thread may still run one when it is removed.
_ever_registered: list[Any] = []


def install_python(answers: DispatcherProducts, key: str) -> Undo:
    """Install kernels in Python, which call torch's own kernel for the products that they decline."""
    library, kernels = torch.library.Library("aten", "IMPL"), answers.library.kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's warning that a kernel replaces another one
        for operator in OPERATORS:
            library.impl(
                operator.name,
                _python_kernel(operator, answers.answer(operator), kernels[operator.name]),
                key,
                with_keyset=True,
            )
    _ever_registered.extend(vendor_kernels(key).values())
    return library._destroy  # type: ignore[no-any-return]


def _python_kernel(operator: Operator, answer: Callable[..., Any], own: Any) -> Callable[..., Any]:
    def kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        rest = (options.get("beta", 1), options.get("alpha", 1)) if operator.left_index else ()
        result = answer(*operands, *rest, options.get("out"))
        return own.call_boxed(keys, *operands, **options) if result is None else result

    return kernel
