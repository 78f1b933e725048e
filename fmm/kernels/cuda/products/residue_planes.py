"""Compute scaling exponents and residues of the operands: one plane of bytes for each modulus (residue_planes.cuh).

`ResidueOperand` describes the memory of one operand with its exponents and planes. A line is a row of A or a column of
B. The launch of `norm_exponent_launch` finds the norm of each line, and from the norm the scaling exponent. The launch
of `residue_split_launch` computes the planes. The launches of residues.py multiply the planes and reconstruct C.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from fmm.dtypes import BYTE_TYPE, DTYPES
from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.algorithms.catalogue import scheme
from fmm.kernels.algorithms.residues import imaginary_unit, max_scaled_norm, symmetric_residue
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import BlockTerm, GemmOperand
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, ContiguousAxis
from fmm.kernels.cuda.products.wgmma_tiles import TILE_LINE_BYTES
from fmm.kernels.plans.levels.residue_planes import INNER_ALGORITHM, PlaneLayout
from fmm.kernels.plans.memory_layout import round_up

MAX_MODULI = 20  # largest number of moduli, as in residue_join.cuh
BYTE_SUM_BOUND = 2**18 + 2**9  # upper bound of the magnitude of weighted sums of eight bytes in modulus.cuh
FLOAT_2_23_BITS = 0x4B000000  # bit pattern of 2^23 as a float32 number
RESIDUE_THREADS = 256  # threads of a thread block, in the kernels that find norms, split operands or reconstruct C
RESIDUE_CLUSTER_BLOCKS = 8  # number of thread blocks in a cluster
# Number of lines that a cluster transposes together: lines with elements of at most 8 bytes, and of 16 bytes.
TRANSPOSED_LINES, TRANSPOSED_LINES_OF_16_BYTES = 64, 32
# Number of lines for which a thread block without a cluster finds norms and writes a transposed copy.
TRANSPOSED_LINES_ALONE = 16
# Minimum number of resident thread blocks of the split kernel per multiprocessor, for `__launch_bounds__`: 4 without
# levels of Strassen's algorithm, no minimum with one level, and 2 with two levels.
MIN_SPLIT_BLOCKS_PER_SM = "4", "", "2"
# A warp finds the norm of a line of at most MAX_WARP_LINE_BYTES bytes; a thread block finds the norm of a longer line.
WARP_THREADS, MAX_WARP_LINE_BYTES = 32, 4096
LINE_MEMORY_BYTES = 24 * RESIDUE_THREADS + 4 * 32  # size of struct LineMemory of residue_lines.cuh
STRIP_BYTES = 128  # width in bytes of the strip of adjacent lines that a cluster splits in an MN-major operand
STRIP_PART_POSITIONS = 32  # each thread block of a cluster splits a multiple of this number of positions of the lines
# The largest number of positions in a line for which one kernel finds the norm of the line and also splits the line.
# For longer lines, two kernels are faster, because shared memory holds fewer thread blocks of the single kernel. On an
# H200, float64 products with the single kernel took 1.02 times as long as with two kernels for lines of 5500 numbers,
# and 1.13 times as long for lines of 8192 numbers.
MAX_SPLIT_LINE_LENGTH = 4096
OPERAND_WORDS = 11  # number of 8-byte words in struct Operand of residue_planes.cuh
RESIDUE_NAMESPACE = "fmm::residues::"
SIGNED_CPP_TYPES = {DTYPES[name].itemsize: DTYPES[name].cpp for name in ("int8", "int16", "int32", "int64")}


# ---- moduli


@lru_cache(maxsize=64)
def pack_modulus(p: int) -> bytes:
    """Return the bytes of struct Modulus of modulus.cuh for the modulus p."""

    multiple = _float32_bits_of_multiple(p, BYTE_SUM_BOUND)
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    low, high = _pack_powers_of_256(p)
    return struct.pack("<if6i", p, 1 / p, low, high, *begins, 0, 0)


@lru_cache(maxsize=64)
def pack_gaussian_modulus(p: int) -> bytes:
    """Return the bytes of struct GaussianModulus of modulus.cuh for the modulus p."""
    j, multiple = imaginary_unit(p), _float32_bits_of_multiple(p, 2 * BYTE_SUM_BOUND)
    begins = (multiple - 2**63 * (1 + sign * j) % p for sign in (1, -1))
    return struct.pack("<if6i", p, 1 / p, *_pack_powers_of_256(p), *_pack_powers_of_256(p, j), *begins)


def _float32_bits_of_multiple(p: int, bound: int) -> int:
    """Return the bit pattern of a float32 number: the smallest multiple of p that is at least 2^23 + `bound`.

    A kernel adds an integer between -`bound` and `bound` to this bit pattern. The result is the bit pattern of a
    float32 number between 2^23 and 2^24 with the same residue modulo p as the integer.
    """
    return FLOAT_2_23_BITS + p * -(-(2**23 + bound) // p) - 2**23


def _pack_powers_of_256(p: int, factor: int = 1) -> tuple[int, int]:
    """Return `factor` * 256^i modulo p as bytes, in two words of 4 bytes: i = 0 to 3, then i = 4 to 7."""
    residues = bytes(symmetric_residue(factor * 256**i, p) % 256 for i in range(8))
    low, high = struct.unpack("<2i", residues)
    return low, high


def moduli_table(moduli: tuple[int, ...], for_complex: bool = False) -> bytes:
    """Return the bytes of an array of MAX_MODULI structs Modulus or GaussianModulus; unused structs are zero."""
    table = b"".join((pack_gaussian_modulus if for_complex else pack_modulus)(p) for p in moduli)
    return table + bytes(MAX_MODULI * len(pack_modulus(256)) - len(table))


# ---- one operand

# Where the product kernel reads the elements of an operand of bytes, which need no split into residues. "source": from
# the operand itself. "planes": from a transposed copy in the workspace's memory for planes.
ByteSource = Literal["source", "planes"]


@dataclass(frozen=True)
class NormExponentKernel:
    """A variant of the kernel that finds the norms of one operand's lines.

    If the operand is contiguous along the inner dimension, `group` threads find the norm of a line. If the operand is
    contiguous along the outer dimension, a cluster finds the norms of several lines and also writes a transposed copy.
    """

    along: ContiguousAxis
    group: int
    wide: bool  # True if each load reads 16 bytes

    def cpp_norm_call(self, operand: str, block: str, cluster: int) -> str:
        """Return the C++ statement that calls the function of residue_planes.cuh that finds the norms of lines."""
        wide = str(self.wide).lower()
        lines = f"norm_exponents_of_lines<{self.group}, {wide}>"
        named = lines if self.along == "inner" else f"norm_exponents_and_transpose<{wide}, {cluster}>"
        return f"{RESIDUE_NAMESPACE}{named}({operand}, {block});"


@dataclass(frozen=True)
class ResidueOperand:
    """An operand of a batch, and the memory layout of its exponents, planes and transposed copy.

    Exponents and planes are in the workspace, except those that `fmm.prepare` has stored behind the operand's matrix.
    """

    source: GemmOperand
    along: ContiguousAxis  # the dimension along which the operand is contiguous
    lines: int  # number of rows of A, or of columns of B
    geometry: PlaneLayout
    block: tuple[int, int]  # number of lines in a plane, and number of elements in a line
    exponents: int  # offset of the exponents from `base`, in bytes
    planes: int  # offset of the planes from `base`, in bytes
    transposed_copy: int  # offset of the transposed copy in the workspace, in bytes
    # where the product kernel reads the elements of an operand of bytes; None if the split kernel computes residues
    bytes_from: ByteSource | None = None
    base: str = "W"  # name of the base that the offsets of exponents and planes count from
    is_prepared: bool = False  # True if `fmm.prepare` has stored the planes, or both operands use the same planes
    conjugated: bool = False  # True if the product uses the complex conjugate of the operand

    @property
    def threads_per_line(self) -> int:
        """The number of threads that read a line of a K-major operand: those of a warp or of a thread block."""
        line_bytes = self.geometry.item * self.geometry.k
        return WARP_THREADS if line_bytes <= MAX_WARP_LINE_BYTES else RESIDUE_THREADS

    def norm_exponent_kernel(self, aligned: bool, scaled: bool) -> NormExponentKernel | None:
        """Return the kernel that finds the norms of the operand's lines and transposes an operand that is not K-major.

        Return None for a prepared operand, and for a K-major operand without scaling exponents.
        """
        if self.is_prepared or (self.along == "inner" and not scaled):
            return None
        group = self.threads_per_line
        return NormExponentKernel(
            self.along, group if self.along == "inner" else 0, self.has_vector_aligned_lines(aligned)
        )

    def has_vector_aligned_lines(self, aligned: bool) -> bool:
        """Return True if each line starts at a multiple of 16 bytes, or of four elements if these are smaller."""
        x, item = self.source, self.geometry.item
        unit = min(4 * item, VECTOR_BYTES)
        return aligned and all(step * item % unit == 0 for step in (x.leading, x.stride)) and x.offset % unit == 0

    def can_split_by_vector_loads(self, aligned: bool) -> bool:
        """Return True if each load of the split kernel can read several elements of the operand or of its copy."""
        return self.is_prepared or self.along == "outer" or self.has_vector_aligned_lines(aligned)

    def norm_exponent_block_count(self, kernel: NormExponentKernel | None, cluster: int, scaled: bool) -> int:
        """Return the number of thread blocks that find the norms of this operand's lines.

        `cluster` is the number of thread blocks in a cluster; 1 means no clusters. Without clusters, a single thread
        block reads a complete line to find its norm. If no norms are needed, several thread blocks transpose parts of
        the same line.
        """
        if kernel is None:
            return 0
        if self.along == "outer":
            side = TRANSPOSED_LINES_OF_16_BYTES if self.geometry.item == 16 else TRANSPOSED_LINES
            if cluster == 1 and scaled:
                return self.geometry.count * -(-self.lines // TRANSPOSED_LINES_ALONE)
            return self.geometry.count * -(-self.lines // side) * RESIDUE_CLUSTER_BLOCKS
        return round_up(-(-self.geometry.count * self.lines // (RESIDUE_THREADS // kernel.group)), cluster)

    @property
    def lines_per_split_block(self) -> int:
        """The number of lines that one thread block (K-major operand) or one cluster (MN-major operand) splits."""
        if self.along == "outer":
            return STRIP_BYTES // self.geometry.item
        return RESIDUE_THREADS // self.threads_per_line

    def line_split_block_count(self) -> int:
        """Return the number of thread blocks that find norms and split lines: a multiple of the cluster size."""
        if self.is_prepared:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.block[0] // self.lines_per_split_block) * RESIDUE_CLUSTER_BLOCKS
        return round_up(-(-self.geometry.count * self.block[0] // self.lines_per_split_block), RESIDUE_CLUSTER_BLOCKS)

    def line_split_shared_bytes(self) -> int:
        """Return the bytes of shared memory of a thread block that finds the norms of lines and splits the lines."""
        if self.is_prepared:
            return 0
        positions, padding = self.block[1], 0
        if self.along == "outer":
            positions = round_up(-(-positions // RESIDUE_CLUSTER_BLOCKS), STRIP_PART_POSITIONS)
            padding = VECTOR_BYTES
        line = positions * self.geometry.item + padding
        return LINE_MEMORY_BYTES + self.lines_per_split_block * line

    @property
    def split_block_count(self) -> int:
        """The number of thread blocks that split this operand into residues."""
        if self.bytes_from or self.is_prepared:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // RESIDUE_THREADS)

    def pack_parameters(self, blocks: int) -> bytes:
        """Return the bytes of struct Operand of residue_planes.cuh, with zeros in place of addresses."""
        x, g = self.source, self.geometry
        top = max(max_scaled_norm(g.moduli, g.k, g.for_complex), 0.0)
        copy_pitch = self.block[1] if self.bytes_from else g.transposed_stride
        distances = x.leading, x.stride, copy_pitch
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *distances, top, self.lines, g.k, g.count, blocks, *self.block)

    def parameter_addresses(self, first: int) -> tuple[AddressSlot, ...]:
        """Return an AddressSlot for each address in a struct Operand that starts at word `first`."""
        x = self.source
        copy = self.planes if self.bytes_from else self.transposed_copy
        transposed_copy = (AddressSlot(first + 1, "W", copy),) if self.along == "outer" else ()
        return (
            AddressSlot(first, x.base, x.offset),
            *transposed_copy,
            AddressSlot(first + 2, self.base, self.exponents),
            AddressSlot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int, sign: int | None = None) -> TensorMap:
        """Return the tensor map of the planes of `moduli` moduli; `first` is the index of the first modulus.

        One copy by the copy engine (TMA) loads `most` lines. A complex operand has two planes for each modulus p: plane
        0 is re + j im and plane 1 is re - j im, where j^2 = -1 modulo p. If `sign` is 0 or 1, the map has only the
        planes with this index.
        """
        lines, length = self.block
        if self.bytes_from == "source":
            return byte_matrix_tensor_map(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # Each line of a transposed copy ends with padding that no kernel initializes, so only the numbers before the
        # padding are read.
        filled = self.geometry.k if self.bytes_from else length
        # The workspace holds only the planes of the current group of moduli; prepared planes exist for all moduli.
        before = 0 if self.base == "W" else first * self.geometry.plane_product_count * lines * length
        piece = BlockTerm(self.base, self.planes + before, lines, length)
        return byte_plane_tensor_map(piece, self.geometry.plane_product_count * moduli, most, filled, sign)


def byte_plane_tensor_map(
    piece: BlockTerm, layers: int, most: int, filled: int | None = None, sign: int | None = None
) -> TensorMap:
    """Return the tensor map of planes of bytes.

    The copy engine (TMA) reads the first `filled` positions of each line, and fills the rest of the tile with zeros. If
    `sign` is 0 or 1, the map has every second plane, starting with the plane of index `sign`.
    """
    lines, length = piece.rows, piece.cols
    read, layer = length if filled is None else filled, lines * length
    if sign is not None:
        piece, layers, layer = piece._replace(offset=piece.offset + sign * layer), layers // 2, 2 * layer
    return TensorMap(
        piece, BYTE_TYPE.name, read, lines, layers, length, layer, (TILE_LINE_BYTES, most), TILE_LINE_BYTES
    )


def byte_matrix_tensor_map(x: GemmOperand, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """Return the tensor map of a matrix (an operand or C) whose elements are bytes."""
    piece = BlockTerm(x.base, x.offset, lines, length)
    return TensorMap(
        piece, BYTE_TYPE.name, length, lines, layers, x.leading, x.stride, (TILE_LINE_BYTES, most), TILE_LINE_BYTES
    )


# ---- sources


@lru_cache(maxsize=64)
def norm_exponent_kernel_source(
    left: NormExponentKernel | None, right: NormExponentKernel | None, dtype: str, cluster: int
) -> str:
    """Return the CUDA source of the kernel that finds the norms of lines and writes transposed copies of operands.

    The kernel skips A if `left` is None, and skips B if `right` is None.
    """
    body = (
        "const int block = blockIdx.x;",
        "if (block < p.left.blocks) {",
        *([f"    {left.cpp_norm_call('p.left', 'block', cluster)}"] if left else []),
        "} else {",
        *([f"    {right.cpp_norm_call('p.right', 'block - p.left.blocks', cluster)}"] if right else []),
        "}",
    )
    parameters = f"{RESIDUE_NAMESPACE}Operands<{cpp_operand_type(dtype)}>"
    clusters = cluster if cluster > 1 else 0
    return entry_source(parameters, body, "residue_planes.cuh", (RESIDUE_THREADS,), clusters=clusters)


@lru_cache(maxsize=64)
def residue_split_kernel_source(levels: int, left_wide: bool, right_wide: bool, dtype: str) -> str:
    """Return the CUDA source of the kernel that splits both operands; its entry point is `ENTRY_NAME`."""
    wide = f"{str(left_wide).lower()}, {str(right_wide).lower()}"
    least_blocks = "" if DTYPES[dtype].is_complex and levels else MIN_SPLIT_BLOCKS_PER_SM[levels]
    bounds = tuple(filter(None, (str(RESIDUE_THREADS), least_blocks)))
    body = (f"{RESIDUE_NAMESPACE}split_both<Sums, {levels}, {wide}>(p);",)
    parameters = f"{RESIDUE_NAMESPACE}Split<{cpp_operand_type(dtype)}>"
    return entry_source(parameters, body, "residue_planes.cuh", bounds, before=[cpp_inner_scheme_sums()])


@lru_cache(maxsize=64)
def line_split_kernel_source(left: NormExponentKernel | None, right: NormExponentKernel | None, dtype: str) -> str:
    """Return the CUDA source of the kernel that finds the norms of lines and splits the lines into residues.

    The kernel skips A if `left` is None, and skips B if `right` is None. The first thread blocks of the grid split the
    MN-major operand, because clusters that split adjacent lines of an MN-major operand take longest.
    """
    sides = [("left", 0, left), ("right", 1, right)]
    sides.sort(key=lambda side: side[2] is None or side[2].along == "inner")
    first, second = (name for name, _, _ in sides)

    def line_split_call(side: int, kernel: NormExponentKernel | None, name: str, block: str) -> list[str]:
        if kernel is None:
            return []
        wide = str(kernel.wide).lower()
        called = "split_strip" if kernel.along == "outer" else f"split_lines<{kernel.group}, {wide}>"
        return [f"    {RESIDUE_NAMESPACE}{called}(p.{name}, p, p.conjugates[{side}], {block}, lines);"]

    body = (
        "extern __shared__ float4 memory[];",
        f"auto* const lines = reinterpret_cast<{RESIDUE_NAMESPACE}LineMemory*>(memory);",
        "const int block = blockIdx.x;",
        f"if (block < p.{first}.blocks) {{",
        *line_split_call(sides[0][1], sides[0][2], first, "block"),
        "} else {",
        *line_split_call(sides[1][1], sides[1][2], second, f"block - p.{first}.blocks"),
        "}",
    )
    parameters = f"{RESIDUE_NAMESPACE}Split<{cpp_operand_type(dtype)}>"
    return entry_source(parameters, body, "residue_lines.cuh", (RESIDUE_THREADS,), clusters=RESIDUE_CLUSTER_BLOCKS)


def cpp_operand_type(dtype: str) -> str:
    """Return the C++ type of an operand's elements; for unsigned integers, the signed integer type of the same size."""
    found = DTYPES[dtype]
    return SIGNED_CPP_TYPES[found.itemsize] if found.exact else found.cpp


