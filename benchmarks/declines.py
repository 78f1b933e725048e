"""Cost of declined calls: `python -m benchmarks declines [--device cpu|0] [--quick]`.

A call is declined if fmm hands it to the library. The extra time is the time of fmm's call minus that of the library's
own, by the host's clock, in shuffled rounds; the budget is 2 us. The table has every public function, library and size,
and the libraries' own functions with fmm installed. A call that runs a plan declines nothing: its row names the plan,
and the budget does not apply. Samples go to results/<device>/declines.json. Run it on an idle machine.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from importlib.util import find_spec
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
    host_seconds,
    machine_of,
    recorded_failure,
    repeats_of,
    run_cases,
    shuffled_rounds,
)
from fmm.kernels.plans.plan import VENDOR

BUDGET_MICROSECONDS = 2.0  # microseconds of extra time
MICROSECOND_DIGITS = 2  # decimals of a microsecond in the results
MAX_CALLS, SAMPLE_SECONDS = 300, 3e-3  # most calls of a sample, and its seconds
SIDES, QUICK_SIDES = (8, 64, 200, 1000), (64,)
STACK_SIZE = 4  # products of a stack
ROUNDS, QUICK_ROUNDS = 21, 7
TYPES = {
    "numpy": ("float64", "float32", "complex128", "int64"),
    "cupy": ("float64", "float32", "complex64", "float16"),
    "torch": ("float64", "float32", "complex64", "bfloat16"),
    "torch-cpu": ("float64", "float32", "complex64", "bfloat16"),
}


@dataclass(frozen=True)
class Case:
    """A call of one function on square matrices of a library; `hooked`: the library's own function, fmm installed."""

    function: str
    library: str
    dtype: str
    side: int
    hooked: bool = False


class ComparedCalls:
    """The two calls of a case: the library's own, and the call that fmm declines; `decided`: fmm's plan."""

    def __init__(self, vendor: Call, own: Call, decided: Callable[[], Any] | None = None) -> None:
        self.vendor, self.own, self.decided = vendor, own, decided


def case_matrices(case: Case, *shape: int) -> Any:
    """Return normal numbers of the case's library and type; integers are below 10."""
    numbers = 3 * np.random.default_rng(1).standard_normal(shape)
    if case.library.startswith("torch"):
        import torch

        place = "cpu" if case.library == "torch-cpu" else "cuda"
        return torch.asarray(numbers).to(place, getattr(torch, case.dtype))
    if case.library == "cupy":
        import cupy

        return cupy.asarray(numbers).astype(case.dtype)
    return numbers.astype(case.dtype)


def library_module(case: Case) -> Any:
    """Return the library's module."""
    if case.library.startswith("torch"):
        import torch

        return torch
    if case.library == "cupy":
        import cupy

        return cupy
    return np


def matmul_pair(case: Case) -> ComparedCalls:
    a = case_matrices(case, case.side, case.side)
    return ComparedCalls(
        partial(library_module(case).matmul, a, a), partial(fmm.matmul, a, a), partial(fmm.explain, a, a)
    )


def stacked_pair(case: Case) -> ComparedCalls:
    a = case_matrices(case, STACK_SIZE, case.side, case.side)
    return ComparedCalls(
        partial(library_module(case).matmul, a, a), partial(fmm.matmul, a, a), partial(fmm.explain, a, a)
    )


def gemm_pair(case: Case) -> ComparedCalls:
    """Return A B + C; the baseline is torch.addmm, or the library's product and sum."""
    a = case_matrices(case, case.side, case.side)
    xp = library_module(case)
    vendor: Call = (lambda: xp.addmm(a, a, a)) if hasattr(xp, "addmm") else lambda: xp.matmul(a, a) + a
    # no `partial`: it would copy the keyword arguments at each call, and the vendor's call has none
    return ComparedCalls(vendor, lambda: fmm.gemm(a, a, a, beta=1), partial(fmm.explain_gemm, a, a, a, beta=1))


def gram_pair(case: Case) -> ComparedCalls:
    """Return A^H A."""
    a = case_matrices(case, case.side, case.side)
    xp = library_module(case)
    vendor = (lambda: xp.matmul(a.conj().T, a)) if "complex" in case.dtype else lambda: xp.matmul(a.T, a)
    return ComparedCalls(vendor, partial(fmm.gram, a), partial(fmm.explain_gram, a))


def hooked_pair(case: Case) -> ComparedCalls:
    """Return the library's own function twice; the second one is called with fmm installed."""
    pair = {"addmm": gemm_pair, "bmm": stacked_pair}.get(case.function, matmul_pair)(case)
    call = pair.vendor
    if case.function == "operator @":
        a = case_matrices(case, case.side, case.side)
        call = lambda: a @ a  # noqa: E731
    return ComparedCalls(call, call, pair.decided)


