"""The table at the end of a tuning: its numbers are those of the decisions, at every width, in pipes and terminals."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import read_thresholds
from fmm.tuner.cli import main
from fmm.tuner.findings.device_summary import (
    MEASURED_MARK,
    NO_NUMBER,
    BaselineTaus,
    DeviceSummary,
    SummaryCell,
    block_strategy_text,
    is_config_in_force,
    matrix_side_cell,
    minutes_and_seconds_text,
    print_summary,
    summarize_device,
)
from fmm.tuner.findings.model_in_use import decide_square, first_gaining_side, model_in_use
from fmm.tuner.findings.summary import SUMMARY_SIDES
from tests.support import ROOT, configs

RESULTS = ROOT / "results"
RECORDED = (
    RESULTS / "nvidia-h200" / "config.json",
    RESULTS / "nvidia-h100-80gb-hbm3" / "config.json",
    RESULTS / "cpu-intel-r-xeon-r-processor-2t" / "config.json",
    SHIPPED_CONFIG,
)
recorded = pytest.mark.parametrize("path", RECORDED, ids=lambda path: str(path.relative_to(ROOT).parent))


def summaries(path: Path) -> list[DeviceSummary]:
    return [summarize_device(key, types, path, in_force=True) for key, types in files.read_config(path).items()]


def row_of(summary: DeviceSummary, dtype: str) -> dict[str, SummaryCell]:
    """The cells of a type by the head of their column."""
    (speedups,) = (cells for name, cells in summary.speedups.rows if name == dtype)
    (recursion,) = (cells for name, cells in summary.recursion.rows if name == dtype)
    heads = (*summary.speedups.heads, *summary.recursion.heads)
    return dict(zip(heads, (*speedups, *recursion), strict=True))


def cpu_summary(section: dict[str, Any] | None = None, **more: Any) -> DeviceSummary:
    section = configs.section() if section is None else section
    return summarize_device("cpu-a", {"float64": section}, Path("c.json"), in_force=True, **more)


# ---- recorded tunings


@pytest.mark.quick_cases(2)
@recorded
def test_the_table_of_a_recorded_tuning_fits_in_80_columns_and_33_lines(path: Path) -> None:
    for summary in summaries(path):
        lines = list(summary.text_lines(80))
        tables = [line for line in lines if not line.startswith(("config", "next"))]
        assert max(map(len, tables)) <= 80 and len(lines) <= 33, "\n".join(lines)
        assert not any("\033" in line for line in lines)


@pytest.mark.quick_cases(2)
@recorded
def test_the_speedups_are_those_of_the_decisions(path: Path) -> None:
    """A gain is a number with its mark if an entry decides; every other cell is no number."""
    for key, types in files.read_config(path).items():
        summary = summarize_device(key, types, path, in_force=True)
        for dtype in list(types)[:3]:
            used, row = model_in_use(key, dtype, types), row_of(summary, dtype)
            for side in SUMMARY_SIDES:
                answer, cell = decide_square(used, side), row[str(side)]
                if answer is None or not answer.has_gain:
                    assert cell == SummaryCell(NO_NUMBER), (dtype, side)
                else:
                    assert float(cell.text.rstrip("x")) == pytest.approx(answer.speedup, abs=0.051), (dtype, side)
                    assert cell.measured == (answer.entry is not None)
            first = used.calibration and first_gaining_side(used.calibration, dtype)
            assert row["crossover"].text == (f"{first:,}" if first else NO_NUMBER)


@pytest.mark.quick_cases(1)
@recorded
def test_the_recursion_is_that_of_the_config(path: Path) -> None:
    for key, types in files.read_config(path).items():
        summary = summarize_device(key, types, path, in_force=True)
        for dtype, section in types.items():
            found, row = read_thresholds(section["thresholds"]), row_of(summary, dtype)
            assert found is not None and row["n1"].text == f"{found.n1:,.0f}"
            assert float(row["alpha/pi"].text.replace(",", "")) == pytest.approx(found.alpha / found.pi, abs=0.51)
            measured = found.measured_taus.get("vendor", {}).get("tau1")
            predicted = found.without_emulation.get("tau1") if found.without_emulation else found.tau1.value
            assert row["tau1"] == (
                matrix_side_cell(predicted) if measured is None else matrix_side_cell(measured, True)
            )


def test_emulated_products_have_thresholds_of_their_own() -> None:
    """tau1 never means cuBLAS in one row and float16 products in another; the levels are in the row of the plan."""
    summary, *_ = summaries(SHIPPED_CONFIG)
    rows = summary.recursion.rows
    (i,) = (i for i, (name, _) in enumerate(rows) if name == "float32")
    vendor, (name, emulated) = rows[i][1], rows[i + 1]
    assert name.strip() == "emulated" and vendor[2] != emulated[2]
    assert emulated[0].text == emulated[1].text == vendor[5].text == NO_NUMBER != emulated[5].text


# ---- cells


def test_measured_crossovers_are_marked_and_have_a_row_for_each_baseline() -> None:
    taus = {
        "vendor": {"tau1": 7000.0, "tau2": None, "tau3": float(1 << 20)},
        "f16x3": {"tau1": 9000.0, "tau2": None, "tau3": None},
    }
    predicted = {"tau1": 1000.0, "tau2": 8000.0, "tau3": 30000.0}
    known = configs.raw_thresholds(predicted, alpha=2e-12, pi=1e-14, n1=3000.0)
    summary = cpu_summary(configs.section(thresholds={**known, "measured_taus": taus}))
    (_, vendor), (name, other) = summary.recursion.rows
    assert vendor[0].text == "200" and vendor[1].text == "3,000"
    assert vendor[2:5] == (SummaryCell("7,000", True), SummaryCell("8,000"), SummaryCell("never", True))
    assert name.strip() == "f16x3"
    assert other[2:5] == (SummaryCell("9,000", True), SummaryCell("9,000"), SummaryCell("30,000"))


def test_baselines_with_one_first_level_have_their_whole_names() -> None:
    taus = {name: {"tau1": 7000.0, "tau2": None, "tau3": None} for name in ("vendor", "3m > vendor", "3m > f16x3")}
    known = configs.raw_thresholds({"tau1": 1.0, "tau2": 2.0, "tau3": 3.0}, alpha=2e-12, pi=1e-14, n1=3000.0)
    summary = cpu_summary(configs.section(thresholds={**known, "measured_taus": taus}))
    assert [name.strip() for name, _ in summary.recursion.rows] == ["float64", "3m > vendor", "3m > f16x3"]


def test_the_block_strategy_of_most_sides_has_its_range() -> None:
    assert block_strategy_text({}) == "" and block_strategy_text({"512": "Trio"}) == "Trio (512)"
    strategies = {"512": "Small", "1024": "Deep", "2048": "Deep", "4096": "Solo"}
    assert block_strategy_text(strategies) == "Deep (1024-2048)"


def test_a_measured_square_is_marked_in_plain_text_and_bold_in_colour() -> None:
    entry = configs.entry((4096, 4096, 4096), speedup=1.17, low=1.16, high=1.18)
    summary = cpu_summary(configs.section(entry))
    plain, coloured = ("\n".join(summary.text_lines(80, colour)) for colour in (False, True))
    assert "1.17x*" in plain and "\033" not in plain and "*: measured here" in plain
    assert "\033[1m1.17x\033[0m" in coloured and "bold: measured here" in coloured and MEASURED_MARK not in coloured


@pytest.mark.slow
@pytest.mark.parametrize("width", [40, 56, 64, 80, 200])
def test_columns_of_sizes_drop_from_the_left(width: int) -> None:
    summary = summaries(RECORDED[1])[0]
    head = next(iter(summary.speedups.text_lines(width, False)))
    shown = head.removeprefix("speedup, n =").split()
    heads = list(summary.speedups.heads)
    assert shown == heads[len(heads) - len(shown) :] and shown[-3:] == ["crossover", "error", "workspace"]
    assert len(head) <= max(width, 45) and (width < 80 or len(shown) == len(heads))


# ---- what failed


def test_a_rejected_type_has_no_numbers_and_one_line_says_what_to_do() -> None:
    busy = "10 % of the baseline timings deviate 18x from the fit"
    known = configs.raw_thresholds({"tau1": 1.0, "tau2": 2.0, "tau3": 3.0}, alpha=2e-12, pi=1e-14, n1=3000.0)
    summary = cpu_summary(configs.section(doubts=[busy], thresholds=known))
    rows = (*summary.speedups.rows, *summary.recursion.rows)
    assert all(cell.text == NO_NUMBER for _, cells in rows for cell in cells)
    line = summary.failure_line
    assert busy in line and "idle machine" in line and line.endswith("fmm-tune --device cpu --dtype float64")
    assert not cpu_summary().failure_line


def test_a_type_without_a_section_has_no_numbers_and_its_reason() -> None:
    summary = cpu_summary(dtypes=["float64", "float32"], failures={"float32": "too little was measured"}, seconds=161.4)
    rows = dict(summary.speedups.rows)
    assert {cell.text for cell in rows["float32"]} == {NO_NUMBER} and rows["float64"][-3].text != NO_NUMBER
    assert summary.failure_line == ("to do   float32: too little was measured: fmm-tune --device cpu --dtype float32")
    assert (
        summary.tuning_status_text == "tuned in 2 min 41 s, 2 types" and minutes_and_seconds_text(59.6) == "1 min 0 s"
    )


def test_types_that_stopped_for_one_reason_are_one_entry() -> None:
    reason = "the time limit was reached; --resume continues"
    both = dict.fromkeys(("float32", "float64"), reason)
    summary = cpu_summary(dtypes=["float64", "float32"], failures=both, seconds=1.0)
    assert summary.failure_line == f"to do   float64, float32: {reason}: fmm-tune --device cpu"


# ---- where it is printed


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.slow
def test_a_terminal_gets_colour_unless_the_user_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    summary = summaries(RECORDED[1])[0]
    terminal, pipe, refused = Terminal(), io.StringIO(), Terminal()
    print_summary(summary, terminal)
    print_summary(summary, pipe)
    monkeypatch.setenv("NO_COLOR", "1")
    print_summary(summary, refused)
    assert "\033[1m" in terminal.getvalue() and "\033" not in pipe.getvalue() + refused.getvalue()


def test_show_opens_with_the_table_and_prints_the_rest_when_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = RECORDED[2]
    monkeypatch.setenv("FMM_CONFIG", str(path))
    assert is_config_in_force(path) and not is_config_in_force(RECORDED[0])
    assert main(["show"]) == 0
    table = capsys.readouterr().out
    assert table.splitlines() == list(summaries(path)[0].text_lines()) and f"config  {path}" in table
    assert main(["show", "--verbose"]) == 0
    assert (shown := capsys.readouterr().out).startswith(table) and "fixed parameters" in shown
    assert main(["show", "float32"]) == main(["show", str(path), "float32"]) == 0
    shown = capsys.readouterr().out
    assert "recursion point" in shown and "float64" not in shown
    assert main(["show", "tf32"]) == 1 and "has no section of tf32" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["show", str(path), "float33"])
    assert "unknown type 'float33'" in capsys.readouterr().err


def test_a_measured_crossover_of_the_vendor_leaves_the_row_of_emulated_products() -> None:
    known = configs.raw_thresholds({"tau1": 9000.0, "tau2": 9500.0, "tau3": None}, alpha=2e-12, pi=1e-14, n1=3000.0)
    known["without_emulation"] = {"tau1": 2000.0, "tau2": 3000.0, "tau3": 4000.0}
    measured = {"vendor": {"tau1": 2500.0, "tau2": None, "tau3": None}}
    summary = cpu_summary(configs.section(thresholds={**known, "measured_taus": measured}))
    (_, vendor), (name, emulated) = summary.recursion.rows
    assert vendor[2:5] == (SummaryCell("2,500", True), SummaryCell("3,000"), SummaryCell("4,000"))
    assert name.strip() == "emulated" and emulated[2:5] == (SummaryCell("9,000"), SummaryCell("9,500"), SummaryCell())


def test_plans_on_fmms_own_tiles_have_thresholds_without_emulation_and_leave_the_row_of_emulated_products() -> None:
    known = configs.raw_thresholds({"tau1": 9000.0, "tau2": 9500.0, "tau3": None}, alpha=2e-12, pi=1e-14, n1=3000.0)
    known["without_emulation"] = {"tau1": 2000.0, "tau2": 3000.0, "tau3": 4000.0}
    measured = {
        "tile": {"tau1": 2500.0, "tau2": None, "tau3": None},
        "f16x3": {"tau1": 8000.0, "tau2": None, "tau3": None},
    }
    for names, last in (({"tile"}, ("9,000", "9,500")), ({"tile", "f16x3"}, ("8,000", "9,500"))):
        taus = {name: measured[name] for name in sorted(names, reverse=True)}
        summary = cpu_summary(configs.section(thresholds={**known, "measured_taus": taus}))
        found = {name.strip(): [cell.text for cell in cells[2:4]] for name, cells in summary.recursion.rows}
        assert found["tile"] == ["2,500", "3,000"]
        assert found["f16x3" if "f16x3" in names else "emulated"] == list(last)
        assert ("emulated" in found) == ("f16x3" not in names)


@pytest.mark.slow
def test_without_a_config_show_prints_the_shipped_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("XDG_CONFIG_HOME", "XDG_CONFIG_DIRS", "HOME"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("FMM_CONFIG", raising=False)
    assert main(["show"]) == 0
    printed = capsys.readouterr()
    assert (
        printed.err.startswith(f"fmm-tune: {files.default_path()}: there is no config;")
        and printed.err.count("\n") == 1
    )
    assert printed.out.count("speedup, n =") == len(files.read_config(SHIPPED_CONFIG)) and "not read" not in printed.out
    assert main(["show", "float32", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["dtype"] for row in rows} == {"float32"} and {row["tuned"]["effort"] for row in rows} == {"shipped"}
    monkeypatch.setenv("FMM_CONFIG", str(tmp_path / "none.json"))  # then no other config is read
    assert main(["show"]) == 1 and "there is no config" in capsys.readouterr().err


def test_predicted_crossovers_are_moved_between_measured_ones() -> None:
    predicted = {"tau1": 2000.0, "tau2": 12000.0, "tau3": 9000.0}

    def texts(measured: dict[str, float | None]) -> list[str]:
        return [cell.text for cell in BaselineTaus("vendor", measured, predicted).crossover_cells]

    assert texts({}) == ["2,000", "12,000", "9,000"]
    assert texts({"tau3": 6000.0}) == ["2,000", "6,000", "6,000"]
    assert texts({"tau2": 13000.0}) == ["2,000", "13,000", "13,000"]
    assert texts({"tau1": 3000.0, "tau3": 30000.0}) == ["3,000", "12,000", "30,000"]
