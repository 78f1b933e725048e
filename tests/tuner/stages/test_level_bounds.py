"""Tunings of simulated processors on which plans with several levels are slower than the model says."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import product
from math import log
from types import MappingProxyType

import pytest

from fmm.config.certification import MIN_SPEEDUP
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import rank_candidates
from fmm.perfmodel.crossovers import count_levels, effective_side
from fmm.problem import Problem
from fmm.tuner.devices.device import TimedRun
from fmm.tuner.devices.simulated import SIMULATED_CALIBRATION
from fmm.tuner.findings import crossovers
from fmm.tuner.findings.conclude import HELD_OUT_STAGE
from fmm.tuner.findings.crossovers import (
    LevelSample,
    margins_excluding_slow_plans,
    speedup_overestimates_by_levels,
    wrongly_predicted_gains,
)
from fmm.tuner.findings.diagnostics import EXTRAPOLATION_MARGIN
from fmm.tuner.findings.thresholds import calibration_with_margin
from fmm.tuner.fit.model import Observation, observation_weights
from fmm.tuner.trials.journal import Journal
from fmm.tuner.tune_type import tune_type
from tests.support.busy_device import BusyDevice, decided_plan
from tests.support.marks import quick_and_slow

TWO_LANES = replace(
    SIMULATED_CALIBRATION,
    rates=MappingProxyType({"float64": ProductRate(1.5e11, 2e4, 20.0, 30.0, 80.0, batch=1.03)}),
    stream=2e10, launch=1e-4, lanes=2, idle=0.01, spin=0.03, apart=0.5,
)  # fmt: skip
ONE_LANE = replace(
    SIMULATED_CALIBRATION, rates=MappingProxyType({"float64": ProductRate(2.1e11, 50.0**2, 20.0)}), stream=2.4e10
)


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


TRUTHS = {"two lanes": TWO_LANES, "one lane": ONE_LANE}
# A quick tuning measures no product so large that it could see what happens to larger ones.
QUICK = [name for name in SLOWDOWNS if name != "a little more on large products"]
WORLDS = list(product(TRUTHS, QUICK, (1,)))
# Without bounds of levels and margins for losses, a plan that loses is chosen in these two.
BOUNDED = [("two lanes", "of every level", 1), ("one lane", "from two levels on", 1)]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("lanes", "slowdown", "seed"), quick_and_slow(BOUNDED, [x for x in WORLDS if x not in BOUNDED])
)
def test_a_quick_tuning_chooses_no_plan_slower_than_the_vendor(lanes: str, slowdown: str, seed: int) -> None:
    assert worst_speedup(TRUTHS[lanes], slowdown, "quick", seed) >= 0.98


@pytest.mark.slow
@pytest.mark.parametrize("slowdown", ["from two levels on", "a little more on large products", "not at all"])
def test_a_default_tuning_chooses_no_plan_slower_than_the_vendor(slowdown: str) -> None:
    assert worst_speedup(TWO_LANES, slowdown, "default", 1) >= 0.98


def worst_speedup(truth: Calibration, slowdown: str, effort: str, seed: int) -> float:
    """Return the least true speedup of the chosen plans on fresh problems after a tuning."""
    device = DeepPlansAreSlow(truth=truth, noise=0.02, seed=seed, memory_bytes=1 << 33, slowdown=SLOWDOWNS[slowdown])
    section = tune_type(Journal("run", device, clock=device.clock), "float64", device.efforts_by_name[effort]).section
    return min(device.true_speedup(decided_plan(device, p, section), p) for p in fresh_problems(60))


@pytest.mark.slow
def test_held_out_plans_have_up_to_three_levels_on_squares_and_rectangles() -> None:
    device = DeepPlansAreSlow(truth=TWO_LANES, noise=0.02, seed=1, memory_bytes=1 << 33)
    journal = Journal("run", device, clock=device.clock)
    tune_type(journal, "float64", device.efforts_by_name["quick"])
    held = {(t.size, t.plan) for t in journal.recorded if t.stage == HELD_OUT_STAGE}
    assert {count_levels(Plan.parse(plan)) for _, plan in held} >= {0, 1, 2}
    assert {len(set(size)) == 1 for size, plan in held if count_levels(Plan.parse(plan)) == 2} == {True, False}


def test_plans_with_several_levels_weigh_as_much_as_the_vendor() -> None:
    squares = [Problem(side, side, side) for side in (1000, 1500, 2000, 2500, 3000, 3500)]
    deep = [Observation(p, TimedRun(Plan.parse("winograd > winograd > vendor")), 1.0) for p in squares[:2]]
    observed = [*(Observation(p, TimedRun(), 1.0) for p in squares), *deep]
    weights = observation_weights(ONE_LANE, observed)
    assert weights[:6] == [1.0] * 6 and sum(w * w for w in weights[6:]) == pytest.approx(6.0)
    assert observation_weights(replace(ONE_LANE, batches=True), observed) == [1.0] * 8


# ---- crossovers from samples


def sample(levels: int, side: int, speedup: float, predicted: float) -> LevelSample:
    plan = Plan.parse(" > ".join(["winograd"] * levels + ["vendor"]))
    return LevelSample(plan, Problem(side, side, side), speedup, 1 / predicted)


def test_an_error_within_the_noise_is_not_corrected() -> None:
    right = [sample(1, side, gain, 1.05) for side, gain in ((2000, 1.06), (2500, 1.04), (3000, 1.055), (3500, 1.045))]
    assert speedup_overestimates_by_levels(right)[1].log_error_at_side(3000) == 0
    wrong = [sample(1, side, gain / 1.1, 1.05) for side, gain in ((2000, 1.06), (2500, 1.04), (3000, 1.055))]
    assert speedup_overestimates_by_levels(wrong)[1].log_error_at_side(3000) == pytest.approx(-0.095, abs=0.01)
    overestimates = speedup_overestimates_by_levels(wrong)  # plans with three levels are not measured
    assert overestimates[3].log_error_at_side(3000) == overestimates[1].log_error_at_side(3000)


def test_an_error_that_grows_with_the_side_is_extrapolated() -> None:
    found = speedup_overestimates_by_levels([sample(2, 1000 * 2**i, 0.95**i, 1.0) for i in range(5)])[2]
    assert found.log_error_at_side(16000) == pytest.approx(4 * log(0.95)) and found.log_error_at_side(
        1000
    ) == pytest.approx(0, abs=1e-9)
    assert found.log_error_at_side(32000) == pytest.approx(5 * log(0.95)) and found.log_error_at_side(
        1e6
    ) == pytest.approx(6 * log(0.95))


def test_a_sample_that_loses_against_its_prediction_raises_the_margin() -> None:
    lost, won = sample(1, 3000, 0.95, 1.1), sample(1, 3000, 1.0, 1.2)
    assert margins_excluding_slow_plans([won]) == (0.0, 0.0)
    margin = margins_excluding_slow_plans([won, lost])[0]
    assert margin == pytest.approx(1 - 1 / 1.1, abs=1e-5)
    (candidate,) = rank_candidates(lost.problem, calibration_with_margin(SIMULATED_CALIBRATION, margin), [lost.plan])
    assert not replace(candidate, time=lost.predicted_time).beats_vendor
    exact = speedup_overestimates_by_levels([])
    assert wrongly_predicted_gains([lost, won], exact) == []  # the best plan with one level does not lose
    assert wrongly_predicted_gains([lost], exact) == [lost]


def test_an_extrapolated_crossover_asks_for_more_than_a_confirmed_one(monkeypatch: pytest.MonkeyPatch) -> None:
    gains = dict[int, float]()

    def wins(baseline: str, levels: int, dtype: str, on: Calibration, errors: object, gain: float, side: int) -> bool:
        gains[levels] = gain
        return True

    samples = [sample(1, 3000, 1.05, 1.05), sample(2, 3000, 0.99, 1.0)]
    monkeypatch.setattr(crossovers, "_do_plans_with_levels_win", wins)
    monkeypatch.setattr(crossovers, "level_samples", lambda trials, calibration: samples)
    crossovers.measure_crossovers([], ONE_LANE)
    assert gains == {1: MIN_SPEEDUP, 2: 1 + EXTRAPOLATION_MARGIN, 3: 1 + EXTRAPOLATION_MARGIN}
