"""Kernels with clusters compiled for the host: those of fmm.linalg, and lines that are split into residues."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import header_text
from fmm.kernels.cuda.launch_list import Kernel, Launch
from tests.support.host_compiler import header, required_compiler, shared_library
from tests.support.host_launch import launch_words, parameter_words
from tests.support.tiled_on_host import scheduler

Array = np.ndarray[Any, Any]
FLAGS = ("-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-ffp-contract=off")
CLUSTER_FUNCTIONS = """
static void __syncwarp() { meet_warp(); }
static long long __double_as_longlong(double x) { return bits<long long>(x); }
alignas(64) static char shared_memory[BLOCKS][1 << 18];
namespace fmm {
static int cluster_rank() { return static_cast<int>(blockIdx.x % BLOCKS); }
static void cluster_sync() { meet_cluster(); }
static char* shared_begin(int rank = cluster_rank()) { return shared_memory[rank]; }
template <class T> static T* remote_address(T* here, int rank) {
    return reinterpret_cast<T*>(shared_begin(rank) + (reinterpret_cast<const char*>(here) - shared_begin()));
}
template <class T> static T load_remote(const T* here, int rank) { return *remote_address(const_cast<T*>(here), rank); }
struct alignas(16) Message { int words[4]; };
struct MailBarrier { short is_expected, phase; int due; };
static void settle(MailBarrier* g) {
    if (g->is_expected && g->due == 0) g->is_expected = 0, g->phase ^= 1;
}
static void init_mail(MailBarrier* g) { *g = {0, 0, 0}; }
static void expect_mail(MailBarrier* g, int bytes) { g->is_expected = 1, g->due += bytes; settle(g); }
static void send_mail(Message* here, const Message& x, MailBarrier* g, int rank) {
    *remote_address(here, rank) = x;
    g = remote_address(g, rank);
    g->due -= sizeof x;
    settle(g);
}
static void wait_mail(MailBarrier* g, int parity) { while (g->phase == parity) let_others(); }
}
"""
BYTE_FUNCTIONS = """
static double __longlong_as_double(long long x) { return bits<double>(x); }
static long long __double2ll_rn(double x) { return static_cast<long long>(__builtin_rint(x)); }
static float __fmaf_rn(float x, float y, float z) { return __builtin_fmaf(x, y, z); }
static double __dmul_rn(double x, double y) { return x * y; }
static double __dadd_rn(double x, double y) { return x + y; }
static double sqrt(double x) { return __builtin_sqrt(x); }
static double fabs(double x) { return __builtin_fabs(x); }
static unsigned __byte_perm(unsigned x, unsigned y, unsigned which) {
    unsigned found = 0;
    for (int i = 0; i < 4; ++i) found |= ((which >> 4 * i & 4 ? y : x) >> 8 * (which >> 4 * i & 3) & 255) << 8 * i;
    return found;
}
"""
DRIVER = """
extern "C" int launch(const void* parameters, int blocks) {{
    using Parameters = {params};
    auto entry = [](const void* p) {{ {entry}(*static_cast<const Parameters*>(p)); }};
    run_clusters(entry, parameters, blocks, 1, {threads}, BLOCKS);
    return sizeof(Parameters);
}}
"""


@cache
def compiled(kernel: Kernel) -> Any:
    """Return the shared library of a kernel."""
    required_compiler()
    scheduler()
    source = kernel.cuda_source
    dims = re.search(r"__cluster_dims__\((\d+), 1, 1\)", source)
    cluster = int(dims[1]) if dims else 1
    functions = CLUSTER_FUNCTIONS
    if "cluster_rank" in source:
        for name in ("cluster.cuh", "cluster_mail.cuh"):
            own = header_text(name).replace("#pragma once\n", "", 1).replace('#include "cluster.cuh"\n', "", 1)
            begin = own.index("namespace fmm")  # the comment in front is followed by an included header
            if source.count(own[begin:]) == 1:
                source, functions = source.replace(own[begin:], functions), ""
    own = header_text("whole_bytes.cuh").replace("#pragma once\n", "", 1)
    if own in source:
        source = source.replace(own, BYTE_FUNCTIONS + header("whole_bytes.h"))
    dynamic = "float4* const memory = reinterpret_cast<float4*>(fmm::shared_begin());"
    source = source.replace("extern __shared__ float4 memory[];", dynamic)
    source = re.sub(r"__shared__ (.*) (\w+)((?:\[\d+\])*);", _shared_variable, source)
    before = header("sum_host.h").replace("static Dim block", "extern Dim block")
    hosts = ("f16_host.h", "emulated_block.h", "warp_collectives.h")
    macros = f"constexpr int BLOCKS = {cluster};\n#define __cluster_dims__(...)\n"
    params = re.search(r"const __grid_constant__ ([\w:<>, ]+) p\)", source)
    assert params is not None
    driver = DRIVER.format(params=params[1], threads=kernel.threads, entry=kernel.entry)
    return shared_library(macros + before + "".join(map(header, hosts)) + functions + source + driver, FLAGS)


def _shared_variable(found: re.Match[str]) -> str:
    kind, name, sides = found.groups()
    return (
        f"using Shared_{name} = {kind}{sides}; auto& {name} = *reinterpret_cast<Shared_{name}*>(fmm::shared_begin());"
    )


def play(launches: Iterable[Launch], memory: Mapping[str, Array]) -> None:
    """Run launches on these arrays, one after the other."""
    for launch in launches:
        words = parameter_words(launch.parameters, launch.slots, memory)
        launch_words(compiled(launch.kernel).launch, words, launch.grid[0])
