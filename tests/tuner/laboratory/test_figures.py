"""Figures: what is printed, what is measured at small sizes, tables, pictures, files."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fmm.kernels.algorithms.catalogue import scheme_names
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.papers.inventory import ENTRIES, Entry, inventory, named_in
from fmm.tuner.cli import main
from fmm.tuner.commands.paper import NAMES, TABLES
from fmm.tuner.laboratory import budget, dalberto_errors, dalberto_speed, growth, huang_speed, li_errors, li_speed
from fmm.tuner.laboratory.bench import Call, HostBench, time_plans
from fmm.tuner.laboratory.experiment import Experiment, Results, has_results, read_results, write_results
from fmm.tuner.laboratory.figure import Figure, draw_figure, figure_table, quantity
from fmm.tuner.laboratory.figures import EXPERIMENTS, FIGURES
from fmm.tuner.laboratory.matrices import FAMILIES, kaporin, pair_of
from fmm.tuner.laboratory.measuring import bench_of, measured_now, planned_parts
from tests.support import ROOT

BENCH = HostBench()
SAMPLES = ROOT / "results"
QUICK = ("li-fig43", "li-fig40", "huang-fig9", "huang-fig10")
LONG = ("sforza-fig4", "li-fig30", "li-fig32", "li-fig36", "huang-fig8", "error-scaled", "error-variants")
CASES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


@lru_cache(maxsize=16)
def small(name: str, side: int = 64) -> Results:
    return measured_now(EXPERIMENTS[name], BENCH, side, ["a test"])


def samples_of(name: str) -> list[Path]:
    """The files of an experiment's samples, packed ones under the name that they had."""
    return [folder / f"{name}.json" for folder in SAMPLES.glob("*/paper") if has_results(folder / f"{name}.json")]


# ---- the list


def test_every_table_and_figure_is_in_the_list_and_the_list_names_no_other() -> None:
    assert named_in() == set(NAMES)


def test_measured_is_what_can_be_measured() -> None:
    for entry in ENTRIES:
        figures = [FIGURES[name] for name in entry.see.split() if name in FIGURES]
        if entry.done in ("measured", "measurable"):
            assert figures, entry
        if entry.done == "measured":
            assert all(samples_of(x.experiment.name) for x in figures), entry
        if entry.done == "computed":
            assert not any(name in FIGURES for name in entry.see.split()), entry


@pytest.mark.parametrize("entry", [x for x in ENTRIES if x.done == "measured"], ids=lambda x: f"{x.source} {x.figure}")
def test_the_list_says_on_which_devices_a_figure_was_measured(entry: Entry) -> None:
    """All parts of its experiments, or some of them, as the files have it."""
    said = []
    for name, folder, on_host in (("CPU", "cpu-*", True), ("H200", "nvidia-h200", False)):
        shares = [share_measured(x, folder, on_host) for x in entry.see.split() if x in FIGURES]
        if any(shares):
            said.append(name if min(shares) == 1 else f"{name} in part")
    assert entry.on == ", ".join(said)


def share_measured(name: str, folder: str, on_host: bool) -> float:
    """The largest share of the parts of a figure's experiment that a folder of samples has."""
    experiment = FIGURES[name].experiment
    shares = [0.0]
    for path in (path for path in samples_of(experiment.name) if fnmatch(path.parent.parent.name, folder)):
        results = read_results(path)
        found = {experiment.about(key) for key in results.rows}
        parts = {part.about for part in planned_parts(experiment, results.scale, on_host)}
        shares.append(len(parts & found) / len(parts))
    return max(shares)


@pytest.mark.parametrize(("source", "figures", "tables"), [("Li", 44, 0), ("Huang", 10, 0), ("D'Alberto, ", 9, 3)])
def test_no_figure_of_a_paper_is_left_out(source: str, figures: int, tables: int) -> None:
    for kind, count in (("Figure", figures), ("Table", tables)):
        found: list[int] = []
        for entry in ENTRIES:
            if entry.source.startswith(source) and entry.figure.startswith(kind):
                first, *last = map(int, re.findall(r"\d+", entry.figure))
                found += range(first, (last or [first])[-1] + 1)
        assert sorted(found) == list(range(1, count + 1))


def test_the_list_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper"]) == 0
    out = capsys.readouterr().out
    assert all(name in out for name in NAMES) and len(inventory().rows) == len(ENTRIES)


