"""Work and workspace of a plan on any problem: estimated in microseconds, or counted exactly."""

from __future__ import annotations

from dataclasses import replace

from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.work.half_work import half_parts, half_work
from fmm.perfmodel.work.product_work import exact_counts, level_footprints, product_work, products_together
from fmm.perfmodel.work.work import Work
from fmm.problem import Problem


def estimated_work(plan: Plan, problem: Problem) -> Work:
    """What ranking needs: as if unequal blocks were all alike, where the plan's levels know such a footprint."""
    return half_work(plan, problem) if problem.halved else product_work(plan, problem)


def counted_work(plan: Plan, problem: Problem) -> Work:
    """Exact work, from the plan's steps; the shares are the estimate's."""
    if problem.halved:
        return half_work(plan, problem)
    leaves, traffic, passes = exact_counts(plan, problem)
    return replace(product_work(plan, problem), leaves=leaves, traffic=traffic, passes=passes)


def estimated_workspace(plan: Plan, problem: Problem) -> float:
    """Bytes of temporaries, rows not rounded up: enough to tell most plans that fit from those that do not."""
    if problem.halved:
        found = half_parts(plan, problem)
        below = (estimated_workspace(inner, Problem(*size, problem.dtype)) for inner, size, _ in found.products)
        return found.held * problem.itemsize + max(below, default=0.0)
    footprints = level_footprints(plan, problem)
    if footprints is None:
        return float(workspace(plan, *problem.size, problem.itemsize))
    held, lanes, itemsize = 0.0, 1, problem.itemsize
    for level, f in zip(plan.levels, footprints, strict=True):
        held += lanes * sum(f.held) * itemsize
        lanes, itemsize = max(lanes, level.lanes), level.itemsize_below(itemsize)
    sides = footprints[-1].sides if footprints else problem.size
    m, k, n = (int(side) for side in sides)
    scratch = plan.leaf_use.leaf.call.room(itemsize, m, k, n, int(products_together(plan)))
    return held + lanes * scratch
