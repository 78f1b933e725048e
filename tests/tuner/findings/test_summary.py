"""The summary of a tuning: its tables agree with each other and with the decisions, for shipped and recorded models."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import read_calibration, read_thresholds
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import VENDOR
from fmm.perfmodel.calibration import Calibration
from fmm.tuner.findings.diagnostics import machine_diagnostics
from fmm.tuner.findings.model_in_use import (
    choose_square_plan,
    decide_squares,
    first_gaining_side,
    gaining_odd_sides,
    model_in_use,
)
from fmm.tuner.findings.summary import (
    SectionText,
    TextTable,
    TypeSummary,
)
from fmm.tuner.findings.thresholds import ALIGNED_SIDE_STEP, SIDE_TOLERANCE, li_threshold_plan, smallest_side_satisfying
from tests.support import ROOT
from tests.support import configs as tuned
from tests.support.marks import quick_and_slow

KEY, TYPES = next(iter(files.read_config(SHIPPED_CONFIG).items()))  # an H200
RECORDED = sorted((ROOT / "results").glob("*/**/config.json"))


def shipped(dtype: str) -> Calibration:
    return read_calibration(TYPES[dtype]["calibration"], "calibration", dtype, "", "")


def text_of(dtype: str, *entries: Any, **found: Any) -> SectionText:
    """The shipped model, with these entries and conditions."""
    section = {**TYPES[dtype], "entries": [{**e.json_fields, "size": list(e.size)} for e in entries], **found}
    return SectionText(section, dtype, KEY, {**TYPES, dtype: section})


def table_of(text: SectionText, title: str) -> TextTable:
    (table,) = (table for table in text.section_tables if table.title == title)
    return table


def titles(text: SectionText) -> set[str]:
    return {table.title for table in text.section_tables}


def squares(text: SectionText) -> dict[int, tuple[str, ...]]:
    """Speedup, basis, error growth, workspace and plan by the side."""
    return {int(side): tuple(cells) for side, *cells in text.squares_table().rows}


# ---- squares


@pytest.mark.parametrize("dtype", ["bfloat16", "tf32", "float64"])
def test_no_square_with_aligned_rows_beyond_the_first_side_is_the_vendors(dtype: str) -> None:
    """In 16-bit types and TF32 a side of 5793 is not: its rows are copied for the vendor, where 8192 gains nothing."""
    known = shipped(dtype)
    first = first_gaining_side(known, dtype)
    assert first is not None and first % 16 == 0
    for side in (round(first * (1.2 + i / 8) / 256) * 256 for i in range(24)):  # below, tiles decide
        assert choose_square_plan(known, dtype, side).plan != VENDOR, side
    # further below, some sides have lucky tiles
    just_below = range(first - ALIGNED_SIDE_STEP, round(first / SIDE_TOLERANCE) - ALIGNED_SIDE_STEP, -ALIGNED_SIDE_STEP)
    assert any(choose_square_plan(known, dtype, side).plan == VENDOR for side in just_below)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_squares_of_the_table_gain(dtype: str) -> None:
    first, rows = first_gaining_side(shipped(dtype), dtype), squares(text_of(dtype))
    assert first is not None and rows
    assert all(float(cells[0]) > 1 and cells[-1] != "vendor" for cells in rows.values())
    assert all(side >= first for side in rows if side % 2 == 0)


def test_odd_sides_are_shown_where_the_vendor_is_slow_on_them() -> None:
    odd = {side: cells[-1] for side, cells in squares(text_of("bfloat16")).items() if side % 2}
    assert list(odd) == [2049, 4097, 8193, 16385] and odd[2049].startswith("aligned.")
    assert gaining_odd_sides(shipped("float32"), "float32") == {}  # by float16 products, as aligned ones
    cpu = SectionText(tuned.section(), "float64", "cpu-a")
    assert all(side % 2 == 0 for side in squares(cpu))


def measured(side: int, plan: str, speedup: float) -> Any:
    return tuned.entry((side, side, side), plan=plan, speedup=speedup, low=speedup - 0.01, high=speedup + 0.01)


def test_a_measured_side_has_the_speedup_of_its_entry() -> None:
    plan = "winograd.overlapped.pad16 > lt3"
    text = text_of("bfloat16", measured(32000, plan, 1.31), measured(40000, "vendor", 1.0), measured(1024, plan, 1.2))
    rows = squares(text)
    assert rows[32000][:2] == ("1.31", "measured") and rows[32000][-1] == plan
    assert rows[64000][1] == "predicted"
    entries = {row[0]: row for row in text.certified_entries_table().rows}
    assert entries["40000"][1] == "1" and entries["1024"][1:3] == ("1.20", "[1.19, 1.21]")


def test_the_workspace_of_the_table_fits_in_the_memory() -> None:
    texts = (text_of("tf32", conditions={"memory": x << 30}) for x in (400, 140, 40))
    need = [{side: float(cells[3]) for side, cells in squares(text).items()} for text in texts]
    assert need[0][64000] > need[1][64000] and 64000 not in need[2]
    assert all(x <= 140 / 2 for x in need[1].values()) and all(x <= 40 / 2 for x in need[2].values())


# ---- crossovers


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("dtype", TYPES)
def test_the_first_chosen_level_is_no_earlier_than_the_first_gain(dtype: str) -> None:
    known = shipped(dtype)
    chosen = float(table_of(text_of(dtype), "crossover sides of squares").rows[0][5])
    first = first_gaining_side(known, dtype)
    assert first is not None and chosen >= first
    assert (chosen == first) == bool(choose_square_plan(known, dtype, first).plan.has_smaller_products)


@pytest.mark.parametrize("side", [257, 990, 4321, 60000])
def test_a_side_between_those_of_the_grid_is_found(side: int) -> None:
    """Also between 976 and 1000: 1000 is on the grid and no multiple of 16."""
    found = smallest_side_satisfying(lambda x: x >= side)
    assert side <= found <= max(SIDE_TOLERANCE * side, side + ALIGNED_SIDE_STEP)


LONG = [path for path in RECORDED if path.parent.name in ("five-minutes", "nvidia-h100-80gb-hbm3")]


@pytest.mark.slow
@pytest.mark.parametrize(
    "path",
    quick_and_slow([path for path in RECORDED if path not in LONG], LONG),
    ids=lambda path: str(path.relative_to(ROOT / "results").parent),
)
def test_the_tables_of_a_recorded_tuning_agree(path: Path) -> None:
    """Crossovers rise with the gain; the chosen one begins where gains do, or later if plans without levels gain first;
    no plan needs more than the device has."""
    ((key, types),) = files.read_config(path).items()
    for dtype, section in types.items():
        text = SectionText(section, dtype, key, types)
        rows = table_of(text, "crossover sides of squares").rows
        for _, low, value, _, high, *_ in rows:
            least, tau, most = (float(x.replace("never", "999999")) for x in (low, value, high))
            assert least <= tau <= most, dtype
        known = model_in_use(key, dtype, types)
        if known.calibration is None:
            continue
        first, one = first_gaining_side(known.calibration, dtype), int(rows[0][5])
        assert first is not None
        between = [choose_square_plan(known.calibration, dtype, first + (one - first) * i // 8) for i in range(8)]
        assert one >= first and (one > first) == any(not choice.plan.has_smaller_products for choice in between), dtype
        for answer in decide_squares(known, squares(text)):
            assert answer.has_gain and answer.speedup > 1, (dtype, answer.side)
            operands = 3 * DTYPES[dtype].itemsize * answer.side**2
            assert known.memory is None or operands + 2 * answer.workspace <= known.memory, (dtype, answer.side)


@pytest.mark.parametrize("path", [*RECORDED, SHIPPED_CONFIG], ids=lambda path: str(path.relative_to(ROOT).parent))
def test_stored_thresholds_are_readable_and_have_intervals(path: Path) -> None:
    for types in files.read_config(path).values():
        for dtype, section in types.items():
            found = read_thresholds(section["thresholds"])
            assert found is not None and {"tau1", "n1"} <= found.intervals.keys(), dtype


def test_thresholds_without_emulation_have_a_column() -> None:
    """Where float32 is multiplied by float16 products, levels pay far later than above the vendor's own."""
    found = read_thresholds(TYPES["float32"]["thresholds"])
    assert found is not None and found.tau1.value and found.without_emulation["tau1"]
    assert found.without_emulation["tau1"] < found.tau1.value / 2
    table = table_of(text_of("float32"), "crossover sides of squares")
    assert float(table.rows[0][-1]) == pytest.approx(found.without_emulation["tau1"], abs=0.5)
    assert len(table_of(text_of("bfloat16"), "crossover sides of squares").columns) == len(table.columns) - 1
    side = int(found.tau1.value) - 16
    assert (
        li_threshold_plan("winograd", side, found, "vendor").levels
        and not li_threshold_plan("winograd", side, found, "f16x3").levels
    )


