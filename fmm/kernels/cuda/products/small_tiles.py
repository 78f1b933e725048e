"""Small."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.gemm import GemmOp, HalfExtent
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.tiling import row_major_operands
from fmm.kernels.cuda.views import Factor

SMALL_TILE, SMALL_THREADS = 32, 256  # SMALL_TILE, SMALL_THREADS
SMALL_BLOCKS_PER_SM = 2  # thread blocks on a multiprocessor, for which registers are left
SMALL_ENTRY = "fmm_small"
PARTS: Mapping[HalfExtent | None, str] = {None: "ALL", "loose": "LOWER", "lower": "LOWER", "full": "MIRRORED"}
PARTS_IN_LABELS = {"ALL": "", "LOWER": ", the lower half", "MIRRORED": ", the lower half and its mirror"}


def small_launch(op: GemmOp, dtype: str) -> Launch:
    """The product in one launch, whatever its size."""
    left, right, along = row_major_operands(op)
    part, (m, n) = PARTS[op.extent], (op.n, op.m)
    alpha, beta = complex(op.alpha).real, complex(op.beta).real
    steps = *_steps(left, along[0] == "inner"), *_steps(right, along[1] == "inner")
    numbers = 0, *steps[:3], 0, *steps[3:], 0, op.dest.leading, 1, op.dest.stride, m, n, op.k
    parameters = struct.pack("<15q2d", *numbers, alpha, beta)
    slots = tuple(Slot(4 * i, x.base, x.offset) for i, x in enumerate((left, right, op.dest)))
    kernel = Kernel(small_source, (dtype, part), SMALL_ENTRY, SMALL_THREADS)
    high, wide = -(-m // SMALL_TILE), -(-n // SMALL_TILE)
    tiles = high * wide if part == "ALL" else high * (high + 1) // 2
    label = f"gemm_small, tiles of {SMALL_TILE} x {SMALL_TILE}{PARTS_IN_LABELS[part]}"
    return Launch("product", label, kernel, (tiles, 1, op.count), parameters, slots)


def _steps(x: Factor, inner: bool) -> tuple[int, int, int]:
    """Elements from one line to the next, from one number to the next along the inner dimension, and to the next
    matrix of a batch."""
    return (x.leading, 1, x.stride) if inner else (1, x.leading, x.stride)


@lru_cache(maxsize=32)
def small_source(dtype: str, part: str) -> str:
    """The whole CUDA source, entry point `ENTRY`."""
    body = (f"fmm::small_product<{DTYPES[dtype].cpp}, fmm::Part::{part}>(p);",)
    return entry_source(
        "fmm::SmallProduct", body, "gemm_small.cuh", (SMALL_THREADS, SMALL_BLOCKS_PER_SM), entry=SMALL_ENTRY
    )
