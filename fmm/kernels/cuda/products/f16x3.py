"""Compute a float32 product as three products of float16 planes: hi hi + (hi lo + lo hi) / 2048.

On Hopper GPUs, `f16x3_op` describes a GEMM for the kernel of gemm_f16x3.cuh, and `f16x3_launch` returns the launch. On
data-center Blackwell GPUs, cuBLAS multiplies the planes, and `vendor_f16x3_steps` returns the steps. The module
f16x3_mma.py is for other GPUs. The launches of f16_planes.py and f16_sums.py compute the planes.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import (
    FLAG,
    TENSOR_MAP_BYTES,
    TENSOR_MAP_WORDS,
    AddressSlot,
    Kernel,
    Launch,
    TensorMap,
    VendorCall,
)
from fmm.kernels.cuda.ops import DeviceView, GemmOp, GemmOperand
from fmm.kernels.cuda.products.f16_planes import (
    SPLIT_CLUSTER_BLOCKS,
    SPLIT_THREADS,
    ComponentwisePlanes,
    OperandPlanes,
    balanced_split_launches,
    missing_planes,
    operand_planes,
    plane_split_launch,
)
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK_LENGTH, PLANES_PER_OPERAND, VENDOR_PIECE_LENGTH
from fmm.kernels.cuda.products.tiling import (
    TRIANGLE_LABELS,
    ContiguousAxis,
    TriangleTiles,
    cpp_contiguous_axes,
    triangle_tiles,
)
from fmm.kernels.cuda.products.wgmma_tiles import (
    BARRIER_BYTES,
    TILE_LINE_BYTES,
    WgmmaSizes,
    best_wgmma_sizes,
    cluster_tile_grid,
    count_cluster_tiles,
    tile_rows_computed_together,
    wgmma_instructions,
)

PRODUCT3_POINTERS = 5  # number of pointers in struct Product3, after its tensor maps
# The last two entries of F16X3_SIZES use no clusters. Tile sizes without clusters are faster if C has so few rows that
# one of the two thread blocks in each cluster would have no work.
F16X3_SIZES = (WgmmaSizes(128, 128), WgmmaSizes(128, 64), WgmmaSizes(128, 128, 1), WgmmaSizes(128, 64, 1))


@dataclass(frozen=True)
class F16x3Kernel:
    """A compiled variant of the kernel that multiplies planes."""

    sizes: WgmmaSizes
    along: tuple[ContiguousAxis, ContiguousAxis]  # the dimensions along which A and B are contiguous
    # True if the kernel raises the flag for an entry of C that may exceed the componentwise bound
    checked: bool = False
    triangle: TriangleTiles | None = None

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory, for all stages of the pipeline.

        Each stage holds tiles of both planes of A and of B, and two barriers.
        """
        s = self.sizes
        return s.stages * (PLANES_PER_OPERAND * (s.m_s + s.n_s) * TILE_LINE_BYTES + 2 * BARRIER_BYTES)


@lru_cache(maxsize=64)
def f16x3_kernel_source(kernel: F16x3Kernel) -> str:
    """Return the CUDA source of a kernel that multiplies planes; its entry point is `ENTRY_NAME`."""
    s = kernel.sizes
    left, right = cpp_contiguous_axes(kernel.along)
    sizes = f"{s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    mirrors = str(kernel.triangle == "full").lower()
    body = (
        f"using Sizes = fmm::{f'LowerSizes3<{sizes}, {mirrors}>' if kernel.triangle else f'Sizes3<{sizes}>'};",
        "extern __shared__ __align__(1024) fmm::half memory[];",
        f"fmm::multiply_f16x3<Step, Sizes, {left}, {right}, {str(kernel.checked).lower()}>(p, memory);",
    )
    before = [*wgmma_instructions(DTYPES["float16"], s.n_s, planes=True), ""]
    return entry_source("fmm::Product3", body, "gemm_f16x3.cuh", (s.thread_count, 1), clusters=s.cluster, before=before)


