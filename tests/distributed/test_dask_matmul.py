"""Products of Dask arrays: right for all grids and plans, lazy, and bit for bit equal on any worker."""

from __future__ import annotations

import os
import signal
import sys
import time
from importlib import import_module
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.distributed import chunk_grid
from fmm.distributed.chunk_grid import resized_chunk, sum_of_chunk_products, weighted_chunk_sum
from fmm.distributed.dask_recompute import return_chunk_unchanged, run_if_any_condition, run_without_warnings
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.perfmodel.choose import default_error_growth_limit
from fmm.perfmodel.stability import expected_error_growth
from tests.support.marks import quick_and_slow

da = pytest.importorskip("dask.array", reason="Dask is not installed")
distributed = pytest.importorskip("distributed", reason="Dask's distributed is not installed")
products = import_module("fmm.dask")
dask_arrays = import_module("fmm.distributed.dask_matmul")

GROWTH_OF_WINOGRAD = expected_error_growth(Plan.parse("winograd > vendor"), "float64")
GRIDS = [
    ((64, 64, 64), (16, 16)),  # four by four equal chunks
    ((70, 53, 61), (16, 16)),  # the last ones smaller
    ((33, 70, 20), (7, 7)),  # odd grids
    ((64, 64, 64), ((20, 44), (20, 44))),  # unequal chunks
    ((71, 71, 71), ((20, 44, 7), (20, 44, 7))),  # and an odd number of them
    ((71, 71, 71), ((5, 9, 1, 56), (5, 9, 1, 56))),
    ((5, 5, 5), (9, 9)),  # one chunk
    ((3, 0, 4), (2, 2)),  # nothing to add up
]


def drawn(shape: tuple[int, int], chunks: Any, dtype: str, seed: int) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(shape).astype(dtype)
    if dtype.startswith("complex"):
        values = values + 1j * rng.standard_normal(shape).astype(dtype)
    return values.astype(dtype), da.from_array(values.astype(dtype), chunks=chunks)


PLANS = (None, "vendor", "winograd", "strassen^2", "strassen.peel", "winograd.pad", "hasa")
CASES = [(*grid, dtype, plan) for grid in GRIDS for dtype in ("float64", "complex64") for plan in PLANS]
# In the quick run, every grid by three plans, and every plan and type on unequal chunks.
QUICK = [x for x in CASES if x[:2] == GRIDS[4] or (x[2] == "float64" and x[3] in (None, "winograd", "strassen.peel"))]


@pytest.mark.quick_cases(6)
@pytest.mark.parametrize(
    ("size", "chunks", "dtype", "plan"), quick_and_slow(QUICK, [x for x in CASES if x not in QUICK])
)
def test_products_of_all_grids(size: tuple[int, int, int], chunks: Any, dtype: str, plan: str | None) -> None:
    m, k, n = size
    (a, x), (b, y) = drawn((m, k), chunks, dtype, 1), drawn((k, n), chunks, dtype, 2)
    found = products.matmul(x, y, plan=plan)
    assert (found.chunks, found.dtype) == ((x.chunks[0], y.chunks[1]), a.dtype)
    tolerance = 1e-12 if dtype == "float64" else 1e-3
    np.testing.assert_allclose(found.compute(scheduler="sync"), a @ b, rtol=tolerance, atol=tolerance)


def poisoned(value: float) -> Any:
    a = np.ones((9, 9))
    a[7, 2] = value
    return a


OUT_OF_RANGE = {"inf": poisoned(np.inf), "NaN": poisoned(np.nan), "near the largest": np.full((9, 9), 1.7e308)}


@pytest.mark.slow
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("plan", ["winograd", "strassen^2", "strassen.peel"])
@pytest.mark.parametrize("what", OUT_OF_RANGE)
def test_inf_and_nan_are_where_numpy_has_them(what: str, plan: str, side: str) -> None:
    """Large numbers overflow in sums of blocks alone, without a warning."""
    values, unit = OUT_OF_RANGE[what], np.eye(9)
    a, b = (values, unit) if side == "left" else (unit, values)
    x, y = da.from_array(a, chunks=2), da.from_array(b, chunks=2)
    with np.errstate(all="raise" if what == "near the largest" else "ignore"):
        wanted = a @ b
        np.testing.assert_array_equal(products.matmul(x, y, plan=plan).compute(scheduler="sync"), wanted)
    assert (np.isfinite(wanted).all()) == (what == "near the largest")


