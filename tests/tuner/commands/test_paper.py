"""fmm-tune paper and fmm-tune predict: every table in every style, predictions that agree with the model, bad input."""

from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from html import unescape
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

import fmm
from fmm.config import files, identity
from fmm.dtypes import DTYPES
from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.kernels.cpu.thread_pool import blas_threads
from fmm.kernels.plans.explain import format_bytes, format_error_growth
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.choose import Limits, choose
from fmm.perfmodel.cost import cost
from fmm.perfmodel.default_calibration import datasheet_calibration
from fmm.perfmodel.papers.inventory import inventory_table
from fmm.perfmodel.papers.table import Cell, PaperTable
from fmm.perfmodel.predict import OMITTED_EFFECTS, predict
from fmm.problem import OPERATIONS, Operation, Problem
from fmm.runtime import devices
from fmm.runtime.decisions.calibration_in_force import related_gpu_calibration
from fmm.tuner.cli import main
from fmm.tuner.commands.paper import PAPER_TABLES, computed_table
from fmm.tuner.commands.render import cell_text, notes_as_html, table_as_html
from tests.support import ROOT, configs
from tests.support.devices import H200

Run = Callable[..., str]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """What a command prints; it must succeed and say nothing else."""

    def run(*arguments: str) -> str:
        assert main(arguments) == 0
        out, err = capsys.readouterr()
        assert not err
        return out

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Run:
    """The one line with which a command is refused: exit code 2, nothing printed."""

    def refused(*arguments: str) -> str:
        assert main(arguments) == 2
        out, err = capsys.readouterr()
        assert not out and err.startswith(f"fmm-tune {arguments[0]}: ") and err.count("\n") == 1
        return err

    return refused


# ---- paper


def test_the_list_as_text_json_and_csv(run: Run) -> None:
    table = inventory_table()
    lines = run("paper").splitlines()
    assert lines[0] == f"paper: {table.title}" and len(lines) > 4 + len(table.rows)
    check_json(json.loads(run("paper", "--json")), table)
    check_csv(list(csv.reader(StringIO(run("paper", "--csv")))), table)


@pytest.mark.parametrize(
    "name",
    [
        *("li-fig11", "li-fig14", "li-fig15", "li-fig17", "li-fig18", "li-fig19", "li-fig20", "li-fig21", "li-fig22"),
        *("li-fig26", "li-fig27", "li-fig28", "li-fig29", "huang-fig10", "huang-fig6", "huang-fig7", "dalberto-table3"),
    ],
)
def test_what_must_be_there(name: str) -> None:
    assert PAPER_TABLES[name]().name == name and PAPER_TABLES[name]().rows


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_text(name: str, run: Run) -> None:
    table = PAPER_TABLES[name]()
    lines = run("paper", name).splitlines()
    assert lines[0] == f"{name}: {table.title}"
    spans = [match.span() for match in re.finditer("-+", lines[3])]
    found = [[line[start:end].strip() for start, end in spans] for line in lines[4 : 4 + len(table.rows)]]
    assert [lines[2][start:end].strip() for start, end in spans] == list(table.columns)
    assert found == [[cell_text(cell) for cell in row] for row in table.rows]
    below = " ".join(" ".join(lines[4 + len(table.rows) :]).split())
    assert below == " ".join(f"* {' '.join(note.split())}" for note in table.notes)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_csv(name: str, run: Run) -> None:
    check_csv(list(csv.reader(StringIO(run("paper", name, "--csv")))), PAPER_TABLES[name]())


def check_csv(rows: Sequence[Sequence[str]], table: PaperTable) -> None:
    assert tuple(rows[0]) == table.columns
    for found, expected in zip(rows[1:], table.rows, strict=True):
        for text, cell in zip(found, expected, strict=True):
            assert back(text, cell) == cell


def back(text: str, like: Cell) -> Cell:
    """A CSV cell read as what it was: exactly, or the comparison fails."""
    if like is None:
        return None if text == "" else text
    if isinstance(like, bool):
        return {"yes": True, "no": False}[text]
    return type(like)(text)


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_json(name: str, run: Run) -> None:
    check_json(json.loads(run("paper", name, "--json")), PAPER_TABLES[name]())


