"""Figures: printed numbers, measurements at small sizes, tables, pictures, files."""

from __future__ import annotations

import json
import re
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from benchmarks.papers.command import NAMES, main
from benchmarks.papers.experiment import Experiment, Results, planned_parts, read_results, write_results
from benchmarks.papers.figure import Figure, draw_figure, figure_table, quantity_column
from benchmarks.papers.figures import EXPERIMENTS, FIGURES
from fmm.perfmodel.papers.inventory import INVENTORY_ROWS, PaperFigure, inventory_table, table_names
from fmm.tuner.commands.paper import PAPER_TABLES
from tests.support import ROOT
from tests.support.laboratory import measure_small, sample_files

QUICK = ("li-fig43", "li-fig40", "huang-fig9", "huang-fig10")
LONG = ("sforza-fig4", "li-fig30", "li-fig32", "li-fig36", "huang-fig8", "error-scaled", "error-variants")
CASES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


# ---- the list


def test_every_table_and_figure_is_in_the_list_and_the_list_names_no_other() -> None:
    assert table_names() == set(NAMES)


def test_measured_is_what_can_be_measured() -> None:
    for entry in INVENTORY_ROWS:
        figures = [FIGURES[name] for name in entry.see.split() if name in FIGURES]
        if entry.done in ("measured", "measurable"):
            assert figures, entry
        if entry.done == "measured":
            assert all(sample_files(x.experiment.name) for x in figures), entry
        if entry.done == "computed":
            assert not any(name in FIGURES for name in entry.see.split()), entry


@pytest.mark.parametrize(
    "entry", [x for x in INVENTORY_ROWS if x.done == "measured"], ids=lambda x: f"{x.source} {x.figure}"
)
def test_the_list_says_on_which_devices_a_figure_was_measured(entry: PaperFigure) -> None:
    """All parts of the experiments are in the device's files, or some of them."""
    said = []
    for name, folder, on_host in (("CPU", "cpu-*", True), ("H200", "nvidia-h200", False)):
        shares = [share_measured(x, folder, on_host) for x in entry.see.split() if x in FIGURES]
        if any(shares):
            said.append(name if min(shares) == 1 else f"{name} in part")
    assert entry.on == ", ".join(said)


def share_measured(name: str, folder: str, on_host: bool) -> float:
    """Return the largest share of the parts of a figure's experiment that a folder of samples has."""
    experiment = FIGURES[name].experiment
    shares = [0.0]
    for path in (path for path in sample_files(experiment.name) if fnmatch(path.parent.parent.name, folder)):
        results = read_results(path)
        found = {experiment.about(key) for key in results.rows}
        parts = {part.about for part in planned_parts(experiment, results.scale, on_host)}
        shares.append(len(parts & found) / len(parts))
    return max(shares)


@pytest.mark.parametrize(("source", "figures", "tables"), [("Li", 44, 0), ("Huang", 10, 0), ("D'Alberto, ", 9, 3)])
def test_no_figure_of_a_paper_is_left_out(source: str, figures: int, tables: int) -> None:
    for kind, count in (("Figure", figures), ("Table", tables)):
        found: list[int] = []
        for entry in INVENTORY_ROWS:
            if entry.source.startswith(source) and entry.figure.startswith(kind):
                first, *last = map(int, re.findall(r"\d+", entry.figure))
                found += range(first, (last or [first])[-1] + 1)
        assert sorted(found) == list(range(1, count + 1))


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES) and len(inventory_table().rows) == len(INVENTORY_ROWS)


# ---- measuring, at small sizes


@pytest.mark.parametrize("name", CASES)
def test_experiments_have_rows_under_their_keys(name: str) -> None:
    experiment, results = EXPERIMENTS[name], measure_small(name)
    if name != "huang-fig10":  # a GPU's
        assert results.rows
    for key, row in results.rows.items():
        assert len(key) == len(experiment.keys) and "failed" not in row, row
    for figure in (x for x in FIGURES.values() if x.experiment is experiment):
        table = figure_table(figure, results)
        for name in figure.measured:
            assert name == "sp_1" or not results.rows or any(x is not None for x in table.column_cells(name)), (
                figure.name
            )


# ---- tables, files, pictures


def made(**more: Any) -> Figure:
    experiment = Experiment("e", ("code", "n"), 100, lambda bench, scale: ())
    return Figure("e", "A title", experiment, {"measured": quantity_column("error")}, "It says.", **more)


RESULTS = Results(({"processor": "P"},), 0.5, {("a", 10): {"error": [3.0, 1.0, 2.0]}, ("b", 10): {"failed": "no"}})


def test_a_table_has_published_computed_and_measured_side_by_side() -> None:
    figure = made(published={("a", 10): 4.0, ("a", 20): 5.0}, computed={"model": lambda: {("a", 20): 6.0}})
    table = figure_table(figure, RESULTS)
    assert table.columns == ("code", "n", "published", "model", "measured", "n measured")
    assert table.rows == (("a", 10, 4.0, None, 2.0, 5.0), ("a", 20, 5.0, 6.0, None, None))
    assert table.notes == ("measured on P, at 0.5 of these sizes, thresholds of sizes likewise.", "It says.")
    assert figure_table(figure).columns == ("code", "n", "published", "model")


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_results(RESULTS, made().experiment, tmp_path / "sub" / "e.json")
    results = Results(RESULTS.runs, 0.5, {key: {"key": list(key), **row} for key, row in RESULTS.rows.items()})
    write_results(results, made().experiment, tmp_path / "e.json")
    assert read_results(tmp_path / "e.json") == results


