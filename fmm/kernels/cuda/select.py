"""What runs: for each operation of a plan, on a chip, which of our kernels with which tile, or the vendor and why.

This is decided here, when a plan is recorded, and nowhere else: launching only launches, and `explain` prints what was
selected. What a product by each leaf is, its module in fmm.kernels.cuda.selectors says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp, MirroredOp, MirrorOp, RankOp, View, has_matching_layout
from fmm.kernels.cuda.products.f16_sums import PlaneSums, plane_sum_launches
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.select import (
    SelectedSteps,
    prepare_planes,
    prepare_residues,
    select_cublaslt,
    select_f16x3,
    select_f16x3_kernel,
    select_residues,
    select_small,
    select_tile,
    select_tile_launches,
    select_tile_with_addend,
    select_vendor,
    select_vendor_3m,
)
from fmm.kernels.cuda.sums.mirror_rescale import ScalingOp, mirror_launch, scaling_launch
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_launch
from fmm.kernels.cuda.target import Target
from fmm.kernels.plans.plan_error import PlanError

# What one product by a leaf is on a chip, by the leaf's name: for a level that is done whole, that of the leaf in which
# it ends. A new leaf adds its own line.
Selector = Callable[[GemmOp, Target], SelectedSteps]
SELECTORS: Final[dict[str, Selector]] = {
    "vendor": select_vendor,
    "vendor3m": select_vendor_3m,
    "lt": select_cublaslt,
    "tile": select_tile,
    "small": select_small,
    "f16x3": select_f16x3,
    "bytes": select_residues,
}

# What makes that which a leaf keeps of an operand, by the name of a leaf whose row says that it keeps something: the
# launches, and the bytes of workspace that they need.
Keeping = tuple[tuple[Launch, ...], int]
KEEPERS: Final[dict[str, Callable[[GemmOp, Target], Keeping]]] = {"f16x3": prepare_planes, "bytes": prepare_residues}


def select_launches(
    op: SumOp | PlaneSums | MirrorOp | ScalingOp | GemmOp | MirroredOp | RankOp | TileOp | TileGroup, target: Target
) -> SelectedSteps:
    """The launches and vendor calls that do an operation on a chip, in order."""
    if isinstance(op, SumOp):
        return (sum_launch(op, target.divides, target.flagged),)
    if isinstance(op, PlaneSums):
        return plane_sum_launches(op, target.divides)
    if isinstance(op, MirrorOp):
        return (mirror_launch(op, target.flagged),)
    if isinstance(op, ScalingOp):
        return (scaling_launch(op, target.flagged),)
    if isinstance(op, RankOp):
        return (VendorCall(op, f"cuBLAS, {'herk' if DTYPES[op.dtype].is_complex else 'syrk'}: one half"),)
    if isinstance(op, MirroredOp):
        return _select_mirrored(op, target)
    if isinstance(op, GemmOp):
        return _select_product(op, target)
    return select_tile_launches(op, target)


def kept_launches(op: GemmOp, target: Target) -> Keeping:
    """What makes that which the op's leaf keeps of the operand named in `ready`; no launches if it can keep nothing."""
    keeper = KEEPERS.get(op.use.leaf.selected_as)
    return keeper(op, target) if keeper else ((), 0)


def _select_product(op: GemmOp, target: Target) -> SelectedSteps:
    """A product by its leaf; what is added but lies elsewhere is read there, or else copied to the result before."""
    name = op.use.leaf.selected_as
    if name not in SELECTORS:
        raise PlanError(f"no product on a CUDA device is registered for the leaf {op.leaf}")
    if op.added is None:
        return SELECTORS[name](op, target)
    return _select_added_in_place(op, op.added, target) or (
        *_copied_to_result(op, op.added, target),
        *SELECTORS[name](replace(op, added=None), target),
    )


def _select_added_in_place(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
    """The launches that read what is added where it lies; none if the leaf's kernels cannot, or others are faster."""
    if not has_matching_layout(added, op.dest_view):
        return ()
    if op.use.leaf.name == "f16x3":
        return select_f16x3_kernel(op, target)
    if op.use.leaf.name == "tile":
        return select_tile_with_addend(op, added, target)
    return ()


def _copied_to_result(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
    """The launch that copies what is added to where the result will stand; none for an empty one."""
    copy = copy_op("begin C", added, op.dest_view)
    return (sum_launch(copy, target.divides, False),) if copy is not None else ()


def _select_mirrored(op: MirroredOp, target: Target) -> SelectedSteps:
    """One launch for the product and its mirror if our kernel can write both, else one after the other."""
    together = _select_product(op.whole, target) if op.product.use.leaf.halves.mirrors else ()
    launches = [step for step in together if isinstance(step, Launch)]
    if len(launches) == len(together) and [step.does for step in launches].count("product") == 1:
        return together
    return (*_select_product(op.product, target), mirror_launch(op.mirror, target.flagged))