# ---- measuring, at small sizes


@pytest.mark.parametrize("name", CASES)
def test_experiments_have_rows_under_their_keys(name: str) -> None:
    experiment, results = EXPERIMENTS[name], small(name)
    if name != "huang-fig10":  # a GPU's
        assert results.rows
    for key, row in results.rows.items():
        assert len(key) == len(experiment.keys) and "failed" not in row, row
    for figure in (x for x in FIGURES.values() if x.experiment is experiment):
        table = figure_table(figure, results)
        for name in figure.measured:
            assert name == "sp_1" or not results.rows or any(x is not None for x in table.column(name)), figure.name


def test_errors_of_kaporins_matrix_grow_with_levels_and_more_by_winograds_variant() -> None:
    pair = kaporin(np, 256, "float32")
    errors = {
        (code, depth): li_errors.off_identity(np, BENCH.multiply(li_errors.li_plan(code, depth), *pair))["maximum"]
        for code in li_errors.METHODS
        for depth in (0, 1, 2)
    }
    for code in li_errors.METHODS:
        assert 2 * errors[code, 0] < errors[code, 1] < errors[code, 2] / 1.5
        assert errors[code, 2] < li_errors.kaporin_bound(code, 2, 256, "float32")
    assert errors["Winograd", 2] > 1.5 * errors["Strassen", 2]


def test_gemm_beside_sforzas_plans_multiplies_a_transpose_of_its_own() -> None:
    """By rows, as a device reads what it is given; and no library can take it for syrk."""
    seen: list[tuple[Any, Any]] = []

    class Watched(HostBench):
        def call(self, plan: Plan, a: Any, b: Any) -> Call:
            seen.append((a, b))
            return super().call(plan, a, b)

    rows = list(next(iter(EXPERIMENTS["sforza-fig4"].parts(Watched(), 0.01))).rows())
    ((a, b),) = seen
    assert a.flags.c_contiguous and (a == b.T).all() and not np.shares_memory(a, b)
    assert [row["key"][2] for row in rows] == ["gemm", "syrk", "one level", "recursive"]


def test_a_curve_over_sizes_is_in_their_order() -> None:
    """Of Figures 28 and 29 the paper prints the last size alone."""
    keys = [(code, n, k) for code in (li_errors.SGEMM, "Strassen") for n in li_errors.SIZES for k in range(5)]
    results = Results(({"device": "none"},), 1.0, {key: {"key": list(key), "seconds": [1.0]} for key in keys})
    for name in ("li-fig26", "li-fig28"):
        assert figure_table(FIGURES[name], results).column("n") == li_errors.SIZES


def test_kaporins_matrices_are_each_others_inverse() -> None:
    a, b = kaporin(np, 60, "float64")
    assert np.abs(a @ b - np.eye(60)).max() < 1e-13
    assert a[59, 59] == 1 + np.sqrt(60.0) and a.dtype == np.float64
    assert kaporin(np, 60, "float32")[1].dtype == np.float32


def test_the_text_follows_from_the_printed_errors() -> None:
    """Section 8.1.2: at n = 16384 and tau2 = 2048, 200 times and 424 times; 1615 and 5151."""
    for columns, strassen, winograd in ((li_errors.FIGURE_30, 212.8, 1615.4), (li_errors.FIGURE_31, 424.2, 5151.5)):
        base = columns[li_errors.SGEMM, "-"][-1]
        assert columns["Strassen", 2048][-1] / base == pytest.approx(strassen, abs=0.1)
        assert columns["Winograd", 2048][-1] / base == pytest.approx(winograd, abs=0.1)


