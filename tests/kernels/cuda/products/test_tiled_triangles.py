"""Tiles on and below the diagonal, on the host: each tile once, its numbers, and their mirror."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest

from fmm.kernels.cuda.device_code.entry_source import inline_headers
from fmm.kernels.cuda.ops import GemmOp, MirroredGemm
from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.cuda.products.tiling import RASTER_ROWS, count_triangle_tiles
from fmm.kernels.cuda.products.wgmma_tiles import TRIANGLE_SIZES, tile_rows_computed_together
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.problem import Fill, Layout, Operation, Problem
from tests.support.host_compiler import required_compiler
from tests.support.host_launch import launch_words
from tests.support.launch_lists import buffer, matrices, play
from tests.support.tiled_on_host import compiled_for_the_host, floats, tile_words, tiled_library
from tests.support.tiles import tiled_product

# Rows and columns of a tile, and rows of tiles in a group: of all strategies, and of the tensor cores.
TILES = [
    (64, 128, RASTER_ROWS),
    (128, 128, RASTER_ROWS),
    (96, 64, RASTER_ROWS),
    (128, 32, RASTER_ROWS),
    (16, 128, RASTER_ROWS),
]
TILES += [(s.m_s * s.cluster, s.n_s, tile_rows_computed_together(s)) for s in (*TRIANGLE_SIZES, *F16X3_SIZES)]
DRIVER = """
struct Params {{ int down, across, group; }};
extern "C" void tile(int down, int across, int group, int number, int* found) {{
    const fmm::Tile x = fmm::LowerTiles<{high}, {wide}>(Params{{down, across, group}}).at(number);
    found[0] = x.layer, found[1] = x.row, found[2] = x.col;
}}
"""


@pytest.mark.parametrize(("high", "wide", "group"), TILES)
def test_every_tile_of_the_lower_triangle_is_computed_once(high: int, wide: int, group: int) -> None:
    """Exactly the tiles that touch the lower triangle; neighbours in the order share rows or columns."""
    required_compiler()
    text = inline_headers('#include "gemm_common.cuh"\n') + DRIVER.format(high=high, wide=wide)
    library, found = tiled_library(text), (ctypes.c_int * 3)()
    for n in (1, 200, 257, 2048, 2049, 4000):
        down, across = -(-n // high), -(-n // wide)
        made, layers = count_triangle_tiles((down, across), high, wide), 2
        numbered = []
        for number in range(layers * made):
            library.tile(down, across, group, number, found)
            numbered.append(tuple(found))
        wanted = product(range(layers), range(down), range(across))
        assert sorted(numbered) == [(z, r, c) for z, r, c in wanted if c * wide < (r + 1) * high], n


GUARD = 64  # NaN before and behind every operand


def half_problem(n: int, k: int, orders: str, dtype: str, fill: Fill, alpha: float, beta: float, gap: int) -> Problem:
    shapes = (n, k), (k, n)
    left, right = (
        Layout(order, shape[order == "C"] + gap)  # type: ignore[arg-type]
        for order, shape in zip(orders, shapes, strict=True)
    )
    return Problem(n, k, n, dtype, (left, right, Layout("C", n + gap)), alpha, beta, "symmetric", 1, fill)


def launched(op: TileOp, memory: dict[str, Any]) -> None:
    library = compiled_for_the_host(op.kernel, op.access)
    words = tile_words(op, {name: x[GUARD:] for name, x in memory.items()})
    launch_words(library.launch, words, op.grid[0], op.grid[2])


def played(problem: Problem, leaf: str) -> None:
    """Exact on small integers, and everything else stays as it is. (The two factors have a product that is symmetric in
    its
    lower triangle only: above the diagonal is the mirror, which is not computed.)"""
    rng, dtype, n, k = np.random.default_rng(5), problem.dtype, problem.m, problem.k
    memory = {name: floats(4096 * 4, dtype) for name in "ABC"}
    views = {}
    for name, layout, shape in zip("ABC", problem.layouts, problem.matrix_shapes, strict=True):
        strides = [step * problem.itemsize for step in layout.strides]
        views[name] = np.ndarray(shape, dtype, memory[name][GUARD:], 0, strides)
        views[name][...] = rng.integers(-3, 4, shape)
    before = memory["C"].copy()
    a, b, c = (x.astype(np.float64) for x in views.values())
    (op,) = record_operations(Plan.parse(leaf), problem).ops
    gemm = op.as_full_product if isinstance(op, MirroredGemm) else op
    assert isinstance(gemm, GemmOp) and gemm.triangle_extent == problem.fill
    made = tiled_product(gemm, dtype)
    assert made.kernel.triangle == problem.fill
    launched(made, memory)
    below = np.tri(n, dtype=bool)
    lower = np.where(below, problem.alpha * (a @ b) + problem.beta * c, 0).real
    above = lower.T if problem.fill == "full" else c
    np.testing.assert_array_equal(views["C"], np.where(below, lower, above), err_msg=f"{n} {k}")
    views["C"][...] = np.ndarray((n, n), dtype, before[GUARD:], 0, views["C"].strides)
    np.testing.assert_array_equal(memory["C"], before)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("leaf", "dtype"), [("tile.medium", "float32"), ("tile.small", "float64"), ("tile.duo", "float64")]
)
@pytest.mark.parametrize(("orders", "gap"), [("CF", 4), ("FC", 1)])
def test_triangles_on_the_host(leaf: str, dtype: str, orders: str, gap: int) -> None:
    """The lower triangle, or all of C: tiles on the diagonal and at edges, aligned rows and others, alpha and beta."""
    required_compiler()
    fills: tuple[Fill, ...] = ("lower", "full")
    for fill, (n, k, alpha, beta) in product(fills, [(68, 20, 1, 0), (33, 9, 0.5, 2), (5, 1, 1, 0)]):
        played(half_problem(n, k, orders, dtype, fill, alpha, beta, gap), leaf)


def test_a_batch_of_triangles_is_one_launch() -> None:
    problem = Problem(8192, 512, 8192, "float64", op="gram")
    op = record_operations(Plan.parse("gram^2.tile > vendor"), problem).ops[-2]
    assert isinstance(op, GemmOp) and (op.triangle_extent, op.count, op.leaf_use.leaf.name) == ("loose", 4, "tile")
    made = tiled_product(op, "float64")
    one = count_triangle_tiles(made.tile_counts, made.kernel.strategy.m_s, made.kernel.strategy.n_s)
    assert made.kernel.triangle == "lower" and made.grid == (4 * one, 1, 1) and one < 0.6 * np.prod(made.tile_counts)
    assert replace(made, count=1).grid == (one, 1, 1)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("op", ["gram", "symmetric"])
def test_triangles_of_a_transposed_copy_on_the_host(order: Literal["C", "F"], op: Operation) -> None:
    """The plan's copy is done by NumPy and its diagonal blocks by the kernel: both factors are MN-major if A is B's
    transpose, whatever their layouts were."""
    required_compiler()
    n, k, other = 45, 18, "F" if order == "C" else "C"
    lines = k + 3 if order == "C" else n + 3
    layouts = Layout(order, lines), Layout(other, lines), Layout("C", n + 1)  # type: ignore[arg-type]
    problem = Problem(n, k, n, "float32", layouts, op=op, fill="lower")
    memory, (a, b, c) = matrices(problem, np.random.default_rng(5))
    b[...] = a.T
    tape = record_operations(Plan.parse("gram^2.tile.medium.outer > vendor"), problem)
    memory["W"] = buffer(tape.workspace)
    seen = []
    for step in tape.ops:
        if isinstance(step, GemmOp) and step.leaf_use.leaf.name == "tile":
            made = tiled_product(step, "float32")
            words = tile_words(made, memory)
            launch_words(compiled_for_the_host(made.kernel, made.access).launch, words, made.grid[0], made.grid[2])
            seen.append((made.kernel.triangle, made.count, made.kernel.along))
        else:
            play(replace(tape, ops=(step,), streams=(0,)), memory)
    inner = op == "symmetric" and order == "C"
    assert {x[0] for x in seen} == {"lower"} and {x[2] for x in seen} == {("inner" if inner else "outer", "outer")}
    assert sum(x[1] for x in seen) == 4
    below = np.tri(n, dtype=bool)
    np.testing.assert_array_equal(c[below], (a.astype(float) @ b)[below])
    assert np.isnan(c[~below]).all()
