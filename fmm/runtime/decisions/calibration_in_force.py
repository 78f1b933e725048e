"""The calibration that decisions use: a trusted tuning of the device, else a probe, else a default calibration."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.config import environment, files
from fmm.config.schema import Tuned
from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import VENDOR
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import with_integer_rates
from fmm.problem import Problem, without_layouts
from fmm.runtime.devices import Device


def calibration_in_force(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """Return the calibration for decisions about this problem; None for an unknown device."""
    if problem.type.exact:
        return integer_calibration(problem, limits, device)[0]
    if untuned_arithmetic(problem.dtype, device):
        return None
    tuned = tuning_in_force(problem.dtype, device)
    return (tuned_calibration(tuned, device) if tuned else None) or untuned_calibration(problem, limits, device)


def tuning_in_force(dtype: str, device: Device) -> Tuned | None:
    """Return the tuning of this type on the device; None without one, or with FMM_TUNING_MODE=off."""
    if environment.tuning_mode() == "off":
        return None
    return files.active_configs().tuned(device.identity, dtype)


def untuned_arithmetic(dtype: str, device: Device) -> str:
    """Return the environment variables that change the vendor's arithmetic, if no tuning was taken under them.

    The vendor's speed is then another than in every calibration: cuBLAS's emulated float64, for example, is faster.
    A tuning that was measured under such variables is likewise no calibration without them. Return "" if the variables
    are those of the tuning.
    """
    if device.threads:
        return ""
    now = environment.vendor_arithmetic(dtype, environment.vendor_variables())
    tuned = tuning_in_force(dtype, device)
    then = tuned.vendor_arithmetic if tuned is not None else ""
    if now == then:
        return ""
    return now or f"the absence of {then}"


def tuned_calibration(tuned: Tuned, device: Device) -> Calibration | None:
    """Return a tuning's calibration as decisions use it; None if it is not trusted."""
    real = DTYPES[tuned.dtype].real
    real_tuning = files.active_configs().tuned(device.identity, real) if real and tuned.trusted else None
    return complete_calibration(tuned, real_tuning, None if device.threads else device.guess)


def complete_calibration(tuned: Tuned, real: Tuned | None, guess: Calibration | None) -> Calibration | None:
    """Return a tuning's calibration, on a GPU with rates of all leaves that the tuning did not measure.

    None if the tuning is not trusted. `real`: the tuning of a complex type's real type; complex plans may consist of
    real products. `guess`: the calibration by the device's datasheet.
    """
    calibration, failed = tuned.trusted, tuned.failed
    if calibration is not None and real is not None and real.trusted is not None:
        calibration = replace(calibration, rates=MappingProxyType({**real.trusted.rates, **calibration.rates}))
        failed += real.failed
    if calibration is None or guess is None:
        return calibration
    return add_unmeasured_rates(calibration, guess, failed)


@clear_on_registration
@lru_cache(maxsize=64)
def add_unmeasured_rates(tuned: Calibration, guess: Calibration, failed: tuple[str, ...] = ()) -> Calibration:
    """Return a tuned calibration with rates of the leaves that it did not measure, except those that failed.

    A leaf without a measurement is as fast, relative to the vendor on this device, as the guess says relative to its
    own vendor rate.
    """
    rates = dict(tuned.rates)
    for leaf in plan_leaves():
        for dtype in leaf.types if leaf.rate else ():
            if (name := leaf.rate.format(dtype)) in guess.rates and name not in {*rates, *failed}:
                rates[name] = _scale_to_tuned_vendor(guess.rates[name], dtype, tuned, guess)
    return replace(
        tuned,
        rates=MappingProxyType(rates),
        call_of_library=tuned.call_of_library or guess.call_of_library,
        call_of_small=tuned.call_of_small or guess.call_of_small,
    )


def _scale_to_tuned_vendor(own: Rate, dtype: str, tuned: Calibration, guess: Calibration) -> Rate:
    """Return a leaf's guessed rate, scaled by the measured over the guessed rate of the vendor."""
    found, guessed = tuned.find_rate(dtype), guess.find_rate(dtype)
    return replace(own, flops=own.flops * found.flops / guessed.flops) if found and guessed else own


def untuned_calibration(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """Return the calibration of a device that is not tuned.

    If the guess proposes a plan and the device can be probed, the probe's rates replace the guess. A process probes
    once.
    """
    guess = device.guess
    if guess is None or device.probe is None or choose(without_layouts(problem), guess, limits).best.plan == VENDOR:
        return guess
    return device.probe(problem.dtype)


def integer_calibration(problem: Problem, limits: Limits, device: Device) -> tuple[Calibration | None, bool]:
    """Return the calibration for integers, and True if it comes from float64's tuning.

    A CPU that is not tuned is probed only if the guess proposes a plan with levels. Without levels no probe is needed:
    BLAS is far faster than NumPy's loops over integers.
    """
    guess = device.guess
    if not device.threads or guess is None:
        return guess, False
    tuned = tuning_in_force("float64", device)
    if tuned is not None and tuned.trusted is not None:
        return with_integer_rates(tuned.trusted), True
    guess = with_integer_rates(guess)
    if device.probe is None or not choose(without_layouts(problem), guess, limits).best.plan.levels:
        return guess, False
    return with_integer_rates(device.probe("float64")), False
