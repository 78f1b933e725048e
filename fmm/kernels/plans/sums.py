"""Places (rectangles of matrices), and the steps that multiply nothing: sums, scaled copies, mirrors.

Sizes are exact: a place is the rectangle that holds numbers. A block at the fringe is smaller, and a sum of unequal
blocks is computed as if the smaller ones were padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.problem import Fill

OPERANDS = ("A", "B", "C")
ADDEND = "addend"  # operand of a walk that beta multiplies, where it is another matrix than C
# The part of a place's numbers: real or imaginary parts of complex numbers; or the rectangle of the matrix's transpose,
# which is only read.
Part = Literal["re", "im", "transpose"]
COPY = AdditionProgram(1, (), (0,))  # the output is the input


# ---- places


@dataclass(frozen=True)
class Place:
    """A rectangle of A, B, C or a temporary; `part`: only parts of its numbers, or a rectangle of the transpose."""

    name: str
    row: int
    col: int
    rows: int
    cols: int
    part: Part | None = None

    @property
    def origin(self) -> tuple[str, int, int, Part | None]:
        """Matrix, first row, first column and part of the place. Two places of one origin overwrite each other."""
        return self.name, self.row, self.col, self.part

    def cropped_place(self, rows: int, cols: int) -> Place:
        """Return the place with at most these rows and columns."""
        return Place(self.name, self.row, self.col, min(rows, self.rows), min(cols, self.cols), self.part)

    @property
    def untransposed_place(self) -> Place:
        """The place in the matrix itself, for a rectangle of its transpose."""
        if self.part != "transpose":
            return self
        return Place(self.name, self.col, self.row, self.cols, self.rows)

    def is_inside(self, other: Place) -> bool:
        """Return True if the other place of the same matrix contains this one."""
        down, right = self.row - other.row, self.col - other.col
        inside = 0 <= down <= other.rows - self.rows and 0 <= right <= other.cols - self.cols
        return inside and self.name == other.name

    def overlap(self, other: Place) -> Place | None:
        """Return the overlap of two rectangles of one matrix; None if they are disjoint."""
        top, left = max(self.row, other.row), max(self.col, other.col)
        bottom = min(self.row + self.rows, other.row + other.rows)
        right = min(self.col + self.cols, other.col + other.cols)
        meet = self.name == other.name and top < bottom and left < right
        return Place(self.name, top, left, bottom - top, right - left) if meet else None


def whole_matrix(name: str, rows: int, cols: int, part: Part | None = None) -> Place:
    """Return the place of a whole matrix."""
    return Place(name, 0, 0, rows, cols, part)


def operand_blocks(name: str, rows: int, cols: int, parts: tuple[int, int], unit: int | None) -> list[Place]:
    """Return the blocks of an operand in row-major order."""
    across = side_cuts(cols, parts[1], unit)
    return [Place(name, r, c, h, w) for r, h in side_cuts(rows, parts[0], unit) for c, w in across]


def side_cuts(length: int, parts: int, unit: int | None) -> list[tuple[int, int]]:
    """Return (start, size) of each part: sizes that differ by at most one (no unit), or all but the last ones equal."""
    if unit is None:
        small, larger = divmod(length, parts)
        sizes = [small + (i < larger) for i in range(parts)]
    else:
        full = block_side(length, parts, unit)
        sizes = [min(full, max(length - i * full, 0)) for i in range(parts)]
    starts = [min(sum(sizes[:i]), length) for i in range(parts)]
    return list(zip(starts, sizes, strict=True))


def block_side(length: int, parts: int, unit: int) -> int:
    """Return the side of equal blocks that cover the length: a multiple of the unit."""
    return -(-length // (parts * unit)) * unit


# ---- sums


@dataclass(frozen=True)
class Sum:
    """Additions in one pass: `program` over the `reads` gives the `writes`. Numbers outside a read count as zero."""

    label: str
    program: AdditionProgram
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    @cached_property
    def aliases(self) -> tuple[tuple[int, int], ...]:
        """Pairs (write, read) of the same place: sums that are done in place.

        The addend counts as C even in another matrix, so that the sums are done in the same order: results are equal
        bit for bit.
        """
        read_origins = [("C", *p.origin[1:]) if p.name == ADDEND else p.origin for p in self.reads]
        write_origins = [p.origin for p in self.writes]
        return tuple(
            (o, i) for o, write in enumerate(write_origins) for i, read in enumerate(read_origins) if read == write
        )

    @property
    def used_reads(self) -> tuple[Place, ...]:
        """The reads that the program uses."""
        used = {v for terms in self.program.lines for _, v in terms} | set(self.program.outputs)
        return tuple(place for v, place in enumerate(self.reads) if v in used)

    @property
    def simplified_sum(self) -> Sum:
        """The same sums with each place read once, and without outputs that already stand in their place."""
        places = tuple(dict.fromkeys(self.reads))
        rename = [places.index(place) for place in self.reads]
        rename += range(len(places), len(places) + len(self.program.lines))
        lines = tuple(tuple((c, rename[v]) for c, v in terms) for terms in self.program.lines)
        outputs = [(rename[v], w) for v, w in zip(self.program.outputs, self.writes, strict=True)]
        written = [(v, w) for v, w in outputs if v >= len(places) or places[v] != w]
        program = AdditionProgram(len(places), lines, tuple(v for v, _ in written))
        return Sum(self.label, program, places, tuple(w for _, w in written))


@dataclass(frozen=True)
class RowMajorCopy(Sum):
    """A row-major copy of an operand.

    A walk copies no operand that is row-major already: the operand then serves as the temporary.
    """

    @property
    def source(self) -> Place:
        return self.reads[0]

    @property
    def copy(self) -> Place:
        return self.writes[0]


def row_major_copy_step(source: Place, copy: Place) -> RowMajorCopy:
    """Return the step that copies an operand to a row-major temporary."""
    return RowMajorCopy(f"turn {source.name}", COPY, (source,), (copy,))


# ---- scaling by powers of two. To a proof or an error bound these steps are copies, since nothing is rounded. An
# exponent is stored as a number of the matrix's own type, in a temporary of one row.

SignedExponents = tuple[Place | None, int]  # a vector of exponents, if there is one, and the sign to apply them with


@dataclass(frozen=True)
class LineExponents(Sum):
    """The exponent e of the largest number x of each row (axis 0) or column (axis 1): 2^(e-1) <= |x| < 2^e.

    It is 0 for lines of zeros, and for lines with an inf or NaN. With `sign` != 0, the numbers along a line are first
    scaled by exponents, the second read, with this sign. With `against`, the result is half the difference (rounded
    down) between these exponents and others, the last read.
    """

    axis: int = 0
    sign: int = 0
    against: bool = False

    @property
    def source(self) -> Place:
        return self.reads[0]


@dataclass(frozen=True)
class RescaledCopy(Sum):
    """A copy with rows scaled by the exponents of one vector, and columns by those of another."""

    row_sign: int = 0  # sign of the exponents; 0: rows are not scaled
    col_sign: int = 0


def exponent_step(
    label: str, source: Place, axis: int, dest: Place, shifts: Place | None = None, sign: int = 0,
    against: Place | None = None,
) -> LineExponents:  # fmt: skip
    """Return the step that finds the exponents of rows (axis 0) or columns (axis 1)."""
    reads = (source, *(place for place in (shifts, against) if place is not None))
    options = axis, sign if shifts else 0, against is not None
    return LineExponents(f"exponents of {label}", _copy_first_program(len(reads)), reads, (dest,), *options)


def rescaling_step(
    label: str, source: Place, dest: Place, rows: SignedExponents, cols: SignedExponents
) -> RescaledCopy:
    """Return the step that copies a matrix with scaled rows and columns."""
    reads = (source, *(place for place, _ in (rows, cols) if place is not None))
    signs = (sign if place is not None else 0 for place, sign in (rows, cols))
    return RescaledCopy(label, _copy_first_program(len(reads)), reads, (dest,), *signs)


def _copy_first_program(reads: int) -> AdditionProgram:
    return AdditionProgram(reads, (), (0,))


# ---- mirrors


@dataclass(frozen=True)
class Mirror:
    """The lower triangle of dest = alpha source + beta dest; with fill `full` the upper triangle becomes its adjoint.

    The source may be dest itself: the lower triangle is then left unchanged. The diagonal of complex matrices becomes
    real.
    """

    source: Place
    dest: Place
    alpha: Coefficient = 1
    beta: Coefficient = 0
    fill: Fill = "full"

    @property
    def in_place(self) -> bool:
        return self.source == self.dest
