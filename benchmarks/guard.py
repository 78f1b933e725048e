"""What the rescue costs: `python -m benchmarks.guard [--rounds 15] [--out FILE] [SIDE ...]`, in float32.

First inf and NaN are compared with CuPy's. Then, interleaved in shuffled rounds on random data: cuBLAS; a rescue that
has nothing to do; one that computes the product again; each plan without and with what it does about inf and NaN. A row
is the median and the quartiles in microseconds, and the median of the paired ratios of cuBLAS's time to it.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import cupy
import numpy as np

from benchmarks.harness import gpu_seconds
from fmm.kernels.cuda.launch_list import LaunchList, StreamSync
from fmm.kernels.cuda.recompute.flags import stream_flag
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

FUSED = "strassen.fused.pad4 > tile"
PLANS = (FUSED, f"strassen.pad4 > {FUSED}", "strassen.batched.pad16 > vendor")
SIDES = (512, 1536, 2560, 3072, 4096, 8192)
UP = 1  # a flag that is up
SHORTEST, MOST = 2e-3, 100  # seconds of one sample at least, but no more calls than that
HOST = 1e-4  # seconds: more than what any of these calls takes the host, which starts so much ahead


def only_recomputing(launches: LaunchList) -> LaunchList:
    """The part of a list that follows the plan's own launches."""
    steps = tuple(x for x in launches.steps if not isinstance(x, StreamSync) and x.does == "recompute")
    return replace(launches, steps=steps, streams=(0,) * len(steps))


class Case:
    """Square operands, and the ways to multiply them."""

    def __init__(self, side: int) -> None:
        self.problem = Problem(side, side, side, "float32")
        rng = cupy.random.default_rng(side)
        self.a, self.b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
        self.c = cupy.empty((side, side), np.float32)
        self.place = stream_flag(0, cupy.cuda.get_current_stream().ptr)
        self.backend = DeviceBackend()
        self.workspace: Any = cupy.empty(1, cupy.uint8)

    @property
    def bases(self) -> tuple[int, int, int]:
        return self.a.data.ptr, self.b.data.ptr, self.c.data.ptr

    def plan(self, text: str, guarded: bool) -> Callable[[], None]:
        launches = record_for_device(Plan.parse(text), self.problem, flagged=guarded)
        workspace = cupy.empty(max(launches.workspace, 1), cupy.uint8)
        told = (self.place.address, self.place.count_address) if guarded else (0, 0)
        return lambda: self.backend.run(launches, *self.bases, workspace.data.ptr, None, *told)

    def rescue(self, up: bool) -> Callable[[], None]:
        launches = only_recomputing(record_for_device(Plan.parse(FUSED), self.problem, flagged=True))
        told = self.place.address, self.place.count_address

        def call() -> None:
            if up:
                cupy.cuda.runtime.memsetAsync(self.place.address, UP, 4, self.place.stream)
            self.backend.run(launches, *self.bases, 0, None, *told)

        return call

    def calls(self) -> dict[str, Callable[[], None]]:
        vendor = partial(cupy.matmul, self.a, self.b, out=self.c)
        found: dict[str, Callable[[], None]] = {"cuBLAS": vendor, "cuBLAS again": vendor}
        found |= {"rescue, idle": self.rescue(False), "rescue": self.rescue(True)}
        for text in PLANS:
            found |= {text: self.plan(text, False), f"{text}, guarded": self.plan(text, True)}
        return found


def right(case: Case) -> bool:
    """Does every guarded plan have inf and NaN where CuPy has them?"""
    kept = case.a[3, 5].copy()
    case.a[3, 5], good = cupy.inf, True
    expected = case.a @ case.b
    for text in PLANS:
        case.plan(text, True)()
        same = cupy.array_equal(cupy.isfinite(case.c), cupy.isfinite(expected))
        same &= cupy.array_equal(cupy.isnan(case.c), cupy.isnan(expected))
        good &= bool(same)
    case.a[3, 5] = kept
    return good


def measured(case: Case, rounds: int) -> dict[str, list[float]]:
    calls = case.calls()
    for call in calls.values():
        call()
    repeats = {name: min(max(1, round(SHORTEST / gpu_seconds(call, 3))), MOST) for name, call in calls.items()}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(gpu_seconds(calls[name], repeats[name], HOST * repeats[name]))
    return samples


def row(side: int, name: str, samples: list[float], vendor: list[float]) -> str:
    low, middle, high = (1e6 * x for x in quantiles(samples, n=4))
    ratio = median(v / s for v, s in zip(vendor, samples, strict=True))
    return f"{side:>6}  {name:<58} {middle:9.1f} [{low:9.1f}, {high:9.1f}] us  {ratio:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs="*", type=int, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where the samples go, as JSON")
    options = parser.parse_args()
    found, rows = {}, []
    for side in options.sides:
        case = Case(side)
        print(f"{side}: inf and NaN {'as CuPy has them' if right(case) else 'WRONG'}", flush=True)
        found[side] = samples = measured(case, options.rounds)
        rows += [row(side, name, times, samples["cuBLAS"]) for name, times in samples.items()]
    print("\n".join(rows))
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
