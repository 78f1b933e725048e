"""The CPU benchmark: its rows on tiny problems, its output, and files that are replaced whole or not at all."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from benchmarks import cpu
from benchmarks.__main__ import main as benchmarks_main
from benchmarks.cpu import fast_plan, main
from benchmarks.harness import write_result
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime.decisions import decide
from fmm.tuner.trials.paired import PairedRoundLimits
from tests.support import ROOT

ROWS: dict[str, list[dict[str, Any]]] = {
    "speed": [
        {
            "size": (64, 64, 64),
            "dtype": "float64",
            "speedup": 1.25,
            "low": 1.2,
            "high": 1.3,
            "plan": "winograd > vendor",
        },
        {"size": (64, 32, 16), "dtype": "float32", "speedup": 0.5, "low": 0.25, "high": 0.75, "plan": "vendor"},
    ],
    "small_calls": [{"side": 8, "extra_microseconds": 1.5, "speedup": 0.5, "low": 0.5, "high": 0.5}],
    "memory": [{"size": (8, 8, 8), "dtype": "float64", "said_bytes": 100, "peak_bytes": 3 * 2**20, "ratio": 1.0}],
}


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Replace the suites by ones that measure nothing; return the names of the efforts that they receive."""
    efforts: list[str] = []

    def suite(name: str) -> cpu.Suite:
        def cases(effort: cpu.Effort) -> Iterator[Any]:
            efforts.extend(key for key, value in cpu.EFFORTS.items() if value is effort)
            yield from ROWS[name]

        return cpu.Suite(cases, lambda row: row, cpu.SUITES[name].verdict)

    monkeypatch.setattr(cpu, "SUITES", {name: suite(name) for name in ROWS})
    return efforts


# ---- the suites

TINY = cpu.Effort(((40, 30, 50),), 2, PairedRoundLimits(1, 2, 0.0), 32)


@pytest.mark.parametrize("name", cpu.SUITES)
def test_every_suite_gives_rows_of_plain_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "random_shapes", lambda count: [(9, 8, 7), (20, 30, 10)][:count])
    rows = [cpu.SUITES[name].measure(case) for case in cpu.SUITES[name].cases(TINY)]
    assert rows
    assert json.loads(json.dumps(rows, allow_nan=False))
    for row in rows:
        assert {"size", "side"} & row.keys()
        if "speedup" in row:
            assert row["low"] <= row["speedup"] <= row["high"]
            assert len(row["vendor"]) == len(row["candidate"]) == row["rounds"]


def test_random_shapes() -> None:
    shapes = cpu.random_shapes(60)
    assert len(shapes) == 60 and shapes == cpu.random_shapes(60) and shapes[:12] == cpu.random_shapes(12)
    assert shapes != cpu.random_shapes(60, seed=8)
    sides = [side for size in shapes for side in size]
    assert min(sides) >= 1 and max(sides) <= 6000 and max(sides) > 5000 and min(sides) < 500
    assert all(max(size) <= 50 * min(size) for size in shapes)
    assert max(max(size) / min(size) for size in shapes) > 10


@pytest.mark.slow
def test_the_operands_are_the_same_in_every_process() -> None:
    """Results can only be repeated on the same numbers, whatever Python's hash seed."""
    code = "from benchmarks.cpu import operands as f; print([x.sum() for x in f((4, 5, 6), 'float64')[:2]])"
    printed = []
    for seed in ("1", "2"):
        env = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed}
        printed.append(subprocess.run([sys.executable, "-c", code], env=env, check=True, capture_output=True).stdout)
    assert printed[0] == printed[1]


def test_full_measures_more_than_quick() -> None:
    quick, full = cpu.EFFORTS["quick"], cpu.EFFORTS["full"]
    assert full.shapes >= 60 > quick.shapes > 0
    assert {(4096,) * 3, (8192,) * 3, (5000, 7000, 6000)} <= set(full.large)
    assert all(x < y for x, y in pairwise((quick.error_side, full.error_side)))
    assert full.rounds.min_rounds > quick.rounds.min_rounds and full.rounds.seconds > quick.rounds.seconds


def test_a_fast_plan_is_found_where_a_certified_entry_considers_none() -> None:
    assert fast_plan(decide.Decision(VENDOR, None, "no plan beat the vendor")) != VENDOR


# ---- measuring


