"""Files of shapes to certify: lists, PyTorch's recorded products, and reports of programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.integrations.report import ProductCount, ProductKind, ProductOutcome, Report
from fmm.tuner import tune
from fmm.tuner.cli import main
from fmm.tuner.devices.device import CPU_EFFORTS
from fmm.tuner.devices.simulated import SimulatedDevice
from fmm.tuner.stages.shapes_file import ShapesFileError, read_shapes_file
from tests.support import ROOT, configs


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


# ---- lists


def test_a_list_is_read_by_type(tmp_path: Path) -> None:
    text = "# m k n\n100 200 300\n\n100, 200, 300  # again\n4 5 6 float32\n7 8 9 float64\n"
    found = read_shapes_file(write(tmp_path / "shapes", text))
    assert found.shapes_of_type("float64", on_gpu=False) == [(100, 200, 300), (7, 8, 9)]
    assert found.shapes_of_type("float32", on_gpu=True) == [(100, 200, 300), (4, 5, 6)]


MALFORMED = ["1 2", "1 2 x", "0 1 2", "1 2 3 int8", "1 2 3 float32 5", "-1 2 3", "1.5 2 3", f"1 2 {10**30}"]


@pytest.mark.parametrize("line", MALFORMED)
def test_a_malformed_line_is_named(line: str, tmp_path: Path) -> None:
    file = write(tmp_path / "shapes", f"5 5 5\n{line}\n")
    with pytest.raises(ShapesFileError, match=r"shapes, line 2: .*M K N, three whole numbers.*float64"):
        read_shapes_file(file)
    with pytest.raises(ShapesFileError, match=r"cannot read .*none: No such file"):
        read_shapes_file(tmp_path / "none")


# ---- PyTorch's TunableOp

# Of products (m, k, n): torch calls column-major BLAS with B first, so that n is the first size.
RECORDED = """\
Validator,PT_VERSION,2.14.1
GemmTunableOp_float_TN,tn_6144_8192_1536_ld_1536_1536_6144
GemmTunableOp_tf32_NN,nn_2048_4096_8192_ld_2048_8192_2048
GemmAndBiasTunableOp_Half_TN,tn_5120_4096_4096_ld_4096_4096_5120
GemmAndBiasTunableOp_BFloat16_TN,tn_5120_4096_8192_ld_4096_4096_5120
GemmStridedBatchedTunableOp_double_NT,nt_1100_1200_1300_B_16_ld_1100_1200_1100
GemmTunableOp_float_NT,nt_9216_9216_9216,Gemm_Hipblaslt_1219,1.262
GemmTunableOp_c10::complex<float>_NN,nn_1500_1600_1700_ld_1500_1700_1500
GemmTunableOp_c10::complex<double>_NN,nn_1500_1600_1700_ld_1500_1700_1500
ScaledGemmTunableOp_Float8_e4m3fn_Float8_e4m3fn_BFloat16_TN,tn_4096_4096_4096_ld_4096_4096_4096_rw_1_bias_None
GemmTunableOp_float_TN,tn_6144_8192_1536_ld_1536_1536_6144
GemmTunableOp_float_NN,nn_64_8192_64_ld_64_64_64
"""
SHAPES_OF_TYPES = {
    "float32": [(9216, 9216, 9216), (8192, 1536, 6144)],
    "tf32": [(4096, 8192, 2048)],
    "float16": [(4096, 4096, 5120)],
    "bfloat16": [(4096, 8192, 5120)],
    "float64": [(1200, 1300, 1100)],
    "complex64": [(1600, 1700, 1500)],
    "complex128": [(1600, 1700, 1500)],
}


def test_products_that_pytorch_recorded_are_read_by_type_the_largest_first(tmp_path: Path) -> None:
    """Without those that are too small for a plan, and without 8-bit floats."""
    found = read_shapes_file(write(tmp_path / "tunableop_untuned0.csv", RECORDED.partition("\n")[2]))
    for on_gpu in (False, True):
        assert {dtype: found.shapes_of_type(dtype, on_gpu) for dtype in SHAPES_OF_TYPES} == SHAPES_OF_TYPES
    assert len(found.recorded) == 9


DAMAGED_RECORDS = {
    "GemmTunableOp_float_TN": "like GemmTunableOp_float_TN,tn_N_M_K_ld",
    "GemmTunableOp_float_TN,tn_4096_40": "like GemmTunableOp_float_TN,tn_N_M_K_ld",
    "GemmTunableOp_float_TN,tn_4096_4096_6": "like GemmTunableOp_float_TN,tn_N_M_K_ld",  # 6 may be cut off from 64
    "GemmTunableOp_float_TN,tn_0_4096_64_ld_1_1_1": "like GemmTunableOp_float_TN,tn_N_M_K_ld",
    f"GemmTunableOp_float_TN,tn_4096_{2 * 10**12}_64_ld_1_1_1": "like GemmTunableOp_float_TN,tn_N_M_K_ld",
    f"GemmTunableOp_float_TN,tn_4096_{'9' * 5000}_64_ld_1_1_1": "like GemmTunableOp_float_TN,tn_N_M_K_ld",
    "GemmTunableOp_quad_TN,tn_4096_4096_64_ld_1_1_1": "a type of TunableOp is double, float, ",
}


@pytest.mark.parametrize("line", DAMAGED_RECORDS, ids=lambda line: line[:60])
def test_a_damaged_record_is_named(line: str, tmp_path: Path) -> None:
    file = write(tmp_path / "untuned.csv", f"{RECORDED.splitlines()[1]}\n{line}\n")
    with pytest.raises(ShapesFileError, match=rf"untuned.csv, line 2: .*{DAMAGED_RECORDS[line]}"):
        read_shapes_file(file)


# ---- reports


def count(left: tuple[int, ...], right: tuple[int, ...], dtype: str = "float32", times: int = 1) -> ProductCount:
    return ProductCount(times, ProductKind("torch.matmul", left, right, dtype), ProductOutcome("", "no plan"))


PROGRAM = Report(
    (
        count((1000, 1000), (1000, 1000)),
        count((16, 512, 1024), (1024, 4096), times=3),  # one product of 8192 rows
        count((16, 600, 1024), (16, 1024, 700)),  # a product of these sides for each item
        count((2000, 1000), (1000, 1000), times=10),
        count((2000, 1000), (1000, 1000), "float64"),
        count((4096, 4096), (4096,)),
        count((4096, 100), (100, 4096)),
        count((4096, 4096), (5000, 4096)),  # the library raised an error
        count((3000, 3000), (3000, 3000), "int64"),
    )
)


def test_what_a_program_multiplied_is_read_by_type_the_most_work_first(tmp_path: Path) -> None:
    found = read_shapes_file(write(tmp_path / "run.json", json.dumps(PROGRAM.fields, indent=1)))
    large = [(8192, 1024, 4096), (2000, 1000, 1000), (1000, 1000, 1000)]
    assert found.shapes_of_type("float32", on_gpu=False) == [*large, (600, 1024, 700)]
    assert found.shapes_of_type("float32", on_gpu=True) == [large[0], large[1], (4096, 100, 4096), large[2]]
    assert found.shapes_of_type("float64", on_gpu=False) == [(2000, 1000, 1000)]
    assert found.shapes_of_type("complex64", on_gpu=False) == []


def damaged_reports() -> dict[str, tuple[str, str]]:
    """The text and the message of each damaged report."""
    whole = json.dumps(PROGRAM.fields, indent=1)
    lines = whole.splitlines()
    second = [i for i, line in enumerate(lines, 1) if line == "  {"][1]
    texts = {
        "cut off": ("\n".join(lines[:20]), "line 20: the report is damaged: "),
        "no products": ('{\n "calls": 1\n}', "line 1: no report of fmm"),
        "nested": ('{"products": ' + "[" * 100_000, "line 1: the report is damaged: "),
        "many digits": ('{"products": ' + "9" * 5000 + "}", "line 1: the report is damaged: "),
    }
    values: list[tuple[str, Any, str]] = [
        ("left", "x", "left must be a list of sides"),
        ("left", [], "left must be a list of sides"),
        ("right", [1024, -1], "right must be"),
        ("right", [1024, 1.5], "right must be"),
        ("times", 0, "times must be"),
        ("times", True, "times must be"),
        ("dtype", 5, "dtype must be"),
    ]
    for field, value, message in values:
        fields = json.loads(whole)
        fields["unseen"] = 'text with "products": [1, 2]'
        fields["products"][1][field] = value
        texts[f"{field} {value}"] = json.dumps(fields, indent=1), rf"line {second}: the report is damaged: .*{message}"
    fields = {**PROGRAM.fields, "products": [PROGRAM.products[0].fields, 7]}
    texts["a number"] = json.dumps(fields), "line 1: the report is damaged: product must be an object, not 7"
    return texts


DAMAGED_REPORTS = damaged_reports()


@pytest.mark.parametrize("damage", DAMAGED_REPORTS)
def test_a_damaged_report_is_one_line_with_the_file_and_the_line(
    damage: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, message = DAMAGED_REPORTS[damage]
    path = write(tmp_path / "run.json", text)
    assert main(["--report", str(path), "--device", "cpu", "--dry-run"]) == 2
    printed, told = capsys.readouterr()
    assert not printed and told.count("\n") == 1 and told.startswith(f"fmm-tune: {path}, ")
    with pytest.raises(ShapesFileError, match=message):
        read_shapes_file(path)


@pytest.mark.parametrize("text", ["1000 1000 1000 float32\n", json.dumps(Report(PROGRAM.products[:1]).fields)])
def test_a_byte_order_mark_changes_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "shapes"
    path.write_text(text, encoding="utf-8-sig")
    assert read_shapes_file(path).shapes_of_type("float32", on_gpu=False) == [(1000, 1000, 1000)]


def test_a_report_as_text_is_refused_with_the_formats(tmp_path: Path) -> None:
    with pytest.raises(ShapesFileError, match=r"run.txt, line 1: 'fmm: 0 of .* or a report in JSON"):
        read_shapes_file(write(tmp_path / "run.txt", str(PROGRAM)))


# ---- the command

PROGRAM_TEXT = """
import numpy as np
a, b = np.ones((700, 600), np.float32), np.ones((600, 500), np.float32)
for _ in range(3):
    np.dot(a, b)
