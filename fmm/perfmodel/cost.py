"""Count the exact cost of a plan without running the plan: arithmetic, traffic, launches, leaf products and workspace.

The counts come from the steps that a plan runs at the actual sizes, level by level (fmm.perfmodel.level_counts). Each
block that a sum reads or writes is moved once: temporaries inside the sum stay in registers or cache. A leaf product
counts as one read of A and B and one write of C, however its kernel is tiled. For a sum inside a product's kernel, only
those blocks are counted that the product does not read or write anyway. The counts leave out scaling by a coefficient,
caches between steps, and partly used transactions of strided rows. A product with an empty side costs nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod
from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import leaf_batch_scratch_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.level_counts import LevelCounts, MovedElements, count_leaf_level, count_level
from fmm.problem import Fill, Operation, Shape

LeafCounts = tuple[tuple[Shape, int], ...]  # pairs of a shape (m, k, n) and the number of leaf products of this shape


@dataclass(frozen=True, slots=True)
class Cost:
    """The exact counts of one plan on one problem; bytes are counted with the problem's item size."""

    # sum of 2mkn over all leaf products of size m x k x n; about half of 2mkn if only one triangle of C is computed
    flops: int
    additions: int  # number of elements that sums add or subtract
    bytes_read: int  # number of bytes that the sums of all levels read
    bytes_written: int  # number of bytes that the sums of all levels write
    leaf_bytes: int  # bytes of A, B and C of the leaf products; each matrix counts once in each product
    transactions: int  # number of memory transactions, rounded up for every rectangle that is read or written
    launches: int  # number of launches of sums and leaf products
    leaves: LeafCounts
    workspace: int  # bytes of temporaries at the peak
    depth: int  # number of recursion levels of the plan
    # shapes and numbers of the self-adjoint leaf products; a leaf computes one triangle of each product
    triangles: LeafCounts = ()

    @property
    def total_bytes(self) -> int:
        """The number of bytes that sums and leaf products read and write."""
        return self.bytes_read + self.bytes_written + self.leaf_bytes

    @property
    def arithmetic_count(self) -> int:
        """The number of operations as Li, Ranka and Sahni count: 2mkn - mn for each product, plus additions of sums."""
        starts = sum(m * n * times for (m, k, n), times in self.leaves if k)
        starts += sum(triangle_elements(m) * times for (m, k, _), times in self.triangles if k)
        return self.flops - starts + self.additions


def triangle_elements(n: int) -> int:
    """Return the number of entries in one triangle of an n x n matrix, its diagonal included."""
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
    count_leaf_steps: bool = True,
) -> Cost:
    """Return the cost of C = alpha A B + beta C by a plan; a problem with an empty side costs nothing.

    Parameters
    ----------
    plan
        The plan.
    m, k, n
        A is m x k, B is k x n.
    itemsize, transaction
        Bytes of a number and of a memory transaction.
    alpha, beta, op, fill
        The operation, as in fmm.gemm.
    batched
        Count the leaf products of stacked levels as one launch for each shape. Leaf products below a batched level
        always count as one launch.
    count_leaf_steps
        Count the steps of a level that one leaf runs as a whole. If False, the level counts as one leaf product.

    Raises
    ------
    ValueError
        For a negative size, or an item size or transaction below 1.
    """
    if min(m, k, n) < 0:
        raise ValueError(f"sizes must not be negative: m = {m}, k = {k}, n = {n}")
    if itemsize < 1 or transaction < 1:
        raise ValueError(f"itemsize = {itemsize} and transaction = {transaction} must be positive")
    if 0 in (m, k, n):
        return Cost(0, 0, 0, 0, 0, 0, 0, (), 0, plan.depth)
    t = _level_tally(
        plan,
        (m, k, n),
        GemmParams(alpha, beta, op, fill),
        _CountingRules(itemsize, transaction, batched, count_leaf_steps),
    )
    flops = 2 * sum(prod(shape) * times for shape, times in t.leaves)
    flops += 2 * sum(triangle_elements(rows) * inner * times for (rows, inner, _), times in t.triangles)
    numbers = (t.additions, t.bytes_read, t.bytes_written, t.leaf_bytes, t.transactions, t.launches)
    return Cost(flops, *numbers, tuple(sorted(t.leaves)), t.workspace, plan.depth, tuple(sorted(t.triangles)))


# ---- sum of the counts of all levels