CALLS_OF_FUNCTION: dict[str, Callable[[Case], ComparedCalls]] = {
    "fmm.matmul": matmul_pair,
    "fmm.matmul, stack": stacked_pair,
    "fmm.gemm": gemm_pair,
    "fmm.gram": gram_pair,
}
HOOKED_FUNCTIONS = {
    "numpy": ("matmul", "operator @"),
    "cupy": ("matmul", "operator @"),
    "torch": ("matmul", "operator @", "addmm", "bmm"),
    "torch-cpu": ("matmul", "operator @", "addmm", "bmm"),
}


def all_cases(libraries: Sequence[str], sides: Sequence[int]) -> list[Case]:
    """Return every function, library, type and size."""
    return [
        Case(function, library, dtype, side, hooked)
        for library in libraries
        for functions, hooked in ((CALLS_OF_FUNCTION, False), (HOOKED_FUNCTIONS[library], True))
        for function in functions
        for dtype in TYPES[library]
        for side in sides
    ]


def synchronized_seconds(wait: Call) -> Clock:
    """Return a clock of the host's time for a call.

    The device is idle before each sample; the clock does not wait for the device's work.
    """

    def clock(call: Call, repeats: int) -> float:
        wait()
        seconds = host_seconds(call, repeats)
        wait()
        return seconds

    return clock


def measure_case(case: Case, rounds: int, clock: Clock, pair_of: Callable[[Case], ComparedCalls] | None = None) -> Row:
    """Return the row of a case."""
    pair = (pair_of or (hooked_pair if case.hooked else CALLS_OF_FUNCTION[case.function]))(case)
    plan = VENDOR if pair.decided is None else pair.decided().plan

    def sample(name: str, repeats: int) -> float:
        with fmm.installed(case.library) if case.hooked and name == "fmm" else nullcontext():
            call = pair.vendor if name == "vendor" else pair.own
            call()
            return 1e6 * clock(call, repeats)

    first = [1e-6 * sample(name, 10) for name in ("vendor", "fmm")]  # compiles, and fills the caches
    repeats = repeats_of(min(first), SAMPLE_SECONDS, MAX_CALLS)
    samples = shuffled_rounds({"vendor": "vendor", "fmm": "fmm"}, rounds, sample, repeats)
    return decline_row(case, samples, "" if plan == VENDOR else str(plan))


def decline_row(case: Case, samples: dict[str, list[float]], plan: str = "") -> Row:
    """Return the medians in microseconds, and whether the extra time is within the budget (a `plan` has none)."""
    extra = median(own - vendor for own, vendor in zip(samples["fmm"], samples["vendor"], strict=True))
    return {
        **asdict(case),
        "plan": plan,
        "vendor_microseconds": round(median(samples["vendor"]), MICROSECOND_DIGITS),
        "fmm_microseconds": round(median(samples["fmm"]), MICROSECOND_DIGITS),
        "extra_microseconds": round(extra, MICROSECOND_DIGITS),
        "within_budget": bool(plan) or extra <= BUDGET_MICROSECONDS,
        "samples": {name: [round(x, MICROSECOND_DIGITS) for x in found] for name, found in samples.items()},
    }


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    name = f"{row['function']}{' (installed)' * row['hooked']}"
    head = f"{row['library']:10}{name:24}{row['dtype']:11}{row['side']:5}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    mark = f"  by {row['plan']}" if row["plan"] else "" if row["within_budget"] else f"  above {BUDGET_MICROSECONDS:g}"
    return f"{head}{row['vendor_microseconds']:10.2f} us {row['extra_microseconds']:+8.2f} us{mark}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("declines", __doc__, time_limit=1e9, device="cpu", quick="one size and few rounds")
    parser.add_argument("--functions", nargs="+", choices=CALLS_OF_FUNCTION, help="these alone, without the libraries'")
    parser.add_argument(
        "--libraries", nargs="+", choices=HOOKED_FUNCTIONS, help="these alone (default: all of the device)"
    )
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    usual = ("cupy", "torch") if machine.on_gpu else ("numpy", "torch-cpu")
    libraries = options.libraries or [name for name in usual if find_spec(name.partition("-")[0])]
    wait: Call = lambda: None  # noqa: E731
    if machine.on_gpu:
        import cupy

        wait = cupy.cuda.Device().synchronize
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    measure = recorded_failure(lambda case: measure_case(case, rounds, synchronized_seconds(wait)), asdict)
    cases = all_cases(libraries, QUICK_SIDES if options.quick else SIDES)
    if options.functions:
        cases = [case for case in cases if case.function in options.functions]
    return has_failures(run_cases(options, machine, "declines.json", cases, measure, text_line))
