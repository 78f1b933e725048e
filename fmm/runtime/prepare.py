"""Prepared calls: the operands, plan, launches and memory needs of one product, cached by the call's signature.

`prepare_call` looks up the call in the cache of the call's library. On a miss, `prepare_uncached` describes the
operands as a `ProblemQuery`, and `prepare_query` decides. `prepare_query` uses no array and no device, so tests can
call it without either.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, NamedTuple

from fmm.arrays.library import Library, Operand, ProductSetting, contiguous_operand, product_shape
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.config.files import current_settings
from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.target import address_alignment
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import GRAPH_SCRATCH_BYTES, plan_workspace_bytes
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.stability import has_componentwise_bound
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem, reduced_problem
from fmm.runtime import devices
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import (
    Decision,
    check_plan_is_runnable,
    decide_plan,
    decide_without_vendor,
    is_gram_faster,
    next_winning_plans,
    peak_workspace,
)
from fmm.runtime.decisions.early_declines import MIN_PLAN_SIDE
from fmm.runtime.decisions.limits import (
    GramKey,
    PlanConstraints,
    PreparedOperandLayout,
    default_workspace_bytes,
    limits_for_operation,
    next_free_memory_read,
)
from fmm.runtime.decisions.reproducible import VALID_TYPES_TEXT, reproducible_plan
from fmm.runtime.decisions.stacks import is_stackable, stacked_decisions
from fmm.runtime.devices import Device, chip_with_tuned_block_model
from fmm.runtime.operands import (
    ByteOffsets,
    ByteSpan,
    CallMatrices,
    PlanIgnoredError,
    VendorOnlyError,
    byte_span,
    matrices_of_call,
    may_overlap,
)
from fmm.runtime.probe import register_probe_callback

ZERO_WORKSPACE_LIMITS = Limits(0)


@dataclass(frozen=True)
class PreparedCall:
    """A call with its plan, launches and memory needs; if `plan` is None, the library's own product runs.

    A prepared call is immutable, so threads and streams share it. Each run of a prepared call allocates its own result
    and workspace.
    """

    decision: Decision
    setting: ProductSetting
    limits: Limits = ZERO_WORKSPACE_LIMITS
    device: Device | None = None
    plan: Plan | None = None  # the plan; None if the library's own product runs
    launches: LaunchList | None = None  # the launches on a CUDA device; None on the host
    shape: tuple[int, ...] = ()
    dtype: str = ""
    result: Operand | None = None  # description of the new array for the product
    # A value for A and one for B: True if the operand is copied, because BLAS cannot read its layout or type.
    packs: tuple[bool, bool] = (False, False)
    writes_out: bool = False  # True if the plan can write into `out`, unless `out` overlaps an operand
    flattens_stack: bool = False  # True if a stack times one matrix is one product of all rows of the stack
    offsets: tuple[ByteOffsets, ...] = ()  # byte offsets of A, B and C for each product, on a CUDA device
    # Where each product's addend begins in the addend's array, in bytes; empty if C holds the addend.
    addend_offsets: tuple[int, ...] = ()
    spans: tuple[ByteSpan | None, ByteSpan | None, ByteSpan | None] = (None, None, None)
    copies: bool = False  # True if A or B is copied
    workspace: int = 0  # bytes of workspace
    call_bytes: int = 0  # bytes of the workspace and, on a device, also of copies of operands
    uses_graph: bool = False  # True if the call is captured as a CUDA graph when it recurs
    plan_refusal: str = ""  # reason why the caller's plan cannot run, if the library probably rejects the call too

    def explained_decision(self, kernels: tuple[str, ...]) -> Decision:
        """Return the decision with the kernels that run and the bytes that the call allocates."""
        return replace(self.decision, kernels=kernels, call_bytes=self.call_bytes)

    def may_c_share_memory(self, a: int, b: int, c: int) -> bool:
        """Return True if C may share memory with A or B when the arrays have these addresses."""
        return may_overlap(a, self.spans[0], c, self.spans[2]) or may_overlap(b, self.spans[1], c, self.spans[2])


@dataclass(frozen=True)
class ProblemQuery:
    """A description of one product: the operands, `out` (or None), the device, and the caller's limits."""

    a: Operand
    b: Operand
    out: Operand | None
    setting: ProductSetting
    device: Device
    limits: Limits
    plan: Plan | None = None
    result: Operand | None = None  # description of the new array for the product; None for a contiguous row-major array
    params: GemmParams = PLAIN
    prepared_side: PreparedOperandLayout | None = None
    addend_strides: tuple[int, ...] | None = None  # strides of the addend, in elements; None if C holds the addend


