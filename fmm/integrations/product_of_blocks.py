"""A level above a shared product: sums of what this process holds, and fewer shared products of blocks.

The level is walked as Dask's is, over a grid of blocks (fmm.integrations.chunk_grid): a table of tasks, each of which
makes one block. Here they are done one after the other, and a block is let go after its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch

from fmm.integrations.chunk_grid import Cell, ChunkTasks, Grid, combined_chunks, multiplied_chunks
from fmm.kernels.distributed.blocks import Span
from fmm.kernels.distributed.layout import Layout, Operand
from fmm.kernels.distributed.quadrants import Quadrants
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.walk import walk_plan

Key = Any
SharedProduct = Callable[[Layout, Any, Any], Any]  # of two blocks, of which this process has its part


def level_tasks(found: Quadrants, plan: Plan, dtype: str) -> tuple[dict[Key, tuple[Any, ...]], Grid]:
    """What the level asks of a process, in order, and the blocks of C."""
    m, k, n = found.parts
    rows, cols, width = found.rows // m, found.cols // n, found.width // k
    a, b = found.count("A") * width, found.count("B") * width
    left, right = _cells("A", (m, k), rows, a), _cells("B", (k, n), b, cols)
    result: Grid = np.full((m, n), None, dtype=object)
    tasks = ChunkTasks("block")
    walk_plan(plan, {"A": left, "B": right, "C": result}, tasks, dtype)
    return tasks.table, result


def _cells(name: str, shape: tuple[int, int], rows: int, cols: int) -> Grid:
    found: Grid = np.full(shape, None, dtype=object)
    for i, j in np.ndindex(shape):
        found[i, j] = Cell((name, i, j), rows, cols)
    return found


def product_of_blocks(found: Quadrants, plan: Plan, place: int, a: Any, b: Any, product: SharedProduct) -> Any:
    """This process's block of C, from what it holds of A and B."""
    table, result = level_tasks(found, plan, "float64")
    blocks = {**_blocks_of(found, "A", place, a), **_blocks_of(found, "B", place, b)}
    share, (m, _, n) = found.whole.share(place), found.parts
    rows, cols = found.rows // m, found.cols // n
    c = a.new_empty((share.rows.size, share.cols.size))
    wanted = {cell.key: spot for spot, cell in np.ndenumerate(result)}
    last = _last_readers(table)
    for key, (function, *arguments) in table.items():
        made = _done(function, arguments, blocks, found.block, product)
        if key in wanted:
            i, j = wanted[key]
            part = c[i * rows : (i + 1) * rows, j * cols : (j + 1) * cols]
            part.copy_(made[: part.shape[0], : part.shape[1]])
        if key in last:
            blocks[key] = made
        for read in _read_by(arguments):
            if last[read] == key:
                del blocks[read]
    return c


def _done(
    function: Callable[..., Any],
    arguments: list[Any],
    blocks: Mapping[Key, Any],
    layout: Layout,
    product: SharedProduct,
) -> Any:
    """One task's block."""
    if function is combined_chunks:
        weights, keys = arguments
        return weighted_sum(weights, [blocks[key] for key in keys])
    assert function is multiplied_chunks, "a task that no level makes"
    left, right, alpha, beta, before, _ = arguments
    made = product(layout, blocks[left], blocks[right])
    made = made if alpha == 1 else made.mul_(alpha)
    return made if before is None else made.add_(blocks[before], alpha=beta)


def weighted_sum(weights: Any, blocks: list[Any]) -> Any:
    """Of blocks of one size, two at a time."""
    total = None
    for weight, block in zip(weights, blocks, strict=True):
        if total is None:
            total = block if weight == 1 else block * weight
        elif total is blocks[0]:
            total = torch.add(total, block, alpha=weight)
        else:
            total.add_(block, alpha=weight)
    return total


def _read_by(arguments: list[Any]) -> list[Key]:
    """The blocks that a task reads."""
    if isinstance(arguments[1], list):
        return list(dict.fromkeys(arguments[1]))
    return list(dict.fromkeys(key for key in (arguments[0], arguments[1], arguments[4]) if key is not None))


def _last_readers(table: Mapping[Key, tuple[Any, ...]]) -> dict[Key, Key]:
    return {read: key for key, (_, *arguments) in table.items() for read in _read_by(arguments)}


# ---- what a process holds, block by block


def _blocks_of(found: Quadrants, operand: Operand, place: int, held: Any) -> dict[Key, Any]:
    """Its part of each block of A or B; copies where the parts of a block do not lie side by side."""
    m, _, n = found.parts
    if operand == "B":
        turned = _cut(held.mT, found, n, found.groups("B", place), found.cols)
        return {("B", j, i): block.mT for (i, j), block in turned.items()}
    made = _cut(held, found, m, found.groups("A", place), found.rows)
    return {("A", i, j): block for (i, j), block in made.items()}


def _cut(held: Any, found: Quadrants, parts: int, groups: tuple[Span, ...], rows: int) -> dict[tuple[int, int], Any]:
    """A matrix whose columns are along the inner dimension, in parts: (rows, inner part) -> block."""
    inner, width, count = found.parts[1], found.width, len(groups)
    if held.shape[0] != rows or {group.size for group in groups} != {width}:
        padded = held.new_zeros((rows, count * width))
        for i, group in enumerate(groups):
            padded[: held.shape[0], i * width : i * width + group.size] = held[:, group.start : group.stop]
        held = padded
    grouped = held.unflatten(1, (count, inner, width // inner))
    high = rows // parts
    return {(i, j): grouped[i * high : (i + 1) * high, :, j].flatten(1) for i in range(parts) for j in range(inner)}
