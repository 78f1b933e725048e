"""fmm.gram, for products that are their own adjoints; a plan or the library's own functions compute the product.

A plan computes the lower triangle of the product. For fill="upper", the plan computes the lower triangle of the
transposed product.
"""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np

from fmm.arrays.detect import is_complex
from fmm.arrays.library import Library, ProductSetting
from fmm.arrays.numpy_library import is_blas_readable
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.cpu.host_arrays import matmul
from fmm.kernels.cpu.triangle_product import hermitian_product, uses_triangle_panels
from fmm.kernels.cuda.launch_list import ADDRESS_BASES
from fmm.kernels.cuda.recompute.recompute import can_recompute, may_create_nonfinite
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.plan import VENDOR, PlanError
from fmm.problem import Fill
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.decisions.early_declines import (
    CallKey,
    DeclinedCall,
    RecurringCall,
    find_declined_gram_function,
    remember_declined_call,
    remember_declined_gram,
)
from fmm.runtime.decisions.limits import NO_CONSTRAINTS, GramKey, PlanConstraints
from fmm.runtime.matmul import describe_kernels, run_cached_gram, run_with_fallback
from fmm.runtime.operands import may_overlap
from fmm.runtime.prepare import PreparedCall, can_write_into_out, prepare_call, prepare_uncached

Triangle = Literal["full", "lower", "upper"]
TRIANGLES: tuple[Triangle, ...] = ("full", "lower", "upper")


class GramParams(NamedTuple):
    """The parameters of fmm.gram that are not arrays."""

    rows: bool = False
    fill: Triangle = "full"
    alpha: float = 1
    beta: float = 0


class GramOperands(NamedTuple):
    """The two matrices of a product, the array for the result (`out`), and the parameters."""

    left: Any
    right: Any
    out: Any
    params: GemmParams
    is_transposed: bool  # True if the transposed product is computed


def run_gram(
    library: Library,
    a: Any,
    b: Any,
    out: Any,
    params: GramParams,
    constraints: PlanConstraints,
    recurring: RecurringCall | None = None,
) -> Any:
    """Return alpha a^H a + beta out, for any library.

    If `params.rows` is True, return alpha a a^H + beta out. If `b` is not None, return alpha a b + beta out. If no plan
    computes this call, the decline is cached under the key of `recurring`.
    """
    c = run_conjugating_plan(library, a, out, params, constraints) if b is None else None
    if c is None:
        c = _compute_gram(library, _arrange_operands(library, a, b, out, params), constraints, recurring)
    return out if out is not None else library.transposed_view(c) if params.fill == "upper" else c


def run_conjugating_plan(library: Library, a: Any, out: Any, params: GramParams, constraints: PlanConstraints) -> Any:
    """Return the product of a complex device array and its adjoint, by a plan that conjugates the array as it reads it.

    Return None if the chosen plan cannot conjugate; the caller must then copy the adjoint. If the conjugating plan
    fails, no other plan is tried, because the other plan would multiply A and its transpose without conjugation.
    """
    try:
        if (found := _select_conjugating_call(library, a, out, params, constraints)) is None:
            return None
        call, (left, right, target, gemm_params, _) = found
        own = constraints._replace(plan=call.plan, replaceable=False, params=gemm_params)
        return run_with_fallback(library, call, left, right, target, own)
    except (library.out_of_memory_error, PlanError):
        # If this function returns None, run_gram multiplies A by a copy of its adjoint. If the caller passed the plan
        # and this second product fails too, the second product raises its own error.
        return None


def _select_conjugating_call(
    library: Library, a: Any, out: Any, params: GramParams, constraints: PlanConstraints, cached: bool = True
) -> tuple[PreparedCall, GramOperands] | None:
    """Return a prepared call whose kernels conjugate A as they read A, and the two operands: A and its transposed view.

    Return None if the chosen plan cannot conjugate.
    """
    if library.processor == "cpu" or not is_complex(a) or params.alpha == 0:
        return None
    operands = _arrange_operands(library, a, None, out, params, conjugates=False)
    call, chosen = _select_gram_call(library, operands, constraints, cached)
    is_left = _is_adjoint_left(params.rows, params.fill)
    plan = call.plan.with_conjugation(is_left, not is_left) if call.plan is not None else None
    if plan is None or chosen is not operands:
        return None
    own = constraints._replace(plan=plan, replaceable=False)
    call, chosen = _select_gram_call(library, operands, own, cached)
    return (call, operands) if call.plan == plan and chosen is operands else None


