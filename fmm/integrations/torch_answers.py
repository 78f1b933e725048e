"""Functions for torch's product operators: each returns a plan's result, or None if torch's own kernel must run."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

from fmm.arrays.torch_calls import (
    PLAIN_TENSORS,
    dispatch_keys,
    has_only_dense_dispatch_keys,
    is_deterministic,
    is_recording_outside_compiler,
    is_writable_out,
    resolve_conj_and_neg_bits,
)
from fmm.integrations.report import (
    ProductKind,
    ProductOutcome,
    count_outcome,
    count_product,
    count_record,
    is_reporting,
)
from fmm.integrations.torch_kernels import TORCH_OPERATORS, HookedLibrary, TorchOperator, bypass_fmm, bypass_state
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime import matmul
from fmm.runtime.call_record import CallRecord
from fmm.runtime.decisions.early_declines import CallKey, RecurringCall, remember_decline, was_declined
from fmm.runtime.decisions.early_declines import is_small_on_device as small_enough
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.gemm import (
    BlasGemmParams,
    GemmOperands,
    PlannedGemm,
    gemm_constraints,
    operands_of_cached_plan,
    remember_planned_gemm,
    run_gemm,
)
from fmm.runtime.prepare import prepare_call

PLAIN_PRODUCT_PARAMS = BlasGemmParams()
# Reasons, in a report, why torch's own kernel computed a product without a decision of fmm.
SMALL_REASON = "torch multiplies: the product is too small for a plan"
RECORDED_REASON = "torch multiplies: its calls are being recorded"
INVALID_ADDEND_REASON = (
    "torch multiplies: the addend is no plain tensor of the product's type and shape, or alpha or beta is not a number"
)


class DispatcherOperators:
    """The product operators at one key of torch's dispatcher, computed by fmm where a plan is faster than torch."""

    def __init__(self, library: HookedLibrary, hook: Any) -> None:
        self.library = library
        # The C++ hook that declines small products before Python is called; None if the hook cannot be compiled.
        self.hook = hook
        # by name of the operator in aten: the function that returns the result, or None if torch's own kernel must run
        self.functions = {operator.name: self._operator_function(operator) for operator in TORCH_OPERATORS}

    def _operator_function(self, operator: TorchOperator) -> Callable[..., Any]:
        if operator.in_place:
            return partial(self.gemm_in_place, operator.python_name)
        return partial(self.gemm if operator.left_index else self.compute_product, operator.python_name)

    def compute_product(self, where: str, a: Any, b: Any, out: Any = None) -> Any:
        """Return the product of two matrices, or of two stacks of equal length; None if torch's own kernel must run."""
        return self._compute_by_cached_or_new_plan(where, a, b, out)

    def gemm(self, where: str, addend: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """Return beta * addend + alpha * a @ b; None if torch's own kernel must run.

        alpha and beta are coefficients of the plan's last sums, and the last sums read the addend without a copy, even
        if the addend is broadcast. If beta is 0, the addend is not read, so its inf and NaN have no effect.
        """
        return self._compute_by_cached_or_new_plan(where, a, b, out, BlasGemmParams(alpha, beta), addend)

    def gemm_in_place(self, where: str, addend: Any, a: Any, b: Any, beta: Any, alpha: Any, out: Any = None) -> Any:
        """Overwrite the addend with beta * addend + alpha * a @ b."""
        return self.gemm(where, addend, a, b, beta, alpha, addend)

    def _must_decline(self, where: str, a: Any, b: Any) -> bool:
        """Return True if torch must compute the product, since fmm itself called torch or torch records its calls.

        If torch must compute the product, the hook does not cache the decline, since a plan may compute the next
        product of these sizes.
        """
        own = getattr(bypass_state, "on", False)
        declined = own or is_recording_outside_compiler()
        if declined or is_reporting():  # a report counts every product
            self._prevent_decline_caching()
        if declined and not own:
            _count_decline(where, a, b, RECORDED_REASON)
        return declined

    def _compute_by_cached_or_new_plan(
        self, where: str, a: Any, b: Any, out: Any, update: BlasGemmParams = PLAIN_PRODUCT_PARAMS, addend: Any = None
    ) -> Any:
        """Return alpha * a @ b + beta * addend by a cached plan, else by a plan that is decided now.

        Return None if torch's own kernel must run.
        """
        if self._must_decline(where, a, b):
            return None
        if self.hook is None and not is_reporting() and self._is_declined(a, b):
            return None
        recurring = self._cached_plan_call(a, b, addend, out, update)
        cached = None if recurring is None else self.library.cached_calls.get(recurring.key.key)
        if isinstance(cached, PlannedGemm) and cached.expiry > time.monotonic():
            operands = operands_of_cached_plan(cached, a, b, addend, out)
            if operands is not None:
                c = matmul.run_with_fallback(self.library, cached.call, a, b, out, cached.constraints, operands.addend)
                if c is None:
                    self._prevent_decline_caching()
                return c
        if addend is not None:
            if not (is_valid_addend(addend, a, b) and are_valid_factors(update.alpha, update.beta, a)):
                _count_decline(where, a, b, INVALID_ADDEND_REASON)
                self._prevent_decline_caching()
                return None
            addend = addend if update.beta else None
        return self._compute_or_decline(a, b, out, where, update, addend, recurring)

    def _prevent_decline_caching(self) -> None:
        """Keep the hook from caching the decline of this product: the decline holds for this call alone."""
        if self.hook is not None:
            self.hook.prevent_decline_caching()

    def _is_declined(self, a: Any, b: Any) -> bool:
        """Return True if the product is small, or its decline is cached; a hook declines these products itself."""
        return _is_too_small_for_plans(a, b) or (a.dim() == 2 and was_declined(self.library, a, b))

    def _cached_plan_call(self, a: Any, b: Any, addend: Any, out: Any, update: BlasGemmParams) -> RecurringCall | None:
        """Return the call if its plan is cached for these operands, else None."""
        library = self.library
        if library.processor == "cpu" or is_reporting():  # a report counts every decision
            return None
        try:
            signature = library.array_signature(a, b, addend, out)
        except RuntimeError:  # a sparse tensor has no strides
            return None
        key = CallKey(library, ("torch operator", signature, update, type(update.alpha), type(update.beta)))
        return RecurringCall(key, update, (a, b, addend, out), False)

    def _compute_or_decline(
        self,
        a: Any,
        b: Any,
        out: Any,
        where: str,
        update: BlasGemmParams,
        addend: Any,
        recurring: RecurringCall | None,
    ) -> Any:
        """Return alpha * a @ b + beta * addend, or None if torch's own kernel must run."""
        if _is_too_small_for_plans(a, b):  # the hook itself declines small products, unless a report counts them
            _count_decline(where, a, b, SMALL_REASON)
            return None
        if not are_plain_operands(a, b) or not (out is None or is_valid_out(out, a, b)):
            if is_reporting():
                _count_decline(where, a, b, decline_reason(a, b, out))
            if are_plain_operands(a, b):
                self._prevent_decline_caching()
            return None
        a, b = resolve_conj_and_neg_bits(a, b)
        if addend is not None and addend is not out:
            addend = resolve_conj_and_neg_bits(addend, addend)[0]
        constraints = (
            gemm_constraints(self.library, a, b, addend, out, update)
            if update != PLAIN_PRODUCT_PARAMS
            else NO_CONSTRAINTS
        )
        call = prepare_call(self.library, a, b, out, constraints)
        is_measured = call.decision.trial is not None and a.dim() == 2
        if not is_measured and call.plan in (None, VENDOR):
            plain = call if out is None and addend is None else prepare_call(self.library, a, b, None, NO_CONSTRAINTS)
            if plain.plan not in (None, VENDOR):  # `out`, the addend or its factors are the reason
                self._prevent_decline_caching()
            elif update == PLAIN_PRODUCT_PARAMS:
                remember_decline(self.library, a, b, call.decision)
            if is_reporting():
                count_record(product_kind(where, a, b), CallRecord(call.decision, None))
            return None
        if not is_reporting():
            if update == PLAIN_PRODUCT_PARAMS and call.decision.trial is None:
                operands = GemmOperands(a, b, (False, False), out, None, recurring)
                remember_planned_gemm(self.library, call, operands, constraints)
            return self._multiply_by_plan(a, b, out, update, addend, constraints, recurring)
        product = partial(self._multiply_by_plan, a, b, out, update, addend, constraints, None)
        return count_product(product_kind(where, a, b), product, lambda: call.decision)

    def _multiply_by_plan(
        self,
        a: Any,
        b: Any,
        out: Any,
        update: BlasGemmParams,
        addend: Any,
        constraints: PlanConstraints,
        recurring: RecurringCall | None,
    ) -> Any:
        if update == PLAIN_PRODUCT_PARAMS:
            return matmul.run_matmul(self.library, a, b, out, constraints)
        with bypass_fmm():  # run_gemm may call torch's functions, and these must not call fmm again
            return run_gemm(self.library, a, b, addend, out, update, NO_CONSTRAINTS, recurring)


def _is_too_small_for_plans(a: Any, b: Any) -> bool:
    """Return True if a product is too small for a plan, by the same limits as in the C++ hook."""
    return small_enough(a.shape[-2], a.shape[-1], b.shape[-1], a.element_size())


def _count_decline(where: str, a: Any, b: Any, reason: str) -> None:
    """Count a product that torch computes, if a report is active."""
    if is_reporting():
        count_outcome(product_kind(where, a, b), ProductOutcome("", reason))


# ---- operands


def are_plain_operands(a: Any, b: Any) -> bool:
    """Return True for two strided tensors of one type, on one device, with matching shapes."""
    return (
        type(a) in PLAIN_TENSORS
        and type(b) in PLAIN_TENSORS
        and a.dtype is b.dtype
        and has_only_dense_dispatch_keys(dispatch_keys(a).raw_repr() | dispatch_keys(b).raw_repr())
        and a.dim() == b.dim()
        and a.shape[-1] == b.shape[-2]
        and a.shape[:-2] == b.shape[:-2]
        and a.get_device() == b.get_device()
        and not is_deterministic()
    )


def decline_reason(a: Any, b: Any, out: Any) -> str:
    """Return the reason why torch must compute a product: a property of its operands, or of `out`."""
    if is_deterministic():
        return "torch multiplies: deterministic algorithms are required"
    for name, x in (("the left operand", a), ("the right operand", b)):
        if type(x) not in PLAIN_TENSORS:
            return f"torch multiplies: {name} is a {type(x).__name__}, not a plain tensor"
        if not has_only_dense_dispatch_keys(dispatch_keys(x).raw_repr()):
            return f"torch multiplies: {name} is not a plain tensor, or belongs to a running transform"
    if are_plain_operands(a, b):
        assert out is not None
        return "torch multiplies: out has another type or shape, or cannot be written in place"
    return "torch multiplies: the operands are of two types or on two devices, or their sizes do not match"


def is_valid_out(out: Any, a: Any, b: Any) -> bool:
    """Return True if the product can be written to `out` without a change of the size of `out`.

    If this function returns False, torch computes the product: it changes the size of `out`, or raises its own error.
    """
    return is_writable_out(out, a) and out.dtype is a.dtype and out.shape == (*a.shape[:-1], b.shape[-1])


def is_valid_addend(addend: Any, a: Any, b: Any) -> bool:
    """Return True if a plan can read the addend.

    The addend must be strided, have the product's device and type, and broadcast to the product's shape.
    """
    shape = *a.shape[:-1], b.shape[-1]
    return (
        type(addend) in PLAIN_TENSORS
        and addend.dtype is a.dtype
        and addend.get_device() == a.get_device()
        and has_only_dense_dispatch_keys(dispatch_keys(addend).raw_repr())
        and addend.dim() <= len(shape)
        and all(x in (1, y) for x, y in zip(reversed(addend.shape), reversed(shape), strict=False))
    )


def are_valid_factors(alpha: Any, beta: Any, a: Any) -> bool:
    """Return True if torch can multiply a matrix of a's type by the numbers alpha and beta."""
    factors = alpha, beta
    return not any(isinstance(x, bool) or (isinstance(x, complex) and not a.is_complex()) for x in factors)


def product_kind(where: str, a: Any, b: Any) -> ProductKind:
    """Return the ProductKind under which a report counts the product of these tensors."""
    return ProductKind(where, tuple(a.shape), tuple(b.shape), str(a.dtype).removeprefix("torch."))
