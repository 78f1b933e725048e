"""Tiles on and below the diagonal on a device, each array allocated separately: for the sanitizers too."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from fmm.kernels.plans.plan import Plan
from fmm.problem import Fill, Layout, Problem

pytest.importorskip("cupy")

import cupy

from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

pytestmark = pytest.mark.gpu

ROUNDOFF = {"float16": 2.0**-10, "float32": 2.0**-20, "float64": 2.0**-48}


def half_problem(n: int, k: int, dtype: str, rows: bool, fill: Fill, beta: float) -> Problem:
    """Return X X^T, for a row-major or column-major X."""
    layouts = (Layout("C", k), Layout("F", k)) if rows else (Layout("F", n), Layout("C", n))
    return Problem(n, k, n, dtype, (*layouts, Layout("C", n)), 1, beta, "gram", 1, fill)


def computed(plan: str, problem: Problem, x: Any, old: Any) -> Any:
    """Return C, for the numbers of X in memory order."""
    a, c = cupy.asarray(x), cupy.asarray(old)
    found = record_plan_for_device(Plan.parse(plan), problem)
    workspace = cupy.zeros(max(found.workspace, 1), cupy.uint8)
    DeviceBackend().run_launches(found, a.data.ptr, a.data.ptr, c.data.ptr, workspace.data.ptr)
    return cupy.asnumpy(c).astype(np.float64)


BY_ALL = ("tile", "gram.tile > vendor", "gram.tile.outer > vendor", "small")
BY_PLANES = ("f16x3", "gram > f16x3", "gram > strassen.batched.pad16 > f16x3")


@pytest.mark.parametrize(("dtype", "plan"), [*product(ROUNDOFF, BY_ALL), *(("float32", plan) for plan in BY_PLANES)])
def test_few_launches_of_triangles(dtype: str, plan: str) -> None:
    """Several tiles, edges of tiles, the mirror, updates; aligned rows and others."""
    cases: tuple[tuple[Fill, float], ...] = ("full", 0), ("lower", 2), ("full", -1)
    for (n, k), rows, (fill, beta) in product(((264, 72), (137, 19)), (True, False), cases):
        rng = np.random.default_rng(n + k)
        x, square = rng.standard_normal((n, k)).astype(dtype), rng.standard_normal((n, n))
        old, problem = (square + square.T).astype(dtype), half_problem(n, k, dtype, rows, fill, beta)
        with cupy.cuda.using_allocator(lambda size: cupy.cuda.MemoryPointer(cupy.cuda.Memory(size), 0)):
            found = computed(plan, problem, x if rows else np.ascontiguousarray(x.T), old)
        wide, below = x.astype(np.float64), np.tri(n, dtype=bool)
        wanted = wide @ wide.T + beta * old.astype(np.float64)
        assert np.abs(found - wanted)[below].max() <= 4 * ROUNDOFF[dtype] * np.abs(wanted).max()
        np.testing.assert_array_equal(found[~below], (found.T if fill == "full" else old.astype(np.float64))[~below])
