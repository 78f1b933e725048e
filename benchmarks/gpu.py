"""Named plans on a GPU: `python -m benchmarks gpu [--quick]` checks them, then times them against cuBLAS.

On a host with two equal GPUs, half of the cases on each, at the same time:

    CUDA_VISIBLE_DEVICES=0 python -m benchmarks gpu --part 1/2 --output part1 &
    CUDA_VISIBLE_DEVICES=1 python -m benchmarks gpu --part 2/2 --output part2 & wait
    python -m benchmarks gpu --merge part1 part2

Plans and vendor go through the same backend, on one stream. Samples go to results/<device>/gpu.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import cupy

from benchmarks.gpu_cases import CASES, LT, S1, S2, Case, Row, chosen_cases, merged_runs, one_pass, table_lines
from benchmarks.harness import (
    benchmark_parser,
    failure_text,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    rounds_within,
    shuffled_rounds,
    write_result,
)
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, compile_launch_lists, record_for_device
from fmm.tuner.devices.cuda import Operands, event_milliseconds, random_normal

SAMPLED_ROWS = 24  # rows of the product that are compared with a float64 one
LONG = 1 << 43  # multiply-adds from which on only the first few of cuBLASLt's candidates are tried
MEASURED = 3  # plans, and candidates of cuBLASLt, that are measured in full, after two runs of each


# ---- timing


class Candidate:
    """A launch list on every set of operands, by plain launches or as CUDA graphs."""

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


def measured_case(case: Case, rounds: int, seconds: float) -> list[Row]:
    """Check all plans of a case, then time the best ones in shuffled rounds."""
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
            check_result(case, candidate, operands, workspace, row)
            ready.append((row, candidate))
        except (PlanError, RuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            row.failure = failure_text(error)
        if not (row.failure and str(plan) in LT):  # cuBLASLt may have fewer candidates
            rows.append(row)
    if rows[0].failure:
        return rows
    ready = best_candidates(ready)
    sample_candidates(ready, rounds, seconds)
    for row in rows:
        row.vendor_error, row.vendor_largest = rows[0].error, rows[0].largest
    return [row for row in rows if row.candidate or row.failure]


def best_candidates(ready: list[tuple[Row, Candidate]]) -> list[tuple[Row, Candidate]]:
    """Return the vendor and the fastest few plans and candidates of cuBLASLt, by two runs of each."""
    times = {id(row): candidate.milliseconds(2) for row, candidate in ready}
    ranked = sorted(ready, key=lambda pair: times[id(pair[0])])
    vendors = [pair for pair in ready if pair[0].plan == "vendor"]
    candidates = [pair for pair in ranked if pair[0].plan in LT]
    plans = [pair for pair in ranked if pair[0].plan not in ("vendor", *LT)]
    count = MEASURED if times[id(vendors[0][0])] < 200 else 1
    return vendors + candidates[:count] + plans[:count]


def sample_candidates(ready: list[tuple[Row, Candidate]], rounds: int, seconds: float) -> None:
    """Time every candidate in shuffled rounds; the vendor's samples stand in every row."""
    single = max(ready[0][1].milliseconds(2), 1e-3)
    repeats = max(int(4 / single), 1)
    least = 5 if single < 500 else 3
    count = rounds_within(1000 * seconds, single * repeats * len(ready), least, rounds)
    candidates = {str(i): candidate for i, (_, candidate) in enumerate(ready)}
    samples = shuffled_rounds(candidates, count, Candidate.milliseconds, repeats)
    for i, (row, _) in enumerate(ready):
        row.candidate, row.vendor = samples[str(i)], list(samples["0"])


def check_result(case: Case, candidate: Candidate, operands: Operands, workspace: Any, row: Row) -> None:
    """Run once on poisoned memory and compare with float64; RuntimeError for a wrong result."""
    workspace.fill(0xFF)
    operands.sets[0][2].view(cupy.uint8).fill(0xFF)
    candidate.run(0)
    row.error, row.largest = operands.errors()
    limit = {"float64": 1e-12, "float32": 1e-4, "tf32": 3e-2}.get(case.dtype, 2e-1)
    if not row.error < limit:
        raise RuntimeError(f"wrong result: relative error {row.error:.3g}")


def host_microseconds() -> dict[str, float]:
    """Return the host's microseconds from the call to the last launch, for plans on small matrices."""
    found = {}
    for plan in ("vendor", one_pass(S1), one_pass(S2), "strassen.pad16 > " + one_pass(S1)):
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


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a plan failed."""
    parser = benchmark_parser("gpu", __doc__, time_limit=480)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer cases and rounds")
    add("--rounds", type=int, default=11)
    add("--seconds", type=float, default=8, help="of timing a case, about")
    add("--only", default="", help="cases whose 'type m x k x n' contains this")
    add("--plans", default="", help="these plans instead, separated by commas")
    add("--part", default="1/1", metavar="I/N", help="every N-th case, from the I-th on")
    add("--merge", type=Path, nargs="+", metavar="FOLDER", help="join the results of parts, measure nothing")
    options = parser.parse_args(arguments)
    path = (options.output or gpu_folder()) / "gpu.json"
    if options.merge:
        parts = [json.loads((folder / "gpu.json").read_text(encoding="utf-8")) for folder in options.merge]
        content = merged_runs(parts)
        write_content(path, content)
    else:
        content = measured_cases(chosen_cases(CASES, options), options, path)
    rows = [Row(**row) for row in content["rows"]]
    print("\n".join(table_lines(rows)))
    microseconds = content["environment"]["overhead_microseconds"]
    print("host microseconds per call:", {k: round(v, 1) for k, v in microseconds.items()})
    if content["skipped"]:
        print("no time for:", ", ".join(content["skipped"]))
    return int(any(row.failure for row in rows))


def write_content(path: Path, content: dict[str, Any]) -> None:
    write_result(path, content["environment"], content["rows"], skipped=content["skipped"])


def measured_cases(cases: Sequence[Case], options: argparse.Namespace, path: Path) -> dict[str, Any]:
    """Compile all kernels together, then measure case by case within the time limit; write after each case."""
    began = time.perf_counter()
    content: dict[str, Any] = {"environment": gpu_environment(), "skipped": [], "rows": []}
    compile_launch_lists(launches for case in cases for launches in launch_lists(case))
    print(f"kernels: {time.perf_counter() - began:.1f} s", flush=True)
    content["environment"]["overhead_microseconds"] = host_microseconds()
    for case in cases:
        start = time.perf_counter()
        if start - began > options.time_limit:
            content["skipped"].append(case.name)
            continue
        try:
            rows = measured_case(case, 5 if options.quick else options.rounds, options.seconds)
        except cupy.cuda.memory.OutOfMemoryError as error:
            rows = [Row(case.dtype, case.size, "vendor", False, 0, failure=str(error))]
        free_gpu_memory()
        content["rows"] += map(asdict, rows)
        content["environment"]["seconds"] = round(time.perf_counter() - began, 1)
        write_content(path, content)
        print(f"{case.name}: {time.perf_counter() - start:.1f} s", flush=True)
    write_content(path, content)
    return content


def launch_lists(case: Case) -> Iterator[LaunchList]:
    """Yield the launch lists of a case's plans."""
    for text in case.plans:
        try:
            yield record_for_device(Plan.parse(text), Problem(*case.size, case.dtype))
        except PlanError:  # becomes a row when the plan is measured
            continue


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