def explain_conjugating_plan(
    library: Library, a: Any, out: Any, params: GramParams, constraints: PlanConstraints
) -> Decision | None:
    """Return the decision for a plan that conjugates A as it reads A; None if no conjugating plan runs."""
    try:
        if (found := _select_conjugating_call(library, a, out, params, constraints, cached=False)) is None:
            return None
    except PlanError:
        return None
    call, operands = found
    assert call.plan is not None
    # The model predicted the times of plans that do not conjugate A. The predicted times hold for the conjugating plan
    # too, since conjugating entries while they are read takes no time.
    decision = _select_gram_call(library, operands, constraints, cached=False)[0].decision
    candidates = tuple(replace(c, plan=call.plan) if c.plan == decision.plan else c for c in decision.candidates)
    kernels = describe_kernels(library, call, *operands[:3])
    return replace(
        decision,
        plan=call.plan,
        candidates=candidates,
        kernels=kernels,
        call_bytes=call.explained_decision(()).call_bytes,
    )


def _is_adjoint_left(rows: bool, fill: Triangle) -> bool:
    """Return True if the adjoint is the left operand, False if it is the right operand."""
    return rows == (fill == "upper")


def run_declined_gram(key: CallKey, a: Any, b: Any, out: Any) -> Any:
    """Return the library's own result of a call with a cached decline; None for any other call."""
    declined: DeclinedCall | None = key.library.cached_calls.get(key.key)
    if declined is None or declined.expiry <= time.monotonic():
        return None
    if not key.library.is_plain_product(a, a if b is None else b, out):
        return None
    library = declined.library
    operands = _arrange_operands(library, a, b, out, declined.params)
    c = _run_vendor(library, operands, declined.vendor_mirrors)
    return out if out is not None else library.transposed_view(c) if operands.is_transposed else c


def explain_gram(
    library: Library, a: Any, b: Any, out: Any, params: GramParams, constraints: PlanConstraints
) -> Decision:
    """Return the decision that `run_gram` makes; nothing is computed."""
    conjugating = explain_conjugating_plan(library, a, out, params, constraints) if b is None else None
    if conjugating is not None:
        return conjugating
    operands = _arrange_operands(library, a, b, out, params)
    if operands.params.alpha == 0:
        why = f"{library.name} multiplies: alpha is 0, so the factors are not read"
        return Decision(VENDOR, None, why, kernels=(library.vendor_name,))
    call, chosen = _select_gram_call(library, operands, constraints, cached=False)
    is_plain = b is None and constraints == NO_CONSTRAINTS and params == GramParams(params.rows)
    if is_plain and (kernel := describe_small_gram(a, params.rows, out)):
        return replace(call.decision, kernels=(kernel,))
    if constraints == NO_CONSTRAINTS and _has_few_product_rows(library, operands):
        name = (
            library.gemm_name
            if operands.params.beta and _can_library_gemm_compute_gram(library, operands)
            else library.vendor_name
        )
        why = f"{library.name} multiplies: the product has at most {WHOLE_PRODUCT_MAX_ROWS} rows"
        whole = f"{name}: a whole product, with one triangle mirrored"
        return replace(call.decision, plan=VENDOR, reason=why, kernels=(whole,))
    if call.plan is None and library.processor == "cpu" and _is_vendor_product_symmetric(library, call, operands):
        syrk = f"{library.vendor_name}: BLAS's syrk, one triangle, and NumPy's mirror"
        return replace(call.decision, kernels=(syrk,))
    if _needs_library_gemm(library, call, operands, constraints) or (
        call.plan is None and call.setting.b_is_transposed_a
    ):
        name = library.gemm_name if call.plan is not None and operands.params.beta else library.vendor_name
        return replace(call.decision, kernels=(f"{name}: a whole product, with one triangle mirrored",))
    kernels = describe_kernels(library, call, chosen.left, chosen.right, chosen.out)
    decision = call.explained_decision(kernels)
    if chosen is operands:
        return decision
    return replace(decision, reason=f"{decision.reason}; computed in a temporary array and copied into out")


# ---- recurring calls on a device


