"""The parameters that a tuning fits: fields of the calibration, each with its unit, its bounds and its meaning.

A parameter that the measurements do not determine is fixed at its neutral value or at the datasheet's. The config has
no interval for a fixed parameter.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from math import exp, log
from types import MappingProxyType
from typing import Any

from fmm.dtypes import DTYPES
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.default_calibration import cpu_calibration

# A parameter is determined if the half width of its 95 % interval is at most: QUANTITY_TOLERANCE, a factor, for rates,
# times and sizes; FACTOR_TOLERANCE, a factor, for factors; SHARE_TOLERANCE, a difference, for shares. (A tolerance of 3
# instead of 6 raises the median error of held-out times from 2.8 to 3.1 % in a recorded float64 tuning of a CPU.)
QUANTITY_TOLERANCE, FACTOR_TOLERANCE, SHARE_TOLERANCE = 6.0, 2.0, 0.5


@dataclass(frozen=True)
class Parameter:
    """A fitted number of a calibration: its field, its bounds, and the kinds of observations that depend on it."""

    name: str  # a field of Calibration, or "rate." and a field of Rate
    unit: str  # unit of the value; empty for factors and shares
    low: float
    high: float
    informed_by: frozenset[str]
    neutral: float | None = None  # the value if it is not determined; None: the value before the fit
    linear: bool = False  # True for a share; other parameters are fitted by their logarithms

    def get(self, calibration: Calibration, dtype: str) -> float:
        """Return the parameter's value in a calibration."""
        owner: Any = calibration.require_rate(dtype) if self.name.startswith("rate.") else calibration
        return float(getattr(owner, self.name.removeprefix("rate.")))

    def put(self, calibration: Calibration, dtype: str, value: float) -> Calibration:
        """Return the calibration with another value of the parameter."""
        return with_parameters(calibration, dtype, {self.name: value})

    def fit_coordinate(self, value: float) -> float:
        """Return the coordinate that least squares varies."""
        return value if self.linear else log(value)

    def value(self, fit_coordinate: float) -> float:
        """Return the value at a coordinate."""
        return fit_coordinate if self.linear else exp(fit_coordinate)

    def interval_over_tolerance(self, half_width: float) -> float:
        """Return the half width of the parameter's 95 % interval over the tolerance: above 1 it is not determined."""
        return half_width / (
            SHARE_TOLERANCE if self.linear else log(QUANTITY_TOLERANCE if self.unit else FACTOR_TOLERANCE)
        )

    def determined(self, low: float, high: float) -> bool:
        """Return True if measurements with this 95 % interval determine the parameter."""
        if not self.linear and low <= 0:
            return False
        return self.interval_over_tolerance((self.fit_coordinate(high) - self.fit_coordinate(low)) / 2) <= 1


def with_parameters(calibration: Calibration, dtype: str, values: Mapping[str, float]) -> Calibration:
    """Return the calibration with these values, in one copy: a fit makes thousands of calibrations."""
    own = {name: value for name, value in values.items() if not name.startswith("rate.")}
    rates = {name.removeprefix("rate."): value for name, value in values.items() if name.startswith("rate.")}
    rate = replace(calibration.require_rate(dtype), **rates)
    return replace(calibration, rates=MappingProxyType({**calibration.rates, dtype: rate}), **own)  # type: ignore[arg-type]


