"""Fitting a calibration to measured seconds: the parameters are a table, the model is perfmodel's own formula."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from math import exp, log
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import predicted_seconds
from fmm.perfmodel.work import Work, counted_work
from fmm.problem import Problem
from fmm.tuner.trials import BEST, Run, Size, Trial

# ---- what was observed


@dataclass(frozen=True)
class Observation:
    """The median seconds of one run on one problem."""

    problem: Problem
    run: Run
    seconds: float

    @property
    def kind(self) -> str:
        """What it tells about: vendor, products, sums or plan; of our own kernel `tile`, with sums inside `inside`."""
        if self.run.plan.leaf_use.leaf.rate:
            return "own rate"
        if self.run.plan.timed_by_tiles:
            return "inside" if self.run.plan.levels else "tile"
        if self.run.part != "whole":
            return self.run.part
        return "vendor" if self.run.plan == VENDOR else "plan"


def stage_medians(trials: Iterable[Trial], stages: Sequence[str]) -> list[Observation]:
    """Medians over the samples of the stages, one for every run and problem."""
    samples: dict[tuple[Size, str, str, str], list[float]] = {}
    for t in trials:
        if t.stage in stages and t.seconds is not None:
            samples.setdefault((t.size, t.dtype, t.plan, t.part), []).append(t.seconds)
    return [
        Observation(Problem(*size, dtype), Run(Plan.parse(plan), part), median(found))
        for (size, dtype, plan, part), found in samples.items()
    ]


@lru_cache(maxsize=16384)
def cached_work(plan: Plan, problem: Problem) -> Work:
    return counted_work(plan, problem)


def formula_seconds(run: Run, problem: Problem, counts: Work, calibration: Calibration) -> float:
    """The formula's seconds for a run, or for the part of it that is timed."""
    found = predicted_seconds(run.plan, problem, counts, calibration)
    if run.part in ("whole", BEST):
        return found.seconds
    if calibration.lanes > 1:  # the workers are timed, without what starts them
        return found.sums if run.part == "sums" else found.products
    starts = sum(count / together for *_, count, together in counts.leaves)
    if run.part == "sums":
        return found.sums + calibration.launch * counts.passes
    return max(found.products + calibration.launch * starts, calibration.host * starts)


# ---- the parameters


@dataclass(frozen=True)
class Parameter:
    """A number of a calibration that is fitted: its field, its bounds, and which kinds of observations depend on it."""

    name: str  # of a field of Calibration, or "rate." and one of Rate
    low: float
    high: float
    informed_by: frozenset[str]
    linear: bool = False  # most are fitted by their logarithms

    def get(self, calibration: Calibration, dtype: str) -> float:
        owner: Any = calibration.rate(dtype) if self.name.startswith("rate.") else calibration
        return float(getattr(owner, self.name.removeprefix("rate.")))

    def put(self, calibration: Calibration, dtype: str, value: float) -> Calibration:
        if not self.name.startswith("rate."):
            return replace(calibration, **{self.name: value})  # type: ignore[arg-type]
        rate = replace(calibration.rate(dtype), **{self.name.removeprefix("rate."): value})
        return replace(calibration, rates=MappingProxyType({**calibration.rates, dtype: rate}))

    def coordinate(self, value: float) -> float:
        return value if self.linear else log(value)

    def value(self, coordinate: float) -> float:
        return coordinate if self.linear else exp(coordinate)


def put_all(calibration: Calibration, dtype: str, values: Mapping[str, float]) -> Calibration:
    """All at once: a fit asks for thousands of calibrations, and most of its time would be spent making copies."""
    own = {name: value for name, value in values.items() if not name.startswith("rate.")}
    rates = {name.removeprefix("rate."): value for name, value in values.items() if name.startswith("rate.")}
    rate = replace(calibration.rate(dtype), **rates)
    return replace(calibration, rates=MappingProxyType({**calibration.rates, dtype: rate}), **own)  # type: ignore[arg-type]


