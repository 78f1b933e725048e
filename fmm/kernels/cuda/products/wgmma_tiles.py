"""Describe products of float16, bfloat16, TF32 and bytes on Hopper's tensor cores, by the instruction wgmma.

The kernel is in gemm_wgmma.cuh. `wgmma_op` describes a GEMM with its tensor maps, `best_wgmma_sizes` chooses the tile
sizes, and `wgmma_launch` returns the launch. The modules f16x3.py and residues.py use the same tiles and instructions
in other kernels, gemm_f16x3.cuh and gemm_residues.cuh.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import prod
from typing import Generic, Protocol, TypeVar

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import TENSOR_MAP_BYTES, TENSOR_MAP_WORDS, AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm, DeviceView, GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.tiling import (
    RASTER_ROWS,
    TRIANGLE_LABELS,
    VECTOR_BYTES,
    ContiguousAxis,
    count_triangle_tiles,
    cpp_contiguous_axes,
    row_major_operands,
    triangle_tiles,
)

TILE_LINE_BYTES = 128  # size in bytes of a tile of A or B along the inner dimension
WGMMA_DEPTH_BYTES = 32  # depth of one wgmma instruction along the inner dimension, in bytes
# number of wgmma instructions along the inner dimension of a tile
INSTRUCTIONS_PER_TILE = TILE_LINE_BYTES // WGMMA_DEPTH_BYTES
BARRIER_BYTES = 8  # bytes of an mbarrier in shared memory


@dataclass(frozen=True)
class WgmmaSizes:
    """Tile sizes: a thread block computes an m_s x n_s tile of C; the thread blocks of a cluster load B together."""

    m_s: int
    n_s: int
    cluster: int = 2
    stages: int = 3

    @property
    def multiplying_warpgroups(self) -> int:
        """Number of warpgroups that multiply; one more warpgroup loads and stores tiles."""
        return self.m_s // 64

    @property
    def thread_count(self) -> int:
        return 128 * (self.multiplying_warpgroups + 1)


WGMMA_SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128))
# Tiles of 192 columns are for triangles of C only. With tiles of 256 columns, most multiprocessors can be idle at the
# end of the launch, for example for a triangle of 4096 rows on an H200.
TRIANGLE_SIZES = (*WGMMA_SIZES, WgmmaSizes(128, 192, stages=4))
MAX_BETA_RATIO = 2.0**60  # largest |beta / alpha| for which the kernel is used
UNSHARED_SLOWDOWN = 1.15  # time of a thread block without a cluster, divided by the time of a thread block in a cluster
TILE_OVERHEAD_COLUMNS = 24  # start and end of a tile together take as long as computing this number of columns


@dataclass(frozen=True)
class WgmmaKernel:
    """A compiled variant of the kernel of gemm_wgmma.cuh."""

    element: str
    sizes: WgmmaSizes
    along: tuple[ContiguousAxis, ContiguousAxis]  # the dimensions along which A and B are contiguous
    triangle: TriangleExtent | None = None  # if not None, only tiles that overlap the lower triangle are computed

    @property
    def result_store_passes(self) -> int:
        """Number of parts in which a tile of C is stored: 2 for elements of 4 bytes, else 1."""
        return max(DTYPES[self.element].itemsize // 2, 1)

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, for tiles of A and B, a part of the tile of C, and barriers."""
        s = self.sizes
        staged = s.m_s * s.n_s // self.result_store_passes * DTYPES[self.element].itemsize
        # A kernel that mirrors a triangle has separate barriers for every 64 columns of the tile of C.
        slots = s.n_s // 64 if self.triangle == "full" else 1
        barriers = 2 * BARRIER_BYTES * (s.stages + s.multiplying_warpgroups * slots)
        return s.stages * (s.m_s + s.n_s) * TILE_LINE_BYTES + staged + barriers


@lru_cache(maxsize=64)
def wgmma_kernel_source(kernel: WgmmaKernel) -> str:
    """Return the CUDA source of a kernel; its entry point is `ENTRY_NAME`."""
    s, element = kernel.sizes, DTYPES[kernel.element]
    left, right = cpp_contiguous_axes(kernel.along)
    sizes = f"Element, {s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    mirrors = str(kernel.triangle == "full").lower()
    body = (
        f"using Element = {element.cpp};",
        f"using Sizes = fmm::{f'LowerSizes<{sizes}, {mirrors}>' if kernel.triangle else f'Sizes<{sizes}>'};",
        "extern __shared__ __align__(1024) Element memory[];",
        f"fmm::multiply_by_groups<Step, Element, Sizes, {left}, {right}>(p, fmm::ByFactor{{p.factor}}, memory);",
    )
    before = [*wgmma_instructions(element, s.n_s), ""]
    return entry_source("fmm::Product", body, "gemm_wgmma.cuh", (s.thread_count, 1), clusters=s.cluster, before=before)


