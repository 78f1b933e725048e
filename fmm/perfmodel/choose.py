"""Choose a plan in four steps: candidates -> filter -> rank -> pick.

`all_candidates` lists the plans of fmm.perfmodel.candidates, and for large products compositions of levels.
`filter_candidates` drops the plans that cannot run for the problem's type and sides on this device. `rank_candidates`
predicts the time of each plan relative to the vendor's time, and determines each plan's required margin.
`pick_candidate` takes the fastest candidate that exceeds none of the caller's limits and beats the vendor by its
required margin, else the vendor.

The function `choose` does all four steps. `choose` is a pure function of a problem, a calibration and the caller's
limits. The vendor's own product is one of the candidates.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from fmm.kernels.plans.leaf import LeafUse, parse_leaf_option, plan_leaves
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.candidates import compose_levels, device_candidate_plans, workspace_saving_levels
from fmm.perfmodel.crossovers import MeasuredCrossovers, count_levels
from fmm.perfmodel.predict import Prediction, is_b_column_major, predict_from_work, predict_vendor
from fmm.perfmodel.stability import expected_error_growth, has_componentwise_bound
from fmm.perfmodel.work import are_rows_aligned, estimated_work, estimated_workspace
from fmm.problem import Layout, Problem, Shape, reduced_problem

# The default limit of the expected error, as a multiple of the vendor's error. Three levels in a 16-bit type on a GPU
# have 14 times the expected error of the vendor, which rounds each result once. On a CPU three levels of Strassen's
# algorithm have about 14 times the vendor's error on numbers of one sign.
CPU_ERROR_GROWTH_LIMIT, GPU_ERROR_GROWTH_LIMIT = 15.0, 16.0
# For products with at least this number of flops, compositions of levels are candidates even if other plans fit. Six
# levels, as for the largest products, are possible only in compositions. The comparison of compositions takes
# milliseconds, a small share of the time of a product of this size.
COMPOSITION_MIN_FLOPS = 2 * 24576**3


def default_error_growth_limit(batches: bool) -> float:
    """Return the default limit of the error growth: on a GPU if `batches` is True, else on a CPU."""
    return GPU_ERROR_GROWTH_LIMIT if batches else CPU_ERROR_GROWTH_LIMIT


@dataclass(frozen=True)
class Limits:
    """A caller's limits on the choice: workspace in bytes, and expected error as a multiple of the vendor's error."""

    workspace: int
    error_growth: float = CPU_ERROR_GROWTH_LIMIT
    emulation: bool = True  # True to allow plans that multiply in another element type
    # True to bound the error of each entry of C relative to (|A| |B|)ij, instead of relative to norms of rows and
    # columns
    componentwise: bool = False
    reproducible: bool = False  # True if the caller's plan must run on its own kernels, without the vendor's products

    @property
    def forbids_vendor(self) -> bool:
        """True if the allowed error growth is below 1, which is the error growth of the vendor's product."""
        return self.error_growth < 1

    def allows_plan(self, plan: Plan, growth: float) -> bool:
        """Return True if a plan with the expected error growth `growth` respects all limits except the workspace.

        A limit of 1 on the error growth requires the vendor's accuracy in every entry of C, which no emulation
        guarantees. A limit below 1 on the error growth bounds the error relative to the norms of rows and columns.
        Plans that exist for errors smaller than the vendor's are allowed only if the limit is below 1.
        """
        if plan.is_for_smaller_errors and not self.forbids_vendor:
            return False
        strict = not self.emulation or self.error_growth == 1
        allowed = growth <= self.error_growth and not (strict and plan.uses_emulation)
        return allowed and not (self.componentwise and not has_componentwise_bound(plan))


@dataclass(frozen=True)
class Candidate:
    """A plan with its prediction, its error growth and its required margin."""

    plan: Plan
    prediction: Prediction
    time: float  # predicted time of a recurring call, divided by the vendor's predicted time
    error_growth: float  # expected error as a multiple of the vendor's error
    margin: float  # the candidate wins if `time` is at most 1 - margin

    @property
    def beats_vendor(self) -> bool:
        """True if the candidate's predicted time is below the vendor's time by at least the margin."""
        return self.time <= 1 - self.margin

    @property
    def workspace_bytes(self) -> int:
        """The bytes of workspace of the plan, counted exactly."""
        problem = self.prediction.problem
        return plan_workspace_bytes(self.plan, *problem.size, problem.itemsize, op=problem.op, fill=problem.fill)

    def fits_workspace(self, limit: int) -> bool:
        """Return True if the workspace is at most `limit` bytes; count exactly if the estimate is close to `limit`."""
        estimate = estimated_workspace(self.plan, self.prediction.problem)
        if 2 * estimate <= limit or estimate > 2 * limit:
            return 2 * estimate <= limit
        try:
            return self.workspace_bytes <= limit
        except PlanError:
            return False


