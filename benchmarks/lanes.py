"""Two products at a time against one: `python -m benchmarks.lanes` times a plan both ways, and its parts, beside NumPy.

Writes results/<device>/lanes.json: raw seconds of shuffled rounds, and the flops and bytes that each part takes. Of
three real products for a complex one: `--plan "3m > vendor" --dtype complex128 --side 2048`. Sums are compiled where
llvmlite is installed. Each call comes right after a small product of NumPy's, as in a program that multiplies: BLAS's
other threads then spin for a while on processors that a plan would use.
"""

from __future__ import annotations

import argparse
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
from fmm.kernels.cpu.compiled_sums import compiler_found
from fmm.kernels.cpu.host_arrays import Arena, Array, aligned_block
from fmm.kernels.cpu.thread_pool import Threads, blas_threads
from fmm.kernels.cpu.worker_threads import run_on_worker

from benchmarks.harness import write_result
from fmm.config.certify import median_interval, paired_ratios
from fmm.kernels.cpu import parallel_products
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import Asked
from fmm.kernels.plans.steps.sums import Mirror, Sum
from fmm.kernels.plans.workspace import leaf_flops, workspace
from fmm.perfmodel.cost import cost
from fmm.tuner.trials.environment import device_folder, environment, typed_command

RESULTS = Path(__file__).parents[1] / "results"
CASES = (((4096,) * 3, "float64"), ((4096,) * 3, "float32"), ((5000, 7000, 6000), "float64"))
PLAN = "winograd > vendor"
ROUNDS = 9
SMALL = np.ones((256, 256))


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


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--plan", type=Plan.parse, default=Plan.parse(PLAN))
    parser.add_argument("--side", type=int, action="append", help="of squares, instead of the usual cases")
    parser.add_argument("--dtype", default="float64", help="of these")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--output", type=Path, help="a file (results/<device>/lanes.json unless given)")
    options = parser.parse_args(arguments)
    cases = [((side,) * 3, options.dtype) for side in options.side or ()] or CASES
    rows = [row(options.plan, size, dtype, options.rounds) for size, dtype in cases]
    path = options.output or RESULTS / device_folder() / "lanes.json"
    where = environment(typed_command()) | {"sums": "compiled" if compiler_found() else "numpy"}
    write_result(path, {"environment": where, "rows": rows})
    for found in rows:
        print(found["size"], found["dtype"], *(f"{k} {v}" for k, v in found["medians"].items()), sep="\n  ")
    return 0


def row(plan: Plan, size: tuple[int, ...], dtype: str, rounds: int) -> dict[str, Any]:
    m, k, n = size
    rng, real = np.random.default_rng([*size]), np.dtype(dtype).type(0).real.dtype
    parts = np.dtype(dtype).itemsize // real.itemsize
    a, b = (rng.standard_normal((i, parts * j), real).view(dtype) for i, j in ((m, k), (k, n)))
    c = np.empty((m, n), dtype)
    memory = aligned_block(workspace(plan, m, k, n, a.itemsize))

    def one(products: bool, sums: bool) -> None:
        backend = Part(NumpyBackend(Threads(blas_threads())), products, sums)
        execute_plan(plan, a, b, c, backend, Arena(memory, a.dtype))

    def two(products: bool, sums: bool) -> None:
        run_on_worker(partial(two_at_a_time, products, sums))

    def two_at_a_time(products: bool, sums: bool) -> None:
        with parallel_products.backend_for(blas_threads(), 2 * m * k * n) as backend:
            execute_plan(plan, a, b, c, Part(backend, products, sums), Arena(memory, a.dtype))

    calls: dict[str, Callable[[], object]] = {"numpy": partial(np.matmul, a, b, out=c)}
    for way in (one, two):
        for part, what in (("", (True, True)), (": products", (True, False)), (": sums", (False, True))):
            calls[f"{way.__name__} at a time{part}"] = partial(way, *what)
    seconds = timed(calls, rounds)
    counts = cost(plan, m, k, n, a.itemsize)
    return {
        "size": size,
        "dtype": dtype,
        "plan": str(plan),
        "flops": {"numpy": 2 * m * k * n, "products": leaf_flops(plan, m, k, n)},
        "bytes": counts.bytes_read + counts.bytes_written,
        "medians": {name: compared(seconds["numpy"], found) for name, found in seconds.items()},
        "seconds": seconds,
    }


def timed(calls: dict[str, Callable[[], object]], rounds: int) -> dict[str, list[float]]:
    """Seconds of each call in shuffled rounds, the first of which does not count."""
    shuffled, names, seconds = random.Random(0), list(calls), {name: list[float]() for name in calls}
    for number in range(rounds + 1):
        shuffled.shuffle(names)
        for name in names:
            np.matmul(SMALL, SMALL)
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
    sys.exit(main(sys.argv[1:]))