PRODUCTS, SUMS = frozenset({"vendor", "products", "plan"}), frozenset({"sums", "plan"})
OWN_RATE = PRODUCTS | {"own rate"}  # of a leaf that has a rate of its own too, which is fitted by itself
# A new term of the formula is a new row here.
PARAMETERS = (
    Parameter("rate.flops", 1e6, 1e17, OWN_RATE),
    Parameter("rate.fill", 1.0, 1e8, OWN_RATE),
    Parameter("rate.pipe", 0.1, 1e4, OWN_RATE),
    Parameter("rate.rows", 0.1, 1e4, OWN_RATE),
    Parameter("rate.cols", 0.1, 1e4, OWN_RATE),
    Parameter("rate.memory", 1e6, 1e15, PRODUCTS),
    Parameter("rate.unaligned", 0.5, 20.0, PRODUCTS),
    Parameter("rate.odd", 0.5, 20.0, PRODUCTS),
    Parameter("rate.alone", 0.5, 2.0, PRODUCTS),
    Parameter("rate.copied", 0.5, 2.0, frozenset({"plan"})),
    Parameter("rate.batch", 0.5, 2.0, frozenset({"products", "plan"})),
    Parameter("stream", 1e6, 1e15, SUMS),
    Parameter("small", 1.0, 1e10, SUMS),
    Parameter("sequential", 0.1, 10.0, SUMS),
    Parameter("ragged", 0.1, 10.0, frozenset({"plan"})),
    # At most 1: narrow accesses gain nothing, and few plans show them apart from `ragged`.
    Parameter("scalar", 0.1, 1.0, frozenset({"plan"})),
    Parameter("deep", 0.1, 10.0, SUMS),
    Parameter("launch", 1e-8, 1e-2, SUMS),
    Parameter("host", 1e-8, 1e-2, frozenset({"products", "plan"})),
    Parameter("overlap", 0.0, 1.0, frozenset({"plan"}), linear=True),
    Parameter("idle", 1e-5, 1.0, frozenset({"plan"})),
    Parameter("spin", 1e-5, 1.0, frozenset({"plan"})),
    Parameter("apart", 0.1, 10.0, SUMS),
    # Those of our own kernel are fitted after all others: its times say nothing about the vendor's.
    Parameter("rate.tiled", 0.5, 10.0, frozenset({"tile", "inside"})),
    Parameter("rate.waves", 0.1, 1e4, frozenset({"tile", "inside"})),
    Parameter("rate.inside", 0.01, 1e3, frozenset({"inside"})),
)
TILED_START = {"rate.tiled": 1.0, "rate.waves": 50.0, "rate.inside": 1.0}


TILE = Parameter("rate.tile", 1.0, 1024.0, frozenset())
BESIDE = frozenset({"host", "scalar", "rate.copied"})  # fitted only where the processor launches work of another device
LANES = frozenset({"idle", "spin", "apart"})  # fitted only where a CPU runs several products at a time


# ---- fitting

ROBUST = 0.03  # larger residuals (of logarithms) count less than by their square: outliers pull less
# Timed alone, sums and products find other caches and clocks than within a plan, which is what is to be predicted.
WEIGHTS = {"sums": 0.1, "products": 0.1}
# On a CPU with several lanes, sums are timed within plans and have full weight. A plan that takes more than this many
# times as long as the vendor's product is nobody's choice there, and counts less.
WORTH_FITTING = 1.5
PRIOR = 0.002  # the weight of staying near the start, which decides only what the measurements leave open


@dataclass(frozen=True)
class Fit:
    """A calibration, 95 % intervals of its parameters, and the residuals: log(predicted / measured)."""

    calibration: Calibration
    intervals: Mapping[str, tuple[float, float]]
    residuals: tuple[float, ...]


TILES = (64.0, 128.0, 256.0)  # sides of the blocks in which vendors' products are computed
STEPS = 60  # at most: by then all is found that the measurements tell, and the rest is a walk along a flat valley
SCREENED = 8  # steps after which their fits are compared


