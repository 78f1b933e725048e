"""The CPU as the tuner sees it: real products, tiny; and one real tuning of a few seconds, which the runtime obeys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.arrays import host_memory
from fmm.config import files
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.choose import Limits
from fmm.perfmodel.default_calibration import BUILT_IN_SOURCE_TEXT
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decisions import decide
from fmm.runtime.probe import PROBE_SOURCE
from fmm.tuner.cli import main
from fmm.tuner.devices.cpu import CpuDevice, CpuSession
from fmm.tuner.devices.device import RunFailedError, TimedRun
from fmm.tuner.trials.journal import Journal, RoundLimits

WINOGRAD = Plan.parse("winograd > vendor")


@pytest.mark.parametrize("dtype", CpuDevice().dtypes)
def test_every_type_is_measured(dtype: str) -> None:
    journal = Journal("run", CpuDevice())
    runs = [TimedRun(), TimedRun(WINOGRAD), TimedRun(WINOGRAD, "sums"), TimedRun(VENDOR, "whole", 1)]
    with journal.open_timed_problem("probe", Problem(65, 66, 67, dtype)) as timed:
        samples = timed.sample_rounds(runs, RoundLimits(2))
    assert all(len(found) == 2 and min(found) > 0 for found in samples.values())
    assert not [t for t in journal.recorded if t.failed]


def test_operands_are_random_the_same_for_a_seed_and_drawn_once() -> None:
    device = CpuDevice()

    def operands(n: int, seed: int) -> CpuSession:
        with device.open_session(Problem(n, n, n), seed) as session:
            return session

    first, again, other = operands(50, 1), operands(50, 1), operands(50, 2)
    assert np.array_equal(first.a, again.a) and not np.array_equal(first.a, other.a)
    assert not np.array_equal(first.a, first.b)
    assert abs(float(first.a.mean())) < 0.1 and 0.9 < float(first.a.std()) < 1.1


def test_a_wrong_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(a: Any, b: Any, out: Any, plan: Plan) -> None:
        np.matmul(a, b, out=out)
        out[0, 0] += 1

    monkeypatch.setattr(fmm, "matmul", wrong)
    with (
        CpuDevice().open_session(Problem(80, 80, 80), 0) as session,
        pytest.raises(RunFailedError, match="wrong result"),
    ):
        session.prepare_run(TimedRun(WINOGRAD))


def test_a_plan_that_cannot_run_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(a: Any, b: Any, out: Any, plan: Plan) -> None:
        raise fmm.PlanError("not here")

    monkeypatch.setattr(fmm, "matmul", never)
    with CpuDevice().open_session(Problem(80, 80, 80), 0) as session, pytest.raises(RunFailedError, match="not here"):
        session.prepare_run(TimedRun(WINOGRAD))


def test_a_problem_beyond_the_free_memory_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """The system hands out more than there is, and kills whoever uses it."""
    monkeypatch.setattr(host_memory, "available_bytes", lambda: 3 * 100 * 100 * 8 - 1)
    journal = Journal("run", CpuDevice())
    with journal.open_timed_problem("bench", Problem(100, 100, 100)) as timed:
        assert timed.sample_rounds([TimedRun()], RoundLimits(1)) == {TimedRun(): []}
    assert [t.failed for t in journal.recorded] == ["out of memory"]


def test_one_run_tells_both_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    runs, timed = [], CpuSession._measure_step_seconds

    def counting(self: CpuSession, plan: Plan) -> Any:
        runs.append(plan)
        return timed(self, plan)

    monkeypatch.setattr(CpuSession, "_measure_step_seconds", counting)
    with CpuDevice().open_session(Problem(128, 128, 128), 0) as session:
        for part in ("sums", "products", "products", "sums", "sums"):
            session.sample_seconds(TimedRun(WINOGRAD, part))
    assert len(runs) == 3


@pytest.mark.slow
def test_a_real_tuning_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "shapes").write_text("256 256 256\n")
    arguments = ["--device", "cpu", "--effort", "quick", "--dtype", "float32", "--output", str(tmp_path), "--json"]
    for limit in ("6", "18"):  # the second for a machine so slow or busy that hardly anything was measured
        code = main([*arguments, "--time-limit", limit])
        (found,) = json.loads(capsys.readouterr().out)
        if found["section"]:
            break
    assert found["section"]["calibration"]["rate"]["flops"] > 1e8
    assert main(["verify", str(tmp_path)]) == 0
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    files.clear_config_cache()
    decided = decide.decide_plan(
        Problem(3000, 3000, 3000, "float32"), Limits(1 << 40), devices.cpu_device(blas_threads())
    )
    if code:  # so short a tuning may have been checked on too few shapes: then it is not used, and says so
        assert code == 1 and found["section"]["doubts"] and decided.source != "calibrated model"
        return
    assert not found["section"]["doubts"]
    assert decided.source == "calibrated model" and "calibrated on this device" in decided.reason
    assert main(["predict", "3000", "3000", "3000", "--dtype", "float32"]) == 0
    assert "calibrated on this device" in capsys.readouterr().out
    key = found["device"]
    assert main(["predict", "3000", "3000", "3000", "--dtype", "float32", "--device", key, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["device"] == found["section"]["conditions"]["device"]


def test_bench_times_the_choice_and_given_plans(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["bench", "200", "210", "220", "--device", "cpu", "--rounds", "3", "--plan", "winograd > vendor"]
    assert main([*arguments, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["plan"], row["answered_by"]) for row in rows] == [
        ("vendor", "built-in model"),
        ("winograd > vendor", "given"),
    ]
    assert all(len(row["samples"]) == 3 and row["low"] <= row["speedup"] <= row["high"] for row in rows)
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("given" in line and line.endswith("winograd > vendor") for line in lines)


def test_bench_decides_like_matmul_on_an_untuned_cpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    for variable in ("HOME", "XDG_CONFIG_HOME", "XDG_CONFIG_DIRS"):
        monkeypatch.setenv(variable, str(tmp_path))
    files.clear_config_cache()
    problem, probed_threads = Problem(300, 300, 300), []
    rates = MappingProxyType({"float64": ProductRate(1.0, 0.0, 0.0)})
    free_sums = Calibration("for tests", BUILT_IN_SOURCE_TEXT, rates, stream=1e30, launch=1.0)
    monkeypatch.setattr(devices, "built_in_calibration", lambda threads: free_sums)

    def probed_calibration(threads: int, dtype: str) -> Calibration:
        probed_threads.append(threads)
        return replace(free_sums, source=PROBE_SOURCE)

    monkeypatch.setattr(devices, "probed_calibration", probed_calibration)
    decision = decide.decide_plan(problem, Limits(1 << 40), devices.cpu_device(blas_threads()))
    assert decision.plan != VENDOR and decision.source == "probed model"
    assert main(["bench", "300", "--device", "cpu", "--rounds", "1", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {"plan": str(decision.plan), "answered_by": "probed model"}.items() <= rows[1].items()
    assert probed_threads == [blas_threads()] * 2
    files.clear_config_cache()
