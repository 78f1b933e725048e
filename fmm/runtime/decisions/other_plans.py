"""What to try instead of a plan that could not run: what else wins within the limits, and what needs less memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from fmm.config import environment
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Candidate, Limits, choose
from fmm.problem import Problem, without_layouts
from fmm.runtime.decisions.calibration_in_force import calibration_in_force
from fmm.runtime.decisions.decide import Decision, peak_workspace
from fmm.runtime.devices import Device

LEANER = 0.8  # the share of a plan's workspace that the next one may have: a difference where memory is in pieces


def other_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """What to try where a plan cannot run on these arrays after all: what else wins within the limits, fastest first.

    By the model, whoever chose the plan: an entry of a config names no others.
    """
    for c in _considered(problem, limits, device):
        allowed = c.wins and limits.allow(c.plan, c.error_growth) and c.fits(limits.workspace)
        if allowed and c.plan not in (than, VENDOR):
            yield c.plan


def leaner_plans(problem: Problem, than: Plan, limits: Limits, device: Device) -> Iterator[Plan]:
    """What to try when memory ran out: the best plan with at most LEANER of the workspace, and so on; none at last."""
    room = peak_workspace(than, problem)
    while room > 0:
        room = int(room * LEANER)
        found = next(other_plans(problem, than, replace(limits, workspace=room), device), None)
        if found is None:
            return
        yield found
        room = peak_workspace(found, problem)


def only_choice(vendors: Decision, limits: Limits, device: Device) -> Decision:
    """Where the library has no such product: the fastest plan within the limits, if there is one."""
    problem = vendors.problem
    assert problem is not None
    for c in () if environment.tuning_disabled() else _considered(problem, limits, device):
        if c.plan != VENDOR and limits.allow(c.plan, c.error_growth) and c.fits(limits.workspace):
            return replace(vendors, plan=c.plan, reason="the library has no product of this type")
    return vendors


def _considered(problem: Problem, limits: Limits, device: Device) -> tuple[Candidate, ...]:
    """What the model considers within the limits, the fastest first."""
    known = calibration_in_force(problem, limits, device)
    if known is None or problem.dtype not in known.rates:
        return ()
    return choose(without_layouts(problem), known, limits).considered
