"""The tiled kernel as a leaf: a GEMM's one launch, in the kernel's own terms."""

from __future__ import annotations

from functools import lru_cache

from fmm.kernels.strategy import best_for
from fmm.kernels.tape import Factor, GemmOp
from fmm.kernels.tile import Lines, Piece, TileOp, paths_of, strategy_of
from fmm.kernels.tile_source import Along, Target, TileKernel, added


def is_tiled(op: GemmOp) -> bool:
    return op.leaf.startswith("tile")


@lru_cache(maxsize=4096)
def tile_op(op: GemmOp, multiprocessors: int) -> TileOp:
    """BLAS has columns where the kernel has rows: C^T = B^T A^T is the same memory with the operands swapped."""
    s = strategy_of(op.leaf) or best_for(op.n, op.m, op.count, multiprocessors)
    left, right = op.right, op.left
    epilogue = added(Target(1.0, "scale" if op.beta else "store"))
    along = _along(left), _along(right, True)
    kernel = TileKernel(s, "float32", epilogue=epilogue, along=along, paths=paths_of(op.leaf))
    shapes = (op.n, op.k), (op.k, op.m), (op.n, op.m)
    factors = (left, right, op.dest)
    a, b, c = ((Piece(x.base, x.offset, *shape),) for x, shape in zip(factors, shapes, strict=True))
    u, v, w = (Lines(x.leading, x.stride) for x in factors)
    alpha, beta = (complex(x).real for x in (op.alpha, op.beta))
    return TileOp(kernel, a, b, c, (u, v, w), op.n, op.m, op.k, op.count, alpha, beta)


def _along(x: Factor, second: bool = False) -> Along:
    """A transposed factor's rows are contiguous in BLAS's terms, so the kernel's columns."""
    return "inner" if x.transposed == second else "outer"
