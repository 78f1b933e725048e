"""The operations that a plan asks of any GPU: sums and products in order, with their places in memory."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fmm.kernels.cuda.launch_list import StreamSync
from fmm.kernels.cuda.ops import GemmOp, MirroredOp, MirrorOp, RankOp
from fmm.kernels.cuda.products.f16_sums import PlaneSums
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.sums.mirror_rescale import ScalingOp
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

Operation = SumOp | PlaneSums | MirrorOp | ScalingOp | GemmOp | MirroredOp | RankOp | TileOp | TileGroup | StreamSync


@dataclass(frozen=True, eq=False)
class OperationList:
    """The operations of one plan on one problem."""

    plan: Plan
    problem: Problem
    ops: tuple[Operation, ...]
    lanes: tuple[int, ...]  # the lane of each operation
    workspace: int  # bytes

    @cached_property
    def stream_count(self) -> int:
        """How many lanes there are."""
        return max(self.lanes, default=0) + 1