class CachedCall(NamedTuple):
    """A prepared call in a library's cache, with the time at which the call expires."""

    call: PreparedCall
    valid_until: float  # time.monotonic() at which the call expires
    workspace_share: int = 0  # default workspace limit in bytes when the call was prepared


MAX_CACHED_CALLS = 4096  # largest number of cached calls of a library
PrepareFunction = Callable[[Library, Any, Any, Any, Any], PreparedCall]


# ---- the cache


def prepare_call(
    library: Library,
    a: object,
    b: object,
    out: object,
    constraints: PlanConstraints | GramKey,
    prepare: PrepareFunction | None = None,
) -> PreparedCall:
    """Return the cached call for this signature; on a miss cache the result of `prepare` (default: prepare_uncached).

    If `b` is None, the call multiplies a matrix by its own transpose.
    """
    signature = library.call_key(a, b, out)
    if signature is None:
        return (prepare or prepare_uncached)(library, a, b, out, constraints)  # type: ignore[arg-type]
    key = constraints, signature, current_settings()
    cached = library.cached_calls.get(key)
    if cached is None or cached.valid_until < time.monotonic():
        cached = _prepare_and_cache(library, key, a, b, out, constraints, prepare or prepare_uncached)
    call: PreparedCall = cached.call
    return call


def prepared_call_expiry(library: Library, a: object, b: object, out: object, constraints: PlanConstraints) -> float:
    """Return the time.monotonic() at which the cached call for this signature expires; 0 if no call is cached."""
    cached: CachedCall | None = library.cached_calls.get((constraints, library.call_key(a, b, out), current_settings()))
    return 0.0 if cached is None else cached.valid_until


def _prepare_and_cache(
    library: Library,
    key: Hashable,
    a: object,
    b: object,
    out: object,
    constraints: PlanConstraints | GramKey,
    prepare: PrepareFunction,
) -> CachedCall:
    """Prepare a call, and cache it until the free memory is read again, or forever if the caller set a workspace limit.

    The default workspace limit depends on the free memory.
    """
    previous: CachedCall | None = library.cached_calls.get(key)
    if constraints.workspace is not None:
        cached = CachedCall(prepare(library, a, b, out, constraints), inf)
    else:
        number = library.device_number(a)
        share = default_workspace_bytes(library, number)
        if previous is None or previous.workspace_share != share:
            call = prepare(library, a, b, out, constraints)
            call = previous.call if previous is not None and _has_same_launches(call, previous.call) else call
        else:
            call = previous.call
        cached = CachedCall(call, next_free_memory_read(library, number), share)
    if library.processor == "cpu":
        _host_caches[id(library.cached_calls)] = library.cached_calls
    if len(library.cached_calls) >= MAX_CACHED_CALLS:
        library.cached_calls.clear()
    library.cached_calls[key] = cached
    return cached


# The caches of prepared calls of NumPy and of torch on the host, to clear them together; the keys are id(cache).
_host_caches: dict[int, dict[Hashable, Any]] = {}


@register_probe_callback
def _clear_host_caches() -> None:
    """Remove all cached calls of the host libraries: their decisions were made before the probe of this processor."""
    for calls in tuple(_host_caches.values()):
        calls.clear()


