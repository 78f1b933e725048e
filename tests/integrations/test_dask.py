"""Products of Dask's arrays: right for all grids and plans, lazy, and the same bits whoever computes them."""

from __future__ import annotations

import os
import signal
import time
from importlib import import_module
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.integrations.chunk_grid import combined_chunks, multiplied_chunks, resized_chunk
from fmm.kernels.plans.plan import Plan, PlanError

da = pytest.importorskip("dask.array", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
products = import_module("fmm.dask")

GRIDS = [
    ((64, 64, 64), (16, 16)),  # four by four equal chunks
    ((70, 53, 61), (16, 16)),  # the last ones smaller
    ((33, 70, 20), (7, 7)),  # odd grids
    ((64, 64, 64), ((20, 44), (20, 44))),  # unequal chunks
    ((5, 5, 5), (9, 9)),  # one chunk
    ((3, 0, 4), (2, 2)),  # nothing to add up
]


def drawn(shape: tuple[int, int], chunks: Any, dtype: str, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(dtype)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape).astype(dtype)
    return values.astype(dtype), da.from_array(values.astype(dtype), chunks=chunks)


@pytest.mark.parametrize("plan", [None, "vendor", "winograd", "strassen^2", "strassen.peel", "winograd.pad", "hasa"])
@pytest.mark.parametrize("dtype", ["float64", "complex64"])
@pytest.mark.parametrize(("size", "chunks"), GRIDS)
def test_products_of_all_grids(size: tuple[int, int, int], chunks: Any, dtype: str, plan: str | None) -> None:
    m, k, n = size
    (a, x), (b, y) = drawn((m, k), chunks, dtype, 1), drawn((k, n), chunks, dtype, 2)
    found = products.matmul(x, y, plan=plan)
    assert (found.chunks, found.dtype) == ((x.chunks[0], y.chunks[1]), a.dtype)
    tolerance = 1e-12 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(found.compute(scheduler="sync"), a @ b, rtol=tolerance, atol=tolerance)


def test_levels_over_the_grid_where_chunks_are_large() -> None:
    """The products that they save take longer than fetching and adding chunks: more so the larger these are. A grid of
    two by two has one level."""

    def products_of(chunk: int, grid: int = 4) -> int:
        x = da.zeros((grid * chunk, grid * chunk), chunks=chunk)
        graph = dict(products.matmul(x, x).__dask_graph__())
        return sum("multiplied_chunks" in repr(task) for task in graph.values())

    assert [products_of(chunk) for chunk in (64, 1024, 4096, 8192)] == [64, 64, 49, 49]
    assert (products_of(64, 2), products_of(32768, 2)) == (8, 7)


def test_seven_products_of_chunks_for_eight() -> None:
    """Counted in the graph: (4/2)^3 products in each of seven blocks, for 4^3."""
    x = da.ones((64, 64), chunks=16)

    def multiplied(plan: str) -> int:
        graph = dict(products.matmul(x, x, plan=plan).__dask_graph__())
        return sum("multiplied_chunks" in repr(task) for task in graph.values())

    assert (multiplied("vendor"), multiplied("winograd"), multiplied("strassen^2")) == (64, 56, 49)


def test_a_level_is_chosen_for_large_chunks_alone() -> None:
    def plan_of(side: int, chunk: int) -> bool:
        x = da.ones((side, side), chunks=chunk)
        graph = dict(products.matmul(x, x).__dask_graph__())
        return any("combined_chunks" in repr(task) for task in graph.values())

    assert plan_of(131072, 32768)
    assert not plan_of(400, 100)
    assert not plan_of(32768, 32768)  # a grid of one chunk


def test_the_error_limit_holds_for_the_grid_and_the_chunks_together() -> None:
    x = da.ones((131072, 131072), chunks=32768)

    def multiplied(limit: float) -> int:
        graph = dict(products.matmul(x, x, max_error_growth=limit).__dask_graph__())
        return sum("multiplied_chunks" in repr(task) for task in graph.values())

    assert [multiplied(limit) for limit in (1.0, 3.0, 15.0)] == [64, 56, 49]


@pytest.mark.parametrize("plan", ["3m", "gram", "strassen.fused > tile", "no-such-scheme"])
def test_what_is_no_level_over_chunks(plan: str) -> None:
    x = da.ones((8, 8), chunks=4)
    with pytest.raises(PlanError):
        products.matmul(x, x, plan=plan)


def test_what_dask_does_itself() -> None:
    stack, whole = da.ones((3, 8, 8), chunks=4), da.ones((8, 8), chunks=4, dtype="int64")
    assert (products.matmul(stack, stack).compute(scheduler="sync") == 8).all()
    assert products.matmul(whole, whole).dtype == np.dtype("int64")
    with pytest.raises(PlanError, match="winograd"):
        products.matmul(stack, stack, plan="winograd")
    with pytest.raises(ValueError):
        products.matmul(da.ones((3, 4), chunks=2), da.ones((5, 3), chunks=2))


def test_tasks_leave_their_operands_alone() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 3))
    before = a.copy(), b.copy()
    assert (combined_chunks((1.0, -2.0), [a, b]) == np.pad(a, ((0, 1), (0, 0))) - 2 * b).all()
    assert (multiplied_chunks(a, b[:2], 2, -1, np.ones((1, 3)), None) == 2 * a[:, :2] @ b[:2] - [[1], [0]]).all()
    assert (resized_chunk(a, 1, 4) == [[0, 1, 2, 0]]).all()
    assert (a == before[0]).all() and (b == before[1]).all()


