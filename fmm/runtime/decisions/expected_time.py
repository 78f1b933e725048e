"""How long the model expects products to take by plans that are in question for another reason than a choice."""

from __future__ import annotations

from collections.abc import Collection
from contextlib import suppress

from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.margins import few_tiles_doubt
from fmm.perfmodel.predict import quick_prediction
from fmm.perfmodel.work.estimate import estimated_workspace
from fmm.problem import Problem, without_layouts
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision, decide
from fmm.runtime.devices import Device

# The vendor's product of few rows and a long inner side is cut along that, which the model does not know of its other
# functions: with more than so many times as many columns as rows, whole products stay whole.
MOST_INNER = 16


def faster_as_half(half: Decision, limits: Limits, device: Device) -> bool:
    """Is one half, with its mirror, clearly predicted to be faster than the whole product by the best plan?"""
    problem = half.problem
    assert problem is not None
    whole = Problem(*problem.size, problem.dtype)
    known = calibration_in_force(problem, limits, device)
    if known is None or problem.dtype not in known.rates or problem.k > MOST_INNER * problem.m:
        return False
    best = decide(whole, limits, device).plan
    seconds = min(quick_prediction(plan, whole, known).seconds for plan in (VENDOR, best))
    margin = known.margin + few_tiles_doubt(problem, known)
    return quick_prediction(half.plan, without_layouts(problem), known).seconds <= (1 - margin) * seconds


def expected_seconds(plans: Collection[Plan], problem: Problem, limits: Limits, device: Device) -> float:
    """How long the model expects the product to take by the best of these plans within the workspace, or by the vendor;
    0 where it knows nothing of the device. (Choosing among all plans would take a thousand times as long.)"""
    known = calibration_in_force(problem, limits, device)
    if known is None or problem.dtype not in known.rates:
        return 0.0
    found = [quick_prediction(VENDOR, problem, known).seconds]
    for plan in plans:
        with suppress(PlanError):  # it cannot be done at these sides
            if estimated_workspace(plan, problem) <= limits.workspace:
                found.append(quick_prediction(plan, problem, known).seconds)
    return min(found)
