"""Strategies: named tile sizes of the tiled product's kernel. Huang, Yu and van de Geijn's six, and today's chips' own.

This is their one description: fmm.perfmodel.tile_choice chooses among them by the time that fmm.perfmodel.block_time
predicts, and gemm_simt.cuh, gemm_tma.cuh and (for float64) gemm_mma_f64.cuh are compiled with them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Sizes of one kernel: thread block (m_S, n_S, k_S), thread (m_R, n_R), and the threads of a warp.

    `stages` tiles of each operand are in shared memory at a time; the compiler is to leave registers for `blocks`
    thread blocks on a multiprocessor (0: as it likes). `rate`: the part of the model's rate that is left by what the
    model leaves out, measured on an H200 in float32. `turned`: are sums of lines along the inner dimension turned?
    (Compiled both ways, the better is taken: which leaves the compiler fewer conflicts between banks of registers.)
    `types`: whose numbers fit in the registers. In float64 a warp's numbers are multiplied together: `deep` steps of
    the inner dimension are one instruction.
    """

    name: str
    m_s: int
    n_s: int
    k_s: int
    m_r: int
    n_r: int
    warp_m: int
    warp_n: int
    stages: int = 2
    blocks: int = 0
    rate: float = 1.0
    turned: bool = True
    types: tuple[str, ...] = ("float32", "float64")
    deep: int = 8

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
# Where the copy engine brings the operands. Sums want several stages of few steps; lone blocks, few stages of many.
# Their `rate` is in units of what the model says of Square, 5 % less than was measured for large products.
TMA_SIZES = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Long", m_s=256, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=6, blocks=1, rate=1.08),
        TileSizes("Deep", m_s=128, n_s=256, k_s=16, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=4, blocks=1, rate=1.11),
    )
)
# GPU8 of Li, Ranka and Sahni (Figures 8 and 9): 16 x 8 threads, of which each makes a column of 16 x 128 numbers. Their
# A comes 64 columns at a time; here 32, because B goes through shared memory too and both must fit on every chip: what
# is read of device memory, and in which pieces, is the same.
GPU8 = TileSizes("GPU8", m_s=16, n_s=128, k_s=32, m_r=16, n_r=1, warp_m=1, warp_n=32)
# In float64, by the tensor cores: a warp has eight times four lanes, so 64 x 32 or 48 x 32 numbers. What a thread block
# reads must not be more than the second-level cache gives, so its tile is no smaller than it has to be. (The rates, in
# units of the best one's, are what that says, not measured yet.)
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
