"""Exact integer products: `python -m benchmarks integers [--device cpu|0] [--quick]`.

Whole calls of fmm.matmul and of the library's product (numpy.matmul; on a GPU cupy.matmul) in turn, on random numbers
of the whole range of their type or of fewer bits; some by named plans, to see the gain of a level below the residues.
Every result is compared with the library's. NumPy's loops, like CuPy's kernel, take the same time for each row, so of
large products the library computes some rows alone: its time is scaled (`rows` says how many). Samples, in seconds, go
to results/<device>/integers.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import (
    RESULTS,
    Call,
    Row,
    benchmark_parser,
    failure_text,
    gpu_environment,
    gpu_folder,
    measure_cases,
)
from fmm.tuner.trials.environment import device_folder, environment_record, typed_command

VENDOR_WORK = {"cpu": 1e8, "cuda": 1e12}  # most multiply-adds of a library's product
SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 2.0, 3, 25  # of fmm's calls
SHORT = 0.01  # seconds of the library's product below which it is timed in every round


@dataclass(frozen=True)
class Case:
    """A square product; `target` is the speedup hoped for."""

    dtype: str
    side: int
    bits: int = 0  # of the magnitudes; 0: the whole range of the type
    target: float = 1.0
    quick: bool = False
    plan: str = ""  # empty: fmm's own choice


PLAIN, FAST = "residues > bytes", "residues > strassen > bytes"
CPU_CASES = (
    Case("int64", 128, target=1.0, quick=True),
    Case("int64", 256),
    Case("int64", 512),
    Case("int64", 1024, target=20.0, quick=True),
    Case("int64", 2048, bits=20, target=60.0, quick=True),
    Case("int64", 2048),
    Case("int64", 4096, target=40.0, quick=True),
    Case("int64", 1024, bits=40),
    Case("int32", 1024),
    Case("int32", 2048),
    Case("int16", 1024),
    Case("int8", 1024),
    Case("int8", 2048),
    Case("uint64", 1024),
    Case("bool", 1024),
)
CUDA_CASES = (
    Case("int64", 2048, quick=True),
    Case("int64", 4096, quick=True),
    Case("int64", 8192, target=20.0, quick=True),
    Case("int64", 8192, bits=20),
    Case("int32", 4096),
    Case("int32", 8192, quick=True),
    Case("int16", 8192, quick=True),
    Case("int8", 8192, quick=True),
    Case("int32", 8192, quick=True, plan=PLAIN),
    Case("int16", 8192, quick=True, plan=FAST),
    Case("int32", 16384, quick=True, plan=PLAIN),
    Case("int32", 16384, quick=True, plan=FAST),
)


@dataclass
class Result:
    """Samples of one case, in seconds; the library's are of `rows` rows of the product."""

    dtype: str
    side: int
    bits: int
    target: float
    plan: str = ""
    runs: list[str] = field(default_factory=list)
    workspace: int = 0
    rows: int = 1
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    equal: bool = False
    failure: str = ""


@dataclass(frozen=True)
class Machine:
    """A library, a wait for the end of its device's work, and the cases of its device."""

    library: Any
    synchronize: Call
    vendor_work: float
    cases: Sequence[Case]

    def seconds(self, call: Call) -> float:
        start = time.perf_counter()
        call()
        self.synchronize()
        return time.perf_counter() - start


def machine_of(device: str) -> Machine:
    """Return NumPy on the host, or CuPy on the GPU of this number."""
    if device == "cpu":
        return Machine(np, lambda: None, VENDOR_WORK["cpu"], CPU_CASES)
    import cupy

    cupy.cuda.Device(int(device)).use()
    return Machine(cupy, cupy.cuda.get_current_stream().synchronize, VENDOR_WORK["cuda"], CUDA_CASES)


def random_matrix(library: Any, case: Case, seed: int) -> Any:
    """Return a square matrix of the case's numbers, on the host or on the device."""
    rng = np.random.default_rng(seed)
    if case.dtype == "bool":
        return library.asarray(rng.random((case.side, case.side)) < 0.1)
    limits = np.iinfo(case.dtype)
    low, high = int(limits.min), int(limits.max)
    if case.bits:
        low, high = -(1 << case.bits) + 1, (1 << case.bits) - 1
    return library.asarray(rng.integers(low, high, (case.side,) * 2, dtype=case.dtype, endpoint=True))


def measured(machine: Machine, case: Case) -> Row:
    """Measure a case; one that fails is a row that says why."""
    result = Result(case.dtype, case.side, case.bits, case.target)
    try:
        sample_case(machine, case, result)
    except Exception as error:  # whatever may go wrong: the next case is measured
        result.failure = failure_text(error)
    return asdict(result)


def sample_case(machine: Machine, case: Case, result: Result) -> None:
    """Record the plan, the samples, and whether the result equals the library's."""
    a, b = random_matrix(machine.library, case, 1), random_matrix(machine.library, case, 2)
    result.rows = rows = int(min(max(machine.vendor_work / case.side**2, 4), case.side))
    plan = case.plan or None
    decision = fmm.explain(a, b, plan=plan)
    result.plan, result.runs, result.workspace = str(decision.plan), list(decision.kernels), decision.workspace
    own = partial(fmm.matmul, a, b, plan=plan)
    for _ in range(2):
        found = own()  # compiles, and touches fresh pages
    machine.synchronize()
    begin, samples = time.perf_counter(), result.candidate
    while len(samples) < MOST_ROUNDS and (len(samples) < LEAST_ROUNDS or time.perf_counter() - begin < SECONDS):
        samples.append(machine.seconds(own))
        if len(result.vendor) < LEAST_ROUNDS or result.vendor[-1] < SHORT:
            result.vendor.append(machine.seconds(lambda: machine.library.matmul(a[:rows], b)))
    result.equal = bool((found[:rows] == machine.library.matmul(a[:rows], b)).all())


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    bits = f"{row['bits']} bits" if row["bits"] else "whole range"
    what = f"{row['dtype']} {row['side']}, {bits}"
    if row["failure"]:
        return f"{what:28} FAILED {row['failure']}"
    verdict, own = "equal" if row["equal"] else "NOT EQUAL", median(row["candidate"])
    speedup = median(row["vendor"]) * row["side"] / row["rows"] / own
    return f"{what:28} {own * 1e3:10.3f} ms  {speedup:8.2f} times (target {row['target']:g})  {verdict}  {row['plan']}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed or a result is not equal."""
    parser = benchmark_parser("integers", __doc__)
    parser.add_argument("--device", default="cpu", help="cpu, or the number of a CUDA device")
    parser.add_argument("--quick", action="store_true", help="fewer cases")
    options = parser.parse_args(arguments)
    machine, on_cpu = machine_of(options.device), options.device == "cpu"
    folder = options.output or (RESULTS / device_folder() if on_cpu else gpu_folder())
    rows = measure_cases(
        [case for case in machine.cases if case.quick or not options.quick],
        lambda case: measured(machine, case),
        folder / "integers.json",
        text_line,
        (lambda: environment_record(typed_command())) if on_cpu else gpu_environment,
    )
    return int(any(row["failure"] or not row["equal"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
