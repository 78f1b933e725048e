"""Fit the calibration of the performance model to measured times.

docs/model.md defines the predicted seconds T_i(x) of run i as a function of the parameters x
(fmm.tuner.fit.parameters). Run i has the measured seconds t_i and the weight w_i. The coordinates c(x) are the
logarithms of the parameters; only the fraction `overlap`, which may be negative, is its own coordinate.

With the residuals r_i = w_i log(T_i(x) / t_i) of all runs i, the fit minimizes sum_i rho(r_i) + PRIOR_WEIGHT^2 |c(x) -
c(x_start)|^2. The function rho (soft L1) is quadratic for residuals r_i up to SOFT_L1_SCALE, and linear for larger
residuals. The term with PRIOR_WEIGHT keeps a parameter near its value in x_start if no run determines the parameter.
The 95 % intervals are computed from the Jacobian at the minimum. If the 95 % interval of a parameter is too wide, the
parameter is undetermined. The fit then fixes the undetermined parameter and starts again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import sqrt
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.crossovers import count_levels
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem
from fmm.tuner.devices.device import TimedRun, cached_plan_work, predicted_run_seconds
from fmm.tuner.fit.parameters import (
    FIT_PARAMETERS,
    FIT_PARAMETERS_BY_NAME,
    LEAF_RATE_PARAMETERS,
    OWN_KERNEL_START_VALUES,
    TILE_SIDE_PARAMETER,
    FitParameter,
    is_used_on_device,
    with_parameters,
)
from fmm.tuner.trials.record import ProductSize, Trial

# ---- observations


@dataclass(frozen=True)
class Observation:
    """The measured time of one run on one problem, in seconds: the median of all samples of the run."""

    problem: Problem
    run: TimedRun
    seconds: float

    @property
    def run_kind(self) -> str:
        """Name of the measured work, by which the fit selects the runs that determine a parameter.

        For plans with the vendor's leaf, the name is `vendor` (no level), `products`, `sums` or `plan` (whole plan with
        levels). For fmm's tiled kernel, the name is `tile` (no level), `odd tile` (no level, unaligned rows) or
        `inside` (sums fused into the kernel). The name is `own rate` for leaves with a separate rate in the
        calibration.
        """
        leaf = self.run.plan.leaf_use.leaf
        if leaf.rate:
            return "own rate"
        if self.run.plan.uses_tile_model:
            if self.run.plan.levels:
                return "inside"
            return "tile" if are_rows_aligned(self.problem, leaf.alignment) else "odd tile"
        if self.run.part != "whole":
            return self.run.part
        return "vendor" if self.run.plan == VENDOR else "plan"

    @property
    def has_vendor_leaf(self) -> bool:
        """True if the vendor's BLAS computes the leaf products of the run's plan."""
        return self.run.plan.leaf_use.leaf == VENDOR.leaf_use.leaf

    def predicted_seconds(self, calibration: Calibration) -> float:
        """Return the seconds that the calibration predicts for the run."""
        return predicted_run_seconds(self.run, self.problem, cached_plan_work(self.run.plan, self.problem), calibration)


def observed_medians(trials: Iterable[Trial], stages: Sequence[str]) -> list[Observation]:
    """Return an observation for each run and problem: the median of all samples of these stages."""
    samples: dict[tuple[ProductSize, str, str, str], list[float]] = {}
    for t in trials:
        if t.stage in stages and t.seconds is not None:
            samples.setdefault((t.size, t.dtype, t.plan, t.part), []).append(t.seconds)
    return [
        Observation(Problem(*size, dtype), TimedRun(Plan.parse(plan), part), median(seconds))
        for (size, dtype, plan, part), seconds in samples.items()
    ]


# ---- the fit


@dataclass(frozen=True)
class CalibrationFit:
    """A fitted calibration, the 95 % intervals of its parameters, and the residuals of the observations.

    `intervals` maps the name of each determined parameter to its 95 % interval; all other parameters are fixed.
    `residuals` has log(predicted / measured) for each observation.
    """

    calibration: Calibration
    intervals: Mapping[str, tuple[float, float]]
    residuals: tuple[float, ...]


VENDOR_TILE_SIDES = (64.0, 128.0, 256.0)  # the sides of a tile of C in the vendor's kernels that the fit tries
# largest number of evaluations of the residuals in a fit, after which further evaluations hardly reduce the residuals
MAX_FIT_EVALUATIONS = 60
SCREENING_EVALUATIONS = 8  # largest number of evaluations of the residuals in a preliminary fit
# All undetermined parameters are fixed in one step if (half width of the 95 % interval) / tolerance exceeds this
# number. If no parameter exceeds this number, each step fixes one parameter: fixing one of two correlated parameters
# may determine the second one.
FIX_TOGETHER_RATIO = 3.0


def fit_calibration(start: Calibration, dtype: str, observed: Sequence[Observation]) -> CalibrationFit:
    """Return the fit of all parameters; the tile side of the vendor's kernels is the one that fits best.

    The tile side is tried, not varied by least squares: the number of tiles is a step function of the tile side,
    without a slope.
    """
    vendor_observations = [o for o in observed if o.has_vendor_leaf]
    start = _with_fastest_measured_rates(start, dtype, vendor_observations)
    if start.batches:
        # with `rate.sms` = 0, the model does not round the number of tiles up to whole waves of all multiprocessors
        without_rounds = with_parameters(start, dtype, {"rate.sms": 0.0})
        starts = [
            TILE_SIDE_PARAMETER.with_value(s, dtype, side)
            for s in dict.fromkeys((start, without_rounds))
            for side in VENDOR_TILE_SIDES
        ]
        start = min(starts, key=lambda s: LeastSquares(s, dtype, vendor_observations).solve(SCREENING_EVALUATIONS).cost)
    fit = fit_until_determined(start, dtype, vendor_observations)
    return _fit_leaf_rates(_fit_own_kernel(fit, dtype, observed), dtype, observed)


def fit_until_determined(
    start: Calibration, dtype: str, observed: Sequence[Observation], free: Sequence[FitParameter] | None = None
) -> CalibrationFit:
    """Fit repeatedly, each time with more fixed parameters, until all free parameters are determined."""
    problem = LeastSquares(start, dtype, observed, free)
    solution = problem.solve(MAX_FIT_EVALUATIONS)
    while loose := problem.undetermined_parameters(solution):
        far_too_loose = [
            p for p, interval_over_tolerance in loose.items() if interval_over_tolerance > FIX_TOGETHER_RATIO
        ]
        problem = problem.with_fixed_parameters(far_too_loose or [max(loose, key=lambda p: loose[p])], solution)
        solution = problem.solve(SCREENING_EVALUATIONS)
    solution = problem.solve(MAX_FIT_EVALUATIONS)
    return CalibrationFit(problem.calibration_at(solution.x), problem.parameter_intervals(solution), solution.residuals)


def _with_fastest_measured_rates(start: Calibration, dtype: str, observed: Sequence[Observation]) -> Calibration:
    """Return the start of a fit: the calibration with the highest measured product rate and the median sum rate."""
    rates = [o.problem.flops / o.seconds for o in observed if o.run_kind == "vendor"]
    streams = [
        cached_plan_work(o.run.plan, o.problem).traffic * o.problem.itemsize / o.seconds
        for o in observed
        if o.run_kind == "sums"
    ]
    fastest = with_parameters(start, dtype, {"rate.flops": max(rates)}) if rates else start
    fastest = replace(fastest, stream=median(streams)) if streams else fastest
    # The fit starts with a value of the parameter `host` that is large enough to change predicted times: otherwise the
    # residuals would have no slope along `host`.
    if start.batches:
        fastest = replace(fastest, host=min((o.seconds for o in observed if o.run_kind == "vendor"), default=0.0))
    return with_parameters(fastest, dtype, {"rate.memory": 4 * fastest.stream})


def _fit_own_kernel(fit: CalibrationFit, dtype: str, observed: Sequence[Observation]) -> CalibrationFit:
    """Return the fit with the parameters of fmm's own kernel added; unchanged if no plan with fused sums was timed."""
    tiled = [o for o in observed if o.run.plan.uses_tile_model]
    if not any(o.run_kind == "inside" for o in tiled):
        return fit
    own = fit_until_determined(with_parameters(fit.calibration, dtype, OWN_KERNEL_START_VALUES), dtype, tiled)
    return CalibrationFit(own.calibration, {**fit.intervals, **own.intervals}, fit.residuals + own.residuals)


