"""Compute the crossovers tau1, tau2 and tau3 from timed pairs of a plan and the vendor's product.

tau1 is the side of square products from which plans with at least one level are faster than the vendor; tau2 and tau3
are the sides for two and three levels.

Each timed pair shows the model's error for the plan's number of levels. If plans are measurably slower than predicted,
the median error corrects their predictions before the crossover is computed. If a plan is slower than the vendor
although its corrected prediction is a gain, the crossover is raised to the effective side of the product: the side of
the square on which one level saves the same fraction of time as on the product. fmm.perfmodel.crossovers applies the
crossovers to decisions.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import exp, inf, log, log2, sqrt
from statistics import fmean, linear_regression, median, stdev

from fmm.config.certification import MIN_SPEEDUP, paired_ratios
from fmm.config.schema import ThresholdInterval
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import device_candidate_plans
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE, MeasuredCrossovers, baseline_text, count_levels, effective_side
from fmm.problem import Problem
from fmm.tuner.findings.diagnostics import EXTRAPOLATION_MARGIN, MIN_ACCEPTED_SPEEDUP, margin_excluding_plan
from fmm.tuner.findings.ladder import ladder_crossovers
from fmm.tuner.findings.thresholds import LEVEL_COUNTS, calibration_with_margin, ranked_plans, smallest_side_satisfying
from fmm.tuner.search.certify import paired_samples
from fmm.tuner.trials.record import DEFAULT_OPERATION, Trial

# plans with more than this number of levels count as plans with this number of levels
MAX_COUNTED_LEVELS = LEVEL_COUNTS[-1]
MAX_TIME_RATIO_NEAR_CROSSOVER = (
    1.15  # a sample is near the crossover if its predicted time is at most this multiple of the vendor's predicted time
)
MIN_SAMPLES_FOR_TREND = 5  # smallest number of samples for a regression of the error over log2(side)
MAX_TREND_DOUBLINGS = 2.0  # largest number of doublings of the side over which a trend is extrapolated
# Smallest number of samples from which the model's error near a crossover is computed. If fewer than
# MIN_SAMPLES_NEAR_CROSSOVER samples are near the crossover, the error is computed from this number of samples on the
# largest shapes.
MIN_SAMPLES_NEAR_CROSSOVER = 3
# The smallest assumed standard deviation of a sample's log(measured / predicted).
SAMPLE_STANDARD_DEVIATION = 0.015
# Predictions for L levels are corrected if their median error is below 0 by at least REQUIRED_STANDARD_ERRORS standard
# errors, or by at least UNCONFIRMED_STANDARD_ERRORS if no plan with L levels is faster than the vendor.
REQUIRED_STANDARD_ERRORS, UNCONFIRMED_STANDARD_ERRORS = 2.5, 1.0
# an extrapolated crossover is not trusted if predicted speedups are too large by more than this fraction
MAX_TRUSTED_OPTIMISM = 0.025
# the check on held-out shapes ignores a plan with more levels than the crossovers allow, if the plan's predicted
# speedup is too large by more than this fraction
MIN_REJECTED_OPTIMISM = 0.04


@dataclass(frozen=True)
class LevelSample:
    """A plan with levels on one problem: its measured speedup, and its predicted time divided by the vendor's."""

    plan: Plan
    problem: Problem
    speedup: float
    predicted_time: float
    few_tiles_margin: float = 0.0  # margin that is added to the calibration's margin for products with few tiles

    @property
    def capped_level_count(self) -> int:
        """Number of the plan's levels, limited to MAX_COUNTED_LEVELS."""
        return min(count_levels(self.plan), MAX_COUNTED_LEVELS)

    @property
    def effective_side(self) -> float:
        """Side of the square for which one level saves the same fraction of time as for this problem."""
        return effective_side(self.problem.size)

    @property
    def speedup_log_error(self) -> float:
        """log(measured speedup / predicted speedup); below 0 if the plan is slower than predicted."""
        return log(self.speedup * self.predicted_time)


def level_samples(trials: Sequence[Trial], calibration: Calibration) -> list[LevelSample]:
    """Return a sample for each candidate with levels that was timed in pairs with the vendor's product."""
    compared, free = set(device_candidate_plans(calibration.batches)), calibration_with_margin(calibration, 0.0)
    by_problem: dict[tuple[Problem, str, int], list[Trial]] = defaultdict(list)
    for t in trials:
        if t.op == DEFAULT_OPERATION and t.stage != "peer":
            by_problem[t.problem, t.stage, t.seed].append(t)
    ratios: dict[tuple[Problem, Plan], list[float]] = defaultdict(list)
    for (problem, _, _), own in by_problem.items():
        for text, base, seconds in paired_samples(own):
            if (plan := Plan.parse(text)) in compared and count_levels(plan):
                ratios[problem, plan] += paired_ratios(base, seconds)
    return [
        LevelSample(plan, problem, median(found), candidate.time, candidate.margin)
        for (problem, plan), found in ratios.items()
        for candidate in rank_candidates(problem, free, [plan])
    ]


