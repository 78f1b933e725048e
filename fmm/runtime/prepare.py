"""What is asked of one product, as a library says it of its arrays; and the call, made ready, that answers it."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import Any, NamedTuple

from fmm.arrays.library import Library, Operand, Setting, Span, contiguous, product_shape
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.config.files import current_settings
from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.target import alignment_of
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.workspace import GRAPH_SCRATCH, workspace
from fmm.perfmodel.block_model import chip_target
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.stability import has_entrywise_bound
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem, without_layouts
from fmm.runtime import devices
from fmm.runtime.decisions.decide import (
    Decision,
    check_runnable,
    decide_plan,
    decide_without_vendor,
    is_gram_faster,
    next_plans,
)
from fmm.runtime.decisions.early_declines import SMALLEST_SIDE
from fmm.runtime.decisions.limits import (
    GramKey,
    PlanConstraints,
    PreparedSide,
    default_workspace_bytes,
    workspace_valid_until,
)
from fmm.runtime.devices import Device, tuned_chip
from fmm.runtime.operands import (
    LibraryAnswersError,
    Matrices,
    NotOursError,
    Offsets,
    arranged_matrices,
    byte_span,
    spans_meet,
)

NO_LIMITS = Limits(0)


@dataclass(frozen=True)
class PreparedCall:
    """A call made ready. If no plan runs it is the library's own product.

    It holds nothing that changes, so threads and streams share it; the result and the workspace come from the library's
    own memory at each call.
    """

    decision: Decision
    setting: Setting
    limits: Limits = NO_LIMITS
    device: Device | None = None
    plan: Plan | None = None  # what runs; None: the library's own product
    launches: LaunchList | None = None  # on a device
    shape: tuple[int, ...] = ()
    dtype: str = ""
    result: Operand | None = None  # what the product is like, if it is a new array
    packs: tuple[bool, bool] = (False, False)  # are A, B copied, because BLAS cannot read them as they are?
    direct: bool = False  # the plan may write into `out`, unless that overlaps an operand
    flattens_stack: bool = False  # is a stack multiplied by one matrix, all rows at once?
    offsets: tuple[Offsets, ...] = ()  # of A, B and C in bytes, one product each; on a device
    addend_offsets: tuple[int, ...] = ()  # the same of what is added, where C does not hold it
    spans: tuple[Span | None, Span | None, Span | None] = (None, None, None)
    copies: bool = False  # is anything packed?
    workspace: int = 0  # bytes
    uses_graph: bool = False  # worth capturing as a graph, once it has come again and again
    plan_refusal: str = ""  # why a plan that was given cannot run, if the library seems to reject the call itself

    def overlap(self, a: int, b: int, c: int) -> bool:
        """With these pointers, may C share memory with an operand?"""
        return spans_meet(a, self.spans[0], c, self.spans[2]) or spans_meet(b, self.spans[1], c, self.spans[2])


@dataclass(frozen=True)
class ProblemQuery:
    """What is asked: the product of two arrays, a place for it, and what the caller allows."""

    a: Operand
    b: Operand
    out: Operand | None
    setting: Setting
    device: Device
    limits: Limits
    plan: Plan | None = None
    result: Operand | None = None  # the product as a new array; None: without gaps, its last axis contiguous
    asked: Asked = PLAIN
    kept: PreparedSide | None = None
    added: tuple[int, ...] | None = None  # strides of what is added, in elements, where that is not what C holds


RECURRING_OPS, RECURRING_WORK = 64, 1 << 36  # sums and products, multiply-adds


def prepare_query(asked: ProblemQuery) -> PreparedCall:
    """The call that answers it; NotOursError where only the library can, PlanError where a given plan cannot run."""
    return _as_gram(asked) or _answered(asked)


def _as_gram(asked: ProblemQuery) -> PreparedCall | None:
    """The call for a product of a matrix and its transpose in place, if it is faster to compute one half.

    NumPy's own product does so too; those of other libraries do not.
    """
    setting = asked.setting
    if not setting.adjoint or asked.plan is not None or asked.asked != PLAIN:
        return None
    row = DTYPES.get(str(setting.dtype))
    if row is None or row.is_complex or row.exact:  # the adjoint of complex ones is conjugated, too
        return None
    call = _answered(replace(asked, asked=Asked(op="gram")))
    problem = call.decision.problem
    if call.plan is None or problem is None or (call.plan == VENDOR and not _vendor_has_half(asked, problem)):
        return None
    if asked.device.threads:
        own = call.plan == VENDOR
        return replace(call, decision=replace(call.decision, reason=MIRRORED_BY_US)) if own else call
    return call if is_gram_faster(call.decision, call.limits, asked.device) else None


MIRRORED_BY_US = "b is a transposed in place: BLAS's syrk does half the work, and all threads write the mirror"


def _vendor_has_half(asked: ProblemQuery, problem: Problem) -> bool:
    """Is there a function of the vendor's that a library's own product does not call? Of 16-bit types there is none, so
    that a half would be a whole product and a pass besides. NumPy's product calls it, and mirrors by itself."""
    ranks = problem.dtype in VENDOR.leaf_use.leaf.halves.by_blas
    if asked.device.threads:
        large = problem.m >= LEAST_MIRRORED and problem.k >= SMALLEST_SIDE  # a shorter inner side is NumPy's unasked
        return ranks and bool(asked.setting.vendor_advantage) and large
    return ranks


