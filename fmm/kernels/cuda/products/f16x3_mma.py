"""Compute a float32 product as three products of float16 planes on GPUs without Hopper's instructions.

The kernel is in gemm_f16x3_mma.cuh, for compute capability 8.0 and newer. The planes and the result are the same as in
f16x3.py. The kernels that split operands use no clusters.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, FLAG, AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.f16_planes import (
    ComponentwisePlanes,
    OperandPlanes,
    balanced_split_launches,
    missing_planes,
    operand_planes,
    plane_split_launch,
)
from fmm.kernels.cuda.products.mma_tiles import (
    LINES_STRUCT_BYTES,
    MmaSizes,
    best_mma_sizes,
    count_tiles,
    pack_lines_struct,
    tile_counts,
    tile_rows_computed_together,
)
from fmm.kernels.cuda.products.tiling import (
    TRIANGLE_LABELS,
    ContiguousAxis,
    TriangleTiles,
    cpp_contiguous_axes,
    triangle_tiles,
)

PLANE_DEPTH = 32  # positions of the inner dimension in a tile, as in mma_tiles.cuh
NO_CLUSTERS = 1  # number of thread blocks in a cluster of the kernels that split; 1: no clusters
# The slowdown 1.16 of narrow tiles relative to wide tiles was measured on an H100, for a C of 4096 rows and columns.
F16X3_MMA_SIZES = (MmaSizes(128, 128, 64, 32), MmaSizes(128, 64, 64, 32, blocks=2, slowdown=1.16))


@dataclass(frozen=True)
class F16x3MmaKernel:
    """A compiled variant of the kernel that multiplies planes."""

    sizes: MmaSizes
    along: tuple[ContiguousAxis, ContiguousAxis]  # the dimensions along which A and B are contiguous
    # True if the kernel raises the flag for an entry of C that may exceed the componentwise bound
    checked: bool = False
    triangle: TriangleTiles | None = None


@lru_cache(maxsize=64)
def f16x3_mma_kernel_source(kernel: F16x3MmaKernel) -> str:
    """Return the CUDA source of a kernel that multiplies planes; its entry point is `ENTRY_NAME`."""
    left, right = cpp_contiguous_axes(kernel.along)
    body = (
        f"using Sizes = {kernel.sizes.cpp_sizes_type(kernel.triangle)};",
        "extern __shared__ __align__(128) char memory[];",
        f"fmm::multiply_f16x3_by_warps<Sizes, {left}, {right}, {str(kernel.checked).lower()}>(p, memory);",
    )
    bounds = kernel.sizes.thread_count, kernel.sizes.blocks
    return entry_source("fmm::MmaProduct3", body, "gemm_f16x3_mma.cuh", bounds)


def f16x3_mma_launches(op: GemmOp, chip: Chip, alignment: Mapping[str, int], flagged: bool) -> tuple[Launch, ...]:
    """Return the launches that split the operands and multiply their planes.

    Return no launches if alpha or beta has an imaginary part, or if a batch has a separate addend.
    """
    if complex(op.alpha).imag or complex(op.beta).imag or (op.addend is not None and op.count > 1):
        return ()
    a, b = operand_planes(op)
    product = _product_launch(op, a, b, chip, flagged)
    if op.checked:
        spread = ComponentwisePlanes(a, b, b.end_offset)
        return *balanced_split_launches(spread, chip.multiprocessors, alignment, NO_CLUSTERS), product
    missing = missing_planes(op, (a, b))
    splits = (plane_split_launch(missing, alignment, cluster=NO_CLUSTERS),) if missing else ()
    return *splits, product


def _product_launch(op: GemmOp, a: OperandPlanes, b: OperandPlanes, chip: Chip, flagged: bool) -> Launch:
    """Return the launch that multiplies planes and writes C."""
    m, n, triangle = op.n, op.m, triangle_tiles(op.triangle_extent)
    s = best_mma_sizes(m, n, op.count, chip, F16X3_MMA_SIZES, triangle is not None)
    maps = a.tensor_map(s.m_s), b.tensor_map(s.n_s)
    kernel = Kernel(
        f16x3_mma_kernel_source,
        (F16x3MmaKernel(s, (a.along, b.along), op.checked, triangle),),
        ENTRY_NAME,
        s.thread_count,
        s.shared_bytes,
        architecture=DEVICE_ARCHITECTURE,
    )
    extra = f", a batch of {op.count}" if op.count > 1 else ""
    extra += f", {TRIANGLE_LABELS[triangle]}" if triangle else ""
    label = f"gemm_f16x3_mma: three float16 products, tiles of {s.m_s} x {s.n_s}{extra}"
    grid = count_tiles(m, n, s, triangle is not None) * op.count, 1, 1
    return Launch(
        "product", label, kernel, grid, _parameter_bytes(op, maps, s), _parameter_addresses(op, (a, b), maps, flagged)
    )


def _parameter_bytes(op: GemmOp, maps: tuple[TensorMap, TensorMap], s: MmaSizes) -> bytes:
    """Return the bytes of struct MmaProduct3 of gemm_f16x3_mma.cuh, with zeros in place of addresses."""
    m, n, addend = op.n, op.m, op.addend
    lines = op.dest.leading, op.dest.stride, addend.right if addend else op.dest.leading
    counts = m, n, -(-op.k // PLANE_DEPTH), *tile_counts(m, n, s), tile_rows_computed_together(s)
    numbers = struct.pack("<8q6i2f", *[0] * 5, *lines, *counts, complex(op.alpha).real, complex(op.beta).real)
    return b"".join(map(pack_lines_struct, maps)) + numbers


def _parameter_addresses(
    op: GemmOp, planes: tuple[OperandPlanes, OperandPlanes], maps: tuple[TensorMap, TensorMap], flagged: bool
) -> tuple[AddressSlot, ...]:
    words, after = LINES_STRUCT_BYTES // 8, 2 * LINES_STRUCT_BYTES // 8
    slots = [AddressSlot(words * i, x.piece.base, x.piece.offset) for i, x in enumerate(maps)]
    slots.append(AddressSlot(after, op.dest.base, op.dest.offset))
    slots += [AddressSlot(after + 1 + i, x.base, x.exponents_offset) for i, x in enumerate(planes)]
    slots += [AddressSlot(after + 3, FLAG)] if flagged else []
    addend = op.addend or op.dest
    slots += [AddressSlot(after + 4, addend.base, addend.offset)] if complex(op.beta).real else []
    return tuple(slots)
