"""Exact scaling around a fast product: by powers of two, rows and columns become alike in size.

A fast algorithm's error goes by the largest entries, so badly scaled data lose what a classical product keeps.
`inside` multiplies the columns of A and divides the rows of B by the same numbers, which cancels in the product.
`outside` makes the rows of A and the columns of B alike, and the product is scaled back. Both, the inside first, is
what Ballard, Benson, Druinsky, Lipshitz and Schwartz (2016, section 6) propose. Nothing is rounded by it (unless a
number becomes subnormal), and nothing is looked at on the host: exponents are found and kept where the matrices are.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.level import LevelKind, register_level
from fmm.kernels.plans.level_with_steps import Footprint, NonRecursiveLevel, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.steps.rescaling import find_exponents, rescale
from fmm.kernels.plans.steps.sums import Place, Sum, whole_matrix

Where = Literal["both", "inside", "outside"]
WHERE: tuple[Where, ...] = ("both", "inside", "outside")
TYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True)
class Scaled(NonRecursiveLevel):
    """What is below it multiplies matrices whose rows and columns are alike in size."""

    where: Where = "both"

    def __str__(self) -> str:
        return "scaled" if self.where == "both" else f"scaled.{self.where}"

    @property
    def inside(self) -> bool:
        return self.where != "outside"

    @property
    def outside(self) -> bool:
        return self.where != "inside"

    # ---- what runs

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        a, b, c = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
        if 0 in (m, k, n):
            return LevelSteps((), (Product(a, b, c, plan.rest),))
        left, right = whole_matrix("S", m, k), whole_matrix("T", k, n)
        steps: list[Sum | Product] = []
        inner = rows = cols = None
        if self.inside:
            first, inner = _vector("D1", k), _vector("D2", k)
            steps.append(find_exponents("columns of A", a, 1, first))
            steps.append(find_exponents("rows of B", b, 0, inner, against=first))
        if self.outside:
            rows, cols = _vector("R", m), _vector("Q", n)
            steps.append(find_exponents("rows of A", a, 0, rows, shifts=inner, sign=1))
            steps.append(find_exponents("columns of B", b, 1, cols, shifts=inner, sign=-1))
        steps.append(rescale("scale A", a, left, (rows, -1), (inner, 1)))
        steps.append(rescale("scale B", b, right, (inner, -1), (cols, -1)))
        steps.append(Product(left, right, c, plan.rest))
        if self.outside:
            steps.append(rescale("scale C back", c, c, (rows, 1), (cols, 1)))
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    @property
    def types(self) -> tuple[str, ...]:
        return TYPES

    # ---- what is known and said of it

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        """A and B are read once for each kind of exponents, and copied; C is scaled where it is."""
        m, k, n = sides
        looks = self.inside + self.outside
        moved = (looks + 2) * m * k, (looks + 2) * k * n, 2.0 * m * n * self.outside
        return Footprint(1, sides, 2 * looks + 2 + self.outside, moved, (m * k, k * n, 0.0))

    def does(self, steps: LevelSteps) -> str:
        inside = "columns of A and rows of B" if self.inside else ""
        outside = "rows of A and columns of B" if self.outside else ""
        return f"powers of two: {', '.join(filter(None, (inside, outside)))}"

    @property
    def error_note(self) -> str:
        return "on badly scaled data far less: beside the largest entries of scaled rows and columns"


def _vector(name: str, count: int) -> Place:
    return Place(name, 0, 0, 1, count)


_TEXT = re.compile(r"scaled((?:\.[\w-]+)*)")


def _parse(text: str) -> Scaled | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    options = match[1].split(".")[1:]
    for where in WHERE:
        if options == ([] if where == "both" else [where]):
            return Scaled(where)
    raise PlanError(f"unknown option {'.'.join(options)!r} of scaled; valid: {', '.join(WHERE[1:])}, or none")


register_level(LevelKind("scaled", _parse, lambda: ("scaled",)))
