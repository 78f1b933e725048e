"""D'Alberto and Nicolau's Table 3 of a device, and the thresholds of one section: the same numbers in both."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from fmm.config import files
from fmm.config.files import SHIPPED_CONFIG
from fmm.config.schema import read_thresholds
from fmm.tuner.cli import main
from fmm.tuner.findings.diagnostics import machine_diagnostics
from fmm.tuner.findings.summary import SectionText, thresholds_of_types
from tests.support import ROOT, configs
from tests.support.configs import raw_thresholds

RECORDED = sorted((ROOT / "results").glob("*/**/config.json"))
NARROW = 120  # letters of a line in a terminal
TAUS = {"tau1": 2000.0, "tau2": 4000.0, "tau3": None}


def found(**more: Any) -> dict[str, Any]:
    return raw_thresholds(TAUS, **{"alpha": 2e-12, "pi": 2e-14, "n1": 1500.4, **more})


def row_of(raw: dict[str, Any], intervals: bool = False, dtype: str = "float64") -> list[str]:
    ((first, *cells),) = thresholds_of_types([(dtype, {"thresholds": raw})], intervals).rows
    assert first == dtype
    return cells


@pytest.mark.parametrize(
    ("gains", "measured", "cell"),
    [
        ({"2048": 0.97, "3072": 1.02}, 3072.0, "3072"),
        ({"2048": 1.01, "4096": 1.1}, None, "< 2048"),
        ({"2048": 0.9, "4096": 0.99}, None, "> 4096"),
        ({}, None, "not measured"),
    ],
)
def test_the_measured_recursion_point_or_its_bound(gains: dict[str, float], measured: float | None, cell: str) -> None:
    cells = row_of(found(one_level=gains, n1_measured=measured))
    assert cells[:5] == ["50,000", "500,000", "100", "1500", cell] and cells[6:] == ["2000", "4000", "never"]


def test_intervals_follow_their_values() -> None:
    """A rate falls where the seconds rise: its ends change places."""
    intervals = {"alpha": [1e-12, 4e-12], "pi": [1e-14, 4e-14], "n1": [750, 3000], "tau2": [3900, None]}
    cells = row_of(found(intervals=intervals), intervals=True)
    rates = ["50,000 [25,000, 100,000]", "500,000 [250,000, 1,000,000]"]
    assert cells[:4] == [*rates, "100 [50, 200]", "1500 [750, 3000]"]
    assert cells[6:] == ["2000", "4000 [3900, never]", "never"]


@pytest.mark.parametrize(("dtype", "factor"), [("float64", "15"), ("complex64", "15/4"), ("complex128", "15/4")])
def test_alpha_over_pi_is_the_ratio_of_alpha_and_pi_for_complex_types_too(dtype: str, factor: str) -> None:
    """Equation 3 counts two flops for a multiply-add, and a complex multiply-add has eight."""
    n1 = 100 * float(Fraction(factor))
    raw = found(n1=n1, intervals={"n1": [n1 / 2, 2 * n1]})
    assert row_of(raw, True, dtype)[2] == "100 [50, 200]"
    thresholds = read_thresholds(raw)
    assert thresholds is not None
    table = SectionText({**configs.section(), "thresholds": raw}, dtype, "cpu-a").thresholds_table(thresholds)
    assert table.note == f"Equation 3: n1 = {factor} alpha / pi"


def test_a_type_without_thresholds_has_no_row() -> None:
    unreadable, none = ({"thresholds": x} for x in ({"tau1": 2569.0, "recursion_points": [5138.1]}, None))
    assert not thresholds_of_types([("float32", unreadable), ("tf32", none)]).rows
    (row,) = thresholds_of_types([("float32", unreadable), ("float64", {"thresholds": found()})]).rows
    assert row[0] == "float64"


def test_a_noisy_tuning_has_no_numbers() -> None:
    noisy, unchecked = (
        {"thresholds": found(), "doubts": [diagnostic]}
        for diagnostic in (*machine_diagnostics(0.34, None, None), "the tuning ended before its model was checked")
    )
    one, two = thresholds_of_types([("float32", noisy), ("float64", unchecked)]).rows
    assert set(one[1:]) == {"noisy"} and two[1] == "50,000"


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("epsilon", "gains", "value"),
    [
        (None, {"2048": 0.9, "4096": 0.99}, None),
        (None, {}, None),
        (0.0, {"2048": 0.9, "4096": 1.01}, 0.0),
        (-12.5, {"2048": 1.1}, -12.5),
    ],
    ids=["all lost", "nothing measured", "nothing to correct", "corrected"],
)
def test_epsilon_is_the_same_in_all_outputs(
    epsilon: float | None,
    gains: dict[str, float],
    value: float | None,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    section = configs.section(thresholds=found(epsilon=epsilon, one_level=gains))
    path = configs.write(tmp_path / "config.json", "cpu-a", found=section)
    text = {None: "not determined", 0.0: "0"}.get(value, "-12.5")
    assert row_of(section["thresholds"])[5] == text
    (table,) = (t for t in SectionText(section, "float64", "cpu-a").section_tables if t.title == "recursion point")
    assert dict((row[0], row[1]) for row in table.rows)["epsilon"] == text
    assert main(["show", "--json", str(path)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert main(["export", "--thresholds", "--json", str(path)]) == 0
    (exported,) = json.loads(capsys.readouterr().out)
    assert shown["thresholds"]["epsilon"] == exported["epsilon"] == value


@pytest.mark.parametrize("path", [*RECORDED, SHIPPED_CONFIG], ids=lambda path: str(path.relative_to(ROOT).parent))
def test_the_table_of_a_recorded_tuning_is_narrow(path: Path) -> None:
    for types in files.read_config(path).values():
        table = thresholds_of_types(types.items())
        assert [row[0] for row in table.rows] == list(types) and max(map(len, table.text_lines)) <= NARROW


@pytest.mark.slow
def test_the_tables_of_a_type_begin_with_the_thresholds(capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "results" / "nvidia-h200"
    types = files.read_config(path / "config.json")["cuda-9.0-132sm-nvidia-h200"]
    table = list(thresholds_of_types([("float32", types["float32"])]).text_lines)
    assert main(["show", str(path), "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (first,) = (i for i, line in enumerate(lines) if line.startswith("cuda-9.0-132sm-nvidia-h200, float32 ("))
    assert lines.index(table[1]) < first and lines.index(table[-1]) < first
    assert not any("cuda-9.0-132sm-nvidia-h200, float64 (" in line for line in lines)
