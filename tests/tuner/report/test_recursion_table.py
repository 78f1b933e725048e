"""D'Alberto and Nicolau's Table 3 of this device, in the report and in a terminal: the same columns, filled once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.config.locate import SHIPPED
from fmm.tuner.cli import main
from fmm.tuner.report.recursion_table import COLUMNS, HEAD, recursion_lines, recursion_rows
from tests.support import ROOT
from tests.support.configs import raw_thresholds

RECORDED = sorted((ROOT / "results").glob("*/**/config.json"))
NARROW = 100  # letters of a line in a terminal


TAUS = {"tau1": 2000.0, "tau2": 4000.0, "tau3": None}


def found(**more: Any) -> dict[str, Any]:
    return raw_thresholds(TAUS, **{"alpha": 2e-12, "pi": 2e-14, "n1": 1500.4, **more})


@pytest.mark.parametrize(
    ("gains", "measured", "told"),
    [
        ({"2048": 0.97, "3072": 1.02}, 3072.0, "3072"),
        ({"2048": 1.01, "4096": 1.1}, None, "below 2048, the least that was timed"),
        ({"2048": 0.9, "4096": 0.99}, None, "above 4096, the largest timed"),
        ({}, None, "not measured"),
    ],
)
def test_the_recursion_point_by_the_model_stands_beside_the_measured_one(
    gains: dict[str, float], measured: float | None, told: str
) -> None:
    """In a terminal without what explains it."""
    raw = found(one_level=gains, n1_measured=measured)
    ((dtype, *cells),) = recursion_rows([("float64", raw)])
    assert dtype == "float64" and len(cells) == len(HEAD) - 1
    assert cells[:5] == ["50,000", "500,000", "100", "1500", told] and cells[6:] == ["2000", "4000", "never"]
    (short,) = recursion_rows([("float64", raw)], intervals=False)
    assert short == (dtype, *(cell.partition(",")[0] if cell == told else cell for cell in cells))


def test_intervals_stand_behind_what_they_are_of() -> None:
    """A rate falls where the seconds rise: its ends change places."""
    intervals = {"alpha": [1e-12, 4e-12], "pi": [1e-14, 4e-14], "n1": [750, 3000], "tau2": [3900, None]}
    ((_, *cells),) = recursion_rows([("float64", found(intervals=intervals))])
    rates = ["50,000 [25,000, 100,000]", "500,000 [250,000, 1,000,000]"]
    assert cells[:4] == [*rates, "100 [50, 200]", "1500 [750, 3000]"]
    assert cells[6:] == ["2000", "4000 [3900, never]", "never"]


def test_types_without_thresholds_are_left_out() -> None:
    old = {"tau1": 2569.0, "recursion_points": [5138.1]}
    assert list(recursion_rows([("float32", None)])) == []
    ((dtype, said),) = recursion_rows([("float32", old)])
    assert dtype == "float32" and said.startswith("of an earlier fmm")
    assert list(recursion_lines([("float32", old), ("tf32", None)])) == []
    lines = list(recursion_lines([("float32", old), ("float64", found())]))
    assert [line.split()[0] for line in lines[1:3]] == ["type", "float64"]


@pytest.mark.parametrize("path", [*RECORDED, SHIPPED], ids=lambda path: str(path.relative_to(ROOT).parent))
def test_the_table_of_a_recorded_tuning_is_narrow(path: Path) -> None:
    for types in files.read_config(path).values():
        lines = list(recursion_lines((dtype, section["thresholds"]) for dtype, section in types.items()))
        assert len(lines) > 2 + len(types) and max(map(len, lines)) <= NARROW
        head, *rows = lines[1 : 2 + len(types)]
        assert head.split() == ["type", *" ".join(column.short for column in COLUMNS).split()]
        assert [row.split()[0] for row in rows] == list(types)


def test_show_prints_it_before_the_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ROOT / "results" / "nvidia-h200")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (table,) = (i for i, line in enumerate(lines) if line.startswith("The papers' thresholds"))
    (first,) = (i for i, line in enumerate(lines) if line.startswith("cuda-9.0-132sm, float32 ("))
    assert table < first
    types = files.read_config(ROOT / "results" / "nvidia-h200" / "config.json")["cuda-9.0-132sm"]
    (row,) = recursion_rows([("float32", types["float32"]["thresholds"])], intervals=False)
    assert lines[table + 2].split() == " ".join(row).split()
