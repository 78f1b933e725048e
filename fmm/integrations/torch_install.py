"""torch's products below autograd, on CUDA devices or on the host, by fmm: what installs that, and what undoes it.

A kernel of ours stands at the dispatcher's key of the device, and torch's own is kept: it answers whatever no plan
makes faster. Gradients, nn.Linear, mixed precision, checkpoints, sharded tensors and the like come down to these
operators, and so need nothing of fmm. In front stands a hook in C++ (compiled_hook.cpp), which declines small products
without asking Python; where it cannot be compiled, one in Python does the same in some microseconds.
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
from fmm.integrations.report import reporting, watch_counting
from fmm.integrations.torch_answers import Answers
from fmm.integrations.torch_hook import CompiledHook
from fmm.integrations.torch_kernels import (
    OPERATORS,
    HookedDevice,
    HookedHost,
    Operator,
    own_kernels,
    with_vendor_passing,
)
from fmm.runtime.decisions.early_declines import SMALL, SMALL_16_BIT, SMALL_16_BIT_UNALIGNED


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
    hook = torch_hook.loaded_hook() if compiled else None
    answers = Answers(HookedDevice(kernels) if key == "CUDA" else HookedHost(kernels), hook)
    return with_vendor_passing(install_compiled(answers, key) if hook else install_python(answers, key))


# ---- behind the hook in C++


_answering: dict[str, Answers] = {}  # by key: whom the hook asks
_questions: list[Any] = []  # the library fmm_hook, once it is defined
_asked_at: set[str] = set()  # the keys at which it is


def install_compiled(answers: Answers, key: str) -> Undo:
    """Python answers what the hook does not decline by itself."""
    hook = answers.hook
    _define_questions(key)
    _answering[key] = answers
    _set_least_work(hook)
    if failure := hook.install(key == "CUDA", [(row.name, row.first) for row in OPERATORS]):
        raise CannotInstallError(failure)
    forget = watch_counting(partial(_set_least_work, hook))

    def undo() -> None:
        forget()
        hook.uninstall(key == "CUDA")
        _answering.pop(key, None)

    return undo


def _set_least_work(hook: CompiledHook) -> None:
    """From how many multiply-adds on Python is asked; of all products, where somebody counts them."""
    hook.least_work(*((0, 0, 0) if reporting() else (SMALL, SMALL_16_BIT, SMALL_16_BIT_UNALIGNED)))


def _define_questions(key: str) -> None:
    """What the hook asks, defined once in a process: a thread may ask when it has just been taken out."""
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


# ---- without it


# Kernels of ours that ever stood in the dispatcher: a thread may still be in one when it is taken out.
_ever_installed: list[Any] = []


def install_python(answers: Answers, key: str) -> Undo:
    """Python is asked about every product, and calls torch's own kernel if it declines."""
    library, kernels = torch.library.Library("aten", "IMPL"), answers.library.kernels
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that a kernel replaces another one is what is asked for
        for row in OPERATORS:
            library.impl(row.name, _python_kernel(row, answers.answer(row), kernels[row.name]), key, with_keyset=True)
    _ever_installed.extend(own_kernels(key).values())
    return library._destroy  # type: ignore[no-any-return]


def _python_kernel(row: Operator, answer: Callable[..., Any], own: Any) -> Callable[..., Any]:
    def kernel(keys: Any, *operands: Any, **options: Any) -> Any:
        rest = (options.get("beta", 1), options.get("alpha", 1)) if row.first else ()
        found = answer(*operands, *rest, options.get("out"))
        return own.call_boxed(keys, *operands, **options) if found is None else found

    return kernel
