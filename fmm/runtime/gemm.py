"""fmm.gemm, C = alpha op(A) op(B) + beta C, computed by a plan or by the library's own functions, for any library.

alpha and beta are coefficients of a plan's last sums. The addend is either the old C, which the result overwrites, or
another array, which the plan's sums read without a copy. An addend in another array may be broadcast, for example one
row for all rows of C. A result with inf or NaN may have to be computed again from the old C, so the old C is copied
before the first computation (fmm.kernels.cuda.record).
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

from fmm.arrays.detect import is_complex, type_name
from fmm.arrays.library import Library, product_shape
from fmm.arrays.select_library import PLAIN_TYPES
from fmm.config.files import current_settings
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import (
    MAX_DECLINED_FACTOR,
    SMALL_BYTES_PRODUCT,
    CallKey,
    DeclinedCall,
    RecurringCall,
    are_small_matrices,
    is_declined_on_device,
    is_small_on_host,
    remember_decline,
    remember_declined_call,
)
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, PlanConstraints
from fmm.runtime.matmul import describe_kernels, run_with_fallback
from fmm.runtime.operands import ByteSpan, byte_span, may_overlap
from fmm.runtime.prepare import (
    PreparedCall,
    can_write_into_out,
    prepare_call,
    prepare_uncached,
    prepared_call_expiry,
)

# The valid values of transpose_a and transpose_b, with BLAS's letter for each value. False and True are valid too,
# since a dictionary finds them as the keys 0 and 1.
TRANSPOSE_MODES: dict[Hashable, str] = {0: "N", 1: "T", 2: "C", "N": "N", "T": "T", "C": "C"}


# `run_small_gemm` compares beta with ZERO and ONE by identity: Python has one object for each small int.
ZERO: Any = 0
ONE: Any = 1


class BlasGemmParams(NamedTuple):
    """The scalars of BLAS's gemm, and an op for each operand.

    The op is "N" (unchanged), "T" (transposed) or "C" (conjugate transpose).
    """

    alpha: complex = 1
    beta: complex = 0
    op_a: str = "N"
    op_b: str = "N"

    @property
    def scalars_as_gemm_params(self) -> GemmParams:
        """alpha and beta as a GemmParams."""
        return GemmParams(self.alpha, self.beta)


class GemmOperands(NamedTuple):
    """The operands of a gemm: the matrices A and B, the array for C (`target`), and the addend.

    `conjugates` has two values, for A and for B; a value is True if the operand must be conjugated. If `target` is
    None, C is a new array. If `addend` is None, the target holds the addend.
    """

    a: Any
    b: Any
    conjugates: tuple[bool, bool]
    target: Any
    addend: Any = None
    recurring: RecurringCall | None = None  # the call as the caller made it, if its key is cached


def run_gemm(
    library: Library,
    a: Any,
    b: Any,
    c: Any,
    out: Any,
    params: BlasGemmParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None = None,
) -> Any:
    """Return alpha op(a) op(b) + beta c, in `out` unless `out` is None."""
    a, b, c = library.promote_operands(a, b, c if params.beta else None)
    operands = _arrange_operands(library, a, b, c, out, params)
    operands = operands._replace(recurring=recurring)
    own = _add_gemm_params_to_constraints(library, operands, params, constraints)
    if constraints is NO_CONSTRAINTS and _has_small_matrices(library, operands):
        remember_declined_call(recurring, library)
        result = _run_library_gemm(library, operands, own)
    else:
        result = _run_planned_gemm(library, operands, own)
    if out is None or result is out:
        return result
    library.copy_into(result, out)
    return out


def run_small_gemm(library: Library, a: Any, b: Any, c: Any, beta: Any) -> Any:
    """Return A B, or A B + C if beta is 1, of CuPy arrays or torch tensors by the library's own function.

    Return None if a plan may be faster, or if the library may reject the call. Also return None unless the operands are
    matrices or stacks of one type.

    This function makes few checks, since a small product takes less time than the checks of a large product. A read of
    an attribute of a torch tensor takes 0.05 to 0.1 microseconds.
    """
    kind = type(a)
    if beta is not ONE and beta is not ZERO and (type(beta) is not float or beta not in (0, 1)):
        return None
    if type(b) is not kind and PLAIN_TYPES.get(type(b)) is not library:
        return None
    if beta if c is None else type(c) is not kind and PLAIN_TYPES.get(type(c)) is not library:
        return None
    if (is_tracing := library.is_tracing) is not None and is_tracing():
        return None
    try:
        nbytes_product = a.nbytes * b.nbytes
        if nbytes_product >= SMALL_BYTES_PRODUCT and not is_declined_on_device(library, a, b, nbytes_product, beta):
            return None
        # no check for tensors of different types: torch rejects them
        if library.is_differentiable and beta:
            return library.addmm_functions[a.ndim](c, a, b) if c.dtype is a.dtype else None
        if (axes := a.ndim) < 2 or b.ndim != axes:
            return None
        if library.is_differentiable:
            return library.fast_vendor_product(a, b)
        if a.dtype != b.dtype or (beta and c.dtype != a.dtype):
            return None
        return library.fast_vendor_gemm(a, b, c, 1, 1, None) if beta else library.fast_vendor_product(a, b)
    except (KeyError, RuntimeError, TypeError, ValueError):  # run_gemm raises the error, or computes the product
        return None


def run_small_scaled_gemm(
    library: Library, a: Any, b: Any, c: Any, alpha: Any, beta: Any, transpose_a: Any, transpose_b: Any, out: Any
) -> Any:
    """Return alpha op(A) op(B) + beta C of a small product of CuPy or torch by the library's own functions.

    Return None for large products, or if the library may reject the call. Also return None unless the operands are
    matrices or stacks of one floating-point type.
    """
    try:
        if a.nbytes * b.nbytes >= SMALL_BYTES_PRODUCT:
            return None
        kind = type(a)
        for x in (b, c, out):
            if x is not None and type(x) is not kind and PLAIN_TYPES.get(type(x)) is not library:
                return None
        if (alpha is not ONE and not _is_accepted_factor(alpha)) or (
            beta is not ZERO and not _is_accepted_factor(beta)
        ):
            return None
        if alpha == 0:  # the library's functions then read neither A nor B, not even their shapes
            return None
        if (is_tracing := library.is_tracing) is not None and is_tracing():
            return None
        axes, dtype = a.ndim, a.dtype
        if not 2 <= axes <= 3 or b.ndim != axes or b.dtype != dtype:
            return None
        if not (dtype.is_floating_point or dtype.is_complex if library.is_differentiable else dtype.kind in "fc"):
            return None
        if transpose_a is not False:
            if transpose_a is not True and transpose_a != "T":
                return None
            a = library.transposed_view(a)
        if transpose_b is not False:
            if transpose_b is not True and transpose_b != "T":
                return None
            b = library.transposed_view(b)
        if axes == 3 and a.shape[0] != b.shape[0]:
            return None
        if beta and (c is None or c.dtype != dtype):
            return None
        if out is not None:
            *rows, _ = a.shape
            if out.dtype != dtype or out.shape != (*rows, b.shape[-1]):
                return None
        return library.fast_vendor_gemm(a, b, c if beta else None, alpha, beta, out)
    except (AttributeError, RuntimeError, TypeError, ValueError):  # run_gemm raises the error, or computes the product
        return None


def _is_accepted_factor(factor: Any) -> bool:
    """Return True for an int or a float that every library accepts as alpha or beta."""
    kind = type(factor)
    return kind is float or (kind is int and -MAX_DECLINED_FACTOR <= factor <= MAX_DECLINED_FACTOR)


class PlannedGemm(NamedTuple):
    """A call of fmm.gemm on a device, with its cached plan.

    Before the plan runs again, `operands_of_cached_plan` checks the properties that the cache key does not contain.
    """

    expiry: float  # time.monotonic() at which the prepared call expires
    settings: object  # the environment variables and configs on which the decision depends
    library: Library
    params: BlasGemmParams
    call: PreparedCall
    constraints: PlanConstraints
    addend_span: ByteSpan | None  # bytes of the addend; None if C holds the addend, or if beta is 0


def run_cached_gemm(key: CallKey, a: Any, b: Any, c: Any, out: Any) -> Any:
    """Return the result of a call with a cached plan or a cached decline; None for any other call."""
    cached: PlannedGemm | DeclinedCall | None = key.library.cached_calls.get(key.key)
    if cached is None or cached.expiry <= time.monotonic():
        return None
    if isinstance(cached, PlannedGemm):
        operands = operands_of_cached_plan(cached, a, b, c, out)
        return (
            None
            if operands is None
            else _run_plan_or_library(cached.library, cached.call, operands, cached.constraints)
        )
    library = cached.library
    alpha, beta, op_a, op_b = cached.params
    if op_a != "N":
        a = library.transposed_view(a) if op_a == "T" else library.conjugated_copy(library.transposed_view(a))
    if op_b != "N":
        b = library.transposed_view(b) if op_b == "T" else library.conjugated_copy(library.transposed_view(b))
    return library.fast_vendor_gemm(a, b, c if beta else None, alpha, beta, out)


def operands_of_cached_plan(cached: PlannedGemm, a: Any, b: Any, c: Any, out: Any) -> GemmOperands | None:
    """Return the operands of a cached plan for these arrays of the caller; None if the cached plan must not run.

    The key of the plan contains the shapes, strides and types of the arrays, so only other properties are checked.
    """
    library, call = cached.library, cached.call
    if cached.settings != current_settings() or not library.is_plain_product(a, b, out, c):
        return None
    _, _, op_a, op_b = cached.params
    a = a if op_a == "N" else library.transposed_view(a)
    b = b if op_b == "N" else library.transposed_view(b)
    if out is not None and not can_write_into_out(library, call, a, b, out):
        return None
    addend = None
    if cached.addend_span is not None:
        address = library.data_pointer(c)
        if address % ADDEND_ALIGNMENT:
            return None
        if out is not None and may_overlap(address, cached.addend_span, library.data_pointer(out), call.spans[2]):
            return None
        addend = c if c.shape == call.shape else library.broadcast_view(c, call.shape)
    return GemmOperands(a, b, (False, False), out, addend)


def remember_planned_gemm(
    library: Library, call: PreparedCall, operands: GemmOperands, constraints: PlanConstraints
) -> None:
    """Cache the plan of a call on a device, if the plan reads the caller's arrays and writes the caller's `out`."""
    recurring = operands.recurring
    if recurring is None or library.processor == "cpu":
        return
    a, b, c, out = recurring.arrays
    params: BlasGemmParams = recurring.params
    copies_addend = params.beta and operands.addend is None and c is not out
    copies_conjugates = is_complex(a) and "C" in (params.op_a, params.op_b)
    if operands.target is not out or copies_addend or copies_conjugates or not library.is_plain_product(a, b, out, c):
        return
    span = None if operands.addend is None else byte_span(library.describe_operand(operands.addend))
    expiry = prepared_call_expiry(library, operands.a, operands.b, out, constraints)
    recurring.store_in_call_cache(PlannedGemm(expiry, current_settings(), library, params, call, constraints, span))


def _has_small_matrices(library: Library, operands: GemmOperands) -> bool:
    """Return True if the sides are too short for any plan on the host."""
    if library.processor != "cpu":
        return False
    is_small = are_small_matrices if library.is_differentiable else is_small_on_host
    return is_small(operands.a, operands.b)


def explain_gemm(
    library: Library, a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams, constraints: PlanConstraints
) -> Decision:
    """Return the decision that `run_gemm` makes.

    The decision depends on the memory layout of `c`, but not on the entries of `c`.
    """
    a, b, c = library.promote_operands(a, b, c if params.beta else None)
    operands = _arrange_explained_operands(library, a, b, c, out, params)
    shapes = tuple(operands.a.shape), tuple(operands.b.shape)
    if _is_empty_product(operands, params.alpha) and product_shape(*shapes):
        why = f"{library.name} multiplies: there is nothing to multiply"
        return Decision(VENDOR, None, why, kernels=(library.gemm_name or library.vendor_name,))
    constraints = _add_gemm_params_to_constraints(library, operands, params, constraints)
    call = prepare_uncached(library, operands.a, operands.b, operands.target, constraints)
    if any(operands.conjugates):
        plan = _conjugating_plan(library, call.plan, operands) if call.plan is not None else None
        operands = operands if plan is not None else _conjugated_operands(library, operands)
        constraints = constraints if plan is None else constraints._replace(plan=plan, replaceable=True)
        call = prepare_uncached(library, operands.a, operands.b, operands.target, constraints)
    if call.decision.plan == VENDOR and library.gemm_name:
        return replace(call.decision, kernels=(library.gemm_name,))
    return call.explained_decision(describe_kernels(library, call, operands.a, operands.b, operands.target))


def gemm_constraints(library: Library, a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams) -> PlanConstraints:
    """Return the constraints with which `run_gemm` prepares a call if the caller sets no constraints."""
    operands = _arrange_explained_operands(library, a, b, c, out, params)
    return _add_gemm_params_to_constraints(library, operands, params, NO_CONSTRAINTS)


# ---- the operands, and the array for C


def transposed_operands(library: Library, a: Any, b: Any, params: BlasGemmParams) -> tuple[Any, Any, tuple[bool, bool]]:
    """Return A and B, transposed by views for the ops "T" and "C", and for each True if it must still be conjugated.

    Raise ValueError if an operand is a vector.
    """
    if min(a.ndim, b.ndim) < 2:
        raise ValueError(f"fmm.gemm takes matrices with matching shapes, not {tuple(a.shape)} and {tuple(b.shape)}")
    ops = params.op_a, params.op_b
    a, b = (x if op == "N" else library.transposed_view(x) for x, op in zip((a, b), ops, strict=True))
    of_a, of_b = (op == "C" and is_complex(x) for x, op in zip((a, b), ops, strict=True))
    return a, b, (of_a, of_b)


def _arrange_operands(library: Library, a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams) -> GemmOperands:
    a, b, conjugates = transposed_operands(library, a, b, params)
    shape = product_shape(tuple(a.shape), tuple(b.shape))
    if shape is None:
        raise ValueError(f"fmm.gemm takes matrices with matching shapes, not {tuple(a.shape)} and {tuple(b.shape)}")
    if out is not None and tuple(out.shape) != shape:
        raise ValueError(f"out is {tuple(out.shape)}, the product {shape}")
    if not params.beta:
        return GemmOperands(a, b, conjugates, out)
    if c is None:
        raise ValueError("beta is a factor of c, which was not passed")
    _check_addend_shape(tuple(c.shape), shape)
    if (
        out is not None
        and _is_same_array(library, c, out)
        and not any(_arrays_may_overlap(library, x, out) for x in (a, b))
    ):
        return GemmOperands(a, b, conjugates, out)
    addend = readable_addend(library, a, b, c, shape)
    if addend is None:
        return GemmOperands(a, b, conjugates, library.broadcast_copy(c, shape, a))
    needs_new_array = out is None or any(_arrays_may_overlap(library, x, out) for x in (a, b, c))
    return GemmOperands(a, b, conjugates, None if needs_new_array else out, addend)


def _arrange_explained_operands(
    library: Library, a: Any, b: Any, c: Any, out: Any, params: BlasGemmParams
) -> GemmOperands:
    """Return the operands of a call that is explained and not computed; no array is copied."""
    operands = GemmOperands(*transposed_operands(library, a, b, params), out)
    shape = product_shape(tuple(operands.a.shape), tuple(operands.b.shape))
    if not params.beta or c is None or shape is None or (out is not None and _is_same_array(library, c, out)):
        return operands
    if library.broadcast_view(c, shape) is None:  # run_gemm then computes in a copy of c
        return operands._replace(target=c)
    return operands._replace(addend=readable_addend(library, operands.a, operands.b, c, shape))


ADDEND_ALIGNMENT = 16  # alignment, in bytes, of the addends that kernels can read


def readable_addend(library: Library, a: Any, b: Any, c: Any, shape: tuple[int, ...]) -> Any:
    """Return a view of the addend, broadcast to C's shape; None if plans cannot read the addend without a copy.

    For a stack times one matrix, return None: one product computes all rows of the stack, so the addend must be one
    matrix too.
    """
    if tuple(a.shape[:-2]) != tuple(b.shape[:-2]) or (len(shape) > 2 and prod(shape[:-2]) == 1):
        return None
    if library.processor == "cuda":
        is_aligned = not library.data_pointer(c) % ADDEND_ALIGNMENT
        if not is_aligned or library.device_number(a) != library.device_number(c):
            return None
    view = library.broadcast_view(c, shape)
    return view if view is not None and library.describe_operand(view).strides is not None else None


def addend_strides(library: Library, addend: Any) -> tuple[int, ...] | None:
    """Return the addend's strides in elements, with 0 for each axis of length 1; None if there is no addend."""
    if addend is None:
        return None
    strides = library.describe_operand(addend).strides
    assert strides is not None
    return tuple(0 if n == 1 else step for n, step in zip(addend.shape, strides, strict=True))


