"""Places, and the steps that multiply nothing: sums and mirrors.

Sizes are exact: a place is the rectangle that holds numbers, so a block at the fringe is simply smaller, and a sum of
unequal blocks is as if the smaller were padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.problem import Fill

OPERANDS = ("A", "B", "C")
APART = "added"  # what beta is a factor of, where C does not hold it: the name of an operand of a walk
# What is meant where it is not a rectangle's own numbers: the real or imaginary parts of complex ones; or what the
# transpose of the matrix has there, which is only read.
Part = Literal["re", "im", "transpose"]
COPY = AdditionProgram(1, (), (0,))  # its one output is its input


@dataclass(frozen=True)
class Place:
    """A rectangle of A, B, C or of a temporary. `part` may say that only parts of its numbers are meant, or that it is
    a rectangle of the transpose."""

    name: str
    row: int
    col: int
    rows: int
    cols: int
    part: Part | None = None

    @property
    def spot(self) -> tuple[str, int, int, Part | None]:
        """Where it begins. Two places with the same spot overwrite each other."""
        return self.name, self.row, self.col, self.part

    def cropped(self, rows: int, cols: int) -> Place:
        return Place(self.name, self.row, self.col, min(rows, self.rows), min(cols, self.cols), self.part)

    @property
    def upright(self) -> Place:
        """The place where its numbers stand: another one if it is a rectangle of the transpose."""
        if self.part != "transpose":
            return self
        return Place(self.name, self.col, self.row, self.cols, self.rows)

    def within(self, other: Place) -> bool:
        """Is it a part of the other rectangle, in one matrix?"""
        down, right = self.row - other.row, self.col - other.col
        inside = 0 <= down <= other.rows - self.rows and 0 <= right <= other.cols - self.cols
        return inside and self.name == other.name

    def shared(self, other: Place) -> Place | None:
        """The rectangle in which two rectangles of one matrix overlap; None if they do not."""
        top, left = max(self.row, other.row), max(self.col, other.col)
        bottom = min(self.row + self.rows, other.row + other.rows)
        right = min(self.col + self.cols, other.col + other.cols)
        meet = self.name == other.name and top < bottom and left < right
        return Place(self.name, top, left, bottom - top, right - left) if meet else None


def whole_matrix(name: str, rows: int, cols: int, part: Part | None = None) -> Place:
    return Place(name, 0, 0, rows, cols, part)


@dataclass(frozen=True)
class Sum:
    """Additions in one pass: `program` over the `reads` gives the `writes`; what a read lacks counts as zero."""

    label: str
    program: AdditionProgram
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    @cached_property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        """Pairs (write, read) of the same place: sums that are done in place.

        What is added to C counts as C even where it lies elsewhere. The sums are then done in the same order, and their
        results are the same, bit for bit.
        """
        spots = [("C", *p.spot[1:]) if p.name == APART else p.spot for p in self.reads]
        writes = [p.spot for p in self.writes]
        return tuple((o, i) for o, write in enumerate(writes) for i, read in enumerate(spots) if read == write)

    @property
    def needed_reads(self) -> tuple[Place, ...]:
        """The reads that the program makes use of."""
        used = {v for terms in self.program.lines for _, v in terms} | set(self.program.outputs)
        return tuple(place for v, place in enumerate(self.reads) if v in used)

    @property
    def tidied(self) -> Sum:
        """The same sums with each place read once, and without outputs that stand where they belong already."""
        places = tuple(dict.fromkeys(self.reads))
        rename = [places.index(place) for place in self.reads]
        rename += range(len(places), len(places) + len(self.program.lines))
        lines = tuple(tuple((c, rename[v]) for c, v in terms) for terms in self.program.lines)
        outputs = [(rename[v], w) for v, w in zip(self.program.outputs, self.writes, strict=True)]
        kept = [(v, w) for v, w in outputs if v >= len(places) or places[v] != w]
        program = AdditionProgram(len(places), lines, tuple(v for v, _ in kept))
        return Sum(self.label, program, places, tuple(w for _, w in kept))


@dataclass(frozen=True)
class Turned(Sum):
    """A copy of an operand whose rows are contiguous.

    A walk makes no copy of an operand that lies so already: the operand then stands in the temporary's place.
    """

    @property
    def source(self) -> Place:
        return self.reads[0]

    @property
    def copy(self) -> Place:
        return self.writes[0]


def turned(source: Place, copy: Place) -> Turned:
    return Turned(f"turn {source.name}", COPY, (source,), (copy,))


@dataclass(frozen=True)
class Mirror:
    """The lower half of dest = alpha source + beta dest; with fill `full` the upper half becomes its adjoint.

    The source may be dest itself, whose lower half is then left as it is. Of complex numbers the diagonal becomes real.
    """

    source: Place
    dest: Place
    alpha: Coefficient = 1
    beta: Coefficient = 0
    fill: Fill = "full"

    @property
    def in_place(self) -> bool:
        return self.source == self.dest
