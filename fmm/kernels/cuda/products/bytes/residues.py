"""A product by residues, of float64, float32 or integers: where its planes lie, and the launches: measuring, splitting,
multiplying, joining."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isqrt, sqrt
from types import MappingProxyType
from typing import Literal

from fmm.dtypes import BYTE, DTYPES, RINGS
from fmm.kernels.algorithms.residues import remainder_weights
from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot
from fmm.kernels.cuda.products.bytes.residue_planes import EXPONENT, ROOM, Residues, kept_room
from fmm.kernels.cuda.products.bytes.residues_source import (
    CLUSTER,
    SIDE,
    THREADS,
    MeasureKernel,
    ResidueKernel,
    join_source,
    join_whole_source,
    measure_source,
    neighbours,
    product_source,
    split_source,
)
from fmm.kernels.cuda.products.float16.f16_planes import whole
from fmm.kernels.cuda.products.tiles.tiled import WIDE
from fmm.kernels.cuda.products.tiles.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiles.tiled_source import Along
from fmm.kernels.cuda.products.tiles.wgmma import WgmmaOp, tiles_of, units_of
from fmm.kernels.cuda.products.tiles.wgmma_source import LINE, WgmmaSizes
from fmm.kernels.cuda.tensor_map import MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, Piece

SIZES = (WgmmaSizes(128, 256, stages=4), WgmmaSizes(128, 128, stages=5))
EDGE = 24  # a tile's beginning and end take as long as computing so many more columns
WARP, SHORT = 32, 1024  # threads that measure a line of up to so many numbers
MOST_MODULI, MOST_PIECES = 20, 4  # as in the device code
SUMS, WHOLE_BITS = 2**18 + 2**9, 0x4B000000  # of bytes, in modulus.cuh; the bits of 2^23 in float32
EXACT_BITS = 52  # up to which sums and multiples of pieces are exact in float64
LARGEST = 2.0**60  # up to which norms are scaled at most: sums of four such numbers have 62 bits
OPERAND_WORDS = 11  # of struct Operand
NOT_KNOWN: Mapping[str, int] = MappingProxyType({})  # which powers of two divide the bases' addresses


# ---- numbers that kernels are told


@lru_cache(maxsize=64)
def modulus_bytes(p: int) -> bytes:
    """struct Modulus of modulus.cuh."""

    def packed(powers: range) -> int:
        return int.from_bytes(bytes(_centred(256**i, p) % 256 for i in powers), "little", signed=True)

    multiple = WHOLE_BITS + p * -(-(2**23 + SUMS) // p) - 2**23
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    return struct.pack("<if6i", p, 1 / p, packed(range(4)), packed(range(4, 8)), *begins, 0, 0)


def _centred(x: int, p: int) -> int:
    """The residue of least magnitude; of 256 from -128 to 127."""
    return (x + p // 2) % p - p // 2


def table_of_moduli(moduli: tuple[int, ...]) -> bytes:
    found = b"".join(modulus_bytes(p) for p in moduli)
    return found + bytes(MOST_MODULI * len(modulus_bytes(256)) - len(found))


@dataclass(frozen=True)
class Pieces:
    """The numbers of the Chinese remainder theorem in pieces of so few bits that all sums of theirs are exact."""

    moduli: int
    levels: int

    @property
    def bits(self) -> int:
        """Of a piece: residues have 7, sums of four of them two more for each level, and there are `moduli` terms."""
        return EXACT_BITS - 7 - 2 * self.levels - (self.moduli - 1).bit_length()

    @property
    def count(self) -> int:
        return -(-remainder_weights(self.moduli).product.bit_length() // self.bits)

    def cut(self, x: int) -> list[float]:
        """From the highest piece on; zeros behind the last."""
        places = range(self.bits * (self.count - 1), -1, -self.bits)
        found = [float(x >> place & (1 << self.bits) - 1) for place in places]
        return found + [0.0] * (MOST_PIECES - len(found))

    @cached_property
    def told(self) -> bytes:
        """From `up` to `weights` of struct Join."""
        numbers = remainder_weights(self.moduli)
        inverse = 2 ** (self.bits * (self.count - 1)) / numbers.product
        rows = [self.cut(w) for w in numbers.weights]
        rows += [[0.0] * MOST_PIECES] * (MOST_MODULI - len(rows))
        flat = [x for row in (self.cut(numbers.product), *rows) for x in row]
        return struct.pack(f"<{3 + len(flat)}d", 2.0**self.bits, 2.0**-self.bits, inverse, *flat)


def largest_norm(moduli: int, k: int) -> float:
    """Up to which rows and columns may be scaled: whole numbers of norms x and y have products of at most x y, which
    must be below half of the product of the moduli; rounding adds half to each of k numbers."""
    half = float(isqrt(remainder_weights(moduli).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k), LARGEST)


# ---- what runs


@dataclass(frozen=True)
class Side:
    """One operand of a batch: its lines along the inner dimension or not, and where its parts stand."""

    source: Factor
    along: Along
    lines: int
    geometry: Residues
    block: tuple[int, int]  # lines and length of a plane
    exponents: int
    planes: int
    turned: int
    # Bytes modulo 2^8 are residues themselves. They are multiplied as they lie (`source`), or as they are turned, where
    # a plane has its place (`planes`).
    bytes_from: Literal["", "source", "planes"] = ""
    base: str = "W"  # where exponents and planes stand: in the workspace, or behind the operand, where they are kept
    is_ready: bool = False  # is nothing to be done before the products?

    def measure_kernel(self, aligned: bool, scaled: bool) -> MeasureKernel | None:
        """None where there is nothing to be done: for integers along the inner dimension."""
        if self.is_ready or (self.along == "inner" and not scaled):
            return None
        group = WARP if self.geometry.k <= SHORT else THREADS
        return MeasureKernel(self.along, group if self.along == "inner" else 0, self.reads_wide(aligned))

    def reads_wide(self, aligned: bool) -> bool:
        """Do all lines begin at multiples of four numbers, or of 16 bytes?"""
        x, item = self.source, self.geometry.item
        unit = min(4 * item, WIDE)
        return aligned and all(step * item % unit == 0 for step in (x.leading, x.stride)) and x.offset % unit == 0

    def splits_wide(self, aligned: bool) -> bool:
        return self.is_ready or self.along == "outer" or self.reads_wide(aligned)

    def measure_blocks(self, kernel: MeasureKernel | None) -> int:
        if kernel is None:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.lines // SIDE) * CLUSTER
        return whole(-(-self.geometry.count * self.lines // (THREADS // kernel.group)), CLUSTER)

    @property
    def split_blocks(self) -> int:
        if self.bytes_from or self.is_ready:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // THREADS)

    def parameters(self, blocks: int) -> bytes:
        """struct Operand of residue_planes.cuh, addresses zero."""
        x, g = self.source, self.geometry
        top = max(largest_norm(g.moduli, g.k), 0.0)
        room = self.block[1] if self.bytes_from else g.turned_room
        lying = x.leading, x.stride, room, top
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *lying, self.lines, g.k, g.count, blocks, *self.block)

    def slots(self, first: int) -> tuple[Slot, ...]:
        x = self.source
        there = self.planes if self.bytes_from else self.turned
        turned = (Slot(first + 1, "W", there),) if self.along == "outer" else ()
        return (
            Slot(first, x.base, x.offset),
            *turned,
            Slot(first + 2, self.base, self.exponents),
            Slot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int) -> TensorMap:
        """The planes modulo so many numbers, layer by layer, behind the first; one copy brings at most `most` lines."""
        lines, length = self.block
        if self.bytes_from == "source":
            return bytes_as_they_lie(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # (Behind the end of a line that was turned anything may stand.)
        known = self.geometry.k if self.bytes_from else length
        # (In the workspace there are those of one group of moduli at a time.)
        before = 0 if self.base == "W" else first * self.geometry.products * lines * length
        place = Piece(self.base, self.planes + before, lines, length)
        return byte_map(place, self.geometry.products * moduli, most, known)


def byte_map(piece: Piece, layers: int, most: int, known: int = 0) -> TensorMap:
    """Of planes; of lines of which only so much is `known`, zeros are brought behind that."""
    lines, length = piece.rows, piece.cols
    return TensorMap(piece, BYTE.name, known or length, lines, layers, length, lines * length, (LINE, most), LINE)


def bytes_as_they_lie(x: Factor, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """Of an operand or of C."""
    piece = Piece(x.base, x.offset, lines, length)
    return TensorMap(piece, BYTE.name, length, lines, layers, x.leading, x.stride, (LINE, most), LINE)


@dataclass(frozen=True)
class ResidueOp:
    """C = factor A B + keep C, layer by layer."""

    dtype: str
    geometry: Residues
    left: Side
    right: Side
    dest: Factor
    planes: int  # where C's stand
    multiprocessors: int
    factor: float
    keep: float
    sends: bool = False  # are the products' bytes C itself?
    lower: bool = False  # is one half of C wanted, which is its own adjoint, and nothing written beside it?

    def __hash__(self) -> int:
        return id(self)

    @property
    def sides(self) -> tuple[Side, Side]:
        return self.left, self.right

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The moduli, as many as are done at a time."""
        moduli, together = remainder_weights(self.geometry.moduli).moduli, self.geometry.together
        return tuple(moduli[i : i + together] for i in range(0, len(moduli), together))

    def product(self, first: int, count: int) -> WgmmaOp[ResidueKernel]:
        """The products of planes modulo so many numbers from the first on."""
        g, (rows, inner, columns) = self.geometry, self.geometry.block
        layers = count * g.products
        s = sizes_for(rows, columns, layers, self.multiprocessors, self.lower)
        if self.sends:
            dest, columns = bytes_as_they_lie(self.dest, g.m, g.n, g.count, 64), g.n
        else:
            dest = byte_map(Piece("W", self.planes + first * g.planes[2], rows, columns), layers, 64)
        left, right = self.left.tensor_map(first, count, s.m_s), self.right.tensor_map(first, count, s.n_s // s.cluster)
        clusters = max(self.multiprocessors // s.cluster, 1)
        tiles = tiles_of(rows, columns, s)
        steps, sides = -(-inner // LINE), (rows, columns)
        kernel = ResidueKernel(s, "lower" if self.lower else "")
        return WgmmaOp(kernel, (left, right, dest), steps, tiles, layers, False, 0.0, 0.0, sides, clusters)


def residue_op(
    op: GemmOp, dtype: str, moduli: int, levels: int, multiprocessors: int, divides: Mapping[str, int] = NOT_KNOWN
) -> ResidueOp | None:
    """The product by planes in the leaf's scratch, or of bytes as they are; None where alpha or beta is complex."""
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag:
        return None
    left, right, along = kernel_operands(op)
    m, n, k = op.n, op.m, op.k
    g = Residues(m, k, n, op.count, moduli, levels, DTYPES[dtype].itemsize)
    rows, inner, columns = g.block
    e, f, a, b, c, turned, _ = (op.scratch + x for x in g.offsets)
    plain = dtype in RINGS and g.item == 1 and moduli == 1
    first, second = (
        _bytes_from(source, lying, divides) if plain else "" for source, lying in zip((left, right), along, strict=True)
    )
    x = Side(left, along[0], m, g, (rows, inner), e, a, turned, first)
    y = Side(right, along[1], n, g, (columns, inner), f, b, turned + g.turned[0], second)
    x, y = _kept(op, x, "A"), _kept(op, y, "B")
    # (The copy engine writes 16 bytes at a time: a row that ends in the midst of them would be followed by zeros.)
    sends = plain and (alpha, beta) == (1, 0) and n % WIDE == 0 and _is_aligned(op.dest, divides)
    # (The products of a fast algorithm's blocks are not their own adjoints.)
    lower = bool(op.half) and not levels and not DTYPES[dtype].exact
    return ResidueOp(dtype, g, x, y, op.dest, c, multiprocessors, alpha.real, beta.real, sends, lower)


def _kept(op: GemmOp, side: Side, base: str) -> Side:
    """The same, or with what is kept behind the operand: planes of A's rows and of B's columns."""
    if op.use.leaf.keeps is None or not op.kept == base == side.source.base:
        return side
    exponents, _ = kept_room(side.geometry.moduli, side.geometry.item, side.lines, side.geometry.k)
    planes = exponents + whole(EXPONENT * side.lines, ROOM)
    return replace(side, base=base, is_ready=True, exponents=exponents, planes=planes, turned=op.scratch)


def _bytes_from(x: Factor, along: Along, divides: Mapping[str, int]) -> Literal["", "source", "planes"]:
    if along == "outer":
        return "planes"
    return "source" if _is_aligned(x, divides) else ""


def _is_aligned(x: Factor, divides: Mapping[str, int]) -> bool:
    """Do the lines of an operand of bytes begin where the copy engine wants them?"""
    return all(place % WIDE == 0 for place in (x.leading, x.stride, x.offset, divides.get(x.base, 1)))


@lru_cache(maxsize=4096)
def sizes_for(m: int, n: int, count: int, multiprocessors: int, half: bool = False) -> WgmmaSizes:
    """The sizes with which the last cluster is done earliest."""

    def end(s: WgmmaSizes) -> int:
        units = units_of(tiles_of(m, n, s), s, half) * count
        return -(-units // max(multiprocessors // s.cluster, 1)) * (s.n_s + EDGE)

    return min(SIZES, key=end)


# ---- the launches on a chip


def residue_launches(op: ResidueOp, divides: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """Exponents; planes of both operands; their products; C."""
    aligned, exact = _aligned_sides(op, divides), DTYPES[op.dtype].exact
    measures = (measure_launch(op, aligned),) if _measures(op) else ()
    joins = () if op.sends else (join_whole_launch(op) if exact else join_launch(op, flagged),)
    found, first = [*measures], 0
    for moduli in op.groups:
        if any(x.split_blocks for x in op.sides):
            found.append(split_launch(op, aligned, moduli))
        found.append(planes_launch(op, first, moduli))
        first += len(moduli)
    return *found, *joins


def kept_launches(op: ResidueOp, divides: Mapping[str, int]) -> tuple[tuple[Launch, ...], int]:
    """What makes what is kept of one operand, and bytes of workspace for that."""
    if not any(x.is_ready for x in op.sides):
        return (), 0
    left, right = (replace(x, is_ready=not x.is_ready) for x in op.sides)
    made, aligned = replace(op, left=left, right=right), _aligned_sides(op, divides)
    moduli = remainder_weights(op.geometry.moduli).moduli
    room = max(size for x, size in zip(op.sides, op.geometry.turned, strict=True) if x.is_ready)
    return (measure_launch(made, aligned), split_launch(made, aligned, moduli)), room


def _aligned_sides(op: ResidueOp, divides: Mapping[str, int]) -> tuple[bool, ...]:
    return tuple(divides[x.source.base] % WIDE == 0 for x in op.sides)


def _measures(op: ResidueOp) -> bool:
    scaled = not DTYPES[op.dtype].exact
    return any(x.measure_kernel(False, scaled) is not None for x in op.sides)


def measure_launch(op: ResidueOp, aligned: tuple[bool, ...]) -> Launch:
    sides = op.sides
    scaled = not DTYPES[op.dtype].exact
    kernels = [x.measure_kernel(wide, scaled) for x, wide in zip(sides, aligned, strict=True)]
    blocks = [x.measure_blocks(kernel) for x, kernel in zip(sides, kernels, strict=True)]
    told = b"".join(x.parameters(count) for x, count in zip(sides, blocks, strict=True))
    kernel = Kernel(measure_source, (*kernels, op.dtype), ENTRY, THREADS, architecture="sm_90a")
    slots = (*op.left.slots(0), *op.right.slots(OPERAND_WORDS))
    label = "residue_planes: " + ("how large A's rows and B's columns are" if scaled else "turns what is to be turned")
    return Launch("sums", label, kernel, (sum(blocks), 1, 1), told, slots)


def split_launch(op: ResidueOp, aligned: tuple[bool, ...], moduli: tuple[int, ...]) -> Launch:
    sides, g = op.sides, op.geometry
    wide = tuple(x.splits_wide(each) for x, each in zip(sides, aligned, strict=True))
    told = b"".join(x.parameters(x.split_blocks) for x in sides) + table_of_moduli(moduli)
    told += struct.pack("<i", len(moduli))
    kernel = Kernel(split_source, (g.levels, *wide, op.dtype), ENTRY, THREADS)
    slots = (*op.left.slots(0), *op.right.slots(OPERAND_WORDS))
    sums = f", sums of {'two levels' if g.levels == 2 else 'a level'} of Strassen's algorithm" if g.levels else ""
    label = f"residue_planes: residues of A and B modulo {len(moduli)} numbers{sums}"
    grid = sum(x.split_blocks for x in sides), 1, 1
    return Launch("sums", label, kernel, grid, told + bytes(-len(told) % WIDE), slots)


def planes_launch(op: ResidueOp, first: int, moduli: tuple[int, ...]) -> Launch:
    product = op.product(first, len(moduli))
    words = [i * MAP_WORDS for i in range(len(product.maps))]
    slots = tuple(Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, product.maps, strict=True))
    told = product.parameters + table_of_moduli(moduli) + struct.pack("<i", op.geometry.products)
    s = product.kernel.sizes
    kernel = Kernel(product_source, (product.kernel,), ENTRY, s.threads, product.kernel.shared, architecture="sm_90a")
    what = (
        f"{op.dtype} by {product.count} product{'s' * (product.count > 1)}" if op.sends else f"{product.count} products"
    )
    what += ", the lower half" if op.lower else ""
    label = f"gemm_residues: {what} of bytes, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}"
    maps = tuple(zip(words, product.maps, strict=True))
    return Launch(
        "product" if op.sends else "sums", label, kernel, product.grid, told + bytes(-len(told) % 64), slots, maps
    )


def join_launch(op: ResidueOp, flagged: bool) -> Launch:
    g, pieces = op.geometry, Pieces(op.geometry.moduli, op.geometry.levels)
    told = _result(op) + struct.pack("<3q2d", 0, 0, 0, op.factor, op.keep) + pieces.told
    slots = [*_result_slots(op), *(Slot(7 + i, x.base, x.exponents) for i, x in enumerate(op.sides))]
    slots += [Slot(9, FLAG)] if flagged else []
    kernel = Kernel(join_source, (g.levels, g.moduli, pieces.count, op.dtype), ENTRY, THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), told, tuple(slots))


def join_whole_launch(op: ResidueOp) -> Launch:
    g, numbers = op.geometry, remainder_weights(op.geometry.moduli)
    spare = [0] * (MOST_MODULI - g.moduli)
    weights = [w % 2**64 for w in numbers.weights] + spare
    shares = [w / numbers.product for w in numbers.weights] + spare
    scalars = struct.pack("<2q", int(op.factor), int(op.keep))
    told = _result(op) + scalars + struct.pack("<21Q20d", numbers.product % 2**64, *weights, *shares)
    kernel = Kernel(join_whole_source, (g.levels, g.moduli, op.dtype), ENTRY, THREADS)
    label = f"residue_join: {op.dtype} by {g.moduli} products of 8-bit integers"
    return Launch("product", label, kernel, _join_grid(op), told, _result_slots(op))


def _result(op: ResidueOp) -> bytes:
    """struct Result of residue_join.cuh, addresses zero."""
    g, (rows, _, columns) = op.geometry, op.geometry.block
    return struct.pack("<4q6i", 0, 0, op.dest.leading, op.dest.stride, g.m, g.n, g.count, rows, columns, op.lower)


def _result_slots(op: ResidueOp) -> tuple[Slot, ...]:
    return Slot(0, op.dest.base, op.dest.offset), Slot(1, "W", op.planes)


def _join_grid(op: ResidueOp) -> tuple[int, int, int]:
    g, (rows, _, columns) = op.geometry, op.geometry.block
    threads = g.count * rows * (columns // neighbours(op.dtype))
    threads = 4 * whole(threads, WARP) if g.levels == 2 else threads  # a warp for each block of the outer level
    return -(-threads // THREADS), 1, 1
