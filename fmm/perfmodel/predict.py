"""The predicted time of a plan, by the formula that docs/model.md derives. This module computes its terms one by one.

    T = P + S + L + E - H

    P  products  the sum over the shapes m x k x n of leaf products, `count` products of a shape, `batch` at a time:
                     count * max(F * s, M) + count / batch * start
                 F = flops of one product / rate.flops
                 M = bytes of A, B and C of one product / rate.memory
                 s = the slowdown. For the vendor's kernels, with b products that run together:
                     (1 + fill / (b m n) + pipe / k + rows / m + cols / n) * (m and n in whole tiles) * factors
                 The tiled kernel, whole rounds of tiles, and the kernel of three float16 products have a function each.
    S  sums      (traffic * itemsize + small * passes) / stream. A share p of the traffic that moves at the share r of
                 the rate (sequential, ragged, scalar, parts, deep) multiplies the traffic by 1 - p + p / r.
    H  hidden    overlap * min(P, the part of S below an overlapped level). H is negative if sums delay products.
    L  launches  max(launch * (starts + passes), host * calls - (P + S - H)). The second argument is the time by which
                 the host takes longer to start the products than the device to do all its work.
    E  ends      0, or with c products at a time on a CPU: idle + min(spin, (P + S + idle) (c - 1) / (c + 1)).

The names are fields of Rate and Calibration; c is `Calibration.lanes`. With several products at a time on a CPU, a leaf
product counts as one of a batch of c, P and S are the times in which all threads are busy, and the check of A and B for
overflow counts as a sum.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2, prod, sqrt
from typing import NamedTuple

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cpu.parallel_products import MIN_CONCURRENT_FLOPS
from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK, TMA_FUSED_SIZES
from fmm.kernels.cuda.products.wgmma_tiles import best_wgmma_sizes, cluster_tiles, count_cluster_tiles
from fmm.kernels.plans.leaf import LeafUse, leaf_use
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.work import (
    DEEP_PRODUCT_COUNT,
    LeafTiles,
    PlanWork,
    TriangleProducts,
    aligned_operands,
    counted_work,
    estimated_work,
)
from fmm.problem import Problem

OMITTED_EFFECTS = (
    "caches between steps, clocks that fall under load, waves that do not fill the device, page faults of a first call"
)


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a plan on a problem, by term of the formula."""

    plan: Plan
    problem: Problem
    device: str
    products: float  # P
    sums: float  # S
    launches: float  # L
    hidden: float  # H, negative if sums and products slow each other down
    ends: float = 0.0  # E

    @property
    def predicted_seconds(self) -> float:
        """T, the predicted seconds."""
        return self.products + self.sums + self.launches + self.ends - self.hidden

    @property
    def dominant_term(self) -> str:
        """The name of the term that takes most of the time."""
        terms = {"products": self.products, "sums": self.sums, "launches": self.launches}
        return max(terms, key=lambda name: terms[name])

    @property
    def effective_flops(self) -> float:
        """The effective rate 2mkn / T in flop/s, which exceeds the device's peak where the plan saves enough flops."""
        return self.problem.flops / self.predicted_seconds if self.predicted_seconds else 0.0

    def __str__(self) -> str:
        parts = f"products {self.products:.3g} s, sums {self.sums:.3g} s, launches {self.launches:.3g} s"
        hidden = f", {self.hidden:.3g} s of it hidden" if self.hidden > 0 else ""
        hidden = f", {-self.hidden:.3g} s in each other's way" if self.hidden < 0 else hidden
        ends = f", beginning and end {self.ends:.3g} s" if self.ends else ""
        terms = f"{parts}{ends}{hidden}; mostly {self.dominant_term}; leaves out {OMITTED_EFFECTS}"
        return f"{self.predicted_seconds:.4g} s ({terms})"