@pytest.fixture
def products_of_chunks(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Collect the error limit of each product of two chunks."""
    limits = list[Any]()

    def noted(name: str) -> Any:
        def product(*given: Any, **constraints: Any) -> Any:
            limits.append(constraints["max_error_growth"])
            return getattr(fmm, name)(*given, **constraints)

        return product

    for name in ("matmul", "gemm"):
        monkeypatch.setattr(chunk_grid, name, noted(name))
    return limits


@pytest.mark.parametrize(("row", "again"), [(None, 0), (0, 8)], ids=["nothing to repeat", "an inf"])
def test_only_chunks_with_inf_are_made_again(row: int | None, again: int, products_of_chunks: list[Any]) -> None:
    """An inf in the first row of chunks: the level has it in the third one too, and both are four chunks of four
    products each. Where there is none, the level's 7 times 8 products are all."""
    a = np.ones((16, 16))
    if row is not None:
        a[row, 0] = np.inf
    x = da.from_array(a, chunks=4)
    with np.errstate(all="ignore"):
        found = products.matmul(x, da.ones((16, 16), chunks=4), plan="winograd").compute(scheduler="sync")
        np.testing.assert_array_equal(found, a @ np.ones((16, 16)))
    assert len(products_of_chunks) == 7 * 8 + again * 4


@pytest.mark.usefixtures("two_threads")
def test_what_may_be_made_again_is_sent_no_chunk_in_vain() -> None:
    """The plain products read tasks that pass chunks on, on their own worker, and give None while chunks are finite."""
    x = da.ones((16, 16), chunks=4)
    graph = dict(products.matmul(x, x, plan="winograd").__dask_graph__())
    spare = {
        key: task[2:] for key, task in graph.items() if isinstance(task, tuple) and task[0] is run_if_any_condition
    }
    handing = {key for key, (function, *_) in spare.items() if function is return_chunk_unchanged}
    assert len(handing) == 2 * 16 * 2  # of A and B, for each of two pairs of columns or of rows
    assert all(len(spare[key]) == 2 for key in handing)
    for function, *rest in spare.values():
        assert function is return_chunk_unchanged or handing.issuperset((*rest[0], *rest[1]))
    assert run_if_any_condition([False], weighted_chunk_sum, (1,), [None]) is None


@pytest.mark.parametrize("plan", ["winograd", "strassen", "strassen^2"])
def test_sums_of_chunks_of_different_heights_are_as_high_as_the_highest(plan: str) -> None:
    """A smaller chunk may be added to a larger one: nothing is cut off."""
    rows, cols = (7, 20, 44), (20, 44, 7)
    (a, x), (b, y) = drawn((71, 71), (rows, rows), "float64", 1), drawn((71, 71), (rows, cols), "float64", 2)
    np.testing.assert_allclose(products.matmul(x, y, plan=plan).compute(scheduler="sync"), a @ b, atol=1e-11)


def multiplying_tasks(product: Any) -> list[tuple[Any, ...]]:
    """Return the tasks of the computation by levels, without the recomputation."""
    tasks = [task for task in dict(product.__dask_graph__()).values() if isinstance(task, tuple)]
    own = [task[1:] if task[0] is run_without_warnings else task for task in tasks]
    return [task for task in own if task[0] is sum_of_chunk_products]


def tasks_of(product: Any) -> list[int]:
    """Return the number of products of chunks in each task that multiplies."""
    return [len(task[1]) for task in multiplying_tasks(product)]


def chosen(grid: int, chunk: int, **requested: Any) -> tuple[int, int]:
    """Return the number of products of chunks, and of tasks, of the choice for square chunks."""
    x = da.zeros((grid * chunk, grid * chunk), chunks=chunk)
    found = tasks_of(products.matmul(x, x, **requested))
    return sum(found), len(found)


@pytest.fixture
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tasks, in this process."""
    monkeypatch.setattr(dask_arrays, "worker_counts", lambda: (1, 2))


@pytest.mark.slow
@pytest.mark.usefixtures("two_threads")
def test_levels_over_the_grid_where_chunks_are_large() -> None:
    """The products that they save take longer than what more chunks cost: more so the larger these are, and the more of
    them there are. A product's terms are one task wherever that leaves enough of these."""
    assert [chosen(4, chunk) for chunk in (64, 1024, 4096, 32768)] == [(64, 16), (64, 16), (64, 16), (49, 49)]
    assert [chosen(8, chunk) for chunk in (64, 1024, 4096, 32768)] == [(512, 128), (512, 128), (512, 128), (392, 196)]
    assert (chosen(2, 64), chosen(2, 32768), chosen(1, 32768)) == ((8, 8), (8, 4), (1, 1))


def test_more_workers_than_tasks_have_smaller_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    for workers, expected in (((2, 1), 16), ((4, 2), 32), ((16, 4), 64)):
        monkeypatch.setattr(dask_arrays, "worker_counts", lambda workers=workers: workers)
        assert chosen(4, 512) == (64, expected)


def test_tasks_run_in_this_process_while_another_thread_imports_distributed(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("distributed", "distributed.client"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # the module has no names yet
    assert dask_arrays.worker_counts()[0] == 1


@pytest.mark.usefixtures("two_threads")
def test_a_long_inner_side_is_not_one_chain_of_tasks() -> None:
    """One chunk of the result is the sum of 64 products; their tasks do not wait for each other."""
    (a, x), (b, y) = drawn((3, 128), (3, 2), "float64", 1), drawn((128, 5), (2, 5), "float64", 2)
    found = products.matmul(x, y)
    graph = dict(found.__dask_graph__())
    made = {key for key, task in graph.items() if isinstance(task, tuple) and task[0] is sum_of_chunk_products}
    assert len(made) >= 8
    assert not any(before in made for key in made for before in (*graph[key][1], *graph[key][2], graph[key][5]))
    np.testing.assert_allclose(found.compute(scheduler="sync"), a @ b, rtol=1e-12)


def test_seven_products_of_chunks_for_eight() -> None:
    """The graph has (4/2)^3 products in each of seven blocks, instead of 4^3."""
    x = da.ones((64, 64), chunks=16)
    assert [sum(tasks_of(products.matmul(x, x, plan=p))) for p in ("vendor", "winograd", "strassen^2")] == [64, 56, 49]


@pytest.mark.usefixtures("two_threads")
def test_the_error_limit_holds_for_the_grid_and_the_chunks_together() -> None:
    assert [chosen(8, 32768, max_error_growth=limit)[0] for limit in (1.0, 3.0, 15.0)] == [512, 448, 392]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("variable", ["FMM_DISABLE", "FMM_COMPONENTWISE"])
def test_variables_that_exclude_fast_algorithms_hold_for_the_grid(
    variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert chosen(4, 32768)[0] == 49
    monkeypatch.setenv(variable, "1")
    assert chosen(4, 32768)[0] == 64
    if variable == "FMM_DISABLE":
        assert chosen(4, 8, plan="winograd^2")[0] == 49
        return
    assert chosen(4, 8, plan="vendor")[0] == 64
    with pytest.raises(PlanError, match=r"winograd > vendor .* FMM_COMPONENTWISE=1 requires"):
        chosen(4, 8, plan="winograd")


def test_a_plan_may_be_an_object() -> None:
    x = da.ones((8, 8), chunks=4)
    for text in ("winograd > vendor", "vendor"):
        by_text, by_plan = products.matmul(x, x, plan=text), products.matmul(x, x, plan=fmm.Plan.parse(text))
        assert by_text.name == by_plan.name and (by_plan.compute(scheduler="sync") == 8).all()


@pytest.mark.parametrize("plan", ["3m", "gram", "strassen.fused > tile", "no-such-scheme", 3, ["winograd"]])
def test_what_is_no_level_over_chunks(plan: Any) -> None:
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


@pytest.mark.quick_cases(1)
@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("dtype", ["int8", "uint8", "int64", "bool"])
def test_integers_are_dasks(dtype: str) -> None:
    """Also where fmm.matmul would multiply chunks by digits, to which nothing can be added; and no level, whose halves
    and negative weights they do not have."""
    a = np.random.default_rng(1).integers(0, 2, (520, 520)).astype(dtype)
    x = da.from_array(a, chunks=130)
    found = products.matmul(x, x)
    assert found.dtype == (x @ x).dtype and (found.compute(scheduler="sync") == (x @ x).compute(scheduler="sync")).all()
    for plan in ("winograd", "dps"):
        with pytest.raises(PlanError, match="floating-point"):
            products.matmul(x, x, plan=plan)


def test_tasks_leave_their_operands_alone() -> None:
    a, b = np.arange(6.0).reshape(2, 3), np.ones((3, 3))
    before = a.copy(), b.copy()
    assert (weighted_chunk_sum((1.0, -2.0), [a, b]) == np.pad(a, ((0, 1), (0, 0))) - 2 * b).all()
    one_row = np.ones((1, 3))
    assert (sum_of_chunk_products([a], [b[:2]], 2, -1, one_row, None) == 2 * a[:, :2] @ b[:2] - [[1], [0]]).all()
    assert (one_row == 1).all()
    assert (resized_chunk(a, 1, 4) == [[0, 1, 2, 0]]).all()
    assert (a == before[0]).all() and (b == before[1]).all()


@pytest.mark.parametrize("weights", [(1, 1), (1, -1), (-1, 1), (-1, -1), (1, 1, -1), (-1, 1, 0.5), (2, 1), (1,), (-1,)])
def test_chunks_are_summed_in_their_order(weights: tuple[float, ...]) -> None:
    """Sums leave their chunks unchanged."""
    chunks = [np.random.default_rng(i).standard_normal((3, 2)) for i in range(len(weights))]
    copies = [chunk.copy() for chunk in chunks]
    expected = chunks[0] * weights[0]
    for weight, chunk in zip(weights[1:], chunks[1:], strict=True):
        expected = expected + weight * chunk
    np.testing.assert_array_equal(weighted_chunk_sum(weights, chunks), expected)
    np.testing.assert_array_equal(chunks, copies)


def test_plain_products_of_chunks_run_plans_where_numpys_are_replaced(host_plans: list[Plan]) -> None:
    (a, x), (b, y) = drawn((128, 128), 64, "float64", 1), drawn((128, 64), 64, "float64", 2)
    with fmm.installed("numpy"):
        found = (x @ y).compute(scheduler="sync")
    np.testing.assert_allclose(found, a @ b, rtol=1e-9, atol=1e-9)
    assert len(host_plans) == 4


@pytest.mark.slow
def test_a_worker_that_is_lost_changes_no_bit() -> None:
    """Two worker processes; one is killed as soon as it holds a result."""
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


def masked(side: int, seed: int) -> Any:
    rng = np.random.default_rng(seed)
    return np.ma.masked_array(rng.standard_normal((side, side)), mask=rng.random((side, side)) < 0.1)


@pytest.mark.parametrize("chunk", [12, 4])
def test_masked_chunks_keep_their_masks(chunk: int) -> None:
    """They are Dask's, as masked arrays are NumPy's under fmm.matmul."""
    a, b = masked(12, 1), masked(12, 2)
    x, y = da.from_array(a, chunks=chunk), da.from_array(b, chunks=chunk)
    for left, right in ((x, y), (x, y.map_blocks(np.ma.getdata)), (x.map_blocks(np.ma.getdata), y)):
        for plan in (None, "vendor"):
            found = products.matmul(left, right, plan=plan).compute(scheduler="sync")
            expected = da.matmul(left, right).compute(scheduler="sync")
            assert type(found) is type(expected) is np.ma.MaskedArray
            np.testing.assert_array_equal(found.mask, expected.mask)
            np.testing.assert_allclose(found.compressed(), expected.compressed(), rtol=1e-12)
            assert found.mask.any()
        with pytest.raises(PlanError, match="not masked"):
            products.matmul(left, right, plan="winograd")
    if chunk == 12:
        whole = products.matmul(x, y).compute(scheduler="sync")
        np.testing.assert_array_equal(whole.mask, fmm.matmul(a, b).mask)


@pytest.mark.parametrize("plan", ["vendor", "winograd", None])
@pytest.mark.parametrize("sides", ["left", "right", "one chunk"])
def test_masked_chunks_that_nobody_knew_of_are_refused(sides: str, plan: str | None) -> None:
    """Their masks would be lost where products are added up in place, or plain chunks to masked ones."""
    plain = np.ones((16, 16))
    x = da.from_array(plain, chunks=4)
    hidden = x.map_blocks(
        lambda chunk, block_info: (
            np.ma.masked_array(chunk, mask=chunk > 0)
            if sides != "one chunk" or block_info[0]["chunk-location"] == (1, 2)
            else chunk
        ),
        meta=plain[:0, :0],
    )
    product = products.matmul(x, hidden, plan=plan) if sides == "right" else products.matmul(hidden, x, plan=plan)
    with pytest.raises(TypeError, match="masked array"):
        product.compute(scheduler="sync")


class Marked(np.ndarray[Any, Any]):
    """Arrays of another kind, for example sparse ones: they have products and sums, but no `out`."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if out is not None or (ufunc is np.matmul and any(x.dtype == np.complex128 for x in inputs)):
            raise TypeError(f"marked arrays have no such {ufunc.__name__}")
        plain = [np.asarray(x) for x in inputs]
        return np.asarray(getattr(ufunc, method)(*plain, **options)).view(Marked)

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        if function is np.zeros_like:
            raise TypeError("marked arrays have no zeros_like")
        return super().__array_function__(function, types, arguments, options)


@pytest.mark.parametrize("sides", ["left", "right", "both"])
def test_chunks_of_other_kinds_are_dasks(sides: str) -> None:
    (a, x), (b, y) = drawn((12, 12), 4, "float64", 1), drawn((12, 12), 4, "float64", 2)
    x = x if sides == "right" else da.from_array(a.view(Marked), chunks=4, asarray=False)
    y = y if sides == "left" else da.from_array(b.view(Marked), chunks=4, asarray=False)
    found = products.matmul(x, y)
    for product in (found, x @ y):  # (Of several blocks NumPy makes a plain array.)
        assert type(product.blocks[1, 2].compute(scheduler="sync")) is Marked
    np.testing.assert_allclose(found.compute(scheduler="sync"), a @ b, rtol=1e-12)
    with pytest.raises(PlanError, match="plain arrays"):
        products.matmul(x, y, plan="winograd")


def test_what_such_chunks_cannot_do_is_dasks_error() -> None:
    values = np.ones((12, 12), complex).view(Marked)
    x = da.from_array(values, chunks=4, asarray=False)
    said = set[str]()
    for product in (products.matmul, da.matmul):
        with pytest.raises(TypeError) as raised:
            product(x, x).compute(scheduler="sync")
        said.add(str(raised.value))
    assert said == {"marked arrays have no such matmul"}


def test_a_limit_of_errors_is_kept_or_refused() -> None:
    """Dask's own products accept no error limit except for exact numbers; invalid limits raise anywhere."""
    stack, matrix = da.ones((3, 8, 8), chunks=4), da.ones((8, 8), chunks=4)
    unknown = matrix[matrix[:, 0] > 0]
    for x, y in ((stack, stack), (unknown, matrix), (matrix.map_blocks(np.ma.masked_array), matrix)):
        with pytest.raises(PlanError, match=r"max_error_growth=2 is a limit .* dask.array.matmul's own"):
            products.matmul(x, y, max_error_growth=2.0)
    whole = matrix.astype("int64")
    assert (products.matmul(whole, whole, max_error_growth=2.0).compute(scheduler="sync") == 8).all()
    for x in (stack, matrix):
        with pytest.raises(ValueError, match="max_error_growth must be"):
            products.matmul(x, x, max_error_growth=-1.0)


class OnDevice(np.ndarray[Any, Any]):
    """A class that fmm takes for CuPy's array, without device memory."""


OnDevice.__name__, OnDevice.__module__ = "ndarray", "cupy"


@pytest.mark.parametrize(
    ("constraints", "growth"),
    [
        ({}, None),
        ({"max_error_growth": 3.0}, 3.0),
        ({"plan": "winograd", "max_error_growth": 6.0}, 6.0 / GROWTH_OF_WINOGRAD),
        ({"plan": "winograd"}, default_error_growth_limit(True) / GROWTH_OF_WINOGRAD),
    ],
    ids=["nothing wished", "a limit", "a level and a limit", "a level"],
)
def test_workers_with_devices_are_told_the_limit_of_errors(constraints: dict[str, Any], growth: float | None) -> None:
    """Workers with devices choose plans for chunks within the error limit that the levels over the grid leave."""
    x = da.from_array(np.ones((8, 8)).view(OnDevice), chunks=4, asarray=False)
    requested = {task[6:] for task in multiplying_tasks(products.matmul(x, x, **constraints))}
    assert requested == {(None, growth)}


def test_chunks_are_multiplied_within_the_limit_of_errors(products_of_chunks: list[Any]) -> None:
    ones = np.ones((2, 2))
    assert (sum_of_chunk_products([ones, ones], [ones, ones], 1, 1, None, None, 3.0) == 4).all()
    assert (sum_of_chunk_products([ones], [ones], 1, 1, ones, None, 3.0) == 3).all()
    assert products_of_chunks == [3.0, 3.0, 3.0]