def _fit_leaf_rates(fit: CalibrationFit, dtype: str, observed: Sequence[Observation]) -> CalibrationFit:
    """Return the fit with fitted separate rates of the timed leaves, and without the separate rates of other leaves.

    For a leaf with at most three observations, only `rate.flops` is fitted, otherwise all three LEAF_RATE_PARAMETERS.
    """
    for name in fit.calibration.rates.keys() - {dtype}:
        timed = [o for o in observed if o.run.part != "sums" and o.run.plan.leaf_use.leaf.rate == name]
        if timed:
            free = LEAF_RATE_PARAMETERS if len(timed) > len(LEAF_RATE_PARAMETERS) else SCALED_PARAMETERS[:1]
            own = fit_until_determined(fit.calibration, name, timed, free)
            intervals = {f"{name}.{parameter}": ends for parameter, ends in own.intervals.items()}
            fit = CalibrationFit(own.calibration, {**fit.intervals, **intervals}, fit.residuals + own.residuals)
        else:
            rates = {x: rate for x, rate in fit.calibration.rates.items() if x != name}
            fit = replace(fit, calibration=replace(fit.calibration, rates=MappingProxyType(rates)))
    return fit


# ---- the fit of few samples: a scaled calibration

MIN_WHOLE_PLANS = 3  # smallest number of timed whole plans for a fit of all parameters, not only of SCALED_PARAMETERS
SCALED_PARAMETERS = (FIT_PARAMETERS_BY_NAME["rate.flops"], FIT_PARAMETERS_BY_NAME["stream"])


