"""Two products at a time against one: `python -m benchmarks.lanes` times a plan both ways, and its parts, beside NumPy.

Writes results/<device>/lanes.json: raw seconds of shuffled rounds, and the flops and bytes that each part takes.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import numpy as np

from fmm.config.certify import median_interval, paired_ratios
from fmm.kernels.cpu import side_by_side
from fmm.kernels.cpu.arena import Arena, Array, aligned_block
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.threads.helper_threads import call_apart
from fmm.kernels.cpu.threads.thread_pool import Threads, blas_threads
from fmm.kernels.plans.level_steps import Asked, Mirror, Sum
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import leaf_flops, workspace
from fmm.perfmodel.cost import cost
from fmm.tuner.commands.measure import write_result
from fmm.tuner.trials.environment import device_folder, environment, typed_command

RESULTS = Path(__file__).parents[1] / "results"
CASES = (((4096,) * 3, "float64"), ((4096,) * 3, "float32"), ((5000, 7000, 6000), "float64"))
PLAN = Plan.parse("winograd > vendor")
ROUNDS = 9


@dataclass(frozen=True)
class Part:
    """A backend's products or sums alone."""

    whole: NumpyBackend
    products: bool
    sums: bool

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        if self.products:
            self.whole.multiply(leaf, left, right, dest)

    def multiply_half(self, leaf: str, left: Array, right: Array, dest: Array, asked: Asked) -> None:
        if self.products:
            self.whole.multiply_half(leaf, left, right, dest, asked)

    def mirror(self, step: Mirror, source: Array, dest: Array) -> None:
        if self.sums:
            self.whole.mirror(step, source, dest)

    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None:
        if self.products:
            self.whole.multiply_batch(leaf, lefts, rights, dests)

    def sum(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        if self.sums:
            self.whole.sum(step, reads, writes)


def main() -> int:
    rows = [row(size, dtype) for size, dtype in CASES]
    path = RESULTS / device_folder() / "lanes.json"
    write_result(path, {"environment": environment(typed_command()), "rows": rows})
    for found in rows:
        print(found["size"], found["dtype"], *(f"{k} {v}" for k, v in found["medians"].items()), sep="\n  ")
    return 0


def row(size: tuple[int, int, int], dtype: str) -> dict[str, Any]:
    m, k, n = size
    rng = np.random.default_rng([*size])
    kind = np.dtype(dtype).type
    a, b, c = rng.standard_normal((m, k), kind), rng.standard_normal((k, n), kind), np.empty((m, n), kind)
    memory = aligned_block(workspace(PLAN, m, k, n, a.itemsize))

    def one(products: bool, sums: bool) -> None:
        backend = Part(NumpyBackend(Threads(blas_threads())), products, sums)
        execute_plan(PLAN, a, b, c, backend, Arena(memory, a.dtype))

    def two(products: bool, sums: bool) -> None:
        call_apart(partial(two_at_a_time, products, sums))

    def two_at_a_time(products: bool, sums: bool) -> None:
        with side_by_side.backend_for(blas_threads(), 2 * m * k * n) as backend:
            execute_plan(PLAN, a, b, c, Part(backend, products, sums), Arena(memory, a.dtype))

    calls: dict[str, Callable[[], object]] = {"numpy": partial(np.matmul, a, b, out=c)}
    for way in (one, two):
        for part, what in (("", (True, True)), (": products", (True, False)), (": sums", (False, True))):
            calls[f"{way.__name__} at a time{part}"] = partial(way, *what)
    seconds = timed(calls)
    counts = cost(PLAN, m, k, n, a.itemsize)
    return {
        "size": size,
        "dtype": dtype,
        "plan": str(PLAN),
        "flops": {"numpy": 2 * m * k * n, "products": leaf_flops(PLAN, m, k, n)},
        "bytes": counts.bytes_read + counts.bytes_written,
        "medians": {name: compared(seconds["numpy"], found) for name, found in seconds.items()},
        "seconds": seconds,
    }


def timed(calls: dict[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Seconds of each call in shuffled rounds, the first of which does not count."""
    shuffled, names, seconds = random.Random(0), list(calls), {name: list[float]() for name in calls}
    for number in range(ROUNDS + 1):
        shuffled.shuffle(names)
        for name in names:
            start = perf_counter()
            calls[name]()
            if number:
                seconds[name].append(perf_counter() - start)
    return seconds


def compared(vendor: list[float], found: list[float]) -> dict[str, float]:
    low, high = median_interval(paired_ratios(tuple(vendor), tuple(found)))
    return {
        "seconds": median(found),
        "numpy over this": median(paired_ratios(tuple(vendor), tuple(found))),
        "low": low,
    } | {"high": high}


if __name__ == "__main__":
    sys.exit(main())
