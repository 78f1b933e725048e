"""Overflow and non-finite data: would the fast product differ from the vendor's in where it is inf or NaN?

A fast algorithm turns one inf into a block of NaN, and its sums can overflow where the classical product does not; the
classical product's own partial sums can overflow where the fast ones do not. One bound settles all three: if max|A|,
max|B| and k max|A| max|B|, times what the plan's sums can make of them (`growth_bound`), are below the largest number,
every intermediate of either algorithm is finite, so neither result has an inf or NaN. If not (NaN and inf included,
since the maximum passes them on), the vendor multiplies.

Frobenius norms bound the same sums (by Cauchy and Schwarz, without the k), and BLAS finds them in one pass on all its
threads. They are tried first; the maxima settle what the norms, which are larger, leave in doubt.
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

ROOM = 0.99  # rounding can carry a sum that is just below the largest number over the edge
SUMMED = 1 << 18  # numbers whose squares are summed at a time, so that rounding stays within SLACK
SLACK = 1.05
TASK = 1 << 21  # numbers that a thread sums before it asks for more
SHORT = 1024  # rows shorter than this cost more to ask for than to sum
PANEL = 256 * 1024  # bytes scanned at a time, so that the second reduction finds its data in cache


def may_overflow(
    plan: Plan,
    a: Array,
    b: Array,
    threads: Threads,
    op: Operation = "product",
    fill: Fill = "full",
    scale: float = 1.0,
) -> bool:
    """True unless no intermediate of the plan or of the classical product, times `scale`, can leave the finite
    numbers."""
    (m, k), n = a.shape, b.shape[1]
    limit = float(np.finfo(a.dtype).max)
    parts = 2 if a.dtype.kind == "c" else 1  # the real part of a complex product is a sum of two products
    growth = growth_bound(plan, m, k, n, op, fill) * scale

    def safe(left: float, right: float, terms: int) -> bool:
        largest = max(left, right, left * right * terms)  # sums of A alone and of B alone can overflow too
        return largest * growth < limit * ROOM and left < limit and right < limit

    def both(bound: Callable[[Array, Threads], float]) -> tuple[float, float]:
        left = bound(a, threads)
        return left, left if op == "gram" else bound(b, threads)  # there b is a's adjoint

    return not (safe(*both(norm_bound), 1) or safe(*both(largest_magnitude), k * parts))


def norm_bound(x: Array, threads: Threads) -> float:
    """At least the Frobenius norm, and not much more; inf if BLAS cannot find it quickly or cannot hold the squares."""
    rows = x if x.strides[1] == x.itemsize else x.T
    if rows.strides[1] != x.itemsize or (rows.shape[1] < SHORT and not rows.flags.c_contiguous):
        return math.inf
    real = x.dtype.type(0).real.dtype
    lines = [row.view(real) for row in ([rows.reshape(-1)] if rows.flags.c_contiguous else rows)]
    parts = [line[start : start + SUMMED] for line in lines for start in range(0, len(line), SUMMED)]
    found: list[float] = []
    if real.itemsize == 4:  # OpenBLAS's own threads share a dot product of float64, but not one of float32
        each = max(TASK // max(len(lines[0]), 1), TASK // SUMMED)
        threads.run([partial(_squares, parts[i : i + each], found) for i in range(0, len(parts), each)])
    else:
        _squares(parts, found)
    total = sum(found)
    lost = float(np.finfo(real).tiny)  # what a square that underflows can have been
    return math.sqrt(total * SLACK + lost * 2 * x.size)


def _squares(parts: Sequence[Array], found: list[float]) -> None:
    with np.errstate(all="ignore"):
        found.append(sum(float(dot(part, part)) for part in parts))


def largest_magnitude(x: Array, threads: Threads) -> float:
    """The largest absolute value (of real and imaginary parts), or NaN or inf if there is one."""
    if x.size == 0:
        return 0.0
    if x.dtype.kind == "c":
        return max(largest_magnitude(x.real, threads), largest_magnitude(x.imag, threads), key=lambda v: (v != v, v))
    rows = x if abs(x.strides[0]) >= abs(x.strides[1]) else x.T
    height = max(PANEL // max(rows.shape[1] * x.itemsize, 1), 1)
    found: list[Any] = []

    def scan(start: int) -> None:
        band = rows[start : start + height]
        found.append((band.max(), band.min()))

    threads.run([lambda start=start: scan(start) for start in range(0, len(rows), height)])  # type: ignore[misc]
    return float(np.abs(np.array(found)).max())


@lru_cache(maxsize=4096)
def growth_bound(plan: Plan, m: int, k: int, n: int, op: Operation = "product", fill: Fill = "full") -> float:
    """How much larger than max|A| max|B| k an intermediate can be, by the absolute coefficients of the recipes."""
    recipe = lower_level(plan, m, k, n, 1, 0, op, fill)
    if recipe is None:
        return 1.0
    sizes = _Sizes((whole_matrix("A", m, k), whole_matrix("B", k, n)))
    largest = 1.0
    for step in recipe.flat:
        if isinstance(step, Product):
            inner = growth_bound(step.plan, *step.size, step.params.op, step.params.fill)
            inner *= sizes.read(step.left) * sizes.read(step.right)
            sizes.write(step.dest, inner + sizes.read(step.dest) if step.accumulate else inner)
            largest = max(largest, sizes.read(step.dest))
        elif isinstance(step, Mirror):
            sizes.write(step.dest, sizes.read(step.source))
        else:
            largest = max(largest, _sum(step, sizes))
    return largest


class _Sizes:
    """How large the numbers of each rectangle can be; what is written replaces what was there."""

    def __init__(self, operands: Sequence[Place]) -> None:
        self._held: dict[str, list[tuple[Place, float]]] = {x.name: [(x, 1.0)] for x in operands}

    def read(self, place: Place) -> float:
        """The largest of what is held there; 0 where nothing was written yet."""
        found = 0.0
        newer: list[Place] = []
        for held, size in reversed(self._held.get(place.name, [])):
            part = place.shared(held)
            if part is not None and not any(part.within(other) for other in newer):
                found = max(found, size)
            newer.append(held)
        return found

    def write(self, place: Place, size: float) -> None:
        others = [(held, old) for held, old in self._held.get(place.name, []) if not held.within(place)]
        self._held[place.name] = [*others, (place, size)]


def _sum(step: Sum, sizes: _Sizes) -> float:
    """The largest of a sum's reads, partial sums and writes; these are noted in `sizes`."""
    values = [sizes.read(place) for place in step.reads]
    for terms in step.program.lines:
        values.append(sum(float(abs(c)) * values[v] for c, v in terms))
    for place, value in zip(step.writes, step.program.outputs, strict=True):
        sizes.write(place, values[value])
    return max(values, default=1.0)