# NumPy mirrors the half that BLAS computed number by number, in one thread; we do it in tiles, in all threads, which
# costs more to begin. Two cores, NumPy's time over ours, float64 and float32: 0.40 and 0.25 with 300 rows, 0.89 and
# 0.78 with 1200, 0.99 and 0.90 with 2000, 1.00 and 1.05 with 3000, 1.06 and 1.17 with 4096; 1.07 with 8192 (float64).
LEAST_MIRRORED = 3000


def _answered(asked: ProblemQuery) -> PreparedCall:
    """The call for just what is asked."""
    result, on_host = _checked(asked), asked.device.threads > 0
    kind = "tf32" if asked.setting.math == "tf32" else result.dtype
    # A device's library copies an operand as a whole; on the host matrix after matrix is copied into the workspace.
    work = arranged_matrices(asked.a, asked.b, asked.out, result, kind, not on_host, asked.asked)
    work = replace(work, problem=_as_asked(asked, work))
    copied = work.copied_bytes(whole=not on_host)
    limits = _limits_left(asked.limits, work.problem, copied)
    decision, launches = _decided(asked, work.problem, limits)
    call = PreparedCall(decision, asked.setting, limits, asked.device, shape=result.shape, dtype=result.dtype)
    if launches is not None:
        call = _on_device(call, launches, work, asked)
    elif on_host and (decision.plan != VENDOR or _not_the_librarys(asked, work)):
        call = _on_host(call, work, copied)
    else:
        return call
    return replace(
        call,
        plan=decision.plan,
        result=result,
        packs=work.packs,
        direct=work.direct,
        flattens_stack=work.flattens_stack,
        spans=(byte_span(asked.a), byte_span(asked.b), byte_span(work.c)),
        copies=any(work.packs),
    )


def _limits_left(limits: Limits, problem: Problem, copied: int) -> Limits:
    """Beside so many bytes of copies. Integers are exact; halves are not checked, so what has to be is not for them."""
    componentwise = limits.componentwise and not problem.type.exact
    emulation = limits.emulation and not (componentwise and problem.writes_triangle)
    room = max(limits.workspace - copied, 0)
    return replace(limits, workspace=room, emulation=emulation, componentwise=componentwise)


def _as_asked(asked: ProblemQuery, work: Matrices) -> Problem:
    """The problem, with what is asked of its error, and with what is kept of an operand that is read in place."""
    problem, kept = work.problem, asked.kept
    if asked.added is not None:
        problem = replace(problem, addend_strides=(asked.added[-2], asked.added[-1]))
    if problem.writes_triangle or problem.type.exact or not (kept or asked.limits.componentwise):
        return problem
    usable = kept is not None and kept.is_of(problem) and not work.packs["AB".index(kept.base)]
    base = kept.base if kept is not None and usable and not asked.limits.componentwise else None
    return replace(problem, componentwise=asked.limits.componentwise, prepared_side=base)


