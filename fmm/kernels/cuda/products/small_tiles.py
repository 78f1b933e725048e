"""Describe products for the kernel of gemm_small.cuh, which supports all real element types and all layouts."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.launch_list import AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.tiling import row_major_operands

SMALL_TILE_SIDE, SMALL_THREADS = (
    32,
    256,
)  # as in gemm_small.cuh: number of rows (and of columns) of a tile, number of threads of a thread block
SMALL_BLOCKS_PER_SM = 2  # minimum number of resident thread blocks per multiprocessor, for `__launch_bounds__`
SMALL_ENTRY = "fmm_small"
# TRIANGLE_PARTS maps the triangle of C that a product writes (None: all of C) to an enumerator of fmm::Part in
# gemm_small.cuh. TRIANGLE_PART_LABELS maps the enumerator to a text for the launch's label.
TRIANGLE_PARTS: Mapping[TriangleExtent | None, str] = {
    None: "ALL",
    "loose": "LOWER",
    "lower": "LOWER",
    "full": "MIRRORED",
}
TRIANGLE_PART_LABELS = {"ALL": "", "LOWER": ", the lower triangle", "MIRRORED": ", the lower triangle and its mirror"}


def small_launch(op: GemmOp, dtype: str) -> Launch:
    """Return the launch that computes a product of any size."""
    left, right, along = row_major_operands(op)
    part, (m, n) = TRIANGLE_PARTS[op.triangle_extent], (op.n, op.m)
    alpha, beta = complex(op.alpha).real, complex(op.beta).real
    steps = *_operand_strides(left, along[0] == "inner"), *_operand_strides(right, along[1] == "inner")
    numbers = 0, *steps[:3], 0, *steps[3:], 0, op.dest.leading, 1, op.dest.stride, m, n, op.k
    parameters = struct.pack("<15q2d", *numbers, alpha, beta)  # struct SmallProduct of gemm_small.cuh
    slots = tuple(AddressSlot(4 * i, x.base, x.offset) for i, x in enumerate((left, right, op.dest)))
    kernel = Kernel(small_kernel_source, (dtype, part), SMALL_ENTRY, SMALL_THREADS)
    rows, columns = -(-m // SMALL_TILE_SIDE), -(-n // SMALL_TILE_SIDE)
    tiles = rows * columns if part == "ALL" else rows * (rows + 1) // 2
    label = f"gemm_small, tiles of {SMALL_TILE_SIDE} x {SMALL_TILE_SIDE}{TRIANGLE_PART_LABELS[part]}"
    return Launch("product", label, kernel, (tiles, 1, op.count), parameters, slots)


def _operand_strides(x: GemmOperand, inner: bool) -> tuple[int, int, int]:
    """Return an operand's strides along the outer dimension, along the inner dimension, and between matrices."""
    return (x.leading, 1, x.stride) if inner else (1, x.leading, x.stride)


@lru_cache(maxsize=32)
def small_kernel_source(dtype: str, part: str) -> str:
    """Return the CUDA source of the kernel for small products; its entry point is `SMALL_ENTRY`."""
    body = (f"fmm::small_product<{DTYPES[dtype].cpp}, fmm::Part::{part}>(p);",)
    bounds = SMALL_THREADS, SMALL_BLOCKS_PER_SM
    return entry_source("fmm::SmallProduct", body, "gemm_small.cuh", bounds, entry=SMALL_ENTRY)
