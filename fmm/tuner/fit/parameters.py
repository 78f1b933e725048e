"""The parameters that a tuning fits: fields of a calibration, with units, bounds and meanings.

If the measurements do not determine a parameter, the fit fixes the parameter at a neutral value (1 for a factor), or at
the value from the datasheet. For a fixed parameter, the config has no interval.
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

# A parameter is determined if the half width of its 95 % interval is at most its tolerance. For rates, times and sizes,
# the tolerance is the factor QUANTITY_TOLERANCE. For dimensionless factors, the tolerance is the factor
# FACTOR_TOLERANCE. For fractions, the tolerance is the difference SHARE_TOLERANCE. In a recorded float64 tuning of a
# CPU, a tolerance of 3 instead of 6 raised the median error of held-out times from 2.8 to 3.1 %.
QUANTITY_TOLERANCE, FACTOR_TOLERANCE, SHARE_TOLERANCE = 6.0, 2.0, 0.5


@dataclass(frozen=True)
class FitParameter:
    """A parameter that a fit varies: a field of the calibration, its bounds, and the runs that determine its value."""

    name: str  # name of a field of Calibration, or "rate." followed by the name of a field of ProductRate
    unit: str  # unit of the value; empty for a dimensionless factor and for a share
    low: float
    high: float
    informed_by: frozenset[str]
    neutral: float | None = None  # value if the parameter is undetermined; None: the value before the fit
    # True: the fit varies the value itself (only for `overlap`, which may be negative). False: the fit varies the
    # logarithm of the value.
    linear: bool = False

    def value_in(self, calibration: Calibration, dtype: str) -> float:
        """Return the value of the parameter in a calibration."""
        owner: Any = calibration.require_rate(dtype) if self.name.startswith("rate.") else calibration
        return float(getattr(owner, self.name.removeprefix("rate.")))

    def with_value(self, calibration: Calibration, dtype: str, value: float) -> Calibration:
        """Return a copy of the calibration in which the parameter has this value."""
        return with_parameters(calibration, dtype, {self.name: value})

    def fit_coordinate(self, value: float) -> float:
        """Return the coordinate that the fit varies: the value itself if `linear` is True, else its logarithm."""
        return value if self.linear else log(value)

    def value_at_coordinate(self, fit_coordinate: float) -> float:
        """Return the parameter's value for a coordinate of the fit."""
        return fit_coordinate if self.linear else exp(fit_coordinate)

    def interval_over_tolerance(self, half_width: float) -> float:
        """Return (half width of a 95 % interval) / tolerance; above 1, this ratio means an undetermined parameter."""
        return half_width / (
            SHARE_TOLERANCE if self.linear else log(QUANTITY_TOLERANCE if self.unit else FACTOR_TOLERANCE)
        )

    def is_determined_by_interval(self, low: float, high: float) -> bool:
        """Return True if the 95 % interval from `low` to `high` is narrow enough to determine the parameter.

        The limit for sqrt(high / low) is QUANTITY_TOLERANCE if the parameter has a unit, else FACTOR_TOLERANCE; `low`
        must be positive. If `linear` is True, the limit for (high - low) / 2 is SHARE_TOLERANCE.
        """
        if not self.linear and low <= 0:
            return False
        return self.interval_over_tolerance((self.fit_coordinate(high) - self.fit_coordinate(low)) / 2) <= 1


def with_parameters(calibration: Calibration, dtype: str, values: Mapping[str, float]) -> Calibration:
    """Return a copy of the calibration with new values of several parameters, by name.

    `dtype` is an element type, or the name of a leaf's rate. If `flops` of a leaf's rate changes, `rows` and `cols`
    change in proportion, so that the predicted time to prepare A and B for the leaf remains the same.
    """
    own = {name: value for name, value in values.items() if not name.startswith("rate.")}
    rates = {name.removeprefix("rate."): value for name, value in values.items() if name.startswith("rate.")}
    rate = calibration.require_rate(dtype)
    if dtype not in DTYPES and "flops" in rates:
        faster = rates["flops"] / rate.flops
        rates = {"rows": rate.rows * faster, "cols": rate.cols * faster, **rates}
    rate = replace(rate, **rates)
    all_rates = MappingProxyType({**calibration.rates, dtype: rate})
    return replace(calibration, rates=all_rates, **own)  # type: ignore[arg-type]


