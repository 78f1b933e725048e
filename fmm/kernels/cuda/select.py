"""What runs: for each operation of a plan, on a chip, which of our kernels with which tile, or the vendor and why.

This is decided here, when a plan is recorded, and nowhere else: launching only launches, and `explain` prints what was
selected. What a product by each leaf is, its module in fmm.kernels.cuda.selectors says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp, MirroredOp, MirrorOp, RankOp, View, has_matching_layout
from fmm.kernels.cuda.products.f16_planes import plane_split_launch
from fmm.kernels.cuda.products.f16_sums import PlaneSums, plane_sum_launches, plane_sums
from fmm.kernels.cuda.products.f16x3 import f16x3_launch, f16x3_op, plane_launches, vendor_f16x3_steps
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, TMA_FUSED_SIZES, tma_strategy
from fmm.kernels.cuda.products.residues import ResidueOp, residue_launches, residue_op, residue_preparation_launches
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_strategy, tile_launches, tile_op, with_addend
from fmm.kernels.cuda.products.small_tiles import small_launch
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.cuda.products.tma_tiles import TmaOp, rows_are_aligned, tma_launch, tma_op
from fmm.kernels.cuda.products.wgmma_tiles import wgmma_launch, wgmma_op
from fmm.kernels.cuda.sums.mirror_rescale import ScalingOp, mirror_launch, scaling_launch
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_launch
from fmm.kernels.cuda.target import Target
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.levels.residues import residue_leaves


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


def preparation_launches(op: GemmOp, target: Target) -> Preparation:
    """What makes that which the op's leaf keeps of the operand named in `ready`; no launches if it can keep nothing."""
    keeper = PREPARERS.get(op.use.leaf.selected_as)
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
    together = _select_product(op.whole, target) if op.product.use.leaf.mirrors else ()
    launches = [step for step in together if isinstance(step, Launch)]
    if len(launches) == len(together) and [step.does for step in launches].count("product") == 1:
        return together
    return (*_select_product(op.product, target), mirror_launch(op.mirror, target.flagged))


SelectedSteps = tuple[Launch | VendorCall, ...]  # in order
BATCHED_3M = ("complex64",)  # the types of which cuBLAS does a batch by three real products each


