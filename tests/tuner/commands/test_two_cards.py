"""fmm-tune on several cards: of two names with one chip, and equal cards with one key."""

from __future__ import annotations

import json
from argparse import Namespace
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import agreement
from fmm.config import files, reader
from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.devices.device import GPU_EFFORTS, Effort
from fmm.tuner.devices.simulated import SIMULATED_IDENTITY, SimulatedDevice
from fmm.tuner.progress import SilentProgress
from fmm.tuner.trials.record import Trial, TrialFile, TuningHeader
from fmm.tuner.tune import JobResult, JobTimeLimit, TuningJob, tune_job
from fmm.tuner.tune_type import TIME_UP_TEXT, TuningOutcome
from tests.support import ROOT
from tests.support import configs as tuned
from tests.support.chips import H200

SMALL, LARGE = "cuda-8.6-46sm-a-small-card", "cuda-8.6-46sm-a-large-card"
NAMES = {SMALL: "A small card", LARGE: "A large card"}
Configured = Callable[[Mapping[str, str]], Path]


@pytest.fixture
def configured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Configured:
    """A config in force with a section under each of these keys, of the card of this name."""

    def configured(names: Mapping[str, str]) -> Path:
        found = {key: tuned.section(tuned.entry(), conditions={"device": name}) for key, name in names.items()}
        devices = {key: {"float64": section} for key, section in found.items()}
        path = tmp_path / f"{len(list(tmp_path.iterdir()))}.json"
        path.write_text(reader.config_text(devices), encoding="utf-8")
        monkeypatch.setenv("FMM_CONFIG", str(path))
        monkeypatch.setenv("FMM_TUNING_MODE", "cache")
        files.clear_config_cache()
        return path

    return configured


def test_the_name_of_a_datasheet_finds_the_tuning_of_such_a_card(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The tuning in the config, and not one of another card with the same chip; without tunings the datasheet."""
    monkeypatch.setenv("FMM_CONFIG", str(ROOT / "results" / "nvidia-h200"))
    for mode, name, is_tuned in (("cache", "h200", True), ("cache", "h100", False), ("off", "h200", False)):
        monkeypatch.setenv("FMM_TUNING_MODE", mode)
        files.clear_config_cache()
        assert main(["predict", "8192", "--dtype", "float32", "--device", name]) == 0
        head = capsys.readouterr().out.splitlines()[0]
        assert ("on NVIDIA H200 (calibrated" in head) == is_tuned and ("(datasheet, not measured)" in head) != is_tuned


def test_two_cards_have_nothing_to_compare(configured: Configured, capsys: pytest.CaptureFixture[str]) -> None:
    small, large = (configured({key: name}) for key, name in NAMES.items())
    assert agreement.main([str(small), str(large)]) == 1
    assert "the configs have no device and type in common" in capsys.readouterr().err


# ---- the cards of one host


def card(number: int, name: str = "A card") -> SimulatedDevice:
    """A GPU with a UUID of its own; the key follows from the name."""
    identity = replace(SIMULATED_IDENTITY, key=f"cuda-9.0-132sm-{name.replace(' ', '-').lower()}", name=name)
    conditions = {"uuid": f"uuid-{number}"}
    return SimulatedDevice(
        identity=identity, measurement_conditions=conditions, gpu=True, chip=H200, option_value=str(number)
    )


def record_tuning(path: Path, job: TuningJob) -> None:
    """Record an unfinished tuning of the job with one trial."""
    identity, run = job.device.identity, f"run {job.device.option_value}"
    trials = TrialFile(path)
    recorded = dict(job.device.measurement_conditions)
    settings = job.settings_required_to_resume
    trials.add_header(TuningHeader(run, identity.key, dict(identity.versions), recorded, settings, "", ""))
    trials.add_trial(Trial(run, "rates", (8, 8, 8), "float64", "vendor", "whole", 0, 0, 1.0, 1.0))
    trials.close()


def test_a_tuning_of_an_equal_card_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "trials.jsonl"
    first, second = (TuningJob(card(number), "float64", (), "default") for number in (0, 1))
    record_tuning(path, first)
    trials = TrialFile(path)
    assert first.last_tuning(trials) is not None and second.last_tuning(trials) is None
    record_tuning(path, second)
    runs = [tuning.header.run for job in (first, second) if (tuning := job.last_tuning(trials))]
    assert runs == ["run 0", "run 1"]


def test_equal_cards_have_results_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tuned_card(job: TuningJob, *_: object) -> JobResult:
        lacks = "" if job.device.option_value == "0" else "too little was measured"
        return JobResult(0, lacks, 1.0, result={"card": job.device.option_value, "dtype": job.dtype})

    monkeypatch.setattr(tune, "select_devices", lambda name: [card(0), card(1)])
    monkeypatch.setattr(tune, "tune_job", tuned_card)
    arguments = ["--device", "all", "--dtype", "float64", "--output", str(tmp_path)]
    assert main([*arguments, "--json"]) == 0
    printed = capsys.readouterr()
    assert [row["card"] for row in json.loads(printed.out)] == ["0", "1"]
    what = "--device 1: float64: no result that fmm.matmul can use: too little was measured"
    assert printed.err == f"fmm-tune: {what}\n"


def test_a_card_without_a_section_is_named_beside_the_table_of_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def tuned_card(job: TuningJob, path: Path, *_: object) -> JobResult:
        if job.device.option_value == "1":
            return JobResult(0, "too little was measured", 1.0)
        tuned.write(path, job.device.identity.key)
        return JobResult(0, "", 1.0)

    monkeypatch.setattr(tune, "select_devices", lambda name: [card(0, "A card"), card(1, "Another card")])
    monkeypatch.setattr(tune, "tune_job", tuned_card)
    assert main(["--device", "all", "--dtype", "float64", "--output", str(tmp_path)]) == 0
    printed = capsys.readouterr()
    assert "float64" in printed.out
    what = "--device 1: float64: no result that fmm.matmul can use: too little was measured"
    assert printed.err.splitlines()[-1] == f"fmm-tune: {what}"


def test_a_resumed_tuning_of_a_gpu_measures_the_planned_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The time limit of the second run begins after the first run's samples, and is therefore later."""
    efforts = list[Effort]()

    def no_measurement(journal: Any, dtype: str, effort: Effort, wanted: Any) -> TuningOutcome:
        efforts.append(effort)
        return TuningOutcome(None, TIME_UP_TEXT, is_complete=False)

    monkeypatch.setattr(tune, "tune_type", no_measurement)
    job, limit = TuningJob(card(0), "float64", (), "default"), JobTimeLimit(20.0)
    assert job.sampling_share * limit.limit < GPU_EFFORTS["default"].seconds, "the limit reduces the effort"
    path = tmp_path / "config.json"
    for resume in (False, True):
        options = Namespace(resume=resume, json=False, quiet=True, verbose=False, time_limit=None)
        tune_job(job, path, options, limit, SilentProgress())
        trials = TrialFile(tmp_path / "trials.jsonl")
        (recorded,) = trials.read_tunings()
        trials.add_trial(
            Trial(recorded.header.run, "rates", (8, 8, 8), "float64", "vendor", "whole", 0, 0, 1.0, limit.limit)
        )
        trials.close()
    first, second = efforts
    assert first == second and first.held_out < GPU_EFFORTS["default"].held_out
