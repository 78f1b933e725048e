"""Sforza's speed-ups: what is counted from the level's steps, beside what he printed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fmm.perfmodel.papers.sforza_speedups import (
    BEST_DEPTH,
    CUTOFFS,
    ONE_LEVEL,
    RECURSIVE,
    SIDE,
    multiplications,
    sforza_best,
    sforza_depths,
    sforza_plan,
    sforza_sizes,
)
from fmm.tuner.cli import main
from fmm.tuner.commands.paper import measured_speedups


@pytest.mark.parametrize(("depth", "share"), [(1, 0.750), (2, 0.594), (3, 0.488), (4, 0.412)])
def test_multiplications_by_depth(depth: int, share: float) -> None:
    """At 10^4 x 10^4, without the cutoff."""
    assert round(multiplications(sforza_plan("float64", depth, cutoff=False), SIDE), 3) == share
    assert round(multiplications(sforza_plan("float64", depth, cutoff=False), 4096), 3) == share


def test_no_published_speedup_is_above_what_is_saved() -> None:
    for row in (dict(zip(sforza_best().columns, row, strict=True)) for row in sforza_best().rows):
        assert isinstance(row["published"], float) and isinstance(row["at most"], float)
        assert row["published"] < row["at most"]
    assert set(sforza_best().column("published")) == {*ONE_LEVEL.values(), *RECURSIVE.values()}


def test_the_cutoff_ends_the_recursion() -> None:
    """Blocks of 1000 are too small for single precision's 1536, not for double's 256."""
    assert multiplications(sforza_plan("float32", 3), 2000) == 0.75
    assert multiplications(sforza_plan("float64", 3), 2000) == multiplications(sforza_plan("float64", 3, False), 2000)
    assert {sforza_plan(t, 2).levels[0].cutoff for t in CUTOFFS} == {1536, 256}  # type: ignore[attr-defined]


def test_odd_sizes_cost_a_little_more() -> None:
    """A row of C, and a product over one column, on top of the even core."""
    for n in (2001, 4001):
        even, odd = (multiplications(sforza_plan("float64", 1), side) * side**3 for side in (n - 1, n))
        assert odd == even + n * n + (n - 1) * n // 2  # the half of a core's update, its diagonal included


def test_best_depths_are_where_the_paper_has_them() -> None:
    marked = [row for row in sforza_depths().rows if "best" in row]
    assert [(row[0], row[1]) for row in marked] == list(BEST_DEPTH.items())


def test_on_the_papers_device_the_prediction_is_near_what_he_printed() -> None:
    """One level in both types, and the recursion in double precision; within a tenth."""
    rows = [dict(zip(sforza_best().columns, row, strict=True)) for row in sforza_best().rows]
    near = [row for row in rows if row["algorithm"] == "one level" or row["type"] == "float64"]
    for row in near:
        assert row["GTX 1050"] == pytest.approx(row["published"], rel=0.1)


def test_what_was_measured_stands_beside_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = {"kind": "sforza", "dtype": "float32", "size": [SIDE, SIDE], "depth": 3}
    samples = {"candidate": [2.0, 2.0, 4.0], "vendor": [3.0, 3.0, 6.0], "syrk": [1.0, 2.0, 2.0]}
    others = [{**row, "kind": "syrk", "candidate": [1.0], "vendor": [9.0]}, {**row, "depth": 4, "candidate": []}]
    path = tmp_path / "gram.json"
    path.write_text(json.dumps({"rows": [{**row, **samples}, *others]}), encoding="utf-8")
    found = measured_speedups(path)
    assert found == {("float32", SIDE, 3): (1.5, 0.5)}
    assert (1.5, 0.5) in {row[-2:] for row in sforza_sizes(found).rows}
    assert main(["paper", "sforza-depths", "--measured", str(path)]) == 0
    assert "1.5" in capsys.readouterr().out
    path.write_text("{}", encoding="utf-8")
    assert main(["paper", "sforza-depths", "--measured", str(path)]) == 2
    assert "is no gram.json" in capsys.readouterr().err
