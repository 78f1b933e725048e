"""Dask's arrays on two local workers: `python -m benchmarks dask_arrays [--sides 16384]`.

`x @ y` of plain Dask and `fmm.dask.matmul(x, y)` run in turn, on workers with one thread each. Operands and results
stay on the workers. Chunks are a quarter of the side. Samples go to results/<device>/dask.json.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

import fmm.dask
from benchmarks.harness import Row, benchmark_parser, machine_of, paired_speedup, run_cases, shuffled_rounds

CHUNKS_PER_SIDE = 4  # chunks along a side


def measure_case(side: int, dtype: str, rounds: int, until: float) -> Row:
    """Measure one side; no round begins after `until` (time.monotonic), but the first one always does."""
    rng = da.random.default_rng(1)
    chunk = side // CHUNKS_PER_SIDE
    x, y = (rng.standard_normal((side, side), chunks=chunk).astype(dtype).persist() for _ in range(2))
    wait([x, y])
    products = {"dask": lambda: x @ y, "fmm": lambda: fmm.dask.matmul(x, y)}
    corner: dict[str, Any] = {}

    def product_seconds(name: str, repeats: int) -> float:
        began = time.perf_counter()
        product = products[name]().persist()
        wait(product)
        taken = time.perf_counter() - began
        corner[name] = product[:64, :64].compute()
        return taken

    names = {name: name for name in products}
    seconds = shuffled_rounds(names, rounds, product_seconds, seconds=until - time.monotonic())
    difference = np.linalg.norm(corner["fmm"] - corner["dask"]) / np.linalg.norm(corner["dask"])
    tasks = Counter(task[0].__name__ for task in dict(products["fmm"]().dask).values() if isinstance(task, tuple))
    row = {"side": side, "dtype": dtype, "chunk": chunk, "tasks": dict(tasks)}
    return {**row, "seconds": seconds, "apart": float(difference)}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    times = ", ".join(f"{name} {[round(x, 2) for x in samples]} s" for name, samples in row["seconds"].items())
    gain = paired_speedup(row["seconds"]["dask"], row["seconds"]["fmm"])
    what = f"{row['dtype']} {row['side']}, {row['tasks']}"
    return f"{what}: {times}; plain Dask's over fmm's {gain:.3f}; difference {row['apart']:.1e}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("dask_arrays", __doc__, time_limit=1e9)
    add = parser.add_argument
    add("--sides", default="16384", help="separated by commas")
    add("--dtype", default="float64")
    add("--rounds", type=int, default=3)
    add("--workers", type=int, default=2)
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.time_limit
    measure = partial(measure_case, dtype=options.dtype, rounds=options.rounds, until=until)
    with (
        LocalCluster(options.workers, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        measure_case(CHUNKS_PER_SIDE * 64, options.dtype, 1, until)  # the workers load their modules
        sides = map(int, options.sides.split(","))
        run_cases(options, machine_of("cpu"), "dask.json", sides, measure, text_line, key="runs")
    return 0
