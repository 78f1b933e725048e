"""Products on this CPU against NumPy's: `python -m benchmarks cpu [--quick] [--suite NAME]`.

Suites: large products, random shapes, small calls, the memory of plans, errors, and the check for overflow. Each suite
writes results/<device>/<suite>.json. Run it on an idle machine.
"""

from __future__ import annotations

import random
import time
import tracemalloc
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import Call, Row, benchmark_parser, machine_of, run_cases
from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.thread_pool import ThreadGroup, blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.candidates import device_candidate_plans
from fmm.perfmodel.stability import expected_error_growth
from fmm.runtime.overflow import may_overflow
from fmm.tuner.trials.paired import PairedRoundLimits, measure_paired_rounds

Size = tuple[int, int, int]
TYPES = ("float64", "float32")
SMALL_SIDES = (8, 64)
SMALL_CALL_ROUNDS = PairedRoundLimits(31, 101, 2.0)
EXACT_ROWS = 16  # rows of a product that are computed in longer precision


@dataclass(frozen=True)
class Effort:
    """The large sizes, the number of random shapes, the rounds of each product, and the side of the errors."""

    large: tuple[Size, ...]
    shapes: int
    rounds: PairedRoundLimits
    error_side: int


EFFORTS = {
    "quick": Effort(((2048,) * 3, (4096,) * 3), 12, PairedRoundLimits(3, 9, 3.0), 2048),
    "full": Effort(((4096,) * 3, (8192,) * 3, (5000, 7000, 6000)), 60, PairedRoundLimits(5, 15, 14.0), 4096),
}
DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "uniform [0,1]": lambda rng, shape: rng.random(shape),
    "uniform [-1,1]": lambda rng, shape: rng.uniform(-1, 1, shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
}


class Case(NamedTuple):
    """A product of one type; `rounds` limits its timing, `data` names the distribution of its numbers."""

    size: Size
    dtype: str
    rounds: PairedRoundLimits | None = None
    data: str = "normal"


# Cases


def large_cases(effort: Effort) -> list[Case]:
    """Return every type and large size."""
    return [Case(size, dtype, effort.rounds) for dtype, size in product(TYPES, effort.large)]


def random_cases(effort: Effort) -> list[Case]:
    """Return random shapes, the types in turn."""
    rounds = PairedRoundLimits(7, 41, effort.rounds.seconds / 6)
    return [Case(size, TYPES[i % 2], rounds) for i, size in enumerate(random_shapes(effort.shapes))]


def random_shapes(count: int, largest: int = 6000, aspect: float = 50, seed: int = 7) -> list[Size]:
    """Return shapes with sides uniform from 1 to `largest`, without those of a larger aspect ratio."""
    rng = random.Random(seed)
    shapes: list[Size] = []
    while len(shapes) < count:
        m, k, n = (rng.randint(1, largest) for _ in range(3))
        if max(m, k, n) <= aspect * min(m, k, n):
            shapes.append((m, k, n))
    return shapes


def small_cases(effort: Effort) -> list[Case]:
    """Return the small squares of float64."""
    return [Case((side,) * 3, "float64", SMALL_CALL_ROUNDS) for side in SMALL_SIDES]


def error_cases(effort: Effort) -> list[Case]:
    """Return a square of every type and distribution."""
    return [Case((effort.error_side,) * 3, dtype, data=data) for dtype, data in product(TYPES, DISTRIBUTIONS)]


# Measuring


def operands(size: Size, dtype: str) -> tuple[Array, Array, Array]:
    """Return A, B and an empty C; the numbers are the same in every process."""
    m, k, n = size
    rng = np.random.default_rng([*size, np.dtype(dtype).itemsize])  # hash() would differ between processes
    a, b = (rng.standard_normal(shape, dtype=np.dtype(dtype).type) for shape in ((m, k), (k, n)))
    return a, b, np.empty((m, n), dtype)


def measure_speed(case: Case) -> Row:
    """Time a default call and numpy.matmul in paired rounds."""
    assert case.rounds is not None
    a, b, c = operands(case.size, case.dtype)
    decision = fmm.explain(a, b, out=c)
    result = measure_paired_rounds(partial(np.matmul, a, b, out=c), partial(fmm.matmul, a, b, out=c), case.rounds)
    return {
        "size": case.size,
        "dtype": case.dtype,
        "plan": str(decision.plan),
        "workspace": decision.workspace,
        "vendor_gflops": 2e-9 * a.size * b.shape[1] / median(result.vendor),
        **result.as_dict(),
    }


def measure_small_call(case: Case) -> Row:
    """Measure the extra time of a call that fmm hands to NumPy."""
    assert case.rounds is not None
    side = case.size[0]
    x = np.random.default_rng(0).standard_normal((side, side))
    result = measure_paired_rounds(partial(np.matmul, x, x.copy()), partial(fmm.matmul, x, x.copy()), case.rounds)
    extra = median(own - vendor for vendor, own in zip(result.vendor, result.candidate, strict=True))
    return {"side": side, "extra_microseconds": extra * 1e6, **result.as_dict()}


