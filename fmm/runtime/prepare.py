"""A call made ready: what is decided, which matrices it multiplies, and on a device the list of launches that does it.

`prepared` asks the library and keeps what it made for the next call like it; `answer_question` is a pure function of
what the library said: it touches no array and no device.
"""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import dataclass, replace
from math import inf, prod
from typing import NamedTuple

from fmm.arrays.library import Library, Operand, Setting, Span, contiguous, product_shape
from fmm.config.environment import componentwise_wanted, emulation_allowed
from fmm.config.files import circumstances
from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.recompute import may_differ
from fmm.kernels.cuda.record import record_launches, record_operations
from fmm.kernels.cuda.select import alignment_of
from fmm.kernels.plans.level_steps import PLAIN, Asked
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import GRAPH_SCRATCH, workspace
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.stability import bounds_entries
from fmm.perfmodel.tile_choice import target_on
from fmm.perfmodel.work import rows_aligned
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decide import (
    Decision,
    check_runnable,
    decide,
    faster_as_half,
    only_choice,
    other_plans,
    without_layouts,
)
from fmm.runtime.devices import Device, chip_as_tuned
from fmm.runtime.limits import Kept, Wishes, good_until, memory_share
from fmm.runtime.operands import (
    LibraryAnswersError,
    Matrices,
    NotOursError,
    Offsets,
    arranged_matrices,
    byte_span,
    spans_meet,
)

RECURRING_OPS, RECURRING_WORK = 64, 1 << 36  # sums and products, multiply-adds
CALLS = 4096  # prepared calls that a library keeps
NO_LIMITS = Limits(0)


@dataclass(frozen=True)
class Call:
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
    folds: bool = False  # is a stack multiplied by one matrix, all rows at once?
    offsets: tuple[Offsets, ...] = ()  # of A, B and C in bytes, one product each; on a device
    spans: tuple[Span | None, Span | None, Span | None] = (None, None, None)
    copies: bool = False  # is anything packed?
    workspace: int = 0  # bytes
    recurs: bool = False  # worth capturing as a graph, once it has come again and again
    refused_plan: str = ""  # why a plan that was given cannot run, if the library seems to reject the call itself

    def overlap(self, a: int, b: int, c: int) -> bool:
        """With these pointers, may C share memory with an operand?"""
        return spans_meet(a, self.spans[0], c, self.spans[2]) or spans_meet(b, self.spans[1], c, self.spans[2])


# ---- asking the library


class KeptCall(NamedTuple):
    """A prepared call, until when it is good, and under which share of the free memory it was made."""

    call: Call
    until: float
    share: int = 0


def prepared(library: Library, a: object, b: object, out: object, wishes: Wishes) -> Call:
    """The call made ready, as it was for one like it under the same settings, if there was one."""
    found = library.call_key(a, b, out)
    if found is None:
        return prepare(library, a, b, out, wishes)
    key = wishes, found, circumstances()
    kept = library.calls.get(key)
    if kept is None or kept.until < time.monotonic():
        kept = _kept(library, key, a, b, out, wishes)
    call: Call = kept.call
    return call


def writes_there(library: Library, call: Call, a: object, b: object, out: object) -> bool:
    """Can the call's plan write into `out` itself?"""
    return call.direct and not call.overlap(*(library.pointer(x) for x in (a, b, out)))


def _kept(library: Library, key: Hashable, a: object, b: object, out: object, wishes: Wishes) -> KeptCall:
    """A call to be kept. Without a limit of the caller's it is good for as long as the free memory is known."""
    known: KeptCall | None = library.calls.get(key)
    if wishes.workspace is not None:
        kept = KeptCall(prepare(library, a, b, out, wishes), inf)
    else:
        number = library.device_number(a)
        share = memory_share(library, number)
        same = known is not None and known.share == share
        call = known.call if same and known else prepare(library, a, b, out, wishes)
        kept = KeptCall(call, good_until(library, number), share)
    if len(library.calls) >= CALLS:
        library.calls.clear()
    library.calls[key] = kept
    return kept


def prepare(library: Library, a: object, b: object, out: object, wishes: Wishes) -> Call:
    """Decide a call. PlanError if the caller's plan cannot run; what the library rejects is left to it."""
    setting = library.setting(a, b, out)
    why: NotOursError
    try:
        if setting.refusal:
            raise (LibraryAnswersError if setting.even_with_plan else NotOursError)(setting.refusal)
        return answer_question(_question(library, setting, a, b, out, wishes))
    except NotOursError as reason:
        why = reason
    except PlanError as reason:
        if wishes.insists:
            raise
        why = NotOursError(str(reason))
    refused = ""
    if wishes.insists and wishes.plan != VENDOR and not isinstance(why, LibraryAnswersError):
        refused = f"the plan {wishes.plan} cannot run here: {why}"
        if library.accepts(a, b):
            raise PlanError(refused)
    return Call(Decision(VENDOR, None, f"{library.name} answers: {why}"), setting, refused_plan=refused)


