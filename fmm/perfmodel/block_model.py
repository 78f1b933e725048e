"""Predict the time of the thread blocks of a tiled product, and find the fastest tile sizes.

The model is the block-parameter model of Huang, Yu and van de Geijn (ACM TOMS 46, 2020, section 5). Docstrings name the
paper's equations. Times are counted in cycles of a multiprocessor. As in the paper, the slowest resource determines the
time. Unlike the paper, the model counts instructions other than multiply-adds, the time that a warp waits at every
tile, and a last wave of tiles in which a multiprocessor runs fewer thread blocks than it can hold. The module
fmm.perfmodel.papers.huang_blocks computes the paper's bounds and rates. The model leaves out the sharing of the L2
cache, conflicts of register banks, and clocks that fall at the power limit. For float64 the model counts only the
number of waves of tiles (one tile on each multiprocessor).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import ceil, prod

from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import CapabilityLimits
from fmm.hardware.occupancy import THREADS_PER_WARP, count_active_blocks, max_registers
from fmm.kernels.cuda.products.kernel_sizes import (
    FLOAT64_SIZES,
    H200_STRATEGIES,
    STRATEGIES,
    TMA_SIZES,
    TileSizes,
    named_strategy,
)
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.cuda.products.split_k import (
    BLOCK_START_TIME,
    ORDERED_STORE_TIME,
    TILE_STORE_TIME,
    ProductPart,
    last_job_end_time,
    split_last_tiles,
)
from fmm.kernels.cuda.products.tiling import ContiguousAxis, count_triangle_tiles
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT, Alignment, ChipTarget

# (W_A, W_B, W_C): the number of blocks of A, of B and of C that one product touches
OperandBlocks = tuple[int, int, int]
# the dimensions ("inner" or "outer") along which A and B are contiguous
ContiguousAxes = tuple[ContiguousAxis, ContiguousAxis]
Shape = tuple[int, int, int]  # sides (m, k, n) of a product

GEMM_OPERANDS: OperandBlocks = (1, 1, 1)
ROW_MAJOR_AXES: ContiguousAxes = ("inner", "outer")
# bytes of a float32 number, and number of float32 numbers in the widest memory access
FLOAT32_BYTES, WIDE_ACCESS_FLOATS = 4, 4

# COPY_INSTRUCTIONS, LOOP_INSTRUCTIONS and UNCOUNTED_REGISTERS are counted in the kernel's machine code for sm_90.
COPY_INSTRUCTIONS = 5  # number of instructions of a thread to copy 16 bytes, including the computation of the address
LOOP_INSTRUCTIONS = 50  # number of instructions of a thread for each tile, without multiply-adds and copies
UNCOUNTED_REGISTERS = 32  # registers of a thread that Huang's Equation 16 does not count


# ---- counts of elements for each thread block, Equations 8 to 17


def tile_load_elements(s: TileSizes, k: int) -> tuple[int, int]:
    """Return the numbers of elements of A and of B that move from global to shared memory (Equation 8)."""
    return s.m_s * k, s.n_s * k


def fragment_load_elements(s: TileSizes, k: int) -> tuple[int, int]:
    """Return the numbers of elements of A and of B that move from shared memory to registers (Equation 9)."""
    return s.thread_count * s.m_r * k, s.thread_count * s.n_r * k


def write_back_elements(s: TileSizes) -> int:
    """Return the number of elements of each block of C that move from registers to global memory (Equation 10)."""
    return s.m_s * s.n_s


def kernel_flops(s: TileSizes, w: OperandBlocks, k: int) -> int:
    """Return the flops of the product and of the additions of blocks of A, B and C (Equation 11)."""
    w_a, w_b, w_c = w
    multiply = 2 * s.m_s * s.n_s * k
    return multiply + (w_a - 1) * s.m_s * k + (w_b - 1) * s.n_s * k + (w_c - 1) * s.m_s * s.n_s


def global_memory_elements(s: TileSizes, w: OperandBlocks, k: int) -> int:
    """Return the number of elements that move to and from global memory (Equation 12)."""
    a, b = tile_load_elements(s, k)
    return a * w[0] + b * w[1] + write_back_elements(s) * w[2]


def shared_memory_elements(s: TileSizes, k: int) -> int:
    """Return the number of elements that move to and from shared memory (Equation 14).

    Blocks are added on the way to shared memory, so the count does not depend on W_A and W_B.
    """
    return sum(tile_load_elements(s, k)) + sum(fragment_load_elements(s, k))


def registers_needed(s: TileSizes, w: OperandBlocks) -> int:
    """Return the number of elements that a thread holds in registers (left-hand side of Equation 16).

    A thread holds its accumulators, its fragments, and the prefetched elements of A and B.
    """
    return s.m_r * s.n_r + (2 + w[0]) * s.m_r + (2 + w[1]) * s.n_r


def shared_tile_elements(s: TileSizes) -> int:
    """Return the number of elements of the tiles of A and B in shared memory (left-hand side of Equation 17)."""
    return (s.m_s + s.n_s) * s.k_s


# ---- the copy of an operand to a tile, in which fmm's kernel differs from the paper's Algorithm 1


@dataclass(frozen=True, slots=True)
class OperandTile:
    """A tile of A or B: its size, its layout, and the number of blocks that are added up in the tile.

    Blocks of a sum are copied to shared memory one by one, read again and added; then the sum is written to shared
    memory. If the operand is contiguous along the inner dimension, the rows of A's tile (columns of B's tile) are
    padded in shared memory. The model counts each write to the padded tile twice. One read of the padded tile fetches
    four elements that are consecutive along the inner dimension.
    """

    tile: int  # number of elements of the tile
    piece: int  # number of rows of A's tile, or of columns of B's tile, that one thread multiplies
    blocks: int
    inner: bool  # True if the rows of A's tile, or the columns of B's tile, are contiguous
    transposed: bool  # True if `inner` is True and sums are stored transposed, contiguous along the outer dimension
    threads: int

    @property
    def copies_per_thread(self) -> int:
        """The number of wide memory accesses by which a thread copies its elements of one block's tile."""
        return -(-self.tile // WIDE_ACCESS_FLOATS // self.threads)

    @property
    def instructions_per_thread(self) -> int:
        """The number of instructions with which a thread copies its elements of the tile and adds a sum's blocks."""
        stores = WIDE_ACCESS_FLOATS if self.inner and self.transposed else 1
        sums = self.blocks + WIDE_ACCESS_FLOATS * (self.blocks - 1) + stores if self.blocks > 1 else 0
        return self.copies_per_thread * (COPY_INSTRUCTIONS * self.blocks + sums)

    @property
    def shared_memory_elements(self) -> int:
        """The number of elements that move to and from shared memory until the tile can be used."""
        passes = 2 if self.inner else 1
        return self.tile * (passes * 2 * self.blocks + 1 if self.blocks > 1 else passes)

    @property
    def reads_four_fragments_at_once(self) -> bool:
        """True if one read of shared memory fetches a thread's elements for four steps of the inner dimension."""
        return self.inner and not (self.transposed and self.blocks > 1)

    def fragment_read_count(self, depth: int) -> int:
        """Return the number of reads of shared memory with which a thread loads the elements for `depth` steps."""
        width = (
            WIDE_ACCESS_FLOATS
            if self.reads_four_fragments_at_once or self.piece % WIDE_ACCESS_FLOATS == 0
            else 2 - self.piece % 2
        )
        return -(-self.piece * depth // width)


def operand_tiles(
    s: TileSizes, w: OperandBlocks, contiguous_axes: ContiguousAxes = ROW_MAJOR_AXES
) -> tuple[OperandTile, OperandTile]:
    (a, b), inner = tile_load_elements(s, s.k_s), [x == "inner" for x in contiguous_axes]
    return (
        OperandTile(a, s.m_r, w[0], inner[0], s.transposed_sums, s.thread_count),
        OperandTile(b, s.n_r, w[1], inner[1], s.transposed_sums, s.thread_count),
    )


# ---- time of tiles, in cycles of a multiprocessor


@lru_cache(maxsize=1024)
def resident_blocks(s: TileSizes, w: OperandBlocks, limits: CapabilityLimits) -> int:
    """Return the number of thread blocks that a multiprocessor holds at a time.

    A thread needs the registers of Equation 16 and UNCOUNTED_REGISTERS more. A thread block needs the shared memory of
    Equation 17 times the number of tiles that it buffers, and more for copies of the blocks of a sum.
    """
    registers = min(registers_needed(s, w) + UNCOUNTED_REGISTERS, limits.max_registers_per_thread)
    if s.blocks:
        registers = min(registers, max_registers(limits, s.thread_count, s.blocks))
    a, b = operand_tiles(s, w)
    copies = sum(x.tile * x.blocks for x in (a, b) if x.blocks > 1)
    return count_active_blocks(
        limits, s.thread_count, registers, FLOAT32_BYTES * (s.stages * shared_tile_elements(s) + copies)
    )


def issue_cycles(s: TileSizes, w: OperandBlocks, contiguous_axes: ContiguousAxes, chip: Chip) -> float:
    """Return the cycles in which a scheduler issues the instructions of one warp for one tile.

    A scheduler issues one instruction per cycle; on a chip with few multiply-add units, the multiply-adds take longer.
    """
    adds = s.m_r * s.n_r * s.k_s
    slots = (
        adds
        + LOOP_INSTRUCTIONS
        + sum(x.fragment_read_count(s.k_s) + x.instructions_per_thread for x in operand_tiles(s, w, contiguous_axes))
    )
    return max(slots, adds * chip.warp_schedulers * THREADS_PER_WARP / chip.limits.fp32_per_clock) / s.rate


def warp_wait_cycles(
    s: TileSizes, w: OperandBlocks, contiguous_axes: ContiguousAxes, chip: Chip, touched_bytes: float
) -> float:
    """Return the cycles that a single warp on a scheduler waits at every tile; `touched_bytes`: bytes of all operands.

    If one read fetches the elements for four steps, the data must arrive during one step of multiply-adds; else the
    warp waits longer.
    """
    step = ceil(s.thread_count / THREADS_PER_WARP / chip.warp_schedulers) * s.m_r * s.n_r
    burst = 0.0
    for side, elements in zip(
        operand_tiles(s, w, contiguous_axes), fragment_load_elements(s, WIDE_ACCESS_FLOATS), strict=True
    ):
        if side.reads_four_fragments_at_once:
            burst += (
                s.k_s
                / WIDE_ACCESS_FLOATS
                * max(0.0, elements * FLOAT32_BYTES / chip.limits.shared_bytes_per_clock - step)
            )
    beyond = max(0.0, 1 - chip.near_l2_bytes / touched_bytes)
    return chip.fitted.wait + burst + chip.fitted.far * beyond


def shared_memory_cycles(s: TileSizes, w: OperandBlocks, contiguous_axes: ContiguousAxes, chip: Chip) -> float:
    """Return the cycles for which one thread block's tile occupies shared memory, by Huang's Equation 14.

    The reads of fragments (Equation 9) are multiplied by a fitted share below 1, since one read may serve several
    threads.
    """
    elements = chip.fitted.share * sum(fragment_load_elements(s, s.k_s)) + sum(
        x.shared_memory_elements for x in operand_tiles(s, w, contiguous_axes)
    )
    return FLOAT32_BYTES * elements / chip.limits.shared_bytes_per_clock


def tile_cycles(
    s: TileSizes, w: OperandBlocks, contiguous_axes: ContiguousAxes, chip: Chip, touched_bytes: float, blocks: int
) -> float:
    """Return a multiprocessor's cycles for one tile of each resident thread block, limited by the slowest resource.

    A scheduler with v warps is idle while all v warps wait. If each of the v warps waits for the share p of the time,
    all of them wait at once for the share p^v.
    """
    issue, wait = (
        issue_cycles(s, w, contiguous_axes, chip),
        warp_wait_cycles(s, w, contiguous_axes, chip, touched_bytes),
    )
    warps = ceil(blocks * s.thread_count / THREADS_PER_WARP / chip.warp_schedulers)
    busy: float = 1 - (wait / (wait + issue)) ** warps if warps else 1
    return max(warps * issue / busy, blocks * shared_memory_cycles(s, w, contiguous_axes, chip))


@lru_cache(maxsize=1024)
def multiply_adds_per_cycle(s: TileSizes, shape: Shape, chip: Chip, count: int = 1) -> float:
    """Return the multiply-adds per cycle of a multiprocessor that holds as many thread blocks as fit."""
    blocks = resident_blocks(s, GEMM_OPERANDS, chip.limits)
    return (
        blocks
        * s.m_s
        * s.n_s
        * s.k_s
        / tile_cycles(s, GEMM_OPERANDS, ROW_MAJOR_AXES, chip, operand_bytes(GEMM_OPERANDS, shape, count), blocks)
    )


def operand_bytes(w: OperandBlocks, shape: Shape, count: int) -> int:
    """Return the bytes of the blocks of A, B and C that `count` products touch."""
    m, k, n = shape
    return FLOAT32_BYTES * count * (w[0] * m * k + w[1] * k * n + w[2] * m * n)


def count_computed_tiles(s: TileSizes, shape: Shape, count: int = 1, triangle: bool = False) -> int:
    """Return the number of computed tiles of C; with `triangle`, tiles on and below the diagonal."""
    m, _, n = shape
    tiles = -(-m // s.m_s), -(-n // s.n_s)
    return count * (count_triangle_tiles(tiles, s.m_s, s.n_s) if triangle else tiles[0] * tiles[1])


@lru_cache(maxsize=4096)  # cached: deep plans have thousands of products of one shape
def launch_seconds(
    s: TileSizes,
    w: OperandBlocks,
    shape: Shape,
    chip: Chip,
    count: int = 1,
    contiguous_axes: ContiguousAxes = ROW_MAJOR_AXES,
    triangle: bool = False,
) -> float:
    """Return the seconds of `count` equal products in one launch; operands are in the L2 cache if they fit.

    The launch ends when the multiprocessor with the most tiles ends. A multiprocessor computes as many tiles at a time
    as it can hold, and then writes their entries of C (Equation 10).
    """
    most = resident_blocks(s, w, chip.limits)
    if not most:
        raise ValueError(f"strategy {s.name} with operands {w} cannot be launched: no block fits on a multiprocessor")
    touched_bytes = operand_bytes(w, shape, count)
    steps, tiles = -(-shape[1] // s.k_s), count_computed_tiles(s, shape, count, triangle)
    # Products that add to several blocks of C read and write each of these blocks.
    written = FLOAT32_BYTES * write_back_elements(s) * (w[2] if w[2] == 1 else 2 * w[2]) / chip.write_bytes_per_cycle

    def cycles_of_one_wave(blocks: int) -> float:
        return steps * tile_cycles(s, w, contiguous_axes, chip, touched_bytes, blocks) + blocks * written

    rounds, last = divmod(-(-tiles // chip.multiprocessors), most)
    return chip.fitted.launch + (rounds * cycles_of_one_wave(most) + cycles_of_one_wave(last)) / chip.clock


# ---- the fastest tile sizes

MIN_BUSY_SM_THREADS = 256  # number of threads that keep a multiprocessor busy in float64 products


@lru_cache(maxsize=4096)  # cached: a plan of four levels has 2401 products of one shape
def fastest_float32_tile(
    shape: Shape,
    chip: Chip,
    count: int = 1,
    contiguous_axes: ContiguousAxes = ROW_MAJOR_AXES,
    triangle: bool = False,
    strategies: Sequence[TileSizes] = (*H200_STRATEGIES, *STRATEGIES),
) -> TileSizes:
    """Return the fastest tile sizes for `count` float32 products, or for one triangle of each product."""
    fitting = [s for s in strategies if resident_blocks(s, GEMM_OPERANDS, chip.limits)]
    return min(fitting, key=lambda s: launch_seconds(s, GEMM_OPERANDS, shape, chip, count, contiguous_axes, triangle))


def busiest_sm_entries(s: TileSizes, shape: Shape, count: int, multiprocessors: int, triangle: bool = False) -> float:
    """Return the number of entries of C that the busiest multiprocessor computes, a measure of the time in float64.

    The measure leaves out the time to begin and end a tile, and all memory traffic.
    """
    whole, last = divmod(-(-count_computed_tiles(s, shape, count, triangle) // multiprocessors), s.blocks)
    # A multiprocessor with fewer than MIN_BUSY_SM_THREADS threads takes as long as one with MIN_BUSY_SM_THREADS
    # threads.
    alone = max(last, MIN_BUSY_SM_THREADS / s.thread_count) if last else 0
    return (whole * s.blocks + alone) * s.m_s * s.n_s / s.rate


def fastest_float64_tile(
    shape: Shape, chip: Chip, count: int = 1, _: ContiguousAxes = ROW_MAJOR_AXES, triangle: bool = False
) -> TileSizes:
    """Return the fastest tile sizes for `count` float64 products."""
    return min(FLOAT64_SIZES, key=lambda s: busiest_sm_entries(s, shape, count, chip.multiprocessors, triangle))


FASTEST_TILE_FUNCTIONS: Mapping[str, Callable[[Shape, Chip, int, ContiguousAxes, bool], TileSizes]] = {
    "float32": fastest_float32_tile,
    "float64": fastest_float64_tile,
}


# ---- products with tiles that the copy engine (TMA) loads


def tma_product_seconds(op: TileOp, s: TileSizes, chip: Chip) -> float:
    """Return the seconds of a product by the TMA kernel, with `s.rate` times the rate of Huang's strategy Square."""
    sides, steps = (-(-op.m // s.m_s), -(-op.n // s.n_s)), -(-op.k // s.k_s)
    if op.kernel.triangle:
        parts: tuple[ProductPart, ...] = (ProductPart(0, 0, count_triangle_tiles(sides, s.m_s, s.n_s), 0, steps),)
    else:
        parts = split_last_tiles(1, prod(sides), op.count, steps, s.k_s, 1, chip.multiprocessors)
    edge = (BLOCK_START_TIME + (TILE_STORE_TIME if len(parts) == 1 else ORDERED_STORE_TIME)) / s.k_s
    groups = [(part.tiles * op.count, part.steps + edge) for part in parts]
    adds = last_job_end_time(groups, chip.multiprocessors) * s.m_s * s.n_s * s.k_s
    rate = s.rate * multiply_adds_per_cycle(named_strategy("Square"), (op.m, op.k, op.n), chip, op.count)
    return chip.fitted.launch + adds / rate / chip.clock


def fastest_tma_tile(op: TileOp, chip: Chip) -> tuple[float, TileSizes]:
    return min(((tma_product_seconds(op, s, chip), s) for s in TMA_SIZES), key=lambda pair: pair[0])


# ---- the choice of tile sizes for the recorder of plans

# A strategy that was measured on one shape is used for all products with sides that differ by at most this factor.
MEASURED_SHAPE_FACTOR = 2**0.25


def fastest_measured_strategy(op: TileOp, chip: Chip) -> TileSizes | None:
    """Return the strategy that was measured to be fastest near the product's shape; None if none was measured.

    The measurements are of single float32 products of row-major matrices, without fused sums.
    """
    kernel = op.kernel
    plain = kernel.element == "float32" and op.count == 1 and not kernel.triangle and not kernel.has_sums
    if not plain or kernel.along != ROW_MAJOR_AXES:
        return None
    for size, name in chip.strategies:
        ratios = (side / measured for side, measured in zip((op.m, op.k, op.n), size, strict=True))
        if all(1 / MEASURED_SHAPE_FACTOR <= ratio <= MEASURED_SHAPE_FACTOR for ratio in ratios):
            return named_strategy(name)
    return None


@dataclass(frozen=True)
class BlockModel:
    """The block model, as an implementation of the protocol `fmm.kernels.cuda.target.TileSizeModel`.

    A strategy that was measured near the product's shape on this device replaces the model's choice.
    """

    def fastest_tile_sizes(self, op: TileOp, chip: Chip) -> TileSizes:
        kernel, measured = op.kernel, fastest_measured_strategy(op, chip)
        if measured is not None and measured not in TMA_SIZES:
            return measured
        return FASTEST_TILE_FUNCTIONS[kernel.element](
            (op.m, op.k, op.n), chip, op.count, kernel.along, bool(kernel.triangle)
        )

    def fastest_tma_tile_sizes(self, op: TileOp, chip: Chip) -> TileSizes | None:
        measured = fastest_measured_strategy(op, chip)
        if measured is not None:
            return measured if measured in TMA_SIZES else None
        (time, s), kernel, shape = fastest_tma_tile(op, chip), op.kernel, (op.m, op.k, op.n)
        tiled = launch_seconds(
            kernel.strategy, GEMM_OPERANDS, shape, chip, op.count, kernel.along, bool(kernel.triangle)
        )
        return s if time < tiled else None


BLOCK_MODEL = BlockModel()


@lru_cache(maxsize=256)
def chip_target(chip: Chip, alignment: Alignment = ALLOCATOR_ALIGNMENT, flagged: bool = False) -> ChipTarget:
    """Return the ChipTarget of this chip; where a plan names no tile sizes, the block model selects them."""
    return ChipTarget(chip, BLOCK_MODEL, alignment, flagged)