def _not_the_librarys(asked: ProblemQuery, work: Matrices) -> bool:
    """Is it no product that the library has? A stack times one matrix is a single product for the vendor too, where its
    library does not see that."""
    writes_triangle = work.problem.writes_triangle and not _is_numpys_half(asked, work.problem)
    return writes_triangle or work.problem.updates or (work.flattens_stack and not asked.setting.flattens_stacks)


def _is_numpys_half(asked: ProblemQuery, problem: Problem) -> bool:
    """Is it just what NumPy's product of a small matrix and its transpose in place computes?"""
    numpys = asked.setting.adjoint and bool(asked.setting.vendor_advantage)
    return numpys and asked.asked == Asked(op=asked.asked.op) and problem.m < LEAST_MIRRORED


def _on_host(call: PreparedCall, work: Matrices, copied: int) -> PreparedCall:
    """What a call on the host needs of memory: for its plan, and for the copies of operands that BLAS cannot read."""
    plan, problem = call.decision.plan, work.problem
    copies = copied if plan != VENDOR or problem.writes_triangle else 0
    asked = problem.alpha, problem.beta, problem.op, problem.fill
    return replace(call, workspace=workspace(plan, *problem.size, problem.itemsize, *asked) + copies)


def _on_device(call: PreparedCall, launches: LaunchList, work: Matrices, asked: ProblemQuery) -> PreparedCall:
    """What a call on a device has besides: launches, addresses and memory."""
    vendors = GRAPH_SCRATCH * launches.vendor_stream_count
    uses_graph = _recurs(launches, work) and cublas_scratch(launches) + vendors <= call.limits.workspace
    needed = cublas_scratch(launches) + vendors if uses_graph else launches.workspace
    added = work.addend_offsets(asked.added) if asked.added is not None else ()
    found = replace(call, launches=launches, offsets=work.offsets(), workspace=needed, uses_graph=uses_graph)
    return replace(found, addend_offsets=added)


def _recurs(launches: LaunchList, work: Matrices) -> bool:
    """Would a graph start noticeably earlier than its launches? Few of them but more than one, the vendor's calls among
    them, of about 3 milliseconds at most."""
    from fmm.kernels.cuda.record import record_operations  # a program without a GPU need not load it

    ops = work.count * len(record_operations(launches.plan, launches.problem).ops)
    multiply_adds = work.count * prod(work.problem.size)
    several = work.count * len(launches.steps) > 1
    return several and launches.stream_count == 1 and ops <= RECURRING_OPS and multiply_adds <= RECURRING_WORK


