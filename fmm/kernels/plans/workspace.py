"""Count a plan's workspace, leaf products and multiplications from the plan's steps; check types and sizes.

fmm counts workspace in four ways, always in bytes:

* `plan_workspace_bytes` is exact: the peak of the plan's temporaries, with padded rows, and of the leaves' scratch
  memory.
* `fmm.perfmodel.work.estimated_workspace` is an estimate, as if all blocks of a level were equal and rows had no
  padding. If the estimate is near the limit on the workspace, the model counts the workspace exactly.
* The field `workspace` of `fmm.perfmodel.cost.cost` repeats the exact count next to the papers' counts of memory
  transactions, volume and arithmetic operations.
* The field `PreparedCall.call_bytes` in fmm.runtime.prepare counts one call: workspace, copies of operands and, for a
  captured CUDA graph, cuBLAS's workspace.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from math import prod
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.leaf import plan_leaves
from fmm.kernels.plans.lower import level_run_by_leaf, lower_level, lower_level_run_by_leaf, require_level_with_steps
from fmm.kernels.plans.memory_layout import temporary_bytes
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.steps import LevelMemoryNeeds, memory_needs_of_steps
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Fill, Operation, Shape

# Bytes of cuBLAS's workspace in a captured CUDA graph, where cuBLAS may not allocate memory. (cuBLAS documents 32 MiB
# for Hopper.)
GRAPH_SCRATCH_BYTES = 32 << 20


# ---- workspace


@clear_on_registration
@lru_cache(maxsize=65536)
def plan_workspace_bytes(
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
    """Return the plan's workspace in bytes: the largest total size of temporaries that exist at the same time.

    The workspace consists of the first level's temporaries, and of the largest workspace of the level's products. The
    products run one after the other and use the same memory. If two products run at a time, each product has its own
    memory.
    """
    needs = None if plan.is_fused else _first_level_memory_needs(plan, m, k, n, GemmParams(alpha, beta, op, fill))
    if needs is None:
        return plan.leaf_use.leaf.workspace_bytes(itemsize, m, k, n, 1)
    inside = plan.inner_itemsize(itemsize, [p for p, *_ in needs.products])
    own = sum(temporary_bytes(rows, cols, inside) for _, rows, cols in needs.temporaries)
    below = max((plan_workspace_bytes(p, *size, inside, *params) for p, size, params in needs.products), default=0)
    scratch = (leaf_batch_scratch_bytes(p, inside, *size, count) for p, size, count in needs.batches)
    return own + max([needs.streams * below, *scratch])


@clear_on_registration
@lru_cache(maxsize=4096)
def _first_level_memory_needs(plan: Plan, m: int, k: int, n: int, params: GemmParams) -> LevelMemoryNeeds | None:
    """Return the memory needs of the plan's first level; None if one call of the leaf computes the product.

    If the level's steps do not depend on the plan below the level, the steps are computed only once for all plans that
    begin with this level.
    """
    if plan.levels and params == PLAIN:
        first = require_level_with_steps(plan.levels[0])
        if (needs := first.memory_needs(plan.inner_plan, (m, k, n))) is not None:
            return needs
        if first.has_same_steps_for_nested_plans and plan.inner_plan.levels:
            alone = _first_level_memory_needs(Plan((first,)), m, k, n, params)
            assert alone is not None
            products = dict.fromkeys(
                (plan.inner_plan, size, product_params) for _, size, product_params in alone.products
            )
            batches = tuple((plan.inner_plan, size, count) for _, size, count in alone.batches)
            return replace(alone, products=tuple(products), batches=batches)
    steps = lower_level(plan, m, k, n, *params)
    return None if steps is None else memory_needs_of_steps(steps)


def leaf_batch_scratch_bytes(plan: Plan, itemsize: int, m: int, k: int, n: int, count: int) -> int:
    """Return the scratch bytes of a batch of leaf products; 0 if the plan of the products has levels."""
    return 0 if plan.levels else plan.leaf_use.leaf.workspace_bytes(itemsize, m, k, n, count)


# ---- leaf products and multiplications


def count_leaf_products(
    plan: Plan, m: int, k: int, n: int, params: GemmParams = PLAIN, itemsize: int = 8
) -> dict[Shape, int]:
    """Return the number of leaf products of each size (m, k, n), except those that compute one triangle.

    `itemsize` matters only for integers that are multiplied modulo several numbers.
    """
    return {
        size: count for (size, is_gram), count in _leaf_product_counts(plan, m, k, n, params, itemsize) if not is_gram
    }


def count_leaf_triangles(plan: Plan, m: int, k: int, n: int, params: GemmParams) -> dict[Shape, int]:
    """Return the number of leaf products of each size (m, k, n) that compute one triangle."""
    return {size: count for (size, is_gram), count in _leaf_product_counts(plan, m, k, n, params, 8) if is_gram}


@clear_on_registration
@lru_cache(maxsize=65536)
def _leaf_product_counts(
    plan: Plan, m: int, k: int, n: int, params: GemmParams, itemsize: int
) -> tuple[tuple[tuple[Shape, bool], int], ...]:
    steps = lower_level(plan, m, k, n, *params) or lower_level_run_by_leaf(plan, m, k, n, itemsize, params)
    if steps is None:
        return ((((m, k, n), params.op != "product"), 1),)
    found: dict[tuple[Shape, bool], int] = {}
    for p in steps.products:
        for leaf, count in _leaf_product_counts(p.plan, *p.size, p.params, itemsize):
            found[leaf] = found.get(leaf, 0) + count
    return tuple(found.items())


@clear_on_registration
@lru_cache(maxsize=4096)
def count_multiplications(plan: Plan, m: int, k: int, n: int, params: GemmParams = PLAIN) -> float:
    """Return the cost of all multiplications of the leaf products, in multiplications of the problem's type."""
    inside = lower_level_run_by_leaf(plan, m, k, n, 8, params)
    steps = inside or lower_level(plan, m, k, n, *params)
    if steps is None:
        return m * k * n * 1.0 if params.op == "product" else m * (m + 1) / 2 * k
    products = list(steps.products)
    own = plan.levels[0].inner_multiplication_cost if plan.levels and all(p.plan != plan for p in products) else 1.0
    if inside is not None and (level := level_run_by_leaf(plan)) is not None:
        own = level.multiplication_cost(inside)
    return own * sum(count_multiplications(p.plan, *p.size, p.params) for p in products)


