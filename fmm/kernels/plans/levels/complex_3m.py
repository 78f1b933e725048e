"""The level `3m`: a complex product (Ar + i Ai)(Br + i Bi), computed as three real products.

With P = Ar Br, Q = Ai Bi and R = (Ar + Ai)(Br + Bi), the real part of A B is P - Q and the imaginary part is R - P - Q.
The plan below the level computes these real products. A split step reads complex numbers once and writes the real
operands; if an operand is conjugated, the split changes the sign of its imaginary parts. A join step reads the real
products and writes C; it also applies alpha and beta, which can be complex.

The error is bounded in norm only, because terms of the imaginary part can cancel. If the real part of an entry is much
smaller than the imaginary part (or the reverse), the small part can lose digits that four real products would keep.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from cmath import isfinite
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import sqrt
from typing import Any, Final

from fmm.dtypes import COMPLEX_TYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, separate_sums_program
from fmm.kernels.plans.level import CandidateLevel, LevelKind, PlanError, Traversal, register_level
from fmm.kernels.plans.levels.footprint import BlockCounts, count_blocks
from fmm.kernels.plans.lower import LevelWithSteps, LevelWorkEstimate, Sides, gemm_steps_by_temporary
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.sums import Place, PlacePart, Sum, whole_matrix
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Shape

PRODUCT_ORDERS: tuple[Traversal, ...] = ("stacked", "batched", "overlapped", "sequential")
COMPLEX_PARTS: tuple[PlacePart, PlacePart] = ("re", "im")
# The real products are Ar Br, Ai Bi and (Ar + Ai)(Br + Bi). PRODUCT_OPERANDS has the coefficients of the real and the
# imaginary part in both operands of each product, and PRODUCT_WEIGHTS the weight of each product in A B.
PRODUCT_OPERANDS: Final = ((1, 0), (0, 1), (1, 1))
PRODUCT_WEIGHTS: Final = (1 - 1j, -1 - 1j, 1j)
CONJUGATION_OPTIONS: Final = {"conj-a": 0, "conj-b": 1}  # option -> index of the conjugated operand
# Fields of Level that are equal for all levels that replace a complex product by three real products.
#
# The error growth compares the error in norm with the error of four real products. On random numbers, the real part has
# the same error as with four real products, and the imaginary part has 3 times this error's variance: the growth is
# sqrt((1 + 3) / 2). On numbers of one sign, in units of the error variance of one real product, the real and imaginary
# parts have the variances 2 and 18, but 2 and 2 with four real products: the growth is sqrt((2 + 18) / (2 + 2)).
COMPLEX_LEVEL_FIELDS: Final[dict[str, Any]] = {
    "types": COMPLEX_TYPES,
    "number_below": "real",
    "takes_alpha_beta": True,
    "error_growth": sqrt(2),
    "same_sign_error_growth": sqrt(5),
    "error_note": "in norm: a real or imaginary part that is small beside the other can have a larger error",
}


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class ComplexLevel(LevelWithSteps):
    """A level that replaces a complex product by three real products, and can conjugate A or B."""

    @abstractmethod
    def level_steps(self, inner: Plan, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0) -> LevelSteps:
        """Return the steps of C = alpha A B + beta C. The plan `inner` computes the real products."""

    def lower_product(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return the steps of C = alpha A B + beta C.

        If alpha or beta is infinite or NaN, a separate pass multiplies the complex A B by alpha and adds beta C, as in
        BLAS. If an infinite alpha multiplied the real products, both parts of an entry could become NaN, where BLAS
        makes only one part NaN.
        """
        if not (isfinite(alpha) and isfinite(beta)):
            return gemm_steps_by_temporary(plan, m, k, n, alpha, beta)
        return self.level_steps(plan.inner_plan, (m, k, n), alpha, beta)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Complex3mLevel(ComplexLevel):
    """The level `3m`: three real products with the sides of the complex product."""

    order: Traversal

    def with_conjugation(self, a: bool, b: bool) -> Complex3mLevel:
        return complex_3m_level(self.order, (self.conjugates[0] != a, self.conjugates[1] != b))

    def level_steps(self, inner: Plan, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0) -> LevelSteps:
        """Return the splits, the products and the join; the order `sequential` computes one product at a time."""
        if self.order == "sequential":
            return self._sequential_steps(inner, sides, alpha, beta)
        m, k, n = sides
        lefts, rights, dests = (self._three_temporary_places(*x) for x in (("S", m, k), ("T", k, n), ("M", m, n)))
        splits = (
            _split_step("A", m, k, lefts, PRODUCT_OPERANDS, self.conjugates[0]),
            _split_step("B", k, n, rights, PRODUCT_OPERANDS, self.conjugates[1]),
        )
        products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
        middle: tuple[Product | ProductBatch, ...] = (ProductBatch(products),) if self.is_batched else products
        join = _weighted_sum_step(
            "join", dests, PRODUCT_WEIGHTS, _real_and_imaginary_parts("C", m, n), complex(alpha), complex(beta)
        )
        return LevelSteps(temporary_sizes([*splits, *products]), (*splits, *middle, join), self.stream_count)

    def _sequential_steps(self, inner: Plan, sides: Shape, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        """Return steps that add each real product to C before the next product begins.

        The temporaries therefore need a third of the memory of the other orders of products.
        """
        m, k, n = sides
        left, right, dest = whole_matrix("S", m, k), whole_matrix("T", k, n), whole_matrix("M", m, n)
        steps: list[Sum | Product] = []
        old = complex(beta)
        for operand, weight in zip(PRODUCT_OPERANDS, PRODUCT_WEIGHTS, strict=True):
            steps.append(_split_step("A", m, k, [left], [operand], self.conjugates[0]))
            steps.append(_split_step("B", k, n, [right], [operand], self.conjugates[1]))
            steps.append(Product(left, right, dest, inner))
            update = _weighted_sum_step(
                "add", [dest], [weight], _real_and_imaginary_parts("C", m, n), complex(alpha), old
            )
            steps += [update] if update.writes else []
            old = complex(1)
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    def _three_temporary_places(self, letter: str, rows: int, cols: int) -> list[Place]:
        """Return three places of equal size: three temporaries, or for a batch three blocks of one temporary."""
        if self.is_batched:
            return [Place(letter, i * rows, 0, rows, cols) for i in range(3)]
        return [whole_matrix(f"{letter}{i + 1}", rows, cols) for i in range(3)]

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        """Return the estimate in complex numbers; a real number counts as half a complex number."""
        counts = _count_blocks_of_level(self, inner)
        moved, held = counts.count_elements(counts.moved, sides), counts.temporary_elements(sides, (True, True, True))
        halves = [(x / 2, y / 2, z / 2) for x, y, z in (moved, held)]
        return LevelWorkEstimate(3, sides, counts.passes, halves[0], halves[1], 0.0, self.order == "sequential")

    def describe_steps(self, steps: LevelSteps) -> str:
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"real and imaginary parts, {sums} passes of sums"


def complex_3m_level(order: Traversal = "stacked", conjugates: tuple[bool, bool] = (False, False)) -> Complex3mLevel:
    """Return the level `3m` with the order `order` of products, and with conjugated operands."""
    options = [order] if order != "stacked" else []
    return Complex3mLevel(
        text=".".join(["3m", *options, *conjugation_option_names(conjugates)]),
        order=order,
        traversal=order,
        conjugates=conjugates,
        products=3,
        depth=0,
        splits=False,
        **COMPLEX_LEVEL_FIELDS,
    )


def conjugation_option_names(conjugates: tuple[bool, bool]) -> list[str]:
    """Return the options for the operands that a level conjugates."""
    return [name for name, i in CONJUGATION_OPTIONS.items() if conjugates[i]]


@clear_on_registration
@lru_cache(maxsize=64)
def _count_blocks_of_level(level: Complex3mLevel, inner: Plan) -> BlockCounts:
    def steps_for_odd_sides(unit: int | None, sides: Shape) -> LevelSteps:
        """Return the steps; even sides are increased by 1, so that `count_blocks` finds no fringe: `3m` has none."""
        m, k, n = (side | 1 for side in sides)
        return level.level_steps(inner, (m, k, n))

    return count_blocks(steps_for_odd_sides, (1, 1, 1), None, (0, 1, 2))


# ---- splitting and joining


def _real_and_imaginary_parts(name: str, rows: int, cols: int) -> tuple[Place, ...]:
    return tuple(whole_matrix(name, rows, cols, part) for part in COMPLEX_PARTS)


def _split_step(
    name: str, rows: int, cols: int, places: Sequence[Place], operands: Sequence[tuple[int, int]], conjugated: bool
) -> Sum:
    """Return the step that forms the real operands of products from a complex matrix."""
    sign = -1 if conjugated else 1
    program = separate_sums_program([(re, sign * im) for re, im in operands], 2)
    return Sum(f"split {name}", program, _real_and_imaginary_parts(name, rows, cols), tuple(places))


def _weighted_sum_step(
    label: str,
    products: Sequence[Place],
    weights: Sequence[complex],
    result: tuple[Place, ...],
    alpha: complex,
    beta: complex,
) -> Sum:
    """Return the step C = alpha * (weighted sum of products) + beta * C, for the real and the imaginary parts of C.

    The step does not write the real or the imaginary parts of C if these parts do not change.
    """
    program = _complex_sum_program(tuple(alpha * w for w in weights), beta)
    return _remove_unused_reads(Sum(label, program, (*products, *result), result).simplified_sum)


@lru_cache(maxsize=1024)
def _complex_sum_program(weights: tuple[complex, ...], beta: complex) -> AdditionProgram:
    """Return the program of a sum of real inputs with complex weights, plus beta times a complex number.

    The last two inputs of the program are the real and the imaginary part of the complex number that beta multiplies.
    """
    real = [*(w.real for w in weights), beta.real, -beta.imag]
    imaginary = [*(w.imag for w in weights), beta.imag, beta.real]
    rows = [[int(x) if x == int(x) else x for x in row] for row in (real, imaginary)]
    return separate_sums_program(rows, len(real))


def _remove_unused_reads(step: Sum) -> Sum:
    """Return the same step without the reads that its program does not use."""
    program = step.program
    used = sorted({v for terms in program.lines for _, v in terms} | set(program.outputs))
    inputs = [v for v in used if v < program.inputs]
    number = {v: i for i, v in enumerate((*inputs, *range(program.inputs, program.inputs + len(program.lines))))}
    lines = tuple(tuple((c, number[v]) for c, v in terms) for terms in program.lines)
    smaller = AdditionProgram(len(inputs), lines, tuple(number[v] for v in program.outputs))
    return Sum(step.label, smaller, tuple(step.reads[v] for v in inputs), step.writes)


# ---- the text form

_COMPLEX_3M_PATTERN = re.compile(r"3m((?:\.[\w-]+)*)")


def _parse_complex_3m_level(text: str) -> Complex3mLevel | None:
    match = _COMPLEX_3M_PATTERN.fullmatch(text)
    if match is None:
        return None
    options = match[1].split(".")[1:]
    orders = [option for option in options if option in PRODUCT_ORDERS]
    if len(orders) > 1:
        raise PlanError(f"3m cannot be both {' and '.join(orders)}")
    for unknown in (option for option in options if option not in (*PRODUCT_ORDERS, *CONJUGATION_OPTIONS)):
        raise PlanError(
            f"unknown option {unknown!r} of 3m; valid: {', '.join((*PRODUCT_ORDERS, *CONJUGATION_OPTIONS))}"
        )
    order: Traversal = next((order for order in PRODUCT_ORDERS if order in orders), "stacked")
    return complex_3m_level(order, ("conj-a" in options, "conj-b" in options))


def _candidate_levels() -> Iterator[CandidateLevel]:
    """Yield the level with each order of products, from the fastest to the slowest, which needs the least workspace."""
    for order in ("", ".batched", ".overlapped"):
        yield CandidateLevel(f"3m{order}", (), 3, above=True)
    yield CandidateLevel("3m.sequential", (), 3, lean=True, above=True)


register_level(LevelKind("3m", _parse_complex_3m_level, lambda: ("3m",), _candidate_levels))
