"""Rectangles of memory: where operands, temporaries and their blocks lie, as a base and an offset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.plans.sums import ADDEND, Place
from fmm.problem import Problem


class View(NamedTuple):
    """A rectangle of memory; strides in elements of its own type, the offset from the base in bytes."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # from one row to the next
    right: int  # from one column to the next
    dtype: str  # as it is stored
    unit: int = 1  # from one number to the next where they are contiguous: 2 for the parts of complex numbers

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    def block(self, place: Place) -> View:
        """The rectangle of this matrix or of its transpose, or the real or imaginary parts of the numbers in it."""
        if place.part == "transpose":
            return transposed_view(self.block(place.upright))
        offset = self.offset + (place.row * self.down + place.col * self.right) * self.itemsize
        rectangle = self._replace(offset=offset, rows=place.rows, cols=place.cols)
        if not place.part:
            return rectangle
        real = DTYPES[self.dtype].real
        shift = DTYPES[real].itemsize if place.part == "im" else 0
        return rectangle._replace(offset=offset + shift, down=2 * self.down, right=2 * self.right, dtype=real, unit=2)

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


class Piece(NamedTuple):
    """A block of A, B or C in a tiled product."""

    base: str
    offset: int  # bytes
    rows: int
    cols: int
    factor: float = 1  # of a block in a sum, whose first has 1; in a destination, of the product
    keep: float = 0  # what a destination keeps of its old value: with 0 that is never read


class Lines(NamedTuple):
    """How an operand's blocks lie, in elements."""

    leading: int  # from one line to the next
    layer: int = 0  # from one product of a batch to the next


class Factor(NamedTuple):
    """One operand of a GEMM as BLAS sees it, column by column."""

    base: str
    offset: int  # bytes
    leading: int  # elements from one column to the next
    transposed: bool
    stride: int  # elements from one matrix of a batch to the next


def constant_distance(views: Sequence[View]) -> int | None:
    """The distance in elements from each of these views to the next; None if it varies, or if they are not alike."""
    base, _, *shape = views[0]
    if any(v[0] != base or [*v[2:]] != shape for v in views):  # (the offset is the second field)
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // views[0].itemsize if len(steps) == 1 else None


def columns_contiguous(x: View) -> bool:
    """Are its columns contiguous?"""
    return x.down == x.unit and (x.right != x.unit or x.rows == 1)


def transposed_view(x: View) -> View:
    return x._replace(rows=x.cols, cols=x.rows, down=x.right, right=x.down)


def added_view(problem: Problem) -> View | None:
    """The matrix that beta multiplies, if that is not C; else None."""
    if problem.added is None:
        return None
    return View(ADDEND, 0, problem.m, problem.n, *problem.added, problem.stored)


def lies_along(added: View, dest: View) -> bool:
    """Are its numbers neighbours in memory where dest's are? (Its lines may all be the same one.)"""
    count, step = (dest.rows, added.down) if columns_contiguous(dest) else (dest.cols, added.right)
    return count == 1 or step == 1


def operand_views(problem: Problem) -> dict[str, View]:
    """A, B and C of a problem, each whole."""
    return {
        name: View(name, 0, *shape, *layout.strides, problem.stored)
        for name, shape, layout in zip("ABC", problem.shapes, problem.layouts, strict=True)
    }
