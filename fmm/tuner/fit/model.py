"""Fitting a calibration to measured seconds: its parameters are those of fmm.tuner.fit.parameters, the model is
perfmodel's own formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.work import are_rows_aligned
from fmm.problem import Problem
from fmm.tuner.devices.device import Run, cached_work, formula_seconds
from fmm.tuner.fit.parameters import (
    LEAF_RATE_PARAMETERS,
    PARAMETERS,
    PARAMETERS_BY_NAME,
    START_OF_OWN_KERNEL,
    TILE_PARAMETER,
    Parameter,
    exists_on,
    with_parameters,
)
from fmm.tuner.trials.record import Size, Trial

# ---- what was observed


@dataclass(frozen=True)
class Observation:
    """The median seconds of one run on one problem."""

    problem: Problem
    run: Run
    seconds: float

    @property
    def kind(self) -> str:
        """What it tells about: vendor, products, sums or plan; of our own kernel `tile`, on rows that are not
        aligned `odd tile`, with sums inside `inside`."""
        if self.run.plan.leaf_use.leaf.rate:
            return "own rate"
        if self.run.plan.uses_tile_model:
            if self.run.plan.levels:
                return "inside"
            return "tile" if are_rows_aligned(self.problem, self.run.plan.leaf_use.leaf.alignment) else "odd tile"
        if self.run.part != "whole":
            return self.run.part
        return "vendor" if self.run.plan == VENDOR else "plan"


def observed_medians(trials: Iterable[Trial], stages: Sequence[str]) -> list[Observation]:
    """Return the medians over the samples of the stages, one for every run and problem."""
    samples: dict[tuple[Size, str, str, str], list[float]] = {}
    for t in trials:
        if t.stage in stages and t.seconds is not None:
            samples.setdefault((t.size, t.dtype, t.plan, t.part), []).append(t.seconds)
    return [
        Observation(Problem(*size, dtype), Run(Plan.parse(plan), part), median(found))
        for (size, dtype, plan, part), found in samples.items()
    ]


# ---- fitting

ROBUST_RESIDUAL = 0.03  # larger residuals (of logarithms) count less than by their square: outliers pull less
# Timed alone, sums and products find other caches and clocks than within a plan, which is what is to be predicted.
PART_WEIGHTS = {"sums": 0.1, "products": 0.1}
# On a CPU with several lanes, sums are timed within plans and have full weight. A plan that takes more than this many
# times as long as the vendor's product is nobody's choice there, and counts less.
WORTH_FITTING = 1.5
MIN_RESIDUAL = 0.01  # no time is taken for better known than to this share of it: two points are no proof of a line
MIN_SLOPE_SHARE = (
    1e-12  # the share of the best seen direction's slope below which a direction of the parameters was not seen
)
PRIOR_WEIGHT = 0.002  # the weight of staying near the start, which decides only what the measurements leave open


@dataclass(frozen=True)
class Fit:
    """A calibration, 95 % intervals of the parameters that the measurements determine (the others keep the value that
    they had, or with which nothing changes), and the residuals: log(predicted / measured)."""

    calibration: Calibration
    intervals: Mapping[str, tuple[float, float]]
    residuals: tuple[float, ...]


TILE_SIDES = (64.0, 128.0, 256.0)  # of the blocks in which vendors' products are computed
MAX_STEPS = 60  # at most: by then all is found that the measurements tell, and the rest is a walk along a flat valley
SCREENING_STEPS = 8  # steps after which their fits are compared
# Parameters that are so many times less certain than they may be are left out together, the others one by one: of two
# that can stand in for each other one may be certain without the other.
FAR_TOO_LOOSE = 3.0


def fit_calibration(start: Calibration, dtype: str, observed: Sequence[Observation]) -> Fit:
    """Return the best fit over the tile sizes: whole tiles make steps, which have no slope for least squares."""
    tiled = [o for o in observed if o.run.plan.uses_tile_model]
    others = [o for o in observed if o.run.plan.leaf_use.leaf == VENDOR.leaf_use.leaf]  # it is the vendor's time
    start = _rescaled(start, dtype, others)
    if start.batches:
        known = dict.fromkeys([start, with_parameters(start, dtype, {"rate.sms": 0.0})])  # do the vendor's rounds show?
        starts = [TILE_PARAMETER.put(s, dtype, side) for s in known for side in TILE_SIDES]
        start = min(starts, key=lambda s: LeastSquares(s, dtype, others).solved(SCREENING_STEPS).cost)
    return _with_own_rates(_with_tiled(fit_determined(start, dtype, others), dtype, tiled), dtype, observed)


def _with_own_rates(found: Fit, dtype: str, observed: Sequence[Observation]) -> Fit:
    """The fit with the rates of leaves that have one of their own, as far as these were timed: of a few samples what
    is known of such devices, scaled. Rates that nobody measured are left out."""
    timed = [o for o in observed if o.run.part != "sums"]
    for name in found.calibration.rates.keys() - {dtype}:
        own = [o for o in timed if o.run.plan.leaf_use.leaf.rate == name]
        found = _with_rate(found, name, own) if own else _without_rate(found, name)
    return found


def _with_rate(found: Fit, name: str, observed: Sequence[Observation]) -> Fit:
    free = LEAF_RATE_PARAMETERS if len(observed) > len(LEAF_RATE_PARAMETERS) else SCALED_PARAMETERS[:1]
    own = fit_determined(found.calibration, name, observed, free)
    intervals = {f"{name}.{x}": ends for x, ends in own.intervals.items()}
    return Fit(own.calibration, {**found.intervals, **intervals}, found.residuals + own.residuals)


def _without_rate(found: Fit, name: str) -> Fit:
    rates = {x: rate for x, rate in found.calibration.rates.items() if x != name}
    return replace(found, calibration=replace(found.calibration, rates=MappingProxyType(rates)))


def _with_tiled(found: Fit, dtype: str, observed: Sequence[Observation]) -> Fit:
    """The fit with our own kernel's parameters too, fitted last; without them if no plan had sums inside products."""
    if not any(o.kind == "inside" for o in observed):
        return found
    own = fit_determined(with_parameters(found.calibration, dtype, START_OF_OWN_KERNEL), dtype, observed)
    return Fit(own.calibration, {**found.intervals, **own.intervals}, found.residuals + own.residuals)


