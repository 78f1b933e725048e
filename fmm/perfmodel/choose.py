"""Choosing: candidates, an estimate for each, the least within the limits. A pure function of its arguments."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from fmm.kernels.plans.candidates import candidate_plans, half_candidates, levels_above
from fmm.kernels.plans.leaf import LeafUse, option_use
from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.compose import Room, composed_plans
from fmm.perfmodel.predict import Prediction, predict_vendor, predicted_seconds
from fmm.perfmodel.stability import bounds_entries, expected_growth
from fmm.perfmodel.work import estimated_work, estimated_workspace, rows_aligned
from fmm.problem import Problem

# The most expected error, as a multiple of the vendor's, unless the caller says otherwise. More on a GPU: three levels
# of a 16-bit type are expected to have 14 times the error of the vendor, which rounds each result only once. On a CPU
# three levels of Strassen's have as much on numbers of one sign.
CPU_GROWTH, GPU_GROWTH = 15.0, 16.0
# DOUBT divided by the number of tiles in C is added to the margin by which a plan must win, so that a hundred tiles ask
# for a hundredth of what one tile does. The formula does not know how many tiles are left for a last wave that does not
# fill the device. On an H200, which computes 132 tiles at a time, predicted speedups are off by 8 to 15 % where C has
# fewer than 800 tiles, and by 4 % from 1600 on; the side of the leaf products, of which a batch has many, makes no
# difference. Of types of which the vendor's rounds are known (`Rate.sms`) this share of it: there what is given away
# where a plan does win counts as much. (On 111 shapes of an H200 in float32 without emulation fewer choices are poor by
# it.)
DOUBT, ROUNDS_KNOWN = 45.0, 0.45
# What is added for cuts of a product that is its own adjoint on a GPU: the vendor's own half is faster beside its whole
# product, and the many products below the diagonal are slower, than the model thinks. (Float64 on an H200, as it is:
# 0.93 and 0.92 of the vendor's time were predicted at 5048 x 2716 and 6244 x 4360, and 1.09 and 1.08 measured; at 8192
# 0.87 and 0.96.)
HALF_DOUBT = 0.08
# And where blocks on the diagonal are our own tiles' that read turned copies, whose time is known better. (Float32 at
# 8192 there: 0.88 predicted and 0.89 measured.)
TURNED_DOUBT = 0.04
# The same for plans that only copy operands to aligned rows: THIN divided by the number of tiles along the shortest
# side is added. The formula does not know how slow the vendor is on thin products whose rows are not aligned. (TF32 on
# an H200: of 37 such plans, two, with sides of 201 and 221, were 9 and 3 % slower than the vendor where 16 and 19 %
# less time was predicted.)
THIN = 0.1

# Of plans that multiply other numbers and cut no sides, this share of the doubt that few tiles leave. (Complex128 on an
# H200: 0.82 and 0.86 of the vendor's time were predicted where 272 and 318 rows meet a long inner side, and 1.12 and
# 1.02 measured.)
OTHER_NUMBERS = 0.5

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


def candidates(batches: bool, half: bool = False) -> tuple[Plan, ...]:
    """What is compared on a device that starts batches together (a GPU), and on one that does not (a CPU); `half`: for
    products that are their own adjoints."""
    device = "cuda" if batches else "cpu"
    return half_candidates(device) if half else candidate_plans(device)


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
    base = max(predict_vendor(problem, calibration).seconds, call_seconds(VENDOR, problem, calibration))
    found: list[Candidate] = []
    for choosable in _of_plans(among, problem, calibration) if among else _of_all(problem, calibration):
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
    ends = [x.plan for x in _of_all(problem, calibration) if x.suits(problem) and limits.allow(x.plan, 1)]
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
        seconds = max(prediction.seconds, call_seconds(plan, problem, calibration))
        time = seconds / base if base else 1.0
        growth = expected_growth(plan, problem.dtype, not calibration.batches)
        yield Candidate(plan, prediction, time, growth, needed_margin(plan, problem, calibration))


def needed_margin(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """By how much it must win; more where the products are not the vendor's, whose time is known best. Our own tiles
    alone are as good a choice as the vendor where they are expected to take as long: they have no sums that the model
    could be wrong about."""
    leaf = plan.leaf_use.leaf
    least = calibration.tiled_margin if plan.timed_by_tiles or leaf.rate else calibration.margin
    alone = not plan.levels and (plan.timed_by_tiles or leaf.longest > 0)
    cut = problem.halved and bool(plan.levels) and calibration.batches
    doubt = TURNED_DOUBT if any(use.order for use in _own_uses(plan)) else HALF_DOUBT
    return (0.0 if alone else least) + doubt * cut + _doubt(plan, problem, calibration)


def call_seconds(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What a call by the plan takes the processor, at least; a library's own product is not counted, but it has none
    that computes one half alone."""
    if plan.levels:
        return calibration.call
    if plan == VENDOR and not problem.halved:
        return 0.0
    return calibration.call_of_small if plan.leaf_use.leaf.longest else calibration.call_of_leaf


# ---- which plans are compared at all


