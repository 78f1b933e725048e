"""List the candidates: the plans that are compared for a problem when the caller names no plan.

PLAN_PATTERNS has named lists of text patterns for plans. A level names the lists with patterns into which the level
may be inserted, and a leaf names the lists with patterns to which the leaf may be appended. New levels and leaves are
therefore compared without a change of this module.

If the fastest candidate needs too much workspace, `compose_levels` puts further levels above candidates.
"""

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
from fmm.kernels.algorithms.text_files import FORM_ABOVE_CANDIDATES, FORM_ABOVE_WITHOUT_OPTIONS, FORM_SEARCH_ONLY
from fmm.kernels.plans.leaf import Leaf, plan_leaves
from fmm.kernels.plans.level import LEVEL_KINDS, CandidateLevel, Level, parse_level
from fmm.kernels.plans.lower import Sides
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.kernels.registry import clear_on_registration
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.predict import hidden_sum_share, predict_from_work
from fmm.perfmodel.stability import expected_error_growth
from fmm.perfmodel.work import cached_level_work, estimated_work, estimated_workspace
from fmm.problem import Problem


@dataclass(frozen=True)
class PlanPatterns:
    """A named list of text patterns for plans.

    A level's text replaces `{a}` in a pattern, and ` > ` and a leaf's name are appended. Texts that are no valid plans
    are skipped.
    """

    name: str
    device: str  # device of the plans: cpu or cuda
    patterns: tuple[str, ...]
    max_products: int  # plans with more leaf products than this number are skipped
    reason: str  # the reason why plans from these patterns are compared
    needs: str | None = None  # name of a Python module that must be importable; None: no module

    def plans_with_level_and_leaf(self, level: CandidateLevel, leaf: str) -> Iterator[Plan]:
        """Yield the plans that result from inserting `level` and `leaf` into each pattern.

        Plans with too many products are not parsed, since parsing takes seconds.
        """
        for pattern in self.patterns if self.name in level.forms else ():
            power = sum(int(p or 1) for p in re.findall(r"\{a\}(?:\^(\d))?", pattern))
            if level.products**power <= self.max_products:
                with suppress(PlanError):
                    yield Plan.parse(f"{pattern.format(a=level.text)} > {leaf}")


# Each PlanPatterns has the pattern of the fastest plan first, and the pattern of the plan with the smallest workspace
# last.
PLAN_PATTERNS: Final = (
    PlanPatterns(
        "nested",
        "cpu",
        ("{a}", "{a} > {a}", "{a} > {a} > {a}"),
        7**3,
        "level by level: a CPU's caches hold the sums of one level, but not the sums of several levels at once",
    ),
    PlanPatterns(
        "nested",
        "cpu",
        ("{a}^2",),
        7**2,
        "two levels in one pass: compiled sums load and store every number once and hold no panels in a cache",
        needs="llvmlite",
    ),
    PlanPatterns(
        "one pass",
        "cuda",
        ("{a}.batched.pad16", "{a}^2.batched.pad16", "{a}^3.batched.pad16"),
        7**3,
        # If one pass runs several levels, Winograd's shared sums save no traffic and need more registers than separate
        # sums. On an H200 Winograd's levels in one pass are never faster than Strassen's levels, and three of these
        # levels have half the speed.
        "one to three levels in one pass with a batch of leaf products: the fewest passes over memory",
    ),
    PlanPatterns(
        "outer",
        "cuda",
        (
            "{a}.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}.overlapped.pad16 > {a}^3.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^2.batched.pad16",
            "{a}^2.overlapped.pad16 > {a}^3.batched.pad16",
        ),
        7**5,
        "batches below one or two levels with two products at a time: the sums of one overlap the other's products",
    ),
    PlanPatterns(
        "in place",
        "cuda",
        ("{a}.overlapped.pad16", "{a}.pad16", "{a}^2.overlapped.pad16", "{a}^2.pad16"),
        7**2,
        # Without a batch of products, Winograd's levels copy less of A and B than Strassen's levels.
        "one or two levels that read blocks of A and B in place: fewer copies and less workspace",
    ),
    PlanPatterns(
        "copied", "cuda", ("{a}.batched.pad16",), 1, "no level, but aligned copies: the vendor is slow on other rows"
    ),
    PlanPatterns(
        "inside",
        "cuda",
        ("{a}.fused.pad4", "{a}.pad4 > {a}.fused.pad4"),
        7**2,
        "sums inside the tiled kernel: one level needs no workspace, two levels need a seventh of the usual workspace",
    ),
)


