"""The matrices that a call multiplies, read off shapes and strides alone: for arrays on the host and on devices alike.

Vectors become matrices of one row or column, stacks one tall matrix or one product an item, and what BLAS cannot read
is marked to be copied. Nothing here touches an array, or knows a library.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod

import numpy as np

from fmm.arrays.library import Operand, Span, contiguous, occupied_bytes
from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.problem import Layout, Problem


class NotOursError(Exception):
    """A call that the library answers, or rejects, itself; the argument says why."""


class LibraryAnswersError(NotOursError):
    """The library answers even if a plan is given: there is nothing that a plan could do, or something is asked besides
    that only the library does."""


Offsets = tuple[int, int, int]  # bytes from the first elements of A, B and C


@dataclass(frozen=True)
class Matrices:
    """Equal products that make up a call: `problem` is one of them."""

    a: Operand  # with two axes or more, as it lies when it is multiplied
    b: Operand
    c: Operand
    packs: tuple[bool, bool]  # are A, B copied, because BLAS cannot read them as they are?
    direct: bool  # may the product be written into `out`, unless that overlaps an operand?
    flattens_stack: bool  # is a stack of A's times one B a single product of all their rows?
    problem: Problem

    @property
    def count(self) -> int:
        """How many products."""
        return 1 if self.flattens_stack else prod(self.c.shape[:-2])

    def offsets(self) -> tuple[Offsets, ...]:
        """Where the matrices of each product begin."""
        if self.flattens_stack:
            return ((0, 0, 0),)
        stack = self.c.shape[:-2]
        return tuple(zip(*(_places(x, stack) for x in (self.a, self.b, self.c)), strict=True))

    def addend_offsets(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """For each product, where that begins to which it is added, in bytes: in an array of C's shape with these
        strides."""
        added = Operand(self.c.shape, strides, self.c.dtype)
        return tuple(_places(added, self.c.shape[:-2]))

    def copied_bytes(self, whole: bool) -> int:
        """What the copies of packed operands take: of whole operands, or of one product's matrices at a time (which are
        all rows of a stack at once, where it is folded)."""
        item = self.problem.itemsize
        if whole:
            return sum(prod(x.shape) for x, pack in zip((self.a, self.b), self.packs, strict=True) if pack) * item
        m, k, n = self.problem.size
        return sum(temporary_bytes(*x, item) for x, pack in zip(((m, k), (k, n)), self.packs, strict=True) if pack)


def arranged_matrices(
    a: Operand,
    b: Operand,
    out: Operand | None,
    result: Operand,
    kind: str = "",
    packs_whole: bool = True,
    asked: Asked = PLAIN,
) -> Matrices:
    """The matrices of a call on a and b, whose product is like `result` if it is a new array.

    `kind`: the type that they are multiplied as (TF32), if it is another than the result's. `packs_whole`: packed
    operands are copied as a whole, so that their copies have no gaps; else matrix by matrix.
    """
    vectors = a.ndim == 1 or b.ndim == 1
    c = _with_all_axes(result, a.ndim, b.ndim)
    a, b = _as_matrices(a, b)
    packs = _packed(a, result.dtype), _packed(b, result.dtype)
    if packs_whole:
        a, b = (contiguous(x.shape, result.dtype) if pack else x for x, pack in zip((a, b), packs, strict=True))
    direct = out is not None and not vectors and out.dtype == result.dtype and _writable(out)
    if direct and out is not None:
        c = out
    left, right, dest = a, b, c
    flattens_stack = a.ndim > 2 and prod(b.shape[:-2]) == 1 and asked.op == "product"
    if flattens_stack:
        tall, product = tall_matrix(a), tall_matrix(c)
        if tall is not None and product is not None and (packs[0] or matrix_layout(tall)) and matrix_layout(product):
            left, right, dest = tall, b._replace(shape=b.shape[-2:], strides=b.strides and b.strides[-2:]), product
        else:
            flattens_stack = False
    size = left.shape[-2], left.shape[-1], right.shape[-1]
    layouts = tuple(matrix_layout(x) or Layout("C", max(x.shape[-1], 1)) for x in (left, right, dest))
    placed = layouts[0], layouts[1], layouts[2]
    update = _number(asked.alpha), _number(asked.beta)
    problem = Problem(*size, kind or result.dtype, placed, *update, asked.op, fill=asked.fill)
    return Matrices(a, b, c, packs, direct, flattens_stack, problem)


def _number(c: Coefficient) -> complex:
    return c if isinstance(c, int | float | complex) else complex(c)


# ---- vectors


def _as_matrices(a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Vectors as a matrix of one row, or of one column."""
    if a.ndim == 1:
        a = a._replace(shape=(1, *a.shape), strides=a.strides and (a.shape[0], *a.strides))
    if b.ndim == 1:
        b = b._replace(shape=(*b.shape, 1), strides=b.strides and (*b.strides, 1))
    return a, b


