"""The tables of docs/scaling.md: those that the command writes, and a few of their numbers computed again."""

from __future__ import annotations

import os

import pytest

from benchmarks.scaling import COLUMNS, MARK, PAGE, PLAIN, TABLES, Row, cells
from fmm.config.locate import SHIPPED

OFF = 0.15  # by which a share of the ideal may differ: models of single devices are fitted anew now and then


def written() -> dict[str, list[list[str]]]:
    """Each table of the page, as rows of cells."""
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
        assert tuple(heading) == COLUMNS
        assert [tuple(line[:3]) for line in lines] == [row.label for row in rows]


@pytest.mark.parametrize("row", [Row("float64", 32768, 2), Row(PLAIN, 32768, 2)], ids=lambda row: row.kind)
def test_its_numbers_are_the_models(row: Row, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FMM_CONFIG", str(SHIPPED))
    monkeypatch.setenv("FMM_TUNING_MODE", "cache")
    monkeypatch.setenv("FMM_EMULATION", os.environ.get("FMM_EMULATION", "1"))  # so that it is put back
    said = next(line for line in written()["one_machine"] if tuple(line[:3]) == row.label)
    place = COLUMNS.index("of ideal")
    assert abs(float(said[place]) - float(cells(row)[place])) < OFF
