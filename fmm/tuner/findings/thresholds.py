"""The papers' thresholds, by what the tuned model really chooses: fmm.config.schema says what each means."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, isfinite

import numpy as np

from fmm.config.certify import GAIN
from fmm.config.schema import SECONDS, TAUS, Interval, Spread, Thresholds
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, all_candidates, default_error_growth, rank_candidates, required_margin
from fmm.perfmodel.papers import li_counts as li_thresholds
from fmm.perfmodel.papers import recursion_points
from fmm.perfmodel.papers.recursion_points import alpha, alpha_over_pi, pi
from fmm.problem import Problem
from fmm.tuner.fit.sampled import FEW, middle_95
from fmm.tuner.trials.record import Size

# Sides that are asked for the model's choice: this grid, then between its points until they are so close. Among them
# are the round ones of which is told, so that what is told of them agrees.
ROUND = tuple(1000 << i for i in range(7))
GRID = tuple(sorted({*(round(256 * 2 ** (i / 8) / 32) * 32 for i in range(65)), *ROUND}))
ROW = 16  # a side that is a multiple of it has rows that begin as a device wants them
CLOSE = 1.01
LEVELS = (1, 2, 3)


def holds_from(known: Callable[[int], bool]) -> float:
    """The side from which on something holds on all sides of the grid, to 1 %; infinite if it does not at its end. (A
    smaller side on which it holds, while on a larger one it does not, is passed over.)"""
    last = next((i for i in reversed(range(len(GRID))) if not known(GRID[i])), None)
    if last is None:
        return float(GRID[0])
    if last + 1 == len(GRID):
        return inf
    low, high = GRID[last], GRID[last + 1]
    while high > CLOSE * low and (middle := (low + high) // 2 // ROW * ROW) > low:
        low, high = (low, middle) if known(middle) else (middle, high)
    return float(high)


def chosen_from(calibration: Calibration, dtype: str, levels: int, emulation: bool = True) -> float:
    """The side from which on the model chooses plans of so many levels, or more, for square products; infinite if it
    never does up to 65536."""
    return holds_from(lambda side: chosen_depth(calibration, dtype, side, emulation) >= levels)


def chosen_depth(calibration: Calibration, dtype: str, side: int, emulation: bool = True) -> int:
    """How many levels the model chooses for a square product, however much workspace they need; without `emulation` of
    the plans that multiply in no other type."""
    problem = Problem(side, side, side, dtype)
    for plan, time in ranked_plans(with_margin(calibration, 0.0), problem, emulation):
        if time <= 1 - required_margin(plan, problem, calibration):
            return levels_of(plan)
    return 0


def levels_of(plan: Plan) -> int:
    """How many levels of recursion a plan has."""
    return sum(level.depth for level in plan.levels if level.splits)


@lru_cache(maxsize=2048)
def ranked_plans(calibration: Calibration, problem: Problem, emulation: bool = True) -> tuple[tuple[Plan, float], ...]:
    """The candidates within the usual limit of the error and their predicted times, the vendor's being 1: the same
    whatever the margin is."""
    limits = Limits(1 << 62, default_error_growth(calibration.batches), emulation)
    known = all_candidates(problem, calibration, limits)
    return tuple((c.plan, c.time) for c in known if c.plan != VENDOR and limits.allow(c.plan, c.error_growth))


# ---- all of them


def thresholds(
    calibration: Calibration,
    dtype: str,
    measured: Sequence[tuple[Size, float]] = (),
    strategies: Mapping[str, str] | None = None,
) -> Thresholds:
    """The thresholds of a tuned model; `measured` are (size, speedup) of one level, `strategies` those of our own
    product kernel by the side."""
    tau1, tau2, tau3 = (level_spread(calibration, dtype, levels) for levels in LEVELS)
    return Thresholds(
        *alpha_and_pi(calibration, dtype),
        point_by_equation_3(calibration, dtype),
        measured_point(measured),
        fitted_epsilon(calibration, dtype, measured),
        tau1,
        tau2,
        tau3,
        strategies or {},
        squares(measured),
        without_emulation=without_emulation(calibration, dtype),
    )


def large_problem(dtype: str) -> Problem:
    """So large that alpha and pi hardly change with it."""
    return Problem(1 << 15, 1 << 15, 1 << 15, dtype)


def alpha_and_pi(calibration: Calibration, dtype: str) -> tuple[float, float]:
    large = large_problem(dtype)
    return alpha(calibration, large.itemsize), pi(calibration, large)


def point_by_equation_3(calibration: Calibration, dtype: str) -> float | None:
    """n1."""
    ratio = alpha_over_pi(calibration, large_problem(dtype))
    return finite(recursion_points.recursion_point(ratio, recursion_points.WINOGRAD))


def level_spread(calibration: Calibration, dtype: str, levels: int) -> Spread:
    """From which side on so many levels are predicted to lose nothing, to gain 2 %, to gain the margin."""
    ends = (with_margin(calibration, x) for x in (GAIN - 1, 0.0))
    value, low, own = (finite(chosen_from(c, dtype, levels)) for c in (*ends, calibration))
    high = None if own is None or value is None else max(own, value)
    return Spread(value, low, high)


def with_margin(calibration: Calibration, margin: float) -> Calibration:
    """By which every plan must be predicted to win."""
    return replace(calibration, margin=margin, tiled_margin=margin)


def without_emulation(calibration: Calibration, dtype: str) -> dict[str, float | None]:
    """tau1 to tau3 where no product is made of products in another type; nothing if none is anyway."""
    free = with_margin(calibration, 0.0)
    known = (plan for side in ROUND for plan, _ in ranked_plans(free, Problem(side, side, side, dtype), True))
    if not any(plan.emulates for plan in known):
        return {}
    asked = with_margin(calibration, GAIN - 1)
    sides = (finite(chosen_from(asked, dtype, levels, emulation=False)) for levels in LEVELS)
    return dict(zip(TAUS, sides, strict=True))


def finite(x: float) -> float | None:
    return x if isfinite(x) else None


def squares(measured: Sequence[tuple[Size, float]]) -> dict[str, float]:
    """The speedups of one level on squares, by their sides."""
    return {str(size[0]): round(gain, 4) for size, gain in sorted(measured) if len(set(size)) == 1}


def measured_point(measured: Sequence[tuple[Size, float]]) -> float | None:
    """The side of the smallest square from which on every measured one gained by one level; None if the largest did
    not, or if none was measured that did not: then the point lies below all of them."""
    squares = sorted((size[0], gain) for size, gain in measured if len(set(size)) == 1)
    lost = [i for i, (_, gain) in enumerate(squares) if gain <= 1]
    if not lost or lost[-1] + 1 == len(squares):
        return None
    return float(squares[lost[-1] + 1][0])


def fitted_epsilon(calibration: Calibration, dtype: str, measured: Sequence[tuple[Size, float]]) -> float | None:
    """The least addition to alpha / pi with which Equation 2 agrees with most of what was measured, found by search, as
    in the paper's installation; None if nothing was, or if nothing need be added since all gained, or since all lost:
    then many others agree as well."""
    if not measured:
        return None

    def at(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    large = alpha_over_pi(calibration, large_problem(dtype))
    most = [recursion_points.most_correction(size, at, recursion_points.WINOGRAD) for size, _ in measured]
    gained = [gain > 1 for _, gain in measured]
    steps = [large * x / 20 for x in range(-19, 61)]
    agreement = {e: sum((e < x) == own for x, own in zip(most, gained, strict=True)) for e in steps}
    best = max(agreement.values())
    found = min((e for e in steps if agreement[e] == best), key=abs)
    return found if found or len(set(gained)) == 2 else None


def li_plan(scheme: str, side: int, found: Thresholds, leaf: str) -> Plan:
    """What Li, Ranka and Sahni's recursive code of `strassen` or `winograd` comes to with a tuning's tau1 and tau2:
    those for leaves that multiply in the type itself, if it is one.

    Where the model never takes a level, neither does their code.
    """
    never = 1 << 40
    apart = {} if Plan.parse(leaf).emulates else found.without_emulation
    sides = (apart.get(name, found.value(name)) for name in TAUS[:2])
    tau1, tau2 = (never if side is None else int(side) for side in sides)
    return li_thresholds.threshold_plan(scheme, side, tau1, max(tau1, tau2), leaf)


FIRST = 2  # plans of each number of levels


def with_intervals(
    found: Thresholds,
    calibration: Calibration,
    dtype: str,
    admitted: Sequence[Calibration],
    measured: Sequence[tuple[Size, float]] = (),
) -> Thresholds:
    """The thresholds with their intervals; without any where no model was drawn, or where all have the same (alpha, if
    the speed of sums was not determined)."""
    if not admitted:
        return found
    alphas, pis = zip(*(alpha_and_pi(drawn, dtype) for drawn in admitted), strict=True)
    intervals = {
        "alpha": middle_95(alphas),
        "pi": middle_95(pis),
        "n1": middle_95([point_by_equation_3(drawn, dtype) for drawn in admitted]),
    }
    epsilons = _epsilons(admitted[:FEW], dtype, measured)
    if found.epsilon is not None and epsilons:
        intervals["epsilon"] = middle_95([found.epsilon, *epsilons])
    for tau, levels in zip(TAUS, LEVELS, strict=True):
        sides = [_gains_from(calibration, drawn, dtype, levels) for drawn in admitted[:FEW]]
        intervals[tau] = middle_95([found.value(tau), *sides])
    told = {name: _rounded(name, ends) for name, ends in intervals.items() if name in TAUS or ends[0] != ends[1]}
    return replace(found, intervals=told)


def _rounded(name: str, interval: Interval) -> Interval:
    """To four digits, sides to whole ones: it is a matter of chance."""
    low, high = (None if x is None else float(f"{x:.4g}" if name in SECONDS else f"{x:.0f}") for x in interval)
    return low, high


def _epsilons(admitted: Sequence[Calibration], dtype: str, measured: Sequence[tuple[Size, float]]) -> list[float]:
    """One for each model of the shapes drawn, if among these are some that gained by one level and some that did not:
    else it is not determined."""
    random, found = np.random.default_rng(0), []
    for drawn in admitted if measured else ():
        some = [measured[i] for i in random.integers(0, len(measured), len(measured))]
        epsilon = fitted_epsilon(drawn, dtype, some)
        if epsilon is not None and len({gain > 1 for _, gain in some}) == 2:
            found.append(epsilon)
    return found


def _gains_from(calibration: Calibration, drawn: Calibration, dtype: str, levels: int) -> float | None:
    """The side from which on so many levels gain 2 % by the drawn model; None if nowhere."""
    asked = with_margin(drawn, GAIN - 1)
    return finite(holds_from(lambda side: _depth(with_margin(calibration, 0.0), asked, dtype, side) >= levels))


@lru_cache(maxsize=1 << 14)
def _depth(calibration: Calibration, asked: Calibration, dtype: str, side: int) -> int:
    """How many levels the asked model chooses for a square."""
    first = _first_plans(calibration, dtype, GRID[bisect_left(GRID, side)])
    known = rank_candidates(Problem(side, side, side, dtype), asked, first) if first else ()
    return next((levels_of(candidate.plan) for candidate in known if candidate.wins), 0)


@lru_cache(maxsize=1024)
def _first_plans(calibration: Calibration, dtype: str, side: int) -> tuple[Plan, ...]:
    """The fastest plans of each number of levels; of more than three together."""
    by_levels: dict[int, list[Plan]] = defaultdict(list)
    for plan, _ in ranked_plans(calibration, Problem(side, side, side, dtype), True):
        by_levels[min(levels_of(plan), LEVELS[-1])].append(plan)
    return tuple(plan for plans in by_levels.values() for plan in plans[:FIRST])
