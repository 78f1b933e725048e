"""Levels as what runs, counts and explains them asks: the steps that they become.

A step holds the plan of its products, and a plan holds levels. So what a plan knows of its levels says nothing of steps
(fmm.kernels.plans.level); every level that there is, is one of these.
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
from fmm.kernels.plans.steps.sums import Sum

Sides = tuple[float, float, float]  # m, k, n; parts of a whole are meant where a level cuts unevenly


class Footprint(NamedTuple):
    """What a level makes of a product, as if all its blocks were alike: enough to rank plans in microseconds."""

    products: float
    sides: Sides  # of each of them
    passes: int = 0  # of sums
    # Elements, all counted as if they were of the type that the level is asked for: those that its sums read and write
    # of A's, of B's and of C's blocks, and those of its temporaries.
    moved: Sides = (0.0, 0.0, 0.0)
    held: Sides = (0.0, 0.0, 0.0)
    in_place: float = 1.0  # the share of its products that read a block of A or B in place, or write one of C
    sequential: bool = False  # are its sums small passes between the products?


class LevelWithSteps(PlanLevel):
    """A level of a plan that says which steps it becomes."""

    @abstractmethod
    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """The steps for C = alpha A B + beta C of a plan that begins with this level; `plan.rest` is below it."""

    def lower_half(self, plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps:
        """The steps for the lower half of an n x n C that is its own adjoint; only levels that are `halving` have them.

        Fill is `lower` or `loose`.
        """
        raise PlanError(f"{self} does not cut products that are their own adjoints")

    def footprint(self, inner: Plan, sides: Sides) -> Footprint | None:
        """At these sides, as if the plan `inner` did its products; None: its steps must be counted.

        PlanError for sides at which it cannot be done.
        """
        return None

    def does(self, steps: LevelSteps) -> str:
        """In a few words, what these steps of it do."""
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"{sum(1 for _ in steps.products)} products, {sums} passes of sums"


class NonRecursiveLevel(LevelWithSteps):
    """No level of recursion: what is below it multiplies once, matrices of the same sides, and no fewer numbers.

    It prepares operands, changes the numbers or only says an order. Where one of these four answers is another, the
    level itself says so.
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
    """A level that a machine does at once with all that is below it: nobody walks its steps, but they are counted and
    explained."""

    @property
    def whole(self) -> bool:
        return True

    @abstractmethod
    def opened(
        self, plan: Plan, size: tuple[int, int, int], asked: Asked, itemsize: int, dtype: str = ""
    ) -> LevelSteps:
        """What a plan that ends in it comes to, of numbers of so many bytes."""

    @abstractmethod
    def share(self, steps: LevelSteps) -> float:
        """One of the multiplications in these steps, as a share of one of the numbers that it is asked for."""


def with_steps(level: PlanLevel) -> LevelWithSteps:
    """A plan's level as what says its steps; PlanError for one that says none, which somebody has registered."""
    if not isinstance(level, LevelWithSteps):
        raise PlanError(f"{level} does not say which steps it becomes")
    return level


def whole_level(plan: Plan) -> WholeLevel | None:
    """The level in which a plan ends that a machine does whole; None for a plan that ends in a leaf."""
    level = plan.leaf_use.leaf.level
    return level if isinstance(level, WholeLevel) else None