# OUTER_LEVEL_PATTERNS are the patterns of levels that may be put above any candidate on a GPU. Levels that run one
# product after the other need the smallest workspace. On an H200 in float32 at n = 65536, a plan of one sequential, two
# overlapped and three one-pass levels has 1.96 times cuBLAS's speed and 51 GiB of workspace. A plan of two sequential
# levels above three levels in one pass has 1.67 times cuBLAS's speed and 31 GiB of workspace. Plans without sequential
# levels need 156 GiB of workspace for this product.
OUTER_LEVEL_PATTERNS: Final = (
    "{a}.sequential.pad16",
    "{a}.pad16",
    "{a}.overlapped.pad16",
    "{a}^2.pad16",
    "{a}^2.overlapped.pad16",
)


# ---- candidates of whole products


def device_candidate_plans(batches: bool, gram: bool = False) -> tuple[Plan, ...]:
    """Return the candidates of a GPU, or of a CPU if `batches` is False; a GPU starts the products of a batch together.

    If `gram` is True, the candidates are plans for self-adjoint products such as A^T A.
    """
    device = "cuda" if batches else "cpu"
    return gram_candidates(device) if gram else candidate_plans(device)


@clear_on_registration
@lru_cache(maxsize=4)
def candidate_plans(device: str) -> tuple[Plan, ...]:
    """Return the plans that are compared on a device (`cpu` or `cuda`), the vendor and the probed plans first."""
    more = [
        plan for name in _pattern_names(device) for plan in _plans_from_patterns(name, device, lambda leaf: leaf.forms)
    ]
    plain = [plan for plan in dict.fromkeys([*probed_plans(device), *more])]
    above = [plan for level in candidate_levels() if level.above for plan in _plans_below_level(level, plain, device)]
    return tuple(dict.fromkeys([*plain, *above]))


@clear_on_registration
@lru_cache(maxsize=4)
def probed_plans(device: str) -> tuple[Plan, ...]:
    """Return the candidates that a tuning's probes measure: the vendor first, other leaves without levels last."""
    names = _pattern_names(device)
    plans = [plan for name in names for plan in _plans_from_patterns(name, device, lambda leaf: leaf.probed_plan_forms)]
    return tuple(dict.fromkeys([VENDOR, *plans]))


def vendor_alternative_plans(device: str) -> tuple[Plan, ...]:
    """Return the plans that run other functions of the vendor's library; a good plan is faster than these plans too."""
    peers = [leaf for leaf in device_leaves(device) if "peer" in leaf.forms]
    return tuple(Plan(leaf=name) for leaf in peers for name in leaf.candidate_names)


def _plans_below_level(level: CandidateLevel, plans: Sequence[Plan], device: str) -> Iterator[Plan]:
    """Yield each of `plans` below a level that changes the type or scale of numbers, such as `3m` for complex numbers.

    A level with a batch of products is only put above plans without levels. A CPU ignores batches and extra streams, so
    levels with a batch or extra streams are no candidates on a CPU.
    """
    (first,) = Plan.parse(f"{level.text} > {VENDOR}").levels
    if device == "cpu" and (first.is_batched or first.needs_extra_streams):
        return
    for plan in plans:
        if not (first.is_batched and plan.levels):
            with suppress(PlanError):
                composed = Plan((first, *plan.levels), plan.leaf)
                if any(composed.accepts_type(dtype) for dtype in first.types or DTYPES):
                    yield composed


def _usable_patterns(device: str) -> list[PlanPatterns]:
    usable = [form for form in PLAN_PATTERNS if form.needs is None or find_spec(form.needs) is not None]
    return [form for form in usable if form.device == device]


def _pattern_names(device: str) -> tuple[str, ...]:
    return (*(form.name for form in _usable_patterns(device)), "alone")


def _plans_from_patterns(name: str, device: str, leaf_forms: Callable[[Leaf], tuple[str, ...]]) -> list[Plan]:
    """Return the plans from the patterns with this name; `leaf_forms` returns the names of patterns for a leaf."""
    leaves = [x for leaf in device_leaves(device) if name in leaf_forms(leaf) for x in leaf.candidate_names]
    if name == "alone":
        return [Plan(leaf=leaf) for leaf in leaves]
    forms = [form for form in _usable_patterns(device) if form.name == name]
    levels = candidate_levels()
    return [
        plan
        for form in forms
        for leaf in leaves
        for level in levels
        for plan in form.plans_with_level_and_leaf(level, leaf)
    ]


