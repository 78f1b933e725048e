"""The tiled kernel without a GPU: what NVRTC makes of it, what it computes on the host, which launches plans make."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.hardware.datasheets import CapabilityLimits, capability_limits
from fmm.hardware.occupancy import count_active_blocks
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm, DeviceView, GemmOp
from fmm.kernels.cuda.products.fused import tile_op_on_block_sums
from fmm.kernels.cuda.products.kernel_sizes import (
    FLOAT64_SIZES,
    FUSED_SIZES,
    H200_STRATEGIES,
    STRATEGIES,
    TileSizes,
    named_strategy,
)
from fmm.kernels.cuda.products.simt_kernel import (
    COMPILER_OPTIONS,
    MemoryAccess,
    TileKernel,
    UpdateMode,
    adding_epilogue,
    simt_kernel_source,
)
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, fit_to_chip
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.fused_order import FIGURE_6_VARIANTS
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.block_model import GEMM_OPERANDS, registers_needed, resident_blocks
from fmm.perfmodel.cost import cost
from fmm.problem import Layout, Problem
from tests.support.chips import H200
from tests.support.host_compiler import required_compiler
from tests.support.host_launch import launch_words
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import ARCHITECTURES, EACH_ARCHITECTURE, in_parallel, nvrtc, report
from tests.support.tiled_on_host import Memory, compiled_for_the_host, floats, tile_words
from tests.support.tiles import tiled_product

FLOAT32 = (*STRATEGIES, *H200_STRATEGIES)
QUICK = tuple(map(named_strategy, ("Square", "Large")))
MOST_BESIDE = 100  # registers beside those of (16): addresses, counters, coefficients, four steps of a line at once


def kernel(
    s: TileSizes, left: int = 1, right: int = 1, dest: int = 1, update: UpdateMode = "keep", dtype: str = "float32"
) -> TileKernel:
    summed = left + right > 2
    return TileKernel(replace(s, stages=2) if summed else s, dtype, left, right, adding_epilogue(dest, update))


# ---- NVRTC


def limits(architecture: str) -> CapabilityLimits:
    digits = architecture.removeprefix("sm_")
    return capability_limits(f"{digits[:-1]}.{digits[-1]}")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("s", "architecture"),
    quick_and_slow(
        [(s, "sm_90") for s in QUICK],
        [
            *((s, "sm_90") for s in FLOAT32 if s not in QUICK),
            *product(QUICK, [a for a in ARCHITECTURES if a != "sm_90"]),
        ],
    ),
)
@pytest.mark.parametrize("operands", [(1, 1, 1), (2, 2, 2)], ids=["gemm", "fused"])
def test_every_strategy_stays_in_registers(s: TileSizes, operands: Any, architecture: str) -> None:
    """No local memory; registers close to equation (16); about the thread blocks that the model expects."""
    nvrtc()
    made = kernel(s, *operands)
    needed, summed, on = registers_needed(s, operands), operands[:2] != (1, 1), limits(architecture)
    r = report(f"{s.name} {architecture}", simt_kernel_source(made, "vector"), architecture, COMPILER_OPTIONS)
    blocks = count_active_blocks(on, s.thread_count, r.registers, made.shared_bytes)
    assert r.local == 0, r
    assert needed <= r.registers <= needed + MOST_BESIDE, r
    assert summed or abs(blocks - resident_blocks(s, GEMM_OPERANDS, on)) <= 1 + blocks // 4, r
    if architecture in ("sm_90", "sm_100"):  # shared memory of an sm_75 holds fewer
        assert blocks >= s.blocks, r


@pytest.mark.slow
@pytest.mark.parametrize("s", H200_STRATEGIES, ids=lambda s: s.name)
def test_every_variant_of_one_level_stays_in_registers(s: TileSizes) -> None:
    """Huang's Var#1 to Var#3 (Var#0 is above), and batches of them, each on one architecture."""
    nvrtc()
    variants = [w for level, number, w, _ in FIGURE_6_VARIANTS if level == 1 and number]
    jobs: list[tuple[Any, ...]] = []
    for i, w in enumerate(variants, H200_STRATEGIES.index(s)):
        made, architecture = replace(kernel(s, *w), products=1 + i % 2), ARCHITECTURES[i % len(ARCHITECTURES)]
        jobs.append(
            (f"{s.name} {w} {architecture}", simt_kernel_source(made, "vector"), architecture, COMPILER_OPTIONS)
        )
    assert all(r.local == 0 for r in in_parallel(report, jobs))


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("architecture", EACH_ARCHITECTURE)
@pytest.mark.parametrize(
    "s", quick_and_slow(FLOAT64_SIZES[:1], [named_strategy("Huge"), *FLOAT64_SIZES[1:]]), ids=lambda s: s.name
)
@pytest.mark.parametrize("operands", [(1, 1, 1), (2, 2, 2)], ids=["gemm", "fused"])
def test_float64_stays_in_registers(s: TileSizes, operands: Any, architecture: str) -> None:
    """Two registers for each number; small tiles where there is no float64 mma instruction."""
    nvrtc()
    left, right, dest = operands
    made = kernel(s, left, right, dest, dtype="float64")
    x = fits(made, architecture)
    r = report(f"{x.strategy.name} {architecture}", simt_kernel_source(x, "vector"), architecture, COMPILER_OPTIONS)
    assert r.local == 0, r
    assert r.registers >= 2 * x.strategy.m_r * x.strategy.n_r, r
    if architecture in ("sm_90", "sm_100"):
        assert (
            count_active_blocks(limits(architecture), s.thread_count, r.registers, made.shared_bytes)
            >= made.min_resident_blocks
        ), r


