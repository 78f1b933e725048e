"""A first look: all types of a GPU have something that can be used while most kernels are still being compiled."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files, schema
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.problem import Problem
from fmm.runtime.decisions.calibration_in_force import add_unmeasured_rates
from fmm.tuner import tune, tune_type
from fmm.tuner.cli import main
from fmm.tuner.devices.compile_ahead import (
    is_needed_by_first_look,
    kernel_keys,
    largest_level_products,
    tuning_compile_jobs,
)
from fmm.tuner.devices.device import TimedRun, cached_plan_work, predicted_run_seconds
from fmm.tuner.findings import conclude
from fmm.tuner.fit.model import Observation, has_too_few_plans, scale_calibration
from fmm.tuner.trials.journal import Journal
from tests.support.busy_device import decided_plan, tune_by_clock
from tests.support.chips import H200
from tests.support.cold_gpu import CANDIDATES, SHEET, STORED, TYPES, ColdGpu, ShortSession, ready_times, scaled
from tests.support.marks import quick_and_slow

CONCLUDED = 1.0  # seconds of Python to conclude


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """When each type first had a section in the config."""
    return {}


@pytest.fixture
def cold(monkeypatch: pytest.MonkeyPatch, written: dict[str, float]) -> ColdGpu:
    """The command tunes this device; Python's time is counted too."""
    device = ColdGpu(
        truth=scaled(SHEET, 0.93, 1.1), noise=0.01, gpu=True, chip=H200, memory_bytes=1 << 37, prior_calibration=None
    )
    write, concluded = tune._write_section, conclude.conclude_section

    def noted(job: tune.TuningJob, *rest: Any) -> None:
        written.setdefault(job.dtype, device.now)
        write(job, *rest)

    def slowly(journal: Journal, dtype: str) -> dict[str, Any] | None:
        device.now += CONCLUDED
        return concluded(journal, dtype)

    tune_by_clock(monkeypatch, device)
    monkeypatch.setattr(tune, "_write_section", noted)
    for module in (tune, tune_type):
        monkeypatch.setattr(module, "conclude_section", slowly)
    return device


def gains(device: ColdGpu, path: Path, side: int = 16384) -> dict[str, float]:
    """The true speedup of what would be chosen for large squares, by type."""
    found = {}
    for dtype, section in files.read_config(path)[device.identity.key].items():
        problem = Problem(side, side, side, dtype)
        found[dtype] = device.true_speedup(decided_plan(device, problem, section), problem)
    return found


def first_look(path: Path) -> int:
    return main(["--device", "0", "--effort", "coarse", "--quiet", "--output", str(path)])


@pytest.mark.slow
def test_all_types_of_a_card_that_is_known_have_something_within_a_minute(
    cold: ColdGpu, written: dict[str, float], tmp_path: Path
) -> None:
    """By the model that was fitted on another such card, scaled; though the heavy kernels take a minute and more."""
    assert first_look(tmp_path / "config.json") == 0
    assert set(written) == set(TYPES) and max(written.values()) < 50
    sections = files.read_config(tmp_path / "config.json")[cold.identity.key]
    assert [dtype for dtype in TYPES if sections[dtype]["doubts"]] == []
    found = gains(cold, tmp_path / "config.json")
    assert set(found) == set(TYPES) and min(found.values()) > 1.03, found
    for dtype in ("float32", "float64", "bfloat16"):
        flops = sections[dtype]["calibration"]["rate"]["flops"]
        assert flops == pytest.approx(cold.truth.require_rate(dtype).flops, rel=0.03)


