"""A plan as a table that explains it: what each level does to the product, and what it costs in memory."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from fmm.kernels.plans.level import parse_level
from fmm.kernels.plans.level_with_steps import whole_level, with_steps
from fmm.kernels.plans.lower import lower_level, opened_level
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps
from fmm.kernels.plans.steps.sums import Mirror
from fmm.kernels.plans.workspace import leaf_halves, leaf_products, multiplications, workspace


class Row(NamedTuple):
    """One line of the table. Of a level's products, the next line shows the largest."""

    level: str
    problem: str  # its size
    does: str
    products: int  # how many it makes
    temporaries: int  # bytes


def explained_rows(
    plan: Plan, m: int, k: int, n: int, itemsize: int, asked: Asked = PLAIN, dtype: str = ""
) -> Iterator[Row]:
    """The levels from the outside in, each on the largest product of the level above it."""
    while (steps := lower_level(plan, m, k, n, *asked)) is not None:
        products = list(steps.products)
        itemsize = plan.itemsize_inside(itemsize, [p.plan for p in products])
        taken = 0 if plan.fused else sum(temporary_bytes(r, c, itemsize) for _, r, c in steps.temporaries)
        around = any(isinstance(step, Mirror) for step in steps.steps) or not plan.levels
        name, does = (
            (asked.op, _around(steps)) if around else (str(plan.levels[0]), with_steps(plan.levels[0]).does(steps))
        )
        yield Row(name, f"{m} x {k} x {n}", does, len(products), taken)
        largest = max(products, key=lambda p: p.size[0] * p.size[1] * p.size[2])
        plan, (m, k, n), asked = largest.plan, largest.size, largest.asked
    steps = opened_level(plan, m, k, n, itemsize, asked, dtype)
    if steps is None:
        yield Row(plan.leaf, f"{m} x {k} x {n}", plan.leaf_use.leaf.call.text, 1, 0)
    else:
        yield from _whole_rows(plan, (m, k, n), itemsize, steps)


def _whole_rows(plan: Plan, size: tuple[int, int, int], itemsize: int, steps: LevelSteps) -> Iterator[Row]:
    """The lines of a level that is done whole, of the levels below it, and of the leaf. Only the first takes memory."""
    leaf, products = plan.leaf_use.leaf, list(steps.products)
    first, *inner, last = plan.leaf.split(" > ")
    counts = [parse_level(name).products for name in inner]
    problem = " x ".join(map(str, size))
    level = whole_level(plan)
    does = level.does(steps) if level else ""
    yield Row(first, problem, does, len(products) // prod(counts), leaf.call.room(itemsize, *size, 1))
    for name, count in zip(inner, counts, strict=True):
        yield Row(name, problem, "sums in registers, exact", count, 0)
    yield Row(last, " x ".join(map(str, products[0].size)), "one launch for all", 1, 0)


def _around(steps: LevelSteps) -> str:
    """In words, the steps around a product of which the leaf or level itself computes only a part."""
    mirrors = [step for step in steps.steps if isinstance(step, Mirror)]
    if not mirrors:
        return "alpha and beta"
    return "the lower half, then its mirror" if mirrors[0].fill == "full" else "the lower half of a temporary"


def explained_table(plan: Plan, m: int, k: int, n: int, itemsize: int, asked: Asked = PLAIN, dtype: str = "") -> str:
    """The rows as aligned text, with the totals below. `dtype` counts only for integers."""
    lines = [("level", "product (m x k x n)", "what it does", "products", "temporaries")]
    for row in explained_rows(plan, m, k, n, itemsize, asked, dtype):
        lines.append((*row[:3], str(row.products), spelled_bytes(row.temporaries)))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    leaves, halves = leaf_products(plan, m, k, n, asked, itemsize), leaf_halves(plan, m, k, n, asked)
    text += filter(None, (level.launched for level in plan.levels))
    done, classical = multiplications(plan, m, k, n, asked), m * k * n
    share = f"{done / classical:.1%} of the classical multiplications, " if classical else ""
    total = spelled_bytes(workspace(plan, m, k, n, itemsize, *asked))
    half = f" and {sum(halves.values())} of which one half is computed" if halves else ""
    return "\n".join([*text, f"{share}{sum(leaves.values())} leaf products{half}, workspace {total}"])


def spelled_bytes(n: int) -> str:
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
