"""Define the calibration of a device: the numbers in the formula of fmm.perfmodel.predict.

A tuning measures the numbers of a calibration; fmm.perfmodel.default_calibration has default values. docs/model.md
describes all fields of Calibration and ProductRate in a table, by the same names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import inf

from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.crossovers import MeasuredCrossovers, baseline_text, count_levels, effective_side
from fmm.perfmodel.work import WIDE_ACCESS_BYTES, are_rows_aligned
from fmm.problem import Problem


@dataclass(frozen=True)
class ProductRate:
    """The rate of products of one element type, and the corrections of this rate for sizes and alignment.

    A batch of b products m x k x n by the vendor takes F * (1 + fill / (b m n) + pipe / k + rows / m + cols / n)
    seconds. F is the batch's flops divided by the field `flops`, with m and n rounded up to whole tiles. docs/model.md
    has the whole formula.
    """

    # flop/s of a very large product: the time to start, to fill the device and to read operands is negligible
    flops: float
    fill: float  # number of entries of C with which a product reaches half of the rate `flops`
    pipe: float  # number of steps along the inner dimension with which start-up takes half of the time
    rows: float = 0.0  # number of rows of C for which reading B takes as long as the multiplication
    cols: float = 0.0  # number of columns of C for which reading A takes as long as the multiplication
    # bytes/s with which thin products read and write operands; 0: the rate of sums, `Calibration.stream`
    memory: float = 0.0
    # The fields from `unaligned` to `copied` are factors on the time of a product; 1 means no loss. `unaligned` is the
    # factor if all rows begin at multiples of 4 bytes, but some rows do not begin at multiples of 16 bytes.
    unaligned: float = 1.0
    odd: float = 1.0  # factor on the time of a product if some rows do not begin at multiples of 4 bytes
    alone: float = 1.0  # factor on (unaligned - 1) and (odd - 1) if only the rows of A are unaligned
    # Factor on the time of a product if unaligned operands are first copied to aligned rows. On an H200 `copied` is 0.9
    # in bfloat16, 0.94 in float64 and 0.99 in float32. `copied` is below 1, because the measured products ran right
    # after slow products of unaligned operands, which let the clocks of a device at its power limit rise.
    copied: float = 1.0
    batch: float = 1.0  # factor on the time of products that start together as a batch
    tile: float = 1.0  # number of rows and columns of a tile of the kernel; C is computed in whole tiles
    width: float = 0.0  # number of columns of a tile of the kernel; 0: as many columns as rows
    # The number of tiles that the device computes at the same time; 0 for the vendor's kernels, which cut a product
    # along the inner dimension to fill the device. A product with fewer tiles takes no less time, since one thread
    # block computes a whole tile.
    slots: float = 0.0
    # The number of multiprocessors; 0 if measured times do not grow by whole waves (a wave is one tile on each
    # multiprocessor). The vendor computes C in tiles of several sizes, one tile on each multiprocessor at a time. If C
    # has few waves of tiles, the model counts whole waves and ignores `fill`.
    sms: float = 0.0
    # The number of thread blocks that run at a time in the kernel `f16x3` (three float16 products); 0 if the vendor
    # multiplies the float16 planes. Each thread block computes one tile of C after the other. The time of a product is
    # therefore the time of a tile times ceil(number of tiles / blocks). For the kernel `f16x3` the model ignores the
    # fields `fill`, `tile` and `slots` of ProductRate.
    blocks: float = 0.0
    # additional seconds at each start of a leaf with several kernels, since the leaf fills the device slowly
    start: float = 0.0
    # The time of the tiled kernel divided by the vendor's time, for a very large product. If `tiled` is 0, the kernel
    # was not measured, and no plan with the tiled kernel is chosen.
    tiled: float = 0.0
    # Factor on the time of the tiled kernel for rows that do not begin at multiples of the kernel's widest access. If
    # `tiled_odd` is 0, the factor was not measured, and no plan is chosen in which the tiled kernel reads unaligned
    # rows.
    tiled_odd: float = 0.0
    waves: float = 0.0  # number of tiles with which the tiled kernel reaches half of its rate
    # The time of one addition inside the tiled kernel, to an element of A, B or C, divided by the time of one
    # multiply-add.
    inside: float = 0.0
    # The time of the vendor's syrk or herk for one triangle of a self-adjoint product, as a share of the whole
    # product's time. (On an H200 the share is 0.50 in float32 and 0.63 in float64.)
    half: float = 0.6
    # For inner dimensions below `half_least`, the vendor's syrk is slower: `half_below` is the time of one triangle as
    # a share of the whole product's time.
    half_least: float = 0.0
    half_below: float = 1.0
    # Number of rows of C with which a triangle takes twice the share `half` of the whole product's time, if several
    # triangles are computed one after the other: the last wave of each triangle has few tiles.
    half_apart: float = 0.0
    # The time of a very large triangle by fmm's own kernels, as a share of the whole product's time; 1 means not
    # measured. `half_edge` is the number of rows of C with which a triangle takes twice this share of the whole
    # product's time, because tiles on the diagonal are computed whole and the last wave of tiles is incomplete.
    half_by_tiles: float = 1.0
    half_edge: float = 0.0


@lru_cache(maxsize=64)
def _rate_without_tiled_kernel(rate: ProductRate) -> ProductRate:
    """Return the rate without the tiled kernel's numbers; cached, since every candidate needs the rate."""
    return replace(rate, tiled=0.0)


