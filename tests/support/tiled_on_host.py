"""The tiled kernel compiled for the host, where the threads of a block are emulated by coroutines."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.products.simt_kernel import MemoryAccess, TileKernel, simt_kernel_source
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, pointer_word_indices
from tests.support.host_compiler import SANITIZER, header, shared_library
from tests.support.host_launch import aligned, parameter_words

FLAGS = ("-std=c++20", "-O0", "-w", *SANITIZER)
SHARED_BYTES = 16 * 16384  # of host_cuda/simt_host.h
DRIVER = r"""
extern "C" int launch(const void* parameters, int blocks, int products) {{
    using Parameters = {params};
    auto entry = [](const void* p) {{ {entry}(*static_cast<const Parameters*>(p)); }};
    run(entry, parameters, blocks, products, {threads});
    return sizeof(Parameters);
}}
"""
Memory = dict[str, np.ndarray[Any, Any]]  # base -> its numbers, from a multiple of 64 bytes on


@cache
def scheduler() -> Any:
    """Return the scheduler of a block's threads, loaded before any kernel that calls it."""
    return shared_library(header("emulated_threads.cpp"), FLAGS, ctypes.RTLD_GLOBAL)


def tiled_library(text: str) -> Any:
    """Compile kernels with their drivers, without CUDA headers."""
    scheduler()
    return shared_library(header("simt_host.h") + text.replace("#pragma once", ""), FLAGS)


@cache
def compiled_for_the_host(made: TileKernel, access: MemoryAccess) -> Any:
    counts = ", ".join(map(str, (*made.block_counts, made.products)))
    params = f"fmm::Parameters<Number, {counts}>"
    params = f"fmm::RecomputeParams<{params}>" if made.flag == "obeys" else params
    driver = DRIVER.format(params=params, threads=made.strategy.thread_count, entry=ENTRY_NAME)
    assert made.shared_bytes <= SHARED_BYTES
    return tiled_library(simt_kernel_source(made, access) + driver)


def floats(count: int, dtype: str = "float32") -> np.ndarray[Any, Any]:
    """Return an array of NaN, aligned to 64 bytes."""
    return aligned(count, dtype, np.nan)


def tile_words(op: TileOp | TileGroup, memory: Mapping[str, int | np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    """Return the parameters of a launch with the addresses filled in."""
    slots = [(word, x.base, x.offset) for word, x in zip(pointer_word_indices(op), op.all_blocks, strict=True)]
    return parameter_words(op.parameter_bytes, slots, memory)