def check_json(found: dict[str, Any], table: PaperTable) -> None:
    assert (found["name"], found["title"], tuple(found["notes"])) == (table.name, table.title, table.notes)
    assert all(tuple(row) == table.columns for row in found["rows"])
    plain = [[str(cell) if isinstance(cell, Fraction) else cell for cell in row] for row in table.rows]
    assert [list(row.values()) for row in found["rows"]] == plain


def test_all_as_text(run: Run) -> None:
    separately = [run("paper", name) for name in PAPER_TABLES]
    assert run("paper", "all") == "\n".join(separately) == run("paper", "all", "li-fig17")


def test_all_as_json_is_one_list(run: Run) -> None:
    for found, name in zip(json.loads(run("paper", "all", "--json")), PAPER_TABLES, strict=True):
        check_json(found, computed_table(name))


def test_all_as_csv_has_each_name_above_its_table(run: Run) -> None:
    parts = run("paper", "all", "--csv").rstrip("\n").split("\n\n")
    for part, name in zip(parts, PAPER_TABLES, strict=True):
        first, rest = part.split("\n", 1)
        assert first == name
        check_csv(list(csv.reader(StringIO(rest))), computed_table(name))


def test_json_before_the_command(run: Run) -> None:
    assert run("--json", "paper", "li-fig17") == run("paper", "li-fig17", "--json")
    assert run("--json", "predict", "64", "64", "64") == run("predict", "64", "64", "64", "--json")


@pytest.mark.parametrize("name", ["li-fig99", "LI-FIG11", "", "li fig11"])
def test_an_unknown_table(name: str, refused: Run) -> None:
    message = refused("paper", name)
    assert repr(name) in message
    assert all(known in message for known in PAPER_TABLES)


def test_csv_and_json_exclude_each_other(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["paper", "li-fig11", "--csv", "--json"])
    assert left.value.code == 2 and "not allowed with" in capsys.readouterr().err


@pytest.mark.slow
def test_in_an_interpreter_of_its_own() -> None:
    command = [sys.executable, "-m", "fmm.tuner.cli", "paper", "li-fig17", "--json"]
    env = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    check_json(json.loads(done.stdout), PAPER_TABLES["li-fig17"]())
    assert not done.stderr


# ---- HTML, for notebooks


@pytest.mark.parametrize("name", PAPER_TABLES)
def test_html_has_every_cell(name: str) -> None:
    table = PAPER_TABLES[name]()
    found = [re.findall(r"<t[hd] style[^>]*>(.*?)</t[hd]>", line) for line in table_as_html(table).splitlines()[1:-1]]
    plain = [[unescape(re.sub(r"<sup>(.*?)</sup>", r"^\1", cell)) for cell in row] for row in found]
    assert plain == [list(table.columns), *([cell_text(cell) for cell in row] for row in table.rows)]


def test_html_spells_powers_and_escapes() -> None:
    table = PaperTable("t", "T", ("a<b", "n"), (("7n^3/4 + n^2", 1),), ("2^(l-1) n <= n^k & more",))
    assert '<th style="text-align: left">a&lt;b</th><th style="text-align: right">n</th>' in table_as_html(table)
    assert "7n<sup>3</sup>/4 + n<sup>2</sup>" in table_as_html(table)
    assert "<li>2<sup>(l-1)</sup> n &lt;= n<sup>k</sup> &amp; more</li>" in notes_as_html([table])


def test_a_note_of_several_tables_is_said_once() -> None:
    first, second = (PaperTable(name, f"title {name}", (), (), ("same", name)) for name in "ab")
    assert notes_as_html([first, second]).count("<li>same</li>") == 1
    assert "title b" in notes_as_html([first, second])
    assert "title a" not in notes_as_html([PaperTable("a", "title a", (), ())])


# ---- predict

PRODUCTS = [
    ("8192", "8192", "8192", "float32", "v100"),  # several levels pay
    ("5000", "3000", "7001", "float64", "h100"),  # nothing divides
    ("300", "300", "300", "float32", "v100"),  # too small
    ("4096", "4096", "4096", "complex64", "rtx 4090"),
    ("1", "1", "1", "float16", "A100"),
]


NUMBERS = (("seconds", "4g"), ("speedup", "2f"), ("tflops", "3g"))  # first in a runner-up's line, and their digits


