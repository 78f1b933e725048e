"""How several processes share one product: whose block of C each computes, of which inner dimension, in which pieces.

The cube of all multiplications, m x k x n, is cut like a matrix is: each dimension of the mesh cuts rows of C, columns
of C, or the inner dimension, of which the results are then added up. A process needs the rows of A and the columns of B
that belong to its block. It computes that in pieces: while it multiplies one, what the next one needs arrives. Pieces
of the inner dimension need a part of both, and are added up; everybody begins somewhere else, so that in each step
everybody sends about as much as he receives. Pieces of columns need all its rows of A from the first one on, pieces of
rows all its columns of B.

The description is all there is: who runs it reads it, and so does who predicts its time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Literal, NamedTuple

from fmm.kernels.distributed.blocks import Box, Cuts, Holdings, Span, coordinate_of, cut_span

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
