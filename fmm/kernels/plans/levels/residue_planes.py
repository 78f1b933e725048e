"""Planes of residues: their layout in the workspace, and the steps of a product by residues.

A product by residues has four steps. First, the norms of the rows of A and of the columns of B give the exponents that
scale floating-point operands. Second, the operands are split into planes of bytes. Third, the planes are multiplied.
Fourth, C is reconstructed from the products of planes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Final

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient, program_with_alpha_beta
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.residues import RemainderWeights, moduli_count_for_product, remainder_weights
from fmm.kernels.algorithms.scheme import SchemePrograms
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.memory_layout import round_up
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps import LevelSteps, Product, ProductBatch, temporary_sizes
from fmm.kernels.plans.sums import COPY_PROGRAM, Place, RowOrColumnExponents, Sum, operand_blocks, whole_matrix
from fmm.problem import Shape

FLOAT64_BYTES = 8
EXPONENT_BYTES = 4
LINE_BYTES = 16  # the length of a line of a plane, in bytes, is a multiple of this number
PART_ALIGN_BYTES = 256  # every part of the workspace begins at a multiple of this number of bytes
STRASSEN_PRODUCTS = 7  # number of products of one level of Strassen's algorithm below the residues
# If all planes would need more bytes of workspace than this, A and B are read several times, each time for the planes
# of some moduli.
MAX_WORKSPACE_BYTES = 52 << 30
INNER_ALGORITHM: Final = "strassen"  # the algorithm of the levels of recursion below residues
# texts of 0, 1 and 2 levels of Strassen's algorithm below residues in a plan
INNER_LEVEL_TEXTS: Final = ("", INNER_ALGORITHM, f"{INNER_ALGORITHM}^2")


# ---- the layout in the workspace


@dataclass(frozen=True)
class PlaneLayout:
    """The sizes of a batch of products by residues, and the bytes of each array in the workspace."""

    m: int
    k: int
    n: int
    count: int  # number of products in the batch
    moduli: int
    levels: int  # number of levels of Strassen's algorithm below the residues
    item: int = FLOAT64_BYTES  # bytes of one element of A, B or C
    for_complex: bool = False  # True for complex numbers: two planes for each modulus, of Re + j Im and of Re - j Im

    @property
    def planes_per_modulus(self) -> int:
        return planes_per_modulus(self.for_complex)

    @property
    def remainder_weights(self) -> RemainderWeights:
        """Return the moduli, and the weights of the sum that reconstructs an integer from its residues."""
        return remainder_weights(self.moduli, self.for_complex)

    @property
    def block_shape(self) -> Shape:
        """Return the rows, the inner dimension and the columns of a product of planes."""
        sides = 1 << self.levels
        return -(-self.m // sides), round_up(-(-self.k // sides), LINE_BYTES), round_up(-(-self.n // sides), LINE_BYTES)

    @property
    def plane_product_count(self) -> int:
        """Return the number of products of planes for one modulus."""
        return int(self.count * STRASSEN_PRODUCTS**self.levels * self.planes_per_modulus)

    @property
    def plane_bytes(self) -> tuple[int, int, int]:
        """Return the bytes of the planes of A, of B and of C for one modulus."""
        m, k, n = self.block_shape
        return self.plane_product_count * m * k, self.plane_product_count * n * k, self.plane_product_count * m * n

    @property
    def exponent_bytes(self) -> tuple[int, int]:
        """Return the bytes of the exponents of the rows of A and of the columns of B."""
        rows, cols = (round_up(EXPONENT_BYTES * self.count * lines, PART_ALIGN_BYTES) for lines in (self.m, self.n))
        return rows, cols

    @property
    def transposed_stride(self) -> int:
        """Return a transposed operand's leading dimension in elements: a multiple of 4 elements and of 16 bytes."""
        return round_up(self.k, max(4, LINE_BYTES // self.item))

    @property
    def transposed_bytes(self) -> tuple[int, int]:
        """Return the bytes of the transposed copies of A and of B, which are contiguous along the inner dimension."""
        each = self.item * self.count * self.transposed_stride
        return round_up(each * self.m, PART_ALIGN_BYTES), round_up(each * self.n, PART_ALIGN_BYTES)

    @cached_property
    def moduli_per_pass(self) -> int:
        """Return the number of moduli for which one pass over A and B writes planes.

        If the workspace for all moduli exceeds MAX_WORKSPACE_BYTES, fewer moduli are computed in each pass.
        """
        if self._total_bytes(self.moduli) <= MAX_WORKSPACE_BYTES:
            return self.moduli
        each, rest = sum(round_up(x, PART_ALIGN_BYTES) for x in self.plane_bytes[:2]), self._total_bytes(0)
        return max(min((MAX_WORKSPACE_BYTES - rest) // each, self.moduli - 1), 1)

    @property
    def workspace_offsets(self) -> tuple[int, ...]:
        """Return the byte offsets of the arrays in the workspace.

        The arrays are: exponents of A and of B, planes of A, of B and of C, and the transposed operands. The last
        number is the end of the workspace. If one pass splits A and B for all moduli, the planes of C overwrite the
        transposed operands.
        """
        left, right, result = self.plane_bytes
        sizes = [*self.exponent_bytes, *(round_up(self.moduli_per_pass * x, PART_ALIGN_BYTES) for x in (left, right))]
        found = [0]
        for size in sizes:
            found.append(found[-1] + size)
        planes = found[-1]
        transposed = planes
        if self.moduli_per_pass != self.moduli:
            transposed += round_up(self.moduli * result, PART_ALIGN_BYTES)
        return *found, transposed, planes + self._bytes_after_planes(self.moduli_per_pass)

    @property
    def workspace_bytes(self) -> int:
        """Return the bytes of the whole workspace."""
        return self.workspace_offsets[-1]

    def _bytes_after_planes(self, together: int) -> int:
        """Return the bytes of workspace after the planes of A and B."""
        result = round_up(self.moduli * self.plane_bytes[2], PART_ALIGN_BYTES)
        return (
            max(result, sum(self.transposed_bytes)) if together == self.moduli else result + sum(self.transposed_bytes)
        )

    def _total_bytes(self, together: int) -> int:
        planes = sum(round_up(together * x, PART_ALIGN_BYTES) for x in self.plane_bytes[:2])
        return sum(self.exponent_bytes) + planes + self._bytes_after_planes(together)


def planes_per_modulus(for_complex: bool) -> int:
    """Return the number of an operand's planes for one modulus: 2 for complex numbers, else 1."""
    return 2 if for_complex else 1


@lru_cache(maxsize=1024)
def integer_moduli_count(dtype: str, k: int) -> int:
    """Return the number of moduli for a product of integers with inner dimension k.

    For 8-bit integers, C is needed modulo 2^8 only, so one modulus is enough. For bool, an entry of C is a sum of at
    most k ones, and there must be enough moduli for this sum.
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


def residue_workspace_bytes(
    item: int, moduli: int, levels: int, m: int, k: int, n: int, count: int, for_complex: bool = False
) -> int:
    """Return the bytes of workspace for a batch of products: enough to compute C, or C's transpose in place of C."""
    layouts = (PlaneLayout(*size, count, moduli, levels, item, for_complex) for size in ((m, k, n), (n, k, m)))
    return max(layout.workspace_bytes for layout in layouts)


def prepared_plane_layout(
    moduli: int, item: int, lines: int, length: int, for_complex: bool = False
) -> tuple[int, int]:
    """Return the bytes of a matrix, and the bytes of the prepared exponents and planes behind the matrix.

    The numbers of bytes are large enough for both layouts: the inner dimension along the rows or along the columns of
    the matrix. Prepared operands have no levels of recursion below the residues.
    """
    planes = planes_per_modulus(for_complex) * moduli * round_up(lines, LINE_BYTES) * round_up(length, LINE_BYTES)
    exponents = round_up(EXPONENT_BYTES * max(lines, length), PART_ALIGN_BYTES)
    return round_up(item * lines * length, PART_ALIGN_BYTES), exponents + planes


# ---- the steps


@dataclass(frozen=True)
class NormExponents(RowOrColumnExponents):
    """A step that finds the largest power of two by which each row (axis 0) or column (axis 1) can be scaled."""


@dataclass(frozen=True)
class SplitIntoResidues(Sum):
    """A step that forms sums of integers and splits each sum into residues: one plane for each sum and modulus.

    Floating-point numbers are first scaled and rounded to integers. The planes of all sums for the first modulus come
    first, then the planes of all sums for the second modulus, and so on. For complex numbers, the planes of Re + j Im
    for a modulus precede the planes of Re - j Im for this modulus.
    """

    moduli: int = 0
    planes_per_modulus: int = 1


@dataclass(frozen=True)
class ReconstructFromResidues(Sum):
    """A step that reconstructs C from the planes of products; the planes have the same order as in SplitIntoResidues.

    For each modulus, sums of planes give the residues of C. The residues of an entry determine an integer, which is
    scaled back to a floating-point number if the operands were scaled.
    """

    moduli: int = 0
    planes_per_modulus: int = 1


def residue_steps(
    size: Shape, depth: int, params: GemmParams, moduli: int, inner: Plan, scaled: bool, for_complex: bool = False
) -> LevelSteps:
    """Return the steps of a product by residues, with `depth` levels of Strassen's algorithm below the residues.

    The plan `inner` computes the products of bytes. If `scaled` is True, the numbers are first scaled and rounded to
    integers. Planes have the same sizes as on a device: all blocks are equal, and the rows of a plane in memory have a
    multiple of 16 bytes.
    """
    m, k, n = size
    operands = whole_matrix("A", m, k), whole_matrix("B", k, n), whole_matrix("C", m, n)
    if moduli == 1 and not depth and params[:2] == (1, 0) and not scaled:
        # 8-bit operands are not split: their numbers are already residues modulo 256.
        return LevelSteps((), (Product(*operands, inner),))
    (rows, length, cols), programs = PlaneLayout(*size, 1, 1, depth).block_shape, _inner_level_programs(depth)
    each = planes_per_modulus(for_complex)
    planes = moduli * each
    count = planes * len(programs.left.outputs)
    lefts, rights, dests = (
        [Place(name, i * height, 0, height, width) for i in range(count)]
        for name, height, width in (("S", rows, length), ("T", length, cols), ("M", rows, cols))
    )
    a, b, c = (operand_blocks(x.name, x.rows, x.cols, (1 << depth, 1 << depth), 1) for x in operands)
    exponents = [Place(name, 0, 0, EXPONENT_BYTES, lines) for name, lines in (("E", m), ("F", n))] if scaled else []
    measures = [
        NormExponents(f"norms of {('rows', 'columns')[axis]} of {x.name}", COPY_PROGRAM, (x,), (dest,), axis)
        for x, axis, dest in zip(operands, (0, 1), exponents, strict=False)
    ]
    splits = [
        SplitIntoResidues(
            f"residues of {blocks[0].name}",
            _residue_split_program(program, planes),
            tuple(blocks),
            tuple(places),
            moduli,
            each,
        )
        for blocks, program, places in ((a, programs.left, lefts), (b, programs.right, rights))
    ]
    products = tuple(Product(*x, inner) for x in zip(lefts, rights, dests, strict=True))
    program = program_with_alpha_beta(_reconstruction_program(programs.join, planes), params.alpha, params.beta)
    join = ReconstructFromResidues("join", program, (*dests, *(c if params.beta else ())), tuple(c), moduli, each)
    temporaries = temporary_sizes([*measures, *splits, *products])
    return LevelSteps(temporaries, (*measures, *splits, ProductBatch(products), join))


def _residue_split_program(program: AdditionProgram, planes: int) -> AdditionProgram:
    """Return the program that forms each sum once, and outputs it `planes` times: once for each plane of residues."""
    return AdditionProgram(program.inputs, program.lines, program.outputs * planes)


@lru_cache(maxsize=4)
def _inner_level_programs(depth: int) -> SchemePrograms:
    return (
        scheme(INNER_LEVEL_TEXTS[depth]).addition_programs
        if depth
        else SchemePrograms(COPY_PROGRAM, COPY_PROGRAM, COPY_PROGRAM)
    )


@lru_cache(maxsize=64)
def _reconstruction_program(program: AdditionProgram, planes: int) -> AdditionProgram:
    """Return the program that adds the products of planes to residues of C, and then reconstructs C from the residues.

    The program is never run: only its additions are counted, so the coefficient 1 replaces the large weights of the
    Chinese remainder theorem.
    """
    inputs = program.inputs * planes
    lines: list[tuple[tuple[Coefficient, int], ...]] = []
    residues: list[list[int]] = [[] for _ in program.outputs]  # for each block of C: the values of all planes
    for i in range(planes):
        number = list(range(i * program.inputs, (i + 1) * program.inputs))
        for terms in program.lines:
            lines.append(tuple((c, number[v]) for c, v in terms))
            number.append(inputs + len(lines) - 1)
        for values, v in zip(residues, program.outputs, strict=True):
            values.append(number[v])
    first = inputs + len(lines)
    lines += [tuple((1, v) for v in values) for values in residues]
    return AdditionProgram(inputs, tuple(lines), tuple(range(first, first + len(residues))))
