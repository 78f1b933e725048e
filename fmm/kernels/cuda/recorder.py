"""The walk's machine for a GPU: it notes the operations of a plan, whatever chip they will run on.

Every address is known beforehand, because the steps of a level depend on sizes only and temporaries are taken like a
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import (
    NONE_PREPARED,
    GemmOp,
    MirrorOp,
    PreparedOperands,
    TriangleOutput,
    View,
    constant_distance,
    gemm_op,
    is_column_major,
    mirrored_op,
    rank_op,
)
from fmm.kernels.cuda.products.fused import Blocks, FusedLaunches, updating_op
from fmm.kernels.cuda.products.simt_tiles import leaf_strategy
from fmm.kernels.cuda.record import RecordedOp
from fmm.kernels.cuda.sums.mirror_rescale import scaling_op
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_op
from fmm.kernels.plans.leaf import leaf_use
from fmm.kernels.plans.memory_layout import leading_dimension, temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductWithSums
from fmm.kernels.plans.steps.rescaling import LineExponents, Rescaled
from fmm.kernels.plans.steps.sums import APART, Mirror, Place, Sum
from fmm.kernels.plans.walk import Operands, Triple
from fmm.kernels.plans.workspace import workspace

Origins = dict[str, int]  # by base, where the first view of a step begins


class _RecordedSum(NamedTuple):
    """A step of sums, where it was first met, and its launch there; None if there is nothing to do."""

    step: Sum  # held so that its id, by which it is found again, stays its own
    origins: Origins
    op: SumOp | None


class Recorder:
    """The walk's machine that notes operations; its stack of temporaries is the workspace."""

    leaf_updates = True

    def __init__(self, componentwise: bool = False, prepared_matrix: Literal["A", "B"] | None = None) -> None:
        """`componentwise`: must every entry be right beside its own size? `kept_of`: behind which matrix stands what
        the leaf has made of it."""
        self.componentwise = componentwise
        self.ready = PreparedOperands(prepared_matrix) if prepared_matrix else NONE_PREPARED
        self.ops: list[RecordedOp] = []
        self.lanes: list[int] = []
        self.used = self.peak = self.lane = 0
        self._sums: dict[Hashable, _RecordedSum] = {}

    def _note(self, *ops: RecordedOp) -> None:
        self.ops += ops
        self.lanes += [self.lane] * len(ops)

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> View:
        stored = DTYPES[DTYPES[dtype].stored]
        offset, self.used = self.used, self.used + temporary_bytes(rows, cols, stored.itemsize)
        self.peak = max(self.peak, self.used)
        step = leading_dimension(rows if fortran else cols, stored.itemsize, spaced=False)
        return View("W", offset, rows, cols, *((1, step) if fortran else (step, 1)), stored.name)

    def release(self, mark: int) -> None:
        self.used = mark

    def part(self, x: View, place: Place) -> View:
        return x.block(place)

    def order_of_sums(self, steps: LevelSteps) -> Mapping[str, bool]:
        return order_of_sums(steps)

    def sum(self, step: Sum, reads: Sequence[View], writes: Sequence[View]) -> None:
        if isinstance(step, LineExponents | Rescaled):
            self._note(scaling_op(step, reads, writes[0]))
        elif (op := self._sum_op(step, reads, writes)) is not None:
            self._note(op)

    def _sum_op(self, step: Sum, reads: Sequence[View], writes: Sequence[View]) -> SumOp | None:
        """The launch of a step of sums; if the same step was met elsewhere in memory, the launch made there, moved.

        Levels below others repeat their steps hundreds of times, and to find the arrays of hundreds of blocks takes
        milliseconds.
        """
        origins: Origins = {}
        for view in (*reads, *writes):
            origins.setdefault(view.base, view.offset)
        key = id(step), *((v.base, v.offset - origins[v.base], v[2:]) for v in (*reads, *writes))
        if key not in self._sums:
            placed = (list(zip(step.reads, reads, strict=True)), list(zip(step.writes, writes, strict=True)))
            self._sums[key] = _RecordedSum(step, origins, sum_op(step.label, step.program, *placed))
        _, first_origins, op = self._sums[key]
        if op is None or first_origins == origins:
            return op
        moved = (x._replace(offset=x.offset + origins[x.base] - first_origins[x.base]) for x in op.arrays)
        return replace(op, arrays=tuple(moved))

    def multiply(
        self, leaf: str, products: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        m, k, n = products[0][0].rows, products[0][0].cols, products[0][1].cols
        if m == 0 or n == 0:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._scale(dest, beta)
            return
        evenly_spaced = all(constant_distance(x) is not None for x in zip(*products, strict=True))
        for batch in [products] if evenly_spaced else [[p] for p in products]:
            self._note_product(leaf, batch, dtype, alpha, beta)

    def multiply_apart(
        self, leaf: str, product: Triple, added: View, dtype: str, alpha: Coefficient, beta: Coefficient
    ) -> None:
        (m, k), n, dest = product[0].shape, product[1].cols, product[2]
        if m == 0 or n == 0:
            return
        if k == 0 or alpha == 0:
            self.begin(added, dest)
            self._scale(dest, beta)
            return
        self._note_product(leaf, [product], dtype, alpha, beta, added)

    def _note_product(
        self, leaf: str, batch: Sequence[Triple], dtype: str, alpha: Coefficient, beta: Coefficient,
        added: View | None = None,
    ) -> None:  # fmt: skip
        """Note a batch by a leaf, whose scratch stands behind the temporaries."""
        (m, k), n = batch[0][0].shape, batch[0][1].cols
        room = leaf_use(leaf).leaf.call.room(DTYPES[dtype].itemsize, m, k, n, len(batch))
        self.peak = max(self.peak, self.used + room)
        op = gemm_op(leaf, batch, dtype, complex(alpha), complex(beta), self.used, added)
        self._note(replace(op, checked=self.componentwise, ready=self.ready))

    def begin(self, added: View, dest: View) -> None:
        """Copy what is added to where the result will stand, if it cannot be read where it lies."""
        if (op := copy_op("begin C", added, dest)) is not None:
            self._note(op)

    def multiply_half(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """Halves by BLAS's function for them, one after the other, or by the leaf's kernel; else by way of temporaries.

        A batch of small ones is a batch of whole products, which is faster.
        """
        dest, k = products[0][2], products[0][0].cols
        alpha, beta = complex(asked.alpha).real, complex(asked.beta).real
        if not dest.rows:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._note(MirrorOp(dest, dest, 0, beta, full=False))
            return
        row = leaf_use(leaf).leaf
        as_whole_products = asked.fill == "loose" and len(products) > 1 and dest.rows <= row.halves.whole_rows
        if asked.op == "gram" and dtype in row.halves.by_blas and not as_whole_products:
            ranks = [rank_op(leaf, dtype, *triple, alpha, beta) for triple in products]
            if all(ranks):
                self._note(*(op for op in ranks if op))
                return
        row_by_row = not is_column_major(dest)
        if asked.fill == "loose" or (dtype in row.halves.by_kernel and row_by_row):
            first = len(self.ops)
            self.multiply(leaf, products, dtype, alpha, beta)
            if row_by_row:
                self._want_halves(first, asked)
        else:
            self._halves_by_temporaries(leaf, products, dtype, asked)

    def _halves_by_temporaries(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """Each product into a temporary, whose lower half is then taken.

        The temporary lies row by row if the leaf has a kernel for halves, which wants that.
        """
        row, (alpha, beta) = leaf_use(leaf).leaf, (complex(x).real for x in (asked.alpha, asked.beta))
        has_kernel = dtype in (*row.halves.by_kernel, *row.halves.loose)
        for left, right, dest in products:
            mark, first = self.used, len(self.ops)
            temporary = self.take(dest.rows, dest.cols, is_column_major(dest) and not has_kernel, dtype)
            self.multiply(leaf, [(left, right, temporary)], dtype, 1, 0)
            if has_kernel:
                self._want_halves(first, asked._replace(fill="loose"))
            self._note(MirrorOp(temporary, dest, alpha, beta, full=False))
            self.release(mark)

    def _want_halves(self, first: int, asked: Asked) -> None:
        """Tell the products noted from number `first` on that the lower half of their results is enough."""
        half = TriangleOutput("loose" if asked.fill == "loose" else "lower", asked.op == "gram")
        self.ops[first:] = [replace(op, half=half) if isinstance(op, GemmOp) else op for op in self.ops[first:]]

    def mirror(self, step: Mirror, source: View, dest: View) -> None:
        if not dest.rows:
            return
        op = MirrorOp(source, dest, complex(step.alpha).real, complex(step.beta).real, step.fill == "full")
        if self.ops and (both := mirrored_op(self.ops[-1], source, op)):
            self.ops[-1] = both
        else:
            self._note(op)

    def multiply_and_update(self, step: ProductWithSums, operands: Operands) -> bool:
        """A kernel of a step table, product and all, in one launch."""
        factors, reads, writes = (
            [self.part(operands[p.name], p) for p in places]
            for places in ((step.product.left, step.product.right), step.update.reads[1:], step.update.writes)
        )
        if any(x.rows and x.cols for x in writes):
            use = step.product.plan.leaf_use
            self._note(updating_op(use, writes[0].dtype, factors[0], factors[1], step.update.program, reads, writes))
        return True

    def multiply_with_sums(self, plan: Plan, operands: Operands, alpha: Coefficient, beta: Coefficient) -> bool:
        """The products of a fused level, each with its sums inside, and no temporaries."""
        level, strategy = plan.levels[0].fused_products, leaf_strategy(plan.leaf_use)
        if level is None:
            return False
        if APART in operands:
            self.begin(operands[APART], operands["C"])
        m, k, n = level.scheme.size
        grids = zip("ABC", ((m, k), (k, n), (m, n)), strict=True)
        places = [operand_blocks(x, operands[x].rows, operands[x].cols, grid, level.unit) for x, grid in grids]
        views = [[self.part(operands[p.name], p) for p in blocks] for blocks in places]
        dtype = operands["C"].dtype
        fused = FusedLaunches(level, strategy, dtype, Blocks(*views), complex(alpha).real, complex(beta).real)
        if fused.atomic:
            self._scale(operands["C"], beta)
        for lanes in fused.stages() if alpha else ():
            self._on_lanes(lanes)
        for i, block in enumerate(() if fused.atomic else views[2]):
            if i not in fused.written:
                self._scale(block, beta)
        return True

    def side_by_side(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Independent products in turn on two lanes, each lane with temporaries of its own."""
        mark, itemsize = self.used, DTYPES[dtype].itemsize
        room = max(workspace(p.plan, *p.size, itemsize, *p.asked) for p in products)
        self._note(StreamSync.FORK)
        for i, product in enumerate(products):
            self.lane = i % 2
            self.used = mark + self.lane * room
            run(product)
        self.lane, self.used = 0, mark
        self._note(StreamSync.JOIN)

    def _on_lanes(self, lanes: Sequence[Sequence[RecordedOp]]) -> None:
        """Note each lane's operations in order; those of different lanes may run in any order."""
        if len(lanes) > 1:
            self._note(StreamSync.FORK)
        for launches in zip_longest(*lanes):
            for self.lane, op in enumerate(launches):
                self._note(*([op] if op else []))
        self.lane = 0
        if len(lanes) > 1:
            self._note(StreamSync.JOIN)

    def _scale(self, dest: View, beta: Coefficient) -> None:
        """Note dest = beta dest: what is left of a product without terms."""
        place = Place("C", 0, 0, dest.rows, dest.cols)
        program = AdditionProgram(1, (((beta, 0),),), (1,)) if beta else AdditionProgram(0, ((),), (0,))
        op = sum_op("scale", program, [(place, dest)] * program.inputs, [(place, dest)])
        if op is not None and beta != 1:
            self._note(op)


def order_of_sums(steps: LevelSteps) -> dict[str, bool]:
    """Whether sums of A, and of B, are to lie column by column, where the leaf of the products has a wish.

    Along the inner dimension A is to lie row by row and B column by column; along the outer ones it is the reverse.
    """
    plans = {p.plan for p in steps.products}
    if any(plan.levels for plan in plans):
        return {}
    wish = plans.pop().leaf_use.order
    if wish is None:
        return {}
    return {"A": False, "B": True} if wish == "inner" else {"A": True, "B": False}
