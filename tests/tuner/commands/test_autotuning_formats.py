"""fmm-tune export --format t4 and t1: documents that other autotuners read."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from copy import deepcopy
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from fmm.kernels.plans.plan import Plan, PlanError
from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.commands.autotuning_formats import (
    search_space_of_device,
    t1_space_conditions,
    t1_space_document,
    t4_results_document,
)
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.search.space import build_plan
from fmm.tuner.trials.record import RecordedTuning, Trial, TrialFile, TuningHeader
from tests.support import ROOT, configs

jsonschema: Any = pytest.importorskip("jsonschema")
from tests.support.autotuning_schemas import check_document  # noqa: E402 - which needs jsonschema

RESULTS = ROOT / "results"
PROBLEM_FIELDS = {"device", "dtype", "op", "m", "k", "n", "plan"}
HEADER = TuningHeader("r", "cpu-x-2t", {"numpy": "2.4"}, {"load": 0.5}, {}, "fmm-tune", "2026-11-21T20:00:00+00:00")


def sample(plan: str, seconds: float | None, **more: Any) -> Trial:
    known = {"part": "whole", "twin": 0, "seed": 0, "elapsed": 90.5, "failed": None if seconds else "it is broken"}
    return Trial("r", more.pop("stage", "search"), (96, 64, 32), "float64", plan, seconds=seconds, **{**known, **more})


def results_of(*trials: Trial) -> list[dict[str, Any]]:
    document = t4_results_document([RecordedTuning(HEADER, trials, True)])
    check_document("t4", document)
    found: list[dict[str, Any]] = document["results"]
    return found


def measurements(result: Mapping[str, Any]) -> dict[str, Any]:
    return {each["name"]: each["value"] for each in result["measurements"]}


# ---- T4


def test_a_plan_has_one_result_in_each_stage_with_all_its_times_in_milliseconds() -> None:
    strassen = [sample("strassen > vendor", seconds) for seconds in (0.003, 0.001, 0.002)]
    parts = sample("strassen > vendor", 0.0001, part="sums")
    vendor, certified = sample("vendor", 0.004), sample("strassen > vendor", 0.002, stage="certify")
    results = results_of(*strassen, parts, vendor, certified)
    assert [result["times"]["runtimes"] for result in results] == [[3.0, 1.0, 2.0], [4.0], [2.0]]
    assert [measurements(result)["stage"] for result in results] == ["search", "search", "certify"]
    first = results[0]
    assert measurements(first)["time"] == 2.0
    assert measurements(first)["GFLOP/s"] == pytest.approx(2 * 96 * 64 * 32 / 0.002 / 1e9)
    assert first["timestamp"] == "2026-11-21T20:01:30.500000+00:00"
    assert (first["invalidity"], first["correctness"]) == ("correct", 1)


def test_a_result_names_the_problem_and_the_choices_that_build_the_plan() -> None:
    plan, vendor = results_of(sample("balanced(2) > winograd.pad > winograd.pad > vendor", 1.0), sample("vendor", 1.0))
    problem = {"device": "cpu-x-2t", "dtype": "float64", "op": "product", "m": 96, "k": 64, "n": 32}
    assert vendor["configuration"] == {**problem, "plan": "vendor"}
    choices = {name: x for name, x in plan["configuration"].items() if name not in PROBLEM_FIELDS}
    assert choices["scheme"] == "winograd" and choices["depth"] == "2"
    assert build_plan(choices) == Plan.parse(plan["configuration"]["plan"])


@pytest.mark.parametrize(
    ("failure", "kind"),
    [
        ("wrong result: error 3, at most 1e-5 is expected", "correctness"),
        ("RunFailedError: wrong result: relative error 3, at most 1e-5 is expected", "correctness"),
        ("out of memory: 5 bytes", "runtime"),
        ("CompileException: expected a ;", "compile"),
        ("PlanError: no such leaf", "constraints"),
        ("it is broken", "runtime"),
    ],
)
def test_a_failure_has_its_kind_and_its_text(failure: str, kind: str) -> None:
    (result,) = results_of(sample("strassen > vendor", 0.5), sample("strassen > vendor", None, failed=failure))
    assert (result["invalidity"], result["correctness"]) == (kind, 0)
    assert measurements(result) == {"stage": "search", "failure": failure} and result["times"]["runtimes"] == [500.0]


def test_a_start_that_is_no_date_stays_as_written() -> None:
    tuning = RecordedTuning(TuningHeader("r", "cpu", {}, {}, {}, "", "long ago"), (sample("vendor", 1.0),), False)
    assert t4_results_document([tuning])["results"][0]["timestamp"] == "long ago"


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["cpu-intel-r-xeon-r-processor-2t", "nvidia-h200"])
def test_recorded_tunings_are_valid_and_complete(folder: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["export", str(RESULTS / folder), "--format", "t4", "--dtype", "float32"]) == 0
    document = json.loads(capsys.readouterr().out)
    check_document("t4", document)
    (tuning,) = (
        x for x in TrialFile(RESULTS / folder / "trials.jsonl").read_tunings() if x.trials[0].dtype == "float32"
    )
    whole = [trial for trial in tuning.trials if trial.part == "whole"]
    assert sum(len(result["times"]["runtimes"]) for result in document["results"]) == len(whole)
    assert document["metadata"]["hardware"]["hardware_description"][0]["device"] == tuning.header.device
    in_space = [x["configuration"] for x in document["results"] if x["configuration"].keys() > PROBLEM_FIELDS]
    assert len(in_space) > len(document["results"]) / 4
    space = search_space_of_device(tuning.header.device, "float32")
    for configuration in in_space:
        choices = {name: configuration[name] for name in space}
        assert all(choices[name] in values for name, values in space.items())
        assert build_plan(choices) == Plan.parse(configuration["plan"])


# ---- T1


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("key", "dtype"), [("cpu-x-2t", "float32"), ("cpu-x-2t", "complex64"), ("cuda-9.0-132sm-x", "float32")]
)
def test_the_conditions_hold_exactly_for_the_choices_that_build_a_plan(key: str, dtype: str) -> None:
    document = t1_space_document(key, "a device", dtype)
    check_document("t1", document)
    described = document["ConfigurationSpace"]
    space = {x["Name"]: ast.literal_eval(x["Values"]) for x in described["TuningParameters"]}
    assert space == {name: list(values) for name, values in search_space_of_device(key, dtype).items()}
    conditions = [compile(x["Expression"], "T1", "eval") for x in described["Conditions"]]
    assert {name for x in described["Conditions"] for name in x["Parameters"]} <= space.keys()
    valid = 0
    for values in product(*space.values()):
        choices = dict(zip(space, values, strict=True))
        try:
            build_plan(choices)
            builds = True
        except PlanError:
            builds = False
        assert builds == all(eval(x, {}, choices) for x in conditions), choices
        valid += builds
    assert valid > 500


def test_a_space_in_which_all_choices_fit_has_no_conditions() -> None:
    space = {"scheme": ("strassen", "winograd"), "depth": ("1", "2"), "composed": ("no",)}
    assert list(t1_space_conditions(space)) == []


# ---- what the schemas refuse


@pytest.mark.parametrize("path", ["results/0/times", "results/0/invalidity", "results/0/configuration", "results"])
def test_a_document_without_a_required_field_is_invalid(path: str) -> None:
    document = deepcopy(t4_results_document([RecordedTuning(HEADER, (sample("vendor", 1.0),), True)]))
    *above, name = path.split("/")
    place: Any = document
    for step in above:
        place = place[int(step) if step.isdigit() else step]
    del place[name]
    with pytest.raises(jsonschema.ValidationError):
        check_document("t4", document)


# ---- the command


@pytest.mark.slow
def test_a_tuning_is_exported_in_both_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    device = SimulatedDevice(broken=frozenset({"strassen > vendor"}))
    monkeypatch.setattr(tune, "select_devices", lambda name: [device])
    monkeypatch.setitem(CPU_EFFORTS, "default", configs.SMALL)
    (tmp_path / "shapes").write_text("6000 6000 6000\n", encoding="utf-8")
    arguments = ["--shapes", str(tmp_path / "shapes"), "--quiet", "--dtype", "float64", "--output", str(tmp_path)]
    assert main(arguments) == 0
    assert main(["export", str(tmp_path), "--format", "t4"]) == 0
    results = json.loads(capsys.readouterr().out)["results"]
    failed = [result for result in results if result["invalidity"] != "correct"]
    assert {result["configuration"]["plan"] for result in failed} == {"strassen > vendor"}
    vendor = [x for x in results if x["configuration"]["plan"] == "vendor" and x["configuration"]["m"] == 6000]
    assert vendor and all(measurements(x)["time"] == median(x["times"]["runtimes"]) for x in vendor)
    assert main(["export", str(tmp_path), "--format", "t1"]) == 0
    document = json.loads(capsys.readouterr().out)
    check_document("t1", document)
    assert document["KernelSpecification"]["Device"]["Name"] == "a fake CPU"


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return the one line on stderr with which the command refuses these arguments."""
    assert main(["export", *arguments]) == 1
    printed, told = capsys.readouterr()
    assert not printed and told.count("\n") == 1
    return told


