"""What any plan costs, without running it: arithmetic, memory traffic, launches, leaf products, workspace.

The counts come from the recipes that the executor runs, at the actual sizes. At fringes a sum is cut into regions in
which every array is wholly there or wholly absent, and what is absent is neither added nor read; on sizes that divide
there is one region. A sum moves each block that it needs once (temporaries inside the sum stay in registers or cache),
a leaf moves A and B in and C out once, whatever its own blocking does. Left out: scalings by a coefficient, caches
between steps, partly used transactions of rows that are not contiguous. A product or sum of no elements costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import NamedTuple

from fmm.kernels.plan import Level, Plan
from fmm.kernels.program import Coefficient, Program, restricted
from fmm.kernels.recipe import Recipe, Sum, lower, workspace

Shape = tuple[int, int, int]  # (m, k, n)


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact counts of one plan on one problem; bytes are those of the problem's item size."""

    flops: int  # 2mkn of every leaf product
    additions: int  # elements added or subtracted by the sums
    bytes_read: int  # by the sums
    bytes_written: int  # by the sums
    leaf_bytes: int  # A, B and C of every leaf product once
    transactions: int  # bytes / transaction, rounded up for every rectangle read or written
    launches: int  # sums and leaf products
    leaves: tuple[tuple[Shape, int], ...]  # the multiset of leaf products
    workspace: int  # bytes of temporaries at the peak
    depth: int  # levels of the plan

    @property
    def bytes(self) -> int:
        """All traffic."""
        return self.bytes_read + self.bytes_written + self.leaf_bytes

    @property
    def arithmetics(self) -> int:
        """As Li et al. count: 2mkn - mn for a product (no addition to zero), and the additions of the sums."""
        return self.flops - sum(m * n * times for (m, k, n), times in self.leaves if k) + self.additions


def cost(
    plan: Plan,
    m: int,
    k: int,
    n: int,
    itemsize: int = 8,
    transaction: int = 128,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    *,
    batched: bool = False,
) -> Cost:
    """The cost of C = alpha A B + beta C. `batched`: equal leaf products of one stacked level are one launch.

    A product with an empty side costs nothing at all.
    """
    if min(m, k, n) < 0:
        raise ValueError(f"sizes must not be negative: m = {m}, k = {k}, n = {n}")
    if itemsize < 1 or transaction < 1:
        raise ValueError(f"itemsize = {itemsize} and transaction = {transaction} must be positive")
    if 0 in (m, k, n):
        return Cost(0, 0, 0, 0, 0, 0, 0, (), 0, plan.depth)
    tally = _tally(plan, (m, k, n), alpha, beta, _Units(itemsize, transaction, batched))
    flops = sum(2 * x * y * z * times for (x, y, z), times in tally.leaves)
    space = workspace(plan, m, k, n, itemsize, alpha, beta)
    return Cost(flops, *tally[:-1], tally.leaves, space, plan.depth)


