"""Measure a ladder of squares on a GPU: the best plan with L levels or more in pairs with the best plan with fewer.

The ladder begins at the crossover that the model predicts. If the plan with more levels wins, the next square is
smaller, else larger, until one square wins and the next smaller square loses. fmm.tuner.findings.ladder computes the
crossovers tau1 to tau3 from the pairs.
"""

from __future__ import annotations

from collections import Counter
from itertools import islice

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.level_bounds import baseline_text, count_levels
from fmm.perfmodel.predict import predict_vendor
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import largest_level_products
from fmm.tuner.devices.device import Effort, TimedRun
from fmm.tuner.findings.ladder import LADDER_STAGE, LEVEL_COUNTS, ladder_point
from fmm.tuner.findings.thresholds import ranked_plans, with_margin
from fmm.tuner.search.race import is_within_limits
from fmm.tuner.trials.journal import Journal, RoundLimits

# Sides of the ladder: three in each doubling, and multiples of 128, so that three levels need no padding.
LADDER_SIDES = tuple(round(1024 * 2 ** (i / 3) / 128) * 128 for i in range(19))
LADDER_ROUNDS = 2  # number of rounds of a pair beyond the effort's rounds


def measure_ladder(journal: Journal, dtype: str, calibration: Calibration, effort: Effort, seconds: float) -> None:
    """Measure pairs near the crossovers of each baseline, until `seconds` of samples are measured."""
    end = journal.sampled_seconds + seconds
    baselines = ladder_baselines(dtype, calibration)
    for levels in LEVEL_COUNTS:
        for baseline in baselines:
            ladder = Ladder(journal, dtype, calibration, effort, baseline, levels)
            ladder.measure_bracket(end)


def ladder_baselines(dtype: str, calibration: Calibration) -> list[str]:
    """Return the vendor's product, and the baselines of the plans with levels that the model ranks first.

    The plans are ranked twice: with and without emulation.
    """
    found = [str(VENDOR)]
    for emulation in (True, False):
        first = Counter[str]()
        for side in LADDER_SIDES:
            problem = Problem(side, side, side, dtype)
            ranked = (plan for plan, _ in ranked_plans(with_margin(calibration, 0.0), problem, emulation))
            first.update(baseline_text(plan) for plan in islice(filter(count_levels, ranked), 1))
        found += [name for name, _ in first.most_common(1)]
    return list(dict.fromkeys(found))


class Ladder:
    """The squares on which plans with `levels` levels or more are compared with plans with fewer, above a baseline."""

    def __init__(
        self, journal: Journal, dtype: str, calibration: Calibration, effort: Effort, baseline: str, levels: int
    ) -> None:
        self.journal, self.dtype, self.effort = journal, dtype, effort
        self.calibration = with_margin(calibration, 0.0)
        self.baseline, self.levels = baseline, levels
        self.rounds = effort.rounds + LADDER_ROUNDS

    def measure_bracket(self, end: float) -> None:
        """Measure squares until the crossover is between two of them, the ladder ends, or the time is up."""
        rung, ratios = self.predicted_rung(), dict[int, float]()
        while 0 <= rung < len(LADDER_SIDES) and rung not in ratios:
            ratio = self.measure_ratio(LADDER_SIDES[rung], end)
            if ratio is None:
                return
            ratios[rung] = ratio
            rung += -1 if ratio > 1 else 1

    def predicted_rung(self) -> int:
        """Return the index of the smallest side from which more levels are predicted to win; else the largest index."""
        wins = [self.predicted_ratio(side) > 1 for side in LADDER_SIDES]
        last = next((i for i in reversed(range(len(wins))) if not wins[i]), -1)
        return min(last + 1, len(wins) - 1)

    def predicted_ratio(self, side: int) -> float:
        """Return the predicted time with fewer levels divided by the time with more; 0 if a plan is missing."""
        times = [time for _, time in self.best_pair(side)]
        return times[0] / times[1] if len(times) == 2 else 0.0

    def best_pair(self, side: int) -> list[tuple[Plan, float]]:
        """Return the fastest plan with fewer levels and the fastest with more, by the model.

        Each plan comes with its predicted time, divided by the vendor's time.
        """
        found: dict[bool, tuple[Plan, float]] = {}
        for plan, time in (*ranked_plans(self.calibration, self._square(side)), (VENDOR, 1.0)):
            light = largest_level_products(plan) <= self.effort.heaviest
            if light and baseline_text(plan) == self.baseline:
                found.setdefault(count_levels(plan) >= self.levels, (plan, time))
        return [found[has_more] for has_more in (False, True) if has_more in found]

    def measure_ratio(self, side: int, end: float) -> float | None:
        """Time the pair and the baseline on a square, and return the ratio.

        Return None if a plan fails, or if the samples would exceed the time `end`.
        """
        problem, timed = self._square(side), dict(self.best_pair(side))
        if len(timed) < 2 or not all(is_within_limits(self.journal.device, plan, problem) for plan in timed):
            return None
        timed.setdefault(Plan.parse(self.baseline), 1.0)
        seconds = predict_vendor(problem, self.calibration).predicted_seconds * sum(timed.values())
        if self.journal.sampled_seconds + self.rounds * seconds > end:
            return None
        with self.journal.open_problem(LADDER_STAGE, problem, self.levels) as session:
            samples = session.sample_rounds([TimedRun(plan) for plan in timed], RoundLimits(self.rounds))
        point = ladder_point(problem, self.levels, {run.plan: own for run, own in samples.items() if own})
        return point and point.ratio

    def _square(self, side: int) -> Problem:
        return Problem(side, side, side, self.dtype)
