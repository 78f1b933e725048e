"""Kernels over semirings compiled for the host, and launches of them played there."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.products.semirings.minplus import ENTRY
from tests.support.tiled_on_host import SHARED_BYTES, tiled_library

DRIVER = """
template <class Told> int told_bytes(void (*)(Told)) { return sizeof(Told); }
template <class Told> void enter(const void* p) { ENTRY(*static_cast<const Told*>(p)); }
template <class Told> void start(void (*)(Told), const void* p, int blocks, int threads) {
    run(enter<Told>, p, blocks, 1, threads);
}
extern "C" int launch(const void* parameters, int blocks, int threads) {
    start(ENTRY, parameters, blocks, threads);
    return told_bytes(ENTRY);
}
""".replace("ENTRY", ENTRY)
Memory = dict[str, np.ndarray[Any, Any]]  # base -> its numbers, from a multiple of 64 bytes on


@cache
def compiled(kernel: Kernel) -> Any:
    assert kernel.shared <= SHARED_BYTES
    return tiled_library(kernel.source + DRIVER)


def aligned(rows: int, cols: int, fill: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A matrix whose memory begins at a multiple of 64 bytes, full of one number."""
    count, item = rows * cols, np.dtype(dtype).itemsize
    raw = np.full(count + 64, fill, dtype)
    start = -raw.ctypes.data % 64 // item
    return raw[start : start + count].reshape(rows, cols)


def play(launches: list[Launch] | tuple[Launch, ...], memory: Memory) -> None:
    for launch in launches:
        words = np.frombuffer(launch.parameters, np.int64).copy()
        for slot in launch.slots:
            words[slot.word] = memory[slot.base].ctypes.data + slot.offset
        library = compiled(launch.kernel)
        told = library.launch(words.ctypes.data_as(ctypes.c_void_p), launch.grid[0], launch.kernel.threads)
        assert told == words.nbytes
