"""fmm as a candidate in Inductor's autotuning: for mm, torch.compile times fmm's product and Inductor's own kernels.

If fmm is installed in torch's dispatcher, Inductor's calls of torch's kernels already reach fmm. fmm's candidate in
Inductor is for programs that use fmm only in functions that torch.compile compiles. No plan runs while a CUDA graph is
captured. The modes reduce-overhead and max-autotune capture graphs; the mode max-autotune-no-cudagraphs captures none.
Inductor accepts external candidates for mm, but not for addmm or bmm. The candidate has no C++ name, so functions that
are compiled to C++ cannot use it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from fmm.arrays.torch_calls import resolve_conj_and_neg_bits
from fmm.arrays.torch_library import torch_library_of
from fmm.integrations.report import ProductOutcome, count_outcome, count_product, is_reporting
from fmm.integrations.torch_answers import are_plain_operands, decline_reason, is_valid_out, product_kind
from fmm.integrations.torch_kernels import vendor_matmul
from fmm.runtime import matmul
from fmm.runtime.decisions.limits import NO_CONSTRAINTS

REPORTED_FUNCTION = "torch.compile, mm"


def fmm_product(a: Any, b: Any, *, out: Any) -> Any:
    """Write the product of two matrices to `out`; Inductor calls this function in its timings and in compiled code."""
    is_counted = is_reporting() and not _is_compiling_here()
    if not (are_plain_operands(a, b) and is_valid_out(out, a, b)):
        if is_counted:
            count_outcome(product_kind(REPORTED_FUNCTION, a, b), ProductOutcome("", decline_reason(a, b, out)))
        return vendor_matmul(a, b, out)
    arguments = torch_library_of(a), *resolve_conj_and_neg_bits(a, b), out, NO_CONSTRAINTS
    if not is_counted:
        return matmul.run_matmul(*arguments)
    product, decide = partial(matmul.run_matmul, *arguments), partial(matmul.explain_matmul, *arguments)
    return count_product(product_kind(REPORTED_FUNCTION, a, b), product, decide)


def _is_compiling_here() -> bool:
    """Return True while Inductor compiles in this thread; a report must not count products that Inductor times."""
    virtualized = import_module("torch._inductor.virtualized")
    return not isinstance(virtualized.V.graph, virtualized.NullHandler)


def install() -> Callable[[], None]:
    """Add fmm's product to Inductor's candidates for mm; return the function that removes this candidate.

    `fmm_product` stays in Inductor's table of external kernels, since compiled code on disk refers to the function.
    """
    import_module("torch._inductor.kernel.mm").lazy_register_extern_choice(fmm_product)
    candidates = import_module("torch._inductor.config").external_matmul
    candidates.append(fmm_product)

    def remove_candidate() -> None:
        if fmm_product in candidates:
            candidates.remove(fmm_product)

    return remove_candidate
