"""Fused levels: a scheme's products as launches of the tiled kernel, the sums inside; no temporaries."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fmm.kernels.algorithms.additions import Matrix
from fmm.kernels.cuda.products.tiles.tile_sizes import SUMMING, TileSizes, engine_strategy
from fmm.kernels.cuda.products.tiles.tiled import TileGroup, TileOp
from fmm.kernels.cuda.products.tiles.tiled_source import Update
from fmm.kernels.cuda.products.tiles.tiled_sums import fused_op
from fmm.kernels.cuda.views import View
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
        self.together = strategy is None or engine_strategy(strategy.name) is not None
        self.scheme, self.tasks, self.strategy = level.scheme, level.tasks, strategy or SUMMING[dtype]
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
