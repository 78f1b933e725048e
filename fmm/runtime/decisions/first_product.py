"""Measure fmm's portable kernels by the first large product of a type on an untuned GPU.

The speed of fmm's portable kernels for bytes and float16 planes was measured on Hopper GPUs alone. On a GPU other than
Hopper, products use the portable kernels only after a measurement on this GPU. Before the first product of at least
MIN_MEASURED_FLOPS flops, fmm times a plan with a portable kernel and the vendor on leading blocks of the operands. The
datasheet predicts which plan is the fastest, and this plan is timed.

The kernels are compiled before the measurement. The timed products by the plan and by the vendor are predicted to take
at most MAX_PREDICTED_SECONDS. If the timed products take longer than MAX_MEASURED_SECONDS, the measurement ends without
a result. The measurement's result is written into the config as an entry, with the versions of the libraries. If the
version of a library changes, fmm measures the element type again.

If the plan was faster than the vendor, products of at least the measured size may use the plan's leaf. The leaf's rate
is scaled so that the model predicts at most the measured speedup. If the plan was slower than the vendor, the vendor
multiplies until `fmm-tune` measures the type.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from math import prod
from types import MappingProxyType

from fmm.config import environment, files
from fmm.config.identity import Identity
from fmm.config.schema import FIRST_PRODUCT, Entry
from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.kernels.leaves import F16X3_RATE
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose, default_error_growth_limit
from fmm.perfmodel.default_calibration import TENSOR_MEMORY_CAPABILITIES, WARPGROUP_CAPABILITY
from fmm.perfmodel.predict import quick_prediction
from fmm.problem import Problem
from fmm.runtime.decisions import online
from fmm.runtime.devices import Device

MIN_MEASURED_FLOPS = 2 * 2048**3  # smallest number of flops of a product that measures its type
MAX_PREDICTED_SECONDS = 0.05  # longest predicted time of the timed rounds
MAX_MEASURED_SECONDS = 2 * MAX_PREDICTED_SECONDS  # a measurement ends after this time
BLOCK_SIDES = 4096, 3072, 2048, 1536, 1024, 768, 640  # longest sides of measured blocks; the first one in time is taken
BYTES_LEAF = "bytes"  # the leaf of the products by residues


def has_portable_kernels(device: Device) -> bool:
    """Return True for all GPUs except Hopper, since only Hopper has special kernels for bytes and float16 planes."""
    return device.guess is not None and not device.threads and _is_non_hopper_datasheet(device.guess.name)


def _is_non_hopper_datasheet(datasheet: str) -> bool:
    return datasheet in datasheet_names() and datasheet_of(datasheet).capability != WARPGROUP_CAPABILITY


def _rates_of_portable_kernels(datasheet: str) -> dict[str, str]:
    """Return a dictionary from the rate name of each leaf with a portable kernel to the name of this kernel.

    On data-center Blackwell, the leaf `f16x3` calls the vendor's float16 product, so the dictionary does not contain
    this leaf.
    """
    found = {
        leaf.rate.format(dtype): leaf.kernel_leaf_name
        for leaf in plan_leaves()
        for dtype in (*leaf.types, *leaf.types_alone)
        if leaf.rate and (leaf.emulates or leaf.kernel_leaf_name == BYTES_LEAF)
    }
    if datasheet_of(datasheet).capability in TENSOR_MEMORY_CAPABILITIES:
        found.pop(F16X3_RATE, None)
    return found


def uses_portable_kernels(plan: Plan, dtype: str, datasheet: str) -> bool:
    """Return True if the plan's leaf has a portable kernel on the GPU with this datasheet."""
    return (
        plan != VENDOR
        and _is_non_hopper_datasheet(datasheet)
        and plan.rate_name(dtype) in _rates_of_portable_kernels(datasheet)
    )


# ---- the calibration before and after the measurement


def calibration_by_first_product(unmeasured: Calibration, problem: Problem, identity: Identity) -> Calibration:
    """Return a datasheet's calibration, with rates only of those portable kernels that the first product measured."""
    entry = first_product_entry(identity, problem.dtype)
    if entry is None or not allows_portable_kernels(entry, problem):
        return calibration_without_portable_kernels(unmeasured)
    return calibration_scaled_to_entry(unmeasured, entry, problem.dtype)