def has_too_few_plans(observed: Sequence[Observation]) -> bool:
    """Return True if too few whole plans were timed for a fit of all parameters."""
    return sum(o.run_kind == "plan" for o in observed) < MIN_WHOLE_PLANS


def scale_calibration(similar: Calibration, dtype: str, observed: Sequence[Observation]) -> CalibrationFit:
    """Return a similar device's calibration, scaled to the measured rates of products, sums and leaves."""
    vendor_observations = [o for o in observed if o.has_vendor_leaf]
    informed = [p for p in SCALED_PARAMETERS if p.informed_by & {o.run_kind for o in vendor_observations}]
    start = _with_median_rate(similar, dtype, vendor_observations, "rate.flops", "vendor")
    start = _with_median_rate(start, dtype, vendor_observations, "stream", "sums")
    fit = (
        fit_until_determined(start, dtype, vendor_observations, informed)
        if informed
        else CalibrationFit(similar, {}, ())
    )
    return _fit_leaf_rates(fit, dtype, observed)


def _with_median_rate(
    similar: Calibration, dtype: str, observed: Sequence[Observation], name: str, kind: str
) -> Calibration:
    """Return the calibration with one rate scaled by the median of predicted / measured seconds of selected runs."""
    ratios = [o.predicted_seconds(similar) / o.seconds for o in observed if o.run_kind == kind]
    if not ratios:
        return similar
    return with_parameters(
        similar, dtype, {name: FIT_PARAMETERS_BY_NAME[name].value_in(similar, dtype) * median(ratios)}
    )


