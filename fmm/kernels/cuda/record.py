"""Recording a plan: the walk's machine for a GPU notes operations, and for a chip it is decided what does each of them.

Every address is known beforehand, because the steps of a level depend on sizes only and temporaries are taken like a
stack.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import zip_longest
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram, Coefficient
from fmm.kernels.cuda.gemm import GemmOp, gemm_op
from fmm.kernels.cuda.launch_list import FLAG, Launch, LaunchList, Step, Turn
from fmm.kernels.cuda.mirrored import MirroredOp, mirrored_op
from fmm.kernels.cuda.operations import Operation, OperationList
from fmm.kernels.cuda.products.tiles.fused import Blocks, FusedLaunches
from fmm.kernels.cuda.products.tiles.tiled import TileGroup, TileOp, strategy_of, updating_op
from fmm.kernels.cuda.rank import rank_op
from fmm.kernels.cuda.recompute.recompute import can_compute_again, recompute_launches
from fmm.kernels.cuda.select import Target, kept_launches, select_launches, with_plane_sums
from fmm.kernels.cuda.sums.mirror import MirrorOp
from fmm.kernels.cuda.sums.rescale import scaling_op
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_op
from fmm.kernels.cuda.views import (
    View,
    added_view,
    columns_contiguous,
    constant_distance,
    lies_along,
    operand_views,
)
from fmm.kernels.plans.leaf import leaf_use
from fmm.kernels.plans.memory_layout import ALIGN, leading_dimension, temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.blocks import operand_blocks
from fmm.kernels.plans.steps.level_steps import LevelSteps, Product, ProductWithSums
from fmm.kernels.plans.steps.rescaling import LineExponents, Rescaled
from fmm.kernels.plans.steps.sums import APART, Mirror, Place, Sum
from fmm.kernels.plans.walk import Operands, Triple, walk_plan
from fmm.kernels.plans.workspace import check_type, workspace
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Problem

Origins = dict[str, int]  # by base: where the first view of a step begins


@depends_on_rows
@lru_cache(maxsize=1024)
def record_launches(plan: Plan, problem: Problem, target: Target) -> LaunchList:
    """The launch list of a plan on a chip; PlanError where a sum cannot be told to a GPU kernel, or the leaf is not for
    the type."""
    wanted = record_operations(plan, problem)
    steps: list[Step] = []
    lanes: list[int] = []
    unseen, again = False, target.flagged and can_compute_again(problem)
    kept, room = added_view(problem), wanted.workspace
    if again and problem.beta and kept is None:
        kept, room = _kept_result(problem, wanted.workspace)
        steps += _keeping(problem, kept, target)
        lanes += [0] * len(steps)
    for op, lane in zip(with_plane_sums(wanted.ops, target), wanted.lanes, strict=True):
        found = (op,) if isinstance(op, Turn) else select_launches(op, target)
        steps += found
        lanes += [lane] * len(found)
        # (A mirror looks at all of the half that is computed.)
        unseen = (unseen and not _mirrors_all(op)) or _writes_unseen(op, found)
    if again:
        # (A plan that is one GEMM is the vendor's own, unless its leaf saves products.)
        scanned = unseen and (len(wanted.ops) > 1 or plan.leaf_use.leaf.saves_products)
        more = recompute_launches(problem, scanned, target.chip, target.divides, kept)
        steps += more
        lanes += [0] * len(more)
        if problem.halved and problem.type.is_complex:
            # What is computed again is rounded otherwise in the other half, and not quite real on the diagonal.
            c = operand_views(problem)["C"]
            steps += select_launches(MirrorOp(c, c, full=problem.fill == "full"), replace(target, flagged=False))
            lanes.append(0)
    return LaunchList(plan, problem, tuple(steps), tuple(lanes), room, target.alignment)


@depends_on_rows
@lru_cache(maxsize=256)
def record_kept(plan: Plan, problem: Problem, target: Target) -> LaunchList | None:
    """What makes that which the plan's leaf keeps of the operand that the problem names, behind that operand; None if
    it keeps nothing there on this chip."""
    ops = [op for op in record_operations(plan, problem).ops if isinstance(op, GemmOp)]
    launches, room = kept_launches(ops[0], target) if ops else ((), 0)
    lanes = (0,) * len(launches)
    return LaunchList(plan, problem, launches, lanes, room, target.alignment) if launches else None


def _kept_result(problem: Problem, start: int) -> tuple[View, int]:
    """Where a copy of C's old numbers stands in the workspace, behind all else, and where the workspace then ends.

    What is computed again begins with them.
    """
    c = operand_views(problem)["C"]
    fortran = columns_contiguous(c)
    step = leading_dimension(c.rows if fortran else c.cols, c.itemsize, spaced=False)
    strides, start = (1, step) if fortran else (step, 1), -(-start // ALIGN) * ALIGN
    kept = View("W", start, c.rows, c.cols, *strides, c.dtype)
    return kept, start + temporary_bytes(c.rows, c.cols, c.itemsize)


def _keeping(problem: Problem, kept: View, target: Target) -> tuple[Step, ...]:
    copy = copy_op("keep C", operand_views(problem)["C"], kept)
    return select_launches(copy, target) if copy is not None else ()


def _mirrors_all(op: Operation) -> bool:
    mirror = op.mirror if isinstance(op, MirroredOp) else op
    return isinstance(mirror, MirrorOp) and mirror.full and mirror.writes_result


def _writes_unseen(op: Operation, steps: Sequence[Step]) -> bool:
    """Is C written by what raises no flag: the vendor, a kernel that cannot, or numbers that are added atomically?

    (The last of an operation's steps writes its result.)
    """
    if isinstance(op, Turn) or not op.writes_result:
        return False
    if isinstance(op, MirroredOp):
        steps = steps[-1:]
    if isinstance(op, TileOp | TileGroup) and op.kernel.epilogue.atomic:
        return True
    last = [x for x in steps if not isinstance(x, Turn) and x.does == "product"] or steps
    return not all(isinstance(step, Launch) and any(slot.base == FLAG for slot in step.slots) for step in last)


@depends_on_rows
@lru_cache(maxsize=1024)
def record_operations(plan: Plan, problem: Problem) -> OperationList:
    """What the plan asks of any GPU."""
    check_type(plan, problem.dtype)
    # What is kept is made of a whole operand, so it is for a leaf alone.
    recorder = Recorder(problem.componentwise, "" if plan.levels else problem.kept)
    asked = problem.alpha, problem.beta, problem.op, problem.fill
    operands, added = dict(operand_views(problem)), added_view(problem)
    if added is not None and lies_along(added, operands["C"]):
        operands[APART] = added
    elif added is not None:
        recorder.begin(added, operands["C"])
    walk_plan(plan, operands, recorder, problem.dtype, *asked)
    return OperationList(plan, problem, tuple(recorder.ops), tuple(recorder.lanes), recorder.peak)


class Recorder:
    """The walk's machine that notes operations; its stack of temporaries is the workspace."""

    leaf_updates = True

    def __init__(self, componentwise: bool = False, kept: str = "") -> None:
        self.componentwise, self.kept = componentwise, kept
        self.ops: list[Operation] = []
        self.lanes: list[int] = []
        self.used = self.peak = self.lane = 0
        self._sums: dict[Hashable, tuple[Sum, Origins, SumOp | None]] = {}

    def _note(self, *ops: Operation) -> None:
        self.ops += ops
        self.lanes += [self.lane] * len(ops)

    def take(self, rows: int, cols: int, fortran: bool, dtype: str) -> View:
        kind = DTYPES[DTYPES[dtype].stored]
        offset, self.used = self.used, self.used + temporary_bytes(rows, cols, kind.itemsize)
        self.peak = max(self.peak, self.used)
        step = leading_dimension(rows if fortran else cols, kind.itemsize, spaced=False)
        return View("W", offset, rows, cols, *((1, step) if fortran else (step, 1)), kind.name)

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
        """The launch of a step; where the same one was met elsewhere in memory, that one moved (levels below others
        repeat theirs hundreds of times, and to find the arrays of hundreds of blocks takes milliseconds)."""
        origins: Origins = {}
        for view in (*reads, *writes):
            origins.setdefault(view.base, view.offset)
        key = id(step), *((v.base, v.offset - origins[v.base], v[2:]) for v in (*reads, *writes))
        if key not in self._sums:
            placed = (list(zip(step.reads, reads, strict=True)), list(zip(step.writes, writes, strict=True)))
            self._sums[key] = step, origins, sum_op(step.label, step.program, *placed)
        _, known, op = self._sums[key]
        if op is None or known == origins:
            return op
        moved = (x._replace(offset=x.offset + origins[x.base] - known[x.base]) for x in op.arrays)
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
        alike = all(constant_distance(x) is not None for x in zip(*products, strict=True))
        scratch = self.used
        for batch in [products] if alike else [[p] for p in products]:
            self.peak = max(self.peak, scratch + leaf_use(leaf).leaf.room(DTYPES[dtype].itemsize, m, k, n, len(batch)))
            op = gemm_op(leaf, batch, dtype, complex(alpha), complex(beta), scratch)
            self._note(replace(op, checked=self.componentwise, kept=self.kept))

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
        self.peak = max(self.peak, self.used + leaf_use(leaf).leaf.room(DTYPES[dtype].itemsize, m, k, n, 1))
        op = gemm_op(leaf, [product], dtype, complex(alpha), complex(beta), self.used, added)
        self._note(replace(op, checked=self.componentwise, kept=self.kept))

    def begin(self, added: View, dest: View) -> None:
        """Where it cannot be read elsewhere: what is added, copied to where the result will stand."""
        if (op := copy_op("begin C", added, dest)) is not None:
            self._note(op)

    def multiply_half(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """One after the other by BLAS, which has no batch of them; a batch of small ones as whole products."""
        dest, k = products[0][2], products[0][0].cols
        alpha, beta = complex(asked.alpha).real, complex(asked.beta).real
        if not dest.rows:
            return
        if k == 0 or alpha == 0:
            for _, _, dest in products:
                self._note(MirrorOp(dest, dest, 0, beta, full=False))
            return
        row = leaf_use(leaf).leaf
        small = asked.fill == "loose" and len(products) > 1 and dest.rows <= row.whole_halves
        if asked.op == "gram" and dtype in row.rank_updates and not small:
            ranks = [rank_op(leaf, dtype, *triple, alpha, beta) for triple in products]
            if all(ranks):
                self._note(*(op for op in ranks if op))
                return
        of_rows = not columns_contiguous(dest)
        if asked.fill == "loose" or (dtype in row.halves and of_rows):
            begun = len(self.ops)
            self.multiply(leaf, products, dtype, alpha, beta)
            self.ops[begun:] = [_half_enough(op, asked) if of_rows else op for op in self.ops[begun:]]
        else:
            self._halves_apart(leaf, products, dtype, asked)

    def _halves_apart(self, leaf: str, products: Sequence[Triple], dtype: str, asked: Asked) -> None:
        """Into a temporary each, of which only the lower half is taken. It lies row by row where the leaf has a kernel
        for halves."""
        row, (alpha, beta) = leaf_use(leaf).leaf, (complex(x).real for x in (asked.alpha, asked.beta))
        by_half = dtype in (*row.halves, *row.loose_halves)
        for left, right, dest in products:
            mark, begun = self.used, len(self.ops)
            whole = self.take(dest.rows, dest.cols, columns_contiguous(dest) and not by_half, dtype)
            self.multiply(leaf, [(left, right, whole)], dtype, 1, 0)
            if by_half:
                self.ops[begun:] = [_half_enough(op, asked._replace(fill="loose")) for op in self.ops[begun:]]
            self._note(MirrorOp(whole, dest, alpha, beta, full=False))
            self.release(mark)

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
        """A scheme's products, each with its sums inside: the steps of a sequential level, without temporaries."""
        level, strategy = plan.levels[0].fused_products, strategy_of(plan.leaf_use)
        if level is None:
            return False
        if APART in operands:
            self.begin(operands[APART], operands["C"])
        m, k, n = level.scheme.size
        parts = zip("ABC", ((m, k), (k, n), (m, n)), strict=True)
        places = [operand_blocks(x, operands[x].rows, operands[x].cols, p, level.unit) for x, p in parts]
        views = [[self.part(operands[p.name], p) for p in found] for found in places]
        dtype = operands["C"].dtype
        fused = FusedLaunches(level, strategy, dtype, Blocks(*views), complex(alpha).real, complex(beta).real)
        if fused.atomic:
            self._scale(operands["C"], beta)
        for lanes in fused.stages() if alpha else ():
            self._on_lanes(lanes)
        for i, block in enumerate(() if fused.atomic else views[2]):
            if i not in fused.begun:
                self._scale(block, beta)
        return True

    def side_by_side(self, products: Sequence[Product], dtype: str, run: Callable[[Product], None]) -> None:
        """Independent products in turn on two lanes, each lane with temporaries of its own."""
        mark, itemsize = self.used, DTYPES[dtype].itemsize
        room = max(workspace(p.plan, *p.size, itemsize, *p.asked) for p in products)
        self._note(Turn.FORK)
        for i, product in enumerate(products):
            self.lane = i % 2
            self.used = mark + self.lane * room
            run(product)
        self.lane, self.used = 0, mark
        self._note(Turn.JOIN)

    def _on_lanes(self, lanes: Sequence[Sequence[Operation]]) -> None:
        """Each lane's launches in order; those of different lanes in any."""
        if len(lanes) > 1:
            self._note(Turn.FORK)
        for launches in zip_longest(*lanes):
            for self.lane, op in enumerate(launches):
                self._note(*([op] if op else []))
        self.lane = 0
        if len(lanes) > 1:
            self._note(Turn.JOIN)

    def _scale(self, dest: View, beta: Coefficient) -> None:
        """dest = beta dest: a product of nothing."""
        place = Place("C", 0, 0, dest.rows, dest.cols)
        program = AdditionProgram(1, (((beta, 0),),), (1,)) if beta else AdditionProgram(0, ((),), (0,))
        op = sum_op("scale", program, [(place, dest)] * program.inputs, [(place, dest)])
        if op is not None and beta != 1:
            self._note(op)


def _half_enough(op: Operation, asked: Asked) -> Operation:
    """A product of whose result, which lies row by row, the lower half is enough, for kernels that can make use of
    it."""
    half: Literal["loose", "lower"] = "loose" if asked.fill == "loose" else "lower"
    return replace(op, half=half, gram=asked.op == "gram") if isinstance(op, GemmOp) else op


def order_of_sums(steps: LevelSteps) -> dict[str, bool]:
    """Do sums of A, of B lie column by column? Where the leaf of all products says how it wants its operands.

    Along the inner dimension: A's rows, B's columns. Along the outer ones: A's columns, B's rows.
    """
    plans = {p.plan for p in steps.products}
    wish = "" if any(plan.levels for plan in plans) else plans.pop().leaf_use.order
    return {"inner": {"A": False, "B": True}, "outer": {"A": True, "B": False}}.get(wish, {})
