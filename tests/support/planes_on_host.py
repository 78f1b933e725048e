"""float32 by three float16 products compiled for the host: what splits, and what multiplies the planes.

A host has no clusters: their thread blocks are one each, by the numbers that say how many.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any
from unittest import mock

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.device_code.read import header_text
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.launch_list import FLAG, Launch
from fmm.kernels.cuda.products.float16 import f16_split, f16x3
from fmm.kernels.cuda.products.float16.f16x3 import F16x3Op, f16x3_launch, f16x3_op, plane_launches
from fmm.kernels.cuda.products.tiles.wgmma_source import WgmmaSizes
from fmm.kernels.cuda.tensor_map import TensorMap
from tests.support.host_compiler import SANITIZER, header, required_compiler, shared_library
from tests.support.host_launch import aligned, launch_words, told_words
from tests.support.tiled_on_host import DRIVER, scheduler

Array = np.ndarray[Any, Any]
FLAGS = ("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", *SANITIZER)
MULTIPROCESSORS = 3  # so that a thread block has more tiles than one
DIVIDES = {name: 64 for name in ("A", "B", "C", "W")}
ASKS = "// ---- what clusters, the copy engine and warpgroups are asked", "// ---- shared memory"
MEMORY = "alignas(1024) fmm::half memory[1 << 17];\n"


def for_the_host(source: str, multiplies: bool) -> str:
    """A kernel's source, with functions in the place of what only a GPU has."""
    engine = header_text("ptx_tma.cuh").replace("#pragma once\n", "", 1)
    assert source.count(engine) == 1
    text = source.replace(engine, header("warpgroups.h"))
    text = _replaced(r'asm volatile\(\s*"\{\\n"\s*"\.reg \.b32 at;.*?"memory"\);', "x = *here;", text)
    text = _replaced(r"constexpr int CLUSTER = 8;", "constexpr int CLUSTER = 1;", text)
    if multiplies:
        begin, end = (text.index(mark) for mark in ASKS)
        text = text[:begin] + header("warpgroup_asks.h") + text[end:]
        text = _replaced(r"struct Step \{.*?\n\};", STEP, text)
        text = re.sub(r'asm volatile\("" : "\+[fr]"\(x\)::"memory"\);', "", text)
        text += MEMORY
    before = header("sum_host.h").replace("static Dim block", "extern Dim block")
    if multiplies:  # its shared memory is declared, and stands behind the kernel
        before = before.replace("#define __shared__ static", "#define __shared__")
    macros = "#define __align__(x)\n#define __cluster_dims__(...)\n"
    return macros + before + header("f16_host.h") + header("block_meets.h") + header("warps_meet.h") + text


# In the place of the one instruction, which names all registers of a tile.
STEP = """
struct Step {
    using Sum = float;
    template <bool LEFT_TURNED, bool RIGHT_TURNED, int COUNT>
    static void multiply(float (&x)[COUNT], unsigned long long a, unsigned long long b, int keeps) {
        fmm::Queue& q = fmm::queues[threadIdx.x];
        q.asked[q.end++ % 64] = {x, a, b, COUNT, keeps, LEFT_TURNED, RIGHT_TURNED, 0};
    }
};
"""


def _replaced(pattern: str, by: str, text: str) -> str:
    found, changed = re.subn(pattern, lambda _: by, text, flags=re.DOTALL)
    assert changed == 1, pattern
    return found


@cache
def compiled(source: str, threads: int, multiplies: bool) -> Any:
    required_compiler()
    scheduler()
    text = for_the_host(source, multiplies)
    told = re.search(r"const __grid_constant__ ([\w:<>, ]+) p\)", text)
    assert told is not None
    driver = DRIVER.format(told=told[1], threads=threads, entry=ENTRY)
    if multiplies:
        driver = driver.replace("    run(", "    shared_begin = reinterpret_cast<const char*>(memory);\n    run(")
    return shared_library(text + driver, FLAGS)


def play(launch: Launch, memory: Mapping[str, Array]) -> None:
    """One launch, on what is in memory."""
    words = told_words(launch.parameters, launch.slots, memory)
    for word, x in launch.maps:
        words[word : word + 8] = described(x, memory[x.piece.base].ctypes.data)
    library = compiled(launch.kernel.source, launch.kernel.threads, bool(launch.maps))
    launch_words(library.launch, words, launch.grid[0], 1)


def described(x: TensorMap, start: int) -> list[int]:
    """The words of Map in host_cuda/warpgroups.h."""
    return [start + x.piece.offset, x.length, x.lines, x.layers, 2 * x.leading, 2 * x.layer, *x.box]


@contextmanager
def without_clusters(sizes: WgmmaSizes) -> Iterator[None]:
    """Operations that are made here have these sizes, and thread blocks that are clusters by themselves."""
    assert sizes.cluster == 1
    with mock.patch.object(f16_split, "CLUSTER", 1), mock.patch.object(f16x3, "SIZES", (sizes,)):
        yield


def launches_of(op: GemmOp, sizes: WgmmaSizes) -> tuple[F16x3Op, list[Launch]]:
    with without_clusters(sizes):
        made = f16x3_op(op, MULTIPROCESSORS)
        assert made is not None
        return made, [*plane_launches(made, MULTIPROCESSORS, DIVIDES), f16x3_launch(made, True)]


def multiplied(op: GemmOp, sizes: WgmmaSizes, memory: dict[str, Array], room: int) -> bool:
    """All launches of a product; was the flag raised? `room`: bytes of workspace, which begin as NaN."""
    _, launches = launches_of(op, sizes)
    memory = {**memory, "W": aligned(room), FLAG: aligned(64, fill=0)}
    for launch in launches:
        play(launch, memory)
    return bool(memory[FLAG].any())
