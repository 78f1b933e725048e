"""Launches of the product by Hopper's warpgroups: how operands lie, which sizes, what the kernel is told."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Generic, Protocol, TypeVar

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.gemm import GemmOp, HalfExtent
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.tiles.tiled import GROUP, HALVES, WIDE, lower_tiles
from fmm.kernels.cuda.products.tiles.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiles.tiled_source import half_written
from fmm.kernels.cuda.products.tiles.wgmma_source import LINE, WgmmaKernel, WgmmaSizes, wgmma_source
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, Lines, Piece, View

SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128))
# Of a lower half: where tiles of 256 columns would leave most of a last round idle, as at 4096 rows on an H200.
HALF_SIZES = (*SIZES, WgmmaSizes(128, 192, stages=4))
MOST_KEPT = 2.0**60  # of beta over alpha
ALONE = 1.15  # a thread block that shares nothing with a neighbour takes so many times as long
EDGE = 24  # a tile's beginning and end take as long as computing so many more columns


class GroupKernel(Protocol):
    """What launches ask of any kernel by warpgroups."""

    @property
    def sizes(self) -> WgmmaSizes: ...
    @property
    def half(self) -> HalfExtent | None: ...


Kind = TypeVar("Kind", bound=GroupKernel, covariant=True)


@dataclass(frozen=True)
class WgmmaOp(Generic[Kind]):
    """One launch: C = factor (A B + keep C), layer by layer."""

    kernel: Kind
    maps: tuple[TensorMap, TensorMap, TensorMap]  # of A, B and C
    steps: int  # of the inner dimension
    tiles: tuple[int, int]  # of clusters, below each other and side by side
    count: int  # layers
    adds: bool  # does the copy engine add to what C holds? Then `keep` is zero
    factor: float
    keep: float
    sides: tuple[int, int]  # of C
    clusters: int  # that the device has room for
    added: View | None = None  # what `keep` is a factor of, if that is not C; it lies as BLAS's C does

    def __hash__(self) -> int:
        return id(self)

    @property
    def units(self) -> int:
        """Tiles of clusters that there are in all: what thread blocks take in turns."""
        return units_of(self.tiles, self.kernel.sizes, self.kernel.half is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product of gemm_wgmma.cuh, its tensor maps still zero."""
        dest = self.maps[2]
        lines = (self.added.right, 0) if self.added else (dest.leading, dest.layer)
        kept_values = 0, *lines, *self.sides, self.keep
        product = self.steps, *self.tiles, group_of(self.kernel.sizes), self.units, self.adds, self.factor
        numbers = struct.pack("<3q2if6if", *kept_values, *product)
        parameters = bytes(MAP_BYTES * len(self.maps)) + numbers
        return parameters + bytes(-len(parameters) % 64)