# ---- what is rejected


def test_a_noisy_tuning_shows_no_rates_and_no_thresholds() -> None:
    """A tuning that is rejected for another reason does."""
    names = {"crossover sides of squares", "recursion point", "fixed parameters"}
    for diagnostic, shown in ((*machine_diagnostics(0.34, None, None), False), ("the tuning ended too early", True)):
        section = tuned.section(
            doubts=[diagnostic],
            noise=0.34,
            thresholds=TYPES["float64"]["thresholds"],
            intervals={"rate.flops": [1e10, 2e10]},
        )
        text = SectionText(section, "float64", "cpu-a")
        assert names <= titles(text) if shown else not names & titles(text)
        quantities = {name: value for name, value, _ in table_of(text, "model").rows}
        assert ("sums of blocks" in quantities) == shown and quantities["noise of equal products"] == "34.0%"
        assert text.diagnostics_table().rows == ((diagnostic, "a short probe in each process"),)


# ---- all types of a device


def test_json_has_the_decisions_of_the_table() -> None:
    """A measured side by its entry, others by the model."""
    section = tuned.section(tuned.entry((4096, 4096, 4096), speedup=1.17))
    found = TypeSummary("float64", model_in_use("cpu-a", "float64", {"float64": section})).json_fields
    rows = {row["side"]: row for row in found["squares"]}
    assert rows[4096]["known"] == "measured" and rows[4096]["speedup"] == 1.17
    assert rows[4096]["plan"] == "winograd > vendor" and rows[8000]["known"] == "predicted"
    assert found["faster_from"] == 256 and found["levels_from"][0] == 256
