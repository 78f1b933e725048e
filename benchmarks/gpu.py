"""Named plans on a GPU: `python -m benchmarks gpu [--quick]` checks them, then times them against cuBLAS.

Plans and vendor go through the same backend, on one stream; the vendor's best is the fastest of cuBLASLt's candidates.
Samples, in milliseconds, go to results/<device>/gpu.json.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from statistics import median
from typing import Any

import cupy

from benchmarks.harness import (
    benchmark_parser,
    failure_text,
    free_gpu_memory,
    has_failures,
    machine_of,
    paired_speedup,
    quick_cases,
    rounds_within,
    run_cases,
    shuffled_rounds,
)
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, compile_launch_lists, record_for_device
from fmm.tuner.devices.cuda import Operands, event_milliseconds

SAMPLED_ROWS = 24  # rows of the product that are compared with a float64 one
LONG = 1 << 43  # multiply-adds from which on only the first few of cuBLASLt's candidates are tried
FINALISTS = 3  # plans, and candidates of cuBLASLt, that are measured in full, after two runs of each
LT = tuple(f"lt{i}" for i in range(8))  # cuBLASLt's candidates for the whole product
TOLERANCE = {"float64": 1e-12, "float32": 1e-4, "tf32": 3e-2}  # relative error of a right result; other types:
LOOSE_TOLERANCE = 2e-1


def one_pass(scheme: str, leaf: str = "vendor") -> str:
    """Return the plan with all levels in one pass, their products as one batch."""
    return f"{scheme}.batched.pad16 > {leaf}"


def two_passes(outer: str, inner: str, leaf: str = "vendor") -> str:
    """Return the plan with an outer level, two of its products at a time, above one pass."""
    return f"{outer}.overlapped.pad16 > {one_pass(inner, leaf)}"


S1, S2, S3 = "strassen", "strassen^2", "strassen^3"
W1, W2 = "winograd", "winograd^2"
ALIGNED = "aligned.pad16 > vendor"


@dataclass(frozen=True)
class Case:
    """A product and the plans that compete on it."""

    dtype: str
    size: tuple[int, int, int]
    plans: tuple[str, ...]
    graph: bool = False  # replayed as a CUDA graph too
    quick: bool = False

    @property
    def name(self) -> str:
        return f"{self.dtype} {' x '.join(map(str, self.size))}"


def cube(n: int) -> tuple[int, int, int]:
    return n, n, n


CASES = (
    Case("float32", cube(8192), (one_pass(S3), two_passes(S1, S3)), quick=True),
    Case("float64", cube(8192), (one_pass(S3), one_pass(W2)), quick=True),
    Case(
        "bfloat16",
        cube(16384),
        tuple(one_pass(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6", "lt7")),
        quick=True,
    ),
    Case(
        "float32",
        cube(1536),
        (one_pass(S1), one_pass(S1, "vendor.outer"), one_pass(W1, "vendor.outer")),
        graph=True,
        quick=True,
    ),
    Case("float32", cube(2048), (one_pass(S2), one_pass(S2, "vendor.outer"), one_pass(S2, "lt0")), graph=True),
    Case("float32", cube(4096), (one_pass(S3), one_pass(S2, "lt1")), graph=True, quick=True),
    Case("bfloat16", cube(8191), (one_pass(S1), ALIGNED), quick=True),
    Case("float32", cube(16384), (two_passes(S1, S3), two_passes(S2, S3))),
    Case("float32", cube(32768), (two_passes(S2, S3),)),
    Case("float64", cube(4096), (one_pass(S2), one_pass(W2)), graph=True),
    Case("float64", cube(16384), (two_passes(S1, W2), two_passes(S2, W2), two_passes(S2, S2), two_passes(S1, S3))),
    Case("float64", cube(24576), (two_passes(S2, S2), two_passes(S2, W2))),
    Case("bfloat16", cube(4096), ("tile",)),
    Case("bfloat16", cube(8192), (one_pass(S1), one_pass(S1, "tile"), "tile")),
    Case("bfloat16", cube(32768), tuple(one_pass(S3, leaf) for leaf in ("vendor", "lt1", "tile"))),
    Case("bfloat16", cube(49152), (one_pass(S3), one_pass(S3, "lt1"), one_pass(S3, "tile"))),
    Case("bfloat16", cube(10007), (one_pass(S1), ALIGNED)),
    Case("float16", cube(8192), (one_pass(S1),)),
    Case("float16", cube(16384), tuple(one_pass(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6"))),
    Case("float16", cube(32768), tuple(one_pass(S3, leaf) for leaf in ("vendor", "lt1", "lt2"))),
    Case("float16", cube(8191), (one_pass(S1), ALIGNED)),
    Case("float16", cube(10007), (one_pass(S1), ALIGNED)),
    Case("tf32", cube(16384), (one_pass(S2, "lt2.inner"), one_pass(W2, "lt2.inner"), one_pass(S2, "tile.inner"))),
    Case("tf32", cube(32768), ("winograd^2.pad16 > vendor", one_pass(S2, "lt0.inner"))),
    Case("float64", cube(8191), (one_pass(S3), one_pass(W2))),
    Case("float64", cube(10007), (one_pass(S3), one_pass(W2))),
    Case("float32", (16384, 4096, 16384), (one_pass(S3),)),
    Case("float32", (8192, 32768, 8192), (one_pass(S3), two_passes(S1, S3))),
    Case("float32", (65536, 4096, 4096), (one_pass(S3),)),
)


@dataclass
class Row:
    """One plan on one case: paired samples in milliseconds, against the vendor's of the same rounds."""

    dtype: str
    size: tuple[int, int, int]
    plan: str
    graph: bool
    workspace: int
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    error: float = float("nan")  # relative, in the Frobenius norm
    vendor_error: float = float("nan")
    largest: float = float("nan")  # largest absolute error
    vendor_largest: float = float("nan")
    failure: str = ""

    def __str__(self) -> str:
        name = f"{self.dtype:9}{' x '.join(map(str, self.size)):22}{self.plan}{' graph' * self.graph}"
        if self.failure:
            return f"{name}  {self.failure[:90]}"
        speed = f"{median(self.candidate):9.3f} ms {paired_speedup(self.vendor, self.candidate):7.3f}"
        return f"{name}  {speed}, error {self.error / self.vendor_error:.2f}, {self.workspace / 2**30:.2f} GiB"


