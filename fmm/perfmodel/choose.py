"""Choosing: candidates, an estimate for each, the least within the limits. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.plans.candidates import candidate_plans as registered
from fmm.kernels.plans.candidates import half_candidates
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import Prediction, predict_vendor, predicted_seconds
from fmm.perfmodel.stability import expected_growth
from fmm.perfmodel.work import estimated_work, estimated_workspace, rows_aligned
from fmm.problem import Problem

# The most expected error, as a multiple of the vendor's, unless the caller says otherwise. More on a GPU: three levels
# of a 16-bit type are expected to have 14 times the error of the vendor, which rounds each result only once.
CPU_GROWTH, GPU_GROWTH = 10.0, 16.0
# DOUBT divided by the number of tiles in C is added to the margin by which a plan must win, so that a hundred tiles ask
# for a hundredth of what one tile does. The formula does not know how many tiles are left for a last wave that does not
# fill the device. On an H200, which computes 132 tiles at a time, predicted speedups are off by 8 to 15 % where C has
# fewer than 800 tiles, and by 4 % from 1600 on; the side of the leaf products, of which a batch has many, makes no
# difference.
DOUBT = 45.0
# The same for plans that only copy operands to aligned rows: THIN divided by the number of tiles along the shortest
# side is added. The formula does not know how slow the vendor is on thin products whose rows are not aligned. (TF32 on
# an H200: of 37 such plans, two, with sides of 201 and 221, were 9 and 3 % slower than the vendor where 16 and 19 %
# less time was predicted.)
THIN = 0.1


def usual_growth(batches: bool) -> float:
    """That limit, on a device that starts batches together (a GPU) and on one that does not (a CPU)."""
    return GPU_GROWTH if batches else CPU_GROWTH


@dataclass(frozen=True)
class Limits:
    """What a plan may cost besides time: bytes of workspace, and expected error as a multiple of the vendor's."""

    workspace: int
    error_growth: float = CPU_GROWTH


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
        return about <= limit / 2 or (about <= 2 * limit and self.workspace <= limit)


@dataclass(frozen=True)
class Choice:
    """The chosen candidate, why, and the others from the fastest down."""

    best: Candidate
    reason: str
    considered: tuple[Candidate, ...]


def candidates(batches: bool, half: bool = False) -> tuple[Plan, ...]:
    """What is compared on a device that starts batches together (a GPU), and on one that does not (a CPU); `half`: for
    products that are their own adjoints."""
    device = "cuda" if batches else "cpu"
    return half_candidates(device) if half else registered(device)


@depends_on_rows
@lru_cache(maxsize=4096)
def choose(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """The candidate with the least predicted time within the limits; the vendor unless a plan beats it clearly."""
    considered = ranked_candidates(problem, calibration)
    unchanged = next(c for c in considered if c.plan == VENDOR)
    fitting = (c for c in considered if c.wins and c.error_growth <= limits.error_growth)
    best = next((c for c in fitting if c.fits(limits.workspace)), unchanged)
    return Choice(best, _reason(best, considered, calibration, limits), considered)


def ranked_candidates(problem: Problem, calibration: Calibration, among: Sequence[Plan] = ()) -> tuple[Candidate, ...]:
    """All candidates, the fastest first; equally fast ones in the order of the list."""
    base = predict_vendor(problem, calibration).seconds
    found = []
    for plan in among or candidates(calibration.batches, problem.halved):
        if not may_be_chosen(plan, problem, calibration):
            continue
        work = estimated_work(plan, problem)
        if splits(plan) and work.smallest < calibration.least:
            continue
        prediction = predicted_seconds(plan, problem, work, calibration)
        time, growth = prediction.seconds / base if base else 1.0, expected_growth(plan, problem.dtype)
        margin = calibration.tiled_margin if plan.timed_by_tiles else calibration.margin
        margin += _doubt(plan, problem, calibration)
        found.append(Candidate(plan, prediction, time, growth, margin))
    return tuple(sorted(found, key=lambda c: c.time))


def may_be_chosen(plan: Plan, problem: Problem, calibration: Calibration) -> bool:
    """Is its leaf compared unasked for this type, on rows that begin as these do, and was it measured if it must be?"""
    if not plan.considered_for(problem.dtype):
        return False
    rate = calibration.known_rate(plan.leaf_type(problem.dtype))
    measured = rate is not None and (not plan.timed_by_tiles or rate.tiled > 0)
    return measured and rows_aligned(problem, plan.leaf_use.leaf.alignment)


def splits(plan: Plan) -> bool:
    """Are its leaf products smaller than the problem?"""
    return any(level.splits for level in plan.levels)


def _doubt(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What is added to a plan's margin where C has few tiles, or is thin: the formula is made for large products."""
    tile, least = calibration.rate(problem.dtype).tile, min(problem.size)
    if tile <= 1 or not least or plan == VENDOR:
        return 0.0
    return few_tiles_doubt(problem, calibration) if splits(plan) else THIN * tile / least


def few_tiles_doubt(problem: Problem, calibration: Calibration) -> float:
    """That, where C has few tiles."""
    tile = calibration.rate(problem.dtype).tile
    return DOUBT * tile**2 / (problem.m * problem.n) if tile > 1 and problem.m * problem.n else 0.0


def _reason(best: Candidate, considered: tuple[Candidate, ...], calibration: Calibration, limits: Limits) -> str:
    fastest = considered[0]
    if not any(c.wins for c in considered if c.plan != VENDOR):
        least = min((c.margin for c in considered if c.plan != VENDOR), default=calibration.margin)
        return f"no plan is predicted to beat the vendor by {least:.1%} ({calibration.source})"
    if fastest.plan == best.plan or not fastest.wins:
        return f"least predicted time: {best.time:.2f} of the vendor's ({calibration.source})"
    what = "more error" if fastest.error_growth > limits.error_growth else "more workspace"
    best_of = (
        "no plan within the limits wins clearly" if best.plan == VENDOR else "least predicted time within the limits"
    )
    return f"{best_of}; {fastest.plan} would need {what} than allowed ({calibration.source})"
