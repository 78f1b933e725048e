"""Select what runs: for each recorded operation on a chip, one of fmm's kernels and its tile sizes, or the vendor.

Selection happens once, when a plan is recorded. Playing a launch list only launches, and `explain` prints the labels
that are written here. `LEAF_SELECTORS` at the end has one function a leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp, MatrixView, MirroredGemm, MirrorOp, RankOp, has_matching_layout
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
from fmm.kernels.cuda.target import ChipTarget
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.levels.residues import residue_leaves

OpT = TypeVar("OpT")
SelectedLaunches = tuple[Launch | VendorCall, ...]  # steps in the order of execution
LeafSelector = Callable[[GemmOp, ChipTarget], SelectedLaunches]
PreparationLaunches = tuple[tuple[Launch, ...], int]  # the launches, and the bytes of workspace that they use
BATCHED_GEMM3M_TYPES = ("complex64",)  # types for which cuBLAS has a batched product by three real ones


def select_launches(
    op: SumOp | PlaneSums | MirrorOp | ScalingOp | GemmOp | MirroredGemm | RankOp | TileOp | TileGroup,
    target: ChipTarget,
) -> SelectedLaunches:
    """Return the launches and vendor calls that compute an operation on the target, in order."""
    if isinstance(op, SumOp):
        return (sum_launch(op, target.alignment_by_base, target.flagged),)
    if isinstance(op, PlaneSums):
        return plane_sum_launches(op, target.alignment_by_base)
    if isinstance(op, MirrorOp):
        return (mirror_launch(op, target.flagged),)
    if isinstance(op, ScalingOp):
        return (scaling_launch(op, target.flagged),)
    if isinstance(op, RankOp):
        return (VendorCall(op, f"cuBLAS, {'herk' if DTYPES[op.dtype].is_complex else 'syrk'}: one triangle"),)
    if isinstance(op, MirroredGemm):
        return _select_mirrored(op, target)
    if isinstance(op, GemmOp):
        return _select_gemm(op, target)
    return select_tile_launches(op, target)


def _select_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the steps of a product by its leaf. A kernel that cannot read the addend in place adds to a copy in C."""
    name = op.leaf_use.leaf.kernel_leaf_name
    if name not in LEAF_SELECTORS:
        raise PlanError(f"no product on a CUDA device is registered for the leaf {op.leaf}")
    if op.addend is None:
        return LEAF_SELECTORS[name](op, target)
    if in_place := _select_with_addend(op, op.addend, target):
        return in_place
    copy = copy_op("begin C", op.addend, op.dest_view)
    copied = (sum_launch(copy, target.alignment_by_base, False),) if copy is not None else ()
    return *copied, *LEAF_SELECTORS[name](replace(op, addend=None), target)