def leaf_flops(plan: Plan, m: int, k: int, n: int) -> int:
    """Return the number of multiplications and additions of the leaf products: 2mkn for each product."""
    return sum(2 * prod(size) * count for size, count in count_leaf_products(plan, m, k, n).items())


# ---- checks

# Types that plans multiply on the host: all types except float16 and bfloat16, which need sums in a wider type, and
# TF32, which is not the type of any array.
HOST_TYPES = tuple(name for name, row in DTYPES.items() if not (row.sums_wider or row.stored_as))
# A plan with at most this number of leaf products is allowed for any size of the problem.
ALWAYS_ALLOWED_PRODUCTS = 4096


def check_plan_type(plan: Plan, dtype: str, device: Literal["cpu", "cuda"] | None = None) -> None:
    """Raise PlanError if a level or the leaf of the plan cannot compute a product of this type.

    The message names a leaf that can multiply the type; if `device` is not None, a leaf of this device.
    """
    if plan.accepts_type(dtype):
        return
    for level in plan.levels:
        if level.types is not None and dtype not in level.types:
            raise PlanError(f"{plan}: {level} is for {' and '.join(level.types)}, not for {dtype}")
        dtype = level.dtype_of_products(dtype)
    kinds = ", ".join(t for t in plan.leaf_types if device != "cpu" or t in HOST_TYPES) or "nothing below levels"
    other = _with_leaf_for_type(plan, dtype, device)
    instead = f"; {other} does" if other else ""
    raise PlanError(f"the plan {plan} cannot run here: {plan.leaf} multiplies {kinds} there, not {dtype}{instead}")


def _with_leaf_for_type(plan: Plan, leaf_type: str, device: str | None) -> Plan | None:
    """Return the plan with another leaf, the first that multiplies `leaf_type`; None if there is no such leaf."""
    for row in plan_leaves():
        if device is None or device in row.devices:
            with suppress(PlanError):  # raised if the plan needs sums inside products, and the leaf cannot form them
                other = replace(plan, leaf=row.candidate_names[0])
                if leaf_type in other.leaf_types:
                    return other
    return None


def check_product_count(plan: Plan, m: int, k: int, n: int) -> None:
    """Raise PlanError if the plan has more leaf products than A B has multiplications.

    A plan with too many levels would cut matrices into single numbers.
    """
    count = prod(level.products for level in plan.levels)
    if count > max(m * k * n, ALWAYS_ALLOWED_PRODUCTS):
        raise PlanError(f"{plan} cuts a {m} x {k} x {n} product into {count} products; use fewer levels")
