"""The steps of a closure: on graphs small enough to try all, and what they cost."""

from __future__ import annotations

import numpy as np
import pytest

from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_steps import CloseTileStep, ClosureSteps, ProductStep, closure_steps
from fmm.semirings.closure_table import closure_table


def steps_for(n: int, leaf: int) -> ClosureSteps:
    return closure_steps(closure_table(), n, leaf)


def warshall(d: np.ndarray) -> np.ndarray:
    """Which node can be reached from which: one node after the other."""
    found = d | np.eye(len(d), dtype=bool)
    for k in range(len(d)):
        found |= found[:, k, None] & found[k]
    return found


def carried_out(steps: ClosureSteps, d: np.ndarray) -> np.ndarray:
    """Over the semiring of yes and no; what nobody has written is yes."""
    held = {"D": d.copy()} | {name: np.ones((rows, cols), bool) for name, rows, cols in steps.temporaries}

    def at(p: Place) -> np.ndarray:
        return held[p.name][p.row : p.row + p.rows, p.col : p.col + p.cols]

    for step in steps.rounds:
        if isinstance(step, CloseTileStep):
            at(step.place)[...] = warshall(at(step.place))
            continue
        found = [at(p.old) | (at(p.left).astype(int) @ at(p.right).astype(int) > 0) for p in step]
        for p, value in zip(step, found, strict=True):
            at(p.dest)[...] = value
    return held["D"]


@pytest.mark.parametrize("leaf", [1, 2, 3, 5])
@pytest.mark.parametrize("n", [0, 1, 2, 3, 5, 7, 8, 13, 31])
def test_what_can_be_reached(n: int, leaf: int) -> None:
    rng = np.random.default_rng(n + 100 * leaf)
    steps = steps_for(n, leaf)
    for density in (0.02, 0.1, 0.3):
        d = rng.random((n, n)) < density
        np.testing.assert_array_equal(carried_out(steps, d), warshall(d))


@pytest.mark.parametrize(("n", "leaf"), [(8, 1), (13, 2), (256, 64), (1000, 128), (8191, 128)])
def test_as_many_sums_as_one_node_after_the_other(n: int, leaf: int) -> None:
    """Two closures of halves and six products: 2 (n/2)^3 + 6 (n/2)^3 = n^3, also where halves are unequal."""
    assert steps_for(n, leaf).addition_count == n**3


def test_what_moves_and_what_is_needed() -> None:
    """Each level reads three and writes one block a product: 24 (n/2)^2; two temporaries a level of n^2/4 each."""
    n, leaf = 1024, 128
    levels = range(3)
    assert steps_for(n, leaf).moved_entry_count == sum(2**i * 24 * (n >> i + 1) ** 2 for i in levels) + 8 * 2 * leaf**2
    assert steps_for(n, leaf).temporary_entry_count == sum(2 * (n >> i + 1) ** 2 for i in levels)


def test_a_node_of_the_recursion_is_four_launches() -> None:
    found = steps_for(256, 128)
    products = [tuple(p.dest.name for p in x) for x in found.rounds if not isinstance(x, CloseTileStep)]
    assert [type(x) for x in found.rounds][::3] == [CloseTileStep, CloseTileStep]
    assert products == [("T1.0", "T2.0"), ("D",), ("D", "D"), ("D",)]
    assert len(steps_for(8192, 128).rounds) == 64 + 63 * 4


@pytest.mark.parametrize(("n", "leaf"), [(7, 2), (1000, 128)])
def test_what_runs_side_by_side_is_independent(n: int, leaf: int) -> None:
    for step in steps_for(n, leaf).rounds:
        if isinstance(step, CloseTileStep):
            assert 1 <= step.place.rows == step.place.cols <= leaf and step.place.row == step.place.col
            continue
        for p in step:
            assert isinstance(p, ProductStep)
            assert (p.left.rows, p.right.cols) == (p.dest.rows, p.dest.cols) == (p.old.rows, p.old.cols)
            assert p.left.cols == p.right.rows
            others = [x for q in step if q is not p for x in q]
            assert not any(p.dest.overlap(x) for x in (p.left, p.right, *others))
