"""Kernels over semirings compiled for the host, and launches of them played there."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.launch_list import Kernel, Launch
from fmm.semirings.minplus_kernel import ENTRY_POINT as ENTRY
from tests.support.host_launch import aligned, launch_words, parameter_words
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
    return tiled_library(kernel.cuda_source + DRIVER)


def lines_of(rows: int, cols: int, fill: Any, dtype: Any) -> np.ndarray[Any, Any]:
    """A matrix full of one number."""
    return aligned(rows * cols, dtype, fill).reshape(rows, cols)


def play(launches: list[Launch] | tuple[Launch, ...], memory: Memory) -> None:
    for launch in launches:
        words = parameter_words(launch.parameters, launch.slots, memory)
        launch_words(compiled(launch.kernel).launch, words, launch.grid[0], launch.kernel.threads)
