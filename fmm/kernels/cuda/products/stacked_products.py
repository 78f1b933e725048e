"""Multiply stacks of matrices by one launch of the warpgroup kernel: a batch with one product for each matrix.

All matrices of a stack share the multiprocessors, so tile sizes are chosen for the whole stack. The matrices are often
so small that the start and the end of a tile take a large part of the tile's time.
"""

from __future__ import annotations

from dataclasses import replace

from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.ops import DeviceView, GemmOp, TriangleOutput, gemm_op, transposed_view
from fmm.kernels.cuda.products.wgmma_tiles import (
    WgmmaSizes,
    cluster_tile_grid,
    count_cluster_tiles,
    wgmma_launch,
    wgmma_op,
)

STACK_SIZES = (WgmmaSizes(128, 256), WgmmaSizes(128, 128, stages=5), WgmmaSizes(128, 64, stages=6))
# Tile sizes for symmetric products. A tile that a cluster computes is larger, so more of its elements are above the
# diagonal and computed in vain; the last sizes use no clusters.
STACK_TRIANGLE_SIZES = (*STACK_SIZES, WgmmaSizes(128, 192, stages=4), WgmmaSizes(128, 128, cluster=1, stages=5))
# The next five numbers are fitted to 35 measured times of bfloat16 triangles on an H200: 7 stacks, from 200 x 256 x 256
# to 16 x 2048 x 2048, each with the 5 tile sizes of STACK_TRIANGLE_SIZES. The standard deviation of predicted from
# measured times is 6 %.
LAUNCH_SECONDS = 6.5e-6  # seconds of a launch that computes nothing
STEP_SECONDS = 2.5e-11  # seconds of one position of the inner dimension, for one row or one column of a tile
TILE_START_SECONDS, TILE_COLUMN_SECONDS = 5.7e-7, 1.45e-8  # seconds to start a tile; to end a tile, for each column
ALONE_SLOWDOWN = 1.05  # time of a thread block without a cluster, divided by the time of a thread block in a cluster
# Predicted time of the vendor's batched product: flops per second of one multiprocessor, seconds of a launch, and the
# start and end of a tile in positions of the inner dimension. These three numbers are fitted to measured times of
# cuBLAS for 7 stacks, from 200 x 256 x 256 to 16 x 2048 x 2048. The predicted times of cuBLAS are wrong by at most 7 %.
VENDOR_FLOPS_PER_SECOND, VENDOR_LAUNCH_SECONDS, VENDOR_END_STEPS = 6.24e12, 8.1e-6, 133


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

    The views describe the first matrix of each stack. `symmetric` is the caller's guarantee that the products are
    symmetric; the kernel then computes their lower triangles only, and mirrors them.
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
        triangle=TriangleOutput("full", gram=right == transposed_view(left)) if symmetric else None,
    )


def stacked_launch(op: GemmOp, multiprocessors: int, shift: float = 0) -> Launch | None:
    """Return the launch of a stack's products; None if the warpgroup kernel cannot compute these products.

    The launch adds `shift` times the identity matrix to each symmetric product.
    """
    product = wgmma_op(op, op.dtype, multiprocessors, best_stack_sizes(op, multiprocessors))
    return wgmma_launch(replace(product, shift=shift)) if product else None


def best_stack_sizes(op: GemmOp, multiprocessors: int) -> WgmmaSizes:
    """Return the tile sizes with the smallest predicted time."""
    among = STACK_TRIANGLE_SIZES if op.triangle else STACK_SIZES
    return min(among, key=lambda s: _stack_seconds(op, s, multiprocessors))


def stack_seconds(op: GemmOp, multiprocessors: int) -> float:
    """Return the predicted seconds of a stack's products."""
    return _stack_seconds(op, best_stack_sizes(op, multiprocessors), multiprocessors)


def vendor_stack_seconds(op: GemmOp, multiprocessors: int) -> float:
    """Return the predicted seconds of the vendor's batched product, which computes both triangles."""
    flops = 2.0 * op.m * op.n * (op.k + VENDOR_END_STEPS) * op.count
    # A stack with few tiles leaves multiprocessors idle, so the time is at least that of one tile. The vendor's tiles
    # are assumed to take as long as fmm's smallest tile.
    single_tile = _tile_seconds(op, STACK_SIZES[-1])
    return VENDOR_LAUNCH_SECONDS + max(flops / (VENDOR_FLOPS_PER_SECOND * multiprocessors), single_tile)


def _stack_seconds(op: GemmOp, s: WgmmaSizes, multiprocessors: int) -> float:
    """Return the predicted seconds of the busiest cluster, which computes tiles one after the other."""
    tiles = count_cluster_tiles(cluster_tile_grid(op.n, op.m, s), s, op.triangle is not None) * op.count
    return LAUNCH_SECONDS + -(-tiles // max(multiprocessors // s.cluster, 1)) * _tile_seconds(op, s)


def _tile_seconds(op: GemmOp, s: WgmmaSizes) -> float:
    steps = (s.m_s + s.n_s) * op.k * STEP_SECONDS
    ends = TILE_START_SECONDS + TILE_COLUMN_SECONDS * s.n_s
    return (steps + ends) * (1.0 if s.cluster > 1 else ALONE_SLOWDOWN)
