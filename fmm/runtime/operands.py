"""The matrices that a call multiplies, derived only from the shapes and strides of the call's operands.

A vector becomes a matrix of one row or one column. A stack becomes one tall matrix, or each of its matrices is
multiplied in a product of its own. Operands that BLAS cannot read in place are marked for a copy. The functions here
read no array elements.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import NamedTuple

import numpy as np

from fmm.arrays.library import Operand, contiguous_operand, occupied_bytes
from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.problem import Layout, Problem


class VendorOnlyError(Exception):
    """The error raised if only the array library can compute or reject the call; the argument is the reason."""


class PlanIgnoredError(VendorOnlyError):
    """The error raised if no plan applies to a call.

    The array library computes the call even if the caller names a plan.
    """


ByteOffsets = tuple[int, int, int]  # byte offsets from the first elements of A, B and C


@dataclass(frozen=True)
class CallMatrices:
    """The matrices of a call's products; all products of the call have the same problem."""

    a: Operand  # A as BLAS reads it, after a copy if one is made, with at least two axes
    b: Operand
    c: Operand
    packs: tuple[bool, bool]  # for A and for B: True if the operand is copied, since BLAS cannot read it
    writes_out: bool  # True if the product can be written into `out`, unless `out` overlaps an operand
    flattens_stack: bool  # True if a stack of matrices A times one B is a single product of all rows of the stack
    problem: Problem

    @property
    def product_count(self) -> int:
        """The number of products that the call computes."""
        return 1 if self.flattens_stack else prod(self.c.shape[:-2])

    def product_offsets(self) -> tuple[ByteOffsets, ...]:
        """Return the byte offsets of A, B and C for each product."""
        if self.flattens_stack:
            return ((0, 0, 0),)
        stack = self.c.shape[:-2]
        return tuple(zip(*(_matrix_byte_offsets(x, stack) for x in (self.a, self.b, self.c)), strict=True))

    def batch_strides(self) -> tuple[int, int, int] | None:
        """Return the distances, in elements, between consecutive matrices of A, of B and of C.

        Return None if the matrices of an operand are not equally spaced, or if a distance is negative: tensor maps and
        descriptors of batches have no negative distances.
        """
        found = []
        for x in (self.a, self.b, self.c):
            offsets = [*_matrix_byte_offsets(x, self.c.shape[:-2])]
            steps = {y - x for x, y in pairwise(offsets)}
            if len(steps) != 1 or min(steps) < 0:
                return None
            found.append(steps.pop() // DTYPES[x.dtype].itemsize)
        return found[0], found[1], found[2]

    def addend_offsets(self, strides: tuple[int, ...]) -> tuple[int, ...]:
        """Return the byte offset of each product's addend in an array of C's shape with these strides in elements."""
        addend = Operand(self.c.shape, strides, self.c.dtype)
        return tuple(_matrix_byte_offsets(addend, self.c.shape[:-2]))

    def copied_bytes(self, complete_operands: bool) -> int:
        """Return the size of the operand copies in bytes.

        If `complete_operands` is True, complete operands are copied; else only the matrices of one product at a time.
        """
        item = self.problem.itemsize
        if complete_operands:
            return sum(prod(x.shape) for x, pack in zip((self.a, self.b), self.packs, strict=True) if pack) * item
        m, k, n = self.problem.size
        return sum(temporary_bytes(*x, item) for x, pack in zip(((m, k), (k, n)), self.packs, strict=True) if pack)


def matrices_of_call(
    a: Operand,
    b: Operand,
    out: Operand | None,
    result: Operand,
    dtype: str = "",
    packs_whole: bool = True,
    params: GemmParams = PLAIN,
) -> CallMatrices:
    """Return the matrices of a product of a and b; `result` describes the product as a new array.

    `dtype`: the type in which the product is computed, if this is not the result's type (TF32). `packs_whole` concerns
    operands that BLAS cannot read: if True, the complete operand is copied into contiguous memory before the first
    product; else each of its matrices is copied before its own product.
    """
    has_vector = a.ndim == 1 or b.ndim == 1
    c = _restore_vector_axes(result, a.ndim, b.ndim)
    a, b = _vectors_as_matrices(a, b)
    # An operand is copied if its type is not the result's type, or if it has no contiguous axis: BLAS cannot read it.
    packs = matrix_layout(a) is None or a.dtype != result.dtype, matrix_layout(b) is None or b.dtype != result.dtype
    if packs_whole:
        a, b = (contiguous_operand(x.shape, result.dtype) if pack else x for x, pack in zip((a, b), packs, strict=True))
    writes_out = out is not None and not has_vector and out.dtype == result.dtype and _is_blas_writable(out)
    if writes_out and out is not None:
        c = out
    left, right, dest = a, b, c
    flattens_stack = a.ndim > 2 and prod(b.shape[:-2]) == 1 and params.op == "product"
    if flattens_stack:
        tall, product = stack_as_tall_matrix(a), stack_as_tall_matrix(c)
        if tall is not None and product is not None and (packs[0] or matrix_layout(tall)) and matrix_layout(product):
            left, right, dest = tall, b._replace(shape=b.shape[-2:], strides=b.strides and b.strides[-2:]), product
        else:
            flattens_stack = False
    size = left.shape[-2], left.shape[-1], right.shape[-1]
    of_a, of_b, of_c = (matrix_layout(x) or Layout("C", max(x.shape[-1], 1)) for x in (left, right, dest))
    factors = _python_number(params.alpha), _python_number(params.beta)
    problem = Problem(*size, dtype or result.dtype, (of_a, of_b, of_c), *factors, params.op, fill=params.fill)
    return CallMatrices(a, b, c, packs, writes_out, flattens_stack, problem)


def _python_number(c: Coefficient) -> complex:
    return c if isinstance(c, int | float | complex) else complex(c)


def _is_blas_writable(x: Operand) -> bool:
    """Return True if BLAS can write each matrix of the stack, and no two matrices share memory."""
    return matrix_layout(x) is not None and 0 not in _stack_strides(x, x.shape[:-2])


# ---- vectors


def _vectors_as_matrices(a: Operand, b: Operand) -> tuple[Operand, Operand]:
    """Return the operands as matrices: a vector A becomes a matrix of one row, a vector B a matrix of one column."""
    if a.ndim == 1:
        a = a._replace(shape=(1, *a.shape), strides=a.strides and (a.shape[0], *a.strides))
    if b.ndim == 1:
        b = b._replace(shape=(*b.shape, 1), strides=b.strides and (*b.strides, 1))
    return a, b


def _restore_vector_axes(c: Operand, a_axes: int, b_axes: int) -> Operand:
    """Return the result with an axis of length 1 for each vector operand; numpy.matmul's result lacks these axes."""
    assert c.strides is not None
    if a_axes == 1:
        at = c.ndim - (b_axes > 1)
        row = c.strides[at] * c.shape[at] if b_axes > 1 else 1
        c = c._replace(shape=(*c.shape[:at], 1, *c.shape[at:]), strides=(*c.strides[:at], row, *c.strides[at:]))
    if b_axes == 1:
        c = c._replace(shape=(*c.shape, 1), strides=(*(c.strides or ()), 1))
    return c


# ---- layouts and memory


def matrix_layout(x: Operand) -> Layout | None:
    """Return the memory layout of the operand's matrices; None if neither rows nor columns are contiguous."""
    if x.strides is None:
        return None
    (rows, cols), (down, right) = x.shape[-2:], x.strides[-2:]
    if (cols <= 1 or right == 1) and (rows <= 1 or down >= cols):
        return Layout("C", max(down if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == 1) and (cols <= 1 or right >= rows):
        return Layout("F", max(right if cols > 1 else rows, rows, 1))
    return None


class ByteSpan(NamedTuple):
    """The bytes that an array occupies, as offsets from the array's first element.

    The bytes form equally spaced rows: each row has `row_bytes` bytes, and the distance from row to row is `row_step`
    bytes. If `row_step` is 0, all bytes from `start` to `stop` may be occupied.
    """

    start: int
    stop: int
    row_step: int = 0
    row_bytes: int = 0


def byte_span(x: Operand) -> ByteSpan | None:
    """Return the bytes that the operand occupies; None if the operand has neither `strides` nor `span`."""
    if x.strides is None:
        return x.span and ByteSpan(*x.span)
    item = DTYPES[x.dtype].itemsize if x.dtype in DTYPES else np.dtype(x.dtype).itemsize
    span = occupied_bytes(x.shape, tuple(step * item for step in x.strides), item)
    return ByteSpan(*span, *(item * n for n in _row_spacing_and_length(x)))


def _row_spacing_and_length(x: Operand) -> tuple[int, int]:
    """Return the distance and the length of the operand's contiguous rows (or columns), in elements.

    Return (0, 0) if neither rows nor columns are contiguous and equally spaced.
    """
    assert x.strides is not None
    axes = sorted((abs(step), n) for n, step in zip(x.shape, x.strides, strict=True) if n > 1)
    if len(axes) < 2 or axes[0][0] != 1:
        return 0, 0
    length, row_step = axes[0][1], axes[1][0]
    is_spaced = row_step >= length and all(step % row_step == 0 for step, _ in axes[1:])
    return (row_step, length) if is_spaced else (0, 0)


def may_overlap(x: int, of_x: ByteSpan | None, y: int, of_y: ByteSpan | None) -> bool:
    """Return True if arrays with these addresses and spans may share memory.

    Two blocks of one matrix share no memory if they have no row in common or no column in common. The address ranges
    of two blocks with different columns interleave, but the blocks have no byte in common.
    """
    if of_x is None or of_y is None:
        return True
    first_x, first_y = x + of_x.start, y + of_y.start
    if first_y >= x + of_x.stop or first_x >= y + of_y.stop:
        return False
    if not of_x.row_step or of_x.row_step != of_y.row_step:
        return True
    shift = (first_y - first_x) % of_x.row_step
    return shift < of_x.row_bytes or shift + of_y.row_bytes > of_x.row_step


# ---- stacks


def stack_as_tall_matrix(x: Operand) -> Operand | None:
    """Return the stack as one tall matrix in the same memory; None if the rows of the stack are not equally spaced."""
    if x.strides is None:
        return None
    axes = [(length, step) for length, step in zip(x.shape[:-1], x.strides[:-1], strict=True) if length != 1]
    if any(outer != inner * length for (_, outer), (length, inner) in pairwise(axes)):
        return None
    down = axes[-1][1] if axes else x.shape[-1]
    return Operand((prod(x.shape[:-1]), x.shape[-1]), (down, x.strides[-1]), x.dtype)


def _matrix_byte_offsets(x: Operand, stack: tuple[int, ...]) -> Iterator[int]:
    steps, item = _stack_strides(x, stack), DTYPES[x.dtype].itemsize
    for index in np.ndindex(*stack):
        yield sum(i * step for i, step in zip(index, steps, strict=True)) * item


def _stack_strides(x: Operand, stack: tuple[int, ...]) -> list[int]:
    """Return the strides of the stack's axes, in elements: 0 for a broadcast axis, 1 for an axis of length 1."""
    assert x.strides is not None
    missing = len(stack) - (x.ndim - 2)
    own = [0] * missing + [0 if length == 1 else step for length, step in zip(x.shape, x.strides, strict=True)][:-2]
    return [1 if length == 1 else step for length, step in zip(stack, own, strict=True)]
