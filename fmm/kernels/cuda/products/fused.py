"""Describe products whose kernel also forms the sums of a fused level, or the sums of a step table.

The tiled kernel forms the sums of blocks (submatrices of A, B and C) itself, so a fused level needs no temporaries.
`FusedLaunches` describes the launches for the products of a scheme. `tile_op_on_block_sums` describes one product of
sums that is added to blocks of C. `tile_op_with_fused_sums` describes one product and a step table's sums that use
this product.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from fmm.kernels.algorithms.additions import AdditionProgram, Matrix
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm, DeviceView
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, TileSizes, tma_strategy
from fmm.kernels.cuda.products.simt_kernel import Epilogue, TileKernel, UpdateMode, adding_epilogue, to_adding_epilogue
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_copy_paths, leaf_strategy
from fmm.kernels.cuda.products.tiling import ContiguousAxis
from fmm.kernels.plans.fused_order import StreamLaunches, launch_stages
from fmm.kernels.plans.leaf import LeafUse
from fmm.kernels.plans.level import FusedProducts

BlockSum = Sequence[tuple[float, DeviceView]]  # a linear combination of blocks: pairs of a coefficient and a block


class ProductBlocks(NamedTuple):
    """The blocks (submatrices) of A, B and C, in row-major order."""

    a: Sequence[DeviceView]
    b: Sequence[DeviceView]
    c: Sequence[DeviceView]


class FusedLaunches:
    """The launches that compute the products and sums of a fused level."""

    def __init__(
        self,
        level: FusedProducts,
        strategy: TileSizes | None,
        dtype: str,
        blocks: ProductBlocks,
        alpha: float,
        beta: float,
    ) -> None:
        # On a device with a copy engine (TMA), one launch computes all products of the level, unless the plan names a
        # strategy of another kernel.
        self.one_launch = strategy is None or tma_strategy(strategy.name) is not None
        self.scheme, self.tasks, self.strategy = level.scheme, level.tasks, strategy or FUSED_SIZES[dtype]
        self.dtype, self.blocks, self.alpha, self.beta = dtype, blocks, alpha, beta
        self.written: set[int] = set()  # indices of the blocks of C that the launches so far have written

    @property
    def adds_atomically(self) -> bool:
        """True if launches add to C atomically; C must then be multiplied by beta before the first launch."""
        return "atomic" in self.tasks

    def launches_by_stage(self) -> Iterator[list[list[TileOp | TileGroup]]]:
        """Yield the streams of each stage, where a stream is a list of launches.

        The streams of a stage run concurrently, and end before the streams of the next stage start.
        """
        if self.one_launch and not self.tasks:
            products = [op for p in range(self.scheme.rank) if (op := self._tile_op_of_product(p)) is not None]
            group = TileGroup(tuple(replace(op, may_overlap=i > 0) for i, op in enumerate(products)), "turns")
            yield [[group]] if products else []
            return
        for stage in launch_stages(self.scheme, self.tasks):
            yield [ops for stream in stage if (ops := list(self._stream_launches(stream)))]

    def _stream_launches(self, stream: StreamLaunches) -> Iterator[TileOp | TileGroup]:
        """Yield the launches of one stream, one launch for each task."""
        may_overlap = False
        for task in stream:
            ops: list[TileOp] = []
            for product in task:
                if (op := self._tile_op_of_product(product)) is not None:
                    ops.append(replace(op, may_overlap=may_overlap))
                    may_overlap = True
            if ops:
                yield ops[0] if len(ops) == 1 else TileGroup(tuple(ops), "atomic" if self.adds_atomically else "free")

    def _tile_op_of_product(self, product: int) -> TileOp | None:
        """Return one product of the scheme; None if all blocks of an operand or of the destination are empty."""
        left = _nonempty_block_terms(self.scheme.u, product, self.blocks.a)
        right = _nonempty_block_terms(self.scheme.v, product, self.blocks.b)
        dest = _nonempty_block_terms(self.scheme.w, product, self.blocks.c)
        if not (left and right and dest):
            return None
        into = [(self.alpha * c, x) for _, c, x in dest]
        update: UpdateMode = "atomic" if self.adds_atomically else "keep"
        op = tile_op_on_block_sums(
            self.strategy, self.dtype, [t[1:] for t in left], [t[1:] for t in right], into, update
        )
        keeps = [1.0 if i in self.written else self.beta for i, *_ in dest]
        self.written.update(i for i, *_ in dest)
        return replace(op, dest=tuple(x._replace(keep=keep) for x, keep in zip(op.dest, keeps, strict=True)))


def _nonempty_block_terms(
    matrix: Matrix, product: int, blocks: Sequence[DeviceView]
) -> list[tuple[int, float, DeviceView]]:
    """Return the index, the coefficient and the view of each nonempty block that a product of the scheme uses."""
    pairs = enumerate(zip(matrix, blocks, strict=True))
    return [(i, float(row[product]), x) for i, (row, x) in pairs if row[product] and min(x.rows, x.cols)]


def tile_op_on_block_sums(
    s: TileSizes, dtype: str, left: BlockSum, right: BlockSum, dest: BlockSum, update: UpdateMode = "keep"
) -> TileOp:
    """Return the operation that adds the product of two sums of blocks to blocks of C.

    If C is column-major, the kernel computes C^T.
    """
    m, n = (max(getattr(x, side) for _, x in dest) for side in ("rows", "cols"))
    k = min(max(x.cols for _, x in left), max(x.rows for _, x in right))
    transposed = dest[0][1].right != 1
    if transposed:
        left, right, m, n = right, left, n, m
    along: tuple[ContiguousAxis, ContiguousAxis] = (
        _contiguous_axis(left[0][1], True, transposed),
        _contiguous_axis(right[0][1], False, transposed),
    )
    # The kernel forms sums one tile ahead of the product, so a pipeline of more than two stages is not faster.
    epilogue = adding_epilogue(len(dest), update)
    kernel = TileKernel(replace(s, stages=2), dtype, len(left), len(right), epilogue, along)
    # In the kernel, the first block of a sum has no coefficient. Therefore the sum of A's blocks and the sum of B's
    # blocks are divided by their first coefficients, and the product is multiplied by both first coefficients.
    own = left[0][0] * right[0][0]
    a, b = (tuple(_row_major_block(x, transposed, c / terms[0][0]) for c, x in terms) for terms in (left, right))
    into = tuple(_row_major_block(x, transposed, own * c, 1) for c, x in dest)
    u, v, w = (BlockStrides(max(terms[0][1].down, terms[0][1].right)) for terms in (left, right, dest))
    return TileOp(kernel, a, b, into, (u, v, *[w] * len(dest)), m, n, k)


def tile_op_with_fused_sums(
    leaf: LeafUse,
    dtype: str,
    left: DeviceView,
    right: DeviceView,
    update: AdditionProgram,
    reads: Sequence[DeviceView],
    writes: Sequence[DeviceView],
) -> TileOp:
    """Return one product whose kernel also runs `update`, the sums of a step table that use the product.

    The inputs of the program `update` are the product and the old values of the blocks in `reads`. The program's
    outputs are stored to the blocks in `writes`.
    """
    s, transposed, k = leaf_strategy(leaf), writes[0].right != 1, min(left.cols, right.rows)
    m, n = (max(getattr(x, side) for x in writes) for side in ("rows", "cols"))
    if transposed:
        left, right, m, n = right, left, n, m
    blocks = list(dict.fromkeys((*writes, *reads)))
    read, written = (tuple(blocks.index(x) for x in side) for side in (reads, writes))
    epilogue, coefficients = to_adding_epilogue(Epilogue(update, read, written))
    along: tuple[ContiguousAxis, ContiguousAxis] = (
        _contiguous_axis(left, True, transposed),
        _contiguous_axis(right, False, transposed),
    )
    kernel = TileKernel(s or FUSED_SIZES[dtype], dtype, epilogue=epilogue, along=along, paths=leaf_copy_paths(leaf))
    a, b = (_row_major_block(x, transposed, 1) for x in (left, right))
    dests = tuple(_row_major_block(x, transposed, *pair) for x, pair in zip(blocks, coefficients, strict=True))
    lines = tuple(BlockStrides(max(x.down, x.right)) for x in (left, right, *blocks))
    return TileOp(kernel, (a,), (b,), dests, lines, m, n, k, open_strategy=s is None)


def _contiguous_axis(x: DeviceView, is_left: bool, transposed: bool) -> ContiguousAxis:
    """Return the dimension along which the kernel's operand (A if `is_left`, else B) is contiguous."""
    by_rows = (x.right == 1) != transposed
    return "inner" if by_rows == is_left else "outer"


def _row_major_block(x: DeviceView, transposed: bool, factor: float, keep: float = 0) -> BlockTerm:
    """Return a block as a row-major BlockTerm; if `transposed`, the block is column-major and described transposed."""
    return BlockTerm(x.base, x.offset, *((x.cols, x.rows) if transposed else (x.rows, x.cols)), factor, keep)
