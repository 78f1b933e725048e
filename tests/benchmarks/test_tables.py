"""The tables of the pages, made of results that were made up for it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.held_out import FILE
from benchmarks.pages import shortlist
from benchmarks.tables import everywhere, gpu, shortest, tunings
from benchmarks.tables.markdown import short


def write_rows(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {"device": "a card", "commit": "abc", "cuda": 13, "cublas": 13, "time": "today", "gpus": 2}
    path.write_text(json.dumps({"environment": environment, "rows": rows}), encoding="utf-8")


def a_call(**more: Any) -> dict[str, Any]:
    usual = {"dtype": "float32", "size": [16384] * 3, "taken": 0.0, "plan": "f16x3", "step": "calibrated model"}
    usual |= {"workspace": 1 << 30, "seconds": [1.0, 2.0], "vendor_seconds": [4.0, 8.0], "error": 0.5, "failure": ""}
    return {**usual, **more}


def test_default_calls_are_shown_as_they_were_measured(tmp_path: Path) -> None:
    rows = [a_call(), a_call(dtype="float64", failure="out of memory")]
    write_rows(tmp_path / "a-card" / "calls.json", rows)
    (found,) = [line for line in gpu.calls(tmp_path) if "float" in line]
    assert "6000 ms | 1500 ms | **4.00** | 0.50 | 1.00 GiB | calibrated model | `f16x3` |" in found
    assert any("4.00" in line and "a card" in line for line in shortlist(tmp_path)), "README's list has it"
    write_rows(tmp_path / "a-card" / "large.json", [a_call(taken=2 / 3)])
    assert any("| 67% |" in line for line in gpu.large(tmp_path))


def test_held_out_shapes_are_shown_type_by_type(tmp_path: Path) -> None:
    folder = tmp_path / "a-card"
    folder.mkdir()
    seconds = {"vendor": [2.0, 2.0], "default": [1.0, 1.0], "strassen > vendor": [0.8, 0.8], "tile": [5.0]}
    row = {"config": 1, "dtype": "float64", "kind": "thin", "size": [9, 9, 9], "chosen": "vendor", "step": "entry"}
    begins = {"environment": {"device": "a card", "commit": "abc"}, "settings": {"config": 1, "seed": 1}}
    lines = [begins, {**row, "seconds": seconds}]
    (folder / FILE).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    said = "| float64 | thin | 1 | 0 | entry | 80.0%, 80.0% | 2.00, 2.00 | 1 |"
    assert list(tunings.held_out(tmp_path))[-1] == said

    later = {**begins, "settings": {"config": 1, "seed": 20261124}}
    lines += [later, *[{**row, "seconds": {**seconds, "default": [0.8, 0.8]}}] * 2]
    (folder / FILE).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    *_, last, _, other = tunings.held_out(tmp_path)
    assert last == "| float64 | thin | 2 | 0 | entry | 100.0%, 100.0% | 2.50, 2.50 | 0 |", "rows of two runs"
    assert "1 shapes, 80.0% of the best" in other and "own seed" in other


@pytest.mark.parametrize(
    ("commit", "said"),
    [("0123456789abcdef", "0123456789ab"), ("46e3f2e0, bfloat16 5a72a7e3", "46e3f2e0, bfloat16 5a72a7e3")],
)
def test_a_commit_is_cut_short_and_never_in_the_middle_of_a_word(commit: str, said: str) -> None:
    assert short(commit) == said


@pytest.mark.parametrize(
    ("dtype", "plans", "said"),
    [
        pytest.param("float32", ["vendor", "strassen > tile"], "float32-ieee", id="none emulates"),
        pytest.param("float32", ["vendor", "strassen > tile", "f16x3"], "float32", id="one emulates"),
        pytest.param("float64", ["strassen > vendor", "residues(14) > strassen > bytes"], "float64", id="residues"),
        pytest.param("bfloat16", ["strassen > vendor"], "bfloat16", id="a type that nobody emulates"),
    ],
)
def test_plans_are_of_the_types_own_arithmetic_where_none_emulates(
    tmp_path: Path, dtype: str, plans: list[str], said: str
) -> None:
    row = {"dtype": dtype, "size": [8, 8, 8], "graph": False, "workspace": 0, "error": 1.0, "vendor_error": 1.0}
    rows = [{**row, "plan": plan, "candidate": [1.0], "vendor": [2.0]} for plan in plans]
    write_rows(tmp_path / "a-card" / "gpu.json", rows)
    (line,) = [line for line in gpu.gpu(tmp_path) if "8 x 8 x 8" in line]
    assert line.startswith(f"| {said} |")


def test_a_shared_product_stands_beside_what_was_predicted_of_it(tmp_path: Path) -> None:
    row = {"dtype": "float32", "n": 8, "seconds": {"torch": [0.4, 0.6], "shared": [0.1, 0.2]}}
    row["ways"] = {"shared": ["shared: rows by 2", "predicted: 0.1528 s (x)"]}
    write_rows(tmp_path / "cards" / "distributed.json", [row])
    torch, shared = list(everywhere.several_gpus(tmp_path))[2:]
    assert torch == "| 2 x a card | float32 | 8 | torch's own product | 500 |  |  |  |"
    assert shared == "| 2 x a card | float32 | 8 | `fmm.distributed.matmul` | 150 | 153 | **3.50** |  |"


def test_min_plus_products_through_a_ring_are_counted(tmp_path: Path) -> None:
    folder, n = tmp_path / "nvidia-h200", 8192
    write_rows(folder / "integers.json", [{"dtype": "int8", "side": n, "equal": True, "candidate": [0.001]}])
    write_rows(folder / "shortest_paths.json", [{"what": "minplus", "n": n, "samples": {"int16": [0.02]}}])
    write_rows(folder / "shortest_paths-whole.json", [{"what": "paths", "n": n, "samples": {"int16": [0.03]}}])
    found = list(shortest.ring_products(tmp_path))
    assert "| 10, n = 8192 | 35 | 35 | 30.6 | 20 |" in found, "21 digits of log2(8193) bits, 8 bits a product"
    assert found[-1].endswith("| 39 | 39 | 34.1 | 30 |"), "three for each of 13 doublings"