np.dot(np.ones((2, 3)), np.ones((3, 4)))
"""


@pytest.mark.slow
def test_what_a_real_program_multiplied_is_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path / "program.py", PROGRAM_TEXT)
    command = [sys.executable, "-m", "fmm", "--report=run.json", "--install", "numpy", "program.py"]
    subprocess.run(command, cwd=tmp_path, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300)
    report = str(tmp_path / "run.json")
    assert main(["--report", report, "--device", "cpu", "--dry-run", "--json"]) == 0
    printed, told = capsys.readouterr()
    assert [(row["dtype"], row["shapes"]) for row in json.loads(printed)] == [("float32", [[700, 600, 500]])]
    assert told == (
        f"fmm-tune: 1 of the 2 shapes in {report} are not tuned: too small for a plan, or of another type\n"
    )
    assert main(["--shapes", report, "--device", "cpu", "--dry-run", "--quiet"]) == 0
    printed, told = capsys.readouterr()
    assert "; certifies 1 shapes: 700x600x500; writes " in printed and not told
    assert main(["--report", report, "--device", "cpu", "--dtype", "complex64", "--quiet"]) == 2
    assert "no shapes of the types that would be tuned, large enough for a plan" in capsys.readouterr().err


@pytest.mark.slow
def test_the_shapes_of_a_program_are_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "select_devices", lambda name: [SimulatedDevice()])
    monkeypatch.setitem(CPU_EFFORTS, "default", configs.SMALL)
    program = Report((count((6000, 6000), (6000, 6000), times=2), count((5000, 6000), (6000, 7000))))
    report = write(tmp_path / "run.json", json.dumps(program.fields))
    assert main(["--report", str(report), "--quiet", "--output", str(tmp_path)]) == 0
    ((types),) = files.read_config(tmp_path / "config.json").values()
    sizes = {dtype: {tuple(entry["size"]) for entry in section["entries"]} for dtype, section in types.items()}
    assert sizes == {"float32": {(6000, 6000, 6000), (5000, 6000, 7000)}}


def test_only_one_file_of_shapes_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--shapes", "a", "--report", "b"])
    assert ended.value.code == 2 and "not allowed with argument --shapes" in capsys.readouterr().err