def _add_gemm_params_to_constraints(
    library: Library, operands: GemmOperands, params: BlasGemmParams, constraints: PlanConstraints
) -> PlanConstraints:
    strides = addend_strides(library, operands.addend)
    return constraints._replace(params=params.scalars_as_gemm_params, addend_strides=strides)


def _check_addend_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    missing = len(wanted) - len(shape)
    if missing < 0 or any(x not in (1, y) for x, y in zip(shape, wanted[missing:], strict=True)):
        raise ValueError(f"c is {shape}, the product {wanted}: it must have that shape, or one that is broadcast to it")


def _arrays_may_overlap(library: Library, x: Any, y: Any) -> bool:
    of_x, of_y = (byte_span(library.describe_operand(v)) for v in (x, y))
    return may_overlap(library.data_pointer(x), of_x, library.data_pointer(y), of_y)


def _is_same_array(library: Library, x: Any, y: Any) -> bool:
    return x is y or (
        library.data_pointer(x) == library.data_pointer(y)
        and library.describe_operand(x) == library.describe_operand(y)
    )


# ---- computing


def _run_planned_gemm(library: Library, operands: GemmOperands, constraints: PlanConstraints) -> Any:
    """Return C, computed by the call's plan, else by the library.

    C is a new array if the plan cannot write into the target.
    """
    if _is_empty_product(operands, constraints.params.alpha):
        return _run_library_gemm(library, operands, constraints)
    call = prepare_call(library, operands.a, operands.b, operands.target, constraints)
    if call.plan_refusal:
        library.vendor_product(operands.a, operands.b)
        raise PlanError(call.plan_refusal)
    if call.plan is None or (call.plan == VENDOR and library.gemm_name):
        # If `vendor_advantage` is set, the vendor is fast because of a property of these arrays (for example, B is
        # A's transposed view), so the decline is not cached for all arrays of these shapes.
        if not call.setting.vendor_advantage:
            _remember_declined_gemm(library, operands, constraints.params, call.decision)
        return _run_library_gemm(library, operands, constraints)
    target = operands.target
    if target is not None and not can_write_into_out(library, call, operands.a, operands.b, target):
        holds_addend = constraints.params.beta and operands.addend is None
        copy = library.broadcast_copy(target, tuple(target.shape), operands.a) if holds_addend else None
        return _run_planned_gemm(library, operands._replace(target=copy), constraints)
    if any(operands.conjugates):
        return _run_conjugating_plan(library, call, operands, constraints)
    remember_planned_gemm(library, call, operands, constraints)
    return _run_plan_or_library(library, call, operands, constraints)