def _has_same_launches(call: PreparedCall, previous: PreparedCall) -> bool:
    """Return True if both calls have the same launches on a device, so that they can share captured graphs."""
    same = replace(call, decision=previous.decision, limits=previous.limits) == previous
    return same and call.launches is not None and call.decision.trial is previous.decision.trial


def can_write_into_out(library: Library, call: PreparedCall, a: object, b: object, out: object) -> bool:
    """Return True if the call's plan can write into `out` directly."""
    if not call.writes_out:
        return False
    address = library.data_pointer
    return not call.may_c_share_memory(address(a), address(b), address(out))


# ---- from arrays to a query


def prepare_uncached(library: Library, a: object, b: object, out: object, constraints: PlanConstraints) -> PreparedCall:
    """Return a new prepared call; the call has no plan if the library rejects the operands.

    Raise PlanError if the caller's plan cannot run.
    """
    setting = library.product_setting(a, b, out)
    if constraints.reproducible and setting.dtype in INTEGERS:
        constraints = constraints._replace(reproducible=False)  # integers are exact by any plan
    why: VendorOnlyError
    try:
        if setting.refusal:
            ignores_plan = setting.refuses_plans and not constraints.reproducible
            raise (PlanIgnoredError if ignores_plan else VendorOnlyError)(setting.refusal)
        return prepare_query(_make_query(library, setting, a, b, out, constraints))
    except VendorOnlyError as reason:
        why = reason
    except PlanError as reason:
        if constraints.is_plan_required:
            raise
        why = VendorOnlyError(str(reason))
    refusal = ""
    if constraints.is_plan_required and constraints.plan != VENDOR and not isinstance(why, PlanIgnoredError):
        what = "a reproducible product" if constraints.reproducible else f"the plan {constraints.plan}"
        refusal = f"{what} cannot run here: {why}"
        refusal += f"; {VALID_TYPES_TEXT}" if constraints.reproducible and setting.dtype is None else ""
        if library.can_multiply_operands(a, b):
            raise PlanError(refusal)
    return PreparedCall(Decision(VENDOR, None, f"{library.name} multiplies: {why}"), setting, plan_refusal=refusal)


def _make_query(
    library: Library, setting: ProductSetting, a: object, b: object, out: object, constraints: PlanConstraints
) -> ProblemQuery:
    device = devices.get_device(library.processor, setting.device)
    nbytes = (
        default_workspace_bytes(library, setting.device) if constraints.workspace is None else constraints.workspace
    )
    growth = device.error_growth if constraints.error_growth is None else constraints.error_growth
    left, right = library.describe_operand(a), library.describe_operand(b)
    shape, result = product_shape(left.shape, right.shape), None
    if shape is not None and setting.dtype is not None and 0 not in (*left.shape, *right.shape):
        result = library.describe_result(a, b, shape, setting.dtype)
    target = None if out is None else library.describe_operand(out)
    componentwise = constraints.componentwise or is_componentwise_required()
    emulation, plan = setting.may_emulate and is_emulation_allowed(), constraints.plan
    if constraints.reproducible and setting.dtype is not None:
        plan = reproducible_plan("tf32" if setting.math == "tf32" else setting.dtype, constraints.error_growth)
    limits = Limits(nbytes, growth, emulation, componentwise, constraints.reproducible)
    extra = constraints.params, constraints.prepared_side, constraints.addend_strides
    return ProblemQuery(left, right, target, setting, device, limits, plan, result, *extra)


# ---- from a query to a prepared call

# Smallest number of rows for which fmm, and not NumPy, mirrors the triangle that BLAS computed. NumPy mirrors the
# triangle entry by entry, in one thread. fmm mirrors the triangle by tiles on all threads, and starting the threads
# takes time. (NumPy's time divided by fmm's time on two cores, in float64 and float32: 0.40 and 0.25 with 300 rows,
# 0.89 and 0.78 with 1200, 0.99 and 0.90 with 2000, 1.00 and 1.05 with 3000, 1.06 and 1.17 with 4096.)
TILED_MIRROR_MIN_ROWS = 3000
TILED_MIRROR_REASON = "b is a transposed in place: BLAS's syrk does half the work, and all threads write the mirror"
OUT_MISMATCH_REASON = "out has another shape or type than the product"


