"""A candidate for products of two matrices where torch.compile autotunes: Inductor times it beside its own.

Where fmm is installed at torch's kernels, Inductor's calls of those are by fmm already; this is for
programs that want it in compiled functions alone. In either way no plan runs while a CUDA graph is captured, as the
modes reduce-overhead and max-autotune do; max-autotune-no-cudagraphs does not. Inductor asks for candidates of mm
alone, not of addmm or bmm. It has no name in C++: not for functions that are compiled to that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from fmm.arrays.torch_calls import resolve_marks
from fmm.arrays.torch_library import torch_library_of
from fmm.integrations.report import count, counted, reporting
from fmm.integrations.report_value import Outcome
from fmm.integrations.torch_answers import kind_of_product, plain_operands, takes, why_torchs
from fmm.integrations.torch_kernels import own_product
from fmm.runtime import matmul
from fmm.runtime.decisions.limits import NO_CONSTRAINTS

WHERE = "torch.compile, mm"


def fmm_product(a: Any, b: Any, *, out: Any) -> Any:
    """The product of two matrices, written where Inductor wants it: while it compiles and times, and later on."""
    counts = reporting() and not _is_compiling_here()
    if not (plain_operands(a, b) and takes(out, a, b)):
        if counts:
            count(kind_of_product(WHERE, a, b), Outcome("", why_torchs(a, b, out)))
        return own_product(a, b, out)
    asked = torch_library_of(a), *resolve_marks(a, b), out, NO_CONSTRAINTS
    if not counts:
        return matmul.run_matmul(*asked)
    product, decided = partial(matmul.run_matmul, *asked), partial(matmul.explain_matmul, *asked)
    return counted(kind_of_product(WHERE, a, b), product, decided)


def _is_compiling_here() -> bool:
    """Does Inductor compile in this thread, and so try candidates on numbers of its own?"""
    virtualized = import_module("torch._inductor.virtualized")
    return not isinstance(virtualized.V.graph, virtualized.NullHandler)


def install() -> Callable[[], None]:
    """The function has a place among Inductor's external kernels from now on, since compiled code that was kept on disk
    names it there; it is a candidate until it is uninstalled."""
    import_module("torch._inductor.kernel.mm").lazy_register_extern_choice(fmm_product)
    candidates = import_module("torch._inductor.config").external_matmul
    candidates.append(fmm_product)

    def undo() -> None:
        if fmm_product in candidates:
            candidates.remove(fmm_product)

    return undo
