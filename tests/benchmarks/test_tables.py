"""The tables of the pages, from invented results."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness import RESULTS
from benchmarks.held_out import HELD_OUT_FILE_NAME
from benchmarks.tables import devices, everywhere, products, shortest, tunings, unseen_shapes
from benchmarks.tables.markdown import duration_text, rounded_text, short_commits, short_name, size_text


def write_rows(path: Path, rows: list[dict[str, Any]], device: str = "a card") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    environment = {"device": device, "commit": "abc", "cuda": 13, "cublas": 13, "time": "today", "gpus": 2}
    path.write_text(json.dumps({"environment": environment, "rows": rows}), encoding="utf-8")


def a_call(**more: Any) -> dict[str, Any]:
    usual = {"dtype": "float32", "size": [16384] * 3, "taken": 0.0, "plan": "f16x3", "step": "calibrated model"}
    usual |= {"workspace": 1 << 30, "seconds": [1.0, 2.0], "vendor_seconds": [4.0, 8.0], "error": 0.5, "failure": ""}
    return {**usual, **more}


def test_default_calls_are_in_the_csv_file_and_some_of_them_on_the_page(tmp_path: Path) -> None:
    rows = [a_call(), a_call(size=[2048] * 3), a_call(dtype="float64", failure="out of memory")]
    write_rows(tmp_path / "nvidia-h200" / "calls.json", rows, device="NVIDIA H200")
    (shown,) = [line for line in products.default_calls(tmp_path) if "float" in line]
    assert shown == "| H200 | float32 | 16384³ | 6 s | 1.5 s | **4.00** | 0.50 | 1.00 GiB | `f16x3` |"
    head, *lines = products.CALLS.csv_text(tmp_path).splitlines()
    assert head.endswith("plan,samples,commit") and len(lines) == 2, "a failed call is left out"
    assert lines[0] == "H200,float32,16384³,6 s,1.5 s,4.00,0.50,1.00 GiB,f16x3,results/nvidia-h200/calls.json,abc"
    write_rows(tmp_path / "a-card" / "large.json", [a_call(taken=2 / 3)])
    assert any("| 67% |" in line for line in products.largest_products(tmp_path))


def test_shapes_that_no_fit_saw_are_summarised_by_kind(tmp_path: Path) -> None:
    folder = tmp_path / "a-card"
    folder.mkdir()
    seconds = {"vendor": [2.0, 2.0], "default": [1.0, 1.0], "strassen > vendor": [0.8, 0.8], "tile": [5.0]}
    row = {"config": 1, "dtype": "float64", "kind": "thin", "size": [9, 9, 9], "chosen": "vendor", "step": "entry"}
    begins = {"environment": {"device": "a card", "commit": "abc"}, "settings": {"config": 1, "seed": 1}}
    lines = [begins, {**row, "seconds": seconds}]
    (folder / HELD_OUT_FILE_NAME).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    assert "| a card | thin | 1 | 0 | 80.0%, 80.0% | 2.00, 2.00 | 1 |" in list(unseen_shapes.held_out_choices(tmp_path))

    later = {**begins, "settings": {"config": 1, "seed": 20261124}}
    lines += [later, *[{**row, "seconds": {**seconds, "default": [0.8, 0.8]}}] * 2]
    (folder / HELD_OUT_FILE_NAME).write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    shown = list(unseen_shapes.held_out_choices(tmp_path))
    assert "| a card | thin | 2 | 0 | 100.0%, 100.0% | 2.50, 2.50 | 0 |" in shown, "the later run has enough shapes"
    assert any("run 2 of 2" in line for line in shown)
    assert len(unseen_shapes.HELD_OUT.csv_text(tmp_path).splitlines()) == 3, "the CSV file has both runs"


def test_programs_of_others_and_products_of_jax(tmp_path: Path) -> None:
    seconds = {"plain": [0.2, 0.4], "fmm": [0.1, 0.2], "jax": [0.002], "other": []}
    kernels = {"products": 0.8, "softmax_kernel": 0.1}
    row: dict[str, Any] = {
        "program": "a model",
        "package": "models",
        "version": "1.0",
        "dtype": "float32",
        "where": "GPU",
    }
    row |= {"samples": seconds, "differences": {"plain": 1e-6, "fmm": 2e-6}, "kernels": kernels, "failure": ""}
    row |= {"products": {"calls": 9, "by_plans": 4}}
    on_host = {**row, "where": "host", "kernels": {}}
    write_rows(tmp_path / "a-card" / "programs.json", [row, on_host, {"failure": "no memory"}])
    content = json.loads((tmp_path / "a-card" / "programs.json").read_text("utf-8"))
    content["environment"]["host"] = "a processor, 8 threads"
    (tmp_path / "a-card" / "programs.json").write_text(json.dumps(content), encoding="utf-8")
    first, second = list(everywhere.programs_of_others(tmp_path))[2:]
    head = "| a model (models 1.0) | float32 | a card | 300 ms | 150 ms | **2.00** | 1.0e-06 | 2.0e-06 | 4 of 9 "
    assert first == head + "| 80% | `softmax_kernel` 10% |"
    assert "| a processor, 8 threads |" in second and second.endswith("| 4 of 9 |  |  |")

    jax: dict[str, Any] = {
        "function": "gram",
        "dtype": "float64",
        "side": 8192,
        "samples": {"jax": [0.002], "fmm": [0.001]},
    }
    jax |= {"errors": {"fmm": 1e-16, "jax": 2e-16}, "speedup": 2.0, "failure": "", "by_fmm": True}
    write_rows(tmp_path / "a-card" / "jax.json", [jax, {**jax, "by_fmm": False, "speedup": 1.0}])
    first, second = list(everywhere.jax_speedups(tmp_path))[2:]
    assert first == "| a card | gram | float64 | 8192 | 2 | 1 | **2.00** | 1.0e-16 | 2.0e-16 |"
    assert "| 1.00 (XLA's own) |" in second


def test_an_explained_product_is_what_fmm_tune_predicts() -> None:
    first, command, *lines, last = list(tunings.explained_product(RESULTS))
    assert first == last == "```" and "fmm-tune predict --device cuda-9.0-" in command
    assert any(line.startswith("plan: ") for line in lines) and lines[-1] == "  ..."
    assert sum(line.startswith("  0.") for line in lines) == tunings.SHOWN_RUNNERS_UP


def test_numbers_and_names_are_short() -> None:
    assert [size_text(size) for size in ((8, 8, 8), (8, 9, 10), (4, 4))] == ["8³", "8 x 9 x 10", "4 x 4"]
    assert [duration_text(x) for x in (0.0123456, 12.3456)] == ["12.3 ms", "12.3 s"]
    assert (rounded_text(1234567.0), rounded_text(129.07, 2)) == ("1230000", "130")
    names = ["NVIDIA H100 80GB HBM3", "Intel(R) Xeon(R) Processor", "AMD EPYC"]
    assert [short_name(name) for name in names] == ["H100", "Intel Xeon", "AMD EPYC"]


@pytest.mark.parametrize(
    ("commit", "said"),
    [("0123456789abcdef", "0123456789ab"), ("46e3f2e0, bfloat16 5a72a7e3", "46e3f2e0, bfloat16 5a72a7e3")],
)
def test_a_commit_is_cut_short_and_never_in_the_middle_of_a_word(commit: str, said: str) -> None:
    assert short_commits(commit) == said


def test_a_shared_product_stands_beside_what_was_predicted_of_it(tmp_path: Path) -> None:
    row = {"dtype": "float32", "n": 8, "seconds": {"torch": [0.4, 0.6], "shared": [0.1, 0.2]}}
    row["ways"] = {"shared": ["shared: rows by 2", "predicted: 0.1528 s (x)"]}
    write_rows(tmp_path / "cards" / "distributed.json", [row])
    torch, shared = list(everywhere.several_gpus(tmp_path))[2:]
    assert torch == "| 2 x a card | float32 | 8 | torch's own product | 500 |  |  |  |"
    assert shared == "| 2 x a card | float32 | 8 | `fmm.distributed.matmul` | 150 | 153 | **3.50** |  |"


def test_random_solvers_have_their_least_and_largest_speedup(tmp_path: Path) -> None:
    rows = [{"failure": "", "function": "inv", "speedup": x} for x in (1.5, 0.99, 1.0)]
    write_rows(tmp_path / "cards" / "random-solvers.json", [*rows, {"failure": "no memory", "function": "inv"}])
    assert list(everywhere.random_solver_speedups(tmp_path))[2:] == ["| a card | `inv` | 3 | 0.99 | 1.00 | 1.50 |"]


def test_measured_speedups_of_portable_kernels(tmp_path: Path) -> None:
    row = {"operation": "matmul", "dtype": "float32", "side": 8, "plans": ["f16x3"]}
    write_rows(tmp_path / "cards" / "portable.json", [{**row, "samples": {"vendor": [2.0, 4.0], "f16x3": [1.0, 1.0]}}])
    assert list(devices.portable_speedups(tmp_path))[-1] == "| matmul float32 | 8 | 3 | `f16x3`: 3.00 |"


@pytest.mark.slow
def test_predicted_speedups_name_their_basis(tmp_path: Path) -> None:
    """An H200 is measured, an H800 is scaled from the H100, and an A100 is predicted by its datasheet."""
    lines = [line for line in devices.predicted_speedups(tmp_path) if line.startswith(("| H200", "| H800", "| A100 |"))]
    bases = [line.split(" | ")[1] for line in lines[:3]]
    assert bases == ["datasheet", "scaled from the H100", "measured model"]
    kernels = dict(line.split(" | ")[0:3:2] for line in [*devices.device_kernels(tmp_path)][2:])
    assert kernels["| A100"] == "portable kernel" and kernels["| H200"] == "Hopper's kernel"


def test_min_plus_products_through_a_ring_are_counted(tmp_path: Path) -> None:
    folder, n = tmp_path / "nvidia-h200", 8192
    write_rows(folder / "integers.json", [{"dtype": "int8", "side": n, "equal": True, "candidate": [0.001]}])
    write_rows(folder / "shortest_paths.json", [{"what": "minplus", "n": n, "samples": {"int16": [0.02]}}])
    write_rows(folder / "shortest_paths-whole.json", [{"what": "paths", "n": n, "samples": {"int16": [0.03]}}])
    found = list(shortest.ring_products(tmp_path))
    assert "| 10, n = 8192 | 35 | 35 | 30.6 | 20 |" in found, "21 digits of log2(8193) bits, 8 bits a product"
    assert found[-1].endswith("| 39 | 39 | 34.1 | 30 |"), "three for each of 13 doublings"