def prepare_query(query: ProblemQuery) -> PreparedCall:
    """Return the prepared call (plan, launches and memory needs) for the product that a ProblemQuery describes.

    A ProblemQuery holds the operands' shapes, types and layouts, the device, and the caller's limits. Raise
    VendorOnlyError if only the library can multiply these operands, and PlanError if the caller's plan cannot run.
    """
    return _prepare_as_gram(query) or _prepare_operation(query)


def _prepare_as_gram(query: ProblemQuery) -> PreparedCall | None:
    """Return the prepared call that computes one triangle of A A^T and mirrors it.

    Return None if the product of both triangles is faster, or if B is not a transposed view of A.
    """
    setting = query.setting
    if not setting.b_is_transposed_a or query.plan is not None or query.params != PLAIN:
        return None
    dtype = DTYPES.get(str(setting.dtype))
    # For complex A, A A^T is not its own adjoint, because B is not conjugated. For integers, BLAS has no syrk.
    if dtype is None or dtype.is_complex or dtype.exact:
        return None
    call = _prepare_operation(replace(query, params=GemmParams(op="gram")))
    problem = call.decision.problem
    if call.plan is None or problem is None:
        return None
    if call.plan == VENDOR and not _can_vendor_syrk_win(query, problem):
        return None
    if problem.batch_strides is not None:  # stacked_decisions has compared the triangles with complete products
        return call
    if not query.device.threads:
        return call if is_gram_faster(call.decision, call.limits, query.device) else None
    if call.plan == VENDOR:
        return replace(call, decision=replace(call.decision, reason=TILED_MIRROR_REASON))
    return call


def _can_vendor_syrk_win(query: ProblemQuery, problem: Problem) -> bool:
    """Return True if the vendor's syrk with fmm's mirror is faster than the library's own product.

    No vendor has syrk for 16-bit types. NumPy's product of A and A^T calls syrk, but mirrors the triangle in one
    thread.
    """
    has_syrk = problem.dtype in VENDOR.leaf_use.leaf.blas_triangles
    if query.device.threads:
        large = problem.m >= TILED_MIRROR_MIN_ROWS and problem.k >= MIN_PLAN_SIDE
        return has_syrk and bool(query.setting.vendor_advantage) and large
    return has_syrk


def _prepare_operation(query: ProblemQuery) -> PreparedCall:
    """Return the prepared call for the query's operation, which is a product or one triangle of a product."""
    result, on_host = _checked_result_operand(query), query.device.threads > 0
    dtype = "tf32" if query.setting.math == "tf32" else result.dtype
    # Operands that BLAS cannot read are copied. On a device the library copies a complete operand at once. On the host,
    # each matrix of an operand is copied into the workspace before the product that reads the matrix.
    work = matrices_of_call(query.a, query.b, query.out, result, dtype, not on_host, query.params)
    work = replace(work, problem=_problem_of_query(query, work))
    copied = work.copied_bytes(complete_operands=not on_host)
    limits = limits_for_operation(query.limits, work.problem.op, work.problem.dtype)
    limits = replace(limits, workspace=max(limits.workspace - copied, 0))
    decision, launches = _decide_stack(query, work, limits) or _decide_launches(query, work.problem, limits)
    call = PreparedCall(decision, query.setting, limits, query.device, shape=result.shape, dtype=result.dtype)
    if launches is not None:
        call = _call_with_launches(call, launches, work, query)
    elif on_host and (decision.plan != VENDOR or _needs_several_vendor_calls(query, work)):
        plan, problem = decision.plan, work.problem
        copies = copied if plan != VENDOR or problem.writes_triangle else 0
        params = problem.alpha, problem.beta, problem.op, problem.fill
        call = replace(call, workspace=plan_workspace_bytes(plan, *problem.size, problem.itemsize, *params) + copies)
    else:
        return call
    return replace(
        call,
        plan=decision.plan,
        result=result,
        packs=work.packs,
        writes_out=work.writes_out,
        flattens_stack=work.flattens_stack,
        spans=(byte_span(query.a), byte_span(query.b), byte_span(work.c)),
        copies=any(work.packs),
        call_bytes=call.workspace + (0 if on_host else copied),
    )


