"""Rectangles of memory: where operands, temporaries and their blocks lie, as a base and an offset."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from fmm.problem import Problem


class View(NamedTuple):
    """A rectangle of memory; strides in elements of the problem's type, the offset from the base in bytes."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # from one row to the next
    right: int  # from one column to the next

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


class Piece(NamedTuple):
    """A block of A, B or C: where it begins in which base, in bytes, its sizes, and how often it is taken."""

    base: str
    offset: int
    rows: int
    cols: int
    factor: float = 1  # of a block in a sum, whose first has 1; of the product in a destination
    keep: float = 0  # what a destination keeps of its old value: with 0 that is never read


class Lines(NamedTuple):
    """How an operand's blocks lie: elements from one line to the next, and from one product of a batch to the next."""

    leading: int
    layer: int = 0


class Factor(NamedTuple):
    """One operand of a GEMM as BLAS sees it, column by column."""

    base: str
    offset: int  # bytes
    leading: int
    transposed: bool
    stride: int  # elements from one of a batch to the next


def constant_distance(views: Sequence[View], itemsize: int) -> int | None:
    """The constant distance, in elements, between views that are alike; None if there is none."""
    base, _, *shape = views[0]
    if any(v[0] != base or [*v[2:]] != shape for v in views):  # (the offset is the second field)
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // itemsize if len(steps) == 1 else None


def columns_contiguous(x: View) -> bool:
    """Are its columns contiguous?"""
    return x.down == 1 and (x.right != 1 or x.rows == 1)


def transposed_view(x: View) -> View:
    return View(x.base, x.offset, x.cols, x.rows, x.right, x.down)


def operand_views(problem: Problem) -> dict[str, View]:
    """A, B and C of a problem, each whole."""
    return {
        name: View(name, 0, *shape, *layout.strides)
        for name, shape, layout in zip("ABC", problem.shapes, problem.layouts, strict=True)
    }
