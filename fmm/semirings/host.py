"""Products over semirings and Floyd and Warshall's algorithm by NumPy alone: one pass a step, over pieces that stay in
a processor's second-level cache. All threads take pieces; NumPy's loops let go of Python's lock."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cpu.thread_pool import Threads
from fmm.kernels.plans.sums import Place
from fmm.semirings.closure_steps import MATRIX, TileStep, closure_steps
from fmm.semirings.closure_table import closure_table

Array = np.ndarray[Any, np.dtype[Any]]
PIECE_BYTES = 1 << 17  # of a piece of the result; the sums have as many
LONGEST_ROW = 1 << 13  # bytes of a piece's row
# That are formed for a piece at most, and of so many steps: between pieces an interrupt is heard.
PIECE_SUMS, PIECE_STEPS = 1 << 25, 1 << 14


class Noted(NamedTuple):
    """What is noted of each number of a product: the step, -1 where the old one stays; or what `via` has there. Steps
    are counted from the `first` one on; where it is not the first of all, what was noted before stays."""

    args: Array
    old: Array | None = None
    via: Array | None = None
    first: int = 0

    def of_steps(self, steps: slice) -> Noted:
        """For some of the steps, after those before."""
        if not steps.start:
            return self if self.via is None else self._replace(via=self.via[steps])
        return Noted(self.args, self.args, None if self.via is None else self.via[steps], steps.start)

    def part(self, rows: slice, cols: slice) -> Noted:
        """Of these rows and columns of the result."""
        old, via = self.old, self.via
        old, via = None if old is None else old[rows, cols], None if via is None else via[:, cols]
        return Noted(self.args[rows, cols], old, via, self.first)

    def settle(self, step: Array) -> None:
        """Note what belongs to the steps that were the best."""
        if self.old is None:
            self.args[...] = step
            return
        found = step + self.first if self.via is None else self.via[np.maximum(step, 0), np.arange(step.shape[1])]
        self.args[...] = np.where(step >= 0, found, self.old)


@dataclass(frozen=True)
class NumpySemiring:
    """dest = the best of old and of all sums of left and right; `none` is what no sum is worse than."""

    greatest: bool
    none: Any
    threads: int

    @property
    def best(self) -> Any:
        """NaN is never the best."""
        return np.fmax if self.greatest else np.fmin

    @property
    def better(self) -> Any:
        return np.greater if self.greatest else np.less

    def product(self, left: Array, right: Array, old: Array | None, dest: Array, noted: Noted | None = None) -> None:
        for first in range(0, max(left.shape[1], 1), PIECE_STEPS):
            steps = slice(first, first + PIECE_STEPS)
            some = None if noted is None else noted.of_steps(steps)
            self._some_steps(left[:, steps], right[steps], dest if first else old, dest, some)

    def _some_steps(self, left: Array, right: Array, old: Array | None, dest: Array, noted: Noted | None) -> None:
        tasks: list[Callable[[], None]] = []
        for rows, cols in _pieces(dest, left.shape[1]):
            tasks.append(partial(self._piece, left[rows], right[:, cols], old, dest, noted, rows, cols))
        Threads(self.threads).run_interruptibly(tasks)

    def _piece(
        self,
        left: Array,
        right: Array,
        old: Array | None,
        dest: Array,
        noted: Noted | None,
        rows: slice,
        cols: slice,
    ) -> None:
        c = np.full((len(left), right.shape[1]), self.none, dest.dtype)
        if old is not None:
            c[...] = old[rows, cols]
        if noted is None:
            sums = np.empty_like(c)
            for k in range(left.shape[1]):
                np.add(left[:, k, None], right[k], out=sums)
                self.best(c, sums, out=c)
        else:
            noted.part(rows, cols).settle(self._steps(left, right, c))
        dest[rows, cols] = c

    def _steps(self, left: Array, right: Array, c: Array) -> Array:
        """Which step was the best: the first of several, -1 where none was better than what c held."""
        sums, won, step = np.empty_like(c), np.empty(c.shape, bool), np.full(c.shape, -1, np.int32)
        for k in range(left.shape[1]):
            np.add(left[:, k, None], right[k], out=sums)
            self.better(sums, c, out=won)
            np.copyto(c, sums, where=won)
            np.copyto(step, np.int32(k), where=won)
        return step

    def close(self, d: Array, nodes: Array | None = None) -> None:
        """Floyd and Warshall's algorithm in place; `nodes`: the last ones before the ends of the ways."""
        with np.errstate(all="ignore"):
            sums, won = np.empty_like(d), np.empty(d.shape, bool)
            for k in range(len(d)):
                np.add(d[:, k, None], d[k], out=sums)
                if nodes is None:
                    self.best(d, sums, out=d)
                    continue
                self.better(sums, d, out=won)
                np.copyto(d, sums, where=won)
                np.copyto(nodes, np.broadcast_to(nodes[k].copy(), nodes.shape), where=won)


def _pieces(x: Array, steps: int) -> Iterator[tuple[slice, slice]]:
    wide = max(min(x.shape[1], LONGEST_ROW // x.itemsize), 1)
    most = min(PIECE_BYTES // x.itemsize, PIECE_SUMS // max(steps, 1))
    high = max(most // wide, 1)
    for i in range(0, x.shape[0], high):
        for j in range(0, x.shape[1], wide):
            yield slice(i, min(i + high, x.shape[0])), slice(j, min(j + wide, x.shape[1]))


LEAF = 64  # nodes of a tile that is closed as a whole


class Semiring(Protocol):
    """Who computes: NumPy alone, or what Numba compiled."""

    def product(
        self, left: Array, right: Array, old: Array | None, dest: Array, noted: Noted | None = None
    ) -> None: ...

    def close(self, d: Array, nodes: Array | None = None) -> None: ...


def close_matrix(semiring: Semiring, d: Array, nodes: Array | None = None, leaf: int = LEAF) -> None:
    """D becomes its closure, in place; `nodes`, the last ones before the ends of the ways, are kept up with it."""
    steps = closure_steps(closure_table(), len(d), leaf)
    values, notes = {MATRIX: d}, {MATRIX: nodes}
    for name, rows, cols in steps.temporaries:
        values[name] = np.empty((rows, cols), d.dtype)
        notes[name] = None if nodes is None else np.empty((rows, cols), nodes.dtype)

    def at(place: Place, held: dict[str, Array]) -> Array:
        return held[place.name][place.row : place.row + place.rows, place.col : place.col + place.cols]

    for step in steps.rounds:
        if isinstance(step, TileStep):
            semiring.close(at(step.place, values), None if nodes is None else at(step.place, notes))  # type: ignore[arg-type]
            continue
        for p in step:
            noted = None if nodes is None else Noted(*(at(x, notes) for x in (p.dest, p.old, p.right)))  # type: ignore[arg-type]
            semiring.product(at(p.left, values), at(p.right, values), at(p.old, values), at(p.dest, values), noted)
