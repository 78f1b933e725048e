"""The benchmark of shared products on processes without GPUs: small sizes, and the command line."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from benchmarks.tables.everywhere import several_gpus
from tests.support import ROOT

torch = pytest.importorskip("torch", reason="torch is not installed")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)
distributed = import_module("benchmarks.distributed")


@pytest.mark.parametrize(("count", "meshes"), [(2, {(2,)}), (3, {(3,)}), (4, {(4,), (2, 2)}), (8, {(8,), (2, 4)})])
def test_the_usual_cases_have_a_rectangle_where_the_processes_make_one(
    count: int, meshes: set[tuple[int, ...]]
) -> None:
    found = [distributed.parse_case(text, count) for text in distributed.usual_cases(count)]
    assert {case.mesh for case in found} == meshes
    assert all(case.rounds > 1 and not case.who for case in found)
    for row in (("float32", 65536), ("float64", 65536), ("bfloat16", 98304)):
        assert {case.mesh for case in found if (case.dtype, case.n) == row} == meshes


def test_a_case_may_name_who_multiplies() -> None:
    found = distributed.parse_case("float64:48@2x2:1:torch+alone", 4)
    assert found == ("float64", 48, (2, 2), 1, ("torch", "alone"))


@pytest.mark.slow
def test_it_runs_on_a_row_and_on_a_rectangle_of_processes(tmp_path: Path) -> None:
    """The benchmark checks every product and fails on errors; the table shows its rows."""
    out = tmp_path / "a-card-x4" / "distributed.json"
    out.parent.mkdir()
    cases = "float32:50:1,float64:50@2x2:1:torch+shared+shared-level+alone"
    run = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "4")
    command = (*run, "-m", "benchmarks.distributed", "--output", str(out), "--cases", cases)
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=240)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    reported = json.loads(out.read_text(encoding="utf-8"))
    row, rectangle = reported["rows"]
    assert (row["mesh"], rectangle["mesh"]) == ([4], [2, 2])
    assert set(row["seconds"]) == {"torch", "hook", "hook-ieee", "shared", "shared-ieee", "shared-level", "alone"}
    assert set(rectangle["seconds"]) == {"torch", "shared", "shared-level", "alone"}
    reported["environment"] |= {"gpus": 4, "device": "a card"}
    out.write_text(json.dumps(reported), encoding="utf-8")
    assert any("| 4 x a card | float64 | 50 in blocks on 2 x 2 |" in line for line in several_gpus(tmp_path))