@dataclass(frozen=True)
class Choice:
    """The best candidate, the reason for the choice in words, and all candidates, the fastest first."""

    best: Candidate
    reason: str
    candidates: tuple[Candidate, ...]


@clear_on_registration
@lru_cache(maxsize=4096)
def choose(problem: Problem, calibration: Calibration, limits: Limits) -> Choice:
    """Return the choice for a problem: the fastest candidate within the limits; the vendor if no candidate wins."""
    candidates = all_candidates(problem, calibration, limits)
    winners = _winning_candidates(candidates, limits)
    if (
        winners
        and not winners[0].fits_workspace(limits.workspace)
        and problem.flops < COMPOSITION_MIN_FLOPS
        and not problem.writes_triangle
    ):  # A composition of levels may need less workspace than the fastest winner, which exceeds the limit.
        candidates = _sorted_by_time([*candidates, *compose_candidates(problem, calibration, limits)])
    best = pick_candidate(candidates, limits)
    return Choice(best, _reason_text(best, candidates, calibration, limits), candidates)


# ---- 1. candidates: plans from PLAN_PATTERNS, and compositions of levels


def all_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """Return all candidates, ranked with the fastest first; for large products, add compositions of levels.

    Plans that exist for errors smaller than the vendor's are candidates only if the limits forbid the vendor's product.
    """
    candidates = rank_candidates(problem, calibration)
    if not limits.forbids_vendor:
        candidates = tuple(c for c in candidates if not c.plan.is_for_smaller_errors)
    if problem.writes_triangle or problem.flops < COMPOSITION_MIN_FLOPS:
        return candidates
    return _sorted_by_time([*candidates, *compose_candidates(problem, calibration, limits)])


def compose_candidates(problem: Problem, calibration: Calibration, limits: Limits) -> tuple[Candidate, ...]:
    """Return the best compositions of outer levels and candidates within the limits, ranked by time."""
    if not (levels := workspace_saving_levels("cuda" if calibration.batches else "cpu")):
        return ()
    eligible = [x for x in _eligible_candidates(problem, calibration) if x.accepts_operands(problem)]
    inner = [x.plan for x in eligible if limits.allows_plan(x.plan, 1)]
    outer = [level for level in levels if _is_level_allowed_for_type(level, inner, problem.dtype)]
    plans = compose_levels(problem, calibration, limits.workspace, limits.error_growth, outer, inner)
    return rank_candidates(problem, calibration, plans) if plans else ()


def _is_level_allowed_for_type(level: Level, plans: Sequence[Plan], dtype: str) -> bool:
    """Return True if the level above at least one of the plans is a valid plan for the element type."""
    if level.types is not None and dtype not in level.types:
        return False
    return any(Plan((level, *plan.levels), plan.leaf).accepts_type(dtype) for plan in plans)


# ---- 2. filter: the plans that may be chosen for the problem's type, then for its sides


@lru_cache(maxsize=4096)
def problem_for_ranking(problem: Problem, gpu: bool) -> Problem:
    """Return the problem for which candidates are ranked, with row-major matrices and without alpha, beta and addend.

    A column-major B counts as column-major only on a GPU, and only in types with a leaf that is slow on a column-major
    B.
    """
    plain = reduced_problem(problem)
    if (
        not gpu
        or problem.writes_triangle
        or not is_b_column_major(problem)
        or problem.dtype not in _types_slow_on_column_major_b()
    ):
        return plain
    _, k, n = problem.size
    return replace(plain, layouts=(Layout("C", max(k, 1)), Layout("F", max(k, 1)), Layout("C", max(n, 1))))