def fits(made: TileKernel, architecture: str) -> TileKernel:
    """What is launched there."""
    digits, lone = architecture.removeprefix("sm_"), (BlockTerm("A", 0, 1, 1),)
    op = TileOp(made, lone, lone, lone, (BlockStrides(1), BlockStrides(1), BlockStrides(1)), 1, 1, 1)
    return fit_to_chip(op, replace(H200, limits=limits(architecture), version=int(digits))).kernel


def test_a_strategy_that_does_not_fit_is_replaced() -> None:
    def found(made: TileKernel) -> list[str]:
        return [fits(made, architecture).strategy.name for architecture in ARCHITECTURES]

    assert found(kernel(named_strategy("Solo"), dtype="float64")) == ["Medium", "Solo", "Solo", "Solo"]
    assert found(kernel(named_strategy("Solo"), 4, 4, dtype="float64")) == ["Medium", "Huge", "Solo", "Solo"]
    assert found(kernel(named_strategy("Broad"), 4, 4)) == ["Huge", "Broad", "Broad", "Broad"]


# ---- on the host, with emulated threads

GUARD = 64  # NaN before and behind every operand


@pytest.fixture(scope="module")
def host() -> Any:
    """Runs a launch on the host."""
    required_compiler()

    def launch(op: TileOp | TileGroup, memory: Memory, access: MemoryAccess | None = None) -> None:
        library = compiled_for_the_host(op.kernel, access or op.access)
        launch_words(library.launch, tile_words(op, memory), op.grid[0], op.grid[2])

    return launch


def operand(x: np.ndarray[Any, Any], layout: Layout, shape: tuple[int, int]) -> Any:
    lines = shape[0] if layout.order == "C" else shape[1]
    whole = x[GUARD : GUARD + lines * layout.leading].reshape(lines, layout.leading)
    return whole[:, : shape[1]] if layout.order == "C" else whole[:, : shape[0]].T


def whole_problem(
    m: int, k: int, n: int, orders: str, gap: int, alpha: float, beta: float, dtype: str = "float32"
) -> Problem:
    shapes = (m, k), (k, n), (m, n)
    layouts = [
        Layout(order, (cols if order == "C" else rows) + gap)  # type: ignore[arg-type]
        for order, (rows, cols) in zip(orders, shapes, strict=True)
    ]
    return Problem(m, k, n, dtype, (layouts[0], layouts[1], layouts[2]), alpha, beta)


def check(plan: str, problem: Problem, host: Any, shift: int) -> list[TileOp | TileGroup]:
    """All launches of a plan without workspace, on small integers: exact, and memory around C stays as it is."""
    rng = np.random.default_rng(5)
    dtype, wide = problem.dtype, 16 // problem.itemsize
    memory = {name: floats(4096 * 4, dtype) for name in "ABC"}
    views = {
        name: operand(memory[name][shift:], layout, shape)
        for name, layout, shape in zip("ABC", problem.layouts, problem.matrix_shapes, strict=True)
    }
    for x in views.values():
        x[...] = rng.integers(-3, 4, x.shape)
    a, b, c = (x.astype(np.float64) for x in views.values())
    beside = np.isnan(memory["C"])
    tape = record_operations(Plan.parse(plan), problem)
    assert tape.workspace == 0
    wanted = (op for op in tape.ops if isinstance(op, TileOp | TileGroup | GemmOp))
    ops = [tiled_product(op, dtype) if isinstance(op, GemmOp) else op for op in wanted]
    starts = {name: x[GUARD + shift :] for name, x in memory.items()}
    for op in ops:
        host(op, starts, "scalar" if shift % wide else op.access)
    np.testing.assert_array_equal(views["C"], problem.alpha * (a @ b) + problem.beta * c)
    assert (np.isnan(memory["C"]) == beside).all()
    return ops


SIZES = ((68, 20, 64), (33, 18, 37), (5, 1, 7))
ORDERS = ("CCC", "FFF", "CFC")


