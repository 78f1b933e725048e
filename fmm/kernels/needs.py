"""Needs: what a plan takes to run, read off its recipes: workspace, leaf products, flops."""

from __future__ import annotations

from functools import lru_cache
from math import prod

from fmm.kernels.lowering import lower
from fmm.kernels.plan import Level, Plan, PlanError
from fmm.kernels.program import Coefficient

ALIGN = 64  # bytes: every temporary starts on a cache line, and its rows do


def leading(cols: int, itemsize: int, spaced: bool = True) -> int:
    """Elements from one row of a temporary to the next: whole cache lines, and (`spaced`) never a large power of two.

    On a GPU rows are not spaced: products of float64 and bfloat16 lose 3 % by it there, those of TF32 10 %.
    Rows that lie a multiple of 4 KiB apart fall into the same cache sets, and a panel of them evicts itself.
    """
    line = max(ALIGN // itemsize, 1)
    padded = -(-cols // line) * line
    return padded + line if spaced and padded * itemsize % 4096 == 0 and padded else padded


def temporary_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Enough for either memory order, so that a plan's workspace does not depend on its operands' layouts."""
    elements = max(rows * leading(cols, itemsize), cols * leading(rows, itemsize))
    return -(-elements * itemsize // ALIGN) * ALIGN


LT_SCRATCH = 32 << 20  # bytes that a candidate of cuBLASLt may use
GRAPH_SCRATCH = 32 << 20  # bytes: what cuBLAS documents for Hopper; a captured call may not allocate its own


@lru_cache(maxsize=65536)
def workspace(plan: Plan, m: int, k: int, n: int, itemsize: int, alpha: Coefficient = 1, beta: Coefficient = 0) -> int:
    """Peak bytes of temporaries, all levels: this level's, plus the hungriest of its products' (they take turns).

    Where two products run at a time, both count.
    """
    recipe = None if plan.fused else lower(plan, m, k, n, alpha, beta)
    if recipe is None:
        return LT_SCRATCH if plan.leaf.startswith("lt") else 0
    own = sum(temporary_bytes(rows, cols, itemsize) for _, rows, cols in recipe.temporaries)
    inner = {(p.plan, *p.size, p.accumulate) for p in recipe.products}
    return own + recipe.lanes * max((workspace(p, *size, itemsize, 1, int(acc)) for p, *size, acc in inner), default=0)


def leaf_products(plan: Plan, m: int, k: int, n: int) -> dict[tuple[int, int, int], int]:
    """The multiset of leaf products (m, k, n) -> how many."""
    return dict(_leaves(plan, m, k, n, 0))


@lru_cache(maxsize=65536)
def _leaves(plan: Plan, m: int, k: int, n: int, beta: int) -> tuple[tuple[tuple[int, int, int], int], ...]:
    recipe = lower(plan, m, k, n, 1, beta)
    if recipe is None:
        return (((m, k, n), 1),)
    found: dict[tuple[int, int, int], int] = {}
    for p in recipe.products:
        for size, count in _leaves(p.plan, *p.size, int(p.accumulate)):
            found[size] = found.get(size, 0) + count
    return tuple(found.items())


FEW = 4096  # products that any plan may make


def check_depth(plan: Plan, m: int, k: int, n: int) -> None:
    """PlanError for a plan so deep that it makes more products than there are numbers to multiply: each level makes at
    least seven times as many, and what is below one number is nothing but time."""
    count = prod(level.products for level in plan.levels if isinstance(level, Level))
    if count > max(m * k * n, FEW):
        raise PlanError(f"{plan} makes {count} products of a {m} x {k} x {n} one; take fewer levels")


def flops(plan: Plan, m: int, k: int, n: int) -> int:
    """Multiplications and additions inside the leaf products, 2mkn each."""
    return sum(2 * prod(size) * count for size, count in leaf_products(plan, m, k, n).items())
