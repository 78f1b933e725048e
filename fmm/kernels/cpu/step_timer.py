"""What a plan's time goes to: its sums and its products, each timed while the other runs as it does in every plan.

This is the one timer of sums, the tuner's and the probe's. Sums by themselves would say little: where two products run
at a time, a sum has one thread, a product runs on the other, and what is in the caches is what that leaves there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.parallel_products import CONCURRENT_PRODUCTS, ConcurrentBackend, backend_for
from fmm.kernels.cpu.worker_threads import run_on_worker
from fmm.kernels.plans.steps.sums import Sum


@dataclass
class StepTimes:
    """Seconds of the whole processor: what one of two threads does takes half of it. Sums: all that is no product."""

    sums: float = 0.0
    products: float = 0.0


def time_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    """Run steps of a product of so many flops on `count` threads, as fmm.matmul would, and say what they took."""
    return run_on_worker(partial(_times_of_steps, count, flops, steps))


def _times_of_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    found = StepTimes()
    with backend_for(count, flops) as usual:
        steps(usual if isinstance(usual, ConcurrentBackend) else _Timed(usual.threads, found))
    if isinstance(usual, ConcurrentBackend):
        seconds = usual.flow.seconds
        return StepTimes(seconds[False] / CONCURRENT_PRODUCTS, seconds[True] / CONCURRENT_PRODUCTS)
    return found


@dataclass(frozen=True)
class _Timed(NumpyBackend):
    """One step at a time, each on all threads."""

    spent: StepTimes = field(default_factory=StepTimes)

    def first(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        start = time.perf_counter()
        check()
        self.spent.sums += time.perf_counter() - start

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        start = time.perf_counter()
        super().multiply(leaf, left, right, dest)
        self.spent.products += time.perf_counter() - start

    def sum(self, step: Sum, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        start = time.perf_counter()
        super().sum(step, list(reads), list(writes))
        self.spent.sums += time.perf_counter() - start
