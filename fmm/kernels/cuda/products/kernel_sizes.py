"""Define the named tile sizes ("strategies") of the product kernels, and the workspace sizes of float16 planes.

The performance model (fmm.perfmodel.block_model) chooses the strategy with the smallest predicted time. A strategy is
compiled into a variant of a kernel: of gemm_simt.cuh, gemm_tma.cuh or (for float64) gemm_mma_f64.cuh. Plans and the
model import this module when fmm is imported, so it imports nothing that describes launches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from fmm.kernels.plans.memory_layout import round_up


@dataclass(frozen=True, slots=True)
class TileSizes:
    """The tile sizes of one kernel, counted in matrix elements.

    A thread block computes an m_s x n_s tile of C in steps of k_s along the inner dimension. Each thread computes m_r x
    n_r elements of C. The threads of a warp form a grid of warp_m rows and warp_n columns.
    """

    name: str
    m_s: int
    n_s: int
    k_s: int
    m_r: int
    n_r: int
    warp_m: int
    warp_n: int
    stages: int = 2  # depth of the pipeline: number of tiles of each operand that shared memory holds
    # minimum number of resident thread blocks per multiprocessor, for `__launch_bounds__`; 0: no minimum
    blocks: int = 0
    rate: float = 1.0  # measured speed divided by the block model's speed (float32, H200); corrects the block model
    # True if sums of K-major blocks (contiguous along the inner dimension) are stored transposed in shared memory,
    # which causes fewer register bank conflicts in most strategies
    transposed_sums: bool = True
    types: tuple[str, ...] = ("float32", "float64")  # element types for which a thread's registers suffice
    mma_depth: int = 8  # depth of one float64 mma instruction along the inner dimension

    @property
    def threads_m(self) -> int:
        """Number of threads along a column of a tile, m_s / m_r."""
        return self.m_s // self.m_r

    @property
    def threads_n(self) -> int:
        """Number of threads along a row of a tile, n_s / n_r."""
        return self.n_s // self.n_r

    @property
    def thread_count(self) -> int:
        return self.threads_m * self.threads_n


# The tile sizes of CUTLASS 0.1, from Figure 3 of Huang, Yu and van de Geijn.
STRATEGIES = (
    TileSizes("Small", m_s=16, n_s=16, k_s=16, m_r=2, n_r=2, warp_m=4, warp_n=8),
    TileSizes("Medium", m_s=32, n_s=32, k_s=8, m_r=4, n_r=4, warp_m=4, warp_n=8),
    TileSizes("Large", m_s=64, n_s=64, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Tall", m_s=128, n_s=32, k_s=8, m_r=8, n_r=4, warp_m=8, warp_n=4),
    TileSizes("Wide", m_s=32, n_s=128, k_s=8, m_r=4, n_r=8, warp_m=4, warp_n=8),
    TileSizes("Huge", m_s=128, n_s=128, k_s=8, m_r=8, n_r=8, warp_m=4, warp_n=8),
)


# Strategies for the H200: accumulators use almost all registers, so each read of shared memory serves many
# multiply-adds.
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
# Strategies for gemm_tma.cuh, where the copy engine (TMA) loads the tiles. Products with fused sums are fastest with
# many pipeline stages and a small k_s (Long), and products without sums with few stages and a large k_s (Deep). `rate`
# is the strategy's flops per second, divided by the flops per second that the block model predicts for the strategy
# Square. The values of `rate` are 5 % smaller than measured for large products.
TMA_SIZES = tuple(
    replace(s, types=("float32",))
    for s in (
        TileSizes("Long", m_s=256, n_s=128, k_s=8, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=6, blocks=1, rate=1.08),
        TileSizes("Deep", m_s=128, n_s=256, k_s=16, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=4, blocks=1, rate=1.11),
    )
)
# The kernel GPU8 of Li, Ranka and Sahni (Figures 8 and 9): 16 x 8 threads, where each thread computes one column of a
# 16 x 128 tile. The paper's kernel loads 64 columns of A in each step. fmm's kernel also stores B in shared memory, and
# loads 32 columns of A in each step, so that the tiles fit on every chip. The traffic to global memory and the size of
# each access are the same as in the paper's kernel.
GPU8_SIZES = TileSizes("GPU8", m_s=16, n_s=128, k_s=32, m_r=16, n_r=1, warp_m=1, warp_n=32)
# Strategies for float64 on the tensor cores. The threads of a warp form a grid of 8 rows and 4 columns, so a warp
# computes 64 x 32 or 48 x 32 elements of C. Smaller tiles read more bytes for each element of C, and the L2 cache
# limits the total rate of these reads. `rate` is the strategy's flops per second, divided by the flops per second of
# the strategy Solo. The values of `rate` are calculated from the bytes that each strategy reads, and are not measured.
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
    """Return the strategy with this name, in upper or lower case; ValueError if no strategy has the name."""
    for preset in ALL_STRATEGIES:
        if preset.name.casefold() == name.casefold():
            return preset
    names = ", ".join(s.name for s in ALL_STRATEGIES)
    raise ValueError(f"unknown strategy {name!r}; the strategies are {names}")


def tma_strategy(name: str) -> TileSizes | None:
    """Return the strategy of TMA_SIZES with this name; None if TMA_SIZES has no strategy of this name."""
    return next((s for s in TMA_SIZES if s.name == name), None)


# Default strategies of products with fused sums: FUSED_SIZES for gemm_simt.cuh (float32) and gemm_mma_f64.cuh
# (float64), TMA_FUSED_SIZES for gemm_tma.cuh (float32).
FUSED_SIZES = {"float32": named_strategy("Half"), "float64": named_strategy("Solo")}
TMA_FUSED_SIZES = named_strategy("Long")

# The leaf `small` computes a triangle of a Gram product with at most MAX_SMALL_ROWS rows. For 480 rows, each of the 120
# tiles has one of an H200's 132 multiprocessors to itself. For 512 rows, tiles share multiprocessors: the float64
# triangle takes 35 us, and cuBLAS's syrk takes 16 us.
SMALL_TYPES = ("float16", "bfloat16", "float32", "float64")
MAX_SMALL_ROWS = 480


# ---- float16 planes: a float32 number as two float16 numbers, hi and lo (f16_planes.cuh)

PLANE_CHUNK_LENGTH = 64  # number of elements in a chunk; chunks of hi and lo alternate along a line
PLANES_PER_OPERAND = 2  # number of float16 planes of one float32 operand: hi and lo
FLOAT32_BYTES = 4  # bytes of a float32 number, of hi and lo together, and of an exponent
# Largest inner dimension of one product hi hi by cuBLAS. If the inner dimension of one product were longer than 256,
# the error of f16x3 on uniform random data would be larger than SGEMM's.
VENDOR_PIECE_LENGTH = 256
PLANE_ALIGN_BYTES = 256  # alignment in bytes of planes and exponents in the workspace


def plane_bytes(lines: int, length: int) -> int:
    """Return the total size in bytes of an operand's planes hi and lo, with `lines` lines of `length` elements."""
    return round_up(FLOAT32_BYTES * lines * round_up(length, PLANE_CHUNK_LENGTH), PLANE_ALIGN_BYTES)


