"""`python -m benchmarks programs`: its processes on a toy program, and the summaries of reports and kernels."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.programs.command import (
    CASES,
    SERVED,
    Case,
    ServedProgram,
    available_cases,
    case_fields,
    kernel_shares,
    measure_case,
    product_summary,
    short_kernel_name,
    text_line,
)

TOY = """
import numpy as np

def prepare(dtype, is_small):
    a = np.random.default_rng(0).standard_normal((128, 128)).astype(dtype)
    return lambda: a @ a, lambda: (a @ a).astype("float64")
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Case:
    (tmp_path / "toy_program.py").write_text(TOY, encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", ""))))
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    return Case("toy_program", "a toy", "numpy", "numpy", "float32", on_gpu=False)


def test_a_program_runs_plain_and_under_fmm(toy: Case) -> None:
    row = measure_case(toy, rounds=3, is_small=True)
    assert row["version"] == np.__version__ and row["kernels"] == {}
    assert {name: len(seconds) for name, seconds in row["samples"].items()} == {"plain": 3, "fmm": 3}
    assert row["differences"].keys() == {"plain", "fmm"}
    assert all(0 < difference < 1e-5 for difference in row["differences"].values())
    assert row["products"]["calls"] >= 6 and row["products"]["largest"][0]["left"] == [128, 128]
    assert "a toy" in text_line({**row, "failure": ""}) and json.dumps(row)


@pytest.mark.slow
def test_a_float64_program_is_its_own_reference(toy: Case) -> None:
    row = measure_case(replace(toy, dtype="float64"), rounds=1, is_small=True)
    assert row["differences"]["plain"] == 0 and row["differences"]["fmm"] < 1e-13


def test_a_failed_program_names_its_error(toy: Case, tmp_path: Path) -> None:
    missing = Case("no_such_program", "none", "numpy", "numpy", "float32")
    process = ServedProgram(missing, "float32", True, tmp_path / "stderr")
    with process, pytest.raises(RuntimeError, match="No module named 'no_such_program'"):
        process.answer()
    assert "No module" in text_line({**case_fields(missing), "failure": "No module"})


def test_each_program_has_a_module_and_missing_packages_are_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert all((SERVED.parent / f"{case.module}.py").is_file() for case in CASES)
    monkeypatch.setattr("benchmarks.programs.command.find_spec", lambda name: None if name == "timm" else name)
    assert "timm" not in {case.package for case in available_cases(True, False)}
    assert "skipped: ViT-L/16, inference (float32); timm is not installed" in capsys.readouterr().out
    assert {case.package for case in available_cases(False, False)} == {"sklearn"}
    monkeypatch.setattr("benchmarks.programs.command.find_spec", lambda name: name)
    assert [case.module for case in available_cases(True, False, ["ridge"])] == ["ridge"]
    assert [case.dtype for case in available_cases(True, False, ["gaussian_process:float64"])] == ["float64"]


def test_kernels_are_products_or_named() -> None:
    seconds = {"sm80_xmma_gemm_f32f32": 3.0, "void cutlass::Kernel2<int>": 3.0, "void at::softmax<float>(int)": 1.5}
    seconds |= {"void at::softmax<double>(int)": 0.5, "copy": 1.5, "void kernel<lu_parameters<float>>": 0.4, "b": 0.1}
    assert kernel_shares(seconds) == {"products": 0.6, "softmax": 0.2, "copy": 0.15, "lu_parameters": 0.04}
    assert kernel_shares({}) == kernel_shares({"cudaDeviceSynchronize": 0.0}) == {}
    assert short_kernel_name("void at::(anonymous namespace)::layer_norm<float>(int)") == "layer_norm"


def test_a_summary_has_the_totals_and_the_largest_products() -> None:
    kind = {
        "times": 2,
        "where": "torch.mm",
        "left": [8, 8],
        "right": [8, 8],
        "dtype": "float32",
        "plan": "",
        "reason": "small",
    }
    report = {"calls": 12, "by_plans": 3, "share": 0.5, "unseen": "", "products": [{**kind, "speedup": None}] * 6}
    assert product_summary(report) == {"calls": 12, "by_plans": 3, "share": 0.5, "largest": [kind] * 4}
