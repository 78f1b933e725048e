"""The level `3m` and the level of a scheme, computed in one pass, as in `3m(strassen^2.pad16)`.

The split step reads blocks of complex numbers once. For each product of the scheme, the split step writes the real
operands of three products. One batch computes all real products. The join step writes blocks of complex numbers. Two
separate levels, `3m > strassen^2.batched.pad16`, would also write and read real matrices in between.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, Matrix, separate_sums_program
from fmm.kernels.algorithms.catalogue import candidate_schemes, scheme
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.level import CandidateLevel, LevelBlockGrid, LevelKind, PlanError, register_level
from fmm.kernels.plans.levels.complex_3m import (
    COMPLEX_LEVEL_FIELDS,
    COMPLEX_PARTS,
    CONJUGATION_OPTIONS,
    PRODUCT_OPERANDS,
    PRODUCT_WEIGHTS,
    ComplexLevel,
    conjugation_option_names,
)
from fmm.kernels.plans.levels.footprint import BlockCounts, block_sides, count_blocks
from fmm.kernels.plans.levels.scheme_level import SchemeLevel, level_with_options
from fmm.kernels.plans.lower import LevelWorkEstimate, Sides
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.sums import Place, Sum, block_side, operand_blocks
from fmm.kernels.registry import clear_on_registration
from fmm.problem import Shape

# Largest number of products of the scheme: a kernel of sums can process at most 3 * 49 operands in one pass.
MAX_SCHEME_PRODUCTS = 49


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Complex3mSchemeLevel(ComplexLevel):
    """The level `3m(...)`: the level `3m` and a scheme's level in one pass. All real products are one batch."""

    scheme_level: SchemeLevel

    @property
    def scheme(self) -> Scheme:
        assert self.scheme_level.scheme is not None
        return self.scheme_level.scheme

    def with_conjugation(self, a: bool, b: bool) -> Complex3mSchemeLevel:
        return complex_blocks_level(self.scheme_level, (self.conjugates[0] != a, self.conjugates[1] != b))

    def level_steps(self, inner: Plan, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0) -> LevelSteps:
        return self.block_steps(inner, self.scheme_level.padded_side_multiple, sides, alpha, beta)

    def block_steps(
        self, inner: Plan, unit: int, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        """Return the steps of C = alpha A B + beta C; block sides are multiples of `unit`."""
        s, (m, k, n) = self.scheme, sides
        a, b = operand_blocks("A", m, k, (s.m, s.k), unit), operand_blocks("B", k, n, (s.k, s.n), unit)
        c = operand_blocks("C", m, n, (s.m, s.n), unit)
        rows, inside, cols = (block_side(side, parts, unit) for side, parts in zip(sides, s.size, strict=True))
        count = 3 * s.rank
        lefts, rights, dests = (
            [Place(name, i * height, 0, height, width) for i in range(count)]
            for name, height, width in (("S", rows, inside), ("T", inside, cols), ("M", rows, cols))
        )
        split_a = Sum(
            "split A", real_operand_program(s.u, self.conjugates[0]), _real_and_imaginary_places(a), tuple(lefts)
        )
        split_b = Sum(
            "split B", real_operand_program(s.v, self.conjugates[1]), _real_and_imaginary_places(b), tuple(rights)
        )
        batch = ProductBatch(tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True)))
        program = complex_output_program(s.w, complex(alpha), complex(beta))
        written = _real_and_imaginary_places(c)
        join = Sum("join", program, (*dests, *(written if beta else ())), written)
        return LevelSteps(temporary_sizes([split_a, split_b, *batch.products]), (split_a, split_b, batch, join))

    def estimate_level_work(self, inner: Plan, sides: Sides) -> LevelWorkEstimate:
        blocks, _ = block_sides(
            self.scheme.size, self.scheme_level.fringe, self.scheme_level.padded_side_multiple, sides
        )
        counts = _count_blocks_of_level(self, inner)
        moved, held = counts.count_elements(counts.moved, blocks), counts.temporary_elements(blocks, (True, True, True))
        halves = [(x / 2, y / 2, z / 2) for x, y, z in (moved, held)]
        return LevelWorkEstimate(self.products, blocks, counts.passes, halves[0], halves[1], 0.0)

    def describe_steps(self, steps: LevelSteps) -> str:
        return f"{'x'.join(map(str, self.scheme.size))} blocks of real and imaginary parts, 3 passes of sums"


