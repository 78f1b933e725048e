"""Random shapes: how they are drawn and summarised, and a tiny run on this CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks import random_shapes
from benchmarks.random_shapes import MAX_ASPECT, better_rows, main, parse_size, random_sides, summary_lines


def test_sides_are_drawn_by_a_seed_and_every_second_shape_is_odd() -> None:
    shapes = random_sides(40, 3, 20000, seed=1)
    assert shapes == random_sides(40, 3, 20000, seed=1) != random_sides(40, 3, 20000, seed=2)
    assert all(side % 2 for size in shapes[::2] for side in size)
    assert not any(side % 2 for size in shapes[1::2] for side in size)
    assert all(max(size) <= (MAX_ASPECT + 1) * min(size) and max(size) <= 20001 for size in shapes)


def test_sizes_are_cubes_or_products() -> None:
    assert parse_size("3072") == (3072,) * 3
    assert parse_size("4096x8192x4097") == (4096, 8192, 4097)
    with pytest.raises(ValueError):
        parse_size("4096x8192")


def test_the_better_of_two_measurements_of_a_shape_counts() -> None:
    first = {"kind": "gram float64", "size": (8, 9), "ratio": 0.9}
    again, other = {**first, "ratio": 1.1}, {**first, "size": (9, 9), "ratio": 0.5}
    assert better_rows([first, other, again]) == [again, other]
    (line,) = summary_lines([again, other, {**first, "failure": "wrong", "size": (1, 1)} | {"ratio": 2.0}], 1.0)
    assert "3 shapes, 1 below 1: worst 0.500, median 1.100, best 2.000" in line


def test_shapes_below_the_goal_are_measured_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(random_shapes, "QUICK_COUNT", 2)
    monkeypatch.setattr(random_shapes, "LARGEST_SIDES", {"cpu": 40, "gpu": 40, "gpu complex": 40})
    monkeypatch.setattr(random_shapes, "GOAL_SPEEDUP", 1e9)
    assert main(["--device", "cpu", "--quick", "--only", "gram float64", "--output", str(tmp_path)]) == 0
    rows = json.loads((tmp_path / "random-structured.json").read_text(encoding="utf-8"))["rows"]
    assert [row["again"] for row in rows] == [False, False, True, True]
    assert rows[0]["size"] == rows[2]["size"] and not any(row["failure"] for row in rows)