def select_vendor(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `vendor`: cuBLAS's usual call."""
    return (VendorCall(op, batch_label("cuBLAS", op)),)


def select_vendor_3m(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `vendor3m`; product by product where cuBLAS has no call for a batch."""
    label = f"cuBLAS, {op.dtype} by three real products"
    if op.dtype in BATCHED_3M or op.count == 1:
        return (VendorCall(op, batch_label(label, op)),)
    return tuple(VendorCall(one, label) for one in op.one_by_one)


def select_cublaslt(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaves `lt0`, `lt1`, ...: one of cuBLASLt's candidates."""
    return (VendorCall(op, batch_label(f"cuBLASLt, candidate {op.use.number}", op)),)


def vendor_fallback(op: GemmOp, reason: str) -> SelectedSteps:
    """The vendor's call in the place of a leaf that cannot do this product, with the reason in its label.

    Where nothing may be written beside a lower half, that is the vendor's function for one half of a matrix's product
    with its own transpose, once for each product of a batch.
    """
    label = f"cuBLAS, not {op.leaf}, because {reason}"
    if op.half is None or op.half.extent != "lower":
        return (VendorCall(op.as_vendor_gemm, batch_label(label, op)),)
    if not op.half.gram:
        raise PlanError(f"{op.leaf} cannot leave the upper half of this product as it is, because {reason}")
    return tuple(VendorCall(one.as_rank_update, label) for one in op.one_by_one)


def batch_label(label: str, op: GemmOp) -> str:
    """The label, with how many products are a batch."""
    return f"{label}, a batch of {op.count}" if op.count > 1 else label


def select_small(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `small`: one launch, whatever the type and layout."""
    return (small_launch(op, op.dtype),)


def select_tile(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `tile`: the tiled kernel for types that it has sums inside for, the tensor cores for the others.

    What the tensor cores' kernel cannot do is the vendor's.
    """
    if op.dtype in FUSED_SIZES:
        return select_tile_launches(_tiled(op), target)
    launch = _warpgroup_launch(op, target)
    if isinstance(launch, Launch):
        return (launch,)
    return (VendorCall(op.as_vendor_gemm, batch_label(f"cuBLAS, not {op.leaf}, because {launch}", op)),)


def select_tile_with_addend(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
    """The leaf `tile`, reading what is added where it lies.

    Nothing where no kernel can read it there, or one that cannot is faster.
    """
    if op.dtype not in FUSED_SIZES:
        launch = _warpgroup_launch(op, target)
        return (launch,) if isinstance(launch, Launch) else ()
    plain = _with_closed_strategy(_tiled(replace(op, added=None)), target)
    if _by_copy_engine(plain, target) is not None:
        return ()
    return tile_launches(with_addend(plain, added), target.chip, target.divides, target.flagged)


def select_tile_launches(op: TileOp | TileGroup, target: Target) -> tuple[Launch, ...]:
    """Tiled products: by the copy engine's kernel where that can do them and is faster, else by the usual one."""
    op = _with_closed_strategy(op, target) if isinstance(op, TileOp) else op
    by_engine = _by_copy_engine(op, target)
    if by_engine is not None:
        return (tma_launch(by_engine, target.divides, target.flagged),)
    return tile_launches(op, target.chip, target.divides, target.flagged)


def _tiled(op: GemmOp) -> TileOp:
    return tile_op(op, op.dtype, leaf_strategy(op.use) or FUSED_SIZES[op.dtype])


def _with_closed_strategy(op: TileOp, target: Target) -> TileOp:
    """With the fastest strategy, if the leaf leaves it open."""
    return op.with_strategy(target.tiles.fastest(op, target.chip)) if op.open_strategy else op


def _warpgroup_launch(op: GemmOp, target: Target) -> Launch | str:
    """The launch of the tensor cores' kernel, or the reason why there is none."""
    if not target.chip.has_warpgroups:
        return "only compute capability 9.0 has its instructions"
    if any(target.divides[x.base] % VECTOR_BYTES for x in op.pieces):
        return f"an operand does not begin at a multiple of {VECTOR_BYTES} bytes"
    product = wgmma_op(op, op.dtype, target.chip.multiprocessors)
    if product is None:
        wants = f"lines of whole {VECTOR_BYTES} bytes, alpha and beta real"
        inner = ", both along the inner dimension" if op.dtype == "tf32" else ""
        return f"its kernel cannot do this product: it wants {wants}{inner}"
    return wgmma_launch(product)


def _by_copy_engine(op: TileOp | TileGroup, target: Target) -> TmaOp | None:
    """The products as one launch of the copy engine's kernel; None where it cannot do them or would be slower, or
    where the chip has too little shared memory for it."""
    chip = target.chip
    bases = {x.base for o in op.ops for x in (*o.left, *o.right)}
    aligned = rows_are_aligned(op) and all(target.divides[base] % VECTOR_BYTES == 0 for base in bases)
    if op.kernel.element != "float32" or not (chip.has_copy_engine and aligned):
        return None
    strategy = tma_strategy(op.kernel.strategy.name)
    if strategy is None and isinstance(op, TileGroup):
        strategy = TMA_FUSED_SIZES if op.order == "turns" else None
    elif strategy is None and isinstance(op, TileOp) and op.open_strategy:
        strategy = target.tiles.fastest_by_engine(op, chip)
    made = tma_op(op, strategy, chip.multiprocessors) if strategy else None
    return made if made and made.kernel.shared <= chip.shared_per_block else None


Op = TypeVar("Op")


def select_f16x3(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `f16x3`: our own kernel, else the vendor's products of planes, else the vendor's of the numbers."""
    if own := select_f16x3_kernel(op, target):
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


def select_f16x3_kernel(op: GemmOp, target: Target) -> tuple[Launch, ...]:
    """The launches that split the operands, and that of our kernel for the product; none where it cannot run."""
    op = replace(op, checked=op.checked and target.flagged)
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    if product is None:
        return ()
    splits = plane_launches(product, target.chip.multiprocessors, target.divides)
    return *splits, f16x3_launch(product, target.flagged)


def prepare_planes(op: GemmOp, target: Target) -> tuple[tuple[Launch, ...], int]:
    """The launch that makes the planes which are kept behind an operand. It needs no workspace."""
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    kept = [x for x in (product.left, product.right) if x.is_prepared] if product else []
    return ((plane_split_launch(kept, target.divides),) if kept else ()), 0


def fuse_plane_sums(ops: Sequence[Op], target: Target) -> list[Op | PlaneSums]:
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


def select_residues(op: GemmOp, target: Target) -> SelectedSteps:
    """Exponents, planes of residues, their products and C; the vendor where there are no such tensor cores."""
    product, chip = _residue_product(op, target), target.chip
    if product is not None:
        return residue_launches(product, target.divides, target.flagged)
    reason = "alpha or beta is complex" if chip.has_warpgroups else "only compute capability 9.0 has its instructions"
    if DTYPES[op.dtype].exact:
        raise PlanError(f"{op.leaf} cannot multiply {op.dtype}, because {reason}")
    return vendor_fallback(op, reason)


def prepare_residues(op: GemmOp, target: Target) -> tuple[tuple[Launch, ...], int]:
    """The launches that make the planes which are kept behind an operand, and the bytes of workspace that they need."""
    product = _residue_product(op, target)
    return residue_preparation_launches(product, target.divides) if product else ((), 0)


def _residue_product(op: GemmOp, target: Target) -> ResidueOp | None:
    """The product in its kernels' terms; None where they cannot do it."""
    if not target.chip.has_warpgroups:
        return None
    ending = residue_leaves()[op.leaf]
    moduli = ending.level.moduli_for(op.dtype, op.k)
    return residue_op(op, op.dtype, moduli, ending.depth, target.chip.multiprocessors, target.divides)


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
Preparation = tuple[tuple[Launch, ...], int]
PREPARERS: Final[dict[str, Callable[[GemmOp, Target], Preparation]]] = {
    "f16x3": prepare_planes,
    "bytes": prepare_residues,
}
