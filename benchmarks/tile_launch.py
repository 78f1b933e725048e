"""Launches of the tiled product's kernel alone, each with everything filled in."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from itertools import product
from multiprocessing import get_context
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm

from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS, Access, TileKernel, simt_source
from fmm.kernels.cuda.products.simt_tiles import TileOp, pointer_words

PROCESSES = 16  # that compile


class Case(NamedTuple):
    """Products of one size, some at a time."""

    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n * self.times

    def __str__(self) -> str:
        sides = str(self.m) if self.m == self.k == self.n else f"{self.m}x{self.k}x{self.n}"
        return sides if self.times == 1 else f"{sides} x{self.times}"


class Scale(NamedTuple):
    """C = alpha A B + beta C."""

    alpha: float = 1
    beta: float = 0


class Spread(NamedTuple):
    """So many numbers behind every row, and before the first."""

    gap: int = 0
    shift: int = 0


PLAIN, DENSE = Scale(), Spread()


def plain(s: TileSizes, case: Case, scale: Scale = PLAIN, spread: Spread = DENSE, dtype: str = "float32") -> TileOp:
    """C = alpha A B + beta C, row by row."""
    (m, k, n, count), (gap, shift) = case, spread
    first = shift * np.dtype(dtype).itemsize
    lines = tuple(BlockStrides(cols + gap, rows * (cols + gap)) for rows, cols in ((m, k), (k, n), (m, n)))
    a, b = (BlockTerm(x, first, rows, cols) for x, rows, cols in (("A", m, k), ("B", k, n)))
    c = BlockTerm("C", first, m, n, *scale)
    return TileOp(TileKernel(s, dtype), (a,), (b,), (c,), lines, m, n, k, count)


# ---- the kernel


@lru_cache(maxsize=256)
def compiled(kernel: TileKernel, access: Access) -> Any:
    function = cupy.RawModule(code=simt_source(kernel, access), options=COMPILER_OPTIONS).get_function(ENTRY)
    function.max_dynamic_shared_size_bytes = kernel.shared
    return function


def compile_ahead(kernels: Iterable[TileKernel], accesses: Sequence[Access] = ("vector",)) -> None:
    """Side by side into CuPy's cache on disk; as processes, for the compiler takes turns in one."""
    jobs = list(dict.fromkeys(product(kernels, accesses)))
    count = min(len(jobs), os.cpu_count() or 1, PROCESSES)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        list(pool.map(_compile, jobs))


def _compile(job: tuple[TileKernel, Access]) -> None:
    compiled(*job)


def launcher(op: TileOp, access: Access, bases: dict[str, int]) -> Callable[[], None]:
    """A call of the driver with everything filled in."""
    words = np.frombuffer(op.parameters, np.int64).copy()
    for i, piece in zip(pointer_words(op), op.pieces, strict=True):
        words[i] = bases[piece.base] + piece.offset
    pointer = np.array([words.ctypes.data], np.int64)
    function = compiled(op.kernel, access)

    def launch(kept: Any = (words, pointer)) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        threads = op.kernel.strategy.threads
        driver.launchKernel(
            function.kernel.ptr, *op.grid, threads, 1, 1, op.kernel.shared, stream, kept[1].ctypes.data, 0
        )

    return launch
