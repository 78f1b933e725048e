"""Tiled products by the copy engine, without a GPU: registers by NVRTC, results on the host, launches."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from functools import cache
from itertools import pairwise, product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.launch_list import MAX_PARAMETER_BYTES
from fmm.kernels.cuda.ops import BlockStrides, GemmOp, MirroredGemm
from fmm.kernels.cuda.products.kernel_sizes import TMA_FUSED_SIZES, TMA_SIZES, TileSizes
from fmm.kernels.cuda.products.simt_kernel import COMPILER_OPTIONS
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.products.split_k import last_job_end_time, split_last_tiles
from fmm.kernels.cuda.products.tma_tiles import (
    SM90_SHARED_BYTES,
    TmaKernel,
    TmaOp,
    has_tma_alignment,
    tma_kernel_source,
    tma_op,
)
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import GEMM_OPERANDS, fastest_tma_tile, launch_seconds
from fmm.problem import Fill, Layout, Problem
from tests.support.chips import H200
from tests.support.host_compiler import header, required_compiler, shared_library
from tests.support.marks import quick_and_slow
from tests.support.nvrtc import nvrtc, report
from tests.support.tiled_on_host import DRIVER, FLAGS, floats, scheduler
from tests.support.tiles import tiled_product
from tests.support.tma_on_host import SMALL, SMS, check, described, for_the_host, launch_of

DEEPER = TileSizes("Deeper128", m_s=32, n_s=64, k_s=16, m_r=4, n_r=4, warp_m=4, warp_n=8, stages=5, blocks=1)


# ---- NVRTC


@pytest.mark.slow
@pytest.mark.parametrize("architecture", quick_and_slow(["sm_90"], ["sm_100"]))
@pytest.mark.parametrize(
    ("plan", "s"), quick_and_slow([("strassen.fused > tile", TMA_FUSED_SIZES)], [("tile", TMA_SIZES[1])])
)
def test_products_stay_in_registers(plan: str, s: TileSizes, architecture: str) -> None:
    """For chips with a copy engine; gemm_simt.cuh does the same on others. Registers: at least Huang's Eq. 16."""
    nvrtc()
    made = launch_of(plan, Problem(2560, 2560, 2560, "float32"), s).kernel
    stays_in_registers(made, s, architecture)


@pytest.mark.slow
@pytest.mark.parametrize("fill", quick_and_slow(["full"], ["lower"]))
def test_triangles_stay_in_registers(fill: Fill) -> None:
    nvrtc()
    layouts = Layout("C", 2560), Layout("F", 2560), Layout("C", 2560)
    problem = Problem(2560, 2560, 2560, "float32", layouts, op="gram", fill=fill)
    stays_in_registers(half_launch(problem, TMA_SIZES[1]).kernel, TMA_SIZES[1], "sm_90")


def half_launch(problem: Problem, s: TileSizes) -> TmaOp:
    (op,) = record_operations(Plan.parse("tile"), problem).ops
    gemm = op.as_full_product if isinstance(op, MirroredGemm) else op
    assert isinstance(gemm, GemmOp)
    made = tma_op(tiled_product(gemm, "float32"), s, SMS)
    assert made is not None and made.kernel.triangle == problem.fill
    return made


def stays_in_registers(made: TmaKernel, s: TileSizes, architecture: str) -> None:
    r = report(f"{made.triangle} {architecture}", tma_kernel_source(made), architecture, COMPILER_OPTIONS)
    assert r.local == 0, r
    assert s.m_r * s.n_r + s.m_r + s.n_r <= r.registers <= 65536 // s.thread_count, r
    assert made.shared_bytes <= SM90_SHARED_BYTES


# ---- on the host, with emulated threads, and a loop as the copy engine

SHARED_BYTES = 4 * (1 << 16)  # of host_cuda/tma_memory.h


@cache
def compiled(kernel: TmaKernel) -> Any:
    assert kernel.shared_bytes <= SHARED_BYTES
    scheduler()
    driver = DRIVER.format(params="Launch", threads=kernel.strategy.thread_count, entry=ENTRY_NAME)
    text = for_the_host(kernel, header("emulated_block.h") + header("tma_memory.h"), header("tma_barriers.h")) + driver
    return shared_library(text, tuple(flag.replace("-O0", "-O1") for flag in FLAGS))


