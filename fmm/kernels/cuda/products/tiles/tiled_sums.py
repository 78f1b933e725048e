"""What a plan wants of the tiled product's kernel: products with the sums of a fused level, or of a step table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.cuda.products.tiles.tile_sizes import SUMMING, TileSizes
from fmm.kernels.cuda.products.tiles.tiled import TileOp, paths_of, strategy_of
from fmm.kernels.cuda.products.tiles.tiled_source import (
    Along,
    Epilogue,
    TileKernel,
    Update,
    adding_epilogue,
    shortened_epilogue,
)
from fmm.kernels.cuda.views import Lines, Piece, View
from fmm.kernels.plans.leaf import LeafUse

Terms = Sequence[tuple[float, View]]


def fused_op(s: TileSizes, dtype: str, left: Terms, right: Terms, dest: Terms, update: Update = "keep") -> TileOp:
    """One product with its sums, added to its destinations. Of a C that lies column by column, the transpose is
    computed."""
    m, n = (max(getattr(x, side) for _, x in dest) for side in ("rows", "cols"))
    k = min(max(x.cols for _, x in left), max(x.rows for _, x in right))
    turned = dest[0][1].right != 1
    if turned:
        left, right, m, n = right, left, n, m
    along: tuple[Along, Along] = _operand_along(left, 0, turned), _operand_along(right, 1, turned)
    # Sums are formed one tile ahead, so that there is nothing to gain by more than two stages.
    epilogue = adding_epilogue(len(dest), update)
    kernel = TileKernel(replace(s, stages=2), dtype, len(left), len(right), epilogue, along)
    # The first block of a sum is taken as it is: its coefficient is the product's.
    own = left[0][0] * right[0][0]
    a, b = (tuple(_turned_piece(x, turned, c / terms[0][0]) for c, x in terms) for terms in (left, right))
    into = tuple(_turned_piece(x, turned, own * c, 1) for c, x in dest)
    u, v, w = (Lines(max(terms[0][1].down, terms[0][1].right)) for terms in (left, right, dest))
    return TileOp(kernel, a, b, into, (u, v, *[w] * len(dest)), m, n, k)


def updating_op(
    leaf: LeafUse,
    dtype: str,
    left: View,
    right: View,
    update: AdditionProgram,
    reads: Sequence[View],
    writes: Sequence[View],
) -> TileOp:
    """One product and what a step table's kernel makes of it: `update` over it and the reads."""
    s, turned, k = strategy_of(leaf), writes[0].right != 1, min(left.cols, right.rows)
    m, n = (max(getattr(x, side) for x in writes) for side in ("rows", "cols"))
    if turned:
        left, right, m, n = right, left, n, m
    places = list(dict.fromkeys((*writes, *reads)))
    read, written = (tuple(places.index(x) for x in side) for side in (reads, writes))
    epilogue, coefficients = shortened_epilogue(Epilogue(update, read, written))
    along: tuple[Along, Along] = _operand_along([(1, left)], 0, turned), _operand_along([(1, right)], 1, turned)
    kernel = TileKernel(s or SUMMING[dtype], dtype, epilogue=epilogue, along=along, paths=paths_of(leaf))
    a, b = (_turned_piece(x, turned, 1) for x in (left, right))
    dests = tuple(_turned_piece(x, turned, *pair) for x, pair in zip(places, coefficients, strict=True))
    lines = tuple(Lines(max(x.down, x.right)) for x in (left, right, *places))
    return TileOp(kernel, (a,), (b,), dests, lines, m, n, k, open=s is None)


def _operand_along(terms: Terms, inner: int, turned: bool) -> Along:
    """Of the kernel's operand number `inner`; turned, its rows are what is a column of the view."""
    rows = (terms[0][1].right == 1) != turned
    return "inner" if rows == (inner == 0) else "outer"


def _turned_piece(x: View, turned: bool, factor: float, keep: float = 0) -> Piece:
    return Piece(x.base, x.offset, *((x.cols, x.rows) if turned else (x.rows, x.cols)), factor, keep)