@dataclass(frozen=True)
class BaselineCrossovers:
    """The crossovers of plans with one baseline, and the model's overestimate of speedups for each number of levels."""

    bounds: MeasuredCrossovers
    optimism: Mapping[int, SpeedupOverestimate]
    # 95 % intervals of the crossovers, by the names tau1, tau2 and tau3
    intervals: Mapping[str, ThresholdInterval] = field(default_factory=dict)

    def overestimates_speedup_of(self, plan: Plan, problem: Problem) -> bool:
        """Return True if predicted speedups are far too large for the plan's number of levels at this size."""
        return (
            self.optimism[min(count_levels(plan), MAX_COUNTED_LEVELS)].log_error_at_side(effective_side(problem.size))
            < -MIN_REJECTED_OPTIMISM
        )


def measure_crossovers(trials: Sequence[Trial], calibration: Calibration) -> dict[str, BaselineCrossovers]:
    """Return the crossovers by baseline, which is the plan without its levels.

    On a GPU, the crossovers come from the trials on a ladder of squares (fmm.tuner.findings.ladder).
    """
    if calibration.batches:
        exact = dict.fromkeys((0, *LEVEL_COUNTS), SpeedupOverestimate())
        found = ladder_crossovers(trials)
        return {name: BaselineCrossovers(x.bounds, exact, x.intervals) for name, x in found.items()}
    calibration = replace(calibration, measured_crossovers=())
    by_baseline: dict[str, list[LevelSample]] = defaultdict(list)
    for sample in level_samples(trials, calibration):
        by_baseline[baseline_text(sample.plan)].append(sample)
    return {
        baseline: _crossovers_of_baseline(baseline, samples, calibration)
        for baseline, samples in sorted(by_baseline.items())
    }


def measured_crossovers_of_baselines(crossovers: Mapping[str, BaselineCrossovers]) -> tuple[MeasuredCrossovers, ...]:
    """Return the crossovers as the calibration's field `measured_crossovers`, which limits the levels of candidates."""
    return tuple(x.bounds for x in crossovers.values())


def _crossovers_of_baseline(
    baseline: str, samples: Sequence[LevelSample], calibration: Calibration
) -> BaselineCrossovers:
    """Return the crossovers of the plans that have this baseline.

    The crossover for L levels is confirmed if a plan with L levels was measured to be faster than the vendor. An
    unconfirmed crossover is extrapolated: it is the side from which plans are predicted to gain EXTRAPOLATION_MARGIN.
    An extrapolated crossover for L levels is not trusted if no plan with L levels was timed, or if the model is too
    optimistic for L levels. An extrapolated crossover that is not trusted is raised to at least twice the crossover for
    one level less. The reason for the factor 2 is Equation 2 of D'Alberto and Nicolau: a further level gains if half
    the side is at least the crossover for one level less.
    """
    optimism = speedup_overestimates_by_levels(samples)
    losing, dtype = wrongly_predicted_gains(samples, optimism), samples[0].problem.dtype
    tau, taus = 0.0, list[float]()
    for levels in LEVEL_COUNTS:
        confirmed = any(s.capped_level_count == levels and s.speedup > 1 for s in samples)
        gain = MIN_SPEEDUP if confirmed else 1 + EXTRAPOLATION_MARGIN
        predicted = smallest_side_satisfying(
            partial(_do_plans_with_levels_win, baseline, levels, dtype, calibration, optimism, gain)
        )
        measured = (
            any(s.capped_level_count == levels for s in samples)
            and optimism[levels].log_error_at_side(predicted) > -MAX_TRUSTED_OPTIMISM
        )
        least = tau if confirmed or measured else 2 * tau
        tau = min(
            max([least, predicted, *(s.effective_side for s in losing if s.capped_level_count == levels)]),
            NEVER_WINS_SIDE,
        )
        taus.append(float(f"{tau:.4g}") if tau < NEVER_WINS_SIDE else NEVER_WINS_SIDE)
    return BaselineCrossovers(MeasuredCrossovers(baseline, *taus), optimism)


@dataclass(frozen=True)
class SpeedupOverestimate:
    """How far the model overestimates speedups for one number of levels: log(measured / predicted speedup), at most 0.

    The logarithm is `error` for squares of side `side`, and changes by `slope` with every doubling of the side. The
    trend ends at MAX_TREND_DOUBLINGS doublings above `largest`, the largest side of a sample.
    """

    error: float = 0.0
    slope: float = 0.0
    side: float = 1.0
    largest: float = 1.0

    def log_error_at_side(self, side: float) -> float:
        """Return log(measured speedup / predicted speedup) for squares of this side; 0 if the logarithm is positive."""
        doublings = log2(min(side, 2**MAX_TREND_DOUBLINGS * self.largest) / self.side) if self.slope else 0.0
        return min(self.error + self.slope * doublings, 0.0)


