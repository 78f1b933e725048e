"""A level above a shared product: sums of what this process holds, and fewer shared products of blocks.

The level is walked as Dask's is, over a grid of blocks (fmm.distributed.chunk_grid): a table of tasks, each of
which makes one block. Here they are done one after the other, and a block is let go after its last reader.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fmm.distributed.chunk_grid import Cell, ChunkTasks, Grid, combined_chunks, multiplied_chunks
from fmm.distributed.layout import Layout, Operand, Span
from fmm.distributed.quadrants import Quadrants
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.walk import walk_plan

Key = Any
Begin = Callable[[Layout, Any, Any], Any]  # a product of two blocks, of which this process has its part
Finish = Callable[[Any], Any]  # and what it makes of C


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


def product_of_blocks(found: Quadrants, plan: Plan, place: int, a: Any, b: Any, begin: Begin, finish: Finish) -> Any:
    """This process's block of C, from what it holds of A and B.

    A product is begun, so that its first panels are on their way, before the one in front of it is finished.
    """
    table, result = level_tasks(found, plan, "float64")
    share = found.whole.share(place)
    c = a.new_empty((share.rows.size, share.cols.size))
    blocks = _Blocks({**_blocks_of(found, "A", place, a), **_blocks_of(found, "B", place, b)}, table, result, c)
    begun: tuple[Key, Any] | None = None
    for key, (function, *arguments) in table.items():
        if begun is not None and begun[0] in _read_by(arguments):
            blocks.keep(begun[0], _finished(*begun, blocks, finish))
            begun = None
        if function is combined_chunks:
            blocks.keep(key, weighted_sum(arguments[0], [blocks.there[read] for read in arguments[1]]))
            continue
        assert function is multiplied_chunks, "a task that no level makes"
        (left,), (right,) = arguments[:2]  # a block is no smaller than what a process multiplies at once
        started = begin(found.block, blocks.there[left], blocks.there[right])
        if begun is not None:
            blocks.keep(begun[0], _finished(*begun, blocks, finish))
        begun = key, started
    if begun is not None:
        blocks.keep(begun[0], _finished(*begun, blocks, finish))
    return c


def _finished(key: Key, started: Any, blocks: _Blocks, finish: Finish) -> Any:
    """A product's block: alpha left right + beta before."""
    _, _, _, alpha, beta, before, *_ = blocks.table[key]
    made = finish(started)
    made = made if alpha == 1 else made.mul_(alpha)
    return made if before is None else made.add_(blocks.there[before], alpha=beta)


class _Blocks:
    """The blocks that are there, each until its last reader is done; those of C are copied to their places."""

    def __init__(self, there: dict[Key, Any], table: Mapping[Key, tuple[Any, ...]], result: Grid, c: Any) -> None:
        self.there, self.table, self.c = there, table, c
        self.places = {cell.key: spot for spot, cell in np.ndenumerate(result)}
        self.last = {read: key for key, (_, *arguments) in table.items() for read in _read_by(arguments)}
        cell = result[0, 0]
        assert cell is not None, "a block of C that no step wrote"
        self.rows, self.cols = cell.rows, cell.cols

    def keep(self, key: Key, block: Any) -> None:
        if key in self.places:
            i, j = self.places[key]
            part = self.c[i * self.rows : (i + 1) * self.rows, j * self.cols : (j + 1) * self.cols]
            part.copy_(block[: part.shape[0], : part.shape[1]])
        if key in self.last:
            self.there[key] = block
        for read in _read_by(self.table[key][1:]):
            if self.last[read] == key:
                del self.there[read]


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


def _read_by(arguments: Sequence[Any]) -> list[Key]:
    """The blocks that a task reads."""
    if len(arguments) == 2:  # weights, blocks
        return list(dict.fromkeys(arguments[1]))
    left, right, _, _, before, *_ = arguments
    return list(dict.fromkeys(key for key in (*left, *right, before) if key is not None))


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
