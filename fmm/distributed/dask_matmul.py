"""Products of Dask's arrays: levels of a plan over the grid of chunks, and fmm's own choice for every two chunks.

Lazy like all of Dask: what comes back is an array whose graph holds the plan's sums and products as tasks on chunks. A
task depends on its operands alone and changes none of them, so a lost worker's tasks are done again by another. What
two chunks are multiplied by is chosen here, once: workers of one kind of processor give the same bits.

Several products that are added up are one task, which makes one chunk, where Dask has a chunk for each and then sums.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import isnan
from typing import Any, NamedTuple

import dask
import dask.array
import numpy as np
from dask.base import tokenize
from dask.highlevelgraph import HighLevelGraph
from dask.system import CPU_COUNT

from fmm.api import plan as decided
from fmm.arrays.detect import kind_of
from fmm.arrays.numpy_library import PLAIN
from fmm.distributed.chunk_grid import Cell, ChunkTasks, Grid
from fmm.distributed.dask_choice import ChunkCosts, Way, chosen_way, usual_together
from fmm.distributed.dask_recompute import with_chunks_made_again
from fmm.distributed.quadrants import levels_over_blocks
from fmm.dtypes import DTYPES, STORED
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.walk import walk_plan
from fmm.perfmodel.choose import default_error_growth
from fmm.perfmodel.stability import expected_error_growth
from fmm.request import check_error_growth
from fmm.runtime.devices import get_device

da: Any = dask.array  # which has annotations here and there

# Levels over the grid that are compared.
GRID_PLANS = ("vendor", "winograd", "winograd^2")


class Inside(NamedTuple):
    """How two chunks are multiplied: by this plan, or by one that the worker chooses within this growth of errors."""

    plan: str | None
    max_error_growth: float | None


def matmul(x: Any, y: Any, /, *, plan: str | None = None, max_error_growth: float | None = None) -> Any:
    """The product of two matrices of Dask, lazily; chunks may be NumPy's or CuPy's.

    plan
        Levels over the grid of chunks: "winograd" or any other scheme makes seven products of blocks of chunks for
        eight, "vendor" none. Unless given, one or two levels where they are expected to save a tenth of the time of
        the workers that there are. Grids need not be even.
    max_error_growth
        As fmm.matmul has it, for the levels over the grid and those inside a chunk's product together.

    Chunks by levels that have inf or NaN, which sums of blocks move, are made again without levels, when the product is
    computed: it has them where plan="vendor" does.

    Arrays with more or fewer axes, of unknown chunks, of integers or of other types are dask.array.matmul's; so are
    those whose chunks are no plain arrays of NumPy's or CuPy's (masked ones, say). Of these nothing can be wished.
    """
    growth = None if max_error_growth is None else check_error_growth(max_error_growth)
    x, y = da.asanyarray(x), da.asanyarray(y)
    dtype = np.result_type(x.dtype, y.dtype)
    unknown = any(isnan(size) for array in (x, y) for sizes in array.chunks for size in sizes)
    known = _library_of_chunks(x, y)
    if x.ndim != 2 or y.ndim != 2 or x.shape[1] != y.shape[0] or unknown or not known or dtype.name not in STORED:
        _check_not_wished(plan, growth, dtype)
        return da.matmul(x, y)
    x, y = x.astype(dtype), y.astype(dtype)
    if x.chunks[1] != y.chunks[0]:
        y = y.rechunk({0: x.chunks[1]})
    on_device = known == "cupy"
    limit = default_error_growth(on_device) if growth is None else growth
    way = _chosen_way(x, y, plan, on_device, limit)
    rest = limit / expected_error_growth(way.above, dtype.name)
    if on_device:  # the workers choose the plan
        return _tasks(x, y, dtype, way, Inside(None, None if growth is None and way.above == VENDOR else rest))
    inside = decided(*_largest_chunks(x, y), dtype=dtype, max_error_growth=rest).plan
    return _tasks(x, y, dtype, way, Inside(str(inside), None))


def _library_of_chunks(x: Any, y: Any) -> str:
    """`numpy` or `cupy`, of whose plain arrays both have chunks; else empty: Dask knows what others can do."""
    metas = x._meta, y._meta
    if all(type(meta) in PLAIN for meta in metas):
        return "numpy"
    return "cupy" if all(kind_of(meta) == "cupy" for meta in metas) else ""


def _check_not_wished(plan: str | None, growth: float | None, dtype: np.dtype[Any]) -> None:
    """PlanError for wishes that Dask's own product would not know of. (Exact numbers are within any limit.)"""
    kinds = "matrices of floating-point numbers, not masked, whose chunks are known and plain arrays"
    if plan not in (None, "vendor"):
        raise PlanError(f"the plan {plan} is one for {kinds}")
    if growth is not None and dtype.kind not in "biu":
        raise PlanError(f"max_error_growth={growth:g} is a limit for {kinds}; this product is dask.array.matmul's own")


