"""Semiring products and closures on the host, computed with NumPy alone.

A product updates the whole result once for each index k of the inner dimension. The result is cut into rectangles that
fit into a processor's second-level cache. All threads compute rectangles concurrently, since NumPy's loops release the
GIL. `write_closure_in_place` executes a closure table's steps, with NumPy or with Numba (numba_kernels.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_steps import CLOSED_MATRIX_NAME, CloseTileStep, closure_steps
from fmm.semirings.closure_table import closure_table

Array = np.ndarray[Any, np.dtype[Any]]
# Largest number of bytes of a rectangle of the result that one task updates; the task's temporary sums need as many
# bytes.
RESULT_PIECE_BYTES = 1 << 17
MAX_PIECE_ROW_BYTES = 1 << 13  # largest number of bytes in a row of this rectangle
# Largest number of sums in a task, and largest number of inner indices k. The two limits keep tasks short, since Ctrl-C
# is handled only between tasks.
PIECE_SUMS, PIECE_STEPS = 1 << 25, 1 << 14
HOST_TILE_SIDE = 64  # largest number of nodes of a tile whose closure is computed without further cuts


class BestIndexRecord(NamedTuple):
    """The arrays in which a product records, for each entry of the result, the index k of the best sum.

    `args` receives the index k of the best sum. If `via` is not None, `args` receives a predecessor instead: the entry
    of `via` in row k and in the column of the sum. If no sum is better than the previous value, `args` receives the
    entry of `old`, or -1 if `old` is None. `first` is the smallest index k in the range that the record covers.
    """

    args: Array
    old: Array | None = None
    via: Array | None = None
    first: int = 0

    def record_of_inner_range(self, steps: slice) -> BestIndexRecord:
        """Return the record for a range of inner indices k; all smaller indices must have been recorded before."""
        if not steps.start:
            return self if self.via is None else self._replace(via=self.via[steps])
        return BestIndexRecord(self.args, self.args, None if self.via is None else self.via[steps], steps.start)

    def record_of_block(self, rows: slice, cols: slice) -> BestIndexRecord:
        """Return the record for a block of the result."""
        old, via = self.old, self.via
        old, via = None if old is None else old[rows, cols], None if via is None else via[:, cols]
        return BestIndexRecord(self.args[rows, cols], old, via, self.first)

    def write_best_indices(self, step: Array) -> None:
        """Write the best index k of each entry (`step`) to `args`; where `step` is -1, write the previous index."""
        if self.old is None:
            self.args[...] = step
            return
        best = step + self.first if self.via is None else self.via[np.maximum(step, 0), np.arange(step.shape[1])]
        self.args[...] = np.where(step >= 0, best, self.old)


class Semiring(Protocol):
    """The interface of products and tile closures over a semiring; NumpySemiring and NumbaSemiring implement it."""

    def multiply_and_add(
        self, left: Array, right: Array, old: Array | None, dest: Array, arguments: BestIndexRecord | None = None
    ) -> None: ...

    def close_tile(self, d: Array, predecessors: Array | None = None) -> None: ...


def write_closure_in_place(
    semiring: Semiring, d: Array, predecessors: Array | None = None, tile_side: int = HOST_TILE_SIDE
) -> None:
    """Replace the matrix d by its closure, and update `predecessors`, the last node but one of each path."""
    steps = closure_steps(closure_table(), len(d), tile_side)
    values, nodes = {CLOSED_MATRIX_NAME: d}, {CLOSED_MATRIX_NAME: predecessors}
    for name, rows, cols in steps.temporaries:
        values[name] = np.empty((rows, cols), d.dtype)
        nodes[name] = None if predecessors is None else np.empty((rows, cols), predecessors.dtype)

    def block_at_place(place: Place, arrays: dict[str, Array]) -> Array:
        return arrays[place.name][place.row : place.row + place.rows, place.col : place.col + place.cols]

    for step in steps.rounds:
        if isinstance(step, CloseTileStep):
            tile_nodes = None if predecessors is None else block_at_place(step.place, nodes)  # type: ignore[arg-type]
            semiring.close_tile(block_at_place(step.place, values), tile_nodes)
            continue
        for p in step:
            arguments = None
            if predecessors is not None:
                arguments = BestIndexRecord(*(block_at_place(x, nodes) for x in (p.dest, p.old, p.right)))  # type: ignore[arg-type]
            semiring.multiply_and_add(
                block_at_place(p.left, values),
                block_at_place(p.right, values),
                block_at_place(p.old, values),
                block_at_place(p.dest, values),
                arguments,
            )


@dataclass(frozen=True)
class NumpySemiring:
    """NumPy's semiring operations: dest[i, j] = best of old[i, j] and all sums left[i, k] + right[k, j]."""

    maximum: bool
    missing: Any
    threads: int

    @property
    def better_value_ufunc(self) -> Any:
        """The ufunc of NumPy that returns the better of two values; NaN is never the better value."""
        return np.fmax if self.maximum else np.fmin

    @property
    def is_better_ufunc(self) -> Any:
        return np.greater if self.maximum else np.less

    def multiply_and_add(
        self, left: Array, right: Array, old: Array | None, dest: Array, arguments: BestIndexRecord | None = None
    ) -> None:
        for first in range(0, max(left.shape[1], 1), PIECE_STEPS):
            steps = slice(first, first + PIECE_STEPS)
            part = None if arguments is None else arguments.record_of_inner_range(steps)
            x, y, before = left[:, steps], right[steps], dest if first else old
            tasks: list[Callable[[], None]] = []
            for rows, cols in _rectangle_ranges(dest, x.shape[1]):
                tasks.append(partial(self._compute_rectangle, x[rows], y[:, cols], before, dest, part, rows, cols))
            ThreadGroup(self.threads).run_tasks_interruptibly(tasks)

    def _compute_rectangle(
        self,
        left: Array,
        right: Array,
        old: Array | None,
        dest: Array,
        arguments: BestIndexRecord | None,
        rows: slice,
        cols: slice,
    ) -> None:
        c = np.full((len(left), right.shape[1]), self.missing, dest.dtype)
        if old is not None:
            c[...] = old[rows, cols]
        if arguments is None:
            sums = np.empty_like(c)
            for k in range(left.shape[1]):
                np.add(left[:, k, None], right[k], out=sums)
                self.better_value_ufunc(c, sums, out=c)
        else:
            arguments.record_of_block(rows, cols).write_best_indices(self._update_and_find_best_indices(left, right, c))
        dest[rows, cols] = c

    def _update_and_find_best_indices(self, left: Array, right: Array, c: Array) -> Array:
        """Replace entries of c by better sums, and return the first index k with the best sum of each entry.

        The index is -1 where no sum is better than the entry of c.
        """
        sums, won, step = np.empty_like(c), np.empty(c.shape, bool), np.full(c.shape, -1, np.int32)
        for k in range(left.shape[1]):
            np.add(left[:, k, None], right[k], out=sums)
            self.is_better_ufunc(sums, c, out=won)
            np.copyto(c, sums, where=won)
            np.copyto(step, np.int32(k), where=won)
        return step

    def close_tile(self, d: Array, predecessors: Array | None = None) -> None:
        """Replace d by its closure, computed by the Floyd-Warshall algorithm."""
        with np.errstate(all="ignore"):
            sums, won = np.empty_like(d), np.empty(d.shape, bool)
            for k in range(len(d)):
                np.add(d[:, k, None], d[k], out=sums)
                if predecessors is None:
                    self.better_value_ufunc(d, sums, out=d)
                    continue
                self.is_better_ufunc(sums, d, out=won)
                np.copyto(d, sums, where=won)
                np.copyto(predecessors, np.broadcast_to(predecessors[k].copy(), predecessors.shape), where=won)


def _rectangle_ranges(x: Array, steps: int) -> Iterator[tuple[slice, slice]]:
    """Yield the row range and the column range of each rectangle of the result x that a task computes."""
    wide = max(min(x.shape[1], MAX_PIECE_ROW_BYTES // x.itemsize), 1)
    most = min(RESULT_PIECE_BYTES // x.itemsize, PIECE_SUMS // max(steps, 1))
    high = max(most // wide, 1)
    for i in range(0, x.shape[0], high):
        for j in range(0, x.shape[1], wide):
            yield slice(i, min(i + high, x.shape[0])), slice(j, min(j + wide, x.shape[1]))