@clear_on_registration
@lru_cache(maxsize=1)
def _types_slow_on_column_major_b() -> frozenset[str]:
    """Return the element types in which at least one leaf is slow on a column-major B."""
    return frozenset(dtype for leaf in plan_leaves() for dtype in leaf.slow_columns)


# Padding makes the sides of leaf products longer by less than a third. A side shorter than UNPADDED_SIDE_SHARE times
# the shortest allowed side is therefore too short even after padding.
UNPADDED_SIDE_SHARE = 0.7
# The shortest allowed sides (m, k, n) of a product on a GPU, in rows. For shorter sides the predicted time of the
# vendor's product is too long, so that plans seem to win. The shortest sides were measured on an H100, see
# results/nvidia-h100-80gb-hbm3/thin.json and held-out.jsonl.gz. Level 3m: in complex64 it has 0.61 to 1.15 of the
# vendor's speed for sides below 176. `f16x3`: for 64 to 127 rows of C the vendor's predicted time is 1.2 to 1.4 times
# its measured time, and `f16x3` has 0.32 to 0.93 of the vendor's speed. For 66 to 127 columns of C the plans chosen by
# the model have 1.10 to 1.73 times the vendor's speed. Only few measured products have less than 64 columns. `tile`:
# for inner sides below 96 the vendor's predicted time is 1.1 to 1.3 times its measured time, and `tile` has 0.93 to
# 1.18 of the vendor's speed.
SHORTEST_COMPLEX_SIDES = (176, 176, 176)
SHORTEST_EMULATED_SIDES = (128, 0, 64)
SHORTEST_TILED_SIDES = (0, 96, 0)


class EligiblePlan(NamedTuple):
    """A plan that may be chosen for one element type on one device, with requirements on a problem's sides."""

    plan: Plan
    alignment: int  # every row of A, B and C must begin at a multiple of this number of bytes
    longest: float  # number of rows of the longest allowed side; inf: no limit
    shortest: Shape  # smallest allowed m, k and n; 0: no limit
    # the number of parts into which all levels together cut m, k and n; None: no cut
    parts: tuple[int, int, int] | None
    levels: int = 0  # number of levels of recursion
    bounds: MeasuredCrossovers | None = None  # measured bounds on the number of levels; None: no bound

    def accepts_operands(self, problem: Problem) -> bool:
        """Return True if the problem's rows are aligned and the sides are neither too short nor too long."""
        aligned = self.alignment == 1 or are_rows_aligned(problem, self.alignment)
        is_thin = any(side < least for side, least in zip(problem.size, self.shortest, strict=True))
        return aligned and not is_thin and (self.longest == inf or max(problem.size) <= self.longest)

    def has_too_many_levels(self, side: float) -> bool:
        """Return True if tau1, tau2 and tau3 allow fewer levels at this effective side than the plan has."""
        return self.bounds is not None and self.levels > self.bounds.max_levels(side)

    def has_too_short_leaves(self, problem: Problem, min_side: float) -> bool:
        """Return True if a leaf product has a side shorter than `min_side` rows even after padding."""
        if self.parts is None:
            return False
        (m, k, n), (rows, inner, cols), min_side = problem.size, self.parts, UNPADDED_SIDE_SHARE * min_side
        return m < min_side * rows or k < min_side * inner or n < min_side * cols


def filter_candidates(problem: Problem, calibration: Calibration, plans: Sequence[Plan] = ()) -> Iterator[Plan]:
    """Yield the plans in `plans` (if empty: the candidates) that may be chosen for the problem on this device."""
    side = calibration.matrix_side_for_crossovers(problem)
    for x in (
        _filter_eligible_plans(plans, problem, calibration) if plans else _eligible_candidates(problem, calibration)
    ):
        within = x.accepts_operands(problem) and not x.has_too_many_levels(side)
        if within and not x.has_too_short_leaves(problem, calibration.least):
            yield x.plan


def _eligible_candidates(problem: Problem, calibration: Calibration) -> tuple[EligiblePlan, ...]:
    """Return the candidates for the problem's element type with their requirements on the sides; cached."""
    return _eligible_plans_for_type(problem.dtype, problem.writes_triangle, calibration)


@clear_on_registration
@lru_cache(maxsize=256)
def _eligible_plans_for_type(dtype: str, writes_triangle: bool, calibration: Calibration) -> tuple[EligiblePlan, ...]:
    plans = device_candidate_plans(calibration.batches, writes_triangle)
    return tuple(x for plan in plans if (x := _eligible_plan(plan, dtype, writes_triangle, calibration)))