def _run_plan_or_library(
    library: Library, call: PreparedCall, operands: GemmOperands, constraints: PlanConstraints
) -> Any:
    """Return C by the call's plan, else by another plan, else by the library."""
    c = run_with_fallback(library, call, operands.a, operands.b, operands.target, constraints, operands.addend)
    return _run_library_gemm(library, operands, constraints) if c is None else c


def _remember_declined_gemm(library: Library, operands: GemmOperands, params: GemmParams, decision: Decision) -> None:
    """Cache the decline of a call without constraints.

    On a device, declines of A B and A B + C are also cached under the key that `run_small_gemm` looks up.
    """
    if operands.recurring is None:
        return
    remember_declined_call(operands.recurring, library)
    if params.alpha == 1 and params.beta in (0, 1) and library.processor == "cuda":
        remember_decline(library, operands.a, operands.b, decision, beta=1 if params.beta else 0)


def _is_empty_product(operands: GemmOperands, alpha: Coefficient) -> bool:
    """Return True if A and B are not read, because alpha is 0 or A is empty.

    If A and B are not read, no plan runs, not even a plan that the caller passed.
    """
    return alpha == 0 or 0 in operands.a.shape


def _run_conjugating_plan(
    library: Library, call: PreparedCall, operands: GemmOperands, constraints: PlanConstraints
) -> Any:
    """Return C for operands that must be conjugated.

    If the levels of the call's plan can conjugate, the plan reads A and B themselves; else conjugated copies of A and B
    are multiplied. If a conjugating plan fails, no other plan is tried: the other plan would multiply the operands
    without conjugation.
    """
    assert call.plan is not None
    plan = _conjugating_plan(library, call.plan, operands)
    if plan is None:
        return _run_planned_gemm(library, _conjugated_operands(library, operands), constraints)
    own = constraints._replace(plan=plan, replaceable=False)
    a, b, target = operands.a, operands.b, operands.target
    try:
        conjugated_call = prepare_call(library, a, b, target, own)
        c = run_with_fallback(library, conjugated_call, a, b, target, own, operands.addend)
    except (library.out_of_memory_error, PlanError):
        if constraints.is_plan_required:
            raise
        c = None
    return _run_library_gemm(library, operands, constraints) if c is None else c


