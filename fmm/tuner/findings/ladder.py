"""Compute a GPU's crossovers tau1 to tau3 from a ladder of squares, on which plans were timed in pairs.

On each square, the baseline and the best plans with fewer than L levels and with at least L levels are timed. The
crossover of L levels is the side at which both take the same time, interpolated between two squares. On squares below
the crossover, no plan with L levels or more won. fmm.tuner.stages.ladder measures the pairs.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import median

from fmm.config.certification import median_interval, paired_ratios
from fmm.config.schema import TAU_NAMES, ThresholdInterval
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.level_bounds import LevelBounds, baseline_text, count_levels
from fmm.problem import Problem
from fmm.tuner.trials.record import DEFAULT_OPERATION, Trial

LADDER_STAGE = "ladder"
LEVEL_COUNTS = (1, 2, 3)  # the seed of the timed operands is the number of levels whose crossover is measured


@dataclass(frozen=True)
class LadderPoint:
    """The time of the best plan with fewer levels divided by the time of the best plan with more, with its interval."""

    side: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class LadderCrossovers:
    """The crossovers above one baseline, and their intervals by name; an interval's end is None beyond the ladder."""

    bounds: LevelBounds
    intervals: dict[str, ThresholdInterval]


def ladder_crossovers(trials: Sequence[Trial]) -> dict[str, LadderCrossovers]:
    """Return the measured crossovers by baseline, which is the plan without its levels."""
    points = ladder_points(trials)
    found = {}
    for baseline in sorted({name for name, _ in points}):
        by_name = [
            (name, points.get((baseline, levels), ())) for name, levels in zip(TAU_NAMES, LEVEL_COUNTS, strict=True)
        ]
        taus = [crossover_side([(p.side, p.ratio) for p in own]) for _, own in by_name]
        intervals = {name: crossover_interval(own) for name, own in by_name if own}
        found[baseline] = LadderCrossovers(LevelBounds(baseline, *taus), intervals)
    return found


def ladder_points(trials: Sequence[Trial]) -> dict[tuple[str, int], list[LadderPoint]]:
    """Return the points of each baseline and number of levels, sorted by side."""
    rounds: dict[tuple[str, int, Problem], dict[Plan, list[float]]] = defaultdict(lambda: defaultdict(list))
    for t in trials:
        if t.stage == LADDER_STAGE and t.op == DEFAULT_OPERATION and t.seconds is not None:
            plan = Plan.parse(t.plan)
            rounds[baseline_text(plan), t.seed, t.problem][plan].append(t.seconds)
    points: dict[tuple[str, int], list[LadderPoint]] = defaultdict(list)
    for (baseline, levels, problem), seconds in rounds.items():
        if (point := ladder_point(problem, levels, seconds)) is not None:
            points[baseline, levels].append(point)
    return {name: sorted(own, key=lambda p: p.side) for name, own in points.items()}


def ladder_point(problem: Problem, levels: int, seconds: dict[Plan, list[float]]) -> LadderPoint | None:
    """Return the point of one square; None if no plan with fewer or with more levels has all rounds."""
    rounds = max(map(len, seconds.values()), default=0)
    complete = {plan: own for plan, own in seconds.items() if len(own) == rounds}
    fewer = [own for plan, own in complete.items() if count_levels(plan) < levels]
    more = [own for plan, own in complete.items() if count_levels(plan) >= levels]
    if not fewer or not more:
        return None
    ratios = paired_ratios(min(fewer, key=median), min(more, key=median))
    return LadderPoint(float(problem.m), median(ratios), *median_interval(ratios))


def crossover_side(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the side from which the ratios exceed 1; None if all ratios exceed 1, or without points.

    If no ratio exceeds 1, return the largest side: nothing is known about larger sides.

    Examples
    --------
    >>> crossover_side([(1000.0, 0.9), (2000.0, 1.0), (4000.0, 1.1)])
    2000.0
    >>> crossover_side([(1000.0, 1.1), (2000.0, 1.2)]) is None
    True
    >>> crossover_side([(1000.0, 0.8), (2000.0, 0.9)])
    2000.0
    """
    wins = next((i for i, (_, ratio) in enumerate(points) if ratio > 1), len(points))
    if not wins:
        return None
    (side, ratio) = points[wins - 1]
    if wins < len(points):
        above, gain = points[wins]
        share = -log(ratio) / (log(gain) - log(ratio))
        side = exp(log(side) + share * (log(above) - log(side)))
    return float(f"{side:.4g}")


def crossover_interval(points: Sequence[LadderPoint]) -> ThresholdInterval:
    """Return the interval of a crossover: the crossovers by the upper and by the lower ends of the ratios' intervals.

    An end outside the ladder is the smallest side of the ladder, or None above the largest side.
    """
    low = crossover_side([(p.side, p.high) for p in points])
    high = crossover_side([(p.side, p.low) for p in points])
    beyond = all(p.low <= 1 for p in points)
    return low or points[0].side, None if beyond else high or points[0].side
