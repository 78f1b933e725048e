"""The calibration that decisions use.

The calibration is from a trusted tuning of the device, else from a probe, else it is a default calibration.

The datasheet of a GPU can name a related GPU for which fmm ships a calibration (`relative_of`). A GPU without a tuning
uses the shipped calibration of its related GPU, scaled by the two datasheets. If a datasheet names no related GPU, the
calibration is made from this datasheet alone. A calibration from a datasheet alone gets the rates of portable kernels
(kernels for any GPU) when the first large product has measured these rates (fmm.runtime.decisions.first_product).
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType

from fmm.config import environment, files
from fmm.config.identity import Identity
from fmm.config.schema import Tuning
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import datasheet_of
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import VENDOR
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import datasheet_calibration, with_integer_rates
from fmm.perfmodel.relative_device import scale_calibration_to_gpu
from fmm.problem import Problem, reduced_problem
from fmm.runtime.decisions.first_product import calibration_by_first_product
from fmm.runtime.devices import Device, calibration_from_datasheet


def calibration_in_force(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """Return the calibration for decisions about this problem; None for an unknown device."""
    if problem.element_type.exact:
        return integer_calibration(problem, limits, device)[0]
    if arithmetic_variables_unlike_tuning(problem.dtype, device):
        return None
    tuned = tuning_in_force(problem.dtype, device)
    return (tuned_calibration(tuned, device) if tuned else None) or untuned_calibration(problem, limits, device)


def tuning_in_force(dtype: str, device: Device) -> Tuning | None:
    """Return the tuning of this type on the device; None if there is no tuning, or if FMM_TUNING_MODE is off."""
    if environment.tuning_mode() == "off":
        return None
    return files.active_configs().find_tuning(device.identity, dtype)


def arithmetic_variables_unlike_tuning(dtype: str, device: Device) -> str:
    """Return the environment variables that change the vendor's arithmetic.

    Return "" if the variables had the same values in the tuning.

    If the values differ from the values in the tuning, the vendor's speed differs from the speed in the calibration.
    For example, a variable that lets cuBLAS emulate float64 makes cuBLAS's float64 products faster. A tuning that was
    measured with this variable is not valid for a process without the variable.
    """
    if device.threads:
        return ""
    now = environment.vendor_arithmetic(dtype, environment.vendor_variables())
    tuned = tuning_in_force(dtype, device)
    then = tuned.vendor_arithmetic if tuned is not None else ""
    if now == then:
        return ""
    return now or f"the absence of {then}"


def tuned_calibration(tuned: Tuning, device: Device) -> Calibration | None:
    """Return a tuning's calibration for decisions; None if the tuning is not trusted.

    On a GPU, `complete_calibration` adds rates of leaves that the tuning did not measure.
    """
    real_type_tuning = DTYPES[tuned.dtype].real
    real_tuning = (
        files.active_configs().find_tuning(device.identity, real_type_tuning)
        if real_type_tuning and tuned.trusted_calibration
        else None
    )
    return complete_calibration(tuned, real_tuning, None if device.threads else device.guess)


def complete_calibration(
    tuned: Tuning, real_type_tuning: Tuning | None, unmeasured: Calibration | None
) -> Calibration | None:
    """Return a tuning's calibration; on a GPU, rates of the leaves that the tuning did not measure are added.

    Return None if the tuning is not trusted. `real_type_tuning`: the tuning of a complex type's real type, since plans
    for complex products may consist of real products. `unmeasured`: the calibration from the device's datasheet.
    """
    calibration, failed = tuned.trusted_calibration, tuned.failed
    if calibration is not None and real_type_tuning is not None and real_type_tuning.trusted_calibration is not None:
        calibration = replace(
            calibration, rates=MappingProxyType({**real_type_tuning.trusted_calibration.rates, **calibration.rates})
        )
        failed += real_type_tuning.failed
    if calibration is None or unmeasured is None:
        return calibration
    return add_unmeasured_rates(calibration, unmeasured, failed)


@clear_on_registration
@lru_cache(maxsize=64)
def add_unmeasured_rates(tuned: Calibration, unmeasured: Calibration, failed: tuple[str, ...] = ()) -> Calibration:
    """Return a tuned calibration with added rates of the leaves that the tuning did not measure.

    Each added rate is the leaf's datasheet rate, times the vendor's measured rate, divided by the vendor's datasheet
    rate. Leaves that failed in every trial of the tuning get no rate; `failed` contains the names of their rates.
    """
    rates = dict(tuned.rates)
    for leaf in plan_leaves():
        for dtype in leaf.types if leaf.rate else ():
            if (name := leaf.rate.format(dtype)) in unmeasured.rates and name not in {*rates, *failed}:
                rates[name] = _scale_to_tuned_vendor(unmeasured.rates[name], dtype, tuned, unmeasured)
    return replace(
        tuned,
        rates=MappingProxyType(rates),
        call_of_library=tuned.call_of_library or unmeasured.call_of_library,
        call_of_small=tuned.call_of_small or unmeasured.call_of_small,
    )


def _scale_to_tuned_vendor(own: ProductRate, dtype: str, tuned: Calibration, unmeasured: Calibration) -> ProductRate:
    """Return a leaf's datasheet rate times the vendor's measured rate, divided by the vendor's datasheet rate."""
    found, guessed = tuned.find_rate(dtype), unmeasured.find_rate(dtype)
    return replace(own, flops=own.flops * found.flops / guessed.flops) if found and guessed else own


