"""A vendor-style product as one launch of the tiled kernel, with the tile that the block model chooses."""

from __future__ import annotations

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.ops import GemmOp
from fmm.kernels.cuda.products.kernel_sizes import FUSED_SIZES
from fmm.kernels.cuda.products.simt_tiles import TileOp, leaf_strategy, tile_op
from fmm.perfmodel.block_model import BLOCK_MODEL
from tests.support.chips import H200


def tiled_product(op: GemmOp, dtype: str, chip: Chip = H200) -> TileOp:
    """Return the launch as `fmm.kernels.cuda.select` does: with the leaf's tile size, or the fastest one if
    the leaf names none."""
    made = tile_op(op, dtype, leaf_strategy(op.leaf_use) or FUSED_SIZES[dtype])
    return made.with_strategy(BLOCK_MODEL.fastest_tile_sizes(made, chip)) if made.open_strategy else made
