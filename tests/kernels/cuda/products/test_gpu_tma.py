"""Tiled products by the copy engine, on a CUDA device that has one."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest

from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu

FUSED = "strassen.fused.pad8 > tile"  # blocks begin where the engine can read, whatever the size


@pytest.fixture(autouse=True)
def _compiler_engine() -> None:
    if not cuda_device_chip(cupy.cuda.runtime.getDevice()).has_copy_engine:
        pytest.skip("this device's copy engine brings no tiles: compute capability 9.0 is the first that does")


def made(shape: tuple[int, int], order: str, rng: Any) -> Any:
    """Return random numbers in lines at multiples of 16 bytes, with NaN between the lines."""
    lines, length = shape if order == "C" else shape[::-1]
    whole = cupy.full((lines, -(-length // 4) * 4 + 4), cupy.nan, cupy.float32)
    whole[:, :length] = rng.standard_normal((lines, length), cupy.float32)
    return whole[:, :length] if order == "C" else whole[:, :length].T


def check(plan: str, size: tuple[int, int, int], orders: str, alpha: float, beta: float) -> None:
    m, k, n = size
    rng = cupy.random.default_rng(m * k + n)
    a, b, c = (made(shape, order, rng) for shape, order in zip(((m, k), (k, n), (m, n)), orders, strict=True))
    wide = [x.astype(cupy.float64) for x in (a, b, c)]
    if not beta:
        c[...] = cupy.nan
    DeviceBackend().multiply_by_plan(plan, a, b, c, alpha, beta)
    expected = alpha * (wide[0] @ wide[1]) + (beta * wide[2] if beta else 0)
    room = abs(alpha) * (abs(wide[0]) @ abs(wide[1])) + abs(beta * wide[2])
    assert float(abs(c - expected).max()) <= 60 * 2.0**-24 * float(room.max()), (plan, size, orders)
    whole = c.base
    assert int(cupy.isnan(whole).sum()) == whole.size - c.size


@pytest.mark.parametrize("plan", ["tile.deep", "tile.long", FUSED])
@pytest.mark.parametrize("orders", ["CCC", "FCC", "CFF", "FFC"])
def test_products_of_any_size(plan: str, orders: str) -> None:
    pick = random.Random(plan + orders)
    for scalars in ((1.0, 0.0), (0.5, 2.0)):
        for _ in range(12):
            check(plan, (pick.randint(1, 700), pick.randint(1, 700), pick.randint(1, 700)), orders, *scalars)
        check(plan, (2304, 1000, 1500), orders, *scalars)
        check(plan, (130, 9000, 260), orders, *scalars)  # in parts


def test_the_copy_engine_is_used() -> None:
    plan, problem = Plan.parse(FUSED), Problem(1536, 1536, 1536, "float32")
    (launch,) = record_plan_for_device(plan, problem).launches
    assert "gemm_tma" in launch.label and "7 products in one launch" in launch.label
    assert not any(
        "gemm_tma" in x.label for x in record_plan_for_device(plan, problem, alignment=(4, 256, 256, 256)).launches
    )


@pytest.mark.parametrize("size", [(1536, 1536, 1536), (2560, 2560, 2560), (520, 8192, 300)])
def test_run_to_run_the_same_bits(size: tuple[int, int, int]) -> None:
    rng, (m, k, n) = cupy.random.default_rng(4), size
    a, b = rng.standard_normal((m, k), cupy.float32), rng.standard_normal((k, n), cupy.float32)
    found = [DeviceBackend().multiply_by_plan(FUSED, a, b) for _ in range(8)]
    assert all((x == found[0]).all() for x in found)


def test_streams_and_graphs_do_not_disturb_each_other() -> None:
    """Each stream and each graph has its own counters, which are zero again after every launch."""
    n, rng, backend = 1024, cupy.random.default_rng(2), DeviceBackend()
    tape = record_plan_for_device(Plan.parse(FUSED), Problem(n, n, n, "float32"))
    a, b = (rng.standard_normal((n, n), cupy.float32) for _ in "AB")
    expected = backend.multiply_by_plan(FUSED, a, b)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    results = [cupy.full((n, n), cupy.nan, cupy.float32) for _ in range(6)]
    graphs = []
    for c in results[3:]:
        graphs.append(backend.captured_graph(tape, a.data.ptr, b.data.ptr, c.data.ptr, 0))
        backend.run_launches(tape, a.data.ptr, b.data.ptr, c.data.ptr, 0)  # makes counts for the next capture ready
    cupy.cuda.Device().synchronize()
    for c in results:
        c[...] = cupy.nan
    cupy.cuda.Device().synchronize()
    for _ in range(5):
        for stream, direct, graph in zip(streams, results[:3], graphs, strict=True):
            backend.run_launches(tape, a.data.ptr, b.data.ptr, direct.data.ptr, 0, stream)
            graph.launch_graph(stream)
    cupy.cuda.Device().synchronize()
    assert all((c == expected).all() for c in results)


def test_layouts_of_one_problem_agree() -> None:
    """All memory orders agree within rounding."""
    rng = cupy.random.default_rng(9)
    a, b = rng.standard_normal((640, 512), cupy.float32), rng.standard_normal((512, 768), cupy.float32)
    expected = a.astype(cupy.float64) @ b.astype(cupy.float64)
    for left, right in product((a, cupy.asfortranarray(a)), (b, cupy.asfortranarray(b))):
        found = DeviceBackend().multiply_by_plan("tile", left, right)
        assert float(abs(found - expected).max()) < 1e-3


def test_unaligned_problems_use_the_other_kernel() -> None:
    layouts = Layout("C", 257), Layout("C", 301), Layout("C", 301)
    assert record_plan_for_device(Plan.parse("tile.deep"), Problem(130, 257, 301, "float32", layouts)).workspace == 0
    rng = cupy.random.default_rng(9)
    a, b = rng.standard_normal((130, 257), cupy.float32), rng.standard_normal((257, 301), cupy.float32)
    found = DeviceBackend().multiply_by_plan("tile.deep", a, b)
    assert float(abs(found - a.astype(cupy.float64) @ b.astype(cupy.float64)).max()) < 1e-3


@pytest.mark.parametrize("plan", ["tile.deep", FUSED])
def test_few_launches_of_the_engine(plan: str) -> None:
    """For the sanitizers: edges of tiles, parts in turns."""
    check(plan, (264, 72, 136), "CCC", 0.5, 2.0)
    check(plan, (130, 2000, 100), "FCC", 1.0, 0.0)
