"""Candidates."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from itertools import islice
from math import ceil
from typing import Final, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.text_files import ABOVE, ABOVE_AS_IT_IS, SEARCHED
from fmm.kernels.plans.leaf import Leaf, plan_leaves
from fmm.kernels.plans.level import LEVEL_KINDS, CandidateLevel, Level, parse_level
from fmm.kernels.plans.lower import Sides
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import hidden_share, predict_from_work
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import estimated_work, estimated_workspace, level_footprint
from fmm.problem import Problem


@dataclass(frozen=True)
class CandidateForm:
    """A way to make plans of a level and a leaf: `{a}` in a pattern stands for the level, and the leaf follows.

    Whatever is no valid plan is left out.
    """

    name: str
    device: str  # cpu or cuda
    patterns: tuple[str, ...]
    most_products: int  # plans that would make more are left out
    reason: str  # why such plans are worth a comparison
    needs: str | None = None  # a library without which they are not

    def plans(self, level: CandidateLevel, leaf: str) -> Iterator[Plan]:
        """The plans of this form. Too large compositions are not even parsed: that would take seconds."""
        for pattern in self.patterns if self.name in level.forms else ():
            power = sum(int(p or 1) for p in re.findall(r"\{a\}(?:\^(\d))?", pattern))
            if level.products**power <= self.most_products:
                with suppress(PlanError):
                    yield Plan.parse(f"{pattern.format(a=level.text)} > {leaf}")


# From the fastest down to those that need the least workspace.
CANDIDATE_FORMS: Final = (
    CandidateForm(
        "nested",
        "cpu",
        ("{a}", "{a} > {a}", "{a} > {a} > {a}"),
        7**3,
        "level by level: a CPU's caches hold the sums of one level, and not of several at once",
    ),
    CandidateForm(
        "nested",
        "cpu",
        ("{a}^2",),
        7**2,
        "two levels in one pass: compiled sums load and store every number once, and have no panels to keep in a cache",
        needs="llvmlite",
    ),
    CandidateForm(
        "one pass",
        "cuda",
        ("{a}.batched.pad16", "{a}^2.batched.pad16", "{a}^3.batched.pad16"),
        7**3,
        # In one pass every sum is formed by itself, so Winograd's sharing saves no traffic there and costs registers:
        # its sums are never faster than Strassen's, of three levels half as fast (H200).
        "one to three levels in one pass with a batch of leaf products: the fewest passes over memory",
    ),
    CandidateForm(
        "outer",
        "cuda",
        (
            "{a}.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}.overlapped.pad16 > {a}^3.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^3.batched.pad16",
        ),
        7**5,
        "such batches below one or two levels with two products at a time: sums of one run beside the other's products",
    ),
    CandidateForm(
        "in place",
        "cuda",
        ("{a}.overlapped.pad16", "{a}.pad16", "{a}^2.overlapped.pad16", "{a}^2.pad16"),
        7**2,
        # Alone, Winograd's levels leave more of A and B in place than Strassen's.
        "one or two levels that read blocks of A and B where they are: less is copied, and less workspace needed",
    ),
    CandidateForm(
        "copied", "cuda", ("{a}.batched.pad16",), 1, "no level at all, but aligned: the vendor's slow products are fast"
    ),
    CandidateForm(
        "inside",
        "cuda",
        ("{a}.fused.pad4", "{a}.pad4 > {a}.fused.pad4"),
        7**2,
        "the sums inside our own kernel: a level that needs no workspace, and one below another that needs a seventh",
    ),
)


# Levels that may stand above any candidate on a GPU: those that do one product after the other need the least
# workspace. (Of 65536 x 65536 in float32 on an H200: one of these above two overlapped levels and three in one pass is
# 1.96 times as fast as cuBLAS, two above three in one pass 1.67 times, with 51 and 31 GiB in the place of 156.)
PATTERNS_ABOVE: Final = (
    "{a}.sequential.pad16",
    "{a}.pad16",
    "{a}.overlapped.pad16",
    "{a}^2.pad16",
    "{a}^2.overlapped.pad16",
)


@clear_on_registration
@lru_cache(maxsize=4)
def candidate_plans(device: str) -> tuple[Plan, ...]:
    """The plans that are compared on a device (`cpu`, `cuda`): first those that a tuning probes, with the vendor's."""
    more = [plan for name in _form_names(device) for plan in _plans_of(name, device, lambda leaf: leaf.forms)]
    plain = [plan for plan in dict.fromkeys([*probed_plans(device), *more])]
    above = [plan for level in candidate_levels() if level.above for plan in _plans_below(level, plain, device)]
    return tuple(dict.fromkeys([*plain, *above]))


