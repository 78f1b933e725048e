"""Quarters: C in four blocks, one after the other, each a product with the whole inner dimension.

Nothing is added up and no product is saved, but what stands below needs about half of its workspace or less, as it
prepares half of A and of B at a time. Levels of fast algorithms have that too, and save products besides; this one is
for integers, of which no machine but the host has sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import Final

from fmm.dtypes import INTEGERS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.consider import ABOVE_AS_IT_IS
from fmm.kernels.plans.level import CandidateLevel, LevelKind, register_level
from fmm.kernels.plans.level_with_steps import Footprint, NonRecursiveLevel, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product

NAME: Final = "quarters"


@dataclass(frozen=True)
class Quarters(NonRecursiveLevel):
    """Rows of A and columns of B in halves, as far as there are two of them."""

    def __str__(self) -> str:
        return NAME

    @property
    def types(self) -> tuple[str, ...]:
        return INTEGERS

    @property
    def only_cuts(self) -> bool:
        return True

    @property
    def takes_alpha_beta(self) -> bool:
        """Each product is a block of C, of all of the inner dimension: what is asked of C is asked of it."""
        return True

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        rows, cols = min(m, 2), min(n, 2)
        lefts, rights = operand_blocks("A", m, k, (rows, 1), None), operand_blocks("B", k, n, (1, cols), None)
        dests, asked = operand_blocks("C", m, n, (rows, cols), None), Asked(alpha, beta)
        pairs = zip(product(lefts, rights), dests, strict=True)
        return LevelSteps((), tuple(Product(*pair, dest, plan.rest, asked) for pair, dest in pairs))

    @property
    def splits(self) -> bool:
        return True

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        m, k, n = sides
        return Footprint(4.0, (m / 2, k, n / 2))

    def does(self, steps: LevelSteps) -> str:
        return "blocks of C, one after the other"


def _considered() -> Iterator[CandidateLevel]:
    yield CandidateLevel(NAME, (ABOVE_AS_IT_IS,), 1, lean=True)


register_level(LevelKind(NAME, lambda text: Quarters() if text == NAME else None, lambda: (NAME,), _considered))
