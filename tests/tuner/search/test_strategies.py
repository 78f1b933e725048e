"""The regret of choices, from samples made up for it."""

from __future__ import annotations

import random

import pytest

from benchmarks.strategies import STAGE, Row, recalled, summary
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.trials.record import Trial

ONE, TWO = Plan.parse("strassen.batched.pad16 > vendor"), Plan.parse("strassen^2.batched.pad16 > vendor")
SIZE = (4096, 4096, 4096)


def row(model: Plan, vendor: list[float], one: list[float], two: list[float]) -> Row:
    return Row(SIZE, {VENDOR: vendor, ONE: one, TWO: two}, model)


@pytest.mark.parametrize(
    ("model", "regret"),
    [(ONE, 0.0), (TWO, 0.1), (VENDOR, 1.0)],
)
def test_regret_is_against_the_best_in_the_same_rounds(model: Plan, regret: float) -> None:
    """Rounds differ; what is paired does not."""
    one = [1.0, 2.0, 3.0, 5.0, 4.0]
    found = row(model, [2 * x for x in one], one, [1.1 * x for x in one])
    assert found.regret(model) == pytest.approx(regret)
    assert found.confirmed(model) == pytest.approx(regret)


def test_luck_in_some_rounds_is_not_confirmed() -> None:
    """Three plans that are equally fast, each lucky in rounds of its own: the most of the medians is too much."""
    rng = random.Random(1)
    rows = [row(ONE, *([rng.gauss(1, 0.05) for _ in range(5)] for _ in range(3))) for _ in range(100)]
    found = summary(rows)
    assert found["rounds"] == 5 and found["mean"] > 0.01
    assert abs(found["confirmed"]["mean"]) < found["mean"] / 2


@pytest.mark.parametrize("scatter", [0.0, 0.03])
def test_what_a_perfect_choice_would_show(scatter: float) -> None:
    """Nothing without noise, whatever the plans are; with noise, more than nothing."""
    rng = random.Random(2)
    rows = [row(ONE, *([x * rng.gauss(1, scatter) for _ in range(5)] for x in (1.2, 1.0, 1.01))) for _ in range(20)]
    found = summary(rows)["of_a_perfect_choice"]
    assert found["worst"] > 0.02 if scatter else found["worst"] == pytest.approx(0)


def test_an_interrupted_round_of_a_recording_is_left_out() -> None:
    seconds = {VENDOR: [2.0, 2.0], ONE: [1.0, 1.0], TWO: [1.5]}
    trials = [
        Trial("run", STAGE, SIZE, "float64", str(plan), "whole", 0, 0, 0.0, s)
        for plan, own in seconds.items()
        for s in own
    ]
    known = datasheet_calibration("H200")
    (found,) = recalled(trials, "float64", known, SimulatedDevice(known, gpu=True, memory=1 << 62))
    assert found.speedups == {VENDOR: 1.0, ONE: 2.0}
