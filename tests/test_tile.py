"""The tiled kernel without a GPU: what NVRTC makes of it, what it computes on the host, which launches plans make."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
from dataclasses import replace
from functools import cache
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

from fmm.kernels.blocktime import GEMM, registers, resident
from fmm.kernels.capability import Capability, capability
from fmm.kernels.needs import workspace
from fmm.kernels.occupancy import active_blocks
from fmm.kernels.plan import Plan, PlanError
from fmm.kernels.strategy import STRATEGIES, SUMMING, TUNED, Strategy
from fmm.kernels.tape import GemmOp, Layout, Problem, View, record
from fmm.kernels.tile import Several, TileOp, fused_op, pointers
from fmm.kernels.tile_leaf import tile_op
from fmm.kernels.tile_source import ENTRY, OPTIONS, Access, TileKernel, Update, added, source
from fmm.kernels.variants import FIGURE_6
from fmm.perfmodel.blocks import chip
from fmm.perfmodel.cost import cost
from fmm.perfmodel.devices import device
from tests.test_cuda_source import ARCHITECTURES, in_parallel, nvrtc, report

PRESETS = (*STRATEGIES, *TUNED)
H200 = chip(device("H200"))
MOST_BESIDE = 100  # registers beside those of (16): addresses, counters, coefficients, four steps of a line at once


def kernel(s: Strategy, left: int = 1, right: int = 1, dest: int = 1, update: Update = "keep") -> TileKernel:
    summed = left + right > 2
    return TileKernel(replace(s, stages=2) if summed else s, "float32", left, right, added(dest, update))


# ---- NVRTC


def limits(architecture: str) -> Capability:
    digits = architecture.removeprefix("sm_")
    return capability(f"{digits[:-1]}.{digits[-1]}")


@pytest.mark.parametrize("s", PRESETS, ids=lambda s: s.name)
@pytest.mark.parametrize("operands", [(1, 1, 1), (2, 2, 2)], ids=["gemm", "fused"])
def test_every_strategy_stays_in_registers(s: Strategy, operands: Any) -> None:
    """No local memory; registers as (16) says and not many more; about the thread blocks that the model expects.

    Of the kernels of one level the one with two blocks of each has the most: (16) grows with every block.
    """
    nvrtc()
    made = kernel(s, *operands)
    needed, summed = registers(s, operands), operands[:2] != (1, 1)
    jobs: list[tuple[Any, ...]] = [(f"{s.name} {a}", source(made, "vector"), a, OPTIONS) for a in ARCHITECTURES]
    for r, (_, _, architecture, _) in zip(in_parallel(report, jobs), jobs, strict=True):
        on = limits(architecture)
        blocks = active_blocks(on, s.threads, r.registers, made.shared)
        assert r.local == 0, r
        assert needed <= r.registers <= needed + MOST_BESIDE, r
        assert summed or abs(blocks - resident(s, GEMM, on)) <= 1 + blocks // 4, r
        if architecture in ("sm_90", "sm_100"):  # shared memory of an sm_75 holds fewer
            assert blocks >= s.blocks, r


@pytest.mark.parametrize("s", TUNED, ids=lambda s: s.name)
def test_every_variant_of_one_level_stays_in_registers(s: Strategy) -> None:
    """Huang's Var#1 to Var#3 (Var#0 is above), and batches of them, each on one of the architectures."""
    nvrtc()
    variants = [w for level, number, w, _ in FIGURE_6 if level == 1 and number]
    jobs: list[tuple[Any, ...]] = []
    for i, w in enumerate(variants, TUNED.index(s)):
        made, architecture = replace(kernel(s, *w), products=1 + i % 2), ARCHITECTURES[i % len(ARCHITECTURES)]
        jobs.append((f"{s.name} {w} {architecture}", source(made, "vector"), architecture, OPTIONS))
    assert all(r.local == 0 for r in in_parallel(report, jobs))


# ---- on the host: the threads of a block are threads

