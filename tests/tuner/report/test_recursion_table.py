"""D'Alberto and Nicolau's Table 3 of this device, in the report and in a terminal: the same columns, filled once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fmm.tuner.findings.described import described_rows
from fmm.tuner.report.words import WORDS

from fmm.config import files
from fmm.config.files import SHIPPED
from fmm.config.schema import EPSILON, UNDETERMINED_EPSILON
from fmm.tuner.cli import main
from fmm.tuner.findings.diagnostics import machine_diagnostics
from fmm.tuner.findings.summary import ABOUT, COLUMNS, HEAD, recursion_lines, recursion_rows
from tests.support import ROOT, configs
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
    ((dtype, *cells),) = recursion_rows([("float64", {"thresholds": raw})])
    assert dtype == "float64" and len(cells) == len(HEAD) - 1
    assert cells[:5] == ["50,000", "500,000", "100", "1500", told] and cells[6:] == ["2000", "4000", "never"]
    (short,) = recursion_rows([("float64", {"thresholds": raw})], intervals=False)
    assert short == (dtype, *(cell.partition(",")[0] if cell == told else cell for cell in cells))


def test_intervals_stand_behind_what_they_are_of() -> None:
    """A rate falls where the seconds rise: its ends change places."""
    intervals = {"alpha": [1e-12, 4e-12], "pi": [1e-14, 4e-14], "n1": [750, 3000], "tau2": [3900, None]}
    ((_, *cells),) = recursion_rows([("float64", {"thresholds": found(intervals=intervals)})])
    rates = ["50,000 [25,000, 100,000]", "500,000 [250,000, 1,000,000]"]
    assert cells[:4] == [*rates, "100 [50, 200]", "1500 [750, 3000]"]
    assert cells[6:] == ["2000", "4000 [3900, never]", "never"]


def test_types_without_thresholds_are_left_out() -> None:
    old, none = ({"thresholds": x} for x in ({"tau1": 2569.0, "recursion_points": [5138.1]}, None))
    assert list(recursion_rows([("float32", none)])) == []
    ((dtype, said),) = recursion_rows([("float32", old)])
    assert dtype == "float32" and said.startswith("of an earlier fmm")
    assert list(recursion_lines([("float32", old), ("tf32", none)])) == []
    lines = list(recursion_lines([("float32", old), ("float64", {"thresholds": found()})]))
    assert [line.split()[0] for line in lines[1:3]] == ["type", "float64"]


def test_of_a_disturbed_tuning_no_numbers_are_told() -> None:
    """They would be others' work; where it was not disturbed but not checked, they stand."""
    noisy, unchecked = (
        {"thresholds": found(), "doubts": [doubt]}
        for doubt in (*machine_diagnostics(0.34, None, None), "the tuning ended too early to check its model")
    )
    types = [("float32", noisy), ("float64", unchecked)]
    short, whole = recursion_rows(types)
    assert short == ("float32", "too disturbed to say") and len(whole) == len(HEAD)
    lines = list(recursion_lines(types))
    assert "  float32: too disturbed to say." in lines
    assert [line.split()[0] for line in lines[1:3]] == [
        "type",
        "float64",
    ]


@pytest.mark.parametrize(
    ("epsilon", "gains", "told"),
    [
        (0.0, {"2048": 0.9, "4096": 0.99}, None),
        (0.0, {}, None),
        (0.0, {"2048": 0.9, "4096": 1.01}, 0.0),
        (-12.5, {"2048": 1.1}, -12.5),
    ],
    ids=["all lost", "nothing measured", "nothing to correct", "corrected"],
)
def test_epsilon_is_the_same_wherever_it_is_told(
    epsilon: float, gains: dict[str, float], told: float | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the table, in the sentence, in both commands' JSON: older configs have 0 where it is not determined."""
    section = configs.section(thresholds=found(epsilon=epsilon, one_level=gains))
    path = configs.write(tmp_path / "config.json", "cpu-a", found=section)
    text = {None: "not determined", 0.0: "0"}.get(told, "-12.5")
    ((_, *cells),) = recursion_rows([("float64", section)])
    assert cells[5] == text
    (sentence,) = (x for _, x in described_rows(section, "float64", "cpu-a") if "correction epsilon" in x)
    assert (f"is {text}" if told is None else f": {text}, ") in sentence
    assert main(["show", "--json", str(path)]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert main(["export", "--thresholds", "--json", str(path)]) == 0
    (exported,) = json.loads(capsys.readouterr().out)
    assert shown["thresholds"]["epsilon"] == exported["epsilon"] == told


def test_epsilon_is_defined_in_the_same_words_wherever_it_is() -> None:
    pages = [(ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("glossary.md", "tuning.md")]
    for text in (*pages, ABOUT, dict(WORDS)["epsilon"]):
        assert EPSILON in text and UNDETERMINED_EPSILON in text


@pytest.mark.parametrize("path", [*RECORDED, SHIPPED], ids=lambda path: str(path.relative_to(ROOT).parent))
def test_the_table_of_a_recorded_tuning_is_narrow(path: Path) -> None:
    for types in files.read_config(path).values():
        lines = list(recursion_lines(types.items()))
        assert len(lines) > 2 + len(types) and max(map(len, lines)) <= NARROW
        head, *rows = lines[1 : 2 + len(types)]
        assert head.split() == ["type", *" ".join(column.short for column in COLUMNS).split()]
        assert [row.split()[0] for row in rows] == list(types)


def test_show_prints_it_before_the_types(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", str(ROOT / "results" / "nvidia-h200")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (table,) = (i for i, line in enumerate(lines) if line.startswith("The papers' thresholds"))
    (first,) = (i for i, line in enumerate(lines) if line.startswith("cuda-9.0-132sm-nvidia-h200, float32 ("))
    assert table < first
    types = files.read_config(ROOT / "results" / "nvidia-h200" / "config.json")["cuda-9.0-132sm-nvidia-h200"]
    (row,) = recursion_rows([("float32", types["float32"])], intervals=False)
    assert lines[table + 2].split() == " ".join(row).split()
