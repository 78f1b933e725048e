"""Fused."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Matrix
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, TileSizes, tma_strategy
from fmm.kernels.cuda.products.simt_kernel import Epilogue, TileKernel, Update, adding_epilogue, as_adding_epilogue
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_paths, leaf_strategy
from fmm.kernels.cuda.products.tiling import Along
from fmm.kernels.cuda.views import Lines, Piece, View
from fmm.kernels.plans.leaf import LeafUse
from fmm.kernels.plans.level import FusedProducts
from fmm.kernels.plans.steps.fused_order import Lane, launch_stages


class Blocks(NamedTuple):
    """The blocks of A, B and C, row by row."""

    a: Sequence[View]
    b: Sequence[View]
    c: Sequence[View]


class FusedLaunches:
    """Makes the launches of a fused level. `written`: the numbers of the blocks of C that those made so far write."""

    def __init__(
        self, level: FusedProducts, strategy: TileSizes | None, dtype: str, blocks: Blocks, alpha: float, beta: float
    ) -> None:
        # Without a strategy, or with one for the copy engine, one launch does all products if the device can.
        self.together = strategy is None or tma_strategy(strategy.name) is not None
        self.scheme, self.tasks, self.strategy = level.scheme, level.tasks, strategy or FUSED_SIZES[dtype]
        self.dtype, self.blocks, self.alpha, self.beta = dtype, blocks, alpha, beta
        self.written: set[int] = set()

    @property
    def atomic(self) -> bool:
        """Does C have to hold beta times its old value before the first launch?"""
        return "atomic" in self.tasks

    def stages(self) -> Iterator[list[list[TileOp | TileGroup]]]:
        """The launches stage by stage, those of a stage lane by lane."""
        if self.together and not self.tasks:
            products = [op for p in range(self.scheme.rank) if (op := self._op(p)) is not None]
            group = TileGroup(tuple(replace(op, follows=i > 0) for i, op in enumerate(products)), "turns")
            yield [[group]] if products else []
            return
        for stage in launch_stages(self.scheme, self.tasks):
            yield [ops for lane in stage if (ops := list(self._lane(lane)))]

    def _lane(self, lane: Lane) -> Iterator[TileOp | TileGroup]:
        follows = False
        for task in lane:
            ops: list[TileOp] = []
            for product in task:
                if (op := self._op(product)) is not None:
                    ops.append(replace(op, follows=follows))
                    follows = True
            if ops:
                yield ops[0] if len(ops) == 1 else TileGroup(tuple(ops), "atomic" if self.atomic else "free")

    def _op(self, product: int) -> TileOp | None:
        """One product; None if it has nothing to multiply or to write."""
        left, right = (
            _block_terms(self.scheme.u, product, self.blocks.a),
            _block_terms(self.scheme.v, product, self.blocks.b),
        )
        dest = _block_terms(self.scheme.w, product, self.blocks.c)
        if not (left and right and dest):
            return None
        into = [(self.alpha * c, x) for _, c, x in dest]
        update: Update = "atomic" if self.atomic else "keep"
        op = fused_op(self.strategy, self.dtype, [t[1:] for t in left], [t[1:] for t in right], into, update)
        kept = [1.0 if i in self.written else self.beta for i, *_ in dest]
        self.written.update(i for i, *_ in dest)
        return replace(op, dest=tuple(x._replace(keep=keep) for x, keep in zip(op.dest, kept, strict=True)))


def _block_terms(matrix: Matrix, product: int, blocks: Sequence[View]) -> list[tuple[int, float, View]]:
    """The blocks that a product touches: number, coefficient and place of each. Empty blocks are left out."""
    pairs = enumerate(zip(matrix, blocks, strict=True))
    return [(i, float(row[product]), x) for i, (row, x) in pairs if row[product] and min(x.rows, x.cols)]


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
    s, turned, k = leaf_strategy(leaf), writes[0].right != 1, min(left.cols, right.rows)
    m, n = (max(getattr(x, side) for x in writes) for side in ("rows", "cols"))
    if turned:
        left, right, m, n = right, left, n, m
    places = list(dict.fromkeys((*writes, *reads)))
    read, written = (tuple(places.index(x) for x in side) for side in (reads, writes))
    epilogue, coefficients = as_adding_epilogue(Epilogue(update, read, written))
    along: tuple[Along, Along] = _operand_along([(1, left)], 0, turned), _operand_along([(1, right)], 1, turned)
    kernel = TileKernel(s or FUSED_SIZES[dtype], dtype, epilogue=epilogue, along=along, paths=leaf_paths(leaf))
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
