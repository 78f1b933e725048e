"""What speaks against a tuning: it is set aside, or its margin is wider; a bad tuning is never worse than none."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from math import log
from types import MappingProxyType
from typing import Any

import pytest

from fmm.config import environment, files, schema
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import Limits, rank_candidates
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.work import counted_work
from fmm.problem import Problem
from fmm.runtime.decisions.decide import decide_plan
from fmm.runtime.devices import Device
from fmm.tuner.devices.device import CPU_EFFORTS, SHORTEST_SAMPLE_PART, TimedRun, predicted_run_seconds
from fmm.tuner.devices.simulated import SIMULATED_CALIBRATION, SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.findings.conclude import model_with_required_margins
from fmm.tuner.findings.diagnostics import (
    EXTRAPOLATION_MARGIN,
    MIN_HELD_OUT_PAIRS,
    MIN_MARGIN,
    MIN_OWN_RATE_MARGIN,
    QUIET_STAGE,
    machine_diagnostics,
    margin_for_losses,
    margin_for_slowdown,
    noise_floor,
    slowdown_by_other_work,
    upper_decile_of_vendor_errors,
)
from fmm.tuner.findings.thresholds import calibration_with_margin
from fmm.tuner.fit.model import Observation
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import Trial
from fmm.tuner.tune_type import tune_type
from tests.support import configs as tuned
from tests.support.busy_device import BusyDevice, Load, decided_plan, random_load, random_shapes
from tests.support.marks import quick_and_slow

ONE_LEVEL = TimedRun(Plan.parse("winograd > vendor"))
EMULATING_CALIBRATION = datasheet_calibration("H200")


def held_out(sides: Sequence[int], slower: float = 1.0) -> list[Observation]:
    """Products and one plan of them as the truth has it, the plan so many times slower."""
    found = []
    for n in sides:
        problem = Problem(n, n, n)
        for run in (TimedRun(), ONE_LEVEL):
            seconds = predicted_run_seconds(run, problem, counted_work(run.plan, problem), SIMULATED_CALIBRATION)
            found.append(Observation(problem, run, seconds * (slower if run == ONE_LEVEL else 1.0)))
    return found


SIDES = (3000, 3500, 4000, 4500, 5000, 5500)


# ---- each doubt


def test_a_model_that_was_checked_and_holds_is_not_doubted() -> None:
    found = model_with_required_margins(SIMULATED_CALIBRATION, "float64", held_out(SIDES), 1.1, 5500.0)
    assert found.diagnostics == () and found.calibration.margin == MIN_MARGIN


@pytest.mark.parametrize(
    ("slower", "margin"), [(0.93, MIN_MARGIN), (1.05, 1 - 1 / 1.05)], ids=["promises too little", "too much"]
)
def test_only_what_is_promised_too_much_asks_for_a_margin(slower: float, margin: float) -> None:
    """A plan that is faster than predicted was not chosen where it might have been; no time is lost by it."""
    found = model_with_required_margins(SIMULATED_CALIBRATION, "float64", held_out(SIDES, slower), 1.1, 5500.0)
    assert found.calibration.margin == pytest.approx(margin, abs=0.005)
    assert found.model_error == pytest.approx(max(margin, abs(slower - 1)), abs=0.005)


@pytest.mark.parametrize(
    ("sides", "slower", "said"),
    [
        ((), 1.0, ": 0 held-out"),
        (SIDES[: MIN_HELD_OUT_PAIRS - 1], 1.0, ": 4 held-out"),
        (SIDES, 1.5, "model error 50%"),
    ],
    ids=["nowhere", "too few", "wrong"],
)
def test_a_model_that_was_not_checked_or_is_wrong_is_doubted(sides: Sequence[int], slower: float, said: str) -> None:
    (doubt,) = model_with_required_margins(
        SIMULATED_CALIBRATION, "float64", held_out(sides, slower), None, 5500.0
    ).diagnostics
    assert said in doubt


def test_the_margin_is_so_wide_that_no_held_out_loser_would_have_been_chosen() -> None:
    seen = held_out(SIDES)
    good = model_with_required_margins(SIMULATED_CALIBRATION, "float64", seen, None, 5500.0).calibration
    lost = [o if o.problem.m != 4000 or o.run == TimedRun() else replace(o, seconds=1.2 * o.seconds) for o in seen]
    wide = model_with_required_margins(SIMULATED_CALIBRATION, "float64", lost, None, 5500.0).calibration
    problem = Problem(4000, 4000, 4000)
    expected = [
        predicted_run_seconds(run, problem, counted_work(run.plan, problem), SIMULATED_CALIBRATION)
        for run in (ONE_LEVEL, TimedRun())
    ]
    assert good.margin < 1 - expected[0] / expected[1] <= wide.margin < 0.2


def test_errors_on_plans_with_another_leaf_raise_the_margin_of_these_plans_alone() -> None:
    """The vendor's error does not cancel in their speedups, so that they have at least MIN_OWN_RATE_MARGIN."""
    emulated = TimedRun(Plan.parse("residues(14) > bytes"))
    for slower, margin in ((1.0, MIN_OWN_RATE_MARGIN), (1.15, 0.15)):
        own = [
            Observation(o.problem, emulated, predicted * slower)
            for o in held_out(SIDES)
            if o.run == TimedRun()
            for predicted in [Observation(o.problem, emulated, 1.0).predicted_seconds(EMULATING_CALIBRATION)]
        ]
        vendor = [replace(o, seconds=o.predicted_seconds(EMULATING_CALIBRATION)) for o in held_out(SIDES)]
        found = model_with_required_margins(EMULATING_CALIBRATION, "float64", [*vendor, *own], 1.1, 50000.0).calibration
        assert found.margin == MIN_MARGIN
        assert found.tiled_margin == pytest.approx(margin, abs=0.02)