def _checked_result_operand(query: ProblemQuery) -> Operand:
    """Check the shapes and types of a query, and return the description of the result in a new array.

    Raise VendorOnlyError or PlanIgnoredError if fmm does not multiply these operands.
    """
    setting, shape = query.setting, product_shape(query.a.shape, query.b.shape)
    types = f"{query.a.dtype} and {query.b.dtype}"
    if shape is None:
        raise VendorOnlyError(f"shapes {tuple(query.a.shape)} and {tuple(query.b.shape)} do not match")
    if setting.dtype is None or setting.dtype not in DTYPES:
        raise VendorOnlyError(f"products of {types} have no plan")
    if DTYPES[setting.dtype].exact and query.params != PLAIN:
        raise VendorOnlyError(f"products of {types} other than matmul have no plan")
    if query.out is not None and query.out.shape != shape:
        raise (PlanIgnoredError if setting.casts_out else VendorOnlyError)(OUT_MISMATCH_REASON)
    if query.out is not None and query.out.dtype != setting.dtype and not setting.casts_out:
        raise VendorOnlyError(OUT_MISMATCH_REASON)
    if 0 in (*query.a.shape, *query.b.shape):
        raise PlanIgnoredError("there is nothing to multiply")
    return query.result or contiguous_operand(shape, setting.dtype)


def _problem_of_query(query: ProblemQuery, work: CallMatrices) -> Problem:
    problem, side = work.problem, query.prepared_side
    if query.addend_strides is not None:
        problem = replace(problem, addend_strides=(query.addend_strides[-2], query.addend_strides[-1]))
    if problem.writes_triangle or problem.element_type.exact or not (side or query.limits.componentwise):
        return problem
    usable = side is not None and side.matches_operand_of_problem(problem) and not work.packs["AB".index(side.base)]
    base = side.base if side is not None and usable and not query.limits.componentwise else None
    return replace(problem, componentwise=query.limits.componentwise, prepared_side=base)


def _needs_several_vendor_calls(query: ProblemQuery, work: CallMatrices) -> bool:
    """Return True if the vendor's product needs more than one call of the library's own function."""
    problem, setting = work.problem, query.setting
    # For a small matrix and its transposed view, NumPy's own product calls syrk and mirrors the triangle.
    is_numpy_gram = setting.b_is_transposed_a and bool(setting.vendor_advantage) and problem.m < TILED_MIRROR_MIN_ROWS
    is_numpy_gram = is_numpy_gram and query.params == GemmParams(op=query.params.op)
    needs_triangle = problem.writes_triangle and not is_numpy_gram
    return needs_triangle or problem.has_factors or (work.flattens_stack and not setting.flattens_stacks)


# ---- the plan and its launches

# Part of a decision's reason: what fmm does about overflow, inf and NaN on the host (True) and on a device (False).
NONFINITE_HANDLING_TEXTS = {
    True: "NumPy multiplies if numbers may overflow or are not finite, or if NumPy is set to report underflow",
    False: "if the result has inf or NaN, it is computed again in the classical order",
}