# ---- least squares

# the fit's cost grows linearly with residuals above this number, so that outliers have less weight
SOFT_L1_SCALE = 0.03
# weight of a parameter's distance from its start value, too small to change parameters that observations determine
PRIOR_WEIGHT = 0.002
# Intervals are computed with at least this standard deviation of the residuals: a few residuals may be small by chance.
MIN_RESIDUAL_DEVIATION = 0.01
MIN_SINGULAR_VALUE_SHARE = 1e-12  # singular values of the Jacobian are raised to at least this share of the largest one
# Observations of whole plans have the weight 1 in the fit. Observations of only the sums or only the products of a plan
# have a lower weight, since sums and products that are timed alone run with other cache contents and clock rates than
# inside a plan. On a CPU where plans run several products at a time, sums are timed while plans run, and have the
# weight 1.
RUN_PART_WEIGHTS = {"sums": 0.1, "products": 0.1}
# On a CPU, the weights of plans with several levels are raised: a tuning times few of these plans, but decisions depend
# strongly on their times. MAX_DEEP_PLAN_WEIGHT is the largest factor by which a plan's weight is raised. The weights
# are raised less if the squared weights of plans with several levels would otherwise sum to more than the squared
# weights of the vendor's products.
MAX_DEEP_PLAN_WEIGHT = 3.0
# On a CPU that runs several products at a time, a plan has less weight if its time exceeds this multiple of the
# vendor's time.
FULL_WEIGHT_TIME_RATIO = 1.5


@dataclass(frozen=True)
class LeastSquaresSolution:
    """The minimum of a least-squares problem: coordinates x, cost, residuals, and the uncertainty of x.

    `residuals` has log(predicted / measured) for each observation. The rows of `directions` are independent
    displacements of x; each is as long as half of the 95 % interval in its direction.
    """

    x: Any
    cost: float
    residuals: tuple[float, ...]
    directions: Any

    @property
    def interval_half_widths(self) -> tuple[float, ...]:
        """Half of the length of the 95 % interval of each coordinate."""
        return tuple(float(x) for x in np.sqrt(np.sum(self.directions**2, axis=0)))


