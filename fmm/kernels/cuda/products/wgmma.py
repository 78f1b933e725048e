"""Launches of the product by Hopper's warpgroups: how operands lie, which sizes, what the kernel is told."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Generic, Protocol, TypeVar

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.tiled import GROUP, WIDE
from fmm.kernels.cuda.products.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiled_source import ENTRY
from fmm.kernels.cuda.products.wgmma_source import LINE, WgmmaKernel, WgmmaSizes, wgmma_source
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, Lines, Piece

SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128))
EDGE = 24  # a tile's beginning and end take as long as computing so many more columns


class GroupKernel(Protocol):
    """What is asked of a kernel by warpgroups."""

    @property
    def sizes(self) -> WgmmaSizes: ...
    @property
    def lower(self) -> bool: ...


Kind = TypeVar("Kind", bound=GroupKernel, covariant=True)


@dataclass(frozen=True)
class WgmmaOp(Generic[Kind]):
    """One launch: C = factor A B, or added to what C holds, layer by layer."""

    kernel: Kind
    maps: tuple[TensorMap, TensorMap, TensorMap]
    steps: int
    tiles: tuple[int, int]  # of clusters, below each other and side by side
    count: int
    adds: bool
    factor: float
    clusters: int  # that the device has room for

    def __hash__(self) -> int:
        return id(self)

    @property
    def units(self) -> int:
        one = lower_units(*self.tiles, self.kernel.sizes) if self.kernel.lower else self.tiles[0] * self.tiles[1]
        return one * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product of gemm_wgmma.cuh, its tensor maps still zero."""
        told = self.steps, *self.tiles, GROUP, self.units, self.adds, self.factor, self.count
        numbers = struct.pack("<6ifi", *told)
        whole = bytes(MAP_BYTES * len(self.maps)) + numbers
        return whole + bytes(-len(whole) % 64)


@lru_cache(maxsize=4096)
def wgmma_op(op: GemmOp, dtype: str, multiprocessors: int) -> WgmmaOp[WgmmaKernel] | None:
    """The launch of a GEMM whose bases are aligned; None where the kernel cannot do it."""
    element, (m, n, k) = DTYPES[dtype], (op.n, op.m, op.k)
    left, right, along = kernel_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # Operands that are contiguous along the outer dimension the instructions read in 16-bit types only.
    turned = element.itemsize > 2 and along != ("inner", "inner")
    aligned = all(_is_aligned(x, element.itemsize) for x in op.pieces)
    # The copy engine writes 16 bytes at a time: a row of C that ends in the middle of them would be followed by zeros.
    cut = n * element.itemsize % WIDE != 0
    if turned or cut or not aligned or alpha.imag or beta not in (0, 1):
        return None
    s = sizes_for(m, n, op.count, multiprocessors, op.upper_half)
    line = LINE // element.itemsize

    def mapped(x: Factor, rows: int, cols: int, inner: bool, most: int) -> TensorMap:
        """The operand as lines: its rows, if `inner`, else its columns. One copy brings at most `most` of them."""
        length, lines = (cols, rows) if inner else (rows, cols)
        lying = Lines(x.leading, x.stride)
        return TensorMap(
            Piece(x.base, x.offset, rows, cols), dtype, length, lines, op.count, *lying, (line, most), LINE
        )

    maps = (
        mapped(left, m, k, along[0] == "inner", s.m_s if along[0] == "inner" else line),
        mapped(right, k, n, along[1] != "inner", s.n_s // s.cluster if along[1] == "inner" else line),
        mapped(op.dest, m, n, True, 64),
    )
    tiles, clusters = tiles_of(m, n, s), max(multiprocessors // s.cluster, 1)
    kernel = WgmmaKernel(dtype, s, along, op.upper_half)
    return WgmmaOp(kernel, maps, -(-k // line), tiles, op.count, beta == 1, alpha.real, clusters)


def _is_aligned(x: Factor, itemsize: int) -> bool:
    return all(step * itemsize % WIDE == 0 for step in (x.leading, x.stride)) and x.offset % WIDE == 0


def tiles_of(m: int, n: int, s: WgmmaSizes) -> tuple[int, int]:
    return -(-m // (s.m_s * s.cluster)), -(-n // s.n_s)


def lower_units(down: int, across: int, s: WgmmaSizes) -> int:
    """How many tiles lower_tile_of in gemm_wgmma.cuh numbers: of each group of rows the columns that its last needs."""
    bands, wide = -(-down // GROUP), s.m_s * s.cluster // s.n_s
    return GROUP * GROUP * wide * bands * (bands - 1) // 2 + (down - (bands - 1) * GROUP) * across


@lru_cache(maxsize=4096)
def sizes_for(m: int, n: int, count: int, multiprocessors: int, lower: bool = False) -> WgmmaSizes:
    """The sizes with which the last cluster is done earliest."""

    def end(s: WgmmaSizes) -> int:
        down, across = tiles_of(m, n, s)
        one = lower_units(down, across, s) if lower else down * across
        return -(-one * count // max(multiprocessors // s.cluster, 1)) * (s.n_s + EDGE)

    return min(SIZES, key=end)


# ---- the launch on a chip


def wgmma_launch(op: WgmmaOp[WgmmaKernel]) -> Launch:
    """All three operands' bases must be multiples of 16 bytes."""
    words = [i * MAP_WORDS for i in range(len(op.maps))]
    slots = tuple(Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True))
    s = op.kernel.sizes
    kernel = Kernel(wgmma_source, (op.kernel,), ENTRY, s.threads, op.kernel.shared, architecture="sm_90a")
    batch = f", a batch of {op.count}" if op.count > 1 else ""
    batch += ", on and below the diagonal" if op.kernel.lower else ""
    label = f"gemm_wgmma {op.kernel.element}: tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{batch}"
    return Launch("product", label, kernel, op.grid, op.parameters, slots, tuple(zip(words, op.maps, strict=True)))