def limits(size: Sequence[int], dtype: str, name: str, growth: float = 10.0) -> Limits:
    """What the device has left beside A, B and C."""
    m, k, n = size
    operands = (m * k + k * n + m * n) * DTYPES[dtype].itemsize
    return Limits(int(datasheet_of(name).memory_gb * 1e9) - operands, growth)


def untuned_calibration(name: str, dtype: str) -> Calibration:
    """The calibration of a GPU that nobody tuned, as `fmm-tune predict` uses it."""
    unmeasured = datasheet_calibration(name)
    return related_gpu_calibration(unmeasured, dtype) or unmeasured


def predicted(run: Run, m: str, k: str, n: str, dtype: str, name: str, *more: str) -> Any:
    return json.loads(run("predict", m, k, n, "--dtype", dtype, "--device", name, "--json", *more))


@pytest.mark.parametrize(("m", "k", "n", "dtype", "name"), PRODUCTS)
def test_json_agrees_with_the_model(m: str, k: str, n: str, dtype: str, name: str, run: Run) -> None:
    found = predicted(run, m, k, n, dtype, name)
    problem, calibration = Problem(int(m), int(k), int(n), dtype), untuned_calibration(name, dtype)
    choice = choose(problem, calibration, limits(problem.size, dtype, name))
    assert (found["device"], found["size"], found["dtype"]) == (
        datasheet_of(name).name,
        [int(m), int(k), int(n)],
        dtype,
    )
    assert found["chosen"]["plan"] == str(choice.best.plan) and found["reason"] == choice.reason
    others = [str(candidate.plan) for candidate in choice.candidates if candidate.plan != choice.best.plan]
    assert [row["plan"] for row in found["runners_up"]] == others
    assert found["leaves_out"] == OMITTED_EFFECTS
    for row in (found["chosen"], *found["runners_up"]):
        check_row(row, problem, name)


def check_row(row: dict[str, Any], problem: Problem, name: str) -> None:
    """Each number from the model's own functions, exactly."""
    plan, calibration = Plan.parse(row["plan"]), untuned_calibration(name, problem.dtype)
    exact = predict(plan, problem, calibration)
    counts = cost(plan, *problem.size, problem.itemsize, op=problem.op)
    assert (row["seconds"], row["dominant"]) == (exact.predicted_seconds, exact.dominant_term)
    assert (row["traffic"], row["launches"], row["workspace"]) == (
        counts.total_bytes,
        counts.launches,
        counts.workspace,
    )
    assert row["speedup"] == predict(VENDOR, problem, calibration).predicted_seconds / exact.predicted_seconds
    assert row["tflops"] == pytest.approx(problem.flops / exact.predicted_seconds / 1e12)


def error_line(plan: dict[str, Any]) -> str:
    growth = format_error_growth(plan["error_growth"])
    texts = {"vendor": growth, "model": f"{growth} (by the model)"}
    texts["measured"] = f"about {growth} (measured)"
    return f"expected error, as a multiple of cuBLAS's: {texts[plan['error_basis']]}"


def test_measured_errors_are_told_from_modelled_ones(run: Run) -> None:
    found = predicted(run, "4096", "4096", "4096", "float32", "h200")
    bases = {row["plan"]: row["error_basis"] for row in (found["chosen"], *found["runners_up"])}
    assert bases["f16x3"] == "measured" and bases["vendor"] == "vendor"
    assert bases["strassen.batched.pad16 > f16x3"] == "model"
    assert "residues(8) > bytes" not in bases, "it is for errors smaller than the vendor's"
    assert error_line(found["chosen"]) in run("predict", "4096", "--dtype", "float32", "--device", "h200").splitlines()
    small_error = "4096", "--dtype", "float32", "--device", "h200", "--max-error-growth", "0.1"
    exact, lines = json.loads(run("predict", *small_error, "--json")), run("predict", *small_error).splitlines()
    assert exact["chosen"]["plan"] == "residues(8) > bytes" and error_line(exact["chosen"]) in lines
    (row,) = (line.split() for line in lines if line.split()[-2:] == ["f16x3", "error"] and ">" not in line)
    assert "1.0*" in row


