"""Multiply stacks of matrices by one launch of the warpgroup kernel: a batch with one product for each matrix.

All matrices of a stack share the multiprocessors, so tile sizes are chosen for the whole stack. The matrices are often
small: then the start and the end of a tile take a large part of its time.
"""

from __future__ import annotations

from dataclasses import replace

from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.ops import DeviceView, GemmOp, TriangleOutput, gemm_op
from fmm.kernels.cuda.products.wgmma_tiles import (
    WgmmaSizes,
    cluster_tiles,
    count_cluster_tiles,
    wgmma_launch,
    wgmma_op,
)

STACK_SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128, stages=5), WgmmaSizes(128, 64, stages=6))
# Triangles can also be computed without clusters: fewer tiles then cross the diagonal, so less is computed in vain.
STACK_TRIANGLE_SIZES = (*STACK_SIZES, WgmmaSizes(128, 192, stages=4), WgmmaSizes(128, 128, cluster=1, stages=5))
# The unit of predicted times: one position of the inner dimension, for one row or one column of a tile. A tile takes
# ((rows + columns) k + TILE_END_STEPS columns) units. The next three numbers are fitted to times of 64 x 512,
# 12 x 1024, 24 x 768 x 3072, 8 x 2048 x 8192 and 1 x 4096 on an H100, in bfloat16.
TILE_END_STEPS = 800  # units that the end of a tile takes for each column
STEP_SECONDS = 3.3e-11  # seconds of a unit
ALONE_SLOWDOWN = 1.2  # time of a thread block without a cluster, divided by the time of one in a cluster
# The vendor's batched product computes VENDOR_FLOPS_PER_STEP flops on each multiprocessor in a unit. It takes as long
# as if the inner dimension were longer by VENDOR_END_STEPS.
VENDOR_FLOPS_PER_STEP, VENDOR_END_STEPS = 188.0, 256


def stack_view(base: str, rows: int, cols: int, dtype: str, offset: int = 0) -> DeviceView:
    """Return the view of the first matrix in a stack of contiguous row-major matrices; the offset counts bytes."""
    return DeviceView(base, offset, rows, cols, cols, 1, dtype)


def stacked_gemm(
    count: int,
    left: DeviceView,
    right: DeviceView,
    dest: DeviceView,
    *,
    alpha: float = 1,
    beta: float = 0,
    addend: DeviceView | None = None,
    symmetric: bool = False,
) -> GemmOp:
    """Return one operation dest = alpha left right + beta addend for stacks of `count` contiguous matrices.

    The views describe the first matrix of each stack. With `symmetric`, the caller guarantees that the products are
    symmetric: only their lower triangles are computed, and then mirrored.
    """
    op = gemm_op("tile", [(left, right, dest)], dest.dtype, alpha, beta, addend=addend)
    # BLAS's left operand is the row-major product's right operand.
    first, second, result = (x.rows * x.cols for x in (right, left, dest))
    return replace(
        op,
        count=count,
        left=op.left._replace(stride=first),
        right=op.right._replace(stride=second),
        dest=op.dest._replace(stride=result),
        addend_stride=addend.rows * addend.cols if addend else 0,
        triangle=TriangleOutput("full", gram=True) if symmetric else None,
    )


def stacked_launch(op: GemmOp, multiprocessors: int, shift: float = 0) -> Launch | None:
    """Return the launch of a stack's products; None if the warpgroup kernel cannot compute them.

    If the products are symmetric, `shift` times the identity is added to each of them.
    """
    product = wgmma_op(op, op.dtype, multiprocessors, best_stack_sizes(op, multiprocessors))
    return wgmma_launch(replace(product, shift=shift)) if product else None


def best_stack_sizes(op: GemmOp, multiprocessors: int) -> WgmmaSizes:
    """Return the tile sizes with the smallest predicted time."""
    among = STACK_TRIANGLE_SIZES if op.triangle else STACK_SIZES
    return min(among, key=lambda s: _stack_time(op, s, multiprocessors))


def stack_time(op: GemmOp, multiprocessors: int) -> float:
    """Return the predicted time of a stack's products, in units of STEP_SECONDS."""
    return _stack_time(op, best_stack_sizes(op, multiprocessors), multiprocessors)


def vendor_stack_time(op: GemmOp, multiprocessors: int) -> float:
    """Return the predicted time of the vendor's batched product of both triangles, in units of STEP_SECONDS."""
    flops = 2.0 * op.m * op.n * (op.k + VENDOR_END_STEPS) * op.count
    # A product of few tiles leaves multiprocessors idle: the time is at least that of one of our smallest tiles.
    single_tile = _tile_time(op, STACK_SIZES[-1])
    return max(flops / (VENDOR_FLOPS_PER_STEP * multiprocessors), single_tile)


def _stack_time(op: GemmOp, s: WgmmaSizes, multiprocessors: int) -> float:
    """Return the time of the busiest cluster, which computes tiles one after the other."""
    tiles = count_cluster_tiles(cluster_tiles(op.n, op.m, s), s, op.triangle is not None) * op.count
    return -(-tiles // max(multiprocessors // s.cluster, 1)) * _tile_time(op, s)


def _tile_time(op: GemmOp, s: WgmmaSizes) -> float:
    slowdown = 1.0 if s.cluster > 1 else ALONE_SLOWDOWN
    return ((s.m_s + s.n_s) * op.k + TILE_END_STEPS * s.n_s) * slowdown
