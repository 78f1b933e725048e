"""How long the kernel of three float16 products takes: whole rounds of the tiles that it picks itself.

Its thread blocks do one tile after the other: nothing is hidden behind the beginning and the end of a tile.
Left out: clocks that fall under load.
"""

from __future__ import annotations

from math import ceil, log2

from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK
from fmm.kernels.cuda.products.wgmma_tiles import best_wgmma_sizes, cluster_tiles, count_cluster_tiles
from fmm.perfmodel.calibration import Rate

WIDE = F16X3_SIZES[0]
# What a tile of half the width takes as a share of a wide one's time: along the inner dimension, and to begin and end.
# (Settled, as the next two and the rate of `f16x3`, on 289 products of an H200: off by 2.7 % at the median and 7.6 % at
# nine tenths; without rounds, with one end for all rows and no start, by 12 and 31 %.)
NARROW, NARROW_END = 0.70, 0.41
# So many times as long a tile takes to begin and to end where rows of C begin at no multiple of eight bytes: they are
# written one number at a time.
SINGLY = 1.5
# So many times as long takes a tile whose thread block shares nothing with a neighbour.
ALONE = 1.05

# By how much longer a product takes for each time that C's sides double beyond so many rows and columns: the blocks of
# a round then read lines that lie ever farther apart. (By 25 plans of an H200 with leaf products of 4096 to 65536 rows
# and columns, results/nvidia-h200/f16x3-leaves.json: without, those of 65536 took 1.27 to 1.36 times as long as
# predicted, those of 16384 1.00 to 1.14, those of 4096 and 8192 1.06.)
FAR, NEAR = 0.065, 8192.0


def plane_slowdown(rate: Rate, m: float, k: float, n: float, together: float, singly: bool) -> float:
    """How many times as long as flops / rate so many products take together, their planes being there already."""
    rows, cols, count = ceil(m), ceil(n), ceil(together)
    s = best_wgmma_sizes(rows, cols, count, int(rate.blocks), F16X3_SIZES)
    rounds = ceil(
        count_cluster_tiles(cluster_tiles(rows, cols, s), s, False) * count / max(rate.blocks // s.cluster, 1)
    )
    narrow, alone = s.n_s < WIDE.n_s, ALONE if s.cluster == 1 else 1.0
    steps = ceil(k / PLANE_CHUNK) * PLANE_CHUNK * (NARROW if narrow else 1.0)
    end = rate.pipe * (SINGLY if singly else 1.0) * (NARROW_END if narrow else 1.0)
    far = 1 + FAR * max(log2(m * n / NEAR**2) / 2, 0.0)
    return far * alone * rounds * (steps + end) * rate.blocks * WIDE.m_s * WIDE.n_s / (m * k * n * together)