def _grid_plan(text: str) -> Plan:
    return levels_over_blocks(text, "over chunks")


def _largest_chunks(x: Any, y: Any) -> tuple[int, int, int]:
    return max(x.chunks[0]), max(x.chunks[1]), max(y.chunks[1])


def _chosen_way(x: Any, y: Any, asked: str | None, on_device: bool, limit: float) -> Way:
    """The levels over the grid, those that are asked for or those that save most, and how many products are a task."""
    grid = len(x.chunks[0]), len(x.chunks[1]), len(y.chunks[1])
    workers = workers_there()
    rates = get_device("cpu", 1).guess  # of one thread of BLAS, with which Dask starts a worker
    rate = rates.find_rate(x.dtype.name) if rates else None
    plans = [_grid_plan(text) for text in (GRID_PLANS if asked is None else (asked,))]
    if on_device or rates is None or rate is None:
        return Way(VENDOR if asked is None else plans[0], usual_together(grid, workers))
    (m, k, n), row = _largest_chunks(x, y), DTYPES[x.dtype.name]
    costs = ChunkCosts(row.flops * m * k * n / rate.flops, max(m * k, k * n, m * n) * row.itemsize, rates.stream)
    if asked is None:
        plans = [plan for plan in plans if plan == VENDOR or expected_error_growth(plan, x.dtype.name) <= limit]
    return chosen_way(grid, plans, costs, workers)


def workers_there() -> tuple[int, int]:
    """How many processes will do the tasks, and threads of each, as far as can be known now: those of the client that
    is in force, else this process."""
    distributed = sys.modules.get("distributed")
    client = distributed.client._get_global_client() if distributed else None
    if client is None:
        return 1, dask.config.get("num_workers", None) or CPU_COUNT
    try:
        told = client.scheduler_info()
    except OSError:  # the scheduler is gone
        told = {}
    workers = told.get("workers", {})
    count = max(told.get("n_workers", len(workers)), 1)
    threads = told.get("total_threads", sum(worker["nthreads"] for worker in workers.values()))
    return count, max(threads // count, 1)


def _tasks(x: Any, y: Any, dtype: np.dtype[Any], way: Way, inside: Inside) -> Any:
    """The array whose graph does the plan on chunks."""
    token = tokenize(x, y, str(way.above), way.together, inside)
    tasks = ChunkTasks(f"fmm-part-{token}", inside.plan, inside.max_error_growth, way.together)
    grids = _cells(x), _cells(y)
    result: Grid = np.full((len(x.chunks[0]), len(y.chunks[1])), None, dtype=object)
    walk_plan(way.above, dict(zip("ABC", (*grids, result), strict=True)), tasks, dtype.name)
    for (i, rows), (j, cols) in _places((x.chunks[0], y.chunks[1])):
        result[i, j] = tasks.fitted(result[i, j], rows, cols)
    if way.above != VENDOR:
        again = replace(tasks, name=f"fmm-again-{token}")
        result = with_chunks_made_again(again, *grids, result, way.above, dtype.name)
    name = f"fmm-matmul-{token}"  # each chunk of the result is one that a step makes, and no other's
    tasks.rename({cell.key: (name, *spot) for spot, cell in np.ndenumerate(result)})
    graph = HighLevelGraph.from_collections(name, tasks.table, dependencies=[x, y])
    meta = x._meta.astype(dtype)[:0, :0]
    return da.Array(graph, name, (x.chunks[0], y.chunks[1]), dtype, meta)


def _cells(array: Any) -> Grid:
    found: Grid = np.full(tuple(map(len, array.chunks)), None, dtype=object)
    for (i, rows), (j, cols) in _places(array.chunks):
        found[i, j] = Cell((array.name, i, j), rows, cols)
    return found


def _places(chunks: Any) -> Iterator[Any]:
    return product(enumerate(chunks[0]), enumerate(chunks[1]))
