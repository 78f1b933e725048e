"""Measure a ladder of squares on a GPU, to find the side from which plans with at least L levels are the fastest.

On each square, plans with L levels or more are timed against plans with fewer levels. The square that is measured first
is at the crossover that the model predicts. If a plan with L levels or more is the fastest on this square, the next
square is smaller. Otherwise the next square is larger. The ladder ends when the crossover is between two timed squares.
fmm.tuner.findings.ladder computes the crossovers tau1, tau2 and tau3 from the samples.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, default_error_growth_limit, rank_candidates
from fmm.perfmodel.crossovers import baseline_text, count_levels
from fmm.perfmodel.predict import predict_vendor
from fmm.problem import Problem
from fmm.tuner.devices.device import Effort, TimedRun
from fmm.tuner.findings.ladder import LADDER_STAGE, LEVEL_COUNTS, ladder_point
from fmm.tuner.findings.thresholds import calibration_with_margin
from fmm.tuner.search.race import is_within_limits
from fmm.tuner.trials.journal import Journal, RoundLimits

# Sides of the squares: three for each doubling of the side, all multiples of 128, so that three levels need no padding.
LADDER_SIDES = tuple(round(1024 * 2 ** (i / 3) / 128) * 128 for i in range(19))
RANKED_SQUARE_STRIDE = 5  # all candidates are ranked on every 5th square, to select the plans to compare on all squares
FAST_PLAN_COUNT = 2  # from each ranking, this number of plans is selected for each pair (baseline, number of levels)
LADDER_ROUNDS = 2  # number of rounds in addition to the rounds of the effort


def measure_ladder(journal: Journal, dtype: str, calibration: Calibration, effort: Effort, seconds: float) -> None:
    """Measure squares near the crossovers of each baseline, until samples of `seconds` in total are measured.

    The crossovers on small squares are measured first, since one crossover on large squares can take most of the time.
    """
    end, calibration = journal.sampled_seconds + seconds, calibration_with_margin(calibration, 0.0)
    squares = [Problem(side, side, side, dtype) for side in LADDER_SIDES]
    squares = [x for x in squares if predict_vendor(x, calibration).predicted_seconds <= seconds]
    ranked = [ranked_plans(x, calibration) for x in squares[::-RANKED_SQUARE_STRIDE]]
    pool = plans_to_compare(ranked)
    ladders = [
        Ladder(journal, calibration, effort, squares, pool, baseline, levels)
        for levels in LEVEL_COUNTS
        for baseline in ladder_baselines(ranked)
    ]
    for ladder in sorted(ladders, key=Ladder.predicted_square_index):
        ladder.measure_until_crossover_bracketed(end)


def ranked_plans(problem: Problem, calibration: Calibration, plans: Sequence[Plan] = ()) -> dict[Plan, float]:
    """Return the candidates within the default error limit, the fastest first; `plans` replaces the default candidates.

    The value of each plan is its predicted time divided by the vendor's predicted time. Compositions of levels are left
    out, because ranking these plans takes almost a second.
    """
    limits = Limits(1 << 62, default_error_growth_limit(calibration.batches))
    ranked = rank_candidates(problem, calibration, plans)
    return {c.plan: c.time for c in ranked if limits.allows_plan(c.plan, c.error_growth)}


def plans_to_compare(ranked: Sequence[Mapping[Plan, float]]) -> list[Plan]:
    """Return the plans to compare on all squares: the vendor's product, and the plans that are predicted to be fastest.

    For each square and each pair (baseline, number of levels), the FAST_PLAN_COUNT fastest plans are returned.
    """
    found: dict[Plan, None] = {VENDOR: None}
    for plans in ranked:
        kept = Counter[tuple[str, int]]()
        for plan in plans:
            kind = baseline_text(plan), min(count_levels(plan), LEVEL_COUNTS[-1])
            kept[kind] += 1
            if kept[kind] <= FAST_PLAN_COUNT:
                found[plan] = None
    return list(found)


def ladder_baselines(ranked: Sequence[Iterable[Plan]]) -> list[str]:
    """Return the baselines for which crossovers are measured: `vendor`, and at most two other baselines.

    The second baseline is the most frequent baseline of the fastest plans with levels, one plan for each square. The
    third baseline is the most frequent baseline of the fastest plans with levels and without emulation.
    """
    first = {True: Counter[str](), False: Counter[str]()}
    for plans in ranked:
        for emulation, count in first.items():
            with_levels = (plan for plan in plans if count_levels(plan) and (emulation or not plan.uses_emulation))
            count.update(baseline_text(plan) for plan in islice(with_levels, 1))
    found = (name for count in first.values() for name, _ in count.most_common(1))
    return list(dict.fromkeys([str(VENDOR), *found]))


@dataclass
class Ladder:
    """The ladder of one crossover: plans of one baseline with at least `levels` levels, and plans with fewer levels."""

    journal: Journal
    calibration: Calibration
    effort: Effort
    squares: Sequence[Problem]
    pool: Sequence[Plan]  # the plans from which `plans_to_time_on_square` selects
    baseline: str
    levels: int

    def measure_until_crossover_bracketed(self, end: float) -> None:
        """Measure squares until the crossover is between two timed squares, no square is left, or the time is up."""
        rung, ratios = self.predicted_square_index(), dict[int, float]()
        while 0 <= rung < len(self.squares) and rung not in ratios:
            ratio = self.measure_level_time_ratio(self.squares[rung], end)
            if ratio is None:
                return
            ratios[rung] = ratio
            rung += -1 if ratio > 1 else 1

    def predicted_square_index(self) -> int:
        """Return the index of the square that is measured first.

        The square is the smallest one on which plans with `levels` levels or more are predicted to win, else the
        largest one.
        """
        first = bisect_left(self.squares, True, key=lambda problem: self.predicted_level_time_ratio(problem) > 1)
        return min(first, len(self.squares) - 1)

    def predicted_level_time_ratio(self, problem: Problem) -> float:
        """Return (best predicted time with fewer than `levels` levels) / (best predicted time with at least `levels`).

        Return 0 if all compared plans have fewer than `levels` levels, or if all have at least `levels` levels.
        """
        times: dict[bool, list[float]] = {True: [], False: []}
        for plan, time in self.plans_to_time_on_square(problem).items():
            times[count_levels(plan) >= self.levels].append(time)
        return min(times[False]) / min(times[True]) if times[False] and times[True] else 0.0

    def plans_to_time_on_square(self, problem: Problem) -> dict[Plan, float]:
        """Return the plans to time on a square, each with its predicted time divided by the vendor's predicted time.

        The plans are the baseline, the fastest plan with fewer than `levels` levels, the fastest plan with at least
        `levels` levels, and the fastest plan with exactly `levels` levels.
        """
        found: dict[str, tuple[Plan, float]] = {}
        for plan, time in ranked_plans(problem, self.calibration, self.pool).items():
            if baseline_text(plan) == self.baseline:
                number = count_levels(plan)
                found.setdefault("more" if number >= self.levels else "fewer", (plan, time))
                if number in (0, self.levels):
                    found.setdefault(str(number), (plan, time))
        return dict(found.values())

    def measure_level_time_ratio(self, problem: Problem, end: float) -> float | None:
        """Time the plans on a square; return the best time with fewer levels divided by the best time with more levels.

        Return None if a plan cannot be measured, or if all samples of the tuning would then take more than `end`
        seconds.
        """
        plans, rounds = self.plans_to_time_on_square(problem), self.effort.rounds + LADDER_ROUNDS
        seconds = predict_vendor(problem, self.calibration).predicted_seconds * sum(plans.values())
        if self.journal.sampled_seconds + rounds * seconds > end:
            return None
        if len(plans) < 2 or not all(self.is_measurable(plan, problem) for plan in plans):
            return None
        with self.journal.open_timed_problem(LADDER_STAGE, problem, self.levels) as session:
            samples = session.sample_rounds([TimedRun(plan) for plan in plans], RoundLimits(rounds))
        point = ladder_point(problem, self.levels, {run.plan: own for run, own in samples.items() if own})
        return None if point is None else point.ratio

    def is_measurable(self, plan: Plan, problem: Problem) -> bool:
        """Return True if the plan is within the limits of memory and error, and in a first look is also compiled."""
        ready = not self.effort.is_first_look or self.journal.has_compiled_kernels(problem.dtype, plan)
        return ready and is_within_limits(self.journal.device, plan, problem)