def test_the_row_by_column_product_adds_in_the_order_of_k(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((7, 50)).astype(np.float32), rng.standard_normal((50, 5)).astype(np.float32)
    rows, found = BENCH.row_by_column(a, b)
    assert list(rows) == list(range(7)) and found.dtype == np.float32
    total = np.float32(0)
    for x, y in zip(a[3], b[:, 2], strict=True):
        total = np.float32(total + np.float32(x * y))
    assert found[3, 2] == total


@pytest.mark.slow
def test_hasa_beside_priests_summation() -> None:
    """Section 3.2: at most ten times dgemm's error. Both references agree to a rounding."""
    results = small("dalberto-fig2", 160)
    ratios = FIGURES["dalberto-fig2-ratio"].measured["measured, all entries"](results)
    assert set(ratios) == {(data, n) for data in dalberto_errors.DATA for n in dalberto_errors.SIZES}
    assert max(ratios.values()) < 10
    apart = [row["references"] for row in results.rows.values() if "references" in row]
    assert len(apart) == len(ratios) and max(apart) < 1e-13


@pytest.mark.parametrize(("n", "depth"), [(800, 0), (1000, 1), (1700, 1), (2000, 2), (3400, 2), (4000, 3), (5000, 3)])
def test_levels_as_figure_2s_caption_has_them(n: int, depth: int) -> None:
    assert dalberto_errors.hasa_depth(n) == depth


def test_random_matrices_against_the_classical_product() -> None:
    results = small("li-fig44", 64)
    errors, exact = results.numbers("error"), results.numbers("exact")
    assert errors["maximum", "dStrassen"] > errors["average", "dStrassen"] > 0
    assert exact["average", "dWinograd"] > exact["average", "dStrassen"] > exact["average", "dgemm"] > 0
    assert errors["maximum", li_errors.CPU] == 0


# ---- the contract


FAMILIES_SHOWN = ("normal", "uniform [0,1]", "Kaporin", "graded")
PLANS = tuple(
    map(Plan.parse, ("strassen > vendor", "winograd > winograd > vendor", "dps.sequential > vendor", "hasa > vendor"))
)


THREE_PRODUCTS = Plan.parse("3m > strassen > vendor")


@pytest.mark.parametrize("dtype", ["float32", "complex64", "complex128"])
def test_the_contract_holds_on_small_products(dtype: str) -> None:
    plans = (*PLANS, *((THREE_PRODUCTS,) if dtype[0] == "c" else ()))
    rows = growth.contract_rows(BENCH, 64, [dtype], (1,), plans, FAMILIES_SHOWN)
    found = {tuple(row["key"]): row for row in rows}
    assert len(found) == 4 * len(plans)
    for row in found.values():
        assert row["growth"][0] <= growth.promised(row["on data"]) <= 10 * row["growth"][0]


def test_the_contract_holds_in_all_samples() -> None:
    """Never below the median that was measured, and at most ten times above."""
    paths = samples_of("error-growth")
    assert paths
    for results in map(read_results, paths):
        measured, on_data = results.numbers("growth"), results.numbers("on data")
        assert len(on_data) > 1000
        for key, x in on_data.items():
            assert measured[key] <= growth.promised(x) <= 10 * measured[key], key


# By how much what is measured exceeds what is expected without the data, as the figure says.
EXCESS = {"normal": 1.03, "uniform [0,1]": 1.03, "uniform [-1,1]": 1.03, "low rank": 1.03, "graded": 1.6, "Kaporin": 11}


def test_what_the_contracts_figure_says() -> None:
    for results in map(read_results, samples_of("error-growth")):
        measured, expected, on_data = (results.numbers(x) for x in ("growth", "expected", "on data"))
        excess: dict[str, float] = {}
        for key, x in measured.items():
            excess[str(key[2])] = max(excess.get(str(key[2]), 0), x / expected[key])
        assert set(excess) == set(EXCESS) and all(x <= EXCESS[family] for family, x in excess.items()), excess
        assert max(growth.promised(x) / measured[key] for key, x in on_data.items()) < 8
        assert {key[1] for key in measured} == set(growth.HOST_TYPES)


def test_all_budgets_were_kept_in_all_samples() -> None:
    paths = samples_of("error-budget")
    assert paths
    for results in map(read_results, paths):
        assert len(results.rows) == budget.PROBLEMS and not budget.broken(results)


def test_all_schemes_and_tables_are_in_the_experiment() -> None:
    names = {plan.split(" > ")[0].partition(".")[0] for plan in growth.host_plans(520)}
    assert names == {*scheme_names(), *step_table_names()}
    assert "strassen > strassen > strassen > strassen > vendor" in growth.host_plans(512)
    assert "laderman > laderman > laderman > vendor" in growth.host_plans(520)
    for dtype in growth.HOST_TYPES:
        assert all(plan.takes_type(dtype) for plan in growth.plans_on(True, dtype, 256))
    assert Plan.parse("3m > vendor") in growth.plans_on(True, "complex64", 256)


def test_budgets_are_kept() -> None:
    rows = {tuple(row["key"]): row for row in budget.budget_rows(BENCH, 200, 12)}
    assert len(rows) == 12 and {key[1] for key in rows} == {"product", "gram"}
    assert not budget.broken(Results((), 1.0, rows))
    assert any(str(key[-1]) != str(VENDOR) for key in rows)


@pytest.mark.parametrize("name", FAMILIES)
def test_families_are_what_they_are_called(name: str) -> None:
    a, b = pair_of(np, np.random.default_rng(1), FAMILIES[name], 48, False)
    c, _ = pair_of(np, np.random.default_rng(1), FAMILIES[name], 48, True)
    assert a.shape == b.shape == (48, 48) and a.dtype == np.float64 and c.dtype == np.complex128
    assert np.isfinite(a).all() and np.isfinite(b).all()


# ---- when to recurse


def test_equation_2_per_problem_and_once_for_all() -> None:
    shape = (2900, 2900, 2900)
    assert str(dalberto_speed.hasa_dynamic(shape, 50, epsilon=0)) == "hasa > hasa > vendor"  # from 22 x 50 on
    assert str(dalberto_speed.hasa_dynamic(shape, 50)) == "hasa > vendor"  # from 22 (50 + 20) = 1540 on
    assert str(dalberto_speed.hasa_dynamic(shape, 10, epsilon=0)) == "hasa > hasa > hasa > hasa > vendor"
    assert str(dalberto_speed.hasa_static((3000, 800, 3000), 900)) == "vendor"
    assert str(dalberto_speed.balanced_hasa((8000, 1000, 1000), 900)) == "balanced(2) > hasa > vendor"


def test_the_drawn_problems_are_the_papers_sizes() -> None:
    found = dalberto_speed.sampled_shapes(dalberto_speed.SIZES_3, 1.0, 20)
    assert len(set(found)) == 20 and all(side in dalberto_speed.SIZES_3 for shape in found for side in shape)
    assert found == dalberto_speed.sampled_shapes(dalberto_speed.SIZES_3, 1.0, 20)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "codes"),
    [("dalberto-fig3", {"Balanced", "HASA", "HASA dynamic"}), ("dalberto-fig6", {"S-1", "S-2", "S-3", "HASA"})],
)
def test_speeds_of_dalberto(name: str, codes: set[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every code on each of a few small problems, beside dgemm and what fmm's model chooses."""
    monkeypatch.setattr(dalberto_speed, "SAMPLED", 6)
    monkeypatch.setattr(dalberto_speed, "SQUARES", dalberto_speed.SQUARES[:4])
    monkeypatch.setattr(dalberto_speed, "ROUNDS", 2)
    results, codes = small(name, 400), codes | {dalberto_speed.DGEMM, dalberto_speed.MODEL}
    rows = {key: row for key, row in results.rows.items() if "n1" not in key}
    problems = {next(x for x in key if x not in codes) for key in rows}
    assert len(problems) == (6 if name == "dalberto-fig3" else 4) and len(rows) == len(problems) * len(codes)
    assert all(len(row["seconds"]) == len(row["gain"]) == 2 and min(row["seconds"]) > 0 for row in rows.values())
    gains = results.numbers("gain")
    assert {x for key, x in gains.items() if dalberto_speed.DGEMM in key} == {0.0}


# ---- Huang's and Li's plans


def test_all_plans_of_the_papers_codes_parse() -> None:
    texts = [text for n in li_errors.SIZES for host in (False, True) for text in li_speed.speed_plans(n, host).values()]
    texts += list(huang_speed.DEVICE_CODES.values())
    texts += [f"{level}tile.{s.lower()}" for level in huang_speed.LEVELS.values() for s in huang_speed.STRATEGIES]
    assert all(str(Plan.parse(text)) for text in texts)
    assert (
        li_speed.speed_plans(16384, False)["tWinograd", 4] == "li-fig23 > li-fig23 > li-fig23 > li-fig13 > tile.texture"
    )


def test_break_even_is_where_it_stays_faster() -> None:
    sizes = huang_speed.VARIED
    rows: dict[Any, Any] = {("m=n=k", "cuBLAS", n): {"tflops": 10.0} for n in sizes}
    rows |= {("m=n=k", "1-level", n): {"tflops": 11.0 if n in (1536, *sizes[4:]) else 9.0} for n in sizes}
    found = FIGURES["huang-fig1"].measured["measured"](Results((), 1.0, rows))
    assert found == {("break-even", "1-level"): float(sizes[4]), ("best speedup", "1-level"): 1.1}


# ---- tables, files, pictures


def made(**more: Any) -> Figure:
    experiment = Experiment("e", ("code", "n"), 100, lambda bench, scale: ())
    return Figure("e", "A title", experiment, {"measured": quantity("error")}, "It says.", **more)


RESULTS = Results(({"processor": "P"},), 0.5, {("a", 10): {"error": [3.0, 1.0, 2.0]}, ("b", 10): {"failed": "no"}})


def test_a_table_has_published_computed_and_measured_side_by_side() -> None:
    figure = made(published={("a", 10): 4.0, ("a", 20): 5.0}, computed={"model": lambda: {("a", 20): 6.0}})
    table = figure_table(figure, RESULTS)
    assert table.columns == ("code", "n", "published", "model", "measured")
    assert table.rows == (("a", 10, 4.0, None, 2.0), ("a", 20, 5.0, 6.0, None))
    assert table.notes == ("measured on P, at 0.5 of these sizes, thresholds of sizes likewise.", "It says.")
    assert figure_table(figure).columns == ("code", "n", "published", "model")


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    write_results(RESULTS, made().experiment, tmp_path / "sub" / "e.json")
    kept = Results(RESULTS.runs, 0.5, {key: {"key": list(key), **row} for key, row in RESULTS.rows.items()})
    write_results(kept, made().experiment, tmp_path / "e.json")
    assert read_results(tmp_path / "e.json") == kept


@pytest.mark.parametrize("name", ["li-fig43", "li-fig40", "li-fig42"])
def test_pictures_have_every_curve(name: str) -> None:
    pytest.importorskip("matplotlib")
    figure = FIGURES[name]
    drawn = draw_figure(figure, small(figure.experiment.name)).axes[0]
    assert drawn.get_title() == f"{name}: {figure.title}" and drawn.lines
    table = figure_table(figure, small(figure.experiment.name))
    shown = sum(len(line.get_xdata()) for line in drawn.lines)
    keys = len(figure.key_names)
    assert shown == sum(cell is not None for row in table.rows for cell in row[keys:])


# ---- the command

Refused = Callable[..., str]


def test_the_command_measures_writes_and_reads_back(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["paper", "li-fig43", "--measure", "--device", "cpu", "--side", "64", "--into", str(tmp_path), "--json"]
    assert main(command) == 0
    told = json.loads(capsys.readouterr().out)
    rows = {(row["error"], row["code"]): row for row in told["rows"]}
    assert rows["maximum", "dgemm"]["published"] == 6.5e-13 and rows["maximum", "dgemm"]["measured"] > 0
    assert json.loads((tmp_path / "li-fig43.json").read_text())["scale"] == 64 / 8192
    assert main(["paper", "li-fig43", "--measured", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == told
    assert main(["paper", "li-fig43", "li-fig11", "--json"]) == 0
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
    assert main(["paper", *arguments]) == 2
    out, err = capsys.readouterr()
    assert not out and named in err and err.startswith("fmm-tune paper: ") and err.count("\n") == 1


def test_a_figure_without_samples_prints_what_is_published(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["paper", "li-fig40"]) == 0
    out = capsys.readouterr().out
    assert "3.634" in out and "measured on" not in out


def test_a_plan_that_cannot_run_is_a_row_with_the_reason() -> None:
    a = np.ones((4, 4))
    seconds, failed = time_plans(BENCH, {"good": "vendor", "bad": "strassen.batched.unequal > vendor"}, a, a, 1)
    assert list(seconds) == ["good"] and "needs equal blocks" in failed["bad"]
    assert isinstance(bench_of("cpu"), HostBench)
    assert TABLES["li-fig11"]().rows


def test_a_figure_of_break_even_points_says_where_there_are_none() -> None:
    """On a processor its rows are empty, which reads as if nothing had been found."""
    path = SAMPLES / "cpu-intel-r-xeon-r-processor-2t" / "paper" / "huang-fig8.json"
    notes = figure_table(FIGURES["huang-fig1"], read_results(path)).notes
    assert any(note.startswith("No break-even point here, up to ") and "2-level reference" in note for note in notes)
    assert any("Not measured here: 1-level, 2-level hybrid, whose products have sums inside" in x for x in notes)