# Measuring


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


def measured(case: Case, rounds: int, seconds: float) -> list[dict[str, Any]]:
    """Return a row for each measured or failed plan of a case."""
    try:
        return [asdict(row) for row in _measured_rows(case, rounds, seconds)]
    except cupy.cuda.memory.OutOfMemoryError as error:
        return [asdict(Row(case.dtype, case.size, "vendor", False, 0, failure=failure_text(error)))]
    finally:
        free_gpu_memory()


def _measured_rows(case: Case, rounds: int, seconds: float) -> list[Row]:
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
    sample_candidates(finalists(ready), rounds, seconds)
    for row in rows:
        row.vendor_error, row.vendor_largest = rows[0].error, rows[0].largest
    return [row for row in rows if row.candidate or row.failure]


def check_result(case: Case, candidate: Candidate, operands: Operands, workspace: Any, row: Row) -> None:
    """Run once on poisoned memory and compare with float64; RuntimeError for a wrong result."""
    workspace.fill(0xFF)
    operands.sets[0][2].view(cupy.uint8).fill(0xFF)
    candidate.run(0)
    row.error, row.largest = operands.errors()
    if not row.error < TOLERANCE.get(case.dtype, LOOSE_TOLERANCE):
        raise RuntimeError(f"wrong result: relative error {row.error:.3g}")


def finalists(ready: list[tuple[Row, Candidate]]) -> list[tuple[Row, Candidate]]:
    """Return the vendor and the fastest few plans and candidates of cuBLASLt, by two runs of each."""
    times = {id(row): candidate.milliseconds(2) for row, candidate in ready}
    ranked = sorted(ready, key=lambda pair: times[id(pair[0])])
    vendors = [pair for pair in ready if pair[0].plan == "vendor"]
    candidates = [pair for pair in ranked if pair[0].plan in LT]
    plans = [pair for pair in ranked if pair[0].plan not in ("vendor", *LT)]
    count = FINALISTS if times[id(vendors[0][0])] < 200 else 1
    return vendors + candidates[:count] + plans[:count]


def sample_candidates(ready: list[tuple[Row, Candidate]], rounds: int, seconds: float) -> None:
    """Time every candidate in shuffled rounds; every row has the vendor's samples too."""
    single = max(ready[0][1].milliseconds(2), 1e-3)
    repeats = max(int(4 / single), 1)
    least = 5 if single < 500 else 3
    count = rounds_within(1000 * seconds, single * repeats * len(ready), least, rounds)
    candidates = {str(i): candidate for i, (_, candidate) in enumerate(ready)}
    samples = shuffled_rounds(candidates, count, Candidate.milliseconds, repeats)
    for i, (row, _) in enumerate(ready):
        row.candidate, row.vendor = samples[str(i)], list(samples["0"])


def launch_lists(case: Case) -> Iterator[LaunchList]:
    """Yield the launch lists of a case's plans."""
    for text in case.plans:
        try:
            yield record_for_device(Plan.parse(text), Problem(*case.size, case.dtype))
        except PlanError:  # becomes a row when the plan is measured
            continue


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a plan failed."""
    parser = benchmark_parser("gpu", __doc__, time_limit=480, quick="fewer cases and rounds")
    add = parser.add_argument
    add("--rounds", type=int, default=11)
    add("--seconds", type=float, default=8, help="of timing a case, roughly")
    add("--only", default="", help="cases whose 'type m x k x n' contains this")
    add("--plans", default="", help="these plans instead, separated by commas")
    options = parser.parse_args(arguments)
    cases = [case for case in quick_cases(CASES, options.quick) if options.only in case.name]
    if options.plans:
        named = tuple(plan.strip() for plan in options.plans.split(","))
        cases = [replace(case, plans=named) for case in cases]
    machine = machine_of("0")
    compile_launch_lists(launches for case in cases for launches in launch_lists(case))
    measure = partial(measured, rounds=5 if options.quick else options.rounds, seconds=options.seconds)
    return has_failures(run_cases(options, machine, "gpu.json", cases, measure, lambda row: str(Row(**row))))