@pytest.mark.parametrize("name", ["li-fig43", "li-fig40", "li-fig42"])
def test_pictures_have_every_curve(name: str) -> None:
    pytest.importorskip("matplotlib")
    figure = FIGURES[name]
    drawn = draw_figure(figure, measure_small(figure.experiment.name)).axes[0]
    assert drawn.get_title() == f"{name}: {figure.title}" and drawn.lines
    table = figure_table(figure, measure_small(figure.experiment.name))
    shown = sum(len(line.get_xdata()) for line in drawn.lines)
    keys = len(figure.key_names)
    assert shown == sum(cell is not None for row in table.rows for cell in row[keys:])


# ---- the command


@pytest.mark.slow
def test_the_command_measures_writes_and_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["li-fig43", "--measure", "--device", "cpu", "--side", "64", "--output", str(tmp_path), "--json"]
    assert main(command) == 0
    output = json.loads(capsys.readouterr().out)
    rows = {(row["error"], row["code"]): row for row in output["rows"]}
    assert rows["maximum", "dgemm"]["published"] == 6.5e-13 and rows["maximum", "dgemm"]["measured"] > 0
    assert json.loads((tmp_path / "li-fig43.json").read_text())["scale"] == 64 / 8192
    assert main(["li-fig43", "--measured", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == output
    assert main(["li-fig43", "li-fig11", "--json"]) == 0
    assert [table["name"] for table in json.loads(capsys.readouterr().out)] == ["li-fig43", "li-fig11"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("li-fig11", "--measure"), "li-fig30"),
        (("li-fig30", "--measure", "--device", "gpu"), "'gpu'"),
        (("li-fig30", "--measure", "--device", "0"), "'0'"),
    ],
)
def test_what_cannot_be_measured(
    arguments: tuple[str, ...], named: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    assert main([*arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and named in err and err.startswith("benchmarks papers: ") and err.count("\n") == 1


def test_the_samples_of_all_devices_stand_beside_the_published_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["li-fig40"]) == 0
    out = capsys.readouterr().out
    assert "3.634" in out and "measured, H200" in out and "measured, Intel Xeon" in out
    assert "measured on NVIDIA H200, at these sizes. measured / published: " in " ".join(out.split())


def test_a_note_compares_the_measured_with_the_published_numbers() -> None:
    figure = made(published={("a", 10): 4.0, ("b", 10): 5.0})
    whole = Results(({"device": "NVIDIA X"},), 1, {("a", 10): {"error": 2.0}, ("b", 10): {"error": 10.0}})
    note, _ = figure_table(figure, whole).notes
    assert note == "measured on NVIDIA X, at these sizes. measured / published: 0.5 to 2, median 1.25 (2 numbers)."
    both = figure_table(figure, whole, RESULTS)
    assert both.columns[3:] == ("measured, X", "measured, P, None threads", "n measured, P, None threads")


def test_huang_s_model_is_computed_for_the_measured_device() -> None:
    results = read_results(ROOT / "results" / "nvidia-h200" / "paper" / "huang-fig10.json")
    table = figure_table(FIGURES["huang-fig10"], results)
    modelled, measured = (table.column_cells(name) for name in ("modelled for this device", "measured"))
    assert all(isinstance(x, float) for x in (*modelled, *measured))
    assert max(modelled) > 2.5 * max(table.column_cells("V100, modelled"))  # type: ignore[type-var, operator]


@pytest.mark.slow
def test_no_table_is_printed_as_a_header_without_rows(capsys: pytest.CaptureFixture[str]) -> None:
    """Every figure has rows, from the samples on record where nothing is published or computed."""
    for name in FIGURES:
        assert main([name]) == 0
        assert "no rows" not in capsys.readouterr().out, name
    without = figure_table(FIGURES["error-growth"])
    assert not without.rows and "--measure" in without.notes[0]
    assert main(["missing", "huang-fig8", "--device", "cpu", "--output", str(ROOT / "results/nvidia-h200/paper")]) == 0
    assert "Every part of these experiments was measured" in capsys.readouterr().out


def test_tables_that_are_computed_need_no_samples() -> None:
    assert PAPER_TABLES["li-fig11"]().rows


def test_a_figure_of_break_even_points_says_where_there_are_none() -> None:
    """On a CPU its rows are empty, which would look like a missing measurement."""
    path = ROOT / "results" / "cpu-intel-r-xeon-r-processor-2t" / "paper" / "huang-fig8.json"
    notes = figure_table(FIGURES["huang-fig1"], read_results(path)).notes
    assert any(note.startswith("No break-even point here, up to ") and "2-level reference" in note for note in notes)
    assert any("Not measured here: 1-level, 2-level hybrid (their products have sums inside)" in x for x in notes)
