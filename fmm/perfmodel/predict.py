"""Predict the time of a plan with the formula that docs/model.md describes.

The predicted time is T = P + S + L + E - H: seconds of leaf products (P), of sums (S), of launches (L), of a plan's
beginning and end on a CPU (E), less the seconds of sums that are hidden behind products (H). The check of A and B for
overflow counts as a sum, because the check reads A and B once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2, prod, sqrt
from typing import NamedTuple

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cpu.parallel_products import MIN_CONCURRENT_FLOPS
from fmm.kernels.cuda.products.f16_planes import MAX_REGISTER_LOADS, SPLIT_CLUSTER_BLOCKS, SPLIT_THREADS
from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK_LENGTH, TMA_FUSED_SIZES
from fmm.kernels.cuda.products.wgmma_tiles import best_wgmma_sizes, cluster_tile_grid, count_cluster_tiles
from fmm.kernels.plans.leaf import LeafUse, parse_leaf
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.work import (
    THREE_LEVEL_PRODUCT_COUNT,
    LeafTiles,
    PlanWork,
    TriangleProducts,
    aligned_operands,
    counted_work,
    estimated_work,
)
from fmm.problem import Problem

OMITTED_EFFECTS = (
    "caches between steps, clocks that fall under load, a last wave of tiles that the model does not count, "
    "page faults of a first call"
)


@dataclass(frozen=True)
class Prediction:
    """The predicted seconds of a plan on a problem, by term of the formula T = P + S + L + E - H."""

    plan: Plan
    problem: Problem
    device: str
    products: float  # term P: seconds of the leaf products
    sums: float  # term S: seconds of the sums
    launches: float  # term L: seconds of the launches
    hidden: float  # term H: seconds of sums hidden behind products; negative if sums and products delay each other
    ends: float = 0.0  # term E: seconds of a plan's beginning and end on a CPU

    @property
    def predicted_seconds(self) -> float:
        """The predicted time of the plan, in seconds."""
        return self.products + self.sums + self.launches + self.ends - self.hidden

    @property
    def dominant_term(self) -> str:
        """The name of the longest of the terms products, sums and launches."""
        terms = {"products": self.products, "sums": self.sums, "launches": self.launches}
        return max(terms, key=lambda name: terms[name])

    @property
    def effective_flops(self) -> float:
        """The rate in flop/s: 2mkn / T, or 8mkn / T for complex numbers.

        The rate exceeds the device's peak if the plan saves enough flops.
        """
        return self.problem.flops / self.predicted_seconds if self.predicted_seconds else 0.0

    def __str__(self) -> str:
        parts = f"products {self.products:.3g} s, sums {self.sums:.3g} s, launches {self.launches:.3g} s"
        hidden = f", {self.hidden:.3g} s of it hidden" if self.hidden > 0 else ""
        hidden = f", {-self.hidden:.3g} s because sums and products delay each other" if self.hidden < 0 else hidden
        ends = f", beginning and end {self.ends:.3g} s" if self.ends else ""
        terms = f"{parts}{ends}{hidden}; mostly {self.dominant_term}; leaves out {OMITTED_EFFECTS}"
        return f"{self.predicted_seconds:.4g} s ({terms})"


def predict(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of a plan from exact counts of the plan's steps at the problem's sizes."""
    return predict_from_work(plan, problem, counted_work(plan, problem), calibration)


