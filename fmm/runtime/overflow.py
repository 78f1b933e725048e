"""The check for inf, NaN and possible overflow that precedes each fast product on the host.

A fast algorithm turns one inf into a submatrix of NaN. The sums of a fast algorithm can overflow where the sums of the
classical product do not, and vice versa. The factor g bounds the growth of numbers in the plan's sums
(`intermediate_growth_bound`). If g max|A|, g max|B| and g k max|A| max|B| are below the type's largest number, every
intermediate result of the fast and of the classical algorithm is finite. If an overflow is possible, or if A or B has
inf or NaN, the vendor multiplies.

By the Cauchy-Schwarz inequality, the product of the Frobenius norms of A and B bounds every entry of A B, without the
factor k. The Frobenius norms need one pass over the operands and are tried first. If the Frobenius norms do not exclude
overflow, the maxima max|A| and max|B| decide.

The sums of squares run on the call's own threads, and never on BLAS's threads, since all callers share BLAS's threads.
(When the sums of squares ran on BLAS's threads, 40 concurrent matrix products took 20 times as long as 40 consecutive
ones.)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fmm.kernels.cpu.host_arrays import Array, dot
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import Product
from fmm.kernels.plans.sums import Mirror, Place, Sum, whole_matrix
from fmm.problem import Fill, Operation

OVERFLOW_SAFETY_FACTOR = 0.99  # sums may reach this fraction of the type's largest number: rounding can add
SQUARES_PER_SUM = 1 << 18  # number of squares in one sum; few enough for SUM_ROUNDING_FACTOR
SUM_ROUNDING_FACTOR = 1.05  # largest ratio of the exact to the computed sum of squares
SQUARES_PER_TASK = 1 << 21  # number of squares in one task of a thread
SHORT_ROW_ENTRIES = 1024  # number of entries; the sum of a shorter row takes less time than the Python call
PANEL_BYTES = 256 * 1024  # size of the rows that are scanned together: `min` reads from the cache what `max` has read


def may_overflow(
    plan: Plan,
    a: Array,
    b: Array,
    threads: ThreadGroup,
    op: Operation = "product",
    fill: Fill = "full",
    scale: float = 1.0,
) -> bool:
    """Return True unless all intermediates of the plan and of the classical product are certainly finite.

    The upper bounds of all intermediate results are multiplied by `scale`, for example by |alpha|.
    """
    (m, k), n = a.shape, b.shape[1]
    limit = float(np.finfo(a.dtype).max)
    parts = 2 if a.dtype.kind == "c" else 1  # the real part of a complex product is a sum of two products
    growth = intermediate_growth_bound(plan, m, k, n, op, fill) * scale

    def cannot_overflow(left: float, right: float, terms: int) -> bool:
        # `left` and `right` bound the entries of A and B; sums of submatrices of A alone, or of B alone, can overflow
        # too
        largest = max(left, right, left * right * terms)
        return largest * growth < limit * OVERFLOW_SAFETY_FACTOR and left < limit and right < limit

    def operand_bounds(bound: Callable[[Array, ThreadGroup], float]) -> tuple[float, float]:
        left = bound(a, threads)
        return left, left if op == "gram" else bound(b, threads)  # the operand `b` is the adjoint of `a`

    return not (
        cannot_overflow(*operand_bounds(frobenius_norm_bound), 1)
        or cannot_overflow(*operand_bounds(largest_magnitude), k * parts)
    )


def frobenius_norm_bound(x: Array, threads: ThreadGroup) -> float:
    """Return an upper bound of the Frobenius norm; inf if neither axis is contiguous, or if squares overflow."""
    rows = x if x.strides[1] == x.itemsize else x.T
    if rows.strides[1] != x.itemsize or (rows.shape[1] < SHORT_ROW_ENTRIES and not rows.flags.c_contiguous):
        return math.inf
    real = x.dtype.type(0).real.dtype
    lines = [row.view(real) for row in ([rows.reshape(-1)] if rows.flags.c_contiguous else rows)]
    parts = [line[start : start + SQUARES_PER_SUM] for line in lines for start in range(0, len(line), SQUARES_PER_SUM)]
    found: list[float] = []
    each = max(SQUARES_PER_TASK // max(len(lines[0]), 1), SQUARES_PER_TASK // SQUARES_PER_SUM)
    threads.run_tasks([partial(_append_sum_of_squares, parts[i : i + each], found) for i in range(0, len(parts), each)])
    total = sum(found)
    lost = float(np.finfo(real).tiny)  # upper bound of a square that underflows
    return math.sqrt(total * SUM_ROUNDING_FACTOR + lost * 2 * x.size)


def _append_sum_of_squares(parts: Sequence[Array], found: list[float]) -> None:
    """Append the sum of squares of these vectors to `found`.

    The sums of squares are computed by functions that release the GIL and run on the calling thread alone: for float32
    by BLAS's dot product, and for float64 by NumPy's einsum, since OpenBLAS splits dot products of float64 among its
    threads.
    """
    with np.errstate(all="ignore"):
        if parts[0].itemsize == 4:
            found.append(sum(float(dot(part, part)) for part in parts))
        else:
            found.append(sum(float(np.einsum("i,i->", part, part, optimize=False)) for part in parts))


def largest_magnitude(x: Array, threads: ThreadGroup) -> float:
    """Return the largest absolute value of real and imaginary parts; NaN or inf if x contains NaN or inf."""
    if x.size == 0:
        return 0.0
    if x.dtype.kind == "c":
        return max(largest_magnitude(x.real, threads), largest_magnitude(x.imag, threads), key=lambda v: (v != v, v))
    rows = x if abs(x.strides[0]) >= abs(x.strides[1]) else x.T
    height = max(PANEL_BYTES // max(rows.shape[1] * x.itemsize, 1), 1)
    found: list[Any] = []

    def scan_rows(start: int) -> None:
        band = rows[start : start + height]
        found.append((band.max(), band.min()))

    threads.run_tasks([lambda start=start: scan_rows(start) for start in range(0, len(rows), height)])  # type: ignore[misc]
    return float(np.abs(np.array(found)).max())


@lru_cache(maxsize=4096)
def intermediate_growth_bound(
    plan: Plan, m: int, k: int, n: int, op: Operation = "product", fill: Fill = "full"
) -> float:
    """Return the factor by which the sums of a plan can enlarge numbers, from the absolute values of coefficients.

    No intermediate product of the plan is larger than this factor times k max|A| max|B|, and no sum of submatrices of A
    is larger than this factor times max|A|.
    """
    recipe = lower_level(plan, m, k, n, 1, 0, op, fill)
    if recipe is None:
        return 1.0
    sizes = _MagnitudeBounds((whole_matrix("A", m, k), whole_matrix("B", k, n)))
    largest = 1.0
    for step in recipe.flattened_steps:
        if isinstance(step, Product):
            inner = intermediate_growth_bound(step.plan, *step.size, step.params.op, step.params.fill)
            inner *= sizes.largest_bound(step.left) * sizes.largest_bound(step.right)
            sizes.record_place_bound(step.dest, inner + sizes.largest_bound(step.dest) if step.reads_dest else inner)
            largest = max(largest, sizes.largest_bound(step.dest))
        elif isinstance(step, Mirror):
            sizes.record_place_bound(step.dest, sizes.largest_bound(step.source))
        else:
            largest = max(largest, _magnitude_bound_of_sum(step, sizes))
    return largest


class _MagnitudeBounds:
    """Upper bounds of the absolute entries in rectangles of matrices.

    A new bound for a rectangle replaces the older bounds of all rectangles inside it.
    """

    def __init__(self, operands: Sequence[Place]) -> None:
        self._held: dict[str, list[tuple[Place, float]]] = {x.name: [(x, 1.0)] for x in operands}

    def largest_bound(self, place: Place) -> float:
        """Return the largest recorded bound in the rectangle `place`; 0 if no bound is recorded for this matrix."""
        found = 0.0
        newer: list[Place] = []
        for held, size in reversed(self._held.get(place.name, [])):
            part = place.overlap(held)
            if part is not None and not any(part.is_inside(other) for other in newer):
                found = max(found, size)
            newer.append(held)
        return found

    def record_place_bound(self, place: Place, size: float) -> None:
        others = [(held, old) for held, old in self._held.get(place.name, []) if not held.is_inside(place)]
        self._held[place.name] = [*others, (place, size)]


def _magnitude_bound_of_sum(step: Sum, sizes: _MagnitudeBounds) -> float:
    """Return an upper bound of the absolute entries of a sum's inputs, partial sums and results.

    In `sizes`, record the upper bound of the absolute entries in each place (rectangle of a matrix) that the sum
    writes.
    """
    values = [sizes.largest_bound(place) for place in step.reads]
    for terms in step.program.lines:
        values.append(sum(float(abs(c)) * values[v] for c, v in terms))
    for place, value in zip(step.writes, step.program.outputs, strict=True):
        sizes.record_place_bound(place, values[value])
    return max(values, default=1.0)
