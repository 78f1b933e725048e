"""Calibrations: a device as the prediction sees it, a value of a few dozen numbers.

A tuning measures them; of a device that nobody tuned they are guessed (fmm.perfmodel.untuned).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from fmm.dtypes import DTYPES


@dataclass(frozen=True)
class Rate:
    """How fast one element type is multiplied.

    A batch of b products m x k x n by the vendor takes its flops / `flops` * (1 + fill / (b m n) + pipe / k + rows / m
    + cols / n) seconds, with m and n rounded up to whole tiles; fmm.perfmodel.predict has the whole formula.
    """

    flops: float  # flop/s of a product so large that starting, filling and reading operands no longer count
    fill: float  # with so many entries of C the device is half busy
    pipe: float  # with so many steps along the inner dimension, half of the time is start-up
    rows: float = 0.0  # with so many rows of C, reading B takes as long as multiplying
    cols: float = 0.0  # with so many columns of C, reading A does
    memory: float = 0.0  # bytes/s at which thin products read and write their operands; 0: the rate of the sums
    # The next four are factors on a product's time, 1 where nothing is lost.
    unaligned: float = 1.0  # where rows begin at multiples of 4 bytes, but not all at multiples of 16
    odd: float = 1.0  # where rows do not even all begin at multiples of 4 bytes
    alone: float = 1.0  # on what those two add, where A's rows are the only ones that are not aligned
    # Of products whose operands are aligned copies of such rows. (A device that its power limits runs faster after the
    # vendor's slow product: 0.9 in bfloat16, 0.94 in float64, 0.99 in float32 on an H200.)
    copied: float = 1.0
    batch: float = 1.0  # a factor on the time of products that start together as a batch
    tile: float = 1.0  # C is computed in whole tiles of so many rows and columns
    width: float = 0.0  # columns of such a tile; 0: as many as it has rows
    # Fewer tiles than this take as long as so many: each is computed by one thread block, whatever the inner dimension.
    # (0: where the device would be idle, products are cut along that too, as the vendor's are.)
    slots: float = 0.0
    # The vendor computes C in tiles of several sizes, a tile on each of so many multiprocessors at a time, in whole
    # rounds; where these are few, they count instead of `fill`. (0: rounds do not show.)
    sms: float = 0.0
    # So many thread blocks of this package's own kernel of three float16 products run at a time, each of which computes
    # tile after tile: whole rounds count, and the kernel's own tiles, instead of `fill`, `tile` and `slots`. (0: the
    # vendor multiplies the planes.)
    blocks: float = 0.0
    start: float = (
        0.0  # seconds that each start takes beside all that: of kernels one after the other, which fill slowly
    )
    # This package's own tiled kernel takes so many times as long as the vendor's product, both very large; 0: nobody
    # measured it, and no plan is chosen that uses it.
    tiled: float = 0.0
    # Where it reads rows that do not begin as its wide accesses want them, it takes so many times as long; 0: nobody
    # measured it, and no plan is chosen that has it read such rows.
    tiled_odd: float = 0.0
    waves: float = 0.0  # with so many of its tiles the device is half busy
    # Adding one number on its way into a product, or into one more block of C, takes as long as so many multiply-adds.
    inside: float = 0.0
    # One half of a product that is its own adjoint takes this share of the whole product's time, where the vendor has a
    # function for it. (On an H200 0.50 in float32, 0.63 in float64.)
    half: float = 0.6
    # With fewer steps along the inner dimension than the first, it takes the second share of that time.
    half_least: float = 0.0
    half_below: float = 1.0
    # Where several follow each other: with so many rows one takes as long again, for want of tiles in its last round.
    half_apart: float = 0.0
    # The same by this package's own kernels, if it is very large; 1: nobody measured it. With so many rows, whole tiles
    # on the diagonal and a last round that is not full take as long again.
    half_by_tiles: float = 1.0
    half_edge: float = 0.0


@lru_cache(maxsize=64)
def _without_tiles(rate: Rate) -> Rate:
    """The same for a type for which nobody measured this package's own kernel; kept, as each candidate asks for it."""
    return replace(rate, tiled=0.0)


@dataclass(frozen=True)
class Calibration:
    """A device: rates for each element type, what sums, launches and threads cost, and by how much a plan must win.

    On a CPU with several `lanes`, plans run so many products at a time, each on its share of the threads, with sums
    beside them (`Rate.batch` is what that costs a product). Small plans do one step after the other.
    """

    name: str
    source: str
    rates: Mapping[str, Rate] = field(hash=False)
    stream: float  # bytes a second that sums move
    small: float = 0.0  # bytes of traffic with which one pass of sums reaches half that rate
    launch: float = 0.0  # seconds that each start of a product or sum takes
    overlap: float = 0.0  # the share of the sums below an overlapped level that is hidden behind products
    batches: bool = False  # do equal products of a batched level start together (as on a GPU)?
    # A plan is chosen only if its predicted time is less than the vendor's by this share of it; or by the second one if
    # its products are by kernels of ours, whose time is known less well.
    margin: float = 0.01
    tiled_margin: float = 0.08
    # The share of the rate `stream` that sums reach where something slows them down.
    sequential: float = 1.0  # in sequential levels
    ragged: float = 1.0  # on rows that do not begin on cache lines
    scalar: float = 1.0  # on rows that a kernel must move one number at a time, so badly are they aligned
    parts: float = 1.0  # to and from the real or imaginary parts of complex numbers, every second number in memory
    deep: float = 1.0  # in three levels in one pass: so many values are held that few threads have registers
    host: float = 0.0  # seconds of the processor, at least, to start one product
    # Seconds of the processor that a user's call takes, at least, by the way in which it is answered: it is back no
    # sooner, however short the device's work is. (What the tuner times are launches; a call has its Python, too.)
    call_of_library: float = 0.0  # by the library's own product
    call: float = 0.0  # by levels, or a leaf of several launches: a replayed graph, told where its operands are now
    call_of_leaf: float = 0.0  # by another leaf of one launch than the vendor's: launched
    call_of_small: float = 0.0  # by the leaf for small halves: looked up, and one launch without the vendor's library
    least: float = 0.0  # plans with leaf products that have a shorter side are not chosen: the formula is wrong there
    lanes: int = 1  # products that run at a time
    idle: float = 0.0  # seconds in which a thread has nothing to do, at a plan's beginning and end
    spin: float = 0.0  # seconds lost to BLAS's own threads: after a product each spins on half of a processor
    apart: float = 1.0  # the share of their rate that the sums of small plans reach, which run one step at a time

    def rate(self, dtype: str) -> Rate:
        found = self.find_rate(dtype)
        if found is None:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return found

    def find_rate(self, dtype: str) -> Rate | None:
        """None where there is none. Flops of real products take about as long as those of complex ones of the same
        precision; what is known only of these is said of both, but for this package's own kernel."""
        if (found := self.rates.get(dtype)) is not None:
            return found
        twin = self.rates.get(next((name for name, row in DTYPES.items() if row.real == dtype), ""))
        return None if twin is None else _without_tiles(twin)