@lru_cache(maxsize=1)
def cpp_inner_scheme_sums() -> str:
    """Return C++ that defines type Sums by fast_sums.cuh, with the coefficients of the scheme INNER_ALGORITHM."""
    found = scheme(INNER_ALGORITHM)
    code = {0: 0, 1: 1, -1: 2}

    def packed_coefficients(table: Matrix) -> int:
        """Return the coefficients of table U, V or W of the scheme as an integer: 2 bits for each product and block."""
        return sum(code[int(c)] << (8 * q + 2 * b) for b, row in enumerate(table) for q, c in enumerate(row))

    tables = ", ".join(f"{packed_coefficients(table):#x}ull" for table in (found.u, found.v, found.w))
    return f"using Sums = fmm::FastSums<{found.rank}, {tables}>;"


# ---- launches

ResidueOperandPair = tuple[ResidueOperand, ResidueOperand]  # the operands A and B


def norm_exponent_launch(
    sides: ResidueOperandPair, dtype: str, aligned: tuple[bool, ...], cluster: int = RESIDUE_CLUSTER_BLOCKS
) -> Launch:
    """Return the launch that computes the exponents of both operands, and transposes operands that are not K-major.

    `aligned` has True for A and for B if the operand's address is a multiple of 16 bytes. `cluster` is the number of
    thread blocks in a cluster; 1 on GPUs without clusters (before compute capability 9.0).
    """
    scaled = not DTYPES[dtype].exact
    kernels = [x.norm_exponent_kernel(wide, scaled) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.norm_exponent_block_count(kernel, cluster, scaled) for x, kernel in zip(sides, kernels, strict=True)]
    parameters = b"".join(x.pack_parameters(count) for x, count in zip(sides, blocks, strict=True))
    architecture = "sm_90a" if cluster > 1 else DEVICE_ARCHITECTURE
    arguments = (*kernels, dtype, cluster)
    kernel = Kernel(norm_exponent_kernel_source, arguments, ENTRY_NAME, RESIDUE_THREADS, architecture=architecture)
    slots = (*sides[0].parameter_addresses(0), *sides[1].parameter_addresses(OPERAND_WORDS))
    does = "norms of A's rows and B's columns" if scaled else "transposes operands that are not K-major"
    return Launch("sums", f"residue_planes: {does}", kernel, (sum(blocks), 1, 1), parameters, slots)