class LeastSquares:
    """A least-squares problem: the observations, and the free parameters that the fit varies.

    If `free` is not passed, the fit varies all parameters that change the predicted times of the observations.
    """

    def __init__(
        self,
        start: Calibration,
        dtype: str,
        observed: Sequence[Observation],
        free: Sequence[FitParameter] | None = None,
    ) -> None:
        self.start, self.dtype, self.observed = start, dtype, observed
        kinds = {o.run_kind for o in observed}
        informed = [p for p in FIT_PARAMETERS if kinds & p.informed_by and is_used_on_device(p, start)]
        self.free = informed if free is None else list(free)
        self._works = [cached_plan_work(o.run.plan, o.problem) for o in observed]
        self._log_measured = np.log([o.seconds for o in observed])
        self._weights = np.array(observation_weights(start, observed))
        ends = [(p.low if p.linear else max(p.low, 1e-300), p.high) for p in self.free]
        coordinates = [[p.fit_coordinate(x) for x in pair] for p, pair in zip(self.free, ends, strict=True)]
        self._low, self._high = np.array(coordinates).reshape(-1, 2).T
        at_start = [p.fit_coordinate(max(p.value_in(start, dtype), p.low)) for p in self.free]
        self._origin = np.clip(at_start, self._low, self._high)
        self._begin = self._origin

    def parameters_at(self, x: Any) -> dict[str, float]:
        """Return the values of the free parameters at the coordinates x, by name."""
        return {
            p.name: p.value_at_coordinate(float(fit_coordinate)) for p, fit_coordinate in zip(self.free, x, strict=True)
        }

    def calibration_at(self, x: Any) -> Calibration:
        """Return the calibration with the parameters at the coordinates x."""
        return with_parameters(self.start, self.dtype, self.parameters_at(x))

    def weighted_residuals(self, x: Any) -> Any:
        """Return the weighted log(predicted / measured) of each observation.

        The result ends with each parameter's distance from its start value, multiplied by PRIOR_WEIGHT.
        """
        calibration = self.calibration_at(x)
        pairs = zip(self.observed, self._works, strict=True)
        predicted = [predicted_run_seconds(o.run, o.problem, work, calibration) for o, work in pairs]
        weighted = self._weights * (np.log(predicted) - self._log_measured)
        return np.concatenate([weighted, PRIOR_WEIGHT * (x - self._origin)])

    def solve(self, steps: int) -> LeastSquaresSolution:
        """Return the best solution after at most `steps` evaluations; the next call starts from this solution."""
        from scipy.optimize import least_squares

        bounds = self._low, self._high
        solved = least_squares(
            self.weighted_residuals, self._begin, bounds=bounds, loss="soft_l1", f_scale=SOFT_L1_SCALE, max_nfev=steps
        )
        self._begin = np.clip(solved.x, *bounds)
        unweighted = tuple(solved.fun[: len(self.observed)] / self._weights)
        return LeastSquaresSolution(solved.x, float(solved.cost), unweighted, self._solution_uncertainty(solved))

    def _solution_uncertainty(self, solved: Any) -> Any:
        """Return the `directions` of LeastSquaresSolution, computed from the Jacobian for normal residuals.

        The number of degrees of freedom is the sum of the squared weights of the observations, minus the number of free
        parameters.
        """
        from scipy.stats import t

        freedom = max(float(np.sum(self._weights**2)) - len(self.free), 1.0)
        variance = max(float(np.sum(solved.fun[: len(self._weights)] ** 2)) / freedom, MIN_RESIDUAL_DEVIATION**2)
        _, slopes, directions = np.linalg.svd(solved.jac, full_matrices=False)
        slopes = np.maximum(slopes, MIN_SINGULAR_VALUE_SHARE * np.max(slopes, initial=1.0))
        return t.ppf(0.975, freedom) * np.sqrt(variance) * directions / slopes[:, None]

    def undetermined_parameters(self, solution: LeastSquaresSolution) -> dict[FitParameter, float]:
        """Return the undetermined parameters: parameter -> (half width of its 95 % interval) / tolerance."""
        interval_over_tolerance = {
            p: p.interval_over_tolerance(width)
            for p, width in zip(self.free, solution.interval_half_widths, strict=True)
        }
        return {p: x for p, x in interval_over_tolerance.items() if x > 1}

    def with_fixed_parameters(self, fixed: Iterable[FitParameter], solution: LeastSquaresSolution) -> LeastSquares:
        """Return the problem with some parameters fixed, each at its neutral value, or else at its start value.

        A call of `solve` on the new problem starts at `solution`.
        """
        left_out = set(fixed)
        neutral = {p.name: p.neutral for p in left_out if p.neutral is not None}
        start = with_parameters(self.start, self.dtype, neutral)
        smaller = LeastSquares(start, self.dtype, self.observed, [p for p in self.free if p not in left_out])
        remaining = [x for p, x in zip(self.free, solution.x, strict=True) if p not in left_out]
        smaller._begin = np.clip(remaining, smaller._low, smaller._high)
        return smaller

    def parameter_intervals(self, solution: LeastSquaresSolution) -> dict[str, tuple[float, float]]:
        """Return the 95 % intervals of the free parameters, by name."""
        found = {}
        for p, x, width in zip(self.free, solution.x, solution.interval_half_widths, strict=True):
            low, high = (
                float(np.clip(p.value_at_coordinate(float(end)), p.low, p.high)) for end in (x - width, x + width)
            )
            found[p.name] = low, high
        return found


