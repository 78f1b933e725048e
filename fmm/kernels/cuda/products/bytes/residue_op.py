"""A product by residues on a chip: its operands, its products of planes, and where everything stands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from fmm.dtypes import DTYPES, RINGS
from fmm.kernels.algorithms.residues import remainder_weights
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.products.bytes.residue_side import BytesFrom, Side, byte_map, bytes_as_they_lie
from fmm.kernels.cuda.products.bytes.residues_source import ResidueKernel
from fmm.kernels.cuda.products.tiles.tiled import WIDE
from fmm.kernels.cuda.products.tiles.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiles.tiled_source import Along
from fmm.kernels.cuda.products.tiles.wgmma import WgmmaOp, tiles_of, units_of
from fmm.kernels.cuda.products.tiles.wgmma_source import LINE, WgmmaSizes
from fmm.kernels.cuda.views import Factor, Piece
from fmm.kernels.plans.levels.residue_room import EXPONENT, ROOM, ResidueRoom, kept_room
from fmm.kernels.plans.memory_layout import whole

SIZES = (WgmmaSizes(128, 256, stages=4), WgmmaSizes(128, 128, stages=5))
EDGE = 24  # a tile's beginning and end take as long as computing so many more columns
NOT_KNOWN: Mapping[str, int] = MappingProxyType({})  # which powers of two divide the bases' addresses


@dataclass(frozen=True)
class ResidueOp:
    """C = factor A B + keep C, layer by layer."""

    dtype: str
    geometry: ResidueRoom
    left: Side
    right: Side
    dest: Factor
    planes: int  # where C's planes stand in the workspace
    multiprocessors: int
    factor: float
    keep: float
    sends: bool = False  # does the kernel of products write C itself, whose numbers are the bytes that it makes?
    lower: bool = False  # is C its own adjoint, and only its lower half to be written?

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
        """The launch of the products of planes modulo `count` numbers, from number `first` on."""
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
        kernel = ResidueKernel(s, "lower" if self.lower else None)
        return WgmmaOp(kernel, (left, right, dest), steps, tiles, layers, False, 0.0, 0.0, sides, clusters)


def residue_op(
    op: GemmOp, dtype: str, moduli: int, levels: int, multiprocessors: int, divides: Mapping[str, int] = NOT_KNOWN
) -> ResidueOp | None:
    """The product by planes in the leaf's scratch, or of bytes as they are; None where alpha or beta is complex.

    `divides`: by base, the power of two that divides its address, as far as that is known.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag:
        return None
    left, right, along = kernel_operands(op)
    m, n, k = op.n, op.m, op.k
    g = ResidueRoom(m, k, n, op.count, moduli, levels, DTYPES[dtype].itemsize)
    rows, inner, columns = g.block
    e, f, a, b, c, turned, _ = (op.scratch + x for x in g.offsets)
    plain = dtype in RINGS and g.item == 1 and moduli == 1
    first, second = (
        _bytes_from(source, dimension, divides) if plain else None
        for source, dimension in zip((left, right), along, strict=True)
    )
    x = Side(left, along[0], m, g, (rows, inner), e, a, turned, first)
    y = Side(right, along[1], n, g, (columns, inner), f, b, turned + g.turned[0], second)
    x, y = _kept(op, x, "A"), _kept(op, y, "B")
    # (The copy engine writes 16 bytes at a time: a row that ends in the midst of them would be followed by zeros.)
    sends = plain and (alpha, beta) == (1, 0) and n % WIDE == 0 and _is_aligned(op.dest, divides)
    # (The products of a fast algorithm's blocks are not their own adjoints.)
    lower = op.half is not None and not levels and not DTYPES[dtype].exact
    return ResidueOp(dtype, g, x, y, op.dest, c, multiprocessors, alpha.real, beta.real, sends, lower)


def _kept(op: GemmOp, side: Side, base: str) -> Side:
    """The operand, with exponents and planes behind itself, if they are kept there."""
    if op.use.leaf.preparation.keeps is None or not op.ready.kept_of == base == side.source.base:
        return side
    exponents, _ = kept_room(side.geometry.moduli, side.geometry.item, side.lines, side.geometry.k)
    planes = exponents + whole(EXPONENT * side.lines, ROOM)
    return replace(side, base=base, is_ready=True, exponents=exponents, planes=planes, turned=op.scratch)


def _bytes_from(x: Factor, along: Along, divides: Mapping[str, int]) -> BytesFrom | None:
    """Where the bytes of an operand are multiplied that are residues themselves; None if they must be copied first."""
    if along == "outer":
        return "planes"
    return "source" if _is_aligned(x, divides) else None


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
