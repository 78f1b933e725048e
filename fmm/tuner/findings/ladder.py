"""Compute the crossovers tau1, tau2 and tau3 of a GPU from a ladder of squares on which plans were timed in pairs.

The ladder for L levels: on each square, the baseline, plans with fewer than L levels and plans with at least L levels
are timed. Between two squares, the crossover is interpolated: the side at which the fastest plan with at least L levels
takes as long as the fastest plan with fewer levels. fmm.tuner.stages.ladder measures the pairs.
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
from fmm.perfmodel.crossovers import MeasuredCrossovers, baseline_text, count_levels
from fmm.problem import Problem
from fmm.tuner.trials.record import DEFAULT_OPERATION, Trial

LADDER_STAGE = "ladder"
LEVEL_COUNTS = (1, 2, 3)  # for the crossover of L levels, the operands are drawn with the seed L


@dataclass(frozen=True)
class LadderPoint:
    """A square of the ladder for L levels: its side, a ratio of two plans' times, and the ratio's 95 % interval.

    The ratio is the time of the best plan with fewer than L levels, divided by the time of the best plan with at least
    L levels.
    """

    side: float
    ratio: float
    low: float
    high: float


@dataclass(frozen=True)
class LadderCrossovers:
    """The crossovers of the plans with one baseline, and their 95 % intervals by the names tau1, tau2 and tau3.

    An end of an interval is None if it is above the largest square of the ladder.
    """

    bounds: MeasuredCrossovers
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
        found[baseline] = LadderCrossovers(MeasuredCrossovers(baseline, *taus), intervals)
    return found


def ladder_points(trials: Sequence[Trial]) -> dict[tuple[str, int], list[LadderPoint]]:
    """Return the ladder's points by (baseline, number of levels L), sorted by side."""
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
    """Return, for one square, (time of the best plan with fewer than `levels` levels) / (time of the best other plan).

    Return None if no plan with fewer levels, or no plan with at least `levels` levels, was timed in all rounds.
    """
    rounds = max(map(len, seconds.values()), default=0)
    complete = {plan: own for plan, own in seconds.items() if len(own) == rounds}
    fewer = [own for plan, own in complete.items() if count_levels(plan) < levels]
    more = [own for plan, own in complete.items() if count_levels(plan) >= levels]
    if not fewer or not more:
        return None
    ratios = paired_ratios(min(fewer, key=median), min(more, key=median))
    return LadderPoint(float(problem.m), median(ratios), *median_interval(ratios))


def crossover_side(points: Sequence[tuple[float, float]]) -> float | None:
    """Return the side at which the ratio rises above 1, interpolated in `points`: pairs (side, ratio), sorted by side.

    Return None if the ratio of the smallest side already exceeds 1, or if `points` is empty. If no ratio exceeds 1,
    return the largest side: larger sides were not measured.

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
    """Return the 95 % interval of a crossover, computed from the 95 % intervals of the ratios in `points`.

    The low end follows from the high ends of the ratios, and the high end follows from their low ends. An end below the
    smallest side of the ladder is replaced by this side. A high end above the largest side of the ladder is None.
    """
    low = crossover_side([(p.side, p.high) for p in points])
    high = crossover_side([(p.side, p.low) for p in points])
    beyond = all(p.low <= 1 for p in points)
    return low or points[0].side, None if beyond else high or points[0].side