@pytest.mark.parametrize(("m", "k", "n", "dtype", "name"), PRODUCTS)
def test_text_has_what_json_has(m: str, k: str, n: str, dtype: str, name: str, run: Run) -> None:
    found = predicted(run, m, k, n, dtype, name)
    text = run("predict", m, k, n, "--dtype", dtype, "--device", name)
    best = found["chosen"]
    assert text.startswith(f"{m}x{k}x{n} {dtype} on {found['device']} ({found['source']})\nplan: {best['plan']}\n")
    for part in (
        f"why: {found['reason']}\n",
        f"time: {best['seconds']:.4g} s\nspeedup over cuBLAS: {best['speedup']:.2f}\n",
        f"memory traffic of sums and of products' operands: {format_bytes(best['traffic'])}\n",
        f"starts of products and sums (a batch counts as one): {best['launches']}\n",
        f"workspace: {format_bytes(best['workspace'])}\n{error_line(best)}\n",
        f"not in the model: {found['leaves_out']}",
    ):
        assert part in text
    rows = text.split("runners-up")[1].splitlines()[2 : 2 + len(found["runners_up"])]
    for line, row in zip(rows, found["runners_up"], strict=True):
        assert [float(x) for x in line.split()[:3]] == [float(f"{row[key]:.{digits}}") for key, digits in NUMBERS]
        for part in (format_bytes(row["traffic"]), format_bytes(row["workspace"]), row["plan"], row["dominant"]):
            assert part in line


@pytest.mark.parametrize("op", OPERATIONS)
def test_every_operation_of_the_model(op: Operation, run: Run) -> None:
    """A gram has two matrices in the device's memory, the others three."""
    found = predicted(run, "8192", "4096", "8192", "float32", "v100", "--op", op)
    problem, matrices = Problem(8192, 4096, 8192, "float32", op=op), 2 * 8192 * 4096 + 8192**2
    room = int(datasheet_of("v100").memory_gb * 1e9) - (matrices - (8192 * 4096 if op == "gram" else 0)) * 4
    choice = choose(problem, datasheet_calibration("v100"), Limits(room, found["error_growth_limit"]))
    assert (found["op"], found["workspace_limit"], found["reason"]) == (op, room, choice.reason)
    rows = (found["chosen"], *found["runners_up"])
    assert {row["plan"] for row in rows} == {str(candidate.plan) for candidate in choice.candidates}
    assert found["chosen"]["plan"] == str(choice.best.plan)
    assert any(row["plan"].startswith("gram") for row in rows) == (op != "product")
    for row in rows:
        check_row(row, problem, "v100")


def test_the_text_of_a_gram_says_so_and_explains_halves(run: Run) -> None:
    text = run("predict", "8192", "--op", "gram", "--dtype", "float32", "--device", "v100")
    assert text.startswith("8192x8192x8192 float32 gram on V100")
    whole = run("predict", "8192", "--dtype", "float32", "--device", "v100")
    assert whole.startswith("8192x8192x8192 float32 on V100") and " gram" not in whole


def test_a_side_alone_is_a_square(run: Run) -> None:
    assert run("predict", "700") == run("predict", "700", "700", "700")
    assert run("predict", "--device", "v100", "700", "--json") == run("predict", "700", "--json", "--device", "v100")


# ---- which devices can be asked for