# Compiled once: starts a block's threads. The library's headers take most of the time, so kernels go without them.
BLOCK = r"""
#include <atomic>
#include <barrier>
#include <thread>
#include <vector>
struct Dim { unsigned x, y, z; };
__thread Dim threadIdx;
Dim blockIdx, gridDim;
static std::barrier<>* everyone;
extern "C" void meet() { everyone->arrive_and_wait(); }
extern "C" void add(float* q, float x) { std::atomic_ref(*q).fetch_add(x); }
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count) {
    gridDim = {unsigned(blocks), 1, unsigned(products)};
    std::barrier<> all(count);
    everyone = &all;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < count; ++t)
        threads.emplace_back([=] {
            threadIdx = {t, 0, 0};
            for (unsigned i = 0; i < blocks * products; ++i) {
                if (t == 0) blockIdx = {i % blocks, 0, i / blocks};
                meet();
                entry(parameters);
                meet();
            }
        });
    for (auto& t : threads) t.join();
}
"""
HOST = r"""
#define __device__
#define __global__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __grid_constant__
#define __shared__
template <class T> const T& min(const T& x, const T& y) { return y < x ? y : x; }
template <class T> const T& max(const T& x, const T& y) { return x < y ? y : x; }
struct alignas(16) float4 { float x, y, z, w; };
float4 memory[16384];
struct Dim { unsigned x, y, z; };
extern Dim blockIdx, gridDim;
extern __thread Dim threadIdx;
extern "C" void meet();
extern "C" void add(float* q, float x);
extern "C" void run(void (*entry)(const void*), const void* parameters, int blocks, int products, unsigned count);
static void __syncthreads() { meet(); }
static unsigned atomicAdd(unsigned* p, unsigned v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
static void atomicAdd(float* q, float x) { add(q, x); }
static void __threadfence() {}
static void __threadfence_system() {}
"""
DRIVER = r"""
extern "C" int launch(const void* parameters, int blocks, int products) {{
    using Parameters = {told};
    auto entry = [](const void* p) {{ {entry}(*static_cast<const Parameters*>(p)); }};
    run(entry, parameters, blocks, products, {threads});
    return sizeof(Parameters);
}}
"""
COMPILER = shutil.which("g++") or shutil.which("clang++")
# A wide access that is not aligned works on this machine and fails on a GPU: the sanitizer makes it fail here too.
FLAGS = ("-std=c++20", "-O0", "-w", "-pthread", "-fsanitize=alignment", "-fno-sanitize-recover=alignment")
GUARD = 64  # NaN before and behind every operand
Memory = dict[str, np.ndarray[Any, Any]]  # base -> its floats, from a multiple of 64 bytes on


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Runs a launch on the host; kernels are compiled once."""
    if COMPILER is None:
        pytest.skip("no C++ compiler (g++ or clang++) for the kernel's source on the host")
    folder = tmp_path_factory.mktemp("tiles")
    libraries: dict[Any, Any] = {}

    def launch(op: TileOp | Several, memory: Memory, access: Access | None = None) -> None:
        key = op.kernel, access or op.access
        if key not in libraries:
            libraries[key] = compiled_for_the_host(folder / str(len(libraries)), *key)
        parameters = np.frombuffer(op.parameters, np.int64).copy()
        for word, piece in zip(pointers(op), op.pieces, strict=True):
            parameters[word] = memory[piece.base].ctypes.data + piece.offset
        blocks, _, products = op.grid
        where = parameters.ctypes.data_as(ctypes.c_void_p)
        assert libraries[key].launch(where, blocks, products) == parameters.nbytes

    return launch


def compiled_for_the_host(path: Path, made: TileKernel, access: Access) -> Any:
    counts = ", ".join(map(str, (*made.operands, made.products)))
    told = f"fmm::Parameters<Number, {counts}>"
    told = f"fmm::Again<{told}>" if made.flag == "obeys" else told
    driver = DRIVER.format(told=told, threads=made.strategy.threads, entry=ENTRY)
    assert made.shared <= 16 * 16384
    return library(path, HOST + source(made, access).replace("#pragma once", "") + driver)


def library(path: Path, text: str) -> Any:
    """What kernels need of BLOCK is loaded before them."""
    if text != BLOCK:
        block()
    path.with_suffix(".cpp").write_text(text, encoding="utf-8")
    command = [str(COMPILER), *FLAGS, "-shared", "-fPIC", f"{path}.cpp", "-o", f"{path}.so"]
    subprocess.run(command, check=True)
    return ctypes.CDLL(f"{path}.so", ctypes.RTLD_GLOBAL if text == BLOCK else ctypes.DEFAULT_MODE)


@cache
def block() -> Any:
    with TemporaryDirectory() as folder:
        return library(Path(folder) / "block", BLOCK)


def floats(count: int) -> np.ndarray[Any, Any]:
    """NaN, from a multiple of 64 bytes on."""
    raw = np.full(count + 32, np.nan, np.float32)
    start = -raw.ctypes.data % 64 // 4
    return raw[start : start + count]


def operand(x: np.ndarray[Any, Any], layout: Layout, shape: tuple[int, int]) -> Any:
    lines = shape[0] if layout.order == "C" else shape[1]
    whole = x[GUARD : GUARD + lines * layout.leading].reshape(lines, layout.leading)
    return whole[:, : shape[1]] if layout.order == "C" else whole[:, : shape[0]].T


def whole_problem(m: int, k: int, n: int, orders: str, gap: int, alpha: float, beta: float) -> Problem:
    shapes = (m, k), (k, n), (m, n)
    layouts = [
        Layout(order, (cols if order == "C" else rows) + gap)  # type: ignore[arg-type]
        for order, (rows, cols) in zip(orders, shapes, strict=True)
    ]
    return Problem(m, k, n, "float32", (layouts[0], layouts[1], layouts[2]), alpha, beta)


def check(plan: str, problem: Problem, host: Any, shift: int) -> list[TileOp | Several]:
    """All launches of a plan without workspace, on small integers: exact, and nothing beside C is touched."""
    rng = np.random.default_rng(5)
    memory = {name: floats(4096 * 4) for name in "ABC"}
    views = {
        name: operand(memory[name][shift:], layout, shape)
        for name, layout, shape in zip("ABC", problem.layouts, problem.shapes, strict=True)
    }
    for x in views.values():
        x[...] = rng.integers(-3, 4, x.shape)
    a, b, c = (x.astype(np.float64) for x in views.values())
    beside = np.isnan(memory["C"])
    tape = record(Plan.parse(plan), problem)
    assert tape.workspace == 0
    wanted = (op for op in tape.ops if isinstance(op, TileOp | Several | GemmOp))
    ops = [tile_op(op, H200) if isinstance(op, GemmOp) else op for op in wanted]
    starts = {name: x[GUARD + shift :] for name, x in memory.items()}
    for op in ops:
        host(op, starts, "scalar" if shift % 4 else op.access)
    np.testing.assert_array_equal(views["C"], problem.alpha * (a @ b) + problem.beta * c)
    assert (np.isnan(memory["C"]) == beside).all()
    return ops


SIZES = ((68, 20, 64), (33, 18, 37), (5, 1, 7))
ORDERS = ("CCC", "FFF", "CFC")


@pytest.mark.parametrize(("orders", "gap", "shift"), [*product(ORDERS, (4,), (0,)), ("CCC", 3, 1), ("FCF", 1, 3)])
@pytest.mark.parametrize("plan", ["tile.medium", "strassen.fused.pad4 > tile.medium", "winograd.fused > tile.medium"])
def test_products_on_the_host(plan: str, orders: str, gap: int, shift: int, host: Any) -> None:
    """Any size, any layout, aligned or not, with alpha and beta."""
    for (m, k, n), (alpha, beta) in zip(SIZES, ((1.0, 0.0), (0.5, 2.0), (1.0, 0.0)), strict=True):
        ops = check(plan, whole_problem(m, k, n, orders, gap, alpha, beta), host, shift)
        assert len(ops) == (1 if plan.startswith("tile") else 7) or min(m, k, n) == 1


@pytest.mark.parametrize("options", ["variants", "atomic.variants"])
def test_batches_and_atomic_updates_on_the_host(options: str, host: Any) -> None:
    """Launches of several products of unequal blocks, into blocks of their own or added to what others write too."""
    ops = check(f"strassen.fused.{options} > tile.medium", whole_problem(33, 18, 37, "CCC", 4, 0.5, 1.0), host, 0)
    assert [len(op.ops) if isinstance(op, Several) else 1 for op in ops] == [1, 2, 2, 2]
    assert all(op.at_once for op in ops if isinstance(op, Several))


@pytest.mark.parametrize("s", PRESETS, ids=lambda s: s.name)
def test_every_strategy_on_the_host(s: Strategy, host: Any) -> None:
    """With sums and without, tiles at every edge; many thousands of threads, so one size each."""
    for plan in (f"tile.{s.name.lower()}", f"strassen.fused > tile.{s.name.lower()}"):
        check(plan, whole_problem(36, 21, 44, "CCC", 0, 1.0, 0.0), host, 0)


def test_wide_accesses_are_made_where_lines_are_aligned() -> None:
    problems = (Problem.contiguous(*size, "float32") for size in ((8, 8, 8), (8, 6, 8)))
    ops = [op for x in problems for op in record(Plan.parse("tile"), x).ops if isinstance(op, GemmOp)]
    assert [tile_op(op, H200).access for op in ops] == ["vector", "scalar"]


def test_a_batch_is_one_launch(host: Any) -> None:
    """The seven products of a batched level, layer by layer of the workspace."""
    tape = record(Plan.parse("strassen.batched.pad4 > tile.medium"), Problem.contiguous(72, 40, 56, "float32"))
    (op,) = (x for x in tape.ops if isinstance(x, GemmOp))
    made, work = tile_op(op, H200), floats(1 << 16)
    assert made.count == 7 and made.grid == (7 * made.tiles[0] * made.tiles[1], 1, 1)
    work[...] = np.random.default_rng(2).integers(-3, 4, work.shape)

    def layers(i: int, rows: int, cols: int) -> Any:
        piece, lines = made.pieces[i], made.lines[i]
        shape, strides = (7, rows, cols), (4 * lines.layer, 4 * lines.leading, 4)
        return np.ndarray(shape, np.float32, work, piece.offset, strides)

    a, b, c = layers(0, made.m, made.k), layers(1, made.k, made.n), layers(2, made.m, made.n)
    assert (made.m, made.k, made.n) == (36, 20, 28)
    expected = a.astype(np.float64) @ b
    host(made, {"W": work})
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("update", ["keep", "atomic"])
def test_products_of_a_variant_are_one_launch(update: Update, host: Any) -> None:
    """Two products of unequal sizes: into blocks of their own, or atomically into the same ones."""
    memory = {name: floats(64 * 64) for name in "ABC"}
    for x in memory.values():
        x[...] = np.random.default_rng(6).integers(-3, 4, x.size)
    whole = {name: x.reshape(64, 64).astype(np.float64) for name, x in memory.items()}
    medium = next(s for s in PRESETS if s.name == "Medium")

    def view(base: str, row: int, col: int, rows: int, cols: int) -> View:
        return View(base, 4 * (64 * row + col), rows, cols, 64, 1)

    ops = []
    for i, (m, n, k) in enumerate([(21, 13, 9), (20, 12, 8)]):
        left = [(2.0, view("A", 0, 0, m, k)), (-1.0, view("A", 32, 32 * i, m - 1, k - 1))]
        dest = [(1.0, view("C", 0, 32 * i * (update == "keep"), m, n)), (-0.5, view("C", 32, 32 * i, m - 1, n - 1))]
        ops.append(fused_op(medium, left, [(1.0, view("B", i, 0, k, n))], dest, update))
        a = 2 * whole["A"][:m, :k]
        a[:-1, :-1] -= whole["A"][32 : 31 + m, 32 * i : 32 * i + k - 1]
        found = a @ whole["B"][i : i + k, :n]
        whole["C"][:m, dest[0][1].offset // 4 :][:, :n] += found
        whole["C"][32 : 31 + m, 32 * i :][:, : n - 1] -= 0.5 * found[:-1, :-1]
    several = Several(tuple(ops), "free" if update == "keep" else "atomic")
    assert several.at_once and several.grid == (1, 1, 2) and several.kernel.operands == (2, 1, 2)
    assert not replace(several, order="turns").at_once
    assert not replace(several, ops=(ops[0], replace(ops[1], kernel=kernel(medium)))).at_once
    host(several, memory, "scalar")
    np.testing.assert_array_equal(memory["C"].reshape(64, 64), whole["C"])


# ---- plans


def test_a_fused_level_needs_no_workspace_and_adds_inside() -> None:
    plan, size = Plan.parse("strassen.fused > tile"), (512, 512, 512)
    assert workspace(plan, *size, 4) == 0 == cost(plan, *size, 4).workspace
    tape = record(plan, Problem.contiguous(*size, "float32"))
    (several,) = tape.ops
    assert isinstance(several, Several)
    assert several.order == "turns"  # one launch, where the copy engine brings the operands
    ops = several.ops
    assert [op.kernel.operands for op in ops] == [
        (2, 2, 2), (2, 1, 2), (1, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 1)
    ]  # fmt: skip
    assert {op.kernel.strategy for op in ops} == {replace(SUMMING, stages=2)}
    written = [(x.offset, x.keep) for op in ops for x in op.dest]
    stored = [offset for offset, keep in written if not keep]
    assert {keep for _, keep in written} == {0, 1}
    assert sorted(stored) == sorted({offset for offset, _ in written}) and len(stored) == 4
    first = {offset: keep for offset, keep in reversed(written)}
    assert not any(first.values())  # every block of C is written first, then added to


BAD = [
    ("strassen > tile.gigantic", "ends in 'tile.gigantic'"),
]


@pytest.mark.parametrize(("text", "message"), BAD, ids=lambda x: x[:30])
def test_plans_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(PlanError, match=re.escape(message)):
        Plan.parse(text)


@pytest.mark.parametrize("dtype", ["float64", "tf32", "bfloat16", "complex64"])
def test_other_types_are_refused(dtype: str) -> None:
    for text in ("tile", "strassen.batched > tile.half.inner", "winograd.fused > tile"):
        with pytest.raises(PlanError, match=f"multiplies float32, not {dtype}"):
            record(Plan.parse(text), Problem.contiguous(64, 64, 64, dtype))
