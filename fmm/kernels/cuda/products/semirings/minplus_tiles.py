"""Which tile sizes a product over a semiring is fastest with: by the time that its thread blocks take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.semirings.minplus import Ring, sizes_for

Shape = tuple[int, int, int]
BLOCK_CLOCKS = 2500.0  # of a thread block before its first and after its last step


class Rate(NamedTuple):
    """Sums of words that a multiprocessor takes in a clock: for one thread block alone, and for as many as it holds."""

    alone: float
    full: float


# Measured on an H200 at 1.98 GHz, products of 128 to 4096 a side (results/nvidia-h200/tiles/minplus.json).
FLOATS = {"Square": Rate(21, 44), "Medium": Rate(33, 45.5), "Small": Rate(19, 38)}
NONNEGATIVE = {"Square": Rate(27, 53.5), "Medium": Rate(38, 56), "Small": Rate(20, 43)}
INTEGERS = {"Square": Rate(45, 57), "Medium": Rate(40, 54), "Small": Rate(20, 43)}
# With arguments: three of four instructions run at half the rate. Only the large ones were measured.
NOTED = {"Half": Rate(12, 15.5), "Medium": Rate(10, 13.5), "Small": Rate(8, 12)}
DOUBLES = {"Half": Rate(10, 18.3), "Medium": Rate(10.7, 18.4), "Small": Rate(9, 17)}


def rate_of(ring: Ring, sizes: TileSizes, args: bool) -> Rate:
    """By the instructions that a sum takes."""
    floats = NONNEGATIVE if ring.cpp == "NonnegativeFloats" else FLOATS
    return (NOTED if args else {"double": DOUBLES, "float": floats}.get(ring.word, INTEGERS))[sizes.name]


def product_clocks(ring: Ring, args: bool, sizes: TileSizes, products: Sequence[Shape], multiprocessors: int) -> float:
    """Clocks until the last thread block of a launch ends. Leaves out memory, and that blocks do not end together."""
    tiles = sum(-(-m // sizes.m_s) * -(-n // (sizes.n_s * ring.per_word)) for m, _, n in products)
    steps = max(k for _, k, _ in products)
    here = -(-tiles // multiprocessors)  # thread blocks that the busiest multiprocessor has
    rate = rate_of(ring, sizes, args)
    return BLOCK_CLOCKS + here * sizes.m_s * sizes.n_s * steps / min(rate.alone * here, rate.full)


def fastest_sizes(ring: Ring, args: bool, products: Sequence[Shape], multiprocessors: int) -> TileSizes:
    """The one with the least time."""
    return min(sizes_for(ring, args), key=lambda s: product_clocks(ring, args, s, products, multiprocessors))
