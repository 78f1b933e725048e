"""Compute an outer level of a shared product with local sums of blocks and shared products of blocks.

The level is walked over a grid of blocks, just as fmm.distributed.chunk_grid walks over a grid of chunks for Dask. The
walk fills a table of tasks, and each task computes one block. Each process runs the tasks one after the other and frees
a block after the last task that reads the block.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from fmm.distributed.chunk_grid import ChunkCell, ChunkGrid, ChunkTasks, sum_of_chunk_products, weighted_chunk_sum
from fmm.distributed.layout import MeshLayout, OperandName, Span
from fmm.distributed.quadrants import OuterLevelBlocks
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.walk import walk_plan

BlockKey = Any
# A function that starts a shared product of two blocks and returns the ProductInProgress.
StartProduct = Callable[[MeshLayout, Any, Any], Any]
FinishProduct = Callable[[Any], Any]  # finishes a product in progress and returns this process's block of C


def build_level_tasks(
    cut: OuterLevelBlocks, plan: Plan, dtype: str
) -> tuple[dict[BlockKey, tuple[Any, ...]], ChunkGrid]:
    """Return an outer level's tasks in the order in which a process runs them, and a ChunkCell per block of C."""
    m, k, n = cut.parts
    rows, cols, width = cut.rows // m, cut.cols // n, cut.width // k
    left = _symbolic_chunk_grid("A", (m, k), rows, cut.held_inner_range_count("A") * width)
    right = _symbolic_chunk_grid("B", (k, n), cut.held_inner_range_count("B") * width, cols)
    result: ChunkGrid = np.full((m, n), None, dtype=object)
    tasks = ChunkTasks("block")
    walk_plan(plan, {"A": left, "B": right, "C": result}, tasks, dtype)
    return tasks.table, result


def _symbolic_chunk_grid(name: str, shape: tuple[int, int], rows: int, cols: int) -> ChunkGrid:
    cells: ChunkGrid = np.full(shape, None, dtype=object)
    for i, j in np.ndindex(shape):
        cells[i, j] = ChunkCell((name, i, j), rows, cols)
    return cells


def multiply_blocks(
    cut: OuterLevelBlocks, plan: Plan, place: int, a: Any, b: Any, start: StartProduct, finish: FinishProduct
) -> Any:
    """Return this process's part of C, computed from its parts of A and B.

    Each product starts before the previous product ends, so that the panels of its first step arrive during the
    previous product.
    """
    table, result = build_level_tasks(cut, plan, "float64")
    share = cut.whole.process_share(place)
    c = a.new_empty((share.rows.size, share.cols.size))
    operands = {**_operand_blocks(cut, "A", place, a), **_operand_blocks(cut, "B", place, b)}
    blocks = _BlocksInUse(operands, table, result, c)
    started: tuple[BlockKey, Any] | None = None
    for key, (function, *arguments) in table.items():
        if started is not None and started[0] in _block_keys_read(arguments):
            blocks.store_block(started[0], _finish_block_product(*started, blocks, finish))
            started = None
        if function is weighted_chunk_sum:
            blocks.store_block(key, weighted_block_sum(arguments[0], [blocks.live[read] for read in arguments[1]]))
            continue
        assert function is sum_of_chunk_products, "a task that no level makes"
        (left,), (right,) = arguments[:2]  # each task multiplies a single pair of blocks
        product = start(cut.block_layout, blocks.live[left], blocks.live[right])
        if started is not None:
            blocks.store_block(started[0], _finish_block_product(*started, blocks, finish))
        started = key, product
    if started is not None:
        blocks.store_block(started[0], _finish_block_product(*started, blocks, finish))
    return c


def _finish_block_product(key: BlockKey, product: Any, blocks: _BlocksInUse, finish: FinishProduct) -> Any:
    """Finish the product, and return the block that the task computes: alpha * product + beta * addend."""
    _, _, _, alpha, beta, before, *_ = blocks.table[key]
    block = finish(product)
    block = block if alpha == 1 else block.mul_(alpha)
    return block if before is None else block.add_(blocks.live[before], alpha=beta)


class _BlocksInUse:
    """Holds the blocks that later tasks still read; `store_block` also copies blocks of C into the matrix C."""

    def __init__(
        self, operands: dict[BlockKey, Any], table: Mapping[BlockKey, tuple[Any, ...]], result: ChunkGrid, c: Any
    ) -> None:
        self.live, self.table, self.c = operands, table, c
        self.places = {cell.key: index for index, cell in np.ndenumerate(result)}
        self.last_reader = {read: key for key, (_, *arguments) in table.items() for read in _block_keys_read(arguments)}
        cell = result[0, 0]
        assert cell is not None, "a block of C that no step wrote"
        self.rows, self.cols = cell.rows, cell.cols

    def store_block(self, key: BlockKey, block: Any) -> None:
        if key in self.places:
            i, j = self.places[key]
            part = self.c[i * self.rows : (i + 1) * self.rows, j * self.cols : (j + 1) * self.cols]
            part.copy_(block[: part.shape[0], : part.shape[1]])
        if key in self.last_reader:
            self.live[key] = block
        for read in _block_keys_read(self.table[key][1:]):
            if self.last_reader[read] == key:
                del self.live[read]


def weighted_block_sum(weights: Any, blocks: list[Any]) -> Any:
    """Return the weighted sum of blocks of equal size, with one torch operation per addition."""
    total = None
    for weight, block in zip(weights, blocks, strict=True):
        if total is None:
            total = block if weight == 1 else block * weight
        elif total is blocks[0]:
            total = torch.add(total, block, alpha=weight)
        else:
            total.add_(block, alpha=weight)
    return total


def _block_keys_read(arguments: Sequence[Any]) -> list[BlockKey]:
    """Return the keys of the blocks that the task with these arguments reads."""
    if len(arguments) == 2:  # weights, blocks
        return list(dict.fromkeys(arguments[1]))
    left, right, _, _, before, *_ = arguments
    return list(dict.fromkeys(key for key in (*left, *right, before) if key is not None))


# ---- a process's parts of A and B, cut into blocks


def _operand_blocks(cut: OuterLevelBlocks, operand: OperandName, place: int, held: Any) -> dict[BlockKey, Any]:
    """Return this process's part of each block of A or B: a view of a submatrix if possible, else a copy."""
    m, _, n = cut.parts
    if operand == "B":
        transposed = _cut_into_blocks(held.mT, cut, n, cut.held_inner_ranges("B", place), cut.cols)
        return {("B", j, i): block.mT for (i, j), block in transposed.items()}
    blocks = _cut_into_blocks(held, cut, m, cut.held_inner_ranges("A", place), cut.rows)
    return {("A", i, j): block for (i, j), block in blocks.items()}


def _cut_into_blocks(
    held: Any, cut: OuterLevelBlocks, parts: int, groups: tuple[Span, ...], rows: int
) -> dict[tuple[int, int], Any]:
    """Return the blocks by (row index, column index) of a matrix with the inner dimension along its columns."""
    inner, width, count = cut.parts[1], cut.width, len(groups)
    if held.shape[0] != rows or {group.size for group in groups} != {width}:
        padded = held.new_zeros((rows, count * width))
        for i, group in enumerate(groups):
            padded[: held.shape[0], i * width : i * width + group.size] = held[:, group.start : group.stop]
        held = padded
    grouped = held.unflatten(1, (count, inner, width // inner))
    high = rows // parts
    return {(i, j): grouped[i * high : (i + 1) * high, :, j].flatten(1) for i in range(parts) for j in range(inner)}