# ---- candidates of self-adjoint products


# For each device, the numbers of cuts that candidates try for a self-adjoint product. A CPU's BLAS gains nothing from
# more cuts into small blocks.
GRAM_CUT_COUNTS: Final = {"cpu": (1, 2, 3), "cuda": (1, 2, 3, 4, 5)}
# Names of the PLAN_PATTERNS for the blocks of C below the diagonal, which are general products.
GRAM_FORM_NAMES: Final = ("nested", "one pass", "outer")
GRAM_ALGORITHM_COUNT: Final = 1  # number of algorithms that are tried for the products below the diagonal
# The entry in the field `forms` of a leaf that computes the whole lower triangle of C, but cannot compute a single
# block of the triangle.
TRIANGLE_ONLY_FORM: Final = "half"


@clear_on_registration
@lru_cache(maxsize=4)
def gram_candidates(device: str) -> tuple[Plan, ...]:
    """Return the plans that are compared for self-adjoint products, the vendor first.

    A leaf with a kernel for triangles needs no level `gram`. For other leaves, levels `gram` cut C into blocks: a plan
    for general products computes the blocks below the diagonal, and the plan's leaf computes the blocks on the
    diagonal. If the plan's leaf is `vendor`, further candidates compute the diagonal blocks with a triangle kernel of
    another leaf.
    """
    inner = [VENDOR, *_plans_from_patterns("alone", device, lambda leaf: leaf.forms)]
    for form in _usable_patterns(device):
        levels = [level for level in candidate_levels() if form.name in level.forms][:GRAM_ALGORITHM_COUNT]
        names = [x for leaf in device_leaves(device) if form.name in leaf.forms for x in leaf.candidate_names]
        if form.name in GRAM_FORM_NAMES:
            inner += [
                plan for name in names for level in levels for plan in form.plans_with_level_and_leaf(level, name)
            ]
    alone = [x for x in plan_leaves() if x.is_candidate_on(device) and x.forms and x.kernel_triangles]
    plans = [VENDOR, *(Plan(leaf=x.name) for x in alone)]
    leaves = device_leaves(device)
    diagonal_leaves = [f".{leaf.name}" for leaf in leaves if leaf.kernel_triangles and not leaf.emulates]
    diagonal_leaves += [f".{leaf.name}.outer" for leaf in leaves if leaf.slow_columns]
    for cuts in GRAM_CUT_COUNTS[device]:
        for plan in dict.fromkeys(inner):
            others = diagonal_leaves if plan.leaf == VENDOR.leaf else []
            plans += [Plan.parse(f"gram^{cuts}{leaf} > {plan}") for leaf in ("", *others)]
    return tuple(plans)


# ---- levels and leaves of candidates


def device_leaves(device: str) -> list[Leaf]:
    """Return the leaves of a device, except the leaves that compute only triangles."""
    return [leaf for leaf in plan_leaves() if leaf.is_candidate_on(device) and set(leaf.forms) - {TRIANGLE_ONLY_FORM}]


@clear_on_registration
@lru_cache(maxsize=1)
def candidate_levels() -> tuple[CandidateLevel, ...]:
    """Return the levels that candidates use; levels that need less workspace come last."""
    levels = [level for kind in LEVEL_KINDS for level in kind.candidates()]
    return tuple(sorted(levels, key=lambda level: level.lean))


def tuner_search_levels(device: str) -> tuple[CandidateLevel, ...]:
    """Return the levels that the tuner's search tries on a device, levels of candidates first."""
    forms = [form.name for form in _usable_patterns(device)] + ([FORM_SEARCH_ONLY] if device == "cpu" else [])

    def first_pattern_index(level: CandidateLevel) -> int:
        return min((forms.index(form) for form in level.forms if form in forms), default=len(forms))

    levels = [level for level in candidate_levels() if first_pattern_index(level) < len(forms)]
    return tuple(sorted(levels, key=lambda level: (level.lean, first_pattern_index(level))))


