"""What is tried instead of a plan: others that win, leaner ones, and the only one that there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

import pytest

from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.default_calibration import cpu_calibration
from fmm.problem import Problem, reduced_problem
from fmm.runtime.decisions.decide import (
    RETRY_WORKSPACE_SHARE,
    Decision,
    decide_without_vendor,
    next_winning_plans,
    plans_with_less_memory,
)
from fmm.runtime.devices import Device, cpu_device

PROBLEM = Problem(2048, 2048, 2048, "float32")
FREE_SUMS = replace(cpu_calibration(2), stream=1e18, small=0.0, launch=0.0)
LARGE = Limits(1 << 40)


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    """A processor that is not tuned, on which many plans win."""
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    return replace(cpu_device(2), guess=FREE_SUMS, probe=None)


def vendors(problem: Problem = PROBLEM) -> Decision:
    return Decision(VENDOR, problem, "")


def test_other_plans_win_within_the_limits_the_fastest_first(device: Device) -> None:
    limits = Limits(1 << 27, 6.0)
    considered = choose(reduced_problem(PROBLEM), FREE_SUMS, limits).candidates
    fastest = considered[0].plan
    found = list(next_winning_plans(PROBLEM, fastest, limits, device))
    assert found and fastest not in found and VENDOR not in found
    allowed = [c for c in considered if c.plan in found]
    assert [c.plan for c in allowed] == found and all(c.beats_vendor for c in allowed)
    assert all(c.error_growth <= 6 and c.workspace_bytes <= 1 << 27 for c in allowed)


def test_the_times_of_slow_plans_stand_below_each_other() -> None:
    """Of a small product, plans take hundreds of times as long."""
    found = choose(PROBLEM, replace(FREE_SUMS, launch=1.0), LARGE)
    told = str(Decision(found.best.plan, PROBLEM, "", candidates=found.candidates)).split(
        "multiple of the vendor's:\n"
    )[1]
    ends = {line.index(".") for line in told.splitlines() if "slower ones" not in line}
    assert found.candidates[-1].time > 100 and len(ends) == 1


def test_leaner_plans_need_at_most_a_share_of_the_one_before(device: Device) -> None:
    fastest = choose(reduced_problem(PROBLEM), FREE_SUMS, LARGE).best
    rooms = [fastest.workspace_bytes]
    for plan in plans_with_less_memory(PROBLEM, fastest.plan, LARGE, device):
        rooms.append(Decision(plan, PROBLEM, "").workspace)
    assert len(rooms) > 1 and all(y <= RETRY_WORKSPACE_SHARE * x for x, y in pairwise(rooms))


def test_nothing_is_leaner_than_no_workspace(device: Device) -> None:
    assert list(plans_with_less_memory(PROBLEM, VENDOR, LARGE, device)) == []


def test_the_only_choice_need_not_win(device: Device) -> None:
    slow = replace(device, guess=replace(FREE_SUMS, stream=1.0))
    found = decide_without_vendor(vendors(), LARGE, slow)
    assert found.plan != VENDOR and found.reason == "the library has no product of this type"
    plans = [c.plan for c in choose(reduced_problem(PROBLEM), replace(FREE_SUMS, stream=1.0), LARGE).candidates]
    assert found.plan == next(plan for plan in plans if plan != VENDOR)


def test_the_only_choice_is_within_the_limits(device: Device) -> None:
    found = decide_without_vendor(vendors(), Limits(1 << 24), device)
    assert found.plan != VENDOR and found.workspace <= 1 << 24
    assert decide_without_vendor(vendors(), Limits(0, 0.5), device) == vendors()


def test_no_other_choice_where_fmm_is_switched_off(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_DISABLE", "1")
    assert decide_without_vendor(vendors(), LARGE, device) == vendors()


def test_nothing_else_where_nothing_is_known(device: Device) -> None:
    for guess in (None, replace(FREE_SUMS, rates=MappingProxyType({"float64": FREE_SUMS.rates["float64"]}))):
        unknown = replace(device, guess=guess)
        assert list(next_winning_plans(PROBLEM, Plan.parse("winograd > vendor"), LARGE, unknown)) == []
        assert decide_without_vendor(vendors(), LARGE, unknown) == vendors()
