"""Cost of recomputing after an overflow, in float32: `python -m benchmarks guard [--rounds 15] [SIDE ...]`.

First inf and NaN are compared with CuPy's. Then, in shuffled rounds on random data: cuBLAS; the recomputing launches
without and with a raised flag; each plan without and with its guard against inf and NaN. A line shows the median and
the quartiles in microseconds, and cuBLAS's time over the median. Samples go to results/<device>/guard.json.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from statistics import quantiles

import cupy
import numpy as np

from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    gpu_seconds,
    machine_of,
    paired_speedup,
    repeats_of,
    run_cases,
    shuffled_rounds,
)
from fmm.kernels.cuda.launch_list import LaunchList, StreamSync
from fmm.kernels.cuda.recompute.flags import stream_flag
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

FUSED = "strassen.fused.pad4 > tile"
PLANS = (FUSED, f"strassen.pad4 > {FUSED}", "strassen.batched.pad16 > vendor")
SIDES = (512, 1536, 2560, 3072, 4096, 8192)
RAISED = 1  # value of a raised flag
SAMPLE, MOST_REPEATS = 2e-3, 100  # seconds of a sample, and the most calls in it
AHEAD = 1e-4  # seconds: longer than the host time of any of these calls


def only_recomputing(launches: LaunchList) -> LaunchList:
    """Return the part of a launch list that follows the plan's own launches."""
    steps = tuple(step for step in launches.steps if not isinstance(step, StreamSync) and step.does == "recompute")
    return replace(launches, steps=steps, streams=(0,) * len(steps))


class Case:
    """Square operands, and the calls that multiply them."""

    def __init__(self, side: int) -> None:
        self.problem = Problem(side, side, side, "float32")
        rng = cupy.random.default_rng(side)
        self.a, self.b = (rng.standard_normal((side, side), np.float32) for _ in range(2))
        self.c = cupy.empty((side, side), np.float32)
        self.flag = stream_flag(0, cupy.cuda.get_current_stream().ptr)
        self.backend = DeviceBackend()

    @property
    def pointers(self) -> tuple[int, int, int]:
        return self.a.data.ptr, self.b.data.ptr, self.c.data.ptr

    def plan_call(self, text: str, guarded: bool) -> Call:
        """Return the launches of a plan, with its guard or without."""
        launches = record_for_device(Plan.parse(text), self.problem, flagged=guarded)
        workspace = cupy.empty(max(launches.workspace, 1), cupy.uint8)
        flag = (self.flag.address, self.flag.count_address) if guarded else (0, 0)
        return lambda: self.backend.run(launches, *self.pointers, workspace.data.ptr, None, *flag)

    def rescue_call(self, raised: bool) -> Call:
        """Return the recomputing launches alone, with a raised flag or without."""
        launches = only_recomputing(record_for_device(Plan.parse(FUSED), self.problem, flagged=True))
        flag = self.flag.address, self.flag.count_address

        def call() -> None:
            if raised:
                cupy.cuda.runtime.memsetAsync(self.flag.address, RAISED, 4, self.flag.stream)
            self.backend.run(launches, *self.pointers, 0, None, *flag)

        return call

    def calls(self) -> dict[str, Call]:
        """Return all calls by name; cuBLAS twice, for the noise floor."""
        vendor = partial(cupy.matmul, self.a, self.b, out=self.c)
        calls: dict[str, Call] = {"cuBLAS": vendor, "cuBLAS again": vendor}
        calls |= {"rescue, idle": self.rescue_call(False), "rescue": self.rescue_call(True)}
        for text in PLANS:
            calls |= {text: self.plan_call(text, False), f"{text}, guarded": self.plan_call(text, True)}
        return calls


def is_right(case: Case) -> bool:
    """Return True if every guarded plan has inf and NaN where CuPy has them."""
    before = case.a[3, 5].copy()
    case.a[3, 5], right = cupy.inf, True
    expected = case.a @ case.b
    for text in PLANS:
        case.plan_call(text, True)()
        same = cupy.array_equal(cupy.isfinite(case.c), cupy.isfinite(expected))
        same &= cupy.array_equal(cupy.isnan(case.c), cupy.isnan(expected))
        right &= bool(same)
    case.a[3, 5] = before
    return right


def measured(side: int, rounds: int) -> Row:
    """Check, then time, all calls on square operands."""
    case = Case(side)
    calls = case.calls()
    for call in calls.values():
        call()
    repeats = {name: repeats_of(gpu_seconds(call, 3), SAMPLE, MOST_REPEATS) for name, call in calls.items()}

    def device_seconds(call: Call, count: int) -> float:
        return gpu_seconds(call, count, AHEAD * count)

    return {"side": side, "right": is_right(case), "seconds": shuffled_rounds(calls, rounds, device_seconds, repeats)}


def text_lines(row: Row) -> str:
    """Return what a terminal shows for a side: a line for each call."""
    vendor = row["seconds"]["cuBLAS"]
    lines = [f"{row['side']}: inf and NaN {'as CuPy has them' if row['right'] else 'WRONG'}"]
    for name, samples in row["seconds"].items():
        low, middle, high = (1e6 * x for x in quantiles(samples, n=4))
        ratio = paired_speedup(vendor, samples)
        lines.append(f"{row['side']:>6}  {name:<58} {middle:9.1f} [{low:9.1f}, {high:9.1f}] us  {ratio:.3f}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a result is wrong."""
    parser = benchmark_parser("guard", __doc__)
    parser.add_argument("sides", nargs="*", type=int, default=list(SIDES))
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args(arguments)
    measure = partial(measured, rounds=options.rounds)
    rows = run_cases(options, machine_of("0"), "guard.json", options.sides, measure, text_lines)
    return int(not all(row["right"] for row in rows))