def allows_portable_kernels(entry: Entry, problem: Problem) -> bool:
    """Return True if the measured plan beat the vendor and the problem is at least as large as the measured one."""
    return entry.plan != str(VENDOR) and prod(problem.size) >= prod(entry.size)


@clear_on_registration
@lru_cache(maxsize=64)
def calibration_without_portable_kernels(unmeasured: Calibration) -> Calibration:
    """Return a datasheet's calibration without the leaves that have portable kernels."""
    if not _is_non_hopper_datasheet(unmeasured.name):
        return unmeasured
    portable = _rates_of_portable_kernels(unmeasured.name)
    rates = {name: rate for name, rate in unmeasured.rates.items() if name not in portable}
    return replace(unmeasured, rates=MappingProxyType(rates))


@clear_on_registration
@lru_cache(maxsize=64)
def calibration_scaled_to_entry(unmeasured: Calibration, entry: Entry, dtype: str) -> Calibration:
    """Return a datasheet's calibration without the rates of portable kernels, except those of the measured leaf.

    The rates of the measured leaf are scaled: the predicted speedup of the entry's plan becomes at most the lower end
    of the confidence interval of its measured speedup.
    """
    plan, problem = Plan.parse(entry.plan), Problem(*entry.size, dtype)
    seconds, vendor_seconds = (quick_prediction(x, problem, unmeasured).predicted_seconds for x in (plan, VENDOR))
    share = min(1.0, entry.low * seconds / vendor_seconds)
    portable, measured = _rates_of_portable_kernels(unmeasured.name), plan.leaf_use.leaf.kernel_leaf_name
    rates = {
        name: replace(rate, flops=share * rate.flops) if name in portable else rate
        for name, rate in unmeasured.rates.items()
        if portable.get(name, measured) == measured
    }
    return replace(unmeasured, source="datasheet, scaled to one measurement", rates=MappingProxyType(rates))


# ---- the measurement


def first_product_entry(identity: Identity, dtype: str) -> Entry | None:
    """Return the result of the measurement by the first large product of a type; None without a measurement.

    A measurement that was made in this process takes precedence over an entry in the config.
    """
    if environment.tuning_mode() == "off":
        return None
    if (entry := online.entry_of_finished_trial(identity, dtype, FIRST_PRODUCT)) is not None:
        return entry
    tuned = files.active_configs().find_tuning(identity, dtype)
    entries = () if tuned is None or tuned.changed else tuned.entries.values()
    return next((entry for entry in entries if entry.origin == FIRST_PRODUCT and entry.verified), None)


def first_product_trial(problem: Problem, limits: Limits, device: Device) -> online.OnlineTrial | None:
    """Return the OnlineTrial with which this product measures the portable kernels of its type.

    Return None if the type has been measured already. Small products, triangles, batches, and products with alpha, beta
    or a prepared operand measure nothing.
    """
    if not has_portable_kernels(device) or environment.tuning_mode() != "cache" or problem.flops < MIN_MEASURED_FLOPS:
        return None
    if problem.writes_triangle or problem.prepared_side or problem.has_factors or problem.batch != 1:
        return None
    if first_product_entry(device.identity, problem.dtype) is not None:
        return None
    return _trial_on_largest_blocks(problem, limits, device)


def _trial_on_largest_blocks(problem: Problem, limits: Limits, device: Device) -> online.OnlineTrial | None:
    """Return a trial on leading blocks of A and B, the largest predicted to take MAX_PREDICTED_SECONDS or less.

    The trial compares a plan with the vendor's product, and its result holds for all products of the type. So if the
    limits forbid the vendor's product, the plan is the plan of a call without limits.
    """
    assert device.guess is not None
    if limits.forbids_vendor:
        limits = replace(limits, error_growth=default_error_growth_limit(batches=True))
    for side in BLOCK_SIDES:
        block = Problem(min(problem.m, side), min(problem.k, side), min(problem.n, side), problem.dtype)
        plan = choose(block, device.guess, limits).best.plan
        if not uses_portable_kernels(plan, problem.dtype, device.guess.name):
            continue
        pair = sum(quick_prediction(x, block, device.guess).predicted_seconds for x in (plan, VENDOR))
        if online.MEASURED_PAIRS * pair <= MAX_PREDICTED_SECONDS:
            return online.trial_for_shape(block, device.identity, plan, FIRST_PRODUCT)
    return None