def predict(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of a plan; the counts are exact, from the plan's steps at the problem's sizes."""
    return predict_from_work(plan, problem, counted_work(plan, problem), calibration)


def quick_prediction(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of a plan in microseconds; the counts are estimated."""
    return predict_from_work(plan, problem, estimated_work(plan, problem), calibration)


def predict_vendor(problem: Problem, calibration: Calibration) -> Prediction:
    """Return the predicted time of the vendor's product."""
    return quick_prediction(VENDOR, problem, calibration)


def predict_from_work(plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration) -> Prediction:
    """Return the prediction T = P + S + L + E - H from the counts in `work`."""
    lanes = concurrent_product_count(plan, problem, calibration)
    products = calls = starts = 0.0
    for term in leaf_terms(plan, problem, work, calibration, lanes):
        products, calls, starts = (
            products + term.product_seconds,
            calls + term.start_count,
            starts + term.start_count * term.launches,
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
        # The vendor's spinning threads take at most half of every processor but one.
        ends += min(calibration.spin, (products + sums + ends) * (lanes - 1) / (lanes + 1))
    return Prediction(plan, problem, calibration.name, products, sums, launches, hidden, ends)


def concurrent_product_count(plan: Plan, problem: Problem, calibration: Calibration) -> int:
    """Return the number of products that a CPU runs at a time; 1 for small products and for plans without levels."""
    return calibration.lanes if plan.levels and 2 * prod(problem.size) >= MIN_CONCURRENT_FLOPS else 1


# ---- H: sums that are hidden behind products


def hidden_sum_share(plan: Plan, dtype: str, calibration: Calibration) -> float:
    """Return the share of the sums below an overlapped level that is hidden behind the plan's products.

    The share is 0 for a leaf with a kernel that occupies every multiprocessor until its last tile is done. (61 plans on
    an H200 with `f16x3` below overlapped and batched levels, of 0.8 to 52 ms: the predicted time was 0.79 of the
    measured one at the median with the share 0.58, which is right for the vendor's products and the tiled kernel. With
    the share 0 the ratio is 0.93, and 1.0 from 5 ms on.)
    """
    rate = calibration.find_rate(plan.rate_name(dtype))
    by_own_kernel = rate is not None and rate.blocks > 0  # else the vendor multiplies the leaf's planes
    return 0.0 if plan.leaf_use.leaf.fills_device and by_own_kernel else calibration.overlap


# ---- S: sums


def weighted_sum_bytes(plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration, lanes: int) -> float:
    """Return t * w: the bytes that the sums move, where slower kinds of sums count more."""
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
        traffic += (problem.m + problem.n) * problem.k  # entries of A and B, which the check for overflow reads
        traffic /= 1.0 if lanes > 1 else calibration.apart
    return traffic * problem.itemsize


# ---- P: leaf products

# Alignment in bytes of the rows of C with which `f16x3` writes two numbers at a time.
PAIRED_WRITE_BYTES = 8
# Factor on the time of the tiled kernel with a column-major B, for types in which the memory order matters. (float32,
# H200: x x^T has 0.74 of syrk's speed, results/nvidia-h200/tried-gram.md. Plans of six other products took 1.20 to 1.36
# times as long as with a row-major B, whatever the order of A: tried-choices.md.)
COLUMN_MAJOR_B_FACTOR = 1.36


class LeafTerm(NamedTuple):
    """Equal leaf products in P: number * max(flops / rate * slowdown, moved / memory) + number / batch * start."""

    size: tuple[float, float, float]  # m, k, n
    number: float  # number of these products
    batch: float  # number of products that start together
    flops: float  # flops of one product
    rate: float  # flop/s of a very large product
    slowdown: float  # s, the factor on flops / rate
    moved: float  # bytes of A, B and C of one product
    memory: float  # bytes/s of reading and writing A, B and C
    start: float  # seconds of each start
    launches: int  # number of launches of each start

    @property
    def start_count(self) -> float:
        """The number of starts."""
        return self.number / self.batch

    @property
    def product_seconds(self) -> float:
        """Seconds of all products of this shape."""
        each = max(self.flops / self.rate * self.slowdown, self.moved / self.memory)
        return self.number * each + self.start_count * self.start


def leaf_terms(
    plan: Plan, problem: Problem, work: PlanWork, calibration: Calibration, lanes: int
) -> Iterator[LeafTerm]:
    """Yield the leaf products by shape, whole products before triangles."""
    leaf, tiles, dtype = plan.leaf_use.leaf, work.tiles, DTYPES[plan.leaf_type(problem.dtype)]
    rate = calibration.rates.get(plan.rate_name(problem.dtype)) or calibration.require_rate(dtype.name)
    # Factors on the time of products with unaligned rows: of the vendor's kernels, of aligned copies, and of the tiled
    # kernel.
    unaligned = (work.unaligned * (rate.unaligned - 1) + work.odd * (rate.odd - 1)) * (rate.alone if work.alone else 1)
    unaligned, copied = 1 + unaligned, 1 + work.copied * (rate.copied - 1)
    unaligned_tiles = 1 + (work.unaligned + work.odd) * ((rate.tiled_odd or 1.0) - 1)
    if leaf.prepared_layout and problem.prepared_side and not plan.levels:
        # a prepared operand is not split during the call
        rate = replace(rate, **{"rows" if problem.prepared_side == "B" else "cols": 0.0})
    if leaf.prepared_by_sums and plan.levels and not (work.scalar and len(plan.levels) == 1):
        rate = _rate_prepared_by_sums(rate, plan.levels[-1])
    unpaired = not plan.levels and not aligned_operands(problem, PAIRED_WRITE_BYTES)[2]
    for m, k, n, count, batch in work.leaves:
        if m and k and n:
            together = max(batch, lanes)
            if tiles:
                slowdown = unaligned_tiles * tiled_slowdown(tiles, rate, m, k, n, together)
                slow_order = is_b_column_major(problem) and is_slow_on_column_major_b(plan.leaf_use, dtype.name)
                slowdown *= COLUMN_MAJOR_B_FACTOR if slow_order else 1.0
            elif rate.blocks:
                slowdown = f16x3_slowdown(rate, m, k, n, together, unpaired) + rate.rows / m + rate.cols / n
                slowdown = copied * leaf.relative_time * (slowdown * (rate.batch if together > 1 else 1.0))
            else:
                slowdown = copied * leaf.relative_time * vendor_slowdown(rate, m, k, n, together, unaligned)
            left, right, dest = tiles[2:5] if tiles else (1, 1, 1)
            moved = (left * m * k + right * k * n + dest * m * n) * dtype.itemsize
            memory, flops = rate.memory or calibration.stream, dtype.flops * m * k * n
            yield LeafTerm(
                (m, k, n), count, batch, flops, rate.flops, slowdown, moved, memory, rate.start, leaf.launches
            )
    yield from _triangle_terms(work, rate, dtype, calibration, lanes)


PREPARATION_PASSES = 3  # number of passes over an operand to prepare it: two that read, one that writes


def _rate_prepared_by_sums(rate: ProductRate, last: Level) -> ProductRate:
    """Return the rate of a leaf if the splits of the last level write the operands in the leaf's own form.

    One pass over the operand's blocks takes the place of the leaf's own PREPARATION_PASSES over each operand. Three
    levels in one pass cannot write that form, since each of their threads has one number. Layouts and coefficients for
    which other splits cannot write it are not modelled.
    """
    scheme = last.bilinear
    is_complex_split = last.itemsize_below(1) != 1  # splits of real or imaginary parts do not write the leaf's form
    if not last.batched or scheme is None or is_complex_split or last.products >= DEEP_PRODUCT_COUNT:
        return rate
    left, right = (
        blocks / (PREPARATION_PASSES * last.products) for blocks in (scheme.m * scheme.k, scheme.k * scheme.n)
    )
    return replace(rate, rows=rate.rows * right, cols=rate.cols * left)


def is_b_column_major(problem: Problem) -> bool:
    """Return True if B is column-major. (A product that is its own adjoint counts as x x^T, with a column-major B.)"""
    orders = [layout.order for layout in problem.layouts]
    return problem.writes_triangle or orders[1] == "F"


def is_slow_on_column_major_b(use: LeafUse, dtype: str) -> bool:
    """Return True if the leaf reads a column-major B, as in x x^T, and is slow on column-major operands."""
    return use.order is None and dtype in use.leaf.slow_columns


# ---- s of the vendor's kernels

# The vendor cuts a product with few tiles and unaligned rows into sections of this number of steps along the inner
# dimension. (1077 x 15493 x 179 on an H200 in TF32 and bfloat16: without the cut the prediction is 1.7 and 1.4 times
# the measured time, with it 1.3 and 1.1. The times of the vendor's other kernels in these types show no such cut.)
SPLIT_K_STEPS = 4096


def vendor_slowdown(rate: ProductRate, m: float, k: float, n: float, together: float, unaligned: float = 1.0) -> float:
    """Return the slowdown s of the vendor's product: its time is s * flops / rate.

    `unaligned` is the factor on the time of multiplying unaligned rows. The terms for repeated reads of operands do not
    grow on unaligned rows. The beginning and end of a tile, half of them writing, grow by the square root of
    `unaligned`. (Median error of the predicted times of 72 thin products with unaligned rows on an H200: 5 % in TF32
    and 1 % in bfloat16; with the factor `unaligned` on both terms 13 and 7 %.)
    """
    if together * m * n < MAX_COUNTED_ROUNDS * rate.sms * ROUND_TILE_SHAPES[0][0] * ROUND_TILE_SHAPES[0][1]:
        slowdown = unaligned * _round_slowdown(rate, m, k, n, together) + rate.rows / m + rate.cols / n
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


# ---- s of the vendor's kernels where C has few tiles, so that whole rounds of them count

# The model counts whole rounds of tiles if their number is below this limit. With more rounds, the last round leaves
# little of the device idle, and `fill` predicts better.
MAX_COUNTED_ROUNDS = 3
# The sides of the tiles in which the vendor's kernels without tensor cores compute C, and the additional share of time
# for each entry in a tile of half the size. (Fitted to products of five H200s.)
ROUND_TILE_SHAPES, SMALLER_TILE_LOSS = ((256, 128), (128, 256), (128, 128), (64, 64)), 0.03
# The largest number of sections into which a tile is cut along the inner dimension where whole tiles would leave most
# of the last round idle. (Error of the formula for 203 products on H200s: median 4.1 %, ninth decile 9.9 %; without
# this cut 5.0 and 12.5 %.)
MAX_SPLIT_K_PARTS = 4


def _round_slowdown(rate: ProductRate, m: float, k: float, n: float, together: float) -> float:
    """Return the slowdown s if each multiprocessor computes one tile at a time, for the fastest tile size.

    Tiles are cut along the inner dimension where this fills a round: into a few sections; or, with fewer tiles than
    multiprocessors, into as many sections as each tile has multiprocessors.
    """
    return min(slower * (1 + rate.pipe * parts / k) for slower, parts in _split_k_options(rate.sms, m, n, together))


@lru_cache(maxsize=4096)  # a fit needs the same options thousands of times
def _split_k_options(sms: float, m: float, n: float, together: float) -> tuple[tuple[float, float], ...]:
    """Return pairs (slowdown for a very long k, sections of each tile), fewer sections first.

    An option with more sections that is not faster is left out.
    """
    found: list[tuple[float, float]] = []
    for rows, cols in ROUND_TILE_SHAPES:
        tiles = ceil(m / rows) * ceil(n / cols) * together
        whole = tiles / together * rows * cols / (m * n)
        smaller = 1 + SMALLER_TILE_LOSS * log2(ROUND_TILE_SHAPES[0][0] * ROUND_TILE_SHAPES[0][1] / (rows * cols))
        for parts in (*range(1, MAX_SPLIT_K_PARTS + 1), max(sms // tiles, 1)):
            found.append((parts, ceil(tiles * parts / sms) * sms / (tiles * parts) * whole * smaller))
    best: list[tuple[float, float]] = []
    for parts, slower in sorted(found):
        if not best or slower < best[-1][0]:
            best.append((slower, parts))
    return tuple(best)


# ---- s of the tiled kernel

# Factor on the time of products that wait for each other. (Measured ratio to the prediction for products with sums
# inside, on two H200s: 1.04 to 1.34 with up to 132 tiles, median of 12 shapes 1.14; with more tiles 0.95 to 1.11,
# median of 65 shapes 0.99.)
WAITING_FACTOR = 1.14
# A thread block writes a tile of C in the time of this number of steps along the inner dimension. (Without this
# constant, predicted times of products with 128 to 208 steps are 10 to 30 % too short on an H200.)
TILE_WRITE_STEPS = 30.0


def tiled_slowdown(tiles: LeafTiles, rate: ProductRate, m: float, k: float, n: float, together: float) -> float:
    """Return the slowdown s of a product by the tiled kernel: its time is s * flops / rate.

    Sums inside the tiled kernel are instructions and not passes over memory: every row of tiles computes the sums of B
    again, every column of tiles the sums of A. If `sms` is not 0, the start of a tile is hidden behind the tile before
    it on the same multiprocessor.
    """
    number = tiles.count_tiles(m, n)
    whole = number * tiles.height * tiles.width / (m * n)
    added = (tiles.left - 1) / tiles.width + (tiles.right - 1) / tiles.height + (tiles.dest - 1) / k
    running = max(together, tiles.together) * number
    start = rate.waves / running + rate.pipe / (k * max(running / (rate.sms or running), 1)) + TILE_WRITE_STEPS / k
    # Where the tiles of one product leave multiprocessors idle, the next product begins on these, unless both products
    # add to the same block of C.
    fewer = ceil(m / TMA_FUSED_SIZES.m_s) * ceil(n / TMA_FUSED_SIZES.n_s) <= rate.sms
    waiting = WAITING_FACTOR if tiles.dest > 1 and fewer else 1.0
    return (rate.tiled or 1.0) * whole * (1 + start + rate.inside * added) * waiting


# ---- s of the kernel of three float16 products (f16x3): whole rounds of its own tiles, one after the other in each
# thread block, so that nothing hides the beginning and end of a tile. The model of this kernel leaves out that clocks
# fall under load.

WIDE_TILE = F16X3_SIZES[0]
# The time of a tile of half the width as a share of a wide tile's time: for the inner dimension, and for its beginning
# and end. (Fitted together with UNPAIRED_WRITE_FACTOR, UNSHARED_BLOCK_FACTOR and the rate of `f16x3` to 289 products of
# an H200. The error of the formula is 2.7 % at the median and 7.6 % at the ninth decile; without rounds and these
# constants 12 and 31 %.)
NARROW_TILE_STEP_SHARE, NARROW_TILE_END_SHARE = 0.70, 0.41
# Factor on the time of a tile's beginning and end if rows of C do not begin at multiples of eight bytes, so that each
# number is written separately.
UNPAIRED_WRITE_FACTOR = 1.5
# Factor on the time of a tile if its thread block shares no operands with a neighbour.
UNSHARED_BLOCK_FACTOR = 1.05
# Additional share of a product's time each time that C's sides double beyond NEAR_LINES_SIDE rows and columns: the
# thread blocks of a round then read lines that are farther apart in memory. (Measured for 25 plans on an H200 with leaf
# products of 4096 to 65536 rows and columns, results/nvidia-h200/f16x3-leaves.json. Without this constant, sides of
# 65536 took 1.27 to 1.36 times the prediction, 16384 1.00 to 1.14, 4096 and 8192 1.06.)
FAR_LINES_FACTOR, NEAR_LINES_SIDE = 0.065, 8192.0


def f16x3_slowdown(rate: ProductRate, m: float, k: float, n: float, together: float, unpaired: bool) -> float:
    """Return the slowdown s of all products together, without the time to prepare their planes."""
    rows, cols, count = ceil(m), ceil(n), ceil(together)
    s = best_wgmma_sizes(rows, cols, count, int(rate.blocks), F16X3_SIZES)
    rounds = ceil(
        count_cluster_tiles(cluster_tiles(rows, cols, s), s, False) * count / max(rate.blocks // s.cluster, 1)
    )
    narrow, alone = s.n_s < WIDE_TILE.n_s, UNSHARED_BLOCK_FACTOR if s.cluster == 1 else 1.0
    steps = ceil(k / PLANE_CHUNK) * PLANE_CHUNK * (NARROW_TILE_STEP_SHARE if narrow else 1.0)
    end = rate.pipe * (UNPAIRED_WRITE_FACTOR if unpaired else 1.0) * (NARROW_TILE_END_SHARE if narrow else 1.0)
    far = 1 + FAR_LINES_FACTOR * max(log2(m * n / NEAR_LINES_SIDE**2) / 2, 0.0)
    return far * alone * rounds * (steps + end) * rate.blocks * WIDE_TILE.m_s * WIDE_TILE.n_s / (m * k * n * together)


# ---- P of triangles: a share of the time of the whole product


def _triangle_terms(
    work: PlanWork, rate: ProductRate, dtype: DType, calibration: Calibration, lanes: int
) -> Iterator[LeafTerm]:
    """Yield the leaf products with one computed triangle; a factor of their slowdown is the triangle's share."""
    for x in work.triangles:
        m, k = x.rows, x.k
        if m and k:
            share = _triangle_share(x, work, rate, dtype, calibration.batches)
            slowdown = share * vendor_slowdown(rate, m, k, m, max(x.together, lanes))
            moved, memory = (m * k + m * m) * dtype.itemsize, rate.memory or calibration.stream
            flops = dtype.flops * m * k * m
            yield LeafTerm((m, k, m), x.number, x.together, flops, rate.flops, slowdown, moved, memory, rate.start, 1)


def _triangle_share(x: TriangleProducts, work: PlanWork, rate: ProductRate, dtype: DType, batches: bool) -> float:
    """Return the time of one triangle as a share of the time of the whole product on aligned rows."""
    use = leaf_use(x.leaf)
    leaf, relative = use.leaf, use.leaf.relative_time
    # without a triangle kernel of the leaf, the vendor computes the product
    aligned = not work.triangles_unaligned and not work.triangles_odd
    by_kernel = dtype.name in (*leaf.kernel_triangles, *(leaf.loose_triangles if x.loose and aligned else ()))
    if by_kernel and not is_slow_on_column_major_b(use, dtype.name):
        # Tiles on the diagonal are computed as a whole.
        return relative * min(rate.half_by_tiles * (1 + rate.half_edge / x.rows), 1.0)
    unaligned = 1 + work.triangles_unaligned * (rate.unaligned - 1) + work.triangles_odd * (rate.odd - 1)
    if dtype.name not in leaf.blas_triangles:  # the whole product is computed
        return relative * unaligned
    if batches and x.together > 1 and x.rows <= leaf.whole_product_rows:
        return relative
    apart = 1 + rate.half_apart / x.rows if x.together > 1 else 1.0
    return relative * apart * (rate.half if x.k >= rate.half_least else rate.half_below * unaligned)
