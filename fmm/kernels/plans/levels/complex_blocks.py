"""Complex products by three real ones, and at once a scheme's level of each: `3m(strassen^2.pad16)`.

The split reads blocks of complex numbers once and writes all real operands of the scheme's products, three times as
many as the scheme has; one batch multiplies them; the join writes blocks of complex numbers. What the levels `3m` and
`strassen^2.batched.pad16` below each other write and read again between them is saved.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache

from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, Matrix, separate_sums
from fmm.kernels.algorithms.catalogue import considered_schemes, scheme
from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.level import CandidateLevel, Cut, LevelKind, register_level
from fmm.kernels.plans.level_with_steps import Footprint, Sides
from fmm.kernels.plans.levels.complex_3m import CONJUGATED, OPERANDS, PARTS, WEIGHTS, RealProducts
from fmm.kernels.plans.levels.scheme_footprint import BlockCounts, block_counts, block_sides
from fmm.kernels.plans.levels.scheme_level import Level
from fmm.kernels.plans.levels.scheme_text import level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.plan_error import PlanError
from fmm.kernels.plans.steps.blocks import block_side, operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.steps.sums import Place, Sum
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Shape

MOST = 49  # products of a scheme: three times as many operands in one pass are as much as its kernels hold


@dataclass(frozen=True)
class ThreeProductsOfBlocks(RealProducts):
    """The level 3m and a scheme's level of each real product, as one. All products are a batch."""

    scheme_level: Level = field(default_factory=lambda: level("strassen", "batched"))

    def __post_init__(self) -> None:
        if not self.scheme_level.batched or self.scheme_level.scheme is None:
            raise PlanError(f"{self}: only a scheme's level can be one pass with 3m, as in 3m(strassen^2.pad16)")
        if self.scheme_level.products > MOST:
            raise PlanError(f"{self}: in one pass with 3m, a scheme of at most {MOST} products")

    def __str__(self) -> str:
        inside = str(self.scheme_level).replace(".batched", "")
        return ".".join([f"3m({inside})", *(name for name, i in CONJUGATED.items() if self.conjugates[i])])

    @property
    def scheme(self) -> Scheme:
        assert self.scheme_level.scheme is not None
        return self.scheme_level.scheme

    # ---- what runs

    def steps(self, inner: Plan, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0) -> LevelSteps:
        return self.block_steps(inner, self.scheme_level.unit, sides, alpha, beta)

    def block_steps(
        self, inner: Plan, unit: int, sides: Shape, alpha: Coefficient = 1, beta: Coefficient = 0
    ) -> LevelSteps:
        s, (m, k, n) = self.scheme, sides
        a, b = operand_blocks("A", m, k, (s.m, s.k), unit), operand_blocks("B", k, n, (s.k, s.n), unit)
        c = operand_blocks("C", m, n, (s.m, s.n), unit)
        rows, inside, cols = (block_side(side, parts, unit) for side, parts in zip(sides, s.size, strict=True))
        count = 3 * s.rank
        lefts, rights, dests = (
            [Place(name, i * height, 0, height, width) for i in range(count)]
            for name, height, width in (("S", rows, inside), ("T", inside, cols), ("M", rows, cols))
        )
        split_a = Sum("split A", split_program(s.u, self.conjugates[0]), _both_parts(a), tuple(lefts))
        split_b = Sum("split B", split_program(s.v, self.conjugates[1]), _both_parts(b), tuple(rights))
        batch = ProductBatch(tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True)))
        program = join_program(s.w, complex(alpha), complex(beta))
        written = _both_parts(c)
        join = Sum("join", program, (*dests, *(written if beta else ())), written)
        return LevelSteps(temporary_sizes([split_a, split_b, *batch.products]), (split_a, split_b, batch, join))

    # ---- what becomes of a product

    @property
    def products(self) -> int:
        return 3 * self.scheme.rank

    @property
    def depth(self) -> int:
        return self.scheme_level.depth

    @property
    def splits(self) -> bool:
        return self.scheme_level.splits

    @property
    def bilinear(self) -> Scheme:
        """The scheme; what the three products add to the error is in `error_growth`."""
        return self.scheme

    @property
    def batched(self) -> bool:
        return True

    @cached_property
    def cut(self) -> Cut:
        return Cut(self.scheme.size, self.scheme_level.unit)

    # ---- what is known and said of it

    def footprint(self, inner: Plan, sides: Sides) -> Footprint:
        blocks, _ = block_sides(self.scheme.size, self.scheme_level.fringe, self.scheme_level.unit, sides)
        counts = _counts(self, inner)
        moved, held = counts.elements(counts.moved, blocks), counts.temporaries(blocks, (True, True, True))
        halves = [(x / 2, y / 2, z / 2) for x, y, z in (moved, held)]
        return Footprint(self.products, blocks, counts.passes, halves[0], halves[1], 0.0)

    def does(self, steps: LevelSteps) -> str:
        return f"{'x'.join(map(str, self.scheme.size))} blocks of real and imaginary parts, 3 passes of sums"


