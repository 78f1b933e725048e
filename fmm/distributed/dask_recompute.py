"""Recompute without levels all chunks with inf or NaN, since sums of a level move inf and NaN to other entries.

A Dask graph is built before any value is known, so the graph has tasks with levels and tasks without levels. If a
result chunk computed with levels is finite, the tasks that would compute this chunk without levels return None. Before
Dask runs a task, it sends the worker all inputs of the task, even if the task returns None. To avoid useless transfers,
the products without levels read the results of forwarding tasks instead of chunks of A and B. A forwarding task runs on
the worker that holds the chunk. A forwarding task returns its chunk of A or B if the chunk is needed to recompute a
chunk of the result that has inf or NaN. If no result chunk needs the chunk, a forwarding task returns None, and Dask
transfers nothing.

An inf or NaN in an operand or in a sum spreads to every chunk that depends on the value. A chunk that was computed with
levels and is finite therefore depends on no inf or NaN, and is correct.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fmm.distributed.chunk_grid import ChunkCell, ChunkGrid, ChunkTasks
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.walk import walk_plan


def add_recompute_tasks(
    tasks: ChunkTasks, a: ChunkGrid, b: ChunkGrid, c: ChunkGrid, outer_plan: Plan, dtype: str
) -> ChunkGrid:
    """Return the result's ChunkCells; add tasks that recompute chunks without levels to `tasks.table`.

    A chunk of the result is the chunk computed with levels if that chunk is finite, else the recomputed chunk.
    """
    for key, task in tasks.table.items():
        tasks.table[key] = (run_without_warnings, *task)
    by_levels = {index: cell for index, cell in np.ndenumerate(c) if isinstance(cell, ChunkCell)}
    nonfinite = _build_chunk_grid(c.shape, lambda *index: tasks.add_task(1, 1, has_inf_or_nan, by_levels[index].key))
    # A forwarding task waits for all result chunks that share the task. With levels that cut the result into 2 x 2
    # submatrices, chunks with equal positions in the submatrices are ready at about the same time, so these chunks
    # share a task.
    parts = 2 ** len(outer_plan.levels)
    rows = [_chunk_forwarding_tasks(tasks, a[i], nonfinite[i], parts) for i in range(len(a))]
    cols = [_chunk_forwarding_tasks(tasks, b[:, j], nonfinite[:, j], parts) for j in range(b.shape[1])]

    def final_chunk_cell(i: int, j: int) -> ChunkCell:
        cell, without_levels = (
            by_levels[i, j],
            _add_product_without_levels(tasks, nonfinite[i, j], (rows[i][j], cols[j][i]), dtype),
        )
        return tasks.add_task(cell.rows, cell.cols, choose_final_chunk, cell.key, without_levels.key)

    return _build_chunk_grid(c.shape, final_chunk_cell)


def _build_chunk_grid(shape: tuple[int, ...], cell: Callable[..., ChunkCell]) -> ChunkGrid:
    grid: ChunkGrid = np.full(shape, None, dtype=object)
    for index in np.ndindex(shape):
        grid[index] = cell(*index)
    return grid


def _chunk_forwarding_tasks(
    tasks: ChunkTasks, chunks: ChunkGrid, nonfinite: ChunkGrid, parts: int
) -> list[list[ChunkCell]]:
    """Return for each result chunk in a row the forwarding tasks for the chunks in the same row of A.

    If `chunks` is a column of B, return the forwarding tasks for each result chunk in a column. A forwarding task
    returns its chunk of A or B if a chunk of the result has inf or NaN and must be recomputed, else None. Result chunks
    with equal positions in the submatrices of a level are ready at about the same time, so these result chunks share
    one task for each chunk of A or B.
    """
    distance = -(-len(nonfinite) // parts)
    sets = [[cell.key for cell in nonfinite[first::distance]] for first in range(distance)]
    passed = [
        [tasks.add_task(x.rows, x.cols, run_if_any_condition, keys, return_chunk_unchanged, x.key) for x in chunks]
        for keys in sets
    ]
    return [passed[place % distance] for place in range(len(nonfinite))]


def _add_product_without_levels(
    tasks: ChunkTasks, nonfinite: Any, pair: tuple[list[ChunkCell], list[ChunkCell]], dtype: str
) -> ChunkCell:
    """Add tasks that multiply a row of chunks by a column of chunks if the chunk computed with levels is not finite."""
    first = len(tasks.table)
    row, column = (np.array(cells, dtype=object) for cells in pair)
    result: ChunkGrid = np.full((1, 1), None, dtype=object)
    walk_plan(VENDOR, {"A": row[None, :], "B": column[:, None], "C": result}, tasks, dtype)
    for number in range(first, len(tasks.table)):
        key = tasks.name, number
        tasks.table[key] = (run_if_any_condition, [nonfinite.key], *tasks.table[key])
    cell: ChunkCell = result[0, 0]
    return cell


# ---- functions that the tasks call


def run_without_warnings(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function without NumPy's warnings: a level's sum can overflow although the product does not."""
    with np.errstate(over="ignore", invalid="ignore"):
        return function(*arguments)


def has_inf_or_nan(chunk: Any) -> bool:
    with np.errstate(all="ignore"):
        # the sum is tested first: unlike a test of every entry, a sum needs no temporary array
        return not (np.isfinite(chunk.sum()) or np.isfinite(chunk).all())


def run_if_any_condition(conditions: Sequence[bool], function: Callable[..., Any], *arguments: Any) -> Any:
    """Return function(*arguments) if a condition is true; otherwise call nothing and return None."""
    return function(*arguments) if any(conditions) else None


def return_chunk_unchanged(chunk: Any) -> Any:
    return chunk


def choose_final_chunk(by_levels: Any, without_levels: Any) -> Any:
    return by_levels if without_levels is None else without_levels
