"""Matrices cut into blocks over a mesh of processes: which rectangle each of them holds.

A mesh is a box of processes, counted row by row; each of its dimensions cuts one axis of a matrix, or none, so that its
processes hold copies. An axis is cut into equal parts but for the last ones, which are smaller or empty, as torch.chunk
cuts; if several dimensions cut the same axis, the first one cuts first.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import product
from math import prod
from typing import Literal, NamedTuple

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


Operand = Literal["A", "B"]
M, K, N = 0, 1, 2  # the axes of the cube: rows of C, the inner dimension, columns of C


class Transfer(NamedTuple):
    """A rectangle of A or B that one process sends to another."""

    operand: Operand
    source: int
    dest: int
    box: Box


class Share(NamedTuple):
    """What one process computes: rows and columns of C, and along which inner dimension."""

    rows: Span
    inner: Span
    cols: Span


@dataclass(frozen=True)
class Layout:
    """One way to share a product: `a` and `b` say which axis of A, of B each dimension of the mesh cuts, `work` which
    axis of the cube."""

    m: int
    k: int
    n: int
    mesh: tuple[int, ...]
    a: Cuts
    b: Cuts
    work: Cuts
    pieces: int = 1
    along: int = K  # the axis of the cube that the pieces cut

    @property
    def ranks(self) -> int:
        return prod(self.mesh)

    @property
    def added_over(self) -> int:
        """By how many processes each block of C is computed, each for a part of the inner dimension."""
        return prod(side for side, axis in zip(self.mesh, self.work, strict=True) if axis == K)

    @cached_property
    def holdings(self) -> dict[Operand, Holdings]:
        """Who holds what of A, of B."""
        return {
            "A": Holdings((self.m, self.k), self.mesh, self.a),
            "B": Holdings((self.k, self.n), self.mesh, self.b),
        }

    def share(self, rank: int) -> Share:
        return self._shares[rank]

    @cached_property
    def _shares(self) -> tuple[Share, ...]:
        sides = tuple(enumerate((self.m, self.k, self.n)))
        every = (coordinate_of(rank, self.mesh) for rank in range(self.ranks))
        return tuple(Share(*(cut_span(n, axis, self.work, self.mesh, where) for axis, n in sides)) for where in every)

    def portion(self, rank: int, step: int) -> Share:
        """What it multiplies in this step."""
        found = self._shares[rank]
        first = self._begins[rank] if self.along == K else 0
        piece = found[self.along].part(self.pieces, (first + step) % self.pieces)
        return Share(*(piece if axis == self.along else span for axis, span in enumerate(found)))

    def needs(self, rank: int, step: int) -> dict[Operand, Box]:
        """What it must have for that."""
        rows, inner, cols = self.portion(rank, step)
        return {"A": Box(rows, inner), "B": Box(inner, cols)}

    def stays(self, operand: Operand) -> bool:
        """Is a panel of it the same in all steps?"""
        return self.along == (N if operand == "A" else M)

    @cached_property
    def steps(self) -> tuple[tuple[Transfer, ...], ...]:
        """All that is sent, step by step."""
        return tuple(tuple(self._transfers(step)) for step in range(self.pieces))

    def _transfers(self, step: int) -> Iterator[Transfer]:
        for rank in range(self.ranks):
            needs = self.needs(rank, step)
            if all(box.size for box in needs.values()):
                for operand, box in needs.items():
                    if step and self.stays(operand):
                        continue
                    for source, part in self.holdings[operand].sources(rank, box):
                        if source != rank:
                            yield Transfer(operand, source, rank, part)

    @cached_property
    def _begins(self) -> tuple[int, ...]:
        return tuple(map(self._begin, range(self.ranks)))

    def _begin(self, rank: int) -> int:
        """Which piece a process begins with: with its own ones, where A and B are not both cut along the inner
        dimension; else like Cannon's algorithm, so that no two ask the same one at the same time."""
        inner = self.share(rank).inner
        held = self.holdings["A"].box(rank).cols.shared(inner), self.holdings["B"].box(rank).rows.shared(inner)
        along = sum((span.start - inner.start) / inner.size for span in held if span.size) if inner.size else 0.0
        return round(along * self.pieces) % self.pieces


@lru_cache(maxsize=1024)
def kept_layout(layout: Layout) -> Layout:
    """One object for all layouts that are equal, so that what was computed about it is there again."""
    return layout
