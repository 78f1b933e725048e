"""How sure the thresholds are: where 95 % of the models have them that the measurements admit (fmm.tuner.fit.sampled).

alpha, pi and n1 are computed of every such model. Where levels begin to pay is asked of fewer, and on each side only of
the plans that the fitted model ranks first among those of as many levels. For epsilon the shapes that were measured are
drawn anew, too, with replacement.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fmm.config.certify import GAIN
from fmm.config.schema import SECONDS, TAUS, Interval, Thresholds
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import rank_candidates
from fmm.problem import Problem
from fmm.tuner.findings.thresholds import (
    GRID,
    LEVELS,
    alpha_and_pi,
    finite,
    fitted_epsilon,
    holds_from,
    levels_of,
    point_by_equation_3,
    ranked_plans,
    with_margin,
)
from fmm.tuner.fit.sampled import FEW, middle_95
from fmm.tuner.trials.record import Size

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
