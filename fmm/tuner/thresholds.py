"""The papers' thresholds, from fitted rates: alpha and pi, tau1 and tau2, recursion points and epsilon."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import inf
from typing import Any

from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, usual_growth
from fmm.perfmodel.papers import recursion_points
from fmm.problem import Problem
from fmm.tuner.trials import Size


def alpha_over_pi(calibration: Calibration, problem: Problem) -> float:
    """alpha / pi: seconds of one element of a block addition (two reads, one write) over those of one flop."""
    rate = calibration.rate(problem.dtype)
    alpha = 3 * problem.itemsize / calibration.stream
    pi = problem.type.flops / 2 / rate.flops * (1 + rate.fill / (problem.m * problem.n) + rate.pipe / problem.k)
    return alpha / pi


# Sides that are asked for the model's choice: this grid, then between its points until they are so close.
GRID = tuple(round(256 * 2 ** (i / 8) / 32) * 32 for i in range(65))
CLOSE = 1.01


def chosen_from(calibration: Calibration, dtype: str, levels: int) -> float:
    """The side from which the model chooses plans of so many levels, or more, for square products; infinite if it
    never does up to 65536. (A size at which it does, while at the next larger one it does not, is passed over.)"""
    deep = [chosen_depth(calibration, dtype, side) >= levels for side in GRID]
    firm = [i for i in range(len(GRID)) if deep[i] and (i + 1 == len(GRID) or deep[i + 1])]
    if not firm:
        return inf
    high = GRID[firm[0]]
    low = GRID[max(firm[0] - 1, 0)]
    while high > CLOSE * low and high - low > 16:
        middle = (low + high) // 2 // 16 * 16
        low, high = (low, middle) if chosen_depth(calibration, dtype, middle) >= levels else (middle, high)
    return float(high)


@lru_cache(maxsize=1024)
def chosen_depth(calibration: Calibration, dtype: str, side: int) -> int:
    """How many levels the model chooses for a square product, however much workspace they need."""
    limits = Limits(1 << 62, usual_growth(calibration.batches))
    plan = choose(Problem(side, side, side, dtype), calibration, limits).best.plan
    return sum(level.depth for level in plan.levels if level.splits)


def thresholds(calibration: Calibration, dtype: str, measured: Sequence[tuple[Size, float]] = ()) -> dict[str, Any]:
    """tau1 and tau2, recursion points by Equation 2 of D'Alberto and Nicolau, and their epsilon.

    `measured` are (size, speedup) of one level: epsilon is the addition to alpha / pi with
    which Equation 2 agrees with most of them, found by search, as in the paper's installation. tau2 is the side from
    which one level pays (Li, Ranka and Sahni's figures 16 and 23), tau1 half of it, below which nothing is split.
    """
    large = alpha_over_pi(calibration, Problem(1 << 15, 1 << 15, 1 << 15, dtype))

    def at(m: int, k: int, n: int) -> float:
        return alpha_over_pi(calibration, Problem(m, k, n, dtype))

    def agreement(epsilon: float) -> int:
        return sum(
            recursion_points.recurse(size, at, recursion_points.WINOGRAD, epsilon) == (gain > 1)
            for size, gain in measured
        )

    steps = [large * x / 20 for x in range(-19, 61)] if measured else [0.0]
    best = max(agreement(e) for e in steps)
    epsilon = min((e for e in steps if agreement(e) == best), key=abs)
    points = [
        recursion_points.recursion_point(large, recursion_points.WINOGRAD, epsilon) * 2**level for level in range(3)
    ]
    points = [p if p < inf else 0.0 for p in points]
    return {"tau1": points[0] / 2, "tau2": points[0], "recursion_points": points, "epsilon": epsilon, "ratio": large}
