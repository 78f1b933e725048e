"""Wgmma."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Generic, Protocol, TypeVar

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.gemm import GemmOp, HalfExtent
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.tiling import (
    RASTER_ROWS,
    TRIANGLE_LABELS,
    VECTOR_BYTES,
    Along,
    along_cpp,
    count_triangle_tiles,
    row_major_operands,
    triangle_tiles,
)
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, Lines, Piece, View

LINE_BYTES = 128  # bytes of a tile's line along the inner dimension
MMA_K_BYTES = 32  # bytes of a row of A that one instruction multiplies
BARRIER_BYTES = 8  # bytes of a barrier in shared memory


@dataclass(frozen=True)
class WgmmaSizes:
    """Sizes of a thread block's tile of C; `cluster` thread blocks below each other share what they read of B."""

    m_s: int
    n_s: int
    cluster: int = 2
    stages: int = 3

    @property
    def groups(self) -> int:
        """Warpgroups that multiply; one more copies tiles in and out."""
        return self.m_s // 64

    @property
    def threads(self) -> int:
        return 128 * (self.groups + 1)


@dataclass(frozen=True)
class WgmmaKernel:
    """The kernel of a product by warpgroups."""

    element: str
    sizes: WgmmaSizes
    along: tuple[Along, Along]  # the dimensions along which A and B are contiguous
    half: HalfExtent | None = None  # of which it makes only tiles that reach the diagonal or lie below it

    @property
    def passes(self) -> int:
        """In how many parts a tile of C goes out through shared memory: parts have equally many bytes in all types."""
        return max(DTYPES[self.element].itemsize // 2, 1)

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of A and B, numbers on their way to C, gates."""
        s = self.sizes
        staged = s.m_s * s.n_s // self.passes * DTYPES[self.element].itemsize
        return s.stages * (s.m_s + s.n_s) * LINE_BYTES + staged + 2 * BARRIER_BYTES * (s.stages + s.groups)


@lru_cache(maxsize=64)
def wgmma_source(kernel: WgmmaKernel) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.sizes, DTYPES[kernel.element]
    left, right = along_cpp(kernel.along)
    body = (
        f"using Element = {element.cpp};",
        f"using Sizes = fmm::{_sizes_type(kernel)};",
        "extern __shared__ __align__(1024) Element memory[];",
        f"fmm::multiply_by_groups<Step, Element, Sizes, {left}, {right}>(p, fmm::ByFactor{{p.factor}}, memory);",
    )
    before = [*wgmma_instruction(element, s.n_s), ""]
    return entry_source("fmm::Product", body, "gemm_wgmma.cuh", (s.threads, 1), clusters=s.cluster, before=before)


def _sizes_type(kernel: WgmmaKernel) -> str:
    s = kernel.sizes
    numbers = f"Element, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    if not kernel.half:
        return f"Sizes<{numbers}>"
    return f"LowerSizes<{numbers}, {str(kernel.half == 'full').lower()}>"


def wgmma_instruction(element: DType, width: int) -> list[str]:
    """64 rows of A times `width` columns of B, added to the accumulators, or not, if nothing is kept of these.

    Where 16-bit operands are turned, they lie along the outer dimension; bytes are added up in whole numbers. (An
    instruction names all its registers.)
    """
    count, whole = width // 2, element.itemsize == 1
    sums, number, register = ("s32", "int", "r") if whole else ("f32", "float", "f")
    names = ", ".join(f"%{i}" for i in range(count))
    accumulators = ", ".join(f'"+{register}"(x[{i}])' for i in range(count))
    deep = MMA_K_BYTES // element.itemsize
    signs = "" if whole else ", 1, 1"
    turns = f", %{count + 3}, %{count + 4}" if element.itemsize == 2 else ""
    given = '"l"(a), "l"(b), "r"(keeps)' + (', "n"(int(LEFT_TURNED)), "n"(int(RIGHT_TURNED))' if turns else "")
    name = f"wgmma.mma_async.sync.aligned.m64n{width}k{deep}.{sums}.{element.mma}.{element.mma}"
    return [
        "struct Step {",
        f"    using Sum = {number};",
        "    template <bool LEFT_TURNED, bool RIGHT_TURNED>",
        f"    __device__ static __forceinline__ void multiply(Sum (&x)[{count}], unsigned long long a,",
        "                                                    unsigned long long b, int keeps) {",
        '        asm volatile("{.reg .pred keeps; "',
        f'                     "setp.ne.b32 keeps, %{count + 2}, 0; "',
        f'                     "{name} "',
        f'                     "{{{names}}}, "',
        f'                     "%{count}, %{count + 1}, keeps{signs}{turns};}}"',
        f"                     : {accumulators}",
        f"                     : {given});",
        "    }",
        "};",
    ]


WGMMA_SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128))
# Of a lower half: where tiles of 256 columns would leave most of a last round idle, as at 4096 rows on an H200.
TRIANGLE_SIZES = (*WGMMA_SIZES, WgmmaSizes(128, 192, stages=4))
MAX_BETA_RATIO = 2.0**60  # of beta over alpha
UNSHARED_SLOWDOWN = 1.15  # a thread block that shares nothing with a neighbour takes so many times as long
TILE_OVERHEAD_COLUMNS = 24  # a tile's beginning and end take as long as computing so many more columns


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
        return count_cluster_tiles(self.tiles, self.kernel.sizes, self.kernel.half is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product of gemm_wgmma.cuh, its tensor maps still zero."""
        dest = self.maps[2]
        lines = (self.added.right, 0) if self.added else (dest.leading, dest.layer)
        kept_values = 0, *lines, *self.sides, self.keep
        product = self.steps, *self.tiles, raster_rows(self.kernel.sizes), self.units, self.adds, self.factor
        numbers = struct.pack("<3q2if6if", *kept_values, *product)
        parameters = bytes(MAP_BYTES * len(self.maps)) + numbers
        return parameters + bytes(-len(parameters) % 64)


@lru_cache(maxsize=4096)
def wgmma_op(op: GemmOp, dtype: str, multiprocessors: int) -> WgmmaOp[WgmmaKernel] | None:
    """The launch of a GEMM whose bases are aligned; None where the kernel cannot do it."""
    if not _can_multiply(op, dtype) or not _can_write(op, dtype):
        return None
    m, n, k = op.n, op.m, op.k
    left, right, along = row_major_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # The copy engine can add to C, but what is also sent elsewhere must be known before.
    adds = beta == 1 and op.half is None and op.added is None
    s = best_wgmma_sizes(
        m, n, op.count, multiprocessors, TRIANGLE_SIZES if op.half else WGMMA_SIZES, op.half is not None
    )
    line = LINE_BYTES // DTYPES[dtype].itemsize

    def mapped(x: Factor, rows: int, cols: int, by_rows: bool, most: int) -> TensorMap:
        """The map of a matrix as lines, its rows or its columns. One copy brings at most `most` of them."""
        length, lines = (cols, rows) if by_rows else (rows, cols)
        steps = Lines(x.leading, x.stride)
        return TensorMap(
            Piece(x.base, x.offset, rows, cols), dtype, length, lines, op.count, *steps, (line, most), LINE_BYTES
        )

    maps = (
        mapped(left, m, k, along[0] == "inner", s.m_s if along[0] == "inner" else line),
        mapped(right, k, n, along[1] != "inner", s.n_s // s.cluster if along[1] == "inner" else line),
        mapped(op.dest, m, n, True, 64),
    )
    tiles, clusters = cluster_tiles(m, n, s), max(multiprocessors // s.cluster, 1)
    kernel = WgmmaKernel(dtype, s, along, op.extent)
    keep = 0.0 if adds else beta.real / alpha.real
    return WgmmaOp(kernel, maps, -(-k // line), tiles, op.count, adds, alpha.real, keep, (m, n), clusters, op.added)


def _can_multiply(op: GemmOp, dtype: str) -> bool:
    """Can the kernel read these operands, and scale by alpha and beta?"""
    itemsize, (_, _, along) = DTYPES[dtype].itemsize, row_major_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # The instructions read operands that are contiguous along the outer dimension only of 16-bit types.
    readable = itemsize <= 2 or along == ("inner", "inner")
    aligned = all(_is_aligned(x, itemsize) for x in op.pieces)
    small_enough = not abs(beta) > MAX_BETA_RATIO * abs(alpha)
    return readable and aligned and not alpha.imag and not beta.imag and small_enough


def _can_write(op: GemmOp, dtype: str) -> bool:
    """Can the kernel write this result, and read what is added to it?"""
    itemsize, added = DTYPES[dtype].itemsize, op.added
    # The copy engine writes 16 bytes at a time: a row of C that ends in the middle of them would be followed by zeros.
    if op.m * itemsize % VECTOR_BYTES:
        return False
    # Transposed tiles are made by an instruction for 16-bit numbers.
    if op.extent == "lower" or (op.extent == "full" and itemsize > 2):
        return False
    # Of what is added, pairs of numbers are read.
    return added is None or not (op.count > 1 or added.right % 2 or added.offset % (2 * itemsize))


def _is_aligned(x: Factor, itemsize: int) -> bool:
    """May the copy engine read or write the matrix, if its base is aligned?"""
    return all(step * itemsize % VECTOR_BYTES == 0 for step in (x.leading, x.stride)) and x.offset % VECTOR_BYTES == 0


def cluster_tiles(m: int, n: int, s: WgmmaSizes) -> tuple[int, int]:
    """Clusters' tiles below each other and side by side."""
    return -(-m // (s.m_s * s.cluster)), -(-n // s.n_s)


def raster_rows(s: WgmmaSizes) -> int:
    """Rows of clusters' tiles that are done together: as many as are as high as a whole number of tiles is wide."""
    return next(group for group in range(RASTER_ROWS, 0, -1) if group * s.m_s * s.cluster % s.n_s == 0)


def count_cluster_tiles(tiles: tuple[int, int], s: WgmmaSizes, half: bool) -> int:
    """Clusters' tiles of one product, or of one half of it."""
    return count_triangle_tiles(tiles, s.m_s * s.cluster, s.n_s) if half else prod(tiles)


@lru_cache(maxsize=4096)
def best_wgmma_sizes(
    m: int, n: int, count: int, multiprocessors: int, among: tuple[WgmmaSizes, ...] = WGMMA_SIZES, half: bool = False
) -> WgmmaSizes:
    """Those of the sizes `among` with which the last cluster is done earliest."""

    def end(s: WgmmaSizes) -> float:
        units, alone = count_cluster_tiles(cluster_tiles(m, n, s), s, half), 1.0 if s.cluster > 1 else UNSHARED_SLOWDOWN
        return -(-units * count // max(multiprocessors // s.cluster, 1)) * (s.n_s + TILE_OVERHEAD_COLUMNS) * alone

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
    half = triangle_tiles(op.kernel.half)
    extra += f", {TRIANGLE_LABELS[half]}" if half else ""
    label = f"gemm_wgmma {op.kernel.element}: tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    return Launch("product", label, kernel, op.grid, op.parameters, slots, tuple(zip(words, op.maps, strict=True)))
