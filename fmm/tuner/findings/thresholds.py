"""Compute the papers' thresholds of a tuned model (alpha, pi, n1, epsilon, tau1, tau2, tau3) with 95 % intervals.

fmm.config.schema defines each threshold. The 95 % interval of a threshold contains its values for 95 % of the
calibrations that fmm.tuner.fit.sampled draws around the fit. The intervals of alpha, pi and n1 are computed from all
sampled calibrations. The intervals of tau1, tau2 and tau3 are computed from REDUCED_SAMPLE_COUNT calibrations, and only
from the fitted model's best plans for each number of levels. For the interval of epsilon, the measured shapes are also
drawn at random, with replacement.
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
from fmm.config.schema import NAMES_IN_SECONDS, TAU_NAMES, ThresholdInterval, ThresholdRange, Thresholds
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, all_candidates, default_error_growth_limit, rank_candidates, required_margin
from fmm.perfmodel.crossovers import count_levels
from fmm.perfmodel.papers import li_counts as li_thresholds
from fmm.perfmodel.papers import recursion_points
from fmm.perfmodel.papers.recursion_points import alpha_over_pi, alpha_seconds, pi_seconds
from fmm.problem import Problem
from fmm.tuner.fit.sampled import REDUCED_SAMPLE_COUNT, central_interval_95
from fmm.tuner.trials.record import ProductSize

# A crossover is first searched on the sides of SIDE_GRID, then by bisection between two neighbours. The bisection ends
# when the ratio of the two sides is at most SIDE_TOLERANCE. The sides ROUND_SIDES are part of the grid, because tables
# show the decisions for these sides.
ROUND_SIDES = tuple(1000 << i for i in range(7))
SIDE_GRID = tuple(sorted({*(round(256 * 2 ** (i / 8) / 32) * 32 for i in range(65)), *ROUND_SIDES}))
ALIGNED_SIDE_STEP = 16  # the bisection visits only multiples of this side, for which rows are aligned
SIDE_TOLERANCE = 1.01
LEVEL_COUNTS = (1, 2, 3)  # smallest numbers of levels above the crossovers tau1, tau2 and tau3


def smallest_side_satisfying(holds: Callable[[int], bool]) -> float:
    """Return the smallest side, within 1 %, from which `holds(x)` is true for each side x up to 65536.

    Return infinity if `holds` is false for 65536.
    """
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
    """Return the smallest side from which the model chooses at least `levels` levels; infinity if above 65536."""
    return smallest_side_satisfying(lambda side: chosen_level_count(calibration, dtype, side, emulation) >= levels)


def chosen_level_count(calibration: Calibration, dtype: str, side: int, emulation: bool = True) -> int:
    """Return the number of levels that the model chooses for a square product without a workspace limit."""
    problem = Problem(side, side, side, dtype)
    for plan, time in ranked_plans(calibration_with_margin(calibration, 0.0), problem, emulation):
        if time <= 1 - required_margin(plan, problem, calibration):
            return count_levels(plan)
    return 0


@lru_cache(maxsize=2048)
def ranked_plans(calibration: Calibration, problem: Problem, emulation: bool = True) -> tuple[tuple[Plan, float], ...]:
    """Return the candidates within the default error limit; each has its predicted time divided by the vendor's.

    The margin of the calibration has no effect on the result. Callers pass a calibration with the margin 0, so that
    calibrations that differ only in their margins share a cached result.
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
    measured: Sequence[tuple[ProductSize, float]] = (),
    strategies: Mapping[str, str] | None = None,
) -> Thresholds:
    """Return the thresholds of a tuned model, with the measured crossovers of the calibration.

    `measured` has pairs (size, measured speedup of one level). `strategies` maps the side of a square to the tile
    strategy of fmm's own kernel.
    """
    bounds, calibration = calibration.measured_crossovers, replace(calibration, measured_crossovers=())
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


def large_square_problem(dtype: str) -> Problem:
    """Return a square product that is so large that alpha and pi hardly depend on the size."""
    return Problem(1 << 15, 1 << 15, 1 << 15, dtype)


def alpha_and_pi(calibration: Calibration, dtype: str) -> tuple[float, float]:
    """Return alpha and pi: seconds per element of a matrix addition, and seconds per flop of the vendor's product."""
    large = large_square_problem(dtype)
    return alpha_seconds(calibration, large.itemsize), pi_seconds(calibration, large)


def recursion_point_by_equation_3(calibration: Calibration, dtype: str) -> float | None:
    """Return n1, the recursion point by D'Alberto and Nicolau's Equation 3; None if one level never gains."""
    ratio = alpha_over_pi(calibration, large_square_problem(dtype))
    return finite_or_none(recursion_points.recursion_point(ratio, recursion_points.WINOGRAD_WORK))


