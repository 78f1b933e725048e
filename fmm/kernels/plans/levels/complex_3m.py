"""Complex products by three real ones: (Ar + i Ai)(Br + i Bi) from P = Ar Br, Q = Ai Bi and R = (Ar + Ai)(Br + Bi).

The real part is P - Q, the imaginary part R - P - Q. Below this level stand plans of real numbers. A split reads
complex numbers once and writes real ones, with other signs if the operand is to be conjugated; a join reads real
numbers and writes complex ones, with a complex alpha and beta.

What is below it is bounded in norm alone: R - P - Q can cancel, so that a small imaginary part beside a large real one
(or the reverse) loses digits that four real products would have kept.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import sqrt
from typing import Final, Literal, Self

from fmm.dtypes import COMPLEX, DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, separate_sums
from fmm.kernels.plans.level import CandidateLevel, LevelKind, register_level
from fmm.kernels.plans.level_with_steps import Footprint, LevelWithSteps, NonRecursiveLevel, Sides
from fmm.kernels.plans.levels.scheme_footprint import BlockCounts, block_counts
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.sums import Part, Place, Sum, whole_matrix
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Shape

Order = Literal["stacked", "batched", "overlapped", "sequential"]
ORDERS: tuple[Order, ...] = ("stacked", "batched", "overlapped", "sequential")
PARTS: tuple[Part, Part] = ("re", "im")
# Of P, Q and R: the shares of the real and the imaginary part in both operands, and the weight in the complex result.
OPERANDS: Final = ((1, 0), (0, 1), (1, 1))
WEIGHTS: Final = (1 - 1j, -1 - 1j, 1j)
CONJUGATED: Final = {"conj-a": 0, "conj-b": 1}  # by option, the number of the operand that is conjugated


@dataclass(frozen=True)
class RealProducts(LevelWithSteps):
    """Any level that makes three real products of a complex one, of A and B or of their conjugates."""

    conjugates: tuple[bool, bool] = (False, False)

    # ---- what runs

    @property
    def takes_alpha_beta(self) -> bool:
        return True

    @property
    def types(self) -> tuple[str, ...]:
        return COMPLEX

    def dtype_below(self, dtype: str) -> str:
        return (DTYPES[dtype].real or dtype) if dtype in DTYPES else dtype

    def itemsize_below(self, itemsize: int) -> int:
        return itemsize // 2

    @property
    def work_below(self) -> float:
        """A complex multiplication is four real ones."""
        return 0.25

    def conjugating(self, a: bool, b: bool) -> Self:
        return replace(self, conjugates=(self.conjugates[0] != a, self.conjugates[1] != b))

    def lower(self, plan: Plan, m: int, k: int, n: int, alpha: Coefficient, beta: Coefficient) -> LevelSteps:
        return self.steps(plan.rest, (m, k, n), alpha, beta)

    @abstractmethod
    def steps(
        self, inner: Plan, sides: tuple[int, int, int], alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        """The steps, whose real products are done by the plan `inner`."""

    # ---- what is known and said of it

    @property
    def error_growth(self) -> float:
        """The growth in norm, on random numbers.

        P - Q has the error of four real products. R - P - Q has three times its variance, since the operands of R are
        twice as large. Together that is twice the variance.
        """
        return sqrt(2)

    @property
    def positive_growth(self) -> float:
        """The growth on numbers of one sign.

        R is four times as large as P and Q, and so is its error. So R - P - Q has 18 times the variance of P, and P - Q
        has twice that of P; four real products have four times that of P together.
        """
        return sqrt(5)

    @property
    def error_note(self) -> str:
        return "in norm: a real or imaginary part that is small beside the other can have a larger error"


@dataclass(frozen=True)
class ThreeProducts(RealProducts, NonRecursiveLevel):
    """A complex product as three real ones of the same sides."""

    order: Order = "stacked"

    @property
    def splits_parts(self) -> bool:
        return True

    def __str__(self) -> str:
        options = [self.order] if self.order != "stacked" else []
        return ".".join(["3m", *options, *(name for name, i in CONJUGATED.items() if self.conjugates[i])])

    # ---- what runs

    def steps(
        self, inner: Plan, sides: tuple[int, int, int], alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        """All real operands first, the products, then C; or one product at a time, if the order is `sequential`."""
        if self.order == "sequential":
            return self._one_by_one(inner, sides, alpha, beta)
        m, k, n = sides
        lefts, rights, dests = (self._places(*x) for x in (("S", m, k), ("T", k, n), ("M", m, n)))
        splits = (
            _split("A", m, k, lefts, OPERANDS, self.conjugates[0]),
            _split("B", k, n, rights, OPERANDS, self.conjugates[1]),
        )
        products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
        middle: tuple[Product | ProductBatch, ...] = (ProductBatch(products),) if self.batched else products
        join = _added("join", dests, WEIGHTS, _parts("C", m, n), complex(alpha), complex(beta))
        return LevelSteps(temporary_sizes([*splits, *products]), (*splits, *middle, join), self.lanes)

    def _one_by_one(
        self, inner: Plan, sides: tuple[int, int, int], alpha: Coefficient, beta: Coefficient
    ) -> LevelSteps:
        """One real product at a time, each added to C at once. That takes a third of the temporaries."""
        m, k, n = sides
        left, right, dest = whole_matrix("S", m, k), whole_matrix("T", k, n), whole_matrix("M", m, n)
        steps: list[Sum | Product] = []
        old = complex(beta)
        for operand, weight in zip(OPERANDS, WEIGHTS, strict=True):
            steps.append(_split("A", m, k, [left], [operand], self.conjugates[0]))
            steps.append(_split("B", k, n, [right], [operand], self.conjugates[1]))
            steps.append(Product(left, right, dest, inner))
            added = _added("add", [dest], [weight], _parts("C", m, n), complex(alpha), old)
            steps += [added] if added.writes else []
            old = complex(1)
        return LevelSteps(temporary_sizes(steps), tuple(steps))

    def _places(self, letter: str, rows: int, cols: int) -> list[Place]:
        """The places of three matrices: three temporaries, or for a batch one tall one."""
        if self.batched:
            return [Place(letter, i * rows, 0, rows, cols) for i in range(3)]
        return [whole_matrix(f"{letter}{i + 1}", rows, cols) for i in range(3)]

    # ---- what becomes of a product

    @property
    def products(self) -> int:
        return 3

    @property
    def saves_products(self) -> bool:
        """A complex multiplication is four real ones."""
        return True

    @property
    def lanes(self) -> int:
        return 2 if self.order == "overlapped" else 1

    @property
    def side_by_side(self) -> bool:
        return self.order == "overlapped"

    @property
    def batched(self) -> bool:
        return self.order == "batched"

    @property
    def independent(self) -> bool:
        return self.order != "sequential"

    # ---- what is known and said of it

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        """Counted in complex numbers, so that a real one is half of one."""
        counts = _counts(self, inner)
        moved, held = counts.elements(counts.moved, sides), counts.temporaries(sides, (True, True, True))
        halves = [(x / 2, y / 2, z / 2) for x, y, z in (moved, held)]
        return Footprint(3, sides, counts.passes, halves[0], halves[1], 0.0, self.order == "sequential")

    def does(self, steps: LevelSteps) -> str:
        sums = sum(isinstance(step, Sum) for step in steps.steps)
        return f"real and imaginary parts, {sums} passes of sums"


@depends_on_rows
@lru_cache(maxsize=64)
def _counts(level: ThreeProducts, inner: Plan) -> BlockCounts:
    def whole(unit: int | None, sides: Shape) -> LevelSteps:
        """The steps for whole sides: the count makes odd sides smaller by one, but this level has no fringe."""
        m, k, n = (side | 1 for side in sides)
        return level.steps(inner, (m, k, n))

    return block_counts(whole, (1, 1, 1), None, (0, 1, 2))


# ---- splitting and joining


def _parts(name: str, rows: int, cols: int) -> tuple[Place, ...]:
    return tuple(whole_matrix(name, rows, cols, part) for part in PARTS)


def _split(
    name: str, rows: int, cols: int, places: Sequence[Place], operands: Sequence[tuple[int, int]], conjugated: bool
) -> Sum:
    """The step that makes real operands of a complex matrix."""
    sign = -1 if conjugated else 1
    program = separate_sums([(re, sign * im) for re, im in operands], 2)
    return Sum(f"split {name}", program, _parts(name, rows, cols), tuple(places))


def _added(
    label: str,
    products: Sequence[Place],
    weights: Sequence[complex],
    result: tuple[Place, ...],
    alpha: complex,
    beta: complex,
) -> Sum:
    """The step C = alpha (sum of products by their weights) + beta C, in real and imaginary parts.

    Parts of C that stay as they are, are not written.
    """
    program = _complex_sum(tuple(alpha * w for w in weights), beta)
    return _needed(Sum(label, program, (*products, *result), result).tidied)


@lru_cache(maxsize=1024)
def _complex_sum(weights: tuple[complex, ...], beta: complex) -> AdditionProgram:
    """The sum of real inputs by complex weights, and of beta times a complex number; numbers are in two parts."""
    real = [*(w.real for w in weights), beta.real, -beta.imag]
    imaginary = [*(w.imag for w in weights), beta.imag, beta.real]
    rows = [[int(x) if x == int(x) else x for x in row] for row in (real, imaginary)]
    return separate_sums(rows, len(real))


def _needed(step: Sum) -> Sum:
    """The same step without reads that its program makes no use of."""
    program = step.program
    used = sorted({v for terms in program.lines for _, v in terms} | set(program.outputs))
    kept = [v for v in used if v < program.inputs]
    number = {v: i for i, v in enumerate((*kept, *range(program.inputs, program.inputs + len(program.lines))))}
    lines = tuple(tuple((c, number[v]) for c, v in terms) for terms in program.lines)
    made = AdditionProgram(len(kept), lines, tuple(number[v] for v in program.outputs))
    return Sum(step.label, made, tuple(step.reads[v] for v in kept), step.writes)


# ---- the text form

_TEXT = re.compile(r"3m((?:\.[\w-]+)*)")


def _parse(text: str) -> ThreeProducts | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    options = match[1].split(".")[1:]
    orders = [option for option in options if option in ORDERS]
    if len(orders) > 1:
        raise PlanError(f"3m cannot be both {' and '.join(orders)}")
    for unknown in (option for option in options if option not in (*ORDERS, *CONJUGATED)):
        raise PlanError(f"unknown option {unknown!r} of 3m; valid: {', '.join((*ORDERS, *CONJUGATED))}")
    order: Order = next((order for order in ORDERS if order in orders), "stacked")
    return ThreeProducts(("conj-a" in options, "conj-b" in options), order)


def _considered() -> Iterator[CandidateLevel]:
    """The fastest first; one product at a time needs a third of the temporaries."""
    for order in ("", ".batched", ".overlapped"):
        yield CandidateLevel(f"3m{order}", (), 3, above=True)
    yield CandidateLevel("3m.sequential", (), 3, lean=True, above=True)


register_level(LevelKind("3m", _parse, lambda: ("3m",), _considered))