def run_recurring_gram(library: Library, a: Any, out: Any, rows: bool, fill: Triangle) -> Any:
    """Return the product of a device array and its adjoint by a cached call; None if run_gram must compute the product.

    The cached call has alpha 1, beta 0 and no constraints. Each call checks only whether `out` overlaps A.
    """
    if library.processor == "cpu":
        return None
    is_whole = out is None and fill == "full"
    is_whole_stack = is_whole and a.ndim > 2 and not library.is_differentiable  # few stacks have a plan
    if is_whole_stack and (c := _run_symmetric_gram(library, a, rows)) is not None:
        return c
    call = prepare_call(library, a, None, out, GRAM_KEYS[rows, fill], _prepare_recurring_gram)
    if call.plan is None:
        return _run_symmetric_gram(library, a, rows) if is_whole else None
    if out is not None and not _can_write_at_address(call, library.data_pointer(a), library.data_pointer(out)):
        return None
    try:
        return run_cached_gram(library, call, a, out)
    except Exception:  # a launch failed: compute `out` by the library, since other launches may have written to it
        if out is not None:
            with suppress(Exception):
                adjoint = _adjoint_array(library, a)
                whole = library.vendor_product(a, adjoint) if rows else library.vendor_product(adjoint, a)
                target, written = (library.transposed_view(out), "lower") if fill == "upper" else (out, fill)
                library.write_triangle(whole, target, 1.0, 0.0, written)
        raise


def _run_symmetric_gram(library: Library, a: Any, rows: bool) -> Any:
    """Return the library's own product of a device array and its transpose if its decline is cached; else None."""
    if (multiply := find_declined_gram_function(library, a, rows)) is None:
        return None
    transposed = library.transposed_view(a)
    return multiply(a, transposed) if rows else multiply(transposed, a)


GRAM_KEYS = {(rows, fill): GramKey(rows, fill) for rows in (False, True) for fill in TRIANGLES}


def _can_write_at_address(call: PreparedCall, a: int, out: int) -> bool:
    """Return True if the plan can write into `out` at this address without overwriting A.

    Only A's address is compared with the address of `out`, since A's memory holds both operands, A and A's adjoint.
    """
    return call.writes_out and not may_overlap(a, call.spans[0], out, call.spans[2])


def _prepare_recurring_gram(library: Library, a: Any, b: None, out: Any, key: GramKey) -> PreparedCall:
    """Return the prepared call of a plan that alone computes the complete result.

    If the plan needs a copy of an operand, a conjugated copy of A, or a temporary that is copied into `out`, return a
    call without a plan; run_gram then computes the result.
    """
    if out is not None or key.fill == "full":
        has_conjugate = is_complex(a)
        operands = _arrange_operands(library, a, b, out, GramParams(key.rows, key.fill), conjugates=False)
        call, chosen = _select_gram_call(library, operands, NO_CONSTRAINTS, cached=not has_conjugate)
        is_whole = chosen is operands and call.plan is not None and not call.copies and call.decision.trial is None
        if is_whole and (not has_conjugate or _can_skip_adjoint(call, key)):
            return call
    return PreparedCall(Decision(VENDOR, None, "run_gram decides"), ProductSetting(0))


def _can_skip_adjoint(call: PreparedCall, key: GramKey) -> bool:
    """Return True if no launch reads A's adjoint, so that the adjoint need not be computed.

    For example, cuBLAS's herk reads A, and not A's adjoint.
    """
    adjoint = "A" if _is_adjoint_left(key.rows, key.fill) else "B"
    return (
        call.plan == VENDOR
        and call.launches is not None
        and ADDRESS_BASES.index(adjoint) not in call.launches.vendor_bases
    )


# ---- operands


def _arrange_operands(
    library: Library, a: Any, b: Any, out: Any, params: GramParams, conjugates: bool = True
) -> GramOperands:
    """Return the operands of a call; ValueError if the shapes do not match.

    If `conjugates` is False, A's transposed view takes the place of the adjoint of a complex A, so that A is not
    copied. The transposed view suffices to prepare a call: only memory layouts matter, and the view and the adjoint
    have equal layouts.
    """
    if a.ndim < 2 or (b is not None and (b.ndim < 2 or a.shape[-2] != b.shape[-1])):
        shapes = " and ".join(str(tuple(x.shape)) for x in (a, b) if x is not None)
        raise ValueError(f"fmm.gram takes matrices with a square product, not {shapes}")
    if b is not None:
        left, right = a, b
    else:
        adjoint = _adjoint_array(library, a) if conjugates else library.transposed_view(a)
        left, right = (a, adjoint) if params.rows else (adjoint, a)
    if out is None and (params.beta or params.fill != "full"):
        if params.beta:
            raise ValueError("beta is a factor of out, which was not passed")
        out = library.new_zeros(_result_shape(left, right), left)
    elif out is not None:
        # The shape of a matrix times its adjoint is computed here: a function call would take time in small calls.
        is_matrix = b is None and a.ndim == 2
        shape = (left.shape[0], left.shape[0]) if is_matrix else _result_shape(left, right)
        if tuple(out.shape) != shape:
            raise ValueError(f"out is {tuple(out.shape)}, the product {shape}")
    is_transposed = params.fill == "upper"
    if is_transposed:
        left, right = library.transposed_view(right), library.transposed_view(left)
        out = library.transposed_view(out)
    fill: Fill = "full" if params.fill == "full" else "lower"
    plan_params = GemmParams(params.alpha, params.beta, "gram" if b is None else "symmetric", fill)
    return GramOperands(left, right, out, plan_params, is_transposed)


