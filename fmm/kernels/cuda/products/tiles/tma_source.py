"""CUDA source of the tiled products whose operands the copy engine brings: a stub for gemm_tma.cuh."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.products.tiles.tile_sizes import TileSizes
from fmm.kernels.cuda.products.tiles.tiled_source import Along, Half, along_names, commas, half_name, sizes_type

Counts = tuple[int, int, int]  # of A, B, C


@dataclass(frozen=True)
class TmaKernel:
    """Up to `tasks` products, of at most so many `terms` each, over so many `blocks` of A, B and C.

    `shapes`: the pairs (is A's operand a sum, is B's) that occur among the products.
    """

    strategy: TileSizes
    element: str
    terms: Counts
    blocks: Counts
    tasks: int
    shapes: frozenset[tuple[bool, bool]]
    order: str
    along: tuple[Along, Along]
    half: Half | None = None

    @property
    def shared(self) -> int:
        """Bytes of shared memory: in every stage copies of all terms, their sum where there are several, or a tile of C
        in their place; two gates a stage."""
        s = self.strategy
        left, right = (terms + (terms > 1) for terms in self.terms[:2])
        numbers = max(s.stages * s.k_s * (s.m_s * left + s.n_s * right), s.m_s * s.n_s)
        return numbers * DTYPES[self.element].itemsize + 16 * s.stages


@lru_cache(maxsize=256)
def tma_source(kernel: TmaKernel) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.strategy, DTYPES[kernel.element].cpp
    left, right = along_names(kernel.along)
    shapes = sum(1 << (2 * a + b) for a, b in kernel.shapes)
    order, half = f"fmm::Order::{kernel.order.upper()}", half_name(kernel.half)
    before = (
        f"using Task = fmm::Task<{element}, {commas(kernel.terms)}>;",
        f"using Launch = fmm::Launch<{element}, Task, {commas((*kernel.blocks, kernel.tasks))}>;",
        "",
    )
    body = (
        f"using Sizes = {sizes_type(s)};",
        f"extern __shared__ __align__(1024) {element} memory[];",
        f"fmm::multiply_all<{element}, Sizes, {left}, {right}, {commas(kernel.terms[:2])}, {shapes},",
        f"                  {order}, {half}>(p, memory);",
    )
    return entry_source("Launch", body, "gemm_tma.cuh", (s.threads, s.blocks), before=before)
