"""A product by residues: byte planes multiplied by modulus (gemm_residues.cuh), joined to C (residue_join.cuh).

`residue_op` describes a GEMM; `residue_launches` lists its launches in order: measure, then split and multiply for each
group of moduli, then join by the Chinese remainder theorem. residue_planes.py has the operands.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType

from fmm.dtypes import BYTE, DTYPES, RING_TYPES
from fmm.kernels.algorithms.residues import remainder_weights
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import FLAG, TENSOR_MAP_WORDS, AddressSlot, Kernel, Launch, LaunchPurpose
from fmm.kernels.cuda.ops import BlockTerm, GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.residue_planes import (
    MAX_MODULI,
    MAX_PIECES,
    NAMESPACE,
    RESIDUE_THREADS,
    WARP_THREADS,
    BytesFrom,
    ResidueOperand,
    byte_map,
    fast_sums_cpp,
    measure_launch,
    moduli_table,
    residue_split_launch,
    source_byte_map,
)
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, Along, row_major_operands
from fmm.kernels.cuda.products.wgmma_tiles import (
    BARRIER_BYTES,
    LINE_BYTES,
    WgmmaOp,
    WgmmaSizes,
    cluster_tiles,
    count_cluster_tiles,
    wgmma_instructions,
)
from fmm.kernels.plans.levels.residue_planes import EXPONENT_BYTES, PART_ALIGN_BYTES, PlaneLayout, prepared_plane_layout
from fmm.kernels.plans.memory_layout import round_up

RESIDUE_SIZES = (WgmmaSizes(128, 256, stages=4), WgmmaSizes(128, 128, stages=5))
TILE_OVERHEAD_COLUMNS = 24  # the start and end of a tile take the time of computing this number of columns
REDUCED_STEPS = 512  # sums are reduced after that many steps of 128 numbers, as in gemm_residues.cuh
EXACT_BITS = 52  # bits of integers that float64 holds exactly
NO_ALIGNMENT: Mapping[str, int] = MappingProxyType({})  # alignments by base, if no base is known to be aligned


# ---- a GEMM as a product by residues


@dataclass(frozen=True)
class ResidueOp:
    """C = factor A B + keep C for each product of a batch."""

    dtype: str
    geometry: PlaneLayout
    left: ResidueOperand
    right: ResidueOperand
    dest: GemmOperand
    planes: int  # offset of C's planes in the workspace, in bytes
    multiprocessors: int
    factor: float
    keep: float
    writes_c: bool = False  # True if the product kernel writes C itself, because its bytes are C's numbers
    lower_only: bool = False  # True if C is its own adjoint, and only its lower triangle is written

    def __hash__(self) -> int:
        return id(self)

    @property
    def sides(self) -> tuple[ResidueOperand, ResidueOperand]:
        return self.left, self.right

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The moduli in groups; the workspace holds the planes of one group at a time."""
        moduli, together = remainder_weights(self.geometry.moduli).moduli, self.geometry.together
        return tuple(moduli[i : i + together] for i in range(0, len(moduli), together))

    def product(self, first: int, count: int) -> WgmmaOp[ResidueKernel]:
        """Return the launch of the products of planes for `count` moduli from number `first`."""
        g, (rows, inner, columns) = self.geometry, self.geometry.block
        layers = count * g.products
        s = best_residue_sizes(rows, columns, layers, self.multiprocessors, self.lower_only)
        if self.writes_c:
            dest, columns = source_byte_map(self.dest, g.m, g.n, g.count, 64), g.n
        else:
            dest = byte_map(BlockTerm("W", self.planes + first * g.planes[2], rows, columns), layers, 64)
        left, right = self.left.tensor_map(first, count, s.m_s), self.right.tensor_map(first, count, s.n_s // s.cluster)
        clusters = max(self.multiprocessors // s.cluster, 1)
        tiles = cluster_tiles(rows, columns, s)
        steps, sides = -(-inner // LINE_BYTES), (rows, columns)
        kernel = ResidueKernel(s, "lower" if self.lower_only else None, steps >= REDUCED_STEPS)
        return WgmmaOp(kernel, (left, right, dest), steps, tiles, layers, False, 0.0, 0.0, sides, clusters)


def residue_op(
    op: GemmOp, dtype: str, moduli: int, levels: int, multiprocessors: int, alignment: Mapping[str, int] = NO_ALIGNMENT
) -> ResidueOp | None:
    """Return the product by planes in the leaf's workspace, or by the operands' own bytes.

    The result is None if alpha or beta is complex. `alignment` maps a base to a power of two that divides its address.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag:
        return None
    left, right, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    g = PlaneLayout(m, k, n, op.count, moduli, levels, DTYPES[dtype].itemsize)
    rows, inner, columns = g.block
    left_exponents, right_exponents, a, b, c, copies, _ = (op.scratch + x for x in g.offsets)
    are_residues = dtype in RING_TYPES and g.item == 1 and moduli == 1
    first, second = (
        _bytes_from(source, dimension, alignment) if are_residues else None
        for source, dimension in zip((left, right), along, strict=True)
    )
    x = ResidueOperand(left, along[0], m, g, (rows, inner), left_exponents, a, copies, first)
    y = ResidueOperand(right, along[1], n, g, (columns, inner), right_exponents, b, copies + g.transposed[0], second)
    x, y = _prepared_or_new(op, x, "A"), _prepared_or_new(op, y, "B")
    # The copy engine writes 16 bytes at a time, so zeros would follow a row that ends within 16 bytes.
    writes_c = are_residues and (alpha, beta) == (1, 0) and n % VECTOR_BYTES == 0 and _is_aligned(op.dest, alignment)
    # The products of a fast scheme's blocks are not their own adjoints.
    lower_only = op.triangle is not None and not levels and not DTYPES[dtype].exact
    return ResidueOp(dtype, g, x, y, op.dest, c, multiprocessors, alpha.real, beta.real, writes_c, lower_only)


def _prepared_or_new(op: GemmOp, side: ResidueOperand, base: str) -> ResidueOperand:
    """Return the operand, with the prepared exponents and planes behind it if there are any."""
    if op.leaf_use.leaf.prepared_layout is None or not op.prepared.prepared_matrix == base == side.source.base:
        return side
    exponents, _ = prepared_plane_layout(side.geometry.moduli, side.geometry.item, side.lines, side.geometry.k)
    planes = exponents + round_up(EXPONENT_BYTES * side.lines, PART_ALIGN_BYTES)
    return replace(side, base=base, is_prepared=True, exponents=exponents, planes=planes, transposed_copy=op.scratch)


def _bytes_from(x: GemmOperand, along: Along, alignment: Mapping[str, int]) -> BytesFrom | None:
    """Return the source of an operand's bytes that are residues themselves; None if they must be copied first."""
    if along == "outer":
        return "planes"
    return "source" if _is_aligned(x, alignment) else None


def _is_aligned(x: GemmOperand, alignment: Mapping[str, int]) -> bool:
    """Return True if the copy engine can read the lines of an operand of bytes."""
    return all(place % VECTOR_BYTES == 0 for place in (x.leading, x.stride, x.offset, alignment.get(x.base, 1)))


@lru_cache(maxsize=4096)
def best_residue_sizes(m: int, n: int, count: int, multiprocessors: int, triangle: bool = False) -> WgmmaSizes:
    """Return the tile sizes with the least time until the last cluster ends."""

    def end(s: WgmmaSizes) -> int:
        units = count_cluster_tiles(cluster_tiles(m, n, s), s, triangle) * count
        return -(-units // max(multiprocessors // s.cluster, 1)) * (s.n_s + TILE_OVERHEAD_COLUMNS)

    return min(RESIDUE_SIZES, key=end)


# ---- the launches


def residue_launches(op: ResidueOp, alignment: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """Return all launches of a product: exponents, then planes and their products by groups of moduli, then C.

    `alignment` maps a base to the largest power of two that divides its address. If `flagged`, the join raises the flag
    for an inf or NaN in C.
    """
    aligned, exact = _aligned_sides(op, alignment), DTYPES[op.dtype].exact
    measures = any(x.measure_kernel(False, not exact) is not None for x in op.sides)
    launches = [measure_launch(op.sides, op.dtype, aligned)] if measures else []
    first = 0
    for moduli in op.groups:
        if any(x.split_blocks for x in op.sides):
            launches.append(residue_split_launch(op.sides, op.dtype, aligned, moduli))
        launches.append(residue_product_launch(op, first, moduli))
        first += len(moduli)
    if not op.writes_c:
        launches.append(join_integer_launch(op) if exact else join_launch(op, flagged))
    return tuple(launches)


def residue_preparation_launches(op: ResidueOp, alignment: Mapping[str, int]) -> tuple[tuple[Launch, ...], int]:
    """Return the launches that prepare one operand, and their workspace in bytes."""
    if not any(x.is_prepared for x in op.sides):
        return (), 0
    # The operand to prepare is the one that residue_op describes as ready.
    left, right = (replace(x, is_prepared=not x.is_prepared) for x in op.sides)
    aligned, moduli = _aligned_sides(op, alignment), remainder_weights(op.geometry.moduli).moduli
    workspace = max(size for x, size in zip(op.sides, op.geometry.transposed, strict=True) if x.is_prepared)
    launches = (
        measure_launch((left, right), op.dtype, aligned),
        residue_split_launch((left, right), op.dtype, aligned, moduli),
    )
    return launches, workspace


def _aligned_sides(op: ResidueOp, alignment: Mapping[str, int]) -> tuple[bool, ...]:
    """Return True for each of A and B that begins at a multiple of 16 bytes."""
    return tuple(alignment[x.source.base] % VECTOR_BYTES == 0 for x in op.sides)


# ---- products of planes


@dataclass(frozen=True)
class ResidueKernel:
    """A compiled variant of the products of planes."""

    sizes: WgmmaSizes
    triangle: TriangleExtent | None = None  # if set, only tiles that touch the lower triangle are computed
    reduces: bool = False  # True if sums are reduced modulo p on the way, since they could exceed 32 bits

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of A and B, a tile of bytes of C, barriers."""
        s = self.sizes
        return s.stages * (s.m_s + s.n_s) * LINE_BYTES + s.m_s * s.n_s + 2 * BARRIER_BYTES * (s.stages + s.groups)


@lru_cache(maxsize=64)
def residue_product_source(kernel: ResidueKernel) -> str:
    """Return the whole CUDA source of the products of planes, entry point `ENTRY_NAME`."""
    s, sizes = kernel.sizes, "LowerSizes" if kernel.triangle else "Sizes"
    body = (
        f"using Sizes = fmm::{sizes}<{BYTE.cpp}, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}>;",
        f"extern __shared__ __align__(1024) {BYTE.cpp} memory[];",
        f"fmm::multiply_by_groups<Step, {BYTE.cpp}, Sizes, fmm::Along::INNER, fmm::Along::INNER>(",
        f"    p.product, fmm::ByModulus<{str(kernel.reduces).lower()}>{{p.moduli, p.each}}, memory);",
    )
    before = [*wgmma_instructions(BYTE, s.n_s), ""]
    bounds = s.threads, 1
    return entry_source("fmm::ResidueProduct", body, "gemm_residues.cuh", bounds, clusters=s.cluster, before=before)


def residue_product_launch(op: ResidueOp, first: int, moduli: tuple[int, ...]) -> Launch:
    """Return the launch that multiplies the planes of these moduli, which begin at number `first` of all moduli."""
    product = op.product(first, len(moduli))
    words = [i * TENSOR_MAP_WORDS for i in range(len(product.maps))]
    slots = tuple(AddressSlot(word, x.piece.base, x.piece.offset) for word, x in zip(words, product.maps, strict=True))
    parameters = product.parameters + moduli_table(moduli) + struct.pack("<i", op.geometry.products)
    parameters += bytes(-len(parameters) % 64)
    s, spec = product.kernel.sizes, product.kernel
    does: LaunchPurpose = "product" if op.writes_c else "sums"
    kernel = Kernel(residue_product_source, (spec,), ENTRY_NAME, s.threads, spec.shared, architecture="sm_90a")
    count = f"{product.count} product{'s' * (product.count > 1)}"
    products = f"{op.dtype} by {count}" if op.writes_c else f"{product.count} products"
    products += ", the lower triangle" if op.lower_only else ""
    label = f"gemm_residues: {products} of bytes, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}"
    maps = tuple(zip(words, product.maps, strict=True))
    return Launch(does, label, kernel, product.grid, parameters, slots, maps)


# ---- the join: C from its residues


@dataclass(frozen=True)
class WeightPieces:
    """The weights of the Chinese remainder theorem, cut into pieces of few bits so that all their sums are exact."""

    moduli: int
    levels: int

    @property
    def bits(self) -> int:
        """Number of bits of a piece of a weight.

        A piece is multiplied by a residue of 7 bits, to which each level adds 2 bits, as it sums four residues. The
        products of all moduli are then added up.
        """
        return EXACT_BITS - 7 - 2 * self.levels - (self.moduli - 1).bit_length()

    @property
    def count(self) -> int:
        """Pieces of a weight."""
        return -(-remainder_weights(self.moduli).product.bit_length() // self.bits)

    def cut(self, x: int) -> list[float]:
        """Return the pieces of a number, the highest first, padded with zeros."""
        places = range(self.bits * (self.count - 1), -1, -self.bits)
        pieces = [float(x >> place & (1 << self.bits) - 1) for place in places]
        return pieces + [0.0] * (MAX_PIECES - len(pieces))

    @cached_property
    def packed(self) -> bytes:
        """The fields `up` to `weights` of struct Join in residue_join.cuh."""
        numbers = remainder_weights(self.moduli)
        inverse = 2 ** (self.bits * (self.count - 1)) / numbers.product
        rows = [self.cut(w) for w in numbers.weights]
        rows += [[0.0] * MAX_PIECES] * (MAX_MODULI - len(rows))
        flat = [x for row in (self.cut(numbers.product), *rows) for x in row]
        return struct.pack(f"<{3 + len(flat)}d", 2.0**self.bits, 2.0**-self.bits, inverse, *flat)


def join_launch(op: ResidueOp, flagged: bool) -> Launch:
    """Return the launch that reconstructs C, in float64 or float32, from the planes of the product."""
    g, pieces = op.geometry, WeightPieces(op.geometry.moduli, op.geometry.levels)
    parameters = _result_bytes(op) + struct.pack("<3q2d", 0, 0, 0, op.factor, op.keep) + pieces.packed
    slots = [*_result_slots(op), *(AddressSlot(7 + i, x.base, x.exponents) for i, x in enumerate(op.sides))]
    slots += [AddressSlot(9, FLAG)] if flagged else []
    kernel = Kernel(join_source, (g.levels, g.moduli, pieces.count, op.dtype), ENTRY_NAME, RESIDUE_THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, tuple(slots))


def join_integer_launch(op: ResidueOp) -> Launch:
    """Return the launch that reconstructs an integer C from the planes of the product."""
    g, numbers = op.geometry, remainder_weights(op.geometry.moduli)
    padding = [0] * (MAX_MODULI - g.moduli)
    weights = [w % 2**64 for w in numbers.weights] + padding
    shares = [w / numbers.product for w in numbers.weights] + padding
    scalars = struct.pack("<2q", int(op.factor), int(op.keep))
    parameters = _result_bytes(op) + scalars + struct.pack("<21Q20d", numbers.product % 2**64, *weights, *shares)
    kernel = Kernel(join_integer_source, (g.levels, g.moduli, op.dtype), ENTRY_NAME, RESIDUE_THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, _result_slots(op))


@lru_cache(maxsize=64)
def join_source(levels: int, moduli: int, pieces: int, dtype: str) -> str:
    """Return the whole CUDA source of the join to float64 or float32, entry point `ENTRY_NAME`."""
    body = (f"{NAMESPACE}join<Sums, {levels}, {adjacent_columns(dtype)}, {moduli}, {pieces}>(p);",)
    return _join_entry(f"Join<{DTYPES[dtype].cpp}>", body)


@lru_cache(maxsize=64)
def join_integer_source(levels: int, moduli: int, dtype: str) -> str:
    """Return the whole CUDA source of the join to integers, entry point `ENTRY_NAME`."""
    body = (f"{NAMESPACE}join_integers<Sums, {levels}, {adjacent_columns(dtype)}, {moduli}>(p);",)
    return _join_entry(f"JoinIntegers<{DTYPES[dtype].cpp}>", body)


def _join_entry(parameters: str, body: tuple[str, ...]) -> str:
    return entry_source(
        f"{NAMESPACE}{parameters}", body, "residue_join.cuh", (RESIDUE_THREADS,), before=[fast_sums_cpp()]
    )


def adjacent_columns(dtype: str) -> int:
    """Return how many numbers of a row a thread joins: at most four, and at most 16 bytes."""
    return min(4, 16 // DTYPES[dtype].itemsize)


def _result_bytes(op: ResidueOp) -> bytes:
    """Return struct Result of residue_join.cuh; addresses are zero."""
    g, (rows, _, columns) = op.geometry, op.geometry.block
    return struct.pack("<4q6i", 0, 0, op.dest.leading, op.dest.stride, g.m, g.n, g.count, rows, columns, op.lower_only)


def _result_slots(op: ResidueOp) -> tuple[AddressSlot, ...]:
    return AddressSlot(0, op.dest.base, op.dest.offset), AddressSlot(1, "W", op.planes)


def _join_grid(op: ResidueOp) -> tuple[int, int, int]:
    """Return the thread blocks of the join: a thread for the adjacent columns of every block of C."""
    g, (rows, _, columns) = op.geometry, op.geometry.block
    threads = g.count * rows * (columns // adjacent_columns(op.dtype))
    if g.levels == 2:  # one warp for each block of the outer level
        threads = 4 * round_up(threads, WARP_THREADS)
    return -(-threads // RESIDUE_THREADS), 1, 1
