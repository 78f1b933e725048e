"""Half of C: a product that is its own adjoint becomes two smaller ones of its kind and one product of all of K.

Only the output is cut. The product below the diagonal runs by any plan of products, and with one level of recursion
inside it fewer multiplications are left than with the best known algorithms for A A^T, which cut K as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.leaf import option_text, option_use
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import LevelWithSteps
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.sums import Place, Turned, turned, whole_matrix

MOST_CUTS = 9
# Blocks begin at multiples of as many rows as these, if they are at least ROOM times as large: leaf products then read
# and write whole tiles, and rows that are aligned.
UNITS, ROOM = (64, 16), 8
Steps = Iterator[Product | ProductBatch]


@dataclass(frozen=True)
class Gram(LevelWithSteps):
    """C's side is halved `cuts` times at once: `gram` halves it once, `gram^3` makes eight blocks on the diagonal.

    Products below the diagonal have one level of recursion less the smaller they are, so that leaf products are about
    alike. Behind a point may stand the leaf that computes the blocks on the diagonal: those of `gram^2.tile > strassen
    > vendor` are one launch of `tile`. With `gram.tile.outer` that leaf's operands lie along the outer dimensions: of a
    B that lies column by column a copy is made, and for A A^T both operands are read from it.
    """

    cuts: int = 1
    halves: str = ""  # the leaf by which the blocks on the diagonal are computed, if not by the plan's

    def __post_init__(self) -> None:
        if not 1 <= self.cuts <= MOST_CUTS:
            raise PlanError(f"gram^{self.cuts}: it can cut 1 to {MOST_CUTS} times")
        if self.halves:
            named = option_text(option_use(self.halves))  # or an error that says what is valid
            object.__setattr__(self, "halves", self.halves if ">" in named else named)

    def __str__(self) -> str:
        power = "gram" if self.cuts == 1 else f"gram^{self.cuts}"
        return f"{power}.{self.halves}" if self.halves else power

    @property
    def own_leaves(self) -> tuple[str, ...]:
        return (str(option_use(self.halves)),) if self.halves else ()

    @property
    def types(self) -> tuple[str, ...] | None:
        found = option_use(self.halves).types() if self.halves else None
        # (A transpose of complex numbers is not their adjoint.)
        return tuple(t for t in found if not DTYPES[t].is_complex) if found and self.turns else found

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        raise PlanError(f"{plan}: {self} cuts only products that are their own adjoints (fmm.gram)")

    def lower_half(self, plan: Plan, n: int, k: int, asked: Asked) -> LevelSteps:
        """The largest product comes first, blocks on the diagonal last; products of one size are a batch."""
        parts = 1 << self.cuts
        side = _block_side(n, parts)
        steps: list[Product | ProductBatch] = []
        inner, wanted = _products_plan(plan), asked._replace(op="product", fill="full")
        for cut in range(self.cuts):
            width = side * (parts >> cut + 1)
            corners = [(2 * i + 1) * width for i in range(1 << cut)]
            products = [
                Product(Place("A", at, 0, rows, k), Place("B", 0, at - width, k, width), dest, inner, wanted)
                for at in corners
                if (rows := min(width, n - at)) > 0
                for dest in (Place("C", at, at - width, rows, width),)
            ]
            steps += _batches(products)
            inner = inner.shallower
        half = plan.rest.half
        copies: list[Turned] = []
        if self.halves and not half.levels:
            half = replace(half, leaf=self.own_leaves[0])
            if self.turns:
                copies.append(turned(whole_matrix("B", k, n), whole_matrix("T", k, n)))
        diagonal = _batches(list(_diagonal(half, n, k, side, bool(copies), asked)))
        return LevelSteps(temporary_sizes(copies), (*steps, *copies, *diagonal))

    @property
    def turns(self) -> bool:
        """Do blocks on the diagonal read a copy of B that lies row by row?"""
        return bool(self.halves) and option_use(self.halves).order == "outer"

    # ---- what is known of it

    @property
    def halving(self) -> bool:
        return True

    @property
    def takes_alpha_beta(self) -> bool:
        return True

    @property
    def products(self) -> int:
        return (2 << self.cuts) - 1

    @property
    def depth(self) -> int:
        """It saves no products."""
        return 0

    @property
    def saves_products(self) -> bool:
        return False

    def does(self, steps: LevelSteps) -> str:
        products = list(steps.products)
        halves = sum(p.asked.op != "product" for p in products)
        copied = " of a turned copy" * any(isinstance(step, Turned) for step in steps.steps)
        return f"{halves} blocks on the diagonal{copied}, {len(products) - halves} products below it"


def _products_plan(plan: Plan) -> Plan:
    """The plan of the products below the diagonal."""
    while plan.halving:
        plan = plan.rest
    return plan


def _diagonal(half: Plan, n: int, k: int, side: int, copied: bool, asked: Asked) -> Iterator[Product]:
    """The blocks on the diagonal. `copied`: is B read from its copy T, and A too if it is B's transpose?"""
    for at in range(0, max(n, 1), side):  # an empty product is one of nothing
        rows = min(side, n - at)
        left, right = Place("A", at, 0, rows, k), Place("T" if copied else "B", 0, at, k, rows)
        if copied and asked.op == "gram":
            left = Place("T", at, 0, rows, k, "transpose")
        yield Product(left, right, Place("C", at, at, rows, rows), half, asked)


def _batches(products: Sequence[Product]) -> list[Product | ProductBatch]:
    """The products, those of the first one's size as a batch; at most the last one is smaller."""
    alike = [p for p in products if p.size == products[0].size]
    others: list[Product | ProductBatch] = [p for p in products if p.size != products[0].size]
    return [ProductBatch(tuple(alike)) if len(alike) > 1 else alike[0], *others] if alike else others


def _block_side(n: int, parts: int) -> int:
    """The side of equal blocks on the diagonal, of which the last one may be smaller."""
    unit = next((unit for unit in UNITS if n >= ROOM * unit * parts), 1)
    return max(-(-n // (parts * unit)) * unit, 1)


_TEXT = re.compile(r"gram(?:\^(\d+))?(?:\.(.+))?")


def _parse(text: str) -> Gram | None:
    match = _TEXT.fullmatch(text)
    return Gram(int(match[1] or 1), match[2] or "") if match else None


register_level(LevelKind("gram", _parse, lambda: ("gram",)))