def _conjugating_plan(library: Library, plan: Plan, operands: GemmOperands) -> Plan | None:
    """Return the plan that conjugates A and B as the call requires; None if no such plan runs on this processor."""
    found = plan.with_conjugation(*operands.conjugates)
    runs = found is not None and all(library.processor in use.leaf.devices for use in found.all_leaves)
    return found if runs else None


def _conjugated_operands(library: Library, operands: GemmOperands) -> GemmOperands:
    pairs = zip((operands.a, operands.b), operands.conjugates, strict=True)
    a, b = (library.conjugated_copy(x) if conjugate else x for x, conjugate in pairs)
    return operands._replace(a=a, b=b, conjugates=(False, False))


def _has_one_float_type(*arrays: Any) -> bool:
    """Return True if the arrays have the same element type, a real or complex floating-point type."""
    first, *others = (x.dtype for x in arrays)
    return all(x == first for x in others) and type_name(first).startswith(("float", "bfloat", "complex"))


def _run_library_gemm(library: Library, operands: GemmOperands, constraints: PlanConstraints) -> Any:
    """Return C, computed by the library's own functions, in the target if there is one."""
    target, addend = operands.target, operands.addend
    if addend is not None and (target is None or not _has_one_float_type(operands.a, operands.b, addend, target)):
        # a new array, since `out` of another type would round the addend, and the library may reject the types
        shape = tuple(addend.shape if target is None else target.shape)
        target, addend = library.broadcast_copy(addend, shape, operands.a), None
    operands = _conjugated_operands(library, operands._replace(addend=addend, target=target))
    a, b, alpha = operands.a, operands.b, constraints.params.alpha
    if alpha == 0:
        a, b, alpha = a[..., :0], b[..., :0, :], 1
    c = library.vendor_gemm(a, b, target, alpha, constraints.params.beta, addend)
    if operands.target is not None:
        library.record_array_change(operands.target)
    return c
