"""A float32 product by three of float16: where its planes lie, and the two launches: splitting, multiplying."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache

from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot
from fmm.kernels.cuda.products.f16_planes import CHUNK, ITEM, PLANES, exponent_room, plane_room, whole
from fmm.kernels.cuda.products.f16x3_source import (
    CLUSTER,
    PLANE_THREADS,
    F16x3Kernel,
    F16x3Sizes,
    SplitKernel,
    f16x3_source,
    split_source,
)
from fmm.kernels.cuda.products.tiled import GROUP, WIDE
from fmm.kernels.cuda.products.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiled_source import ENTRY, Along
from fmm.kernels.cuda.products.wgmma_source import LINE
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, Piece

SIZES = (F16x3Sizes(128, 128), F16x3Sizes(128, 64))
EDGE = 24  # a tile's beginning and end take as long as computing so many more columns
WARP, MOST_KEPT = 32, 16
WORDS = 8  # of struct Operand


@dataclass(frozen=True)
class Planes:
    """One operand of a batch: its lines, and where in the workspace its planes and exponents stand."""

    source: Factor
    along: Along
    lines: int
    length: int
    count: int
    offset: int

    @property
    def room(self) -> int:
        return whole(self.length, CHUNK)

    @property
    def exponents(self) -> int:
        return self.offset + plane_room(self.count * self.lines, self.length)

    @property
    def end(self) -> int:
        outer = self.lines if self.along == "inner" else self.length
        return self.exponents + exponent_room(self.count * outer)

    def split_kernel(self, aligned: bool) -> SplitKernel:
        """Few long lines are split by whole thread blocks, many short ones by warps."""
        wide = aligned and all(x * ITEM % WIDE == 0 for x in (self.source.leading, self.source.stride))
        wide = wide and self.source.offset % WIDE == 0
        if self.along == "outer":
            return SplitKernel("outer", 0, 0, wide)
        group = WARP if self.length <= 1024 else PLANE_THREADS
        return SplitKernel("inner", group, min(-(-self.room // (4 * group)), MOST_KEPT), wide)

    def blocks(self, kernel: SplitKernel) -> int:
        if kernel.along == "outer":
            return self.count * self.room // CHUNK * CLUSTER
        return whole(-(-self.count * self.lines // (PLANE_THREADS // kernel.group)), CLUSTER)

    def parameters(self, kernel: SplitKernel) -> bytes:
        """struct Operand of f16_planes.cuh, addresses zero."""
        x = self.source
        counts = self.lines, self.length, self.count, self.blocks(kernel)
        return struct.pack("<6q4i", 0, 0, 0, x.leading, x.stride, self.room, *counts)

    def slots(self, first: int) -> tuple[Slot, ...]:
        x = self.source
        return (
            Slot(first, x.base, x.offset),
            Slot(first + 1, "W", self.offset),
            Slot(first + 2, "W", self.exponents),
        )

    def tensor_map(self, most: int) -> TensorMap:
        """Hi and lo, 64 numbers each in turns; one copy brings at most `most` lines."""
        halves = PLANES * self.room
        piece = Piece("W", self.offset, self.lines, halves)
        box = (CHUNK, most if self.along == "inner" else CHUNK)
        return TensorMap(piece, "float16", halves, self.lines, self.count, halves, halves * self.lines, box, LINE)


@dataclass(frozen=True)
class F16x3Op:
    """C = factor A B + keep C, layer by layer."""

    kernel: F16x3Kernel
    left: Planes
    right: Planes
    dest: Factor
    m: int
    n: int
    k: int
    factor: float
    keep: float
    clusters: int  # that the device has room for

    def __hash__(self) -> int:
        return id(self)

    @property
    def count(self) -> int:
        return self.left.count

    @cached_property
    def maps(self) -> tuple[TensorMap, TensorMap]:
        s = self.kernel.sizes
        return self.left.tensor_map(s.m_s), self.right.tensor_map(s.n_s)

    @property
    def tiles(self) -> tuple[int, int]:
        return tiles_of(self.m, self.n, self.kernel.sizes)

    @property
    def units(self) -> int:
        return self.tiles[0] * self.tiles[1] * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product3 of gemm_f16x3.cuh, maps and addresses zero."""
        maps = bytes(MAP_BYTES * len(self.maps) + 4 * 8)
        counts = self.m, self.n, -(-self.k // CHUNK), *self.tiles, GROUP, self.units
        numbers = struct.pack("<2q7i2f", self.dest.leading, self.dest.stride, *counts, self.factor, self.keep)
        return maps + numbers + bytes(-len(maps + numbers) % 64)


def f16x3_op(op: GemmOp, multiprocessors: int) -> F16x3Op | None:
    """The product of planes in the leaf's scratch; None where alpha or beta is complex."""
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag:
        return None
    left, right, along = kernel_operands(op)
    m, n, k = op.n, op.m, op.k
    inner = along[0] == "inner", along[1] == "inner"
    a = Planes(left, along[0], *((m, k) if inner[0] else (k, m)), op.count, op.scratch)
    b = Planes(right, along[1], *((n, k) if inner[1] else (k, n)), op.count, a.end)
    s = sizes_for(m, n, op.count, multiprocessors)
    clusters = max(multiprocessors // s.cluster, 1)
    return F16x3Op(F16x3Kernel(s, along), a, b, op.dest, m, n, k, alpha.real, beta.real, clusters)


def tiles_of(m: int, n: int, s: F16x3Sizes) -> tuple[int, int]:
    """Clusters' tiles below each other and side by side."""
    return -(-m // (s.m_s * s.cluster)), -(-n // s.n_s)


@lru_cache(maxsize=4096)
def sizes_for(m: int, n: int, count: int, multiprocessors: int) -> F16x3Sizes:
    """The sizes with which the last cluster is done earliest."""

    def end(s: F16x3Sizes) -> int:
        down, across = tiles_of(m, n, s)
        return -(-down * across * count // max(multiprocessors // s.cluster, 1)) * (s.n_s + EDGE)

    return min(SIZES, key=end)


# ---- the launches on a chip


def split_launch(op: F16x3Op, divides: dict[str, int]) -> Launch:
    """Exponents and planes of both operands."""
    kernels = [x.split_kernel(divides[x.source.base] % WIDE == 0) for x in (op.left, op.right)]
    sides = list(zip((op.left, op.right), kernels, strict=True))
    parameters = b"".join(x.parameters(kernel) for x, kernel in sides)
    slots = (*op.left.slots(0), *op.right.slots(WORDS))
    grid = sum(x.blocks(kernel) for x, kernel in sides), 1, 1
    kernel = Kernel(split_source, tuple(kernels), ENTRY, PLANE_THREADS, architecture="sm_90a")
    return Launch("sums", "f16_planes: splits A and B in two float16 numbers each", kernel, grid, parameters, slots)


def f16x3_launch(op: F16x3Op, flagged: bool) -> Launch:
    """The product of the planes."""
    words = [i * MAP_WORDS for i in range(len(op.maps))]
    after = len(op.maps) * MAP_WORDS
    slots = [Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True)]
    slots += [Slot(after, op.dest.base, op.dest.offset), Slot(after + 1, "W", op.left.exponents)]
    slots += [Slot(after + 2, "W", op.right.exponents), *([Slot(after + 3, FLAG)] if flagged else [])]
    s = op.kernel.sizes
    kernel = Kernel(f16x3_source, (op.kernel,), ENTRY, s.threads, op.kernel.shared, architecture="sm_90a")
    batch = f", a batch of {op.count}" if op.count > 1 else ""
    label = f"gemm_f16x3: three float16 products, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{batch}"
    maps = tuple(zip(words, op.maps, strict=True))
    return Launch("product", label, kernel, op.grid, op.parameters, tuple(slots), maps)