PRODUCT_RUN_KINDS, SUM_RUN_KINDS, PLAN_RUN_KINDS = (
    frozenset({"vendor", "products", "plan"}),
    frozenset({"sums", "plan"}),
    frozenset({"plan"}),
)
TILE_RUN_KINDS = frozenset({"tile", "inside"})
OWN_KERNEL_RUN_KINDS = TILE_RUN_KINDS | {"odd tile"}  # kinds of runs that use fmm's own kernel
FLOPS_UNIT, ENTRIES_UNIT, SECONDS_UNIT = "flop/s", "entries of C", "s"
# All parameters of the model's formula: a new term of the formula needs a new row in this table.
FIT_PARAMETERS = (
    FitParameter("rate.flops", FLOPS_UNIT, 1e6, 1e17, PRODUCT_RUN_KINDS),
    FitParameter("rate.fill", ENTRIES_UNIT, 1.0, 1e8, PRODUCT_RUN_KINDS),
    FitParameter("rate.pipe", "steps of k", 0.1, 1e4, PRODUCT_RUN_KINDS, 0.0),
    FitParameter("rate.rows", "rows of C", 0.1, 1e4, PRODUCT_RUN_KINDS, 0.0),
    FitParameter("rate.cols", "columns of C", 0.1, 1e4, PRODUCT_RUN_KINDS, 0.0),
    FitParameter("rate.memory", "bytes/s", 1e6, 1e15, PRODUCT_RUN_KINDS),
    FitParameter("rate.unaligned", "", 0.5, 20.0, PRODUCT_RUN_KINDS, 1.0),
    FitParameter("rate.odd", "", 0.5, 20.0, PRODUCT_RUN_KINDS),
    FitParameter("rate.alone", "", 0.5, 2.0, PRODUCT_RUN_KINDS, 1.0),
    FitParameter("rate.copied", "", 0.5, 2.0, PLAN_RUN_KINDS, 1.0),
    FitParameter("rate.batch", "", 0.5, 2.0, frozenset({"products", "plan"}), 1.0),
    FitParameter("stream", "bytes/s", 1e6, 1e15, SUM_RUN_KINDS),
    FitParameter("small", "bytes", 1.0, 1e10, SUM_RUN_KINDS),
    FitParameter("sequential", "", 0.1, 10.0, SUM_RUN_KINDS, 1.0),
    FitParameter("ragged", "", 0.1, 10.0, PLAN_RUN_KINDS, 1.0),
    # If each access of a sum moves one number instead of a vector, the bandwidth is multiplied by `scalar`. The upper
    # bound of `scalar` is 1, since single numbers are never faster than vectors. Without the upper bound of `scalar`, a
    # fit to few plans could not separate the effect of single numbers from the effect of unaligned rows (`ragged`).
    FitParameter("scalar", "", 0.1, 1.0, PLAN_RUN_KINDS, 1.0),
    # Sums of real or imaginary parts (stride 2) run at `parts` times the bandwidth; the fit varies `parts` only if a
    # plan for complex numbers was timed.
    FitParameter("parts", "", 0.1, 2.0, PLAN_RUN_KINDS),
    FitParameter("deep", "", 0.1, 10.0, SUM_RUN_KINDS, 1.0),
    # If the samples do not determine `launch`, the time to start a product or sum, its value is 0: the lower bandwidth
    # of short sums (`small`) may explain the same times.
    FitParameter("launch", SECONDS_UNIT, 1e-8, 1e-2, SUM_RUN_KINDS, 0.0),
    FitParameter("host", SECONDS_UNIT, 1e-8, 1e-2, frozenset({"products", "plan"})),
    # `overlap`, the fraction of sums hidden behind products, is negative if sums and products slow each other down
    FitParameter("overlap", "", -1.0, 1.0, PLAN_RUN_KINDS, linear=True),
    FitParameter("idle", SECONDS_UNIT, 1e-5, 1.0, PLAN_RUN_KINDS),
    FitParameter("spin", SECONDS_UNIT, 1e-5, 1.0, PLAN_RUN_KINDS),
    FitParameter("apart", "", 0.1, 10.0, SUM_RUN_KINDS, 1.0),
    # The parameters from `rate.tiled` to `rate.inside` belong to fmm's own kernel, and are fitted after all others.
    FitParameter("rate.tiled", "", 0.5, 10.0, TILE_RUN_KINDS),
    # `rate.tiled_odd` is the slowdown of fmm's own kernel on unaligned rows; with 0, the model never chooses the kernel
    # for unaligned rows.
    FitParameter("rate.tiled_odd", "", 0.5, 10.0, frozenset({"odd tile"}), 0.0),
    FitParameter("rate.waves", "tiles", 0.1, 1e4, TILE_RUN_KINDS),
    FitParameter("rate.inside", "multiply-adds", 0.01, 1e3, frozenset({"inside"})),
)
# The parameters that are fitted for a leaf for which the calibration has a separate rate. Undetermined parameters have
# the value from the datasheet. `rows` and `cols`, which describe the time to prepare A and B, are computed from bytes
# and the device's bandwidth and are not fitted: a tuning measures few thin products. (A tuning of an H100 measured 16
# products by `f16x3`, none thinner than 992. From only these products, a fit of `cols` (the columns of C at which
# reading A takes as long as multiplying) gave 160 instead of the datasheet's 446. With `cols` = 160, the predicted
# times of 300 other products were too short by 12 % at the median, and by up to 40 % for thin products.)
LEAF_RATE_PARAMETERS = tuple(replace(p, neutral=None) for p in FIT_PARAMETERS[:3])
FIT_PARAMETERS_BY_NAME: Mapping[str, FitParameter] = MappingProxyType({p.name: p for p in FIT_PARAMETERS})
OWN_KERNEL_START_VALUES = {"rate.tiled": 1.0, "rate.waves": 50.0, "rate.inside": 1.0}
# The fit tries a few tile sides instead of varying this parameter, since the predicted time is a step function of the
# tile side.
TILE_SIDE_PARAMETER = FitParameter("rate.tile", "rows and columns of C", 1.0, 1024.0, frozenset())
GPU_PARAMETER_NAMES = frozenset({"host", "scalar", "rate.copied"})
CONCURRENT_PARAMETER_NAMES = frozenset(
    {"idle", "spin", "apart"}
)  # parameters of the model of CPUs that run several products at a time
CPU_PARAMETER_NAMES = frozenset({"parts"})  # on CPUs only, strided reads are slower than contiguous reads


