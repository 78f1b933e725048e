"""Compute a product by residues: multiply byte planes for each modulus, then reconstruct C.

The kernels are in gemm_residues.cuh and residue_join.cuh. `residue_op` describes a GEMM. `residue_launches` returns the
GEMM's launches in order. The first launch finds the scaling exponents of A's rows and B's columns. The workspace may
hold the planes of only a few moduli at a time. For each group of moduli, launches split the operands into residues and
multiply the planes. The last launch reconstructs C by the Chinese remainder theorem. The module residue_planes.py
describes the operands.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import BYTE_TYPE, DTYPES, RING_TYPES
from fmm.hardware.chip import Chip
from fmm.kernels.algorithms.residues import MAX_WEIGHT_PIECES, CrtWeightPieces, remainder_weights
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import (
    DEVICE_ARCHITECTURE,
    FLAG,
    TENSOR_MAP_WORDS,
    AddressSlot,
    Kernel,
    Launch,
    LaunchPurpose,
    TensorMap,
)
from fmm.kernels.cuda.ops import BlockTerm, GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.residue_planes import (
    MAX_MODULI,
    RESIDUE_CLUSTER_BLOCKS,
    RESIDUE_NAMESPACE,
    RESIDUE_THREADS,
    WARP_THREADS,
    ByteSource,
    ResidueOperand,
    byte_matrix_tensor_map,
    byte_plane_tensor_map,
    can_split_lines,
    cpp_inner_scheme_sums,
    line_split_launch,
    moduli_table,
    norm_exponent_launch,
    residue_split_launch,
)
from fmm.kernels.cuda.products.residues_mma import ByteProducts, residue_mma_launch
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, ContiguousAxis, row_major_operands
from fmm.kernels.cuda.products.wgmma_tiles import (
    BARRIER_BYTES,
    TILE_LINE_BYTES,
    WgmmaOp,
    WgmmaSizes,
    cluster_tile_grid,
    count_cluster_tiles,
    wgmma_instructions,
)
from fmm.kernels.plans.levels.residue_planes import EXPONENT_BYTES, PART_ALIGN_BYTES, PlaneLayout, prepared_plane_layout
from fmm.kernels.plans.levels.residues import ResidueLeaf, ResiduesLevel
from fmm.kernels.plans.memory_layout import round_up
from fmm.problem import Shape

RESIDUE_SIZES = (WgmmaSizes(128, 256, stages=4), WgmmaSizes(128, 128, stages=5))
TILE_OVERHEAD_COLUMNS = 24  # start and end of a tile together take as long as computing this number of columns
# The kernel of gemm_residues.cuh reduces its sums modulo p after every MAX_UNREDUCED_STEPS steps, because longer sums
# could exceed 32 bits. One step is 128 positions of the inner dimension.
MAX_UNREDUCED_STEPS = 512
NO_ALIGNMENT: Mapping[str, int] = MappingProxyType({})  # alignments by base; empty: no alignment is known


# ---- a GEMM as a product by residues


@dataclass(frozen=True)
class ResidueOp:
    """A product by residues: C = factor * A B + keep * C for each product of a batch."""

    dtype: str
    geometry: PlaneLayout
    left: ResidueOperand
    right: ResidueOperand
    dest: GemmOperand
    planes: int  # offset of C's planes in the workspace, in bytes
    multiprocessors: int
    factor: complex
    keep: complex
    writes_c: bool = False  # True if the product kernel itself writes C: C's elements are the product's bytes
    lower_only: bool = False  # True if C is symmetric or Hermitian and only the lower triangle of C is written
    shares_planes: bool = False  # True if both operands have the same planes, because B is the adjoint of A
    # the chip if the product kernel uses the mma instruction of single warps; None if it uses Hopper's warpgroups
    warp_chip: Chip | None = None

    def __hash__(self) -> int:
        return id(self)

    @property
    def operands(self) -> tuple[ResidueOperand, ResidueOperand]:
        return self.left, self.right

    @property
    def modulus_groups(self) -> tuple[tuple[int, ...], ...]:
        """The moduli as tuples; the workspace holds the planes of one tuple at a time."""
        moduli, together = self.geometry.remainder_weights.moduli, self.geometry.moduli_per_pass
        return tuple(moduli[i : i + together] for i in range(0, len(moduli), together))

    @property
    def plane_signs_by_launch(self) -> tuple[int | None, ...]:
        """The plane indices (0, 1) with separate launches; `(None,)` if one launch computes all products.

        For each modulus p, a complex matrix has two planes: plane 0 is re + j im and plane 1 is re - j im, where j^2 =
        -1 modulo p. The complex conjugate of the matrix has the same two planes in the opposite order. If A and B
        share planes because B is the adjoint of A, one launch multiplies plane 0 by plane 1, and another launch
        multiplies plane 1 by plane 0.
        """
        return (0, 1) if self.shares_planes and self.geometry.for_complex else (None,)

    @property
    def blocks_per_cluster(self) -> int:
        """Cluster size, in thread blocks, of the kernel that finds exponents; 1 if the chip has no clusters."""
        return 1 if self.warp_chip else RESIDUE_CLUSTER_BLOCKS

    @property
    def product_shape(self) -> Shape:
        """The rows, the inner dimension and the columns of a product of planes."""
        rows, inner, columns = self.geometry.block_shape
        return rows, inner, self.geometry.n if self.writes_c else columns

    def products_per_modulus(self, sign: int | None) -> int:
        """Return the number of products of planes for each modulus; half of this number if `sign` is 0 or 1."""
        return self.geometry.plane_product_count // (1 if sign is None else 2)

    def plane_signs_of_operands(self, sign: int | None) -> list[int | None]:
        """Return for A and for B the index (0 or 1) of the plane that a launch multiplies; None: both planes.

        If an operand uses the planes of its adjoint, plane 1 replaces plane 0 and plane 0 replaces plane 1.
        """
        return [sign if sign is None else sign ^ x.is_prepared for x in self.operands]

    def result_tensor_map(self, first: int, count: int, sign: int | None) -> TensorMap:
        """Return the tensor map of the products of planes for `count` moduli; `first` is the first modulus's index."""
        g, (rows, _, columns) = self.geometry, self.geometry.block_shape
        if self.writes_c:
            return byte_matrix_tensor_map(self.dest, g.m, g.n, g.count, 64)
        planes = BlockTerm("W", self.planes + first * g.plane_bytes[2], rows, columns)
        return byte_plane_tensor_map(planes, count * g.plane_product_count, 64, sign=sign)

    def byte_products(self, first: int, moduli: tuple[int, ...], sign: int | None = None) -> ByteProducts:
        """Describe the products of planes for these moduli, for the kernel that multiplies by single warps.

        `first` is the index of the first modulus. For each modulus p, a complex product consists of two products of
        planes: of the planes re + j im (`sign` 0), and of the planes re - j im (`sign` 1), where j^2 = -1 modulo p. If
        `sign` is None, all products of planes are described.
        """
        count = len(moduli)
        operands = zip(self.operands, self.plane_signs_of_operands(sign), strict=True)
        left, right = (x.tensor_map(first, count, 1, each) for x, each in operands)
        maps = left, right, self.result_tensor_map(first, count, sign)
        return ByteProducts(maps, *self.product_shape, moduli, self.products_per_modulus(sign), self.lower_only)

    def plane_product_op(self, first: int, count: int, sign: int | None = None) -> WgmmaOp[ResidueKernel]:
        """Describe the products of planes for `count` moduli, for the kernel that multiplies by warpgroups.

        `first` is the index of the first modulus. `sign` means the same as in `byte_products`.
        """
        rows, inner, columns = self.product_shape
        layers = count * self.products_per_modulus(sign)
        signs = self.plane_signs_of_operands(sign)
        s = best_residue_sizes(rows, self.geometry.block_shape[2], layers, self.multiprocessors, self.lower_only)
        dest = self.result_tensor_map(first, count, sign)
        left = self.left.tensor_map(first, count, s.m_s, signs[0])
        right = self.right.tensor_map(first, count, s.n_s // s.cluster, signs[1])
        clusters = max(self.multiprocessors // s.cluster, 1)
        tiles = cluster_tile_grid(rows, columns, s)
        steps, sides = -(-inner // TILE_LINE_BYTES), (rows, columns)
        kernel = ResidueKernel(s, "lower" if self.lower_only else None, steps >= MAX_UNREDUCED_STEPS)
        return WgmmaOp(kernel, (left, right, dest), steps, tiles, layers, False, 0.0, 0.0, sides, clusters)


def residue_op(
    op: GemmOp,
    ending: ResidueLeaf,
    multiprocessors: int,
    alignment: Mapping[str, int] = NO_ALIGNMENT,
    warp_chip: Chip | None = None,
) -> ResidueOp | None:
    """Describe a GEMM as a product by residues.

    Return None if alpha or beta of a real product has an imaginary part. `alignment` maps the name of a base, such as A
    or C, to a power of two that divides the base's address. `warp_chip` is the chip if the kernel multiplies by single
    warps instead of Hopper's warpgroups.
    """
    alpha, beta, dtype, levels = complex(op.alpha), complex(op.beta), op.dtype, ending.depth
    moduli, for_complex = ending.level.moduli_count_for(dtype, op.k), ending.level.for_complex
    if (alpha.imag or beta.imag) and not for_complex:
        return None
    left, right, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    g = PlaneLayout(m, k, n, op.count, moduli, levels, DTYPES[dtype].itemsize, for_complex)
    rows, inner, columns = g.block_shape
    left_exponents, right_exponents, a, b, c, copies, _ = (op.scratch + x for x in g.workspace_offsets)
    are_residues = dtype in RING_TYPES and g.item == 1 and moduli == 1
    first, second = (
        _direct_byte_source(source, dimension, alignment) if are_residues else None
        for source, dimension in zip((left, right), along, strict=True)
    )
    x = ResidueOperand(left, along[0], m, g, (rows, inner), left_exponents, a, copies, first)
    y = ResidueOperand(
        right, along[1], n, g, (columns, inner), right_exponents, b, copies + g.transposed_bytes[0], second
    )
    x, y = _with_conjugation_flag(x, ending.level), _with_conjugation_flag(y, ending.level)
    x, y = _reuse_prepared_planes(op, x, "A"), _reuse_prepared_planes(op, y, "B")
    # The copy engine (TMA) writes 16 bytes at a time, and would write zeros behind a row that does not end at a
    # multiple of 16 bytes.
    writes_c = (
        are_residues and (alpha, beta) == (1, 0) and n % VECTOR_BYTES == 0 and _is_tma_aligned(op.dest, alignment)
    )
    # With levels of Strassen's algorithm, the kernel multiplies a sum of A's blocks by a sum of B's blocks. A product
    # of two sums is not symmetric or Hermitian, even if C is, so both triangles must be computed.
    lower_only = op.triangle is not None and not levels and not DTYPES[dtype].exact
    shares_planes = lower_only and _can_share_planes(op, x, y)
    if shares_planes:
        x, y = _share_planes(x, y)
    return ResidueOp(
        dtype, g, x, y, op.dest, c, multiprocessors, alpha, beta, writes_c, lower_only, shares_planes, warp_chip
    )


def _can_share_planes(op: GemmOp, x: ResidueOperand, y: ResidueOperand) -> bool:
    """Return True if both operands can use the same planes: one is the other's adjoint, and none is prepared."""
    is_gram = op.triangle is not None and op.triangle.gram
    return is_gram and op.count == 1 and not (x.is_prepared or y.is_prepared)


def _share_planes(x: ResidueOperand, y: ResidueOperand) -> tuple[ResidueOperand, ResidueOperand]:
    """Return A and B with common planes; prefer the planes of a K-major operand, which needs no transposed copy."""
    if x.along == "outer" and y.along == "inner":
        return replace(x, is_prepared=True, exponents=y.exponents, planes=y.planes, block=y.block), y
    return x, replace(y, is_prepared=True, exponents=x.exponents, planes=x.planes, block=x.block)


def _with_conjugation_flag(side: ResidueOperand, level: ResiduesLevel) -> ResidueOperand:
    """Return the operand, marked as conjugated if the level multiplies the complex conjugate of its matrix (A or B)."""
    conjugated = dict(zip("AB", level.conjugates, strict=True))
    return replace(side, conjugated=conjugated.get(side.source.base, False))


def _reuse_prepared_planes(op: GemmOp, side: ResidueOperand, base: str) -> ResidueOperand:
    """Return the operand with the layout of the planes that `fmm.prepare` has stored; without them, unchanged."""
    if op.leaf_use.leaf.prepared_layout is None or not op.prepared.prepared_matrix == base == side.source.base:
        return side
    exponents, _ = prepared_plane_layout(side.geometry.moduli, side.geometry.item, side.lines, side.geometry.k)
    planes = exponents + round_up(EXPONENT_BYTES * side.lines, PART_ALIGN_BYTES)
    return replace(side, base=base, is_prepared=True, exponents=exponents, planes=planes, transposed_copy=op.scratch)


def _direct_byte_source(x: GemmOperand, along: ContiguousAxis, alignment: Mapping[str, int]) -> ByteSource | None:
    """Return where the product kernel reads the elements of an operand of bytes: the operand, or a transposed copy.

    Return None if the operand is not aligned for the copy engine (TMA): another kernel must copy the bytes to a plane.
    """
    if along == "outer":
        return "planes"
    return "source" if _is_tma_aligned(x, alignment) else None


def _is_tma_aligned(x: GemmOperand, alignment: Mapping[str, int]) -> bool:
    """Return True if the copy engine (TMA) can read the lines of an operand of bytes."""
    return all(place % VECTOR_BYTES == 0 for place in (x.leading, x.stride, x.offset, alignment.get(x.base, 1)))


@lru_cache(maxsize=4096)
def best_residue_sizes(m: int, n: int, count: int, multiprocessors: int, triangle: bool = False) -> WgmmaSizes:
    """Return the tile sizes with the earliest predicted end of the last cluster."""

    def last_cluster_end_time(s: WgmmaSizes) -> int:
        units = count_cluster_tiles(cluster_tile_grid(m, n, s), s, triangle) * count
        return -(-units // max(multiprocessors // s.cluster, 1)) * (s.n_s + TILE_OVERHEAD_COLUMNS)

    return min(RESIDUE_SIZES, key=last_cluster_end_time)


# ---- the launches


def residue_launches(op: ResidueOp, alignment: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """Return all launches of a product, in order.

    `alignment` maps the name of a base, such as A or C, to the
    largest power of two that divides the base's address. If `flagged` is True, the kernel that reconstructs C raises
    the flag for an inf or NaN in C.
    """
    aligned, exact = _operand_alignments(op, alignment), DTYPES[op.dtype].exact
    measures = any(x.norm_exponent_kernel(False, not exact) is not None for x in op.operands)
    # The kernel that finds the scaling exponents of lines and also splits the lines needs clusters and much shared
    # memory, so only Hopper GPUs run this kernel.
    splits_lines = measures and op.warp_chip is None and can_split_lines(op.operands, op.dtype)
    measures_first = measures and not splits_lines
    launches = [norm_exponent_launch(op.operands, op.dtype, aligned, op.blocks_per_cluster)] if measures_first else []
    first = 0
    for moduli in op.modulus_groups:
        if splits_lines:
            launches.append(line_split_launch(op.operands, op.dtype, aligned, moduli))
        elif any(x.split_block_count for x in op.operands):
            launches.append(residue_split_launch(op.operands, op.dtype, aligned, moduli))
        launches += [residue_product_launch(op, first, moduli, sign) for sign in op.plane_signs_by_launch]
        first += len(moduli)
    if not op.writes_c:
        launches.append(integer_reconstruction_launch(op) if exact else reconstruction_launch(op, flagged))
    return tuple(launches)


def residue_preparation_launches(op: ResidueOp, alignment: Mapping[str, int]) -> tuple[tuple[Launch, ...], int]:
    """Return the launches that prepare one operand for later calls, and the bytes of workspace for these launches."""
    if not any(x.is_prepared for x in op.operands):
        return (), 0
    # In `op`, `is_prepared` is True for the operand to prepare, because products read its stored planes. The launches
    # below compute planes only where `is_prepared` is False, so the values of A and of B are inverted.
    left, right = (replace(x, is_prepared=not x.is_prepared) for x in op.operands)
    aligned, moduli = _operand_alignments(op, alignment), op.geometry.remainder_weights.moduli
    workspace = max(size for x, size in zip(op.operands, op.geometry.transposed_bytes, strict=True) if x.is_prepared)
    launches = (
        norm_exponent_launch((left, right), op.dtype, aligned, op.blocks_per_cluster),
        residue_split_launch((left, right), op.dtype, aligned, moduli),
    )
    return launches, workspace


def _operand_alignments(op: ResidueOp, alignment: Mapping[str, int]) -> tuple[bool, ...]:
    """Return True or False for A and for B: True if the operand's address is a multiple of 16 bytes."""
    return tuple(alignment[x.source.base] % VECTOR_BYTES == 0 for x in op.operands)


# ---- products of planes


@dataclass(frozen=True)
class ResidueKernel:
    """A compiled variant of the kernel that multiplies planes of bytes."""

    sizes: WgmmaSizes
    triangle: TriangleExtent | None = None  # if not None, only tiles that overlap the lower triangle are computed
    reduces: bool = False  # True if sums are reduced modulo p between steps, because they could exceed 32 bits

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, for tiles of A and B, a tile of C in bytes, and barriers."""
        s = self.sizes
        return (
            s.stages * (s.m_s + s.n_s) * TILE_LINE_BYTES
            + s.m_s * s.n_s
            + 2 * BARRIER_BYTES * (s.stages + s.multiplying_warpgroups)
        )


@lru_cache(maxsize=64)
def residue_product_kernel_source(kernel: ResidueKernel) -> str:
    """Return the CUDA source of the kernel that multiplies planes of bytes; its entry point is `ENTRY_NAME`."""
    s, sizes = kernel.sizes, "LowerSizes" if kernel.triangle else "Sizes"
    body = (
        f"using Sizes = fmm::{sizes}<{BYTE_TYPE.cpp}, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}>;",
        f"extern __shared__ __align__(1024) {BYTE_TYPE.cpp} memory[];",
        f"fmm::multiply_by_groups<Step, {BYTE_TYPE.cpp}, Sizes, fmm::Along::INNER, fmm::Along::INNER>(",
        f"    p.product, fmm::ByModulus<{str(kernel.reduces).lower()}>{{p.moduli, p.each}}, memory);",
    )
    before = [*wgmma_instructions(BYTE_TYPE, s.n_s), ""]
    bounds = s.thread_count, 1
    return entry_source("fmm::ResidueProduct", body, "gemm_residues.cuh", bounds, clusters=s.cluster, before=before)


def residue_product_launch(op: ResidueOp, first: int, moduli: tuple[int, ...], sign: int | None = None) -> Launch:
    """Return the launch that multiplies the planes of these moduli; `first` is the index of the first modulus.

    `sign` is 0 or 1 if the launch computes only one of a complex product's two products for each modulus.
    """
    count = len(moduli) * op.products_per_modulus(sign)
    does: LaunchPurpose = "product" if op.writes_c else "sums"
    products = f"{count} product{'s' * (count > 1)}"
    products = f"{op.dtype} by {products}" if op.writes_c else f"{count} products"
    products += ", the lower triangle" if op.lower_only else ""
    if op.warp_chip:
        return residue_mma_launch(op.byte_products(first, moduli, sign), op.warp_chip, does, products)
    product = op.plane_product_op(first, len(moduli), sign)
    words = [i * TENSOR_MAP_WORDS for i in range(len(product.maps))]
    slots = tuple(AddressSlot(word, x.piece.base, x.piece.offset) for word, x in zip(words, product.maps, strict=True))
    parameters = product.parameter_bytes + moduli_table(moduli) + struct.pack("<i", product.count // len(moduli))
    parameters += bytes(-len(parameters) % 64)
    s, spec = product.kernel.sizes, product.kernel
    kernel = Kernel(
        residue_product_kernel_source, (spec,), ENTRY_NAME, s.thread_count, spec.shared_bytes, architecture="sm_90a"
    )
    label = f"gemm_residues: {products} of bytes, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}"
    maps = tuple(zip(words, product.maps, strict=True))
    return Launch(does, label, kernel, product.grid, parameters, slots, maps)


# ---- the reconstruction of C from its residues


@lru_cache(maxsize=64)
def pack_crt_weights(pieces: CrtWeightPieces) -> bytes:
    """Return the bytes of the fields `up` to `weights` of struct Join in residue_join.cuh."""
    numbers = pieces.remainder_weights
    rows = [pieces.split_number(numbers.product)]
    for weights in numbers.complex_weights if pieces.for_complex else (numbers.weights,):
        rows += [pieces.split_number(w) for w in weights]
        rows += [[0.0] * MAX_WEIGHT_PIECES] * (MAX_MODULI - len(weights))
    flat = [x for row in rows for x in row]
    return struct.pack(
        f"<{3 + len(flat)}d", 2.0**pieces.piece_bits, 2.0**-pieces.piece_bits, pieces.inverse_moduli_product, *flat
    )


def reconstruction_launch(op: ResidueOp, flagged: bool) -> Launch:
    """Return the launch that reconstructs a real or complex C from the residues of the product."""
    g = op.geometry
    pieces = CrtWeightPieces(g.moduli, g.levels, g.for_complex)
    scalars = [op.factor.real, op.factor.imag, op.keep.real, op.keep.imag][:: 1 if g.for_complex else 2]
    parameters = _result_bytes(op) + struct.pack(f"<3q{len(scalars)}d", 0, 0, 0, *scalars) + pack_crt_weights(pieces)
    slots = [
        *_output_and_plane_addresses(op),
        *(AddressSlot(7 + i, x.base, x.exponents) for i, x in enumerate(op.operands)),
    ]
    slots += [AddressSlot(9, FLAG)] if flagged else []
    arguments = g.levels, g.moduli, pieces.weight_piece_count, op.dtype
    threads = reconstruction_block_threads(g.levels)
    kernel = Kernel(reconstruction_kernel_source, arguments, ENTRY_NAME, threads, architecture=DEVICE_ARCHITECTURE)
    twice = "two times " if g.for_complex else ""
    label = f"residue_join: {op.dtype} by {twice}{g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _reconstruction_grid(op), parameters, tuple(slots))


def integer_reconstruction_launch(op: ResidueOp) -> Launch:
    """Return the launch that reconstructs an integer C from the residues of the product."""
    g, numbers = op.geometry, remainder_weights(op.geometry.moduli)
    padding = [0] * (MAX_MODULI - g.moduli)
    weights = [w % 2**64 for w in numbers.weights] + padding
    shares = [w / numbers.product for w in numbers.weights] + padding
    scalars = struct.pack("<2q", int(op.factor.real), int(op.keep.real))
    parameters = _result_bytes(op) + scalars + struct.pack("<21Q20d", numbers.product % 2**64, *weights, *shares)
    kernel = Kernel(
        integer_reconstruction_kernel_source,
        (g.levels, g.moduli, op.dtype),
        ENTRY_NAME,
        reconstruction_block_threads(g.levels),
    )
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _reconstruction_grid(op), parameters, _output_and_plane_addresses(op))


@lru_cache(maxsize=64)
def reconstruction_kernel_source(levels: int, moduli: int, pieces: int, dtype: str) -> str:
    """Return the CUDA source of the kernel that reconstructs real or complex numbers from residues."""
    columns = columns_per_reconstruction_thread(dtype, levels)
    body = (f"{RESIDUE_NAMESPACE}join<Sums, {levels}, {columns}, {moduli}, {pieces}>(p);",)
    return _reconstruction_source_text(f"Join<{DTYPES[dtype].cpp}>", body, levels)


@lru_cache(maxsize=64)
def integer_reconstruction_kernel_source(levels: int, moduli: int, dtype: str) -> str:
    """Return the CUDA source of the kernel that reconstructs integers from residues."""
    columns = columns_per_reconstruction_thread(dtype, levels)
    body = (f"{RESIDUE_NAMESPACE}join_integers<Sums, {levels}, {columns}, {moduli}>(p);",)
    return _reconstruction_source_text(f"JoinIntegers<{DTYPES[dtype].cpp}>", body, levels)


def _reconstruction_source_text(parameters: str, body: tuple[str, ...], levels: int) -> str:
    struct_cpp, bounds = f"{RESIDUE_NAMESPACE}{parameters}", (reconstruction_block_threads(levels),)
    return entry_source(struct_cpp, body, "residue_join.cuh", bounds, before=[cpp_inner_scheme_sums()])


def reconstruction_block_threads(levels: int) -> int:
    """Return the number of threads of a thread block that reconstructs C: JOIN_THREADS of residue_join.cuh."""
    return 128 if levels else RESIDUE_THREADS


def columns_per_reconstruction_thread(dtype: str, levels: int) -> int:
    """Return the number of adjacent elements of a row that a thread reconstructs in every block of C.

    If the plan has levels of Strassen's algorithm, a thread reconstructs the same elements of four or more blocks of C
    at a time. Registers then suffice for only two adjacent elements of 8 bytes or more in each block.
    """
    return 2 if levels and DTYPES[dtype].itemsize >= 8 else 4


def _result_bytes(op: ResidueOp) -> bytes:
    """Return the bytes of struct Result of residue_join.cuh, with zeros in place of addresses."""
    g, (rows, _, columns) = op.geometry, op.geometry.block_shape
    return struct.pack("<4q6i", 0, 0, op.dest.leading, op.dest.stride, g.m, g.n, g.count, rows, columns, op.lower_only)


def _output_and_plane_addresses(op: ResidueOp) -> tuple[AddressSlot, ...]:
    return AddressSlot(0, op.dest.base, op.dest.offset), AddressSlot(1, "W", op.planes)


def _reconstruction_grid(op: ResidueOp) -> tuple[int, int, int]:
    g, (rows, _, columns) = op.geometry, op.geometry.block_shape
    threads = g.count * rows * (columns // columns_per_reconstruction_thread(op.dtype, g.levels))
    if g.levels == 2:  # one warp for each block of the outer level
        threads = 4 * round_up(threads, WARP_THREADS)
    return -(-threads // reconstruction_block_threads(g.levels)), 1, 1