def test_what_cannot_be_exported_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    h200 = str(RESULTS / "nvidia-h200")
    key = "cuda-9.0-132sm-nvidia-h200"
    valid = f"--device and --dtype select from: {key} float32, {key} float64, {key} bfloat16"
    assert f"t1 describes one section; {valid}" in refused(capsys, h200, "--format", "t1")
    assert f"has no such section; {valid}" in refused(capsys, h200, "--format", "t1", "--dtype", "int8")
    assert f"has no such section; {valid}" in refused(capsys, h200, "--device", "cpu")
    assert "--thresholds is a table, not a part of t4" in refused(capsys, h200, "--format", "t4", "--thresholds")
    assert "there are no such trials beside" in refused(capsys, h200, "--format", "t4", "--dtype", "int8")
    configs.write(tmp_path / "config.json", "cpu-x-2t")
    assert "there are no trials beside" in refused(capsys, str(tmp_path), "--format", "t4")
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert "it is not JSON: " in refused(capsys, str(tmp_path), "--format", "t1")


def test_tables_have_the_selected_device_and_types(capsys: pytest.CaptureFixture[str]) -> None:
    h200 = str(RESULTS / "nvidia-h200")
    assert main(["export", h200, "--format", "json", "--device", "cuda-9.0", "--dtype", "float32,bfloat16"]) == 0
    assert {row["dtype"] for row in json.loads(capsys.readouterr().out)} == {"float32", "bfloat16"}
    assert main(["--dtype", "float64", "export", h200, "--thresholds", "--json"]) == 0
    assert [row["dtype"] for row in json.loads(capsys.readouterr().out)] == ["float64"]
