"""What Python answers when torch's dispatcher asks for a product: the product by a plan, or that torch is to do it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fmm.arrays.torch_calls import calls_are_recorded, without_marks
from fmm.integrations.operators.operands import are_factors, can_be_added, plain_operands, takes
from fmm.integrations.operators.operator_table import Operator
from fmm.integrations.operators.own_kernels import Hooked, own_kernels_answer, passing
from fmm.integrations.report import noted, reporting
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime import matmul
from fmm.runtime.calls.prepare import prepared
from fmm.runtime.decisions.left_to_vendor import just_left_to_vendor, remember_vendor
from fmm.runtime.decisions.left_to_vendor import small_enough_for_vendor as small_enough
from fmm.runtime.decisions.limits import NO_WISHES
from fmm.runtime.gemm import Update, gemm_product, update_wishes

PRODUCT = Update()


class Answers:
    """The products that fmm multiplies, of those that torch's dispatcher asks for at one key."""

    def __init__(self, library: Hooked, hook: Any) -> None:
        self.library = library
        self.hook = hook  # stands in front and declines small products; None: nobody does

    def answer(self, row: Operator) -> Callable[..., Any]:
        """Who answers in the operator's place, by its operands: a tensor, or None for torch's own kernel."""
        if row.in_place:
            return self.sum_in_place
        return self.sum_with_product if row.first else self.product

    def product(self, a: Any, b: Any, out: Any = None) -> Any:
        """A product of two matrices, or of two stacks of as many."""
        return None if self._not_now() else self._answer(a, b, out)

    def sum_with_product(self, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """beta * added + alpha * a @ b.

        Alpha and beta are factors of the plan's last sums, which read what is added where it lies, a row for all rows
        of the product perhaps. Without beta it is not looked at, be it inf or NaN.
        """
        if self._not_now() or not (can_be_added(added, a, b) and are_factors(alpha, beta, a)):
            return None
        return self._answer(a, b, out, Update(alpha, beta), added if beta else None)

    def sum_in_place(self, added: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """The same in the place of what is added."""
        return self.sum_with_product(added, a, b, beta, alpha, added)

    def _not_now(self) -> bool:
        """Is it torch's whatever it is: because fmm itself asks, or somebody records torch's calls? Then it is not
        remembered as declined."""
        declined = getattr(passing, "on", False) or calls_are_recorded()
        if self.hook is not None and (declined or reporting()):  # a report counts each product
            self.hook.only_now()
        return declined

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

    def _quick_no(self, a: Any, b: Any) -> bool:
        m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
        small = small_enough(m, k, n, a.element_size())
        return small or (a.dim() == 2 and just_left_to_vendor(self.library, a, b))
