"""Tapes: a whole plan, all levels, as a straight list of kernel launches and GEMM calls with their addresses.

A recipe depends on sizes only, and temporaries are taken like a stack, so every address is known beforehand as a base
(A, B, C or the workspace) and an offset. A tape is made once for a problem and then replayed: the calls cost what the
driver takes, and nothing more. It is made by the same walk over the same recipes as the executor's.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tile_sizes import SUMMING
from fmm.kernels.cuda.products.tiled import Several, TileOp, strategy_of
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.plans.plan import Level, Plan, leaf_parts
from fmm.problem import Problem

TILED = tuple(SUMMING)  # types that the leaf `tile` multiplies, with sums inside if there are any
GROUPED = ("float16", "bfloat16", "tf32")  # and those that it multiplies as they are, by Hopper's warpgroups
# Those that it multiplies faster than the vendor: no other is considered unasked. (On an H200 float64 has 0.95 of
# cuBLAS's speed, and 0.78 with its sums inside; TF32, which needs sums that are turned, less than cuBLASLt's best.)
PAYING = ("float32", "float16", "bfloat16")


class Turn(Enum):
    """Where lanes wait for each other: all others for the first, then the first for all others."""

    FORK = "fork"
    JOIN = "join"


Op = SumOp | GemmOp | TileOp | Several | Turn


@dataclass(frozen=True)
class Tape:
    """The operations of one plan on one problem, on which lane each is, and the bytes of workspace they use."""

    plan: Plan
    problem: Problem
    ops: tuple[Op, ...]
    lanes: tuple[int, ...]
    workspace: int

    @cached_property
    def lanes_used(self) -> int:
        return max(self.lanes, default=0) + 1

    @cached_property
    def vendor_lanes(self) -> int:
        """The first so many lanes call cuBLAS, or may."""
        pairs = zip(self.ops, self.lanes, strict=True)
        return max((lane for op, lane in pairs if isinstance(op, GemmOp)), default=-1) + 1

    def __hash__(self) -> int:
        return id(self)


def pays(plan: Plan, dtype: str) -> bool:
    """Is a plan's leaf `tile` considered unasked for this type?"""
    return dtype in PAYING and dtype in tiled_types(plan)


def tiled_types(plan: Plan) -> tuple[str, ...]:
    """The types that a plan's leaf `tile` multiplies."""
    leaf, last = leaf_parts(plan.leaf)[0], plan.levels[-1] if plan.levels else None
    inside = isinstance(last, Level) and (last.fused or last.table is not None)
    named = strategy_of(leaf)
    return named.types if named else TILED if inside or leaf != "tile" else (*TILED, *GROUPED)
