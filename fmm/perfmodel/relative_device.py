"""The calibration of a GPU that nobody measured, from the measured calibration of a GPU of the same architecture.

Each measured number is scaled as the two datasheets' calibrations differ: rates of products by the peaks, sums and
reads of operands by the bandwidth, fills and rounds by the multiprocessors. What a datasheet does not tell, such as
the shares that slow kinds of sums reach, stays as measured. (Shapes of an H100, replayed with an H200's models scaled
to the H100's bandwidth: 0.997 of the speed of the best plan in TF32, 0.986 in float32, 0.988 in float64; with models of
its own 0.999, 0.981 and 0.991; by the bare datasheet 0.93 in TF32 and 0.96 in float32. results/nvidia-h200 has the
table, under "Another card" in tried-choices.md.)
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType

from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.level_bounds import NEVER_SIDE, LevelBounds


def scale_to_relative(measured: Calibration, known: str, relative: str, dtype: str) -> Calibration | None:
    """Return a calibration of the device `known`, scaled to the device `relative`; None if that lacks the type's rate.

    Parameters
    ----------
    measured
        A calibration of the device `known`, measured for the element type `dtype`.
    known, relative
        Names of fmm.hardware.datasheets, of devices of one architecture.
    dtype
        The element type.
    """
    of_known, of_relative = datasheet_calibration(known), datasheet_calibration(relative)
    bandwidth = of_relative.stream / of_known.stream
    multiprocessors = datasheet_of(relative).sms / datasheet_of(known).sms
    rates = {
        rate: _scaled_rate(found, of_known.rates[rate], of_relative.rates[rate], bandwidth, multiprocessors)
        for rate, found in measured.rates.items()
        if rate in of_known.rates and rate in of_relative.rates
    }
    if dtype not in rates:
        return None
    bounds = (_scaled_bounds(x, dtype, measured, rates, bandwidth) for x in measured.level_bounds)
    return replace(
        measured,
        name=of_relative.name,
        source=f"the model of the {of_known.name}, scaled to the datasheet of the {of_relative.name}",
        rates=MappingProxyType(rates),
        stream=measured.stream * bandwidth,
        small=measured.small * bandwidth,
        margin=max(measured.margin, of_relative.margin),
        tiled_margin=max(measured.tiled_margin, of_relative.tiled_margin),
        level_bounds=tuple(x for x in bounds if x is not None),
    )


def _scaled_rate(measured: Rate, of_known: Rate, of_relative: Rate, bandwidth: float, multiprocessors: float) -> Rate:
    """Return the measured rate, each number times the ratio of the two datasheets' numbers.

    `bandwidth` and `multiprocessors` are the ratios for the numbers that datasheets do not have.
    """
    reads = of_relative.flops / of_known.flops / bandwidth  # rows of C at which reading takes as long as multiplying
    without_datasheet = {"memory": bandwidth, "rows": reads, "cols": reads, "waves": multiprocessors}
    scaled = {}
    for field in fields(Rate):
        known, relative = getattr(of_known, field.name), getattr(of_relative, field.name)
        ratio = relative / known if known else without_datasheet.get(field.name, 1.0)
        scaled[field.name] = getattr(measured, field.name) * ratio
    return Rate(**scaled)


def _scaled_bounds(
    bounds: LevelBounds, dtype: str, measured: Calibration, rates: dict[str, Rate], bandwidth: float
) -> LevelBounds | None:
    """Return the crossovers times the ratio of alpha / pi, as in Equation 3 of D'Alberto and Nicolau.

    None if the baseline's rate is missing. A number of levels that never wins stays so.
    """
    rate = Plan.parse(bounds.baseline).rate_name(dtype)
    if rate not in rates:
        return None
    ratio = rates[rate].flops / measured.rates[rate].flops / bandwidth
    taus = (tau if tau is None or tau >= NEVER_SIDE else tau * ratio for tau in bounds.taus)
    return LevelBounds(bounds.baseline, *taus)
