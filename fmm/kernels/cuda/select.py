"""Select the kernels of each recorded operation on a chip: fmm's kernels with tile sizes, or calls of the vendor.

Kernels are selected once, when a plan is recorded. The player, which runs the launch list, selects nothing. This module
also writes the label of each launch, which `explain` prints. The table `LEAF_SELECTORS` has one function for each leaf.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import EMULATED_LEAF_NAME, Launch, VendorCall
from fmm.kernels.cuda.ops import DeviceView, GemmOp, MirroredGemm, MirrorOp, RankUpdateOp, has_matching_layout
from fmm.kernels.cuda.products.f16_planes import SPLIT_CLUSTER_BLOCKS, operand_planes, plane_split_launch
from fmm.kernels.cuda.products.f16_sums import PlaneSums, find_plane_sums, plane_sum_launches
from fmm.kernels.cuda.products.f16x3 import f16x3_launch, f16x3_op, missing_plane_launches, vendor_f16x3_steps
from fmm.kernels.cuda.products.f16x3_mma import NO_CLUSTERS, f16x3_mma_launches
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, TMA_FUSED_SIZES, tma_strategy
from fmm.kernels.cuda.products.residues import ResidueOp, residue_launches, residue_op, residue_preparation_launches
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_strategy, tile_launches, tile_op, with_addend
from fmm.kernels.cuda.products.small_tiles import small_launch
from fmm.kernels.cuda.products.stacked_products import best_stack_sizes
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.cuda.products.tma_tiles import TmaOp, has_tma_alignment, tma_launch, tma_op
from fmm.kernels.cuda.products.wgmma_tiles import wgmma_launch, wgmma_op
from fmm.kernels.cuda.sums.mirror_rescale import ScalingOp, mirror_launch, scaling_launch
from fmm.kernels.cuda.sums.sum_launch import SumOp, copy_op, sum_launch
from fmm.kernels.cuda.target import ChipTarget
from fmm.kernels.plans.level import PlanError
from fmm.kernels.plans.levels.residues import residue_leaves

OpT = TypeVar("OpT")
SelectedLaunches = tuple[Launch | VendorCall, ...]  # steps in the order of execution
LeafSelector = Callable[[GemmOp, ChipTarget], SelectedLaunches]
PreparationLaunches = tuple[tuple[Launch, ...], int]  # the launches, and the bytes of workspace that the launches use
BATCHED_GEMM3M_TYPES = ("complex64",)  # types for which cuBLAS has a batched gemm3m


def select_launches(
    op: SumOp | PlaneSums | MirrorOp | ScalingOp | GemmOp | MirroredGemm | RankUpdateOp | TileOp | TileGroup,
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
    if isinstance(op, RankUpdateOp):
        return (VendorCall(op, f"cuBLAS, {'herk' if DTYPES[op.dtype].is_complex else 'syrk'}: one triangle"),)
    if isinstance(op, MirroredGemm):
        return _select_mirrored_gemm(op, target)
    if isinstance(op, GemmOp):
        return _select_gemm(op, target)
    return select_tile_launches(op, target)


def _select_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the steps that compute a product by the leaf that the plan names.

    If the leaf's kernel cannot read the addend in place, the first step copies the addend to C.
    """
    name = op.leaf_use.leaf.kernel_leaf_name
    if name not in LEAF_SELECTORS:
        raise PlanError(f"no product on a CUDA device is registered for the leaf {op.leaf}")
    if op.addend is None:
        return LEAF_SELECTORS[name](op, target)
    if in_place := _select_kernel_for_addend(op, op.addend, target):
        return in_place
    copy = copy_op("begin C", op.addend, op.dest_view)
    copied = (sum_launch(copy, target.alignment_by_base, False),) if copy is not None else ()
    return *copied, *LEAF_SELECTORS[name](replace(op, addend=None), target)


def _select_kernel_for_addend(op: GemmOp, addend: DeviceView, target: ChipTarget) -> tuple[Launch, ...]:
    """Return launches that read the addend in place.

    Return an empty tuple if no kernel can read the addend in place, or if a copy of the addend to C is faster.
    """
    if not has_matching_layout(addend, op.dest_view):
        return ()
    if op.leaf_use.leaf.name == "f16x3":
        return select_f16x3_kernel(op, target)
    if op.leaf_use.leaf.name == "tile":
        return select_tile_with_addend(op, addend, target)
    return ()


