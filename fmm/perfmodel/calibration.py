"""Calibrations: a device as the formula of fmm.perfmodel.predict sees it, a value of a few dozen numbers.

A tuning measures these numbers. For a device without a tuning, fmm.perfmodel.default_calibration has default values.
The fields have the names of the formula's terms and of the config file. docs/model.md has a table of all fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.level_bounds import LevelBounds, baseline_text, count_levels, effective_side
from fmm.problem import Problem


@dataclass(frozen=True)
class ProductRate:
    """The rate of products of one element type, and the corrections of the rate for sizes and alignment.

    The vendor's batch of b products m x k x n takes flops / `flops` * (1 + fill / (b m n) + pipe / k + rows / m +
    cols / n) seconds, with m and n rounded up to whole tiles. fmm.perfmodel.predict has the whole formula.
    """

    flops: float  # flop/s of a product so large that starting, filling and reading operands cost nothing
    fill: float  # entries of C at which the device is half busy
    pipe: float  # steps along the inner dimension at which half of the time is start-up
    rows: float = 0.0  # rows of C at which reading B takes as long as multiplying
    cols: float = 0.0  # columns of C at which reading A takes as long as multiplying
    # bytes/s at which thin products read and write their operands; 0: `Calibration.stream`, the rate of sums
    memory: float = 0.0
    # The next four fields are factors on a product's time; 1 means no loss.
    unaligned: float = 1.0  # factor if all rows begin at multiples of 4 bytes, but not all rows at multiples of 16
    odd: float = 1.0  # factor if not all rows begin at multiples of 4 bytes
    alone: float = 1.0  # factor on (unaligned - 1) and (odd - 1) if only the rows of A are unaligned
    # Factor on the time of products of aligned copies of unaligned operands. (Measured on an H200: 0.9 in bfloat16,
    # 0.94 in float64, 0.99 in float32. At its power limit a device clocks higher after the vendor's slow product of
    # unaligned operands.)
    copied: float = 1.0
    batch: float = 1.0  # factor on the time of products that start together as a batch
    tile: float = 1.0  # rows and columns of a tile; C is computed in whole tiles
    width: float = 0.0  # columns of a tile; 0: as many as rows
    # Fewer tiles than this number take as long as this number of tiles: one thread block computes each tile, however
    # long the inner dimension is. 0: no such limit, since the kernel cuts products along the inner dimension where the
    # device would be idle, as the vendor's kernels do.
    slots: float = 0.0
    # The number of multiprocessors. The vendor computes C in tiles of several sizes, one tile on each multiprocessor at
    # a time; the model counts whole rounds of tiles instead of `fill` where C has few rounds. 0: measured times show no
    # whole rounds.
    sms: float = 0.0
    # The number of thread blocks that run at a time in the kernel of three float16 products. Each of them computes tile
    # after tile, so that whole rounds of the kernel's tiles count instead of `fill`, `tile` and `slots`. 0: the vendor
    # multiplies the planes.
    blocks: float = 0.0
    start: float = 0.0  # additional seconds of each start: a leaf of several kernels fills the device slowly
    # The time of the tiled kernel over the vendor's, for a very large product. 0: not measured, and no plan with the
    # tiled kernel is chosen.
    tiled: float = 0.0
    # Factor on the time of the tiled kernel for rows that do not begin at multiples of its widest access. 0: not
    # measured, and no plan is chosen in which the tiled kernel reads unaligned rows.
    tiled_odd: float = 0.0
    waves: float = 0.0  # tiles of the tiled kernel at which the device is half busy
    # Cost of a sum inside the tiled kernel: adding one number to an operand or to one more block of C takes the time of
    # this number of multiply-adds.
    inside: float = 0.0
    # The time of one triangle of a product that is its own adjoint as a share of the whole product's, where the vendor
    # has a function for it. (Measured on an H200: 0.50 in float32, 0.63 in float64.)
    half: float = 0.6
    # With fewer steps along the inner dimension than `half_least`, the share is `half_below`.
    half_least: float = 0.0
    half_below: float = 1.0
    # For several triangles one after the other: the number of rows with which a triangle takes twice as long, because
    # its last round has few tiles.
    half_apart: float = 0.0
    # The same share for a very large triangle by fmm's own kernels (1: not measured), and the number of rows with which
    # whole tiles on the diagonal and an incomplete last round double that time.
    half_by_tiles: float = 1.0
    half_edge: float = 0.0


@lru_cache(maxsize=64)
def _without_tiled_kernel(rate: ProductRate) -> ProductRate:
    """Return the rate of a type in which the tiled kernel was not measured; cached, since every candidate needs it."""
    return replace(rate, tiled=0.0)


@dataclass(frozen=True)
class Calibration:
    """A device: rates for each element type, the cost of sums, launches and threads, and the margins of a choice.

    On a CPU a plan runs `lanes` products concurrently, each on its share of the threads, while other threads compute
    sums. `Rate.batch` is the factor by which a product is slower when it runs so. Small plans run one step at a time.
    """

    name: str
    source: str
    rates: Mapping[str, ProductRate] = field(hash=False)
    stream: float  # bytes/s of the traffic of sums
    small: float = 0.0  # bytes of traffic with which one pass of sums reaches half of `stream`
    launch: float = 0.0  # seconds of each start of a product or sum
    overlap: float = 0.0  # share of the sums below an overlapped level that is hidden behind products
    batches: bool = False  # True if equal products of a batched level start together, as on a GPU
    # A plan is chosen only if its predicted time is below the vendor's by the share `margin`, or by `tiled_margin` if
    # fmm's own kernels compute its products, since their predicted time is less certain.
    margin: float = 0.01
    tiled_margin: float = 0.08
    # The next five fields are shares of the rate `stream` that slower kinds of sums reach.
    sequential: float = 1.0  # sums of sequential levels
    ragged: float = 1.0  # sums on rows that do not begin on cache lines
    scalar: float = 1.0  # sums on rows that a kernel must move one number at a time
    parts: float = 1.0  # sums of real or imaginary parts of complex numbers, every second number in memory
    deep: float = 1.0  # sums of three levels in one pass: their many values leave registers for few threads
    host: float = 0.0  # least seconds of the host to start one product
    # The next four fields are the least seconds of the host for a user's call. A recurring call takes at least this
    # time, however short the device's work is. The tuner measures launches; a user's call also runs Python code.
    call_of_library: float = 0.0  # seconds for the library's own product
    # seconds for plans with levels, or with a leaf of several launches: a replayed CUDA graph with new addresses
    call: float = 0.0
    call_of_leaf: float = 0.0  # seconds for a leaf of one launch
    # seconds for the leaf for small triangles: a look-up, and one launch without the vendor's library
    call_of_small: float = 0.0
    # least side of leaf products; for shorter sides the formula is wrong, so that plans with these are not chosen
    least: float = 0.0
    lanes: int = 1  # products that run at a time
    idle: float = 0.0  # seconds in which threads are idle at a plan's beginning and end
    spin: float = 0.0  # seconds lost to BLAS's own threads, which spin on half of a processor after each product
    apart: float = 1.0  # share of `stream` that the sums of small plans reach, since small plans run one step at a time
    # Measured bounds on the number of levels; plans above a baseline that is missing here have no bound. The thresholds
    # in a config contain these bounds.
    level_bounds: tuple[LevelBounds, ...] = ()

    def level_bounds_of(self, plan: Plan) -> LevelBounds | None:
        """Return the measured bounds on the levels above the plan's baseline; None if they were not measured."""
        if not self.level_bounds:
            return None
        baseline = baseline_text(plan)
        return next((bounds for bounds in self.level_bounds if bounds.baseline == baseline), None)

    def exceeds_level_bounds(self, plan: Plan, problem: Problem) -> bool:
        """Return True if the measured bounds exclude the plan's number of levels for this problem."""
        bounds = self.level_bounds_of(plan)
        return bounds is not None and count_levels(plan) > bounds.max_levels(effective_side(problem.size))

    def require_rate(self, dtype: str) -> ProductRate:
        """Return the rate of a type, or of a leaf with a rate of its own; ValueError if there is none."""
        found = self.find_rate(dtype)
        if found is None:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return found

    def find_rate(self, dtype: str) -> ProductRate | None:
        """Return the rate of a type, or None.

        Flops of real products take about as long as those of complex products of the same precision. A rate of the
        complex type therefore serves the real type, except for the tiled kernel.
        """
        if (found := self.rates.get(dtype)) is not None:
            return found
        twin = self.rates.get(next((name for name, row in DTYPES.items() if row.real == dtype), ""))
        return None if twin is None else _without_tiled_kernel(twin)
