"""A grid of chunks as a machine of plans: blocks are rectangles of chunks, and what a walk asks for becomes tasks.

Nothing is computed here. A walk over a plan leaves a table of tasks: each is a function of this module and the keys of
what it reads, and makes one chunk. Chunks are never changed once they are made, so that whoever runs the tasks may run
any of them again. Chunks may be of unequal sizes: in a sum the smaller count as padded with zeros, and of an inner
dimension only as much is multiplied as both chunks have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmm.api import gemm, matmul
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.plans.plan import PlanError
from fmm.kernels.plans.steps.rescaling import LineExponents, Rescaled
from fmm.kernels.plans.steps.sums import Mirror, Place, Sum
from fmm.kernels.plans.walk import PlainMachine, Triple

Grid = np.ndarray[Any, np.dtype[np.object_]]  # of cells; None where nobody wrote yet
Key = Any

ADDED_TOGETHER = 8  # chunks that one task adds up


@dataclass(frozen=True)
class Cell:
    """A chunk that there will be: its key in the table of tasks, its rows and columns."""

    key: Key
    rows: int
    cols: int


@dataclass
class ChunkTasks(PlainMachine):
    """The tasks that a walk asked for. `name` begins their keys, `chunk_plan` says how two chunks are multiplied (or
    `chunk_growth`, within which growth of errors a plan is chosen for them), and `together` how many such products, of
    one chunk of the result, are one task."""

    name: str
    chunk_plan: str | None = None
    chunk_growth: float | None = None
    together: int = 1
    table: dict[Key, tuple[Any, ...]] = field(default_factory=dict)
    leaf_updates: bool = True
    used: int = 0

    # ---- what a walk asks

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> Grid:
        return np.full((rows, cols), None, dtype=object)

    def release(self, mark: int) -> None:
        """Whoever runs the tasks lets go of a chunk after its last reader."""

    def part(self, x: Grid, place: Place) -> Grid:
        return x[place.row : place.row + place.rows, place.col : place.col + place.cols]

    def sum(self, step: Sum, reads: Sequence[Grid], writes: Sequence[Grid]) -> None:
        if isinstance(step, LineExponents | Rescaled):
            raise PlanError("a matrix of chunks cannot be scaled as a whole; put the level scaled into chunk_plan")
        made: list[tuple[Grid, tuple[int, ...], Cell | None]] = []
        known: dict[tuple[int, ...], list[Cell | None]] = {}
        for output, write in zip(step.program.outputs, writes, strict=True):
            for spot in np.ndindex(write.shape):
                if spot not in known:
                    known[spot] = self._values(step.program, [_cell(read, spot) for read in reads])
                made.append((write, spot, known[spot][output]))
        for write, spot, cell in made:  # only now: a sum may be written where it was read
            write[spot] = cell

    def multiply(
        self, leaf: str, products: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        for left, right, dest in products:
            for i, j in np.ndindex(dest.shape):
                pairs = [(left[i, k], right[k, j]) for k in range(left.shape[1])]
                dest[i, j] = self._products(pairs, dest[i, j] if beta else None, alpha, beta)

    def multiply_half(self, leaf: str, products: Sequence[Triple], dtype: str, asked: object) -> None:
        raise NotImplementedError("half products of chunks")

    def mirror(self, step: Mirror, source: Grid, dest: Grid) -> None:
        raise NotImplementedError("half products of chunks")

    # ---- tasks

    def fitted(self, cell: Cell | None, rows: int, cols: int) -> Cell:
        """A cell of exactly this size."""
        assert cell is not None, "a chunk that no step wrote"
        if (cell.rows, cell.cols) == (rows, cols):
            return cell
        return self.task(rows, cols, resized_chunk, cell.key, rows, cols)

    def rename(self, names: Mapping[Key, Key]) -> None:
        """Give chunks of the table other keys, wherever they are read."""

        def own(x: Any) -> Any:
            if isinstance(x, list):
                return [own(y) for y in x]
            return names.get(x, x) if isinstance(x, tuple) else x

        table = {names.get(key, key): (function, *map(own, rest)) for key, (function, *rest) in self.table.items()}
        self.table.clear()
        self.table.update(table)

    def _values(self, program: AdditionProgram, inputs: list[Cell | None]) -> list[Cell | None]:
        """The inputs, and what each line of the program makes; None counts as zeros."""
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
        """alpha times the sum of the products, + beta before; in groups, whose sums are added up."""
        there = [(left, right) for left, right in pairs if left is not None and right is not None]
        made = list[Cell]()
        for first in range(0, len(there), self.together):
            made.append(self._group(there[first : first + self.together], None if made else before, alpha, beta))
        while len(made) > 1:
            summed = (made[i : i + ADDED_TOGETHER] for i in range(0, len(made), ADDED_TOGETHER))
            made = [self._added(cells) for cells in summed]
        return made[0] if made else self._combined([] if before is None else [(beta, before)])

    def _added(self, cells: Sequence[Cell]) -> Cell:
        found = self._combined([(1, cell) for cell in cells])
        assert found is not None, "there is a first one"
        return found

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
    """The cell at this place; None where a smaller block has none, which counts as zeros."""
    inside = all(place < side for place, side in zip(spot, grid.shape, strict=True))
    return grid[spot] if inside else None


def _number(c: Coefficient) -> float | complex:
    return c if isinstance(c, complex) else float(c)


# ---- what the tasks do, on chunks of NumPy or CuPy


def combined_chunks(weights: Sequence[float | complex], chunks: Sequence[Any]) -> Any:
    """The weighted sum, as large as the largest of them."""
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
    """alpha times the sum of the products + beta before, as large as the largest of them; `before` is left as it is.
    Products are by this plan, or by one that is chosen within this growth of errors.

    One new chunk, to which the products are added one by one: each chunk more would be memory that is written first and
    read once.
    """
    check_unmasked((*lefts, *rights))
    constraints: dict[str, Any] = {"plan": plan, "max_error_growth": max_error_growth}
    pairs = [_matching(left, right) for left, right in zip(lefts, rights, strict=True)]
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
    """TypeError for masked chunks of an array that was taken for a plain one: sums in place would lose their masks."""
    if any(isinstance(chunk, np.ma.MaskedArray) for chunk in chunks):
        raise TypeError(
            "a chunk is a masked array, which the array's _meta does not say (map_blocks and from_delayed take meta=); "
            "with such a _meta, dask.array.matmul multiplies"
        )


def _matching(left: Any, right: Any) -> tuple[Any, Any]:
    """Of the inner dimension as much as both have."""
    inner = min(left.shape[1], right.shape[0])
    return left[:, :inner], right[:inner]


def resized_chunk(chunk: Any, rows: int, cols: int) -> Any:
    """Cut, or padded with zeros."""
    if chunk.shape == (rows, cols):
        return chunk
    whole = np.zeros_like(chunk, shape=(rows, cols))
    part = chunk[:rows, :cols]
    whole[: part.shape[0], : part.shape[1]] = part
    return whole
