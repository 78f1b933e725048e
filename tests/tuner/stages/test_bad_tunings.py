"""The benchmark of bad tunings: its cases, and one of them on this processor."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import bad_tunings
from fmm.tuner.trials.environment import device_folder


def test_cases_are_the_same_every_time_and_of_all_kinds() -> None:
    cases = [bad_tunings.random_case(i, 60.0) for i in range(30)]
    assert cases == [bad_tunings.random_case(i, 60.0) for i in range(30)]
    assert {case["effort"] for case in cases} == {"coarse", "quick"}
    assert {case["dtype"] for case in cases} == set(bad_tunings.TYPES)
    assert {kind for case in cases for kind, *_ in case["beside"]} == set(bad_tunings.LOOPS)
    assert any(not case["beside"] for case in cases) and all(2 <= case["limit"] <= 60 for case in cases)
    sizes = list(bad_tunings.random_sizes(3, 50, 6000))
    assert all(1000 <= side <= 6000 for size in sizes for side in size) and len(set(sizes)) == 50


def test_a_plan_that_loses_is_an_exit_code_and_what_is_recorded_is_not_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / device_folder() / "bad_tunings.jsonl"
    path.parent.mkdir()
    good = {"plan": "winograd > vendor", "speedup": 1.1}
    rows = [{"tuning": i, "sections": [{"doubts": []}], "shapes": [good, {"plan": "vendor"}]} for i in range(2)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(bad_tunings, "measured_case", lambda case, options: {**rows[0], "tuning": case["tuning"]})
    assert bad_tunings.main(["--tunings", "3", "--output", str(tmp_path)]) == 0
    assert "3 tunings, 3 of them trusted; 6 shapes, a plan for 3 of them; the slowest reaches 1.100" in (
        capsys.readouterr().out
    )
    assert [json.loads(line)["tuning"] for line in path.read_text().splitlines()] == [0, 1, 2]
    with path.open("a") as file:
        file.write(json.dumps({**rows[0], "tuning": 3, "shapes": [{**good, "speedup": 0.97}]}) + "\n")
    assert bad_tunings.main(["--tunings", "4", "--output", str(tmp_path)]) == 1


@pytest.mark.slow
def test_a_tuning_beside_other_work_on_this_processor(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Short, so that nothing is checked: nothing is used, the exit code says so, and no work goes on."""
    arguments = ["--tunings", "1", "--shapes", "2", "--largest", "700", "--limit", "4", "--seconds", "0.1"]
    assert bad_tunings.main([*arguments, "--pause", "0", "--output", str(tmp_path)]) == 0
    (path,) = tmp_path.glob("*/bad_tunings.jsonl")
    where, row = map(json.loads, path.read_text().splitlines())
    assert where["environment"]["numpy"] and row["code"] == 1 and len(row["shapes"]) == 2
    assert "1 tunings, 0 of them trusted" in capsys.readouterr().out