@dataclass(frozen=True)
class F16x3Op:
    """One launch that computes C = `factor` * A B + `keep` * C for each product of a batch."""

    kernel: F16x3Kernel
    left: OperandPlanes
    right: OperandPlanes
    missing: tuple[OperandPlanes, ...]  # planes that must be computed before the product
    dest: GemmOperand
    m: int
    n: int
    k: int
    factor: float
    keep: float
    clusters: int  # number of clusters that run on the device at the same time
    spread: ComponentwisePlanes | None = (
        None  # planes with recorded magnitudes; None unless the product is componentwise
    )
    addend: DeviceView | None = None  # column-major matrix that `keep` multiplies; None if `keep` multiplies C

    def __hash__(self) -> int:
        return id(self)

    @property
    def count(self) -> int:
        return self.left.count

    @cached_property
    def tensor_maps(self) -> tuple[TensorMap, TensorMap]:
        s = self.kernel.sizes
        return self.left.tensor_map(s.m_s), self.right.tensor_map(s.n_s)

    @property
    def cluster_tile_counts(self) -> tuple[int, int]:
        """Number of rows and number of columns of cluster tiles in C; a cluster computes one tile at a time."""
        return cluster_tile_grid(self.m, self.n, self.kernel.sizes)

    @property
    def batch_cluster_tile_count(self) -> int:
        """Total number of cluster tiles in the batch; the resident clusters divide these tiles among themselves."""
        return (
            count_cluster_tiles(self.cluster_tile_counts, self.kernel.sizes, self.kernel.triangle is not None)
            * self.count
        )

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.batch_cluster_tile_count, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameter_bytes(self) -> bytes:
        """The bytes of struct Product3 of gemm_f16x3.cuh, with zeros in place of tensor maps and addresses."""
        maps = bytes(TENSOR_MAP_BYTES * len(self.tensor_maps) + PRODUCT3_POINTERS * 8)
        lines = self.dest.leading, self.dest.stride, self.addend.right if self.addend else self.dest.leading
        counts = (
            self.m,
            self.n,
            -(-self.k // PLANE_CHUNK_LENGTH),
            *self.cluster_tile_counts,
            tile_rows_computed_together(self.kernel.sizes),
            self.batch_cluster_tile_count,
        )
        numbers = struct.pack("<3q7i2f", *lines, *counts, self.factor, self.keep)
        return maps + numbers + bytes(-len(maps + numbers) % 64)


def f16x3_op(op: GemmOp, multiprocessors: int) -> F16x3Op | None:
    """Describe a GEMM as a product of planes.

    Return None if alpha or beta has an imaginary part, or if a batch has a separate addend.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag or (op.addend is not None and op.count > 1):
        return None
    m, n, k = op.n, op.m, op.k
    a, b = operand_planes(op)
    spread = ComponentwisePlanes(a, b, b.end_offset) if op.checked else None
    s = best_wgmma_sizes(m, n, op.count, multiprocessors, F16X3_SIZES, op.triangle is not None)
    clusters = max(multiprocessors // s.cluster, 1)
    kernel = F16x3Kernel(s, (a.along, b.along), op.checked, triangle_tiles(op.triangle_extent))
    missing = tuple(missing_planes(op, (a, b)))
    return F16x3Op(kernel, a, b, missing, op.dest, m, n, k, alpha.real, beta.real, clusters, spread, op.addend)


def missing_plane_launches(
    op: F16x3Op, multiprocessors: int, alignment: Mapping[str, int], cluster: int = SPLIT_CLUSTER_BLOCKS
) -> tuple[Launch, ...]:
    """Return the launches that compute the planes that are not stored yet; a cluster has `cluster` thread blocks."""
    if op.spread is not None:
        return balanced_split_launches(op.spread, multiprocessors, alignment, cluster)
    return (plane_split_launch(op.missing, alignment, cluster=cluster),) if op.missing else ()


def f16x3_launch(op: F16x3Op, flagged: bool) -> Launch:
    """Return the launch that multiplies the planes.

    If `flagged` is True, the kernel raises the flag for an inf or NaN in C.
    """
    words = [i * TENSOR_MAP_WORDS for i in range(len(op.tensor_maps))]
    after = len(op.tensor_maps) * TENSOR_MAP_WORDS
    slots = [AddressSlot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.tensor_maps, strict=True)]
    slots += [
        AddressSlot(after, op.dest.base, op.dest.offset),
        AddressSlot(after + 1, op.left.base, op.left.exponents_offset),
    ]
    slots += [
        AddressSlot(after + 2, op.right.base, op.right.exponents_offset),
        *([AddressSlot(after + 3, FLAG)] if flagged else []),
    ]
    addend = op.addend or op.dest
    slots += [AddressSlot(after + 4, addend.base, addend.offset)] if op.keep else []
    s = op.kernel.sizes
    kernel = Kernel(
        f16x3_kernel_source, (op.kernel,), ENTRY_NAME, s.thread_count, op.kernel.shared_bytes, architecture="sm_90a"
    )
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    extra += f", {TRIANGLE_LABELS[op.kernel.triangle]}" if op.kernel.triangle else ""
    label = f"gemm_f16x3: three float16 products, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    maps = tuple(zip(words, op.tensor_maps, strict=True))
    return Launch("product", label, kernel, op.grid, op.parameter_bytes, tuple(slots), maps)


# ---- cuBLAS multiplies the planes
#
# Tensor cores truncate the numbers that they add to their accumulators, so the error of a long sum grows. To limit the
# error of a sum, the inner dimension is divided into ranges. For each range, one call of cuBLAS computes the product hi
# hi, and adds the product to the float32 numbers of C in memory. The products hi lo and lo hi are so small that
# truncation does not matter: one call computes the complete hi lo, and one call the complete lo hi. At the end, a
# kernel of fmm undoes the scaling of C.

LO_PLANE_SCALE = 2048.0  # plane lo is this factor times the remainder x - hi
FLOAT16_BYTES = 2


class PlaneProduct(NamedTuple):
    """A product over a range of the inner dimension: C = factor * (plane of A) (plane of B) + keep * C."""

    start: int  # first position of the range along the inner dimension
    length: int  # number of positions in the range
    lo_of_a: bool = False  # True if the product uses A's plane lo, False if it uses A's plane hi
    lo_of_b: bool = False
    factor: float = 1.0
    keep: float = 1.0


def vendor_f16x3_steps(
    op: GemmOp, multiprocessors: int, alignment: Mapping[str, int], flagged: bool
) -> tuple[Launch | VendorCall, ...] | str:
    """Return the launches and calls that split the operands, multiply planes by cuBLAS and undo the scaling.

    If cuBLAS cannot compute the product from planes, return the reason as a text.
    """
    if op.beta or complex(op.alpha).imag or op.checked:
        return "the vendor multiplies its planes on this chip, and neither adds to C nor checks every entry"
    a, b = operand_planes(op)
    missing = missing_planes(op, (a, b))
    splits = (plane_split_launch(missing, alignment, "separate", cluster=1),) if missing else ()
    calls = (_vendor_plane_product(op, a, b, product) for product in _plane_products(op.k))
    return *splits, *calls, _undo_scaling_launch(op, a, b, multiprocessors, flagged)


def _plane_products(k: int) -> list[PlaneProduct]:
    """Return the products hi lo and lo hi, then one product hi hi for each VENDOR_PIECE_LENGTH inner positions."""
    first = PlaneProduct(0, k, lo_of_b=True, factor=1 / LO_PLANE_SCALE, keep=0.0)
    second = PlaneProduct(0, k, lo_of_a=True, factor=1 / LO_PLANE_SCALE)
    pieces = range(0, k, VENDOR_PIECE_LENGTH)
    return [first, second, *(PlaneProduct(start, min(VENDOR_PIECE_LENGTH, k - start)) for start in pieces)]


def _vendor_plane_product(op: GemmOp, a: OperandPlanes, b: OperandPlanes, x: PlaneProduct) -> VendorCall:
    """Return cuBLAS's call for one product of planes. The left operand of the call is B of the row-major product.

    The purpose of the call is "sums" and not "product": rows and columns of its result are still scaled.
    """
    left, right = _plane_operand(b, op.left, x.start, x.lo_of_b), _plane_operand(a, op.right, x.start, x.lo_of_a)
    whole = replace(op.as_vendor_gemm, dtype="float16", dest_dtype="float32")
    piece = replace(whole, k=x.length, left=left, right=right, alpha=x.factor, beta=x.keep)
    return VendorCall(piece, f"cuBLAS, float16 products added up in float32, {x.length} of the inner dimension", "sums")


def _plane_operand(x: OperandPlanes, source: GemmOperand, start: int, lo: bool) -> GemmOperand:
    """Return plane hi or lo as an operand of the cuBLAS call, starting at position `start` of the inner dimension."""
    numbers = x.lines * x.line_pitch
    first = (x.count * numbers if lo else 0) + (start if x.along == "inner" else start * x.line_pitch)
    return GemmOperand(x.base, x.offset + FLOAT16_BYTES * first, x.line_pitch, source.transposed, numbers)


def _undo_scaling_launch(op: GemmOp, a: OperandPlanes, b: OperandPlanes, multiprocessors: int, flagged: bool) -> Launch:
    """Return the launch that undoes the scaling of C's rows and columns in place, by the kernel of f16_unscale.cuh."""
    m, n, c = op.n, op.m, op.dest
    counts = m, n, op.count
    parameters = struct.pack("<7q3if", *[0] * 5, c.leading, c.stride, *counts, complex(op.alpha).real)
    slots = [AddressSlot(0, c.base, c.offset), AddressSlot(1, c.base, c.offset)]
    slots += [
        AddressSlot(2, a.base, a.exponents_offset),
        AddressSlot(3, b.base, b.exponents_offset),
        *([AddressSlot(4, FLAG)] if flagged else []),
    ]
    grid = min(m * op.count, 8 * multiprocessors), 1, 1
    kernel = Kernel(undo_scaling_kernel_source, (), ENTRY_NAME, SPLIT_THREADS)
    label = "f16_unscale: undoes the scaling of rows and columns"
    return Launch("product", label, kernel, grid, parameters, tuple(slots))


@lru_cache(maxsize=1)
def undo_scaling_kernel_source() -> str:
    """Return the CUDA source of the kernel that undoes the scaling; its entry point is `ENTRY_NAME`."""
    return entry_source("fmm::planes::Unscaled", "fmm::planes::unscale(p);", "f16_unscale.cuh", (SPLIT_THREADS,))
