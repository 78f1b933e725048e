"""Sizes of the product kernels: named tile sizes ("strategies"), and the workspace of float16 planes.

The performance model (fmm.perfmodel.block_model) chooses among the strategies by predicted time, and gemm_simt.cuh,
gemm_tma.cuh and (for float64) gemm_mma_f64.cuh are compiled with them. This module imports nothing of the recorder, so
that plans and the model can read it when fmm is imported.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.kernels.plans.memory_layout import round_up


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Tile sizes of one kernel, in numbers.

    A thread block computes an m_s x n_s tile of C in steps of k_s along the inner dimension. Each of its threads
    computes m_r x n_r numbers, and a warp is an arrangement of warp_m x warp_n threads.
    """

    name: str
    m_s: int
    n_s: int
    k_s: int
    m_r: int
    n_r: int
    warp_m: int
    warp_n: int
    stages: int = 2  # pipeline depth: tiles of each operand in shared memory at a time
    # number of thread blocks on a multiprocessor for which registers must suffice; 0: the compiler decides
    blocks: int = 0
    rate: float = 1.0  # measured over modelled rate (float32, H200): corrects what the block model leaves out
    # True if sums of K-major blocks are stored transposed in shared memory. Both variants were compiled for each size;
    # the value here is the one with fewer register bank conflicts.
    transposed_sums: bool = True
    types: tuple[str, ...] = ("float32", "float64")  # types for which a thread has enough registers
    mma_depth: int = 8  # steps of the inner dimension in one float64 mma instruction

    @property
    def threads_m(self) -> int:
        """Threads along the rows of a tile."""
        return self.m_s // self.m_r

    @property
    def threads_n(self) -> int:
        """Threads along the columns of a tile."""
        return self.n_s // self.n_r

    @property
    def thread_count(self) -> int:
        return self.threads_m * self.threads_n


# Huang, Yu and van de Geijn, Figure 3: the presets of CUTLASS 0.1
STRATEGIES = (
    TileSizes("Small", m_s=16, n_s=16, k_s=16, m_r=2, n_r=2, warp_m=4, warp_n=8),
    TileSizes("Medium", m_s=32, n_s=32, k_s=8, m_r=4, n_r=4, warp_m=4, warp_n=8),
    TileSizes("Large", m_s=64, n_s=64, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Tall", m_s=128, n_s=32, k_s=8, m_r=8, n_r=4, warp_m=8, warp_n=4),
    TileSizes("Wide", m_s=32, n_s=128, k_s=8, m_r=4, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Huge", m_s=128, n_s=128, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
)


# For the H200: accumulators fill the registers, so that few reads of shared memory feed many multiply-adds.
H200_STRATEGIES = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Square", m_s=128, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, blocks=2),
        TileSizes(
            "Half", 64, 128, 8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=3, blocks=4, rate=0.99, transposed_sums=False
        ),
        TileSizes("Third", 96, 64, 16, m_r=6, n_r=8, warp_m=8, warp_n=4, blocks=3, rate=0.94, transposed_sums=False),
        TileSizes("Broad", m_s=96, n_s=192, k_s=16, m_r=6, n_r=12, warp_m=8, warp_n=4, blocks=1, rate=0.92),
    )
)
# For gemm_tma.cuh, where the copy engine (TMA) loads the tiles. Products with fused sums are fastest with many short
# stages, plain products with few long ones. `rate` is relative to the model's time for Square, and 5 % below the rate
# measured for large products.
TMA_SIZES = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Long", m_s=256, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=6, blocks=1, rate=1.08),
        TileSizes("Deep", m_s=128, n_s=256, k_s=16, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=4, blocks=1, rate=1.11),
    )
)
# GPU8 of Li, Ranka and Sahni (Figures 8 and 9): 16 x 8 threads, each of which computes one column of a 16 x 128 tile.
# The paper reads 64 columns of A at a time. Here the kernel reads 32 columns of A at a time, because B also goes
# through shared memory, and both must fit on every chip. Global memory traffic and the size of its accesses are as in
# the paper.
GPU8_SIZES = TileSizes("GPU8", m_s=16, n_s=128, k_s=32, m_r=16, n_r=1, warp_m=1, warp_n=32)
# For float64 on the tensor cores. The threads of a warp are arranged 8 x 4, so that a warp computes 64 x 32 or 48 x 32
# numbers. Smaller tiles read more for each number of C, and all thread blocks together must not read more than the L2
# cache delivers. `rate` is relative to Solo, derived from that traffic, and not measured yet.
FLOAT64_SIZES = tuple(
    replace(s, types=("float64",))
    for s in (
        TileSizes("Solo", m_s=128, n_s=128, k_s=16, m_r=8, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=1),
        TileSizes("Duo", m_s=128, n_s=64, k_s=16, m_r=8, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=2, rate=0.95),
        TileSizes(
            "Trio", m_s=96, n_s=64, k_s=16, m_r=6, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=3, rate=0.9, mma_depth=4
        ),
    )
)
ALL_STRATEGIES = (*STRATEGIES, *H200_STRATEGIES, *TMA_SIZES, GPU8_SIZES, *FLOAT64_SIZES)