def cublas_scratch(launches: LaunchList) -> int:
    """Where cuBLAS's own memory begins in the workspace of a call that may be captured."""
    return -(-launches.workspace // 256) * 256


def _checked(asked: ProblemQuery) -> Operand:
    """The product as a new array, of what can be multiplied."""
    setting, shape = asked.setting, product_shape(asked.a.shape, asked.b.shape)
    if shape is None:
        raise NotOursError(f"shapes {tuple(asked.a.shape)} and {tuple(asked.b.shape)} do not match")
    if setting.dtype is None or setting.dtype not in DTYPES:
        raise NotOursError(f"products of {asked.a.dtype} and {asked.b.dtype} are its own")
    if DTYPES[setting.dtype].exact and asked.asked != PLAIN:
        raise NotOursError(f"products of {asked.a.dtype} and {asked.b.dtype} besides matmul are its own")
    if asked.out is not None and asked.out.shape != shape:
        raise (LibraryAnswersError if setting.casts_out else NotOursError)(OTHER_OUT)
    if asked.out is not None and asked.out.dtype != setting.dtype and not setting.casts_out:
        raise NotOursError(OTHER_OUT)
    if 0 in (*asked.a.shape, *asked.b.shape):
        raise LibraryAnswersError("there is nothing to multiply")
    return asked.result or contiguous(shape, setting.dtype)


OTHER_OUT = "out has another shape or type than the product"


# ---- the plan


def _decided(asked: ProblemQuery, problem: Problem, limits: Limits) -> tuple[Decision, LaunchList | None]:
    """The plan and its launches. What these take counts, should it be more than the model thought."""
    device = asked.device
    if asked.plan is not None:
        check_runnable(asked.plan, problem, device.threads > 0)
        checked = has_entrywise_bound(asked.plan) and (limits.emulation or not asked.plan.emulates)
        if limits.componentwise and not checked:
            raise PlanError(f"the plan {asked.plan} bounds no error entry by entry, as componentwise asks")
        unless = "" if asked.plan == VENDOR else f"; {INSTEAD_OF_GIVEN[device.threads > 0]}"
        given = Decision(asked.plan, problem, f"this plan was given{unless}", on_cpu=device.threads > 0)
        return given, launches_on(asked.plan, problem, device, True)
    if asked.setting.vendor_advantage and not problem.writes_triangle:
        return Decision(VENDOR, problem, asked.setting.vendor_advantage), None
    first = decide_plan(problem, limits, device)
    if first.plan == VENDOR and asked.setting.lacking:
        first = decide_without_vendor(first, limits, device)
    if device.chip is None or (first.plan == VENDOR and not problem.writes_triangle):
        return first, None
    for plan in (first.plan, *next_plans(problem, first.plan, limits, device)):
        launches = launches_on(plan, problem, device, False)
        if launches is not None and launches.workspace <= limits.workspace:
            return (first if plan == first.plan else _second_choice(first, plan)), launches
    return first, None


# Whatever the plan, inf and NaN stand where the vendor has them: what answers where it alone cannot.
INSTEAD_OF_GIVEN = {
    True: "where numbers may overflow or are not finite, and where NumPy is set to report underflow, NumPy multiplies",
    False: "where the result has inf or NaN, it is computed again in the classical order",
}


def _second_choice(first: Decision, plan: Plan) -> Decision:
    """The next plan, where the first one's kernels cannot read arrays that lie like these, or want more workspace."""
    why = f"{first.plan} was chosen first, but cannot run on these arrays within the limits; the model's next choice"
    return Decision(plan, first.problem, why, first.candidates, first.source, on_cpu=first.on_cpu)


def launches_at(call: PreparedCall, a: int | None, b: int | None, c: int | None) -> LaunchList:
    """The launches of a device's call for A, B and C at these addresses; None: where the library allocates."""
    from fmm.kernels.cuda.record import record_launches

    assert call.launches is not None and call.device is not None and call.device.chip is not None
    x, y, z = (0 if at is None else at + by for at, by in zip((a, b, c), call.offsets[0], strict=True))
    plan, problem = call.launches.plan, call.launches.problem
    chip = tuned_chip(call.device) or call.device.chip
    return record_launches(
        plan, problem, chip_target(chip, alignment_of(x, y, z, 0), flagged=may_create_nonfinite(plan))
    )


def launches_on(plan: Plan, problem: Problem, device: Device, given: bool) -> LaunchList | None:
    """A plan's launches on a device; None where the vendor multiplies, and on the host."""
    chip = tuned_chip(device)
    if (plan == VENDOR and not problem.writes_triangle and not problem.updates) or chip is None:
        return None
    from fmm.kernels.cuda.record import record_launches

    try:
        launches = record_launches(plan, problem, chip_target(chip, flagged=may_create_nonfinite(plan)))
    except PlanError:
        if given:
            raise
        return None  # a sum of more blocks than a launch can name
    if not given and plan.leaf_use.leaf.error.emulates and not any(x.does == "product" for x in launches.launches):
        return None  # on this chip the leaf does not multiply such a problem, and the vendor would
    # On lines that are not aligned our own kernel is slower: whoever chose it knew so of arrays without gaps, but not
    # of other views.
    known = not are_rows_aligned(without_layouts(problem), plan.leaf_use.leaf.candidacy.alignment)
    return launches if given or launches.reads_aligned or known else None


CALLS = 4096  # prepare_call calls that a library keeps


class CachedCall(NamedTuple):
    """A prepare_call call, until when it is good, and under which share of the free memory it was made."""

    call: PreparedCall
    until: float
    share: int = 0


def writes_there(library: Library, call: PreparedCall, a: object, b: object, out: object) -> bool:
    """Can the call's plan write into `out` itself?"""
    return call.direct and not call.overlap(*(library.pointer(x) for x in (a, b, out)))


def plan_call(library: Library, a: object, b: object, out: object, constraints: PlanConstraints) -> PreparedCall:
    """Decide a call. PlanError if the caller's plan cannot run; what the library rejects is left to it."""
    setting = library.setting(a, b, out)
    why: NotOursError
    try:
        if setting.refusal:
            raise (LibraryAnswersError if setting.refuses_plans else NotOursError)(setting.refusal)
        return prepare_query(_query_of_arrays(library, setting, a, b, out, constraints))
    except NotOursError as reason:
        why = reason
    except PlanError as reason:
        if constraints.plan_required:
            raise
        why = NotOursError(str(reason))
    refused = ""
    if constraints.plan_required and constraints.plan != VENDOR and not isinstance(why, LibraryAnswersError):
        refused = f"the plan {constraints.plan} cannot run here: {why}"
        if library.accepts_operands(a, b):
            raise PlanError(refused)
    return PreparedCall(Decision(VENDOR, None, f"{library.name} answers: {why}"), setting, plan_refusal=refused)


def _query_of_arrays(
    library: Library, setting: Setting, a: object, b: object, out: object, constraints: PlanConstraints
) -> ProblemQuery:
    device = devices.get_device(library.processor, setting.device)
    free = default_workspace_bytes(library, setting.device) if constraints.workspace is None else constraints.workspace
    growth = device.error_growth if constraints.error_growth is None else constraints.error_growth
    left, right = library.operand(a), library.operand(b)
    shape, result = product_shape(left.shape, right.shape), None
    if shape is not None and setting.dtype is not None and 0 not in (*left.shape, *right.shape):
        result = library.result_operand(a, b, shape, setting.dtype)
    target = None if out is None else library.operand(out)
    componentwise = constraints.componentwise or is_componentwise_required()
    limits = Limits(free, growth, setting.emulation and is_emulation_allowed(), componentwise)
    more = constraints.asked, constraints.kept, constraints.added
    return ProblemQuery(left, right, target, setting, device, limits, constraints.plan, result, *more)


# ---- kept


Ask = Callable[[Library, Any, Any, Any, Any], PreparedCall]


def prepare_call(
    library: Library, a: object, b: object, out: object, constraints: PlanConstraints | GramKey, ask: Ask = plan_call
) -> PreparedCall:
    """The call made ready, as it was for one like it under the same settings, if there was one.

    Without b it is the call for a matrix and its own transpose; `ask` makes it ready the first time.
    """
    found = library.call_key(a, b, out)
    if found is None:
        return ask(library, a, b, out, constraints)
    key = constraints, found, current_settings()
    kept = library.calls.get(key)
    if kept is None or kept.until < time.monotonic():
        kept = _cached(library, key, a, b, out, constraints, ask)
    call: PreparedCall = kept.call
    return call


def _cached(
    library: Library, key: Hashable, a: object, b: object, out: object, constraints: PlanConstraints | GramKey, ask: Ask
) -> CachedCall:
    """A call to be kept. Without a limit of the caller's it is good for as long as the free memory is known."""
    known: CachedCall | None = library.calls.get(key)
    if constraints.workspace is not None:
        kept = CachedCall(ask(library, a, b, out, constraints), inf)
    else:
        number = library.device_number(a)
        share = default_workspace_bytes(library, number)
        if known is None or known.share != share:
            call = ask(library, a, b, out, constraints)
            call = known.call if known is not None and _launches_alike(call, known.call) else call
        else:
            call = known.call
        kept = CachedCall(call, workspace_valid_until(library, number), share)
    if len(library.calls) >= CALLS:
        library.calls.clear()
    library.calls[key] = kept
    return kept


def _launches_alike(call: PreparedCall, known: PreparedCall) -> bool:
    """Does a device do the same for both calls, of other limits? Then the known one goes on: what stands ready for it,
    and the graphs it is replayed as, are its own."""
    same = replace(call, decision=known.decision, limits=known.limits) == known
    return same and call.launches is not None and call.decision.trial is known.decision.trial