@pytest.mark.slow
def test_who_must_wait_for_the_compiler_lets_the_others_go_first(
    cold: ColdGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vendor's products of several types are timed before the first kernel of ours is there."""
    order: list[tuple[str, bool]] = []
    original = tune.tune_job

    def noted(job: tune.TuningJob, *rest: Any) -> tune.JobResult:
        order.append((job.dtype, job.again))
        return original(job, *rest)

    monkeypatch.setattr(tune, "tune_job", noted)
    assert first_look(tmp_path / "config.json") == 0
    assert [dtype for dtype, again in order if not again] == list(TYPES)
    late = [dtype for dtype, again in order if again]
    assert late and late == list(TYPES)[: len(late)]


@pytest.mark.slow
@pytest.mark.parametrize("seconds", quick_and_slow([20.0], [2.0, 14.0, 32.0]))
def test_stopping_at_any_moment_keeps_the_best(
    seconds: float, cold: ColdGpu, written: dict[str, float], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was written by then stands; what was not finished does no harm."""
    sample = ShortSession.sample_seconds

    def stopped(session: ShortSession, run: TimedRun) -> float:
        if cold.now >= seconds:
            monkeypatch.setattr(ShortSession, "sample_seconds", sample)
            raise KeyboardInterrupt
        return sample(session, run)

    monkeypatch.setattr(ShortSession, "sample_seconds", stopped)
    path = tmp_path / "config.json"
    assert first_look(path) == tune.EXIT_INTERRUPTED
    if path.exists():
        found = gains(cold, path)
        done = [dtype for dtype, when in written.items() if when < seconds]
        assert min(found.values(), default=1.0) > 0.98 and all(found[dtype] > 1.03 for dtype in done), found


@pytest.mark.slow
def test_a_card_that_affords_none_of_the_usual_squares_has_its_first_look(cold: ColdGpu, tmp_path: Path) -> None:
    """Float64 on a card without units for it, say: there is nothing to certify, but a model all the same."""
    cold.truth = scaled(SHEET, 1e-3, 1.0)
    arguments = ["--device", "0", "--effort", "coarse", "--dtype", "float32", "--quiet"]
    assert main([*arguments, "--output", str(tmp_path / "config.json")]) == 0
    section = files.read_config(tmp_path / "config.json")[cold.identity.key]["float32"]
    flops = section["calibration"]["rate"]["flops"]
    assert flops == pytest.approx(cold.truth.require_rate("float32").flops, rel=0.1) and not section["entries"]


def test_kernels_that_a_first_look_needs_are_compiled_first_of_every_type() -> None:
    jobs = list(tuning_compile_jobs(STORED, CANDIDATES))
    firsts = [is_needed_by_first_look(Plan.parse(job.plan)) for job in jobs]
    assert firsts == sorted(firsts, reverse=True)
    usual = [job.dtype for job in jobs if job.plan == "strassen.batched.pad16 > vendor"]
    assert set(usual) == set(STORED)
    ready = ready_times(jobs)
    plan = Plan.parse("strassen.batched.pad16 > vendor")
    assert max(ready[x] for dtype in STORED for x in kernel_keys(plan, dtype)) < 20
    last = [i for i, job in enumerate(jobs) if largest_level_products(Plan.parse(job.plan)) >= 343]
    assert [jobs[i].dtype for i in last] == sorted((jobs[i].dtype for i in last), key=STORED.index)


# ---- what a few samples tell


def observations(truth: Calibration, dtype: str, plans: tuple[Plan, ...] = ()) -> list[Observation]:
    """Exact times of products and sums on a few squares."""
    some = Plan.parse("strassen.batched.pad16 > vendor")
    found = []
    for side in (2048, 4096, 8192):
        problem = Problem(side, side, side, dtype)
        for run in (TimedRun(), TimedRun(some, "sums"), *map(TimedRun, plans)):
            work = cached_plan_work(run.plan, problem)
            found.append(Observation(problem, run, predicted_run_seconds(run, problem, work, truth)))
    return found


def test_a_few_samples_scale_what_is_known_and_change_nothing_else() -> None:
    truth = scaled(SHEET, 0.8, 1.3)
    seen = observations(truth, "float64")
    assert has_too_few_plans(seen)
    known = conclude.starting_calibration(SHEET, "float64")
    found = scale_calibration(known, "float64", seen)
    rate = found.calibration.require_rate("float64")
    assert rate.flops == pytest.approx(0.8 * SHEET.require_rate("float64").flops, rel=1e-3)
    assert found.calibration.stream == pytest.approx(1.3 * SHEET.stream, rel=1e-3)
    assert set(found.intervals) == {"rate.flops", "stream"}
    before = replace(known.require_rate("float64"), flops=rate.flops)
    assert rate == before and replace(found.calibration, rates=known.rates, stream=known.stream) == known


def test_of_a_leaf_with_a_rate_of_its_own_the_rate_is_measured_or_follows_from_the_vendors() -> None:
    known = conclude.starting_calibration(SHEET, "float32")
    truth, leaf = scaled(SHEET, 0.9, 1.0), Plan.parse("f16x3")
    (name,) = {p.leaf_use.leaf.rate for p in [leaf]}
    without = scale_calibration(known, "float32", observations(truth, "float32")).calibration
    assert name not in without.rates, "nobody timed it"
    whole = add_unmeasured_rates(without, SHEET)
    assert whole.rates[name].flops == pytest.approx(0.9 * known.rates[name].flops, rel=1e-3), "as fast beside the rest"
    timed = scale_calibration(known, "float32", observations(truth, "float32", (leaf,))).calibration
    # The truth also prepares operands at 0.9 of the speed. The fit takes that speed from the bandwidth, so the rate of
    # the products absorbs the difference.
    assert timed.rates[name].flops == pytest.approx(0.9 * known.rates[name].flops, rel=0.02)


def test_with_whole_plans_enough_all_parameters_are_fitted() -> None:
    plans = (Plan.parse("strassen.batched.pad16 > vendor"),)
    assert not has_too_few_plans(observations(SHEET, "float64", plans))


@pytest.mark.slow
@pytest.mark.parametrize(("alone", "entries"), [("bfloat16", 1), ("float64", 0)])
def test_one_type_alone_waits_for_its_kernels(alone: str, entries: int, cold: ColdGpu, tmp_path: Path) -> None:
    """There is nothing else to do meanwhile; what is found is read back, an entry for a large square too: where the
    model knows no far better plan, which the compiler needs longer for. That would stand behind the entry."""
    path = str(tmp_path / "config.json")
    assert main(["--device", "0", "--effort", "coarse", "--dtype", alone, "--quiet", "--output", path]) == 0
    ((dtype, raw),) = files.read_config(Path(path))[cold.identity.key].items()
    tuned = schema.read_section(raw, "test", cold.identity, dtype)
    assert tuned.trusted_calibration is not None and raw["tuned"]["effort"] == "coarse" and cold.now < 30
    assert len(tuned.entries) == entries
    assert all(e.plan != str(VENDOR) and min(e.size) >= 4096 for e in tuned.entries.values())