class _Units(NamedTuple):
    itemsize: int
    transaction: int
    batched: bool

    def traffic(self, elements: Iterable[int]) -> tuple[int, int]:
        """Bytes and transactions of rectangles of so many elements."""
        sizes = [x * self.itemsize for x in elements]
        return sum(sizes), sum(-(-size // self.transaction) for size in sizes)


class _Tally(NamedTuple):
    """A cost in the making; all but the leaves just add up."""

    additions: int = 0
    read: int = 0
    written: int = 0
    leaf_bytes: int = 0
    transactions: int = 0
    launches: int = 0
    leaves: tuple[tuple[Shape, int], ...] = ()


@lru_cache(maxsize=65536)
def _tally(plan: Plan, shape: Shape, alpha: Coefficient, beta: Coefficient, units: _Units) -> _Tally:
    recipe = lower(plan, *shape, alpha, beta)
    if recipe is None:
        return _leaf(shape, units)
    parts = [(_sum(step, units), 1) for step in recipe.steps if isinstance(step, Sum)]
    calls = Counter((p.plan, p.size, p.accumulate) for p in recipe.products)
    for (inner, size, accumulate), times in calls.items():
        parts.append((_tally(inner, size, 1, int(accumulate), units), times))
    total = _total(parts)
    return total._replace(launches=total.launches - _saved(plan, recipe)) if units.batched else total


def _leaf(shape: Shape, units: _Units) -> _Tally:
    m, k, n = shape
    if not m * k * n:
        return _Tally(leaves=((shape, 1),))
    moved, transactions = units.traffic((m * k, k * n, m * n))
    return _Tally(leaf_bytes=moved, transactions=transactions, launches=1, leaves=((shape, 1),))


def _total(parts: Sequence[tuple[_Tally, int]]) -> _Tally:
    numbers = [sum(getattr(tally, name) * times for tally, times in parts) for name in _Tally._fields[:-1]]
    leaves: dict[Shape, int] = {}
    for tally, times in parts:
        for shape, count in tally.leaves:
            leaves[shape] = leaves.get(shape, 0) + count * times
    return _Tally(*numbers, leaves=tuple(sorted(leaves.items())))


def _saved(plan: Plan, recipe: Recipe) -> int:
    """Launches that batching saves where a stacked level's products are leaves: all but one of every shape."""
    first = plan.levels[0] if plan.levels else None
    if not isinstance(first, Level) or first.traversal != "stacked" or first.fringe == "peel":
        return 0
    shapes = Counter(p.size for p in recipe.products if not p.plan.levels and 0 not in p.size)
    return sum(times - 1 for times in shapes.values())


# ---- sums


def _sum(step: Sum, units: _Units) -> _Tally:
    """One pass: the region's program over each region, and every rectangle's traffic."""
    reads, writes = (tuple((p.rows, p.cols) for p in places) for places in (step.reads, step.writes))
    additions, read, written = _pass(step.program, reads, writes)
    bytes_read, loads = units.traffic(read)
    bytes_written, stores = units.traffic(written)
    return _Tally(additions, bytes_read, bytes_written, 0, loads + stores, int(bytes_written > 0))


Rectangle = tuple[int, int]  # rows, columns


def _pass(
    program: Program, reads: tuple[Rectangle, ...], writes: tuple[Rectangle, ...]
) -> tuple[int, list[int], list[int]]:
    """Additions, elements read of each input, elements written of each output."""
    additions, read, written = 0, [0] * len(reads), [rows * cols for rows, cols in writes]
    for top, left, area in _regions(reads, writes):
        present = tuple(top < rows and left < cols for rows, cols in reads)
        wanted = tuple(top < rows and left < cols for rows, cols in writes)
        each, needed = _region(program, present, wanted)
        additions += each * area
        for i in needed:
            read[i] += area
    return additions, read, written


def _regions(reads: Sequence[Rectangle], writes: Sequence[Rectangle]) -> Iterable[tuple[int, int, int]]:
    """(top, left, area) of the rectangles into which the arrays' edges cut what is written."""
    distinct = {*reads, *writes}
    ends = [max(w[axis] for w in writes) for axis in (0, 1)]
    edges = [sorted({0, *(min(shape[axis], ends[axis]) for shape in distinct)}) for axis in (0, 1)]
    for (top, bottom), (left, right) in product(*(pairwise(e) for e in edges)):
        yield top, left, (bottom - top) * (right - left)


@lru_cache(maxsize=16384)
def _region(program: Program, present: tuple[bool, ...], wanted: tuple[bool, ...]) -> tuple[int, tuple[int, ...]]:
    """Additions per element, and which inputs are needed."""
    left = restricted(program, present, wanted)
    used = {v for terms in left.lines for _, v in terms} | set(left.outputs)
    return left.additions, tuple(sorted(v for v in used if v < left.inputs))
