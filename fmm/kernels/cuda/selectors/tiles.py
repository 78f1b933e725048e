"""Products by our own kernels of tiles: the leaves `tile` and `small`, and what fused levels and step tables ask."""

from __future__ import annotations

from dataclasses import replace

from fmm.kernels.cuda.launch_list import Launch, VendorCall
from fmm.kernels.cuda.ops import GemmOp, View
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES, TMA_FUSED_SIZES, tma_strategy
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp, leaf_strategy, tile_launches, tile_op, with_addend
from fmm.kernels.cuda.products.small_tiles import small_launch
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.cuda.products.tma_tiles import TmaOp, rows_are_aligned, tma_launch, tma_op
from fmm.kernels.cuda.products.wgmma_tiles import wgmma_launch, wgmma_op
from fmm.kernels.cuda.select import SelectedSteps, batch_label
from fmm.kernels.cuda.target import Target


def select_small(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `small`: one launch, whatever the type and layout."""
    return (small_launch(op, op.dtype),)


def select_tile(op: GemmOp, target: Target) -> SelectedSteps:
    """The leaf `tile`: the tiled kernel for types that it has sums inside for, the tensor cores for the others.

    What the tensor cores' kernel cannot do is the vendor's.
    """
    if op.dtype in FUSED_SIZES:
        return select_tiled(_tiled(op), target)
    launch = _warpgroup_launch(op, target)
    if isinstance(launch, Launch):
        return (launch,)
    return (VendorCall(op.as_vendor_gemm, batch_label(f"cuBLAS, not {op.leaf}, because {launch}", op)),)


def select_tile_added(op: GemmOp, added: View, target: Target) -> tuple[Launch, ...]:
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


def select_tiled(op: TileOp | TileGroup, target: Target) -> tuple[Launch, ...]:
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
