"""Multiply matrices of residues (planes of bytes) for each modulus, on GPUs without Hopper's instructions.

The kernel is in gemm_residues_mma.cuh, for compute capability 8.0 and newer. The module residues.py describes the
product.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, AddressSlot, Kernel, Launch, LaunchPurpose, TensorMap
from fmm.kernels.cuda.products.mma_tiles import (
    LINES_STRUCT_BYTES,
    TILE_LINE_BYTES,
    MmaSizes,
    best_mma_sizes,
    count_tiles,
    pack_lines_struct,
    tile_counts,
    tile_rows_computed_together,
)
from fmm.kernels.cuda.products.residue_planes import moduli_table

# The slowdown 1.16 (time for a column of a narrow tile, divided by the time for a column of a wide tile) was measured
# for float16, in the leaf `f16x3`. For bytes the slowdown was not measured.
RESIDUE_MMA_SIZES = (MmaSizes(128, 256, 64, 64), MmaSizes(128, 128, 64, 64, blocks=2, slowdown=1.16))
# The kernel of gemm_residues_mma.cuh reduces its sums modulo p after every MAX_UNREDUCED_STEPS steps, because longer
# sums could exceed 32 bits. One step is 128 positions of the inner dimension.
MAX_UNREDUCED_STEPS = 512


@dataclass(frozen=True)
class ResidueMmaKernel:
    """A compiled variant of the kernel that multiplies planes of bytes."""

    sizes: MmaSizes
    lower_only: bool = False  # True if only tiles that overlap the lower triangle of C are computed
    reduces: bool = False  # True if sums are reduced modulo p between steps, because they could exceed 32 bits


@lru_cache(maxsize=64)
def residue_mma_kernel_source(kernel: ResidueMmaKernel) -> str:
    """Return the CUDA source of the kernel that multiplies planes of bytes; its entry point is `ENTRY_NAME`."""
    s = kernel.sizes
    body = (
        f"using Sizes = {s.cpp_sizes_type('lower' if kernel.lower_only else None)};",
        "extern __shared__ __align__(128) char memory[];",
        f"fmm::multiply_residues_by_warps<Sizes, {str(kernel.reduces).lower()}>(p, memory);",
    )
    return entry_source("fmm::MmaResidueProduct", body, "gemm_residues_mma.cuh", (s.thread_count, s.blocks))


@dataclass(frozen=True)
class ByteProducts:
    """Products of planes of bytes: C = A B modulo p; a modulus p has one product, or two if the product is complex."""

    maps: tuple[TensorMap, TensorMap, TensorMap]  # the matrices A, B and C
    rows: int
    inner: int
    columns: int
    moduli: tuple[int, ...]
    each: int
    lower_only: bool

    @property
    def count(self) -> int:
        return len(self.moduli) * self.each


def residue_mma_launch(x: ByteProducts, chip: Chip, does: LaunchPurpose, products: str) -> Launch:
    """Return the launch that multiplies the planes; the launch's label contains the text `products`."""
    s = best_mma_sizes(x.rows, x.columns, x.count, chip, RESIDUE_MMA_SIZES, x.lower_only)
    steps = -(-x.inner // TILE_LINE_BYTES)
    spec = ResidueMmaKernel(s, x.lower_only, steps >= MAX_UNREDUCED_STEPS)
    kernel = Kernel(
        residue_mma_kernel_source,
        (spec,),
        ENTRY_NAME,
        s.thread_count,
        s.shared_bytes,
        architecture=DEVICE_ARCHITECTURE,
    )
    left, right, dest = x.maps
    counts = x.rows, x.columns, steps, *tile_counts(x.rows, x.columns, s), tile_rows_computed_together(s), x.each, 0
    parameters = (
        pack_lines_struct(left) + pack_lines_struct(right) + struct.pack("<3q8i", 0, dest.leading, dest.layer, *counts)
    )
    parameters += bytes(-len(parameters) % 16) + moduli_table(x.moduli)
    slots = tuple(AddressSlot(i * LINES_STRUCT_BYTES // 8, y.piece.base, y.piece.offset) for i, y in enumerate(x.maps))
    grid = count_tiles(x.rows, x.columns, s, x.lower_only) * x.count, 1, 1
    label = f"gemm_residues_mma: {products} of bytes, tiles of {s.m_s} x {s.n_s}"
    return Launch(does, label, kernel, grid, parameters, slots)