def _adjoint_array(library: Library, a: Any) -> Any:
    """Return the conjugate transpose: a copy if A is complex, else a view."""
    transposed = library.transposed_view(a)
    return library.conjugated_copy(transposed) if is_complex(a) else transposed


def _result_shape(left: Any, right: Any) -> tuple[int, ...]:
    stack = np.broadcast_shapes(tuple(left.shape[:-2]), tuple(right.shape[:-2]))
    return (*stack, left.shape[-2], left.shape[-2])


# ---- the call

# A plan that cannot write into `out` computes a new array, and the new array is copied into `out`. A plan that needs a
# copy into `out` is used only if the predicted time of the plan without the copy is below this fraction of the vendor's
# time. (On an H200 in float64 with side 8192, the plan alone is predicted to take 0.89 times the vendor's time; the
# plan and the copy take 1.04 times the vendor's time.)
MAX_TIME_SHARE_WITH_COPY = 0.8


def _select_gram_call(
    library: Library, operands: GramOperands, constraints: PlanConstraints, cached: bool = True
) -> tuple[PreparedCall, GramOperands]:
    """Return the call for the result in `out`, or for the product without alpha and beta in a new array; and its
    operands.

    The call computes either the result in `out`, or the product without alpha and beta in a new array.
    """
    prepare = prepare_call if cached else prepare_uncached
    left, right, out = operands[:3]
    own = constraints._replace(params=operands.params)
    call = prepare(library, left, right, out, own)
    if out is None or call.plan_refusal or _can_write_gram_into_out(library, call, operands):
        return call, operands
    # A certified entry's plan has no predicted time, but was measured to be faster than the vendor, so its predicted
    # time is set to 0.
    time = next((c.time for c in call.decision.candidates if c.plan == call.plan), 0.0)
    if constraints.plan is None and time > MAX_TIME_SHARE_WITH_COPY:
        as_vendor_gemm = prepare(library, left, right, out, own._replace(plan=VENDOR))
        if _can_write_gram_into_out(library, as_vendor_gemm, operands):
            return as_vendor_gemm, operands
    whole = operands._replace(out=None, params=_both_triangles_params(operands.params))
    return prepare(library, left, right, None, constraints._replace(params=whole.params)), whole


def _can_write_gram_into_out(library: Library, call: PreparedCall, operands: GramOperands) -> bool:
    """Return True if the call's plan can compute the result in `out` itself.

    Return False if alpha A B + beta out may have to be computed twice, because the first computation overwrites the old
    `out`. A second computation is needed if the result has inf or NaN, and on the host also after an exception.
    """
    if call.plan is None:
        return False
    problem = call.decision.problem
    is_final = problem is None or not can_recompute(problem)
    may_repeat = library.processor == "cpu" or (may_create_nonfinite(call.plan) and is_final)
    is_safe = operands.params == _both_triangles_params(operands.params) or not may_repeat
    return is_safe and can_write_into_out(library, call, operands.left, operands.right, operands.out)


def _both_triangles_params(params: GemmParams) -> GemmParams:
    """Return the parameters of the product with both triangles, alpha 1 and beta 0."""
    return GemmParams(op=params.op)