def _select_with_addend(op: GemmOp, addend: MatrixView, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches that read the addend in place; none if the leaf's kernels cannot or others are faster."""
    if not has_matching_layout(addend, op.dest_view):
        return ()
    if op.leaf_use.leaf.name == "f16x3":
        return select_f16x3_kernel(op, target)
    if op.leaf_use.leaf.name == "tile":
        return select_tile_with_addend(op, addend, target)
    return ()


def _select_mirrored(op: MirroredGemm, target: ChipTarget) -> SelectedLaunches:
    """Return one product launch that writes both triangles if a kernel can, else the product and then the mirror."""
    together = _select_gemm(op.as_full_product, target) if op.product.leaf_use.leaf.mirrors else ()
    launches = [step for step in together if isinstance(step, Launch)]
    if len(launches) == len(together) and [step.does for step in launches].count("product") == 1:
        return together
    return (*_select_gemm(op.product, target), mirror_launch(op.mirror, target.flagged))


def preparation_launches(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launches that prepare the operand named in `op.prepared`; none if the leaf prepares nothing."""
    prepare = PREPARATION_SELECTORS.get(op.leaf_use.leaf.kernel_leaf_name)
    return prepare(op, target) if prepare else ((), 0)


# ---- the vendor's leaves, and the vendor as the fallback


def select_vendor_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return cuBLAS's GEMM, for the leaf `vendor`."""
    return (VendorCall(op, batch_label("cuBLAS", op)),)


def select_vendor_gemm3m(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return cuBLAS's gemm3m, for the leaf `vendor3m`; one call a product where cuBLAS has no batched gemm3m."""
    label = f"cuBLAS, {op.dtype} by three real products"
    if op.dtype in BATCHED_GEMM3M_TYPES or op.count == 1:
        return (VendorCall(op, batch_label(label, op)),)
    return tuple(VendorCall(one, label) for one in op.single_products)


def select_cublaslt_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return one candidate of cuBLASLt's heuristic, for the leaves `lt0`, `lt1`, ..."""
    return (VendorCall(op, batch_label(f"cuBLASLt, candidate {op.leaf_use.number}", op)),)


def vendor_fallback(op: GemmOp, reason: str) -> SelectedLaunches:
    """Return the vendor's call in place of a leaf that cannot compute this product; the label gives the reason.

    Where the upper triangle of A A^T must stay unchanged, the call is syrk, once for each product of a batch.
    """
    label = f"cuBLAS, not {op.leaf}, because {reason}"
    if op.triangle_extent != "lower":
        return (VendorCall(op.as_vendor_gemm, batch_label(label, op)),)
    if op.triangle is None or not op.triangle.gram:
        raise PlanError(f"{op.leaf} cannot leave the upper triangle of this product unchanged, because {reason}")
    return tuple(VendorCall(one.as_rank_update, label) for one in op.single_products)


def batch_label(label: str, op: GemmOp) -> str:
    """Return the label, with the number of products if they are a batch."""
    return f"{label}, a batch of {op.count}" if op.count > 1 else label


# ---- tiled kernels: the leaves `tile` and `small`, and the products of fused levels and step tables


def select_small_kernel(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the one launch of the leaf `small`."""
    return (small_launch(op, op.dtype),)


def select_tile_kernel(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the launches of the leaf `tile`.

    Types that can have sums fused in use the SIMT or TMA kernel, the others Hopper's warpgroup kernel. What the
    warpgroup kernel cannot compute falls back to the vendor.
    """
    if op.dtype in FUSED_SIZES:
        return select_tile_launches(_tile_op(op), target)
    launch = _warpgroup_launch(op, target)
    if isinstance(launch, Launch):
        return (launch,)
    return (VendorCall(op.as_vendor_gemm, batch_label(f"cuBLAS, not {op.leaf}, because {launch}", op)),)


def select_tile_with_addend(op: GemmOp, addend: MatrixView, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches of the leaf `tile` that read the addend in place.

    None where no kernel can read it there, or where the TMA kernel, which cannot, is faster.
    """
    if op.dtype not in FUSED_SIZES:
        launch = _warpgroup_launch(op, target)
        return (launch,) if isinstance(launch, Launch) else ()
    plain = _with_fastest_strategy(_tile_op(replace(op, addend=None)), target)
    if _as_tma_op(plain, target) is not None:
        return ()
    return tile_launches(with_addend(plain, addend), target.chip, target.alignment_by_base, target.flagged)


def select_tile_launches(op: TileOp | TileGroup, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches of tiled products, by the TMA kernel where it can and is faster, else by the SIMT kernel."""
    op = _with_fastest_strategy(op, target) if isinstance(op, TileOp) else op
    tma = _as_tma_op(op, target)
    if tma is not None:
        return (tma_launch(tma, target.alignment_by_base, target.flagged),)
    return tile_launches(op, target.chip, target.alignment_by_base, target.flagged)


def _tile_op(op: GemmOp) -> TileOp:
    return tile_op(op, op.dtype, leaf_strategy(op.leaf_use) or FUSED_SIZES[op.dtype])


def _with_fastest_strategy(op: TileOp, target: ChipTarget) -> TileOp:
    """Return the product with the fastest strategy if the leaf leaves the strategy open."""
    return op.with_strategy(target.tiles.fastest_tile_sizes(op, target.chip)) if op.open_strategy else op


def _warpgroup_launch(op: GemmOp, target: ChipTarget) -> Launch | str:
    """Return the launch of the warpgroup kernel, or the reason why the kernel cannot run."""
    if not target.chip.has_warpgroups:
        return "only compute capability 9.0 has its instructions"
    if any(target.alignment_by_base[x.base] % VECTOR_BYTES for x in op.pieces):
        return f"an operand does not begin at a multiple of {VECTOR_BYTES} bytes"
    product = wgmma_op(op, op.dtype, target.chip.multiprocessors)
    if product is None:
        wants = f"lines of whole {VECTOR_BYTES} bytes, alpha and beta real"
        inner = ", both along the inner dimension" if op.dtype == "tf32" else ""
        return f"its kernel cannot do this product: it wants {wants}{inner}"
    return wgmma_launch(product)


def _as_tma_op(op: TileOp | TileGroup, target: ChipTarget) -> TmaOp | None:
    """Return the products as one launch of the TMA kernel.

    None if it cannot compute them, would be slower, or needs more shared memory than the chip has.
    """
    chip = target.chip
    bases = {x.base for o in op.ops for x in (*o.left, *o.right)}
    aligned = rows_are_aligned(op) and all(target.alignment_by_base[base] % VECTOR_BYTES == 0 for base in bases)
    if op.kernel.element != "float32" or not (chip.has_copy_engine and aligned):
        return None
    strategy = tma_strategy(op.kernel.strategy.name)
    if strategy is None and isinstance(op, TileGroup):
        strategy = TMA_FUSED_SIZES if op.order == "turns" else None
    elif strategy is None and isinstance(op, TileOp) and op.open_strategy:
        strategy = target.tiles.fastest_tma_tile_sizes(op, chip)
    tma = tma_op(op, strategy, chip.multiprocessors) if strategy else None
    return tma if tma and tma.kernel.shared <= chip.shared_bytes_per_block else None


# ---- f16x3: float32 split into planes of float16, which the tensor cores multiply


def select_f16x3_steps(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the steps of the leaf `f16x3`: fmm's kernel, else the vendor on float16 planes, else the vendor."""
    if own := select_f16x3_kernel(op, target):
        return own
    op = replace(op, checked=op.checked and target.flagged)
    if not target.chip.can_round_float32_pairs:
        reason = "only from compute capability 8.0 on are there the instructions by which numbers are split"
    elif target.chip.has_warpgroups:
        reason = "alpha or beta is complex"
    elif op.triangle_extent == "lower":
        reason = "only compute capability 9.0 has its instructions, without which all of C is written"
    else:
        steps = vendor_f16x3_steps(op, target.chip.multiprocessors, target.alignment_by_base, target.flagged)
        return vendor_fallback(op, steps) if isinstance(steps, str) else steps
    return vendor_fallback(op, reason)


def select_f16x3_kernel(op: GemmOp, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches that split the operands and that of fmm's kernel; none where the kernel cannot run."""
    op = replace(op, checked=op.checked and target.flagged)
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    if product is None:
        return ()
    splits = plane_launches(product, target.chip.multiprocessors, target.alignment_by_base)
    return *splits, f16x3_launch(product, target.flagged)


def select_plane_preparation(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launch that writes the planes of a prepared operand. The launch needs no workspace."""
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    sides = [x for x in (product.left, product.right) if x.is_prepared] if product else []
    return ((plane_split_launch(sides, target.alignment_by_base),) if sides else ()), 0


def fuse_plane_sums(ops: Sequence[OpT], target: ChipTarget) -> list[OpT | PlaneSums]:
    """Return the operations with each level's splits writing float16 planes, where an f16x3 batch multiplies them.

    Both splits of a level come right before the one batch that reads what they write.
    """
    changed: list[Any] = list(ops)
    separate = not target.chip.has_warpgroups
    if not target.chip.can_round_float32_pairs:
        return changed
    for i, op in enumerate(ops):
        if isinstance(op, GemmOp) and op.leaf_use.leaf.name == "f16x3":
            for j in range(max(i - 2, 0), i):
                split = ops[j]
                sums = plane_sums(split, op, target.alignment_by_base, separate) if isinstance(split, SumOp) else None
                if sums is not None:
                    product = changed[i]
                    written = product.prepared.written_by_sums | {sums.side}
                    changed[j] = sums
                    changed[i] = replace(product, prepared=replace(product.prepared, written_by_sums=written))
    return changed


# ---- residues: the levels that end in the leaf `bytes`, each computed together with the leaf


def select_residue_kernels(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the launches of a product by residues; by the vendor where the chip lacks the tensor cores."""
    product, chip = _residue_product(op, target), target.chip
    if product is not None:
        return residue_launches(product, target.alignment_by_base, target.flagged)
    reason = "alpha or beta is complex" if chip.has_warpgroups else "only compute capability 9.0 has its instructions"
    if DTYPES[op.dtype].exact:
        raise PlanError(f"{op.leaf} cannot multiply {op.dtype}, because {reason}")
    return vendor_fallback(op, reason)


def select_residue_preparation(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launches that write the residues of a prepared operand, and their workspace."""
    product = _residue_product(op, target)
    return residue_preparation_launches(product, target.alignment_by_base) if product else ((), 0)


def _residue_product(op: GemmOp, target: ChipTarget) -> ResidueOp | None:
    """Return the product in the residue kernels' terms; None where they cannot compute it."""
    if not target.chip.has_warpgroups:
        return None
    ending = residue_leaves()[op.leaf]
    moduli = ending.level.moduli_count_for(op.dtype, op.k)
    return residue_op(op, op.dtype, moduli, ending.depth, target.chip.multiprocessors, target.alignment_by_base)


# ---- tables: a new leaf adds a line

# By leaf, the function that selects the steps of one product. A level that is computed together with its leaf is
# selected as that leaf.
LEAF_SELECTORS: Final[dict[str, LeafSelector]] = {
    "vendor": select_vendor_gemm,
    "vendor3m": select_vendor_gemm3m,
    "lt": select_cublaslt_gemm,
    "tile": select_tile_kernel,
    "small": select_small_kernel,
    "f16x3": select_f16x3_steps,
    "bytes": select_residue_kernels,
}
# By leaf, the function that prepares an operand, for leaves that have a preparation.
PREPARATION_SELECTORS: Final[dict[str, Callable[[GemmOp, ChipTarget], PreparationLaunches]]] = {
    "f16x3": select_plane_preparation,
    "bytes": select_residue_preparation,
}
