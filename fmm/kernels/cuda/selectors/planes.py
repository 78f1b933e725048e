"""Products by the leaf `f16x3`: float32 numbers are split in planes of float16, which the tensor cores multiply."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar

from fmm.kernels.cuda.launch_list import Launch
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.f16_planes import plane_split_launch
from fmm.kernels.cuda.products.f16_sums import PlaneSums, plane_sums
from fmm.kernels.cuda.products.f16x3 import f16x3_launch, f16x3_op, plane_launches, vendor_f16x3_steps
from fmm.kernels.cuda.select import SelectedSteps, vendor_fallback
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.cuda.target import Target

Op = TypeVar("Op")


def select_f16x3(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `f16x3`: our own kernel, else the vendor's products of planes, else the vendor's of the numbers."""
    if own := select_own_f16x3(op, target):
        return own
    op = replace(op, checked=op.checked and target.flagged)
    selected: SelectedSteps | str = "alpha or beta is complex"
    if not target.chip.rounds_pairs:
        selected = "only from compute capability 8.0 on are there the instructions by which numbers are split"
    elif not target.chip.has_warpgroups and op.extent == "lower":
        selected = "only compute capability 9.0 has its instructions, without which all of C is written"
    elif not target.chip.has_warpgroups:
        selected = vendor_f16x3_steps(op, target.chip.multiprocessors, target.divides, target.flagged)
    return vendor_fallback(op, selected) if isinstance(selected, str) else selected


def select_own_f16x3(op: GemmOp, target: Target) -> tuple[Launch, ...]:
    """The launches that split the operands, and that of our kernel for the product; none where it cannot run."""
    op = replace(op, checked=op.checked and target.flagged)
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    if product is None:
        return ()
    splits = plane_launches(product, target.chip.multiprocessors, target.divides)
    return *splits, f16x3_launch(product, target.flagged)


def kept_planes(op: GemmOp, target: Target) -> tuple[tuple[Launch, ...], int]:
    """The launch that makes the planes which are kept behind an operand. It needs no workspace."""
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    kept = [x for x in (product.left, product.right) if x.is_prepared] if product else []
    return ((plane_split_launch(kept, target.divides),) if kept else ()), 0


def with_plane_sums(ops: Sequence[Op], target: Target) -> list[Op | PlaneSums]:
    """The same operations, in which the splits of a level write planes if a batch of f16x3's products follows.

    Both splits of a level stand right before the one batch that multiplies what they write, and nobody else reads it.
    """
    changed: list[Any] = list(ops)
    separate = not target.chip.has_warpgroups
    if not target.chip.rounds_pairs:
        return changed
    for i, op in enumerate(ops):
        if isinstance(op, GemmOp) and op.use.leaf.name == "f16x3":
            for j in range(max(i - 2, 0), i):
                split = ops[j]
                sums = plane_sums(split, op, target.divides, separate) if isinstance(split, SumOp) else None
                if sums is not None:
                    changed[j], changed[i] = sums, _with_ready_side(changed[i], sums)
    return changed


def _with_ready_side(op: GemmOp, sums: PlaneSums) -> GemmOp:
    """The product, which need not make the planes that these sums write."""
    return replace(op, ready=replace(op.ready, written_by_sums=op.ready.written_by_sums | {sums.side}))
