"""Choosing: candidates, an estimate for each, the least within the limits. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.plans.candidates import levels_above
from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choosable import choosable_candidates, choosable_plans
from fmm.perfmodel.compose import Room, composed_plans
from fmm.perfmodel.margins import needed_margin
from fmm.perfmodel.predict import Prediction, predict_vendor, predicted_seconds
from fmm.perfmodel.stability import bounds_entries, expected_growth
from fmm.perfmodel.work.estimate import estimated_work, estimated_workspace
from fmm.problem import Problem

# The most expected error, as a multiple of the vendor's, unless the caller says otherwise. More on a GPU: three levels
# of a 16-bit type are expected to have 14 times the error of the vendor, which rounds each result only once. On a CPU
# three levels of Strassen's have as much on numbers of one sign.
CPU_GROWTH, GPU_GROWTH = 15.0, 16.0
# Flops from which on compositions are compared even where the others have room: of six levels there are no others, and
# what a comparison takes (some milliseconds) is nothing beside the product.
LARGE = 2 * 24576**3


def usual_growth(batches: bool) -> float:
    """That limit, on a device that starts batches together (a GPU) and on one that does not (a CPU)."""
    return GPU_GROWTH if batches else CPU_GROWTH


@dataclass(frozen=True)
class Limits:
    """What a plan may cost besides time: bytes of workspace, and expected error as a multiple of the vendor's."""

    workspace: int
    error_growth: float = CPU_GROWTH
    emulation: bool = True  # may numbers be multiplied in another type than theirs?
    componentwise: bool = False  # is every entry to be right beside its own size, not beside the largest ones alone?

    def allow(self, plan: Plan, growth: float) -> bool:
        """May the plan, with this expected growth of the error, be chosen? Who wants no more than the vendor's error
        wants it beside each entry of the product. (Who wants less of it than the vendor has can have that beside the
        norms of rows and columns alone.)"""
        strict = not self.emulation or self.error_growth == 1
        allowed = growth <= self.error_growth and not (strict and plan.emulates)
        return allowed and not (self.componentwise and not bounds_entries(plan))


@dataclass(frozen=True)
class Candidate:
    """A plan with its prediction; `time` is relative to the vendor's, below 1 by `margin` if the plan may be chosen."""

    plan: Plan
    prediction: Prediction
    time: float
    error_growth: float
    margin: float

    @property
    def wins(self) -> bool:
        return self.time <= 1 - self.margin

    @property
    def workspace(self) -> int:
        problem = self.prediction.problem
        return workspace(self.plan, *problem.size, problem.itemsize, op=problem.op, fill=problem.fill)

    def fits(self, limit: int) -> bool:
        """Is the workspace within the limit? Counted exactly only where the estimate leaves a doubt."""
        about = estimated_workspace(self.plan, self.prediction.problem)
        if 2 * about <= limit or about > 2 * limit:
            return 2 * about <= limit
        try:
            return self.workspace <= limit
        except PlanError:
            return False


@dataclass(frozen=True)
class Choice:
    """The chosen candidate, why, and the others from the fastest down."""

    best: Candidate
    reason: str
    considered: tuple[Candidate, ...]