def test_what_a_losing_plan_was_predicted_to_gain() -> None:
    """Of held-out plans that take longer than the vendor, whole ones: neither parts of plans, nor the vendor's own."""
    seen, problem = held_out(SIDES), Problem(4000, 4000, 4000)
    assert margin_for_losses(SIMULATED_CALIBRATION, seen) == 0
    plan, vendor = (
        predicted_run_seconds(run, problem, counted_work(run.plan, problem), SIMULATED_CALIBRATION)
        for run in (ONE_LEVEL, TimedRun())
    )
    slow = [o if o.problem != problem or o.run == TimedRun() else replace(o, seconds=1.05 * vendor) for o in seen]
    margin = margin_for_losses(SIMULATED_CALIBRATION, slow)
    assert margin == pytest.approx(1 - plan / vendor, abs=1e-5)
    (loser,) = rank_candidates(problem, calibration_with_margin(SIMULATED_CALIBRATION, margin), [ONE_LEVEL.plan])
    assert not loser.beats_vendor
    parts = [replace(o, run=ONE_LEVEL._replace(part="sums")) if o.run == ONE_LEVEL else o for o in slow]
    without_vendor = [o for o in slow if o.run != TimedRun()]
    assert (
        margin_for_losses(SIMULATED_CALIBRATION, parts) == margin_for_losses(SIMULATED_CALIBRATION, without_vendor) == 0
    )


def test_where_plans_pay_only_far_beyond_what_was_measured_more_must_be_gained() -> None:
    near, far = (
        model_with_required_margins(SIMULATED_CALIBRATION, "float64", held_out(SIDES), None, side).calibration
        for side in (5500.0, 300.0)
    )
    assert near.margin == MIN_MARGIN and far.margin == EXTRAPOLATION_MARGIN


def test_other_work_is_seen_from_noise_and_from_products_that_nobody_disturbed() -> None:
    assert list(machine_diagnostics(0.02, 1.2, 0.1)) == []
    assert list(machine_diagnostics(None, None, None)) == ["the tuning ended before the noise was measured"]
    (noisy,), (slow,) = machine_diagnostics(1.3, None, None), machine_diagnostics(0.0, 2.0, 0.0)
    (uneven,) = machine_diagnostics(0.0, 1.0, 0.5)
    assert "noise 130%" in noisy and "2.0 times their quiet time" in slow and "deviate 1.6x" in uneven
    assert margin_for_slowdown(None) == margin_for_slowdown(1.2) == 0 and margin_for_slowdown(1.5) == pytest.approx(
        1 / 6
    )


def test_work_that_came_and_went_leaves_products_that_the_model_cannot_explain() -> None:
    seen = held_out([*SIDES, 1000, 1500, 2000, 2500])
    assert upper_decile_of_vendor_errors(seen, SIMULATED_CALIBRATION) == pytest.approx(0.0)
    slow = [replace(o, seconds=1.5 * o.seconds) if o.problem.m in SIDES[:2] else o for o in seen]
    assert upper_decile_of_vendor_errors(slow, SIMULATED_CALIBRATION) == pytest.approx(log(1.5))
    assert upper_decile_of_vendor_errors(seen[:4], SIMULATED_CALIBRATION) is None


def test_what_nobody_measured_is_no_number() -> None:
    assert noise_floor([]) is None and slowdown_by_other_work([], SIMULATED_CALIBRATION, "float64") is None
    problem = Problem(512, 512, 512)
    seconds = predicted_run_seconds(TimedRun(), problem, counted_work(VENDOR, problem), SIMULATED_CALIBRATION)
    trials = [
        Trial("r", QUIET_STAGE, problem.size, "float64", "vendor", SHORTEST_SAMPLE_PART, 0, 0, 0.0, s / 2)
        for s in (seconds, 9.0)
    ]
    # the model's time over the shortest sample
    assert slowdown_by_other_work(trials, SIMULATED_CALIBRATION, "float64") == pytest.approx(2.0)


# ---- who is doubted is not used


