"""fmm/perfmodel/tile_choice.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.products.tile_sizes import DOUBLE, STRATEGIES, TUNED, Strategy
from fmm.perfmodel.block_time import GEMM, ROWS, Alongs, Shape, resident, seconds

ENOUGH = 256  # threads that keep a multiprocessor busy in float64


def best_for(
    shape: Shape, chip: Chip, count: int = 1, along: Alongs = ROWS, of: Sequence[Strategy] = (*TUNED, *STRATEGIES)
) -> Strategy:
    """The fastest for `count` products of float32: what the leaf `tile` takes."""
    fitting = [s for s in of if resident(s, GEMM, chip.limits)]
    return min(fitting, key=lambda s: seconds(s, GEMM, shape, chip, count, along))


def rounds(s: Strategy, shape: Shape, count: int, multiprocessors: int) -> float:
    """What the multiprocessor with the most tiles has to do, in numbers of C: all that is said of float64 yet.

    Left out: what tiles cost before and after their multiply-adds, and all memory.
    """
    m, _, n = shape
    tiles = -(-m // s.m_s) * -(-n // s.n_s) * count
    whole, last = divmod(-(-tiles // multiprocessors), s.blocks)
    alone = max(last, ENOUGH / s.threads) if last else 0  # a few thread blocks take as long as enough of them
    return (whole * s.blocks + alone) * s.m_s * s.n_s / s.rate


def best_double(shape: Shape, chip: Chip, count: int = 1, _: Alongs = ROWS) -> Strategy:
    """The one of those for float64 by which `count` products end first."""
    return min(DOUBLE, key=lambda s: rounds(s, shape, count, chip.multiprocessors))


BEST: Mapping[str, Callable[[Shape, Chip, int, Alongs], Strategy]] = {"float32": best_for, "float64": best_double}