# ---- what a call comes to


@dataclass(frozen=True)
class Question:
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
    kept: Kept | None = None


def _question(library: Library, setting: Setting, a: object, b: object, out: object, wishes: Wishes) -> Question:
    device = devices.device_of(library.processor, setting.device)
    free = memory_share(library, setting.device) if wishes.workspace is None else wishes.workspace
    growth = device.error_growth if wishes.error_growth is None else wishes.error_growth
    left, right = library.operand(a), library.operand(b)
    shape, result = product_shape(left.shape, right.shape), None
    if shape is not None and setting.dtype is not None and 0 not in (*left.shape, *right.shape):
        result = library.result_operand(a, b, shape, setting.dtype)
    target = None if out is None else library.operand(out)
    componentwise = wishes.componentwise or componentwise_wanted()
    limits = Limits(free, growth, setting.emulation and emulation_allowed(), componentwise)
    return Question(left, right, target, setting, device, limits, wishes.plan, result, wishes.asked, wishes.kept)


def answer_question(asked: Question) -> Call:
    """The call that answers it; NotOursError where only the library can, PlanError where a given plan cannot run."""
    return _as_gram(asked) or _answered(asked)


def _as_gram(asked: Question) -> Call | None:
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
    worth = asked.device.threads or faster_as_half(call.decision, call.limits, asked.device)
    return call if worth else None


def _vendor_has_half(asked: Question, problem: Problem) -> bool:
    """Is there a function of the vendor's that a library's own product does not call? NumPy's product does; of 16-bit
    types there is none, so that a half would be a whole product and a pass besides."""
    ranks = problem.dtype in VENDOR.leaf_use.leaf.rank_updates
    return not asked.device.threads and ranks and problem.k >= LEAST_OF_RANK


# The vendor's functions for halves are slow where the inner side is short: on an H200, that of float32 took 2.2 and 2.4
# times as long as its product with 170 and 72 (3020 and 3932 rows); that of float64 was 1.4 times as fast with 355.
LEAST_OF_RANK = 256


def _answered(asked: Question) -> Call:
    """The call for just what is asked."""
    result, on_host = _checked(asked), asked.device.threads > 0
    kind = "tf32" if asked.setting.math == "tf32" else result.dtype
    # A device's library copies an operand as a whole; on the host matrix after matrix is copied into the workspace.
    work = arranged_matrices(asked.a, asked.b, asked.out, result, kind, not on_host, asked.asked)
    work = replace(work, problem=_as_asked(asked, work))
    copied = work.copied_bytes(whole=not on_host)
    limits = _limits_left(asked.limits, work.problem, copied)
    decision, launches = _decided(asked, work.problem, limits)
    call = Call(decision, asked.setting, limits, asked.device, shape=result.shape, dtype=result.dtype)
    if launches is not None:
        call = _on_device(call, launches, work)
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
        folds=work.folds,
        spans=(byte_span(asked.a), byte_span(asked.b), byte_span(work.c)),
        copies=any(work.packs),
    )


def _limits_left(limits: Limits, problem: Problem, copied: int) -> Limits:
    """Beside so many bytes of copies. Integers are exact; halves are not checked, so what has to be is not for them."""
    componentwise = limits.componentwise and not problem.type.exact
    emulation = limits.emulation and not (componentwise and problem.halved)
    room = max(limits.workspace - copied, 0)
    return replace(limits, workspace=room, emulation=emulation, componentwise=componentwise)


def _as_asked(asked: Question, work: Matrices) -> Problem:
    """The problem, with what is asked of its error, and with what is kept of an operand that is read in place."""
    problem, kept = work.problem, asked.kept
    if problem.halved or problem.type.exact or not (kept or asked.limits.componentwise):
        return problem
    usable = kept is not None and kept.is_of(problem) and not work.packs["AB".index(kept.base)]
    base = kept.base if kept is not None and usable and not asked.limits.componentwise else ""
    return replace(problem, componentwise=asked.limits.componentwise, kept=base)


def _not_the_librarys(asked: Question, work: Matrices) -> bool:
    """Is it no product that the library has? A stack times one matrix is a single product for the vendor too, where its
    library does not see that."""
    return work.problem.halved or work.problem.updates or (work.folds and not asked.setting.folds_stacks)


def _on_host(call: Call, work: Matrices, copied: int) -> Call:
    """What a call on the host needs of memory: for its plan, and for the copies of operands that BLAS cannot read."""
    plan, problem = call.decision.plan, work.problem
    copies = copied if plan != VENDOR or problem.halved else 0
    asked = problem.alpha, problem.beta, problem.op, problem.fill
    return replace(call, workspace=workspace(plan, *problem.size, problem.itemsize, *asked) + copies)


