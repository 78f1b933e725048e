"""Dask's arrays on two local workers: `python -m benchmarks.dask_arrays --sides 16384 --out FILE`.

`x @ y` of plain Dask beside `fmm.dask.matmul(x, y)`, in turns, on workers with one thread each; operands and results
stay on the workers. Chunks are a quarter of the side.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client, LocalCluster, wait

import fmm.dask
from fmm.tuner.trials.environment import environment

GRID = 4  # chunks along a side


def seconds_of(product: Any) -> tuple[float, Any]:
    began = time.perf_counter()
    found = product.persist()
    wait(found)
    return time.perf_counter() - began, found


def measured(side: int, dtype: str, rounds: int, until: float) -> dict[str, Any]:
    rng = da.random.default_rng(1)
    chunk = side // GRID
    x, y = (rng.standard_normal((side, side), chunks=chunk).astype(dtype).persist() for _ in range(2))
    wait([x, y])
    ways = {"dask": lambda: x @ y, "fmm": lambda: fmm.dask.matmul(x, y)}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    corner = {}
    for turn in range(rounds):
        for name in list(ways) if turn % 2 == 0 else list(ways)[::-1]:
            if turn and time.monotonic() > until:
                break
            taken, found = seconds_of(ways[name]())
            seconds[name].append(taken)
            corner[name] = found[:64, :64].compute()
            del found
    apart = np.linalg.norm(corner["fmm"] - corner["dask"]) / np.linalg.norm(corner["dask"])
    tasks = Counter(task[0].__name__ for task in dict(ways["fmm"]().dask).values() if isinstance(task, tuple))
    row = {"side": side, "dtype": dtype, "chunk": chunk, "tasks": dict(tasks)}
    return {**row, "seconds": seconds, "apart": float(apart)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sides", default="16384")
    parser.add_argument("--dtype", default="float64")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which nothing more is begun")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args(arguments)
    until, runs = time.monotonic() + given.time_limit, list[dict[str, Any]]()
    with (
        LocalCluster(given.workers, threads_per_worker=1, memory_limit=0, dashboard_address=None) as cluster,
        Client(cluster),
    ):
        measured(GRID * 64, given.dtype, 1, until)  # the workers load what they need
        for side in map(int, given.sides.split(",")):
            if runs and time.monotonic() > until:
                break
            runs.append(measured(side, given.dtype, given.rounds, until))
            told = {"runs": runs, "environment": environment(["python -m benchmarks.dask_arrays", *sys.argv[1:]])}
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
            times = runs[-1]["seconds"]
            gain = median(theirs / ours for theirs, ours in zip(times["dask"], times["fmm"], strict=False))
            shown = ", ".join(f"{name} {[round(t, 2) for t in taken]}" for name, taken in times.items())
            paired = [round(theirs / ours, 3) for theirs, ours in zip(times["dask"], times["fmm"], strict=False)]
            print(f"{given.dtype} {side}, {runs[-1]['tasks']}: {shown}; plain Dask's over fmm's {paired}, {gain:.3f};")
            print(f"  apart by {runs[-1]['apart']:.1e}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
