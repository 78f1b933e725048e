"""Products that use a GPU's copy engine (TMA), compiled for the host, where a loop copies."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.kernels.cuda.device_code.entry_source import header_text as device_code
from fmm.kernels.cuda.launch_list import TensorMap
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.products.tma_tiles import TmaKernel, TmaOp, has_tma_alignment, tma_kernel_source, tma_op
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.problem import Layout, Problem
from tests.support.host_compiler import header
from tests.support.host_launch import aligned
from tests.support.tiles import tiled_product

SMS = 132
SMALL = TileSizes("Small128", m_s=64, n_s=32, k_s=8, m_r=4, n_r=4, warp_m=8, warp_n=4, stages=6, blocks=1)


def launch_of(plan: str, problem: Problem, s: TileSizes, multiprocessors: int = SMS) -> TmaOp:
    tape = record_operations(Plan.parse(plan), problem)
    assert tape.workspace == 0
    (op,) = tape.ops
    tiled = tiled_product(op, "float32") if isinstance(op, GemmOp) else op
    assert isinstance(tiled, TileOp | TileGroup)
    assert has_tma_alignment(tiled)
    made = tma_op(tiled, s, multiprocessors)
    assert made is not None
    return made


def for_the_host(kernel: TmaKernel, host: str, gates: str) -> str:
    """Return the kernel's source with host functions in place of ptx_tma.cuh."""
    text, engine = tma_kernel_source(kernel), device_code("ptx_tma.cuh").replace("#pragma once\n", "", 1)
    assert text.count(engine) == 1
    return header("language.h") + host + text.replace(engine, header("tma_copies.h") + gates)


def described(x: TensorMap, start: int) -> list[int]:
    """Return the words of Map in host_cuda/tma_copies.h."""
    lines = x.leading * 4, x.layer * 4
    return [start + x.piece.offset, x.length, x.lines, x.layers, *lines, *x.box, x.swizzle]


def memory(lines: int, leading: int) -> np.ndarray[Any, Any]:
    """Return an array of NaN for lines with gaps, aligned to 64 bytes."""
    return aligned(lines * leading + 16, np.float32, np.nan)


def check(
    plan: str,
    size: tuple[int, int, int],
    orders: str,
    scalars: tuple[float, float],
    s: TileSizes,
    host: Any,
    multiprocessors: int = SMS,
) -> TmaOp:
    """Check a launch on small integers: exact, memory around C unchanged, counters as before."""
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