def is_used_on_device(parameter: FitParameter, start: Calibration) -> bool:
    """Return True if the model of this kind of device has the parameter."""
    if start.batches:
        return parameter.name not in CPU_PARAMETER_NAMES | CONCURRENT_PARAMETER_NAMES
    return parameter.name not in GPU_PARAMETER_NAMES and (
        start.lanes > 1 or parameter.name not in CONCURRENT_PARAMETER_NAMES
    )


def is_parameter_determined(name: str, low: float, high: float) -> bool:
    """Return True if a 95 % interval from a config, `low` to `high`, determines the parameter with this name.

    The name may begin with a leaf's name, as in `f16x3.rate.flops`. A parameter with an unknown name is treated as a
    dimensionless factor.
    """
    own = f"rate.{name.rpartition('.rate.')[2]}"
    parameter = (
        FIT_PARAMETERS_BY_NAME.get(name)
        or FIT_PARAMETERS_BY_NAME.get(own)
        or FitParameter(name, "", 0.0, 1.0, frozenset())
    )
    return parameter.is_determined_by_interval(low, high)


# ---- fixed parameters


@dataclass(frozen=True)
class FixedParameter:
    """A parameter that the fit did not vary, with its value and the source of the value."""

    name: str
    value: float
    source: str


NEUTRAL_SOURCE, BUILT_IN_PARAMETER_SOURCE, UNDETERMINED_SOURCE = "neutral", "built in", "not determined"


def fixed_parameters(
    intervals: Mapping[str, Any], fitted: Calibration, dtype: str, guess: Calibration | None
) -> Iterator[FixedParameter]:
    """Yield the fixed parameters of a fitted model; yield none if the model has no intervals.

    `guess` is the calibration computed from a GPU's datasheet; None for a CPU.
    """
    determined = {name for name, ends in intervals.items() if is_parameter_determined(name, *ends)}
    for p in FIT_PARAMETERS if intervals else ():
        if p.name in determined or not is_used_on_device(p, fitted):
            continue
        if p.informed_by & OWN_KERNEL_RUN_KINDS and not fitted.require_rate(dtype).tiled > 0:
            continue  # no run of fmm's own kernel was timed: the parameter has no value
        if p.name in CPU_PARAMETER_NAMES and not DTYPES[dtype].is_complex:
            continue
        value = p.value_in(fitted, dtype)
        yield FixedParameter(p.name, value, _source_of_fixed_value(p, value, dtype, guess, fitted.batches))


