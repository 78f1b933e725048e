"""Exact integer products: `python -m benchmarks integers [--device cpu|0] [--quick]`.

fmm.matmul and the library's product (numpy.matmul; on a GPU cupy.matmul) run in turn, on random numbers of the whole
range of their type or of fewer bits. Some cases run named plans, to measure a level below the residues. Every result is
compared with the library's. NumPy's loops and CuPy's kernel take the same time for each row of C, so the library
computes only `rows` rows of large products. Samples go to results/<device>/integers.json.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    has_failures,
    machine_of,
    quick_cases,
    recorded_failure,
    run_cases,
)

VENDOR_WORK = {"numpy": 1e8, "cupy": 1e12}  # most multiply-adds of a library's product
FMM_SECONDS, MIN_ROUNDS, MAX_ROUNDS = 2.0, 3, 25  # time and rounds of fmm's calls
SHORT_VENDOR_SECONDS = 0.01  # seconds of the library's product below which it is timed in every round


@dataclass(frozen=True)
class Case:
    """A square product; `target` is the wanted speedup."""

    dtype: str
    side: int
    bits: int = 0  # bits of the magnitudes; 0: the whole range of the type
    target: float = 1.0
    quick: bool = False
    plan: str = ""  # empty: fmm's own choice


RESIDUES, RESIDUES_STRASSEN = "residues > bytes", "residues > strassen > bytes"
CPU_CASES = (
    Case("int64", 128, quick=True),
    *(Case("int64", n) for n in (256, 512, 2048)),
    Case("int64", 1024, target=20.0, quick=True),
    Case("int64", 2048, bits=20, target=60.0, quick=True),
    Case("int64", 4096, target=40.0, quick=True),
    Case("int64", 1024, bits=40),
    *(Case(dtype, n) for dtype, sides in (("int32", (1024, 2048)), ("int8", (1024, 2048))) for n in sides),
    *(Case(dtype, 1024) for dtype in ("int16", "uint64", "bool")),
)
CUDA_CASES = (
    *(Case("int64", n, quick=True) for n in (2048, 4096)),
    Case("int64", 8192, target=20.0, quick=True),
    Case("int64", 8192, bits=20),
    Case("int32", 4096),
    *(Case(dtype, 8192, quick=True) for dtype in ("int32", "int16", "int8")),
    Case("int32", 8192, quick=True, plan=RESIDUES),
    Case("int16", 8192, quick=True, plan=RESIDUES_STRASSEN),
    *(Case("int32", 16384, quick=True, plan=plan) for plan in (RESIDUES, RESIDUES_STRASSEN)),
)


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


def measure_case(library: Any, seconds: Callable[[Call], float], case: Case) -> Row:
    """Return the plan, the samples in seconds, and whether the result equals the library's."""
    a, b = (random_matrix(library, case, seed) for seed in (1, 2))
    rows = int(min(max(VENDOR_WORK[library.__name__] / case.side**2, 4), case.side))
    decision = fmm.explain(a, b, plan=case.plan or None)
    own, vendor = partial(fmm.matmul, a, b, plan=case.plan or None), partial(library.matmul, a[:rows], b)
    for _ in range(2):
        found = own()  # compiles, and touches new pages of memory
    samples: dict[str, list[float]] = {"candidate": [], "vendor": []}
    begin = time.perf_counter()
    count = 0
    while count < MAX_ROUNDS and (count < MIN_ROUNDS or time.perf_counter() - begin < FMM_SECONDS):
        samples["candidate"].append(seconds(own))
        if count < MIN_ROUNDS or samples["vendor"][-1] < SHORT_VENDOR_SECONDS:
            samples["vendor"].append(seconds(vendor))
        count += 1
    equal = bool((found[:rows] == vendor()).all())
    plan = {"plan": str(decision.plan), "runs": list(decision.kernels), "workspace": decision.workspace}
    failure = "" if equal else "the result is not equal to the library's"
    return {**asdict(case), **plan, "rows": rows, **samples, "equal": equal, "failure": failure}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    what = f"{row['dtype']} {row['side']}, {row['bits'] or 'all'} bits"
    if row["failure"]:
        return f"{what:28} {row['failure']}"
    own = median(row["candidate"])
    speedup = median(row["vendor"]) * row["side"] / row["rows"] / own
    return f"{what:28} {own * 1e3:10.3f} ms  {speedup:8.2f} times (target {row['target']:g})  {row['plan']}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed or a result is not equal."""
    parser = benchmark_parser("integers", __doc__, device="cpu", quick="fewer cases")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    library: Any = np
    if machine.on_gpu:
        import cupy

        library = cupy
    wait: Call = library.cuda.get_current_stream().synchronize if machine.on_gpu else lambda: None

    def seconds(call: Call) -> float:
        wait()
        began = time.perf_counter()
        call()
        wait()
        return time.perf_counter() - began

    cases = quick_cases(CUDA_CASES if machine.on_gpu else CPU_CASES, options.quick)
    measure = recorded_failure(partial(measure_case, library, seconds), asdict)
    return has_failures(run_cases(options, machine, "integers.json", cases, measure, text_line))