def residue_split_launch(
    sides: ResidueOperandPair, dtype: str, aligned: tuple[bool, ...], moduli: tuple[int, ...]
) -> Launch:
    """Return the launch that computes the planes of both operands for these moduli."""
    levels, for_complex = sides[0].geometry.levels, sides[0].geometry.for_complex
    wide = tuple(x.can_split_by_vector_loads(each) for x, each in zip(sides, aligned, strict=True))
    parameters = b"".join(x.pack_parameters(x.split_block_count) for x in sides)
    parameters += moduli_table(moduli, for_complex) + struct.pack("<3i", len(moduli), *(x.conjugated for x in sides))
    arguments = levels, *wide, dtype
    kernel = Kernel(
        residue_split_kernel_source, arguments, ENTRY_NAME, RESIDUE_THREADS, architecture=DEVICE_ARCHITECTURE
    )
    slots = (*sides[0].parameter_addresses(0), *sides[1].parameter_addresses(OPERAND_WORDS))
    sums = f", sums of {'two levels' if levels == 2 else 'a level'} of Strassen's algorithm" if levels else ""
    twice = ", two for each complex number" if for_complex else ""
    label = f"residue_planes: residues of A and B modulo {len(moduli)} numbers{twice}{sums}"
    grid = sum(x.split_block_count for x in sides), 1, 1
    return Launch("sums", label, kernel, grid, parameters + bytes(-len(parameters) % VECTOR_BYTES), slots)


