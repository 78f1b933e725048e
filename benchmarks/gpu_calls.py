"""Default calls of fmm.matmul on a GPU: `python -m benchmarks gpu_calls [--large | --layouts]`.

The config in force chooses (the shipped one, unless the device was tuned). Data are random normal, results go into
`out`, and the baseline is the library's own product. `float32-ieee` and `float64-ieee` are these types with
FMM_EMULATION=0. --large: operands and result fill a third of the device's memory or more, alone and while other memory
takes two thirds of the rest. --layouts: operands are row-major (N) or column-major (T), as `a @ b.T` has them. Errors
are in the Frobenius norm of sampled rows against float64, as multiples of the library's. Samples, in seconds, go to
results/<device>/calls.json, large.json or layouts.json.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks.harness import (
    benchmark_parser,
    failure_text,
    gpu_seconds,
    has_failures,
    machine_of,
    paired_speedup,
    run_cases,
)
from benchmarks.held_out import FLOAT32_IEEE, Size
from benchmarks.matrices import OWN_ARITHMETIC, relative_error
from benchmarks.timed_machines import Gpu
from fmm.runtime.decisions.limits import FREE_MEMORY_SECONDS, WORKSPACE_SHARE
from fmm.tuner.devices.compile_ahead import compile_jobs_of_calls, run_compile_workers

SAMPLE_SECONDS = 5e-3  # seconds of a sample: shorter calls are repeated
WARM_UP_CALLS = 8  # calls before short products are timed: by then a recurring one is a graph
WARM_UP_SECONDS = 0.1  # least seconds of a warm-up: a library's first products are slow for more than eight calls
LONG_CALL_SECONDS = 2.0  # seconds of a product from which on its first call is a sample
HELD_MEMORY_SHARE = 2 / 3  # share of the free memory that others hold
FIRST_LOOK_COMPILE_SECONDS = 40.0  # longest wait for compilers before the first case, in seconds


@dataclass(frozen=True)
class Case:
    """A product in types whose operands hold the same numbers, timed while other allocations hold shares of
    the memory."""

    dtypes: tuple[str, ...]
    size: Size
    taken: tuple[float, ...] = (0.0,)
    rounds: int = 7
    layouts: str = "NN"  # layouts of A and B; N: row-major, T: column-major


def cube_case(dtype: str, side: int, rounds: int = 7) -> Case:
    return Case((dtype,), (side, side, side), rounds=rounds)


CASES = (
    *(cube_case("float32", n) for n in (2048, 4096, 8192, 16384)),
    Case(("float32",), (4096, 14336, 4096)),
    *(cube_case(FLOAT32_IEEE, n) for n in (1537, 3000, 4096, 8192, 16384)),
    Case((FLOAT32_IEEE,), (16384, 1024, 16384)),
    *(cube_case(dtype, n) for dtype in ("float64", f"float64{OWN_ARITHMETIC}") for n in (4096, 8191, 8192, 16384)),
    Case((f"float64{OWN_ARITHMETIC}",), (30000, 3000, 3000)),
    *(cube_case("bfloat16", n) for n in (4096, 8191, 8192, 16384, 32768)),
    *(cube_case("tf32", n) for n in (8192, 16384)),
)
LARGE_CASES = (
    Case((FLOAT32_IEEE, "float32"), (65536,) * 3, (0.0, HELD_MEMORY_SHARE), 2),
    Case((f"float64{OWN_ARITHMETIC}", "float64"), (49152,) * 3, (0.0, HELD_MEMORY_SHARE), 2),
)
LAYOUT_SIZES = (1537,) * 3, (3000,) * 3, (4096,) * 3, (3333, 1111, 4001), (1024, 4096, 4096)
LAYOUT_CASES = tuple(
    Case((dtype,), size, rounds=5, layouts=layouts)
    for dtype in ("float32", FLOAT32_IEEE, "float64", f"float64{OWN_ARITHMETIC}", "bfloat16")
    for size in LAYOUT_SIZES
    for layouts in ("NN", "NT", "TN", "TT")
)


@dataclass
class Row:
    """A product in one type under one share of taken memory: paired samples in seconds, and the error."""

    dtype: str
    size: Size
    taken: float
    layouts: str = "NN"
    plan: str = ""
    step: str = ""
    workspace: int = 0
    seconds: list[float] = field(default_factory=list)
    vendor_seconds: list[float] = field(default_factory=list)
    error: float = float("nan")  # as a multiple of the library's error
    failure: str = ""

    def __str__(self) -> str:
        what = f"{self.dtype:12} {' x '.join(map(str, self.size)):22} {self.layouts} {self.taken:4.0%} taken"
        if self.failure or not self.seconds:
            return f"{what}  {self.failure[:120] or 'not measure_case'}"
        speedup = paired_speedup(self.vendor_seconds, self.seconds)
        times = f"{1e3 * median(self.seconds):10.3f} of {1e3 * median(self.vendor_seconds):10.3f} ms {speedup:6.3f}"
        return f"{what} {times}  {self.error:5.2f} {self.workspace / 2**30:6.2f} GiB  {self.plan} ({self.step})"


# Memory that is taken


@contextmanager
def hold_memory(share: float) -> Iterator[None]:
    """Hold this share of the free memory; before and after, wait until fmm reads the free memory again."""
    if not share:
        yield
        return
    cupy.get_default_memory_pool().free_all_blocks()
    block = cupy.cuda.runtime.malloc(int(share * cupy.cuda.runtime.memGetInfo()[0]))
    try:
        time.sleep(1.1 * FREE_MEMORY_SECONDS)
        yield
    finally:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.cuda.runtime.free(block)
        time.sleep(1.1 * FREE_MEMORY_SECONDS)


# Measuring


def in_layout(x: Any, layout: str) -> Any:
    """Return the same numbers row-major (N) or column-major (T)."""
    if layout == "N":
        return x
    return x.T.contiguous().T if hasattr(x, "contiguous") else x.T.copy().T


def measure_case(case: Case) -> list[Row]:
    """Return a row for each type and share of memory; a failed row has the reason."""
    machine = Gpu()
    rows = [Row(dtype, case.size, taken, case.layouts) for taken in case.taken for dtype in case.dtypes]
    try:
        with machine.as_type(case.dtypes[0]):
            a, b, vendor = machine.operands(case.size, case.dtypes[0])
            a, b = (in_layout(x, layout) for x, layout in zip((a, b), case.layouts, strict=True))
            results: list[Any] = []
            first = gpu_seconds(lambda: results.append(vendor(a, b)), 1)
            c = results.pop()
            if first < LONG_CALL_SECONDS:  # the time of the very first product includes loading the library
                first = gpu_seconds(lambda: vendor(a, b), 1)
            base = relative_error(a, b, c)
        for row in rows:
            prepare_row(machine, row, (a, b, c), base)
        sample_rows(machine, case, rows, (a, b, c), vendor, first)
    except Exception as failure:  # the next case is measured
        for row in rows:
            row.failure = row.failure or failure_text(failure)
    finally:
        a = b = c = None
        machine.free_memory()
    return rows


def prepare_row(machine: Gpu, row: Row, arrays: Sequence[Any], base: float) -> None:
    """Record the choice and its error; this compiles the kernels."""
    a, b, c = arrays
    try:
        with machine.as_type(row.dtype), hold_memory(row.taken):
            decision = fmm.explain(a, b, c)
            row.plan, row.step, row.workspace = str(decision.plan), decision.source, decision.workspace
            c[...] = float("nan")
            fmm.matmul(a, b, out=c)
            row.error = relative_error(a, b, c) / base
    except (MemoryError, RuntimeError, ValueError) as failure:
        row.failure = failure_text(failure)


def warm_seconds(call: Callable[[], object]) -> float:
    """Warm a call up; return its seconds."""
    until = time.monotonic() + WARM_UP_SECONDS
    gpu_seconds(call, WARM_UP_CALLS)
    while time.monotonic() < until:
        gpu_seconds(call, WARM_UP_CALLS)
    return gpu_seconds(call, WARM_UP_CALLS)


def sample_rows(
    machine: Gpu, case: Case, rows: Sequence[Row], arrays: Sequence[Any], vendor: Callable[..., object], first: float
) -> None:
    """Time the library's product and every row's call in shuffled rounds.

    If the library's product takes seconds, its first call, which compiles nothing, is one of its samples.
    """
    a, b, c = arrays
    theirs, ours = partial(vendor, a, b, out=c), partial(fmm.matmul, a, b, out=c)
    right = [row for row in rows if not row.failure]
    if first < SAMPLE_SECONDS:
        with machine.as_type(case.dtypes[0]):
            first = warm_seconds(theirs)
        for row in right:
            with machine.as_type(row.dtype):
                warm_seconds(ours)
    repeats, earlier = max(round(SAMPLE_SECONDS / first), 1), [first] if first > LONG_CALL_SECONDS else []
    takes = dict.fromkeys(row.taken for row in right)
    sample = first
    for _ in range(case.rounds):
        for taken in random.sample([None, *takes], 1 + len(takes)):
            if taken is None:
                with machine.as_type(case.dtypes[0]):
                    sample = earlier.pop() if earlier else gpu_seconds(theirs, repeats)
                continue
            with hold_memory(taken):
                for row in (r for r in right if r.taken == taken):
                    with machine.as_type(row.dtype):
                        row.seconds.append(gpu_seconds(ours, repeats))
        for row in right:
            row.vendor_seconds.append(sample)


def compile_cases(cases: Sequence[Case]) -> None:
    """Compile the kernels of all cases, on all processors."""
    wanted = []
    total = cupy.cuda.runtime.memGetInfo()[1]
    for case in cases:
        for dtype in case.dtypes:
            m, k, n = case.size
            free_bytes = total - (m * k + k * n + m * n) * np.dtype(np.float32).itemsize
            for taken in case.taken:
                limit = int(WORKSPACE_SHARE * (1 - taken) * max(free_bytes, 0))
                with Gpu().as_type(dtype):
                    found = fmm.plan(*case.size, dtype=dtype.removesuffix(OWN_ARITHMETIC), device=0, workspace=limit)
                wanted.append((dtype.removesuffix(OWN_ARITHMETIC), found.plan, case.size))
    with run_compile_workers(0, list(compile_jobs_of_calls(wanted))) as ahead:
        ahead.wait_for_all(FIRST_LOOK_COMPILE_SECONDS)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a row failed."""
    parser = benchmark_parser("gpu_calls", __doc__, time_limit=300)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--large", action="store_true", help="the largest products, with and without others' memory")
    which.add_argument("--layouts", action="store_true", help="row-major and column-major operands")
    parser.add_argument("--dtype", action="append", help="only cases of this type (may be repeated)")
    parser.add_argument("--rounds", type=int, help="of each case (7; of the largest products 2)")
    options = parser.parse_args(arguments)
    name, every = (
        ("large", LARGE_CASES) if options.large else ("layouts", LAYOUT_CASES) if options.layouts else ("calls", CASES)
    )
    types = set(options.dtype or chain.from_iterable(case.dtypes for case in every))
    known = [replace(case, dtypes=tuple(t for t in case.dtypes if t in types)) for case in every]
    cases = [replace(case, rounds=options.rounds or case.rounds) for case in known if case.dtypes]
    compile_cases(cases)

    def measure(case: Case) -> list[dict[str, Any]]:
        return [asdict(row) for row in measure_case(case)]

    rows = run_cases(options, machine_of("0"), f"{name}.json", cases, measure, lambda row: str(Row(**row)))
    return has_failures(rows)