@pytest.fixture(scope="module")
def host() -> Any:
    """Runs a launch on the host."""
    required_compiler()

    def launch(op: TmaOp, arrays: dict[str, np.ndarray[Any, Any]]) -> tuple[np.ndarray[Any, Any], int]:
        """Return the counters and the flag after the launch."""
        starts = {name: x.ctypes.data for name, x in arrays.items()}
        packed = np.frombuffer(op.parameter_bytes, np.int64)
        room = np.zeros(len(packed) + 8, np.int64)
        words = room[-room.ctypes.data % 64 // 8 :][: len(packed)]
        words[:] = packed
        counts, flag = np.zeros(max(op.ordering_counter_count, 1), np.uint32), np.zeros(1, np.int32)
        for word, x in zip(op.tensor_map_word_indices, op.maps, strict=True):
            words[word : word + 9] = described(x, starts[x.piece.base])
        for word, piece in zip(op.dest_word_indices, op.dest, strict=True):
            words[word] = starts[piece.base] + piece.offset
        words[op.counters_word_index], words[op.flag_word_index] = counts.ctypes.data, flag.ctypes.data
        size = compiled(op.kernel).launch(words.ctypes.data_as(ctypes.c_void_p), op.grid[0], 1)
        assert size == words.nbytes
        return counts, int(flag[0])

    return launch


@pytest.mark.slow
@pytest.mark.parametrize(
    ("orders", "s"),
    quick_and_slow([("CCC", SMALL), ("FFC", SMALL), ("CFF", DEEPER)], [("CFF", SMALL), ("CCC", DEEPER)]),
)
def test_a_product_on_the_host(s: TileSizes, orders: str, host: Any) -> None:
    for size, scalars in (((67, 45, 70), (1.0, 0.0)), ((8, 5, 7), (-2.0, 3.0))):
        check("tile", size, orders, scalars, s, host)


@pytest.mark.slow
@pytest.mark.parametrize("orders", ["CCC", "FCF"])
def test_a_level_in_one_launch_on_the_host(orders: str, host: Any) -> None:
    """Blocks of unequal sizes, tiles beyond their edges, an old value of C."""
    for size, scalars in (((144, 48, 80), (1.0, 0.0)), ((81, 33, 57), (2.0, -1.0))):
        op = check("strassen.fused.pad8 > tile", size, orders, scalars, SMALL, host)
        assert len(op.parts) == 7
        assert op.kernel.shapes == {(True, True), (True, False), (False, True)}


def test_parts_of_products_on_the_host(host: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few tiles and a long inner dimension: its parts are tasks that write in turn."""
    op = check("tile", (60, 900, 30), "CCC", (1.0, 2.0), SMALL, host)
    assert len(op.parts) > 1
    assert op.kernel.order == "turns"
    op = check("strassen.fused.pad8 > tile", (64, 1100, 64), "CCC", (1.0, 0.0), SMALL, host)
    assert len(op.parts) > 7


@pytest.mark.slow
@pytest.mark.quick_cases(1)
@pytest.mark.parametrize(
    ("plan", "size", "multiprocessors"),
    quick_and_slow(
        [("tile", (130, 800, 70), 8), ("strassen.fused.pad8 > tile", (130, 800, 70), 25)],
        [("tile", (260, 500, 130), 24), ("strassen.fused.pad8 > tile", (130, 1600, 70), 11)],
    ),
)
def test_parts_of_the_last_tiles_on_the_host(
    plan: str, size: tuple[int, int, int], multiprocessors: int, host: Any
) -> None:
    """More tiles than fit: the remaining ones are split, wherever in a product they begin."""
    for scalars in ((1.0, 2.0), (-1.0, 0.0)):
        op = check(plan, size, "CCC", scalars, SMALL, host, multiprocessors)
        assert len({x.tiles for x in op.parts}) > 1


@pytest.mark.parametrize("all_", [1.0, 1e-18])
@pytest.mark.parametrize("one", [np.inf, -np.inf, np.nan, 1e37, 1.0, 0.0])
def test_the_flag_is_raised(all_: float, one: float, host: Any) -> None:
    """By numbers that are not finite, that may overflow when added, or that the L2 cache may flush to zero."""
    op = launch_of("strassen.fused > tile", Problem(16, 16, 16, "float32"), SMALL)
    a, b, c = (np.full((16, 16), all_, np.float32) for _ in "ABC")
    a[3, 5] = one * all_
    with np.errstate(all="ignore"):
        _, flag = host(op, {"A": a, "B": b, "C": c})
    assert flag == (all_ < 1 or one not in (0, 1))


def test_batches_on_the_host(host: Any) -> None:
    """Products of a batch, each with parts that write in turn."""
    problem = Problem(70, 640, 36, "float32")
    (gemm,) = (op for op in record_operations(Plan.parse("tile"), problem).ops if isinstance(op, GemmOp))
    tiled = tiled_product(gemm, "float32")
    sizes = (70, 640), (640, 36), (70, 36)
    lines = tuple(BlockStrides(x.leading, r * c) for x, (r, c) in zip(tiled.lines, sizes, strict=True))
    op = tma_op(replace(tiled, count=3, lines=lines), SMALL, SMS)
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
    parts = split_last_tiles(7, tiles, 1, steps, TMA_FUSED_SIZES.k_s, 12 / 7, SMS)
    for product_, tile in product(range(7), range(tiles)):
        own = [x for x in parts if x.product == product_ and x.first <= tile < x.first + x.tiles]
        assert own[0].start == 0
        assert all(x.start + x.steps == y.start for x, y in pairwise(own))
        assert own[-1].start + own[-1].steps == steps
    taken = last_job_end_time([(part.tiles, part.steps + edge) for part in parts], SMS)
    assert taken <= last_job_end_time([(7 * tiles, steps + edge)], SMS)
    assert n != 3584 or taken < 5.35 * (steps + edge)  # 5.2 rounds of whole tiles; products in parts would take 5.4


def test_jobs_go_to_the_machine_that_is_free_first() -> None:
    assert last_job_end_time([(3, 2.0)], 2) == 4
    assert last_job_end_time([(3, 2.0), (2, 1.0)], 2) == 4
    assert last_job_end_time([(4, 1.0), (1, 5.0)], 3) == 6
    assert last_job_end_time([], 3) == 0


def test_parameters_fit_the_drivers_limit() -> None:
    for n, plan in product((1536, 2560, 8192), ("tile", "strassen.fused > tile")):
        for s in TMA_SIZES if plan == "tile" else (TMA_FUSED_SIZES,):
            op = launch_of(plan, Problem(n, n, n, "float32"), s)
            assert len(op.parameter_bytes) <= MAX_PARAMETER_BYTES
            assert op.kernel.shared_bytes <= SM90_SHARED_BYTES
            assert op.grid[0] == sum(part.tiles for part in op.parts)


def test_unsupported_products_use_the_other_kernel() -> None:
    def op(plan: str, size: int, offset: int = 0) -> TileOp | TileGroup:
        (found,) = record_operations(Plan.parse(plan), Problem(size, size, size + offset, "float32")).ops
        assert isinstance(found, TileGroup | GemmOp)
        return tiled_product(found, "float32") if isinstance(found, GemmOp) else found

    assert not has_tma_alignment(op("tile", 257))
    assert not has_tma_alignment(op("strassen.fused > tile", 260))  # blocks begin at multiples of 8 bytes only
    assert has_tma_alignment(op("strassen.fused > tile", 264))
    assert tma_op(op("winograd.fused > tile", 256), TMA_FUSED_SIZES, SMS) is None  # sums of two, three and four blocks
    assert tma_op(op("strassen^2.fused > tile", 256), TMA_FUSED_SIZES, SMS) is None  # no room for four copies


@pytest.mark.parametrize(("side", "faster"), [(256, False), (512, False), (1536, False), (2048, True), (4096, True)])
def test_the_copy_engine_is_for_whole_rounds_of_large_tiles(side: int, faster: bool) -> None:
    """Both times are in seconds: at 1536 two thirds of the last round would be idle."""
    (op,) = (x for x in record_operations(Plan.parse("tile"), Problem(side, side, side, "float32")).ops)
    assert isinstance(op, GemmOp)
    tiled = tiled_product(op, "float32")
    time, s = fastest_tma_tile(tiled, H200)
    assert s in TMA_SIZES and tiled.open_strategy
    assert (time < launch_seconds(tiled.kernel.strategy, GEMM_OPERANDS, (side, side, side), H200)) is faster


# ---- one triangle


@pytest.mark.slow
@pytest.mark.quick_cases(2)
@pytest.mark.parametrize("fill", ["lower", "full"])
@pytest.mark.parametrize(("orders", "alpha", "beta"), [("CF", 1, 0), ("FC", 0.5, 2)])
def test_triangles_on_the_host(fill: Fill, orders: str, alpha: float, beta: float, host: Any) -> None:
    """Tiles on and below the diagonal, edges, more rows of tiles than in a group; everything else stays as it is."""
    for n, k, gap in ((196, 20, 4), (70, 12, 3), (5, 4, 1)):
        sides = [(cols if order == "C" else rows) for order, (rows, cols) in zip(orders, ((n, k), (k, n)), strict=True)]
        a, b = (Layout(order, -(-side // 4) * 4) for order, side in zip(orders, sides, strict=True))  # type: ignore[arg-type]
        problem = Problem(n, k, n, "float32", (a, b, Layout("C", n + gap)), alpha, beta, "symmetric", 1, fill)
        rng, whole, views = np.random.default_rng(3), {}, {}
        for name, layout, (rows, cols) in zip("ABC", problem.layouts, problem.matrix_shapes, strict=True):
            lines = rows if layout.order == "C" else cols
            whole[name] = floats(lines * layout.leading + 64)
            views[name] = np.ndarray((rows, cols), np.float32, whole[name], 0, [4 * step for step in layout.strides])
            views[name][...] = rng.integers(-3, 4, (rows, cols))
        before, old = whole["C"].copy(), views["C"].astype(np.float64)
        _, flag = host(half_launch(problem, SMALL), whole)
        below = np.tri(n, dtype=bool)
        lower = np.where(below, alpha * (views["A"].astype(np.float64) @ views["B"]) + beta * old, 0)
        wanted = np.where(below, lower, lower.T if fill == "full" else old)
        np.testing.assert_array_equal(views["C"], wanted, err_msg=f"{n}")
        views["C"][...] = old
        np.testing.assert_array_equal(whole["C"], before)
        assert flag == 0
