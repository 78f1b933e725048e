"""Which plans are compared at all where the caller names none: by the type and the device, then by the sides."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf, prod
from typing import NamedTuple

from fmm.kernels.plans.candidates import candidate_plans, half_candidates
from fmm.kernels.plans.leaf import LeafUse, ending_rows, option_use
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.work.row_starts import rows_aligned
from fmm.problem import Layout, Problem, without_layouts

# Padding makes the sides of leaf products longer by less than a third: a side that is shorter than this share of the
# least that is allowed stays too short.
TOO_SHORT_FOR_CERTAIN = 0.7


def candidates(batches: bool, half: bool = False) -> tuple[Plan, ...]:
    """The plans that are compared on a device that starts batches together (a GPU), or on one that does not (a CPU);
    `half`: those for products that are their own adjoints."""
    device = "cuda" if batches else "cpu"
    return half_candidates(device) if half else candidate_plans(device)


class Choosable(NamedTuple):
    """A plan that may be chosen for a type on a device; what depends on the sides is asked for each problem."""

    plan: Plan
    alignment: int  # every row must begin at a multiple of so many bytes
    longest: float  # no side may be longer
    parts: tuple[int, int, int] | None  # into how many all levels together cut each side; None: they cut none

    def suits(self, problem: Problem) -> bool:
        """Are the problem's rows aligned as the plan needs them, and its sides short enough?"""
        aligned = self.alignment == 1 or rows_aligned(problem, self.alignment)
        return aligned and (self.longest == inf or max(problem.size) <= self.longest)

    def cut_too_small(self, problem: Problem, least: float) -> bool:
        """Are leaf products certain to have a side that is shorter than `least`?"""
        if self.parts is None:
            return False
        (m, k, n), (rows, inner, cols), least = problem.size, self.parts, TOO_SHORT_FOR_CERTAIN * least
        return m < least * rows or k < least * inner or n < least * cols


def choosable_candidates(problem: Problem, calibration: Calibration) -> tuple[Choosable, ...]:
    """Of all candidates, those that may be chosen for the problem's type on this device."""
    return _choosable_for_type(problem.dtype, problem.halved, calibration)


@depends_on_rows
@lru_cache(maxsize=256)
def _choosable_for_type(dtype: str, halved: bool, calibration: Calibration) -> tuple[Choosable, ...]:
    every = candidates(calibration.batches, halved)
    return tuple(x for plan in every if (x := _choosable(plan, dtype, halved, calibration)))


def choosable_plans(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[Choosable]:
    """Of these plans, those that may be chosen for the problem's type on this device."""
    for plan in plans:
        if (found := _choosable(plan, problem.dtype, problem.halved, calibration)) is not None:
            yield found


def slow_by_columns(use: LeafUse, dtype: str) -> bool:
    """Is the leaf slow where B lies column by column, as in x x^T? (Not if it reads a copy that is turned.)"""
    return use.order is None and dtype in use.leaf.time.slow_columns


def by_columns(problem: Problem) -> bool:
    """Does B lie column by column? (Halves are compared as those of x x^T, whichever of the two they are.)"""
    orders = [layout.order for layout in problem.layouts]
    return problem.halved or orders[1] == "F"


@lru_cache(maxsize=4096)
def to_choose_for(problem: Problem, gpu: bool) -> Problem:
    """What plans are compared for: matrices that lie row by row, neither scaled nor added to; but a B that lies column
    by column remains so, if a GPU has a leaf that is slow there."""
    plain = without_layouts(problem)
    if not gpu or problem.halved or not by_columns(problem) or problem.dtype not in _slow_columns():
        return plain
    _, k, n = problem.size
    return replace(plain, layouts=(Layout("C", max(k, 1)), Layout("F", max(k, 1)), Layout("C", max(n, 1))))


@depends_on_rows
@lru_cache(maxsize=1)
def _slow_columns() -> frozenset[str]:
    """Types of which any leaf is slow where B lies column by column."""
    return frozenset(dtype for leaf in ending_rows() for dtype in leaf.time.slow_columns)


def _choosable(plan: Plan, dtype: str, halved: bool, calibration: Calibration) -> Choosable | None:
    """None where the plan's leaf is not taken unasked for this type, or where the calibration does not say how fast it
    is. (Our own tiled kernel is not compared for types in which it takes about the vendor's time.)"""
    leaf, parts = plan.leaf_use.leaf, _parts_of_sides(plan) if plan.splits else None
    if halved and not plan.levels and plan != VENDOR:
        known = _half_is_known(plan, dtype, calibration)
        return Choosable(plan, leaf.candidacy.alignment, leaf.candidacy.longest or inf, parts) if known else None
    if not plan.considered_for(dtype) or (halved and not _turned_where_it_pays(plan, dtype)):
        return None
    rate, tiled = calibration.known_rate(plan.rate_name(dtype)), plan.timed_by_tiles
    inside = plan.leaf_type(dtype) in leaf.types.inside
    if rate is None or (tiled and not (rate.tiled > 0 and inside)):
        return None
    # A batch reads nothing but temporaries, whose rows are aligned.
    reads_any_rows = plan.batched or (tiled and rate.tiled_odd > 0)
    return Choosable(plan, 1 if reads_any_rows else leaf.candidacy.alignment, inf, parts)


def _turned_where_it_pays(plan: Plan, dtype: str) -> bool:
    """Where blocks on the diagonal have a leaf of their own: does it read turned copies if that pays, and only then?"""
    return all((dtype in use.leaf.time.slow_columns) == (use.order is not None) for use in uses_on_diagonal(plan))


def uses_on_diagonal(plan: Plan) -> Iterator[LeafUse]:
    """The leaves that levels name for blocks on the diagonal, besides the plan's own leaf: `gram.tile.outer`."""
    return (option_use(name) for level in plan.levels for name in level.own_leaves)


def _half_is_known(plan: Plan, dtype: str, calibration: Calibration) -> bool:
    """Does the calibration say how long the leaf alone takes for one half?"""
    leaf = plan.leaf_use.leaf
    rate = calibration.rates.get(plan.rate_name(dtype)) if leaf.time.rate else calibration.known_rate(dtype)
    return dtype in (*leaf.halves.by_kernel, *leaf.halves.loose) and rate is not None and rate.half_by_tiles < 1


def _parts_of_sides(plan: Plan) -> tuple[int, int, int]:
    """Into how many parts all levels together cut m, k and n; levels whose cut depends on the sizes are left out."""
    cuts = [level.cut.parts for level in plan.levels if level.cut]
    m, k, n = (prod(parts) for parts in zip((1, 1, 1), *cuts, strict=True))
    return m, k, n
