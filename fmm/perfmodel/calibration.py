"""Calibrations: a device as the formula of fmm.perfmodel.predict sees it, a value of a few dozen numbers.

A tuning measures them. For a device that nobody tuned they come from fmm.perfmodel.default_calibration. The fields have
the names of the formula's terms and of the config file. docs/model.md has a table of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.level_bounds import LevelBounds, baseline_of, count_levels, effective_side
from fmm.problem import Problem


@dataclass(frozen=True)
class Rate:
    """How fast one element type is multiplied.

    The vendor's batch of b products m x k x n takes flops / `flops` * (1 + fill / (b m n) + pipe / k + rows / m +
    cols / n) seconds, with m and n rounded up to whole tiles. fmm.perfmodel.predict has the whole formula.
    """

    flops: float  # flop/s of a product so large that starting, filling and reading operands cost nothing
    fill: float  # entries of C at which the device is half busy
    pipe: float  # steps along the inner dimension at which half of the time is start-up
    rows: float = 0.0  # rows of C at which reading B takes as long as multiplying
    cols: float = 0.0  # columns of C at which reading A takes as long as multiplying
    memory: float = 0.0  # bytes/s at which thin products read and write their operands; 0: the rate of the sums
    # The next four are factors on a product's time, 1 where nothing is lost.
    unaligned: float = 1.0  # rows begin at multiples of 4 bytes, but not all of them at multiples of 16
    odd: float = 1.0  # not all rows begin at multiples of 4 bytes
    alone: float = 1.0  # on the excess of these two, where the rows of A are the only unaligned ones
    # For products of aligned copies of unaligned operands. (A device at its power limit runs faster after the vendor's
    # slow product: 0.9 in bfloat16, 0.94 in float64, 0.99 in float32 on an H200.)
    copied: float = 1.0
    batch: float = 1.0  # factor on the time of products that start together as a batch
    tile: float = 1.0  # C is computed in whole tiles with this number of rows and columns
    width: float = 0.0  # columns of a tile; 0: as many as rows
    # Fewer tiles than this take as long as this number of tiles: one thread block computes each, whatever the inner
    # dimension. (0: where the device would be idle, products are also cut along the inner dimension, as the vendor's.)
    slots: float = 0.0
    # The vendor computes C in tiles of several sizes, one on each of this number of multiprocessors at a time, in whole
    # rounds; few rounds are counted instead of `fill`. (0: rounds do not show.)
    sms: float = 0.0
    # The number of thread blocks of the kernel of three float16 products that run at a time, each of which computes
    # tile after tile: whole rounds of the kernel's own tiles count instead of `fill`, `tile` and `slots`. (0: the
    # vendor multiplies the planes.)
    blocks: float = 0.0
    start: float = 0.0  # seconds that each start takes in addition: several kernels in turn fill the device slowly
    # The time of the tiled kernel over the vendor's, for a very large product. 0: not measured; no plan with the kernel
    # is chosen.
    tiled: float = 0.0
    # How much longer the tiled kernel takes on rows that do not begin as its wide accesses need. 0: not measured; no
    # plan is chosen in which it reads these rows.
    tiled_odd: float = 0.0
    waves: float = 0.0  # tiles of the tiled kernel at which the device is half busy
    # Multiply-adds in whose time one number is added on its way into a product, or into one more block of C.
    inside: float = 0.0
    # The time of one triangle of a product that is its own adjoint as a share of the whole product's, where the vendor
    # has a function for it. (H200: 0.50 in float32, 0.63 in float64.)
    half: float = 0.6
    # With fewer steps along the inner dimension than `half_least`, the share is `half_below`.
    half_least: float = 0.0
    half_below: float = 1.0
    # Several triangles in turn: the rows with which one takes twice as long, for want of tiles in its last round.
    half_apart: float = 0.0
    # The share of a very large triangle by fmm's own kernels (1: not measured), and the rows with which whole tiles on
    # the diagonal and an incomplete last round double its time.
    half_by_tiles: float = 1.0
    half_edge: float = 0.0


@lru_cache(maxsize=64)
def _without_tiled_kernel(rate: Rate) -> Rate:
    """Return the rate of a type in which the tiled kernel was not measured; cached, since every candidate needs it."""
    return replace(rate, tiled=0.0)


@dataclass(frozen=True)
class Calibration:
    """A device: rates for each element type, the cost of sums, launches and threads, and the margins of a choice.

    On a CPU with several `lanes`, a plan runs this number of products at a time, each on its share of the threads, with
    sums beside them (`Rate.batch` is what that costs a product). Small plans run one step after the other.
    """

    name: str
    source: str
    rates: Mapping[str, Rate] = field(hash=False)
    stream: float  # bytes/s that sums move
    small: float = 0.0  # bytes of traffic with which one pass of sums reaches half that rate
    launch: float = 0.0  # seconds of each start of a product or sum
    overlap: float = 0.0  # share of the sums below an overlapped level that is hidden behind products
    batches: bool = False  # do equal products of a batched level start together (as on a GPU)?
    # A plan is chosen only if its predicted time is below the vendor's by this share; by the second share if fmm's own
    # kernels compute its products, since their time is less certain.
    margin: float = 0.01
    tiled_margin: float = 0.08
    # Shares of the rate `stream` that sums reach ...
    sequential: float = 1.0  # in sequential levels
    ragged: float = 1.0  # on rows that do not begin on cache lines
    scalar: float = 1.0  # on rows that a kernel must move one number at a time
    parts: float = 1.0  # to and from the real or imaginary parts of complex numbers, every second number in memory
    deep: float = 1.0  # in three levels in one pass, whose many values leave registers for few threads
    host: float = 0.0  # least seconds of the host to start one product
    # Least seconds of the host for a user's call, by the way the call is run. A recurring call returns no sooner,
    # however short the device's work is. (The tuner times launches; a call runs Python as well.)
    call_of_library: float = 0.0  # the library's own product
    call: float = 0.0  # levels, or a leaf of several launches: a replayed graph with the operands' new addresses
    call_of_leaf: float = 0.0  # another leaf of one launch
    call_of_small: float = 0.0  # the leaf for small triangles: a look-up, and one launch without the vendor's library
    least: float = 0.0  # plans with a shorter side of leaf products are not chosen: the formula is wrong there
    lanes: int = 1  # products that run at a time
    idle: float = 0.0  # seconds in which a thread has nothing to do, at a plan's beginning and end
    spin: float = 0.0  # seconds lost to BLAS's own threads: after a product each spins on half of a processor
    apart: float = 1.0  # share of their rate that the sums of small plans reach, which run one step at a time
    # Measured bounds on the number of levels; plans above a baseline that is missing here have no bound. A config has
    # them among its thresholds.
    level_bounds: tuple[LevelBounds, ...] = ()

    def bounds_of(self, plan: Plan) -> LevelBounds | None:
        """Return the measured bounds on the levels above the plan's baseline; None if they were not measured."""
        if not self.level_bounds:
            return None
        baseline = baseline_of(plan)
        return next((bounds for bounds in self.level_bounds if bounds.baseline == baseline), None)

    def exceeds_bounds(self, plan: Plan, problem: Problem) -> bool:
        """Return True if the measured bounds exclude the plan's number of levels for this problem."""
        bounds = self.bounds_of(plan)
        return bounds is not None and count_levels(plan) > bounds.max_levels(effective_side(problem.size))

    def rate(self, dtype: str) -> Rate:
        """Return the rate of a type, or of a leaf with a rate of its own; ValueError if there is none."""
        found = self.find_rate(dtype)
        if found is None:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return found

    def find_rate(self, dtype: str) -> Rate | None:
        """Return the rate of a type, or None.

        Flops of real products take about as long as those of complex products of the same precision. A rate of the
        complex type therefore serves the real type, except for the tiled kernel.
        """
        if (found := self.rates.get(dtype)) is not None:
            return found
        twin = self.rates.get(next((name for name, row in DTYPES.items() if row.real == dtype), ""))
        return None if twin is None else _without_tiled_kernel(twin)
