"""Halving: D'Alberto and Nicolau's Table 1, which makes the sides of a product alike before anything else is done."""

from __future__ import annotations

import re
from dataclasses import dataclass

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import Footprint, NonRecursiveLevel, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import ADDED, PLAIN
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product
from fmm.kernels.plans.steps.sums import whole_matrix

PIECES = {"m": (2, 1, 1), "k": (1, 2, 1), "n": (1, 1, 2)}  # of m, k and n, by the side that is halved


@dataclass(frozen=True)
class Balanced(NonRecursiveLevel):
    """D'Alberto and Nicolau's Table 1: halve the longest side while it is at least gamma times the others.

    How often it halves depends on the sizes; all in all as much is multiplied as without it.
    """

    gamma: float = 2

    def __post_init__(self) -> None:
        if not self.gamma >= 1.5:
            raise PlanError(f"balanced({self.gamma:g}): gamma must be at least 1.5, so that halving makes sides alike")

    def side(self, m: int, k: int, n: int) -> str | None:
        """Which side to halve, tested in the table's order: m (tall A), n (long B), k (inner); None: almost square."""
        if m >= self.gamma * max(k, n) and m > 1:
            return "m"
        if n >= self.gamma * max(m, k) and n > 1:
            return "n"
        if k >= self.gamma * max(m, n) and k > 1:
            return "k"
        return None

    def __str__(self) -> str:
        short = f"{self.gamma:g}"
        return f"balanced({short if float(short) == self.gamma else repr(self.gamma)})"

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """One halving (or none: then the rest of the plan does the whole)."""
        side = self.side(m, k, n)
        if side is None:
            return LevelSteps(
                (), (Product(whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n), plan.rest),)
            )
        rows, inner, cols = PIECES[side]
        lefts, rights = operand_blocks("A", m, k, (rows, inner), None), operand_blocks("B", k, n, (inner, cols), None)
        dests = operand_blocks("C", m, n, (rows, cols), None)
        added = side == "k"  # the second product then adds to what the first has written
        halves = [
            Product(lefts[i % len(lefts)], rights[i % len(rights)], dests[i % len(dests)], plan, asked)
            for i, asked in enumerate((PLAIN, ADDED if added else PLAIN))
        ]
        return LevelSteps((), tuple(halves))

    @property
    def splits(self) -> bool:
        return True

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        pieces, found = 1.0, dict(zip("mkn", sides, strict=True))
        while (long := self.side(*(int(x) for x in found.values()))) is not None:
            found[long] /= 2
            pieces *= 2
        return Footprint(pieces, (found["m"], found["k"], found["n"]))

    def does(self, steps: LevelSteps) -> str:
        return "halves the longest side" if len(steps.steps) > 1 else "almost square: passed on"


_TEXT = re.compile(r"balanced(?:\(([^()]*)\))?")


def _parse(text: str) -> Balanced | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    return Balanced(float(match[1])) if match[1] else Balanced()


register_level(LevelKind("balanced", _parse, lambda: ("balanced",)))