def _on_device(call: Call, launches: LaunchList, work: Matrices) -> Call:
    """What a call on a device has besides: launches, addresses and memory."""
    vendors = GRAPH_SCRATCH * launches.vendor_lanes
    recurs = _recurs(launches, work) and cublas_scratch(launches) + vendors <= call.limits.workspace
    needed = cublas_scratch(launches) + vendors if recurs else launches.workspace
    return replace(call, launches=launches, offsets=work.offsets(), workspace=needed, recurs=recurs)


def _recurs(launches: LaunchList, work: Matrices) -> bool:
    """Would a graph start noticeably earlier than its launches? Few of them but more than one, the vendor's calls among
    them, of about 3 milliseconds at most."""
    ops = work.count * len(record_operations(launches.plan, launches.problem).ops)
    multiply_adds = work.count * prod(work.problem.size)
    several = work.count * len(launches.steps) > 1
    return several and launches.lanes_used == 1 and ops <= RECURRING_OPS and multiply_adds <= RECURRING_WORK


def cublas_scratch(launches: LaunchList) -> int:
    """Where cuBLAS's own memory begins in the workspace of a call that may be captured."""
    return -(-launches.workspace // 256) * 256


def _checked(asked: Question) -> Operand:
    """The product as a new array, of what can be multiplied."""
    setting, shape = asked.setting, product_shape(asked.a.shape, asked.b.shape)
    if shape is None:
        raise NotOursError(f"shapes {tuple(asked.a.shape)} and {tuple(asked.b.shape)} do not match")
    if setting.dtype is None or setting.dtype not in DTYPES:
        raise NotOursError(f"products of {asked.a.dtype} and {asked.b.dtype} are its own")
    if DTYPES[setting.dtype].exact and asked.asked != PLAIN:
        raise NotOursError(f"products of {asked.a.dtype} and {asked.b.dtype} besides matmul are its own")
    if asked.out is not None and asked.out.shape != shape:
        raise (LibraryAnswersError if setting.casts_result else NotOursError)(OTHER_OUT)
    if asked.out is not None and asked.out.dtype != setting.dtype and not setting.casts_result:
        raise NotOursError(OTHER_OUT)
    if 0 in (*asked.a.shape, *asked.b.shape):
        raise LibraryAnswersError("there is nothing to multiply")
    return asked.result or contiguous(shape, setting.dtype)


OTHER_OUT = "out has another shape or type than the product"


# ---- the plan


def _decided(asked: Question, problem: Problem, limits: Limits) -> tuple[Decision, LaunchList | None]:
    """The plan and its launches. What these take counts, should it be more than the model thought."""
    device = asked.device
    if asked.plan is not None:
        check_runnable(asked.plan, problem, device.threads > 0)
        checked = bounds_entries(asked.plan) and (limits.emulation or not asked.plan.emulates)
        if limits.componentwise and not checked:
            raise PlanError(f"the plan {asked.plan} bounds no error entry by entry, as componentwise asks")
        unless = "" if asked.plan == VENDOR else f"; {INSTEAD_OF_GIVEN[device.threads > 0]}"
        given = Decision(asked.plan, problem, f"this plan was given{unless}", on_cpu=device.threads > 0)
        return given, launches_on(asked.plan, problem, device, True)
    if asked.setting.vendor_better and not problem.halved:
        return Decision(VENDOR, problem, asked.setting.vendor_better), None
    first = decide(problem, limits, device)
    if first.plan == VENDOR and asked.setting.lacking:
        first = only_choice(first, limits, device)
    if device.chip is None or (first.plan == VENDOR and not problem.halved):
        return first, None
    for plan in (first.plan, *other_plans(problem, first.plan, limits, device)):
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
    return Decision(plan, first.problem, why, first.considered, first.step, on_cpu=first.on_cpu)


def launches_at(call: Call, a: int | None, b: int | None, c: int | None) -> LaunchList:
    """The launches of a device's call for A, B and C at these addresses; None: where the library allocates."""
    assert call.launches is not None and call.device is not None and call.device.chip is not None
    x, y, z = (0 if at is None else at + by for at, by in zip((a, b, c), call.offsets[0], strict=True))
    plan, problem = call.launches.plan, call.launches.problem
    chip = chip_as_tuned(call.device) or call.device.chip
    return record_launches(plan, problem, target_on(chip, alignment_of(x, y, z, 0), flagged=may_differ(plan)))


def launches_on(plan: Plan, problem: Problem, device: Device, given: bool) -> LaunchList | None:
    """A plan's launches on a device; None where the vendor multiplies, and on the host."""
    chip = chip_as_tuned(device)
    if (plan == VENDOR and not problem.halved and not problem.updates) or chip is None:
        return None
    try:
        launches = record_launches(plan, problem, target_on(chip, flagged=may_differ(plan)))
    except PlanError:
        if given:
            raise
        return None  # a sum of more blocks than a launch can name
    # On lines that are not aligned our own kernel is slower: whoever chose it knew so of arrays without gaps, but not
    # of other views.
    known = not rows_aligned(without_layouts(problem), plan.leaf_use.leaf.alignment)
    return launches if given or launches.reads_aligned or known else None
