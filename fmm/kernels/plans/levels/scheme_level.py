"""The level that most plans are made of: a scheme, schemes composed into one pass, or a paper's step table."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod

from fmm.dtypes import FLOATS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.algorithms.step_table import (
    StepTable,
    step_table,
    step_table_names,
    table_scheme,
)
from fmm.kernels.plans.level import Cut, FusedProducts
from fmm.kernels.plans.level_with_steps import Footprint, LevelWithSteps, Sides
from fmm.kernels.plans.levels.scheme_footprint import BlockCounts, block_counts, block_sides, side_order
from fmm.kernels.plans.levels.scheme_options import (
    FRINGES,
    TRAVERSALS,
    UNITS,
    Traversal,
    check_choice,
    scheme_name,
    usual_fringe,
    usual_traversal,
)
from fmm.kernels.plans.levels.scheme_steps import peeled_steps, sequential_steps, stacked_steps
from fmm.kernels.plans.levels.table_steps import table_steps
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps import fused_order
from fmm.kernels.plans.steps.asked import PLAIN
from fmm.kernels.plans.steps.blocks import block_side
from fmm.kernels.plans.steps.fused_order import TASKS
from fmm.kernels.plans.steps.level_steps import LevelSteps, ProductWithSums
from fmm.kernels.plans.steps.needed import Needed
from fmm.kernels.plans.steps.sums import Sum
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Shape


@dataclass(frozen=True)
class Level(LevelWithSteps):
    """One level of a fast algorithm: which, in which order, and what happens at the fringe."""

    algorithm: str
    traversal: Traversal = "stacked"
    fringe: str = "unequal"
    tasks: tuple[str, ...] = ()  # of a fused level: how its products share launches and the device

    def __post_init__(self) -> None:
        for option in self.tasks:
            check_choice("option", option, TASKS)
        object.__setattr__(self, "tasks", tuple(option for option in TASKS if option in self.tasks))
        check_choice("fringe", self.fringe, FRINGES + UNITS)
        check_choice("traversal", self.traversal, TRAVERSALS)
        if self.algorithm not in step_table_names():
            object.__setattr__(self, "algorithm", scheme_name(self.algorithm))
        elif self.traversal != "sequential":
            raise PlanError(f"the step table {self.algorithm} is sequential, not {self.traversal}")
        if self.tasks and self.traversal != "fused":
            raise PlanError(f"{self.algorithm}: only a fused level can have {' and '.join(self.tasks)}")
        if {"streams", "atomic"} <= set(self.tasks):
            raise PlanError(f"{self.algorithm}: what is added atomically needs no streams that wait for each other")
        if self.traversal == "batched" and not self.fringe.startswith("pad"):
            raise PlanError(f"{self.algorithm}: a batch needs equal blocks, so pad, not {self.fringe}")

    def __str__(self) -> str:
        usual = usual_traversal(self.algorithm)
        options = [] if self.traversal == usual else [str(self.traversal)]
        options += self.tasks
        if self.fringe != usual_fringe(self.algorithm, self.traversal):
            options.append(self.fringe)
        return ".".join([self.algorithm, *options])

    # ---- the algorithm

    @cached_property
    def table(self) -> StepTable | None:
        return step_table(self.algorithm) if self.algorithm in step_table_names() else None

    @cached_property
    def scheme(self) -> Scheme | None:
        return None if self.table else scheme(self.algorithm)

    @property
    def bilinear(self) -> Scheme:
        return table_scheme(self.table) if self.table else self.scheme  # type: ignore[return-value]

    @cached_property
    def size(self) -> Shape:
        """The grid of blocks, (m, k, n)."""
        return self.table.size if self.table else self.scheme.size  # type: ignore[union-attr]

    @cached_property
    def products(self) -> int:
        return self.table.products if self.table else self.scheme.rank  # type: ignore[union-attr]

    @property
    def depth(self) -> int:
        """1; of a composition the number of its factors."""
        return max(len(self.scheme.factors), 1) if self.scheme else 1

    @property
    def shallower(self) -> Level | None:
        """A composition without its outermost factor; None for a single scheme or a table."""
        if self.scheme is None or len(self.scheme.factors) < 2:
            return None
        return replace(self, algorithm="*".join(factor.name for factor in self.scheme.factors[1:]))

    @property
    def splits(self) -> bool:
        return max(self.size) > 1

    @property
    def saves_products(self) -> bool:
        return self.products < prod(self.size)

    # ---- its blocks and its steps

    @cached_property
    def unit(self) -> int:
        """Blocks' sides are multiples of this."""
        return int(self.fringe[3:] or 1) if self.fringe.startswith("pad") else 1

    @property
    def block_unit(self) -> int | None:
        """The same; None if blocks are not padded, and differ by one row or column."""
        return None if self.fringe == "unequal" else self.unit

    @property
    def cut(self) -> Cut | None:
        """None if the fringe is peeled, since what is peeled depends on the sides themselves.

        A table may keep blocks of A, B and C in one place, so that its steps depend on which of their sides are longer.
        """
        return None if self.fringe == "peel" else Cut(self.size, self.block_unit, ordered=self.table is not None)

    @cached_property
    def types(self) -> tuple[str, ...] | None:
        """Only floats if the scheme has coefficients besides 1 and -1: integers are only added and subtracted."""
        found = self.bilinear.factors or (self.bilinear,)
        signs = all(abs(c) in (0, 1) for x in found for matrix in (x.u, x.v, x.w) for row in matrix for c in row)
        return None if signs else FLOATS

    @property
    def takes_alpha_beta(self) -> bool:
        return self.traversal not in ("sequential", "fused") and self.fringe != "peel"

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        if self.fringe == "peel":
            core = replace(plan, levels=(replace(self, fringe="pad"), *plan.levels[1:]))
            return peeled_steps(core, self.size, (m, k, n))
        return self.steps(plan.rest, self.block_unit, (m, k, n), alpha, beta)

    def steps(
        self, inner: Plan, unit: int | None, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        """The steps with blocks that are multiples of the unit, whose products are done by the plan `inner`."""
        if self.table:
            return table_steps(self.table, unit, inner, sides)
        assert self.scheme is not None
        if self.traversal in ("sequential", "fused"):
            return sequential_steps(self.scheme, unit, inner, sides)
        found = stacked_steps(self.scheme, unit, inner, sides, alpha, beta, self.batched)
        return replace(found, lanes=self.lanes)

    @property
    def same_above_levels(self) -> bool:
        return self.fringe != "peel"

    def needed(self, inner: Plan, sides: Shape) -> Needed | None:
        """Known of a batch of equal blocks, whose hundreds of products have all their operands in three temporaries."""
        if not self.batched or self.scheme is None or (unit := self.block_unit) is None or self.fringe == "peel":
            return None
        m, k, n = (block_side(side, parts, unit) for side, parts in zip(sides, self.size, strict=True))
        count = self.scheme.rank
        temporaries = (("S", count * m, k), ("T", count * k, n), ("M", count * m, n))
        return Needed(temporaries, ((inner, (m, k, n), PLAIN),), ((inner, (m, k, n), count),))

    # ---- how its products and sums are run

    @property
    def lanes(self) -> int:
        """How many products of whole blocks may run at a time; strips that are peeled off run by themselves."""
        return 2 if self.traversal == "overlapped" and self.products > 1 else 1

    @property
    def side_by_side(self) -> bool:
        return self.traversal == "overlapped" or "streams" in self.tasks or "atomic" in self.tasks

    @property
    def batched(self) -> bool:
        return self.traversal == "batched"

    @property
    def independent(self) -> bool:
        return self.takes_alpha_beta

    @property
    def needs_fusing_leaf(self) -> bool:
        return self.traversal == "fused"

    @property
    def sums_inside(self) -> bool:
        return self.fused or self.table is not None

    @cached_property
    def fused_products(self) -> FusedProducts | None:
        """None for a level whose fringe is peeled: with its strips it is a sequential one."""
        if self.traversal != "fused" or self.fringe == "peel" or self.scheme is None:
            return None
        return FusedProducts(self.scheme, self.block_unit, self.tasks)

    @property
    def atomic(self) -> bool:
        return "atomic" in self.tasks

    @property
    def launches(self) -> int:
        return fused_order.launches_needed(self.scheme, self.tasks) if self.scheme else self.products

    # ---- what is known and said of it

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        blocks, whole = block_sides(self.size, self.fringe, self.unit, sides)
        m, k, n = (whole or side == parts * block for side, parts, block in zip(sides, self.size, blocks, strict=True))
        of_whole = (True, True, True) if self.table else (m and k, k and n, m and n)
        padded = self.table is not None and self.block_unit is not None
        if padded and (refusal := _refusal(self, inner, _ranks(blocks))):
            raise PlanError(refusal)
        if self.needs_fusing_leaf:
            return Footprint(self.products, blocks)
        order = side_order(blocks) if self.table else PLAIN_ORDER
        counts, one_by_one = _counts(self, inner, order), self.traversal == "sequential"
        moved, held, passes = counts.elements(counts.moved, blocks), counts.temporaries(blocks, of_whole), counts.passes
        if padded and not (m and n):  # C is computed in a padded temporary
            padded_c = prod(blocks[side] * self.size[side] for side in (0, 2))
            moved, held = (*moved[:2], moved[2] + 2 * padded_c), (*held[:2], held[2] + padded_c)
            passes += 1
        return Footprint(self.products, blocks, passes, moved, held, counts.in_place[not whole], one_by_one)

    def does(self, steps: LevelSteps) -> str:
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        updates = sum(isinstance(step, ProductWithSums) and len(step.apart) > 1 for step in steps.steps)
        if self.fringe == "peel" and not sums:
            return self._strips(steps)
        inside = f", {updates} more inside the products" if updates else ""
        done = "sums inside the products" if self.fused else f"{sums} passes of sums{inside}"
        return f"{'x'.join(map(str, self.size))} blocks, {done}"

    def _strips(self, steps: LevelSteps) -> str:
        count = len(steps.steps)
        if count == 1:
            return "nothing to peel" if next(steps.products).plan.levels else "too small: left out"
        return f"core, then {count - 1} strip{'s' * (count > 2)}"

    @property
    def launched(self) -> str:
        """The products that a fused level launches, and how. Those in turns may be one launch, if the device can."""
        if not self.needs_fusing_leaf or self.scheme is None:
            return ""
        stages, lanes = (
            fused_order.launch_stages(self.scheme, self.tasks),
            fused_order.lanes_needed(self.scheme, self.tasks),
        )
        how = f"on {lanes} streams in {len(stages)} stages" if len(stages) > 1 else f"on {lanes} streams"
        kernels = fused_order.variants_listed(fused_order.blocks_touched(self.scheme, p) for p in range(self.products))
        what = "launches" if self.tasks else "products"
        return f"{self}: {self.launches} {what} {how if lanes > 1 else 'one after the other'} ({kernels})"


def _ranks(blocks: Sides) -> Shape:
    """The rank of each side by length: 0 for the shortest, then 1, 2. Equal sides have equal ranks."""
    lengths = sorted(set(blocks))
    m, k, n = (lengths.index(side) for side in blocks)
    return m, k, n


@depends_on_rows
@lru_cache(maxsize=1024)
def _refusal(level: Level, inner: Plan, order: Shape) -> str:
    """Why a table of equal blocks cannot be done if their sides have these ranks by length; empty if it can."""
    try:
        m, k, n = (parts * level.unit * (1 + rank) for parts, rank in zip(level.size, order, strict=True))
        level.steps(inner, level.block_unit, (m, k, n))
    except PlanError as error:
        return str(error)
    return ""


PLAIN_ORDER: Shape = (1, 0, 2)  # k the shortest


@depends_on_rows
@lru_cache(maxsize=1024)
def _counts(level: Level, inner: Plan, order: Shape) -> BlockCounts:
    """What the level moves and holds. `order`: the ranks of the blocks' sides by length, which matter to tables."""
    usual = None if level.traversal in ("stacked", "overlapped") else 1
    return block_counts(lambda unit, sides: level.steps(inner, unit, sides), level.size, usual, order)
