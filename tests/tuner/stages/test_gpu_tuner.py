"""The tuner on a real CUDA device: every type and part, wrong plans, and a short tuning that the runtime obeys."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from fmm.config import files
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem
from fmm.runtime import devices
from fmm.runtime.decisions.decide import decide_plan
from fmm.tuner.cli import main
from fmm.tuner.devices.device import GPU_EFFORTS, SHORTEST_SAMPLE_PART, TimedRun
from fmm.tuner.fit.blocks import fit_block_model
from fmm.tuner.stages.probes import probe_strategies
from fmm.tuner.trials.journal import Journal, RoundLimits

pytestmark = pytest.mark.gpu

PLAN = Plan.parse("strassen.batched.pad16 > vendor")
TYPES = ("float32", "float64", "bfloat16", "tf32", "float16", "complex64", "complex128")


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_and_part_is_measured(dtype: str) -> None:
    from fmm.tuner.devices.cuda import CudaDevice

    device = CudaDevice(0)
    assert tuple(device.dtypes) == TYPES
    journal = Journal("run", device)
    runs = [
        TimedRun(),
        TimedRun(PLAN),
        TimedRun(PLAN, "sums"),
        TimedRun(PLAN, "products"),
        TimedRun(VENDOR, "whole", 1),
        TimedRun(part=SHORTEST_SAMPLE_PART),
    ]
    with journal.open_timed_problem("probe", Problem(515, 521, 530, dtype)) as timed:
        samples = timed.sample_rounds(runs, RoundLimits(3))
    assert not [t.failed for t in journal.recorded if t.failed]
    assert all(len(found) == 3 and min(found) > 0 for found in samples.values())


def test_what_does_not_fit_is_a_row() -> None:
    from fmm.tuner.devices.cuda import CudaDevice

    journal = Journal("run", CudaDevice(0))
    with journal.open_timed_problem("probe", Problem(1 << 20, 1 << 20, 1 << 20, "float64")) as timed:
        assert timed.sample_rounds([TimedRun()], RoundLimits(1)) == {TimedRun(): []}
    (trial,) = journal.recorded
    assert trial.failed and "memory" in trial.failed


def test_a_short_tuning_is_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--device", "0", "--effort", "quick", "--dtype", "float32", "--json"]
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    (found,) = json.loads(capsys.readouterr().out)
    assert found["section"]["calibration"]["rate"]["flops"] > 1e11
    assert main(["verify", str(tmp_path)]) == 0
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    files.clear_config_cache()
    decided = decide_plan(Problem(9000, 9000, 9000, "float32"), Limits(1 << 40), devices.cuda_device(0))
    assert decided.source == "calibrated model"


def test_a_first_pass_has_something_for_every_type_within_a_minute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All types, coarsely, though no kernel is compiled when it begins."""
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "kernels"))
    began = time.monotonic()
    assert main(["--device", "0", "--effort", "coarse", "--quiet", "--output", str(tmp_path)]) == 0
    seconds = time.monotonic() - began
    (types,) = files.read_config(tmp_path / "config.json").values()
    assert set(types) == set(TYPES) and not [dtype for dtype, raw in types.items() if raw["doubts"]]
    assert seconds < 60


def test_the_block_strategies_are_timed() -> None:
    from fmm.tuner.devices.cuda import CudaDevice

    journal = Journal("run", CudaDevice(0))
    probe_strategies(journal, GPU_EFFORTS["quick"])
    assert not [t.failed for t in journal.recorded if t.failed]
    found = fit_block_model(journal.recorded, journal.device.chip)
    assert found and found.error <= found.built_in_error < 1.0