def _plans_below(level: CandidateLevel, plans: Sequence[Plan], device: str) -> Iterator[Plan]:
    """These plans, each below a level that changes the numbers.

    Below a level whose products are a batch only leaves make sense. A CPU runs all orders of such a level alike, except
    for the lean one.
    """
    (first,) = Plan.parse(f"{level.text} > {VENDOR}").levels
    if device == "cpu" and (first.batched or first.side_by_side):
        return
    for plan in plans:
        if not (first.batched and plan.levels):
            with suppress(PlanError):
                composed = Plan((first, *plan.levels), plan.leaf)
                if any(composed.accepts_type(dtype) for dtype in first.types or DTYPES):
                    yield composed


@clear_on_registration
@lru_cache(maxsize=4)
def probed_plans(device: str) -> tuple[Plan, ...]:
    """Those candidates that a tuning measures on its probes: the vendor's product first, other leaves alone last."""
    names = _form_names(device)
    plans = [plan for name in names for plan in _plans_of(name, device, lambda leaf: leaf.probed)]
    return tuple(dict.fromkeys([VENDOR, *plans]))


@clear_on_registration
@lru_cache(maxsize=4)
def outer_levels(device: str) -> tuple[Level, ...]:
    """Levels that may be put above any candidate, where that one needs too much workspace."""
    levels: list[Level] = []
    for level in candidate_levels() if device == "cuda" else ():
        patterns = PATTERNS_ABOVE if ABOVE in level.forms else ("{a}",) if ABOVE_AS_IT_IS in level.forms else ()
        for pattern in patterns:
            with suppress(PlanError):
                levels.append(parse_level(pattern.format(a=level.text)))
    return tuple(dict.fromkeys(levels))


def _forms_on(device: str) -> list[CandidateForm]:
    usable = [form for form in CANDIDATE_FORMS if form.needs is None or find_spec(form.needs) is not None]
    return [form for form in usable if form.device == device]


def _form_names(device: str) -> tuple[str, ...]:
    return (*(form.name for form in _forms_on(device)), "alone")


def _plans_of(name: str, device: str, leaf_forms: Callable[[Leaf], tuple[str, ...]]) -> list[Plan]:
    """The plans of all forms of this name. `leaf_forms`: the names of the forms that a leaf may end."""
    leaves = [x for leaf in device_leaves(device) if name in leaf_forms(leaf) for x in leaf.tried_names]
    if name == "alone":
        return [Plan(leaf=leaf) for leaf in leaves]
    forms = [form for form in _forms_on(device) if form.name == name]
    levels = candidate_levels()
    return [plan for form in forms for leaf in leaves for level in levels for plan in form.plans(level, leaf)]


# ---- products that are their own adjoints

CUTS: Final = {"cpu": (1, 2, 3), "cuda": (1, 2, 3, 4, 5)}  # a CPU's BLAS gains nothing by many small blocks
HALF_FORMS: Final = ("nested", "one pass", "outer")  # of the plans for the products below the diagonal
HALF_LEVELS: Final = 1  # how many algorithms are tried in these plans
HALF_ALONE: Final = "half"  # the form of a leaf that does whole products of this kind, but no blocks of them


@clear_on_registration
@lru_cache(maxsize=4)
def gram_candidates(device: str) -> tuple[Plan, ...]:
    """The plans that are compared for products that are their own adjoints, the vendor's first.

    Leaves with a kernel for halves do it alone. Otherwise levels `gram` cut it: the vendor, or a plan that is fast for
    products, does those below the diagonal, and that plan's leaf the blocks on it. Where that leaf is the vendor's,
    leaves with a kernel for halves do the blocks in further plans.
    """
    inner = [VENDOR, *_plans_of("alone", device, lambda leaf: leaf.forms)]
    for form in _forms_on(device):
        levels = [level for level in candidate_levels() if form.name in level.forms][:HALF_LEVELS]
        names = [x for leaf in device_leaves(device) if form.name in leaf.forms for x in leaf.tried_names]
        if form.name in HALF_FORMS:
            inner += [plan for name in names for level in levels for plan in form.plans(level, name)]
    for_gram = [x for x in plan_leaves() if device in x.devices and x.forms and x.kernel_triangles]
    plans = [VENDOR, *(Plan(leaf=x.name) for x in for_gram)]
    on_device = device_leaves(device)
    diagonal_leaves = [f".{leaf.name}" for leaf in on_device if leaf.kernel_triangles and not leaf.emulates]
    diagonal_leaves += [f".{leaf.name}.outer" for leaf in on_device if leaf.slow_columns]
    for cuts in CUTS[device]:
        for plan in dict.fromkeys(inner):
            others = diagonal_leaves if plan.leaf == VENDOR.leaf else []
            plans += [Plan.parse(f"gram^{cuts}{by} > {plan}") for by in ("", *others)]
    return tuple(plans)


