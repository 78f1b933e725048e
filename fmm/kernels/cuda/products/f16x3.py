"""f16x3."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.launch_list import FLAG, MAP_BYTES, MAP_WORDS, Kernel, Launch, Slot, TensorMap, VendorCall
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, View
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
    wgmma_instruction,
)


@dataclass(frozen=True)
class F16x3Kernel:
    """The kernel of a product of planes."""

    sizes: WgmmaSizes
    along: tuple[Along, Along]  # the dimension along which A, and B, are contiguous
    checked: bool = False  # does it raise the flag where an entry may be wrong beside its own size?
    half: TriangleTiles | None = None

    @property
    def shared(self) -> int:
        """Bytes of shared memory: tiles of hi and lo of A and B, gates."""
        s = self.sizes
        return s.stages * (PLANES_PER_OPERAND * (s.m_s + s.n_s) * LINE_BYTES + 2 * BARRIER_BYTES)


@lru_cache(maxsize=64)
def f16x3_source(kernel: F16x3Kernel) -> str:
    """The whole CUDA source of a product, entry point `ENTRY`."""
    s = kernel.sizes
    left, right = along_cpp(kernel.along)
    body = (
        f"using Sizes = fmm::{_sizes_type(kernel)};",
        "extern __shared__ __align__(1024) fmm::half memory[];",
        f"fmm::multiply_f16x3<Step, Sizes, {left}, {right}, {str(kernel.checked).lower()}>(p, memory);",
    )
    before = [*wgmma_instruction(DTYPES["float16"], s.n_s), ""]
    return entry_source("fmm::Product3", body, "gemm_f16x3.cuh", (s.threads, 1), clusters=s.cluster, before=before)


def _sizes_type(kernel: F16x3Kernel) -> str:
    s = kernel.sizes
    numbers = f"{s.m_s}, {s.n_s}, {s.cluster}, {s.stages}"
    return f"LowerSizes3<{numbers}, {str(kernel.half == 'full').lower()}>" if kernel.half else f"Sizes3<{numbers}>"


POINTERS = 5  # of struct Product3, behind its maps
# (Those without clusters are for C with so few rows that the lower thread block of a cluster would have none.)
F16X3_SIZES = (WgmmaSizes(128, 128), WgmmaSizes(128, 64), WgmmaSizes(128, 128, 1), WgmmaSizes(128, 64, 1))


@dataclass(frozen=True)
class F16x3Op:
    """C = factor A B + keep C, layer by layer."""

    kernel: F16x3Kernel
    left: OperandPlanes
    right: OperandPlanes
    to_make: tuple[OperandPlanes, ...]  # those planes that do not stand ready
    dest: GemmOperand
    m: int
    n: int
    k: int
    factor: float
    keep: float
    clusters: int  # that the device has room for
    spread: ExponentSpread | None = None  # where every entry is to be certain
    added: View | None = None  # what `keep` is a factor of, if that is not C; it lies as BLAS's C does

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
        return cluster_tiles(self.m, self.n, self.kernel.sizes)

    @property
    def units(self) -> int:
        return count_cluster_tiles(self.tiles, self.kernel.sizes, self.kernel.half is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product3 of gemm_f16x3.cuh, maps and addresses zero."""
        maps = bytes(MAP_BYTES * len(self.maps) + POINTERS * 8)
        lines = self.dest.leading, self.dest.stride, self.added.right if self.added else self.dest.leading
        counts = self.m, self.n, -(-self.k // PLANE_CHUNK), *self.tiles, raster_rows(self.kernel.sizes), self.units
        numbers = struct.pack("<3q7i2f", *lines, *counts, self.factor, self.keep)
        return maps + numbers + bytes(-len(maps + numbers) % 64)


def f16x3_op(op: GemmOp, multiprocessors: int) -> F16x3Op | None:
    """The product of planes that stand in the leaf's scratch, or are kept behind the operands.

    None where alpha or beta is complex, or what lies elsewhere would be added to a batch.
    """
    alpha, beta = complex(op.alpha), complex(op.beta)
    if alpha.imag or beta.imag or (op.added is not None and op.count > 1):
        return None
    m, n, k = op.n, op.m, op.k
    a, b = operand_planes(op)
    spread = ExponentSpread(a, b, b.end) if op.checked else None
    s = best_wgmma_sizes(m, n, op.count, multiprocessors, F16X3_SIZES, op.half is not None)
    clusters = max(multiprocessors // s.cluster, 1)
    kernel = F16x3Kernel(s, (a.along, b.along), op.checked, triangle_tiles(op.extent))
    to_make = tuple(missing_planes(op, (a, b)))
    return F16x3Op(kernel, a, b, to_make, op.dest, m, n, k, alpha.real, beta.real, clusters, spread, op.added)


# ---- the launches on a chip


def plane_launches(op: F16x3Op, multiprocessors: int, divides: Mapping[str, int]) -> tuple[Launch, ...]:
    """The launches that make the planes which do not stand ready."""
    if op.spread is not None:
        return checked_split_launches(op.spread, multiprocessors, divides)
    return (plane_split_launch(op.to_make, divides),) if op.to_make else ()


def f16x3_launch(op: F16x3Op, flagged: bool) -> Launch:
    """The launch that multiplies the planes."""
    words = [i * MAP_WORDS for i in range(len(op.maps))]
    after = len(op.maps) * MAP_WORDS
    slots = [Slot(word, x.piece.base, x.piece.offset) for word, x in zip(words, op.maps, strict=True)]
    slots += [Slot(after, op.dest.base, op.dest.offset), Slot(after + 1, op.left.base, op.left.exponents)]
    slots += [Slot(after + 2, op.right.base, op.right.exponents), *([Slot(after + 3, FLAG)] if flagged else [])]
    addend = op.added or op.dest
    slots += [Slot(after + 4, addend.base, addend.offset)] if op.keep else []
    s = op.kernel.sizes
    kernel = Kernel(f16x3_source, (op.kernel,), ENTRY, s.threads, op.kernel.shared, architecture="sm_90a")
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    extra += f", {TRIANGLE_LABELS[op.kernel.half]}" if op.kernel.half else ""
    label = f"gemm_f16x3: three float16 products, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    maps = tuple(zip(words, op.maps, strict=True))
    return Launch("product", label, kernel, op.grid, op.parameters, tuple(slots), maps)


LO_SCALE = 2048.0  # lo is so many times what hi leaves of a number
FLOAT16_BYTES = 2


class PlaneProduct(NamedTuple):
    """A product of planes over a piece of the inner dimension: C = factor (plane of A) (plane of B) + keep C."""

    start: int  # along the inner dimension
    length: int
    lo_of_a: bool = False  # else it is of hi of A
    lo_of_b: bool = False
    factor: float = 1.0
    keep: float = 1.0


def vendor_f16x3_steps(
    op: GemmOp, multiprocessors: int, divides: Mapping[str, int], flagged: bool
) -> tuple[Launch | VendorCall, ...] | str:
    """Splitting, products of planes, and scaling; or the reason why the vendor's products cannot do it."""
    if op.beta or complex(op.alpha).imag or op.checked:
        return "only the tensor cores of compute capability 9.0 add to C, or check every entry"
    a, b = operand_planes(op)
    to_make = missing_planes(op, (a, b))
    splits = (plane_split_launch(to_make, divides, "apart"),) if to_make else ()
    calls = (_vendor_call(op, a, b, product) for product in _plane_products(op.k))
    return *splits, *calls, _unscaling(op, a, b, multiprocessors, flagged)


def _plane_products(k: int) -> list[PlaneProduct]:
    """Both corrections over all of the inner dimension, then hi by hi piece by piece."""
    first = PlaneProduct(0, k, lo_of_b=True, factor=1 / LO_SCALE, keep=0.0)
    second = PlaneProduct(0, k, lo_of_a=True, factor=1 / LO_SCALE)
    return [first, second, *(PlaneProduct(start, min(VENDOR_PIECE, k - start)) for start in range(0, k, VENDOR_PIECE))]


def _vendor_call(op: GemmOp, a: OperandPlanes, b: OperandPlanes, x: PlaneProduct) -> VendorCall:
    """The call of one product of planes. In BLAS's terms the kernel's second operand is the left one.

    What it writes is not C yet, which the last launch makes of it.
    """
    left, right = _factor(b, op.left, x.start, x.lo_of_b), _factor(a, op.right, x.start, x.lo_of_a)
    whole = replace(op.as_vendor_gemm, dtype="float16", dest_dtype="float32")
    piece = replace(whole, k=x.length, left=left, right=right, alpha=x.factor, beta=x.keep)
    return VendorCall(piece, f"cuBLAS, float16 products added up in float32, {x.length} of the inner dimension", "sums")


def _factor(x: OperandPlanes, source: GemmOperand, start: int, lo: bool) -> GemmOperand:
    """A plane, hi or lo, from a place of the inner dimension on, as BLAS sees it: its lines lie as the operand's."""
    numbers = x.lines * x.room
    first = (x.count * numbers if lo else 0) + (start if x.along == "inner" else start * x.room)
    return GemmOperand(x.base, x.offset + FLOAT16_BYTES * first, x.room, source.transposed, numbers)


# ---- the end


def _unscaling(op: GemmOp, a: OperandPlanes, b: OperandPlanes, multiprocessors: int, flagged: bool) -> Launch:
    """struct Unscaled of f16_unscale.cuh, addresses zero. C is read and written in place."""
    m, n, c = op.n, op.m, op.dest
    counts = m, n, op.count
    parameters = struct.pack("<7q3if", *[0] * 5, c.leading, c.stride, *counts, complex(op.alpha).real)
    slots = [Slot(0, c.base, c.offset), Slot(1, c.base, c.offset)]
    slots += [Slot(2, a.base, a.exponents), Slot(3, b.base, b.exponents), *([Slot(4, FLAG)] if flagged else [])]
    grid = min(m * op.count, 8 * multiprocessors), 1, 1
    kernel = Kernel(unscale_source, (), ENTRY, SPLIT_THREADS)
    label = "f16_unscale: takes back by which rows and columns were scaled"
    return Launch("product", label, kernel, grid, parameters, tuple(slots))


@lru_cache(maxsize=1)
def unscale_source() -> str:
    """The whole CUDA source, entry point `ENTRY`."""
    return entry_source("fmm::planes::Unscaled", "fmm::planes::unscale(p);", "f16_unscale.cuh", (SPLIT_THREADS,))
