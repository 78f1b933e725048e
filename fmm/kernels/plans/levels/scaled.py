"""The level `scaled`: exact scaling by powers of two around a fast product.

The error of a fast algorithm is relative to the largest entries of a matrix. On badly scaled data, small entries
therefore lose digits that a classical product keeps. `scaled.inside` multiplies each column of A by a power of two, and
divides the corresponding row of B by the same power, which cancels in the product. `scaled.outside` scales the rows of
A and the columns of B to similar magnitudes, and scales C back. `scaled` first scales inside and then outside, as
Ballard, Benson, Druinsky, Lipshitz and Schwartz (2016, section 6) propose. Scaling is exact, unless a number becomes
subnormal. On a GPU, exponents are stored in temporaries on the device, so scaling copies nothing to the host.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from fmm.kernels.algorithms.additions import Coefficient
from fmm.kernels.plans.level import LevelKind, PlanError, register_level
from fmm.kernels.plans.lower import LevelWithSteps, LevelWorkEstimate, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, temporary_sizes
from fmm.kernels.plans.sums import Place, Sum, exponent_step, rescaling_step, whole_matrix

ScaledSides = Literal["both", "inside", "outside"]
SCALED_SIDES: tuple[ScaledSides, ...] = ("both", "inside", "outside")
SCALED_TYPES = ("float32", "float64", "complex64", "complex128")


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ScaledLevel(LevelWithSteps):
    """The level `scaled`: it scales the operands, so that their rows and columns have similar magnitudes."""

    inside: bool
    outside: bool

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        a, b, c = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
        if 0 in (m, k, n):
            return LevelSteps((), (Product(a, b, c, plan.inner_plan),))
        left, right = whole_matrix("S", m, k), whole_matrix("T", k, n)
        steps: list[Sum | Product] = []
        inner = rows = cols = None
        if self.inside:
            first, inner = _exponent_vector_place("D1", k), _exponent_vector_place("D2", k)
            steps.append(exponent_step("columns of A", a, 1, first))
            steps.append(exponent_step("rows of B", b, 0, inner, other_exponents=first))
        if self.outside:
            rows, cols = _exponent_vector_place("R", m), _exponent_vector_place("Q", n)
            steps.append(exponent_step("rows of A", a, 0, rows, shifts=inner, sign=1))
            steps.append(exponent_step("columns of B", b, 1, cols, shifts=inner, sign=-1))
        steps.append(rescaling_step("scale A", a, left, (rows, -1), (inner, 1)))
        steps.append(rescaling_step("scale B", b, right, (inner, -1), (cols, -1)))
        steps.append(Product(left, right, c, plan.inner_plan))
        if self.outside:
            steps.append(rescaling_step("scale C back", c, c, (rows, 1), (cols, 1)))
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        m, k, n = sides
        reads = self.inside + self.outside
        moved = (reads + 2) * m * k, (reads + 2) * k * n, 2.0 * m * n * self.outside
        return LevelWorkEstimate(1, sides, 2 * reads + 2 + self.outside, moved, (m * k, k * n, 0.0))

    def describe_steps(self, steps: LevelSteps) -> str:
        inside = "columns of A and rows of B" if self.inside else ""
        outside = "rows of A and columns of B" if self.outside else ""
        return f"powers of two: {', '.join(filter(None, (inside, outside)))}"


def _exponent_vector_place(name: str, count: int) -> Place:
    return Place(name, 0, 0, 1, count)


def scaled_level(sides: ScaledSides = "both") -> ScaledLevel:
    """Return the level `scaled`, `scaled.inside` or `scaled.outside`."""
    return ScaledLevel(
        text="scaled" if sides == "both" else f"scaled.{sides}",
        inside=sides != "outside",
        outside=sides != "inside",
        products=1,
        depth=0,
        splits=False,
        saves_products=False,
        types=SCALED_TYPES,
        error_note="on badly scaled data far less: relative to the largest entries of scaled rows and columns",
    )


_SCALED_PATTERN = re.compile(r"scaled((?:\.[\w-]+)*)")


def _parse_scaled_level(text: str) -> ScaledLevel | None:
    match = _SCALED_PATTERN.fullmatch(text)
    if match is None:
        return None
    options = match[1].split(".")[1:]
    for where in SCALED_SIDES:
        if options == ([] if where == "both" else [where]):
            return scaled_level(where)
    raise PlanError(f"unknown option {'.'.join(options)!r} of scaled; valid: {', '.join(SCALED_SIDES[1:])}, or none")


register_level(LevelKind("scaled", _parse_scaled_level, lambda: ("scaled",)))