@pytest.mark.parametrize("weights", [(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 1, -1), (-1, 1, 0.5), (2, 1), (1,), (-1,)])
def test_chunks_are_summed_in_their_order(weights: tuple[float, ...]) -> None:
    """Whatever is done in one pass, the chunks stay as they are."""
    chunks = [np.random.default_rng(i).standard_normal((3, 2)) for i in range(len(weights))]
    kept = [chunk.copy() for chunk in chunks]
    expected = chunks[0] * weights[0]
    for weight, chunk in zip(weights[1:], chunks[1:], strict=True):
        expected = expected + weight * chunk
    np.testing.assert_array_equal(combined_chunks(weights, chunks), expected)
    np.testing.assert_array_equal(chunks, kept)


def test_plain_products_of_chunks_run_plans_where_numpys_are_replaced(host_plans: list[Plan]) -> None:
    (a, x), (b, y) = drawn((128, 128), 64, "float64", 1), drawn((128, 64), 64, "float64", 2)
    with fmm.installed("numpy"):
        found = (x @ y).compute(scheduler="sync")
    np.testing.assert_allclose(found, a @ b, rtol=1e-9, atol=1e-9)
    assert len(host_plans) == 4


@pytest.mark.timed
def test_a_worker_has_fmm_where_it_is_loaded_beforehand(monkeypatch: pytest.MonkeyPatch) -> None:
    """As `FMM_INSTALL=numpy dask worker --preload fmm` has it."""
    monkeypatch.setenv("FMM_INSTALL", "numpy")
    with (
        distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=None, preload=["fmm"]) as cluster,
        distributed.Client(cluster) as client,
    ):
        (found,) = client.run(eval, "type(__import__('numpy').matmul).__name__").values()
        assert found == "Replaced"


@pytest.mark.timed
def test_a_worker_that_is_lost_changes_no_bit() -> None:
    """Two processes; one of them is killed as soon as it has something to lose."""
    x, y = (da.random.default_rng(seed).standard_normal((1200, 1200), chunks=200) for seed in (5, 6))
    wanted = products.matmul(x, y, plan="winograd").compute(scheduler="sync")
    with (
        distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.run(fmm.install, "numpy")
        future = client.compute(products.matmul(x, y, plan="winograd"))
        address, process = next(iter(client.run(os.getpid).items()))
        while not client.has_what(workers=[address])[address]:
            time.sleep(0.01)
        os.kill(process, signal.SIGKILL)
        found = future.result(timeout=240)
    assert (found == wanted).all()
    np.testing.assert_allclose(found, x.compute(scheduler="sync") @ y.compute(scheduler="sync"), atol=1e-9)