def fit_determined(
    start: Calibration, dtype: str, observed: Sequence[Observation], free: Sequence[Parameter] | None = None
) -> Fit:
    """Repeat least squares without undetermined parameters until all are determined."""
    solver = LeastSquares(start, dtype, observed, free)
    found = solver.solved(MAX_STEPS)
    while loose := solver.loose(found):
        hopeless = [p for p, looseness in loose.items() if looseness > FAR_TOO_LOOSE]
        solver = solver.without(hopeless or [max(loose, key=lambda p: loose[p])], found)
        found = solver.solved(SCREENING_STEPS)
    found = solver.solved(MAX_STEPS)
    return Fit(solver.calibrated(found.x), solver.intervals(found), found.residuals)


@dataclass(frozen=True)
class Solution:
    """The result of least squares: coordinates, cost, residuals, and the error of the coordinates."""

    x: Any
    cost: float
    residuals: tuple[float, ...]
    directions: Any  # of x, independent of each other, a row each: half a 95 % interval long

    @property
    def half_widths(self) -> tuple[float, ...]:
        return tuple(float(x) for x in np.sqrt(np.sum(self.directions**2, axis=0)))


class LeastSquares:
    """Least squares of the residuals with a robust loss; uninformed parameters keep their start."""

    def __init__(
        self, start: Calibration, dtype: str, observed: Sequence[Observation], free: Sequence[Parameter] | None = None
    ) -> None:
        self.start, self.dtype, self.observed = start, dtype, observed
        kinds = {o.kind for o in observed}
        known = [p for p in PARAMETERS if kinds & p.informed_by and exists_on(p, start)]
        self.free = known if free is None else list(free)
        self._works = [cached_work(o.run.plan, o.problem) for o in observed]
        self._measured, self._weights = np.log([o.seconds for o in observed]), np.array(_weights(start, observed))
        ends = [(p.low if p.linear else max(p.low, 1e-300), p.high) for p in self.free]
        coordinates = [[p.coordinate(x) for x in pair] for p, pair in zip(self.free, ends, strict=True)]
        self._low, self._high = np.array(coordinates).reshape(-1, 2).T
        known_at = [p.coordinate(max(p.get(start, dtype), p.low)) for p in self.free]
        self._origin = np.clip(known_at, self._low, self._high)
        self._begin = self._origin

    def calibrated(self, x: Any) -> Calibration:
        return with_parameters(self.start, self.dtype, self.values(x))

    def values(self, x: Any) -> dict[str, float]:
        """Return the parameters at these coordinates."""
        return {p.name: p.value(float(coordinate)) for p, coordinate in zip(self.free, x, strict=True)}

    def residuals(self, x: Any) -> Any:
        c = self.calibrated(x)
        pairs = zip(self.observed, self._works, strict=True)
        times = [formula_seconds(o.run, o.problem, work, c) for o, work in pairs]
        return np.concatenate([self._weights * (np.log(times) - self._measured), PRIOR_WEIGHT * (x - self._origin)])

    def solved(self, steps: int) -> Solution:
        """In so many steps at most."""
        from scipy.optimize import least_squares

        bounds = self._low, self._high
        solved = least_squares(
            self.residuals, self._begin, bounds=bounds, loss="soft_l1", f_scale=ROBUST_RESIDUAL, max_nfev=steps
        )
        self._begin = np.clip(solved.x, *bounds)
        residues = tuple(solved.fun[: len(self.observed)] / self._weights)
        return Solution(solved.x, float(solved.cost), residues, self._directions(solved))

    def loose(self, found: Solution) -> dict[Parameter, float]:
        """Return the undetermined parameters with their looseness."""
        known = {p: p.looseness(r) for p, r in zip(self.free, found.half_widths, strict=True)}
        return {p: looseness for p, looseness in known.items() if looseness > 1}

    def without(self, some: Iterable[Parameter], found: Solution) -> LeastSquares:
        """Return a solver without some parameters, which take their neutral values."""
        left = set(some)
        neutral = {p.name: p.neutral for p in left if p.neutral is not None}
        start = with_parameters(self.start, self.dtype, neutral)
        solver = LeastSquares(start, self.dtype, self.observed, [p for p in self.free if p not in left])
        kept = [x for p, x in zip(self.free, found.x, strict=True) if p not in left]
        solver._begin = np.clip(kept, solver._low, solver._high)
        return solver

    def _directions(self, solved: Any) -> Any:
        """From the curvature at the solution, as if the residuals were normal. An observation counts as much as its
        weight."""
        from scipy.stats import t

        more = max(float(np.sum(self._weights**2)) - len(self.free), 1.0)
        spread = max(float(np.sum(solved.fun[: len(self._weights)] ** 2)) / more, MIN_RESIDUAL**2)
        _, found, directions = np.linalg.svd(solved.jac, full_matrices=False)
        found = np.maximum(found, MIN_SLOPE_SHARE * np.max(found, initial=1.0))  # nothing was seen along the others
        return t.ppf(0.975, more) * np.sqrt(spread) * directions / found[:, None]

    def intervals(self, found: Solution) -> dict[str, tuple[float, float]]:
        """By the parameters' names."""
        result = {}
        for p, x, r in zip(self.free, found.x, found.half_widths, strict=True):
            low, high = (float(np.clip(p.value(float(end)), p.low, p.high)) for end in (x - r, x + r))
            result[p.name] = low, high
        return result


