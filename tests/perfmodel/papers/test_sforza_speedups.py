"""Sforza's speedups: numbers counted from the steps of the level `sforza`, compared with the printed ones."""

from __future__ import annotations

import pytest

from benchmarks.papers.experiment import Key, Results, Row
from benchmarks.papers.figure import figure_table
from benchmarks.papers.figures import FIGURES
from fmm.perfmodel.papers.sforza import (
    CUTOFF_ROWS,
    FIGURE_2_SIDE,
    ONE_LEVEL_SPEEDUPS,
    RECURSIVE_SPEEDUPS,
    multiplication_share,
    sforza_plan,
)


@pytest.mark.parametrize(("depth", "share"), [(1, 0.750), (2, 0.594), (3, 0.488), (4, 0.412)])
def test_multiplications_by_depth(depth: int, share: float) -> None:
    """At 10^4 x 10^4, without the cutoff."""
    assert round(multiplication_share(sforza_plan("float64", depth, 0), FIGURE_2_SIDE), 3) == share
    assert round(multiplication_share(sforza_plan("float64", depth, 0), 4096), 3) == share


def best() -> dict[tuple[object, ...], dict[str, object]]:
    """The rows of the table of the largest speed-ups, by type and what it is."""
    table = figure_table(FIGURES["sforza-best"])
    return {row[:2]: dict(zip(table.columns, row, strict=True)) for row in table.rows}


@pytest.mark.slow
def test_no_published_speedup_is_above_what_is_saved() -> None:
    rows = [row for row in best().values() if row["number"] != "best depth"]
    assert {row["published"] for row in rows} == {*ONE_LEVEL_SPEEDUPS.values(), *RECURSIVE_SPEEDUPS.values()}
    for row in rows:
        assert isinstance(row["published"], float) and isinstance(row["at most"], float)
        assert row["published"] < row["at most"]


def test_the_cutoff_ends_the_recursion() -> None:
    """Blocks of 1000 are too small for single precision's 1536, not for double's 256; a scaled one ends as early."""
    assert multiplication_share(sforza_plan("float32", 3), 2000) == 0.75
    assert multiplication_share(sforza_plan("float64", 3), 2000) == multiplication_share(
        sforza_plan("float64", 3, 0), 2000
    )
    assert multiplication_share(sforza_plan("float32", 3, 0.2), 400) == 0.75
    assert multiplication_share(sforza_plan("float32", 3), 8000) == multiplication_share(
        sforza_plan("float32", 3, 0.2), 1600
    )
    assert {sforza_plan(t, 2).levels[0].cutoff for t in CUTOFF_ROWS} == {1536, 256}  # type: ignore[attr-defined]


def test_odd_sizes_cost_a_little_more() -> None:
    """A row of C, and a product over one column, on top of the even core."""
    for n in (2001, 4001):
        even, odd = (multiplication_share(sforza_plan("float64", 1), side) * side**3 for side in (n - 1, n))
        assert odd == even + n * n + (n - 1) * n // 2  # the half of a core's update, its diagonal included


def test_best_depths_are_where_the_paper_has_them() -> None:
    assert {key[0]: row["published"] for key, row in best().items() if key[1] == "best depth"} == {
        "float32": 3.0,
        "float64": 4.0,
    }


def test_on_the_papers_device_the_prediction_is_near_what_he_printed() -> None:
    """One level in both types, and the recursion in double precision; within a tenth."""
    for (dtype, what), row in best().items():
        if what == "one level" or (dtype, what) == ("float64", "recursive"):
            assert row["GTX 1050"] == pytest.approx(row["published"], rel=0.1)


def test_measured_speedups_are_over_gemm_and_over_syrk() -> None:
    seconds = {"gemm": [3.0, 3.0, 6.0], "syrk": [1.0, 1.0, 1.0], "one level": [2.0, 2.0, 2.0], "depth 3": [1.5] * 3}
    rows: dict[Key, Row] = {("float32", FIGURE_2_SIDE, code): {"key": [], "seconds": x} for code, x in seconds.items()}
    results = Results(({"device": "none"},), 1.0, rows)

    def shown(name: str) -> set[tuple[object, ...]]:
        table = figure_table(FIGURES[name], results)
        return {
            (*row[: len(FIGURES[name].key_names)], *row[-len(FIGURES[name].measured) :])
            for row in table.rows
            if row[-1] is not None
        }

    assert shown("sforza-sizes") == {("float32", FIGURE_2_SIDE, "one level", 1.5, 0.5)}
    assert shown("sforza-depths") == {("float32", 3, 2.0, 1 / 1.5)}
    assert shown("sforza-best") == {("float32", "one level", 1.5), ("float32", "best depth", 3.0)}
