"""Print plans as tables: for each level, its product, its operations, and the memory of its temporaries."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import NamedTuple

from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.level import parse_level
from fmm.kernels.plans.lower import level_run_by_leaf, lower_level, lower_level_run_by_leaf, require_level_with_steps
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps
from fmm.kernels.plans.sums import Mirror
from fmm.kernels.plans.workspace import (
    count_leaf_products,
    count_leaf_triangles,
    count_multiplications,
    plan_workspace_bytes,
)
from fmm.problem import Shape


class PlanRow(NamedTuple):
    """One row of a plan's table: it describes one level. The next row describes the largest product of this level."""

    level: str
    problem: str  # size of the product, m x k x n
    does: str  # description of the level's operations
    products: int  # number of products
    temporaries: int  # bytes of the level's temporaries


def plan_table(plan: Plan, m: int, k: int, n: int, itemsize: int, params: GemmParams = PLAIN, dtype: str = "") -> str:
    """Return a plan's table as aligned text, with totals in the last line.

    Only the tables of integer products depend on `dtype`.
    """
    lines = [("level", "product (m x k x n)", "what it does", "products", "temporaries")]
    for row in plan_rows(plan, m, k, n, itemsize, params, dtype):
        lines.append((*row[:3], str(row.products), format_bytes(row.temporaries)))
    widths = [max(len(line[i]) for line in lines) for i in range(5)]
    text = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    text += filter(None, (require_level_with_steps(level).describe_launches() for level in plan.levels))
    leaves, triangles = (
        count_leaf_products(plan, m, k, n, params, itemsize),
        count_leaf_triangles(plan, m, k, n, params),
    )
    done, classical = count_multiplications(plan, m, k, n, params), m * k * n
    share = f"{done / classical:.1%} of the classical multiplications, " if classical else ""
    total = format_bytes(plan_workspace_bytes(plan, m, k, n, itemsize, *params))
    only = f" and {sum(triangles.values())} of one triangle" if triangles else ""
    count = sum(leaves.values())
    return "\n".join([*text, f"{share}{count} leaf product{'s' * (count != 1)}{only}, workspace {total}"])


def plan_rows(
    plan: Plan, m: int, k: int, n: int, itemsize: int, params: GemmParams = PLAIN, dtype: str = ""
) -> Iterator[PlanRow]:
    """Yield a row for each level, the outermost level first.

    The first row describes the whole product. Each further row describes the largest product of the previous row's
    level. The temporaries of all rows add up to the plan's workspace.
    """
    name: str
    remaining, streams = plan_workspace_bytes(plan, m, k, n, itemsize, *params), 1
    while (steps := lower_level(plan, m, k, n, *params)) is not None:
        products = list(steps.products)
        itemsize = plan.inner_itemsize(itemsize, [p.plan for p in products])
        held = 0 if plan.is_fused else sum(temporary_bytes(r, c, itemsize) for _, r, c in steps.temporaries) * streams
        remaining, streams = remaining - held, streams * steps.streams
        mirrors = [step for step in steps.steps if isinstance(step, Mirror)]
        if mirrors:
            does = "lower triangle, then its mirror" if mirrors[0].fill == "full" else "lower triangle of a temporary"
            name = str(params.op)
        elif plan.levels:
            name, does = str(plan.levels[0]), require_level_with_steps(plan.levels[0]).describe_steps(steps)
        else:
            name, does = str(params.op), "alpha and beta"
        yield PlanRow(name, f"{m} x {k} x {n}", does, len(products), held)
        largest = max(products, key=lambda p: p.size[0] * p.size[1] * p.size[2])
        plan, (m, k, n), params = largest.plan, largest.size, largest.params
    steps = lower_level_run_by_leaf(plan, m, k, n, itemsize, params, dtype)
    if steps is None:
        yield PlanRow(plan.leaf, f"{m} x {k} x {n}", plan.leaf_use.leaf.call_text, 1, remaining)
    else:
        yield from _rows_of_level_run_by_leaf(plan, (m, k, n), remaining, steps)


def _rows_of_level_run_by_leaf(plan: Plan, size: Shape, nbytes: int, steps: LevelSteps) -> Iterator[PlanRow]:
    """Yield the row of a level that one leaf runs, then the rows of its inner levels, then the row of the last leaf.

    The first row shows the memory of the whole level, `nbytes`; the other rows show 0 bytes.
    """
    products = list(steps.products)
    first, *inner, last = plan.leaf.split(" > ")
    counts = [parse_level(name).products for name in inner]
    problem = " x ".join(map(str, size))
    level = level_run_by_leaf(plan)
    does = level.describe_steps(steps) if level else ""
    yield PlanRow(first, problem, does, len(products) // prod(counts), nbytes)
    for name, count in zip(inner, counts, strict=True):
        yield PlanRow(name, problem, "sums in registers, exact", count, 0)
    yield PlanRow(last, " x ".join(map(str, products[0].size)), "one launch for all", 1, 0)


def format_error_growth(growth: float) -> str:
    """Return the text of an error growth, a multiple of the vendor's error: `3.2`, `0.087`."""
    return f"{growth:.1f}" if growth >= 1 else f"{growth:#.2g}"


def format_bytes(n: int) -> str:
    """Return the text of a number of bytes in the largest unit that is not larger than the number: `1.5 MiB`."""
    for unit, size in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if n >= size:
            return f"{n / size:.1f} {unit}"
    return f"{n} B"
