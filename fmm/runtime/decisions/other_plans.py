"""What to try instead of a plan that could not run: what else wins within the limits, and what needs less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fmm.config import environment
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Candidate, Limits, choose, ranking_problem
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision, peak_workspace
from fmm.runtime.devices import Device

LEANER = 0.8  # the share of a plan's workspace that the next one may have: a difference where memory is in pieces


def other_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Where the plan `than` cannot run on these arrays after all: what else wins within the limits, the fastest first.

    The model says so, even if an entry of a config had chosen the plan: that names no others.
    """
    for candidate in _considered(problem, limits, device):
        if candidate.wins and _allowed(candidate, limits) and candidate.plan not in (than, VENDOR):
            yield candidate.plan


def leaner_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """Where memory ran out for the plan `than`: the best plan with at most LEANER of its workspace, then the best with
    at most LEANER of that one's, and so on until there is none."""
    room = peak_workspace(than, problem)
    while room > 0:
        room = int(room * LEANER)
        leaner = next(other_plans(problem, than, replace(limits, workspace=room), device), None)
        if leaner is None:
            return
        yield leaner
        room = peak_workspace(leaner, problem)


def only_choice(vendors: Decision, limits: Limits, device: Device) -> Decision:
    """Instead of the decision for the vendor, where the library has no such product: the fastest plan within the
    limits, even if it does not win; the same decision where there is none."""
    problem = vendors.problem
    assert problem is not None
    for candidate in () if environment.is_disabled() else _considered(problem, limits, device):
        if candidate.plan != VENDOR and _allowed(candidate, limits):
            return replace(vendors, plan=candidate.plan, reason="the library has no product of this type")
    return vendors


def _allowed(candidate: Candidate, limits: Limits) -> bool:
    return limits.allow(candidate.plan, candidate.error_growth) and candidate.fits(limits.workspace)


def _considered(problem: Problem, limits: Limits, device: Device) -> tuple[Candidate, ...]:
    """All candidates with their predictions, the fastest first."""
    calibration = calibration_in_force(problem, limits, device)
    if calibration is None or problem.dtype not in calibration.rates:
        return ()
    return choose(ranking_problem(problem, calibration.batches), calibration, limits).candidates
