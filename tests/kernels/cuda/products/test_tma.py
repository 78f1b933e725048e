"""Tiled products by the copy engine, without one: what NVRTC makes of them, what they compute on the host, launches."""

from __future__ import annotations

import ctypes
import subprocess
from dataclasses import replace
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tile_sizes import BULK, SUMMING_BULK, Strategy
from fmm.kernels.cuda.products.tiled import PARAMETER_BYTES, Lines, Several, TileOp
from fmm.kernels.cuda.products.tiled_gemm import tile_op
from fmm.kernels.cuda.products.tiled_source import ENTRY, OPTIONS
from fmm.kernels.cuda.products.tma import SHARED, BulkOp, Map, aligned, best_bulk, bulk_op, makespan, parts_of
from fmm.kernels.cuda.products.tma_source import BulkKernel, source
from fmm.kernels.cuda.record import record
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_time import GEMM, seconds
from fmm.problem import Layout, Problem
from tests.kernels.cuda.products.test_tiled import COMPILER, FLAGS, H200
from tests.kernels.cuda.sums.test_sum_source import in_parallel, nvrtc, report

SMS = 132
SMALL = Strategy("Small128", m_s=64, n_s=32, k_s=8, m_r=4, n_r=4, warp_m=8, warp_n=4, stages=6, blocks=1)
DEEPER = Strategy("Deeper128", m_s=32, n_s=64, k_s=16, m_r=4, n_r=4, warp_m=4, warp_n=8, stages=5, blocks=1)


def launch_of(plan: str, problem: Problem, s: Strategy, multiprocessors: int = SMS) -> BulkOp:
    tape = record(Plan.parse(plan), problem)
    assert tape.workspace == 0
    (op,) = tape.ops
    tiled = tile_op(op, H200, "float32") if isinstance(op, GemmOp) else op
    assert isinstance(tiled, TileOp | Several)
    assert aligned(tiled)
    made = bulk_op(tiled, s, multiprocessors)
    assert made is not None
    return made


# ---- NVRTC


@pytest.mark.parametrize(
    ("plan", "s"), [("strassen.fused > tile", SUMMING_BULK), ("tile", BULK[1])], ids=["sums in it", "plain"]
)
def test_no_number_leaves_the_registers(plan: str, s: Strategy) -> None:
    """Where there is a copy engine; elsewhere gemm_simt.cuh does the same. Registers: Huang's Eq. 16 at least."""
    nvrtc()
    made = launch_of(plan, Problem(2560, 2560, 2560, "float32"), s).kernel
    jobs = [(f"{plan} {a}", source(made), a, OPTIONS) for a in ("sm_90", "sm_100")]
    for r in in_parallel(report, jobs):
        assert r.local == 0, r
        assert s.m_r * s.n_r + s.m_r + s.n_r <= r.registers <= 65536 // s.threads, r
    assert made.shared <= SHARED


# ---- on the host: the threads of a block are threads, and the copy engine is a loop