def _weights(start: Calibration, observed: Sequence[Observation]) -> list[float]:
    if start.lanes == 1:
        return [PART_WEIGHTS.get(o.run.part, 1.0) for o in observed]
    vendor = {o.problem: o.seconds for o in observed if o.kind == "vendor"}
    near = [WORTH_FITTING * vendor.get(o.problem, o.seconds) / o.seconds if o.kind == "plan" else 1.0 for o in observed]
    return [min(x, 1.0) ** 2 for x in near]


# As long as fewer whole plans were timed for a fit, nothing but these is fitted.
MIN_WHOLE_PLANS = 3
SCALED_PARAMETERS = (PARAMETERS_BY_NAME["rate.flops"], PARAMETERS_BY_NAME["stream"])


def has_few_plans(observed: Sequence[Observation]) -> bool:
    """Return True if there are too few whole plans for a fit of all parameters."""
    return sum(o.kind == "plan" for o in observed) < MIN_WHOLE_PLANS


def scale_calibration(known: Calibration, dtype: str, observed: Sequence[Observation]) -> Fit:
    """What was known of such devices, with this one's own rates of products and sums, and of leaves that have one of
    their own: so much a few samples tell."""
    others = [o for o in observed if o.run.plan.leaf_use.leaf == VENDOR.leaf_use.leaf]
    informed = [p for p in SCALED_PARAMETERS if p.informed_by & {o.kind for o in others}]
    start = _as_fast(_as_fast(known, dtype, others, "rate.flops", "vendor"), dtype, others, "stream", "sums")
    found = fit_determined(start, dtype, others, informed) if informed else Fit(known, {}, ())
    return _with_own_rates(found, dtype, observed)


