"""What a user types first: a quick tuning of an idle processor with two cores, which ends with something to use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from types import MappingProxyType

import pytest

from fmm.config import files, schema
from fmm.config.schema import read_thresholds
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import ProductRate
from fmm.problem import Problem
from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.devices.device import CPU_EFFORTS, GPU_EFFORTS, Effort, TimedRun
from fmm.tuner.devices.simulated import SIMULATED_CALIBRATION
from fmm.tuner.findings.conclude import HELD_OUT_STAGE
from fmm.tuner.findings.diagnostics import MIN_HELD_OUT_PAIRS
from fmm.tuner.fit.model import observed_medians
from fmm.tuner.trials.journal import Journal
from fmm.tuner.trials.record import TrialFile
from fmm.tuner.tune_type import tune_type
from tests.support import busy_device
from tests.support.busy_device import BusyDevice, decided_plan, tune_by_clock
from tests.support.marks import quick_and_slow

RATES = {"complex128": 1.4e11, "complex64": 2.8e11, "float64": 1.5e11, "float32": 3.0e11}
TWO_CORES = replace(
    SIMULATED_CALIBRATION,
    rates=MappingProxyType({dtype: ProductRate(x, 2e4, 20.0, 30.0, 80.0, batch=1.03) for dtype, x in RATES.items()}),
    stream=2e10, launch=1e-4, lanes=2, idle=0.01, spin=0.03, apart=0.5,
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(("seed", "dtypes"), [(1, list(RATES)), (2, ["float32"]), (3, ["float64"])])
def test_a_quick_tuning_of_an_idle_processor_is_used(
    seed: int, dtypes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of each type; of all four within a minute and a half by the device's own clock."""
    device = BusyDevice(truth=TWO_CORES, noise=0.02, seed=seed, memory_bytes=1 << 33)
    tune_by_clock(monkeypatch, device)
    path = tmp_path / "config.json"
    chosen = ["--dtype", ",".join(dtypes)] if dtypes != list(RATES) else []  # all, of which nobody need speak
    assert main(["--device", "cpu", "--effort", "quick", "--quiet", "--output", str(path), *chosen]) == 0
    assert not capsys.readouterr().err and device.now < 90
    sections = files.read_config(path)[device.identity.key]
    assert set(sections) == set(dtypes)
    for dtype, section in sections.items():
        assert section["doubts"] == []
        assert schema.read_section(section, "test", device.identity, dtype).trusted_calibration is not None
        problem = Problem(8000, 8000, 8000, dtype)  # beyond what it measures a plan must promise 5 %
        plan = decided_plan(device, problem, section)
        assert plan != VENDOR and device.true_speedup(plan, problem) > 1


@pytest.mark.slow
@pytest.mark.parametrize("dtype", quick_and_slow(["float64"], ["float32"]))
def test_a_tuning_that_has_little_time_is_planned_for_it(dtype: str) -> None:
    """A quarter of four minutes, after first passes: as it is planned without a limit, nothing would be held out."""
    found = {}
    for limit in (inf, 39.0):
        device = BusyDevice(truth=TWO_CORES, noise=0.02, seed=1, memory_bytes=1 << 33)
        journal = Journal("run", device, clock=device.clock, limit=39.0)
        outcome = tune_type(
            journal, dtype, CPU_EFFORTS["default"].effort_within_seconds(tune.CPU_SAMPLING_SHARE * limit)
        )
        assert outcome.section is not None
        found[limit] = outcome.section
    assert "held-out speedups, 5 are needed" in found[inf]["doubts"][0]
    assert found[39.0]["doubts"] == [] and found[39.0]["error"]["speedup"]["count"] >= MIN_HELD_OUT_PAIRS


