"""Products on many threads at once: `python -m benchmarks threads [--counts 1 8 64] [--sides 700]`.

Each thread multiplies the same matrices into a result of its own. The ratio is the time of all threads at once over the
time of the same products one after the other on one thread. The goal is at most 1.1 for 1 to 64 threads: for fmm's own
choice, for named plans and for NumPy's own product, in float32 and float64. Samples go to
results/<device>/threads.json. Run it on an idle machine.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import (
    Call,
    Clock,
    Row,
    benchmark_parser,
    has_failures,
    machine_of,
    paired_speedup,
    recorded_failure,
    run_cases,
    shuffled_rounds,
)

THREAD_COUNTS, QUICK_COUNTS = (1, 2, 4, 8, 16, 32, 64), (1, 8)
PLANS = ("numpy", "default", "strassen > vendor", "winograd > vendor")  # "numpy": numpy.matmul; "default": fmm's choice
TYPES = ("float64", "float32")
SIDES, QUICK_SIDES = (700, 2000), (700,)
GOAL_RATIO = 1.1
ROUNDS, QUICK_ROUNDS = 7, 3


@dataclass(frozen=True)
class Case:
    """Products of square matrices on a number of threads."""

    threads: int
    plan: str
    dtype: str
    side: int


def multiply_function(plan: str) -> Callable[..., Any]:
    """Return numpy.matmul, fmm.matmul with its own choice, or fmm.matmul with a named plan."""
    if plan == "numpy":
        return np.matmul
    return fmm.matmul if plan == "default" else partial(fmm.matmul, plan=plan)


@contextmanager
def concurrent_call(calls: Sequence[Call]) -> Iterator[Call]:
    """Yield a call that runs each of these calls on its own thread, all at once, and waits for all of them."""
    start, end = (threading.Barrier(len(calls) + 1) for _ in range(2))
    stopped, errors = threading.Event(), list[BaseException]()

    def loop(call: Call) -> None:
        while True:
            start.wait()
            if stopped.is_set():
                return
            try:
                call()
            except BaseException as error:  # raised on the calling thread
                errors.append(error)
            end.wait()

    workers = [threading.Thread(target=loop, args=(call,), daemon=True) for call in calls]
    for worker in workers:
        worker.start()

    def at_once() -> None:
        start.wait()
        end.wait()
        if errors:
            raise errors[0]

    try:
        yield at_once
    finally:
        stopped.set()
        start.wait()
        for worker in workers:
            worker.join()


def run_in_sequence(calls: Sequence[Call]) -> None:
    """Make the calls on this thread."""
    for call in calls:
        call()


def measure_case(case: Case, rounds: int, clock: Clock) -> Row:
    """Check a result, then time all threads at once and the same products one after the other."""
    rng = np.random.default_rng(1)
    a, b = (rng.standard_normal((case.side, case.side)).astype(case.dtype) for _ in range(2))
    results = [np.empty_like(a) for _ in range(case.threads)]
    calls = [partial(multiply_function(case.plan), a, b, out=out) for out in results]
    with concurrent_call(calls) as at_once:
        at_once()
        error = float(max(np.abs(out - a @ b).max() for out in results) / np.abs(a @ b).max())
        if not error < (1e-3 if case.dtype == "float32" else 1e-10):
            raise RuntimeError(f"wrong result: relative error {error:.3g}")
        both: dict[str, Call] = {"one by one": partial(run_in_sequence, calls), "at once": at_once}
        return thread_row(case, shuffled_rounds(both, rounds, clock))


def thread_row(case: Case, samples: dict[str, list[float]]) -> Row:
    """Return the paired ratio of both times, and whether the goal is met."""
    ratio = paired_speedup(samples["at once"], samples["one by one"])
    return {**asdict(case), "ratio": ratio, "within_goal": ratio <= GOAL_RATIO, "samples": samples}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['plan']:20}{row['dtype']:9}{row['side']:6}{row['threads']:4} threads"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    seconds = median(row["samples"]["at once"])
    return f"{head}  {row['ratio']:6.2f} of one after the other ({seconds:.3f} s)" + " above" * (not row["within_goal"])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("threads", __doc__, time_limit=1e9, quick="few cases and rounds")
    parser.add_argument("--counts", type=int, nargs="+", help=f"of threads ({' '.join(map(str, THREAD_COUNTS))})")
    parser.add_argument("--sides", type=int, nargs="+", help=f"of the matrices ({' '.join(map(str, SIDES))})")
    parser.add_argument("--plans", nargs="+", default=PLANS, help="plans, or numpy, or default")
    options = parser.parse_args(arguments)
    counts = options.counts or (QUICK_COUNTS if options.quick else THREAD_COUNTS)
    sides = options.sides or (QUICK_SIDES if options.quick else SIDES)
    cases = [Case(n, plan, dtype, side) for plan, dtype, side, n in product(options.plans, TYPES, sides, counts)]
    machine, rounds = machine_of("cpu"), QUICK_ROUNDS if options.quick else ROUNDS
    measure = recorded_failure(lambda case: measure_case(case, rounds, machine.clock), asdict)
    return has_failures(run_cases(options, machine, "threads.json", cases, measure, text_line))