def fit_calibration(start: Calibration, dtype: str, observed: Sequence[Observation]) -> Fit:
    """The best of the fits with each size of tile. (Whole tiles make steps, which have no slope for least squares.)"""
    tiled = [o for o in observed if o.run.plan.timed_by_tiles]
    others = [o for o in observed if o.run.plan.leaf_use.leaf == VENDOR.leaf_use.leaf]  # it is the vendor's time
    start = _rescaled(start, dtype, others)
    if start.batches:
        starts = [TILE.put(start, dtype, tile) for tile in TILES]
        start = min(starts, key=lambda s: _fitted(s, dtype, others, SCREENED)[0])
    found = _with_tiled(_fitted(start, dtype, others)[1], dtype, tiled)
    for name in start.rates.keys() - {dtype}:
        found = _with_rate(found, name, [o for o in observed if o.run.plan.leaf_use.leaf.rate == name])
    return found


def _with_rate(found: Fit, name: str, observed: Sequence[Observation]) -> Fit:
    """The fit with the rate of a leaf that has one of its own; without that rate if nobody measured it."""
    if not observed:
        rates = {x: rate for x, rate in found.calibration.rates.items() if x != name}
        return replace(found, calibration=replace(found.calibration, rates=MappingProxyType(rates)))
    own = _fitted(found.calibration, name, observed)[1]
    intervals = {f"{name}.{x}": ends for x, ends in own.intervals.items()}
    return Fit(own.calibration, {**found.intervals, **intervals}, found.residuals + own.residuals)


def _with_tiled(found: Fit, dtype: str, observed: Sequence[Observation]) -> Fit:
    """The fit with our own kernel's parameters too, fitted last; without them if no plan had sums inside products."""
    if not any(o.kind == "inside" for o in observed):
        return found
    start = found.calibration
    for parameter in PARAMETERS:
        if parameter.name in TILED_START:
            start = parameter.put(start, dtype, TILED_START[parameter.name])
    own = _fitted(start, dtype, observed)[1]
    return Fit(own.calibration, {**found.intervals, **own.intervals}, found.residuals + own.residuals)


def _fitted(start: Calibration, dtype: str, observed: Sequence[Observation], steps: int = STEPS) -> tuple[float, Fit]:
    """Least squares of the residuals with a robust loss, in so many steps at most, and what is left of them;
    parameters that nothing informs stay at their start."""
    from scipy.optimize import least_squares

    kinds = {o.kind for o in observed}
    free = [p for p in PARAMETERS if hasattr(_owner(start, p, dtype), p.name.removeprefix("rate."))]
    free = [p for p in free if kinds & p.informed_by and _exists_on(p, start)]
    works = [cached_work(o.run.plan, o.problem) for o in observed]
    measured, weights = np.log([o.seconds for o in observed]), np.array(_weights(start, observed))
    low, high = (np.array([p.coordinate(max(x, 1e-300)) if not p.linear else x for p, x in ((p, getattr(p, side)) for p in free)]) for side in ("low", "high"))  # fmt: skip  # noqa: E501
    origin = np.clip([p.coordinate(max(p.get(start, dtype), p.low)) for p in free], low, high)

    def calibrated(x: Any) -> Calibration:
        values = {p.name: p.value(float(coordinate)) for p, coordinate in zip(free, x, strict=True)}
        return put_all(start, dtype, values)

    def residuals(x: Any) -> Any:
        c = calibrated(x)
        times = [formula_seconds(o.run, o.problem, w, c) for o, w in zip(observed, works, strict=True)]
        return np.concatenate([weights * (np.log(times) - measured), PRIOR * (x - origin)])

    solved = least_squares(residuals, origin, bounds=(low, high), loss="soft_l1", f_scale=ROBUST, max_nfev=steps)
    residues = tuple(solved.fun[: len(observed)] / weights)
    return float(solved.cost), Fit(calibrated(solved.x), _intervals(free, solved, weights), residues)