def speedup_overestimates_by_levels(samples: Sequence[LevelSample]) -> dict[int, SpeedupOverestimate]:
    """Return the model's overestimate of speedups for each number of levels; insignificant errors count as 0.

    A number of levels without samples has the same result as the next lower number of levels.
    """
    found: dict[int, SpeedupOverestimate] = {0: SpeedupOverestimate()}
    for levels in LEVEL_COUNTS:
        own = sorted((s for s in samples if s.capped_level_count == levels), key=lambda s: -s.effective_side)
        if not own:
            found[levels] = found[levels - 1]
            continue
        confirmed = any(s.speedup > 1 for s in own)
        limit = REQUIRED_STANDARD_ERRORS if confirmed else UNCONFIRMED_STANDARD_ERRORS
        found[levels] = significant_trend(own, REQUIRED_STANDARD_ERRORS) or SpeedupOverestimate(
            significant_median_error(own, limit)
        )
    return found


def significant_median_error(samples: Sequence[LevelSample], standard_errors: float) -> float:
    """Return the median error of the samples near the crossover; 0 unless the error is significantly below 0.

    An error is significant if it is more than `standard_errors` standard errors below 0. `samples` are sorted by
    `effective_side`, the largest first.
    """
    near = [s for s in samples if s.predicted_time <= MAX_TIME_RATIO_NEAR_CROSSOVER]
    errors = [
        s.speedup_log_error
        for s in (near if len(near) >= MIN_SAMPLES_NEAR_CROSSOVER else samples[:MIN_SAMPLES_NEAR_CROSSOVER])
    ]
    deviation = max(SAMPLE_STANDARD_DEVIATION, stdev(errors) if len(errors) > 1 else 0.0)
    middle = median(errors)
    return middle if middle + standard_errors * deviation / sqrt(len(errors)) < 0 else 0.0


def significant_trend(samples: Sequence[LevelSample], standard_errors: float) -> SpeedupOverestimate | None:
    """Return a linear regression of errors over log2(side); None unless its slope is significantly below 0."""
    sides, errors = [log2(s.effective_side) for s in samples], [s.speedup_log_error for s in samples]
    if len(samples) < MIN_SAMPLES_FOR_TREND or stdev(sides) == 0:
        return None
    slope, intercept = linear_regression(sides, errors)
    rest = [error - slope * side - intercept for side, error in zip(sides, errors, strict=True)]
    deviation = max(SAMPLE_STANDARD_DEVIATION, sqrt(sum(x * x for x in rest) / (len(rest) - 2)))
    if slope + standard_errors * deviation / (stdev(sides) * sqrt(len(sides) - 1)) >= 0:
        return None
    return SpeedupOverestimate(fmean(errors), slope, 2 ** fmean(sides), 2 ** max(sides))


def wrongly_predicted_gains(
    samples: Iterable[LevelSample], optimism: Mapping[int, SpeedupOverestimate]
) -> list[LevelSample]:
    """Return the samples slower than the vendor for which the model, corrected by its error, predicts a gain."""
    by_problem: dict[tuple[Problem, int], list[LevelSample]] = defaultdict(list)
    for sample in samples:
        by_problem[sample.problem, sample.capped_level_count].append(sample)
    best = [max(own, key=lambda s: s.speedup) for own in by_problem.values()]
    return [
        s
        for s in best
        if s.speedup < MIN_ACCEPTED_SPEEDUP
        and s.predicted_time * exp(-optimism[s.capped_level_count].log_error_at_side(s.effective_side)) < 1
    ]


def margins_excluding_slow_plans(samples: Iterable[LevelSample]) -> tuple[float, float]:
    """Return two margins: for plans with the vendor's leaf, and for plans with fmm's own kernels.

    With a smaller margin, the model would choose at least one plan that was measured to be slower than the vendor.
    """
    margins = [0.0, 0.0]
    for s in samples:
        if s.speedup < MIN_ACCEPTED_SPEEDUP:
            own = s.plan.uses_tile_model or bool(s.plan.leaf_use.leaf.rate)
            margins[own] = max(margins[own], margin_excluding_plan(s.predicted_time, s.few_tiles_margin))
    return margins[0], margins[1]


def _do_plans_with_levels_win(
    baseline: str,
    levels: int,
    dtype: str,
    calibration: Calibration,
    optimism: Mapping[int, SpeedupOverestimate],
    gain: float,
    side: int,
) -> bool:
    """Return True if a plan with at least `levels` levels wins on a square by the corrected predictions.

    A plan wins if it is at least `gain` times as fast as the vendor, and no slower than plans with fewer levels.
    """
    fewer, more = 1 / gain, inf
    for plan, time in ranked_plans(calibration_with_margin(calibration, 0.0), Problem(side, side, side, dtype)):
        if baseline_text(plan) == baseline:
            own = min(count_levels(plan), MAX_COUNTED_LEVELS)
            corrected = time * exp(-optimism[own].log_error_at_side(side))
            fewer, more = (fewer, min(more, corrected)) if own >= levels else (min(fewer, corrected), more)
    return more <= fewer
