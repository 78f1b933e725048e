"""Residue planes."""

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
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.launch_list import Kernel, Launch, Slot, TensorMap
from fmm.kernels.cuda.ops import BlockTerm, GemmOperand
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, Along
from fmm.kernels.cuda.products.wgmma_tiles import LINE_BYTES
from fmm.kernels.plans.levels.residue_planes import FAST, PlaneLayout
from fmm.kernels.plans.workspace import round_up

MAX_MODULI, MAX_PIECES = 20, 4  # as in the device code
SUMS = 2**18 + 2**9  # of bytes, as modulus.cuh bounds them
WHOLE_BITS = 0x4B000000  # the bits of 2^23 as a float32 number
MAX_NORM = 2.0**60  # to which rows and columns are scaled at most: sums of four such numbers have 62 bits


@lru_cache(maxsize=64)
def modulus_bytes(p: int) -> bytes:
    """struct Modulus of modulus.cuh."""

    def packed(powers: range) -> int:
        return int.from_bytes(bytes(symmetric_residue(256**i, p) % 256 for i in powers), "little", signed=True)

    multiple = WHOLE_BITS + p * -(-(2**23 + SUMS) // p) - 2**23
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    return struct.pack("<if6i", p, 1 / p, packed(range(4)), packed(range(4, 8)), *begins, 0, 0)


def moduli_table(moduli: tuple[int, ...]) -> bytes:
    """An array of struct Modulus, as long as the device code has it."""
    table = b"".join(modulus_bytes(p) for p in moduli)
    return table + bytes(MAX_MODULI * len(modulus_bytes(256)) - len(table))


def max_norm(moduli: int, k: int) -> float:
    """The norm to which rows and columns may be scaled.

    Rows and columns of whole numbers with norms x and y have products of at most x y, which must be below half of the
    product of the moduli; and rounding to whole numbers adds half to each of k numbers.
    """
    half = float(isqrt(remainder_weights(moduli).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k), MAX_NORM)


RESIDUE_THREADS = 256  # of a thread block that measures, splits or joins
RESIDUE_CLUSTER = 8  # thread blocks that share the lines of 64 positions
TRANSPOSED_POSITIONS = 64  # positions of lines that are turned together
SPLITTING = "4", "", "2"  # thread blocks on a multiprocessor, at least, by levels
SPACE = "fmm::residues::"
SIGNED = {DTYPES[name].itemsize: DTYPES[name].cpp for name in ("int8", "int16", "int32", "int64")}


@dataclass(frozen=True)
class MeasureKernel:
    """How one operand is measured: its lines by `group` threads each, or turned; are 16 bytes read at a time?"""

    along: Along
    group: int
    wide: bool

    def call(self, operand: str, block: str) -> str:
        """Of a function of residue_planes.cuh."""
        wide = str(self.wide).lower()
        named = f"measure_lines<{self.group}, {wide}>" if self.along == "inner" else f"measure_and_turn<{wide}>"
        return f"{SPACE}{named}({operand}, {block});"


@lru_cache(maxsize=64)
def measure_source(left: MeasureKernel | None, right: MeasureKernel | None, dtype: str) -> str:
    """The whole CUDA source of what measures and turns both operands, entry point `ENTRY`; None: nothing to be done."""
    body = (
        "const int block = blockIdx.x;",
        "if (block < p.left.blocks) {",
        *([f"    {left.call('p.left', 'block')}"] if left else []),
        "} else {",
        *([f"    {right.call('p.right', 'block - p.left.blocks')}"] if right else []),
        "}",
    )
    return entry_source(
        f"{SPACE}Both<{read_type_cpp(dtype)}>", body, "residue_planes.cuh", (RESIDUE_THREADS,), clusters=RESIDUE_CLUSTER
    )


@lru_cache(maxsize=64)
def residue_split_source(levels: int, left_wide: bool, right_wide: bool, dtype: str) -> str:
    """The whole CUDA source of what splits both operands, entry point `ENTRY`."""
    wide = f"{str(left_wide).lower()}, {str(right_wide).lower()}"
    bounds = tuple(filter(None, (str(RESIDUE_THREADS), SPLITTING[levels])))
    body = (f"{SPACE}split_both<Sums, {levels}, {wide}>(p);",)
    return entry_source(
        f"{SPACE}Split<{read_type_cpp(dtype)}>", body, "residue_planes.cuh", bounds, before=[fast_sums()]
    )


def read_type_cpp(dtype: str) -> str:
    """Integers are read with a sign: what they keep of a product is the same."""
    found = DTYPES[dtype]
    return SIGNED[found.itemsize] if found.exact else found.cpp


@lru_cache(maxsize=1)
def fast_sums() -> str:
    """The coefficients of the algorithm below, for fast_sums.cuh."""
    found = scheme(FAST)
    code = {0: 0, 1: 1, -1: 2}

    def packed(table: Matrix) -> int:
        """Of a table of blocks, a row each, with a column for each product."""
        return sum(code[int(c)] << (8 * q + 2 * b) for b, row in enumerate(table) for q, c in enumerate(row))

    tables = ", ".join(f"{packed(table):#x}ull" for table in (found.u, found.v, found.w))
    return f"using Sums = fmm::FastSums<{found.rank}, {tables}>;"


WARP, WARP_LINE_LENGTH = 32, 1024  # a warp measures a line of up to SHORT numbers, a thread block a longer one
# Where bytes are multiplied that are residues themselves: where they lie; or turned, in the place of a plane.
BytesFrom = Literal["source", "planes"]


@dataclass(frozen=True)
class ResidueOperand:
    """One operand of a batch, and where its exponents, planes and a turned copy of it stand."""

    source: GemmOperand
    along: Along  # the dimension along which it is contiguous
    lines: int  # rows of A, or columns of B
    geometry: PlaneLayout
    block: tuple[int, int]  # lines and length of a plane
    exponents: int
    planes: int
    turned: int  # in the workspace
    bytes_from: BytesFrom | None = None  # None: its numbers are split into residues
    base: str = "W"  # where exponents and planes stand: in the workspace, or behind the operand, if they are kept
    is_ready: bool = False  # do the planes stand there already?

    def measure_kernel(self, aligned: bool, scaled: bool) -> MeasureKernel | None:
        """The kernel that measures or turns it; None if neither is to be done, as of integers along the inner
        dimension."""
        if self.is_ready or (self.along == "inner" and not scaled):
            return None
        group = WARP if self.geometry.k <= WARP_LINE_LENGTH else RESIDUE_THREADS
        return MeasureKernel(self.along, group if self.along == "inner" else 0, self.reads_wide(aligned))

    def reads_wide(self, aligned: bool) -> bool:
        """Do all lines begin at multiples of four numbers, or of 16 bytes?"""
        x, item = self.source, self.geometry.item
        unit = min(4 * item, VECTOR_BYTES)
        return aligned and all(step * item % unit == 0 for step in (x.leading, x.stride)) and x.offset % unit == 0

    def splits_wide(self, aligned: bool) -> bool:
        """The same of what is split, which may be a turned copy."""
        return self.is_ready or self.along == "outer" or self.reads_wide(aligned)

    def measure_blocks(self, kernel: MeasureKernel | None) -> int:
        """How many thread blocks measure it."""
        if kernel is None:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.lines // TRANSPOSED_POSITIONS) * RESIDUE_CLUSTER
        return round_up(-(-self.geometry.count * self.lines // (RESIDUE_THREADS // kernel.group)), RESIDUE_CLUSTER)

    @property
    def split_blocks(self) -> int:
        """How many thread blocks split it."""
        if self.bytes_from or self.is_ready:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // RESIDUE_THREADS)

    def parameters(self, blocks: int) -> bytes:
        """struct Operand of residue_planes.cuh, addresses zero."""
        x, g = self.source, self.geometry
        top = max(max_norm(g.moduli, g.k), 0.0)
        room = self.block[1] if self.bytes_from else g.transposed_stride
        distances = x.leading, x.stride, room
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *distances, top, self.lines, g.k, g.count, blocks, *self.block)

    def slots(self, first: int) -> tuple[Slot, ...]:
        """Where the addresses go, if the struct begins at word `first`."""
        x = self.source
        turned_copy = self.planes if self.bytes_from else self.turned
        turned = (Slot(first + 1, "W", turned_copy),) if self.along == "outer" else ()
        return (
            Slot(first, x.base, x.offset),
            *turned,
            Slot(first + 2, self.base, self.exponents),
            Slot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int) -> TensorMap:
        """The map of planes modulo `moduli` numbers from number `first` on. One copy brings at most `most` lines."""
        lines, length = self.block
        if self.bytes_from == "source":
            return source_byte_map(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # (Behind the end of a line that was turned anything may stand.)
        filled = self.geometry.k if self.bytes_from else length
        # (In the workspace there are those of one group of moduli at a time.)
        before = 0 if self.base == "W" else first * self.geometry.products * lines * length
        place = BlockTerm(self.base, self.planes + before, lines, length)
        return byte_map(place, self.geometry.products * moduli, most, filled)


def byte_map(piece: BlockTerm, layers: int, most: int, filled: int | None = None) -> TensorMap:
    """The map of planes. If only so much of each line is `filled`, zeros are brought in the place of the rest."""
    lines, length = piece.rows, piece.cols
    read = length if filled is None else filled
    return TensorMap(piece, BYTE.name, read, lines, layers, length, lines * length, (LINE_BYTES, most), LINE_BYTES)


def source_byte_map(x: GemmOperand, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """The map of an operand or of C itself."""
    piece = BlockTerm(x.base, x.offset, lines, length)
    return TensorMap(piece, BYTE.name, length, lines, layers, x.leading, x.stride, (LINE_BYTES, most), LINE_BYTES)


Sides = tuple[ResidueOperand, ResidueOperand]  # of A and of B
OPERAND_WORDS = 11  # of struct Operand


def measure_launch(sides: Sides, dtype: str, aligned: tuple[bool, ...]) -> Launch:
    """The launch that finds exponents of both operands, and turns what is to be turned."""
    scaled = not DTYPES[dtype].exact
    kernels = [x.measure_kernel(wide, scaled) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.measure_blocks(kernel) for x, kernel in zip(sides, kernels, strict=True)]
    parameters = b"".join(x.parameters(count) for x, count in zip(sides, blocks, strict=True))
    kernel = Kernel(measure_source, (*kernels, dtype), ENTRY, RESIDUE_THREADS, architecture="sm_90a")
    slots = (*sides[0].slots(0), *sides[1].slots(OPERAND_WORDS))
    label = "residue_planes: " + ("how large A's rows and B's columns are" if scaled else "turns what is to be turned")
    return Launch("sums", label, kernel, (sum(blocks), 1, 1), parameters, slots)


def residue_split_launch(sides: Sides, dtype: str, aligned: tuple[bool, ...], moduli: tuple[int, ...]) -> Launch:
    """The launch that makes the planes of both operands modulo these numbers."""
    g = sides[0].geometry
    wide = tuple(x.splits_wide(each) for x, each in zip(sides, aligned, strict=True))
    parameters = b"".join(x.parameters(x.split_blocks) for x in sides) + moduli_table(moduli)
    parameters += struct.pack("<i", len(moduli))
    kernel = Kernel(residue_split_source, (g.levels, *wide, dtype), ENTRY, RESIDUE_THREADS)
    slots = (*sides[0].slots(0), *sides[1].slots(OPERAND_WORDS))
    sums = f", sums of {'two levels' if g.levels == 2 else 'a level'} of Strassen's algorithm" if g.levels else ""
    label = f"residue_planes: residues of A and B modulo {len(moduli)} numbers{sums}"
    grid = sum(x.split_blocks for x in sides), 1, 1
    return Launch("sums", label, kernel, grid, parameters + bytes(-len(parameters) % VECTOR_BYTES), slots)