PRODUCT_KINDS, SUM_KINDS, PLAN_KINDS = (
    frozenset({"vendor", "products", "plan"}),
    frozenset({"sums", "plan"}),
    frozenset({"plan"}),
)
TILE_KINDS = frozenset({"tile", "inside"})
OWN_KERNEL_KINDS = TILE_KINDS | {"odd tile"}  # kinds of observations of fmm's own kernel
FLOPS_UNIT, ENTRIES_UNIT, SECONDS_UNIT = "flop/s", "entries of C", "s"
# A new term of the formula is a new row here.
PARAMETERS = (
    Parameter("rate.flops", FLOPS_UNIT, 1e6, 1e17, PRODUCT_KINDS),
    Parameter("rate.fill", ENTRIES_UNIT, 1.0, 1e8, PRODUCT_KINDS),
    Parameter("rate.pipe", "steps of k", 0.1, 1e4, PRODUCT_KINDS, 0.0),
    Parameter("rate.rows", "rows of C", 0.1, 1e4, PRODUCT_KINDS, 0.0),
    Parameter("rate.cols", "columns of C", 0.1, 1e4, PRODUCT_KINDS, 0.0),
    Parameter("rate.memory", "bytes/s", 1e6, 1e15, PRODUCT_KINDS),
    Parameter("rate.unaligned", "", 0.5, 20.0, PRODUCT_KINDS, 1.0),
    Parameter("rate.odd", "", 0.5, 20.0, PRODUCT_KINDS),
    Parameter("rate.alone", "", 0.5, 2.0, PRODUCT_KINDS, 1.0),
    Parameter("rate.copied", "", 0.5, 2.0, PLAN_KINDS, 1.0),
    Parameter("rate.batch", "", 0.5, 2.0, frozenset({"products", "plan"}), 1.0),
    Parameter("stream", "bytes/s", 1e6, 1e15, SUM_KINDS),
    Parameter("small", "bytes", 1.0, 1e10, SUM_KINDS),
    Parameter("sequential", "", 0.1, 10.0, SUM_KINDS, 1.0),
    Parameter("ragged", "", 0.1, 10.0, PLAN_KINDS, 1.0),
    # At most 1: narrow accesses gain nothing, and few plans show them apart from `ragged`.
    Parameter("scalar", "", 0.1, 1.0, PLAN_KINDS, 1.0),
    # `parts` stays at its start without a measured plan for complex numbers.
    Parameter("parts", "", 0.1, 2.0, PLAN_KINDS),
    Parameter("deep", "", 0.1, 10.0, SUM_KINDS, 1.0),
    Parameter("launch", SECONDS_UNIT, 1e-8, 1e-2, SUM_KINDS, 0.0),  # 0 if undetermined: `small` may explain all
    Parameter("host", SECONDS_UNIT, 1e-8, 1e-2, frozenset({"products", "plan"})),
    Parameter("overlap", "", -1.0, 1.0, PLAN_KINDS, linear=True),  # below 0: sums and products slow each other down
    Parameter("idle", SECONDS_UNIT, 1e-5, 1.0, PLAN_KINDS),
    Parameter("spin", SECONDS_UNIT, 1e-5, 1.0, PLAN_KINDS),
    Parameter("apart", "", 0.1, 10.0, SUM_KINDS, 1.0),
    # The parameters of fmm's own kernel are fitted last: its times say nothing about the vendor's.
    Parameter("rate.tiled", "", 0.5, 10.0, TILE_KINDS),
    # At 0 plans with a kernel that reads unaligned rows are not chosen.
    Parameter("rate.tiled_odd", "", 0.5, 10.0, frozenset({"odd tile"}), 0.0),
    Parameter("rate.waves", "tiles", 0.1, 1e4, TILE_KINDS),
    Parameter("rate.inside", "multiply-adds", 0.01, 1e3, frozenset({"inside"})),
)
# The parameters of a leaf with a rate of its own, fitted alone; fixed ones keep the datasheet's value.
LEAF_RATE_PARAMETERS = tuple(replace(p, neutral=None) for p in PARAMETERS[:5])
PARAMETERS_BY_NAME: Mapping[str, Parameter] = MappingProxyType({p.name: p for p in PARAMETERS})
START_OF_OWN_KERNEL = {"rate.tiled": 1.0, "rate.waves": 50.0, "rate.inside": 1.0}
# The tile side is chosen among a few sides, since the predicted time is a step function of it.
TILE_PARAMETER = Parameter("rate.tile", "rows and columns of C", 1.0, 1024.0, frozenset())
GPU_ONLY = frozenset({"host", "scalar", "rate.copied"})
CONCURRENT_ONLY = frozenset({"idle", "spin", "apart"})  # parameters of a CPU that runs several products at a time
CPU_ONLY = frozenset({"parts"})  # only a CPU reads every second number more slowly


def exists_on(parameter: Parameter, start: Calibration) -> bool:
    """Return True if the parameter has a meaning on this kind of device."""
    if start.batches:
        return parameter.name not in CPU_ONLY | CONCURRENT_ONLY
    return parameter.name not in GPU_ONLY and (start.lanes > 1 or parameter.name not in CONCURRENT_ONLY)


def is_determined(name: str, low: float, high: float) -> bool:
    """Return True if this 95 % interval determines the parameter of this name in a config.

    A name may begin with a leaf's (`f16x3.rate.flops`). A name that is not in the table counts as a factor.
    """
    own = f"rate.{name.rpartition('.rate.')[2]}"
    parameter = (
        PARAMETERS_BY_NAME.get(name) or PARAMETERS_BY_NAME.get(own) or Parameter(name, "", 0.0, 1.0, frozenset())
    )
    return parameter.determined(low, high)


# ---- fixed parameters


@dataclass(frozen=True)
class FixedParameter:
    """A parameter that was not fitted, its value, and the source of the value."""

    name: str
    value: float
    source: str


NEUTRAL_SOURCE, BUILT_IN_PARAMETER_SOURCE, UNDETERMINED_SOURCE = "neutral", "built in", "not determined"