@lru_cache(maxsize=4096)
def wgmma_op(op: GemmOp, dtype: str, multiprocessors: int) -> WgmmaOp[WgmmaKernel] | None:
    """The launch of a GEMM whose bases are aligned; None where the kernel cannot do it."""
    if not _can_multiply(op, dtype) or not _can_write(op, dtype):
        return None
    m, n, k = op.n, op.m, op.k
    left, right, along = kernel_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # The copy engine can add to C, but what is also sent elsewhere must be known before.
    adds = beta == 1 and op.half is None and op.added is None
    s = sizes_for(m, n, op.count, multiprocessors, HALF_SIZES if op.half else SIZES, op.half is not None)
    line = LINE // DTYPES[dtype].itemsize

    def mapped(x: Factor, rows: int, cols: int, by_rows: bool, most: int) -> TensorMap:
        """The map of a matrix as lines, its rows or its columns. One copy brings at most `most` of them."""
        length, lines = (cols, rows) if by_rows else (rows, cols)
        steps = Lines(x.leading, x.stride)
        return TensorMap(
            Piece(x.base, x.offset, rows, cols), dtype, length, lines, op.count, *steps, (line, most), LINE
        )

    maps = (
        mapped(left, m, k, along[0] == "inner", s.m_s if along[0] == "inner" else line),
        mapped(right, k, n, along[1] != "inner", s.n_s // s.cluster if along[1] == "inner" else line),
        mapped(op.dest, m, n, True, 64),
    )
    tiles, clusters = tiles_of(m, n, s), max(multiprocessors // s.cluster, 1)
    kernel = WgmmaKernel(dtype, s, along, op.extent)
    keep = 0.0 if adds else beta.real / alpha.real
    return WgmmaOp(kernel, maps, -(-k // line), tiles, op.count, adds, alpha.real, keep, (m, n), clusters, op.added)


def _can_multiply(op: GemmOp, dtype: str) -> bool:
    """Can the kernel read these operands, and scale by alpha and beta?"""
    itemsize, (_, _, along) = DTYPES[dtype].itemsize, kernel_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # The instructions read operands that are contiguous along the outer dimension only of 16-bit types.
    readable = itemsize <= 2 or along == ("inner", "inner")
    aligned = all(_is_aligned(x, itemsize) for x in op.pieces)
    small_enough = not abs(beta) > MOST_KEPT * abs(alpha)
    return readable and aligned and not alpha.imag and not beta.imag and small_enough


def _can_write(op: GemmOp, dtype: str) -> bool:
    """Can the kernel write this result, and read what is added to it?"""
    itemsize, added = DTYPES[dtype].itemsize, op.added
    # The copy engine writes 16 bytes at a time: a row of C that ends in the middle of them would be followed by zeros.
    if op.m * itemsize % WIDE:
        return False
    # Transposed tiles are made by an instruction for 16-bit numbers.
    if op.extent == "lower" or (op.extent == "full" and itemsize > 2):
        return False
    # Of what is added, pairs of numbers are read.
    return added is None or not (op.count > 1 or added.right % 2 or added.offset % (2 * itemsize))


def _is_aligned(x: Factor, itemsize: int) -> bool:
    """May the copy engine read or write the matrix, if its base is aligned?"""
    return all(step * itemsize % WIDE == 0 for step in (x.leading, x.stride)) and x.offset % WIDE == 0


def tiles_of(m: int, n: int, s: WgmmaSizes) -> tuple[int, int]:
    """Clusters' tiles below each other and side by side."""
    return -(-m // (s.m_s * s.cluster)), -(-n // s.n_s)


def group_of(s: WgmmaSizes) -> int:
    """Rows of clusters' tiles that are done together: as many as are as high as a whole number of tiles is wide."""
    return next(group for group in range(GROUP, 0, -1) if group * s.m_s * s.cluster % s.n_s == 0)


def units_of(tiles: tuple[int, int], s: WgmmaSizes, half: bool) -> int:
    """Clusters' tiles of one product, or of one half of it."""
    return lower_tiles(tiles, s.m_s * s.cluster, s.n_s) if half else prod(tiles)


@lru_cache(maxsize=4096)
def sizes_for(
    m: int, n: int, count: int, multiprocessors: int, among: tuple[WgmmaSizes, ...] = SIZES, half: bool = False
) -> WgmmaSizes:
    """Those of the sizes `among` with which the last cluster is done earliest."""

    def end(s: WgmmaSizes) -> float:
        units, alone = units_of(tiles_of(m, n, s), s, half), 1.0 if s.cluster > 1 else ALONE
        return -(-units * count // max(multiprocessors // s.cluster, 1)) * (s.n_s + EDGE) * alone

    return min(among, key=end)


# ---- the launch on a chip


def wgmma_launch(op: WgmmaOp[WgmmaKernel]) -> Launch:
    """The launch. The addresses of all three matrices' bases must be multiples of 16 bytes."""
    words = [i * MAP_WORDS for i in range(len(op.maps))]
    slots = tuple(Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True))
    dest = op.added or op.maps[2].piece
    slots += (Slot(len(op.maps) * MAP_WORDS, dest.base, dest.offset),) if op.keep else ()
    s = op.kernel.sizes
    kernel = Kernel(wgmma_source, (op.kernel,), ENTRY, s.threads, op.kernel.shared, architecture="sm_90a")
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    half = half_written(op.kernel.half)
    extra += f", {HALVES[half]}" if half else ""
    label = f"gemm_wgmma {op.kernel.element}: tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    return Launch("product", label, kernel, op.grid, op.parameters, slots, tuple(zip(words, op.maps, strict=True)))