def can_split_lines(sides: ResidueOperandPair, dtype: str) -> bool:
    """Return True if one launch can find the norms of both operands' lines and also split both operands into residues.

    The lines must have at most MAX_SPLIT_LINE_LENGTH numbers, and the workspace must hold the planes of all moduli. A
    plan with levels of Strassen's algorithm, or with integer elements, needs separate launches.
    """
    g = sides[0].geometry
    fits = g.k <= MAX_SPLIT_LINE_LENGTH and g.moduli_per_pass == g.moduli
    return fits and not g.levels and not DTYPES[dtype].exact


def line_split_launch(
    sides: ResidueOperandPair, dtype: str, aligned: tuple[bool, ...], moduli: tuple[int, ...]
) -> Launch:
    """Return the launch that computes the exponents and the planes of both operands, and reads each operand once."""
    for_complex = sides[0].geometry.for_complex
    kernels = [x.norm_exponent_kernel(wide, True) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.line_split_block_count() for x in sides]
    parameters = b"".join(x.pack_parameters(count) for x, count in zip(sides, blocks, strict=True))
    parameters += moduli_table(moduli, for_complex) + struct.pack("<3i", len(moduli), *(x.conjugated for x in sides))
    shared = max(x.line_split_shared_bytes() for x in sides)
    kernel = Kernel(
        line_split_kernel_source, (*kernels, dtype), ENTRY_NAME, RESIDUE_THREADS, shared, architecture="sm_90a"
    )
    slots = (*sides[0].parameter_addresses(0), *sides[1].parameter_addresses(OPERAND_WORDS))
    twice = ", two for each complex number" if for_complex else ""
    label = f"residue_lines: norms and residues of A and B modulo {len(moduli)} numbers{twice}"
    padding = bytes(-len(parameters) % VECTOR_BYTES)
    return Launch("sums", label, kernel, (sum(blocks), 1, 1), parameters + padding, slots)
