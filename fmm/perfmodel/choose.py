"""Choosing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from fmm.kernels.plans.leaf import LeafUse, option_use, plan_leaves
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import Room, candidate_plans, compose_levels, gram_candidates, outer_levels
from fmm.perfmodel.predict import Prediction, is_b_column_major, predict_from_work, predict_vendor
from fmm.perfmodel.stability import expected_error_growth, has_entrywise_bound
from fmm.perfmodel.work import are_rows_aligned, estimated_work, estimated_workspace
from fmm.problem import Layout, Problem, without_layouts

# The most expected error, as a multiple of the vendor's, unless the caller says otherwise. More on a GPU: three levels
# of a 16-bit type are expected to have 14 times the error of the vendor, which rounds each result only once. On a CPU
# three levels of Strassen's have as much on numbers of one sign.
CPU_ERROR_GROWTH, GPU_ERROR_GROWTH = 15.0, 16.0
# Flops from which on compositions are compared even where the others have room: of six levels there are no others, and
# what a comparison takes (some milliseconds) is nothing beside the product.
LARGE = 2 * 24576**3


def default_error_growth(batches: bool) -> float:
    """That limit, on a device that starts batches together (a GPU) and on one that does not (a CPU)."""
    return GPU_ERROR_GROWTH if batches else CPU_ERROR_GROWTH


@dataclass(frozen=True)
class Limits:
    """What a plan may cost besides time: bytes of workspace, and expected error as a multiple of the vendor's."""

    workspace: int
    error_growth: float = CPU_ERROR_GROWTH
    emulation: bool = True  # may numbers be multiplied in another type than theirs?
    componentwise: bool = False  # is every entry to be right beside its own size, not beside the largest ones alone?

    def allow(self, plan: Plan, growth: float) -> bool:
        """May the plan, with this expected growth of the error, be chosen? Who wants no more than the vendor's error
        wants it beside each entry of the product. (Who wants less of it than the vendor has can have that beside the
        norms of rows and columns alone.)"""
        strict = not self.emulation or self.error_growth == 1
        allowed = growth <= self.error_growth and not (strict and plan.emulates)
        return allowed and not (self.componentwise and not has_entrywise_bound(plan))


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