# ---- levels and leaves to make them of


def device_leaves(device: str) -> list[Leaf]:
    """The leaves and whole levels that a device has, except those for products that are their own adjoints alone."""
    return [leaf for leaf in plan_leaves() if device in leaf.devices and set(leaf.forms) - {HALF_ALONE}]


def peer_plans(device: str) -> tuple[Plan, ...]:
    """The vendor's other ways to multiply, which a plan must beat as well."""
    peers = [leaf for leaf in device_leaves(device) if "peer" in leaf.forms]
    return tuple(Plan(leaf=name) for leaf in peers for name in leaf.tried_names)


@clear_on_registration
@lru_cache(maxsize=1)
def candidate_levels() -> tuple[CandidateLevel, ...]:
    """The levels of all kinds that plans are made of unasked; those that need less workspace come last."""
    levels = [level for kind in LEVEL_KINDS for level in kind.candidates()]
    return tuple(sorted(levels, key=lambda level: level.lean))


def search_levels(device: str) -> tuple[CandidateLevel, ...]:
    """The levels that a tuner's search tries on a device; those of the plans that are compared anyway come first."""
    forms = [form.name for form in _forms_on(device)] + ([SEARCHED] if device == "cpu" else [])

    def first_form(level: CandidateLevel) -> int:
        return min((forms.index(form) for form in level.forms if form in forms), default=len(forms))

    levels = [level for level in candidate_levels() if first_form(level) < len(forms)]
    return tuple(sorted(levels, key=lambda level: (level.lean, first_form(level))))


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

    levels: tuple[Level, ...]
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


def compose_levels(
    problem: Problem, calibration: Calibration, room: Room, levels: Sequence[Level], ends: Sequence[Plan]
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
                    if above.held + above.streams * end.held <= room.workspace and growth <= ABOUT * room.error_growth:
                        found.append(Composition(_seconds(above, end), len(found), above, end))
    fitting = (x for c in sorted(found) if (x := _joined(c, problem, room)))
    return list(islice(fitting, FINALISTS))


def _extended(above: Above, level: Level, problem: Problem, calibration: Calibration) -> Iterator[Above]:
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
            beside = above.beside + (seconds if above.streams > 1 else 0.0)
            held = above.held + above.streams * sum(f.held) * problem.itemsize
            lanes = max(above.streams, level.streams)
            tables = above.tables or (level.cut is not None and level.cut.ordered)
            products, seconds = above.products * f.products, above.seconds + seconds
            yield Above(levels, f.sides, products, seconds, beside, held, growth, lanes, tables)


@clear_on_registration
@lru_cache(maxsize=4096)
def _growth(levels: tuple[Level, ...], dtype: str) -> float | None:
    """The error growth of levels, whatever the sides; None where they cannot stand above each other."""
    try:
        return expected_error_growth(Plan(levels), dtype)
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
                found = predict_from_work(plan, problem, work, calibration)
                sums, overlap = min(found.products, found.sums), hidden_share(plan, problem.dtype, calibration)
                growth = expected_error_growth(plan, problem.dtype)
                yield End(plan, found.seconds, sums, overlap, estimated_workspace(plan, problem), growth)


def _seconds(above: Above, end: End) -> float:
    beside = above.beside + (above.products * end.sums if above.streams > 1 else 0.0)
    return above.seconds + above.products * end.seconds - end.overlap * beside


def _joined(found: Composition, problem: Problem, room: Room) -> Plan | None:
    """The whole plan; None if it is none, or not within the room."""
    above, end = found.above, found.end
    with suppress(PlanError):
        plan = Plan((*above.levels, *end.plan.levels), end.plan.leaf)
        share = FAR if above.tables else NEAR
        near = above.held + above.streams * end.held > share * room.workspace
        fits = not near or workspace(plan, *problem.size, problem.itemsize) <= room.workspace
        return plan if fits and expected_error_growth(plan, problem.dtype) <= room.error_growth else None
    return None