def crossover_range(calibration: Calibration, dtype: str, levels: int) -> ThresholdRange:
    """Return three sides, from which `levels` levels are predicted to gain 2 %, to gain 0 %, and to gain the margin."""
    ends = (calibration_with_margin(calibration, x) for x in (MIN_SPEEDUP - 1, 0.0))
    value, low, own = (finite_or_none(crossover_of_levels(c, dtype, levels)) for c in (*ends, calibration))
    high = None if own is None or value is None else max(own, value)
    return ThresholdRange(value, low, high)


def calibration_with_margin(calibration: Calibration, margin: float) -> Calibration:
    """Return the calibration with `margin` as the margin of all plans."""
    return replace(calibration, margin=margin, tiled_margin=margin)


def taus_without_emulation(calibration: Calibration, dtype: str) -> dict[str, float | None]:
    """Return tau1, tau2 and tau3 for decisions without emulation; empty if no candidate uses emulation."""
    free = calibration_with_margin(calibration, 0.0)
    plans = (plan for side in ROUND_SIDES for plan, _ in ranked_plans(free, Problem(side, side, side, dtype), True))
    if not any(plan.uses_emulation for plan in plans):
        return {}
    required = calibration_with_margin(calibration, MIN_SPEEDUP - 1)
    sides = (finite_or_none(crossover_of_levels(required, dtype, levels, emulation=False)) for levels in LEVEL_COUNTS)
    return dict(zip(TAU_NAMES, sides, strict=True))


def finite_or_none(x: float) -> float | None:
    """Return the number; None instead of infinity."""
    return x if isfinite(x) else None


def speedups_by_side(measured: Sequence[tuple[ProductSize, float]]) -> dict[str, float]:
    """Return the measured speedups of square products as a dictionary: side -> speedup of one level."""
    return {str(size[0]): round(gain, 4) for size, gain in sorted(measured) if len(set(size)) == 1}


def measured_recursion_point(measured: Sequence[tuple[ProductSize, float]]) -> float | None:
    """Return the smallest measured side from which one level was faster on all measured squares.

    Return None if one level was slower on the largest square or faster on all squares: the recursion point is then
    outside the measured sides.
    """
    square_speedups = sorted((size[0], gain) for size, gain in measured if len(set(size)) == 1)
    lost = [i for i, (_, gain) in enumerate(square_speedups) if gain <= 1]
    if not lost or lost[-1] + 1 == len(square_speedups):
        return None
    return float(square_speedups[lost[-1] + 1][0])