def _filter_eligible_plans(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[EligiblePlan]:
    """Yield the plans that may be chosen for the problem's element type, with their requirements on the sides."""
    for plan in plans:
        if (found := _eligible_plan(plan, problem.dtype, problem.writes_triangle, calibration)) is not None:
            yield found


def _eligible_plan(plan: Plan, dtype: str, writes_triangle: bool, calibration: Calibration) -> EligiblePlan | None:
    """Return the plan with its requirements on the sides; None if the plan may not be chosen for this type and device.

    A leaf may be chosen only for the element types that the leaf lists, and only if the calibration has the leaf's
    rate. The tiled kernel is a candidate only in the element types in which the kernel can compute sums inside
    products.
    """
    leaf, parts = plan.leaf_use.leaf, None
    if plan.has_smaller_products:  # a level without a fixed number of parts does not change `parts`
        cuts = [level.cut.parts for level in plan.levels if level.cut]
        m, k, n = (prod(axis) for axis in zip((1, 1, 1), *cuts, strict=True))
        parts = (m, k, n)
    if writes_triangle and not plan.levels and plan != VENDOR:  # one call of fmm's own leaf computes the triangle
        rate = calibration.rates.get(plan.rate_name(dtype)) if leaf.rate else calibration.find_rate(dtype)
        supported = dtype in (*leaf.kernel_triangles, *leaf.loose_triangles)
        if not supported or rate is None or rate.half_by_tiles >= 1:
            return None
        return EligiblePlan(plan, leaf.alignment, leaf.longest or inf, (0, 0, 0), parts)
    if not plan.is_candidate_for(dtype) or (writes_triangle and not _has_needed_column_copies(plan, dtype)):
        return None
    rate, tiled = calibration.find_rate(plan.rate_name(dtype)), plan.uses_tile_model
    inside = plan.leaf_type(dtype) in leaf.types_with_sums
    if rate is None or (tiled and not (rate.tiled > 0 and inside)):
        return None
    # The products of a batch read only temporaries, which have aligned rows.
    reads_any_rows = plan.is_batched or (tiled and rate.tiled_odd > 0)
    # The crossovers tau1 to tau3 were measured on whole products, not on blocks of a triangle.
    levels, bounds = count_levels(plan), None if writes_triangle else calibration.crossovers_of_plan(plan)
    shortest = min_sides_for_plan(plan, rate) if calibration.batches else (0, 0, 0)
    return EligiblePlan(plan, 1 if reads_any_rows else leaf.alignment, inf, shortest, parts, levels, bounds)


def min_sides_for_plan(plan: Plan, rate: ProductRate) -> Shape:
    """Return the smallest m, k and n with which a plan may be chosen on a GPU; `rate`: the rate of the plan's leaf."""
    limits = [(0, 0, 0)]
    if any(level.is_complex_split for level in plan.levels):
        limits.append(SHORTEST_COMPLEX_SIDES)
    if rate.blocks:  # only the kernel `f16x3` has a rate with `blocks`
        limits.append(SHORTEST_EMULATED_SIDES)
    if plan.uses_tile_model and not plan.levels:
        limits.append(SHORTEST_TILED_SIDES)
    m, k, n = (max(axis) for axis in zip(*limits, strict=True))
    return m, k, n


def _has_needed_column_copies(plan: Plan, dtype: str) -> bool:
    """Return True if, for blocks on the diagonal of C, the plan copies operands exactly for the leaves that need it.

    A leaf needs a copy if it is slow on a column-major B. The plan makes a copy if the leaf's option names an operand
    order, such as `outer` in `tile.outer`.
    """
    return all((dtype in use.leaf.slow_columns) == (use.order is not None) for use in _leaves_of_diagonal_blocks(plan))


def _leaves_of_diagonal_blocks(plan: Plan) -> Iterator[LeafUse]:
    """Yield the leaves that the plan's levels name for blocks on the diagonal, such as `tile` in `gram.tile.outer`."""
    return (parse_leaf_option(name) for level in plan.levels for name in level.named_leaves)


# ---- 3. rank: the predicted time of each plan that passes the filter


def rank_candidates(problem: Problem, calibration: Calibration, plans: Sequence[Plan] = ()) -> tuple[Candidate, ...]:
    """Return the candidates: plans that pass the filter, with predictions, the fastest first.

    The plans are taken from `plans`, or from all candidates if `plans` is empty. Plans with equal predicted times keep
    their order.
    """
    vendor_seconds = recurring_call_seconds(predict_vendor(problem, calibration), calibration)
    found: list[Candidate] = []
    for plan in filter_candidates(problem, calibration, plans):
        with suppress(PlanError):  # a plan that cannot run on these sides is skipped
            work = estimated_work(plan, problem)
            if plan.has_smaller_products and work.smallest_leaf_side < calibration.least:
                continue
            prediction = predict_from_work(plan, problem, work, calibration)
            seconds = recurring_call_seconds(prediction, calibration)
            time = seconds / vendor_seconds if vendor_seconds else 1.0
            growth = expected_error_growth(plan, problem.dtype, not calibration.batches)
            margin = required_margin(plan, problem, calibration)
            found.append(Candidate(plan, prediction, time, growth, margin))
    return _sorted_by_time(found)


def _sorted_by_time(candidates: Sequence[Candidate]) -> tuple[Candidate, ...]:
    """Return the candidates sorted by `time`; the device's predicted seconds decide between equal times."""
    return tuple(sorted(candidates, key=lambda c: (c.time, c.prediction.predicted_seconds)))


def recurring_call_seconds(prediction: Prediction, calibration: Calibration) -> float:
    """Return the seconds of a recurring call: the longer of the device's and the host's time.

    The device computes one call while the host starts the next call. For a caller who waits for each result, a call
    takes the sum of the device's and the host's time; the model leaves out this case.
    """
    return max(prediction.predicted_seconds, host_call_seconds(prediction.plan, prediction.problem, calibration))


def host_call_seconds(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """Return the time in seconds that the host needs for one call with the plan, however small the matrices are.

    The time of a call of torch's or CuPy's own product applies to whole products only: torch and CuPy have no function
    for a triangle.
    """
    if plan.levels or plan.leaf_use.leaf.launches > 1:
        return calibration.call
    if plan == VENDOR and not problem.writes_triangle:
        return calibration.call_of_library
    return calibration.call_of_small if plan.leaf_use.leaf.longest else calibration.call_of_leaf


# ---- margins: the gain that a candidate must promise, larger where the predicted time is less certain

# All margins are shares of the vendor's time.

# The margin grows by FEW_TILES_MARGIN divided by the number of C's tiles. The model's formula ignores how much of the
# device the last wave of tiles fills. An H200 computes 132 tiles at a time. On an H200 the error of predicted speedups
# is 8 to 15 % if C has fewer than 800 tiles, and 4 % from 1600 tiles on.
FEW_TILES_MARGIN = 45.0
# For complex types, the number of tiles of C is counted with tiles of at least this number of rows and columns.
# FEW_TILES_MARGIN was determined with tiles of 128 rows and columns. A fit may find tiles of 64 rows and columns; C
# would then count four times as many tiles, and the margin would be too small. On an H100 in complex128, `3m.batched >
# vendor` takes 1.33 times the vendor's time at 368 x 19344 x 1120 (predicted 0.72). With MIN_COMPLEX_TILE_SIDE, the
# chosen plan takes longer than the vendor for 6 of 220 shapes; without it, for 16 shapes.
MIN_COMPLEX_TILE_SIDE = 128.0
# The factor on FEW_TILES_MARGIN for types in which the model counts whole waves of tiles (`ProductRate.sms`). With
# whole waves the predictions are better, so that a smaller margin suffices. Among 111 shapes in float32 without
# emulation on an H200, fewer shapes get a slow plan with the factor 0.45 than with the factor 1.
COUNTED_ROUNDS_MARGIN_SHARE = 0.45
# The factor on FEW_TILES_MARGIN for plans that multiply in another element type without cutting a side. On an H200 in
# complex128, plans for products with 318 rows take 1.02 times the vendor's time (predicted 0.86).
OTHER_TYPE_MARGIN_SHARE = 0.5
# The factor on FEW_TILES_MARGIN for complex products whose real products run on `f16x3`. `f16x3` is so much faster than
# the vendor that an error of the vendor's predicted time seldom changes the choice. Of 123 thin complex64 products on
# an H200 and an H100, 15 chosen plans have less than 0.9 of the best plan's speed with the factor above, and 7 with
# this factor; none is slower than the vendor. Factors from 0 to 0.25 give the same numbers.
COMPLEX_F16X3_MARGIN_SHARE = 0.25
# Plans that only copy operands to aligned rows have the additional margin THIN_OPERAND_MARGIN / shortest side in rows.
# For thin products with unaligned rows, the vendor's predicted time is uncertain. On an H200 in TF32, two of 37 plans
# that only copy operands are slower than the vendor: by 9 % at the shortest side 201, and by 3 % at the shortest side
# 221.
THIN_OPERAND_MARGIN = 12.8
# In TF32 plans that only copy operands have the additional margin TF32_THIN_OPERAND_MARGIN / (shortest side)^3, if this
# margin exceeds THIN_OPERAND_MARGIN / shortest side. The model predicts too large a gain for TF32, and the error grows
# as the shortest side shrinks. On an H200 in TF32, plans take 1.39 times the vendor's time at the shortest side 129
# (predicted 0.70) and 1.03 times at 205 (predicted 0.83); on an H100 1.45 times at 129 (predicted 0.64) and 1.27 times
# at 153 (predicted 0.73). With a shortest side of 207 or more, no TF32 plan is slower than the vendor. In bfloat16 and
# float16, none of 32 plans with a shortest side of 129 or more is slower than the vendor.
TF32_THIN_OPERAND_MARGIN = 8e5
# Plans that cut a self-adjoint product on a GPU have the additional margin TRIANGLE_CUT_MARGIN. For the vendor's syrk
# the model predicts too long a time, and for a plan's products below the diagonal of C too short a time. On an H200 in
# float64, plans with a cut take 1.09 times the vendor's time at 5048 x 2716 (predicted 0.93) and 0.96 at 8192
# (predicted 0.87). The margin is 0 for plans in which the tiled kernel computes the diagonal blocks of C from
# transposed copies: the model predicts the time of these plans well. On an H200 in float32, plans with transposed
# copies take 0.91 of the vendor's time at 8192 (predicted 0.91) and 0.69 at 32768 (predicted 0.69).
TRIANGLE_CUT_MARGIN = 0.08


def required_margin(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """Return the required margin of a plan: the share of the vendor's time by which the plan must be predicted to win.

    The vendor's triangle product also needs a margin, since it replaces the vendor's whole product.
    """
    return sum(required_margin_parts(plan, problem, calibration))


def required_margin_parts(plan: Plan, problem: Problem, calibration: Calibration) -> tuple[float, float]:
    """Return the two parts of a plan's required margin: the calibration's margin, and a margin for the problem's shape.

    The calibration's margin is larger for products by fmm's own kernels, since the model predicts the vendor's products
    best. The tiled kernel without a level needs no margin: the kernel has no sums, and where its time is close to the
    vendor's, either choice is good.
    """
    leaf, tiled = plan.leaf_use.leaf, plan.uses_tile_model
    margin = calibration.tiled_margin if tiled or leaf.rate else calibration.margin
    if not plan.levels and (tiled or leaf.longest > 0):
        margin = 0.0
    cuts_triangle = problem.writes_triangle and bool(plan.levels) and calibration.batches
    of_cut = (
        TRIANGLE_CUT_MARGIN if cuts_triangle and not any(use.order for use in _leaves_of_diagonal_blocks(plan)) else 0.0
    )
    return margin, of_cut + _small_product_margin(plan, problem, calibration)


def _small_product_margin(plan: Plan, problem: Problem, calibration: Calibration) -> float:
    """Return the additional margin for few tiles of C or a short side: the model is fitted to large products."""
    tile, shortest = calibration.require_rate(problem.dtype).tile, min(problem.size)
    is_whole_by_vendor = plan == VENDOR and not problem.writes_triangle
    if tile <= 1 or not shortest or is_whole_by_vendor or plan.leaf_use.leaf.longest:
        return 0.0
    if problem.element_type.is_complex and runs_on_f16x3(plan, problem.dtype, calibration):
        return COMPLEX_F16X3_MARGIN_SHARE * few_tiles_margin(problem, calibration)
    if plan.has_smaller_products or problem.writes_triangle:
        return few_tiles_margin(problem, calibration)
    has_other_type = plan.leaf_type(problem.dtype) != problem.dtype
    if has_other_type:
        return OTHER_TYPE_MARGIN_SHARE * few_tiles_margin(problem, calibration)
    steep = TF32_THIN_OPERAND_MARGIN / shortest**3 if problem.dtype == "tf32" else 0.0
    return max(THIN_OPERAND_MARGIN / shortest, steep)


def runs_on_f16x3(plan: Plan, dtype: str, calibration: Calibration) -> bool:
    """Return True if the plan's leaf products run on the kernel `f16x3`, the only kernel with the rate `blocks`."""
    rate = calibration.find_rate(plan.rate_name(dtype))
    return rate is not None and rate.blocks > 0


def few_tiles_margin(problem: Problem, calibration: Calibration) -> float:
    """Return the additional margin for a small number of tiles of C; the margin is larger for fewer tiles.

    A complex entry of C counts as two real entries in the number of tiles. For one triangle only half of the tiles are
    computed.
    """
    rate, entries = calibration.require_rate(problem.dtype), float(problem.m * problem.n * problem.batch)
    entries *= (1 + problem.element_type.is_complex) / (1 + problem.writes_triangle)
    share, side = (
        COUNTED_ROUNDS_MARGIN_SHARE if rate.sms else 1.0,
        max(rate.tile, MIN_COMPLEX_TILE_SIDE * problem.element_type.is_complex),
    )
    return share * FEW_TILES_MARGIN * side**2 / entries if rate.tile > 1 and entries else 0.0


# ---- 4. pick: the fastest candidate that beats the vendor within the limits, and the reason in words


def pick_candidate(candidates: Sequence[Candidate], limits: Limits) -> Candidate:
    """Return the fastest candidate that exceeds no limit and beats the vendor by its required margin; else the vendor.

    `candidates` must be sorted by time. The vendor also computes the product if all plans exceed a limit.
    """
    vendor = next(c for c in candidates if c.plan == VENDOR)
    return next((c for c in _winning_candidates(candidates, limits) if c.fits_workspace(limits.workspace)), vendor)


def _winning_candidates(candidates: Sequence[Candidate], limits: Limits) -> list[Candidate]:
    """Return the winning candidates that exceed no limit; the workspace is not checked, since counting takes longer.

    A limit below 1 on the error growth forbids the vendor's product too, so every allowed plan wins, however slow it
    is.
    """
    allowed = [c for c in candidates if limits.allows_plan(c.plan, c.error_growth)]
    return allowed if limits.forbids_vendor else [c for c in allowed if c.beats_vendor]


def _reason_text(best: Candidate, candidates: tuple[Candidate, ...], calibration: Calibration, limits: Limits) -> str:
    """Return the reason why `best` was picked, and the limit that a faster candidate exceeds."""
    fastest = candidates[0]
    if limits.forbids_vendor:
        limit = f"an error growth of at most {limits.error_growth:g}"
        if best.plan == VENDOR:
            return f"the vendor answers, since no candidate has {limit} within the other limits ({calibration.source})"
        return f"the fastest plan with {limit}: {best.time:.3f} of the vendor's time ({calibration.source})"
    if not any(c.beats_vendor for c in candidates if c.plan != VENDOR):
        least = min((c.margin for c in candidates if c.plan != VENDOR), default=calibration.margin)
        if least >= 1:
            what = f"no plan can win: the margin for this shape is {least:.3g} times the vendor's time"
            return f"{what} ({calibration.source})"
        return f"no plan is predicted to take at most {1 - least:.3f} of the vendor's time ({calibration.source})"
    if fastest.plan == best.plan or not fastest.beats_vendor:
        return f"least predicted time: {best.time:.3f} of the vendor's ({calibration.source})"
    what = "more workspace" if limits.allows_plan(fastest.plan, fastest.error_growth) else "more error"
    if fastest.plan.uses_emulation and not limits.emulation:
        what = "other types of numbers"
    elif limits.componentwise and not has_componentwise_bound(fastest.plan):
        what = "a looser bound on the error of its entries"
    best_of = (
        "no plan within the limits wins clearly" if best.plan == VENDOR else "least predicted time within the limits"
    )
    return f"{best_of}; {fastest.plan} would need {what} than allowed ({calibration.source})"