@clear_on_registration
@lru_cache(maxsize=4096)
def choose(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """The candidate with the least predicted time within the limits; the vendor unless a plan beats it clearly."""
    considered = all_candidates(problem, calibration, limits)
    winning = [c for c in considered if c.wins and limits.allow(c.plan, c.error_growth)]
    if winning and not winning[0].fits(limits.workspace) and problem.flops < LARGE and not problem.writes_triangle:
        considered = _by_time(*considered, *compose_candidates(problem, calibration, limits))
        winning = [c for c in considered if c.wins and limits.allow(c.plan, c.error_growth)]
    unchanged = next(c for c in considered if c.plan == VENDOR)
    best = next((c for c in winning if c.fits(limits.workspace)), unchanged)
    return Choice(best, _reason(best, considered, calibration, limits), considered)


def all_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """All candidates, the fastest first; of large products compositions too."""
    considered = rank_candidates(problem, calibration)
    if problem.writes_triangle or problem.flops < LARGE:
        return considered
    return _by_time(*considered, *compose_candidates(problem, calibration, limits))


def rank_candidates(problem: Problem, calibration: Calibration, among: Sequence[Plan] = ()) -> tuple[Candidate, ...]:
    """All candidates, the fastest first; equally fast ones in the order of the list."""
    base = recurring_call_seconds(predict_vendor(problem, calibration), calibration)
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


def compose_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """The best compositions of levels above candidates that are within the limits."""
    if not (above := outer_levels("cuda" if calibration.batches else "cpu")):
        return ()
    ends = [x.plan for x in choosable_candidates(problem, calibration) if x.suits(problem) and limits.allow(x.plan, 1)]
    levels = [level for level in above if _stands_above(level, ends, problem.dtype)]
    room = Room(limits.workspace, limits.error_growth)
    made = compose_levels(problem, calibration, room, levels, ends)
    return rank_candidates(problem, calibration, made) if made else ()


def _stands_above(level: Level, plans: Sequence[Plan], dtype: str) -> bool:
    """Can it be asked for numbers of this type, with one of the plans below it?"""
    if level.types is not None and dtype not in level.types:
        return False
    return any(Plan((level, *plan.levels), plan.leaf).accepts_type(dtype) for plan in plans)


def _rated(plan: Plan, problem: Problem, calibration: Calibration, base: float) -> Iterator[Candidate]:
    """The plan with its prediction, if its leaf products are large enough; `base` is the vendor's time."""
    work = estimated_work(plan, problem)
    if not plan.splits or work.smallest >= calibration.least:
        prediction = predict_from_work(plan, problem, work, calibration)
        time = recurring_call_seconds(prediction, calibration) / base if base else 1.0
        growth = expected_error_growth(plan, problem.dtype, not calibration.batches)
        yield Candidate(plan, prediction, time, growth, required_margin(plan, problem, calibration))


def recurring_call_seconds(prediction: Prediction, calibration: Calibration) -> float:
    """Seconds of a call that recurs: the device computes one while the processor starts the next, so that it is the
    longer of the two, and not their sum. (Left out: a call that is waited for at once takes both.)"""
    return max(prediction.seconds, host_seconds(prediction.plan, prediction.problem, calibration))


def host_seconds(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What a call by the plan takes the processor, at least; a library has no product that computes one half alone."""
    if plan.levels or plan.leaf_use.leaf.launches > 1:
        return calibration.call
    if plan == VENDOR and not problem.writes_triangle:
        return calibration.call_of_library
    return calibration.call_of_small if plan.leaf_use.leaf.longest else calibration.call_of_leaf


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
    elif limits.componentwise and not has_entrywise_bound(fastest.plan):
        what = "a looser bound on the error of its entries"
    best_of = (
        "no plan within the limits wins clearly" if best.plan == VENDOR else "least predicted time within the limits"
    )
    return f"{best_of}; {fastest.plan} would need {what} than allowed ({calibration.source})"


# Padding makes the sides of leaf products longer by less than a third: a side that is shorter than this share of the
# least that is allowed stays too short.
TOO_SHORT_FOR_CERTAIN = 0.7


def candidates(batches: bool, half: bool = False) -> tuple[Plan, ...]:
    """The plans that are compared on a device that starts batches together (a GPU), or on one that does not (a CPU);
    `half`: those for products that are their own adjoints."""
    device = "cuda" if batches else "cpu"
    return gram_candidates(device) if half else candidate_plans(device)


class Choosable(NamedTuple):
    """A plan that may be chosen for a type on a device; what depends on the sides is asked for each problem."""

    plan: Plan
    alignment: int  # every row must begin at a multiple of so many bytes
    longest: float  # no side may be longer
    parts: tuple[int, int, int] | None  # into how many all levels together cut each side; None: they cut none

    def suits(self, problem: Problem) -> bool:
        """Are the problem's rows aligned as the plan needs them, and its sides short enough?"""
        aligned = self.alignment == 1 or are_rows_aligned(problem, self.alignment)
        return aligned and (self.longest == inf or max(problem.size) <= self.longest)

    def cut_too_small(self, problem: Problem, least: float) -> bool:
        """Are leaf products certain to have a side that is shorter than `least`?"""
        if self.parts is None:
            return False
        (m, k, n), (rows, inner, cols), least = problem.size, self.parts, TOO_SHORT_FOR_CERTAIN * least
        return m < least * rows or k < least * inner or n < least * cols


def choosable_candidates(problem: Problem, calibration: Calibration) -> tuple[Choosable, ...]:
    """Of all candidates, those that may be chosen for the problem's type on this device."""
    return _choosable_for_type(problem.dtype, problem.writes_triangle, calibration)


@clear_on_registration
@lru_cache(maxsize=256)
def _choosable_for_type(dtype: str, writes_triangle: bool, calibration: Calibration) -> tuple[Choosable, ...]:
    every = candidates(calibration.batches, writes_triangle)
    return tuple(x for plan in every if (x := _choosable(plan, dtype, writes_triangle, calibration)))


def choosable_plans(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[Choosable]:
    """Of these plans, those that may be chosen for the problem's type on this device."""
    for plan in plans:
        if (found := _choosable(plan, problem.dtype, problem.writes_triangle, calibration)) is not None:
            yield found


@lru_cache(maxsize=4096)
def ranking_problem(problem: Problem, gpu: bool) -> Problem:
    """What plans are compared for: matrices that lie row by row, neither scaled nor added to; but a B that lies column
    by column remains so, if a GPU has a leaf that is slow there."""
    plain = without_layouts(problem)
    if not gpu or problem.writes_triangle or not is_b_column_major(problem) or problem.dtype not in _slow_columns():
        return plain
    _, k, n = problem.size
    return replace(plain, layouts=(Layout("C", max(k, 1)), Layout("F", max(k, 1)), Layout("C", max(n, 1))))


@clear_on_registration
@lru_cache(maxsize=1)
def _slow_columns() -> frozenset[str]:
    """Types of which any leaf is slow where B lies column by column."""
    return frozenset(dtype for leaf in plan_leaves() for dtype in leaf.slow_columns)


def _choosable(plan: Plan, dtype: str, writes_triangle: bool, calibration: Calibration) -> Choosable | None:
    """None where the plan's leaf is not taken unasked for this type, or where the calibration does not say how fast it
    is. (Our own tiled kernel is not compared for types in which it takes about the vendor's time.)"""
    leaf, parts = plan.leaf_use.leaf, _parts_of_sides(plan) if plan.splits else None
    if writes_triangle and not plan.levels and plan != VENDOR:
        known = _half_is_known(plan, dtype, calibration)
        return Choosable(plan, leaf.alignment, leaf.longest or inf, parts) if known else None
    if not plan.is_candidate_for(dtype) or (writes_triangle and not _turned_where_it_pays(plan, dtype)):
        return None
    rate, tiled = calibration.find_rate(plan.rate_name(dtype)), plan.uses_tile_model
    inside = plan.leaf_type(dtype) in leaf.types_with_sums
    if rate is None or (tiled and not (rate.tiled > 0 and inside)):
        return None
    # A batch reads nothing but temporaries, whose rows are aligned.
    reads_any_rows = plan.batched or (tiled and rate.tiled_odd > 0)
    return Choosable(plan, 1 if reads_any_rows else leaf.alignment, inf, parts)


def _turned_where_it_pays(plan: Plan, dtype: str) -> bool:
    """Where blocks on the diagonal have a leaf of their own: does it read turned copies if that pays, and only then?"""
    return all((dtype in use.leaf.slow_columns) == (use.order is not None) for use in uses_on_diagonal(plan))


def uses_on_diagonal(plan: Plan) -> Iterator[LeafUse]:
    """The leaves that levels name for blocks on the diagonal, besides the plan's own leaf: `gram.tile.outer`."""
    return (option_use(name) for level in plan.levels for name in level.named_leaves)


def _half_is_known(plan: Plan, dtype: str, calibration: Calibration) -> bool:
    """Does the calibration say how long the leaf alone takes for one half?"""
    leaf = plan.leaf_use.leaf
    rate = calibration.rates.get(plan.rate_name(dtype)) if leaf.rate else calibration.find_rate(dtype)
    return dtype in (*leaf.kernel_triangles, *leaf.loose_triangles) and rate is not None and rate.half_by_tiles < 1


def _parts_of_sides(plan: Plan) -> tuple[int, int, int]:
    """Into how many parts all levels together cut m, k and n; levels whose cut depends on the sizes are left out."""
    cuts = [level.cut.parts for level in plan.levels if level.cut]
    m, k, n = (prod(parts) for parts in zip((1, 1, 1), *cuts, strict=True))
    return m, k, n


# What is added to the margin where C has few tiles: DOUBT divided by their number, so that a hundred tiles ask for a
# hundredth of what one tile does. The formula does not know how many tiles are left for a last wave that does not fill
# the device. On an H200, which computes 132 tiles at a time, predicted speedups are off by 8 to 15 % where C has fewer
# than 800 tiles, and by 4 % from 1600 on; the side of the leaf products, of which a batch has many, makes no
# difference.
DOUBT = 45.0
# Of complex types tiles of so many rows and columns are counted, at least: those of the datasheet, by which this was
# settled for them. A fit can find smaller ones, and then that C has four times as many, though no more of them are left
# for the last wave. (Complex128 on an H100, by a tuning of 30 s: 368 x 19344 x 1120 was predicted to take 0.72 of the
# vendor's time by `3m.batched > vendor`, and took 1.33; of 220 shapes 16 took longer than the vendor, 6 do with this.)
COUNTED = 128.0
# This share of it for types of which the vendor's rounds are known (`Rate.sms`): there what is given away where a plan
# does win counts as much. (On 111 shapes of an H200 in float32 without emulation fewer choices are poor by it.)
ROUNDS_KNOWN = 0.45
# What is added for cuts of a product that is its own adjoint on a GPU: the vendor's own half is faster beside its whole
# product, and the many products below the diagonal are slower, than the model thinks. (Float64 on an H200, as it is:
# 0.93 and 0.92 of the vendor's time were predicted at 5048 x 2716 and 6244 x 4360, and 1.09 and 1.08 measured; at 8192
# 0.87 and 0.96.)
HALF_DOUBT = 0.08
# Not where blocks on the diagonal are by our own tiles that read turned copies, whose time is known. (Float32 on an
# H200: of the vendor's time 0.91, 0.79 and 0.69 are predicted at 8192, 16384 and 32768; 0.91, 0.80 and 0.69 measured.)
# For plans that only copy operands to aligned rows: THIN divided by the shortest side is added. The formula does not
# know how slow the vendor is on thin products whose rows are not aligned. (TF32 on an H200: of 37 such plans, two, with
# sides of 201 and 221, were 9 and 3 % slower than the vendor where 16 and 19 % less time was predicted.)
THIN = 12.8
# For plans that multiply other numbers and cut no sides, this share of what few tiles add. (Complex128 on an H200: 0.82
# and 0.86 of the vendor's time were predicted where 272 and 318 rows meet a long inner side, and 1.12 and 1.02
# measured.)
OTHER_NUMBERS = 0.5


def required_margin(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """By what share of the vendor's time the plan must be predicted to win.

    Larger where the products are not the vendor's, whose time is known best. Our own tiles alone, with no level above
    them, need no margin: they have no sums that the model could be wrong about, and where they are expected to take as
    long as the vendor they are as good a choice.
    """
    leaf = plan.leaf_use.leaf
    least = calibration.tiled_margin if plan.uses_tile_model or leaf.rate else calibration.margin
    tiles_alone = not plan.levels and (plan.uses_tile_model or leaf.longest > 0)
    cuts_a_half = problem.writes_triangle and bool(plan.levels) and calibration.batches
    of_cuts = HALF_DOUBT if cuts_a_half and not any(use.order for use in uses_on_diagonal(plan)) else 0.0
    return (0.0 if tiles_alone else least) + of_cuts + _doubt(plan, problem, calibration)


def _doubt(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """What is added where C has few tiles, or is thin: the formula is made for large products."""
    tile, shortest = calibration.rate(problem.dtype).tile, min(problem.size)
    if tile <= 1 or not shortest or plan == VENDOR or plan.leaf_use.leaf.longest:
        return 0.0
    cuts_sides = plan.splits or problem.writes_triangle
    other_numbers = plan.leaf_type(problem.dtype) != problem.dtype
    share = 1.0 if cuts_sides else OTHER_NUMBERS if other_numbers else 0.0
    return share * few_tiles_margin(problem, calibration) if share else THIN / shortest


def few_tiles_margin(problem: Problem, calibration: Calibration) -> float:
    """What is added where C has few tiles, the more the fewer. Complex numbers take the room of two real ones, and of
    one half only half of the tiles are computed."""
    rate, entries = calibration.rate(problem.dtype), float(problem.m * problem.n)
    entries *= (1 + problem.type.is_complex) / (1 + problem.writes_triangle)
    share, side = ROUNDS_KNOWN if rate.sms else 1.0, max(rate.tile, COUNTED * problem.type.is_complex)
    return share * DOUBT * side**2 / entries if rate.tile > 1 and entries else 0.0