@pytest.mark.quick_cases(4)
@pytest.mark.parametrize(("orders", "gap", "shift"), [*product(ORDERS, (4,), (0,)), ("CCC", 3, 1), ("FCF", 1, 3)])
@pytest.mark.parametrize(
    "plan",
    quick_and_slow(["tile.medium", "winograd.fused > tile.medium"], ["strassen.fused.pad4 > tile.medium"]),
)
def test_products_on_the_host(plan: str, orders: str, gap: int, shift: int, host: Any) -> None:
    """Any size, any layout, aligned or not, with alpha and beta."""
    for (m, k, n), (alpha, beta) in zip(SIZES, ((1.0, 0.0), (0.5, 2.0), (1.0, 0.0)), strict=True):
        ops = check(plan, whole_problem(m, k, n, orders, gap, alpha, beta), host, shift)
        assert len(ops) == (1 if plan.startswith("tile") else 7) or min(m, k, n) == 1


@pytest.mark.parametrize("options", ["variants", "atomic.variants"])
def test_batches_and_atomic_updates_on_the_host(options: str, host: Any) -> None:
    """Launches of several products of unequal blocks, into separate blocks or added atomically."""
    ops = check(f"strassen.fused.{options} > tile.medium", whole_problem(33, 18, 37, "CCC", 4, 0.5, 1.0), host, 0)
    assert [len(op.ops) if isinstance(op, TileGroup) else 1 for op in ops] == [1, 2, 2, 2]
    assert all(op.fits_one_launch for op in ops if isinstance(op, TileGroup))


@pytest.mark.slow
@pytest.mark.parametrize(("orders", "gap", "shift"), [("CCC", 0, 0), ("FFC", 2, 0), ("CFC", 1, 1)])
@pytest.mark.parametrize("plan", ["tile.medium", "strassen.fused > tile.medium"])
def test_float64_on_the_host(plan: str, orders: str, gap: int, shift: int, host: Any) -> None:
    """The mma instructions, every layout of operands, unequal blocks."""
    sizes = ((68, 22, 50), (33, 18, 37), (5, 1, 7))
    for (m, k, n), (alpha, beta) in zip(sizes, ((1.0, 0.0), (0.5, 2.0), (1.0, 0.0)), strict=True):
        ops = check(plan, whole_problem(m, k, n, orders, gap, alpha, beta, "float64"), host, shift)
        assert all(op.kernel.mma_depth for op in ops)


@pytest.mark.parametrize(
    "plan",
    quick_and_slow(
        ["tile.solo", "tile.small", "tile.gpu8.texture"], ["tile.trio", "tile.duo.plain", "strassen.fused > tile.solo"]
    ),
)
def test_float64_strategies_on_the_host(plan: str, host: Any) -> None:
    """Tiles at every edge, more tiles than stages, also through registers; threads that multiply alone."""
    check(plan, whole_problem(36, 85, 44, "CCC", 0, 1.0, 0.0, "float64"), host, 0)


@pytest.mark.slow
@pytest.mark.parametrize("s", quick_and_slow(QUICK, [s for s in FLOAT32 if s not in QUICK]), ids=lambda s: s.name)
def test_every_strategy_on_the_host(s: TileSizes, host: Any) -> None:
    """With sums and without, tiles at every edge."""
    for plan in (f"tile.{s.name.lower()}", f"strassen.fused > tile.{s.name.lower()}"):
        check(plan, whole_problem(36, 21, 44, "CCC", 0, 1.0, 0.0), host, 0)


def test_wide_accesses_are_made_where_lines_are_aligned() -> None:
    problems = (Problem(*size, "float32") for size in ((8, 8, 8), (8, 6, 8)))
    ops = [op for x in problems for op in record_operations(Plan.parse("tile"), x).ops if isinstance(op, GemmOp)]
    assert [tiled_product(op, "float32").access for op in ops] == ["vector", "scalar"]


def test_a_batch_is_one_launch(host: Any) -> None:
    """The seven products of a batched level, each from its part of the workspace."""
    tape = record_operations(Plan.parse("strassen.batched.pad4 > tile.medium"), Problem(72, 40, 56, "float32"))
    (op,) = (x for x in tape.ops if isinstance(x, GemmOp))
    made, work = tiled_product(op, "float32"), floats(1 << 16)
    assert made.count == 7 and made.grid == (7 * made.tile_counts[0] * made.tile_counts[1], 1, 1)
    work[...] = np.random.default_rng(2).integers(-3, 4, work.shape)

    def layers(i: int, rows: int, cols: int) -> Any:
        piece, lines = made.all_blocks[i], made.lines[i]
        shape, strides = (7, rows, cols), (4 * lines.layer, 4 * lines.leading, 4)
        return np.ndarray(shape, np.float32, work, piece.offset, strides)

    a, b, c = layers(0, made.m, made.k), layers(1, made.k, made.n), layers(2, made.m, made.n)
    assert (made.m, made.k, made.n) == (36, 20, 28)
    expected = a.astype(np.float64) @ b
    host(made, {"W": work})
    np.testing.assert_array_equal(c, expected)


