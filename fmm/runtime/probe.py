"""The probe: a short measurement of the rates of products and sums on this processor, at most once per process.

The built-in calibration is a guess, so a plan that wins by the built-in calibration can be slower than the vendor.
Before the plan runs, the probe measures the rates in a few tenths of a second. After the probe, the plan is chosen
again by the measured rates. The measured rates favour the vendor: the rate of products comes from their shortest time,
but the rate of sums from their median time.
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
from fmm.kernels.cpu.parallel_products import MIN_CONCURRENT_FLOPS, measure_step_times, threads_per_product
from fmm.kernels.cpu.worker_threads import ForkSafeLock, NoThreadError, run_on_worker
from fmm.kernels.plans.lower import lower_level
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.sums import Sum
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.default_calibration import cpu_calibration

MIN_TIMED_SIDE, MAX_TIMED_SIDE = 256, 4096  # smallest and largest side of the timed products
MAX_PRODUCT_SECONDS = 0.02  # seconds; the side is doubled unless the next product would take longer
PRODUCT_TIMINGS, SUM_TIMINGS = 7, 5  # number of timings of each product, number of timings of the sums
# HALF_RATE_SIDE is the side of square products that run at half the asymptotic rate: time = flops / rate * (1 +
# HALF_RATE_SIDE / side). Products with sides of 1000 or 2000 run 10 to 20 % below the asymptotic rate, and a level
# saves about as much time. HALF_RATE_SIDE is a constant, because its measurement would take too long. On two cores with
# AVX-512, products of sides from 200 to 250 in float64, and from 200 to 400 in float32, run at half the asymptotic
# rate. CONCURRENT_HALF_RATE_SIDE is the side for products that run on one thread each.
HALF_RATE_SIDE, CONCURRENT_HALF_RATE_SIDE = 200.0, 150.0
# Side of the float64 matrix A in the timed sums. The timed sums read and write about 40 MB, which is more than a core's
# own caches hold.
SUM_OPERAND_SIDE = 1536
# Rows and columns of A in the product that runs concurrently with the timed sums, and that takes longer than the sums.
CONCURRENT_SHAPE = (640, 1024)
# Factors on the measured rate of sums, for plans that run no sums concurrently with products. Sums in a plan are slower
# than sums in the probe: the overflow check takes time, and the caches are colder. In float32 the products take less
# time than in float64, so slow sums cost a larger fraction of a plan's time, and the factor in SUM_RATE_SHARE is
# smaller.
SUM_RATE_SHARE = {"float64": 0.75, "float32": 0.65}
# Smallest predicted gain for which a plan is chosen. For sides from 4096 to 7000, plans on two cores with AVX-512 are
# slower than predicted, by 2 to 5 % in float64 and by 6 to 8 % in float32. Plans are slower than predicted because of
# the start and the end of each product, and because OpenBLAS's second thread spins after a product.
MIN_PREDICTED_GAIN = 0.075
# Smallest predicted gain of plans that replace a complex product by three real products. Two threads cannot share three
# real products evenly, and OpenBLAS's second thread still spins when the real products begin. (27 products with sides
# from 1300 to 6000 on two cores with AVX-512: plans with a predicted gain of 9 to 13 % lost up to 14 %; plans with a
# larger predicted gain won 5 to 19 %.)
MIN_COMPLEX_GAIN = 0.13
# Smallest side of the leaf products of a plan that runs two products concurrently. (On two cores with AVX-512, a plan
# with two levels and leaf products of side 1250 lost 1 %, though a gain of 8 % was predicted.)
MIN_CONCURRENT_LEAF_SIDE = 2000.0

PROBE_SOURCE = "measured in this process"

_lock = ForkSafeLock()
_callbacks: list[Callable[[], None]] = []
# The measured calibrations: `_measured_calibrations[threads, is_single_precision][is_complex]`.
_measured_calibrations: dict[tuple[int, bool], dict[bool, Calibration]] = {}


def measured_calibration(threads: int, dtype: str) -> Calibration | None:
    """Return the calibration that `probed_calibration` measured in this process; None before the measurement."""
    found = _measured_calibrations.get((threads, dtype in ("float32", "complex64")))
    return None if found is None else found[DTYPES[dtype].is_complex]


def register_probe_callback(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a function to call after each measurement, which makes earlier decisions out of date."""
    _callbacks.append(callback)
    return callback


