"""How long shortest paths and min-plus products take a CUDA device: counted launch by launch.

Each launch begins when the one before has ended. Left out: device memory (a product reads each number of its operands
tens of times from the second-level cache, which keeps up), the passes that bring operands into their ring and results
out of it, and clocks that fall under load.
"""

from __future__ import annotations

from fmm.hardware.chip import Chip
from fmm.kernels.algorithms.closure_table import closure_table
from fmm.kernels.cuda.products.semirings.minplus import Ring, tile_side
from fmm.kernels.cuda.products.semirings.minplus_tiles import Shape, fastest_sizes, product_clocks
from fmm.kernels.plans.steps.closure_steps import ProductStep, TileStep, closure_steps

# Of one step of a tile that is closed. 128 nodes: 64 numbers a thread, two instructions each, and a barrier.
STEP_CLOCKS = 510.0
WIDE_STEP_CLOCKS = 1100.0  # of float64
NOTED_STEP_CLOCKS = 500.0  # of 64 nodes, with the nodes before the ends of the ways


def product_seconds(ring: Ring, products: list[Shape], chip: Chip, noted: bool = False) -> float:
    """Of one launch."""
    sizes = fastest_sizes(ring, noted, products, chip.multiprocessors)
    return chip.fitted.launch + product_clocks(ring, noted, sizes, products, chip.multiprocessors) / chip.clock


def closure_seconds(ring: Ring, n: int, chip: Chip, noted: bool = False) -> float:
    """Of the shortest paths between n nodes; `noted`: with the nodes before their ends."""
    step_clocks = NOTED_STEP_CLOCKS if noted else WIDE_STEP_CLOCKS if ring.word_bytes > 4 else STEP_CLOCKS
    seconds = 0.0
    for step in closure_steps(closure_table(), n, tile_side(noted)).rounds:
        if isinstance(step, TileStep):
            seconds += chip.fitted.launch + step.place.rows * step_clocks / chip.clock
        else:
            seconds += product_seconds(ring, [_shape(p) for p in step], chip, noted)
    return seconds


def _shape(p: ProductStep) -> Shape:
    return p.left.rows, p.left.cols, p.dest.cols
