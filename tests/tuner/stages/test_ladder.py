"""A GPU's crossovers tau1 to tau3: measured on a ladder of squares, above each baseline."""

from __future__ import annotations

from dataclasses import replace
from math import exp
from typing import Any, cast

import pytest

from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.crossovers import baseline_text
from fmm.runtime.devices import calibration_from_datasheet
from fmm.tuner.devices.device import GPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.findings.conclude import thresholds_with_intervals
from fmm.tuner.findings.crossovers import measure_crossovers
from fmm.tuner.findings.ladder import (
    LADDER_STAGE,
    LadderPoint,
    crossover_interval,
    crossover_side,
    ladder_crossovers,
    ladder_points,
)
from fmm.tuner.stages.ladder import LADDER_SIDES, measure_ladder
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from tests.support.devices import H200

MODEL = cast(Calibration, calibration_from_datasheet(H200.identity.key, H200.identity.name))


def measured_ladder(truth: Calibration, dtype: str, seconds: float = 100.0, noise: float = 0.005) -> Journal:
    """Return the journal of a ladder on a GPU whose times follow `truth`, begun by the datasheet's model."""
    device = SimulatedDevice(truth=truth, noise=noise, identity=H200.identity, memory_bytes=140 << 30, gpu=True)
    journal = Journal("run", device)
    measure_ladder(journal, dtype, MODEL, GPU_EFFORTS["default"], seconds)
    return journal


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_each_crossover_is_between_a_square_that_loses_and_the_next_that_wins(dtype: str) -> None:
    journal = measured_ladder(MODEL, dtype)
    bounds = ladder_crossovers(journal.recorded)["vendor"].bounds
    points = ladder_points(journal.recorded)
    for levels, tau in enumerate(bounds.crossover_sides[:2], 1):
        own = points["vendor", levels]
        lost, won = [p.side for p in own if p.ratio <= 1], [p.side for p in own if p.ratio > 1]
        assert tau is not None and max(lost) <= tau <= min(won)
        assert LADDER_SIDES.index(int(min(won))) == LADDER_SIDES.index(int(max(lost))) + 1


def test_a_slower_memory_moves_the_measured_crossover() -> None:
    """The model predicts one side, and the ladder finds another: the ladder is what bounds the levels."""
    slow = replace(MODEL, stream=MODEL.stream / 2)
    taus = [
        ladder_crossovers(measured_ladder(truth, "float64").recorded)["vendor"].bounds.tau1 for truth in (MODEL, slow)
    ]
    assert taus[0] is not None and taus[1] is not None and taus[1] > 1.4 * taus[0]


def test_the_time_limit_ends_the_ladder_without_bounds() -> None:
    journal = measured_ladder(MODEL, "float64", seconds=1e-6)
    assert not journal.recorded and ladder_crossovers(journal.recorded) == {}


def test_crossovers_on_small_squares_are_measured_first() -> None:
    """Otherwise one crossover above float16 products takes the time of all others."""
    journal, first = measured_ladder(MODEL, "float32"), dict[tuple[str, int], int]()
    for t in journal.recorded:
        first.setdefault((baseline_text(Plan.parse(t.plan)), t.seed), t.size[0])
    sides = list(first.values())
    assert sides == sorted(sides) and len(set(sides)) > 1


def test_a_baseline_may_change_the_type() -> None:
    """The ladder compares plans above float16 products with float16 products alone, and never with the vendor."""
    journal = measured_ladder(MODEL, "float32")
    found = ladder_crossovers(journal.recorded)
    assert {"vendor", "f16x3"} <= set(found)
    emulated = [t for t in journal.recorded if Plan.parse(t.plan).leaf == "f16x3"]
    squares = {(t.size, t.seed) for t in emulated}
    assert {(t.size, t.seed) for t in emulated if t.plan == "f16x3"} == squares


# ---- crossovers from points


def trial(side: int, plan: str, seconds: float | None, levels: int = 1, **other: Any) -> Trial:
    return Trial("run", LADDER_STAGE, (side,) * 3, "float64", plan, "whole", 0, levels, 0.0, seconds, **other)


def test_the_faster_plan_of_each_kind_is_compared() -> None:
    rows = [trial(4096, "vendor", 1.0), trial(4096, "winograd > vendor", 0.9), trial(4096, "strassen > vendor", 0.8)]
    (point,) = ladder_points(rows)["vendor", 1]
    assert point.ratio == pytest.approx(1.25) and point.side == 4096


def test_a_plan_that_failed_is_no_point() -> None:
    assert ladder_points([trial(4096, "vendor", 1.0), trial(4096, "winograd > vendor", None, failed="no memory")]) == {}


def test_no_square_below_the_crossover_won() -> None:
    points = [(1000.0, 0.9), (2000.0, 1.05), (4000.0, 0.99), (8000.0, 1.2)]
    found = crossover_side(points)
    assert found is not None and 1000 < found < 2000
    assert crossover_side([]) is None


def test_the_interval_holds_the_crossover_and_is_open_beyond_the_ladder() -> None:
    points = [LadderPoint(float(side), r, r * exp(-0.02), r * exp(0.02)) for side, r in ((4000, 0.95), (5000, 1.05))]
    low, high = crossover_interval(points)
    tau = crossover_side([(p.side, p.ratio) for p in points])
    assert low is not None and high is not None and tau is not None and 4000 < low < tau < high < 5000
    assert crossover_interval(points[:1]) == (4000.0, None)
    assert crossover_interval(points[1:]) == (5000.0, 5000.0)


def test_a_section_has_the_crossovers_with_their_intervals() -> None:
    journal = measured_ladder(MODEL, "float64")
    found = thresholds_with_intervals(MODEL, "float64", {}, [journal.recorded], {})
    crossovers = measure_crossovers(journal.recorded, MODEL)
    assert found.measured_taus["vendor"]["tau1"] == crossovers["vendor"].bounds.tau1
    low, high = found.measured_intervals["vendor"]["tau1"]
    assert low is not None and low <= found.measured_taus["vendor"]["tau1"] <= (high or 1e9)  # type: ignore[operator]