def _decide_launches(query: ProblemQuery, problem: Problem, limits: Limits) -> tuple[Decision, LaunchList | None]:
    """Return the decision and its launches; skip plans with launches that need more workspace than the limit."""
    device = query.device
    if query.plan is not None:
        return _decide_required_plan(query.plan, problem, limits, device)
    if query.setting.vendor_advantage and not problem.writes_triangle:
        return Decision(VENDOR, problem, query.setting.vendor_advantage), None
    first = decide_plan(problem, limits, device)
    if first.plan == VENDOR and query.setting.no_vendor_product:
        first = decide_without_vendor(first, limits, device)
    if device.chip is None:
        return _decide_within_workspace(first, problem, limits, device), None
    if first.plan == VENDOR and not problem.writes_triangle:
        return first, None
    for plan in (first.plan, *next_winning_plans(problem, first.plan, limits, device)):
        launches = launches_on_device(plan, problem, device, False)
        if launches is None or launches.workspace > limits.workspace:
            continue
        if plan == first.plan:
            return first, launches
        why = (
            f"{first.plan} was chosen first, but cannot run on these arrays within the limits; the model's next choice"
        )
        return replace(first, plan=plan, reason=why, trial=None), launches
    return first, None


def _decide_within_workspace(first: Decision, problem: Problem, limits: Limits, device: Device) -> Decision:
    """Return the decision `first`, or another one if its plan needs more workspace than the limit.

    The workspace of candidates is counted for alpha = 1 and beta = 0. With other factors, a plan can need memory for
    the product besides C.
    """
    if first.plan == VENDOR or not problem.has_factors or peak_workspace(first.plan, problem) <= limits.workspace:
        return first
    others = next_winning_plans(problem, first.plan, limits, device)
    plan = next((x for x in others if peak_workspace(x, problem) <= limits.workspace), VENDOR)
    why = f"with alpha and beta, {first.plan} needs more workspace than the limit; the model's next choice"
    return replace(first, plan=plan, reason=why, trial=None)


def _decide_stack(query: ProblemQuery, work: CallMatrices, limits: Limits) -> tuple[Decision, LaunchList | None] | None:
    """Return the decision and the launches that several products of a stack share.

    Return None if each product of the stack has launches of its own.
    """
    chip, count = query.device.chip, work.product_count
    if query.plan is not None or chip is None or count == 1 or any(work.packs):
        return None
    strides = work.batch_strides() if is_stackable(work.problem, limits) else None
    if strides is None:
        return None
    problem = replace(work.problem, batch=count, batch_strides=strides)
    single = decide_plan(work.problem, limits, query.device)
    for decision in stacked_decisions(problem, single, limits, query.device):
        if decision.plan == VENDOR or decision.problem is None:
            return decision, None
        launches = launches_on_device(decision.plan, decision.problem, query.device, False)
        if launches is not None and launches.workspace <= limits.workspace:
            return decision, launches
    return None


def _decide_required_plan(
    plan: Plan, problem: Problem, limits: Limits, device: Device
) -> tuple[Decision, LaunchList | None]:
    """Return the decision for the plan that the caller passed, and its launches.

    Raise PlanError if the plan cannot run, if it lacks a componentwise error bound that the caller requires, or if a
    reproducible plan would call the vendor's kernels on this GPU.
    """
    on_host = device.threads > 0
    check_plan_is_runnable(plan, problem, on_host)
    if limits.componentwise and not (has_componentwise_bound(plan) and (limits.emulation or not plan.uses_emulation)):
        raise PlanError(f"the plan {plan} does not bound each entry's error, as componentwise=True requires")
    unless = "" if plan == VENDOR else f"; {NONFINITE_HANDLING_TEXTS[on_host]}"
    model = calibration_in_force(problem, limits, replace(device, probe=None))  # a plan that was passed needs no probe
    why = "reproducible=True: the same bits on every device" if limits.reproducible else "this plan was passed"
    decision = Decision(plan, problem, f"{why}{unless}", on_cpu=on_host, calibration=model)
    launches = launches_on_device(plan, problem, device, True)
    if limits.reproducible and launches is not None and not any(x.does == "product" for x in launches.launches):
        raise PlanError(f"a reproducible product cannot run on this GPU: {launches.step_labels()[0]}")
    return decision, launches


