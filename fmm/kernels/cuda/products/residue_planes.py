"""Operands of a product by residues (residue_planes.cuh): scaling exponents, and planes of bytes modulo each modulus.

In order: the moduli as the kernels read them; `ResidueOperand`, the layout of one operand with its exponents and
planes; the kernels that measure and split; their launches. The products of planes and the join are in residues.py.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from math import isqrt, sqrt
from typing import Literal

from fmm.dtypes import BYTE, DTYPES
from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.residues import remainder_weights, symmetric_residue
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import BlockTerm, GemmOperand
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, Along
from fmm.kernels.cuda.products.wgmma_tiles import LINE_BYTES
from fmm.kernels.plans.levels.residue_planes import INNER_ALGORITHM, PlaneLayout
from fmm.kernels.plans.memory_layout import round_up

MAX_MODULI, MAX_PIECES = 20, 4  # largest numbers of moduli and of pieces of a weight, as in residue_join.cuh
BYTE_SUMS = 2**18 + 2**9  # bound of sums of bytes in modulus.cuh
FLOAT_2_23_BITS = 0x4B000000  # the bits of 2^23 as a float32 number
MAX_NORM = 2.0**60  # upper bound of scaled norms: sums of four of them have 62 bits
RESIDUE_THREADS = 256  # threads of a thread block that measures, splits or joins
RESIDUE_CLUSTER = 8  # thread blocks that share the lines of 64 positions
TRANSPOSED_POSITIONS = 64  # positions that a cluster transposes together
SPLIT_MIN_BLOCKS = "4", "", "2"  # least number of thread blocks on a multiprocessor for the split, by levels
WARP_THREADS, WARP_LINE_LENGTH = 32, 1024  # a warp measures a line of up to 1024 numbers, a thread block a longer one
OPERAND_WORDS = 11  # 8-byte words of struct Operand
NAMESPACE = "fmm::residues::"
SIGNED_TYPES = {DTYPES[name].itemsize: DTYPES[name].cpp for name in ("int8", "int16", "int32", "int64")}


# ---- moduli


@lru_cache(maxsize=64)
def modulus_bytes(p: int) -> bytes:
    """Return struct Modulus of modulus.cuh."""

    def packed(powers: range) -> int:
        return int.from_bytes(bytes(symmetric_residue(256**i, p) % 256 for i in powers), "little", signed=True)

    multiple = FLOAT_2_23_BITS + p * -(-(2**23 + BYTE_SUMS) // p) - 2**23
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    return struct.pack("<if6i", p, 1 / p, packed(range(4)), packed(range(4, 8)), *begins, 0, 0)


def moduli_table(moduli: tuple[int, ...]) -> bytes:
    """Return an array of MAX_MODULI structs Modulus; the last ones are zero."""
    table = b"".join(modulus_bytes(p) for p in moduli)
    return table + bytes(MAX_MODULI * len(modulus_bytes(256)) - len(table))


def max_norm(moduli: int, k: int) -> float:
    """Return the norm to which rows and columns may be scaled.

    Integer rows and columns of norms x and y have products of at most x y (Cauchy-Schwarz), which must be below half of
    the product of the moduli. Rounding to integers adds at most 1/2 to each of the k numbers.
    """
    half = float(isqrt(remainder_weights(moduli).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k), MAX_NORM)


# ---- one operand

# Where bytes come from that are residues already: from the operand itself, or from a transposed copy, which takes the
# place of a plane.
BytesFrom = Literal["source", "planes"]


@dataclass(frozen=True)
class MeasureKernel:
    """How one operand is measured: `group` threads for each line, or transposed while it is measured."""

    along: Along
    group: int
    wide: bool  # True if 16 bytes are read at a time

    def call(self, operand: str, block: str) -> str:
        """Return the call of a function of residue_planes.cuh."""
        wide = str(self.wide).lower()
        named = f"measure_lines<{self.group}, {wide}>" if self.along == "inner" else f"measure_and_transpose<{wide}>"
        return f"{NAMESPACE}{named}({operand}, {block});"


@dataclass(frozen=True)
class ResidueOperand:
    """One operand of a batch, and the layout of its exponents, planes and transposed copy.

    Exponents and planes are in the workspace, or behind the operand itself if an earlier call prepared them.
    """

    source: GemmOperand
    along: Along  # the dimension along which the operand is contiguous
    lines: int  # rows of A, or columns of B
    geometry: PlaneLayout
    block: tuple[int, int]  # number of lines of a plane, and their length
    exponents: int  # offset in bytes
    planes: int  # offset in bytes
    transposed_copy: int  # offset of the transposed copy in the workspace
    # source of the bytes if the operand's numbers are residues themselves; None if they are split into residues
    bytes_from: BytesFrom | None = None
    base: str = "W"  # base of exponents and planes
    is_prepared: bool = False  # True if the planes are prepared already

    def measure_kernel(self, aligned: bool, scaled: bool) -> MeasureKernel | None:
        """Return the kernel that measures or transposes the operand; None for K-major integers, which need neither."""
        if self.is_prepared or (self.along == "inner" and not scaled):
            return None
        group = WARP_THREADS if self.geometry.k <= WARP_LINE_LENGTH else RESIDUE_THREADS
        return MeasureKernel(self.along, group if self.along == "inner" else 0, self.reads_wide(aligned))

    def reads_wide(self, aligned: bool) -> bool:
        """Return True if all lines begin at multiples of four numbers, or of 16 bytes."""
        x, item = self.source, self.geometry.item
        unit = min(4 * item, VECTOR_BYTES)
        return aligned and all(step * item % unit == 0 for step in (x.leading, x.stride)) and x.offset % unit == 0

    def splits_wide(self, aligned: bool) -> bool:
        """Return True if the split can read several numbers at a time, from the operand or its transposed copy."""
        return self.is_prepared or self.along == "outer" or self.reads_wide(aligned)

    def measure_blocks(self, kernel: MeasureKernel | None) -> int:
        """Return the number of thread blocks that measure the operand."""
        if kernel is None:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.lines // TRANSPOSED_POSITIONS) * RESIDUE_CLUSTER
        return round_up(-(-self.geometry.count * self.lines // (RESIDUE_THREADS // kernel.group)), RESIDUE_CLUSTER)

    @property
    def split_blocks(self) -> int:
        """The number of thread blocks that split the operand."""
        if self.bytes_from or self.is_prepared:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // RESIDUE_THREADS)

    def parameters(self, blocks: int) -> bytes:
        """Return struct Operand of residue_planes.cuh; addresses are zero."""
        x, g = self.source, self.geometry
        top = max(max_norm(g.moduli, g.k), 0.0)
        copy_pitch = self.block[1] if self.bytes_from else g.transposed_stride
        distances = x.leading, x.stride, copy_pitch
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *distances, top, self.lines, g.k, g.count, blocks, *self.block)

    def slots(self, first: int) -> tuple[AddressSlot, ...]:
        """Return the slots of the addresses, for a struct that begins at word `first`."""
        x = self.source
        copy = self.planes if self.bytes_from else self.transposed_copy
        transposed_copy = (AddressSlot(first + 1, "W", copy),) if self.along == "outer" else ()
        return (
            AddressSlot(first, x.base, x.offset),
            *transposed_copy,
            AddressSlot(first + 2, self.base, self.exponents),
            AddressSlot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int) -> TensorMap:
        """Return the map of the planes of `moduli` moduli from number `first`; a copy loads at most `most` lines."""
        lines, length = self.block
        if self.bytes_from == "source":
            return source_byte_map(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # The end of a line of a transposed copy is not initialized.
        filled = self.geometry.k if self.bytes_from else length
        # The workspace holds the planes of one group of moduli at a time.
        before = 0 if self.base == "W" else first * self.geometry.products * lines * length
        piece = BlockTerm(self.base, self.planes + before, lines, length)
        return byte_map(piece, self.geometry.products * moduli, most, filled)


def byte_map(piece: BlockTerm, layers: int, most: int, filled: int | None = None) -> TensorMap:
    """Return the map of planes; numbers of a line from `filled` on read as zero."""
    lines, length = piece.rows, piece.cols
    read = length if filled is None else filled
    return TensorMap(piece, BYTE.name, read, lines, layers, length, lines * length, (LINE_BYTES, most), LINE_BYTES)


def source_byte_map(x: GemmOperand, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """Return the map of an operand, or of C, that holds the bytes itself."""
    piece = BlockTerm(x.base, x.offset, lines, length)
    return TensorMap(piece, BYTE.name, length, lines, layers, x.leading, x.stride, (LINE_BYTES, most), LINE_BYTES)


# ---- sources


@lru_cache(maxsize=64)
def measure_source(left: MeasureKernel | None, right: MeasureKernel | None, dtype: str) -> str:
    """Return the whole CUDA source that measures and transposes, entry point `ENTRY_NAME`; None skips an operand."""
    body = (
        "const int block = blockIdx.x;",
        "if (block < p.left.blocks) {",
        *([f"    {left.call('p.left', 'block')}"] if left else []),
        "} else {",
        *([f"    {right.call('p.right', 'block - p.left.blocks')}"] if right else []),
        "}",
    )
    parameters = f"{NAMESPACE}Operands<{read_type_cpp(dtype)}>"
    return entry_source(parameters, body, "residue_planes.cuh", (RESIDUE_THREADS,), clusters=RESIDUE_CLUSTER)


@lru_cache(maxsize=64)
def residue_split_source(levels: int, left_wide: bool, right_wide: bool, dtype: str) -> str:
    """Return the whole CUDA source that splits both operands, entry point `ENTRY_NAME`."""
    wide = f"{str(left_wide).lower()}, {str(right_wide).lower()}"
    bounds = tuple(filter(None, (str(RESIDUE_THREADS), SPLIT_MIN_BLOCKS[levels])))
    body = (f"{NAMESPACE}split_both<Sums, {levels}, {wide}>(p);",)
    parameters = f"{NAMESPACE}Split<{read_type_cpp(dtype)}>"
    return entry_source(parameters, body, "residue_planes.cuh", bounds, before=[fast_sums_cpp()])


def read_type_cpp(dtype: str) -> str:
    """Return the C++ type of an operand's numbers; unsigned integers are read as signed ones, equal modulo 2^bits."""
    found = DTYPES[dtype]
    return SIGNED_TYPES[found.itemsize] if found.exact else found.cpp


