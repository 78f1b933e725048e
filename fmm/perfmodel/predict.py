"""Prediction."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import ceil, log2, sqrt

from fmm.dtypes import DTYPES, DType
from fmm.kernels.cpu.parallel_products import MIN_CONCURRENT_FLOPS
from fmm.kernels.cuda.products.f16x3 import F16X3_SIZES
from fmm.kernels.cuda.products.kernel_sizes import PLANE_CHUNK
from fmm.kernels.cuda.products.wgmma_tiles import best_wgmma_sizes, cluster_tiles, count_cluster_tiles
from fmm.kernels.plans.leaf import LeafUse, leaf_use
from fmm.kernels.plans.level import Level
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.work import DEEP, Half, Work, aligned_operands, counted_work, estimated_work
from fmm.problem import Problem

LEAVES_OUT = (
    "caches between steps, clocks that fall under load, waves that do not fill the device, page faults of a first call"
)


@dataclass(frozen=True)
class Prediction:
    """Predicted seconds of a plan on a problem, by term."""

    plan: Plan
    problem: Problem
    device: str
    products: float
    sums: float
    launches: float
    hidden: float
    ends: float = 0.0

    @property
    def seconds(self) -> float:
        return self.products + self.sums + self.launches + self.ends - self.hidden

    @property
    def dominant(self) -> str:
        """The term that takes most of the time."""
        terms = {"products": self.products, "sums": self.sums, "launches": self.launches}
        return max(terms, key=lambda name: terms[name])

    @property
    def effective_flops(self) -> float:
        """Classical flops per second: what the plan is worth, above the device's peak where it saves enough."""
        return self.problem.flops / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        parts = f"products {self.products:.3g} s, sums {self.sums:.3g} s, launches {self.launches:.3g} s"
        hidden = f", {self.hidden:.3g} s of it hidden" if self.hidden > 0 else ""
        hidden = f", {-self.hidden:.3g} s in each other's way" if self.hidden < 0 else hidden
        ends = f", beginning and end {self.ends:.3g} s" if self.ends else ""
        return f"{self.seconds:.4g} s ({parts}{ends}{hidden}; mostly {self.dominant}; leaves out {LEAVES_OUT})"


