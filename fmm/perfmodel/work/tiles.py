"""How our own tiled kernel makes the leaf products of a plan, and how many times as long as the vendor it takes."""

from __future__ import annotations

from functools import lru_cache
from math import ceil
from typing import NamedTuple

from fmm.kernels.cuda.products.kernel_sizes import DOUBLE, FUSED_SIZES, PRESETS, TMA_FUSED_SIZES, TUNED
from fmm.kernels.plans.plan import Plan
from fmm.kernels.registry import depends_on_rows
from fmm.perfmodel.calibration import Rate

# How many times as long products take that wait for each other. (Sums inside, on two H200s: 1.04 to 1.34 with up to 132
# tiles, the median of 12 shapes 1.14; with more tiles 0.95 to 1.11, the median of 65 shapes 0.99.)
WAITING = 1.14
# Steps along the inner dimension in whose time a thread block writes a tile of C. (Without it products of 128 to 208
# steps are predicted to take 10 to 30 % less than they do on an H200.)
WRITING = 30.0


class Tiles(NamedTuple):
    """How the tiled kernel makes leaf products: the sides of its tiles; how many blocks of A and of B each product adds
    up, and how many of C it writes, on average; how many products may fill the device together."""

    height: int
    width: int
    left: float = 1.0
    right: float = 1.0
    dest: float = 1.0
    together: float = 1.0

    def number(self, m: float, n: float) -> int:
        return ceil(m / self.height) * ceil(n / self.width)

    def slowdown(self, rate: Rate, m: float, k: float, n: float, together: float) -> float:
        """How many times as long as flops / rate a product takes; its sums are instructions, not passes over memory.

        Every row of tiles forms the sums of B again, every column of tiles those of A.
        """
        tiles = self.number(m, n)
        whole = tiles * self.height * self.width / (m * n)
        added = (self.left - 1) / self.width + (self.right - 1) / self.height + (self.dest - 1) / k
        beside = max(together, self.together) * tiles
        start = rate.waves / beside + rate.pipe / (k * max(beside / (rate.sms or beside), 1)) + WRITING / k
        return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added) * self._waiting(rate, m, n)

    def _waiting(self, rate: Rate, m: float, n: float) -> float:
        """Where the tiles of one product are fewer than the multiprocessors, the next one is begun beside it; of those
        that go to the same block of C one waits for the other."""
        alone = ceil(m / TMA_FUSED_SIZES.m_s) * ceil(n / TMA_FUSED_SIZES.n_s)
        return WAITING if self.dest > 1 and alone <= rate.sms else 1.0


@depends_on_rows
@lru_cache(maxsize=1024)
def tiles_of(plan: Plan, dtype: str) -> Tiles | None:
    """None where the vendor multiplies, and for types in which our own kernel takes about the vendor's time."""
    leaf = plan.leaf_use.leaf
    if not plan.timed_by_tiles or dtype in set(leaf.types.below) - set(leaf.types.inside):
        return None
    products = plan.levels[-1].fused_products if plan.levels else None
    found = products.scheme if products else None
    usual = DOUBLE[0] if dtype == "float64" else FUSED_SIZES["float32"] if found else TUNED[0]
    chosen = next((s for s in PRESETS if s.name.lower() in plan.leaf_use.options), usual)
    if found is None:
        return Tiles(chosen.m_s, chosen.n_s)
    left, right, dest = (sum(c != 0 for row in x for c in row) / found.rank for x in (found.u, found.v, found.w))
    return Tiles(chosen.m_s, chosen.n_s, left, right, dest, found.rank)