def _with_all_axes(c: Operand, a_axes: int, b_axes: int) -> Operand:
    """The result with the axes that vectors drop put back."""
    assert c.strides is not None
    if a_axes == 1:
        at = c.ndim - (b_axes > 1)
        row = c.strides[at] * c.shape[at] if b_axes > 1 else 1
        c = c._replace(shape=(*c.shape[:at], 1, *c.shape[at:]), strides=(*c.strides[:at], row, *c.strides[at:]))
    if b_axes == 1:
        c = c._replace(shape=(*c.shape, 1), strides=(*(c.strides or ()), 1))
    return c


# ---- layouts


def matrix_layout(x: Operand) -> Layout | None:
    """How its matrices lie in memory; None if neither their rows nor their columns are contiguous."""
    if x.strides is None:
        return None
    (rows, cols), (down, right) = x.shape[-2:], x.strides[-2:]
    if (cols <= 1 or right == 1) and (rows <= 1 or down >= cols):
        return Layout("C", max(down if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == 1) and (cols <= 1 or right >= rows):
        return Layout("F", max(right if cols > 1 else rows, rows, 1))
    return None


def _packed(x: Operand, dtype: str) -> bool:
    """Must it be copied, so that BLAS can read it?"""
    return matrix_layout(x) is None or x.dtype != dtype


def _writable(x: Operand) -> bool:
    """Can a plan write it in place: matrices that BLAS can write, none twice in the same place?"""
    return matrix_layout(x) is not None and 0 not in _steps(x, x.shape[:-2])


def byte_span(x: Operand) -> Span | None:
    """Which bytes it occupies; None if that cannot be told."""
    if x.strides is None:
        return x.span
    item = DTYPES[x.dtype].itemsize if x.dtype in DTYPES else np.dtype(x.dtype).itemsize
    return occupied_bytes(x.shape, tuple(step * item for step in x.strides), item)


def spans_meet(x: int, of_x: Span | None, y: int, of_y: Span | None) -> bool:
    """May two arrays share memory, whose first elements are at these addresses?"""
    return of_x is None or of_y is None or (y + of_y[0] < x + of_x[1] and x + of_x[0] < y + of_y[1])


# ---- stacks


def tall_matrix(x: Operand) -> Operand | None:
    """The stack as one tall matrix, without moving anything; None if its rows are not equally far apart."""
    if x.strides is None:
        return None
    axes = [(length, step) for length, step in zip(x.shape[:-1], x.strides[:-1], strict=True) if length != 1]
    if any(outer != inner * length for (_, outer), (length, inner) in pairwise(axes)):
        return None
    down = axes[-1][1] if axes else x.shape[-1]
    return Operand((prod(x.shape[:-1]), x.shape[-1]), (down, x.strides[-1]), x.dtype)


def _places(x: Operand, stack: tuple[int, ...]) -> Iterator[int]:
    """Where each item's matrix begins, in bytes."""
    steps, item = _steps(x, stack), DTYPES[x.dtype].itemsize
    for index in np.ndindex(*stack):
        yield sum(i * step for i, step in zip(index, steps, strict=True)) * item


def _steps(x: Operand, stack: tuple[int, ...]) -> list[int]:
    """The strides of the stack's axes: 0 where one matrix serves all items; any number where there is one item."""
    assert x.strides is not None
    missing = len(stack) - (x.ndim - 2)
    own = [0] * missing + [0 if length == 1 else step for length, step in zip(x.shape, x.strides, strict=True)][:-2]
    return [1 if length == 1 else step for length, step in zip(stack, own, strict=True)]