def predict(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of a plan, its counts taken from its steps at the actual sizes."""
    return predict_from_work(plan, problem, counted_work(plan, problem), calibration)


def quick_prediction(plan: Plan, problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of a plan, its counts estimated, which takes microseconds."""
    return predict_from_work(plan, problem, estimated_work(plan, problem), calibration)


def predict_from_work(plan: Plan, problem: Problem, work: Work, calibration: Calibration) -> Prediction:
    """Leaf products at the calibrated rate (or the memory's, if that is slower), sums at the streaming rate.

    The names are those of the fields of Rate and Calibration.

    products  the sum over leaf products of the larger of two times. Computing takes
              flops / rate * (1 + fill / (b m n) + pipe / k + rows / m + cols / n), m and n rounded up to whole tiles
              (and fewer tiles than `slots` to so many; then the last two terms are passes of their own over A and B,
              which are not rounded up; of a type with `sms`, of few rounds, instead of all that and `fill` whole rounds
              of tiles, see _in_rounds; with `blocks` whole rounds of our own tiles, see plane_slowdown),
              times `copied` or `batch` where the product is such a one, times the `relative_time` of its leaf. What
              `unaligned` and `odd` multiply, _vendors_slowdown says (what they add is multiplied by `alone` where only
              A's rows are such). By the tiled kernel it takes
              flops / rate * tiled * (1 + waves / tiles + (pipe + WRITING) / k + inside * numbers added / multiply-adds)
              (with `sms`: pipe / k for the first tile of each multiprocessor alone), times `tiled_odd` where it reads
              rows that are not aligned.
              Reading and writing the operands takes bytes / memory. Each start takes `start` beside that.
    sums      (bytes + small * passes) / stream; bytes that are moved at a share of the rate (sequential, ragged,
              scalar, parts, deep) are divided by that share
    hidden    overlap * min(products, sums below an overlapped level): nothing where the leaf's own kernel fills the
              device, and less than nothing where sums and products are in each other's way
    launches  launch * (starts + passes); or, if the processor cannot start products as fast as the device does them,
              the time by which `host` * products is longer than all the device's work (those of a batch start together,
              and one of several launches costs the host little more than one of one)
    ends      with several lanes: idle + spin, the latter no more than if half of every processor but one were lost

    With several lanes, a leaf product counts as one of a batch of as many as run at a time, sums and products are the
    time in which all lanes work, and the check for overflow, which reads A and B, counts as a sum.
    """
    lanes = _lanes(plan, problem, calibration)
    products, calls_of_products, starts = _products(plan, problem, work, calibration, lanes)
    sums = _sums(plan, problem, work, calibration, lanes)
    hidden = overlap_with(plan, problem.dtype, calibration) * min(products, sums * work.overlapped)
    device_needs = calibration.launch * (starts + work.passes)
    host_needs = calibration.host * calls_of_products - (products + sums - hidden)
    launches = max(device_needs, host_needs)
    ends = 0.0
    if lanes > 1:
        ends = calibration.idle
        ends += min(calibration.spin, (products + sums + ends) * (lanes - 1) / (lanes + 1))
    return Prediction(plan, problem, calibration.name, products, sums, launches, hidden, ends)


def overlap_with(plan: Plan, dtype: str, calibration: Calibration) -> float:
    """The share of the sums below an overlapped level that is hidden behind the plan's products.

    None is where the leaf's own kernel holds every multiprocessor until the last tile is done. (61 plans of an H200
    with `f16x3` below overlapped and batched levels, of 0.8 to 52 ms, were predicted to take 0.79 of what they took at
    the median with the 0.58 that is right of the vendor's products and of our tiles; so it is 0.93, and 1.0 from 5 ms
    on.)
    """
    rate = calibration.find_rate(plan.rate_name(dtype))
    by_own_kernel = rate is not None and rate.blocks > 0  # else the vendor multiplies the leaf's planes
    return 0.0 if plan.leaf_use.leaf.fills_device and by_own_kernel else calibration.overlap


def _products(
    plan: Plan, problem: Problem, work: Work, calibration: Calibration, lanes: int
) -> tuple[float, float, float]:
    """Seconds of the leaf products; how many calls they are, of one or of a batch; and how many launches."""
    dtype = DTYPES[plan.leaf_type(problem.dtype)]
    rate = calibration.rates.get(plan.rate_name(problem.dtype)) or calibration.rate(dtype.name)
    tiles = work.tiles
    # How many times as long as on aligned rows the vendor takes, and our own tiles.
    unaligned = (work.unaligned * (rate.unaligned - 1) + work.odd * (rate.odd - 1)) * (rate.alone if work.alone else 1)
    unaligned, copied = 1 + unaligned, 1 + work.copied * (rate.copied - 1)
    unaligned_tiles = 1 + (work.unaligned + work.odd) * ((rate.tiled_odd or 1.0) - 1)
    leaf = plan.leaf_use.leaf
    if leaf.prepared_layout and problem.kept and not plan.levels:  # so that operand is not read before the product
        rate = replace(rate, **{"rows" if problem.kept == "B" else "cols": 0.0})
    if leaf.prepared_by_sums and plan.levels and not (work.scalar and len(plan.levels) == 1):
        rate = _prepared_by_sums(rate, plan.levels[-1])
    singly = not plan.levels and not aligned_operands(problem, PAIR)[2]
    seconds = calls = 0.0
    for m, k, n, count, batch in work.leaves:
        if m and k and n:
            together = max(batch, lanes)
            if tiles:
                slowdown = unaligned_tiles * tiles.slowdown(rate, m, k, n, together)
                slowdown *= (
                    BY_COLUMNS
                    if is_b_column_major(problem) and is_slow_on_column_major_b(plan.leaf_use, dtype.name)
                    else 1.0
                )
            else:
                slowdown = copied * leaf.relative_time * _slowdown(rate, m, k, n, together, unaligned, singly)
            compute = dtype.flops * m * k * n / rate.flops * slowdown
            left, right, dest = tiles[2:5] if tiles else (1, 1, 1)
            moved = (left * m * k + right * k * n + dest * m * n) * dtype.itemsize / (rate.memory or calibration.stream)
            seconds += count * max(compute, moved) + count / batch * rate.start
            calls += count / batch
    of_halves, half_calls = _halves(work, rate, dtype, calibration, lanes)
    return seconds + of_halves, calls + half_calls, calls * leaf.launches + half_calls


# How many times as long our tiles take, of a type of which that matters, where B lies column by column. (Float32 on an
# H200: x x^T has 0.74 of syrk's speed by them, results/nvidia-h200/tried-gram.md; plans of six other products took 1.20
# to 1.36 times as long with such a B as with one that lies row by row, whatever A did: tried-choices.md.)
BY_COLUMNS = 1.36


PASSES = 3  # over an operand, to prepare it: two that read, and one that writes


def _prepared_by_sums(rate: Rate, last: Level) -> Rate:
    """The rate of a leaf whose operands the splits of the last level write as it wants them: of the passes by which the
    leaf would prepare them, one over the blocks is left. Three levels in one pass cannot: their threads have one number
    each. (Left out: for which layouts and coefficients splits cannot do so.)"""
    scheme = last.bilinear
    parts = last.itemsize_below(1) != 1  # of complex numbers, which are not read so
    if not last.batched or scheme is None or parts or last.products >= DEEP:
        return rate
    left, right = (blocks / (PASSES * last.products) for blocks in (scheme.m * scheme.k, scheme.k * scheme.n))
    return replace(rate, rows=rate.rows * right, cols=rate.cols * left)


def _halves(work: Work, rate: Rate, dtype: DType, calibration: Calibration, lanes: int) -> tuple[float, float]:
    """Seconds and calls of leaf products of which half is computed: a share of the whole product's time, where the leaf
    has a function for one half."""
    seconds = calls = 0.0
    for half in work.halves:
        m, k, count, batch, *_ = half
        if m and k:
            share = _share_of_half(half, work, rate, dtype, calibration.batches)
            whole = dtype.flops * m * k * m / rate.flops * _vendors_slowdown(rate, m, k, m, max(batch, lanes))
            moved = (m * k + m * m) * dtype.itemsize / (rate.memory or calibration.stream)
            seconds += count * max(share * whole, moved) + count / batch * rate.start
            calls += count / batch
    return seconds, calls


def _share_of_half(half: Half, work: Work, rate: Rate, dtype: DType, batches: bool) -> float:
    """One half's time as a share of the time of the whole product on aligned rows."""
    m, k, _, batch, name, loose = half
    leaf = leaf_use(name).leaf
    aligned = not work.halves_unaligned and not work.halves_odd  # else the vendor does halves of those types
    by_kernel = dtype.name in (*leaf.kernel_triangles, *(leaf.loose_triangles if loose and aligned else ()))
    if by_kernel and not is_slow_on_column_major_b(leaf_use(name), dtype.name):
        # Tiles on the diagonal are whole.
        return leaf.relative_time * min(rate.half_by_tiles * (1 + rate.half_edge / m), 1.0)
    unaligned = 1 + work.halves_unaligned * (rate.unaligned - 1) + work.halves_odd * (rate.odd - 1)
    if dtype.name not in leaf.blas_triangles:  # the whole product is computed
        return leaf.relative_time * unaligned
    if batches and batch > 1 and m <= leaf.whole_product_rows:
        return leaf.relative_time
    apart = 1 + rate.half_apart / m if batch > 1 else 1.0
    return leaf.relative_time * apart * (rate.half if k >= rate.half_least else rate.half_below * unaligned)


def _sums(plan: Plan, problem: Problem, work: Work, calibration: Calibration, lanes: int) -> float:
    """Seconds of the sums: their traffic, more where they do not reach the streaming rate."""
    traffic = work.traffic
    for share, rest in (
        (calibration.sequential, work.sequential),
        (calibration.ragged, work.ragged),
        (calibration.scalar, work.scalar),
        (calibration.parts, work.parts),
        (calibration.deep, work.deep),
    ):
        traffic *= 1 - rest + rest / share
    if plan.levels and calibration.lanes > 1:
        traffic += (problem.m + problem.n) * problem.k
        traffic /= 1.0 if lanes > 1 else calibration.apart
    return (traffic * problem.itemsize + calibration.small * work.passes) / calibration.stream


PAIR = 8  # bytes at whose multiples rows of C must begin for `f16x3` to write two numbers at a time


def _slowdown(rate: Rate, m: float, k: float, n: float, together: float, unaligned: float, singly: bool) -> float:
    """How many times as long as flops / rate a product takes that is not by our own tiled kernel."""
    if not rate.blocks:
        return _vendors_slowdown(rate, m, k, n, together, unaligned)
    slowdown = plane_slowdown(rate, m, k, n, together, singly) + rate.rows / m + rate.cols / n
    return slowdown * (rate.batch if together > 1 else 1.0)


# Where rows are not aligned, a product whose tiles are few is cut in parts of so many steps along the inner dimension.
# (1077 x 15493 x 179 on an H200 in TF32 and bfloat16: 1.7 and 1.4 times as long as measured without, 1.3 and 1.1 with.
# Times of the vendor's other kernels in these types do not show such cuts.)
CUT = 4096


def _vendors_slowdown(rate: Rate, m: float, k: float, n: float, together: float, unaligned: float = 1.0) -> float:
    """How many times as long as flops / rate a product of the vendor's takes; `unaligned`: how many times as long as on
    aligned rows it multiplies.

    Of that, reading the operands again takes no longer, and what a tile takes to begin and to end grows by the root:
    half of it is writing. (With both times `unaligned`, 72 thin products of an H200 in TF32 and bfloat16 whose rows are
    not aligned were predicted to take 13 and 7 % too long at the median, and are now 5 and 1 %.)
    """
    if together * m * n < FEW_ROUNDS * rate.sms * ROUND_TILES[0][0] * ROUND_TILES[0][1]:
        slowdown = unaligned * _in_rounds(rate, m, k, n, together) + rate.rows / m + rate.cols / n
        return slowdown * (rate.batch if together > 1 else 1.0)
    cuts = max(k / CUT, 1.0) if unaligned > 1 else 1.0
    slowdown = unaligned * (1 + rate.fill / (together * m * n * cuts)) + sqrt(unaligned) * rate.pipe / k
    reading = rate.rows / m + rate.cols / n
    if not rate.slots:
        slowdown, reading = slowdown + reading, 0.0
    if rate.tile > 1:
        width = rate.width or rate.tile
        computed = ceil(m / rate.tile) * rate.tile * ceil(n / width) * width
        slowdown *= max(computed, rate.slots * rate.tile**2 / together) / (m * n)
    return (slowdown + reading) * (rate.batch if together > 1 else 1.0)


# The vendor's rounds of tiles are counted where they are fewer than these. Of more, the last one leaves little idle,
# and `fill` describes that better.
FEW_ROUNDS = 3
# Sides of the tiles in which the vendor's ordinary cores compute C, and by what share a tile of half the size takes
# longer for each number. (Settled on the products of five H200s.)
ROUND_TILES, HALVED = ((256, 128), (128, 256), (128, 128), (64, 64)), 0.03
# So many parts, at most, it makes of each tile along the inner dimension where a whole one would leave most of the last
# round idle. (On 203 products of H200s the formula is off by 4.1 % at the median and 9.9 % at nine tenths with them,
# by 5.0 and 12.5 % without.)
MOST_PARTS = 4


def _in_rounds(rate: Rate, m: float, k: float, n: float, together: float) -> float:
    """That slowdown where every multiprocessor computes a tile at a time, in tiles of the size that is done first.

    Tiles are cut along the inner dimension where a round is filled by that: in a few parts, or, where they are fewer
    than multiprocessors, as often as there are some to spare.
    """
    return min(slower * (1 + rate.pipe * parts / k) for slower, parts in _ways_in_rounds(rate.sms, m, n, together))


@lru_cache(maxsize=4096)  # a fit asks thousands of times for the same
def _ways_in_rounds(sms: float, m: float, n: float, together: float) -> tuple[tuple[float, float], ...]:
    """How many times as long a very long product takes by each tile cut in so many parts, fewer parts first; without
    those that gain nothing by more parts."""
    found: list[tuple[float, float]] = []
    for rows, cols in ROUND_TILES:
        tiles = ceil(m / rows) * ceil(n / cols) * together
        whole = tiles / together * rows * cols / (m * n)
        smaller = 1 + HALVED * log2(ROUND_TILES[0][0] * ROUND_TILES[0][1] / (rows * cols))
        for parts in (*range(1, MOST_PARTS + 1), max(sms // tiles, 1)):
            found.append((parts, ceil(tiles * parts / sms) * sms / (tiles * parts) * whole * smaller))
    kept: list[tuple[float, float]] = []
    for parts, slower in sorted(found):
        if not kept or slower < kept[-1][0]:
            kept.append((slower, parts))
    return tuple(kept)


def _lanes(plan: Plan, problem: Problem, calibration: Calibration) -> int:
    """How many products of a plan run at a time, each on its share of the threads."""
    m, k, n = problem.size
    return calibration.lanes if plan.levels and 2 * m * k * n >= MIN_CONCURRENT_FLOPS else 1


def predict_vendor(problem: Problem, calibration: Calibration) -> Prediction:
    """Predicted time of the vendor's product."""
    return quick_prediction(VENDOR, problem, calibration)


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


def is_slow_on_column_major_b(use: LeafUse, dtype: str) -> bool:
    """Is the leaf slow where B lies column by column, as in x x^T? (Not if it reads a copy that is turned.)"""
    return use.order is None and dtype in use.leaf.slow_columns


def is_b_column_major(problem: Problem) -> bool:
    """Does B lie column by column? (Halves are compared as those of x x^T, whichever of the two they are.)"""
    orders = [layout.order for layout in problem.layouts]
    return problem.writes_triangle or orders[1] == "F"
