"""Chunks of a product with levels that are made again without these where inf or NaN came out, which sums move.

A graph of Dask's is made before any number is known, so it holds both ways. While a chunk by the levels is right, each
task of the other way is given None and makes None. Chunks of A and B come to them through tasks of their own, which run
where the chunk is, and hand on it or None: nothing is sent in vain.

Each inf or NaN that an operand or a sum has shows in every chunk that it concerns: a chunk without any is right.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from fmm.distributed.chunk_grid import Cell, ChunkTasks, Grid
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.walk import walk_plan


def with_chunks_made_again(tasks: ChunkTasks, a: Grid, b: Grid, c: Grid, above: Plan, dtype: str) -> Grid:
    """The cells of a product as they are to be: those of c, which the table's tasks make by levels, wherever these are
    finite. The new tasks are in the same table."""
    for key, task in tasks.table.items():
        tasks.table[key] = (quietly, *task)
    made = {spot: cell for spot, cell in np.ndenumerate(c) if isinstance(cell, Cell)}
    wrong = _grid(c.shape, lambda *spot: tasks.task(1, 1, has_inf_or_nan, made[spot].key))
    parts = 2 ** len(above.levels)  # of others than these more tasks wait for each other, and that is all
    rows = [_handed_on(tasks, a[i], wrong[i], parts) for i in range(len(a))]
    cols = [_handed_on(tasks, b[:, j], wrong[:, j], parts) for j in range(b.shape[1])]

    def right(i: int, j: int) -> Cell:
        cell, again = made[i, j], _only_if_wrong(tasks, wrong[i, j], (rows[i][j], cols[j][i]), dtype)
        return tasks.task(cell.rows, cell.cols, right_chunk, cell.key, again.key)

    return _grid(c.shape, right)


def _grid(shape: tuple[int, ...], cell: Callable[..., Cell]) -> Grid:
    found: Grid = np.full(shape, None, dtype=object)
    for spot in np.ndindex(shape):
        found[spot] = cell(*spot)
    return found


def _handed_on(tasks: ChunkTasks, chunks: Grid, wrong: Grid, parts: int) -> list[list[Cell]]:
    """A row of A's chunks, for each of the results that need it, if it is wrong; a column of B's likewise. Of results
    that the levels make at the same time, which are in other parts of their blocks, it is the same task."""
    apart = -(-len(wrong) // parts)
    sets = [[cell.key for cell in wrong[first::apart]] for first in range(apart)]
    handed = [[tasks.task(x.rows, x.cols, only_if, keys, same_chunk, x.key) for x in chunks] for keys in sets]
    return [handed[place % apart] for place in range(len(wrong))]


def _only_if_wrong(tasks: ChunkTasks, wrong: Any, pair: tuple[list[Cell], list[Cell]], dtype: str) -> Cell:
    """The plain product of a row and a column of chunks."""
    before = len(tasks.table)
    row, column = (np.array(cells, dtype=object) for cells in pair)
    found: Grid = np.full((1, 1), None, dtype=object)
    walk_plan(VENDOR, {"A": row[None, :], "B": column[:, None], "C": found}, tasks, dtype)
    for number in range(before, len(tasks.table)):
        key = tasks.name, number
        tasks.table[key] = (only_if, [wrong.key], *tasks.table[key])
    cell: Cell = found[0, 0]
    return cell


# ---- what the tasks do


def quietly(function: Callable[..., Any], *arguments: Any) -> Any:
    """A task of the levels: what overflows in it need not overflow in the product."""
    with np.errstate(over="ignore", invalid="ignore"):
        return function(*arguments)


def has_inf_or_nan(chunk: Any) -> bool:
    with np.errstate(all="ignore"):
        return not (np.isfinite(chunk.sum()) or np.isfinite(chunk).all())  # the first takes no memory


def only_if(wanted: Sequence[bool], function: Callable[..., Any], *arguments: Any) -> Any:
    """None where nobody wants what the function makes, of chunks that are None then too."""
    return function(*arguments) if any(wanted) else None


def same_chunk(chunk: Any) -> Any:
    return chunk


def right_chunk(by_levels: Any, again: Any) -> Any:
    return by_levels if again is None else again