def test_the_runtime_does_without_a_doubted_model(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The calibration stands in the config, for people; the choice is the one without a tuning, and says why."""
    problem, device = Problem(4096, 4096, 4096), Device(SIMULATED_IDENTITY, None)
    path, logged = tmp_path / "config.json", list[str]()
    monkeypatch.setenv("FMM_CONFIG", str(path))
    monkeypatch.delenv("FMM_DISABLE", raising=False)
    monkeypatch.delenv("FMM_TUNING_MODE", raising=False)
    monkeypatch.setattr(environment, "log_once", logged.append)
    for doubts, expected in (([], True), (["it was not checked"], False)):
        section = tuned.section(doubts=doubts, versions=dict(SIMULATED_IDENTITY.versions))
        tuned.write(path, SIMULATED_IDENTITY.key, found=section)
        files.clear_config_cache()
        decision = decide_plan(problem, Limits(1 << 60), device)
        assert (decision.source == "calibrated model") == expected and (decision.plan != VENDOR) == expected
    assert logged == ["the tuning of a fake CPU for float64 is not used: it was not checked"]


@pytest.mark.slow
def test_entries_of_a_disturbed_tuning_are_set_aside() -> None:
    device = BusyDevice(load=Load(0.0, 1e9, 0.7, 0.005, vendor=3.0, plan=1.5))
    journal = Journal("run", device, clock=device.clock)
    section = tune_type(journal, "float64", tuned.SMALL, ((3000, 3000, 3000),)).section
    assert section is not None and section["doubts"]
    assert {e["verified"] for e in section["entries"]} <= {False}
    assert decided_plan(device, Problem(3000, 3000, 3000), section) == VENDOR


# ---- thirty bad tunings

LANES = replace(
    SIMULATED_CALIBRATION,
    rates=MappingProxyType({"float64": ProductRate(1.5e11, 2e4, 20.0, 30.0, 80.0, batch=1.03)}),
    stream=2e10, launch=1e-4, lanes=2, idle=0.01, spin=0.03, apart=0.5,
)  # fmt: skip
GPU = Calibration(
    "fake GPU",
    "",
    MappingProxyType({"float64": ProductRate(5e13, 5e4, 30.0, unaligned=1.4)}),
    4e12,
    1e5,
    3e-6,
    batches=True,
)
WORLDS = (SIMULATED_CALIBRATION, LANES, replace(SIMULATED_CALIBRATION, stream=4e9), GPU)


@cache  # two tests look at the same ones
def bad_tuning(seed: int) -> tuple[BusyDevice, dict[str, Any] | None]:
    """A tuning of a random device, with a random effort and limit, and random work beside it."""
    rng = random.Random(seed)
    truth = WORLDS[seed % len(WORLDS)]
    device = BusyDevice(truth=truth, noise=rng.uniform(0.003, 0.03), seed=seed, gpu=truth is GPU, memory_bytes=1 << 38)
    effort = device.efforts_by_name[rng.choice(("coarse", "quick"))]
    device.load = random_load(rng, effort.seconds)
    limit = min(rng.choice((rng.uniform(0.2, effort.most), effort.most, effort.most)), effort.most)
    journal = Journal("run", device, limit=limit, clock=device.clock)
    return device, tune_type(journal, "float64", effort).section


@pytest.mark.slow
@pytest.mark.parametrize("seeds", quick_and_slow([range(1, 2)], [range(30)]), ids=len)
def test_no_bad_tuning_chooses_a_plan_that_loses(seeds: range) -> None:
    """On 20 shapes that none saw, on the quiet device, whose truth is known. Some are trusted, and choose plans."""
    slowest, chosen, trusted = 1.0, 0, 0
    for seed in seeds:
        device, section = bad_tuning(seed)
        trusted += bool(section and not section["doubts"])
        rng = random.Random(100 + seed)
        for size in random_shapes(rng, 20, 30000 if device.gpu else 9000):
            problem = Problem(*size, "float64")
            plan = decided_plan(device, problem, section)
            chosen += plan != VENDOR
            slowest = min(slowest, device.true_speedup(plan, problem))
    assert slowest >= 0.98
    assert len(seeds) < 30 or (trusted >= 8 and chosen >= 40), (trusted, chosen)


@pytest.mark.slow
def test_without_doubts_bad_tunings_would_lose() -> None:
    """What the doubts are for: the same tunings, trusted as they are, choose plans that lose."""
    slowest = 1.0
    for seed in range(30):
        device, section = bad_tuning(seed)
        for size in random_shapes(random.Random(100 + seed), 20, 30000 if device.gpu else 9000):
            problem = Problem(*size, "float64")
            plan = decided_plan(device, problem, section and {**section, "doubts": []})
            slowest = min(slowest, device.true_speedup(plan, problem))
    assert slowest < 0.96


@pytest.mark.slow
def test_the_coarse_effort_keeps_to_its_seconds_and_is_checked() -> None:
    device = BusyDevice(truth=LANES, noise=0.01)
    most = CPU_EFFORTS["coarse"].most
    section = tune_type(
        Journal("run", device, limit=most, clock=device.clock), "float64", CPU_EFFORTS["coarse"]
    ).section
    assert section is not None and section["doubts"] == [] and device.now <= 1.02 * most
    assert isinstance(
        schema.read_section(section, "test", SIMULATED_IDENTITY, "float64").trusted_calibration, Calibration
    )
    assert SimulatedDevice().efforts_by_name["coarse"] is CPU_EFFORTS["coarse"]
