"""Matrices cut into blocks over a mesh of processes: which rectangle each of them holds.

A mesh is a box of processes, counted row by row; each of its dimensions cuts one axis of a matrix, or none, so that its
processes hold copies. An axis is cut into equal parts but for the last ones, which are smaller or empty, as torch.chunk
cuts; if several dimensions cut the same axis, the first one cuts first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import NamedTuple

Cuts = tuple[int | None, ...]  # which axis each dimension of the mesh cuts


class Span(NamedTuple):
    """Rows or columns from one up to another."""

    start: int
    stop: int

    @property
    def size(self) -> int:
        return self.stop - self.start

    def shared(self, other: Span) -> Span:
        start = max(self.start, other.start)
        return Span(start, max(min(self.stop, other.stop), start))

    def part(self, parts: int, index: int) -> Span:
        """One of so many parts."""
        step = -(-self.size // parts)
        start, stop = (min(self.start + i * step, self.stop) for i in (index, index + 1))
        return Span(start, stop)

    def within(self, other: Span) -> Span:
        """The same as counted from where the other one begins."""
        return Span(self.start - other.start, self.stop - other.start)


class Box(NamedTuple):
    """A rectangle of a matrix."""

    rows: Span
    cols: Span

    @property
    def size(self) -> int:
        return self.rows.size * self.cols.size

    def shared(self, other: Box) -> Box:
        return Box(self.rows.shared(other.rows), self.cols.shared(other.cols))

    def within(self, other: Box) -> Box:
        return Box(self.rows.within(other.rows), self.cols.within(other.cols))


def coordinate_of(rank: int, mesh: Sequence[int]) -> tuple[int, ...]:
    """Where a process stands in the mesh."""
    found = []
    for side in reversed(mesh):
        rank, place = divmod(rank, side)
        found.append(place)
    return tuple(reversed(found))


def cut_span(size: int, axis: int, cuts: Cuts, mesh: Sequence[int], coordinate: Sequence[int]) -> Span:
    """What a process there has of an axis of this size."""
    span = Span(0, size)
    for cut, side, place in zip(cuts, mesh, coordinate, strict=True):
        if cut == axis:
            span = span.part(side, place)
    return span


@dataclass(frozen=True)
class Holdings:
    """Who holds which block of a matrix."""

    shape: tuple[int, int]
    mesh: tuple[int, ...]
    cuts: Cuts

    def box(self, rank: int) -> Box:
        """What a process holds."""
        return self._boxes[rank]

    @cached_property
    def _boxes(self) -> tuple[Box, ...]:
        sides = tuple(enumerate(self.shape))
        every = (coordinate_of(rank, self.mesh) for rank in range(prod(self.mesh)))
        return tuple(Box(*(cut_span(n, axis, self.cuts, self.mesh, where) for axis, n in sides)) for where in every)

    def sources(self, rank: int, wanted: Box) -> Iterator[tuple[int, Box]]:
        """From whom a process has a rectangle, part by part: from itself, else from the next one that holds it."""
        rows, cols, holders = self._blocks
        for block in product(_meeting(rows, wanted.rows), _meeting(cols, wanted.cols)):
            who = holders[block]
            nearest = who[0] if len(who) == 1 else min(who, key=lambda other: abs(other - rank))
            yield nearest, Box(*block).shared(wanted)

    @cached_property
    def _blocks(self) -> tuple[list[Span], list[Span], dict[tuple[Span, Span], list[int]]]:
        """The parts of both axes, and who holds each block of them."""
        holders: dict[tuple[Span, Span], list[int]] = defaultdict(list)
        for rank, box in enumerate(self._boxes):
            holders[box].append(rank)
        rows, cols = (sorted({block[axis] for block in holders if block[axis].size}) for axis in (0, 1))
        return rows, cols, holders


def _meeting(spans: Sequence[Span], wanted: Span) -> list[Span]:
    return [span for span in spans if span[0] < wanted[1] and wanted[0] < span[1]]