def untuned_calibration(problem: Problem, limits: Limits, device: Device) -> Calibration | None:
    """Return the calibration of a device without a trusted tuning.

    On a CPU, the untuned calibration has nominal rates. If a plan wins by the nominal rates, a probe measures the CPU.
    The rates that the probe measures replace the nominal rates until the process ends.
    """
    unmeasured = device.guess
    if unmeasured is not None and not device.threads:
        return untuned_gpu_calibration(unmeasured, problem, device.identity)
    if device.measured is not None and (measured := device.measured(problem.dtype)) is not None:
        return measured
    if (
        unmeasured is None
        or device.probe is None
        or choose(reduced_problem(problem), unmeasured, limits).best.plan == VENDOR
    ):
        return unmeasured
    return device.probe(problem.dtype)


def untuned_gpu_calibration(unmeasured: Calibration, problem: Problem, identity: Identity) -> Calibration:
    """Return the calibration of a GPU without a tuning.

    If the GPU's datasheet names a related GPU, the shipped calibration of the related GPU is scaled to this GPU. If the
    datasheet names no related GPU, return the calibration from the datasheet (`unmeasured`), without the rates of
    portable kernels that the first large product has not measured.
    """
    scaled = related_gpu_calibration(unmeasured, problem.dtype)
    return scaled or calibration_by_first_product(unmeasured, problem, identity)


def related_gpu_calibration(unmeasured: Calibration, dtype: str) -> Calibration | None:
    """Return the related GPU's shipped calibration, scaled to this GPU; None if the datasheet names no related GPU.

    Shipped calibrations are used only if the shipped config is one of the active configs.
    """
    searched = environment.tuning_mode() != "off" and files.SHIPPED_CONFIG in files.active_configs().files
    return scaled_shipped_calibration(unmeasured.name, dtype) if searched else None


@clear_on_registration
@lru_cache(maxsize=64)
def scaled_shipped_calibration(name: str, dtype: str) -> Calibration | None:
    """Return the related GPU's shipped calibration, scaled to the GPU with this datasheet; None if fmm ships none."""
    relative = datasheet_of(name).relative_of
    if not relative:
        return None
    unmeasured, shipped = datasheet_calibration(relative), files.Configs((files.SHIPPED_CONFIG,), False)
    for key in (key for devices in shipped.files.values() for key in devices):
        measured = calibration_from_datasheet(key, key)
        if (
            measured is not None
            and measured.name == unmeasured.name
            and (tuned := shipped.find_tuning(Identity(key, key), dtype))
        ):
            completed = complete_calibration(tuned, None, unmeasured)
            return scale_calibration_to_gpu(completed, relative, name, dtype) if completed else None
    return None


def integer_calibration(problem: Problem, limits: Limits, device: Device) -> tuple[Calibration | None, bool]:
    """Return the calibration for integers, and a bool: True if the calibration is from float64's tuning.

    A CPU without a tuning is probed only if a plan with levels wins by the nominal rates. A plan without levels needs
    no probe: the plan uses BLAS, and BLAS is far faster than NumPy's loops over integers.
    """
    unmeasured = device.guess
    if not device.threads or unmeasured is None:
        return unmeasured, False
    tuned = tuning_in_force("float64", device)
    if tuned is not None and tuned.trusted_calibration is not None:
        return with_integer_rates(tuned.trusted_calibration), True
    if device.measured is not None and (measured := device.measured("float64")) is not None:
        return with_integer_rates(measured), False
    unmeasured = with_integer_rates(unmeasured)
    if device.probe is None or not choose(reduced_problem(problem), unmeasured, limits).best.plan.levels:
        return unmeasured, False
    return with_integer_rates(device.probe("float64")), False
