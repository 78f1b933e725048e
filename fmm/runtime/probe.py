"""The probe: how fast this processor multiplies and adds, measured once in this process, when a plan first tempts.

The built-in calibration is a guess, and where it errs a plan can be slower than the vendor. So a plan that it proposes
is chosen again with rates that were just measured, in a few tenths of a second. Every doubt speaks for the vendor:
products count with their best time, sums with their middle one, and a margin.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from statistics import median
from types import MappingProxyType
from typing import Any

import numpy as np

from fmm.dtypes import DTYPES
from fmm.kernels.cpu.host_arrays import Arena, Array, aligned_block, matmul
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.openblas import paused_blas_threads
from fmm.kernels.cpu.parallel_products import MIN_CONCURRENT_FLOPS, threads_per_product, time_steps
from fmm.kernels.cpu.worker_threads import ForkSafeLock, NoThreadError, run_on_worker
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import Sum
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.default_calibration import cpu_calibration

SMALL, LARGE = 256, 4096  # sides of the products that are timed, doubled from one to the other ...
LONGEST = 0.02  # ... until the next would take longer than this many seconds
REPEATS, ROUNDS = 7, 5  # of products, of sums
# Products of 1000 or 2000 a side run 10 to 20 % below the rate of endless ones, which is as much as a level saves. That
# cannot be measured in so short a time; two cores with AVX-512 show 200 to 250 (float64), 200 to 400 (float32). Where
# two products run at a time, each on one thread, they lose less.
PIPE, SIDE_BY_SIDE = 200.0, 150.0
SUMMED = 1536  # side of the float64 operand whose sums are timed: with them, about 40 MB, more than a core's own caches
BESIDE = (640, 1024)  # of A's, of the product beside them: it takes longer than they do, and is not cut in halves
# Of the sums' measured rate, where they take turns with products: the overflow check, and caches that are colder in the
# middle of a product. Products of float32 are over sooner, and what disturbs the sums counts for more.
MARGIN = {"float64": 0.75, "float32": 0.65}
# That much must be predicted. Between 4096 and 7000 two cores with AVX-512 lose as much of it again (float64 2 to 5 %,
# float32 6 to 8 %) at the beginning and end of a product, and to OpenBLAS's other thread, which spins after a product.
LEAST_GAIN = 0.075
# Three real products for a complex one cannot share two threads evenly, and begin while OpenBLAS's other thread still
# spins after the caller's last product: of 27 products from 1300 to 6000 on those two cores, those predicted to gain 9
# to 13 % lost up to 14, those predicted to gain more gained 5 to 19.
LEAST_COMPLEX_GAIN = 0.13
# Where two products run at a time, leaf products with a shorter side are left alone: on those two cores, two levels
# down to 1250 were predicted to gain 8 % and lost 1.
LEAST_SIDE = 2000.0

MEASURED = "measured in this process"

_lock = ForkSafeLock()
_found: dict[tuple[int, bool], dict[bool, Calibration]] = {}  # by threads and precision: of complex numbers, of real


def probed_calibration(threads: int, dtype: str) -> Calibration:
    """This processor's calibration with so many threads, for products of this precision; the same one for as long as
    the process lives."""
    single = dtype in ("float32", "complex64")
    key = threads, single
    with _lock.now:
        if key not in _found:
            if paused_blas_threads():
                return cpu_calibration(threads)  # another call has BLAS's threads: this is no moment to measure
            dtypes = ("float32", "complex64") if single else ("float64", "complex128")
            try:
                found = run_on_worker(partial(_measure, threads, dtypes))
            except (MemoryError, NoThreadError):
                return cpu_calibration(threads)
            _found[key] = {True: replace(found, margin=LEAST_COMPLEX_GAIN), False: found}
        return _found[key][DTYPES[dtype].is_complex]


def _measure(threads: int, dtypes: tuple[str, ...]) -> Calibration:
    built_in, stream = cpu_calibration(threads), _sum_rate(threads)
    rate, least = _product_rate(np.dtype(dtypes[0]), PIPE), 0.0
    with threads_per_product(threads) as (at_a_time, _):
        if at_a_time > 1:  # what disturbs products on all threads disturbs those on one less
            least = LEAST_SIDE
            alone = _product_rate(np.dtype(dtypes[0]), SIDE_BY_SIDE)
            rate = replace(alone, flops=max(rate.flops, at_a_time * alone.flops))
        else:
            stream *= MARGIN[dtypes[0]]
    rates = MappingProxyType({t: replace(rate, half=built_in.rates[t].half) for t in dtypes})
    terms = built_in.small, built_in.launch
    found = Calibration(built_in.name, MEASURED, rates, stream, *terms, margin=LEAST_GAIN, least=least)
    return replace(found, parts=built_in.parts)


def _product_rate(dtype: np.dtype[Any], pipe: float) -> Rate:
    """Flops of products without end, by the largest that there is time for: time = flops / rate (1 + pipe / side).

    Each of the three sides has a third of what short ones cost.
    """
    side, seconds = SMALL, _product_seconds(SMALL, dtype)
    while side < LARGE and seconds * 8 < LONGEST:
        side *= 2
        seconds = _product_seconds(side, dtype)
    return Rate(2 * side**3 / seconds * (1 + pipe / side), 0.0, pipe / 3, pipe / 3, pipe / 3)


def _product_seconds(side: int, dtype: np.dtype[Any]) -> float:
    a, b, c = (np.ones((side, side), dtype) for _ in range(3))
    matmul(a, b, out=c)
    return min(_timed(lambda: matmul(a, b, out=c)) for _ in range(REPEATS))


def _sum_rate(threads: int) -> float:
    """Bytes a second that the sums of a split move, as they do within a plan: after a product, or beside one."""
    plan, a = Plan.parse("winograd > vendor"), np.ones((SUMMED, SUMMED))
    recipe = lower_level(plan, SUMMED, SUMMED, SUMMED)
    assert recipe is not None
    split = recipe.steps[0]
    assert isinstance(split, Sum)
    arena = Arena(aligned_block(workspace(plan, SUMMED, SUMMED, SUMMED, a.itemsize)), a.dtype)
    places: dict[str, Array] = {"A": a}
    places |= {place.name: arena.take(place.rows, place.cols) for place in split.writes}
    reads, writes = (
        [places[p.name][p.row : p.row + p.rows, p.col : p.col + p.cols] for p in side]
        for side in (split.reads, split.writes)
    )
    left, right, dest = (np.ones(shape) for shape in (BESIDE, BESIDE[1:] * 2, BESIDE))

    def steps(backend: NumpyBackend) -> None:
        backend.multiply("vendor", left, right, dest)
        backend.sum(split, reads, writes)

    time_steps(threads, MIN_CONCURRENT_FLOPS, steps)  # finds fresh pages
    seconds = median(time_steps(threads, MIN_CONCURRENT_FLOPS, steps).sums for _ in range(ROUNDS))
    return sum(x.nbytes for x in (*reads, *writes)) / seconds


def _timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
