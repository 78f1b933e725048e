"""The tiled kernel on a CUDA device: correct at any size and layout, alone, in batches and with fused sums."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.hardware.datasheets import datasheet_names, datasheet_of
from fmm.kernels.algorithms.step_table import step_table_names
from fmm.kernels.cuda.products.kernel_sizes import ALL_STRATEGIES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.block_model import fastest_float32_tile
from fmm.perfmodel.papers import li_counts as li_thresholds
from fmm.problem import Problem

pytest.importorskip("cupy")

import cupy

from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu
LEAVES = (
    *((f"tile.{s.name.lower()}", dtype) for s in ALL_STRATEGIES for dtype in s.types),
    *product(("tile.plain", "tile.gpu8.texture", "tile.medium.texture"), ("float32", "float64")),
)
SIZES = {"float32": 40, "float64": 15}  # of each leaf
LARGEST = 130


def matrix(rng: Any, rows: int, cols: int, order: str, gap: int, dtype: Any) -> Any:
    """Return random numbers in a part of a larger array of NaN; its first element need not be aligned."""
    shape = (rows, cols + gap) if order == "C" else (rows + gap, cols)
    whole = cupy.full(shape, cupy.nan, dtype, order=order)
    part = whole[:, gap:] if order == "C" else whole[gap:]
    part[...] = rng.standard_normal((rows, cols), dtype)
    return part


def check(
    plan: str, size: tuple[int, int, int], orders: str, gap: int, alpha: float, beta: float, dtype: Any = np.float32
) -> None:
    rng, (m, k, n) = cupy.random.default_rng(3), size
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (matrix(rng, *shape, order, gap, dtype) for shape, order in zip(shapes, orders, strict=True))
    before = c.copy()
    wide = [x.astype(np.float64) for x in (a, b, before)]
    DeviceBackend().multiply_by_plan(Plan.parse(plan), a, b, c, alpha, beta)
    expected = alpha * (wide[0] @ wide[1]) + beta * wide[2]
    room = abs(wide[0]) @ abs(wide[1]) + abs(wide[2]) + 1e-30
    worst, roundoff = float(abs(c - expected).max()), float(np.finfo(dtype).eps) / 2
    assert worst <= 60 * roundoff * float(room.max()), (plan, size, orders, gap)
    around = c.base if c.base is not None else c
    assert int(cupy.isnan(around).sum()) == around.size - c.size


@pytest.mark.parametrize(("leaf", "dtype"), LEAVES)
def test_products_of_any_size(leaf: str, dtype: str) -> None:
    pick = random.Random(leaf)
    for _ in range(SIZES[dtype]):
        size = pick.randint(1, LARGEST), pick.randint(1, LARGEST), pick.randint(1, LARGEST)
        orders = "".join(pick.choice("CF") for _ in range(3))
        scalars = pick.choice([(1.0, 0.0), (0.5, 2.0), (1.0, 1.0)])
        check(leaf, size, orders, pick.choice([0, 1, 4]), *scalars, np.dtype(dtype).type)


def test_the_driver_agrees_with_the_datasheet() -> None:
    """The rates agree within the usual difference of datasheets and drivers, for a device in the tables."""
    found = cuda_device_chip(0)
    same = found.limits.capability, found.multiprocessors
    entries = [x for x in map(datasheet_of, datasheet_names()) if (x.capability, x.sms) == same]
    assert min(found.clock, found.bandwidth, found.cache) > 1e6
    assert not entries or any(found.bandwidth == pytest.approx(x.global_memory_bandwidth, rel=0.1) for x in entries)
    assert all(found.clock == pytest.approx(1e6 * x.boost_mhz, rel=0.2) for x in entries)
    assert (
        fastest_float32_tile((8192, 8192, 8192), found).m_s >= 64
        and fastest_float32_tile((64, 4096, 64), found).m_s <= 32
    )


@pytest.mark.parametrize(
    ("leaf", "dtype"),
    [
        *((f"tile.{name}", np.float32) for name in ("medium", "square", "half", "third")),
        *((f"tile.{name}", np.float64) for name in ("huge", "solo", "trio")),
    ],
)
def test_fused_levels_of_any_size(leaf: str, dtype: Any) -> None:
    pick = random.Random(leaf)
    for level, orders in product(("strassen.fused", "winograd.fused.pad4"), ("CCC", "FCF")):
        for side in (64, 129, pick.randint(4, LARGEST)):
            size = side, pick.randint(4, LARGEST), pick.randint(4, LARGEST)
            scalars = pick.choice([(1.0, 0.0), (0.5, 2.0)])
            check(f"{level} > {leaf}", size, orders, pick.choice([0, 1, 4]), *scalars, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("leaf", ["tile", "tile.gpu8.texture"])
@pytest.mark.parametrize("table", step_table_names())
def test_step_tables_whose_products_update(table: str, leaf: str, dtype: Any) -> None:
    """Each kernel of a table in one launch; some keep sums of A and B in C, so the inner side is the shortest."""
    pick = random.Random(table + leaf)
    for orders, side in product(("CCC", "FFF", "CFC"), (64, 97, pick.randint(4, LARGEST))):
        size = side + pick.randint(0, 40), side - pick.randint(0, 3), side + pick.randint(0, 40)
        scalars = pick.choice([(1.0, 0.0), (0.5, 2.0)])
        check(f"{table} > {leaf}", size, orders, pick.choice([0, 1, 4]), *scalars, dtype)
    check(f"{table}.peel > {leaf}", (side + 1, side, side + 2), "CCC", 0, 1.0, 1.0, dtype)


@pytest.mark.parametrize("leaf", ["tile.gpu8", "tile.gpu8.texture", "tile"])
@pytest.mark.parametrize("scheme", ["strassen", "winograd"])
def test_the_recursive_codes_of_li_ranka_sahni(scheme: str, leaf: str) -> None:
    for n in (32, 33, 64, 100, 130):
        check(str(li_thresholds.threshold_plan(scheme, n, 32, 64, leaf)), (n, n, n), "CCC", 0, 1.0, 0.0)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("size", [(1536, 1536, 1536), (2050, 700, 1030)])
def test_overlapping_launches_add_in_order(size: tuple[int, int, int], dtype: Any) -> None:
    """The same bits in every run: launches that overlap write one after the other."""
    rng, (m, k, n) = cupy.random.default_rng(4), size
    a, b = rng.standard_normal((m, k), dtype), rng.standard_normal((k, n), dtype)
    found = [DeviceBackend().multiply_by_plan("strassen.fused > tile", a, b) for _ in range(5)]
    assert all((x == found[0]).all() for x in found)
    check("strassen.fused > tile", size, "CCC", 0, 1.0, 0.0, dtype)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_two_levels_in_one_pass(dtype: Any) -> None:
    check("strassen^2.fused > tile.medium", (129, 66, 97), "CCC", 0, 1.0, 0.0, dtype)


TASKS = ("", ".streams", ".atomic", ".variants", ".streams.variants", ".atomic.variants")
OUTER = ("strassen", "strassen.sequential", "strassen.batched.pad16")
ODD = ((256, 192, 320), "CCC"), ((129, 66, 97), "FCF"), ((255, 131, 77), "CFC")
SIDE_BY_SIDE = [  # plans, and how many of the odd sizes: every order of the operands is other kernels
    (tuple(f"strassen-huang.fused{x} > tile.medium" for x in TASKS), 3),
    (tuple(f"winograd.fused{x}.peel > tile.medium" for x in (".streams", ".atomic.variants")), 2),
    (tuple(f"strassen-huang^2.fused{x} > tile.small" for x in TASKS), 1),
    (tuple(f"{x} > strassen-huang.fused{y} > tile.medium" for x, y in product(OUTER, TASKS)), 1),
]


@pytest.mark.parametrize(("plan", "sizes"), [(plan, sizes) for plans, sizes in SIDE_BY_SIDE for plan in plans])
def test_concurrent_products(plan: str, sizes: int) -> None:
    """Section 3.3's schemes and the hybrids, at odd sizes, unaligned, with alpha and beta."""
    for i, (size, orders) in enumerate(ODD[-sizes:]):
        for scalars in ((1.0, 0.0), (0.5, 2.0), (1.0, 1.0)):
            check(plan, size, orders, i, *scalars)


