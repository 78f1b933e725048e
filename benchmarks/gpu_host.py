"""The host's time of a call on a GPU: `python -m benchmarks gpu_host [--tables host small] [--rounds 11]`.

host: microseconds from Python to the last launch, of a plan with one level, while the device is busy: launched kernel
by kernel, replayed as a CUDA graph, and as a graph that gets other operands at each call. small: small products one
after the other, by fmm and by the library. Both are for CuPy and torch. Samples go to results/<device>/host.json,
or to host-<table>.json where only one table is measured.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import cycle
from statistics import median, quantiles
from typing import Any, NamedTuple
from unittest.mock import patch

import cupy
import torch

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    cupy_tf32,
    gpu_seconds,
    keep_gpu_busy,
    machine_of,
    paired_speedup,
    run_cases,
    shuffled_rounds,
)
from benchmarks.matrices import library_product, random_matrix
from fmm.arrays.cupy_library import CUPY
from fmm.arrays.torch_library import TORCH
from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE
from fmm.kernels.plans.plan import Plan
from fmm.runtime import prepare, run_device
from fmm.runtime.decisions.decide import Decision

ONE_LEVEL = "strassen.batched.pad16 > vendor"
BUSY_SECONDS = 2e-3  # time for which a spinning kernel keeps the device behind the host
CALLS_PER_ROUND = 12  # calls of the table host in one round
QUEUED_CALLS = 60  # small products of a sample, one after the other
NEVER_CAPTURED = (
    1 << 60
)  # number of calls before a graph is captured: more calls than any run makes, so that no graph is captured


class Case(NamedTuple):
    """One row of a table: a library, a type and the side of square matrices; `way`: how the plan is launched."""

    table: str
    library: str
    n: int
    dtype: str = "float32"
    way: str = ""


CASES = {
    "host": [
        Case("host", library, n, way=way)
        for library in ("cupy", "torch")
        for n in (2048, 4096)
        for way in ("launches", "replay", "moved", "vendor")
    ],
    "small": [
        Case("small", library, n, dtype)
        for library in ("cupy", "torch")
        for dtype in ("float16", "bfloat16", "float32", "tf32", "float64")
        for n in (1, 16, 127, 128, 256, 512, 1024)
        if (library, dtype) != ("cupy", "bfloat16")
    ],
}


def operands(case: Case, first_seed: int = 1) -> tuple[Any, Any]:
    """Return two random n x n matrices."""
    shape = (case.n, case.n)
    a, b = (random_matrix(case.library, shape, case.dtype, seed=first_seed + i) for i in range(2))
    return a, b


@contextmanager
def fixed_decision(plan: str) -> Iterator[None]:
    """Let every call without a plan of its own run this plan."""

    def decide(problem: Any, limits: Any, device: Any) -> Decision:
        return Decision(Plan.parse(plan), problem, "for the benchmark")

    for library in (CUPY, TORCH):
        library.cached_calls.clear()
    with patch.object(prepare, "decide_plan", decide):
        yield
    for library in (CUPY, TORCH):
        library.cached_calls.clear()


@contextmanager
def graphs_allowed(allowed: bool) -> Iterator[None]:
    """Replay recurring calls as CUDA graphs, or never."""
    run_device.GRAPH_CACHE.clear()
    run_device.GRAPH_CACHE.calls_before_capture = CALLS_BEFORE_CAPTURE if allowed else NEVER_CAPTURED
    try:
        yield
    finally:
        run_device.GRAPH_CACHE.clear()


@contextmanager
def tf32_in_both_libraries(enabled: bool) -> Iterator[None]:
    """Let CuPy and torch multiply float32 in TF32 while the block runs."""
    torch.backends.cuda.matmul.fp32_precision = "tf32" if enabled else "ieee"
    try:
        with cupy_tf32(enabled):
            yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"


def measure_host(case: Case, rounds: int) -> Row:
    """Return the host's microseconds of every call of a plan with one level, or of the library's product."""
    a, b = operands(case)
    calls: dict[str, Call] = {name: partial(fmm.matmul, a, b) for name in ("launches", "replay")}
    calls["vendor"] = partial(library_product(case.library), a, b)
    pairs = cycle([operands(case, first_seed=2 * i + 1) for i in range(5)])
    calls["moved"] = lambda: fmm.matmul(*next(pairs))
    with fixed_decision(ONE_LEVEL), graphs_allowed(case.way in ("replay", "moved")):
        samples = launch_microseconds(calls[case.way], CALLS_PER_ROUND, rounds)
    return {"table": "host", "library": case.library, "n": case.n, "way": case.way, "microseconds": samples}


def launch_microseconds(call: Call, count: int, rounds: int) -> list[float]:
    """Return the host's microseconds of each call, while a spinning kernel keeps the device behind the host."""
    found = []
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        call()
    for _ in range(rounds):
        cupy.cuda.Device().synchronize()
        keep_gpu_busy(BUSY_SECONDS)
        for _ in range(count):
            began = time.perf_counter_ns()
            call()
            found.append((time.perf_counter_ns() - began) / 1000)
    cupy.cuda.Device().synchronize()
    return found


def measure_small(case: Case, rounds: int) -> Row:
    """Return the microseconds of small products by fmm and by the library, in shuffled rounds."""
    a, b = operands(case)
    calls = {"vendor": partial(library_product(case.library), a, b), "fmm": partial(fmm.matmul, a, b)}
    with tf32_in_both_libraries(case.dtype == "tf32"):
        for call in calls.values():
            gpu_microseconds(call, 2 * CALLS_BEFORE_CAPTURE)
        samples = shuffled_rounds(calls, rounds, gpu_microseconds, QUEUED_CALLS)
    return {"table": "small", "library": case.library, "dtype": case.dtype, "n": case.n, **samples}


def gpu_microseconds(call: Call, repeats: int) -> float:
    """Return the microseconds of one of `repeats` calls, one after the other."""
    return 1e6 * gpu_seconds(call, repeats)


MEASURE_BY_TABLE: dict[str, Callable[[Case, int], Row]] = {"host": measure_host, "small": measure_small}


def spread_text(samples: Sequence[float]) -> str:
    """Return the median with the first and the last decile."""
    low, *_, high = quantiles(samples, n=10)
    return f"{median(samples):7.1f} us ({low:.1f} to {high:.1f})"


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    name = f"{row['library']:6}{row.get('dtype', ''):9}{row['n']:6}"
    if row["table"] == "host":
        return f"{name}  {row['way']:9} {spread_text(row['microseconds'])}"
    vendor, own = row["vendor"], row["fmm"]
    return f"{name} {paired_speedup(vendor, own):6.3f}  vendor {spread_text(vendor)}, fmm {spread_text(own)}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_host", __doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tables", nargs="+", choices=CASES, default=list(CASES), help="these tables alone")
    options = parser.parse_args(arguments)
    random.seed(1)
    file = "host.json" if options.tables == list(CASES) else f"{'-'.join(['host', *options.tables])}.json"
    cases = [case for name in options.tables for case in CASES[name]]

    def measure(case: Case) -> Row:
        return MEASURE_BY_TABLE[case.table](case, options.rounds)

    run_cases(options, machine_of("0"), file, cases, measure, text_line, torch=torch.__version__)
    return 0