def _select_mirrored_gemm(op: MirroredGemm, target: ChipTarget) -> SelectedLaunches:
    """Return the launches of one product kernel that writes both triangles.

    If no kernel writes both triangles, return the launches of the product and of the mirror.
    """
    together = _select_gemm(op.as_full_product, target) if op.product.leaf_use.leaf.mirrors else ()
    launches = [step for step in together if isinstance(step, Launch)]
    if len(launches) == len(together) and [step.does for step in launches].count("product") == 1:
        return together
    return (*_select_gemm(op.product, target), mirror_launch(op.mirror, target.flagged))


def preparation_launches(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launches that convert the operand `op.prepared.prepared_matrix` to planes for the leaf.

    No launches are returned if the leaf cannot prepare operands.
    """
    prepare = PREPARATION_SELECTORS.get(op.leaf_use.leaf.kernel_leaf_name)
    return prepare(op, target) if prepare else ((), 0)


# ---- the vendor's leaves, and the vendor as the fallback


def select_vendor_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the GEMM call of cuBLAS for the leaf `vendor`."""
    return (VendorCall(op, batch_label("cuBLAS", op)),)


def select_vendor_gemm3m(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the gemm3m calls of cuBLAS for the leaf `vendor3m`.

    One call computes a batch if cuBLAS has a batched gemm3m for the element type; otherwise each product is a separate
    call.
    """
    label = f"cuBLAS, {op.dtype} by three real products"
    if op.dtype in BATCHED_GEMM3M_TYPES or op.count == 1:
        return (VendorCall(op, batch_label(label, op)),)
    return tuple(VendorCall(one, label) for one in op.gemms_of_batch)


def select_emulated_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the calls of cuBLAS's own emulation for the leaf `vendor-emulated`, one for each product."""
    return tuple(VendorCall(one, f"cuBLAS, {op.dtype} by cuBLAS's own emulation") for one in op.gemms_of_batch)


def select_cublaslt_gemm(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the call of cuBLASLt for the leaves `lt0`, `lt1`, ...; the number is the index of cuBLASLt's algorithm."""
    return (VendorCall(op, batch_label(f"cuBLASLt, candidate {op.leaf_use.number}", op)),)


def vendor_fallback(op: GemmOp, reason: str) -> SelectedLaunches:
    """Return the vendor's calls for a product that the leaf cannot compute; the label contains the reason.

    If the upper triangle of A A^T must stay unchanged, each product of the batch is a call of syrk.
    """
    label = f"cuBLAS, not {op.leaf}, because {reason}"
    if op.triangle_extent != "lower":
        return (VendorCall(op.as_vendor_gemm, batch_label(label, op)),)
    if op.triangle is None or not op.triangle.gram:
        raise PlanError(f"{op.leaf} cannot leave the upper triangle of this product unchanged, because {reason}")
    return tuple(VendorCall(one.as_rank_update, label) for one in op.gemms_of_batch)


def batch_label(label: str, op: GemmOp) -> str:
    """Return the label; for a batch, append the number of products."""
    return f"{label}, a batch of {op.count}" if op.count > 1 else label


# ---- tiled kernels: the leaves `tile` and `small`, and the products of fused levels and step tables


def select_small_kernel(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the launch of the kernel for the leaf `small`."""
    return (small_launch(op, op.dtype),)


def select_tile_kernel(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the launches of the leaf `tile`.

    Products of the element types in FUSED_SIZES use the SIMT kernel or the TMA kernel. Products of other types use
    Hopper's warpgroup kernel, or the vendor's product if the warpgroup kernel cannot run.
    """
    if op.dtype in FUSED_SIZES:
        return select_tile_launches(_tile_op_of_gemm(op), target)
    launch = _warpgroup_launch(op, target)
    if isinstance(launch, Launch):
        return (launch,)
    if op.count > 1 and op.triangle_extent == "full":
        raise PlanError(f"{op.leaf} cannot compute the triangles of a stack in one launch, because {launch}")
    return (VendorCall(op.as_vendor_gemm, batch_label(f"cuBLAS, not {op.leaf}, because {launch}", op)),)


def select_tile_with_addend(op: GemmOp, addend: DeviceView, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches of the leaf `tile` that read the addend in place; an empty tuple if no kernel can do this.

    The tuple is also empty if the TMA kernel is the fastest, because the TMA kernel cannot read an addend in place.
    """
    if op.dtype not in FUSED_SIZES:
        launch = _warpgroup_launch(op, target)
        return (launch,) if isinstance(launch, Launch) else ()
    without_addend = _with_fastest_tile_sizes(_tile_op_of_gemm(replace(op, addend=None)), target)
    if _as_tma_op(without_addend, target) is not None:
        return ()
    return tile_launches(with_addend(without_addend, addend), target.chip, target.alignment_by_base, target.flagged)


def select_tile_launches(op: TileOp | TileGroup, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches of tiled products: by the TMA kernel if it can run and is faster, else by the SIMT kernel."""
    op = _with_fastest_tile_sizes(op, target) if isinstance(op, TileOp) else op
    tma = _as_tma_op(op, target)
    if tma is not None:
        return (tma_launch(tma, target.alignment_by_base, target.flagged),)
    return tile_launches(op, target.chip, target.alignment_by_base, target.flagged)


def _tile_op_of_gemm(op: GemmOp) -> TileOp:
    """Return the tiled product with the tile sizes that the leaf names, or with the default tile sizes."""
    return tile_op(op, op.dtype, leaf_strategy(op.leaf_use) or FUSED_SIZES[op.dtype])


def _with_fastest_tile_sizes(op: TileOp, target: ChipTarget) -> TileOp:
    """Return the product with the fastest tile sizes; unchanged if the leaf names tile sizes."""
    return op.with_strategy(target.tiles.fastest_tile_sizes(op, target.chip)) if op.open_strategy else op


def _warpgroup_launch(op: GemmOp, target: ChipTarget) -> Launch | str:
    """Return the launch of the warpgroup kernel, or the text of the reason why the kernel cannot run."""
    if not target.chip.has_warpgroups:
        return "only compute capability 9.0 has its instructions"
    if any(target.alignment_by_base[x.base] % VECTOR_BYTES for x in op.operands_and_result):
        return f"an operand does not begin at a multiple of {VECTOR_BYTES} bytes"
    is_stack = op.count > 1 and op.triangle_extent == "full"
    sizes = best_stack_sizes(op, target.chip.multiprocessors) if is_stack else None
    product = wgmma_op(op, op.dtype, target.chip.multiprocessors, sizes)
    if product is None:
        wants = f"lines of whole {VECTOR_BYTES} bytes, alpha and beta real"
        inner = ", both along the inner dimension" if op.dtype == "tf32" else ""
        return f"its kernel cannot compute this product: it needs {wants}{inner}"
    return wgmma_launch(product)


def _as_tma_op(op: TileOp | TileGroup, target: ChipTarget) -> TmaOp | None:
    """Return the products as one launch of the TMA kernel.

    Return None if the TMA kernel cannot compute the products, is slower, or needs more shared memory than the chip has.
    """
    chip = target.chip
    bases = {x.base for o in op.ops for x in (*o.left, *o.right)}
    aligned = has_tma_alignment(op) and all(target.alignment_by_base[base] % VECTOR_BYTES == 0 for base in bases)
    if op.kernel.element != "float32" or not (chip.has_copy_engine and aligned):
        return None
    strategy = tma_strategy(op.kernel.strategy.name)
    if strategy is None and isinstance(op, TileGroup):
        strategy = TMA_FUSED_SIZES if op.order == "turns" else None
    elif strategy is None and isinstance(op, TileOp) and op.open_strategy:
        strategy = target.tiles.fastest_tma_tile_sizes(op, chip)
    tma = tma_op(op, strategy, chip.multiprocessors) if strategy else None
    return tma if tma and tma.kernel.shared_bytes <= chip.shared_bytes_per_block else None


# ---- f16x3: float32 operands are split into float16 planes, and tensor cores multiply the planes


def select_f16x3_steps(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the steps of the leaf `f16x3`.

    If fmm's kernel can run, the steps are its launches; otherwise they are the vendor's products of float16 planes. If
    the vendor's products of planes cannot run either, the only step is the vendor's float32 product.
    """
    if own := select_f16x3_kernel(op, target):
        return own
    op = replace(op, checked=op.checked and target.flagged)
    if not target.chip.can_round_float32_pairs:
        reason = "the instructions that split numbers need compute capability 8.0"
    elif target.chip.has_warpgroups or uses_portable_f16x3(target.chip):
        reason = "alpha or beta is complex"
    elif op.triangle_extent == "lower":
        reason = "the vendor multiplies the planes on this chip, and writes all of C"
    else:
        steps = vendor_f16x3_steps(op, target.chip.multiprocessors, target.alignment_by_base, target.flagged)
        return vendor_fallback(op, steps) if isinstance(steps, str) else steps
    return vendor_fallback(op, reason)


def select_f16x3_kernel(op: GemmOp, target: ChipTarget) -> tuple[Launch, ...]:
    """Return the launches that split the operands and multiply by fmm's kernel; none if no kernel can run.

    Hopper GPUs use a kernel with warpgroup instructions, and most other GPUs use the portable kernel. Data-center
    Blackwell GPUs use neither kernel, because the vendor's float16 products are faster there.
    """
    op, chip = replace(op, checked=op.checked and target.flagged), target.chip
    if uses_portable_f16x3(chip):
        return f16x3_mma_launches(op, chip, target.alignment_by_base, target.flagged)
    product = f16x3_op(op, target.chip.multiprocessors) if target.chip.has_warpgroups else None
    if product is None:
        return ()
    splits = missing_plane_launches(product, target.chip.multiprocessors, target.alignment_by_base)
    return *splits, f16x3_launch(product, target.flagged)


def uses_portable_f16x3(chip: Chip) -> bool:
    """Return True if the leaf `f16x3` uses the portable kernel (gemm_f16x3_mma.cuh) on this chip."""
    return chip.has_warp_mma and not chip.has_warpgroups and not chip.has_tensor_memory


def select_plane_preparation(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launch that writes a prepared operand's float16 planes, and the bytes of workspace: always 0."""
    chip = target.chip
    if not (chip.has_warpgroups or uses_portable_f16x3(chip)):
        return (), 0
    sides = [x for x in operand_planes(op) if x.is_prepared]
    cluster = SPLIT_CLUSTER_BLOCKS if chip.has_warpgroups else NO_CLUSTERS
    return ((plane_split_launch(sides, target.alignment_by_base, cluster=cluster),) if sides else ()), 0


def fuse_plane_sums(ops: Sequence[OpT], target: ChipTarget) -> list[OpT | PlaneSums]:
    """Return the operations, changed so that sums directly before f16x3 products write float16 planes.

    The last two operations before a batch of products can be the sums of A's blocks and the sums of B's blocks.
    """
    changed: list[Any] = list(ops)
    separate = not (target.chip.has_warpgroups or uses_portable_f16x3(target.chip))
    if not target.chip.can_round_float32_pairs:
        return changed
    for i, op in enumerate(ops):
        if isinstance(op, GemmOp) and op.leaf_use.leaf.name == "f16x3":
            for j in range(max(i - 2, 0), i):
                split = ops[j]
                sums = (
                    find_plane_sums(split, op, target.alignment_by_base, separate) if isinstance(split, SumOp) else None
                )
                if sums is not None:
                    product = changed[i]
                    written = product.prepared.written_by_sums | {sums.side}
                    changed[j] = sums
                    changed[i] = replace(product, prepared=replace(product.prepared, written_by_sums=written))
    return changed


# ---- residues: the same kernels compute a level of residues and its leaf `bytes`


def select_residue_kernels(op: GemmOp, target: ChipTarget) -> SelectedLaunches:
    """Return the launches of a product by residues; the vendor's calls if fmm's kernels cannot compute the product."""
    product, chip = _residue_product(op, target), target.chip
    if product is not None:
        return residue_launches(product, target.alignment_by_base, target.flagged)
    reason = "alpha or beta is complex" if chip.has_warp_mma else "the instructions need compute capability 8.0"
    if DTYPES[op.dtype].exact or any(
        residue_leaves()[op.leaf].level.conjugates
    ):  # the vendor's call cannot conjugate an operand
        raise PlanError(f"{op.leaf} cannot multiply {op.dtype}, because {reason}")
    return vendor_fallback(op, reason)


def select_residue_preparation(op: GemmOp, target: ChipTarget) -> PreparationLaunches:
    """Return the launches that write the residues of a prepared operand, and the bytes of workspace that they use."""
    product = _residue_product(op, target)
    return residue_preparation_launches(product, target.alignment_by_base) if product else ((), 0)


def _residue_product(op: GemmOp, target: ChipTarget) -> ResidueOp | None:
    """Return the product as an operation of the residue kernels; None if these kernels cannot compute the product."""
    chip = target.chip
    if not chip.has_warp_mma:
        return None
    warp_chip = None if chip.has_warpgroups else chip
    leaf = residue_leaves()[op.leaf]
    return residue_op(op, leaf, chip.multiprocessors, target.alignment_by_base, warp_chip)


# ---- tables with one line for each leaf

# For each leaf, the function that selects the steps of a product. If one kernel computes a level together with its
# leaf, the function for the leaf selects the launches of both.
LEAF_SELECTORS: Final[dict[str, LeafSelector]] = {
    "vendor": select_vendor_gemm,
    "vendor3m": select_vendor_gemm3m,
    EMULATED_LEAF_NAME: select_emulated_gemm,
    "lt": select_cublaslt_gemm,
    "tile": select_tile_kernel,
    "small": select_small_kernel,
    "f16x3": select_f16x3_steps,
    "bytes": select_residue_kernels,
}
# For each leaf that can prepare operands, the function that selects the launches of a preparation.
PREPARATION_SELECTORS: Final[dict[str, Callable[[GemmOp, ChipTarget], PreparationLaunches]]] = {
    "f16x3": select_plane_preparation,
    "bytes": select_residue_preparation,
}
