"""What a plan needs to run, read off its steps: workspace, leaf products, flops."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.leaf import ending_rows
from fmm.kernels.plans.level_with_steps import whole_level, with_steps
from fmm.kernels.plans.lower import lower_level, opened_level
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.steps.needed import Needed, needed_for
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Fill, Operation

Size = tuple[int, int, int]  # (m, k, n)

GRAPH_SCRATCH = 32 << 20  # bytes: what cuBLAS documents for Hopper; a captured call may not allocate its own


@depends_on_rows
@lru_cache(maxsize=65536)
def workspace(
    plan: Plan,
    m: int,
    k: int,
    n: int,
    itemsize: int,
    alpha: Coefficient = 1,
    beta: Coefficient = 0,
    op: Operation = "product",
    fill: Fill = "full",
) -> int:
    """The most bytes of temporaries that a plan has at a time: its first level's, and those below its largest product.

    Products take turns with the memory below them; where two run at a time, both count.
    """
    needed = None if plan.fused else _needed(plan, m, k, n, Asked(alpha, beta, op, fill))
    if needed is None:
        return plan.leaf_use.leaf.call.room(itemsize, m, k, n, 1)
    inside = plan.itemsize_inside(itemsize, [p for p, *_ in needed.products])
    own = sum(temporary_bytes(rows, cols, inside) for _, rows, cols in needed.temporaries)
    below = max((workspace(p, *size, inside, *asked) for p, size, asked in needed.products), default=0)
    scratch = (batch_scratch(p, inside, *size, count) for p, size, count in needed.batches)
    return own + max([needed.lanes * below, *scratch])


@depends_on_rows
@lru_cache(maxsize=4096)
def _needed(plan: Plan, m: int, k: int, n: int, asked: Asked) -> Needed | None:
    """What the steps of the plan's first level need; None where the leaf does it all.

    A choice asks about the same level above many plans: its steps are made once, if at all.
    """
    if plan.levels and asked == PLAIN:
        first = with_steps(plan.levels[0])
        if (known := first.needed(plan.rest, (m, k, n))) is not None:
            return known
        if first.same_above_levels and plan.rest.levels:
            alone = _needed(Plan((first,)), m, k, n, asked)
            return alone and alone.by(plan.rest)
    steps = lower_level(plan, m, k, n, *asked)
    return None if steps is None else needed_for(steps)


def batch_scratch(plan: Plan, itemsize: int, m: int, k: int, n: int, count: int) -> int:
    """Bytes that a batch of products by a leaf may use; none where each of them has levels of its own."""
    return 0 if plan.levels else plan.leaf_use.leaf.call.room(itemsize, m, k, n, count)


def check_type(plan: Plan, dtype: str, device: Literal["cpu", "cuda"] | None = None) -> None:
    """PlanError if a level cannot be asked for numbers of this type, or the leaf does not multiply what is left (on the
    device, if it is known which)."""
    if plan.takes_type(dtype):
        return
    for step in plan.levels:
        if step.types is not None and dtype not in step.types:
            raise PlanError(f"{plan}: {step} is for {' and '.join(step.types)}, not for {dtype}")
        dtype = step.dtype_below(dtype)
    kinds = ", ".join(t for t in plan.types if device != "cpu" or t in HOST_TYPES) or "nothing below levels"
    other = _with_another_leaf(plan, dtype, device)
    instead = f"; {other} does" if other else ""
    raise PlanError(f"the plan {plan} cannot run here: {plan.leaf} multiplies {kinds} there, not {dtype}{instead}")


# That plans multiply on the host: sums of the others are wider there than the numbers, or are not made at all.
HOST_TYPES = tuple(name for name, row in DTYPES.items() if not (row.sums_wider or row.stored_as))


def _with_another_leaf(plan: Plan, leaf_type: str, device: str | None) -> Plan | None:
    """The same levels above the first leaf that multiplies what comes to it."""
    for row in ending_rows():
        if device is None or device in row.devices:
            with suppress(PlanError):  # sums inside products are not for every leaf
                other = replace(plan, leaf=row.tried_names[0])
                if leaf_type in other.types:
                    return other
    return None


def leaf_products(plan: Plan, m: int, k: int, n: int, asked: Asked = PLAIN, itemsize: int = 8) -> dict[Size, int]:
    """How many leaf products there are of each size (m, k, n), without those that are their own adjoints.

    `itemsize` counts only for integers, whose products may be done modulo several numbers.
    """
    return {size: count for (size, half), count in _leaves(plan, m, k, n, asked, itemsize) if not half}


def leaf_halves(plan: Plan, m: int, k: int, n: int, asked: Asked) -> dict[tuple[int, int, int], int]:
    """How many leaf products that are their own adjoints there are of each size; a leaf computes one half of them."""
    return {size: count for (size, half), count in _leaves(plan, m, k, n, asked, 8) if half}


@depends_on_rows
@lru_cache(maxsize=65536)
def _leaves(
    plan: Plan, m: int, k: int, n: int, asked: Asked, itemsize: int
) -> tuple[tuple[tuple[Size, bool], int], ...]:
    steps = lower_level(plan, m, k, n, *asked) or opened_level(plan, m, k, n, itemsize, asked)
    if steps is None:
        return ((((m, k, n), asked.op != "product"), 1),)
    found: dict[tuple[Size, bool], int] = {}
    for p in steps.products:
        for leaf, count in _leaves(p.plan, *p.size, p.asked, itemsize):
            found[leaf] = found.get(leaf, 0) + count
    return tuple(found.items())


@depends_on_rows
@lru_cache(maxsize=4096)
def multiplications(plan: Plan, m: int, k: int, n: int, asked: Asked = PLAIN) -> float:
    """The multiplications in all leaf products, counted in those of the numbers that the plan is asked for."""
    opened = opened_level(plan, m, k, n, 8, asked)
    steps = opened or lower_level(plan, m, k, n, *asked)
    if steps is None:
        return m * k * n * 1.0 if asked.op == "product" else m * (m + 1) / 2 * k
    products = list(steps.products)
    own = plan.levels[0].work_below if plan.levels and all(p.plan != plan for p in products) else 1.0
    if opened is not None and (level := whole_level(plan)) is not None:
        own = level.share(opened)
    return own * sum(multiplications(p.plan, *p.size, p.asked) for p in products)


FEW = 4096  # products that any plan may make, however small the problem is


def check_products(plan: Plan, m: int, k: int, n: int) -> None:
    """PlanError for a plan so deep that it makes more products than there are numbers to multiply.

    Each level makes at least seven times as many, and cutting single numbers only takes time.
    """
    count = prod(level.products for level in plan.levels)
    if count > max(m * k * n, FEW):
        raise PlanError(f"{plan} makes {count} products of a {m} x {k} x {n} one; take fewer levels")


def leaf_flops(plan: Plan, m: int, k: int, n: int) -> int:
    """Multiplications and additions inside the leaf products, 2mkn each."""
    return sum(2 * prod(size) * count for size, count in leaf_products(plan, m, k, n).items())
