"""Places (rectangles of matrices), and the steps without a matrix product: sums, scaled copies, mirrors.

A place has the exact size of its rectangle, without padding. Blocks at the edge of a matrix can be smaller than other
blocks. A sum of unequal blocks is computed as if the smaller blocks were padded with zeros.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.problem import Fill

OPERAND_NAMES = ("A", "B", "C")
ADDEND = "addend"  # name of the operand that beta multiplies, if this operand is another matrix than C
# `re`, `im`: the place is the real or the imaginary parts of complex numbers. `transpose`: the place is a rectangle of
# the transposed matrix, and is only read.
PlacePart = Literal["re", "im", "transpose"]
COPY_PROGRAM = AdditionProgram(1, (), (0,))  # the program that copies its only input to its only output


# ---- places


@dataclass(frozen=True)
class Place:
    """A rectangle of A, B, C or a temporary.

    If `part` is set, the place is the real or imaginary parts of the numbers, or a rectangle of the matrix's transpose.
    """

    name: str
    row: int
    col: int
    rows: int
    cols: int
    part: PlacePart | None = None

    @property
    def origin(self) -> tuple[str, int, int, PlacePart | None]:
        """Return the matrix, the first row, the first column and the part of the place.

        Two places with the same origin share memory.
        """
        return self.name, self.row, self.col, self.part

    def cropped_place(self, rows: int, cols: int) -> Place:
        """Return the place, cropped to at most `rows` rows and `cols` columns."""
        return Place(self.name, self.row, self.col, min(rows, self.rows), min(cols, self.cols), self.part)

    @property
    def untransposed_place(self) -> Place:
        """Return the place in the matrix itself, if this place is a rectangle of the transposed matrix."""
        if self.part != "transpose":
            return self
        return Place(self.name, self.col, self.row, self.cols, self.rows)

    def is_inside(self, other: Place) -> bool:
        """Return True if the place `other` contains this place."""
        down, right = self.row - other.row, self.col - other.col
        inside = 0 <= down <= other.rows - self.rows and 0 <= right <= other.cols - self.cols
        return inside and self.name == other.name

    def overlap(self, other: Place) -> Place | None:
        """Return the overlap of this rectangle and `other`; None if the rectangles are disjoint."""
        top, left = max(self.row, other.row), max(self.col, other.col)
        bottom = min(self.row + self.rows, other.row + other.rows)
        right = min(self.col + self.cols, other.col + other.cols)
        meet = self.name == other.name and top < bottom and left < right
        return Place(self.name, top, left, bottom - top, right - left) if meet else None


def whole_matrix(name: str, rows: int, cols: int, part: PlacePart | None = None) -> Place:
    """Return the place of a whole matrix."""
    return Place(name, 0, 0, rows, cols, part)


def operand_blocks(name: str, rows: int, cols: int, parts: tuple[int, int], unit: int | None) -> list[Place]:
    """Return the blocks of an operand, cut into `parts` rows and columns of blocks, in row-major order.

    The function `cut_side_into_parts` determines where the blocks begin and end.
    """
    across = cut_side_into_parts(cols, parts[1], unit)
    return [Place(name, r, c, h, w) for r, h in cut_side_into_parts(rows, parts[0], unit) for c, w in across]


def cut_side_into_parts(length: int, parts: int, unit: int | None) -> list[tuple[int, int]]:
    """Return (start, size) of each block along a side of a matrix.

    If `unit` is None, the block sizes differ by at most one. If `unit` is a number, all blocks have the same size, a
    multiple of `unit`, except blocks at the end, which can be smaller or empty.
    """
    if unit is None:
        small, larger = divmod(length, parts)
        sizes = [small + (i < larger) for i in range(parts)]
    else:
        full = block_side(length, parts, unit)
        sizes = [min(full, max(length - i * full, 0)) for i in range(parts)]
    starts = [min(sum(sizes[:i]), length) for i in range(parts)]
    return list(zip(starts, sizes, strict=True))


def block_side(length: int, parts: int, unit: int) -> int:
    """Return the smallest multiple of `unit` for which `parts` blocks of this side cover `length`."""
    return -(-length // (parts * unit)) * unit


# ---- sums


@dataclass(frozen=True)
class Sum:
    """A step of additions in one pass: `program` computes the places `writes` from the places `reads`.

    If a place in `reads` is smaller than a place in `writes`, the missing numbers count as zero.
    """

    label: str
    program: AdditionProgram
    reads: tuple[Place, ...]
    writes: tuple[Place, ...]

    @cached_property
    def in_place_pairs(self) -> tuple[tuple[int, int], ...]:
        """Return (index in `writes`, index in `reads`) for each place that is both read and written.

        The matrix ADDEND counts as C, so that additions have the same order whether or not beta multiplies C itself,
        and the results are equal bit for bit.
        """
        read_origins = [("C", *p.origin[1:]) if p.name == ADDEND else p.origin for p in self.reads]
        write_origins = [p.origin for p in self.writes]
        return tuple(
            (o, i) for o, write in enumerate(write_origins) for i, read in enumerate(read_origins) if read == write
        )

    @property
    def places_read_by_program(self) -> tuple[Place, ...]:
        """Return the places in `reads` that the program uses."""
        used = {v for terms in self.program.lines for _, v in terms} | set(self.program.outputs)
        return tuple(place for v, place in enumerate(self.reads) if v in used)

    @property
    def simplified_sum(self) -> Sum:
        """Return the step without repeated reads, and without outputs that copy a place to itself."""
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
    """A step that copies an operand to a row-major temporary.

    If the operand is row-major already, a walk copies nothing and uses the operand as the temporary.
    """

    @property
    def source_place(self) -> Place:
        return self.reads[0]

    @property
    def copy_place(self) -> Place:
        return self.writes[0]


def row_major_copy_step(source: Place, copy: Place) -> RowMajorCopy:
    """Return the step that copies an operand to a row-major temporary."""
    return RowMajorCopy(f"turn {source.name}", COPY_PROGRAM, (source,), (copy,))


# ---- scaling by powers of two.
# Proofs and error bounds treat a scaling step as a copy, because scaling rounds nothing. Exponents are stored in a
# temporary with one row, as numbers of the matrix's type.

SignedExponents = tuple[Place | None, int]  # (vector of exponents or None, sign of the exponents: 1 or -1)


@dataclass(frozen=True)
class RowOrColumnExponents(Sum):
    """A step that finds e with 2^(e-1) <= max |x| < 2^e for each row (axis 0) or column (axis 1) with elements x.

    The exponent is 0 for a row or column of zeros, or with an inf or NaN. If `sign` is 1 or -1, each element of a row
    or column is first multiplied by 2^(sign * s), where the second matrix in `reads` is a vector with an integer s for
    each element. If `against` is True, the last matrix in `reads` is a vector with another exponent for each row or
    column, and the step's result is half the difference of the two exponents, rounded down.
    """

    axis: int = 0
    sign: int = 0
    against: bool = False

    @property
    def source_place(self) -> Place:
        return self.reads[0]


@dataclass(frozen=True)
class RescaledCopy(Sum):
    """A step that copies a matrix and multiplies each row and each column by a power of two: 2^(sign * exponent)."""

    row_sign: int = 0  # sign of the exponents of rows; 0: rows are not scaled
    col_sign: int = 0  # sign of the exponents of columns; 0: columns are not scaled


def exponent_step(
    label: str, source: Place, axis: int, dest: Place, shifts: Place | None = None, sign: int = 0,
    other_exponents: Place | None = None,
) -> RowOrColumnExponents:  # fmt: skip
    """Return the step that finds the exponents of rows (axis 0) or columns (axis 1)."""
    reads = (source, *(place for place in (shifts, other_exponents) if place is not None))
    options = axis, sign if shifts else 0, other_exponents is not None
    return RowOrColumnExponents(
        f"exponents of {label}", _copy_first_input_program(len(reads)), reads, (dest,), *options
    )


def rescaling_step(
    label: str, source: Place, dest: Place, rows: SignedExponents, cols: SignedExponents
) -> RescaledCopy:
    """Return the step that copies a matrix and scales its rows and columns."""
    reads = (source, *(place for place, _ in (rows, cols) if place is not None))
    signs = (sign if place is not None else 0 for place, sign in (rows, cols))
    return RescaledCopy(label, _copy_first_input_program(len(reads)), reads, (dest,), *signs)


def _copy_first_input_program(reads: int) -> AdditionProgram:
    return AdditionProgram(reads, (), (0,))


# ---- mirrors


@dataclass(frozen=True)
class Mirror:
    """A step that computes the lower triangle of dest = alpha * source + beta * dest.

    With fill `full`, the upper triangle becomes the adjoint of the lower triangle. If the source is dest itself, the
    lower triangle does not change. The diagonal of complex matrices becomes real.
    """

    source: Place
    dest: Place
    alpha: Coefficient = 1
    beta: Coefficient = 0
    fill: Fill = "full"

    @property
    def is_in_place(self) -> bool:
        return self.source == self.dest
