"""The check before a fast product on the host for inf, NaN, and intermediates that could overflow.

A fast algorithm turns one inf into a block of NaN. The sums of a fast algorithm can overflow where those of the
classical product do not, and the other way round. One test excludes these cases: max|A|, max|B| and k max|A| max|B| are
multiplied by the growth of the plan's sums (`intermediate_growth_bound`). If the results are below the type's largest
number, every intermediate of both algorithms is finite. If not, or with inf or NaN in A or B, the vendor multiplies.

By Cauchy and Schwarz, Frobenius norms bound the products of rows and columns without the factor k. Norms need one pass
over the operands, so the bound by norms is tried first. If the bound by norms is too large, the bound by maxima
decides.

The sums of squares run on the call's own threads, never on BLAS's. All callers share BLAS's threads: when 40 concurrent
callers waited for these threads at every dot product, their products took 20 times as long as in sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fmm.kernels.cpu.host_arrays import Array, dot
from fmm.kernels.cpu.thread_pool import Threads
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import Product
from fmm.kernels.plans.sums import Mirror, Place, Sum, whole_matrix
from fmm.problem import Fill, Operation

OVERFLOW_SAFETY_FACTOR = 0.99  # a factor on the largest number, since rounding can carry a sum beyond it
SQUARES_PER_SUM = 1 << 18  # number of squares in a sum, so that rounding stays within SLACK
SUM_ROUNDING_FACTOR = 1.05  # factor by which a computed sum of squares may be too small
SQUARES_PER_TASK = 1 << 21  # number of squares in a task of a thread
SHORT_ROW_ENTRIES = 1024  # entries; addressing a shorter row takes longer than summing it
PANEL_BYTES = 256 * 1024  # bytes that are scanned at a time, so that the second reduction finds its data in cache


def may_overflow(
    plan: Plan,
    a: Array,
    b: Array,
    threads: Threads,
    op: Operation = "product",
    fill: Fill = "full",
    scale: float = 1.0,
) -> bool:
    """Return True unless all intermediates of both algorithms, times `scale`, are finite for certain."""
    (m, k), n = a.shape, b.shape[1]
    limit = float(np.finfo(a.dtype).max)
    parts = 2 if a.dtype.kind == "c" else 1  # the real part of a complex product is a sum of two products
    growth = intermediate_growth_bound(plan, m, k, n, op, fill) * scale

    def is_safe(left: float, right: float, terms: int) -> bool:
        # sums of blocks of A, and sums of blocks of B, can also overflow
        largest = max(left, right, left * right * terms)
        return largest * growth < limit * OVERFLOW_SAFETY_FACTOR and left < limit and right < limit

    def both(bound: Callable[[Array, Threads], float]) -> tuple[float, float]:
        left = bound(a, threads)
        return left, left if op == "gram" else bound(b, threads)  # b is a's adjoint

    return not (is_safe(*both(frobenius_norm_bound), 1) or is_safe(*both(largest_magnitude), k * parts))


def frobenius_norm_bound(x: Array, threads: Threads) -> float:
    """Return a tight upper bound of the Frobenius norm; inf if rows are not contiguous, or if squares overflow."""
    rows = x if x.strides[1] == x.itemsize else x.T
    if rows.strides[1] != x.itemsize or (rows.shape[1] < SHORT_ROW_ENTRIES and not rows.flags.c_contiguous):
        return math.inf
    real = x.dtype.type(0).real.dtype
    lines = [row.view(real) for row in ([rows.reshape(-1)] if rows.flags.c_contiguous else rows)]
    parts = [line[start : start + SQUARES_PER_SUM] for line in lines for start in range(0, len(line), SQUARES_PER_SUM)]
    found: list[float] = []
    each = max(SQUARES_PER_TASK // max(len(lines[0]), 1), SQUARES_PER_TASK // SQUARES_PER_SUM)
    threads.run_tasks([partial(_add_squares, parts[i : i + each], found) for i in range(0, len(parts), each)])
    total = sum(found)
    lost = float(np.finfo(real).tiny)  # bound of a square that underflows
    return math.sqrt(total * SUM_ROUNDING_FACTOR + lost * 2 * x.size)


def _add_squares(parts: Sequence[Array], found: list[float]) -> None:
    """Append the sum of squares of these parts, by functions that release the GIL and run on this thread alone.

    OpenBLAS splits a dot product of float64 among its threads, but not one of float32. einsum runs a loop of NumPy.
    """
    with np.errstate(all="ignore"):
        if parts[0].itemsize == 4:
            found.append(sum(float(dot(part, part)) for part in parts))
        else:
            found.append(sum(float(np.einsum("i,i->", part, part, optimize=False)) for part in parts))


def largest_magnitude(x: Array, threads: Threads) -> float:
    """Return the largest absolute value of real and imaginary parts; NaN or inf if there is one."""
    if x.size == 0:
        return 0.0
    if x.dtype.kind == "c":
        return max(largest_magnitude(x.real, threads), largest_magnitude(x.imag, threads), key=lambda v: (v != v, v))
    rows = x if abs(x.strides[0]) >= abs(x.strides[1]) else x.T
    height = max(PANEL_BYTES // max(rows.shape[1] * x.itemsize, 1), 1)
    found: list[Any] = []

    def scan(start: int) -> None:
        band = rows[start : start + height]
        found.append((band.max(), band.min()))

    threads.run_tasks([lambda start=start: scan(start) for start in range(0, len(rows), height)])  # type: ignore[misc]
    return float(np.abs(np.array(found)).max())


@lru_cache(maxsize=4096)
def intermediate_growth_bound(
    plan: Plan, m: int, k: int, n: int, op: Operation = "product", fill: Fill = "full"
) -> float:
    """Return the bound of all intermediates, divided by max|A| max|B| k, from the steps' absolute coefficients."""
    recipe = lower_level(plan, m, k, n, 1, 0, op, fill)
    if recipe is None:
        return 1.0
    sizes = _NumberBounds((whole_matrix("A", m, k), whole_matrix("B", k, n)))
    largest = 1.0
    for step in recipe.flattened_steps:
        if isinstance(step, Product):
            inner = intermediate_growth_bound(step.plan, *step.size, step.params.op, step.params.fill)
            inner *= sizes.largest_bound(step.left) * sizes.largest_bound(step.right)
            sizes.set_bound(step.dest, inner + sizes.largest_bound(step.dest) if step.reads_dest else inner)
            largest = max(largest, sizes.largest_bound(step.dest))
        elif isinstance(step, Mirror):
            sizes.set_bound(step.dest, sizes.largest_bound(step.source))
        else:
            largest = max(largest, _bound_of_sum(step, sizes))
    return largest


