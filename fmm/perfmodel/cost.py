"""What any plan costs, without running it: arithmetic, memory traffic, launches, leaf products, workspace.

The counts come from the steps that are walked, at the actual sizes, level by level (fmm.perfmodel.level_counts). A sum
moves each block that it needs once (temporaries inside the sum stay in registers or cache), a leaf moves A and B in and
C out once, whatever its own blocking does; sums done inside a product move what they read besides it, and what they
write but for one block, which is the product's C. Left out: scalings by a coefficient, caches between steps, partly
used transactions of rows that are not contiguous. What has no elements costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import PLAIN, GemmParams
from fmm.kernels.plans.workspace import batch_scratch, temporary_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.level_counts import LevelCounts, Moved, counted_level, opened_counts
from fmm.problem import Fill, Operation, Shape

Leaves = tuple[tuple[Shape, int], ...]


@dataclass(frozen=True, slots=True)
class Cost:
    """Exact counts of one plan on one problem; bytes are those of the problem's item size."""

    flops: int  # 2mkn of every leaf product, whatever its type; about half of it where one half of C is computed
    additions: int  # elements added or subtracted by the sums
    bytes_read: int  # by the sums
    bytes_written: int  # by the sums
    leaf_bytes: int  # A, B and C of every leaf product once
    transactions: int  # bytes / transaction, rounded up for every rectangle read or written
    launches: int  # sums and leaf products
    leaves: Leaves  # the multiset of leaf products: (m, k, n), how many
    workspace: int  # bytes of temporaries at the peak
    depth: int  # levels of the plan
    halves: Leaves = ()  # leaf products that are their own adjoints, of which one half is computed

    @property
    def bytes(self) -> int:
        """All traffic."""
        return self.bytes_read + self.bytes_written + self.leaf_bytes

    @property
    def arithmetics(self) -> int:
        """As Li et al. count: 2mkn - mn for a product (no addition to zero), and the additions of the sums."""
        starts = sum(m * n * times for (m, k, n), times in self.leaves if k)
        starts += sum(half_elements(m) * times for (m, k, _), times in self.halves if k)
        return self.flops - starts + self.additions


def half_elements(n: int) -> int:
    """Of an n x n matrix that is its own adjoint: how many are enough."""
    return n * (n + 1) // 2


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
    op: Operation = "product",
    fill: Fill = "full",
    batched: bool = False,
    opened: bool = True,
) -> Cost:
    """The cost of C = alpha A B + beta C; a problem with an empty side costs nothing at all.

    The leaf products of a level that the plan calls batched are one launch; `batched` counts those of stacked levels
    so too, one launch for every shape. A level that a machine does whole, with all that is below it, is counted by the
    steps that it comes to, or, unless it is `opened`, as one leaf product.
    """
    if min(m, k, n) < 0:
        raise ValueError(f"sizes must not be negative: m = {m}, k = {k}, n = {n}")
    if itemsize < 1 or transaction < 1:
        raise ValueError(f"itemsize = {itemsize} and transaction = {transaction} must be positive")
    if 0 in (m, k, n):
        return Cost(0, 0, 0, 0, 0, 0, 0, (), 0, plan.depth)
    t = _tally(plan, (m, k, n), GemmParams(alpha, beta, op, fill), _Units(itemsize, transaction, batched, opened))
    flops = 2 * sum(prod(shape) * times for shape, times in t.leaves)
    flops += 2 * sum(half_elements(rows) * inner * times for (rows, inner, _), times in t.halves)
    numbers = (t.additions, t.bytes_read, t.bytes_written, t.leaf_bytes, t.transactions, t.launches)
    return Cost(flops, *numbers, tuple(sorted(t.leaves)), t.workspace, plan.depth, tuple(sorted(t.halves)))


# ---- adding up the levels