@depends_on_rows
@lru_cache(maxsize=4096)
def choose(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """The candidate with the least predicted time within the limits; the vendor unless a plan beats it clearly."""
    considered = considered_candidates(problem, calibration, limits)
    winning = [c for c in considered if c.wins and limits.allow(c.plan, c.error_growth)]
    if winning and not winning[0].fits(limits.workspace) and problem.flops < LARGE and not problem.halved:
        considered = _by_time(*considered, *composed_candidates(problem, calibration, limits))
        winning = [c for c in considered if c.wins and limits.allow(c.plan, c.error_growth)]
    unchanged = next(c for c in considered if c.plan == VENDOR)
    best = next((c for c in winning if c.fits(limits.workspace)), unchanged)
    return Choice(best, _reason(best, considered, calibration, limits), considered)


def considered_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """All candidates, the fastest first; of large products compositions too."""
    considered = ranked_candidates(problem, calibration)
    if problem.halved or problem.flops < LARGE:
        return considered
    return _by_time(*considered, *composed_candidates(problem, calibration, limits))


def ranked_candidates(problem: Problem, calibration: Calibration, among: Sequence[Plan] = ()) -> tuple[Candidate, ...]:
    """All candidates, the fastest first; equally fast ones in the order of the list."""
    base = whole_call(predict_vendor(problem, calibration), calibration)
    found: list[Candidate] = []
    for choosable in (
        choosable_plans(among, problem, calibration) if among else choosable_candidates(problem, calibration)
    ):
        if choosable.suits(problem) and not choosable.cut_too_small(problem, calibration.least):
            with suppress(PlanError):  # it cannot be done at these sides
                found += _rated(choosable.plan, problem, calibration, base)
    return _by_time(*found)


def _by_time(*found: Candidate) -> tuple[Candidate, ...]:
    """Of those whose calls take the processor as long, the first is the one that the device ends first."""
    return tuple(sorted(found, key=lambda c: (c.time, c.prediction.seconds)))


def composed_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """The best compositions of levels above candidates that are within the limits."""
    if not (above := levels_above("cuda" if calibration.batches else "cpu")):
        return ()
    ends = [x.plan for x in choosable_candidates(problem, calibration) if x.suits(problem) and limits.allow(x.plan, 1)]
    levels = [level for level in above if _stands_above(level, ends, problem.dtype)]
    room = Room(limits.workspace, limits.error_growth)
    made = composed_plans(problem, calibration, room, levels, ends)
    return ranked_candidates(problem, calibration, made) if made else ()


def _stands_above(level: PlanLevel, plans: Sequence[Plan], dtype: str) -> bool:
    """Can it be asked for numbers of this type, with one of the plans below it?"""
    if level.types is not None and dtype not in level.types:
        return False
    return any(Plan((level, *plan.levels), plan.leaf).takes_type(dtype) for plan in plans)


def _rated(plan: Plan, problem: Problem, calibration: Calibration, base: float) -> Iterator[Candidate]:
    """The plan with its prediction, if its leaf products are large enough; `base` is the vendor's time."""
    work = estimated_work(plan, problem)
    if not plan.splits or work.smallest >= calibration.least:
        prediction = predicted_seconds(plan, problem, work, calibration)
        time = whole_call(prediction, calibration) / base if base else 1.0
        growth = expected_growth(plan, problem.dtype, not calibration.batches)
        yield Candidate(plan, prediction, time, growth, needed_margin(plan, problem, calibration))


def whole_call(prediction: Prediction, calibration: Calibration) -> float:
    """Seconds of a call that recurs: the device computes one while the processor starts the next, so that it is the
    longer of the two, and not their sum. (Left out: a call that is waited for at once takes both.)"""
    return max(prediction.seconds, call_seconds(prediction.plan, prediction.problem, calibration))


def call_seconds(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What a call by the plan takes the processor, at least; a library has no product that computes one half alone."""
    if plan.levels or plan.leaf_use.leaf.call.starts > 1:
        return calibration.call
    if plan == VENDOR and not problem.halved:
        return calibration.call_of_library
    return calibration.call_of_small if plan.leaf_use.leaf.candidacy.longest else calibration.call_of_leaf


def _reason(best: Candidate, considered: tuple[Candidate, ...], calibration: Calibration, limits: Limits) -> str:
    fastest = considered[0]
    if not any(c.wins for c in considered if c.plan != VENDOR):
        least = min((c.margin for c in considered if c.plan != VENDOR), default=calibration.margin)
        return f"no plan is predicted to beat the vendor by {least:.1%} ({calibration.source})"
    if fastest.plan == best.plan or not fastest.wins:
        return f"least predicted time: {best.time:.2f} of the vendor's ({calibration.source})"
    what = "more workspace" if limits.allow(fastest.plan, fastest.error_growth) else "more error"
    if fastest.plan.emulates and not limits.emulation:
        what = "other types of numbers"
    elif limits.componentwise and not bounds_entries(fastest.plan):
        what = "a looser bound on the error of its entries"
    best_of = (
        "no plan within the limits wins clearly" if best.plan == VENDOR else "least predicted time within the limits"
    )
    return f"{best_of}; {fastest.plan} would need {what} than allowed ({calibration.source})"
