"""Residues."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from types import MappingProxyType

from fmm.dtypes import BYTE, DTYPES, RINGS
from fmm.kernels.algorithms.residues import remainder_weights
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.launch_list import FLAG, MAP_WORDS, Kernel, Launch, Slot, StepKind
from fmm.kernels.cuda.ops import BlockTerm, GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.residue_planes import (
    MAX_MODULI,
    MAX_PIECES,
    RESIDUE_THREADS,
    SPACE,
    WARP,
    BytesFrom,
    ResidueOperand,
    byte_map,
    fast_sums,
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
    wgmma_instruction,
)
from fmm.kernels.plans.levels.residue_planes import EXPONENT_BYTES, PART_ALIGN, PlaneLayout, prepared_layout
from fmm.kernels.plans.workspace import round_up

RESIDUE_SIZES = (WgmmaSizes(128, 256, stages=4), WgmmaSizes(128, 128, stages=5))
TILE_OVERHEAD_COLUMNS = 24  # a tile's beginning and end take as long as computing so many more columns
NO_ALIGNMENT: Mapping[str, int] = MappingProxyType({})  # which powers of two divide the bases' addresses


@dataclass(frozen=True)
class ResidueOp:
    """C = factor A B + keep C, layer by layer."""

    dtype: str
    geometry: PlaneLayout
    left: ResidueOperand
    right: ResidueOperand
    dest: GemmOperand
    planes: int  # where C's planes stand in the workspace
    multiprocessors: int
    factor: float
    keep: float
    sends: bool = False  # does the kernel of products write C itself, whose numbers are the bytes that it makes?
    lower: bool = False  # is C its own adjoint, and only its lower half to be written?

    def __hash__(self) -> int:
        return id(self)

    @property
    def sides(self) -> tuple[ResidueOperand, ResidueOperand]:
        return self.left, self.right

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The moduli, as many as are done at a time."""
        moduli, together = remainder_weights(self.geometry.moduli).moduli, self.geometry.together
        return tuple(moduli[i : i + together] for i in range(0, len(moduli), together))

    def product(self, first: int, count: int) -> WgmmaOp[ResidueKernel]:
        """The launch of the products of planes modulo `count` numbers, from number `first` on."""
        g, (rows, inner, columns) = self.geometry, self.geometry.block
        layers = count * g.products
        s = best_residue_sizes(rows, columns, layers, self.multiprocessors, self.lower)
        if self.sends:
            dest, columns = source_byte_map(self.dest, g.m, g.n, g.count, 64), g.n
        else:
            dest = byte_map(BlockTerm("W", self.planes + first * g.planes[2], rows, columns), layers, 64)
        left, right = self.left.tensor_map(first, count, s.m_s), self.right.tensor_map(first, count, s.n_s // s.cluster)
        clusters = max(self.multiprocessors // s.cluster, 1)
        tiles = cluster_tiles(rows, columns, s)
        steps, sides = -(-inner // LINE_BYTES), (rows, columns)
        kernel = ResidueKernel(s, "lower" if self.lower else None)
        return WgmmaOp(kernel, (left, right, dest), steps, tiles, layers, False, 0.0, 0.0, sides, clusters)


def residue_op(
    op: GemmOp, dtype: str, moduli: int, levels: int, multiprocessors: int, divides: Mapping[str, int] = NO_ALIGNMENT
) -> ResidueOp | None:
    """The product by planes in the leaf's scratch, or of bytes as they are; None where alpha or beta is complex.

    `divides`: by base, the power of two that divides its address, as far as that is known.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag:
        return None
    left, right, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    g = PlaneLayout(m, k, n, op.count, moduli, levels, DTYPES[dtype].itemsize)
    rows, inner, columns = g.block
    e, f, a, b, c, turned, _ = (op.scratch + x for x in g.offsets)
    plain = dtype in RINGS and g.item == 1 and moduli == 1
    first, second = (
        _bytes_from(source, dimension, divides) if plain else None
        for source, dimension in zip((left, right), along, strict=True)
    )
    x = ResidueOperand(left, along[0], m, g, (rows, inner), e, a, turned, first)
    y = ResidueOperand(right, along[1], n, g, (columns, inner), f, b, turned + g.transposed[0], second)
    x, y = _kept(op, x, "A"), _kept(op, y, "B")
    # (The copy engine writes 16 bytes at a time: a row that ends in the midst of them would be followed by zeros.)
    sends = plain and (alpha, beta) == (1, 0) and n % VECTOR_BYTES == 0 and _is_aligned(op.dest, divides)
    # (The products of a fast algorithm's blocks are not their own adjoints.)
    lower = op.half is not None and not levels and not DTYPES[dtype].exact
    return ResidueOp(dtype, g, x, y, op.dest, c, multiprocessors, alpha.real, beta.real, sends, lower)


def _kept(op: GemmOp, side: ResidueOperand, base: str) -> ResidueOperand:
    """The operand, with exponents and planes behind itself, if they are kept there."""
    if op.use.leaf.prepared_layout is None or not op.ready.prepared_matrix == base == side.source.base:
        return side
    exponents, _ = prepared_layout(side.geometry.moduli, side.geometry.item, side.lines, side.geometry.k)
    planes = exponents + round_up(EXPONENT_BYTES * side.lines, PART_ALIGN)
    return replace(side, base=base, is_ready=True, exponents=exponents, planes=planes, turned=op.scratch)


def _bytes_from(x: GemmOperand, along: Along, divides: Mapping[str, int]) -> BytesFrom | None:
    """Where the bytes of an operand are multiplied that are residues themselves; None if they must be copied first."""
    if along == "outer":
        return "planes"
    return "source" if _is_aligned(x, divides) else None


def _is_aligned(x: GemmOperand, divides: Mapping[str, int]) -> bool:
    """Do the lines of an operand of bytes begin where the copy engine wants them?"""
    return all(place % VECTOR_BYTES == 0 for place in (x.leading, x.stride, x.offset, divides.get(x.base, 1)))


@lru_cache(maxsize=4096)
def best_residue_sizes(m: int, n: int, count: int, multiprocessors: int, half: bool = False) -> WgmmaSizes:
    """The sizes with which the last cluster is done earliest."""

    def end(s: WgmmaSizes) -> int:
        units = count_cluster_tiles(cluster_tiles(m, n, s), s, half) * count
        return -(-units // max(multiprocessors // s.cluster, 1)) * (s.n_s + TILE_OVERHEAD_COLUMNS)

    return min(RESIDUE_SIZES, key=end)


EXACT_BITS = 52  # of whole numbers: up to these, sums and multiples of pieces are exact in float64


@dataclass(frozen=True)
class WeightPieces:
    """The numbers of the Chinese remainder theorem in pieces of so few bits that all sums of theirs are exact."""

    moduli: int
    levels: int

    @property
    def bits(self) -> int:
        """The bits of a piece.

        It is multiplied by residues, which have 7 bits, sums of four of them two more for each level; and as many such
        products as there are moduli are added up.
        """
        return EXACT_BITS - 7 - 2 * self.levels - (self.moduli - 1).bit_length()

    @property
    def count(self) -> int:
        """How many pieces a number has."""
        return -(-remainder_weights(self.moduli).product.bit_length() // self.bits)

    def cut(self, x: int) -> list[float]:
        """The pieces of a number, the highest first; zeros behind the last."""
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


@dataclass(frozen=True)
class ResidueKernel:
    """The kernel of the products of planes."""

    sizes: WgmmaSizes
    half: TriangleExtent | None = None  # of which it makes only tiles that reach the diagonal or lie below it

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of A and B, bytes on their way to C, gates."""
        s = self.sizes
        return s.stages * (s.m_s + s.n_s) * LINE_BYTES + s.m_s * s.n_s + 2 * BARRIER_BYTES * (s.stages + s.groups)


@lru_cache(maxsize=64)
def residue_product_source(kernel: ResidueKernel) -> str:
    """The whole CUDA source of the products of planes, entry point `ENTRY`."""
    s, which = kernel.sizes, "LowerSizes" if kernel.half else "Sizes"
    body = (
        f"using Sizes = fmm::{which}<{BYTE.cpp}, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}>;",
        f"extern __shared__ __align__(1024) {BYTE.cpp} memory[];",
        f"fmm::multiply_by_groups<Step, {BYTE.cpp}, Sizes, fmm::Along::INNER, fmm::Along::INNER>(",
        "    p.product, fmm::ByModulus{p.moduli, p.each}, memory);",
    )
    before = [*wgmma_instruction(BYTE, s.n_s), ""]
    bounds = s.threads, 1
    return entry_source("fmm::ResidueProduct", body, "gemm_residues.cuh", bounds, clusters=s.cluster, before=before)


@lru_cache(maxsize=64)
def join_source(levels: int, moduli: int, pieces: int, dtype: str) -> str:
    """The whole CUDA source of what puts C together, of float64 or float32, entry point `ENTRY`."""
    body = (f"{SPACE}join<Sums, {levels}, {adjacent_columns(dtype)}, {moduli}, {pieces}>(p);",)
    return _joining(f"Join<{DTYPES[dtype].cpp}>", body)


@lru_cache(maxsize=64)
def join_integer_source(levels: int, moduli: int, dtype: str) -> str:
    """The whole CUDA source of what puts C together, of integers, entry point `ENTRY`."""
    body = (f"{SPACE}join_whole<Sums, {levels}, {adjacent_columns(dtype)}, {moduli}>(p);",)
    return _joining(f"JoinWhole<{DTYPES[dtype].cpp}>", body)


def _joining(told: str, body: tuple[str, ...]) -> str:
    return entry_source(f"{SPACE}{told}", body, "residue_join.cuh", (RESIDUE_THREADS,), before=[fast_sums()])


def adjacent_columns(dtype: str) -> int:
    """In a row of each block of C, that a thread has: at most four, and 16 bytes."""
    return min(4, 16 // DTYPES[dtype].itemsize)


def residue_launches(op: ResidueOp, divides: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """All launches of a product: exponents, then planes and their products by groups of moduli, then C.

    `divides`: by base, the power of two that divides its address; `flagged`: is a flag raised where an inf or NaN is
    stored in C?
    """
    aligned, exact = _aligned_sides(op, divides), DTYPES[op.dtype].exact
    launches = [measure_launch(op.sides, op.dtype, aligned)] if _needs_measuring(op) else []
    first = 0
    for moduli in op.groups:
        if any(x.split_blocks for x in op.sides):
            launches.append(residue_split_launch(op.sides, op.dtype, aligned, moduli))
        launches.append(residue_product_launch(op, first, moduli))
        first += len(moduli)
    if not op.sends:
        launches.append(join_integer_launch(op) if exact else join_launch(op, flagged))
    return tuple(launches)


def residue_preparation_launches(op: ResidueOp, divides: Mapping[str, int]) -> tuple[tuple[Launch, ...], int]:
    """The launches that make what is kept of one operand, and the bytes of workspace that they need."""
    if not any(x.is_ready for x in op.sides):
        return (), 0
    left, right = (replace(x, is_ready=not x.is_ready) for x in op.sides)
    others = left, right
    aligned = _aligned_sides(op, divides)
    moduli = remainder_weights(op.geometry.moduli).moduli
    room = max(size for x, size in zip(op.sides, op.geometry.transposed, strict=True) if x.is_ready)
    return (measure_launch(others, op.dtype, aligned), residue_split_launch(others, op.dtype, aligned, moduli)), room


def _aligned_sides(op: ResidueOp, divides: Mapping[str, int]) -> tuple[bool, ...]:
    """Whether A, and whether B, begins where 16 bytes may be read at a time."""
    return tuple(divides[x.source.base] % VECTOR_BYTES == 0 for x in op.sides)


def _needs_measuring(op: ResidueOp) -> bool:
    """Is there an operand to be measured or turned?"""
    scaled = not DTYPES[op.dtype].exact
    return any(x.measure_kernel(False, scaled) is not None for x in op.sides)


def residue_product_launch(op: ResidueOp, first: int, moduli: tuple[int, ...]) -> Launch:
    """The launch that multiplies the planes modulo these numbers, of which the first is number `first` of all."""
    product = op.product(first, len(moduli))
    words = [i * MAP_WORDS for i in range(len(product.maps))]
    slots = tuple(Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, product.maps, strict=True))
    parameters = product.parameters + moduli_table(moduli) + struct.pack("<i", op.geometry.products)
    parameters += bytes(-len(parameters) % 64)
    s = product.kernel.sizes
    does: StepKind = "product" if op.sends else "sums"
    kernel = Kernel(
        residue_product_source, (product.kernel,), ENTRY, s.threads, product.kernel.shared, architecture="sm_90a"
    )
    count = f"{product.count} product{'s' * (product.count > 1)}"
    products = f"{op.dtype} by {count}" if op.sends else f"{product.count} products"
    products += ", the lower half" if op.lower else ""
    label = f"gemm_residues: {products} of bytes, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}"
    maps = tuple(zip(words, product.maps, strict=True))
    return Launch(does, label, kernel, product.grid, parameters, slots, maps)


def join_launch(op: ResidueOp, flagged: bool) -> Launch:
    """The launch that makes C of its planes, of float64 or float32."""
    g, pieces = op.geometry, WeightPieces(op.geometry.moduli, op.geometry.levels)
    parameters = _result_bytes(op) + struct.pack("<3q2d", 0, 0, 0, op.factor, op.keep) + pieces.packed
    slots = [*_result_slots(op), *(Slot(7 + i, x.base, x.exponents) for i, x in enumerate(op.sides))]
    slots += [Slot(9, FLAG)] if flagged else []
    kernel = Kernel(join_source, (g.levels, g.moduli, pieces.count, op.dtype), ENTRY, RESIDUE_THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, tuple(slots))


def join_integer_launch(op: ResidueOp) -> Launch:
    """The launch that makes C of its planes, of integers."""
    g, numbers = op.geometry, remainder_weights(op.geometry.moduli)
    spare = [0] * (MAX_MODULI - g.moduli)
    weights = [w % 2**64 for w in numbers.weights] + spare
    shares = [w / numbers.product for w in numbers.weights] + spare
    scalars = struct.pack("<2q", int(op.factor), int(op.keep))
    parameters = _result_bytes(op) + scalars + struct.pack("<21Q20d", numbers.product % 2**64, *weights, *shares)
    kernel = Kernel(join_integer_source, (g.levels, g.moduli, op.dtype), ENTRY, RESIDUE_THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), parameters, _result_slots(op))


def _result_bytes(op: ResidueOp) -> bytes:
    """struct Result of residue_join.cuh, addresses zero."""
    g, (rows, _, columns) = op.geometry, op.geometry.block
    return struct.pack("<4q6i", 0, 0, op.dest.leading, op.dest.stride, g.m, g.n, g.count, rows, columns, op.lower)


def _result_slots(op: ResidueOp) -> tuple[Slot, ...]:
    return Slot(0, op.dest.base, op.dest.offset), Slot(1, "W", op.planes)


def _join_grid(op: ResidueOp) -> tuple[int, int, int]:
    g, (rows, _, columns) = op.geometry, op.geometry.block
    threads = g.count * rows * (columns // adjacent_columns(op.dtype))
    threads = 4 * round_up(threads, WARP) if g.levels == 2 else threads  # a warp for each block of the outer level
    return -(-threads // RESIDUE_THREADS), 1, 1
