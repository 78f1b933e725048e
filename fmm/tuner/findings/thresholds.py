"""The papers' thresholds, by what the tuned model really chooses: fmm.config.thresholds says what each means."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, isfinite

from fmm.config.certify import GAIN
from fmm.config.thresholds import Spread, Thresholds
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, considered_candidates, usual_growth
from fmm.perfmodel.margins import needed_margin
from fmm.perfmodel.papers import recursion_points
from fmm.perfmodel.papers.hasa_rule import alpha, alpha_over_pi, pi
from fmm.perfmodel.papers.li import thresholds as li_thresholds
from fmm.problem import Problem
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
    failing = [i for i in range(len(GRID)) if not known(GRID[i])]
    if not failing:
        return float(GRID[0])
    if failing[-1] + 1 == len(GRID):
        return inf
    low, high = GRID[failing[-1]], GRID[failing[-1] + 1]
    while high > CLOSE * low and high - low > ROW:
        middle = (low + high) // 2 // ROW * ROW
        low, high = (low, middle) if known(middle) else (middle, high)
    return float(high)


def chosen_from(calibration: Calibration, dtype: str, levels: int) -> float:
    """The side from which on the model chooses plans of so many levels, or more, for square products; infinite if it
    never does up to 65536."""
    return holds_from(lambda side: chosen_depth(calibration, dtype, side) >= levels)


def chosen_depth(calibration: Calibration, dtype: str, side: int) -> int:
    """How many levels the model chooses for a square product, however much workspace they need."""
    problem = Problem(side, side, side, dtype)
    for plan, time in _ranked(replace(calibration, margin=0.0, tiled_margin=0.0), problem):
        if time <= 1 - needed_margin(plan, problem, calibration):
            return levels_of(plan)
    return 0


def levels_of(plan: Plan) -> int:
    """How many levels of recursion a plan has."""
    return sum(level.depth for level in plan.levels if level.splits)


@lru_cache(maxsize=2048)
def _ranked(calibration: Calibration, problem: Problem) -> tuple[tuple[Plan, float], ...]:
    """The candidates within the usual limit of the error and their predicted times, the vendor's being 1: the same
    whatever the margin is."""
    limits = Limits(1 << 62, usual_growth(calibration.batches))
    known = considered_candidates(problem, calibration, limits)
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
    large = Problem(1 << 15, 1 << 15, 1 << 15, dtype)
    point = recursion_points.recursion_point(alpha_over_pi(calibration, large), recursion_points.WINOGRAD)
    tau1, tau2, tau3 = (level_spread(calibration, dtype, levels) for levels in LEVELS)
    return Thresholds(
        alpha(calibration, large.itemsize),
        pi(calibration, large),
        finite(point),
        measured_point(measured),
        fitted_epsilon(calibration, dtype, measured),
        tau1,
        tau2,
        tau3,
        strategies or {},
        squares(measured),
    )


def level_spread(calibration: Calibration, dtype: str, levels: int) -> Spread:
    """From which side on so many levels are predicted to lose nothing, to gain 2 %, to gain the margin."""
    ends = (replace(calibration, margin=x, tiled_margin=x) for x in (GAIN - 1, 0.0))
    value, low, own = (finite(chosen_from(c, dtype, levels)) for c in (*ends, calibration))
    high = None if own is None or value is None else max(own, value)
    return Spread(value, low, high)


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
    in the paper's installation; None if nothing was."""
    if not measured:
        return None
    large = alpha_over_pi(calibration, Problem(1 << 15, 1 << 15, 1 << 15, dtype))

    def at(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    def agreement(epsilon: float) -> int:
        return sum(
            recursion_points.recurse(size, at, recursion_points.WINOGRAD, epsilon) == (gain > 1)
            for size, gain in measured
        )

    steps = [large * x / 20 for x in range(-19, 61)]
    best = max(agreement(e) for e in steps)
    return min((e for e in steps if agreement(e) == best), key=abs)


def li_plan(scheme: str, side: int, found: Thresholds, leaf: str) -> Plan:
    """What Li, Ranka and Sahni's recursive code of `strassen` or `winograd` comes to with a tuning's tau1 and tau2.

    Where the model never takes a level, neither does their code.
    """
    never = 1 << 40
    tau1, tau2 = (int(x.value) if x.value is not None else never for x in (found.tau1, found.tau2))
    return li_thresholds.plan(scheme, side, tau1, max(tau1, tau2), leaf)