@clear_on_registration
@lru_cache(maxsize=4)
def workspace_saving_levels(device: str) -> tuple[Level, ...]:
    """Return the levels that may be put above any candidate that needs too much workspace."""
    levels: list[Level] = []
    for level in candidate_levels() if device == "cuda" else ():
        patterns = (
            OUTER_LEVEL_PATTERNS
            if FORM_ABOVE_CANDIDATES in level.forms
            else ("{a}",)
            if FORM_ABOVE_WITHOUT_OPTIONS in level.forms
            else ()
        )
        for pattern in patterns:
            with suppress(PlanError):
                levels.append(parse_level(pattern.format(a=level.text)))
    return tuple(dict.fromkeys(levels))


# ---- levels above candidates, until the workspace suffices

# A level that runs one product after the other holds the temporaries of one product at a time. Thousands of
# compositions of levels are possible. Compositions are built level by level from the outermost level inwards. Of two
# compositions that leave products of equal size, one is dropped if the other is better in time, workspace and error.

MAX_OUTER_LEVELS = 3
MAX_COMPOSITIONS = 8  # number of compositions for which the whole formula predicts the time
# If the estimated workspace is above EXACT_COUNT_SHARE of the allowed workspace, the workspace is counted exactly. For
# plans with step tables the share is STEP_TABLE_EXACT_COUNT_SHARE: their workspace is up to 1.4 times the estimated
# workspace if blocks at a fringe are smaller.
EXACT_COUNT_SHARE, STEP_TABLE_EXACT_COUNT_SHARE = 0.8, 0.25
# Outer levels and an inner plan are composed if the product of their error growths exceeds the limit by at most this
# factor. The error growth of the composed plan may be smaller than the product of both error growths.
ERROR_GROWTH_TOLERANCE = 1.5


@dataclass(frozen=True)
class OuterLevels:
    """A sequence of levels, outermost first, with the cost of the levels and the sides of the products below them."""

    levels: tuple[Level, ...]
    sides: Sides
    products: float = 1.0
    seconds: float = 0.0
    # part of `seconds`: the time of sums that may run while another stream multiplies
    overlappable: float = 0.0
    workspace: float = 0.0  # bytes of temporaries
    error_growth: float = 1.0
    streams: int = 1
    has_tables: bool = False  # True if one of the levels is a step table

    def is_dominated_by(self, other: OuterLevels) -> bool:
        """Return True if `other` is no worse in time (with and without hidden sums), workspace and error growth."""
        faster = other.seconds <= self.seconds
        faster = faster and other.seconds - other.overlappable <= self.seconds - self.overlappable
        better = faster and other.workspace <= self.workspace and other.streams <= self.streams
        return better and other.error_growth <= self.error_growth and other.has_tables <= self.has_tables


class InnerPlan(NamedTuple):
    """A plan for the products below outer levels, and the cost of one product."""

    plan: Plan
    seconds: float
    overlappable: float  # part of `seconds`: sums that may run while another stream multiplies
    hidden_sum_share: float  # share of `overlappable` that products hide, for this plan and for the outer levels
    workspace: float
    error_growth: float


class LevelComposition(NamedTuple):
    """Outer levels above an inner plan; compositions are sorted by `seconds`, and by `number` if equally fast."""

    seconds: float
    number: int
    outer: OuterLevels
    inner: InnerPlan


def compose_levels(
    problem: Problem,
    calibration: Calibration,
    max_workspace: float,
    max_error_growth: float,
    levels: Sequence[Level],
    plans: Sequence[Plan],
) -> list[Plan]:
    """Return compositions of `levels` and `plans` within the limits of workspace and error, the fastest first.

    The estimated times, by which the compositions are sorted, ignore the alignment of rows and the host's time to start
    products.
    """
    m, k, n = problem.size
    found: list[LevelComposition] = []
    # inner plans by the sides of their product, since several sequences of outer levels lead to equal sides
    inner_plans: dict[Sides, list[InnerPlan]] = {}
    front = [OuterLevels((), (float(m), float(k), float(n)))]
    for _ in range(MAX_OUTER_LEVELS):
        longer = (
            x
            for outer in front
            for level in levels
            for x in _append_innermost_level(outer, level, problem, calibration)
        )
        front = _drop_dominated_outer_levels(
            [x for x in longer if x.workspace <= max_workspace and x.error_growth <= max_error_growth]
        )
        for sides in dict.fromkeys(outer.sides for outer in front):
            same_size = [outer for outer in front if outer.sides == sides]
            if sides not in inner_plans:
                m, k, n = (ceil(side) for side in sides)
                below = Problem(m, k, n, problem.dtype, op=problem.op)
                inner_plans[sides] = list(_inner_plans(plans, below, calibration))
            for inner in inner_plans[sides]:
                for outer in same_size:
                    growth = outer.error_growth * inner.error_growth
                    fits = outer.workspace + outer.streams * inner.workspace <= max_workspace
                    if fits and growth <= ERROR_GROWTH_TOLERANCE * max_error_growth:
                        overlappable = outer.products * inner.overlappable if outer.streams > 1 else 0.0
                        hidden = inner.hidden_sum_share * (outer.overlappable + overlappable)
                        seconds = outer.seconds + outer.products * inner.seconds - hidden
                        found.append(LevelComposition(seconds, len(found), outer, inner))
    fitting = (x for c in sorted(found) if (x := _composed_plan(c, problem, max_workspace, max_error_growth)))
    return list(islice(fitting, MAX_COMPOSITIONS))


