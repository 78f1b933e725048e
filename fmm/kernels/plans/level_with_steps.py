"""Levels with their steps, as everybody needs them who runs, counts or explains a plan.

Steps hold the plans of their products, and plans hold levels. So that imports run one way, what a plan knows of a level
(PlanLevel, in fmm.kernels.plans.level) says nothing of steps. Every level that there is, is a LevelWithSteps.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import NamedTuple

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.level import PlanLevel
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps
from fmm.kernels.plans.steps.needed import Needed
from fmm.kernels.plans.steps.sums import Sum
from fmm.problem import Shape

Sides = tuple[float, float, float]  # m, k, n; they are averages, and no whole numbers, where a level cuts unevenly


class Footprint(NamedTuple):
    """What a level makes of a product, as if all its blocks were alike: enough to rank plans in microseconds.

    Elements are counted in numbers of the type that the level is asked for.
    """

    products: float  # how many it makes
    sides: Sides  # of each product
    passes: int = 0  # of sums
    moved: Sides = (0.0, 0.0, 0.0)  # elements of A's, of B's and of C's blocks that its sums read and write
    held: Sides = (0.0, 0.0, 0.0)  # elements of its temporaries, as large as blocks of A, of B and of C
    in_place: float = 1.0  # the share of its products that read a block of A or B in place, or write one of C
    sequential: bool = False  # are its sums small passes between the products?


class LevelWithSteps(PlanLevel):
    """A level of a plan that says which steps it becomes."""

    @abstractmethod
    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """The steps for C = alpha A B + beta C. `plan` begins with this level, and `plan.rest` does the products."""

    def lower_half(self, plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps:
        """The steps for the lower half of an n x n matrix C that is its own adjoint, with fill `lower` or `loose`.

        Only halving levels have such steps.
        """
        raise PlanError(f"{self} does not cut products that are their own adjoints")

    @property
    def same_above_levels(self) -> bool:
        """Are its steps for A B the same, but for the plan of all its products, above every plan that has levels?"""
        return False

    def needed(self, inner: Plan, sides: Shape) -> Needed | None:
        """What its steps for A B need if the plan `inner` does its products; None if the steps must be made to say."""
        return None

    def footprint(self, inner: Plan, sides: Sides) -> Footprint | None:
        """What it makes of a product of these sides, if the plan `inner` does its products.

        None if its steps must be counted; PlanError for sides at which the level cannot be done.
        """
        return None

    def does(self, steps: LevelSteps) -> str:
        """What these steps of the level do, in a few words for explain's table."""
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"{sum(1 for _ in steps.products)} products, {sums} passes of sums"


class NonRecursiveLevel(LevelWithSteps):
    """A level that is no recursion: one product of the same sides is below it, and as many multiplications.

    It prepares operands, changes the numbers or only says an order. A level to which one of the four answers below does
    not apply gives its own.
    """

    @property
    def products(self) -> int:
        return 1

    @property
    def depth(self) -> int:
        return 0

    @property
    def splits(self) -> bool:
        return False

    @property
    def saves_products(self) -> bool:
        return False


class WholeLevel(NonRecursiveLevel):
    """A level that a machine does at once with all that is below it.

    Nobody walks its steps, but they are counted and explained.
    """

    @property
    def whole(self) -> bool:
        return True

    @abstractmethod
    def opened(
        self, plan: Plan, size: tuple[int, int, int], asked: Asked, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """The steps that a product of this size comes to, of numbers of `itemsize` bytes. `plan` ends in this level.

        `dtype` may be left out where the bytes say enough.
        """

    @abstractmethod
    def share(self, steps: LevelSteps) -> float:
        """What one multiplication in these steps counts, in multiplications of the numbers that it is asked for."""


def with_steps(level: PlanLevel) -> LevelWithSteps:
    """The same level, known to have steps; PlanError for a registered level of a user's that has none."""
    if not isinstance(level, LevelWithSteps):
        raise PlanError(f"{level} does not say which steps it becomes")
    return level


def whole_level(plan: Plan) -> WholeLevel | None:
    """The level at the end of a plan that a machine does whole; None for a plan that ends in a leaf."""
    whole = plan.leaf_use.leaf.stands_for
    return whole.level if whole and isinstance(whole.level, WholeLevel) else None
