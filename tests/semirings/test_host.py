"""Semiring products and closures on the host, by NumPy alone and compiled by Numba."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fmm.semirings import host, numba_kernels
from fmm.semirings.host import BestIndexRecord, NumpySemiring, write_closure_in_place
from fmm.semirings.numba_kernels import NumbaSemiring, is_numba_installed
from tests.support.marks import quick_and_slow

compiled = pytest.mark.skipif(not is_numba_installed(), reason="no Numba (the extra fmm-tune[compiled])")
KINDS = [pytest.param(NumpySemiring, id="numpy"), pytest.param(NumbaSemiring, id="compiled", marks=compiled)]
MISSING = {"float32": np.inf, "float64": np.inf, "uint16": 2**15 - 1, "uint32": 2**31 - 1}
Matrix = np.ndarray[Any, Any]


def semiring(kind: Any, dtype: str, greatest: bool = False) -> Any:
    return kind(greatest, np.dtype(dtype).type(-np.inf if greatest else MISSING[dtype]), 2)


def matrix(shape: tuple[int, int], dtype: str, rng: np.random.Generator, greatest: bool = False) -> Matrix:
    """Return integers (results are exact), a fifth of them missing, as a block of a larger matrix."""
    low = -50 if dtype[0] == "f" else 0
    outer = rng.integers(low, 50, (shape[0] + 3, shape[1] + 5)).astype(dtype)
    outer[rng.random(outer.shape) < 0.2] = -np.inf if greatest else MISSING[dtype]
    return outer[1 : 1 + shape[0], 2 : 2 + shape[1]]


def reference(a: Matrix, b: Matrix, old: Matrix | None, missing: Any, greatest: bool) -> tuple[Matrix, Matrix]:
    """Return the best sums, and the first best step that beats the old value."""
    sums = a[:, :, None].astype(float) + b[None].astype(float)
    start = np.full((len(a), 1, b.shape[1]), float(missing)) if old is None else old[:, None].astype(float)
    every = np.concatenate([start, sums], axis=1)
    step = (every.argmax if greatest else every.argmin)(axis=1) - 1
    return (every.max if greatest else every.min)(axis=1), step


SIZES = [(1, 1, 1), (2, 5, 3), (65, 17, 131)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("dtype", "greatest"),
    quick_and_slow([("float32", False), ("uint16", False)], [("float64", True), ("float64", False), ("uint32", False)]),
)
def test_products(kind: Any, dtype: str, greatest: bool) -> None:
    check_products(kind, dtype, greatest)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("greatest", [False, True])
def test_products_of_many_steps_are_done_in_parts(kind: Any, greatest: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupt waits for one part alone: some of the steps, some of the numbers."""
    monkeypatch.setattr(host, "PIECE_STEPS", 3)
    monkeypatch.setattr(host, "PIECE_SUMS", 50)
    monkeypatch.setattr(numba_kernels, "TASK_SUMS", 5000)
    check_products(kind, "float32", greatest)


def check_products(kind: Any, dtype: str, greatest: bool) -> None:
    rng = np.random.default_rng(3)
    chosen = semiring(kind, dtype, greatest)
    for m, k, n in SIZES:
        a, b, old = (matrix(s, dtype, rng, greatest) for s in ((m, k), (k, n), (m, n)))
        for before in (None, old):
            wanted, step = reference(a, b, before, chosen.missing, greatest)
            dest, args = np.full((m, n), 7, dtype), np.full((m, n), -7, np.int32)
            chosen.multiply_and_add(a, b, before, dest)
            np.testing.assert_array_equal(dest, wanted)
            dest[...] = 7
            chosen.multiply_and_add(a, b, before, dest, BestIndexRecord(args))
            np.testing.assert_array_equal(dest, wanted)
            np.testing.assert_array_equal(args, step)
        notes = [rng.integers(0, 99, s).astype(np.int32) for s in ((k, n), (m, n))]
        via, past = notes
        chosen.multiply_and_add(a, b, old, dest, BestIndexRecord(args, past, via))
        np.testing.assert_array_equal(args, np.where(step < 0, past, via[step, np.arange(n)]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_sum_that_is_nan_is_never_the_best(kind: Any) -> None:
    a = np.array([[np.nan, 1, np.inf, 2, np.nan, 7]], np.float64)
    b = np.array([[1, np.nan, -np.inf, 3, 5, -np.inf]], np.float64).T
    dest = np.empty((1, 1))
    for count, wanted in ((3, np.inf), (5, 5), (6, -np.inf)):
        semiring(kind, "float64").multiply_and_add(a[:, :count], b[:count], None, dest)
        assert dest[0, 0] == wanted


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", ["float64", "uint16"])
@pytest.mark.parametrize("sums", [2**26, 5000])
def test_closures(kind: Any, dtype: str, sums: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles of any size and tasks of any size give the Floyd-Warshall result; predecessors follow shortest paths."""
    monkeypatch.setattr(numba_kernels, "TASK_SUMS", sums)
    rng = np.random.default_rng(4)
    chosen = semiring(kind, dtype)
    for n in (1, 2, 37, 70):
        edges = np.full((n, n), chosen.missing, dtype)
        there = rng.random((n, n)) < 3 / n
        edges[there] = rng.integers(1, 90, (n, n))[there]
        np.fill_diagonal(edges, 0)
        whole = edges.copy()
        write_closure_in_place(chosen, whole, tile_side=n)
        for side in (1, 4, 16):
            d, nodes = edges.copy(), np.where(edges == chosen.missing, -9999, np.arange(n)[:, None]).astype(np.int32)
            np.fill_diagonal(nodes, -9999)
            write_closure_in_place(chosen, d, nodes, side)
            np.testing.assert_array_equal(d, whole)
            i, j = np.nonzero((d != chosen.missing) & ~np.eye(n, dtype=bool))
            before = nodes[i, j]
            assert (before >= 0).all() and (d[i, before] + edges[before, j] == d[i, j]).all()
            assert (nodes[d == chosen.missing] == -9999).all() and (np.diag(nodes) == -9999).all()
