"""Recording a plan: the walk notes its operations, and for a chip it is decided what does each of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fmm.kernels.cuda.launch_list import FLAG, Launch, LaunchList, Step, StreamSync
from fmm.kernels.cuda.ops import (
    GemmOp,
    MirroredOp,
    MirrorOp,
    View,
    addend_view,
    has_matching_layout,
    is_column_major,
    operand_views,
)
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.recompute.recompute import can_recompute, recompute_launches
from fmm.kernels.cuda.record import OperationList, RecordedOp, Recorder
from fmm.kernels.cuda.select import fuse_plane_sums, preparation_launches, select_launches
from fmm.kernels.cuda.sums.sum_launch import copy_op
from fmm.kernels.cuda.target import Target
from fmm.kernels.plans.memory_layout import ALIGN, leading_dimension, temporary_bytes, whole
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.sums import APART
from fmm.kernels.plans.walk import walk_plan
from fmm.kernels.plans.workspace import check_type
from fmm.kernels.registry import depends_on_rows
from fmm.problem import Problem


@dataclass(frozen=True)
class _StepsOnLanes:
    """The steps that have been recorded so far, and the lane of each."""

    steps: list[Step] = field(default_factory=list)
    lanes: list[int] = field(default_factory=list)

    def add(self, steps: Sequence[Step], lane: int = 0) -> None:
        self.steps.extend(steps)
        self.lanes.extend([lane] * len(steps))


@depends_on_rows
@lru_cache(maxsize=1024)
def record_launches(plan: Plan, problem: Problem, target: Target) -> LaunchList:
    """The launch list of a plan on a chip.

    PlanError if no kernel can do one of its sums, or its leaf is not for the type.
    """
    wanted = record_operations(plan, problem)
    recorded = _StepsOnLanes()
    recomputes = target.flagged and can_recompute(problem)
    addend, room = addend_view(problem), wanted.workspace  # what beta multiplies; bytes of workspace
    if recomputes and problem.beta and addend is None:
        addend, room = _place_of_copy(problem, wanted.workspace)
        recorded.add(_copy_of_result(problem, addend, target))
    unflagged = False  # does C hold numbers in which nobody has looked for inf and NaN?
    for op, lane in zip(fuse_plane_sums(wanted.ops, target), wanted.lanes, strict=True):
        steps = (op,) if isinstance(op, StreamSync) else select_launches(op, target)
        recorded.add(steps, lane)
        unflagged = (unflagged and not _mirrors_result(op)) or _writes_unflagged(op, steps)
    if recomputes:
        # A plan that is one GEMM is the vendor's own product, which nobody looks through, unless its leaf saves
        # products.
        scanned = unflagged and (len(wanted.ops) > 1 or plan.leaf_use.leaf.error.saves_products)
        recorded.add(_recompute_steps(problem, scanned, target, addend))
    return LaunchList(plan, problem, tuple(recorded.steps), tuple(recorded.lanes), room, target.alignment)


@depends_on_rows
@lru_cache(maxsize=256)
def record_kept(plan: Plan, problem: Problem, target: Target) -> LaunchList | None:
    """The launches that make what the plan's leaf keeps behind the operand that the problem names.

    None if the leaf keeps nothing on this chip.
    """
    products = [op for op in record_operations(plan, problem).ops if isinstance(op, GemmOp)]
    launches, room = preparation_launches(products[0], target) if products else ((), 0)
    lanes = (0,) * len(launches)
    return LaunchList(plan, problem, launches, lanes, room, target.alignment) if launches else None


@depends_on_rows
@lru_cache(maxsize=1024)
def record_operations(plan: Plan, problem: Problem) -> OperationList:
    """What the plan asks of any GPU."""
    check_type(plan, problem.dtype, "cuda")
    # Only a leaf that stands alone is given whole operands, of which something may be kept.
    prepared_matrix = None if plan.levels else problem.kept
    recorder = Recorder(problem.componentwise, prepared_matrix)
    operands, added = dict(operand_views(problem)), addend_view(problem)
    if added is not None and has_matching_layout(added, operands["C"]):
        operands[APART] = added
    elif added is not None:
        recorder.begin(added, operands["C"])
    walk_plan(plan, operands, recorder, problem.dtype, problem.alpha, problem.beta, problem.op, problem.fill)
    return OperationList(plan, problem, tuple(recorder.ops), tuple(recorder.lanes), recorder.peak)


# ---- computing again where there is an inf or NaN


def _place_of_copy(problem: Problem, workspace: int) -> tuple[View, int]:
    """Where in the workspace a copy of C's old numbers stands, behind all else; and the bytes of workspace with it.

    If the product is computed again, it is added to these numbers.
    """
    c = operand_views(problem)["C"]
    fortran = is_column_major(c)
    step = leading_dimension(c.rows if fortran else c.cols, c.itemsize, spaced=False)
    strides, start = (1, step) if fortran else (step, 1), whole(workspace, ALIGN)
    copy = View("W", start, c.rows, c.cols, *strides, c.dtype)
    return copy, start + temporary_bytes(c.rows, c.cols, c.itemsize)


def _copy_of_result(problem: Problem, dest: View, target: Target) -> tuple[Step, ...]:
    copy = copy_op("keep C", operand_views(problem)["C"], dest)
    return select_launches(copy, target) if copy is not None else ()


def _recompute_steps(problem: Problem, scanned: bool, target: Target, addend: View | None) -> tuple[Step, ...]:
    """What computes the product again. `scanned`: must C be looked through for inf and NaN before?"""
    launches = recompute_launches(problem, scanned, target.chip, target.divides, addend)
    if not (problem.writes_triangle and problem.type.is_complex):
        return launches
    # What is computed again is rounded otherwise in the other half, and not quite real on the diagonal.
    c = operand_views(problem)["C"]
    mirror = MirrorOp(c, c, full=problem.fill == "full")
    return *launches, *select_launches(mirror, replace(target, flagged=False))


def _mirrors_result(op: RecordedOp) -> bool:
    """Does it make one half of C of the other, all of whose numbers it looks at?"""
    mirror = op.mirror if isinstance(op, MirroredOp) else op
    return isinstance(mirror, MirrorOp) and mirror.full and mirror.writes_result


def _writes_unflagged(op: RecordedOp, steps: Sequence[Step]) -> bool:
    """Is C written without a flag being raised: by the vendor, by a kernel that cannot, or by atomic additions?

    (The result is written by the last of an operation's steps.)
    """
    if isinstance(op, StreamSync) or not op.writes_result:
        return False
    if isinstance(op, MirroredOp):
        steps = steps[-1:]
    if isinstance(op, TileOp | TileGroup) and op.kernel.epilogue.atomic:
        return True
    writing = [x for x in steps if not isinstance(x, StreamSync) and x.does == "product"] or steps
    return not all(isinstance(step, Launch) and any(slot.base == FLAG for slot in step.slots) for step in writing)
