"""A float32 product as three products of float16 planes, hi hi + (hi lo + lo hi) / 2048, by gemm_f16x3.cuh or BLAS.

`f16x3_op` describes a GEMM by our own kernel on Hopper's warpgroups, and `f16x3_launch` its launch. On other chips,
`vendor_f16x3_steps` has the vendor multiply the planes. The planes come from f16_planes.py or f16_sums.py.
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
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, MatrixView
from fmm.kernels.cuda.products.f16_planes import (
    SPLIT_THREADS,
    ExponentSpread,
    OperandPlanes,
    checked_split_launches,
    missing_planes,
    operand_planes,
    plane_split_launch,
)
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK, PLANES_PER_OPERAND, VENDOR_PIECE
from fmm.kernels.cuda.products.tiling import TRIANGLE_LABELS, Along, TriangleTiles, along_cpp, triangle_tiles
from fmm.kernels.cuda.products.wgmma_tiles import (
    BARRIER_BYTES,
    LINE_BYTES,
    WgmmaSizes,
    best_wgmma_sizes,
    cluster_tiles,
    count_cluster_tiles,
    raster_rows,
    wgmma_instructions,
)

POINTER_COUNT = 5  # number of pointers of struct Product3, after its maps
# The sizes without clusters are for a C of so few rows that the lower thread block of a cluster would have no work.
F16X3_SIZES = (WgmmaSizes(128, 128), WgmmaSizes(128, 64), WgmmaSizes(128, 128, 1), WgmmaSizes(128, 64, 1))


@dataclass(frozen=True)
class F16x3Kernel:
    """A compiled variant of the product of planes."""

    sizes: WgmmaSizes
    along: tuple[Along, Along]  # the dimensions along which A and B are contiguous
    checked: bool = False  # True if the flag is raised where an entry may be inaccurate relative to its own size
    triangle: TriangleTiles | None = None

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of hi and lo of A and B, barriers."""
        s = self.sizes
        return s.stages * (PLANES_PER_OPERAND * (s.m_s + s.n_s) * LINE_BYTES + 2 * BARRIER_BYTES)


@lru_cache(maxsize=64)
def f16x3_source(kernel: F16x3Kernel) -> str:
    """Return the whole CUDA source of a product, entry point `ENTRY_NAME`."""
    s = kernel.sizes
    left, right = along_cpp(kernel.along)
    sizes = f"{s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    mirrors = str(kernel.triangle == "full").lower()
    body = (
        f"using Sizes = fmm::{f'LowerSizes3<{sizes}, {mirrors}>' if kernel.triangle else f'Sizes3<{sizes}>'};",
        "extern __shared__ __align__(1024) fmm::half memory[];",
        f"fmm::multiply_f16x3<Step, Sizes, {left}, {right}, {str(kernel.checked).lower()}>(p, memory);",
    )
    before = [*wgmma_instructions(DTYPES["float16"], s.n_s, planes=True), ""]
    return entry_source("fmm::Product3", body, "gemm_f16x3.cuh", (s.threads, 1), clusters=s.cluster, before=before)


