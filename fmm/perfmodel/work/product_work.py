"""The work of a plan for a whole product: from the footprints of its levels, or counted from its steps.

A footprint is what a level's sums move and hold, as if its blocks were all alike. A plan with a level that has none is
counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.level_with_steps import Footprint, Sides, with_steps
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.memory_layout import ALIGN
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.cost import cost
from fmm.perfmodel.work.row_starts import ACCESS, DEEP, access_bytes, aligned_operands, moved_unaligned
from fmm.perfmodel.work.tiles import tiles_of
from fmm.perfmodel.work.work import Leaf, Work
from fmm.problem import Problem, Shape

WORD = 4  # bytes at whose multiples every row must begin for all but the vendor's slowest products
# The fields of Work that are shares of the traffic, and those that are shares of the leaf products.
OF_TRAFFIC = ("sequential", "ragged", "overlapped", "scalar", "deep", "parts")
OF_PRODUCTS = ("unaligned", "odd", "copied")


def product_work(plan: Plan, problem: Problem) -> Work:
    """Work as if unequal blocks and strips were spread evenly: what ranking needs, in microseconds."""
    footprints = level_footprints(plan, problem)
    if footprints is None:
        steps = lower_level(plan, *problem.size)
        direct = steps.in_place if steps and len(plan.levels) == 1 else 0.0
        return Work(*exact_counts(plan, problem), **rows_of_products(plan, problem, direct))
    moves, direct = _moves(plan, problem, footprints)
    sides = footprints[-1].sides if footprints else problem.size
    leaves = ((float(sides[0]), float(sides[1]), float(sides[2]), moves.products, products_together(plan)),)
    whole = moves.traffic or 1.0
    shares = {name: getattr(moves, name) / whole for name in OF_TRAFFIC}
    return Work(leaves, moves.traffic, moves.passes, **shares, **rows_of_products(plan, problem, direct))


def exact_counts(plan: Plan, problem: Problem) -> tuple[tuple[Leaf, ...], float, float]:
    """The leaf products, the elements that the sums move, and how many passes those are: of the plan's steps."""
    counts = cost(plan, *problem.size, problem.itemsize, opened=False)
    leaves = tuple((*size, float(times), products_together(plan)) for size, times in counts.leaves)
    passes = counts.launches - sum(count / together for *_, count, together in leaves)
    return leaves, (counts.bytes_read + counts.bytes_written) / problem.itemsize, passes


def products_together(plan: Plan) -> float:
    """How many leaf products start as one batch."""
    if not plan.levels:
        return 1.0
    last = plan.levels[-1]
    if last.needs_fusing_leaf:
        return last.products / last.launches
    return float(last.products) if last.batched else 1.0


# ---- what the sums of the levels move


@dataclass
class _Moves:
    """What a plan's sums come to, level by level from the outermost inwards: elements, of these the ones that are moved
    in one of the ways of OF_TRAFFIC, and passes; and how many products are below the levels so far."""

    traffic: float = 0.0
    passes: float = 0.0
    sequential: float = 0.0
    ragged: float = 0.0
    overlapped: float = 0.0
    scalar: float = 0.0
    deep: float = 0.0
    parts: float = 0.0
    products: float = 1.0


def _moves(plan: Plan, problem: Problem, footprints: Sequence[Footprint]) -> tuple[_Moves, float]:
    """What the sums come to, and the share of leaf products that use A, B or C themselves."""
    found, direct, below_overlapped = _Moves(), 1.0, False
    itemsize = problem.itemsize
    for level, f in zip(plan.levels, footprints, strict=True):
        each = [found.products * x * itemsize / problem.itemsize for x in f.moved]
        moved = sum(each)
        if f.passes:
            direct = f.in_place if len(plan.levels) == 1 else 0.0
        if found.products == 1:  # the first level: its sums read A and B and write C
            access = access_bytes(f.products, problem.itemsize)
            found.ragged += moved_unaligned(each, aligned_operands(problem, ALIGN))
            found.scalar += moved_unaligned(each, aligned_operands(problem, access))
        itemsize, before = level.itemsize_below(itemsize), itemsize
        found.traffic += moved
        found.sequential += moved if f.sequential else 0.0
        found.parts += moved if itemsize != before else 0.0
        found.deep += moved if f.products >= DEEP else 0.0
        found.overlapped += moved if below_overlapped else 0.0
        below_overlapped = below_overlapped or level.lanes > 1
        found.passes += found.products * f.passes
        found.products *= f.products
    return found, direct


def level_footprints(plan: Plan, problem: Problem) -> tuple[Footprint, ...] | None:
    """Of the levels from the outermost inwards; None if one of them has none."""
    return _footprints(plan.levels, problem.size) if plan.levels else ()


@depends_on_rows
@lru_cache(maxsize=4096)  # work and workspace of a plan are asked for one after the other, and of each leaf again
def _footprints(levels: tuple[PlanLevel, ...], size: Shape) -> tuple[Footprint, ...] | None:
    found: list[Footprint] = []
    sides: Sides = (float(size[0]), float(size[1]), float(size[2]))
    for level in levels:
        if (footprint := level_footprint(level, sides)) is None:
            return None
        found.append(footprint)
        sides = footprint.sides
    return tuple(found)


@depends_on_rows
@lru_cache(maxsize=4096)
def level_footprint(level: PlanLevel, sides: Sides) -> Footprint | None:
    """One level's, kept: candidates for one problem begin alike."""
    return with_steps(level).footprint(VENDOR, sides)


# ---- the rows that leaf products read and write


def vendors_access(itemsize: int) -> int:
    """Bytes to which rows must be aligned for the vendor's fast kernels: two numbers at least. (Complex128 on an H200:
    with an odd number of columns 28 products took 1.21 times as long as 30 others, beside what was predicted.)"""
    return max(ACCESS, 2 * itemsize)


def splits_into_whole_parts(plan: Plan) -> bool:
    """Are its real products those of the parts of complex numbers, in matrices as large as these, without padding?"""
    return bool(plan.levels) and all(level.splits_parts for level in plan.levels)


def rows_of_products(plan: Plan, problem: Problem, direct: float) -> dict[str, Any]:
    """The fields of Work on how rows begin; `direct` is the share of leaf products that use A, B or C themselves.

    A batch reads temporaries alone, whose rows are aligned.
    """
    vectors, worded = aligned_operands(problem, vendors_access(problem.itemsize)), aligned_operands(problem, WORD)
    if splits_into_whole_parts(plan):  # whose rows begin where those of such a real product would
        parts, direct = replace(problem, dtype=plan.leaf_type(problem.dtype)), 1.0
        vectors = aligned_operands(parts, vendors_access(parts.itemsize))
    elif plan.batched:
        direct = 0.0
    unaligned, odd = float(False in vectors), float(False in worded)
    return {
        "unaligned": direct * (unaligned - odd),
        "odd": direct * odd,
        "copied": (1 - direct) * unaligned,
        "alone": vectors[1] and not vectors[0],
        "tiles": tiles_of(plan, plan.leaf_type(problem.dtype)),
    }
