"""A float32 product by three of float16: where its planes lie, and the launches that split and multiply."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import FLAG, Launch, Slot
from fmm.kernels.cuda.products.float16.f16_planes import CHUNK
from fmm.kernels.cuda.products.float16.f16_split import Planes, operand_planes, planes_to_make, split_launch
from fmm.kernels.cuda.products.float16.f16_spread import Spread, spread_launches
from fmm.kernels.cuda.products.float16.f16x3_source import F16x3Kernel, f16x3_source
from fmm.kernels.cuda.products.tiles.tiled import HALVES
from fmm.kernels.cuda.products.tiles.tiled_source import half_written
from fmm.kernels.cuda.products.tiles.wgmma import group_of, sizes_for, tiles_of, units_of
from fmm.kernels.cuda.products.tiles.wgmma_source import WgmmaSizes
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Factor, View

POINTERS = 5  # of struct Product3, behind its maps
# (Those without clusters are for C with so few rows that the lower thread block of a cluster would have none.)
SIZES = (WgmmaSizes(128, 128), WgmmaSizes(128, 64), WgmmaSizes(128, 128, 1), WgmmaSizes(128, 64, 1))


@dataclass(frozen=True)
class F16x3Op:
    """C = factor A B + keep C, layer by layer."""

    kernel: F16x3Kernel
    left: Planes
    right: Planes
    to_make: tuple[Planes, ...]  # those planes that do not stand ready
    dest: Factor
    m: int
    n: int
    k: int
    factor: float
    keep: float
    clusters: int  # that the device has room for
    spread: Spread | None = None  # where every entry is to be certain
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
        return tiles_of(self.m, self.n, self.kernel.sizes)

    @property
    def units(self) -> int:
        return units_of(self.tiles, self.kernel.sizes, self.kernel.half is not None) * self.count

    @property
    def grid(self) -> tuple[int, int, int]:
        return min(self.units, self.clusters) * self.kernel.sizes.cluster, 1, 1

    @cached_property
    def parameters(self) -> bytes:
        """struct Product3 of gemm_f16x3.cuh, maps and addresses zero."""
        maps = bytes(MAP_BYTES * len(self.maps) + POINTERS * 8)
        lines = self.dest.leading, self.dest.stride, self.added.right if self.added else self.dest.leading
        counts = self.m, self.n, -(-self.k // CHUNK), *self.tiles, group_of(self.kernel.sizes), self.units
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
    spread = Spread(a, b, b.end) if op.checked else None
    s = sizes_for(m, n, op.count, multiprocessors, SIZES, op.half is not None)
    clusters = max(multiprocessors // s.cluster, 1)
    kernel = F16x3Kernel(s, (a.along, b.along), op.checked, half_written(op.extent))
    to_make = tuple(planes_to_make(op, (a, b)))
    return F16x3Op(kernel, a, b, to_make, op.dest, m, n, k, alpha.real, beta.real, clusters, spread, op.added)


# ---- the launches on a chip


def plane_launches(op: F16x3Op, multiprocessors: int, divides: Mapping[str, int]) -> tuple[Launch, ...]:
    """The launches that make the planes which do not stand ready."""
    if op.spread is not None:
        return spread_launches(op.spread, multiprocessors, divides)
    return (split_launch(op.to_make, divides),) if op.to_make else ()


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
    extra += f", {HALVES[op.kernel.half]}" if op.kernel.half else ""
    label = f"gemm_f16x3: three float16 products, tiles of {s.m_s} x {s.n_s}, clusters of {s.cluster}{extra}"
    maps = tuple(zip(words, op.maps, strict=True))
    return Launch("product", label, kernel, op.grid, op.parameters, tuple(slots), maps)
