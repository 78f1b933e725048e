"""Planes of residues: their layout in the workspace, and the steps of a product by residues.

A product by residues measures the operands, splits them into planes, multiplies planes of bytes, and joins C.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, updating_program
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.residues import moduli_count_for_product
from fmm.kernels.algorithms.scheme import SchemePrograms
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.memory_layout import round_up
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.sums import COPY, LineExponents, Place, Sum, operand_blocks, whole_matrix
from fmm.problem import Shape

FLOAT64_BYTES = 8
EXPONENT_BYTES = 4
LINE_BYTES = 16  # bytes; lines of planes are multiples of this number
PART_ALIGN_BYTES = 256  # bytes; every part of the workspace begins at a multiple of this number
STRASSEN_PRODUCTS = 7  # number of products of a level of recursion below the residues
# Bytes of workspace above which only some planes of A and B exist at a time; A and B are then read several times.
MAX_WORKSPACE_BYTES = 52 << 30
INNER_ALGORITHM: Final = "strassen"  # the algorithm of the levels of recursion below residues
# text of these levels in a plan, by their number
INNER_LEVEL_TEXTS: Final = ("", INNER_ALGORITHM, f"{INNER_ALGORITHM}^2")


# ---- the layout in the workspace


@dataclass(frozen=True)
class PlaneLayout:
    """The blocks of a batch of products by residues, and the bytes of each part of the workspace."""

    m: int
    k: int
    n: int
    count: int  # number of products in the batch
    moduli: int
    levels: int  # number of levels of Strassen's algorithm below the residues
    item: int = FLOAT64_BYTES  # bytes of a number of A, B and C

    @property
    def block(self) -> Shape:
        """Rows, inner dimension and columns of a product of planes."""
        sides = 1 << self.levels
        return -(-self.m // sides), round_up(-(-self.k // sides), LINE_BYTES), round_up(-(-self.n // sides), LINE_BYTES)

    @property
    def products(self) -> int:
        """The number of products of planes modulo one number."""
        return int(self.count * STRASSEN_PRODUCTS**self.levels)

    @property
    def planes(self) -> tuple[int, int, int]:
        """Bytes of the planes of A, B and C modulo one number."""
        m, k, n = self.block
        return self.products * m * k, self.products * n * k, self.products * m * n

    @property
    def exponents(self) -> tuple[int, int]:
        """Bytes of the exponents of the rows of A and of the columns of B."""
        rows, cols = (round_up(EXPONENT_BYTES * self.count * lines, PART_ALIGN_BYTES) for lines in (self.m, self.n))
        return rows, cols

    @property
    def transposed_stride(self) -> int:
        """Numbers from one line of a transposed operand to the next: a multiple of four, and of 16 bytes."""
        return round_up(self.k, max(4, LINE_BYTES // self.item))

    @property
    def transposed(self) -> tuple[int, int]:
        """Bytes of A and of B as copies that are contiguous along the inner dimension."""
        each = self.item * self.count * self.transposed_stride
        return round_up(each * self.m, PART_ALIGN_BYTES), round_up(each * self.n, PART_ALIGN_BYTES)

    @cached_property
    def together(self) -> int:
        """Return the number of moduli for which A and B are split at a time.

        All moduli are split at a time, or as many as fit into MAX_WORKSPACE_BYTES.
        """
        if self._total(self.moduli) <= MAX_WORKSPACE_BYTES:
            return self.moduli
        each, rest = sum(round_up(x, PART_ALIGN_BYTES) for x in self.planes[:2]), self._total(0)
        return max(min((MAX_WORKSPACE_BYTES - rest) // each, self.moduli - 1), 1)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The offsets of: exponents of A, of B; planes of A, of B, of C; transposed operands; the end.

        If all moduli are split at once, the planes of C overwrite the transposed operands.
        """
        left, right, result = self.planes
        sizes = [*self.exponents, *(round_up(self.together * x, PART_ALIGN_BYTES) for x in (left, right))]
        found = [0]
        for size in sizes:
            found.append(found[-1] + size)
        planes = found[-1]
        transposed = planes
        if self.together != self.moduli:
            transposed += round_up(self.moduli * result, PART_ALIGN_BYTES)
        return *found, transposed, planes + self._bytes_after_planes(self.together)

    @property
    def scratch(self) -> int:
        """Bytes of workspace."""
        return self.offsets[-1]

    def _bytes_after_planes(self, together: int) -> int:
        """Return the bytes of workspace after the planes of A and B."""
        result = round_up(self.moduli * self.planes[2], PART_ALIGN_BYTES)
        return max(result, sum(self.transposed)) if together == self.moduli else result + sum(self.transposed)

    def _total(self, together: int) -> int:
        planes = sum(round_up(together * x, PART_ALIGN_BYTES) for x in self.planes[:2])
        return sum(self.exponents) + planes + self._bytes_after_planes(together)


@lru_cache(maxsize=1024)
def integer_moduli_count(dtype: str, k: int) -> int:
    """Return the number of moduli of a product of integers with k terms in a sum.

    8-bit integers keep C modulo 2^8, and need this modulus alone. For bool, C must show if the number of true terms is
    zero.
    """
    kind = DTYPES[dtype]
    if dtype == "bool":
        return moduli_count_for_product(0, 0, k)
    bits = 8 * kind.itemsize - 1
    return 1 if kind.itemsize == 1 else moduli_count_for_product(bits, bits, k)


