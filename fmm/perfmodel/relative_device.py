"""Derive the calibration of an unmeasured GPU from the measured calibration of a GPU of the same architecture.

Each measured number is multiplied by a ratio of the two datasheets. Rates of products scale with the peaks, rates of
sums and reads of operands with the bandwidths, `fill` and `sms` with the numbers of multiprocessors. Numbers that no
datasheet predicts, such as the rates of slow sums divided by the rate of fast sums, keep their measured values. The
choices with scaled calibrations were evaluated for shapes that were measured on an H100. With the H200's models, scaled
to the H100, the chosen plans have 0.997 (TF32), 0.986 (float32) and 0.988 (float64) of the best speed. With the H100's
own models the chosen plans have 0.999 (TF32), 0.981 (float32) and 0.991 (float64) of the best speed. With calibrations
from the datasheet alone, the chosen plans have 0.93 of the best speed in TF32 and 0.96 in float32. The section "Another
card" of results/nvidia-h200/tried-choices.md has the table.
"""

from __future__ import annotations

from dataclasses import fields, replace
from types import MappingProxyType

from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.crossovers import NEVER_WINS_SIDE, MeasuredCrossovers
from fmm.perfmodel.default_calibration import datasheet_calibration


def scale_calibration_to_gpu(
    measured: Calibration, measured_name: str, relative_name: str, dtype: str
) -> Calibration | None:
    """Return a measured calibration scaled to another GPU's datasheet; None if one of the datasheets lacks the type.

    Parameters
    ----------
    measured
        The calibration of the device `measured_name`, measured for the element type `dtype`.
    measured_name, relative_name
        The names of two devices of one architecture in fmm.hardware.datasheets.
    dtype
        The element type.
    """
    of_measured, of_relative = datasheet_calibration(measured_name), datasheet_calibration(relative_name)
    bandwidth = of_relative.stream / of_measured.stream
    multiprocessors = datasheet_of(relative_name).sms / datasheet_of(measured_name).sms
    rates = {
        rate: _scaled_rate(found, of_measured.rates[rate], of_relative.rates[rate], bandwidth, multiprocessors)
        for rate, found in measured.rates.items()
        if rate in of_measured.rates and rate in of_relative.rates
    }
    if dtype not in rates:
        return None
    bounds = (_scaled_crossovers(x, dtype, measured, rates, bandwidth) for x in measured.measured_crossovers)
    return replace(
        measured,
        name=of_relative.name,
        source=f"the model of the {of_measured.name}, scaled to the datasheet of the {of_relative.name}",
        rates=MappingProxyType(rates),
        stream=measured.stream * bandwidth,
        small=measured.small * bandwidth,
        margin=max(measured.margin, of_relative.margin),
        tiled_margin=max(measured.tiled_margin, of_relative.tiled_margin),
        measured_crossovers=tuple(x for x in bounds if x is not None),
    )


def _scaled_rate(
    measured: ProductRate, of_measured: ProductRate, of_relative: ProductRate, bandwidth: float, multiprocessors: float
) -> ProductRate:
    """Return the measured rate with each number multiplied by the ratio of the two datasheets' numbers.

    `bandwidth` and `multiprocessors` are the new device's numbers divided by the measured device's numbers.
    """
    # A side of C for which reading an operand takes as long as multiplying (`rows`, `cols`) grows with flops /
    # bandwidth.
    reads = of_relative.flops / of_measured.flops / bandwidth
    without_datasheet = {"memory": bandwidth, "rows": reads, "cols": reads, "waves": multiprocessors}
    scaled = {}
    for field in fields(ProductRate):
        before, after = getattr(of_measured, field.name), getattr(of_relative, field.name)
        ratio = after / before if before else without_datasheet.get(field.name, 1.0)
        scaled[field.name] = getattr(measured, field.name) * ratio
    return ProductRate(**scaled)


def _scaled_crossovers(
    bounds: MeasuredCrossovers, dtype: str, measured: Calibration, rates: dict[str, ProductRate], bandwidth: float
) -> MeasuredCrossovers | None:
    """Return tau1 to tau3 times the ratio of the devices' alpha / pi, as in Equation 3 of D'Alberto and Nicolau.

    NEVER_WINS_SIDE, the crossover recorded for a number of levels that never wins, is not scaled.
    """
    rate = Plan.parse(bounds.baseline).rate_name(dtype)
    if rate not in rates:
        return None
    ratio = rates[rate].flops / measured.rates[rate].flops / bandwidth
    taus = (tau if tau is None or tau >= NEVER_WINS_SIDE else tau * ratio for tau in bounds.crossover_sides)
    return MeasuredCrossovers(bounds.baseline, *taus)
