"""Kernels of Hopper's warpgroups compiled for the host: barriers, copy engine, tensor cores and clusters are
emulated."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, header_text
from fmm.kernels.cuda.launch_list import Launch, TensorMap
from fmm.kernels.cuda.products.wgmma_tiles import TILE_LINE_BYTES
from tests.support.host_compiler import SANITIZER, header, required_compiler, shared_library
from tests.support.host_launch import launch_words, parameter_words
from tests.support.tiled_on_host import scheduler

Array = np.ndarray[Any, Any]
FLAGS = ("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off", *SANITIZER)
ASKS = "// ---- PTX of clusters, the copy engine and warpgroups", "// ---- shared memory"
# By the instruction's operand type: the type's name in warpgroup_ptx.h, and the type of its sums.
KINDS = {"f16": ("FLOAT16", "float"), "bf16": ("BFLOAT16", "float"), "tf32": ("TF32", "float"), "s8": ("BYTES", "int")}
REDUCED = {"byte": 0, "float16": 1, "bfloat16": 2, "tf32": 3, "float32": 3}  # the names in warpgroups.h
# Inline PTX on single numbers, replaced by functions of the host.
NUMBERS = (
    (r'asm\("cvt\.rn\.f16x2\.f32 %0[^;]*;"[^;]*;', "both = planes::narrowed(x) | planes::narrowed(y) << 16;"),
    (r'asm\("cvt\.rn\.bf16x2\.f32 %0[^;]*;"[^;]*;', "both = bfloat16_of(x) | bfloat16_of(y) << 16;"),
    (
        r'asm\("\{\.reg \.b16 x, y;.*?\*reinterpret_cast<const unsigned\*>\(q\)\)\);',
        "both.x = planes::widened(*reinterpret_cast<const unsigned short*>(q));\n"
        "both.y = planes::widened(reinterpret_cast<const unsigned short*>(q)[1]);",
    ),
    (r'asm volatile\("bar\.sync %0, 128;".*?"memory"\);', "warpgroup_meets();"),
    (r'asm volatile\("" : "\+[fr]"\(x\)::"memory"\);', ""),
)
# Replaces the wgmma instructions of a tile, which name all its registers.
STEP = """
struct Step {
    using Sum = SUM_OF_STEP;
    template <bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, int COUNT>
    static void queue(Sum (&x)[COUNT], unsigned long long a, unsigned long long b, int keeps) {
        fmm::Queue& q = fmm::queues[thread_number()];
        q.asked[q.end++ % 64] = {x, a, b, COUNT, keeps, LEFT_TRANSPOSED, RIGHT_TRANSPOSED, 0};
    }
    template <bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, int NEXT_A, int NEXT_B, int COUNT>
    static void multiply(Sum (&x)[COUNT], unsigned long long a, unsigned long long b, int keeps) {
        for (int k = 0; k < 4; ++k)
            queue<LEFT_TRANSPOSED, RIGHT_TRANSPOSED>(x, a + k * NEXT_A, b + k * NEXT_B, keeps || k);
    }
    template <bool LEFT_TRANSPOSED, bool RIGHT_TRANSPOSED, int NEXT_A, int NEXT_B, int LOW_A, int LOW_B, int COUNT>
    static void multiply_low(Sum (&x)[COUNT], unsigned long long a, unsigned long long b, int keeps) {
        for (int k = 0; k < 4; ++k) {
            queue<LEFT_TRANSPOSED, RIGHT_TRANSPOSED>(x, a + k * NEXT_A, b + k * NEXT_B + LOW_B, keeps || k);
            queue<LEFT_TRANSPOSED, RIGHT_TRANSPOSED>(x, a + k * NEXT_A + LOW_A, b + k * NEXT_B, 1);
        }
    }
};
"""
FMA = "static float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }\n"
DRIVER = """
extern "C" int launch(const void* parameters, int blocks) {{
    using Parameters = {params};
    auto entry = [](const void* p) {{ {entry}(*static_cast<const Parameters*>(p)); }};
    run_clusters(entry, parameters, blocks, 1, {threads}, BLOCKS);
    return sizeof(Parameters);
}}
"""


def for_the_host(source: str, cluster: int, multiplies: bool) -> str:
    """Return a kernel's source with host functions in place of GPU instructions."""
    text = _without(source, "cluster.cuh", header("warpgroups.h"))
    text = _without(text, "ptx_tma.cuh", "") if "mbarrier" in text else text
    before = header("sum_host.h").replace("static Dim block", "extern Dim block")
    macros = [f"constexpr int BLOCKS = {cluster};", "#define __align__(x)", "#define __cluster_dims__(...)"]
    if multiplies:
        text = text if "dot_bytes" not in text else _without(text, "whole_bytes.cuh", FMA + header("whole_bytes.h"))
        begin, end = (text.index(mark) for mark in ASKS)
        text = text[:begin] + header("warpgroup_ptx.h") + text[end:]
        kind, total = KINDS[re.findall(r"wgmma\.mma_async\.\S+\.(\w+)\.\1 ", source)[0]]
        macros += [f"#define KIND_OF_STEP fmm::{kind}", f"#define SUM_OF_STEP {total}"]
        text = replaced(r"struct Step \{.*?\n\};", STEP, text)
        memory = r"extern __shared__ __align__\(1024\) ([\w:]+) memory\[\];"
        text, found = re.subn(memory, r"\1* const memory = reinterpret_cast<\1*>(fmm::shared_begin());", text)
        assert found == 1
        for pattern, by in NUMBERS:
            text = re.sub(pattern, lambda _, by=by: by, text, flags=re.DOTALL)  # type: ignore[misc]
        # Declared shared memory belongs to other kernels of the source, which are not run.
        before = before.replace("#define __shared__ static", "#define __shared__")
    hosts = ("f16_host.h", "emulated_block.h", "warp_collectives.h")
    return "\n".join(macros) + "\n" + before + "".join(map(header, hosts)) + text


