"""How long the model expects products to take by plans that are in question for another reason than a choice."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits, few_tiles_margin, recurring_call_seconds
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.work import estimated_workspace
from fmm.problem import Problem, without_layouts
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision, decide_plan
from fmm.runtime.devices import Device

# The vendor cuts a product of few rows along a long inner side; whether its functions for one half do so too, the model
# does not know. So with an inner side of more than so many times the rows, a product stays whole.
MOST_INNER = 16
# On a GPU the vendor's half of so few rows takes as long as the whole product, or longer. (1024 of an H200, with as
# many columns: 63 us by syrk and 59 for all in float32, 41 and 42 in float64.)
FEW_ROWS = 1024


def faster_as_half(half: Decision, limits: Limits, device: Device) -> bool:
    """Is a call for one half, with its mirror, clearly predicted to be faster than one for the whole product by the
    best plan?"""
    problem = half.problem
    assert problem is not None
    whole = Problem(*problem.size, problem.dtype)
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates or problem.k > MOST_INNER * problem.m:
        return False
    if calibration.batches and half.plan == VENDOR and problem.m <= FEW_ROWS:
        return False
    best = decide_plan(whole, limits, device).plan
    of_whole = min(
        recurring_call_seconds(quick_prediction(plan, whole, calibration), calibration) for plan in (VENDOR, best)
    )
    of_half = recurring_call_seconds(quick_prediction(half.plan, without_layouts(problem), calibration), calibration)
    margin = calibration.margin + few_tiles_margin(problem, calibration)
    return of_half <= (1 - margin) * of_whole


def expected_seconds(plans: Collection[Plan], problem: Problem, limits: Limits, device: Device) -> float:
    """Seconds by the vendor, or by the fastest of these plans that fits into the workspace; 0 where nothing is known of
    the device. (Choosing among all plans would take a thousand times as long.)"""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return 0.0
    seconds = [recurring_call_seconds(quick_prediction(VENDOR, problem, calibration), calibration)]
    for plan in plans:
        with suppress(PlanError):  # it cannot be done at these sides
            if estimated_workspace(plan, problem) <= limits.workspace:
                seconds.append(recurring_call_seconds(quick_prediction(plan, problem, calibration), calibration))
    return min(seconds)
