"""Which tile sizes are the fastest for a product by our own kernels: the block model's time of each that fits."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import prod

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.products.kernel_sizes import DOUBLE, STRATEGIES, TMA_SIZES, TUNED, TileSizes, named_strategy
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.cuda.products.split_k import ORDERED_STORE_STEPS, START_STEPS, STORE_STEPS, Part, makespan, split_tail
from fmm.kernels.cuda.products.tiling import count_triangle_tiles
from fmm.kernels.cuda.target import ALIGNED, Alignment, Target
from fmm.perfmodel.block_time import GEMM, ROWS, Alongs, Shape, full_rate, launch_seconds, resident_blocks, tiles_made

ENOUGH = 256  # threads that are enough to keep a multiprocessor busy in float64


@lru_cache(maxsize=4096)  # a plan of four levels asks 2401 times for the same
def best_for(
    shape: Shape,
    chip: Chip,
    count: int = 1,
    along: Alongs = ROWS,
    half: bool = False,
    of: Sequence[TileSizes] = (*TUNED, *STRATEGIES),
) -> TileSizes:
    """The fastest for `count` products of float32: what the leaf `tile` takes; `half`: for one half of each."""
    fitting = [s for s in of if resident_blocks(s, GEMM, chip.limits)]
    return min(fitting, key=lambda s: launch_seconds(s, GEMM, shape, chip, count, along, half))


def busiest_rounds(s: TileSizes, shape: Shape, count: int, multiprocessors: int, half: bool = False) -> float:
    """How many numbers of C the multiprocessor with the most tiles computes; of float64 the model knows no more yet.

    Left out: what tiles cost before and after their multiply-adds, and all memory.
    """
    whole, last = divmod(-(-tiles_made(s, shape, count, half) // multiprocessors), s.blocks)
    alone = max(last, ENOUGH / s.threads) if last else 0  # a few thread blocks take as long as enough of them
    return (whole * s.blocks + alone) * s.m_s * s.n_s / s.rate


def best_double(shape: Shape, chip: Chip, count: int = 1, _: Alongs = ROWS, half: bool = False) -> TileSizes:
    """Of the strategies for float64, the one with which `count` products end first."""
    return min(DOUBLE, key=lambda s: busiest_rounds(s, shape, count, chip.multiprocessors, half))


BEST: Mapping[str, Callable[[Shape, Chip, int, Alongs, bool], TileSizes]] = {
    "float32": best_for,
    "float64": best_double,
}


# ---- where the copy engine brings the operands


def time_of(op: TileOp, s: TileSizes, chip: Chip) -> float:
    """Seconds of one product: its tiles at the rate of Square times the strategy's `rate`."""
    sides, steps = (-(-op.m // s.m_s), -(-op.n // s.n_s)), -(-op.k // s.k_s)
    if op.kernel.half:
        parts: tuple[Part, ...] = (Part(0, 0, count_triangle_tiles(sides, s.m_s, s.n_s), 0, steps),)
    else:
        parts = split_tail(1, prod(sides), op.count, steps, s.k_s, 1, chip.multiprocessors)
    edge = (START_STEPS + (STORE_STEPS if len(parts) == 1 else ORDERED_STORE_STEPS)) / s.k_s
    groups = [(part.tiles * op.count, part.steps + edge) for part in parts]
    adds = makespan(groups, chip.multiprocessors) * s.m_s * s.n_s * s.k_s
    rate = s.rate * full_rate(named_strategy("Square"), (op.m, op.k, op.n), chip, op.count)
    return chip.fitted.launch + adds / rate / chip.clock


def best_by_engine(op: TileOp, chip: Chip) -> tuple[float, TileSizes]:
    return min(((time_of(op, s, chip), s) for s in TMA_SIZES), key=lambda pair: pair[0])


# ---- the choice, as those who record plans ask for it


@dataclass(frozen=True)
class BlockModel:
    """The block model as `fmm.kernels.cuda.target.TileModel`."""

    def fastest(self, op: TileOp, chip: Chip) -> TileSizes:
        kernel = op.kernel
        return BEST[kernel.element]((op.m, op.k, op.n), chip, op.count, kernel.along, bool(kernel.half))

    def fastest_by_engine(self, op: TileOp, chip: Chip) -> TileSizes | None:
        (time, s), kernel, shape = best_by_engine(op, chip), op.kernel, (op.m, op.k, op.n)
        tiled = launch_seconds(kernel.strategy, GEMM, shape, chip, op.count, kernel.along, bool(kernel.half))
        return s if time < tiled else None


BLOCK_MODEL = BlockModel()


@lru_cache(maxsize=256)
def target_on(chip: Chip, alignment: Alignment = ALIGNED, flagged: bool = False) -> Target:
    """What a plan is recorded for on this chip, the tiles of open leaves chosen by the block model."""
    return Target(chip, BLOCK_MODEL, alignment, flagged)
