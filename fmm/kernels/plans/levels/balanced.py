"""Levels without sums: `balanced` halves the longest side of a product; `quarters` cuts C into four blocks."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from math import inf
from typing import Final

from fmm.dtypes import INTEGERS
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.algorithms.text_files import FORM_ABOVE_WITHOUT_OPTIONS
from fmm.kernels.plans.gemm_params import ACCUMULATE, PLAIN, GemmParams
from fmm.kernels.plans.level import CandidateLevel, LevelKind, PlanError, register_level
from fmm.kernels.plans.lower import LevelWithSteps, LevelWorkEstimate, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product
from fmm.kernels.plans.sums import operand_blocks, whole_matrix

# numbers of blocks along m, k and n, by the side that is halved
PARTS_BY_HALVED_SIDE = {"m": (2, 1, 1), "k": (1, 2, 1), "n": (1, 1, 2)}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class BalancedLevel(LevelWithSteps):
    """The level `balanced`: halve the longest side while it is at least gamma times as long as each other side.

    The rule for the halvings is Table 1 of D'Alberto and Nicolau. The number of halvings depends on the sizes. The
    number of multiplications does not change.
    """

    gamma: float

    def side_to_halve(self, m: int, k: int, n: int) -> str | None:
        """Return the side to halve, checked in the order m, n, k of Table 1; None for an almost square product."""
        if m >= self.gamma * max(k, n) and m > 1:
            return "m"
        if n >= self.gamma * max(m, k) and n > 1:
            return "n"
        if k >= self.gamma * max(m, n) and k > 1:
            return "k"
        return None

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return the two products of one halving; for an almost square problem, one product with the inner plan."""
        side = self.side_to_halve(m, k, n)
        if side is None:
            whole = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
            return LevelSteps((), (Product(*whole, plan.inner_plan),))
        rows, inner, cols = PARTS_BY_HALVED_SIDE[side]
        lefts, rights = operand_blocks("A", m, k, (rows, inner), None), operand_blocks("B", k, n, (inner, cols), None)
        dests = operand_blocks("C", m, n, (rows, cols), None)
        second = ACCUMULATE if side == "k" else PLAIN  # the products of both halves of k are added to the same C
        halves = [
            Product(lefts[i % len(lefts)], rights[i % len(rights)], dests[i % len(dests)], plan, params)
            for i, params in enumerate((PLAIN, second))
        ]
        return LevelSteps((), tuple(halves))

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        pieces, found = 1.0, dict(zip("mkn", sides, strict=True))
        while (long := self.side_to_halve(*(int(x) for x in found.values()))) is not None:
            found[long] /= 2
            pieces *= 2
        return LevelWorkEstimate(pieces, (found["m"], found["k"], found["n"]))

    def describe_steps(self, steps: LevelSteps) -> str:
        return "halves the longest side" if len(steps.steps) > 1 else "almost square: passed on"


def balanced_level(gamma: float = 2) -> BalancedLevel:
    """Return the level `balanced(gamma)`; raise PlanError if gamma is below 1.5 or not finite."""
    if not 1.5 <= gamma < inf:
        raise PlanError(f"balanced({gamma:g}): gamma must be finite and at least 1.5, so that sides become more equal")
    short = f"{gamma:g}"
    text = f"balanced({short if float(short) == gamma else repr(gamma)})"
    return BalancedLevel(text=text, gamma=gamma, products=1, depth=0, saves_products=False)


_BALANCED_PATTERN = re.compile(r"balanced(?:\(([^()]*)\))?")


def _parse_balanced_level(text: str) -> BalancedLevel | None:
    match = _BALANCED_PATTERN.fullmatch(text)
    if match is None:
        return None
    if not match[1]:
        return balanced_level()
    try:
        gamma = float(match[1])
    except ValueError:
        raise PlanError(f"{text}: write balanced(gamma), with one number from 1.5 on") from None
    return balanced_level(gamma)


register_level(LevelKind("balanced", _parse_balanced_level, lambda: ("balanced",)))


# ---- quarters

QUARTERS_TEXT: Final = "quarters"


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class QuartersLevel(LevelWithSteps):
    """The level `quarters`: C is computed in four blocks, one after the other.

    The rows of A and the columns of B are halved, if there are at least two. The level has no sums and saves no
    multiplications, but it saves memory: the plan below needs at most about half of the workspace, because a block of C
    needs only half of A and half of B. The level is for integers: most other levels need sums, and fmm has no GPU
    kernels for sums of integers.
    """

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        rows, cols = min(m, 2), min(n, 2)
        lefts, rights = operand_blocks("A", m, k, (rows, 1), None), operand_blocks("B", k, n, (1, cols), None)
        dests, params = operand_blocks("C", m, n, (rows, cols), None), GemmParams(alpha, beta)
        pairs = zip(product(lefts, rights), dests, strict=True)
        return LevelSteps((), tuple(Product(*pair, dest, plan.inner_plan, params) for pair, dest in pairs))

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        m, k, n = sides
        return LevelWorkEstimate(4.0, (m / 2, k, n / 2))

    def describe_steps(self, steps: LevelSteps) -> str:
        return "blocks of C, one after the other"


def _parse_quarters_level(text: str) -> QuartersLevel | None:
    if text != QUARTERS_TEXT:
        return None
    # Each product computes a whole block of C, over all of k, and therefore applies the problem's alpha and beta.
    return QuartersLevel(
        text=QUARTERS_TEXT,
        products=1,
        depth=0,
        saves_products=False,
        only_cuts=True,
        types=INTEGERS,
        takes_alpha_beta=True,
    )


def _candidate_levels() -> Iterator[CandidateLevel]:
    yield CandidateLevel(QUARTERS_TEXT, (FORM_ABOVE_WITHOUT_OPTIONS,), 1, lean=True)


register_level(LevelKind(QUARTERS_TEXT, _parse_quarters_level, lambda: (QUARTERS_TEXT,), _candidate_levels))