LANGUAGE = r"""
#include <atomic>
#include <barrier>
#include <bit>
#include <cmath>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>
#include <algorithm>
using std::abs;
using std::max;
using std::min;
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
#define __align__(x)
struct Dim { unsigned x, y, z; };
static thread_local Dim threadIdx;
static unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
"""
HOST = r"""
alignas(1024) float memory[1 << 16];
static Dim blockIdx;
static std::barrier<>* everyone;
static std::vector<std::unique_ptr<std::barrier<>>> warps;
static void __syncthreads() { everyone->arrive_and_wait(); }
static void __syncwarp() { warps[threadIdx.x / 32]->arrive_and_wait(); }
"""
# In the place of ptx_tma.cuh, the first part: what one copy brings.
COPIES = r"""
namespace fmm {
struct alignas(64) Map { long long address, length, lines, layers, leading, layer, across, down, exchange, rest[7]; };
static void copy(void* to, const Map* m, int x, int y, int z) {
    for (int j = 0; j < m->down; ++j)
        for (int i = 0; i < m->across; ++i) {
            const bool there = x + i >= 0 && x + i < m->length && y + j >= 0 && y + j < m->lines && z < m->layers;
            const char* line = reinterpret_cast<const char*>(m->address) + z * m->layer + (y + j) * m->leading;
            int place = 4 * (j * m->across + i);
            if (m->exchange) place ^= place / 128 % (m->exchange / 16) * 16;
            *reinterpret_cast<float*>(static_cast<char*>(to) + place) =
                there ? *reinterpret_cast<const float*>(line + 4 * (x + i)) : 0.0f;
        }
}
}
"""
# The second: a gate's phase ends when all have arrived and all bytes have come.
GATES = r"""
namespace fmm {
struct Gate { int arrivals, waiting, due; unsigned phase; };
static std::mutex one_at_a_time;
static std::condition_variable changed;
static void make_gate(Gate* g, int arrivals) { *g = {arrivals, arrivals, 0, 0}; }
static void show_gates() {}
static void settle(Gate* g) {
    if (g->waiting == 0 && g->due == 0) { g->waiting = g->arrivals; ++g->phase; changed.notify_all(); }
}
static void expect(Gate* g, int bytes) {
    std::lock_guard lock(one_at_a_time);
    g->due += bytes; --g->waiting; settle(g);
}
static void arrive(Gate* g) { std::lock_guard lock(one_at_a_time); --g->waiting; settle(g); }
static void pass(Gate* g, unsigned parity) {
    std::unique_lock lock(one_at_a_time);
    changed.wait(lock, [=] { return (g->phase & 1) != parity; });
}
static void bring(void* to, const Map* m, int x, int y, int z, Gate* g) {
    copy(to, m, x, y, z);
    std::lock_guard lock(one_at_a_time);
    g->due -= 4 * m->across * m->down; settle(g);
}
template <int THREADS> void meet() { __syncthreads(); }
static void wait_for_turn(const unsigned* count, unsigned turn) { if (*count != turn) std::abort(); }
static void pass_turn(unsigned* count, unsigned turn) { *count = turn; }
template <int N> void add_there(float* q, const float (&x)[N]) { for (int e = 0; e < N; ++e) q[e] += x[e]; }
}
"""
DRIVER = r"""
extern "C" int launch(const void* parameters, int blocks) {{
    std::barrier<> all({threads});
    everyone = &all;
    warps.clear();
    for (int w = 0; w < {threads} / 32; ++w) warps.push_back(std::make_unique<std::barrier<>>(32));
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < {threads}; ++t)
        threads.emplace_back([=] {{
            threadIdx = {{t, 0, 0}};
            for (unsigned i = 0; i < blocks; ++i) {{
                if (t == 0) blockIdx = {{i, 0, 0}};
                __syncthreads();
                {entry}(*static_cast<const Launch*>(parameters));
                __syncthreads();
            }}
        }});
    for (auto& t : threads) t.join();
    return sizeof(Launch);
}}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a launch on the host; kernels are compiled once."""
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++ or clang++) for the kernel's source on the host")
    folder = tmp_path_factory.mktemp("bulk")
    libraries: dict[BulkKernel, Any] = {}

    def compiled(kernel: BulkKernel) -> Any:
        path = folder / str(len(libraries))
        driver = DRIVER.format(threads=kernel.strategy.threads, entry=ENTRY)
        path.with_suffix(".cpp").write_text(for_the_host(kernel, HOST, GATES) + driver, encoding="utf-8")
        assert kernel.shared <= 4 * (1 << 16)
        flags = [flag.replace("-O0", "-O1") for flag in FLAGS]
        command = [str(COMPILER), *flags, "-shared", "-fPIC", f"{path}.cpp", "-o", f"{path}.so"]
        subprocess.run(command, check=True)
        return ctypes.CDLL(f"{path}.so")

    def launch(op: BulkOp, arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], int]:
        """The counts and the flag after it."""
        starts = {name: x.ctypes.data for name, x in arrays.items()}
        if op.kernel not in libraries:
            libraries[op.kernel] = compiled(op.kernel)
        told = np.frombuffer(op.parameters, np.int64)
        room = np.zeros(len(told) + 8, np.int64)
        words = room[-room.ctypes.data % 64 // 8 :][: len(told)]
        words[:] = told
        counts, flag = np.zeros(max(op.turns, 1), np.uint32), np.zeros(1, np.int32)
        for word, x in zip(op.map_words, op.maps, strict=True):
            words[word : word + 9] = described(x, starts[x.piece.base])
        for word, piece in zip(op.dest_words, op.dest, strict=True):
            words[word] = starts[piece.base] + piece.offset
        words[op.turns_word], words[op.flag_word] = counts.ctypes.data, flag.ctypes.data
        size = libraries[op.kernel].launch(words.ctypes.data_as(ctypes.c_void_p), op.grid[0])
        assert size == words.nbytes
        return counts, int(flag[0])

    return launch


def for_the_host(kernel: BulkKernel, host: str, gates: str) -> str:
    """The kernel's source, with functions in the place of what a GPU has."""
    files, stub = source(kernel).split("using Task =", 1)
    head, _, engine_and_body = files.partition("// What Hopper's copy engine")
    body = engine_and_body[engine_and_body.index("// Products with sums in them") :]
    text = LANGUAGE + host + head + COPIES + gates + body + "using Task =" + stub
    return text.replace("#pragma once", "")


def described(x: Map, start: int) -> list[int]:
    """Map, as COPIES has it."""
    lines = x.leading * 4, x.layer * 4
    return [start + x.piece.offset, x.length, x.lines, x.layers, *lines, *x.box, x.exchange]


def memory(lines: int, leading: int) -> np.ndarray[Any, Any]:
    """NaN around and between the lines, from a multiple of 64 bytes on."""
    raw = np.full(lines * leading + 64, np.nan, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + lines * leading + 16]


def check(
    plan: str,
    size: tuple[int, int, int],
    orders: str,
    scalars: tuple[float, float],
    s: Strategy,
    host: Any,
    multiprocessors: int = SMS,
) -> BulkOp:
    """Small integers: exact. Nothing beside C is touched, counts are as before."""
    m, k, n = size
    shapes = (m, k), (k, n), (m, n)
    lines = [shape if order == "C" else shape[::-1] for order, shape in zip(orders, shapes, strict=True)]
    leading = [-(-x // 4) * 4 + 4 for _, x in lines]
    layouts = [Layout(order, x) for order, x in zip(orders, leading, strict=True)]  # type: ignore[arg-type]
    problem = Problem(m, k, n, "float32", tuple(layouts), *scalars)  # type: ignore[arg-type]
    op = launch_of(plan, problem, s, multiprocessors)
    rng = np.random.default_rng(3)
    whole = [memory(count, step) for (count, _), step in zip(lines, leading, strict=True)]
    views = []
    for x, (count, length), step, order in zip(whole, lines, leading, orders, strict=True):
        inside = x[: count * step].reshape(count, step)[:, :length]
        inside[...] = rng.integers(-3, 4, inside.shape)
        views.append(inside if order == "C" else inside.T)
    a, b, c = (x.astype(np.float64) for x in views)
    if not scalars[1]:
        views[2][...] = np.inf
    beside = np.isnan(whole[2])
    counts, flag = host(op, dict(zip("ABC", whole, strict=True)))
    np.testing.assert_array_equal(views[2], scalars[0] * (a @ b) + (scalars[1] * c if scalars[1] else 0))
    assert (np.isnan(whole[2]) == beside).all()
    assert not counts.any()
    assert flag == 0
    return op


@pytest.mark.parametrize("s", [SMALL, DEEPER], ids=lambda s: s.name)
@pytest.mark.parametrize("orders", ["CCC", "FFC", "CFF"])
def test_a_product_on_the_host(s: Strategy, orders: str, host: Any) -> None:
    for size, scalars in (((67, 45, 70), (1.0, 0.0)), ((8, 5, 7), (-2.0, 3.0))):
        check("tile", size, orders, scalars, s, host)


@pytest.mark.parametrize("orders", ["CCC", "FCF"])
def test_a_level_in_one_launch_on_the_host(orders: str, host: Any) -> None:
    """Blocks of unequal sizes, tiles beyond their edges, an old value of C."""
    for size, scalars in (((144, 48, 80), (1.0, 0.0)), ((81, 33, 57), (2.0, -1.0))):
        op = check("strassen.fused.pad8 > tile", size, orders, scalars, SMALL, host)
        assert len(op.parts) == 7
        assert op.kernel.shapes == {(True, True), (True, False), (False, True)}


def test_parts_of_products_on_the_host(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tiles, a long inner dimension: parts of it are tasks that write in turns."""
    op = check("tile", (60, 900, 30), "CCC", (1.0, 2.0), SMALL, host)
    assert len(op.parts) > 1
    assert op.kernel.order == "turns"
    op = check("strassen.fused.pad8 > tile", (64, 1100, 64), "CCC", (1.0, 0.0), SMALL, host)
    assert len(op.parts) > 7


@pytest.mark.parametrize(
    ("plan", "size", "multiprocessors"),
    [
        ("tile", (130, 800, 70), 8),
        ("tile", (260, 500, 130), 24),
        ("strassen.fused.pad8 > tile", (130, 800, 70), 25),
        ("strassen.fused.pad8 > tile", (130, 1600, 70), 11),
    ],
)
def test_parts_of_the_last_tiles_on_the_host(
    plan: str, size: tuple[int, int, int], multiprocessors: int, host: Any
) -> None:
    """More tiles than fit: those left over are cut, wherever in a product that begins."""
    for scalars in ((1.0, 2.0), (-1.0, 0.0)):
        op = check(plan, size, "CCC", scalars, SMALL, host, multiprocessors)
        assert len({x.tiles for x in op.parts}) > 1


@pytest.mark.parametrize("all_", [1.0, 1e-18])
@pytest.mark.parametrize("one", [np.inf, -np.inf, np.nan, 1e37, 1.0, 0.0])
def test_the_flag_is_raised(all_: float, one: float, host: Any) -> None:
    """By what is not finite, by what might become so when some are added, and by what the cache would take for zero."""
    op = launch_of("strassen.fused > tile", Problem(16, 16, 16, "float32"), SMALL)
    a, b, c = (np.full((16, 16), all_, np.float32) for _ in "ABC")
    a[3, 5] = one * all_
    with np.errstate(all="ignore"):
        _, flag = host(op, {"A": a, "B": b, "C": c})
    assert flag == (all_ < 1 or one not in (0, 1))


def test_batches_on_the_host(host: Any) -> None:
    """Layers of a batch, each with parts in turns."""
    problem = Problem(70, 640, 36, "float32")
    (gemm,) = (op for op in record(Plan.parse("tile"), problem).ops if isinstance(op, GemmOp))
    tiled = tile_op(gemm, H200, "float32")
    sizes = (70, 640), (640, 36), (70, 36)
    lines = tuple(Lines(x.leading, r * c) for x, (r, c) in zip(tiled.lines, sizes, strict=True))
    op = bulk_op(replace(tiled, count=3, lines=lines), SMALL, SMS)
    assert op is not None
    assert len(op.parts) > 1
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, (3, *shape)).astype(np.float32) for shape in sizes[:2])
    c = np.full((3, *sizes[2]), np.nan, np.float32)
    host(op, {"A": a, "B": b, "C": c})
    np.testing.assert_array_equal(c, a.astype(np.float64) @ b)


# ---- launches


@pytest.mark.parametrize("n", [256, 1536, 2048, 2560, 3072, 3584, 4096, 8192, 16384])
def test_parts_cover_every_product_and_end_sooner(n: int) -> None:
    tiles, steps, edge = -(-n // 512) * -(-n // 256), n // 16, 13
    parts = parts_of(7, tiles, 1, steps, SUMMING_BULK.k_s, 12 / 7, SMS)
    for product_, tile in product(range(7), range(tiles)):
        own = [x for x in parts if x.product == product_ and x.first <= tile < x.first + x.tiles]
        assert own[0].start == 0
        assert all(x.start + x.steps == y.start for x, y in pairwise(own))
        assert own[-1].start + own[-1].steps == steps
    taken = makespan([(part.tiles, part.steps + edge) for part in parts], SMS)
    assert taken <= makespan([(7 * tiles, steps + edge)], SMS)
    assert n != 3584 or taken < 5.35 * (steps + edge)  # 5.2 rounds of whole tiles; products in parts would take 5.4


def test_jobs_go_to_whatever_machine_is_free() -> None:
    assert makespan([(3, 2.0)], 2) == 4
    assert makespan([(3, 2.0), (2, 1.0)], 2) == 4
    assert makespan([(4, 1.0), (1, 5.0)], 3) == 6
    assert makespan([], 3) == 0


def test_launches_fit_what_a_driver_passes_on() -> None:
    for n, plan in product((1536, 2560, 8192), ("tile", "strassen.fused > tile")):
        for s in BULK if plan == "tile" else (SUMMING_BULK,):
            op = launch_of(plan, Problem(n, n, n, "float32"), s)
            assert len(op.parameters) <= PARAMETER_BYTES
            assert op.kernel.shared <= SHARED
            assert op.grid[0] == sum(part.tiles for part in op.parts)


def test_what_the_engine_cannot_do_is_left_to_the_other_kernel() -> None:
    def op(plan: str, size: int, offset: int = 0) -> TileOp | Several:
        (found,) = record(Plan.parse(plan), Problem(size, size, size + offset, "float32")).ops
        assert isinstance(found, Several | GemmOp)
        return tile_op(found, H200, "float32") if isinstance(found, GemmOp) else found

    assert not aligned(op("tile", 257))
    assert not aligned(op("strassen.fused > tile", 260))  # blocks begin at multiples of 8 bytes only
    assert aligned(op("strassen.fused > tile", 264))
    assert bulk_op(op("winograd.fused > tile", 256), SUMMING_BULK, SMS) is None  # sums of two, three and four blocks
    assert bulk_op(op("strassen^2.fused > tile", 256), SUMMING_BULK, SMS) is None  # no room for four copies


@pytest.mark.parametrize(("side", "faster"), [(256, False), (512, False), (1536, False), (2048, True), (4096, True)])
def test_the_copy_engine_is_for_whole_rounds_of_large_tiles(side: int, faster: bool) -> None:
    """Both times are in seconds: at 1536 two thirds of the last round would be idle."""
    (op,) = (x for x in record(Plan.parse("tile"), Problem(side, side, side, "float32")).ops)
    assert isinstance(op, GemmOp)
    tiled = tile_op(op, H200, "float32")
    time, s = best_bulk(tiled, H200)
    assert s in BULK and tiled.open
    assert (time < seconds(tiled.kernel.strategy, GEMM, (side, side, side), H200)) is faster