def complex_blocks_level(
    scheme_level: SchemeLevel, conjugates: tuple[bool, bool] = (False, False)
) -> Complex3mSchemeLevel:
    """Return the level `3m(...)` with a scheme's batched level inside; raise PlanError for other levels."""
    inside = str(scheme_level).replace(".batched", "")
    text = ".".join([f"3m({inside})", *conjugation_option_names(conjugates)])
    if not scheme_level.is_batched or scheme_level.scheme is None:
        raise PlanError(f"{text}: only a scheme's level can be one pass with 3m, as in 3m(strassen^2.pad16)")
    if scheme_level.products > MAX_SCHEME_PRODUCTS:
        raise PlanError(f"{text}: in one pass with 3m, a scheme of at most {MAX_SCHEME_PRODUCTS} products")
    return Complex3mSchemeLevel(
        text=text,
        scheme_level=scheme_level,
        conjugates=conjugates,
        traversal="batched",
        products=3 * scheme_level.products,
        depth=scheme_level.depth,
        splits=scheme_level.splits,
        # The total error growth is the growth of this scheme times the growth of `3m` in COMPLEX_LEVEL_FIELDS.
        bilinear=scheme_level.scheme,
        cut=LevelBlockGrid(scheme_level.scheme.size, scheme_level.padded_side_multiple),
        **COMPLEX_LEVEL_FIELDS,
    )


@clear_on_registration
@lru_cache(maxsize=64)
def _count_blocks_of_level(level: Complex3mSchemeLevel, inner: Plan) -> BlockCounts:
    return count_blocks(lambda unit, sides: level.block_steps(inner, unit or 1, sides), level.scheme.size, 1, (0, 1, 2))


# ---- splitting and joining


def _real_and_imaginary_places(blocks: Sequence[Place]) -> tuple[Place, ...]:
    """Return two places for each block: its real parts, and its imaginary parts."""
    return tuple(replace(block, part=part) for block in blocks for part in COMPLEX_PARTS)


# Each product of the scheme becomes three consecutive real products, so that few partial sums exist at a time. No sums
# are shared, because a shared sum would occupy registers for a long time.


@lru_cache(maxsize=64)
def real_operand_program(matrix: Matrix, conjugated: bool) -> AdditionProgram:
    """Return the program that computes the real operands of all products from the real and imaginary parts of blocks.

    `matrix` holds the scheme's coefficients of A's blocks or of B's blocks.
    """
    sign = -1 if conjugated else 1
    columns = list(zip(*matrix, strict=True))
    rows = [[x for c in column for x in (c * re, sign * c * im)] for column in columns for re, im in PRODUCT_OPERANDS]
    return separate_sums_program(rows, 2 * len(matrix))


@lru_cache(maxsize=256)
def complex_output_program(matrix: Matrix, alpha: complex, beta: complex) -> AdditionProgram:
    """Return the program that computes complex blocks of C from real products; `matrix` is the scheme's matrix W."""
    weights = [alpha * w for w in PRODUCT_WEIGHTS]
    rows: list[list[Coefficient]] = []
    for number, row in enumerate(matrix):
        own = [[_whole_number_as_int(getattr(w, part) * c) for c in row for w in weights] for part in ("real", "imag")]
        old = ([beta.real, -beta.imag], [beta.imag, beta.real]) if beta else ([], [])
        for real, previous in zip(own, old, strict=True):
            blank: list[Coefficient] = [0] * (2 * len(matrix) if beta else 0)
            blank[2 * number : 2 * number + len(previous)] = [_whole_number_as_int(x) for x in previous]
            rows.append([*real, *blank])
    return separate_sums_program(rows, len(rows[0]))


def _whole_number_as_int(x: Coefficient) -> Coefficient:
    """Return an integral real number as an int, and any other number unchanged."""
    return int(x) if not isinstance(x, complex) and x == int(x) else x


# ---- the text form


_COMPLEX_BLOCKS_PATTERN = re.compile(r"3m\(([^()]*)\)((?:\.[\w-]+)*)")


def _parse_complex_blocks_level(text: str) -> Complex3mSchemeLevel | None:
    match = _COMPLEX_BLOCKS_PATTERN.fullmatch(text)
    if match is None:
        return None
    name, *inside = match[1].split(".")
    options = match[2].split(".")[1:]
    for unknown in (option for option in options if option not in CONJUGATION_OPTIONS):
        raise PlanError(f"unknown option {unknown!r} of 3m(...); valid: {', '.join(CONJUGATION_OPTIONS)}")
    level = level_with_options(name, *dict.fromkeys(("batched", *inside)))
    return complex_blocks_level(level, ("conj-a" in options, "conj-b" in options))


def _candidate_levels() -> Iterator[CandidateLevel]:
    """Yield `3m(...)` with one and two levels of each scheme of the plan pattern `one pass` (PlanPatterns)."""
    for name, forms in candidate_schemes():
        if "one pass" in forms:
            for power in (1, 2):
                if (count := scheme(name).rank ** power) <= MAX_SCHEME_PRODUCTS:
                    text = name if power == 1 else f"{name}^{power}"
                    yield CandidateLevel(f"3m({text}.pad16)", (), 3 * count, above=True)


register_level(LevelKind("3m()", _parse_complex_blocks_level, lambda: (), _candidate_levels))