@pytest.mark.parametrize("update", ["keep", "atomic"])
def test_products_of_a_variant_are_one_launch(update: UpdateMode, host: Any) -> None:
    """Two products of unequal sizes, into separate blocks or atomically into the same ones."""
    memory = {name: floats(64 * 64) for name in "ABC"}
    for x in memory.values():
        x[...] = np.random.default_rng(6).integers(-3, 4, x.size)
    whole = {name: x.reshape(64, 64).astype(np.float64) for name, x in memory.items()}
    medium = named_strategy("Medium")

    def view(base: str, row: int, col: int, rows: int, cols: int) -> DeviceView:
        return DeviceView(base, 4 * (64 * row + col), rows, cols, 64, 1, "float32")

    ops = []
    for i, (m, n, k) in enumerate([(21, 13, 9), (20, 12, 8)]):
        left = [(2.0, view("A", 0, 0, m, k)), (-1.0, view("A", 32, 32 * i, m - 1, k - 1))]
        dest = [(1.0, view("C", 0, 32 * i * (update == "keep"), m, n)), (-0.5, view("C", 32, 32 * i, m - 1, n - 1))]
        ops.append(tile_op_on_block_sums(medium, "float32", left, [(1.0, view("B", i, 0, k, n))], dest, update))
        a = 2 * whole["A"][:m, :k]
        a[:-1, :-1] -= whole["A"][32 : 31 + m, 32 * i : 32 * i + k - 1]
        found = a @ whole["B"][i : i + k, :n]
        whole["C"][:m, dest[0][1].offset // 4 :][:, :n] += found
        whole["C"][32 : 31 + m, 32 * i :][:, : n - 1] -= 0.5 * found[:-1, :-1]
    several = TileGroup(tuple(ops), "free" if update == "keep" else "atomic")
    assert several.fits_one_launch and several.grid == (1, 1, 2) and several.kernel.block_counts == (2, 1, 2)
    assert not replace(several, order="turns").fits_one_launch
    assert not replace(several, ops=(ops[0], replace(ops[1], kernel=kernel(medium)))).fits_one_launch
    host(several, memory, "scalar")
    np.testing.assert_array_equal(memory["C"].reshape(64, 64), whole["C"])


# ---- plans


def test_a_fused_level_needs_no_workspace_and_adds_inside() -> None:
    plan, size = Plan.parse("strassen.fused > tile"), (512, 512, 512)
    assert plan_workspace_bytes(plan, *size, 4) == 0 == cost(plan, *size, 4).workspace
    tape = record_operations(plan, Problem(*size, "float32"))
    (several,) = tape.ops
    assert isinstance(several, TileGroup)
    assert several.order == "turns"  # one launch, where the copy engine brings the operands
    ops = several.ops
    assert [op.kernel.block_counts for op in ops] == [
        (2, 2, 2), (2, 1, 2), (1, 2, 2), (1, 2, 2), (2, 1, 2), (2, 2, 1), (2, 2, 1)
    ]  # fmt: skip
    assert {op.kernel.strategy for op in ops} == {replace(FUSED_SIZES["float32"], stages=2)}
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
    plans = [("strassen.batched > tile.half.inner", "float32")]  # whose numbers would not fit in registers
    if dtype != "float64":
        plans += [(text, "float32, float64") for text in ("tile.huge", "winograd.fused > tile", "tile.texture")]
        plans += [("tile.solo.outer", "float64")]
    if dtype == "complex64":
        plans += [("tile", "float32, float64, float16, bfloat16, tf32")]
    for text, types in plans:
        with pytest.raises(PlanError, match=f"multiplies {types} there, not {dtype}"):
            record_operations(Plan.parse(text), Problem(64, 64, 64, dtype))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_each_type_has_its_strategies(dtype: str) -> None:
    """Chosen by size, and the default for fused sums."""
    plans = ("tile", "strassen.batched.pad16 > tile", "strassen.fused > tile")
    ops = [op for text in plans for op in record_operations(Plan.parse(text), Problem(512, 512, 512, dtype)).ops]
    made = [tiled_product(op, dtype) for op in ops if isinstance(op, GemmOp)]
    made += [x for op in ops if isinstance(op, TileGroup) for x in op.ops]
    assert len(made) == 1 + 1 + 7
    for op in made:
        assert dtype in op.kernel.strategy.types and op.kernel.element == dtype
        assert (op.kernel.mma_depth > 0) == (dtype == "float64")