@pytest.mark.parametrize("tasks", [x for x in TASKS if "atomic" not in x])
def test_all_but_atomic_updates_are_the_same_bits_every_time(tasks: str) -> None:
    rng = cupy.random.default_rng(4)
    a, b = rng.standard_normal((1030, 700), np.float32), rng.standard_normal((700, 1100), np.float32)
    found = [DeviceBackend().multiply_by_plan(f"strassen-huang.fused{tasks} > tile.medium", a, b) for _ in range(8)]
    assert all((x == found[0]).all() for x in found)


@pytest.mark.parametrize("tasks", TASKS)
def test_streams_in_a_graph(tasks: str) -> None:
    """Captured with its forks and joins, and replayed on a C that holds other numbers by then."""
    rng = cupy.random.default_rng(5)
    a, b = rng.standard_normal((514, 300), np.float32), rng.standard_normal((300, 258), np.float32)
    c = cupy.full((514, 258), cupy.nan, np.float32)
    tape = record_plan_for_device(
        Plan.parse(f"strassen-huang.fused{tasks} > tile.medium"), Problem(514, 300, 258, "float32")
    )
    graph = DeviceBackend().captured_graph(tape, a.data.ptr, b.data.ptr, c.data.ptr, 0)
    for _ in range(3):
        c[...] = cupy.nan
        graph.launch_graph(cupy.cuda.get_current_stream())
        expected = a.astype(np.float64) @ b
        assert float(abs(c - expected).max()) <= 1e-3


@pytest.mark.parametrize(
    ("plan", "dtype"),
    [
        ("strassen.batched.pad4 > tile.medium", np.float32),
        ("strassen^2.batched.pad16 > tile.half", np.float32),
        ("winograd > tile.third", np.float32),
        ("strassen^2.batched.pad16 > tile", np.float64),
        ("winograd > tile.duo", np.float64),
    ],
)
def test_batches(plan: str, dtype: Any) -> None:
    for size in ((256, 192, 320), (255, 131, 77)):
        check(plan, size, "CCC", 0, 1.0, 0.0, dtype)


@pytest.mark.parametrize("plan", ["tile.half", "tile.third", "strassen.fused > tile.half", "li-fig13 > tile.square"])
def test_few_launches_of_the_tiled_kernel(plan: str) -> None:
    """For the sanitizers: edges of tiles, sums, updates of several blocks."""
    check(plan, (130, 70, 90), "CCC", 1, 0.5, 2.0)
    check(plan, (132, 40, 96), "FCF", 0, 1.0, 0.0)
