"""The tables of docs/scaling.md have the numbers that the command computes now."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from benchmarks import scaling
from benchmarks.scaling import COLUMNS, FLOAT32_IEEE, MARK, PAGE, TABLE_FORMS, TABLES, Row, fastest_decision, mesh_cells
from fmm.config.files import SHIPPED_CONFIG

# Rows that are computed in seconds; all others are slow tests.
QUICK = {Row("float64", 32768, 2), Row(FLOAT32_IEEE, 32768, 2), Row("float32", 65536, 4), Row("bfloat16", 98304, 4)}
ROWS = [(name, row) for name, rows in TABLES.items() for row in rows]


def written() -> dict[str, list[list[str]]]:
    """Return each table of the page, as rows of cells."""
    found = {}
    for mark in MARK.finditer(PAGE.read_text(encoding="utf-8")):
        lines = mark[0].splitlines()[1:-1]
        found[mark[2]] = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return found


def test_the_page_has_the_tables_that_the_command_writes() -> None:
    found = written()
    assert found.keys() == TABLES.keys()
    for name, rows in TABLES.items():
        heading, _, *lines = found[name]
        assert tuple(heading) == TABLE_FORMS[name][0]
        assert [tuple(line[:3]) for line in lines] == [row.label for row in rows]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("table", "row"),
    [pytest.param(*x, id=" ".join((x[0], *x[1].label)), marks=() if x[1] in QUICK else pytest.mark.slow) for x in ROWS],
)
def test_its_numbers_are_the_models(table: str, row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, run python -m benchmarks scaling."""
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED_CONFIG))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_EMULATION", os.environ.get("FMM_EMULATION", "1"))  # restored at the end
    (said,) = (line for line in written()[table] if tuple(line[:3]) == row.label)
    assert tuple(said) == tuple(TABLE_FORMS[table][1](row))


def test_the_quick_rows_stand_on_the_page() -> None:
    assert {row for _, row in ROWS} >= QUICK


@pytest.mark.slow
@pytest.mark.parametrize(("above", "said"), [("vendor", "no"), ("winograd > vendor", "yes")])
def test_a_row_says_whether_the_level_is_taken(above: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A level that is predicted to gain less than the model's error is not taken."""
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED_CONFIG))
    monkeypatch.setenv("FMM_EMULATION", "1")
    row = Row(FLOAT32_IEEE, 65536, 2)
    found = fastest_decision(row)
    chosen = min(
        (way for way in found.candidates if str(way.outer_plan) == above), key=lambda way: way.predicted_seconds
    )
    monkeypatch.setattr(scaling, "fastest_decision", lambda row: replace(found, best=chosen))
    assert mesh_cells(row)[COLUMNS.index("taken")] == said