def _compute_gram(
    library: Library, operands: GramOperands, constraints: PlanConstraints, recurring: RecurringCall | None
) -> Any:
    if operands.params.alpha == 0:  # no plan runs, not even a plan that the caller passed
        remember_declined_call(recurring, library)
        return _run_vendor(library, operands)
    if constraints is NO_CONSTRAINTS and _has_few_product_rows(library, operands):
        remember_declined_call(recurring, library)
        return _run_vendor(library, operands)
    call, chosen = _select_gram_call(library, operands, constraints)
    left, right = chosen.left, chosen.right
    if call.plan_refusal:
        library.vendor_product(left, right)
        raise PlanError(call.plan_refusal)
    mirrors = call.plan is None and _is_vendor_product_symmetric(library, call, operands)
    if _needs_library_gemm(library, call, operands, constraints):
        remember_declined_call(recurring, library)
        return _run_vendor(library, operands)
    if call.plan is None:
        remember_declined_call(recurring, library, mirrors)
        if mirrors and library.processor == "cuda" and operands.out is None and constraints is NO_CONSTRAINTS:
            remember_declined_gram(library, left)
        return _run_vendor(library, operands, mirrors)
    c = run_with_fallback(library, call, left, right, chosen.out, constraints._replace(params=chosen.params))
    if c is None:
        return _run_vendor(library, operands, mirrors)
    return c if chosen is operands else _write_result(library, operands, c)


# On the host, a product of at most this number of rows is computed with both triangles, since one triangle alone would
# take longer.
WHOLE_PRODUCT_MAX_ROWS = 128


def _has_few_product_rows(library: Library, operands: GramOperands) -> bool:
    """Return True if a product on the host has so few rows that both triangles are computed.

    Return False for a NumPy array times its own transpose with alpha 1 and beta 0, since NumPy calls syrk.
    """
    if library.processor != "cpu" or operands.left.ndim != 2 or operands.left.shape[0] > WHOLE_PRODUCT_MAX_ROWS:
        return False
    return library.is_differentiable or operands.params != GemmParams(op="gram")


def _is_vendor_product_symmetric(library: Library, call: PreparedCall, operands: GramOperands) -> bool:
    """Return True if the library's own product of these operands is symmetric bit for bit.

    NumPy computes one triangle of `a @ a.T` and mirrors it. A GPU's kernel computes both triangles. Most kernels add
    the terms of the entries c[i, j] and c[j, i] in the same order, so that both have the same bits.
    """
    if operands.params != _both_triangles_params(operands.params):
        return False
    if library.processor == "cpu" or operands.params.op != "gram":
        return call.setting.vendor_mirrors
    return call.setting.b_is_transposed_a and library.has_symmetric_gram(operands.left)


def _needs_library_gemm(
    library: Library, call: PreparedCall, operands: GramOperands, constraints: PlanConstraints
) -> bool:
    """Return True if the library's gemm must compute a product of two matrices on the host.

    The library's gemm computes both triangles of a symmetric A B, since BLAS has no function that computes one triangle
    of A B.
    """
    return constraints.plan is None and call.plan == VENDOR and _can_library_gemm_compute_gram(library, operands)


def _can_library_gemm_compute_gram(library: Library, operands: GramOperands) -> bool:
    return library.processor == "cpu" and bool(library.gemm_name) and operands.params.op == "symmetric"


def _run_vendor(library: Library, operands: GramOperands, vendor_mirrors: bool = False) -> Any:
    """Return the result by the library's own functions.

    Both triangles of the product are computed, then one triangle is mirrored into the other.
    """
    params, left, right = operands.params, operands.left, operands.right
    if params.alpha == 0:  # as in BLAS's syrk, the operands are not read if alpha is 0
        left, right = left[..., :0], right[..., :0, :]
    if vendor_mirrors:
        return library.vendor_product(left, right, operands.out)
    if not params.beta or not _can_library_gemm_compute_gram(library, operands):
        return _write_result(library, operands, library.vendor_product(left, right))
    whole = library.broadcast_copy(operands.out, tuple(operands.out.shape), operands.out)
    library.vendor_gemm(left, right, whole, params.alpha, params.beta)
    return _write_result(library, operands._replace(params=params._replace(alpha=1, beta=0)), whole)


def _write_result(library: Library, operands: GramOperands, product: Any) -> Any:
    """Return alpha product + beta out, written into `out`; without `out`, written into the array `product`."""
    params = operands.params
    out = product if operands.out is None else operands.out
    alpha, beta = (x if type(x) is int else _as_real_number(x) for x in (params.alpha, params.beta))
    library.write_triangle(product, out, alpha, beta, params.fill)
    library.record_array_change(out)
    return out


def _as_real_number(factor: Coefficient) -> float:
    """Return alpha or beta as a real number; an int stays an int, since a float cannot hold every int."""
    return factor if isinstance(factor, int) else complex(factor).real