@depends_on_rows
@lru_cache(maxsize=64)
def _counts(found: ThreeProductsOfBlocks, inner: Plan) -> BlockCounts:
    return block_counts(lambda unit, sides: found.block_steps(inner, unit or 1, sides), found.scheme.size, 1, (0, 1, 2))


# ---- splitting and joining


def _both_parts(blocks: Sequence[Place]) -> tuple[Place, ...]:
    """The places of the real and then of the imaginary parts of each block."""
    return tuple(replace(block, part=part) for block in blocks for part in PARTS)


# The three real products of one of the scheme's stand beside each other: what they are added to is done the sooner.
# Each sum is formed by itself, from what is read: shared ones would be alive for long, in registers.


@lru_cache(maxsize=64)
def split_program(matrix: Matrix, conjugated: bool) -> AdditionProgram:
    """The sums of real and imaginary parts of blocks that are the products' real operands.

    `matrix`: the scheme's U for A, V for B.
    """
    sign = -1 if conjugated else 1
    columns = list(zip(*matrix, strict=True))
    rows = [[x for c in column for x in (c * re, sign * c * im)] for column in columns for re, im in OPERANDS]
    return separate_sums(rows, 2 * len(matrix))


@lru_cache(maxsize=256)
def join_program(matrix: Matrix, alpha: complex, beta: complex) -> AdditionProgram:
    """The sums of real products that are complex blocks of C. `matrix`: the scheme's W."""
    weights = [alpha * w for w in WEIGHTS]
    rows: list[list[Coefficient]] = []
    for number, row in enumerate(matrix):
        own = [[_plain(getattr(w, part) * c) for c in row for w in weights] for part in ("real", "imag")]
        old = ([beta.real, -beta.imag], [beta.imag, beta.real]) if beta else ([], [])
        for real, added in zip(own, old, strict=True):
            blank: list[Coefficient] = [0] * (2 * len(matrix) if beta else 0)
            blank[2 * number : 2 * number + len(added)] = [_plain(x) for x in added]
            rows.append([*real, *blank])
    return separate_sums(rows, len(rows[0]))


def _plain(x: Coefficient) -> Coefficient:
    """The same number, as an int if it is whole."""
    return int(x) if not isinstance(x, complex) and x == int(x) else x


# ---- the text form


_TEXT = re.compile(r"3m\(([^()]*)\)((?:\.[\w-]+)*)")


def _parse(text: str) -> ThreeProductsOfBlocks | None:
    match = _TEXT.fullmatch(text)
    if match is None:
        return None
    name, *inside = match[1].split(".")
    options = match[2].split(".")[1:]
    for unknown in (option for option in options if option not in CONJUGATED):
        raise PlanError(f"unknown option {unknown!r} of 3m(...); valid: {', '.join(CONJUGATED)}")
    found = level(name, *dict.fromkeys(("batched", *inside)))
    return ThreeProductsOfBlocks(conjugates=("conj-a" in options, "conj-b" in options), scheme_level=found)


def _considered() -> Iterator[CandidateLevel]:
    """Of the schemes that are compared in one pass, one level and two."""
    for name, forms in considered_schemes():
        if "one pass" in forms:
            for power in (1, 2):
                if (count := scheme(name).rank ** power) <= MOST:
                    text = name if power == 1 else f"{name}^{power}"
                    yield CandidateLevel(f"3m({text}.pad16)", (), 3 * count, above=True)


register_level(LevelKind("3m()", _parse, lambda: (), _considered))
