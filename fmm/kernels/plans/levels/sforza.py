"""Sforza's AtA (2022, after Arrigoni and Massini 2019): a product A^T A becomes four smaller ones and two by Strassen.

Unlike `gram` it cuts the inner dimension too, and adds up pairs of products. The paper's A is our B, its transpose our
A: C11 = A11^T A11 + A21^T A21, C22 = A12^T A12 + A22^T A22, C21 = A12^T A11 + A22^T A21, each term in one of two
temporaries, W1 and W2. Odd sides are mended afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.algorithms.step_table import step_table, table_scheme
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import LevelWithSteps
from fmm.kernels.plans.levels.scheme_level import Level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import ADDED, PLAIN, Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.steps.sums import Place, Sum, whole_matrix

MOST = 6  # levels of recursion
STRASSEN = Level("li-fig3", "sequential", "peel")  # Douglas' schedule, which the paper's Strassen (Lai et al.) runs
HALF = Asked(op="gram", fill="loose")
ADD = AdditionProgram(2, (((1, 0), (1, 1)),), (2,))
Steps = list[Sum | Product]
Quarters = dict[str, Place]


@dataclass(frozen=True)
class Sforza(LevelWithSteps):
    """`sforza(3)` recurs twice before its base case; with `sforza(3,1536)` also no further than the paper's CUTOFF."""

    recursion: int = 1
    cutoff: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.recursion <= MOST:
            raise PlanError(f"sforza({self.recursion}): its depth can be 1 to {MOST}")

    def __str__(self) -> str:
        return f"sforza({self.recursion}{f',{self.cutoff}' if self.cutoff else ''})"

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        raise PlanError(f"{plan}: {self} cuts only products of a matrix and its adjoint (fmm.gram)")

    def lower_half(self, plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps:
        if asked.op != "gram":
            raise PlanError(f"{plan}: {self} cuts only products of a matrix and its adjoint (fmm.gram)")
        half, inner = n // 2, k // 2
        if not half or not inner:
            whole = whole_matrix("A", n, k), whole_matrix("B", k, n), whole_matrix("C", n, n)
            return LevelSteps((), (Product(*whole, replace(plan.half, levels=()), HALF),))
        steps = self._core(plan, half, inner) + list(_odd_sides(plan, n, k))
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    def stops(self, half: int, inner: int) -> bool:
        """Is this the base case? (The paper prints <= in the rule of the cutoff, and means >=.)"""
        return self.recursion <= 1 or self.cutoff / inner + self.cutoff / half >= 2

    def _core(self, plan: Plan, half: int, inner: int) -> Steps:
        """Algorithm 1, without its last lines."""
        a = {f"{i + 1}{j + 1}": Place("B", i * inner, j * half, inner, half) for i in (0, 1) for j in (0, 1)}
        t = {f"{i + 1}{j + 1}": Place("A", j * half, i * inner, half, inner) for i in (0, 1) for j in (0, 1)}
        steps: Steps = []
        for dest, left, right in (((0, 0), "1", "1"), ((1, 1), "2", "2"), ((1, 0), "2", "1")):
            c = Place("C", dest[0] * half, dest[1] * half, half, half)
            steps += self._pair(plan, c, [(t[f"{i}{left}"], a[f"{i}{right}"]) for i in (1, 2)])
        return steps

    def _pair(self, plan: Plan, c: Place, factors: list[tuple[Place, Place]]) -> Iterator[Sum | Product]:
        """The steps of a block of C: two products, each into a temporary, and their sum."""
        (left, right), _ = factors
        base = self.stops(c.rows, left.cols)
        on_diagonal = c.row == c.col
        inner, asked = self._below(plan, base, on_diagonal)
        for name, (left, right) in zip(("W1", "W2"), factors, strict=True):
            yield Product(left, right, whole_matrix(name, c.rows, c.cols), inner, asked)
        blocks = [(0, 0, c.rows, c.cols)]
        if on_diagonal and not base:
            blocks = list(replace(self, recursion=self.recursion - 1).written(c.rows, left.cols))
        for row, col, rows, cols in blocks:
            reads = tuple(Place(name, row, col, rows, cols) for name in ("W1", "W2"))
            yield Sum("add", ADD, reads, (Place("C", c.row + row, c.col + col, rows, cols),))

    def _below(self, plan: Plan, base: bool, on_diagonal: bool) -> tuple[Plan, Asked]:
        """The plan of one of its products, and what is asked of it. In the base case that is what stands below it."""
        rest = replace(plan, levels=tuple(level for level in plan.levels if not level.halving))
        if base:
            return rest, PLAIN
        if on_diagonal:
            return replace(plan, levels=(replace(self, recursion=self.recursion - 1), *plan.rest.half.levels)), HALF
        return replace(rest, levels=(STRASSEN,) * (self.recursion - 1) + rest.levels), PLAIN

    def written(self, n: int, k: int) -> Iterator[tuple[int, int, int, int]]:
        """The rectangles of C that it writes: blocks on the diagonal as a whole, and nothing else of the upper half."""
        half, inner = n // 2, k // 2
        if not half or not inner:
            yield 0, 0, n, n
            return
        for at in (0, half):
            if self.stops(half, inner):
                yield at, at, half, half
            else:
                below = replace(self, recursion=self.recursion - 1).written(half, inner)
                yield from ((at + row, at + col, rows, cols) for row, col, rows, cols in below)
        yield half, 0, half, half
        if n % 2:
            yield n - 1, 0, 1, n

    # ---- what is known of it

    @property
    def halving(self) -> bool:
        return True

    @property
    def keeps_upper_half(self) -> bool:
        """Its sums write whole blocks on the diagonal."""
        return False

    @cached_property
    def products(self) -> int:
        if self.recursion == 1:
            return 6
        below: int = replace(self, recursion=self.recursion - 1).products
        by_strassen: int = STRASSEN.products ** (self.recursion - 1)
        return 4 * below + 2 * by_strassen

    @property
    def depth(self) -> int:
        return self.recursion - 1

    @property
    def saves_products(self) -> bool:
        return self.recursion > 1

    @cached_property
    def error_growth(self) -> float:
        """The growth in the blocks below the diagonal, which Strassen's algorithm computes."""
        return float(table_scheme(step_table(STRASSEN.algorithm)).error_growth) ** (self.recursion - 1)

    def does(self, steps: LevelSteps) -> str:
        sums, products = (sum(isinstance(step, kind) for step in steps.steps) for kind in (Sum, Product))
        return f"{products} products, {sums} passes of sums"


def _odd_sides(plan: Plan, n: int, k: int) -> Iterator[Product]:
    """The products that odd sides leave over: of the last row of the inner dimension, then of the last row of C."""
    even, leaf = n - n % 2, replace(plan, levels=())
    if k % 2:
        core = Place("A", 0, k - 1, even, 1), Place("B", k - 1, 0, 1, even), Place("C", 0, 0, even, even)
        yield Product(*core, leaf, ADDED._replace(op="gram", fill="loose"))
    if n % 2:
        last = Place("A", n - 1, 0, 1, k), whole_matrix("B", k, n), Place("C", n - 1, 0, 1, n)
        yield Product(*last, leaf, PLAIN)


_TEXT = re.compile(r"sforza(?:\((\d+)(?:,(\d+))?\))?")


def _parse(text: str) -> Sforza | None:
    match = _TEXT.fullmatch(text.replace(" ", ""))
    return Sforza(int(match[1] or 1), int(match[2] or 0)) if match else None


register_level(LevelKind("sforza", _parse, lambda: ("sforza",)))