def named_strategy(name: str) -> TileSizes:
    """Return the preset with this name, in any case; a ValueError lists the presets."""
    for preset in ALL_STRATEGIES:
        if preset.name.casefold() == name.casefold():
            return preset
    names = ", ".join(s.name for s in ALL_STRATEGIES)
    raise ValueError(f"unknown strategy {name!r}; the strategies are {names}")


def tma_strategy(name: str) -> TileSizes | None:
    """Return the strategy of TMA_SIZES with this name, or None."""
    return next((s for s in TMA_SIZES if s.name == name), None)


# Default strategies of products with fused sums, by type: of gemm_simt.cuh and gemm_mma_f64.cuh, and of gemm_tma.cuh.
FUSED_SIZES = {"float32": named_strategy("Half"), "float64": named_strategy("Solo")}
TMA_FUSED_SIZES = named_strategy("Long")

# gemm_small.cuh: its types, and the most rows of a triangle for which it is used. With 480 rows each of the 120 tiles
# has a multiprocessor of an H200 to itself. With 512 rows some tiles share a multiprocessor: float64 takes 35 us,
# cuBLAS's syrk 16 us.
SMALL_TYPES = ("float16", "bfloat16", "float32", "float64")
MAX_SMALL_ROWS = 480


# ---- float16 planes: a float32 number as two float16 numbers, hi and lo (f16_planes.cuh)

PLANE_CHUNK = 64  # hi and lo alternate along a line in chunks of this many numbers
PLANES_PER_OPERAND = 2  # float16 planes of one float32 operand
FLOAT32_BYTES = 4  # bytes of a float32 number, of its two planes together, and of an exponent
# Length of the inner dimension that one of the vendor's products covers, where the vendor multiplies planes. Longer
# pieces give uniform random data a larger error than SGEMM.
VENDOR_PIECE_LENGTH = 256
PLANE_ALIGN_BYTES = 256  # bytes: alignment of planes and of exponents in the workspace


def plane_bytes(lines: int, length: int) -> int:
    """Return the bytes of both planes of an operand with this many lines."""
    return round_up(FLOAT32_BYTES * lines * round_up(length, PLANE_CHUNK), PLANE_ALIGN_BYTES)


def exponent_bytes(count: int) -> int:
    """Return the bytes of an array of scaling exponents."""
    return round_up(FLOAT32_BYTES * count, PLANE_ALIGN_BYTES)


def padded_matrix_bytes(lines: int, length: int) -> int:
    """Return the bytes of a contiguous matrix that is followed by its planes."""
    return round_up(FLOAT32_BYTES * lines * length, PLANE_ALIGN_BYTES)


def prepared_plane_bytes(itemsize: int, lines: int, length: int) -> tuple[int, int]:
    """Return the bytes of a matrix, and of its prepared planes behind it, for either side as the inner dimension."""
    return padded_matrix_bytes(lines, length), plane_bytes(lines, length) + exponent_bytes(max(lines, length))


def f16x3_workspace(m: int, k: int, n: int, count: int) -> int:
    """Return the workspace bytes of a batch of f16x3 products, for any layout of the operands.

    The bytes cover the exponents along the inner dimension, which componentwise products need.
    """
    left = max(plane_bytes(count * m, k), plane_bytes(count * k, m)) + exponent_bytes(count * m)
    right = max(plane_bytes(count * k, n), plane_bytes(count * n, k)) + exponent_bytes(count * n)
    return left + right + 2 * exponent_bytes(count * k) + PLANE_ALIGN_BYTES
