"""The GPU benchmark: `python -m benchmarks.gpu [--quick]` checks, then times plans against cuBLAS on this device.

On a host with two equal GPUs, half of the cases on each, at the same time:

    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.gpu --part 1/2 --output part1 &
    CUDA_VISIBLE_DEVICES=1 python -m benchmarks.gpu --part 2/2 --output part2 & wait
    python -m benchmarks.gpu --merge part1 part2

Candidate and vendor are interleaved in shuffled rounds and timed with CUDA events, one after the other on one stream;
the speedup is the median of the paired ratios. Both go through the same backend. Raw samples are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import cupy

from benchmarks.gpu_cases import CASES, S1, S2, Case, chosen, merged, one
from benchmarks.gpu_rows import LT, Row, table
from benchmarks.harness import gpu_environment, gpu_folder
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, compile_launch_lists, record_for_device
from fmm.tuner.devices.cuda import Operands, event_milliseconds, random_normal

SAMPLED_ROWS = 24  # rows of the product that are compared with a float64 one
LONG = 1 << 43  # multiply-adds from which only the first few candidates are tried
KEPT = 3  # plans, and candidates of cuBLASLt, that are measured in full, after one run of each


# ---- timing


class Candidate:
    """A launch list that can be run on every set of operands, by plain launches or as graphs."""

    def __init__(self, case: Case, plan: Plan, operands: Operands, graph: bool, workspace: Any) -> None:
        self.backend = DeviceBackend()
        self.launches: LaunchList = record_for_device(plan, Problem(*case.size, case.dtype))
        self.pointers = [(a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr) for a, b, c in operands.sets]
        self.graphs = [self.backend.graph(self.launches, *p) for p in self.pointers] if graph else None

    def run(self, i: int) -> None:
        if self.graphs:
            self.graphs[i % len(self.graphs)].launch()
        else:
            self.backend.run(self.launches, *self.pointers[i % len(self.pointers)])

    def milliseconds(self, repeats: int) -> float:
        return event_milliseconds(self.run, repeats)


def measure(case: Case, rounds: int, seconds: float) -> list[Row]:
    """The best plans of a case in shuffled rounds; each is checked before it is timed."""
    operands = Operands(case.size, case.dtype, SAMPLED_ROWS)
    texts = ["vendor", *(LT if prod(case.size) < LONG else LT[:3]), *case.plans]
    pool = [(Plan.parse(text), graph) for text in texts for graph in ((False, True) if case.graph else (False,))]
    need = max(record_for_device(plan, Problem(*case.size, case.dtype)).workspace for plan, _ in pool)
    workspace = cupy.empty(max(need, 1), cupy.uint8)
    rows, ready = [], []
    for plan, graph in pool:
        row = Row(case.dtype, case.size, str(plan), graph, 0)
        try:
            candidate = Candidate(case, plan, operands, graph, workspace)
            row.workspace = candidate.launches.workspace
            check(case, candidate, operands, workspace, row)
            ready.append((row, candidate))
        except (PlanError, RuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            row.failure = f"{type(error).__name__}: {error}"
        if not (row.failure and str(plan) in LT):  # cuBLASLt may have fewer candidates
            rows.append(row)
    if rows[0].failure:
        return rows
    ready = best(ready)
    sample(ready, rounds, seconds)
    for row in rows:
        row.vendor_error, row.vendor_largest = rows[0].error, rows[0].largest
    return [row for row in rows if row.candidate or row.failure]


def best(ready: list[tuple[Row, Candidate]]) -> list[tuple[Row, Candidate]]:
    """The vendor, and the fastest few plans and candidates of cuBLASLt, by two runs of each."""
    times = {id(row): candidate.milliseconds(2) for row, candidate in ready}
    ranked = sorted(ready, key=lambda pair: times[id(pair[0])])
    vendors = [pair for pair in ready if pair[0].plan == "vendor"]
    candidates = [pair for pair in ranked if pair[0].plan in LT]
    plans = [pair for pair in ranked if pair[0].plan not in ("vendor", *LT)]
    kept = KEPT if times[id(vendors[0][0])] < 200 else 1
    return vendors + candidates[:kept] + plans[:kept]


def sample(ready: list[tuple[Row, Candidate]], rounds: int, seconds: float) -> None:
    """Shuffled rounds: one sample of every row in each."""
    single = max(ready[0][1].milliseconds(2), 1e-3)
    repeats = max(int(4 / single), 1)
    rounds = max(min(rounds, int(1000 * seconds / (single * repeats * len(ready)))), 5 if single < 500 else 3)
    for _ in range(rounds):
        samples = {}
        for row, candidate in random.sample(ready, len(ready)):
            samples[id(row)] = candidate.milliseconds(repeats)
        for row, _ in ready:
            row.candidate.append(samples[id(row)])
            row.vendor.append(samples[id(ready[0][0])])


def check(case: Case, candidate: Candidate, operands: Operands, workspace: Any, row: Row) -> None:
    """Run once on poisoned memory and compare with float64; a wrong plan is not timed."""
    workspace.fill(0xFF)
    operands.sets[0][2].view(cupy.uint8).fill(0xFF)
    candidate.run(0)
    row.error, row.largest = operands.errors()
    limit = {"float64": 1e-12, "float32": 1e-4, "tf32": 3e-2}.get(case.dtype, 2e-1)
    if not row.error < limit:
        raise RuntimeError(f"wrong result: relative error {row.error:.3g}")


def overhead() -> dict[str, float]:
    """Microseconds of host time from the call to the last launch, of plans on small matrices."""
    found = {}
    for plan in ("vendor", one(S1), one(S2), "strassen.pad16 > " + one(S1)):
        a = random_normal((512, 512), "float32")
        out, backend = cupy.empty_like(a), DeviceBackend()
        launches = record_for_device(Plan.parse(plan), Problem(512, 512, 512, "float32"))
        workspace = cupy.empty(max(launches.workspace, 1), cupy.uint8)
        samples = []
        for _ in range(60):
            cupy.cuda.get_current_stream().synchronize()
            start = time.perf_counter()
            backend.run(launches, a.data.ptr, a.data.ptr, out.data.ptr, workspace.data.ptr)
            samples.append(1e6 * (time.perf_counter() - start))
        found[plan] = median(samples)
    return found


# ---- the command


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--time-limit", type=float, default=480, help="seconds after which no case is started")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=8, help="of timing per case, about")
    parser.add_argument("--only", default="", help="cases whose 'type m x k x n' contains this")
    parser.add_argument("--plans", default="", help="these plans instead, separated by commas")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th case, from the I-th on")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FOLDER", help="join what parts wrote, measure nothing"
    )
    options = parser.parse_args(arguments)
    if options.merge:
        parts = [json.loads((folder / "gpu.json").read_text(encoding="utf-8")) for folder in options.merge]
        content = merged(parts)
        keep(options, content)
    else:
        content = measured(chosen(CASES, options), options, partial(keep, options))
    rows = [Row(**row) for row in content["rows"]]
    print("\n".join(table(rows)))
    microseconds = content["environment"]["overhead_microseconds"]
    print("host microseconds per call:", {k: round(v, 1) for k, v in microseconds.items()})
    if content["skipped"]:
        print("no time for:", ", ".join(content["skipped"]))
    return int(any(row.failure for row in rows))


def keep(options: argparse.Namespace, content: dict[str, Any]) -> None:
    folder = options.output or gpu_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def measured(
    cases: Sequence[Case], options: argparse.Namespace, write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Every case, as long as there is time, and kept at once; kernels are compiled together, before."""
    began = time.perf_counter()
    content: dict[str, Any] = {"environment": gpu_environment(), "skipped": [], "rows": []}
    compile_launch_lists(launches for case in cases for launches in launch_lists(case))
    print(f"kernels: {time.perf_counter() - began:.1f} s", flush=True)
    content["environment"]["overhead_microseconds"] = overhead()
    for case in cases:
        start = time.perf_counter()
        if start - began > options.time_limit:
            content["skipped"].append(case.name)
            continue
        content["rows"] += map(asdict, attempt(case, 5 if options.quick else options.rounds, options.seconds))
        content["environment"]["seconds"] = round(time.perf_counter() - began, 1)
        write(content)
        print(f"{case.name}: {time.perf_counter() - start:.1f} s", flush=True)
    write(content)
    return content


def attempt(case: Case, rounds: int, seconds: float) -> list[Row]:
    """Its rows, or one that says that there is not enough memory; the next case finds the device empty."""
    try:
        return measure(case, rounds, seconds)
    except cupy.cuda.memory.OutOfMemoryError as error:
        return [Row(case.dtype, case.size, "vendor", False, 0, failure=str(error))]
    finally:
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()


def launch_lists(case: Case) -> Iterator[LaunchList]:
    for text in case.plans:
        try:
            yield record_for_device(Plan.parse(text), Problem(*case.size, case.dtype))
        except PlanError:  # becomes a row when it is measured
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
