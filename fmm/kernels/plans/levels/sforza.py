"""The level `sforza`: Sforza's AtA (2022, after Arrigoni and Massini 2019) for A^T A.

A^T A becomes four smaller products of a matrix and its transpose, and two products by Strassen's algorithm. Unlike the
level `gram`, `sforza` also cuts the inner dimension, so each block of C is the sum of two products: C11 = A11^T A11 +
A21^T A21, C22 = A12^T A12 + A22^T A22, and C21 = A12^T A11 + A22^T A21. In the code, the paper's A is the operand B,
and the paper's A^T is the operand A. The two products of a block of C are computed in the temporaries W1 and W2. If a
side is odd, its last row or column is multiplied afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.plans.gemm_params import ACCUMULATE, PLAIN, GemmParams
from fmm.kernels.plans.level import Level, LevelKind, PlanError, register_level
from fmm.kernels.plans.levels.scheme_level import scheme_level
from fmm.kernels.plans.lower import LevelWithSteps
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.sums import Place, Sum, whole_matrix

MAX_SFORZA_DEPTH = 6  # largest depth of a level `sforza`
UNMIRRORED_TRIANGLE_PARAMS = GemmParams(op="gram", fill="loose")
ADD_PROGRAM = AdditionProgram(2, (((1, 0), (1, 1)),), (2,))
StepList = list[Sum | Product]


def _strassen_level() -> Level:
    """Return the level of the paper's Strassen algorithm (Lai et al.): the schedule of Douglas et al. (1994)."""
    return scheme_level("li-fig3", "sequential", "peel")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class SforzaLevel(LevelWithSteps):
    """The level `sforza`: `sforza(3)` recurs twice; `sforza(3,1536)` also stops at sides of about 1536 (the cutoff)."""

    recursion: int
    cutoff: int

    @property
    def gram_level_with_less_recursion(self) -> SforzaLevel:
        """Return the level for the smaller products of a matrix and its transpose."""
        return sforza_level(self.recursion - 1, self.cutoff)

    def is_base_case(self, half_side: int, inner: int) -> bool:
        """Return True if the recursion stops: at its depth, or at the cutoff.

        The paper prints the condition for the cutoff with <= instead of >=; that must be an error, because the
        recursion must stop at small sides.
        """
        return self.recursion <= 1 or self.cutoff / inner + self.cutoff / half_side >= 2

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        raise PlanError(f"{plan}: {self} cuts only products of a matrix and its adjoint (fmm.gram)")

    def lower_gram_triangle(self, plan: Plan, n: int, k: int, params: GemmParams) -> LevelSteps:
        """Return the steps of the paper's Algorithm 1 on even sides, then the products for the rest of odd sides."""
        if params.op != "gram":
            raise PlanError(f"{plan}: {self} cuts only products of a matrix and its adjoint (fmm.gram)")
        half, inner = n // 2, k // 2
        if not half or not inner:
            whole = whole_matrix("A", n, k), whole_matrix("B", k, n), whole_matrix("C", n, n)
            return LevelSteps((), (Product(*whole, replace(plan.gram_plan, levels=()), UNMIRRORED_TRIANGLE_PARAMS),))
        a = {f"{i + 1}{j + 1}": Place("B", i * inner, j * half, inner, half) for i in (0, 1) for j in (0, 1)}
        t = {f"{i + 1}{j + 1}": Place("A", j * half, i * inner, half, inner) for i in (0, 1) for j in (0, 1)}
        steps: StepList = []
        for dest, left, right in (((0, 0), "1", "1"), ((1, 1), "2", "2"), ((1, 0), "2", "1")):
            c = Place("C", dest[0] * half, dest[1] * half, half, half)
            steps += self._two_product_steps(plan, c, [(t[f"{i}{left}"], a[f"{i}{right}"]) for i in (1, 2)])
        steps += _odd_side_products(plan, n, k)
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    def _two_product_steps(self, plan: Plan, c: Place, factors: list[tuple[Place, Place]]) -> Iterator[Sum | Product]:
        """Yield the steps of a block of C: two products, each into a temporary, and then their sum."""
        width = factors[0][0].cols
        base, on_diagonal = self.is_base_case(c.rows, width), c.row == c.col
        rest = replace(plan, levels=tuple(level for level in plan.levels if not level.for_gram))
        params = PLAIN
        if base:
            inner = rest
        elif on_diagonal:
            inner, params = (
                replace(plan, levels=(self.gram_level_with_less_recursion, *plan.inner_plan.gram_plan.levels)),
                UNMIRRORED_TRIANGLE_PARAMS,
            )
        else:
            inner = replace(rest, levels=(_strassen_level(),) * (self.recursion - 1) + rest.levels)
        for name, (left, right) in zip(("W1", "W2"), factors, strict=True):
            yield Product(left, right, whole_matrix(name, c.rows, c.cols), inner, params)
        blocks = [(0, 0, c.rows, c.cols)]
        if on_diagonal and not base:
            blocks = list(self.gram_level_with_less_recursion.written_rectangles(c.rows, width))
        for row, col, rows, cols in blocks:
            reads = tuple(Place(name, row, col, rows, cols) for name in ("W1", "W2"))
            yield Sum("add", ADD_PROGRAM, reads, (Place("C", c.row + row, c.col + col, rows, cols),))

    def written_rectangles(self, n: int, k: int) -> Iterator[tuple[int, int, int, int]]:
        """Yield (row, column, rows, columns) of each rectangle of C that the level writes."""
        half, inner = n // 2, k // 2
        if not half or not inner:
            yield 0, 0, n, n
            return
        for at in (0, half):
            if self.is_base_case(half, inner):
                yield at, at, half, half
            else:
                below = self.gram_level_with_less_recursion.written_rectangles(half, inner)
                yield from ((at + row, at + col, rows, cols) for row, col, rows, cols in below)
        yield half, 0, half, half
        if n % 2:
            yield n - 1, 0, 1, n

    def describe_steps(self, steps: LevelSteps) -> str:
        sums, products = (sum(isinstance(step, kind) for step in steps.steps) for kind in (Sum, Product))
        return f"{products} products, {sums} passes of sums"


