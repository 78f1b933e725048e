"""Plans over a grid of chunks: a walk over a plan becomes a table of tasks, each of which makes one chunk.

`ChunkTasks` is a machine for the walk that computes nothing. A task is a function of this module and the keys of the
chunks that it reads. Chunks are never changed, so tasks may be repeated. Chunks may have unequal sizes: a sum pads the
smaller ones with zeros, and a product uses the part of the inner dimension that both chunks have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmm.api import gemm, matmul
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.plans.plan import PlanError
from fmm.kernels.plans.sums import LineExponents, Mirror, Place, Rescaled, Sum
from fmm.kernels.plans.walk import DefaultMachine, Triple

Grid = np.ndarray[Any, np.dtype[np.object_]]  # of cells; None where nothing is written yet
Key = Any

SUMMANDS_PER_TASK = 8  # chunks


@dataclass(frozen=True)
class Cell:
    """A future chunk: its key in the table of tasks, its rows and columns."""

    key: Key
    rows: int
    cols: int


@dataclass
class ChunkTasks(DefaultMachine):
    """The table of tasks of a walk."""

    name: str  # first part of the tasks' keys
    chunk_plan: str | None = None  # plan of a product of two chunks
    chunk_growth: float | None = None  # limit of its error growth, if the worker chooses the plan
    together: int = 1  # products, of one chunk of the result, that form one task
    table: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    leaf_updates: bool = True
    used: int = 0

    # ---- the steps of a walk

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> Grid:
        return np.full((rows, cols), None, dtype=object)

    def release(self, mark: int) -> None:
        """Do nothing: Dask frees a chunk after its last reader."""

    def part(self, x: Grid, place: Place) -> Grid:
        return x[place.row : place.row + place.rows, place.col : place.col + place.cols]

    def sum(self, step: Sum, reads: Sequence[Grid], writes: Sequence[Grid]) -> None:
        if isinstance(step, LineExponents | Rescaled):
            raise PlanError("a matrix of chunks cannot be scaled as a whole; put the level scaled into chunk_plan")
        results: list[tuple[Grid, tuple[int, ...], Cell | None]] = []
        values: dict[tuple[int, ...], list[Cell | None]] = {}
        for output, write in zip(step.program.outputs, writes, strict=True):
            for spot in np.ndindex(write.shape):
                if spot not in values:
                    values[spot] = self._run_program(step.program, [_cell(read, spot) for read in reads])
                results.append((write, spot, values[spot][output]))
        for write, spot, cell in results:  # only now: a sum may overwrite an input
            write[spot] = cell

    def multiply(
        self, leaf: str, products: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        for left, right, dest in products:
            for i, j in np.ndindex(dest.shape):
                pairs = [(left[i, k], right[k, j]) for k in range(left.shape[1])]
                dest[i, j] = self._products(pairs, dest[i, j] if beta else None, alpha, beta)

    def multiply_triangle(self, leaf: str, products: Sequence[Triple], dtype: str, params: object) -> None:
        raise NotImplementedError("one triangle of a product of chunks")

    def mirror(self, step: Mirror, source: Grid, dest: Grid) -> None:
        raise NotImplementedError("one triangle of a product of chunks")

    # ---- tasks

    def resize(self, cell: Cell | None, rows: int, cols: int) -> Cell:
        """Return a cell of exactly this size; add a task that resizes the chunk if needed."""
        assert cell is not None, "a chunk that no step wrote"
        if (cell.rows, cell.cols) == (rows, cols):
            return cell
        return self.task(rows, cols, resized_chunk, cell.key, rows, cols)

    def rename(self, names: Mapping[Key, Key]) -> None:
        """Replace keys of chunks, in the table and in the tasks that read them."""

        def renamed(x: Any) -> Any:
            if isinstance(x, list):
                return [renamed(y) for y in x]
            return names.get(x, x) if isinstance(x, tuple) else x

        table = {names.get(key, key): (function, *map(renamed, rest)) for key, (function, *rest) in self.table.items()}
        self.table.clear()
        self.table.update(table)

    def _run_program(self, program: AdditionProgram, inputs: list[Cell | None]) -> list[Cell | None]:
        """Return the inputs and the result of each line of the program; None means zeros."""
        values = list(inputs)
        for line in program.lines:
            terms = [(c, cell) for c, v in line if (cell := values[v]) is not None]
            values.append(self._combined(terms))
        return values

    def _combined(self, terms: Sequence[tuple[Coefficient, Cell]]) -> Cell | None:
        if not terms:
            return None
        if len(terms) == 1 and terms[0][0] == 1:
            return terms[0][1]
        rows, cols = (max(getattr(cell, side) for _, cell in terms) for side in ("rows", "cols"))
        weights = tuple(_number(c) for c, _ in terms)
        return self.task(rows, cols, combined_chunks, weights, [cell.key for _, cell in terms])

    def _products(
        self,
        pairs: Sequence[tuple[Cell | None, Cell | None]],
        before: Cell | None,
        alpha: Coefficient,
        beta: Coefficient,
    ) -> Cell | None:
        """Return alpha times the sum of the products plus beta before; one task a group, then tasks that add them."""
        present = [(left, right) for left, right in pairs if left is not None and right is not None]
        groups = list[Cell]()
        for first in range(0, len(present), self.together):
            groups.append(self._group(present[first : first + self.together], None if groups else before, alpha, beta))
        while len(groups) > 1:
            starts = range(0, len(groups), SUMMANDS_PER_TASK)
            sums = [self._combined([(1, cell) for cell in groups[i : i + SUMMANDS_PER_TASK]]) for i in starts]
            groups = [cell for cell in sums if cell is not None]
        return groups[0] if groups else self._combined([] if before is None else [(beta, before)])

    def _group(
        self, pairs: Sequence[tuple[Cell, Cell]], before: Cell | None, alpha: Coefficient, beta: Coefficient
    ) -> Cell:
        old = [] if before is None else [before]
        rows = max(cell.rows for cell in (*(left for left, _ in pairs), *old))
        cols = max(cell.cols for cell in (*(right for _, right in pairs), *old))
        update = (_number(alpha), _number(beta), None if before is None else before.key)
        lefts, rights = ([cell.key for cell in side] for side in zip(*pairs, strict=True))
        return self.task(rows, cols, multiplied_chunks, lefts, rights, *update, self.chunk_plan, self.chunk_growth)

    def task(self, rows: int, cols: int, function: Callable[..., Any], *arguments: Any) -> Cell:
        key = (self.name, len(self.table))
        self.table[key] = (function, *arguments)
        return Cell(key, rows, cols)


def _cell(grid: Grid, spot: tuple[int, ...]) -> Cell | None:
    """Return the cell at this place; None (zeros) outside a smaller block."""
    inside = all(place < side for place, side in zip(spot, grid.shape, strict=True))
    return grid[spot] if inside else None


def _number(c: Coefficient) -> float | complex:
    return c if isinstance(c, complex) else float(c)


# ---- the functions of the tasks, on chunks of NumPy or CuPy


def combined_chunks(weights: Sequence[float | complex], chunks: Sequence[Any]) -> Any:
    """Return the weighted sum, in the size of the largest chunk."""
    check_unmasked(chunks)
    shape = tuple(map(max, zip(*(chunk.shape for chunk in chunks), strict=True)))
    terms = list(zip(weights, chunks, strict=True))
    if chunks[0].shape != shape:
        total = np.zeros_like(chunks[0], shape=shape)
    elif len(terms) > 1 and chunks[1].shape == shape and set(weights[:2]) <= {1, -1} and 1 in weights[:2]:
        (first, x), (second, y) = terms[:2]
        total = x + y if first == second else x - y if first == 1 else y - x  # one pass, not two
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


def multiplied_chunks(
    lefts: Sequence[Any],
    rights: Sequence[Any],
    alpha: complex,
    beta: complex,
    before: Any,
    plan: str | None,
    max_error_growth: float | None = None,
) -> Any:
    """Return alpha times the sum of the products plus beta before, in the size of the largest; `before` is not changed.

    The products are added one by one to one new chunk: a chunk for each product would be memory that is written and
    read once more.
    """
    check_unmasked((*lefts, *rights))
    constraints: dict[str, Any] = {"plan": plan, "max_error_growth": max_error_growth}
    pairs = [_common_inner(left, right) for left, right in zip(lefts, rights, strict=True)]
    others = [] if before is None else [before.shape]
    shape = tuple(map(max, zip(*((x.shape[0], y.shape[1]) for x, y in pairs), *others, strict=True)))
    (left, right), rest = pairs[0], pairs[1:]
    whole = (left.shape[0], right.shape[1]) == shape
    if before is not None and whole:
        total = gemm(left, right, resized_chunk(before, *shape), alpha=alpha, beta=beta, **constraints)
    elif before is None and whole:
        total = matmul(left, right, **constraints)
        total = total if alpha == 1 else total * total.dtype.type(alpha)
    else:
        dtype = np.result_type(left, right)
        total = np.zeros_like(left, shape=shape, dtype=dtype)
        if before is not None:
            total[: before.shape[0], : before.shape[1]] = before * dtype.type(beta)
        rest = pairs
    for left, right in rest:
        part = total[: left.shape[0], : right.shape[1]]
        gemm(left, right, part, alpha=alpha, beta=1, out=part, **constraints)
    return total


def check_unmasked(chunks: Sequence[Any]) -> None:
    """Raise TypeError for masked chunks: sums in place would lose their masks."""
    if any(isinstance(chunk, np.ma.MaskedArray) for chunk in chunks):
        raise TypeError(
            "a chunk is a masked array, but the array's _meta is a plain one: pass meta= to map_blocks or "
            "from_delayed, then dask.array.matmul multiplies"
        )


def _common_inner(left: Any, right: Any) -> tuple[Any, Any]:
    """Return both chunks cut to the part of the inner dimension that both have."""
    inner = min(left.shape[1], right.shape[0])
    return left[:, :inner], right[:inner]


def resized_chunk(chunk: Any, rows: int, cols: int) -> Any:
    """Return the chunk cut or padded with zeros to this size."""
    if chunk.shape == (rows, cols):
        return chunk
    whole = np.zeros_like(chunk, shape=(rows, cols))
    part = chunk[:rows, :cols]
    whole[: part.shape[0], : part.shape[1]] = part
    return whole
