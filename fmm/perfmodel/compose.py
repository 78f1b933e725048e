"""Composing: levels above other plans, which need a fraction of the workspace, as many as a limit asks for.

A level that does one product after the other keeps the temporaries of one; what stands below it is a plan for a product
an eighth as large. There are thousands of such compositions. They are built level by level, from the outermost inwards:
of those that leave products of one size only those are kept that no other one beats in time, workspace and error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from math import ceil
from typing import NamedTuple

from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.level_with_steps import Sides
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import overlap_with, predicted_seconds
from fmm.perfmodel.stability import expected_growth
from fmm.perfmodel.work.estimate import estimated_work, estimated_workspace
from fmm.perfmodel.work.product_work import level_footprint
from fmm.problem import Problem

MOST_LEVELS = 3  # that are put above a plan
FINALISTS = 8  # compositions whose time is then predicted by the whole formula
# From this share of the allowed workspace on, the workspace is counted and no longer estimated; below step tables from
# the second one on: where a block at the edge is smaller they need more than is estimated (1.4 times as much at most).
NEAR, FAR = 0.8, 0.25
# The error growths of a composition's parts, multiplied, may be more than its own by up to this factor.
ABOUT = 1.5


class Room(NamedTuple):
    """Limits within which plans are composed."""

    workspace: float  # bytes
    error_growth: float


@dataclass(frozen=True)
class Above:
    """Levels, the products that they leave, and what they cost themselves."""

    levels: tuple[PlanLevel, ...]
    sides: Sides
    products: float = 1.0
    seconds: float = 0.0
    beside: float = 0.0  # of these seconds, those that a second lane may hide: the end says what share
    held: float = 0.0  # bytes of temporaries
    error_growth: float = 1.0
    lanes: int = 1
    tables: bool = False  # are there step tables?

    def beaten_by(self, other: Above) -> bool:
        """Is the other one at least as good in everything, whatever share of the sums is hidden?"""
        faster = other.seconds <= self.seconds and other.seconds - other.beside <= self.seconds - self.beside
        better = faster and other.held <= self.held and other.lanes <= self.lanes
        return better and other.error_growth <= self.error_growth and other.tables <= self.tables


class End(NamedTuple):
    """A plan for the products that the levels above leave, and what each of these costs by it."""

    plan: Plan
    seconds: float
    sums: float  # of these seconds, those that a second lane may hide
    overlap: float  # the share of such sums that is hidden
    held: float
    error_growth: float


class Composition(NamedTuple):
    """Levels above a plan. They are sorted by guessed seconds, equally fast ones by their number."""

    seconds: float
    number: int
    above: Above
    end: End


def composed_plans(
    problem: Problem, calibration: Calibration, room: Room, levels: Sequence[PlanLevel], ends: Sequence[Plan]
) -> list[Plan]:
    """Plans with some of these levels above some of these plans, within the room, the fastest first by a rough guess.

    Left out of that guess: how rows of A, B and C are aligned, and what a processor takes to start products.
    """
    m, k, n = problem.size
    found: list[Composition] = []
    below: dict[Sides, list[End]] = {}  # products of one size are left by several levels
    front = [Above((), (float(m), float(k), float(n)))]
    for _ in range(MOST_LEVELS):
        longer = (x for above in front for level in levels for x in _extended(above, level, problem, calibration))
        front = _unbeaten([x for x in longer if x.held <= room.workspace and x.error_growth <= room.error_growth])
        for sides in dict.fromkeys(above.sides for above in front):
            alike = [above for above in front if above.sides == sides]
            if sides not in below:
                below[sides] = list(_ends(ends, _problem_below(problem, sides), calibration))
            for end in below[sides]:
                for above in alike:
                    growth = above.error_growth * end.error_growth
                    if above.held + above.lanes * end.held <= room.workspace and growth <= ABOUT * room.error_growth:
                        found.append(Composition(_seconds(above, end), len(found), above, end))
    fitting = (x for c in sorted(found) if (x := _joined(c, problem, room)))
    return list(islice(fitting, FINALISTS))


def _extended(above: Above, level: PlanLevel, problem: Problem, calibration: Calibration) -> Iterator[Above]:
    """The same with one more level at the bottom, if that can stand there."""
    with suppress(PlanError):
        levels = (*above.levels, level)
        if (growth := _growth(levels, problem.dtype)) is None:
            return
        f = level_footprint(level, above.sides)
        if f is not None and min(f.sides) >= calibration.least:
            traffic = sum(f.moved) * problem.itemsize / (calibration.sequential if f.sequential else 1.0)
            each = (traffic + calibration.small * f.passes) / calibration.stream + calibration.launch * f.passes
            seconds = above.products * each
            beside = above.beside + (seconds if above.lanes > 1 else 0.0)
            held = above.held + above.lanes * sum(f.held) * problem.itemsize
            lanes = max(above.lanes, level.lanes)
            tables = above.tables or (level.cut is not None and level.cut.ordered)
            products, seconds = above.products * f.products, above.seconds + seconds
            yield Above(levels, f.sides, products, seconds, beside, held, growth, lanes, tables)


@depends_on_rows
@lru_cache(maxsize=4096)
def _growth(levels: tuple[PlanLevel, ...], dtype: str) -> float | None:
    """The error growth of levels, whatever the sides; None where they cannot stand above each other."""
    try:
        return expected_growth(Plan(levels), dtype)
    except PlanError:
        return None


def _unbeaten(found: Sequence[Above]) -> list[Above]:
    """Of those that leave equal products, the ones that no other beats; the first of equals."""
    kept: list[Above] = []
    for x in sorted(found, key=lambda x: (x.seconds, x.held, x.error_growth)):
        if not any(x.sides == other.sides and x.beaten_by(other) for other in kept):
            kept.append(x)
    return kept


def _problem_below(problem: Problem, sides: Sides) -> Problem:
    m, k, n = (ceil(side) for side in sides)
    return Problem(m, k, n, problem.dtype, op=problem.op)


def _ends(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[End]:
    for plan in plans:
        with suppress(PlanError):
            work = estimated_work(plan, problem)
            if not plan.levels or work.smallest >= calibration.least:
                found = predicted_seconds(plan, problem, work, calibration)
                sums, overlap = min(found.products, found.sums), overlap_with(plan, problem.dtype, calibration)
                growth = expected_growth(plan, problem.dtype)
                yield End(plan, found.seconds, sums, overlap, estimated_workspace(plan, problem), growth)


def _seconds(above: Above, end: End) -> float:
    beside = above.beside + (above.products * end.sums if above.lanes > 1 else 0.0)
    return above.seconds + above.products * end.seconds - end.overlap * beside


def _joined(found: Composition, problem: Problem, room: Room) -> Plan | None:
    """The whole plan; None if it is none, or not within the room."""
    above, end = found.above, found.end
    with suppress(PlanError):
        plan = Plan((*above.levels, *end.plan.levels), end.plan.leaf)
        share = FAR if above.tables else NEAR
        near = above.held + above.lanes * end.held > share * room.workspace
        fits = not near or workspace(plan, *problem.size, problem.itemsize) <= room.workspace
        return plan if fits and expected_growth(plan, problem.dtype) <= room.error_growth else None
    return None