def probed_calibration(threads: int, dtype: str) -> Calibration:
    """Return this processor's calibration for `threads` threads and a type; measure its rates at the first call."""
    single = dtype in ("float32", "complex64")
    key = threads, single
    with _lock.now:
        if key not in _measured_calibrations:
            if paused_blas_threads():
                return cpu_calibration(threads)  # another call uses BLAS's threads and would disturb a measurement
            dtypes = ("float32", "complex64") if single else ("float64", "complex128")
            try:
                found = run_on_worker(partial(_measure_calibration, threads, dtypes))
            except (MemoryError, NoThreadError):
                return cpu_calibration(threads)
            _measured_calibrations[key] = {True: replace(found, margin=MIN_COMPLEX_GAIN), False: found}
            for callback in _callbacks:
                callback()
        return _measured_calibrations[key][DTYPES[dtype].is_complex]


def _measure_calibration(threads: int, dtypes: tuple[str, ...]) -> Calibration:
    built_in, stream = cpu_calibration(threads), _sum_rate(threads)
    rate, least = _product_rate(np.dtype(dtypes[0]), HALF_RATE_SIDE), 0.0
    with threads_per_product(threads) as (at_a_time, _):
        if at_a_time > 1:  # other programs disturb products on one thread less than products on all threads
            least = MIN_CONCURRENT_LEAF_SIDE
            alone = _product_rate(np.dtype(dtypes[0]), CONCURRENT_HALF_RATE_SIDE)
            rate = replace(alone, flops=max(rate.flops, at_a_time * alone.flops))
        else:
            stream *= SUM_RATE_SHARE[dtypes[0]]
    rates = MappingProxyType({t: replace(rate, half=built_in.rates[t].half) for t in dtypes})
    terms = built_in.small, built_in.launch
    found = Calibration(built_in.name, PROBE_SOURCE, rates, stream, *terms, margin=MIN_PREDICTED_GAIN, least=least)
    return replace(found, parts=built_in.parts)


def _product_rate(dtype: np.dtype[Any], pipe: float) -> ProductRate:
    """Return the asymptotic rate in flop/s from the largest product that MAX_PRODUCT_SECONDS permits.

    The model of a square product is time = flops / rate * (1 + pipe / side), so a product of side `pipe` runs at half
    the asymptotic rate. In the returned ProductRate, each of the sizes m, k and n has a term with a third of `pipe`.
    """
    side, seconds = MIN_TIMED_SIDE, _product_seconds(MIN_TIMED_SIDE, dtype)
    while side < MAX_TIMED_SIDE and seconds * 8 < MAX_PRODUCT_SECONDS:
        side *= 2
        seconds = _product_seconds(side, dtype)
    return ProductRate(2 * side**3 / seconds * (1 + pipe / side), 0.0, pipe / 3, pipe / 3, pipe / 3)


def _product_seconds(side: int, dtype: np.dtype[Any]) -> float:
    a, b, c = (np.ones((side, side), dtype) for _ in range(3))
    matmul(a, b, out=c)
    return min(_elapsed_seconds(lambda: matmul(a, b, out=c)) for _ in range(PRODUCT_TIMINGS))


def _sum_rate(threads: int) -> float:
    """Return the rate of a plan's sums in bytes per second, measured while or after a product runs, as in a plan."""
    plan, a = Plan.parse("winograd > vendor"), np.ones((SUM_OPERAND_SIDE, SUM_OPERAND_SIDE))
    recipe = lower_level(plan, SUM_OPERAND_SIDE, SUM_OPERAND_SIDE, SUM_OPERAND_SIDE)
    assert recipe is not None
    split = recipe.steps[0]
    assert isinstance(split, Sum)
    needed = plan_workspace_bytes(plan, SUM_OPERAND_SIDE, SUM_OPERAND_SIDE, SUM_OPERAND_SIDE, a.itemsize)
    arena = Arena(aligned_block(needed), a.dtype)
    places: dict[str, Array] = {"A": a}
    places |= {place.name: arena.allocate(place.rows, place.cols) for place in split.writes}
    reads, writes = (
        [places[p.name][p.row : p.row + p.rows, p.col : p.col + p.cols] for p in side]
        for side in (split.reads, split.writes)
    )
    left, right, dest = (np.ones(shape) for shape in (CONCURRENT_SHAPE, CONCURRENT_SHAPE[1:] * 2, CONCURRENT_SHAPE))

    def run_product_and_sums(backend: NumpyBackend) -> None:
        backend.multiply("vendor", left, right, dest)
        backend.compute_sums(split, reads, writes)

    measure_step_times(threads, MIN_CONCURRENT_FLOPS, run_product_and_sums)  # the first run touches fresh pages
    seconds = median(
        measure_step_times(threads, MIN_CONCURRENT_FLOPS, run_product_and_sums).sums for _ in range(SUM_TIMINGS)
    )
    return sum(x.nbytes for x in (*reads, *writes)) / seconds


def _elapsed_seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start
