"""How long the kernel of three float16 products takes: whole rounds of the tiles that it picks itself.

Its thread blocks do one tile after the other: nothing is hidden behind the beginning and the end of a tile.
Left out: clocks that fall under load, and what a round shares in the second-level cache.
"""

from __future__ import annotations

from math import ceil

from fmm.kernels.cuda.products.float16.f16_planes import CHUNK
from fmm.kernels.cuda.products.float16.f16x3 import SIZES
from fmm.kernels.cuda.products.tiles.wgmma import sizes_for, tiles_of, units_of
from fmm.perfmodel.calibration import Rate

WIDE = SIZES[0]
# What a tile of half the width takes as a share of a wide one's time: along the inner dimension, and to begin and end.
# (Settled, as the next two and the rate of `f16x3`, on 289 products of an H200: off by 2.7 % at the median and 7.6 % at
# nine tenths; without rounds, with one end for all rows and no start, by 12 and 31 %.)
NARROW, NARROW_END = 0.70, 0.41
# So many times as long a tile takes to begin and to end where rows of C begin at no multiple of eight bytes: they are
# written one number at a time.
SINGLY = 1.5
# So many times as long takes a tile whose thread block shares nothing with a neighbour.
ALONE = 1.05


def plane_slowdown(rate: Rate, m: float, k: float, n: float, together: float, singly: bool) -> float:
    """How many times as long as flops / rate so many products take together, their planes being there already."""
    rows, cols, count = ceil(m), ceil(n), ceil(together)
    s = sizes_for(rows, cols, count, int(rate.blocks), SIZES)
    rounds = ceil(units_of(tiles_of(rows, cols, s), s, False) * count / max(rate.blocks // s.cluster, 1))
    narrow, alone = s.n_s < WIDE.n_s, ALONE if s.cluster == 1 else 1.0
    steps = ceil(k / CHUNK) * CHUNK * (NARROW if narrow else 1.0)
    end = rate.pipe * (SINGLY if singly else 1.0) * (NARROW_END if narrow else 1.0)
    return alone * rounds * (steps + end) * rate.blocks * WIDE.m_s * WIDE.n_s / (m * k * n * together)