def integer_workspace_bytes(levels: int, itemsize: int, m: int, k: int, n: int, count: int) -> int:
    """Return the bytes of workspace for a batch of products of integers of `itemsize` bytes."""
    moduli = max(integer_moduli_count(name, k) for name in INTEGERS if DTYPES[name].itemsize == itemsize)
    return residue_workspace_bytes(itemsize, moduli, levels, m, k, n, count)


def residue_workspace_bytes(item: int, moduli: int, levels: int, m: int, k: int, n: int, count: int) -> int:
    """Return the bytes of workspace for a batch of products, whether C or its transpose is computed."""
    return max(PlaneLayout(*size, count, moduli, levels, item).scratch for size in ((m, k, n), (n, k, m)))


def prepared_plane_layout(moduli: int, item: int, lines: int, length: int) -> tuple[int, int]:
    """Return the bytes of a matrix, and of the prepared exponents and planes behind it, for either inner dimension.

    A prepared operand has no inner levels.
    """
    planes = moduli * round_up(lines, LINE_BYTES) * round_up(length, LINE_BYTES)
    exponents = round_up(EXPONENT_BYTES * max(lines, length), PART_ALIGN_BYTES)
    return round_up(item * lines * length, PART_ALIGN_BYTES), exponents + planes


# ---- the steps


@dataclass(frozen=True)
class NormExponents(LineExponents):
    """The largest powers of two that rows (axis 0) or columns (axis 1) may be scaled by, found from their norms."""


@dataclass(frozen=True)
class SplitIntoPlanes(Sum):
    """Sums of integers, and the residues of each sum: a plane for every sum and modulus.

    float64 and float32 numbers are first scaled and rounded to integers. Planes of all sums modulo the first number
    come first, then those modulo the second.
    """

    moduli: int = 0


@dataclass(frozen=True)
class JoinFromPlanes(Sum):
    """C from planes of products in the same order: sums of them modulo each number, then the integers with these
    residues, scaled back."""

    moduli: int = 0


def residue_steps(size: Shape, depth: int, params: GemmParams, moduli: int, inner: Plan, scaled: bool) -> LevelSteps:
    """Return the steps modulo `moduli` numbers, with `depth` levels of recursion below, and products of bytes by
    `inner`.

    `scaled`: numbers are scaled and rounded to integers. Planes have the sizes of a device's planes: all blocks of
    equal size, in lines of whole 16 bytes.
    """
    m, k, n = size
    operands = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
    if moduli == 1 and not depth and params[:2] == (1, 0) and not scaled:
        # 8-bit operands are residues themselves, so that nothing is split
        return LevelSteps((), (Product(*operands, inner),))
    (rows, length, cols), programs = PlaneLayout(*size, 1, 1, depth).block, _inner_programs(depth)
    count = moduli * len(programs.left.outputs)
    lefts, rights, dests = (
        [Place(name, i * height, 0, height, width) for i in range(count)]
        for name, height, width in (("S", rows, length), ("T", length, cols), ("M", rows, cols))
    )
    a, b, c = (operand_blocks(x.name, x.rows, x.cols, (1 << depth, 1 << depth), 1) for x in operands)
    exponents = [Place(name, 0, 0, EXPONENT_BYTES, lines) for name, lines in (("E", m), ("F", n))] if scaled else []
    measures = [
        NormExponents(f"norms of {('rows', 'columns')[axis]} of {x.name}", COPY, (x,), (dest,), axis)
        for x, axis, dest in zip(operands, (0, 1), exponents, strict=False)
    ]
    splits = [_split_step(a, programs.left, lefts, moduli), _split_step(b, programs.right, rights, moduli)]
    products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
    program = updating_program(_join_program(programs.join, moduli), params.alpha, params.beta)
    join = JoinFromPlanes("join", program, (*dests, *(c if params.beta else ())), tuple(c), moduli)
    temporaries = temporary_sizes([*measures, *splits, *products])
    return LevelSteps(temporaries, (*measures, *splits, ProductBatch(products), join))


def _split_step(
    blocks: Sequence[Place], program: AdditionProgram, planes: Sequence[Place], moduli: int
) -> SplitIntoPlanes:
    """Return the step that forms each sum once, and its residues."""
    repeated = AdditionProgram(program.inputs, program.lines, program.outputs * moduli)
    return SplitIntoPlanes(f"residues of {blocks[0].name}", repeated, tuple(blocks), tuple(planes), moduli)


@lru_cache(maxsize=4)
def _inner_programs(depth: int) -> SchemePrograms:
    return scheme(INNER_LEVEL_TEXTS[depth]).programs if depth else SchemePrograms(COPY, COPY, COPY)


@lru_cache(maxsize=64)
def _join_program(program: AdditionProgram, moduli: int) -> AdditionProgram:
    """Return the sums modulo every number, then the sums of the Chinese remainder theorem that give C.

    The sums of the Chinese remainder theorem are shown without weights, which are no small integers.
    """
    inputs = program.inputs * moduli
    lines: list[tuple[tuple[Coefficient, int], ...]] = []
    residues: list[list[int]] = [[] for _ in program.outputs]  # for each block of C: one value for each modulus
    for i in range(moduli):
        number = list(range(i * program.inputs, (i + 1) * program.inputs))
        for terms in program.lines:
            lines.append(tuple((c, number[v]) for c, v in terms))
            number.append(inputs + len(lines) - 1)
        for values, v in zip(residues, program.outputs, strict=True):
            values.append(number[v])
    first = inputs + len(lines)
    lines += [tuple((1, v) for v in values) for values in residues]
    return AdditionProgram(inputs, tuple(lines), tuple(range(first, first + len(residues))))