class _NumberBounds:
    """Bounds of the numbers in rectangles of matrices; a write replaces the bounds of all rectangles that it covers."""

    def __init__(self, operands: Sequence[Place]) -> None:
        self._held: dict[str, list[tuple[Place, float]]] = {x.name: [(x, 1.0)] for x in operands}

    def largest_bound(self, place: Place) -> float:
        """Return the largest bound within the rectangle; 0 before the first write."""
        found = 0.0
        newer: list[Place] = []
        for held, size in reversed(self._held.get(place.name, [])):
            part = place.overlap(held)
            if part is not None and not any(part.is_inside(other) for other in newer):
                found = max(found, size)
            newer.append(held)
        return found

    def set_bound(self, place: Place, size: float) -> None:
        others = [(held, old) for held, old in self._held.get(place.name, []) if not held.is_inside(place)]
        self._held[place.name] = [*others, (place, size)]


def _bound_of_sum(step: Sum, sizes: _NumberBounds) -> float:
    """Return the largest bound of a sum's reads, partial sums and writes; record the writes in `sizes`."""
    values = [sizes.largest_bound(place) for place in step.reads]
    for terms in step.program.lines:
        values.append(sum(float(abs(c)) * values[v] for c, v in terms))
    for place, value in zip(step.writes, step.program.outputs, strict=True):
        sizes.set_bound(place, values[value])
    return max(values, default=1.0)