def fixed_parameters(
    intervals: Mapping[str, Any], fitted: Calibration, dtype: str, guess: Calibration | None
) -> Iterator[FixedParameter]:
    """Yield the fixed parameters; none for a model that was not fitted.

    `guess` is the datasheet's model of a GPU, None for a CPU.
    """
    determined = {name for name, ends in intervals.items() if is_determined(name, *ends)}
    for p in PARAMETERS if intervals else ():
        if p.name in determined or not exists_on(p, fitted):
            continue
        if p.informed_by & OWN_KERNEL_KINDS and not fitted.require_rate(dtype).tiled > 0:
            continue  # fmm's own kernel was not measured
        if p.name in CPU_ONLY and not DTYPES[dtype].is_complex:
            continue
        value = p.get(fitted, dtype)
        yield FixedParameter(p.name, value, _source(p, value, dtype, guess, fitted.batches))


def _source(p: Parameter, value: float, dtype: str, guess: Calibration | None, gpu: bool) -> str:
    """Return the source of a fixed parameter's value."""
    if value == p.neutral:
        return NEUTRAL_SOURCE
    start = guess if gpu else cpu_calibration(1)  # only its rates depend on the number of threads
    with suppress(ValueError):  # the calibration has no rate of this type
        if start is not None and p.get(start, dtype) == value:
            return f"datasheet of the {start.name}" if gpu else BUILT_IN_PARAMETER_SOURCE
    return UNDETERMINED_SOURCE


# ---- text

PARAMETER_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "rate.flops": "rate of the vendor's product of very large matrices (1/pi)",
        "rate.fill": "entries of C that keep half of the device busy",
        "rate.pipe": "steps of k at which half of a product is start-up",
        "rate.rows": "rows of C at which reading B takes as long as multiplying",
        "rate.cols": "columns of C at which reading A takes as long as multiplying",
        "rate.memory": "memory bandwidth of thin products",
        "rate.unaligned": "slowdown of the vendor's product if rows are not aligned to 16 bytes",
        "rate.odd": "slowdown of the vendor's product if rows are not aligned to 4 bytes",
        "rate.alone": "share of these slowdowns if only the rows of A are unaligned",
        "rate.copied": "slowdown of products of aligned copies",
        "rate.batch": "slowdown of products that start together",
        "rate.tile": "rows and columns of a tile of C of the vendor's product",
        "stream": "memory bandwidth of sums of blocks; alpha is three numbers over it",
        "small": "bytes of a pass of sums that reach half of that bandwidth",
        "sequential": "share of that bandwidth in sequential levels",
        "ragged": "share of that bandwidth if rows do not begin on cache lines",
        "scalar": "share of that bandwidth if numbers are moved one by one",
        "parts": "share of that bandwidth for real or imaginary parts (stride 2)",
        "deep": "share of that bandwidth if three levels are summed in one pass",
        "launch": "time to start a product or a sum",
        "host": "least host time to start a product",
        "overlap": "share of an overlapped level's sums hidden behind its products",
        "idle": "idle time of a thread at the beginning and end of a plan",
        "spin": "time lost to BLAS threads that spin after a product",
        "apart": "share of their rate that sums of small plans reach, which run one step at a time",
        "rate.tiled": "slowdown of fmm's own kernel against the vendor's product, both very large",
        "rate.tiled_odd": "slowdown of fmm's own kernel on unaligned rows",
        "rate.waves": "tiles of fmm's own kernel that keep half of the device busy",
        "rate.inside": "multiply-adds that one addition inside fmm's own kernel takes as long as",
    }
)


def meaning_of_parameter(name: str) -> str:
    """Return the meaning of a parameter; a config may name a parameter that the model no longer has."""
    return PARAMETER_MEANINGS.get(name, "unknown to this version")


def unit_of(name: str) -> str:
    """Return the unit of a parameter; empty for factors and shares."""
    found = TILE_PARAMETER if name == TILE_PARAMETER.name else PARAMETERS_BY_NAME.get(name)
    return found.unit if found else ""


UNIT_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
PREFIXED_UNITS = ("flop/s", "bytes/s", "bytes", "s")  # units that may have an SI prefix


def scaled_text(unit: str, *values: float) -> tuple[list[str], str]:
    """Return values as text with a common unit prefix, and the prefixed unit: `17.4` and `Gbytes/s`."""
    if unit not in PREFIXED_UNITS:
        return [f"{x:.3g}" for x in values], unit
    least = UNIT_PREFIXES[-1] if max(values) else (1.0, "")
    scale, prefix = next((s for s in UNIT_PREFIXES if max(values) >= s[0]), least)
    return [f"{x / scale:.3g}" for x in values], f"{prefix}{unit}"
