"""Products of two Dask matrices: levels over the grid of chunks, and fmm.matmul for each pair of chunks.

The levels are walked when the graph is built (chunk_grid.py); the workers later run the graph's tasks. A task depends
only on its operands and does not change them, so Dask can repeat the tasks of a lost worker. The plan for a product of
two NumPy chunks is chosen once, by the client, so that workers with equal processors return identical bits; for CuPy
chunks, each worker chooses the plan. One task accumulates several products; Dask's own matmul stores each product in a
chunk and then adds the chunks. Chunks with inf or NaN are recomputed without levels when the graph is computed
(dask_recompute.py).
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

from fmm.api import plan as plan_product
from fmm.arrays.detect import array_kind
from fmm.arrays.numpy_library import PLAIN_ARRAY_CLASSES
from fmm.distributed.chunk_grid import ChunkCell, ChunkGrid, ChunkTasks
from fmm.distributed.dask_choice import ChunkCosts, GridPlan, choose_grid_plan, default_products_per_task
from fmm.distributed.dask_recompute import add_recompute_tasks
from fmm.distributed.quadrants import may_choose_levels, parse_block_levels
from fmm.dtypes import DTYPES, STORED_TYPES
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.walk import walk_plan
from fmm.perfmodel.choose import default_error_growth_limit
from fmm.perfmodel.stability import expected_error_growth
from fmm.request import check_error_growth
from fmm.runtime.decisions.decide import Decision
from fmm.runtime.devices import get_device

da: Any = dask.array  # the type is Any, since dask.array is only partly annotated

CANDIDATE_GRID_PLANS = ("vendor", "winograd", "winograd^2")  # texts of the candidate levels over the grid of chunks


class ChunkConstraints(NamedTuple):
    """Constraints on products of two chunks: a plan, or None if each worker chooses within `max_error_growth`."""

    plan: str | None
    max_error_growth: float | None


def matmul(
    x: Any, y: Any, /, *, plan: Plan | Decision | str | None = None, max_error_growth: float | None = None
) -> Any:
    """Multiply two Dask matrices lazily; the chunks may be NumPy or CuPy arrays.

    Parameters
    ----------
    x, y : dask.array.Array or array_like
        Two matrices. dask.array.matmul handles arrays with other numbers of axes, unknown chunk sizes, and integer or
        other types. dask.array.matmul also multiplies chunks other than NumPy or CuPy arrays, for example masked
        arrays.
    plan : str, Plan or Decision, optional
        Levels over the grid of chunks. A scheme such as "winograd" replaces eight products of submatrices with seven;
        "vendor" selects no levels. By default, up to two Winograd levels are used if predicted to save a tenth of the
        time on the cluster's current workers. The number of chunks along an axis need not be even.
    max_error_growth : float, optional
        Limit of the error growth, as in fmm.matmul, of the grid levels and the chunk plans together.

    Returns
    -------
    dask.array.Array
        The product, with the row chunks of x and the column chunks of y.

    Raises
    ------
    PlanError
        If the plan is no level over chunks, or an option is given for a product that dask.array.matmul computes.

    Notes
    -----
    Sums of blocks move inf and NaN. Result chunks with inf or NaN are recomputed without levels, so inf and NaN are
    exactly where plan="vendor" has them.

    Examples
    --------
    >>> import dask.array as da, fmm.dask
    >>> x = da.ones((4, 4), chunks=2)
    >>> fmm.dask.matmul(x, x).compute()[0]
    array([4., 4., 4., 4.])
    """
    growth = None if max_error_growth is None else check_error_growth(max_error_growth)
    outer_plan = None if plan is None else parse_block_levels(plan, "over chunks")
    x, y = da.asanyarray(x), da.asanyarray(y)
    has_unknown_sizes = any(isnan(size) for array in (x, y) for sizes in array.chunks for size in sizes)
    library, dtype = _chunk_library_name(x, y), np.result_type(x.dtype, y.dtype)
    are_matrices = x.ndim == y.ndim == 2 and x.shape[1] == y.shape[0]
    if not are_matrices or has_unknown_sizes or not library or dtype.name not in STORED_TYPES:
        _check_no_constraints(outer_plan, growth, dtype)
        return da.matmul(x, y)
    x, y = x.astype(dtype), y.astype(dtype).rechunk({0: x.chunks[1]})
    on_device = library == "cupy"
    limit = default_error_growth_limit(on_device) if growth is None else growth
    grid_plan = _choose_grid_plan(x, y, outer_plan, on_device, limit)
    chunk_limit = limit / expected_error_growth(grid_plan.outer_plan, dtype.name)
    if on_device:  # on GPUs, each worker chooses the plan for a product of two chunks
        is_default = growth is None and grid_plan.outer_plan == VENDOR
        return _product_graph(x, y, dtype, grid_plan, ChunkConstraints(None, None if is_default else chunk_limit))
    chunk_plan = plan_product(*_largest_chunk_sizes(x, y), dtype=dtype, max_error_growth=chunk_limit).plan
    return _product_graph(x, y, dtype, grid_plan, ChunkConstraints(str(chunk_plan), None))


def _chunk_library_name(x: Any, y: Any) -> str:
    """Return "numpy" or "cupy" if all chunks of x and y are plain arrays of that library, else an empty string."""
    metas = x._meta, y._meta
    if all(type(meta) in PLAIN_ARRAY_CLASSES for meta in metas):
        return "numpy"
    return "cupy" if all(array_kind(meta) == "cupy" for meta in metas) else ""


def _check_no_constraints(plan: Plan | None, growth: float | None, dtype: np.dtype[Any]) -> None:
    """Raise PlanError if the caller passed `plan` or `max_error_growth` for a product that dask.array.matmul computes.

    `max_error_growth` is allowed for integers, since integer products are exact.
    """
    kinds = "matrices of floating-point numbers, not masked, with known chunks that are plain arrays"
    if plan not in (None, VENDOR):
        raise PlanError(f"the plan {plan} is valid only for {kinds}")
    if growth is not None and dtype.kind not in "biu":
        raise PlanError(f"max_error_growth={growth:g} is a limit for {kinds}; this product is dask.array.matmul's own")


# ---- the choice of levels over the grid


def _choose_grid_plan(x: Any, y: Any, plan: Plan | None, on_device: bool, limit: float) -> GridPlan:
    """Return the levels over the grid of chunks and the number of products per task.

    The levels are those of `plan` if the caller passed a plan, else the fastest by a simulation.
    """
    grid = len(x.chunks[0]), len(x.chunks[1]), len(y.chunks[1])
    workers = worker_counts()
    # the calibration is for one BLAS thread, since Dask starts its workers with one BLAS thread
    calibration = get_device("cpu", 1).guess
    rate = calibration.find_rate(x.dtype.name) if calibration else None
    if plan is None and may_choose_levels():
        plans = [parse_block_levels(text, "over chunks") for text in CANDIDATE_GRID_PLANS]
    else:
        plans = [plan or VENDOR]
    if on_device or calibration is None or rate is None:
        return GridPlan(VENDOR if plan is None else plans[0], default_products_per_task(grid, workers))
    (m, k, n), row = _largest_chunk_sizes(x, y), DTYPES[x.dtype.name]
    chunk_bytes = max(m * k, k * n, m * n) * row.itemsize
    costs = ChunkCosts(row.flops * m * k * n / rate.flops, chunk_bytes, calibration.stream)
    if plan is None:
        plans = [p for p in plans if p == VENDOR or expected_error_growth(p, x.dtype.name) <= limit]
    return choose_grid_plan(grid, plans, costs, workers)


def _largest_chunk_sizes(x: Any, y: Any) -> tuple[int, int, int]:
    return max(x.chunks[0]), max(x.chunks[1]), max(y.chunks[1])


def worker_counts() -> tuple[int, int]:
    """Return the number of processes that will run the tasks, and the number of threads in each process.

    If Dask has a current client, the processes are its cluster's workers; otherwise this process runs the tasks.
    """
    # the function is missing while another thread imports distributed
    find_client = getattr(sys.modules.get("distributed.client"), "_get_global_client", None)
    client = find_client() if find_client else None
    if client is None:
        return 1, dask.config.get("num_workers", None) or CPU_COUNT
    try:
        info = client.scheduler_info()
    except OSError:  # raised if the client has lost its scheduler
        info = {}
    workers = info.get("workers", {})
    count = max(info.get("n_workers", len(workers)), 1)
    threads = info.get("total_threads", sum(worker["nthreads"] for worker in workers.values()))
    return count, max(threads // count, 1)


# ---- the graph


def _product_graph(x: Any, y: Any, dtype: np.dtype[Any], grid_plan: GridPlan, constraints: ChunkConstraints) -> Any:
    """Return the product as a Dask array; its graph has the tasks of the plan over the grid of chunks."""
    token = tokenize(x, y, str(grid_plan.outer_plan), grid_plan.products_per_task, constraints)
    tasks = ChunkTasks(f"fmm-part-{token}", constraints.plan, constraints.max_error_growth, grid_plan.products_per_task)
    grids = _chunk_cells(x), _chunk_cells(y)
    result: ChunkGrid = np.full((len(x.chunks[0]), len(y.chunks[1])), None, dtype=object)
    walk_plan(grid_plan.outer_plan, dict(zip("ABC", (*grids, result), strict=True)), tasks, dtype.name)
    for (i, rows), (j, cols) in _indexed_chunk_sizes((x.chunks[0], y.chunks[1])):
        result[i, j] = tasks.resize_chunk(result[i, j], rows, cols)
    if grid_plan.outer_plan != VENDOR:
        plain_tasks = replace(tasks, name=f"fmm-again-{token}")
        result = add_recompute_tasks(plain_tasks, *grids, result, grid_plan.outer_plan, dtype.name)
    # each chunk of the result has a task of its own, which gets the chunk's key in the Dask array
    name = f"fmm-matmul-{token}"
    tasks.rename_chunks({cell.key: (name, *index) for index, cell in np.ndenumerate(result)})
    graph = HighLevelGraph.from_collections(name, tasks.table, dependencies=[x, y])
    meta = x._meta.astype(dtype)[:0, :0]
    return da.Array(graph, name, (x.chunks[0], y.chunks[1]), dtype, meta)


def _chunk_cells(array: Any) -> ChunkGrid:
    cells: ChunkGrid = np.full(tuple(map(len, array.chunks)), None, dtype=object)
    for (i, rows), (j, cols) in _indexed_chunk_sizes(array.chunks):
        cells[i, j] = ChunkCell((array.name, i, j), rows, cols)
    return cells


def _indexed_chunk_sizes(chunks: Any) -> Iterator[Any]:
    """Yield ((i, rows), (j, cols)) for each chunk: its index in the grid, and its size."""
    return product(enumerate(chunks[0]), enumerate(chunks[1]))
