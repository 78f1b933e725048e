"""The tiled kernel on a CUDA device: right at any size and layout, alone, in batches and with sums inside."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.plan import Plan
from fmm.kernels.steps import step_table_names
from fmm.kernels.strategy import PRESETS
from fmm.perfmodel import thresholds

pytestmark = pytest.mark.gpu
cupy = pytest.importorskip("cupy")
LEAVES = (*(f"tile.{s.name.lower()}" for s in PRESETS), "tile.plain", "tile.gpu8.texture", "tile.medium.texture")
LARGEST = 130


def matrix(rng: Any, rows: int, cols: int, order: str, gap: int) -> Any:
    """Random numbers in a part of a larger array of NaN, whose first element need not be aligned."""
    shape = (rows, cols + gap) if order == "C" else (rows + gap, cols)
    whole = cupy.full(shape, cupy.nan, np.float32, order=order)
    part = whole[:, gap:] if order == "C" else whole[gap:]
    part[...] = rng.standard_normal((rows, cols), np.float32)
    return part


def check(plan: str, size: tuple[int, int, int], orders: str, gap: int, alpha: float, beta: float) -> None:
    from fmm.kernels.cupy_backend import CupyBackend

    rng, (m, k, n) = cupy.random.default_rng(3), size
    shapes = (m, k), (k, n), (m, n)
    a, b, c = (matrix(rng, *shape, order, gap) for shape, order in zip(shapes, orders, strict=True))
    before = c.copy()
    wide = [x.astype(np.float64) for x in (a, b, before)]
    CupyBackend().multiply(Plan.parse(plan), a, b, c, alpha, beta)
    expected = alpha * (wide[0] @ wide[1]) + beta * wide[2]
    room = abs(wide[0]) @ abs(wide[1]) + abs(wide[2]) + 1e-30
    assert float(abs(c - expected).max()) <= 60 * 2.0**-24 * float(room.max()), (plan, size, orders, gap)
    around = c.base if c.base is not None else c
    assert int(cupy.isnan(around).sum()) == around.size - c.size


@pytest.mark.parametrize("leaf", LEAVES)
def test_products_of_any_size(leaf: str) -> None:
    pick = random.Random(leaf)
    for _ in range(40):
        size = pick.randint(1, LARGEST), pick.randint(1, LARGEST), pick.randint(1, LARGEST)
        orders = "".join(pick.choice("CF") for _ in range(3))
        scalars = pick.choice([(1.0, 0.0), (0.5, 2.0), (1.0, 1.0)])
        check(leaf, size, orders, pick.choice([0, 1, 4]), *scalars)


@pytest.mark.parametrize("leaf", ["tile.medium", "tile.square", "tile.half", "tile.third"])
def test_fused_levels_of_any_size(leaf: str) -> None:
    pick = random.Random(leaf)
    for level, orders in product(("strassen.fused", "winograd.fused.pad4"), ("CCC", "FCF")):
        for side in (64, 129, pick.randint(4, LARGEST)):
            size = side, pick.randint(4, LARGEST), pick.randint(4, LARGEST)
            check(f"{level} > {leaf}", size, orders, pick.choice([0, 1, 4]), *pick.choice([(1.0, 0.0), (0.5, 2.0)]))


@pytest.mark.parametrize("leaf", ["tile", "tile.gpu8.texture"])
@pytest.mark.parametrize("table", step_table_names())
def test_step_tables_whose_products_update(table: str, leaf: str) -> None:
    """Each kernel of a table in one launch; some keep sums of A and B in C, so the inner side is the shortest."""
    pick = random.Random(table + leaf)
    for orders, side in product(("CCC", "FFF", "CFC"), (64, 97, pick.randint(4, LARGEST))):
        size = side + pick.randint(0, 40), side - pick.randint(0, 3), side + pick.randint(0, 40)
        check(f"{table} > {leaf}", size, orders, pick.choice([0, 1, 4]), *pick.choice([(1.0, 0.0), (0.5, 2.0)]))
    check(f"{table}.peel > {leaf}", (side + 1, side, side + 2), "CCC", 0, 1.0, 1.0)


@pytest.mark.parametrize("leaf", ["tile.gpu8", "tile.gpu8.texture", "tile"])
@pytest.mark.parametrize("scheme", ["strassen", "winograd"])
def test_the_recursive_codes_of_li_ranka_sahni(scheme: str, leaf: str) -> None:
    for n in (32, 33, 64, 100, 130):
        check(str(thresholds.plan(scheme, n, 32, 64, leaf)), (n, n, n), "CCC", 0, 1.0, 0.0)


@pytest.mark.parametrize("size", [(1536, 1536, 1536), (2050, 700, 1030)])
def test_overlapping_launches_add_in_order(size: tuple[int, int, int]) -> None:
    """Run to run the same bits: launches that overlap write one after the other."""
    from fmm.kernels.cupy_backend import CupyBackend

    rng, (m, k, n) = cupy.random.default_rng(4), size
    a, b = rng.standard_normal((m, k), np.float32), rng.standard_normal((k, n), np.float32)
    found = [CupyBackend().multiply("strassen.fused > tile", a, b) for _ in range(5)]
    assert all((x == found[0]).all() for x in found)
    check("strassen.fused > tile", size, "CCC", 0, 1.0, 0.0)


def test_two_levels_in_one_pass() -> None:
    check("strassen^2.fused > tile.medium", (129, 66, 97), "CCC", 0, 1.0, 0.0)


@pytest.mark.parametrize(
    "plan", ["strassen.batched.pad4 > tile.medium", "strassen^2.batched.pad16 > tile.half", "winograd > tile.third"]
)
def test_batches(plan: str) -> None:
    for size in ((256, 192, 320), (255, 131, 77)):
        check(plan, size, "CCC", 0, 1.0, 0.0)
