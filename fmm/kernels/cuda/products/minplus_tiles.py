"""Which tile sizes a product over a semiring is fastest with: by the time that its thread blocks take."""

from __future__ import annotations

from collections.abc import Sequence

from fmm.kernels.cuda.products.minplus import Ring, sizes_for
from fmm.kernels.cuda.products.tile_sizes import TileSizes

Shape = tuple[int, int, int]
# Of a multiprocessor, sums taken in a clock: by one thread block alone on it, and by as many as it holds.
ALONE = {"Square": 33.0, "Half": 30.0, "Medium": 18.0, "Small": 8.0}
FULL = {"Square": 58.0, "Half": 55.0, "Medium": 50.0, "Small": 30.0}
BLOCK_CLOCKS = 2500.0  # of a thread block before its first and after its last step


def product_clocks(ring: Ring, sizes: TileSizes, products: Sequence[Shape], multiprocessors: int) -> float:
    """Clocks until the last thread block of a launch ends. Leaves out memory, and that blocks do not end together."""
    tiles = sum(-(-m // sizes.m_s) * -(-n // (sizes.n_s * ring.per_word)) for m, _, n in products)
    steps = max(k for _, k, _ in products)
    here = -(-tiles // multiprocessors)  # thread blocks that the busiest multiprocessor has
    rate = min(ALONE[sizes.name] * here, FULL[sizes.name])
    return BLOCK_CLOCKS + here * sizes.m_s * sizes.n_s * steps / rate


def fastest_sizes(ring: Ring, args: bool, products: Sequence[Shape], multiprocessors: int) -> TileSizes:
    """The one with the least time."""
    return min(sizes_for(ring, args), key=lambda s: product_clocks(ring, s, products, multiprocessors))
