"""Recording a plan: the walk notes its operations, and for a chip it is decided what does each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from fmm.kernels.cuda.gemm import GemmOp
from fmm.kernels.cuda.launch_list import FLAG, Launch, LaunchList, Step, Turn
from fmm.kernels.cuda.mirrored import MirroredOp
from fmm.kernels.cuda.operations import Operation, OperationList
from fmm.kernels.cuda.products.tiles.tiled import TileGroup, TileOp
from fmm.kernels.cuda.recompute.recompute import can_compute_again, recompute_launches
from fmm.kernels.cuda.recorder import Recorder
from fmm.kernels.cuda.select import Target, kept_launches, select_launches, with_plane_sums
from fmm.kernels.cuda.sums.mirror import MirrorOp
from fmm.kernels.cuda.sums.sum_launch import copy_op
from fmm.kernels.cuda.views import (
    View,
    added_view,
    columns_contiguous,
    lies_along,
    operand_views,
)
from fmm.kernels.plans.memory_layout import ALIGN, leading_dimension, temporary_bytes
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.sums import APART
from fmm.kernels.plans.walk import walk_plan
from fmm.kernels.plans.workspace import check_type
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Problem


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
    check_type(plan, problem.dtype, "cuda")
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