def observation_weights(start: Calibration, observed: Sequence[Observation]) -> list[float]:
    """Return the weight of each observation in the fit."""
    if start.lanes == 1:
        weights = [RUN_PART_WEIGHTS.get(o.run.part, 1.0) for o in observed]
    else:
        vendor = {o.problem: o.seconds for o in observed if o.run_kind == "vendor"}
        worst = FULL_WEIGHT_TIME_RATIO
        near = [worst * vendor.get(o.problem, o.seconds) / o.seconds if o.run_kind == "plan" else 1.0 for o in observed]
        weights = [min(x, 1.0) ** 2 for x in near]
    return weights if start.batches else _raise_deep_plan_weights(weights, observed)


def _raise_deep_plan_weights(weights: Sequence[float], observed: Sequence[Observation]) -> list[float]:
    """Return the weights, with higher weights of whole plans with several levels (see MAX_DEEP_PLAN_WEIGHT)."""
    deep = [o.run_kind == "plan" and count_levels(o.run.plan) > 1 for o in observed]
    squares = sum(w * w for w, is_deep in zip(weights, deep, strict=True) if is_deep)
    vendor = sum(w * w for w, o in zip(weights, observed, strict=True) if o.run_kind == "vendor")
    factor = min(max(sqrt(vendor / squares), 1.0), MAX_DEEP_PLAN_WEIGHT) if squares else 1.0
    return [w * factor if is_deep else w for w, is_deep in zip(weights, deep, strict=True)]


# ---- the error of predictions


@dataclass(frozen=True)
class PredictionError:
    """Statistics of relative errors of predictions, (predicted / measured) - 1.

    `median` and `p95` are quantiles of the absolute errors. `bias` is the median of the signed errors. `upper` is the
    upper end of the 95 % interval of `median`; for few measurements, it is far above the median. `above` is like
    `upper`, but for too large predictions only; both are equal if the signed errors are symmetric about 0.
    """

    count: int
    median: float
    p95: float
    bias: float
    upper: float
    above: float = 0.0

    @property
    def json_fields(self) -> dict[str, float]:
        """The statistics as a dictionary for a config section; only the count if there are no errors."""
        return asdict(self) if self.count else {"count": 0}

    @staticmethod
    def from_relative_errors(relative: Sequence[float]) -> PredictionError:
        """Return the statistics of these relative errors."""
        if not relative:
            return PredictionError(0, 0.0, 0.0, 0.0, 0.0)
        count, sizes = len(relative), np.abs(relative)
        # The number of samples below the true median has a binomial distribution with the standard deviation
        # sqrt(count) / 2. The upper end of the median's interval is therefore the quantile 0.5 + 1.96 / (2 sqrt(count))
        # of the samples.
        upper_rank = min(0.5 + 0.98 / count**0.5, 1.0)
        middle, p95, upper = (float(x) for x in np.quantile(sizes, (0.5, 0.95, upper_rank)))
        above = max(float(np.quantile(relative, (1 + upper_rank) / 2)), 0.0)
        return PredictionError(count, middle, p95, float(np.median(relative)), upper, above)


def prediction_errors(calibration: Calibration, observed: Sequence[Observation]) -> dict[str, PredictionError]:
    """Return the error statistics of predicted times ("time"), and of predicted speedups over the vendor ("speedup").

    A speedup is a ratio of two times on one problem, so a drift of the machine's speed cancels.
    """
    times = {(o.problem, o.run): (o.predicted_seconds(calibration), o.seconds) for o in observed}
    relative = [predicted / measured - 1 for predicted, measured in times.values()]
    speedups = []
    for (problem, run), (predicted, measured) in times.items():
        base = times.get((problem, TimedRun()))
        if base and run != TimedRun() and run.part == "whole":
            speedups.append((base[0] / predicted) / (base[1] / measured) - 1)
    return {
        "time": PredictionError.from_relative_errors(relative),
        "speedup": PredictionError.from_relative_errors(speedups),
    }