@pytest.fixture(params=["cuda-8.6-46sm-a-card", "cpu-of-another-machine-64t"])
def tuned(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The key of a device that the one config in force knows."""
    configs.write(tmp_path / "config.json", request.param, found=configs.section())
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    files.clear_config_cache()
    yield request.param
    files.clear_config_cache()


def help_of_predict(capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit) as left:
        main(["predict", "--help"])
    assert left.value.code == 0
    return capsys.readouterr().out


def test_help_names_the_devices_that_can_be_asked_for(
    tuned: str, run: Run, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for columns in range(30, 50):  # wherever lines end, no key is cut in two
        monkeypatch.setenv("COLUMNS", str(columns))
        named = " ".join(help_of_predict(capsys).partition("devices:")[2].split())
        assert named.startswith("cpu; a GPU here by its number: 0; by a datasheet: ")
        assert all(name in named for name in datasheet_names())
        assert named.endswith(f"by a tuning in the active configs: {tuned}")
    assert json.loads(run("predict", "64", "--device", tuned, "--json"))["device"] == tuned
    monkeypatch.setenv("FMM_TUNING_MODE", "off")
    assert tuned not in help_of_predict(capsys)


def test_an_unknown_device_is_told_the_same(tuned: str, refused: Run) -> None:
    message = refused("predict", "8", "--device", "abacus")
    assert [name for name in ("'abacus'", "cpu, 0, ", *datasheet_names(), tuned) if name not in message] == []


@pytest.mark.slow
def test_help_loads_no_cupy(tmp_path: Path) -> None:
    (tmp_path / "cupy.py").write_text("print('CuPy was loaded')")
    for arguments, loaded in ((("--help",), False), (("8",), False), (("8", "--device", "0"), True)):
        command = [sys.executable, "-m", "fmm.tuner.cli", "predict", *arguments]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
        done = subprocess.run(command, capture_output=True, text=True, env=env, check=False)
        assert ("CuPy was loaded" in done.stdout) == loaded, (arguments, done)


@pytest.mark.parametrize("name", ["0", "cuda:0"])
def test_a_gpu_here_is_asked_for_by_its_number(name: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices, "cuda_device", lambda index: H200)
    for dtype in ("float64", "bfloat16"):
        assert predicted(run, "8192", "8192", "8192", dtype, name) == predicted(
            run, "8192", "8192", "8192", dtype, "h200"
        )


def test_a_gpu_here_without_tuning_or_datasheet_is_an_error(refused: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    unknown = devices.gpu_from_description("Abacus 3000", "9.9", 7)
    monkeypatch.setattr(devices, "cuda_device", lambda index: unknown)
    assert "Abacus 3000 has no tuning in use for float64, and no datasheet" in refused("predict", "8", "--device", "0")


def test_a_gpu_that_is_not_here_is_an_error(refused: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def none_here(index: int) -> devices.Device:
        raise ValueError(f"there is no device cuda:{index}")

    def no_cupy(index: int) -> devices.Device:
        raise ModuleNotFoundError("No module named 'cupy'")

    monkeypatch.setattr(devices, "cuda_device", none_here)
    assert "there is no device cuda:3" in refused("predict", "8", "--device", "3")
    monkeypatch.setattr(devices, "cuda_device", no_cupy)
    assert "the device '3' needs CuPy" in refused("predict", "8", "--device", "3")


def test_float64_and_the_cpu_unless_said_otherwise(run: Run) -> None:
    text = run("predict", "512", "512", "512")
    assert text.startswith("512x512x512 float64 on cpu, ")
    assert "seconds: nominal" in text  # ratios mean something, seconds do not
    assert "seconds: nominal" not in run("predict", "512", "512", "512", "--device", "v100")
    assert text == run("predict", "512", "512", "512", "--device", "CPU")


@pytest.mark.parametrize("name", datasheet_names())
def test_every_device(name: str, run: Run) -> None:
    for spelling in (name, name.lower(), name.replace(" ", "-")):
        assert predicted(run, "64", "64", "64", "float32", spelling)["device"] == name


# Bytes of workspace, growth of the error; which limit the fastest plan breaks.
LIMITS = [
    (("--workspace", "1500000000"), "workspace"),
    (("--workspace", "0"), "workspace"),
    (("--max-error-growth", "4"), "error"),
    (("--max-error-growth", "1"), "error"),
    (("--workspace", "1500000000", "--max-error-growth", "2"), "error"),
]


@pytest.mark.parametrize(("options", "broken"), LIMITS, ids=lambda x: " ".join(x) if isinstance(x, tuple) else x)
def test_limits_are_obeyed(options: tuple[str, ...], broken: str, run: Run) -> None:
    free = predicted(run, "8192", "8192", "8192", "float32", "v100")
    found = predicted(run, "8192", "8192", "8192", "float32", "v100", *options)
    best, most, growth = found["chosen"], found["workspace_limit"], found["error_growth_limit"]
    assert best["workspace"] <= most and best["error_growth"] <= growth and not best["exceeds"]
    assert best["seconds"] > free["chosen"]["seconds"]
    for row in found["runners_up"]:
        over = {"error": row["error_growth"] > growth, "workspace": row["workspace"] > most}
        assert row["exceeds"] == [name for name, exceeds in over.items() if exceeds]
        assert row["exceeds"] or row["seconds"] >= 0.999 * best["seconds"]  # ranked by an estimate
    assert next(broken in row["exceeds"] for row in found["runners_up"] if row["plan"] == free["chosen"]["plan"])


def test_a_tuning_that_is_not_used_is_not_used_here_either(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = identity.cpu_identity(blas_threads()).key
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "config.json"))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    for doubts, source in (([], "calibrated"), (["equal products differ by 20%"], "built-in")):
        configs.write(tmp_path / "config.json", key, found=configs.section(doubts=doubts))
        files.clear_config_cache()
        found, text = predicted(run, "8192", "8192", "8192", "float64", "cpu"), run("predict", "8192", "8192", "8192")
        assert found["source"].startswith(source) and bool(doubts) == ("differ by 20%" in found["not_used"])
        assert ("differ by 20%" in text) == bool(doubts)
    files.clear_config_cache()


def test_integers_with_a_short_side_are_numpys_as_in_products(run: Run) -> None:
    for side, plan in (("100", "vendor"), ("400", "digits")):
        found = predicted(run, side, side, side, "int32", "cpu")
        assert found["chosen"]["plan"] == plan == str(fmm.plan(*[int(side)] * 3, dtype="int32").plan)
    assert "leaves integers" in predicted(run, "100", "400", "400", "int32", "cpu")["reason"]


def test_the_device_limits_the_workspace_too(run: Run) -> None:
    # A, B and C of 36,000^2 float32 leave 0.4 GB of 16.
    found = predicted(run, "36000", "36000", "36000", "float32", "v100", "--workspace", str(10**12))
    assert found["workspace_limit"] == 16 * 10**9 - 3 * 36000**2 * 4
    assert found["chosen"]["workspace"] <= found["workspace_limit"]


BAD = [
    (("8", "8", "8", "--device", "v1000"), ("'v1000'", "cpu", *datasheet_names())),
    (("8", "8", "8", "--device", ""), ("''", "cpu", *datasheet_names())),
    (("8", "8", "8", "--dtype", "int4"), ("'int4'", *DTYPES)),
    (("0",), ("M must be 1 or more", "not 0", "M alone is a square")),
    (("0", "8", "8"), ("M must be 1 or more", "not 0", "M K N")),
    (("8", "8", "0"), ("N must be 1 or more", "not 0")),
    (("8", "-8", "8"), ("K must be 1 or more", "not -8")),
    (("8", "9"), ("two sides, 8 and 9", "M alone is a square", "M K N")),
    (("8", "8", "8", "--op", "grams"), ("'grams'", *OPERATIONS)),
    (("8", "7", "9", "--op", "gram"), ("--op gram needs M = N", "not 8 and 9")),
    (("8", "7", "9", "--op", "symmetric"), ("--op symmetric needs M = N", "not 8 and 9")),
    (("8", "--device", "cuda:x"), ("'cuda:x'", "'cpu'", "'cuda:0'")),
    (("8", "8", "8", "--workspace", "-1"), ("--workspace", "0 or more", "-1")),
    (("8", "8", "8", "--max-error-growth", "0"), ("--max-error-growth", "above 0", "not 0.0")),
    (("8", "8", "8", "--max-error-growth", "nan"), ("--max-error-growth", "nan")),
    # A datasheet without a rate for the type: what it has.
    (("8", "8", "8", "--device", "v100", "--dtype", "tf32"), ("V100", "tf32", "float64", "float32", "float16")),
    (("8", "8", "8", "--device", "C1060", "--dtype", "float16"), ("C1060", "float16", "float64", "float32")),
    (("8", "8", "8", "--dtype", "bfloat16"), ("cpu", "bfloat16", "float64", "float32", "complex64", "complex128")),
    # 112 GiB of operands on a device of 15.
    (("100000", "100000", "100000", "--dtype", "float32", "--device", "v100"), ("111.8 GiB", "V100", "14.9 GiB")),
]


@pytest.mark.parametrize(("arguments", "named"), BAD, ids=lambda x: " ".join(x))
def test_bad_input_says_what_is_valid(arguments: tuple[str, ...], named: tuple[str, ...], refused: Run) -> None:
    message = refused("predict", *arguments)
    assert [part for part in named if part not in message] == []


@pytest.mark.parametrize("arguments", [(), ("8", "8", "x"), ("8", "8", "1.5"), ("8", "8", "8", "8")])
def test_sizes_that_are_no_three_integers(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["predict", *arguments])
    assert left.value.code == 2 and "error:" in capsys.readouterr().err