class Choosable(NamedTuple):
    """A plan that is compared unasked for a type, as far as that does not depend on the sides."""

    plan: Plan
    alignment: int  # every row must begin at a multiple of so many bytes
    longest: float  # and no side may be longer
    parts: tuple[int, int, int] | None  # into which each side is cut by all levels together; None: it splits nothing

    def suits(self, problem: Problem) -> bool:
        """Are these sides, and the rows that come of them, as they must be?"""
        aligned = self.alignment == 1 or rows_aligned(problem, self.alignment)
        return aligned and (self.longest == inf or max(problem.size) <= self.longest)

    def cut_too_small(self, problem: Problem, least: float) -> bool:
        """Is a side of its leaf products shorter than that for certain? Padding makes them longer by less than a
        third."""
        if self.parts is None:
            return False
        (m, k, n), (rows, inner, cols), least = problem.size, self.parts, 0.7 * least
        return m < least * rows or k < least * inner or n < least * cols


def _of_all(problem: Problem, calibration: Calibration) -> tuple[Choosable, ...]:
    return _of_type(problem.dtype, problem.halved, calibration)


@depends_on_rows
@lru_cache(maxsize=256)
def _of_type(dtype: str, halved: bool, calibration: Calibration) -> tuple[Choosable, ...]:
    """Of all candidates: told once for a type, and not at every decision."""
    every = candidates(calibration.batches, halved)
    return tuple(x for plan in every if (x := _choosable(plan, dtype, halved, calibration)))


def _of_plans(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[Choosable]:
    for plan in plans:
        if (found := _choosable(plan, problem.dtype, problem.halved, calibration)) is not None:
            yield found


def _choosable(plan: Plan, dtype: str, halved: bool, calibration: Calibration) -> Choosable | None:
    """None where its leaf is not compared unasked for this type, or was to be measured and was not.

    (Our own kernel is not for types in which it takes about the vendor's time.)
    """
    leaf, parts = plan.leaf_use.leaf, _parts(plan) if plan.splits else None
    if halved and not plan.levels and plan != VENDOR:
        known = _half_is_known(plan, dtype, calibration)
        return Choosable(plan, leaf.alignment, leaf.longest or inf, parts) if known else None
    if not plan.considered_for(dtype) or (halved and not _lies_as_wanted(plan, dtype)):
        return None
    rate, own = calibration.known_rate(plan.rate_name(dtype)), plan.timed_by_tiles
    inside = plan.leaf_type(dtype) in leaf.types_inside
    if rate is None or (own and not (rate.tiled > 0 and inside)):
        return None
    # A batch reads nothing but temporaries, whose rows are aligned.
    anyhow = plan.batched or (own and rate.tiled_odd > 0)
    return Choosable(plan, 1 if anyhow else leaf.alignment, inf, parts)


def _lies_as_wanted(plan: Plan, dtype: str) -> bool:
    """Do blocks on the diagonal by a leaf of their own read turned copies where that pays, and only there?"""
    return all((dtype in use.leaf.turned_halves) == (use.order != "") for use in _own_uses(plan))


def _own_uses(plan: Plan) -> Iterator[LeafUse]:
    """Of the leaves that levels name."""
    return (option_use(name) for level in plan.levels for name in level.own_leaves)


def _half_is_known(plan: Plan, dtype: str, calibration: Calibration) -> bool:
    """Was one half by the leaf alone measured on such a device?"""
    leaf = plan.leaf_use.leaf
    rate = calibration.rates.get(plan.rate_name(dtype)) if leaf.rate else calibration.known_rate(dtype)
    return dtype in (*leaf.halves, *leaf.loose_halves) and rate is not None and rate.half_by_tiles < 1


def _parts(plan: Plan) -> tuple[int, int, int]:
    """Into how many parts each side is cut, as far as that is the same for all sides; by all levels together."""
    cuts = [level.cut.parts for level in plan.levels if level.cut]
    m, k, n = (prod(parts) for parts in zip((1, 1, 1), *cuts, strict=True))
    return m, k, n


def _doubt(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What is added to a plan's margin where C has few tiles, or is thin: the formula is made for large products."""
    tile, least = calibration.rate(problem.dtype).tile, min(problem.size)
    if tile <= 1 or not least or plan == VENDOR or plan.leaf_use.leaf.longest:
        return 0.0
    few = plan.splits or problem.halved
    share = 1.0 if few else OTHER_NUMBERS if plan.leaf_type(problem.dtype) != problem.dtype else 0.0
    return share * few_tiles_doubt(problem, calibration) if share else THIN * tile / least


def few_tiles_doubt(problem: Problem, calibration: Calibration) -> float:
    """That, where C has few tiles: of complex numbers, which take the room of two, twice as many; of one half, half."""
    rate, entries = calibration.rate(problem.dtype), float(problem.m * problem.n)
    entries *= (1 + problem.type.is_complex) / (1 + problem.halved)
    share = ROUNDS_KNOWN if rate.sms else 1.0
    return share * DOUBT * rate.tile**2 / entries if rate.tile > 1 and entries else 0.0


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
