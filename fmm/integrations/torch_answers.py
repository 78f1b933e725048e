"""What Python answers when torch's dispatcher asks for a product: the product by a plan, or that torch is to do it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fmm.arrays.torch_calls import (
    PLAIN,
    deterministic,
    dispatch_keys,
    has_plain_keys,
    is_recording,
    resolve_marks,
    writable,
)
from fmm.integrations.report import count, count_answer, counted, reporting
from fmm.integrations.report_value import Kind, Outcome
from fmm.integrations.torch_kernels import Hooked, Operator, own_kernels_answer, passing
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime import matmul
from fmm.runtime.call_record import CallRecord
from fmm.runtime.decisions.early_declines import is_small_on_device as small_enough
from fmm.runtime.decisions.early_declines import remember_decline, was_declined
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.gemm import BlasGemmParams, gemm_constraints, run_gemm
from fmm.runtime.prepare import prepare_call

PRODUCT = BlasGemmParams()
# Why products are left to torch that no decision is about.
RECORDED = "torch answers: somebody records its calls"
NOT_ADDED = (
    "torch answers: what is added is no plain tensor of the product's type and shape, or alpha or beta no number"
)


class Answers:
    """The products that fmm multiplies, of those that torch's dispatcher asks for at one key."""

    def __init__(self, library: Hooked, hook: Any) -> None:
        self.library = library
        self.hook = hook  # stands in front and declines small products; None: nobody does

    def answer(self, row: Operator) -> Callable[..., Any]:
        """Who answers in the operator's place, by its operands: a tensor, or None for torch's own kernel."""
        if row.in_place:
            return partial(self.sum_in_place, row.shown)
        return partial(self.sum_with_product if row.first else self.product, row.shown)

    def product(self, where: str, a: Any, b: Any, out: Any = None) -> Any:
        """A product of two matrices, or of two stacks of as many."""
        return None if self._not_now(where, a, b) else self._answer(a, b, out, where)

    def sum_with_product(self, where: str, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """beta * added + alpha * a @ b.

        Alpha and beta are factors of the plan's last sums, which read what is added where it lies, a row for all rows
        of the product perhaps. Without beta it is not looked at, be it inf or NaN.
        """
        if self._not_now(where, a, b):
            return None
        if not (can_be_added(added, a, b) and are_factors(alpha, beta, a)):
            _left(where, a, b, NOT_ADDED)
            return None
        return self._answer(a, b, out, where, BlasGemmParams(alpha, beta), added if beta else None)

    def sum_in_place(self, where: str, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """The same in the place of what is added."""
        return self.sum_with_product(where, added, a, b, beta, alpha, added)

    def _not_now(self, where: str, a: Any, b: Any) -> bool:
        """Is it torch's whatever it is: because fmm itself asks, or somebody records torch's calls? Then it is not
        remembered as declined."""
        own = getattr(passing, "on", False)
        declined = own or is_recording()
        if self.hook is not None and (declined or reporting()):  # a report counts each product
            self.hook.only_now()
        if declined and not own:
            _left(where, a, b, RECORDED)
        return declined

    def _answer(self, a: Any, b: Any, out: Any, where: str, update: BlasGemmParams = PRODUCT, added: Any = None) -> Any:
        """alpha a b + beta added, or None."""
        if self.hook is None and not reporting() and self._quick_no(a, b):
            return None
        if not plain_operands(a, b) or not (out is None or takes(out, a, b)):
            if reporting():
                _left(where, a, b, why_torchs(a, b, out))
            return None
        a, b = resolve_marks(a, b)
        if added is not None and added is not out:
            added = resolve_marks(added, added)[0]
        constraints = gemm_constraints(self.library, a, b, added, out, update) if update != PRODUCT else NO_CONSTRAINTS
        ready = prepare_call(self.library, a, b, out, constraints)
        if ready.plan is None or (ready.plan == VENDOR and ready.decision.trial is None):
            if update == PRODUCT:
                remember_decline(self.library, a, b, ready.decision)
            if reporting():
                count_answer(kind_of_product(where, a, b), CallRecord(ready.decision, None))
            return None
        if not reporting():
            return self._multiplied(a, b, out, update, added, constraints)
        product = partial(self._multiplied, a, b, out, update, added, constraints)
        return counted(kind_of_product(where, a, b), product, lambda: ready.decision)

    def _multiplied(
        self, a: Any, b: Any, out: Any, update: BlasGemmParams, added: Any, constraints: PlanConstraints
    ) -> Any:
        if update == PRODUCT:
            return matmul.run_matmul(self.library, a, b, out, constraints)
        with own_kernels_answer():  # whatever torch is asked for meanwhile
            return run_gemm(self.library, a, b, added, out, update, NO_CONSTRAINTS)

    def _quick_no(self, a: Any, b: Any) -> bool:
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        small = small_enough(m, k, n, a.element_size())
        return small or (a.dim() == 2 and was_declined(self.library, a, b))


def _left(where: str, a: Any, b: Any, why: str) -> None:
    """Counted as torch's, if somebody counts."""
    if reporting():
        count(kind_of_product(where, a, b), Outcome("", why))


def plain_operands(a: Any, b: Any) -> bool:
    """Two plain tensors of one type on one device that torch would multiply."""
    return (
        type(a) in PLAIN
        and type(b) in PLAIN
        and a.dtype is b.dtype
        and has_plain_keys(dispatch_keys(a).raw_repr() | dispatch_keys(b).raw_repr())
        and a.dim() == b.dim()
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and a.get_device() == b.get_device()
        and not deterministic()
    )


def why_torchs(a: Any, b: Any, out: Any) -> str:
    """Why torch multiplies, where operands are not plain or `out` does not take the product."""
    return f"torch answers: {_what_is_not_plain(a, b, out)}"


def _what_is_not_plain(a: Any, b: Any, out: Any) -> str:
    if deterministic():
        return "deterministic algorithms are asked for"
    for name, x in (("the left operand", a), ("the right operand", b)):
        if type(x) not in PLAIN:
            return f"{name} is a {type(x).__name__}, not a plain tensor"
        if not has_plain_keys(dispatch_keys(x).raw_repr()):
            return f"{name} is not a plain tensor, or in the midst of a transform"
    if plain_operands(a, b):
        assert out is not None
        return "out is of another type or shape, or torch cannot write there as it is"
    return "the operands are of two types or on two devices, or their sizes do not match"


def takes(out: Any, a: Any, b: Any) -> bool:
    """Is it a place for the product as it is? Torch makes others fit, or says what is wrong."""
    return writable(out, a) and out.dtype is a.dtype and out.shape == (*a.shape[:-1], b.shape[-1])


def can_be_added(added: Any, a: Any, b: Any) -> bool:
    """Is it a plain tensor of the product's type and device, and of its shape or broadcast to it?"""
    shape = *a.shape[:-1], b.shape[-1]
    return (
        type(added) in PLAIN
        and added.dtype is a.dtype
        and added.get_device() == a.get_device()
        and has_plain_keys(dispatch_keys(added).raw_repr())
        and added.dim() <= len(shape)
        and all(x in (1, y) for x, y in zip(reversed(added.shape), reversed(shape), strict=False))
    )


def are_factors(alpha: Any, beta: Any, a: Any) -> bool:
    """Numbers by which torch would multiply such a matrix."""
    factors = alpha, beta
    return not any(isinstance(x, bool) or (isinstance(x, complex) and not a.is_complex()) for x in factors)


def kind_of_product(where: str, a: Any, b: Any) -> Kind:
    """As a report counts it."""
    return Kind(where, tuple(a.shape), tuple(b.shape), str(a.dtype).removeprefix("torch."))