@lru_cache(maxsize=1)
def fast_sums_cpp() -> str:
    """Return the coefficients of the fast scheme below the residues, as a type for fast_sums.cuh."""
    found = scheme(INNER_ALGORITHM)
    code = {0: 0, 1: 1, -1: 2}

    def packed(table: Matrix) -> int:
        """Return the coefficients of the blocks in all products, 2 bits each and 8 bits for each product."""
        return sum(code[int(c)] << (8 * q + 2 * b) for b, row in enumerate(table) for q, c in enumerate(row))

    tables = ", ".join(f"{packed(table):#x}ull" for table in (found.u, found.v, found.w))
    return f"using Sums = fmm::FastSums<{found.rank}, {tables}>;"


# ---- launches

ResidueOperandPair = tuple[ResidueOperand, ResidueOperand]  # A and B


def measure_launch(sides: ResidueOperandPair, dtype: str, aligned: tuple[bool, ...]) -> Launch:
    """Return the launch that finds the exponents of both operands, and transposes MN-major ones.

    `aligned` says whether A and B begin at multiples of 16 bytes.
    """
    scaled = not DTYPES[dtype].exact
    kernels = [x.measure_kernel(wide, scaled) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.measure_blocks(kernel) for x, kernel in zip(sides, kernels, strict=True)]
    parameters = b"".join(x.parameters(count) for x, count in zip(sides, blocks, strict=True))
    kernel = Kernel(measure_source, (*kernels, dtype), ENTRY_NAME, RESIDUE_THREADS, architecture="sm_90a")
    slots = (*sides[0].slots(0), *sides[1].slots(OPERAND_WORDS))
    does = "how large A's rows and B's columns are" if scaled else "transposes operands that are not K-major"
    return Launch("sums", f"residue_planes: {does}", kernel, (sum(blocks), 1, 1), parameters, slots)


def residue_split_launch(
    sides: ResidueOperandPair, dtype: str, aligned: tuple[bool, ...], moduli: tuple[int, ...]
) -> Launch:
    """Return the launch that makes the planes of both operands modulo these numbers."""
    levels = sides[0].geometry.levels
    wide = tuple(x.splits_wide(each) for x, each in zip(sides, aligned, strict=True))
    parameters = b"".join(x.parameters(x.split_blocks) for x in sides) + moduli_table(moduli)
    parameters += struct.pack("<i", len(moduli))
    kernel = Kernel(residue_split_source, (levels, *wide, dtype), ENTRY_NAME, RESIDUE_THREADS)
    slots = (*sides[0].slots(0), *sides[1].slots(OPERAND_WORDS))
    sums = f", sums of {'two levels' if levels == 2 else 'a level'} of Strassen's algorithm" if levels else ""
    label = f"residue_planes: residues of A and B modulo {len(moduli)} numbers{sums}"
    grid = sum(x.split_blocks for x in sides), 1, 1
    return Launch("sums", label, kernel, grid, parameters + bytes(-len(parameters) % VECTOR_BYTES), slots)
