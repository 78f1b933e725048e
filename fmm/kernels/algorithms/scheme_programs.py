"""The additions of a scheme, and how those of two schemes become those of their composition."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import prod

from fmm.kernels.algorithms.additions import AdditionProgram, chained_programs, renumbered_inputs

Grid = tuple[int, int]  # rows and columns of blocks


@dataclass(frozen=True)
class Programs:
    """The additions of one scheme: forming the left operands, the right operands and the blocks of the result."""

    left: AdditionProgram
    right: AdditionProgram
    join: AdditionProgram

    @property
    def additions(self) -> int:
        return self.left.additions + self.right.additions + self.join.additions


def composed_programs(
    outer: Programs, inner: Programs, outer_size: tuple[int, int, int], inner_size: tuple[int, int, int], rank: int
) -> Programs:
    """The additions of the outer scheme, of so many products, and of the inner one inside each of these.

    Sizes are the numbers of blocks (m, k, n) of the two schemes.
    """
    (m, k, n), (p, q, r) = outer_size, inner_size
    return Programs(
        _split_twice(outer.left, inner.left, (m, k), (p, q), rank),
        _split_twice(outer.right, inner.right, (k, n), (q, r), rank),
        _join_twice(inner.join, outer.join, (m, n), (p, r), rank),
    )


def _split_twice(first: AdditionProgram, then: AdditionProgram, outer: Grid, inner: Grid, rank: int) -> AdditionProgram:
    """The outer sums for every inner position first, then the inner sums of each of the outer products."""
    places = prod(inner)
    wiring = [[(place, r) for place in range(places)] for r in range(rank)]
    program = chained_programs([first] * places, [then] * rank, wiring)
    return renumbered_inputs(program, _by_place(outer, inner))


def _join_twice(first: AdditionProgram, then: AdditionProgram, outer: Grid, inner: Grid, rank: int) -> AdditionProgram:
    """The inner joins of each outer product first, then the outer join for every inner position."""
    wiring = [[(r, place) for r in range(rank)] for place in range(prod(inner))]
    program = chained_programs([first] * rank, [then] * prod(inner), wiring)
    order = _by_place(outer, inner)
    outputs = [0] * len(order)
    for position, block in enumerate(order):
        outputs[block] = program.outputs[position]
    return AdditionProgram(program.inputs, program.lines, tuple(outputs))


def _by_place(outer: Grid, inner: Grid) -> list[int]:
    """Row-major block numbers of the composed grid, sorted by inner position first, then by outer block."""
    columns = outer[1] * inner[1]
    return [
        (i * inner[0] + s) * columns + j * inner[1] + t
        for s, t in product(range(inner[0]), range(inner[1]))
        for i, j in product(range(outer[0]), range(outer[1]))
    ]