def _odd_side_products(plan: Plan, n: int, k: int) -> Iterator[Product]:
    """Yield the products for the rest of odd sides: the last index of the inner dimension, then the last row of C."""
    even, leaf = n - n % 2, replace(plan, levels=())
    if k % 2:
        core = Place("A", 0, k - 1, even, 1), Place("B", k - 1, 0, 1, even), Place("C", 0, 0, even, even)
        yield Product(*core, leaf, ACCUMULATE._replace(op="gram", fill="loose"))
    if n % 2:
        last = Place("A", n - 1, 0, 1, k), whole_matrix("B", k, n), Place("C", n - 1, 0, 1, n)
        yield Product(*last, leaf, PLAIN)


def sforza_level(recursion: int = 1, cutoff: int = 0) -> SforzaLevel:
    """Return the level `sforza(recursion,cutoff)`; raise PlanError for a depth outside 1 to 6."""
    if not 1 <= recursion <= MAX_SFORZA_DEPTH:
        raise PlanError(f"sforza({recursion}): the depth must be from 1 to {MAX_SFORZA_DEPTH}")
    products, growth = 6, 1.0
    if recursion > 1:
        strassen = _strassen_level()
        assert strassen.bilinear is not None
        products = 4 * sforza_level(recursion - 1, cutoff).products + 2 * strassen.products ** (recursion - 1)
        # error growth of Strassen's levels in the product below the diagonal
        growth = float(strassen.bilinear.error_growth) ** (recursion - 1)
    return SforzaLevel(
        text=f"sforza({recursion}{f',{cutoff}' if cutoff else ''})",
        recursion=recursion,
        cutoff=cutoff,
        products=products,
        depth=recursion - 1,
        saves_products=recursion > 1,
        error_growth=growth,
        for_gram=True,
        keeps_upper_triangle=False,  # the level's sums write whole blocks on the diagonal, with both triangles
    )


_SFORZA_PATTERN = re.compile(r"sforza(?:\(([^()]*)\))?")


def _parse_sforza_level(text: str) -> SforzaLevel | None:
    match = _SFORZA_PATTERN.fullmatch(text.replace(" ", ""))
    if match is None or match[1] is None:
        return sforza_level() if match else None
    numbers = match[1].split(",")
    if len(numbers) > 2 or not all(number.isdecimal() for number in numbers) or not all(map(int, numbers[1:])):
        raise PlanError(f"{text}: write sforza(recursion) or sforza(recursion,cutoff), in whole numbers from 1 on")
    return sforza_level(*map(int, numbers))


register_level(LevelKind("sforza", _parse_sforza_level, lambda: ("sforza",)))
