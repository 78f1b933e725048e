"""Which plans a tuning probes: those between which the model is to choose, on a device and for a problem."""

from __future__ import annotations

from collections.abc import Sequence

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.candidates import compared_plans
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.work import are_rows_aligned, estimated_work
from fmm.problem import Problem
from fmm.tuner.devices.compile_ahead import compile_weight
from fmm.tuner.devices.device import Device
from fmm.tuner.devices.effort import Effort
from fmm.tuner.findings.conclude import starting_calibration
from fmm.tuner.search.race import within_limits

# On a CPU with several lanes, only plans are probed that are predicted to take at most so many times as long as the
# best one: plans of many small steps take ten times as long as those that matter.
WORTH_PROBING = 1.5


def light_candidates(device: Device, effort: Effort) -> list[Plan]:
    """The device's candidates whose kernels the effort waits for."""
    return [p for p in device.candidates() if not p.levels or compile_weight(p) <= effort.heaviest]


def worth_probing(device: Device, problem: Problem, plans: Sequence[Plan]) -> list[Plan]:
    """Those between which the model is to choose, by what is believed before anything is measured the fastest first."""
    untuned = starting_calibration(device.untuned(), problem.dtype)
    known = [c for c in rank_candidates(problem, untuned, plans) if c.plan != VENDOR]
    near = [c for c in known if untuned.lanes == 1 or c.time < WORTH_PROBING * known[0].time]
    return [c.plan for c in (near if len(near) > 1 else known[:2])]


def plans_of_other_numbers(device: Device, problem: Problem) -> list[Plan]:
    """On a CPU, the candidates that change the numbers (a complex product into real ones), the model's best first."""
    untuned = starting_calibration(device.untuned(), problem.dtype)
    if untuned.batches:
        return []
    taking = [p for p in compared_plans(False) if p.takes_type(problem.dtype)]
    found = [p for p in taking if p.leaf_type(problem.dtype) != problem.dtype]
    return worth_probing(device, problem, found) if found else []


def plans_of_own_rate(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Of each leaf that has a rate of its own: the leaf alone, and the first candidate with levels above it."""
    rates, found = device.untuned().rates, []
    light = [p for p in light_candidates(device, effort) if p.leaf_use.leaf.time.rate in rates]
    plans = [p for p in light if within_limits(device, p, problem)]
    for leaf in dict.fromkeys(p.leaf for p in plans):
        own = [p for p in plans if p.leaf == leaf]
        found += [p for p in own if not p.levels] + [p for p in own if p.levels][:1]
    return found


def own_plans(device: Device, problem: Problem, effort: Effort) -> list[Plan]:
    """Candidates with our own kernel that could be chosen for the problem if the kernel proved as fast as possible."""
    plans = [p for p in light_candidates(device, effort) if p.timed_by_tiles and within_limits(device, p, problem)]
    plans = [p for p in plans if are_rows_aligned(problem, p.leaf_use.leaf.candidacy.alignment)]
    return [p for p in plans if estimated_work(p, problem).smallest >= device.untuned().least]