def replaced(pattern: str, by: str, text: str) -> str:
    found, changed = re.subn(pattern, lambda _: by, text, flags=re.DOTALL)
    assert changed == 1, pattern
    return found


def _without(text: str, name: str, by: str) -> str:
    own = header_text(name).replace("#pragma once\n", "", 1)
    assert text.count(own) == 1, name
    return text.replace(own, by)


@cache
def compiled(source: str, threads: int, cluster: int, multiplies: bool) -> Any:
    """Compile the kernel; kernels that do not multiply have clusters of one thread block."""
    required_compiler()
    scheduler()
    text = for_the_host(source, cluster, multiplies)
    params = re.search(r"const __grid_constant__ ([\w:<>, ]+) p\)", text)
    assert params is not None
    return shared_library(text + DRIVER.format(params=params[1], threads=threads, entry=ENTRY_NAME), FLAGS)


def play(launch: Launch, memory: Mapping[str, Array]) -> None:
    """Run one launch on these arrays."""
    words = parameter_words(launch.parameters, launch.slots, memory)
    for word, x in launch.maps:
        words[word : word + 10] = described(x, memory[x.piece.base].ctypes.data)
    source = launch.kernel.cuda_source
    dims = re.search(r"__cluster_dims__\((\d+), 1, 1\)", source)
    cluster = int(dims[1]) if dims and launch.maps else 1
    library = compiled(source, launch.kernel.threads, cluster, bool(launch.maps))
    launch_words(library.launch, words, launch.grid[0])


def described(x: TensorMap, start: int) -> list[int]:
    """Return the words of Map in host_cuda/warpgroups.h."""
    assert x.swizzle == TILE_LINE_BYTES
    item = TILE_LINE_BYTES // x.box[0]  # boxes are as wide as lines of shared memory
    lines = x.length * item, x.lines, x.layers, x.leading * item, x.layer * item
    return [start + x.piece.offset, *lines, x.box[0] * item, x.box[1], item, REDUCED[x.dtype]]
