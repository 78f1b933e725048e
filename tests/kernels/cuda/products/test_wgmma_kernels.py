"""Products by Hopper's warpgroups, kernel by kernel on the host: every type and memory order, clusters, triangles with
and
without their mirror, addends, batches, edges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import pytest

from fmm.kernels.cuda.ops import GemmOp, MirroredGemm, TriangleExtent, TriangleOutput
from fmm.kernels.cuda.products import wgmma_tiles
from fmm.kernels.cuda.products.wgmma_tiles import (
    TRIANGLE_SIZES,
    WGMMA_SIZES,
    WgmmaOp,
    WgmmaSizes,
    wgmma_launch,
    wgmma_op,
)
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import ADDEND
from fmm.problem import Layout, Problem
from tests.support.host_launch import aligned
from tests.support.marks import quick_and_slow
from tests.support.warpgroups_on_host import play

Array = np.ndarray[Any, Any]
TOGETHER, WIDE = WGMMA_SIZES[1], WGMMA_SIZES[0]
ALONE = WgmmaSizes(128, 128, cluster=1)
MULTIPROCESSORS = 4
POISON = {"float16": 0x7E01, "bfloat16": 0x7FC1, "tf32": 0x7FC00001}


def bits_of(x: Array, dtype: str) -> Array:
    """Return small integers in the stored type."""
    if dtype == "float16":
        return x.astype(np.float16).view(np.uint16)
    single = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return single if dtype == "tf32" else (single >> 16).astype(np.uint16)


def numbers_of(x: Array, dtype: str) -> Array:
    if dtype == "float16":
        return x.view(np.float16).astype(np.float64)
    single = x if dtype == "tf32" else x.astype(np.uint32) << 16
    return np.ascontiguousarray(single).view(np.float32).astype(np.float64)


def placed(x: Array, order: str, dtype: str, gap: int = 16) -> tuple[Array, Array, Layout]:
    """Return memory with NaN around a matrix of this layout, the matrix in it, and the layout; 16 bytes at a time."""
    poison = POISON[dtype]
    stored = np.uint32 if dtype == "tf32" else np.uint16
    lines_in_memory = x if order == "C" else x.T
    step = -(-lines_in_memory.shape[1] // 8) * 8 + gap
    memory = aligned((len(lines_in_memory) + 1) * step, stored, poison)
    inside = memory[: len(lines_in_memory) * step].reshape(len(lines_in_memory), step)[:, : lines_in_memory.shape[1]]
    inside[...] = bits_of(lines_in_memory, dtype)
    return memory, inside if order == "C" else inside.T, Layout(order, step)  # type: ignore[arg-type]


def made_op(problem: Problem, sizes: WgmmaSizes, plan: str = "tile", **changed: Any) -> WgmmaOp[Any]:
    found = [op for op in record_operations(Plan.parse(plan), problem).ops if isinstance(op, GemmOp | MirroredGemm)]
    op = found[0].as_full_product if isinstance(found[0], MirroredGemm) else found[0]
    wgmma_op.cache_clear()
    with (
        mock.patch.object(wgmma_tiles, "WGMMA_SIZES", (sizes,)),
        mock.patch.object(wgmma_tiles, "TRIANGLE_SIZES", (sizes,)),
    ):
        made = wgmma_op(replace(op, **changed), problem.dtype, MULTIPROCESSORS)
    wgmma_op.cache_clear()
    assert made is not None
    return made


def check(
    size: tuple[int, int, int],
    dtype: str = "bfloat16",
    orders: str = "CCC",
    scalars: tuple[float, float] = (1, 0),
    sizes: WgmmaSizes = TOGETHER,
    seed: int = 0,
) -> None:
    """Small integers, so that everything is exact except the last rounding, which cuts no digit of them."""
    m, k, n = size
    rng = np.random.default_rng(seed)
    a, b = (rng.integers(-2, 3, shape) for shape in ((m, k), (k, n)))
    old = rng.integers(-8, 9, (m, n))
    places = [placed(x, order, dtype) for x, order in zip((a, b, old), orders, strict=True)]
    if not scalars[1]:
        places[2][1][...] = POISON[dtype]
    beside = np.count_nonzero(places[2][0] == POISON[dtype]) - (0 if scalars[1] else m * n)
    problem = Problem(m, k, n, dtype, tuple(x[2] for x in places), *scalars)  # type: ignore[arg-type]
    play(wgmma_launch(made_op(problem, sizes)), dict(zip("ABC", (x[0] for x in places), strict=True)))
    wanted = scalars[0] * (a @ b) + scalars[1] * old
    np.testing.assert_array_equal(numbers_of(places[2][1], dtype), wanted)
    assert np.count_nonzero(places[2][0] == POISON[dtype]) == beside


ORDERS = ["CCC", "FCC", "CFC", "FFC", "CCF", "FFF"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "orders", "sizes"),
    quick_and_slow(
        [("bfloat16", "CCC", TOGETHER), ("float16", "FCF", ALONE)],
        [
            *((dtype, orders, s) for dtype in ("bfloat16", "float16") for orders in ORDERS for s in (TOGETHER, WIDE)),
            *(("tf32", orders, s) for orders in ("CFC", "CFF") for s in (TOGETHER, WIDE)),
        ],
    ),
)
def test_every_order(dtype: str, orders: str, sizes: WgmmaSizes) -> None:
    """Edges within a tile, tiles of two clusters below each other, more steps than stages."""
    for size in ((8, 8, 8), (264, 296, 136), (1, 64, 8)):
        # The copy engine writes rows of C in multiples of 16 bytes.
        m, k, n = size if orders[2] == "C" else size[::-1]
        check((m, k, n), dtype, orders, sizes=sizes)


@pytest.mark.quick_cases()
@pytest.mark.parametrize("scalars", [(1, 1), (2, -3), (0.5, 1)])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "tf32"])
def test_old_numbers_of_c_are_added(dtype: str, scalars: tuple[float, float]) -> None:
    check((40, 72, 136), dtype, "CFC", scalars)


def test_a_separate_addend() -> None:
    """The addend is one broadcast line, or a matrix; C is NaN before."""
    rng = np.random.default_rng(1)
    m, k, n = 72, 40, 24
    a, b = (rng.integers(-2, 3, shape) for shape in ((m, k), (k, n)))
    for broadcast in (False, True):
        added = rng.integers(-9, 10, (1 if broadcast else m, n))
        there = aligned(added.size, np.uint16, 0)
        there[:] = bits_of(added, "bfloat16").ravel()
        places = [placed(x, "C", "bfloat16") for x in (a, b, np.zeros((m, n)))]
        places[2][1][...] = POISON["bfloat16"]
        layouts: Any = tuple(x[2] for x in places)
        problem = Problem(m, k, n, "bfloat16", layouts, 2, 3, addend_strides=(0 if broadcast else n, 1))
        memory = {**dict(zip("ABC", (x[0] for x in places), strict=True)), ADDEND: there}
        play(wgmma_launch(made_op(problem, TOGETHER)), memory)
        np.testing.assert_array_equal(numbers_of(places[2][1], "bfloat16"), 2 * (a @ b) + 3 * added)


def made_half(
    x: Array, old: Array, dtype: str, sizes: WgmmaSizes, half: TriangleExtent, scalars: tuple[float, float], rows: bool
) -> tuple[Array, int]:
    """Return x times its transpose in a row-major C, and how many numbers around C are unchanged."""
    n, k = x.shape
    orders = "CF" if rows else "FC"
    left, right = (placed(y, order, dtype) for y, order in zip((x, x.T), orders, strict=True))
    to = placed(old, "C", dtype)
    problem = Problem(n, k, n, dtype, (left[2], right[2], to[2]), *scalars, op="gram")
    made = made_op(problem, sizes, triangle=TriangleOutput(half, gram=True))
    play(wgmma_launch(made), {"A": left[0], "B": right[0], "C": to[0]})
    return numbers_of(to[1], dtype), int(np.count_nonzero(to[0] == POISON[dtype]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "sizes", "half"),
    quick_and_slow(
        [("bfloat16", TOGETHER, "full"), ("tf32", TOGETHER, "loose")],
        [
            *(
                (dtype, s, half)
                for dtype in ("bfloat16", "float16")
                for s in TRIANGLE_SIZES
                for half in ("loose", "full")
            ),
            *(("tf32", s, "loose") for s in WGMMA_SIZES),
            *(("bfloat16", ALONE, half) for half in ("loose", "full")),
        ],
    ),
)
def test_triangles(dtype: str, sizes: WgmmaSizes, half: TriangleExtent) -> None:
    """On and below the diagonal as in the whole product; above it the mirror, or anything; memory around C
    unchanged."""
    rng = np.random.default_rng(2)
    for n, k, scalars, rows in ((8, 8, (1, 0), True), (136, 72, (2, -1), True), (520, 40, (1, 1), dtype == "tf32")):
        x, old = rng.integers(-2, 3, (n, k)), rng.integers(-8, 9, (n, n))
        old = old + old.T
        found, beside = made_half(x, old, dtype, sizes, half, scalars, rows)
        wanted = scalars[0] * (x @ x.T) + scalars[1] * old
        below = np.tri(n, dtype=bool)
        np.testing.assert_array_equal(found[below], wanted[below])
        if half == "full":
            np.testing.assert_array_equal(found, wanted)
        step = -(-n // 8) * 8 + 16
        assert beside == (n + 1) * step - n * n


def test_a_batch() -> None:
    """Products at irregular distances."""
    rng = np.random.default_rng(3)
    count, m, k, n = 3, 72, 40, 136
    a, b = (rng.integers(-2, 3, (count, *shape)) for shape in ((m, k), (k, n)))
    memory: Mapping[str, Array] = {"A": aligned(a.size, np.uint16), "B": aligned(b.size, np.uint16)}
    memory = {**memory, "C": aligned(count * (m * n + 8), np.uint16, POISON["float16"])}
    memory["A"][:], memory["B"][:] = (bits_of(x, "float16").ravel() for x in (a, b))
    problem = Problem(m, k, n, "float16")
    (op,) = (op for op in record_operations(Plan.parse("tile"), problem).ops if isinstance(op, GemmOp))
    left, right, dest = (
        x._replace(stride=s) for x, s in zip(op.operands_and_result, (k * n, m * k, m * n + 8), strict=True)
    )
    made = made_op(problem, TOGETHER, count=count, left=left, right=right, dest=dest)
    play(wgmma_launch(made), memory)
    layers = memory["C"].reshape(count, -1)
    np.testing.assert_array_equal(numbers_of(layers[:, : m * n], "float16").reshape(count, m, n), a @ b)
    assert (layers[:, m * n :] == POISON["float16"]).all()