@dataclass(frozen=True)
class Calibration:
    """The model of one device: rates by element type, the cost of sums, launches and threads, and the margins.

    On a CPU a plan runs `lanes` products concurrently, each on a share of the threads, while other threads compute
    sums. A plan for a small product runs one step at a time.
    """

    name: str
    source: str
    rates: Mapping[str, ProductRate] = field(hash=False)
    stream: float  # bytes/s that sums read and write
    small: float = 0.0  # bytes of traffic with which one pass of a sum reaches half of the rate `stream`
    launch: float = 0.0  # seconds of each launch of a product or sum
    overlap: float = 0.0  # share of the sums' time that is hidden behind products, for sums below an overlapped level
    batches: bool = False  # True if equal products of a batched level start together, as on a GPU
    # A plan is chosen only if its predicted time is below the vendor's time by at least the share `margin`. For
    # products by fmm's own kernels, `tiled_margin` replaces `margin`, since the predicted time of these products is
    # less certain.
    margin: float = 0.01
    tiled_margin: float = 0.08
    # Some sums move fewer bytes/s than `stream`: the fields `sequential`, `ragged`, `scalar`, `parts` and `deep` are
    # the rates of these sums divided by `stream`.
    sequential: float = 1.0  # share of `stream` for the sums of sequential levels
    ragged: float = 1.0  # share of `stream` for sums on rows that do not begin at the beginning of a cache line
    scalar: float = 1.0  # share of `stream` for sums on rows that a kernel must move one number at a time
    # share of `stream` for sums of real or imaginary parts of complex numbers, which are every second number in memory
    parts: float = 1.0
    deep: float = 1.0  # share of `stream` for sums of three levels in one pass, which leave registers for few threads
    host: float = 0.0  # shortest time of the host to start one product, in seconds
    # The fields that begin with `call` are the shortest times of the host for a user's call, in seconds. A recurring
    # call takes at least the host's time, even if the device finishes earlier. The tuner measures launches alone; a
    # user's call also runs Python code.
    call_of_library: float = 0.0  # host seconds for a call of the matrix product of CuPy or torch
    # host seconds for plans with levels or with a leaf of several launches: a CUDA graph is replayed with new addresses
    call: float = 0.0
    call_of_leaf: float = 0.0  # host seconds for a leaf of one launch
    # host seconds for the leaf `small`: its call needs only one look-up in a cache and one launch
    call_of_small: float = 0.0
    # smallest allowed m, k and n of a leaf product; the formula is wrong for leaf products with a shorter side
    least: float = 0.0
    lanes: int = 1  # number of products that run at a time on a CPU
    idle: float = 0.0  # seconds in which CPU threads are idle at a plan's beginning and end
    spin: float = 0.0  # seconds lost to BLAS threads, which spin on half of a processor after each product
    apart: float = 1.0  # share of `stream` that the sums of small plans reach, since these plans run one step at a time
    # The measured crossovers tau1, tau2 and tau3 that limit the number of levels: one instance for each baseline (a
    # plan without its recursion levels). A plan with a baseline that has no measured crossovers may have any number of
    # levels.
    measured_crossovers: tuple[MeasuredCrossovers, ...] = ()

    def matrix_side_for_crossovers(self, problem: Problem) -> float:
        """Return the effective side in rows for a comparison with tau1 to tau3; infinity if tau1 to tau3 do not apply.

        On a GPU, tau1 to tau3 were measured on aligned rows. On unaligned rows the vendor is slow, so that plans with
        levels win from far smaller sides.
        """
        if self.batches and not are_rows_aligned(problem, WIDE_ACCESS_BYTES):
            return inf
        return effective_side(problem.size)

    def crossovers_of_plan(self, plan: Plan) -> MeasuredCrossovers | None:
        """Return tau1 to tau3, measured on plans with the plan's baseline; None if not measured."""
        if not self.measured_crossovers:
            return None
        baseline = baseline_text(plan)
        return next((bounds for bounds in self.measured_crossovers if bounds.baseline == baseline), None)

    def has_too_many_levels(self, plan: Plan, problem: Problem) -> bool:
        """Return True if tau1, tau2 and tau3 allow fewer levels than the plan has for this problem."""
        bounds = self.crossovers_of_plan(plan)
        return bounds is not None and count_levels(plan) > bounds.max_levels(self.matrix_side_for_crossovers(problem))

    def require_rate(self, dtype: str) -> ProductRate:
        """Return the rate of an element type, or of a leaf with its own rate; raise ValueError for a missing rate."""
        found = self.find_rate(dtype)
        if found is None:
            raise ValueError(f"{self.name} has no rate for {dtype}; it has {', '.join(self.rates)}")
        return found

    def find_rate(self, dtype: str) -> ProductRate | None:
        """Return the rate of an element type, or None if the calibration has no such rate.

        If a real type has no rate, the rate of its complex type is returned, without the tiled kernel's numbers.
        """
        if (found := self.rates.get(dtype)) is not None:
            return found
        twin = self.rates.get(next((name for name, row in DTYPES.items() if row.real == dtype), ""))
        return None if twin is None else _rate_without_tiled_kernel(twin)
