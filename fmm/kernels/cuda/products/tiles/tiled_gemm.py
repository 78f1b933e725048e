"""The tiled kernel as a leaf: a GEMM's one launch, in the kernel's own terms."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from fmm.kernels.algorithms.additions import AdditionProgram, Terms
from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.products.tiles.tile_sizes import TileSizes
from fmm.kernels.cuda.products.tiles.tiled import TileOp, paths_of, strategy_of
from fmm.kernels.cuda.products.tiles.tiled_source import Along, Epilogue, Scalar, TileKernel, half_written
from fmm.kernels.cuda.views import Factor, Lines, Piece, View


@lru_cache(maxsize=4096)
def tile_op(op: GemmOp, dtype: str, s: TileSizes) -> TileOp:
    """The product by tiles of this strategy: C^T = B^T A^T is the same memory with the operands swapped."""
    left, right, along = kernel_operands(op)
    kernel = TileKernel(s, dtype, along=along, paths=paths_of(op.use), half=half_written(op.extent))
    alpha, beta = (complex(x).real for x in (op.alpha, op.beta))
    a = Piece(left.base, left.offset, op.n, op.k)
    b = Piece(right.base, right.offset, op.k, op.m)
    c = Piece(op.dest.base, op.dest.offset, op.n, op.m, alpha, beta)
    u, v, w = (Lines(x.leading, x.stride) for x in (left, right, op.dest))
    return TileOp(kernel, (a,), (b,), (c,), (u, v, w), op.n, op.m, op.k, op.count, open=strategy_of(op.use) is None)


# The product, added to what a second destination holds, which is only read, with coefficients of the launch's.
_SUM: Terms = ((Scalar("keep", 1), 1), (Scalar("factor", 0), 0))  # type: ignore[assignment]
ADDING = Epilogue(AdditionProgram(2, (_SUM,), (2,)), (1,), (0,))


def with_added(op: TileOp, added: View) -> TileOp:
    """The same product, added to another matrix than its result; that lies as BLAS's C does."""
    (into,) = op.dest
    dest = into._replace(keep=0), Piece(added.base, added.offset, op.m, op.n, 1, into.keep)
    lines = *op.lines, Lines(added.right if op.m > 1 else 0)
    return replace(op, kernel=replace(op.kernel, epilogue=ADDING), dest=dest, lines=lines)


def kernel_operands(op: GemmOp) -> tuple[Factor, Factor, tuple[Along, Along]]:
    """The kernel's left and right operand, and the dimensions along which they are contiguous.

    BLAS's terms are column by column and the kernels' row by row, so the operands are swapped.
    """
    return op.right, op.left, (_factor_along(op.right), _factor_along(op.left, True))


def _factor_along(x: Factor, second: bool = False) -> Along:
    """A transposed factor's rows are contiguous in BLAS's terms, so the kernel's columns."""
    return "inner" if x.transposed == second else "outer"