class _Units(NamedTuple):
    itemsize: int
    transaction: int
    batched: bool
    opened: bool

    def traffic(self, rectangles: Mapping[Moved, int], itemsize_below: int) -> tuple[int, int]:
        """Bytes and transactions of rectangles."""
        sizes = [(n * (itemsize_below if below else self.itemsize), t) for (n, below), t in rectangles.items()]
        return sum(size * t for size, t in sizes), sum(-(-size // self.transaction) * t for size, t in sizes)


class _Tally(NamedTuple):
    """A cost in the making."""

    additions: int
    bytes_read: int
    bytes_written: int
    leaf_bytes: int
    transactions: int
    launches: int
    workspace: int
    leaves: Leaves
    halves: Leaves = ()


@clear_on_registration
@lru_cache(maxsize=4096)
def _tally(plan: Plan, shape: Shape, asked: GemmParams, units: _Units) -> _Tally:
    level = _fused(plan, shape, asked.beta) if plan.fused else counted_level(plan, shape, asked)
    if level is None:
        if units.opened and (found := _opened(plan, shape, asked, units)) is not None:
            return found
        return _leaf(shape, units, plan.leaf_use.leaf.workspace_bytes(units.itemsize, *shape, 1), asked.op != "product")
    inside = units._replace(itemsize=plan.itemsize_inside(units.itemsize, [p for p, *_ in level.calls]))
    read, loads = units.traffic(level.read, inside.itemsize)
    written, stores = units.traffic(level.written, inside.itemsize)
    own = sum(temporary_bytes(*size, inside.itemsize) * times for size, times in level.temporaries.items())
    inner = [(_tally(p, size, wanted, inside), times) for (p, size, wanted), times in level.calls.items()]
    calls = level.launches - _saved(plan, level, inner, units.batched)
    start = _Tally(level.additions, read, written, 0, loads + stores, calls, own, ())
    total = _total(start, inner, level.streams)
    if plan.levels and plan.levels[0].batched:
        sizes = [(p, inside.itemsize, *size, times) for (p, size, _), times in level.calls.items()]
        scratch = max((batch_scratch(*size) for size in sizes), default=0)
        total = total._replace(workspace=max(total.workspace, own + scratch))
    return total


def _opened(plan: Plan, shape: Shape, asked: GemmParams, units: _Units) -> _Tally | None:
    """What a machine does whole; its planes are one batch. None for a leaf."""
    leaf = plan.leaf_use.leaf
    level = opened_counts(plan, shape, units.itemsize, asked)
    if level is None or leaf.level is None:
        return None
    below = units._replace(itemsize=leaf.level.itemsize_below(units.itemsize))
    read, loads = units.traffic(level.read, below.itemsize)
    written, stores = units.traffic(level.written, below.itemsize)
    launches, room = level.launches + 1 - sum(level.calls.values()), leaf.workspace_bytes(units.itemsize, *shape, 1)
    start = _Tally(level.additions, read, written, 0, loads + stores, launches, room, ())
    return _total(start, [(_tally(p, size, w, below), times) for (p, size, w), times in level.calls.items()], 1)


def _fused(plan: Plan, shape: Shape, beta: Coefficient) -> LevelCounts:
    """Sums inside the products, alpha and beta too: what they read more than one block for comes out of caches, mostly.

    Where products are added atomically, C is first made beta times what it was.
    """
    level, c = counted_level(plan, shape, PLAIN), shape[0] * shape[2]
    assert level is not None
    scaled = int(plan.levels[0].atomic and beta != 1)
    read = {(c, False): 1} if scaled and beta else {}
    return level._replace(read=read, written={(c, False): 1} if scaled else {}, launches=scaled, temporaries={})


def _leaf(shape: Shape, units: _Units, scratch: int, half: bool) -> _Tally:
    m, k, n = shape
    found: tuple[Leaves, Leaves] = ((), ((shape, 1),)) if half else (((shape, 1),), ())
    if not m * k * n:
        return _Tally(0, 0, 0, 0, 0, 0, scratch, *found)
    sizes = (m * k, half_elements(n)) if half else (m * k, k * n, m * n)
    moved, moves = units.traffic(Counter((size, False) for size in sizes), units.itemsize)
    return _Tally(0, 0, 0, moved, moves, 1, scratch, *found)


def _total(start: _Tally, inner: Sequence[tuple[_Tally, int]], lanes: int) -> _Tally:
    """Everything adds up but the workspace: products take turns, in as many lanes."""
    return _Tally(
        start.additions + sum([t.additions * times for t, times in inner]),
        start.bytes_read + sum([t.bytes_read * times for t, times in inner]),
        start.bytes_written + sum([t.bytes_written * times for t, times in inner]),
        start.leaf_bytes + sum([t.leaf_bytes * times for t, times in inner]),
        start.transactions + sum([t.transactions * times for t, times in inner]),
        start.launches + sum([t.launches * times for t, times in inner]),
        start.workspace + lanes * max([t.workspace for t, _ in inner], default=0),
        _merged([(t.leaves, times) for t, times in inner]),
        _merged([(t.halves, times) for t, times in inner]),
    )


def _merged(found: Sequence[tuple[Leaves, int]]) -> Leaves:
    leaves: dict[Shape, int] = {}
    for some, times in found:
        for shape, count in some:
            leaves[shape] = leaves.get(shape, 0) + count * times
    return tuple(leaves.items())


def _saved(plan: Plan, level: LevelCounts, inner: Sequence[tuple[_Tally, int]], batched: bool) -> int:
    """Launches that batching saves where a level's products are leaves: all but one product's of every shape."""
    if not plan.levels or plan.rest.levels:
        return 0
    first = plan.levels[0]
    if first.fused:  # blocks that hold nothing are launched by nobody
        calls = sum(times for (_, size, _), times in level.calls.items() if 0 not in size)
        return max(calls - first.launches, 0)
    if not (first.batched or (batched and first.independent)):
        return 0
    return sum((times - 1) * tally.launches for tally, times in inner)