def quick_prediction(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of a plan from estimated counts, which take microseconds."""
    return predict_from_work(plan, problem, estimated_work(plan, problem), calibration)


def predict_vendor(problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of a problem by the vendor's product."""
    return quick_prediction(VENDOR, problem, calibration)


def predict_from_work(plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration) -> Prediction:
    """Return the prediction T = P + S + L + E - H from the counts in `work`."""
    lanes = concurrent_product_count(plan, problem, calibration)
    products = calls = starts = 0.0
    for term in leaf_time_terms(plan, problem, work, calibration, lanes):
        products, calls, starts = (
            products + term.product_seconds,
            calls + term.batch_count,
            starts + term.batch_count * term.launches,
        )
    moved = weighted_sum_bytes(plan, problem, work, calibration, lanes)
    sums = (moved + calibration.small * work.passes) / calibration.stream
    hidden = hidden_sum_share(plan, problem.dtype, calibration) * min(products, sums * work.overlapped)
    device_launches = calibration.launch * (starts + work.passes)
    host_launches = calibration.host * calls - (products + sums - hidden)
    launches = max(device_launches, host_launches)
    ends = 0.0
    if lanes > 1:
        ends = calibration.idle
        # The threads of a BLAS library spin (run without work) for a while after a product. The spinning threads take
        # at most half of the time of every processor except one.
        ends += min(calibration.spin, (products + sums + ends) * (lanes - 1) / (lanes + 1))
    return Prediction(plan, problem, calibration.name, products, sums, launches, hidden, ends)


def concurrent_product_count(plan: Plan, problem: Problem, calibration: Calibration) -> int:
    """Return the number of products that a CPU runs at a time; 1 for small products and for plans without levels."""
    return calibration.lanes if plan.levels and 2 * prod(problem.size) >= MIN_CONCURRENT_FLOPS else 1


# ---- H: sums that are hidden behind products


def hidden_sum_share(plan: Plan, dtype: str, calibration: Calibration) -> float:
    """Return the share of the sums' time that is hidden behind products, for sums below an overlapped level.

    The share is 0 if the leaf's kernel occupies every multiprocessor until the kernel's last tile is done. The share 0
    was tested on an H200 with 61 plans that take 0.8 to 52 ms, with `f16x3` below overlapped and batched levels. If
    products hid the share 0.58 of the sums' time, as the vendor's products do, the median ratio of predicted to
    measured time would be 0.79 for these plans. If no sums are hidden, the ratio is 0.93 for all 61 plans, and 1.0 for
    plans that take at least 5 ms.
    """
    rate = calibration.find_rate(plan.rate_name(dtype))
    # True if fmm's own kernel, not the vendor's, multiplies the planes of A and B
    by_own_kernel = rate is not None and rate.blocks > 0
    return 0.0 if plan.leaf_use.leaf.fills_device and by_own_kernel else calibration.overlap


# ---- S: sums


def weighted_sum_bytes(plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration, lanes: int) -> float:
    """Return the bytes that the sums move; a byte counts more than once in sums slower than the rate `stream`."""
    traffic = work.traffic
    for rate_share, moved_share in (
        (calibration.sequential, work.sequential),
        (calibration.ragged, work.ragged),
        (calibration.scalar, work.scalar),
        (calibration.parts, work.parts),
        (calibration.deep, work.deep),
    ):
        traffic *= 1 - moved_share + moved_share / rate_share
    if plan.levels and calibration.lanes > 1:
        traffic += (problem.m + problem.n) * problem.k  # entries of A and B that the check for overflow reads
        traffic /= 1.0 if lanes > 1 else calibration.apart
    return traffic * problem.itemsize


# ---- P: leaf products

# If rows of C have this alignment in bytes, `f16x3` writes two numbers at a time.
PAIRED_WRITE_BYTES = 8
# Factor on the time of the tiled kernel with a column-major B, for types in which the layout of B matters. On an H200
# in float32, x x^T has 0.74 of syrk's speed, see results/nvidia-h200/tried-gram.md. Plans for six products A B with a
# column-major B take 1.20 to 1.36 times as long as with a row-major B, see tried-choices.md.
COLUMN_MAJOR_B_FACTOR = 1.36


class LeafTerm(NamedTuple):
    """The predicted time of all leaf products that have one shape.

    The seconds are number * max(flops / rate * slowdown, moved / memory) + number / batch * start.
    """

    size: tuple[float, float, float]  # sides (m, k, n) of each product
    number: float  # number of equal leaf products
    batch: float  # number of products that start together
    flops: float  # flops of one product
    rate: float  # rate of a very large product in flop/s
    slowdown: float  # slowdown s, the factor on flops / rate
    moved: float  # bytes of A, B and C of one product
    memory: float  # bytes/s with which A, B and C are read and written
    start: float  # additional seconds of each start of a batch
    launches: int  # number of kernel launches of each start of a batch

    @property
    def batch_count(self) -> float:
        """The number of batches that are started for all products of this shape."""
        return self.number / self.batch

    @property
    def product_seconds(self) -> float:
        """The seconds of all leaf products of this shape."""
        each = max(self.flops / self.rate * self.slowdown, self.moved / self.memory)
        return self.number * each + self.batch_count * self.start


def leaf_time_terms(
    plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration, lanes: int
) -> Iterator[LeafTerm]:
    """Yield the predicted time of the leaf products of each shape; products with one computed triangle come last."""
    leaf, tiles, dtype = plan.leaf_use.leaf, work.tiles, DTYPES[plan.leaf_type(problem.dtype)]
    rate = calibration.rates.get(plan.rate_name(problem.dtype)) or calibration.require_rate(dtype.name)
    # The time of the vendor's kernels, of aligned copies and of the tiled kernel has a factor for unaligned rows.
    unaligned = (work.unaligned * (rate.unaligned - 1) + work.odd * (rate.odd - 1)) * (rate.alone if work.alone else 1)
    unaligned, copied = 1 + unaligned, 1 + work.copied * (rate.copied - 1)
    unaligned_tiles = 1 + (work.unaligned + work.odd) * ((rate.tiled_odd or 1.0) - 1)
    planes = PlanePassSlowdown(rate.rows / RIGHT_PREPARATION_PASSES, rate.cols / LEFT_PREPARATION_PASSES)
    has_strips = not is_b_column_major(problem)
    if leaf.prepared_layout and problem.prepared_side and not plan.levels:
        # A prepared operand is not split during the call.
        rate = replace(rate, **{"rows" if problem.prepared_side == "B" else "cols": 0.0})
    if leaf.prepared_by_sums and plan.levels and not (work.scalar and len(plan.levels) == 1):
        prepared_by_sums = _rate_with_operands_from_sums(rate, plan.levels[-1])
        has_strips, rate = has_strips and prepared_by_sums is rate, prepared_by_sums
    tile_shapes = COMPLEX_TILE_SHAPES if dtype.is_complex else ROUND_TILE_SHAPES
    unpaired = not plan.levels and not aligned_operands(problem, PAIRED_WRITE_BYTES)[2]
    for m, k, n, count, batch in work.leaves:
        if m and k and n:
            together = max(batch, lanes)
            if tiles:
                slowdown = unaligned_tiles * tiled_slowdown(tiles, rate, m, k, n, together)
                slow_order = is_b_column_major(problem) and is_slow_on_column_major_b(plan.leaf_use, dtype.name)
                slowdown *= COLUMN_MAJOR_B_FACTOR if slow_order else 1.0
            elif rate.blocks:
                slowdown = f16x3_slowdown(rate, m, k, n, together, unpaired)
                # The product kernel needs at least the time in which memory delivers the planes of A and B once.
                slowdown = max(slowdown, planes.rows / m + planes.cols / n)
                slowdown += plane_split_slowdown(rate, m, k, n, together, has_strips)
                slowdown = copied * leaf.relative_time * (slowdown * (rate.batch if together > 1 else 1.0))
            else:
                slowdown = (
                    copied * leaf.relative_time * vendor_slowdown(rate, m, k, n, together, unaligned, tile_shapes)
                )
            left, right, dest = tiles[2:5] if tiles else (1, 1, 1)
            moved = (left * m * k + right * k * n + dest * m * n) * dtype.itemsize
            memory, flops = rate.memory or calibration.stream, dtype.flops * m * k * n
            yield LeafTerm(
                (m, k, n), count, batch, flops, rate.flops, slowdown, moved, memory, rate.start, leaf.launches
            )
    yield from _triangle_terms(work, rate, dtype, calibration, lanes)


# Number of passes over memory to compute the float16 planes: A (left) is read once, B (right) is read twice, and the
# planes of each are written once.
LEFT_PREPARATION_PASSES, RIGHT_PREPARATION_PASSES = 2, 3


def _rate_with_operands_from_sums(rate: ProductRate, last: Level) -> ProductRate:
    """Return a leaf's rate, with less time for reading A and B if the sums of the level `last` write their planes.

    If the sums write the planes, one pass over the blocks of A and of B replaces the leaf's own passes. The sums of
    three levels in one pass cannot write planes, since each thread holds only one number. The model ignores that sums
    cannot write planes for some layouts and coefficients.
    """
    scheme = last.bilinear
    is_complex_split = last.itemsize_of_products(1) != 1  # sums of real or imaginary parts cannot write planes
    if not last.is_batched or scheme is None or is_complex_split or last.products >= THREE_LEVEL_PRODUCT_COUNT:
        return rate
    left = scheme.m * scheme.k / (LEFT_PREPARATION_PASSES * last.products)
    right = scheme.k * scheme.n / (RIGHT_PREPARATION_PASSES * last.products)
    return replace(rate, rows=rate.rows * right, cols=rate.cols * left)


class PlanePassSlowdown(NamedTuple):
    """The time to read or write all planes once, relative to an m x n product: rows / m for B, and cols / n for A."""

    rows: float
    cols: float


def is_b_column_major(problem: Problem) -> bool:
    """Return True if B is column-major. (A self-adjoint product counts as x x^T, with a column-major B.)"""
    orders = [layout.order for layout in problem.layouts]
    return problem.writes_triangle or orders[1] == "F"


def is_slow_on_column_major_b(use: LeafUse, dtype: str) -> bool:
    """Return True if the leaf reads a column-major B, as in x x^T, and is slow on column-major operands."""
    return use.order is None and dtype in use.leaf.slow_columns


# ---- s of the vendor's kernels where C has few tiles: the model counts whole rounds of tiles

# A wave is one tile on each multiprocessor. The model counts whole waves if C has fewer than MAX_COUNTED_ROUNDS waves
# of tiles. For larger C, an incomplete last wave costs little, and the field `fill` of ProductRate predicts the time
# better.
MAX_COUNTED_ROUNDS = 3
# ROUND_TILE_SHAPES are the tiles of the vendor's kernels without tensor cores. Each halving of a tile adds the share
# SMALLER_TILE_LOSS to the time of an entry of C. ROUND_TILE_SHAPES and SMALLER_TILE_LOSS are fitted to products of five
# H200s.
ROUND_TILE_SHAPES, SMALLER_TILE_LOSS = ((256, 128), (128, 256), (128, 128), (64, 64)), 0.03
# The tiles of the vendor's complex kernels, fitted to 904 products on an H200 and an H100.
COMPLEX_TILE_SHAPES = ((64, 64), (32, 64), (64, 32))
TileShapes = tuple[tuple[int, int], ...]
# A tile is cut along the inner dimension into at most this number of sections, so that the last wave of tiles leaves
# fewer multiprocessors idle. For 203 products on H200s, the predicted times have a median error of 4.1 %, and a ninth
# decile of 9.9 %. In a model without cuts along the inner dimension, the predicted times have a median error of 5.0 %,
# and a ninth decile of 12.5 %.
MAX_SPLIT_K_PARTS = 4


# ---- s of the vendor's kernels

# The vendor cuts the inner dimension of a product with few tiles and unaligned rows into sections of SPLIT_K_STEPS
# steps. On an H200 at 1077 x 15493 x 179, the predicted time is 1.3 times the measured time in TF32 and 1.1 times in
# bfloat16; without the cut in the model, 1.7 and 1.4 times. The measured times of TF32 and bfloat16 products with
# aligned rows show no cut along the inner dimension.
SPLIT_K_STEPS = 4096


def vendor_slowdown(
    rate: ProductRate,
    m: float,
    k: float,
    n: float,
    together: float,
    unaligned: float = 1.0,
    tile_shapes: TileShapes = ROUND_TILE_SHAPES,
) -> float:
    """Return the slowdown s of the vendor's product, which takes s * flops / rate seconds.

    `tile_shapes` are the sizes of the tiles in whole waves. `unaligned` is the factor on the time of multiply-adds with
    unaligned rows. Unaligned rows do not lengthen repeated reads of A and B, but multiply the time of a tile's
    beginning and end by the square root of `unaligned`. For 72 thin products with unaligned rows on an H200, the median
    error of the predicted times is 5 % in TF32 and 1 % in bfloat16. If `unaligned` itself multiplied the time of a
    tile's beginning and end, the median error would be 13 % in TF32 and 7 % in bfloat16.
    """
    if together * m * n < MAX_COUNTED_ROUNDS * rate.sms * ROUND_TILE_SHAPES[0][0] * ROUND_TILE_SHAPES[0][1]:
        slowdown = unaligned * _whole_wave_slowdown(rate, m, k, n, together, tile_shapes)
        slowdown += rate.rows / m + rate.cols / n
        return slowdown * (rate.batch if together > 1 else 1.0)
    cuts = max(k / SPLIT_K_STEPS, 1.0) if unaligned > 1 else 1.0
    slowdown = unaligned * (1 + rate.fill / (together * m * n * cuts)) + sqrt(unaligned) * rate.pipe / k
    reading = rate.rows / m + rate.cols / n
    if not rate.slots:
        slowdown, reading = slowdown + reading, 0.0
    if rate.tile > 1:
        width = rate.width or rate.tile
        computed = ceil(m / rate.tile) * rate.tile * ceil(n / width) * width
        slowdown *= max(computed, rate.slots * rate.tile**2 / together) / (m * n)
    return (slowdown + reading) * (rate.batch if together > 1 else 1.0)


def _whole_wave_slowdown(
    rate: ProductRate, m: float, k: float, n: float, together: float, tile_shapes: TileShapes
) -> float:
    """Return the slowdown s for the fastest tile size if each multiprocessor computes one tile at a time.

    To fill the last wave, the vendor may cut each tile along the inner dimension into up to MAX_SPLIT_K_PARTS sections.
    If there are fewer tiles than multiprocessors, the number of sections may be multiprocessors / tiles, rounded down.
    """
    options = _split_k_options(rate.sms, m, n, together, tile_shapes)
    return min(slower * (1 + rate.pipe * parts / k) for slower, parts in options)


@lru_cache(maxsize=4096)  # cached: a fit needs the same options thousands of times
def _split_k_options(
    sms: float, m: float, n: float, together: float, tile_shapes: TileShapes
) -> tuple[tuple[float, float], ...]:
    """Return pairs (slowdown for a very long k, number of sections of each tile), sorted by the number of sections.

    A larger number of sections is left out if it makes the product no faster.
    """
    found: list[tuple[float, float]] = []
    largest = prod(tile_shapes[0])
    for rows, cols in tile_shapes:
        tiles = ceil(m / rows) * ceil(n / cols) * together
        whole = tiles / together * rows * cols / (m * n)
        smaller = 1 + SMALLER_TILE_LOSS * log2(largest / (rows * cols))
        for parts in (*range(1, MAX_SPLIT_K_PARTS + 1), max(sms // tiles, 1)):
            found.append((parts, ceil(tiles * parts / sms) * sms / (tiles * parts) * whole * smaller))
    best: list[tuple[float, float]] = []
    for parts, slower in sorted(found):
        if not best or slower < best[-1][0]:
            best.append((slower, parts))
    return tuple(best)


# ---- s of the tiled kernel

# Factor on the time of products that wait for each other, since they add to the same block of C. WAITING_FACTOR was
# measured on two H200s for products with sums inside, as the ratio of measured to predicted time. If C has up to 132
# tiles, measured times are 1.04 to 1.34 times the predicted times; the median of 12 shapes is 1.14. If C has more than
# 132 tiles, measured times are 0.95 to 1.11 times the predicted times; the median of 65 shapes is 0.99.
WAITING_FACTOR = 1.14
# A thread block writes a tile of C in the time of TILE_WRITE_STEPS steps along the inner dimension. Without
# TILE_WRITE_STEPS, predicted times of products with 128 to 208 steps are 10 to 30 % too short on an H200.
TILE_WRITE_STEPS = 30.0


def tiled_slowdown(tiles: LeafTiles, rate: ProductRate, m: float, k: float, n: float, together: float) -> float:
    """Return the slowdown s of a product by the tiled kernel, which takes s * flops / rate seconds.

    Sums inside the tiled kernel are instructions and not passes over memory. Every row of tiles computes the sums of B
    again, and every column of tiles computes the sums of A again. If `rate.sms` is not 0, the time to start a tile is
    hidden behind the previous tile on the same multiprocessor.
    """
    number = tiles.count_tiles(m, n)
    whole = number * tiles.height * tiles.width / (m * n)
    added = (tiles.left - 1) / tiles.width + (tiles.right - 1) / tiles.height + (tiles.dest - 1) / k
    running = max(together, tiles.together) * number
    start = rate.waves / running + rate.pipe / (k * max(running / (rate.sms or running), 1)) + TILE_WRITE_STEPS / k
    # Two products that add to the same block of C must wait for each other. The waiting costs time only if the tiles of
    # one product leave multiprocessors idle, on which the next product could begin.
    fewer = ceil(m / TMA_FUSED_SIZES.m_s) * ceil(n / TMA_FUSED_SIZES.n_s) <= rate.sms
    waiting = WAITING_FACTOR if tiles.dest > 1 and fewer else 1.0
    return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added) * waiting


# ---- s of the kernel `f16x3` (three float16 products)
#
# Each thread block of `f16x3` computes one tile after the other, so that nothing hides the beginning and end of a tile.
# The model of the kernel `f16x3` leaves out that clocks fall under load.

WIDE_TILE = F16X3_SIZES[0]
# A tile of half the width takes NARROW_TILE_STEP_SHARE of a wide tile's time for each step, and NARROW_TILE_END_SHARE
# of a wide tile's time for its beginning and end. Four constants (NARROW_TILE_STEP_SHARE, NARROW_TILE_END_SHARE,
# UNPAIRED_WRITE_FACTOR, UNSHARED_BLOCK_FACTOR) and the rate of `f16x3` are fitted to 289 products of an H200: the
# predicted times have a median error of 2.7 % and a ninth decile of 7.6 %, instead of 12 % and 31 % in a model without
# these constants and without whole waves of tiles.
NARROW_TILE_STEP_SHARE, NARROW_TILE_END_SHARE = 0.70, 0.41
# Factor on the time of a tile's beginning and end if rows of C do not begin at multiples of 8 bytes. If rows of C are
# not aligned to 8 bytes, the kernel writes each number separately.
UNPAIRED_WRITE_FACTOR = 1.5
# Factor on the time of a tile if the thread block shares no operands with a neighbouring thread block.
UNSHARED_BLOCK_FACTOR = 1.05
# For each doubling of C's sides beyond NEAR_LINES_SIDE rows and columns, a product takes longer by this fraction. With
# longer sides, thread blocks that run at the same time read rows of A and columns of B that are farther apart in
# memory. FAR_LINES_FACTOR was measured on an H200 for 25 plans with leaf products of 4096 to 65536 rows, see
# results/nvidia-h200/f16x3-leaves.json. Without FAR_LINES_FACTOR, products with sides of 65536 take 1.27 to 1.36 times
# the predicted time. Without FAR_LINES_FACTOR, products with sides of 16384 take 1.00 to 1.14 times the predicted time,
# and products with sides of 4096 and 8192 take 1.06 times the predicted time.
FAR_LINES_FACTOR, NEAR_LINES_SIDE = 0.065, 8192.0


def f16x3_slowdown(rate: ProductRate, m: float, k: float, n: float, together: float, unpaired: bool) -> float:
    """Return the slowdown s of concurrent products by the kernel `f16x3`, without the time to prepare the planes."""
    rows, cols, count = ceil(m), ceil(n), ceil(together)
    s = best_wgmma_sizes(rows, cols, count, int(rate.blocks), F16X3_SIZES)
    rounds = ceil(
        count_cluster_tiles(cluster_tile_grid(rows, cols, s), s, False) * count / max(rate.blocks // s.cluster, 1)
    )
    narrow, alone = s.n_s < WIDE_TILE.n_s, UNSHARED_BLOCK_FACTOR if s.cluster == 1 else 1.0
    steps = ceil(k / PLANE_CHUNK_LENGTH) * PLANE_CHUNK_LENGTH * (NARROW_TILE_STEP_SHARE if narrow else 1.0)
    end = rate.pipe * (UNPAIRED_WRITE_FACTOR if unpaired else 1.0) * (NARROW_TILE_END_SHARE if narrow else 1.0)
    far = 1 + FAR_LINES_FACTOR * max(log2(m * n / NEAR_LINES_SIDE**2) / 2, 0.0)
    return far * alone * rounds * (steps + end) * rate.blocks * WIDE_TILE.m_s * WIDE_TILE.n_s / (m * k * n * together)


# A thread block of the split kernel holds the first HELD_ROW_LENGTH numbers of a row of A in its threads' registers and
# reads the rest of the row twice. In the model, each number of A costs HELD_NUMBER_BYTES bytes of traffic, and a number
# of A that is read twice costs REREAD_BYTES more.
HELD_ROW_LENGTH, REREAD_BYTES, HELD_NUMBER_BYTES = 4 * SPLIT_THREADS * MAX_REGISTER_LOADS, 4.0, 8.0
# SPLIT_CLUSTER_BLOCKS thread blocks split a strip of PLANE_CHUNK_LENGTH columns of B. Each thread block of the split
# kernel moves at most STRIP_BLOCK_BANDWIDTH bytes of B per second. If B has fewer than about 1000 columns, its strips
# (ranges of columns) are too few to fill the device. STRIP_BLOCK_BANDWIDTH was measured on an H100 for B with 65536
# rows and 512 columns.
STRIP_BLOCK_BANDWIDTH, STRIP_NUMBER_BYTES = 17.5e9, 12.0


def plane_split_slowdown(
    rate: ProductRate, m: float, k: float, n: float, together: float, has_strips: bool = True
) -> float:
    """Return the time to compute the planes of A and B before the product, divided by flops / rate.

    `has_strips` is True if B is row-major and its planes are computed in strips (ranges of columns).
    """
    reread = 1 + REREAD_BYTES / HELD_NUMBER_BYTES * max(1 - HELD_ROW_LENGTH / k, 0.0)
    streamed = rate.rows / m + rate.cols * reread / n
    strip_bytes = k * PLANE_CHUNK_LENGTH * STRIP_NUMBER_BYTES / SPLIT_CLUSTER_BLOCKS
    one_strip = strip_bytes / STRIP_BLOCK_BANDWIDTH * rate.flops / (DTYPES["float32"].flops * m * k * n * together)
    return max(streamed, one_strip if has_strips and rate.rows else 0.0)


# ---- P of triangles: a share of the time of the whole product


def _triangle_terms(
    work: PlanWork, rate: ProductRate, dtype: DType, calibration: Calibration, lanes: int
) -> Iterator[LeafTerm]:
    """Yield the predicted time of the leaf products of which only one triangle is computed, for each shape."""
    for x in work.triangles:
        m, k = x.rows, x.k
        if m and k:
            share = _triangle_time_share(x, work, rate, dtype, calibration.batches)
            slowdown = share * vendor_slowdown(rate, m, k, m, max(x.together, lanes))
            moved, memory = (m * k + m * m) * dtype.itemsize, rate.memory or calibration.stream
            flops = dtype.flops * m * k * m
            yield LeafTerm((m, k, m), x.number, x.together, flops, rate.flops, slowdown, moved, memory, rate.start, 1)


def _triangle_time_share(x: TriangleProducts, work: PlanWork, rate: ProductRate, dtype: DType, batches: bool) -> float:
    """Return the time of one triangle as a share of the time that the whole product takes on aligned rows."""
    use = parse_leaf(x.leaf)
    leaf, relative = use.leaf, use.leaf.relative_time
    # If the leaf's triangle kernel cannot read and write rows with this alignment, the vendor computes the product.
    aligned = not work.triangles_unaligned and not work.triangles_odd
    by_kernel = dtype.name in (*leaf.kernel_triangles, *(leaf.loose_triangles if x.loose and aligned else ()))
    if by_kernel and not is_slow_on_column_major_b(use, dtype.name):
        # Near the diagonal, the triangle kernel computes whole tiles, so that a small triangle takes more than half of
        # the time.
        return relative * min(rate.half_by_tiles * (1 + rate.half_edge / x.rows), 1.0)
    unaligned = 1 + work.triangles_unaligned * (rate.unaligned - 1) + work.triangles_odd * (rate.odd - 1)
    if dtype.name not in leaf.blas_triangles:  # no BLAS function for a triangle: the leaf computes the whole product
        return relative * unaligned
    if batches and x.together > 1 and x.rows <= leaf.whole_product_rows:
        return relative
    apart = 1 + rate.half_apart / x.rows if x.together > 1 else 1.0
    return relative * apart * (rate.half if x.k >= rate.half_least else rate.half_below * unaligned)