@pytest.mark.usefixtures("quick")
def test_rows_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--output", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 4 + len(ROWS) and sum("threads, NumPy " in line for line in lines) == len(ROWS)
    assert "64x64x64" in lines[1] and "1.250 times numpy [1.200, 1.300]  winograd > vendor" in lines[1]
    assert "+1.50 microseconds a call" in lines[4]
    assert "peak 3.0 MiB, 1.0000 of the predicted workspace" in lines[6]


@pytest.mark.parametrize(("arguments", "effort"), [(["--quick"], "quick"), ([], "full")])
def test_the_effort_is_passed_on(arguments: list[str], effort: str, quick: list[str], tmp_path: Path) -> None:
    assert main([*arguments, "--output", str(tmp_path)]) == 0
    assert quick == [effort] * len(ROWS)


@pytest.mark.slow
def test_every_suite_has_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The rows come from the suites themselves, on tiny problems."""
    tiny = cpu.Effort(((40, 30, 50),), 1, PairedRoundLimits(1, 1, 0.0), 16)
    monkeypatch.setattr(cpu, "EFFORTS", {"quick": tiny, "full": tiny})
    monkeypatch.setattr(cpu, "random_shapes", lambda count: [(9, 8, 7)] * count)
    assert main(["--output", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    for name in cpu.SUITES:
        assert f"\n{name} " in printed


@pytest.mark.usefixtures("quick")
def test_results_are_written_into_the_output_folder(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there yet"
    assert main(["--output", str(folder)]) == 0
    files = sorted(folder.iterdir())
    assert [file.name for file in files] == ["memory.json", "small_calls.json", "speed.json"]
    for file in files:
        found = json.loads(file.read_text(encoding="utf-8"))
        assert found["rows"] == json.loads(json.dumps(ROWS[file.stem]))
        assert found["environment"]["numpy"]


def test_an_interrupt_exits_with_130_and_keeps_the_finished_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(row: dict[str, Any]) -> dict[str, Any]:
        if "dtype" not in row:
            raise KeyboardInterrupt
        return row

    rows = [*ROWS["speed"], {"side": 8}]
    monkeypatch.setattr(cpu, "SUITES", {"speed": cpu.Suite(lambda effort: rows, measured, str)})
    assert benchmarks_main(["cpu", "--output", str(tmp_path)]) == 130
    printed = capsys.readouterr()
    assert "interrupted" in printed.err and "Traceback" not in printed.err
    assert len(json.loads((tmp_path / "speed.json").read_text(encoding="utf-8"))["rows"]) == len(ROWS["speed"])


# ---- files

OLD: dict[str, Any] = {"environment": {"numpy": "old"}, "rows": [{"side": 1}]}
NEW: dict[str, Any] = {"environment": {"numpy": "new"}, "rows": [{"side": 2}, {"side": 3}]}


def test_a_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "speed.json"
    for content in (OLD, NEW):
        write_result(path, **content)
        assert json.loads(path.read_text(encoding="utf-8")) == content
    assert [file.name for file in tmp_path.iterdir()] == ["speed.json"]


def test_rows_stand_on_lines_of_their_own(tmp_path: Path) -> None:
    write_result(tmp_path / "speed.json", **NEW)
    lines = (tmp_path / "speed.json").read_text(encoding="utf-8").splitlines()
    assert '  {"side": 2},' in lines and '  {"side": 3}' in lines
    write_result(tmp_path / "none.json", {}, [])
    assert json.loads((tmp_path / "none.json").read_text(encoding="utf-8")) == {"environment": {}, "rows": []}


@pytest.mark.parametrize("error", [OSError("no space left on device"), KeyboardInterrupt()])
@pytest.mark.parametrize("where", ["fsync", "replace"])
def test_the_old_file_is_kept_when_writing_fails(
    where: str, error: BaseException, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "speed.json"
    write_result(path, **OLD)

    def failing(*arguments: Any) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, where, failing)
        with pytest.raises(type(error)):
            write_result(path, **NEW)
    assert json.loads(path.read_text(encoding="utf-8")) == OLD
    write_result(path, **NEW)  # leftover files do not disturb the next write
    assert json.loads(path.read_text(encoding="utf-8")) == NEW


def test_the_old_file_is_kept_when_a_row_is_no_json(tmp_path: Path) -> None:
    write_result(tmp_path / "speed.json", **OLD)
    with pytest.raises(TypeError):
        write_result(tmp_path / "speed.json", {}, [{"side": object()}])
    assert json.loads((tmp_path / "speed.json").read_text(encoding="utf-8")) == OLD