@dataclass(frozen=True)
class F16x3Op:
    """One launch: C = factor A B + keep C for each product of a batch."""

    kernel: F16x3Kernel
    left: OperandPlanes
    right: OperandPlanes
    missing: tuple[OperandPlanes, ...]  # planes that must be written before the product
    dest: GemmOperand
    m: int
    n: int
    k: int
    factor: float
    keep: float
    clusters: int  # number of clusters that are resident on the device at a time
    spread: ExponentSpread | None = None  # the spread of exponents, for a componentwise product
    addend: MatrixView | None = None  # the matrix that `keep` multiplies instead of C, column-major as in the BLAS call

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
        """Rows and columns of clusters' tiles in C."""
        return cluster_tiles(self.m, self.n, self.kernel.sizes)

    @property
    def units(self) -> int:
        """Clusters' tiles in all; the resident clusters take them one after the other."""
        return count_cluster_tiles(self.tiles, self.kernel.sizes, self.kernel.triangle is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product3 of gemm_f16x3.cuh; maps and addresses are zero."""
        maps = bytes(TENSOR_MAP_BYTES * len(self.maps) + POINTER_COUNT * 8)
        lines = self.dest.leading, self.dest.stride, self.addend.right if self.addend else self.dest.leading
        counts = self.m, self.n, -(-self.k // PLANE_CHUNK), *self.tiles, raster_rows(self.kernel.sizes), self.units
        numbers = struct.pack("<3q7i2f", *lines, *counts, self.factor, self.keep)
        return maps + numbers + bytes(-len(maps + numbers) % 64)


def f16x3_op(op: GemmOp, multiprocessors: int) -> F16x3Op | None:
    """Return the product of planes in the leaf's workspace, or prepared behind the operands.

    The result is None if alpha or beta is complex, or if a batch has a separate addend.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag or (op.addend is not None and op.count > 1):
        return None
    m, n, k = op.n, op.m, op.k
    a, b = operand_planes(op)
    spread = ExponentSpread(a, b, b.end_offset) if op.checked else None
    s = best_wgmma_sizes(m, n, op.count, multiprocessors, F16X3_SIZES, op.triangle is not None)
    clusters = max(multiprocessors // s.cluster, 1)
    kernel = F16x3Kernel(s, (a.along, b.along), op.checked, triangle_tiles(op.triangle_extent))
    missing = tuple(missing_planes(op, (a, b)))
    return F16x3Op(kernel, a, b, missing, op.dest, m, n, k, alpha.real, beta.real, clusters, spread, op.addend)


def plane_launches(op: F16x3Op, multiprocessors: int, alignment: Mapping[str, int]) -> tuple[Launch, ...]:
    """Return the launches that make the missing planes."""
    if op.spread is not None:
        return checked_split_launches(op.spread, multiprocessors, alignment)
    return (plane_split_launch(op.missing, alignment),) if op.missing else ()


def f16x3_launch(op: F16x3Op, flagged: bool) -> Launch:
    """Return the launch that multiplies the planes; if `flagged`, it raises the flag for an inf or NaN in C."""
    words = [i * TENSOR_MAP_WORDS for i in range(len(op.maps))]
    after = len(op.maps) * TENSOR_MAP_WORDS
    slots = [AddressSlot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True)]
    slots += [AddressSlot(after, op.dest.base, op.dest.offset), AddressSlot(after + 1, op.left.base, op.left.exponents)]
    slots += [
        AddressSlot(after + 2, op.right.base, op.right.exponents),
        *([AddressSlot(after + 3, FLAG)] if flagged else []),
    ]
    addend = op.addend or op.dest
    slots += [AddressSlot(after + 4, addend.base, addend.offset)] if op.keep else []
    s = op.kernel.sizes
    kernel = Kernel(f16x3_source, (op.kernel,), ENTRY_NAME, s.threads, op.kernel.shared, architecture="sm_90a")
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    extra += f", {TRIANGLE_LABELS[op.kernel.triangle]}" if op.kernel.triangle else ""
    label = f"gemm_f16x3: three float16 products, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    maps = tuple(zip(words, op.maps, strict=True))
    return Launch("product", label, kernel, op.grid, op.parameters, tuple(slots), maps)


# ---- without warpgroups: the vendor multiplies the planes
#
# Tensor cores truncate what they add to their accumulators, so long sums drift. The vendor therefore multiplies hi by
# hi in pieces of the inner dimension, and adds each piece to float32 numbers in memory. The other two products are so
# small that their drift does not matter. All products accumulate in C, and a last kernel undoes the scaling.

LO_SCALE = 2048.0  # lo is the remainder of hi times this factor
FLOAT16_BYTES = 2


class PlaneProduct(NamedTuple):
    """A product of planes over a piece of the inner dimension: C = factor (plane of A) (plane of B) + keep C."""

    start: int  # first position along the inner dimension
    length: int  # number of positions
    lo_of_a: bool = False  # True for the plane lo of A, False for hi
    lo_of_b: bool = False
    factor: float = 1.0
    keep: float = 1.0


def vendor_f16x3_steps(
    op: GemmOp, multiprocessors: int, alignment: Mapping[str, int], flagged: bool
) -> tuple[Launch | VendorCall, ...] | str:
    """Return the split, the vendor's products of planes, and the unscaling; or the reason why this is impossible."""
    if op.beta or complex(op.alpha).imag or op.checked:
        return "only the tensor cores of compute capability 9.0 add to C, or check every entry"
    a, b = operand_planes(op)
    missing = missing_planes(op, (a, b))
    splits = (plane_split_launch(missing, alignment, "separate"),) if missing else ()
    calls = (_vendor_call(op, a, b, product) for product in _plane_products(op.k))
    return *splits, *calls, _unscale_launch(op, a, b, multiprocessors, flagged)


def _plane_products(k: int) -> list[PlaneProduct]:
    """Return both corrections over the whole inner dimension, then hi times hi piece by piece."""
    first = PlaneProduct(0, k, lo_of_b=True, factor=1 / LO_SCALE, keep=0.0)
    second = PlaneProduct(0, k, lo_of_a=True, factor=1 / LO_SCALE)
    pieces = range(0, k, VENDOR_PIECE)
    return [first, second, *(PlaneProduct(start, min(VENDOR_PIECE, k - start)) for start in pieces)]


def _vendor_call(op: GemmOp, a: OperandPlanes, b: OperandPlanes, x: PlaneProduct) -> VendorCall:
    """Return the call of one product of planes; the kernel's B is the left operand of the BLAS call.

    The call counts among the launches of sums, because the last launch turns its result into C.
    """
    left, right = _plane_factor(b, op.left, x.start, x.lo_of_b), _plane_factor(a, op.right, x.start, x.lo_of_a)
    whole = replace(op.as_vendor_gemm, dtype="float16", dest_dtype="float32")
    piece = replace(whole, k=x.length, left=left, right=right, alpha=x.factor, beta=x.keep)
    return VendorCall(piece, f"cuBLAS, float16 products added up in float32, {x.length} of the inner dimension", "sums")


def _plane_factor(x: OperandPlanes, source: GemmOperand, start: int, lo: bool) -> GemmOperand:
    """Return plane hi or lo as an operand of the BLAS call, from position `start` of the inner dimension on."""
    numbers = x.lines * x.pitch
    first = (x.count * numbers if lo else 0) + (start if x.along == "inner" else start * x.pitch)
    return GemmOperand(x.base, x.offset + FLOAT16_BYTES * first, x.pitch, source.transposed, numbers)


def _unscale_launch(op: GemmOp, a: OperandPlanes, b: OperandPlanes, multiprocessors: int, flagged: bool) -> Launch:
    """Return the launch that undoes the scaling of rows and columns, in place in C (f16_unscale.cuh)."""
    m, n, c = op.n, op.m, op.dest
    counts = m, n, op.count
    parameters = struct.pack("<7q3if", *[0] * 5, c.leading, c.stride, *counts, complex(op.alpha).real)
    slots = [AddressSlot(0, c.base, c.offset), AddressSlot(1, c.base, c.offset)]
    slots += [
        AddressSlot(2, a.base, a.exponents),
        AddressSlot(3, b.base, b.exponents),
        *([AddressSlot(4, FLAG)] if flagged else []),
    ]
    grid = min(m * op.count, 8 * multiprocessors), 1, 1
    kernel = Kernel(unscale_source, (), ENTRY_NAME, SPLIT_THREADS)
    label = "f16_unscale: undoes the scaling of rows and columns"
    return Launch("product", label, kernel, grid, parameters, tuple(slots))


@lru_cache(maxsize=1)
def unscale_source() -> str:
    """Return the whole CUDA source of the unscaling, entry point `ENTRY_NAME`."""
    return entry_source("fmm::planes::Unscaled", "fmm::planes::unscale(p);", "f16_unscale.cuh", (SPLIT_THREADS,))