def _source_of_fixed_value(p: FitParameter, value: float, dtype: str, guess: Calibration | None, gpu: bool) -> str:
    """Return the source of a fixed parameter's value."""
    if value == p.neutral:
        return NEUTRAL_SOURCE
    start = guess if gpu else cpu_calibration(1)  # for 1 thread, since only rates depend on the number of threads
    with suppress(ValueError):  # raised if the calibration has no rate of this element type
        if start is not None and p.value_in(start, dtype) == value:
            return f"datasheet of the {start.name}" if gpu else BUILT_IN_PARAMETER_SOURCE
    return UNDETERMINED_SOURCE


# ---- text

PARAMETER_MEANINGS: Mapping[str, str] = MappingProxyType(
    {
        "rate.flops": "rate of the vendor's product of very large matrices (1/pi)",
        "rate.fill": "entries of C that keep half of the device busy",
        "rate.pipe": "number of steps of k at which half of a product's time is start-up",
        "rate.rows": "rows of C at which reading B takes as long as multiplying",
        "rate.cols": "columns of C at which reading A takes as long as multiplying",
        "rate.memory": "memory bandwidth of thin products",
        "rate.unaligned": "slowdown of the vendor's product if rows are not aligned to 16 bytes",
        "rate.odd": "slowdown of the vendor's product if rows are not aligned to 4 bytes",
        "rate.alone": "share of the two slowdowns above if only the rows of A are unaligned",
        "rate.copied": "slowdown of products of aligned copies",
        "rate.batch": "slowdown of products that start together",
        "rate.tile": "rows and columns of a tile of C of the vendor's product",
        "stream": "memory bandwidth of sums of blocks; alpha is the time to move three numbers at this rate",
        "small": "bytes of a pass of sums at which half of this bandwidth is reached",
        "sequential": "share of the bandwidth of sums in sequential levels",
        "ragged": "share of the bandwidth of sums if rows do not begin on cache lines",
        "scalar": "share of the bandwidth of sums if numbers are moved one by one",
        "parts": "share of the bandwidth of sums for real or imaginary parts (stride 2)",
        "deep": "share of the bandwidth of sums if three levels are summed in one pass",
        "launch": "time to start a product or a sum",
        "host": "shortest time of the host to start a product",
        "overlap": "share of an overlapped level's sums hidden behind its products",
        "idle": "idle time of a thread at the beginning and end of a plan",
        "spin": "time lost to BLAS threads that spin after a product",
        "apart": "share of the bandwidth of sums that small plans reach, since they run one step at a time",
        "rate.tiled": "slowdown of fmm's own kernel against the vendor's product, both very large",
        "rate.tiled_odd": "slowdown of fmm's own kernel on unaligned rows",
        "rate.waves": "tiles of fmm's own kernel that keep half of the device busy",
        "rate.inside": "number of multiply-adds that take as long as one addition inside fmm's own kernel",
    }
)


def parameter_meaning(name: str) -> str:
    """Return the meaning of a parameter as text; a default text for a parameter that this version does not have."""
    return PARAMETER_MEANINGS.get(name, "unknown to this version")


def parameter_unit(name: str) -> str:
    """Return the unit of a parameter; empty for dimensionless factors and fractions."""
    found = TILE_SIDE_PARAMETER if name == TILE_SIDE_PARAMETER.name else FIT_PARAMETERS_BY_NAME.get(name)
    return found.unit if found else ""


UNIT_PREFIXES = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""), (1e-3, "m"), (1e-6, "µ"))
PREFIXED_UNITS = ("flop/s", "bytes/s", "bytes", "s")  # units that are printed with an SI prefix


def text_with_unit_prefix(unit: str, *values: float) -> tuple[list[str], str]:
    """Return the values as texts with a common SI prefix, and the unit with this prefix, such as `Gbytes/s`."""
    if unit not in PREFIXED_UNITS:
        return [f"{x:.3g}" for x in values], unit
    least = UNIT_PREFIXES[-1] if max(values) else (1.0, "")
    scale, prefix = next((s for s in UNIT_PREFIXES if max(values) >= s[0]), least)
    return [f"{x / scale:.3g}" for x in values], f"{prefix}{unit}"