# ---- NumPy products of few rows, by BLAS without a prepared call
#
# For few rows, no plan for one triangle is faster than the vendor, and preparing a call takes 50 microseconds.

# Largest number of rows of a product that is computed without a prepared call. If A has at most SMALL_GRAM_MAX_ROWS
# entries, A has at most SMALL_GRAM_MAX_ROWS rows too, so the rows are not counted.
SMALL_GRAM_MAX_ROWS = 1024
# A product of up to THIN_GRAM_MAX_ROWS rows also needs no prepared call if its inner side is at most
# THIN_GRAM_MAX_INNER_SIDE.
THIN_GRAM_MAX_ROWS, THIN_GRAM_MAX_INNER_SIDE = 4096, 64
ndarray = np.ndarray
# NumPy's own dtype object of each element type, compared by identity. If an array has another dtype object, even an
# equal one, run_gram computes the product.
FLOAT64, FLOAT32, COMPLEX128, COMPLEX64 = map(np.dtype, ("float64", "float32", "complex128", "complex64"))


def run_small_gram(a: Any, rows: bool, out: Any) -> Any:
    """Return the product of a NumPy array and its adjoint, with both triangles; None if run_gram must decide.

    NumPy's product of a real matrix and a view of its transpose calls BLAS's syrk.
    """
    dtype = a.dtype
    if a.ndim > 2:
        return _run_small_gram_stack(a, rows) if out is None else None
    # `a.size` is compared first: for most small arrays this fast comparison already shows that A has few rows
    if a.ndim != 2 or (a.size > SMALL_GRAM_MAX_ROWS and not _has_few_rows(a, rows)):
        return None
    if out is not None and (type(out) is not ndarray or out.dtype is not dtype or out.ndim != 2):
        return None
    try:
        if dtype is FLOAT64 or dtype is FLOAT32:
            flags = a.flags
            if not (flags.carray or (flags.forc and flags.aligned) or is_blas_readable(a)):
                a = a.copy()
            if out is None:
                return matmul(a, a.T) if rows else matmul(a.T, a)
            return matmul(a, a.T, out) if rows else matmul(a.T, a, out)
    except ValueError:  # `out` has another shape: run_gram raises fmm's own error
        return None
    if dtype is COMPLEX128 or dtype is COMPLEX64:
        side = a.shape[not rows]
        return hermitian_product(a, rows, out) if out is None or out.shape == (side, side) else None
    return None


def _run_small_gram_stack(a: Any, rows: bool) -> Any:
    """Return the product of each matrix of a stack and its transpose; None if the products have too many rows."""
    is_real = a.dtype is FLOAT64 or a.dtype is FLOAT32
    if not (is_real and a.flags.carray and a.shape[-2 if rows else -1] <= SMALL_GRAM_MAX_ROWS):
        return None
    transposed = a.swapaxes(-1, -2)
    return matmul(a, transposed) if rows else matmul(transposed, a)


def _has_few_rows(a: Any, rows: bool) -> bool:
    """Return True if the product has too few rows for any plan."""
    side, inner = a.shape if rows else a.shape[::-1]
    return bool(
        a.size <= SMALL_GRAM_MAX_ROWS
        or side <= SMALL_GRAM_MAX_ROWS
        or (side <= THIN_GRAM_MAX_ROWS and inner <= THIN_GRAM_MAX_INNER_SIDE)
    )


def describe_small_gram(a: Any, rows: bool, out: Any) -> str:
    """Return a description of the kernel that `run_small_gram` runs if A is complex or copied; else an empty text."""
    if type(a) is not ndarray or a.ndim != 2 or a.dtype not in (FLOAT64, FLOAT32, COMPLEX128, COMPLEX64):
        return ""
    if not _has_few_rows(a, rows) or (out is not None and (type(out) is not ndarray or out.dtype is not a.dtype)):
        return ""
    if a.dtype.kind == "f":
        copied = not ((a.flags.forc and a.flags.aligned) or is_blas_readable(a))
        return "numpy.matmul of a copy: BLAS's syrk, one triangle, and NumPy's mirror" if copied else ""
    side, inner = a.shape if rows else a.shape[::-1]
    if uses_triangle_panels(side, inner):
        return "numpy.matmul: one triangle in panels of rows, each mirrored"
    return "numpy.matmul: a whole product, with one triangle mirrored"