def measure_memory(case: Case) -> Row:
    """Compare the peak of a call's extra memory, as tracemalloc sees it, with the plan's predicted workspace."""
    a, b, c = operands(case.size, case.dtype)
    plan = fast_plan(fmm.explain(a, b, out=c))
    fmm.release_workspace()
    tracemalloc.start()
    fmm.matmul(a, b, out=c, plan=plan)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    predicted = plan_workspace_bytes(plan, *case.size, a.itemsize)
    names = {"size": case.size, "dtype": case.dtype}
    return {**names, "said_bytes": predicted, "peak_bytes": peak, "ratio": peak / max(predicted, 1)}


def measure_error(case: Case) -> Row:
    """Compare the largest errors of a plan and of NumPy on rows that are computed in longer precision."""
    side, rng = case.size[0], np.random.default_rng(1)
    a, b = (DISTRIBUTIONS[case.data](rng, (side, side)).astype(case.dtype) for _ in range(2))
    rows = np.linspace(0, side - 1, EXACT_ROWS).astype(int)
    exact = a[rows].astype(np.longdouble) @ b.astype(np.longdouble)
    plan = fast_plan(fmm.explain(a, b))
    results = fmm.matmul(a, b, plan=plan), np.matmul(a, b)
    own, vendor = (float(np.abs(c[rows] - exact).max()) for c in results)
    return {
        "side": side,
        "dtype": case.dtype,
        "data": case.data,
        "plan": str(plan),
        "error": own,
        "vendor_error": vendor,
        "ratio": own / vendor,
        "expected_growth": expected_error_growth(plan, case.dtype, in_pieces=True),
    }


def measure_overflow_check(case: Case) -> Row:
    """Measure the time of the check for overflow as a share of a product's time."""
    a, b, c = operands(case.size, case.dtype)
    plan, threads = fast_plan(fmm.explain(a, b)), ThreadGroup(blas_threads())
    whole = median(seconds_of(partial(fmm.matmul, a, b, out=c, plan=plan)) for _ in range(2))
    check = median(seconds_of(partial(may_overflow, plan, a, b, threads)) for _ in range(9))
    names = {"size": case.size, "dtype": case.dtype}
    return {**names, "check_seconds": check, "product_seconds": whole, "share": check / whole}


def fast_plan(decision: fmm.Decision) -> Plan:
    """Return the chosen plan, or the fastest other one if the vendor is chosen.

    So memory, errors and the check are measured on every machine. A certified entry has no candidates: then the first
    plan that is ever compared.
    """
    plans = (decision.plan, *(candidate.plan for candidate in decision.candidates), *device_candidate_plans(False))
    return next(plan for plan in plans if plan != VENDOR)


def seconds_of(call: Call) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


# The command


class Suite(NamedTuple):
    """The cases of a suite, the measurement of one case, and the end of the line that a terminal shows."""

    cases: Callable[[Effort], Iterable[Any]]
    measure: Callable[[Any], Row]
    verdict: Callable[[Row], str]


def speed_text(row: Row) -> str:
    return f"{row['speedup']:.3f} times numpy [{row['low']:.3f}, {row['high']:.3f}]  {row['plan']}"


SUITES = {
    "speed": Suite(large_cases, measure_speed, speed_text),
    "never_slower": Suite(random_cases, measure_speed, speed_text),
    "small_calls": Suite(
        small_cases, measure_small_call, lambda row: f"{row['extra_microseconds']:+.2f} microseconds a call"
    ),
    "memory": Suite(
        large_cases,
        measure_memory,
        lambda row: f"peak {row['peak_bytes'] / 2**20:.1f} MiB, {row['ratio']:.4f} of the predicted workspace",
    ),
    "errors": Suite(
        error_cases,
        measure_error,
        lambda row: f"{row['ratio']:.2f} times numpy's error ({row['data']}; expected {row['expected_growth']:.1f})",
    ),
    "guard": Suite(
        large_cases, measure_overflow_check, lambda row: f"the overflow check takes {row['share']:.2%} of the time"
    ),
}


def text_line(suite: str, row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    size = "x".join(map(str, row["size"])) if "size" in row else str(row["side"])
    return f"{suite:13}{size:>16}  {row.get('dtype', ''):8} {SUITES[suite].verdict(row)}"


def main(arguments: Sequence[str]) -> int:
    """Run the suites; return the exit code."""
    parser = benchmark_parser("cpu", __doc__, quick="two sizes, twelve shapes and few rounds")
    parser.add_argument("--suite", action="append", choices=SUITES, help="only this suite (may be repeated)")
    options = parser.parse_args(arguments)
    machine, effort = machine_of("cpu"), EFFORTS["quick" if options.quick else "full"]
    for name in options.suite or SUITES:
        suite = SUITES[name]
        run_cases(options, machine, f"{name}.json", suite.cases(effort), suite.measure, partial(text_line, name))
    return 0