def _weights(start: Calibration, observed: Sequence[Observation]) -> list[float]:
    if start.lanes == 1:
        return [WEIGHTS.get(o.kind, 1.0) for o in observed]
    vendor = {o.problem: o.seconds for o in observed if o.kind == "vendor"}
    near = [WORTH_FITTING * vendor.get(o.problem, o.seconds) / o.seconds if o.kind == "plan" else 1.0 for o in observed]
    return [min(x, 1.0) ** 2 for x in near]


def _exists_on(parameter: Parameter, start: Calibration) -> bool:
    """Does the parameter mean anything on this kind of device?"""
    return (start.batches or parameter.name not in BESIDE) and (start.lanes > 1 or parameter.name not in LANES)


def _owner(calibration: Calibration, parameter: Parameter, dtype: str) -> object:
    return calibration.rate(dtype) if parameter.name.startswith("rate.") else calibration


def _rescaled(start: Calibration, dtype: str, observed: Sequence[Observation]) -> Calibration:
    """The start with the rates that the fastest observations show."""
    rates = [o.problem.flops / o.seconds for o in observed if o.kind == "vendor"]
    streams = [
        cached_work(o.run.plan, o.problem).traffic * o.problem.itemsize / o.seconds
        for o in observed
        if o.kind == "sums"
    ]
    flops, stream, memory = (
        next(p for p in PARAMETERS if p.name == n) for n in ("rate.flops", "stream", "rate.memory")
    )
    found = flops.put(start, dtype, max(rates)) if rates else start
    found = stream.put(found, dtype, median(streams)) if streams else found
    if start.batches:  # so that `host` decides some products' time at the start: else least squares sees no slope
        found = replace(found, host=min((o.seconds for o in observed if o.kind == "vendor"), default=0.0))
    return memory.put(found, dtype, 4 * stream.get(found, dtype))


def _intervals(free: Sequence[Parameter], solved: Any, weights: Any) -> dict[str, tuple[float, float]]:
    """95 % intervals from the curvature at the solution, as if the residuals were normal: wide where little is known.
    An observation counts as much as its weight."""
    from scipy.stats import t

    more = max(float(np.sum(weights**2)) - len(free), 1.0)
    spread = float(np.sum(solved.fun[: len(weights)] ** 2)) / more
    covariance = np.linalg.pinv(solved.jac.T @ solved.jac) * spread
    room = float(t.ppf(0.975, more)) * np.sqrt(np.diag(covariance))
    found = {}
    for parameter, x, r in zip(free, solved.x, room, strict=True):
        ends = (x - r, x + r) if parameter.linear else (max(x - r, -600.0), min(x + r, 600.0))
        low, high = (float(np.clip(parameter.value(float(e)), parameter.low, parameter.high)) for e in ends)
        found[parameter.name] = low, high
    return found


# ---- how good it is


@dataclass(frozen=True)
class Error:
    """How far predictions are off, as shares of the measured values. `bias` is the median with its sign. `upper` is the
    upper end of a 95 % interval of the median: far above it if there are few measurements."""

    count: int
    median: float
    p95: float
    bias: float
    upper: float

    @property
    def fields(self) -> dict[str, float]:
        """As it stands in a section: of what was not measured, nothing but that."""
        return asdict(self) if self.count else {"count": 0}

    @staticmethod
    def of(relative: Sequence[float]) -> Error:
        if not relative:
            return Error(0, 0.0, 0.0, 0.0, 0.0)
        count, sizes = len(relative), np.abs(relative)
        # Two standard deviations of the number of samples that lie below the true median.
        place = min(0.5 + 0.98 / count**0.5, 1.0)
        middle, far, upper = (float(x) for x in np.quantile(sizes, (0.5, 0.95, place)))
        return Error(count, middle, far, float(np.median(relative)), upper)


def prediction_errors(calibration: Calibration, observed: Sequence[Observation]) -> dict[str, Error]:
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
    return {"time": Error.of(relative), "speedup": Error.of(speedups)}