def fit_epsilon(calibration: Calibration, dtype: str, measured: Sequence[tuple[ProductSize, float]]) -> float | None:
    """Return epsilon, which D'Alberto and Nicolau's Equation 2 adds to alpha / pi.

    This epsilon makes the equation agree with as many measured shapes as possible. Of equally good values, the one
    nearest to 0 is returned.

    Return None if the measurements do not determine epsilon: there are no measurements, or epsilon = 0 agrees best and
    one level was faster on all shapes or slower on all shapes.
    """
    if not measured:
        return None

    def alpha_over_pi_at(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    large = alpha_over_pi(calibration, large_square_problem(dtype))
    most = [
        recursion_points.max_epsilon(size, alpha_over_pi_at, recursion_points.WINOGRAD_WORK) for size, _ in measured
    ]
    gained = [gain > 1 for _, gain in measured]
    steps = [large * x / 20 for x in range(-19, 61)]
    agreement = {e: sum((e < x) == own for x, own in zip(most, gained, strict=True)) for e in steps}
    best = max(agreement.values())
    found = min((e for e in steps if agreement[e] == best), key=abs)
    return found if found or len(set(gained)) == 2 else None


def li_threshold_plan(scheme: str, side: int, found: Thresholds, leaf: str) -> Plan:
    """Return the plan that Li, Ranka and Sahni's recursive code runs with a tuning's tau1 and tau2.

    If the leaf uses no emulation, tau1 and tau2 are those for decisions without emulation. A missing tau1 or tau2 is
    replaced by 2^40, which exceeds all sides.
    """
    never = 1 << 40
    own = {} if Plan.parse(leaf).uses_emulation else found.without_emulation
    sides = (own.get(name, found.threshold_value(name)) for name in TAU_NAMES[:2])
    tau1, tau2 = (never if side is None else int(side) for side in sides)
    return li_thresholds.threshold_plan(scheme, side, tau1, max(tau1, tau2), leaf)


WITHOUT_EMULATION = "{} without emulation"  # the name of the interval of tau1, tau2 or tau3 without emulation
PLANS_PER_LEVEL_COUNT = 2  # number of plans per number of levels from which each sampled calibration chooses


def add_threshold_intervals(
    found: Thresholds,
    calibration: Calibration,
    dtype: str,
    sampled: Sequence[Calibration],
    measured: Sequence[tuple[ProductSize, float]] = (),
    tau_intervals: bool = True,
) -> Thresholds:
    """Return the thresholds with 95 % intervals from the sampled calibrations.

    If `tau_intervals` is False, the intervals of tau1, tau2 and tau3 are left out, since they take most of the time. A
    threshold has no interval if all sampled calibrations give the same value, such as alpha if the fit did not
    determine the rate of sums.
    """
    if not sampled:
        return found
    alphas, pis = zip(*(alpha_and_pi(sample, dtype) for sample in sampled), strict=True)
    intervals = {
        "alpha": central_interval_95(alphas),
        "pi": central_interval_95(pis),
        "n1": central_interval_95([recursion_point_by_equation_3(sample, dtype) for sample in sampled]),
    }
    epsilons = _resampled_epsilons(sampled[:REDUCED_SAMPLE_COUNT], dtype, measured)
    if found.epsilon is not None and epsilons:
        intervals["epsilon"] = central_interval_95([found.epsilon, *epsilons])
    varying = {name: ends for name, ends in intervals.items() if ends[0] != ends[1]}
    if tau_intervals:
        with_emulation = {tau: found.threshold_value(tau) for tau in TAU_NAMES}
        varying |= _tau_intervals(calibration, dtype, sampled, with_emulation, True)
        without = _tau_intervals(calibration, dtype, sampled, found.without_emulation, False)
        varying |= {WITHOUT_EMULATION.format(tau): ends for tau, ends in without.items()}
    return replace(found, intervals={name: _rounded_interval(name, ends) for name, ends in varying.items()})


def _tau_intervals(
    calibration: Calibration,
    dtype: str,
    sampled: Sequence[Calibration],
    taus: Mapping[str, float | None],
    emulation: bool,
) -> dict[str, ThresholdInterval]:
    """Return the 95 % intervals of the model's tau1, tau2 and tau3; an empty dictionary if `taus` is empty."""
    if not taus:
        return {}
    choices = [_level_count_function(calibration, x, dtype, emulation) for x in sampled[:REDUCED_SAMPLE_COUNT]]
    return {
        tau: central_interval_95(
            [taus[tau], *(_crossover_by_sampled_calibration(chosen, levels) for chosen in choices)]
        )
        for tau, levels in zip(TAU_NAMES, LEVEL_COUNTS, strict=True)
    }


def _rounded_interval(name: str, interval: ThresholdInterval) -> ThresholdInterval:
    """Return an interval with rounded ends: alpha and pi to four digits, other thresholds to whole numbers."""
    low, high = (None if x is None else float(f"{x:.4g}" if name in NAMES_IN_SECONDS else f"{x:.0f}") for x in interval)
    return low, high


def _resampled_epsilons(
    sampled: Sequence[Calibration], dtype: str, measured: Sequence[tuple[ProductSize, float]]
) -> list[float]:
    """Return epsilon for each sampled calibration, each time with the measured shapes drawn again with replacement.

    A draw is skipped if its shapes do not determine epsilon: one level was faster on all these shapes, or slower on all
    of them.
    """
    random, found = np.random.default_rng(0), []
    for sample in sampled if measured else ():
        some = [measured[i] for i in random.integers(0, len(measured), len(measured))]
        epsilon = fit_epsilon(sample, dtype, some)
        if epsilon is not None and len({gain > 1 for _, gain in some}) == 2:
            found.append(epsilon)
    return found


def _crossover_by_sampled_calibration(chosen_levels_at: Callable[[int], int], levels: int) -> float | None:
    """Return the side from which a sampled calibration chooses `levels` levels or more; None if above 65536."""
    return finite_or_none(smallest_side_satisfying(lambda side: chosen_levels_at(side) >= levels))


def _level_count_function(
    calibration: Calibration, sample: Calibration, dtype: str, emulation: bool
) -> Callable[[int], int]:
    """Return a function of a side: the number of levels of the plan that the calibration `sample` chooses.

    The number is 0 if the predicted gain is below 2 %. To save time, `sample` chooses only among the plans that are the
    fastest ones for each number of levels by `calibration`. The function caches its results, since the searches for
    tau1, tau2 and tau3 visit the same sides.
    """
    free, required = calibration_with_margin(calibration, 0.0), calibration_with_margin(sample, MIN_SPEEDUP - 1)

    @cache
    def chosen_levels_at(side: int) -> int:
        first = _fastest_plans_by_levels(free, dtype, SIDE_GRID[bisect_left(SIDE_GRID, side)], emulation)
        candidates = rank_candidates(Problem(side, side, side, dtype), required, first) if first else ()
        return next((count_levels(candidate.plan) for candidate in candidates if candidate.beats_vendor), 0)

    return chosen_levels_at


@lru_cache(maxsize=1024)
def _fastest_plans_by_levels(
    calibration: Calibration, dtype: str, side: int, emulation: bool = True
) -> tuple[Plan, ...]:
    """Return the fastest plans on a square for each number of levels; plans with more than three count as three."""
    by_levels: dict[int, list[Plan]] = defaultdict(list)
    for plan, _ in ranked_plans(calibration, Problem(side, side, side, dtype), emulation):
        by_levels[min(count_levels(plan), LEVEL_COUNTS[-1])].append(plan)
    return tuple(plan for plans in by_levels.values() for plan in plans[:PLANS_PER_LEVEL_COUNT])
