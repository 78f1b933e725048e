"""Installation of fmm in torch's dispatcher, below autograd, on CUDA devices or on the host.

fmm registers a kernel at the device's dispatch key and calls torch's own kernel if no plan is faster. fmm needs no
extra code for gradients, nn.Linear, mixed precision, checkpoints and sharded tensors, since all of them call the
operators of the dispatcher. A hook in C++ (torch_hook.cpp) declines small products without calling Python. If the hook
cannot be compiled, a kernel in Python declines small products in a few microseconds.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch

from fmm.integrations import torch_hook
from fmm.integrations.install_targets import CannotInstallError, UndoFunction
from fmm.integrations.report import is_reporting, register_counting_callback
from fmm.integrations.torch_answers import DispatcherOperators
from fmm.integrations.torch_hook import CompiledHook
from fmm.integrations.torch_kernels import (
    TORCH_OPERATORS,
    HookedDeviceLibrary,
    HookedHostLibrary,
    TorchOperator,
    bypass_fmm_for_vendor,
    vendor_kernels,
)
from fmm.integrations.torch_solvers import install_solvers
from fmm.runtime.decisions.early_declines import (
    SMALL_MULTIPLY_ADDS,
    SMALL_MULTIPLY_ADDS_16_BIT,
    SMALL_MULTIPLY_ADDS_UNALIGNED,
)


def install_on_cuda() -> UndoFunction:
    """Install fmm on CUDA devices.

    The installation creates no CUDA context, since a process with a context must not fork.
    """
    if torch.cuda.device_count() == 0:
        raise CannotInstallError("this torch finds no CUDA device (its products on the host: 'torch-cpu')")
    if find_spec("cupy") is None:
        raise CannotInstallError("fmm's kernels need CuPy: pip install '.[cuda13]' (or cuda12) in fmm's clone")
    return install_at_key("CUDA")


def install_on_host() -> UndoFunction:
    """Install fmm for tensors on the host."""
    return install_at_key("CPU")


def install_at_key(key: str, compiled: bool = True) -> UndoFunction:
    """Install fmm at this key of torch's dispatcher ("CUDA" or "CPU"), with the C++ hook if it can be compiled.

    If the installation is impossible, CannotInstallError is raised before any change.
    """
    kernels = vendor_kernels(key)
    hook = torch_hook.load_compiled_hook() if compiled else None
    answers = DispatcherOperators(HookedDeviceLibrary(kernels) if key == "CUDA" else HookedHostLibrary(kernels), hook)
    undo_products = install_compiled_hook(answers, key) if hook else install_python_kernels(answers, key)
    try:
        undo_solvers = install_solvers(key)
    except BaseException:
        undo_products()
        raise

    def undo_installation() -> None:
        undo_solvers()
        undo_products()

    return bypass_fmm_for_vendor(undo_installation)


# ---- with the hook in C++


_active_products: dict[str, DispatcherOperators] = {}  # the installed DispatcherOperators of each dispatch key
_hook_library: list[Any] = []  # torch's library fmm_hook, once it is defined
_implemented_keys: set[str] = set()  # the dispatch keys for which torch's library fmm_hook has kernels


def install_compiled_hook(answers: DispatcherOperators, key: str) -> UndoFunction:
    """Install the C++ hook; for each product that the hook does not decline, the hook calls a function in `answers`."""
    hook = answers.hook
    _define_hook_operators(key)
    _active_products[key] = answers
    _set_min_multiply_adds(hook)
    if failure := hook.install_operators(
        key == "CUDA", [(operator.name, operator.left_index) for operator in TORCH_OPERATORS]
    ):
        raise CannotInstallError(failure)
    stop_watching = register_counting_callback(partial(_set_min_multiply_adds, hook))

    def undo_installation() -> None:
        stop_watching()
        hook.uninstall_operators(key == "CUDA")
        _active_products.pop(key, None)

    return undo_installation


def _set_min_multiply_adds(hook: CompiledHook) -> None:
    """Set the smallest number of multiply-adds for which the hook calls Python; the number is 0 during a report."""
    hook.set_min_multiply_adds(
        *(
            (0, 0, 0)
            if is_reporting()
            else (SMALL_MULTIPLY_ADDS, SMALL_MULTIPLY_ADDS_16_BIT, SMALL_MULTIPLY_ADDS_UNALIGNED)
        )
    )


def _define_hook_operators(key: str) -> None:
    """Define the operators through which the hook calls Python.

    The operators stay defined, since a thread may call one of them after fmm is uninstalled.
    """
    if not _hook_library:
        _hook_library.append(torch.library.Library("fmm_hook", "DEF"))
        for operator in TORCH_OPERATORS:
            _hook_library[0].define(operator.schema)
    if key not in _implemented_keys:
        for operator in TORCH_OPERATORS:
            _hook_library[0].impl(operator.schema.partition("(")[0], _make_hook_operator(operator, key), key)
        _implemented_keys.add(key)


def _make_hook_operator(operator: TorchOperator, key: str) -> Callable[..., Any]:
    def compute_operator(*operands: Any) -> Any:
        answers = _active_products.get(key)
        return None if answers is None else answers.functions[operator.name](*operands)

    return compute_operator


# ---- without the hook


# All of fmm's kernels that were registered in torch's dispatcher in this process. No kernel is freed, since a thread
# may still run a kernel after its removal.
_registered_kernels: list[Any] = []


def install_python_kernels(answers: DispatcherOperators, key: str) -> UndoFunction:
    """Install kernels written in Python, which call torch's own kernel for the products that fmm declines."""
    library, kernels = torch.library.Library("aten", "IMPL"), answers.library.kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns if a kernel replaces another kernel
        for operator in TORCH_OPERATORS:
            library.impl(
                operator.name,
                _make_python_kernel(operator, answers.functions[operator.name], kernels[operator.name]),
                key,
                with_keyset=True,
            )
    _registered_kernels.extend(vendor_kernels(key).values())
    return library._destroy  # type: ignore[no-any-return]


def _make_python_kernel(operator: TorchOperator, answer: Callable[..., Any], own: Any) -> Callable[..., Any]:
    def call_dispatcher_kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        rest = (options.get("beta", 1), options.get("alpha", 1)) if operator.left_index else ()
        result = answer(*operands, *rest, options.get("out"))
        return own.call_boxed(keys, *operands, **options) if result is None else result

    return call_dispatcher_kernel