def test_an_effort_within_so_many_seconds() -> None:
    usual, look = CPU_EFFORTS["default"], GPU_EFFORTS["coarse"]
    assert usual.effort_within_seconds(usual.seconds) is usual and look.effort_within_seconds(0.1) is look
    half, none = usual.effort_within_seconds(usual.seconds / 2), usual.effort_within_seconds(0.0)
    assert (half.seconds, half.held_out) == (usual.seconds / 2, usual.held_out // 2)
    assert none.held_out == CPU_EFFORTS["coarse"].held_out
    shares = (CPU_EFFORTS, tune.CPU_SAMPLING_SHARE), (GPU_EFFORTS, tune.GPU_SAMPLING_SHARE)
    for efforts, share in shares:  # without a limit of the user's, all are as they were planned
        assert all(effort.effort_within_seconds(share * effort.most) is effort for effort in efforts.values())


@dataclass
class SlowlyAskedDevice(BusyDevice):
    """One that takes its time between samples, so that first passes end before anything is held out."""

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        return {**CPU_EFFORTS, "default": replace(CPU_EFFORTS["quick"], held_out=5)}


@pytest.mark.slow
def test_every_type_is_checked_before_one_is_refined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first pass that is stopped goes on when all types had theirs, on the same shapes; refinements that are stopped
    leave what it found."""
    device = SlowlyAskedDevice(truth=TWO_CORES, noise=0.02, seed=1, memory_bytes=1 << 33)
    monkeypatch.setattr(busy_device, "OVERHEAD", 0.07)
    tune_by_clock(monkeypatch, device)
    path, dtypes = tmp_path / "config.json", ["float64", "float32"]
    arguments = ["--device", "cpu", "--dtype", ",".join(dtypes), "--quiet", "--output", str(path)]
    assert main([*arguments, "--time-limit", "100"]) == 0
    tunings = TrialFile(tmp_path / "trials.jsonl").read_tunings()
    passes = [(t.header.settings["effort"], t.header.settings["dtype"]) for t in tunings]
    assert passes == [(effort, dtype) for effort in ("coarse", "default") for dtype in dtypes]
    for tuning in tunings[:2]:
        held = [t for t in tuning.trials if t.stage == HELD_OUT_STAGE]
        scattered = CPU_EFFORTS["coarse"].held_out - 1  # the last shape, at a crossover, may find no time
        assert len({t.size for t in held}) >= scattered
        assert held[-1].elapsed > CPU_EFFORTS["coarse"].most, "in a second go"
    for section in files.read_config(path)[device.identity.key].values():
        assert section["doubts"] == [] and section["error"]["speedup"]["count"] >= MIN_HELD_OUT_PAIRS


NEAR = 1.8  # times as long as the vendor


@pytest.mark.slow
@pytest.mark.parametrize("dtype", quick_and_slow(["float64"], ["float32", "complex64", "complex128"]))
def test_a_model_is_checked_where_plans_are_a_choice(dtype: str) -> None:
    """The margin is what the model is off by on held-out shapes; of small products, where plans take twice as long,
    that would say nothing."""
    device = BusyDevice(truth=TWO_CORES, noise=0.02, seed=1, memory_bytes=1 << 33)
    most = device.efforts_by_name["quick"].most
    journal = Journal("run", device, limit=most, clock=device.clock)
    section = tune_type(journal, dtype, device.efforts_by_name["quick"]).section
    held = observed_medians(journal.recorded, ("held out",))
    vendor = {o.problem: o.seconds for o in held if o.run == TimedRun()}
    # The time limit may end the last shape before the vendor is timed.
    slower = [o.seconds / vendor[o.problem] for o in held if o.run != TimedRun() and o.problem in vendor]
    assert len(slower) >= MIN_HELD_OUT_PAIRS and max(slower) < NEAR and min(slower) < 1.5, slower
    assert section is not None and section["calibration"]["margin"] < 0.06 and device.now < 1.02 * most


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float64", "complex128"])
def test_two_tunings_of_one_kind_agree_within_a_tenth(dtype: str) -> None:
    """Eight quick ones, equal products off by 2 % as on the recorded processor: any two of them."""
    found: dict[str, list[float]] = {"n1": [], "tau1": [], "tau2": []}
    for seed in range(8):
        device = BusyDevice(truth=TWO_CORES, noise=0.02, seed=seed, memory_bytes=1 << 33)
        section = tune_type(Journal("run", device, clock=device.clock), dtype, device.efforts_by_name["quick"]).section
        thresholds = read_thresholds(section and section["thresholds"])
        assert thresholds is not None
        for name, values in found.items():
            value = getattr(thresholds, name)
            values.append(value if name == "n1" else (value.value or inf))
    for name, values in found.items():
        assert max(values) <= 1.1 * min(values), (name, values)