def _as_fast(known: Calibration, dtype: str, observed: Sequence[Observation], name: str, kind: str) -> Calibration:
    """The calibration with a rate by which half of the observations of a kind are faster and half are slower."""
    ratios = [
        formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), known) / o.seconds
        for o in observed
        if o.kind == kind
    ]
    return (
        with_parameters(known, dtype, {name: PARAMETERS_BY_NAME[name].get(known, dtype) * median(ratios)})
        if ratios
        else known
    )


def _rescaled(start: Calibration, dtype: str, observed: Sequence[Observation]) -> Calibration:
    """Return the start with the rates of the fastest observations."""
    rates = [o.problem.flops / o.seconds for o in observed if o.kind == "vendor"]
    streams = [
        cached_work(o.run.plan, o.problem).traffic * o.problem.itemsize / o.seconds
        for o in observed
        if o.kind == "sums"
    ]
    found = with_parameters(start, dtype, {"rate.flops": max(rates)}) if rates else start
    found = replace(found, stream=median(streams)) if streams else found
    if start.batches:  # so that `host` decides some products' time at the start: else least squares sees no slope
        found = replace(found, host=min((o.seconds for o in observed if o.kind == "vendor"), default=0.0))
    return with_parameters(found, dtype, {"rate.memory": 4 * found.stream})


# ---- how good it is


@dataclass(frozen=True)
class PredictionError:
    """How far predictions are off, as shares of the measured values. `bias` is the median with its sign. `upper` is the
    upper end of a 95 % interval of the median: far above it if there are few measurements. `above` is what it would be
    if the errors above the measured values were all there are, and as many below them as large."""

    count: int
    median: float
    p95: float
    bias: float
    upper: float
    above: float = 0.0

    @property
    def fields(self) -> dict[str, float]:
        """As it stands in a section: of what was not measured, nothing but that."""
        return asdict(self) if self.count else {"count": 0}

    @staticmethod
    def of(relative: Sequence[float]) -> PredictionError:
        if not relative:
            return PredictionError(0, 0.0, 0.0, 0.0, 0.0)
        count, sizes = len(relative), np.abs(relative)
        # Two standard deviations of the number of samples that lie below the true median.
        place = min(0.5 + 0.98 / count**0.5, 1.0)
        middle, far, upper = (float(x) for x in np.quantile(sizes, (0.5, 0.95, place)))
        above = max(float(np.quantile(relative, (1 + place) / 2)), 0.0)
        return PredictionError(count, middle, far, float(np.median(relative)), upper, above)


def prediction_errors(calibration: Calibration, observed: Sequence[Observation]) -> dict[str, PredictionError]:
    """Of predicted times, and of predicted speedups over the vendor (there the machine's drift cancels)."""
    times: dict[tuple[Problem, Run], tuple[float, float]] = {}
    for o in observed:
        times[o.problem, o.run] = (
            formula_seconds(o.run, o.problem, cached_work(o.run.plan, o.problem), calibration),
            o.seconds,
        )
    relative = [p / m - 1 for p, m in times.values()]
    speedups = []
    for (problem, run), (p, m) in times.items():
        base = times.get((problem, Run()))
        if base and run != Run() and run.part == "whole":
            speedups.append((base[0] / p) / (base[1] / m) - 1)
    return {"time": PredictionError.of(relative), "speedup": PredictionError.of(speedups)}
