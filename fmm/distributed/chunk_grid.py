"""Run plans over a grid of chunks: walking a plan records a table of tasks, and each task computes one chunk.

`ChunkTasks` records a task for each step of the walk, and computes nothing. A task consists of a function of this
module, and the keys of the chunks that the function reads. No task changes a chunk that the task reads, so Dask may
repeat any task. If chunks differ in size, a sum pads smaller chunks with zeros, and a product uses the common range of
the inner dimension.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmm.api import gemm, matmul
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.plans.plan import PlanError
from fmm.kernels.plans.sums import Mirror, Place, RescaledCopy, RowOrColumnExponents, Sum
from fmm.kernels.plans.walk import DefaultMachine, ProductMatrices

# an array of ChunkCell objects; an element is None until a step of the walk writes the chunk
ChunkGrid = np.ndarray[Any, np.dtype[np.object_]]
ChunkKey = Any

MAX_SUMMANDS_PER_TASK = 8  # largest number of chunks in the sum of one task


@dataclass(frozen=True)
class ChunkCell:
    """A chunk that a task will compute: its key in the table of tasks, its number of rows and its number of columns."""

    key: ChunkKey
    rows: int
    cols: int


@dataclass
class ChunkTasks(DefaultMachine):
    """The table of tasks that a walk over a plan fills."""

    name: str  # first item of each task's key
    # Text of the plan for each product of two chunks; None if the worker that computes the product chooses its plan.
    chunk_plan: str | None = None
    chunk_growth: float | None = None  # limit of the error growth of the plan that the worker chooses
    products_per_task: int = 1  # number of products of chunks whose sum one task computes
    table: dict[ChunkKey, tuple[Any, ...]] = field(default_factory=dict)
    leaves_apply_alpha_beta: bool = True
    used_bytes: int = 0

    # ---- the steps of a walk

    def allocate(self, rows: int, cols: int, fortran: bool, dtype: str) -> ChunkGrid:
        return np.full((rows, cols), None, dtype=object)

    def free_temporaries_since(self, mark: int) -> None:
        """Do nothing: Dask frees a chunk after the last task that reads the chunk."""

    def submatrix(self, x: ChunkGrid, place: Place) -> ChunkGrid:
        return x[place.row : place.row + place.rows, place.col : place.col + place.cols]

    def compute_sums(self, step: Sum, reads: Sequence[ChunkGrid], writes: Sequence[ChunkGrid]) -> None:
        if isinstance(step, RowOrColumnExponents | RescaledCopy):
            raise PlanError("a matrix of chunks cannot be scaled as a whole; put the level scaled into chunk_plan")
        results: list[tuple[ChunkGrid, tuple[int, ...], ChunkCell | None]] = []
        values: dict[tuple[int, ...], list[ChunkCell | None]] = {}
        for output, write in zip(step.program.outputs, writes, strict=True):
            for index in np.ndindex(write.shape):
                if index not in values:
                    values[index] = self._evaluate_addition_program(
                        step.program, [_chunk_cell_at(read, index) for read in reads]
                    )
                results.append((write, index, values[index][output]))
        for write, index, cell in results:  # written after all inputs are read, since an output may overwrite an input
            write[index] = cell

    def multiply(
        self, leaf: str, products: Sequence[ProductMatrices], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        for left, right, dest in products:
            for i, j in np.ndindex(dest.shape):
                pairs = [(left[i, k], right[k, j]) for k in range(left.shape[1])]
                dest[i, j] = self._sum_of_products_cell(pairs, dest[i, j] if beta else None, alpha, beta)

    def multiply_triangle(self, leaf: str, products: Sequence[ProductMatrices], dtype: str, params: object) -> None:
        raise NotImplementedError("one triangle of a product of chunks")

    def mirror_triangle(self, step: Mirror, source: ChunkGrid, dest: ChunkGrid) -> None:
        raise NotImplementedError("one triangle of a product of chunks")

    # ---- tasks

    def resize_chunk(self, cell: ChunkCell | None, rows: int, cols: int) -> ChunkCell:
        """Return the ChunkCell of a chunk of exactly this size; add a task that resizes a chunk of another size."""
        assert cell is not None, "a chunk that no step wrote"
        if (cell.rows, cell.cols) == (rows, cols):
            return cell
        return self.add_task(rows, cols, resized_chunk, cell.key, rows, cols)

    def rename_chunks(self, names: Mapping[ChunkKey, ChunkKey]) -> None:
        """Replace keys of chunks, in the table and in the arguments of the tasks that read the chunks."""

        def replace_chunk_keys(x: Any) -> Any:
            if isinstance(x, list):
                return [replace_chunk_keys(y) for y in x]
            return names.get(x, x) if isinstance(x, tuple) else x

        table = {
            names.get(key, key): (function, *map(replace_chunk_keys, rest))
            for key, (function, *rest) in self.table.items()
        }
        self.table.clear()
        self.table.update(table)

    def _evaluate_addition_program(
        self, program: AdditionProgram, inputs: list[ChunkCell | None]
    ) -> list[ChunkCell | None]:
        """Return the ChunkCells of an addition program's inputs, then a ChunkCell for the sum in each program line.

        None in place of a ChunkCell means a chunk of zeros.
        """
        values = list(inputs)
        for line in program.lines:
            terms = [(c, cell) for c, v in line if (cell := values[v]) is not None]
            values.append(self._weighted_sum_cell(terms))
        return values

    def _weighted_sum_cell(self, terms: Sequence[tuple[Coefficient, ChunkCell]]) -> ChunkCell | None:
        if not terms:
            return None
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]
        rows, cols = (max(getattr(cell, side) for _, cell in terms) for side in ("rows", "cols"))
        weights = tuple(_coefficient_as_number(c) for c, _ in terms)
        return self.add_task(rows, cols, weighted_chunk_sum, weights, [cell.key for _, cell in terms])

    def _sum_of_products_cell(
        self,
        pairs: Sequence[tuple[ChunkCell | None, ChunkCell | None]],
        addend: ChunkCell | None,
        alpha: Coefficient,
        beta: Coefficient,
    ) -> ChunkCell | None:
        """Add the tasks that compute the chunk alpha * (sum of the products) + beta * addend; return its ChunkCell."""
        present = [(left, right) for left, right in pairs if left is not None and right is not None]
        groups = list[ChunkCell]()
        for first in range(0, len(present), self.products_per_task):
            groups.append(
                self._product_group_task(
                    present[first : first + self.products_per_task], None if groups else addend, alpha, beta
                )
            )
        while len(groups) > 1:
            starts = range(0, len(groups), MAX_SUMMANDS_PER_TASK)
            sums = [
                self._weighted_sum_cell([(1, cell) for cell in groups[i : i + MAX_SUMMANDS_PER_TASK]]) for i in starts
            ]
            groups = [cell for cell in sums if cell is not None]
        return groups[0] if groups else self._weighted_sum_cell([] if addend is None else [(beta, addend)])

    def _product_group_task(
        self,
        pairs: Sequence[tuple[ChunkCell, ChunkCell]],
        addend: ChunkCell | None,
        alpha: Coefficient,
        beta: Coefficient,
    ) -> ChunkCell:
        old = [] if addend is None else [addend]
        rows = max(cell.rows for cell in (*(left for left, _ in pairs), *old))
        cols = max(cell.cols for cell in (*(right for _, right in pairs), *old))
        update = (_coefficient_as_number(alpha), _coefficient_as_number(beta), None if addend is None else addend.key)
        lefts, rights = ([cell.key for cell in side] for side in zip(*pairs, strict=True))
        return self.add_task(
            rows, cols, sum_of_chunk_products, lefts, rights, *update, self.chunk_plan, self.chunk_growth
        )

    def add_task(self, rows: int, cols: int, function: Callable[..., Any], *arguments: Any) -> ChunkCell:
        key = (self.name, len(self.table))
        self.table[key] = (function, *arguments)
        return ChunkCell(key, rows, cols)


def _chunk_cell_at(grid: ChunkGrid, index: tuple[int, ...]) -> ChunkCell | None:
    """Return the ChunkCell at this index of the grid; None (zeros) for an index outside the grid."""
    inside = all(place < side for place, side in zip(index, grid.shape, strict=True))
    return grid[index] if inside else None


def _coefficient_as_number(c: Coefficient) -> float | complex:
    return c if isinstance(c, complex) else float(c)


# ---- functions that the tasks call, on chunks that are NumPy or CuPy arrays


def weighted_chunk_sum(weights: Sequence[float | complex], chunks: Sequence[Any]) -> Any:
    """Return the weighted sum of the chunks; smaller chunks are padded with zeros to the largest size."""
    check_chunks_unmasked(chunks)
    shape = tuple(map(max, zip(*(chunk.shape for chunk in chunks), strict=True)))
    terms = list(zip(weights, chunks, strict=True))
    if chunks[0].shape != shape:
        total = np.zeros_like(chunks[0], shape=shape)
    elif len(terms) > 1 and chunks[1].shape == shape and set(weights[:2]) <= {1, -1} and 1 in weights[:2]:
        (first, x), (second, y) = terms[:2]
        # the first two chunks are added or subtracted in one pass over memory; scaling the first chunk and then adding
        # the second chunk would take two passes
        total = x + y if first == second else x - y if first == 1 else y - x
        terms = terms[2:]
    else:
        total, terms = chunks[0] * chunks[0].dtype.type(weights[0]), terms[1:]
    for weight, chunk in terms:
        part = total[: chunk.shape[0], : chunk.shape[1]]
        if weight == 1:
            part += chunk
        elif weight == -1:
            part -= chunk
        else:
            part += chunk * chunk.dtype.type(weight)
    return total


def sum_of_chunk_products(
    lefts: Sequence[Any],
    rights: Sequence[Any],
    alpha: complex,
    beta: complex,
    addend: Any,
    plan: str | None,
    max_error_growth: float | None = None,
) -> Any:
    """Return alpha * (sum of left @ right) + beta * addend in a new chunk; smaller chunks are padded with zeros.

    All products are added into one new chunk, since a separate chunk for each product would be written to memory and
    read again.
    """
    check_chunks_unmasked((*lefts, *rights))
    constraints: dict[str, Any] = {"plan": plan, "max_error_growth": max_error_growth}
    pairs = [_cut_to_common_inner(left, right) for left, right in zip(lefts, rights, strict=True)]
    others = [] if addend is None else [addend.shape]
    shape = tuple(map(max, zip(*((x.shape[0], y.shape[1]) for x, y in pairs), *others, strict=True)))
    (left, right), rest = pairs[0], pairs[1:]
    whole = (left.shape[0], right.shape[1]) == shape
    if addend is not None and whole:
        total = gemm(left, right, resized_chunk(addend, *shape), alpha=alpha, beta=beta, **constraints)
    elif addend is None and whole:
        total = matmul(left, right, **constraints)
        total = total if alpha == 1 else total * total.dtype.type(alpha)
    else:
        dtype = np.result_type(left, right)
        total = np.zeros_like(left, shape=shape, dtype=dtype)
        if addend is not None:
            total[: addend.shape[0], : addend.shape[1]] = addend * dtype.type(beta)
        rest = pairs
    for left, right in rest:
        part = total[: left.shape[0], : right.shape[1]]
        gemm(left, right, part, alpha=alpha, beta=1, out=part, **constraints)
    return total


def check_chunks_unmasked(chunks: Sequence[Any]) -> None:
    """Raise TypeError if a chunk is a masked array: in-place sums would lose the mask."""
    if any(isinstance(chunk, np.ma.MaskedArray) for chunk in chunks):
        raise TypeError(
            "a chunk is a masked array, but the array's _meta is a plain one: pass meta= to map_blocks or "
            "from_delayed, then dask.array.matmul multiplies"
        )


def _cut_to_common_inner(left: Any, right: Any) -> tuple[Any, Any]:
    """Return the chunks, cut to a common inner dimension if `left` has more columns or `right` has more rows."""
    inner = min(left.shape[1], right.shape[0])
    return left[:, :inner], right[:inner]


def resized_chunk(chunk: Any, rows: int, cols: int) -> Any:
    """Return the chunk, cut or padded with zeros to `rows` x `cols`."""
    if chunk.shape == (rows, cols):
        return chunk
    whole = np.zeros_like(chunk, shape=(rows, cols))
    part = chunk[:rows, :cols]
    whole[: part.shape[0], : part.shape[1]] = part
    return whole
