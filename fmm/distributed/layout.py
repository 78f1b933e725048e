"""The layout of a shared product: the submatrices of A and B that each process holds, multiplies, and sends.

A mesh is an array of processes, numbered by ranks in row-major order. Each dimension of the mesh cuts one axis of a
matrix, or cuts no axis if the processes along the dimension hold copies. An axis is cut as by torch.chunk: into equal
parts, of which the last ones may be smaller or empty. If several dimensions of the mesh cut one axis, the first
dimension makes the outermost cut.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Any, Literal, NamedTuple

import numpy as np

# For each dimension of the mesh: the axis of a matrix that the dimension cuts, or None if it cuts no axis.
CutAxes = tuple[int | None, ...]
IntArray = np.ndarray[Any, np.dtype[np.int64]]


class Span(NamedTuple):
    """A range of row indices or column indices."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def intersection(self, other: Span) -> Span:
        """Return the range that both spans contain."""
        start = max(self.start, other.start)
        return Span(start, max(min(self.stop, other.stop), start))

    def equal_part_of_span(self, parts: int, index: int) -> Span:
        """Cut the range into `parts` equal parts, and return the part with this index."""
        step = -(-self.size // parts)
        start, stop = (min(self.start + i * step, self.stop) for i in (index, index + 1))
        return Span(start, stop)

    def relative_to(self, other: Span) -> Span:
        """Return the range with indices relative to the start of `other`."""
        return Span(self.start - other.start, self.stop - other.start)


class Rectangle(NamedTuple):
    """A rectangle of a matrix: a range of rows and a range of columns."""

    rows: Span
    cols: Span

    @property
    def size(self) -> int:
        return self.rows.size * self.cols.size

    def intersection(self, other: Rectangle) -> Rectangle:
        """Return the rectangle that both rectangles contain."""
        return Rectangle(self.rows.intersection(other.rows), self.cols.intersection(other.cols))

    def relative_to(self, other: Rectangle) -> Rectangle:
        """Return the rectangle with rows and columns relative to the first row and column of `other`."""
        return Rectangle(self.rows.relative_to(other.rows), self.cols.relative_to(other.cols))


def mesh_coordinates(rank: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """Return the mesh coordinates of the process with this rank."""
    places = []
    for side in reversed(mesh):
        rank, place = divmod(rank, side)
        places.append(place)
    return tuple(reversed(places))


def span_of_process(size: int, axis: int, cuts: CutAxes, mesh: Sequence[int], coordinates: Sequence[int]) -> Span:
    """Return the range of an axis that the process with these mesh coordinates holds or computes."""
    span = Span(0, size)
    for cut, side, place in zip(cuts, mesh, coordinates, strict=True):
        if cut == axis:
            span = span.equal_part_of_span(side, place)
    return span


@dataclass(frozen=True)
class BlocksHeld:
    """For each process of a mesh, the block of a matrix that the process holds."""

    shape: tuple[int, int]
    mesh: tuple[int, ...]
    cuts: CutAxes

    def block_of_rank(self, rank: int) -> Rectangle:
        """Return the block that a process holds."""
        return self._blocks_by_rank[rank]

    @cached_property
    def _blocks_by_rank(self) -> tuple[Rectangle, ...]:
        sides = tuple(enumerate(self.shape))
        places = (mesh_coordinates(rank, self.mesh) for rank in range(prod(self.mesh)))
        return tuple(
            Rectangle(*(span_of_process(n, axis, self.cuts, self.mesh, place) for axis, n in sides)) for place in places
        )

    def find_source_ranks(self, rank: int, wanted: Rectangle) -> Iterator[tuple[int, Rectangle]]:
        """Yield (source rank, part) for each part of `wanted`; the source is the nearest rank that holds the part."""
        rows, cols, holders = self._ranks_by_block
        for block in product(_overlapping_spans(rows, wanted.rows), _overlapping_spans(cols, wanted.cols)):
            ranks = holders[block]
            nearest = ranks[0] if len(ranks) == 1 else min(ranks, key=lambda other: abs(other - rank))
            yield nearest, Rectangle(*block).intersection(wanted)

    def count_entries_by_source(self, wanted: IntArray) -> tuple[IntArray, IntArray]:
        """Return the sources of one rectangle for each rank, and the number of entries from each source.

        `wanted[rank]` has the start and the stop of the rectangle's rows, and of its columns. In both results, the
        entry [rank, i, j] describes the part of the rectangle in row range i and column range j of the blocks. The
        sources are the ranks that `find_source_ranks` yields.
        """
        overlaps = []  # for rows and for columns: the overlap of [rank, range of the blocks], in entries
        for axis, spans in enumerate(self._ranks_by_block[:2]):
            starts, stops = np.array(spans, np.int64).reshape(-1, 2).T
            length = np.minimum(wanted[:, axis, 1, None], stops) - np.maximum(wanted[:, axis, 0, None], starts)
            overlaps.append(np.maximum(length, 0))
        return self._nearest_holders, overlaps[0][:, :, None] * overlaps[1][:, None, :]

    @cached_property
    def _nearest_holders(self) -> IntArray:
        """The nearest rank that holds the block of row range i and column range j, for [rank, i, j]."""
        rows, cols, holders = self._ranks_by_block
        ranks = np.arange(prod(self.mesh))
        nearest = np.empty((len(ranks), len(rows), len(cols)), np.int64)
        for i, j in np.ndindex(len(rows), len(cols)):
            others = np.array(holders[rows[i], cols[j]])
            nearest[:, i, j] = others[np.abs(others - ranks[:, None]).argmin(axis=1)]
        return nearest

    @cached_property
    def _ranks_by_block(self) -> tuple[list[Span], list[Span], dict[tuple[Span, Span], list[int]]]:
        """The row ranges and the column ranges of all blocks, and for each block the ranks that hold the block."""
        holders: dict[tuple[Span, Span], list[int]] = defaultdict(list)
        for rank, box in enumerate(self._blocks_by_rank):
            holders[box].append(rank)
        rows, cols = (sorted({block[axis] for block in holders if block[axis].size}) for axis in (0, 1))
        return rows, cols, holders


def _overlapping_spans(spans: Sequence[Span], wanted: Span) -> list[Span]:
    return [span for span in spans if span[0] < wanted[1] and wanted[0] < span[1]]


OperandName = Literal["A", "B"]
M_AXIS, K_AXIS, N_AXIS = 0, 1, 2  # the axes of the cube of multiply-adds: rows of C, inner dimension, columns of C


class RectangleTransfer(NamedTuple):
    """A rectangle of A or B that one process sends to another process."""

    operand: OperandName
    source: int
    dest: int
    box: Rectangle


class ProcessShare(NamedTuple):
    """The share of the product that one process computes: rows and columns of C, and a range of the inner dimension."""

    rows: Span
    inner: Span
    cols: Span


@dataclass(frozen=True)
class MeshLayout:
    """How the processes of a mesh share a product: the blocks that each process holds and computes, and the steps."""

    m: int
    k: int
    n: int
    mesh: tuple[int, ...]
    a: CutAxes  # for each dimension of the mesh, the axis of A that the dimension cuts
    b: CutAxes  # for each dimension of the mesh, the axis of B that the dimension cuts
    # For each dimension of the mesh: the axis (M, K or N) of the cube of multiply-adds that the dimension cuts.
    work: CutAxes
    pieces: int = 1  # number of steps of the exchange of panels
    along: int = K_AXIS  # axis (M, K or N) of the cube of multiply-adds that is cut into steps

    @property
    def process_count(self) -> int:
        return prod(self.mesh)

    @property
    def inner_dimension_process_count(self) -> int:
        """Number of processes that compute summands of one block of C, each over its range of the inner dimension."""
        return prod(side for side, axis in zip(self.mesh, self.work, strict=True) if axis == K_AXIS)

    @cached_property
    def blocks_held(self) -> dict[OperandName, BlocksHeld]:
        """The blocks of A and the blocks of B that the processes hold."""
        return {
            "A": BlocksHeld((self.m, self.k), self.mesh, self.a),
            "B": BlocksHeld((self.k, self.n), self.mesh, self.b),
        }

    def process_share(self, rank: int) -> ProcessShare:
        return self._process_shares[rank]

    @cached_property
    def _process_shares(self) -> tuple[ProcessShare, ...]:
        sides = tuple(enumerate((self.m, self.k, self.n)))
        places = (mesh_coordinates(rank, self.mesh) for rank in range(self.process_count))
        return tuple(
            ProcessShare(*(span_of_process(n, axis, self.work, self.mesh, place) for axis, n in sides))
            for place in places
        )

    def process_share_in_step(self, rank: int, step: int) -> ProcessShare:
        """Return the rows, the columns and the range of the inner dimension that a process computes in this step."""
        share = self._process_shares[rank]
        first = self._first_inner_range_by_rank[rank] if self.along == K_AXIS else 0
        piece = self._pieces_of_spans[share[self.along]][(first + step) % self.pieces]
        return ProcessShare(*(piece if axis == self.along else span for axis, span in enumerate(share)))

    @cached_property
    def _pieces_of_spans(self) -> dict[Span, tuple[Span, ...]]:
        """For each range that a process computes along the axis `along`: the parts of the range, one for each step."""
        spans = {share[self.along] for share in self._process_shares}
        return {span: tuple(span.equal_part_of_span(self.pieces, i) for i in range(self.pieces)) for span in spans}

    def panels_needed(self, rank: int, step: int) -> dict[OperandName, Rectangle]:
        """Return the panels of A and B that a process multiplies in this step."""
        rows, inner, cols = self.process_share_in_step(rank, step)
        return {"A": Rectangle(rows, inner), "B": Rectangle(inner, cols)}

    def reuses_panel_in_all_steps(self, operand: OperandName) -> bool:
        """Return True if a process multiplies the same panel of this operand in all steps."""
        return self.along == (N_AXIS if operand == "A" else M_AXIS)

    def transfers_of_rank(self, rank: int) -> tuple[tuple[RectangleTransfer, ...], ...]:
        """Return for each step the transfers that a process sends or receives.

        The transfers between two processes have the same order for both. A mesh of 64 x 64 has half a million transfers
        in all, so no process lists those of other processes.
        """
        found = self._transfers_by_rank
        if rank not in found:
            found[rank] = tuple(tuple(self._transfers_in_step(rank, step)) for step in range(self.pieces))
        return found[rank]

    @cached_property
    def _transfers_by_rank(self) -> dict[int, tuple[tuple[RectangleTransfer, ...], ...]]:
        return {}

    def _transfers_in_step(self, rank: int, step: int) -> Iterator[RectangleTransfer]:
        for dest in range(self.process_count):
            needs = self.panels_needed(dest, step)
            if all(box.size for box in needs.values()):
                for operand, box in needs.items():
                    held = self.blocks_held[operand]
                    if step and self.reuses_panel_in_all_steps(operand):
                        continue
                    if dest == rank or held.block_of_rank(rank).intersection(box).size:
                        for source, part in held.find_source_ranks(dest, box):
                            if source != dest and rank in (source, dest):
                                yield RectangleTransfer(operand, source, dest, part)

    def entries_sent_in_step(self, step: int) -> IntArray:
        """Return how many entries of A and B each process (row) sends to each other process (column) in this step.

        The matrix has the sums of all transfers of the step, without a RectangleTransfer for each part.
        """
        count = self.process_count
        shares = np.array([self.process_share_in_step(rank, step) for rank in range(count)])
        multiplies = np.all(shares[..., 0] < shares[..., 1], axis=1)
        sent = np.zeros((count, count), np.int64)
        for operand, held in self.blocks_held.items():
            if step and self.reuses_panel_in_all_steps(operand):
                continue
            axes = (M_AXIS, K_AXIS) if operand == "A" else (K_AXIS, N_AXIS)
            sources, entries = held.count_entries_by_source(shares[:, axes])
            np.add.at(sent, (sources, np.arange(count)[:, None, None]), entries * multiplies[:, None, None])
        np.fill_diagonal(sent, 0)  # no process sends to itself
        return sent

    @cached_property
    def _first_inner_range_by_rank(self) -> tuple[int, ...]:
        return tuple(map(self._first_inner_range_index, range(self.process_count)))

    def _first_inner_range_index(self, rank: int) -> int:
        """Return the index of the range of the inner dimension that a process multiplies first.

        In the first step, a process multiplies parts of A and B that the process already holds. If A and B are both cut
        along the inner dimension, the processes begin with different ranges of the inner dimension, as in Cannon's
        algorithm. Because the first ranges differ, no process sends panels to two other processes in the same step.
        """
        inner = self.process_share(rank).inner
        held = (
            self.blocks_held["A"].block_of_rank(rank).cols.intersection(inner),
            self.blocks_held["B"].block_of_rank(rank).rows.intersection(inner),
        )
        offset = sum((span.start - inner.start) / inner.size for span in held if span.size) if inner.size else 0.0
        return round(offset * self.pieces) % self.pieces


@lru_cache(maxsize=1024)
def interned_mesh_layout(layout: MeshLayout) -> MeshLayout:
    """Return one and the same object for all equal layouts, so that its cached properties are computed only once."""
    return layout