def launches_on_device(plan: Plan, problem: Problem, device: Device, required: bool) -> LaunchList | None:
    """Return the plan's launches on a device; None on the host, and if the vendor must multiply.

    `required`: True if the caller passed the plan. If a required plan cannot run, raise PlanError.
    """
    chip = chip_with_tuned_block_model(device)
    if (plan == VENDOR and not problem.writes_triangle and not problem.has_factors) or chip is None:
        return None
    from fmm.kernels.cuda.record import record_launches

    try:
        launches = record_launches(plan, problem, chip_target(chip, flagged=may_create_nonfinite(plan)))
    except PlanError:
        if required:
            raise
        return None  # the parameters of a launch cannot hold all submatrices of a sum
    emulates = plan.leaf_use.leaf.emulates
    if not required and emulates and not any(x.does == "product" for x in launches.launches):
        return None  # on this GPU the leaf calls the vendor for this problem
    # fmm's own kernels are slower if rows are unaligned. The predicted time includes the slowdown by unaligned rows
    # only if contiguous arrays of the same sizes have unaligned rows too. If the rows are unaligned only because an
    # operand is a view, the predicted time is wrong, so no plan is used.
    is_predicted = not are_rows_aligned(reduced_problem(problem), plan.leaf_use.leaf.alignment)
    return launches if required or launches.has_vector_access or is_predicted else None


def launches_at_addresses(call: PreparedCall, a: int | None, b: int | None, c: int | None) -> LaunchList:
    """Return a call's launches on a device for these addresses of A, B and C; None for an array not yet allocated."""
    from fmm.kernels.cuda.record import record_launches

    assert call.launches is not None and call.device is not None and call.device.chip is not None
    x, y, z = (0 if at is None else at + by for at, by in zip((a, b, c), call.offsets[0], strict=True))
    plan, problem = call.launches.plan, call.launches.problem
    chip = chip_with_tuned_block_model(call.device) or call.device.chip
    return record_launches(
        plan, problem, chip_target(chip, address_alignment(x, y, z, 0), flagged=may_create_nonfinite(plan))
    )


# Largest number of recorded operations, and of multiply-adds (about 3 ms), in a call that is captured as a CUDA graph.
# A graph shortens the gaps between launches, and the gaps matter only if the launches are short.
MAX_GRAPH_OPS, MAX_GRAPH_MULTIPLY_ADDS = 64, 1 << 36


def _call_with_launches(
    call: PreparedCall, launches: LaunchList, work: CallMatrices, query: ProblemQuery
) -> PreparedCall:
    # imported here, so programs without a GPU do not load the module
    from fmm.kernels.cuda.record import record_operations

    offsets = work.product_offsets()[:: launches.problem.batch]  # the first product of each launch
    ops = len(offsets) * len(record_operations(launches.plan, launches.problem).ops)
    is_short = ops <= MAX_GRAPH_OPS and work.product_count * prod(work.problem.size) <= MAX_GRAPH_MULTIPLY_ADDS
    several = len(offsets) * len(launches.steps) > 1
    with_graph = cublas_scratch_offset(launches) + GRAPH_SCRATCH_BYTES * launches.vendor_stream_count
    uses_graph = several and launches.stream_count == 1 and is_short and with_graph <= call.limits.workspace
    # While a graph is captured, cuBLAS cannot allocate the memory that its own emulation needs.
    uses_graph = uses_graph and not launches.needs_emulation_mode
    return replace(
        call,
        launches=launches,
        offsets=offsets,
        addend_offsets=() if query.addend_strides is None else work.addend_offsets(query.addend_strides),
        workspace=with_graph if uses_graph else launches.workspace,
        uses_graph=uses_graph,
    )


def cublas_scratch_offset(launches: LaunchList) -> int:
    """Return the byte offset at which cuBLAS's own workspace begins in the workspace of a call captured as a graph."""
    return -(-launches.workspace // 256) * 256
