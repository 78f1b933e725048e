"""Compute the papers' thresholds from a tuned model and its choices, with 95 % intervals.

fmm.config.schema defines each threshold. A 95 % interval contains the threshold for 95 % of the calibrations sampled
from the fit (fmm.tuner.fit.sampled). All samples serve alpha, pi and n1; fewer serve tau1 to tau3, with the few plans
that the fitted model ranks first for each number of levels. For epsilon the measured shapes are resampled too, with
replacement.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from math import inf, isfinite

import numpy as np

from fmm.config.certification import MIN_SPEEDUP
from fmm.config.schema import NAMES_IN_SECONDS, TAU_NAMES, Interval, ThresholdRange, Thresholds
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, all_candidates, default_error_growth_limit, rank_candidates, required_margin
from fmm.perfmodel.level_bounds import count_levels
from fmm.perfmodel.papers import li_counts as li_thresholds
from fmm.perfmodel.papers import recursion_points
from fmm.perfmodel.papers.recursion_points import alpha_over_pi, alpha_seconds, pi_seconds
from fmm.problem import Problem
from fmm.tuner.fit.sampled import SLOW_SAMPLE_COUNT, central_interval_95
from fmm.tuner.trials.record import Size

# Crossovers are searched on SIDE_GRID, which contains the ROUND_SIDES that are shown, and then between two grid points
# by bisection, up to a ratio of SIDE_TOLERANCE.
ROUND_SIDES = tuple(1000 << i for i in range(7))
SIDE_GRID = tuple(sorted({*(round(256 * 2 ** (i / 8) / 32) * 32 for i in range(65)), *ROUND_SIDES}))
ALIGNED_SIDE_STEP = 16  # sides that are multiples of this have aligned rows
SIDE_TOLERANCE = 1.01
LEVEL_COUNTS = (1, 2, 3)


def smallest_side_from_which(holds: Callable[[int], bool]) -> float:
    """Return the side, to 1 %, from which `holds` is true for all larger sides of the grid; infinite if for none."""
    last = next((i for i in reversed(range(len(SIDE_GRID))) if not holds(SIDE_GRID[i])), None)
    if last is None:
        return float(SIDE_GRID[0])
    if last + 1 == len(SIDE_GRID):
        return inf
    low, high = SIDE_GRID[last], SIDE_GRID[last + 1]
    while high > SIDE_TOLERANCE * low and (middle := (low + high) // 2 // ALIGNED_SIDE_STEP * ALIGNED_SIDE_STEP) > low:
        low, high = (low, middle) if holds(middle) else (middle, high)
    return float(high)


def crossover_of_levels(calibration: Calibration, dtype: str, levels: int, emulation: bool = True) -> float:
    """Return the side from which the model chooses at least `levels` levels for squares; infinite if beyond 65536."""
    return smallest_side_from_which(lambda side: chosen_level_count(calibration, dtype, side, emulation) >= levels)


def chosen_level_count(calibration: Calibration, dtype: str, side: int, emulation: bool = True) -> int:
    """Return the number of levels that the model chooses for a square, without a limit on the workspace."""
    problem = Problem(side, side, side, dtype)
    for plan, time in ranked_plans(with_margin(calibration, 0.0), problem, emulation):
        if time <= 1 - required_margin(plan, problem, calibration):
            return count_levels(plan)
    return 0


@lru_cache(maxsize=2048)
def ranked_plans(calibration: Calibration, problem: Problem, emulation: bool = True) -> tuple[tuple[Plan, float], ...]:
    """Return the candidates within the default error limit, and their predicted times as multiples of the vendor's.

    The margin has no influence, so that calibrations with several margins share the cached result.
    """
    limits = Limits(1 << 62, default_error_growth_limit(calibration.batches), emulation)
    candidates = all_candidates(problem, calibration, limits)
    return tuple(
        (c.plan, c.time) for c in candidates if c.plan != VENDOR and limits.allows_plan(c.plan, c.error_growth)
    )


# ---- the thresholds


def compute_thresholds(
    calibration: Calibration,
    dtype: str,
    measured: Sequence[tuple[Size, float]] = (),
    strategies: Mapping[str, str] | None = None,
) -> Thresholds:
    """Return the thresholds of a tuned model. Measured bounds on the number of levels are reported, and not applied.

    `measured` has pairs of size and speedup by one level, `strategies` the tile strategies of fmm's own kernel by side.
    """
    bounds, calibration = calibration.level_bounds, replace(calibration, level_bounds=())
    tau1, tau2, tau3 = (crossover_range(calibration, dtype, levels) for levels in LEVEL_COUNTS)
    return Thresholds(
        *alpha_and_pi(calibration, dtype),
        recursion_point_by_equation_3(calibration, dtype),
        measured_recursion_point(measured),
        fit_epsilon(calibration, dtype, measured),
        tau1,
        tau2,
        tau3,
        strategies or {},
        speedups_by_side(measured),
        without_emulation=taus_without_emulation(calibration, dtype),
        measured_taus={x.baseline: dict(zip(TAU_NAMES, x.crossover_sides, strict=True)) for x in bounds},
    )


def large_problem(dtype: str) -> Problem:
    """Return a problem for which alpha and pi have reached their limits for large sizes."""
    return Problem(1 << 15, 1 << 15, 1 << 15, dtype)


def alpha_and_pi(calibration: Calibration, dtype: str) -> tuple[float, float]:
    """Return alpha and pi: the seconds of one addition and of one flop."""
    large = large_problem(dtype)
    return alpha_seconds(calibration, large.itemsize), pi_seconds(calibration, large)


def recursion_point_by_equation_3(calibration: Calibration, dtype: str) -> float | None:
    """Return n1, the recursion point by Equation 3; None if one level never pays."""
    ratio = alpha_over_pi(calibration, large_problem(dtype))
    return finite_or_none(recursion_points.recursion_point(ratio, recursion_points.WINOGRAD_WORK))


def crossover_range(calibration: Calibration, dtype: str, levels: int) -> ThresholdRange:
    """Return the sides from which `levels` levels are predicted to gain 2 %, 0 and the margin."""
    ends = (with_margin(calibration, x) for x in (MIN_SPEEDUP - 1, 0.0))
    value, low, own = (finite_or_none(crossover_of_levels(c, dtype, levels)) for c in (*ends, calibration))
    high = None if own is None or value is None else max(own, value)
    return ThresholdRange(value, low, high)


def with_margin(calibration: Calibration, margin: float) -> Calibration:
    """Return the calibration with another margin."""
    return replace(calibration, margin=margin, tiled_margin=margin)


def taus_without_emulation(calibration: Calibration, dtype: str) -> dict[str, float | None]:
    """Return tau1 to tau3 with emulation forbidden; empty if no candidate emulates by products in another type."""
    free = with_margin(calibration, 0.0)
    plans = (plan for side in ROUND_SIDES for plan, _ in ranked_plans(free, Problem(side, side, side, dtype), True))
    if not any(plan.emulates for plan in plans):
        return {}
    required = with_margin(calibration, MIN_SPEEDUP - 1)
    sides = (finite_or_none(crossover_of_levels(required, dtype, levels, emulation=False)) for levels in LEVEL_COUNTS)
    return dict(zip(TAU_NAMES, sides, strict=True))


def finite_or_none(x: float) -> float | None:
    """Return a finite number, None for infinity."""
    return x if isfinite(x) else None


def speedups_by_side(measured: Sequence[tuple[Size, float]]) -> dict[str, float]:
    """Return the speedups of one level on squares by side."""
    return {str(size[0]): round(gain, 4) for size, gain in sorted(measured) if len(set(size)) == 1}


def measured_recursion_point(measured: Sequence[tuple[Size, float]]) -> float | None:
    """Return the side from which every measured square gained by one level.

    None if the largest square did not gain, or if all squares gained and the point is below them.
    """
    square_speedups = sorted((size[0], gain) for size, gain in measured if len(set(size)) == 1)
    lost = [i for i, (_, gain) in enumerate(square_speedups) if gain <= 1]
    if not lost or lost[-1] + 1 == len(square_speedups):
        return None
    return float(square_speedups[lost[-1] + 1][0])


def fit_epsilon(calibration: Calibration, dtype: str, measured: Sequence[tuple[Size, float]]) -> float | None:
    """Return the smallest addition to alpha / pi with which Equation 2 agrees with the most measurements.

    None without measurements. The result is also None if 0 is the best addition while all products gained, or all lost,
    since epsilon is then not determined.
    """
    if not measured:
        return None

    def alpha_over_pi_at(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    large = alpha_over_pi(calibration, large_problem(dtype))
    most = [
        recursion_points.max_epsilon(size, alpha_over_pi_at, recursion_points.WINOGRAD_WORK) for size, _ in measured
    ]
    gained = [gain > 1 for _, gain in measured]
    steps = [large * x / 20 for x in range(-19, 61)]
    agreement = {e: sum((e < x) == own for x, own in zip(most, gained, strict=True)) for e in steps}
    best = max(agreement.values())
    found = min((e for e in steps if agreement[e] == best), key=abs)
    return found if found or len(set(gained)) == 2 else None


def li_plan(scheme: str, side: int, found: Thresholds, leaf: str) -> Plan:
    """Return the plan of Li, Ranka and Sahni's recursive code with a tuning's tau1 and tau2.

    A leaf that does not emulate has the thresholds without emulation. A missing threshold means no level at any size.
    """
    never = 1 << 40
    own = {} if Plan.parse(leaf).emulates else found.without_emulation
    sides = (own.get(name, found.value(name)) for name in TAU_NAMES[:2])
    tau1, tau2 = (never if side is None else int(side) for side in sides)
    return li_thresholds.threshold_plan(scheme, side, tau1, max(tau1, tau2), leaf)


PLANS_PER_LEVEL_COUNT = 2  # plans that are compared for each number of levels


def add_threshold_intervals(
    found: Thresholds,
    calibration: Calibration,
    dtype: str,
    sampled: Sequence[Calibration],
    measured: Sequence[tuple[Size, float]] = (),
) -> Thresholds:
    """Return the thresholds with their 95 % intervals.

    A threshold that is equal in all samples has no interval: alpha, for example, if the rate of sums is undetermined.
    """
    if not sampled:
        return found
    alphas, pis = zip(*(alpha_and_pi(sample, dtype) for sample in sampled), strict=True)
    intervals = {
        "alpha": central_interval_95(alphas),
        "pi": central_interval_95(pis),
        "n1": central_interval_95([recursion_point_by_equation_3(sample, dtype) for sample in sampled]),
    }
    epsilons = _resampled_epsilons(sampled[:SLOW_SAMPLE_COUNT], dtype, measured)
    if found.epsilon is not None and epsilons:
        intervals["epsilon"] = central_interval_95([found.epsilon, *epsilons])
    choices = [_level_count_function(calibration, sample, dtype) for sample in sampled[:SLOW_SAMPLE_COUNT]]
    for tau, levels in zip(TAU_NAMES, LEVEL_COUNTS, strict=True):
        sides = [_crossover_of_sample(chosen, levels) for chosen in choices]
        intervals[tau] = central_interval_95([found.value(tau), *sides])
    varying = {
        name: _rounded_interval(name, ends)
        for name, ends in intervals.items()
        if name in TAU_NAMES or ends[0] != ends[1]
    }
    return replace(found, intervals=varying)


def _rounded_interval(name: str, interval: Interval) -> Interval:
    """Return an interval with four digits, sides as whole numbers: random samples do not support more."""
    low, high = (None if x is None else float(f"{x:.4g}" if name in NAMES_IN_SECONDS else f"{x:.0f}") for x in interval)
    return low, high


def _resampled_epsilons(
    sampled: Sequence[Calibration], dtype: str, measured: Sequence[tuple[Size, float]]
) -> list[float]:
    """Return the epsilon of each sample with resampled shapes; samples without a gain or a loss are left out."""
    random, found = np.random.default_rng(0), []
    for sample in sampled if measured else ():
        some = [measured[i] for i in random.integers(0, len(measured), len(measured))]
        epsilon = fit_epsilon(sample, dtype, some)
        if epsilon is not None and len({gain > 1 for _, gain in some}) == 2:
            found.append(epsilon)
    return found


def _crossover_of_sample(levels_chosen: Callable[[int], int], levels: int) -> float | None:
    """Return the side from which at least `levels` levels are chosen; None if never."""
    return finite_or_none(smallest_side_from_which(lambda side: levels_chosen(side) >= levels))


def _level_count_function(calibration: Calibration, sample: Calibration, dtype: str) -> Callable[[int], int]:
    """Return the number of levels that gain most by a sampled calibration, 2 % at least, as a function of the side.

    The function remembers its results: the searches for tau1 to tau3 visit the same sides.
    """
    free, required = with_margin(calibration, 0.0), with_margin(sample, MIN_SPEEDUP - 1)

    @cache
    def levels_chosen(side: int) -> int:
        first = _fastest_plans_by_levels(free, dtype, SIDE_GRID[bisect_left(SIDE_GRID, side)])
        candidates = rank_candidates(Problem(side, side, side, dtype), required, first) if first else ()
        return next((count_levels(candidate.plan) for candidate in candidates if candidate.beats_vendor), 0)

    return levels_chosen


@lru_cache(maxsize=1024)
def _fastest_plans_by_levels(calibration: Calibration, dtype: str, side: int) -> tuple[Plan, ...]:
    """Return the fastest plans of each number of levels, more than three levels together."""
    by_levels: dict[int, list[Plan]] = defaultdict(list)
    for plan, _ in ranked_plans(calibration, Problem(side, side, side, dtype), True):
        by_levels[min(count_levels(plan), LEVEL_COUNTS[-1])].append(plan)
    return tuple(plan for plans in by_levels.values() for plan in plans[:PLANS_PER_LEVEL_COUNT])