class _CountingRules(NamedTuple):
    """The arguments of the function `cost` that apply to all levels of a plan."""

    itemsize: int  # bytes of an element of the operands
    transaction: int  # bytes of a memory transaction
    batched: bool  # True if leaf products of stacked levels count as one launch for each shape
    opened: bool  # True to count the steps of a level that one leaf runs as a whole

    def rectangle_traffic(self, rectangles: Mapping[MovedElements, int], itemsize_of_products: int) -> tuple[int, int]:
        """Return the number of bytes of the rectangles, and the number of memory transactions that move them."""
        sizes = [(n * (itemsize_of_products if below else self.itemsize), t) for (n, below), t in rectangles.items()]
        return sum(size * t for size, t in sizes), sum(-(-size // self.transaction) * t for size, t in sizes)


class _CostTally(NamedTuple):
    """The counts of one level of a plan and of all levels below; fields mean the same as in `Cost`."""

    additions: int
    bytes_read: int
    bytes_written: int
    leaf_bytes: int
    transactions: int
    launches: int
    workspace: int  # bytes of temporaries at the peak
    leaves: LeafCounts
    triangles: LeafCounts = ()


@clear_on_registration
@lru_cache(maxsize=4096)
def _level_tally(plan: Plan, shape: Shape, params: GemmParams, units: _CountingRules) -> _CostTally:
    level = _fused_level_counts(plan, shape, params.beta) if plan.is_fused else count_level(plan, shape, params)
    if level is None:
        if units.opened and (opened := _tally_of_level_run_by_leaf(plan, shape, params, units)) is not None:
            return opened
        scratch = plan.leaf_use.leaf.workspace_bytes(units.itemsize, *shape, 1)
        return _leaf_tally(shape, units, scratch, is_triangle=params.op != "product")
    inside = units._replace(itemsize=plan.inner_itemsize(units.itemsize, [p for p, *_ in level.calls]))
    read, loads = units.rectangle_traffic(level.read, inside.itemsize)
    written, stores = units.rectangle_traffic(level.written, inside.itemsize)
    own = sum(temporary_bytes(*size, inside.itemsize) * times for size, times in level.temporaries.items())
    inner = [(_level_tally(p, size, below, inside), times) for (p, size, below), times in level.calls.items()]
    launches = level.launches - _launches_saved_by_batches(plan, level, inner, units.batched)
    total = _add_level_and_product_tallies(
        _CostTally(level.additions, read, written, 0, loads + stores, launches, own, ()), inner, level.streams
    )
    if plan.levels and plan.levels[0].is_batched:
        sizes = [(p, inside.itemsize, *size, times) for (p, size, _), times in level.calls.items()]
        scratch = max((leaf_batch_scratch_bytes(*size) for size in sizes), default=0)
        total = total._replace(workspace=max(total.workspace, own + scratch))
    return total


def _tally_of_level_run_by_leaf(
    plan: Plan, shape: Shape, params: GemmParams, units: _CountingRules
) -> _CostTally | None:
    """Return the counts of a level that one leaf runs as a whole with one batch of products; None for other leaves."""
    leaf = plan.leaf_use.leaf
    level = count_leaf_level(plan, shape, units.itemsize, params)
    if level is None or leaf.level is None:
        return None
    inside = units._replace(itemsize=leaf.level.itemsize_of_products(units.itemsize))
    read, loads = units.rectangle_traffic(level.read, inside.itemsize)
    written, stores = units.rectangle_traffic(level.written, inside.itemsize)
    launches, scratch = level.launches + 1 - sum(level.calls.values()), leaf.workspace_bytes(units.itemsize, *shape, 1)
    start = _CostTally(level.additions, read, written, 0, loads + stores, launches, scratch, ())
    return _add_level_and_product_tallies(
        start, [(_level_tally(p, size, x, inside), times) for (p, size, x), times in level.calls.items()], 1
    )


def _fused_level_counts(plan: Plan, shape: Shape, beta: Coefficient) -> LevelCounts:
    """Return the counts of a level with sums that the product kernels compute; these kernels also apply alpha and beta.

    Repeated reads of a block mostly hit a cache and are not counted. If products add to C atomically, one launch first
    multiplies C by beta.
    """
    level, c = count_level(plan, shape, PLAIN), shape[0] * shape[2]
    assert level is not None
    scaled = int(plan.levels[0].has_atomic_updates and beta != 1)
    read = {(c, False): 1} if scaled and beta else {}
    return level._replace(read=read, written={(c, False): 1} if scaled else {}, launches=scaled, temporaries={})


def _leaf_tally(shape: Shape, units: _CountingRules, scratch: int, *, is_triangle: bool) -> _CostTally:
    m, k, n = shape
    found: tuple[LeafCounts, LeafCounts] = ((), ((shape, 1),)) if is_triangle else (((shape, 1),), ())
    if not m * k * n:
        return _CostTally(0, 0, 0, 0, 0, 0, scratch, *found)
    sizes = (m * k, triangle_elements(n)) if is_triangle else (m * k, k * n, m * n)
    moved, moves = units.rectangle_traffic(Counter((size, False) for size in sizes), units.itemsize)
    return _CostTally(0, 0, 0, moved, moves, 1, scratch, *found)


def _add_level_and_product_tallies(
    start: _CostTally, inner: Sequence[tuple[_CostTally, int]], streams: int
) -> _CostTally:
    """Add the counts of a level and of its products; `streams` products run, and need workspace, at the same time."""
    return _CostTally(
        start.additions + sum([t.additions * times for t, times in inner]),
        start.bytes_read + sum([t.bytes_read * times for t, times in inner]),
        start.bytes_written + sum([t.bytes_written * times for t, times in inner]),
        start.leaf_bytes + sum([t.leaf_bytes * times for t, times in inner]),
        start.transactions + sum([t.transactions * times for t, times in inner]),
        start.launches + sum([t.launches * times for t, times in inner]),
        start.workspace + streams * max([t.workspace for t, _ in inner], default=0),
        _merge_leaf_counts([(t.leaves, times) for t, times in inner]),
        _merge_leaf_counts([(t.triangles, times) for t, times in inner]),
    )


def _merge_leaf_counts(found: Sequence[tuple[LeafCounts, int]]) -> LeafCounts:
    leaves: dict[Shape, int] = {}
    for some, times in found:
        for shape, count in some:
            leaves[shape] = leaves.get(shape, 0) + count * times
    return tuple(leaves.items())


def _launches_saved_by_batches(
    plan: Plan, level: LevelCounts, inner: Sequence[tuple[_CostTally, int]], batched: bool
) -> int:
    """Return the number of launches that batches save: the leaf products of one shape need only one launch together."""
    if not plan.levels or plan.inner_plan.levels:
        return 0
    first = plan.levels[0]
    if first.has_fused_sums:  # a fused product with an empty block needs no launch
        calls = sum(times for (_, size, _), times in level.calls.items() if 0 not in size)
        return max(calls - first.launch_count, 0)
    if not (first.is_batched or (batched and first.has_independent_products)):
        return 0
    return sum((times - 1) * tally.launches for tally, times in inner)