def wgmma_instructions(element: DType, width: int, planes: bool = False) -> list[str]:
    """Return the C++ struct Step; its function `multiply` multiplies 64 rows of A by `width` columns of B.

    If the C++ argument `keeps` is 0, the first wgmma instruction overwrites the accumulators; all other instructions
    add to the accumulators. Operands with 16-bit elements may be transposed, that is, contiguous along the outer
    dimension. If the operands are bytes, the accumulators are integers. A wgmma instruction must name all its
    registers, so its text depends on `width`. NVRTC compiles each asm statement with many registers slowly, so a single
    asm statement contains all instructions of a tile.

    If `planes` is True, Step also has the function `multiply_low`, which computes hi lo + lo hi from the planes hi and
    lo. LOW_A and LOW_B are the distances from plane hi to plane lo of A and B in shared memory, in units of 16 bytes.
    """
    sums, number, register = ("s32", "int", "r") if element.itemsize == 1 else ("f32", "float", "f")
    accumulators = ", ".join(f'"+{register}"(x[{i}])' for i in range(width // 2))
    lines = ["struct Step {", f"    using Sum = {number};"]
    functions = {"multiply": (("0", "0"),), **({"multiply_low": (("0", "LOW_B"), ("LOW_A", "0"))} if planes else {})}
    for name, distances in functions.items():
        offsets = [
            (f"{k} * NEXT_A + {a}", f"{k} * NEXT_B + {b}") for k in range(INSTRUCTIONS_PER_TILE) for a, b in distances
        ]
        more = ", int LOW_A, int LOW_B" if len(distances) > 1 else ""
        lines += [
            f"    template <bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, int NEXT_A, int NEXT_B{more}>",
            f"    __device__ static __forceinline__ void {name}(Sum (&x)[{width // 2}], unsigned long long a,",
            "                                                    unsigned long long b, int keeps) {",
            *_wgmma_statement(element, width, sums, offsets),
            f"                     : {accumulators}",
            f"                     : {_wgmma_inputs(element, offsets)});",
            "    }",
        ]
    return [*lines, "};"]


def _wgmma_statement(element: DType, width: int, sums: str, offsets: Sequence[tuple[str, str]]) -> Iterator[str]:
    """Yield the lines of an asm statement with one wgmma instruction for each item of `offsets`.

    Each item has two C++ expressions: what the instruction adds to the matrix descriptors of A and of B.
    """
    count, transposable = width // 2, element.itemsize == 2
    names = ", ".join(f"%{i}" for i in range(count))
    signs = "" if element.itemsize == 1 else ", 1, 1"
    transposes = f", %{count + 3}, %{count + 4}" if transposable else ""
    depth = WGMMA_DEPTH_BYTES // element.itemsize
    instruction = f"wgmma.mma_async.sync.aligned.m64n{width}k{depth}.{sums}.{element.mma}.{element.mma}"
    yield '        asm volatile("{.reg .pred keeps, adds; .reg .b64 a, b; "'
    yield f'                     "setp.ne.b32 keeps, %{count + 2}, 0; setp.eq.b32 adds, 0, 0; "'
    offset = count + (5 if transposable else 3)
    for i in range(len(offsets)):
        places = f"add.s64 a, %{count}, %{offset + 2 * i}; add.s64 b, %{count + 1}, %{offset + 2 * i + 1}; "
        yield f'                     "{places}"'
        yield f'                     "{instruction} "'
        yield f'                     "{{{names}}}, "'
        yield f'                     "a, b, {"adds" if i else "keeps"}{signs}{transposes}; "'
    yield '                     "}"'


def _wgmma_inputs(element: DType, offsets: Sequence[tuple[str, str]]) -> str:
    inputs = '"l"(a), "l"(b), "r"(keeps)'
    if element.itemsize == 2:
        inputs += ', "n"(int(LEFT_TRANSPOSED)), "n"(int(RIGHT_TRANSPOSED))'
    return ", ".join((inputs, *(f'"n"({x})' for pair in offsets for x in pair)))


# ---- a GEMM as one launch


class WarpgroupKernel(Protocol):
    """The attributes of a kernel object that `WgmmaOp` reads."""

    @property
    def sizes(self) -> WgmmaSizes: ...
    @property
    def triangle(self) -> TriangleExtent | None: ...


KernelT = TypeVar("KernelT", bound=WarpgroupKernel, covariant=True)


@dataclass(frozen=True)
class WgmmaOp(Generic[KernelT]):
    """A launch that computes C = factor * (A B + keep * C) for each product of a batch."""

    kernel: KernelT
    maps: tuple[TensorMap, TensorMap, TensorMap]  # tensor maps of A, B and C
    steps: int  # number of tiles along the inner dimension
    tiles: tuple[int, int]  # number of rows and number of columns of cluster tiles in C
    count: int  # number of products in the batch
    adds: bool  # True if the copy engine adds the product to C's old value; `keep` is then zero
    factor: float
    keep: float
    sides: tuple[int, int]  # number of rows and number of columns of C
    clusters: int  # number of clusters that run on the device at the same time
    addend: DeviceView | None = None  # column-major matrix that `keep` multiplies; None if `keep` multiplies C
    addend_stride: int = 0  # elements from one addend of the batch to the next
    shift: float = 0.0  # multiple of the identity that is added to the result; only if the kernel mirrors a triangle

    def __hash__(self) -> int:
        return id(self)

    @property
    def batch_cluster_tile_count(self) -> int:
        """Total number of cluster tiles in the batch; the resident clusters divide these tiles among themselves."""
        return count_cluster_tiles(self.tiles, self.kernel.sizes, self.kernel.triangle is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.batch_cluster_tile_count, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameter_bytes(self) -> bytes:
        """The bytes of struct Product of gemm_wgmma.cuh, with zeros in place of tensor maps and pointers."""
        dest = self.maps[2]
        lines = (self.addend.right, self.addend_stride) if self.addend else (dest.leading, dest.layer)
        old_values = 0, *lines, *self.sides, self.keep
        product = (
            self.steps,
            *self.tiles,
            tile_rows_computed_together(self.kernel.sizes),
            self.batch_cluster_tile_count,
            self.adds,
            self.factor,
            self.shift / self.factor if self.shift else 0.0,
        )
        numbers = struct.pack("<3q2if6i2f", *old_values, *product)
        parameters = bytes(TENSOR_MAP_BYTES * len(self.maps)) + numbers
        return parameters + bytes(-len(parameters) % 64)


@lru_cache(maxsize=4096)
def wgmma_op(
    op: GemmOp, dtype: str, multiprocessors: int, sizes: WgmmaSizes | None = None
) -> WgmmaOp[WgmmaKernel] | None:
    """Describe a GEMM with aligned base addresses for the kernel; return None if the kernel cannot compute the GEMM.

    Without `sizes`, the tile sizes with the earliest predicted end are used.
    """
    if not _can_multiply(op, dtype) or not _can_write_result(op, dtype):
        return None
    m, n, k = op.n, op.m, op.k
    left, right, along = row_major_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # The copy engine (TMA) can add a tile to the old C, but cannot read a separate addend. If there is an addend, or if
    # only a triangle of C is written, the kernel itself reads and adds the old values.
    adds = beta == 1 and op.triangle is None and op.addend is None
    among = TRIANGLE_SIZES if op.triangle else WGMMA_SIZES
    s = sizes or best_wgmma_sizes(m, n, op.count, multiprocessors, among, op.triangle is not None)
    line = TILE_LINE_BYTES // DTYPES[dtype].itemsize

    def operand_tensor_map(x: GemmOperand, rows: int, cols: int, by_rows: bool, most: int) -> TensorMap:
        """Return the tensor map of a matrix; one copy moves at most `most` lines (rows or columns) of the matrix."""
        length, lines = (cols, rows) if by_rows else (rows, cols)
        piece, steps = BlockTerm(x.base, x.offset, rows, cols), BlockStrides(x.leading, x.stride)
        return TensorMap(piece, dtype, length, lines, op.count, *steps, (line, most), TILE_LINE_BYTES)

    maps = (
        operand_tensor_map(left, m, k, along[0] == "inner", s.m_s if along[0] == "inner" else line),
        operand_tensor_map(right, k, n, along[1] != "inner", s.n_s // s.cluster if along[1] == "inner" else line),
        operand_tensor_map(op.dest, m, n, True, 64),
    )
    tiles, clusters = cluster_tile_grid(m, n, s), max(multiprocessors // s.cluster, 1)
    kernel = WgmmaKernel(dtype, s, along, op.triangle_extent)
    keep = 0.0 if adds else beta.real / alpha.real
    addend = op.addend, op.addend_stride
    return WgmmaOp(kernel, maps, -(-k // line), tiles, op.count, adds, alpha.real, keep, (m, n), clusters, *addend)


def _can_multiply(op: GemmOp, dtype: str) -> bool:
    """Return True if the kernel can read these operands and multiply by this alpha and beta."""
    itemsize, (_, _, along) = DTYPES[dtype].itemsize, row_major_operands(op)
    alpha, beta = complex(op.alpha), complex(op.beta)
    # wgmma reads operands that are contiguous along the outer dimension only if their elements have 16 bits.
    readable = itemsize <= 2 or along == ("inner", "inner")
    aligned = all(_is_tma_aligned(x, itemsize) for x in op.operands_and_result)
    small_enough = not abs(beta) > MAX_BETA_RATIO * abs(alpha)
    return readable and aligned and not alpha.imag and not beta.imag and small_enough


def _can_write_result(op: GemmOp, dtype: str) -> bool:
    """Return True if the kernel can write this result and read its addend."""
    itemsize, added = DTYPES[dtype].itemsize, op.addend
    # The copy engine (TMA) writes 16 bytes at a time, and would write zeros behind a row that does not end at a
    # multiple of 16 bytes.
    if op.m * itemsize % VECTOR_BYTES:
        return False
    # The instruction that transposes a tile (for the mirror of a triangle) supports elements of 16 bits only.
    if op.triangle_extent == "lower" or (op.triangle_extent == "full" and itemsize > 2):
        return False
    # The kernel reads two elements of the addend at a time, so each pair of elements must be aligned.
    return added is None or not (added.right % 2 or op.addend_stride % 2 or added.offset % (2 * itemsize))


def _is_tma_aligned(x: GemmOperand, itemsize: int) -> bool:
    """Return True if the copy engine (TMA) can access the matrix, provided that the base address is aligned."""
    return all(step * itemsize % VECTOR_BYTES == 0 for step in (x.leading, x.stride)) and x.offset % VECTOR_BYTES == 0


# ---- cluster tiles, and the choice of tile sizes


def cluster_tile_grid(m: int, n: int, s: WgmmaSizes) -> tuple[int, int]:
    """Return the number of rows of cluster tiles and the number of columns of cluster tiles in C."""
    return -(-m // (s.m_s * s.cluster)), -(-n // s.n_s)


def count_cluster_tiles(tiles: tuple[int, int], s: WgmmaSizes, triangle: bool) -> int:
    """Return the number of cluster tiles (blocks that a cluster computes together) in C, or in the triangle of C."""
    return count_triangle_tiles(tiles, s.m_s * s.cluster, s.n_s) if triangle else prod(tiles)


def tile_rows_computed_together(s: WgmmaSizes) -> int:
    """Return how many rows of cluster tiles are computed together, so that the tiles share data in the L2 cache.

    The total height of these rows of tiles, in matrix rows, is a multiple of the tile width n_s.
    """
    return next(rows for rows in range(RASTER_ROWS, 0, -1) if rows * s.m_s * s.cluster % s.n_s == 0)


@lru_cache(maxsize=4096)
def best_wgmma_sizes(
    m: int,
    n: int,
    count: int,
    multiprocessors: int,
    among: tuple[WgmmaSizes, ...] = WGMMA_SIZES,
    triangle: bool = False,
) -> WgmmaSizes:
    """Return the tile sizes with the earliest predicted end of the last cluster."""

    def last_cluster_end_time(s: WgmmaSizes) -> float:
        units, slowdown = (
            count_cluster_tiles(cluster_tile_grid(m, n, s), s, triangle),
            1.0 if s.cluster > 1 else UNSHARED_SLOWDOWN,
        )
        return -(-units * count // max(multiprocessors // s.cluster, 1)) * (s.n_s + TILE_OVERHEAD_COLUMNS) * slowdown

    return min(among, key=last_cluster_end_time)


# ---- the launch for a chip


def wgmma_launch(op: WgmmaOp[WgmmaKernel]) -> Launch:
    """Return the launch of a WgmmaOp; the base addresses of A, B and C must be multiples of 16 bytes."""
    words = [i * TENSOR_MAP_WORDS for i in range(len(op.maps))]
    slots = tuple(AddressSlot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True))
    dest = op.addend or op.maps[2].piece
    slots += (AddressSlot(len(op.maps) * TENSOR_MAP_WORDS, dest.base, dest.offset),) if op.keep else ()
    s = op.kernel.sizes
    kernel = Kernel(
        wgmma_kernel_source, (op.kernel,), ENTRY_NAME, s.thread_count, op.kernel.shared_bytes, architecture="sm_90a"
    )
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    triangle = triangle_tiles(op.kernel.triangle)
    extra += f", {TRIANGLE_LABELS[triangle]}" if triangle else ""
    label = f"gemm_wgmma {op.kernel.element}: tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    return Launch("product", label, kernel, op.grid, op.parameter_bytes, slots, tuple(zip(words, op.maps, strict=True)))
