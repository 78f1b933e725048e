"""The parameters that a tuning fits: fields of the calibration, each with its unit, its bounds, and when it is known.

A parameter that the measurements do not determine is not fitted: it keeps the value with which nothing changes, or that
of the datasheet, and the config has no interval for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import exp, log
from types import MappingProxyType
from typing import Any

from fmm.perfmodel.calibration import Calibration

# How far a 95 % interval may reach on either side for a parameter to count as determined: rates, times and sizes by the
# first factor, factors by the second, shares by a difference. (With 3 in the place of 6 a recorded tuning of a
# processor in float64 has a median error of 3.1 % of held-out times, not 2.8 %; of five others that lose parameters,
# three choose a little worse among held-out plans, one a little better.)
QUANTITY, FACTOR, SHARE = 6.0, 2.0, 0.5


@dataclass(frozen=True)
class Parameter:
    """A number of a calibration that is fitted: its field, its bounds, and which kinds of observations depend on it."""

    name: str  # of a field of Calibration, or "rate." and one of Rate
    unit: str  # empty for factors
    low: float
    high: float
    informed_by: frozenset[str]
    neutral: float | None = None  # what it is where it is not determined; None: what it was before the fit
    linear: bool = False  # a share; the others are fitted by their logarithms

    def get(self, calibration: Calibration, dtype: str) -> float:
        owner: Any = calibration.rate(dtype) if self.name.startswith("rate.") else calibration
        return float(getattr(owner, self.name.removeprefix("rate.")))

    def put(self, calibration: Calibration, dtype: str, value: float) -> Calibration:
        return put_all(calibration, dtype, {self.name: value})

    def coordinate(self, value: float) -> float:
        return value if self.linear else log(value)

    def value(self, coordinate: float) -> float:
        return coordinate if self.linear else exp(coordinate)

    def looseness(self, half_width: float) -> float:
        """A half width of its interval as a share of what is allowed: above 1 it is not determined."""
        return half_width / (SHARE if self.linear else log(QUANTITY if self.unit else FACTOR))

    def determined(self, low: float, high: float) -> bool:
        """Do measurements with this interval determine it? (Configs of older versions have intervals of all.)"""
        if not self.linear and low <= 0:
            return False
        return self.looseness((self.coordinate(high) - self.coordinate(low)) / 2) <= 1


def put_all(calibration: Calibration, dtype: str, values: Mapping[str, float]) -> Calibration:
    """All at once: a fit asks for thousands of calibrations, and most of its time would be spent making copies."""
    own = {name: value for name, value in values.items() if not name.startswith("rate.")}
    rates = {name.removeprefix("rate."): value for name, value in values.items() if name.startswith("rate.")}
    rate = replace(calibration.rate(dtype), **rates)
    return replace(calibration, rates=MappingProxyType({**calibration.rates, dtype: rate}), **own)  # type: ignore[arg-type]


PRODUCTS, SUMS, PLANS = frozenset({"vendor", "products", "plan"}), frozenset({"sums", "plan"}), frozenset({"plan"})
TILES = frozenset({"tile", "inside"})
OWN_TILES = TILES | {"odd tile"}  # observations of our own kernel
RATE, SIZE, TIME = "flop/s", "entries of C", "s"
# A new term of the formula is a new row here.
PARAMETERS = (
    Parameter("rate.flops", RATE, 1e6, 1e17, PRODUCTS),
    Parameter("rate.fill", SIZE, 1.0, 1e8, PRODUCTS),
    Parameter("rate.pipe", "steps of k", 0.1, 1e4, PRODUCTS, 0.0),
    Parameter("rate.rows", "rows of C", 0.1, 1e4, PRODUCTS, 0.0),
    Parameter("rate.cols", "columns of C", 0.1, 1e4, PRODUCTS, 0.0),
    Parameter("rate.memory", "bytes/s", 1e6, 1e15, PRODUCTS),
    Parameter("rate.unaligned", "", 0.5, 20.0, PRODUCTS, 1.0),
    Parameter("rate.odd", "", 0.5, 20.0, PRODUCTS),
    Parameter("rate.alone", "", 0.5, 2.0, PRODUCTS, 1.0),
    Parameter("rate.copied", "", 0.5, 2.0, PLANS, 1.0),
    Parameter("rate.batch", "", 0.5, 2.0, frozenset({"products", "plan"}), 1.0),
    Parameter("stream", "bytes/s", 1e6, 1e15, SUMS),
    Parameter("small", "bytes", 1.0, 1e10, SUMS),
    Parameter("sequential", "", 0.1, 10.0, SUMS, 1.0),
    Parameter("ragged", "", 0.1, 10.0, PLANS, 1.0),
    # At most 1: narrow accesses gain nothing, and few plans show them apart from `ragged`.
    Parameter("scalar", "", 0.1, 1.0, PLANS, 1.0),
    # Where no plan for complex numbers was measured it stays as it was.
    Parameter("parts", "", 0.1, 2.0, PLANS),
    Parameter("deep", "", 0.1, 10.0, SUMS, 1.0),
    Parameter("launch", TIME, 1e-8, 1e-2, SUMS, 0.0),  # where `small` says it all
    Parameter("host", TIME, 1e-8, 1e-2, frozenset({"products", "plan"})),
    Parameter("overlap", "", -1.0, 1.0, PLANS, linear=True),  # below 0: sums and products are in each other's way
    Parameter("idle", TIME, 1e-5, 1.0, PLANS),
    Parameter("spin", TIME, 1e-5, 1.0, PLANS),
    Parameter("apart", "", 0.1, 10.0, SUMS, 1.0),
    # Those of our own kernel are fitted after all others: its times say nothing about the vendor's.
    Parameter("rate.tiled", "", 0.5, 10.0, TILES),
    # Without it no plan is chosen that has the kernel read rows that are not aligned.
    Parameter("rate.tiled_odd", "", 0.5, 10.0, frozenset({"odd tile"}), 0.0),
    Parameter("rate.waves", "tiles", 0.1, 1e4, TILES),
    Parameter("rate.inside", "multiply-adds", 0.01, 1e3, frozenset({"inside"})),
)
# Of a leaf that has a rate of its own, fitted by itself; what is not determined stays as the datasheet has it.
LEAF_RATE = tuple(replace(p, neutral=None) for p in PARAMETERS[:5])
BY_NAME: Mapping[str, Parameter] = MappingProxyType({p.name: p for p in PARAMETERS})
TILED_START = {"rate.tiled": 1.0, "rate.waves": 50.0, "rate.inside": 1.0}


def is_determined(name: str, low: float, high: float) -> bool:
    """Do measurements with this interval determine the parameter of a config that has this name? (A term of an earlier
    model is judged as a factor.)"""
    own = f"rate.{name.rpartition('.rate.')[2]}"  # `f16x3.rate.flops`: of a leaf that has a rate of its own
    parameter = BY_NAME.get(name) or BY_NAME.get(own) or Parameter(name, "", 0.0, 1.0, frozenset())
    return parameter.determined(low, high)


TILE = Parameter("rate.tile", "rows and columns of C", 1.0, 1024.0, frozenset())
BESIDE = frozenset({"host", "scalar", "rate.copied"})  # fitted only where the processor launches work of another device
LANES = frozenset({"idle", "spin", "apart"})  # fitted only where a CPU runs several products at a time


STRIDED = frozenset({"parts"})  # fitted only where a loop over every second number is slow: not on a GPU


def exists_on(parameter: Parameter, start: Calibration) -> bool:
    """Does the parameter mean anything on this kind of device?"""
    if start.batches:
        return parameter.name not in STRIDED | LANES
    return parameter.name not in BESIDE and (start.lanes > 1 or parameter.name not in LANES)