def exponent_bytes(count: int) -> int:
    """Return the size in bytes of an array of `count` scaling exponents, rounded up to the alignment."""
    return round_up(FLOAT32_BYTES * count, PLANE_ALIGN_BYTES)


def padded_matrix_bytes(lines: int, length: int) -> int:
    """Return the size in bytes of a contiguous float32 matrix, rounded up to the alignment of planes."""
    return round_up(FLOAT32_BYTES * lines * length, PLANE_ALIGN_BYTES)


def prepared_plane_bytes(itemsize: int, lines: int, length: int) -> tuple[int, int]:
    """Return the sizes in bytes of a padded matrix and of its prepared planes with their exponents.

    The size suffices for one exponent of each line, and for one exponent of each position in a line.
    """
    return padded_matrix_bytes(lines, length), plane_bytes(lines, length) + exponent_bytes(max(lines, length))


def f16x3_workspace(m: int, k: int, n: int, count: int) -> int:
    """Return the workspace in bytes of a batch of f16x3 products, for any layout of the operands.

    The workspace includes the memory of componentwise products: exponents for each position of the inner dimension.
    """
    left = max(plane_bytes(count * m, k), plane_bytes(count * k, m)) + exponent_bytes(count * m)
    right = max(plane_bytes(count * k, n), plane_bytes(count * n, k)) + exponent_bytes(count * n)
    return left + right + 2 * exponent_bytes(count * k) + PLANE_ALIGN_BYTES
