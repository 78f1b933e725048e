"""Tunings of simulated processors on which plans with several levels are slower than the model says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import MappingProxyType

import pytest

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Rate
from fmm.perfmodel.level_bounds import count_levels, effective_side
from fmm.problem import Problem
from fmm.tuner.devices.simulated import TRUTH
from fmm.tuner.trials.journal import Journal
from fmm.tuner.tune_type import tune_type
from tests.support.busy_device import BusyDevice, decided_plan
from tests.support.marks import quick_and_slow

TWO_LANES = replace(
    TRUTH,
    rates=MappingProxyType({"float64": Rate(1.5e11, 2e4, 20.0, 30.0, 80.0, batch=1.03)}),
    stream=2e10, launch=1e-4, lanes=2, idle=0.01, spin=0.03, apart=0.5,
)  # fmt: skip
ONE_LANE = replace(TRUTH, rates=MappingProxyType({"float64": Rate(2.1e11, 50.0**2, 20.0)}), stream=2.4e10)


@dataclass
class DeepPlansAreSlow(BusyDevice):
    """A processor on which a plan takes `slowdown(levels, side)` times as long as the formula says."""

    slowdown: Callable[[int, float], float] = lambda levels, side: 1.0

    def true_seconds(self, plan: Plan, problem: Problem) -> float:
        slower = self.slowdown(count_levels(plan), effective_side(problem.size)) if plan.levels else 1.0
        return slower * super().true_seconds(plan, problem)


SLOWDOWNS: dict[str, Callable[[int, float], float]] = {
    "from two levels on": lambda levels, side: (1.0, 1.0, 1.15, 1.3)[min(levels, 3)],
    "of three levels": lambda levels, side: (1.0, 1.0, 1.0, 1.35)[min(levels, 3)],
    "of every level": lambda levels, side: 1.1**levels,
    "less on large products": lambda levels, side: 1 + 0.25 * (levels - 1) * min(2000 / side, 1.0),
    "a little more on large products": lambda levels, side: 1 + 0.02 * levels * min(side / 4000, 1.5),
    "not at all": lambda levels, side: 1.0,
}


def fresh_problems(count: int, seed: int = 7) -> list[Problem]:
    """Return squares and rectangles of sides from 500 to 9000."""
    rng = random.Random(seed)
    sides = [
        [round(500 * 18 ** rng.random())] * 3 if i % 2 else [rng.randint(500, 9000) for _ in range(3)]
        for i in range(count)
    ]
    return [Problem(m, k, n) for m, k, n in sides]


@pytest.mark.parametrize("truth", [TWO_LANES, ONE_LANE], ids=["two lanes", "one lane"])
@pytest.mark.parametrize("slowdown", SLOWDOWNS)
@pytest.mark.parametrize("effort", ["quick"])
@pytest.mark.parametrize("seed", quick_and_slow([1], [2, 3, 4]))
def test_no_chosen_plan_is_slower_than_the_vendor(truth: object, slowdown: str, effort: str, seed: int) -> None:
    device = DeepPlansAreSlow(truth=truth, noise=0.02, seed=seed, memory=1 << 33, slowdown=SLOWDOWNS[slowdown])
    section = tune_type(Journal("run", device, clock=device.clock), "float64", device.efforts[effort]).section
    speedups = {p: device.true_speedup(decided_plan(device, p, section), p) for p in fresh_problems(60)}
    assert min(speedups.values()) >= 0.98, min(speedups, key=lambda p: speedups[p])
