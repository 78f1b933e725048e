"""Strategies: named tile sizes of the tiled product's kernel. Huang, Yu and van de Geijn's six, and today's chips' own.

This is their one description: fmm.perfmodel.block_model chooses among them by the time that fmm.perfmodel.block_model
predicts, and gemm_simt.cuh, gemm_tma.cuh and (for float64) gemm_mma_f64.cuh are compiled with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Sizes of one kernel. A thread block computes m_s x n_s numbers of C, k_s steps of the inner dimension at a time;
    each of its threads computes m_r x n_r of them; a warp is warp_m x warp_n threads.
    """

    name: str
    m_s: int
    n_s: int
    k_s: int
    m_r: int
    n_r: int
    warp_m: int
    warp_n: int
    stages: int = 2  # tiles of each operand in shared memory at a time
    blocks: int = 0  # thread blocks on a multiprocessor for which the compiler must leave registers; 0: as it likes
    rate: float = 1.0  # measured rate over the block model's (float32, H200): what that leaves out
    # Are sums stored transposed where lines run along the inner dimension? Both were compiled, and the one is taken
    # that has fewer conflicts between banks of registers.
    turned: bool = True
    types: tuple[str, ...] = ("float32", "float64")  # for which a thread has registers enough
    deep: int = 8  # in float64, where a warp multiplies together: steps of the inner dimension in one instruction

    @property
    def threads_m(self) -> int:
        return self.m_s // self.m_r

    @property
    def threads_n(self) -> int:
        return self.n_s // self.n_r

    @property
    def threads(self) -> int:
        return self.threads_m * self.threads_n


STRATEGIES = (  # Figure 3: CUTLASS 0.1's presets
    TileSizes("Small", m_s=16, n_s=16, k_s=16, m_r=2, n_r=2, warp_m=4, warp_n=8),
    TileSizes("Medium", m_s=32, n_s=32, k_s=8, m_r=4, n_r=4, warp_m=4, warp_n=8),
    TileSizes("Large", m_s=64, n_s=64, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Tall", m_s=128, n_s=32, k_s=8, m_r=8, n_r=4, warp_m=8, warp_n=4),
    TileSizes("Wide", m_s=32, n_s=128, k_s=8, m_r=4, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Huge", m_s=128, n_s=128, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
)


# What an H200 wants: accumulators that fill the registers, so that few reads of shared memory feed many multiply-adds.
TUNED = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Square", m_s=128, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, blocks=2),
        TileSizes("Half", 64, 128, 8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=3, blocks=4, rate=0.99, turned=False),
        TileSizes("Third", 96, 64, 16, m_r=6, n_r=8, warp_m=8, warp_n=4, blocks=3, rate=0.94, turned=False),
        TileSizes("Broad", m_s=96, n_s=192, k_s=16, m_r=6, n_r=12, warp_m=8, warp_n=4, blocks=1, rate=0.92),
    )
)
# Where the copy engine brings the operands. Products with sums inside are fastest with many stages of few steps, others
# with few stages of many steps. Their `rate` is relative to what the model says of Square, and 5 % less than what was
# measured for large products.
TMA_SIZES = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Long", m_s=256, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=6, blocks=1, rate=1.08),
        TileSizes("Deep", m_s=128, n_s=256, k_s=16, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=4, blocks=1, rate=1.11),
    )
)
# GPU8 of Li, Ranka and Sahni (Figures 8 and 9): 16 x 8 threads, each of which computes one column of a tile of 16 x 128
# numbers. They read 64 columns of A at a time; here it is 32, because B goes through shared memory too and both must
# fit on every chip. What is read from device memory, and in which pieces, is the same.
GPU8 = TileSizes("GPU8", m_s=16, n_s=128, k_s=32, m_r=16, n_r=1, warp_m=1, warp_n=32)
# In float64, by the tensor cores: the lanes of a warp stand as 8 x 4, so that a warp computes 64 x 32 or 48 x 32
# numbers. The smaller a tile is, the more is read for each number of C; a thread block must not read more than the
# second-level cache can give. (The rates, relative to the best one's, follow from that, and are not measured yet.)
DOUBLE = tuple(
    replace(s, types=("float64",))
    for s in (
        TileSizes("Solo", m_s=128, n_s=128, k_s=16, m_r=8, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=1),
        TileSizes("Duo", m_s=128, n_s=64, k_s=16, m_r=8, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=2, rate=0.95),
        TileSizes(
            "Trio", m_s=96, n_s=64, k_s=16, m_r=6, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=3, rate=0.9, deep=4
        ),
    )
)
PRESETS = (*STRATEGIES, *TUNED, *TMA_SIZES, GPU8, *DOUBLE)


def named_strategy(name: str) -> TileSizes:
    """A preset by name, in any case."""
    for preset in PRESETS:
        if preset.name.casefold() == name.casefold():
            return preset
    names = ", ".join(s.name for s in PRESETS)
    raise ValueError(f"unknown strategy {name!r}; the strategies are {names}")


def engine_strategy(name: str) -> TileSizes | None:
    """One of TMA_SIZES by name."""
    return next((s for s in TMA_SIZES if s.name == name), None)


SUMMING = {"float32": named_strategy("Half"), "float64": named_strategy("Solo")}  # where sums are inside
TMA_SUMMING = named_strategy("Long")

# Of gemm_small.cuh: the types that it knows, and the sides of a half up to which it is taken. (With 480 rows each of
# 120 tiles has a multiprocessor of an H200 for itself; with 512 some share one: float64 takes 35 us, cuBLAS's syrk 16.)
SMALL_TYPES = ("float16", "bfloat16", "float32", "float64")
LARGEST_SMALL = 480
