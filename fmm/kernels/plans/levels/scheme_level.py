"""The level of a fast algorithm: a scheme, a composition of schemes in one pass, or a paper's step table.

The text of the level begins with the algorithm: a scheme (`strassen`), a composition (`strassen^2`, `strassen*hk223`)
or a step table (`li-fig23`). Options follow after dots.

The traversal of a scheme is one of these options:

* `stacked`, the default: all sums of A and B, then the products, then one pass that forms C.
* `overlapped`: as `stacked`, but a GPU runs two products of the level at a time, so that sums below one product run
  concurrently with leaf products of the other product.
* `batched`: sums and products in the order of `stacked`. Every operand is copied to a temporary, and the level's
  products are one batch.
* `fused`: on a GPU, one product at a time with its sums inside the kernel of the leaf, without temporaries.
* `sequential`: one product at a time, with three temporaries.

A step table has its own order of operations.

Three options let products of a fused level run concurrently. With `streams`, products that write different blocks run
on two streams. With the option `atomic`, products add to C atomically in any order, so the last bits of C vary from run
to run. With `variants`, a launch computes several products that use equal numbers of blocks.

The fringe is one of these options:

* `unequal`: blocks differ by one row or column, and sums are computed as if smaller blocks were padded with zeros.
* `pad`: blocks are equal, with virtual zeros beyond the edge. With `pad16`, block sides are multiples of 16.
* `peel`: the largest part of the matrices that consists of equal blocks (the core) is multiplied by the level, and the
  remaining thin rectangles at the edge by the leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Final

from fmm.dtypes import FLOAT_TYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.catalogue import candidate_schemes, canonical_expression, scheme, scheme_names
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import (
    TABLES_PROVED_UNEQUAL,
    StepTable,
    candidate_step_tables,
    step_table,
    step_table_names,
    table_scheme,
)
from fmm.kernels.plans import fused_order
from fmm.kernels.plans.fused_order import FUSED_OPTIONS
from fmm.kernels.plans.gemm_params import PLAIN
from fmm.kernels.plans.level import (
    TRAVERSALS,
    CandidateLevel,
    FusedProducts,
    LevelBlockGrid,
    LevelKind,
    PlanError,
    Traversal,
    register_level,
    unknown_algorithm_error,
)
from fmm.kernels.plans.levels.footprint import BlockCounts, block_sides, count_blocks, side_length_ranks
from fmm.kernels.plans.levels.scheme_steps import (
    core_and_strip_steps,
    sequential_steps,
    split_multiply_join_steps,
    steps_of_step_table,
)
from fmm.kernels.plans.lower import LevelWithSteps, LevelWorkEstimate, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelMemoryNeeds, LevelSteps, ProductWithSums
from fmm.kernels.plans.sums import Sum, block_side
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Shape

FRINGES = ("unequal", "pad", "peel")
PAD_OPTIONS = tuple(f"pad{unit}" for unit in (4, 8, 16, 32, 64, 128))
# Functions that return the fringe, `unequal` or `pad`, for which a user's step table is proved. A proof executes plans,
# and this module cannot import the modules that execute plans, so fmm.kernels appends the function.
FRINGE_PROVERS: Final[list[Callable[[str], str]]] = []


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SchemeLevel(LevelWithSteps):
    """One level of a fast algorithm, with its order of products (traversal) and its fringe."""

    algorithm: str
    fringe: str
    scheme: Scheme | None
    table: StepTable | None

    @property
    def block_grid(self) -> Shape:
        """Return the block grid (m, k, n): A is cut into m x k blocks, and B into k x n blocks."""
        return self.table.size if self.table else self.scheme.size  # type: ignore[union-attr]

    @property
    def padded_side_multiple(self) -> int:
        """Return the number that divides padded block sides: 16 for `pad16`, 1 for all other fringes."""
        return int(self.fringe[3:] or 1) if self.fringe.startswith("pad") else 1

    @property
    def block_side_multiple(self) -> int | None:
        """Return the number that divides all block sides; None for the fringe `unequal` (sides differ by 1)."""
        return None if self.fringe == "unequal" else self.padded_side_multiple

    @property
    def level_with_less_recursion(self) -> SchemeLevel | None:
        """Return the level of a composition without its outermost factor; None for a single scheme or a table."""
        if self.scheme is None or len(self.scheme.factors) < 2:
            return None
        inner = "*".join(factor.name for factor in self.scheme.factors[1:])
        return scheme_level(inner, self.traversal or "stacked", self.fringe, self.tasks)

    # ---- steps of the level

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        if self.fringe == "peel":
            padded = build_scheme_level(self.algorithm, self.scheme, self.table, self.traversal, "pad", self.tasks)
            return core_and_strip_steps(replace(plan, levels=(padded, *plan.levels[1:])), self.block_grid, (m, k, n))
        return self.level_steps(plan.inner_plan, self.block_side_multiple, (m, k, n), alpha, beta)

    def level_steps(
        self, inner: Plan, unit: int | None, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        """Return the steps; block sides are multiples of `unit`; if `unit` is None, block sides differ by at most 1.

        The plan `inner` computes the products.
        """
        if self.table:
            return steps_of_step_table(self.table, unit, inner, sides)
        assert self.scheme is not None
        if self.traversal in ("sequential", "fused"):
            return sequential_steps(self.scheme, unit, inner, sides)
        found = split_multiply_join_steps(self.scheme, unit, inner, sides, alpha, beta, self.is_batched)
        return replace(found, streams=self.stream_count)

    @property
    def has_same_steps_for_nested_plans(self) -> bool:
        return self.fringe != "peel"

    def memory_needs(self, inner: Plan, sides: Shape) -> LevelMemoryNeeds | None:
        """Return the memory needs if the level is one batch of equal blocks; None for any other level.

        A batch needs three temporaries: for all left operands, all right operands and all products.
        """
        if (
            not self.is_batched
            or self.scheme is None
            or (unit := self.block_side_multiple) is None
            or self.fringe == "peel"
        ):
            return None
        m, k, n = (block_side(side, parts, unit) for side, parts in zip(sides, self.block_grid, strict=True))
        count = self.scheme.rank
        temporaries = (("S", count * m, k), ("T", count * k, n), ("M", count * m, n))
        return LevelMemoryNeeds(temporaries, ((inner, (m, k, n), PLAIN),), ((inner, (m, k, n), count),))

    # ---- quick counts

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        blocks, whole = block_sides(self.block_grid, self.fringe, self.padded_side_multiple, sides)
        m, k, n = (
            whole or side == parts * block for side, parts, block in zip(sides, self.block_grid, blocks, strict=True)
        )
        of_whole = (True, True, True) if self.table else (m and k, k and n, m and n)
        padded_table = self.table is not None and self.block_side_multiple is not None
        if padded_table and (refusal := _padded_table_error_text(self, inner, _side_length_ranks_with_ties(blocks))):
            raise PlanError(refusal)
        if self.needs_fusing_leaf:
            return LevelWorkEstimate(self.products, blocks)
        order = side_length_ranks(blocks) if self.table else SHORTEST_K_RANKS
        counts, one_by_one = _count_blocks_of_level(self, inner, order), self.traversal == "sequential"
        moved, held, passes = (
            counts.count_elements(counts.moved, blocks),
            counts.temporary_elements(blocks, of_whole),
            counts.passes,
        )
        if padded_table and not (m and n):  # the table computes C in a padded temporary
            padded_c = prod(blocks[side] * self.block_grid[side] for side in (0, 2))
            moved, held = (*moved[:2], moved[2] + 2 * padded_c), (*held[:2], held[2] + padded_c)
            passes += 1
        return LevelWorkEstimate(self.products, blocks, passes, moved, held, counts.in_place[not whole], one_by_one)

    # ---- explain

    def describe_steps(self, steps: LevelSteps) -> str:
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        updates = sum(isinstance(step, ProductWithSums) and len(step.as_separate_steps) > 1 for step in steps.steps)
        if self.fringe == "peel" and not sums:
            strips = len(steps.steps) - 1
            if strips:
                return f"core, then {strips} strip{'s' * (strips > 1)}"
            return "nothing to peel" if next(steps.products).plan.levels else "too small: left out"
        inside = f", {updates} more inside the products" if updates else ""
        done = "sums inside the products" if self.has_fused_sums else f"{sums} passes of sums{inside}"
        return f"{'x'.join(map(str, self.block_grid))} blocks, {done}"

    def describe_launches(self) -> str:
        """Return a text about a fused level's launches and their order; empty for other levels.

        If a GPU kernel can run consecutive launches as one launch, the recorder combines the launches.
        """
        if not self.needs_fusing_leaf or self.scheme is None:
            return ""
        stages = fused_order.launch_stages(self.scheme, self.tasks)
        streams = fused_order.count_cuda_streams(self.scheme, self.tasks)
        how = f"on {streams} streams in {len(stages)} stages" if len(stages) > 1 else f"on {streams} streams"
        kernels = fused_order.fused_variants_text(
            fused_order.count_touched_blocks(self.scheme, p) for p in range(self.products)
        )
        what = "launches" if self.tasks else "products"
        return f"{self}: {self.launch_count} {what} {how if streams > 1 else 'one after the other'} ({kernels})"


# ---- construction of a level


def scheme_level(
    algorithm: str, traversal: Traversal = "stacked", fringe: str = "unequal", tasks: tuple[str, ...] = ()
) -> SchemeLevel:
    """Return the level of a scheme, a composition or a step table; raise PlanError for incompatible options."""
    for option in tasks:
        _check_option("option", option, FUSED_OPTIONS)
    tasks = tuple(option for option in FUSED_OPTIONS if option in tasks)
    _check_option("fringe", fringe, FRINGES + PAD_OPTIONS)
    _check_option("traversal", traversal, TRAVERSALS)
    is_table = algorithm in step_table_names()
    if not is_table:
        algorithm = _canonical_scheme_text(algorithm)
    elif traversal != "sequential":
        raise PlanError(f"the step table {algorithm} is sequential, not {traversal}")
    if tasks and traversal != "fused":
        raise PlanError(f"{algorithm}: only a fused level can have {' and '.join(tasks)}")
    if {"streams", "atomic"} <= set(tasks):
        raise PlanError(f"{algorithm}: atomic additions need no order of products, so `streams` is not allowed")
    if traversal == "batched" and not fringe.startswith("pad"):
        raise PlanError(f"{algorithm}: a batch needs equal blocks: pad, not {fringe}")
    if is_table:
        return build_scheme_level(algorithm, None, step_table(algorithm), traversal, fringe, tasks)
    return build_scheme_level(algorithm, scheme(algorithm), None, traversal, fringe, tasks)


def build_scheme_level(
    name: str, scheme: Scheme | None, table: StepTable | None, traversal: Traversal | None, fringe: str,
    tasks: tuple[str, ...] = (),
) -> SchemeLevel:  # fmt: skip
    """Return the level of a scheme or step table that need not be in the catalogue; the options are not checked."""
    bilinear = table_scheme(table) if table else scheme
    assert bilinear is not None
    unit = None if fringe == "unequal" else int(fringe[3:] or 1) if fringe.startswith("pad") else 1
    peeled = fringe == "peel"
    # With the fringe `peel`, a fused level runs as a sequential level.
    can_fuse_last_level = traversal == "fused" and not peeled and scheme is not None
    return SchemeLevel(
        text=".".join([name, *_nondefault_options(name, traversal, fringe, tasks)]),
        algorithm=name,
        fringe=fringe,
        scheme=scheme,
        table=table,
        products=bilinear.rank,
        depth=max(len(bilinear.factors), 1),
        splits=max(bilinear.size) > 1,
        saves_products=bilinear.rank < prod(bilinear.size),
        bilinear=bilinear,
        # With the fringe `peel`, the steps depend on the sides of the product, not only on the sides of its blocks. A
        # table can store sums of A and B in blocks of C, so its steps depend on which of the block sides is longer.
        cut=None if peeled else LevelBlockGrid(bilinear.size, unit, ordered=table is not None),
        types=_types_allowing_coefficients(bilinear),
        traversal=traversal,
        tasks=tasks,
        takes_alpha_beta=traversal not in ("sequential", "fused") and not peeled,
        sums_inside=can_fuse_last_level or table is not None,
        fused_products=FusedProducts(bilinear, unit, tasks) if can_fuse_last_level else None,
    )


def _nondefault_options(name: str, traversal: Traversal | None, fringe: str, tasks: tuple[str, ...]) -> Iterator[str]:
    """Yield the options that differ from the algorithm's defaults, in the order of a plan's text."""
    if traversal and traversal != default_traversal(name):
        yield traversal
    yield from tasks
    if traversal and fringe != _fringe_of_algorithm(name, traversal):
        yield fringe


@lru_cache(maxsize=256)
def _types_allowing_coefficients(bilinear: Scheme) -> tuple[str, ...] | None:
    """Return the types for which a scheme can be used: None (any type) if all its coefficients are 0, 1 or -1.

    Other schemes are for floating-point types only: with other coefficients, sums of integers need not be integers.
    """
    found = bilinear.factors or (bilinear,)
    signs = all(abs(c) in (0, 1) for x in found for matrix in (x.u, x.v, x.w) for row in matrix for c in row)
    return None if signs else FLOAT_TYPES


def default_traversal(algorithm: str) -> Traversal:
    """Return the default traversal of an algorithm: `sequential` for a step table, `stacked` for a scheme."""
    return "sequential" if algorithm in step_table_names() else "stacked"


@clear_on_registration
@lru_cache(maxsize=256)
def default_fringe(algorithm: str, traversal: Traversal) -> str:
    """Return the default fringe of an algorithm: `unequal` if possible, because padded blocks also multiply zeros.

    Raise PlanError for a user's step table that declares `fringe unequal`, but is wrong on unequal blocks.
    """
    declared = _fringe_of_algorithm(algorithm, traversal)
    needs_proof = declared == "unequal" and algorithm in step_table_names() and algorithm not in TABLES_PROVED_UNEQUAL
    if needs_proof and "unequal" not in (proof(algorithm) for proof in FRINGE_PROVERS):
        raise PlanError(f"the step table {algorithm} declares `fringe unequal`, but is wrong on unequal blocks")
    return declared


def _fringe_of_algorithm(algorithm: str, traversal: Traversal) -> str:
    if algorithm in step_table_names():
        return step_table(algorithm).fringe
    return "pad" if traversal == "batched" else "unequal"


def _check_option(option_kind: str, value: object, valid: tuple[str, ...]) -> None:
    if value not in valid:
        raise PlanError(f"unknown {option_kind} {value!r}; valid: {', '.join(valid)}")


def _canonical_scheme_text(name: str) -> str:
    """Return the canonical text of a scheme or a composition; raise PlanError for an unknown scheme."""
    names = _composed_scheme_names(name)
    for table in (n for n in names if n in step_table_names()):
        raise PlanError(f"{table} is a step table, and cannot be composed; in {name!r} only schemes can")
    for unknown in (n for n in names if n not in scheme_names()):
        raise unknown_algorithm_error(unknown)
    scheme(name)
    return canonical_expression(name)


def _composed_scheme_names(expression: str) -> list[str]:
    """Return the names of the schemes in a composition, without powers."""
    return [part.partition("^")[0] for part in expression.replace(" ", "").split("*")]


# ---- counts of the level's blocks


def _side_length_ranks_with_ties(blocks: Sides) -> Shape:
    """Return the rank of each side by length: 0 for the shortest, then 1, 2. Equal sides have equal ranks."""
    lengths = sorted(set(blocks))
    m, k, n = (lengths.index(side) for side in blocks)
    return m, k, n


@clear_on_registration
@lru_cache(maxsize=1024)
def _padded_table_error_text(level: SchemeLevel, inner: Plan, order: Shape) -> str:
    """Return the message of the PlanError that a step table raises on padded blocks; empty if the table is valid.

    `order` holds the ranks of the block sides m, k and n by length: 0 for the shortest.
    """
    try:
        m, k, n = (
            parts * level.padded_side_multiple * (1 + rank) for parts, rank in zip(level.block_grid, order, strict=True)
        )
        level.level_steps(inner, level.block_side_multiple, (m, k, n))
    except PlanError as error:
        return str(error)
    return ""


SHORTEST_K_RANKS: Shape = (1, 0, 2)  # ranks of the sides by length: k is the shortest


@clear_on_registration
@lru_cache(maxsize=1024)
def _count_blocks_of_level(level: SchemeLevel, inner: Plan, order: Shape) -> BlockCounts:
    """Return the block counts of the level; only step tables depend on `order`, the ranks of block sides by length."""
    usual = None if level.traversal in ("stacked", "overlapped") else 1
    return count_blocks(lambda unit, sides: level.level_steps(inner, unit, sides), level.block_grid, usual, order)


# ---- the level's text in a plan


def level_with_options(algorithm: str, *options: str) -> SchemeLevel:
    """Return a level with these options; the algorithm determines the traversal and the fringe if no option does."""
    traversals = [option for option in options if option in TRAVERSALS]
    fringes = [option for option in options if option in FRINGES + PAD_OPTIONS]
    tasks = tuple(option for option in options if option in FUSED_OPTIONS)
    for several in (traversals, fringes):
        if len(several) > 1:
            raise PlanError(f"{algorithm} cannot be both {' and '.join(several)}")
    for unknown in (option for option in options if option not in (*traversals, *fringes, *tasks)):
        valid = ", ".join(TRAVERSALS + FRINGES + PAD_OPTIONS + FUSED_OPTIONS)
        raise PlanError(f"unknown option {unknown!r} of {algorithm}; valid: {valid}")
    traversal = next((t for t in TRAVERSALS if t in traversals), default_traversal(algorithm))
    fringe = fringes[0] if fringes else default_fringe(algorithm, traversal)
    return scheme_level(algorithm, traversal, fringe, tasks)


def _algorithm_names() -> tuple[str, ...]:
    return (*scheme_names(), *step_table_names())


def _parse_scheme_level(text: str) -> SchemeLevel | None:
    name, *options = text.split(".")
    return level_with_options(name, *options) if set(_composed_scheme_names(name)) & set(_algorithm_names()) else None


def _candidate_levels() -> Iterator[CandidateLevel]:
    """Yield the schemes, ordered by their number of additions, and then the step tables, which need less workspace."""
    found: list[tuple[int, CandidateLevel]] = []
    for name, forms in candidate_schemes():
        try:
            if forms:
                found.append((scheme(name).addition_count, CandidateLevel(name, forms, scheme(name).rank)))
        except ValueError:  # an invalid file of a scheme: the error appears when a plan names the scheme
            continue
    yield from (candidate for _, candidate in sorted(found))
    for name, forms in candidate_step_tables():
        with suppress(ValueError):
            if forms:
                yield CandidateLevel(name, forms, step_table(name).product_count, lean=True)


register_level(LevelKind("scheme", _parse_scheme_level, _algorithm_names, _candidate_levels))