def _append_innermost_level(
    outer: OuterLevels, level: Level, problem: Problem, calibration: Calibration
) -> Iterator[OuterLevels]:
    """Yield `outer` with `level` added as its innermost level, if `level` can run below `outer`."""
    with suppress(PlanError):
        levels = (*outer.levels, level)
        if (growth := _levels_error_growth(levels, problem.dtype)) is None:
            return
        f = cached_level_work(level, outer.sides)
        if f is not None and min(f.sides) >= calibration.least:
            traffic = sum(f.moved) * problem.itemsize / (calibration.sequential if f.sequential else 1.0)
            each = (traffic + calibration.small * f.passes) / calibration.stream + calibration.launch * f.passes
            seconds = outer.products * each
            yield OuterLevels(
                levels,
                f.sides,
                outer.products * f.products,
                outer.seconds + seconds,
                outer.overlappable + (seconds if outer.streams > 1 else 0.0),
                outer.workspace + outer.streams * sum(f.held) * problem.itemsize,
                growth,
                max(outer.streams, level.stream_count),
                outer.has_tables or (level.cut is not None and level.cut.ordered),
            )


@clear_on_registration
@lru_cache(maxsize=4096)
def _levels_error_growth(levels: tuple[Level, ...], dtype: str) -> float | None:
    """Return the error growth of a sequence of levels; None if the sequence is invalid.

    The growth does not depend on the sides of the matrices.
    """
    try:
        return expected_error_growth(Plan(levels), dtype)
    except PlanError:
        return None


def _drop_dominated_outer_levels(found: Sequence[OuterLevels]) -> list[OuterLevels]:
    """Return the outer levels without those that are dominated by outer levels with products of the same size."""
    best: list[OuterLevels] = []
    for x in sorted(found, key=lambda x: (x.seconds, x.workspace, x.error_growth)):
        if not any(x.sides == other.sides and x.is_dominated_by(other) for other in best):
            best.append(x)
    return best


def _inner_plans(plans: Sequence[Plan], problem: Problem, calibration: Calibration) -> Iterator[InnerPlan]:
    for plan in plans:
        with suppress(PlanError):
            work = estimated_work(plan, problem)
            if not plan.levels or work.smallest_leaf_side >= calibration.least:
                found = predict_from_work(plan, problem, work, calibration)
                overlappable = min(found.products, found.sums)
                share = hidden_sum_share(plan, problem.dtype, calibration)
                growth = expected_error_growth(plan, problem.dtype)
                yield InnerPlan(
                    plan, found.predicted_seconds, overlappable, share, estimated_workspace(plan, problem), growth
                )


def _composed_plan(
    found: LevelComposition, problem: Problem, max_workspace: float, max_error_growth: float
) -> Plan | None:
    """Return the composition as a plan; None if the plan is invalid or exceeds a limit."""
    outer, inner = found.outer, found.inner
    with suppress(PlanError):
        plan = Plan((*outer.levels, *inner.plan.levels), inner.plan.leaf)
        share = STEP_TABLE_EXACT_COUNT_SHARE if outer.has_tables else EXACT_COUNT_SHARE
        near = outer.workspace + outer.streams * inner.workspace > share * max_workspace
        fits = not near or plan_workspace_bytes(plan, *problem.size, problem.itemsize) <= max_workspace
        return plan if fits and expected_error_growth(plan, problem.dtype) <= max_error_growth else None
    return None
