"""Kernels that include block_sums.cuh, compiled for the host: with one thread at a time, or with emulated
threads and barriers."""

from __future__ import annotations

import re
from typing import Any

from tests.support.host_compiler import SANITIZER, header, required_compiler, shared_library
from tests.support.tiled_on_host import scheduler

FLAGS = ("-std=c++17", "-O0", "-w", "-fno-strict-aliasing", *SANITIZER)
# Indices of the scheduler, which runs an entry point with barriers, in place of the host's own.
TURNS = """
extern Dim blockIdx, gridDim, threadIdx;
extern "C" void meet();
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count);
static void __syncthreads() { meet(); }
"""


def for_the_host(source: str) -> str:
    """Return the source without the macros that the host defines itself."""
    text = source.replace("#pragma once", "")
    text, changed = re.subn(r"#define FMM_IF_INSIDE\(.*?\n\n", "", text, count=1, flags=re.DOTALL)
    assert changed, "the host's version of FMM_IF_INSIDE no longer fits block_sums.cuh"
    return text


def kernel_in_turns(source: str, driver: str, more: str = "") -> Any:
    """Return a library of the kernel and a function `launch`, which the driver defines; `more` is further source."""
    required_compiler()
    scheduler()
    before = header("sum_host.h").replace("static Dim blockIdx, threadIdx, gridDim;", TURNS + more)
    assert TURNS in before
    return shared_library(before + for_the_host(source) + driver, FLAGS)
