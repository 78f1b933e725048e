"""A matrix times its transpose on a GPU: `python -m benchmarks gram [--quick] [--only TEXT,...]`.

Whole calls by CUDA events: fmm.gram's lower triangle against cuBLAS's syrk (also with FMM_EMULATION=0), fmm.matmul(x,
x.T) against the library's own product, Newton-Schulz steps against torch's, and named plans of fmm.gram. Results are
checked first: symmetric bit for bit, and sampled rows against higher precision. A case that the time limit leaves is a
row with the failure "no time". Samples, in milliseconds, go to results/<device>/gram.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from statistics import median
from typing import Any, Literal

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    environment_variable,
    free_gpu_memory,
    gpu_seconds,
    has_failures,
    machine_of,
    paired_speedup,
    quick_cases,
    recorded_failure,
    repeats_of,
    rounds_within,
    run_cases,
    shuffled_rounds,
)
from benchmarks.matrices import random_matrix, relative_error

Kind = Literal["syrk", "matmul", "newton-schulz", "plan"]
Calls = tuple[Callable[[Any], Any], Callable[[Any], Any]]  # a function of a matrix by fmm, and the same by the vendor
SAMPLE_SECONDS = 4e-3  # seconds of a sample: shorter calls are repeated
LONG_CALL_SECONDS = 15e-3  # seconds of a call that is never replayed as a graph
NEWTON_STEPS = 5
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}  # relative error of a right result; other types:
LOOSE_TOLERANCE = 5e-2
NO_TIME = "no time"


@dataclass(frozen=True)
class Case:
    """One comparison; `target` is the wanted speedup."""

    kind: Kind
    dtype: str
    rows: int
    cols: int
    target: float | None = None
    quick: bool = False
    plan: str = ""  # plan of fmm.gram, against the library's own product
    ieee: bool = False  # with FMM_EMULATION=0

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype}{' ieee' * self.ieee} {self.rows} x {self.cols} {self.plan}".strip()

    @property
    def fields(self) -> Row:
        """The fields of a row before anything is measured."""
        names = {name: value for name, value in asdict(self).items() if name not in ("rows", "cols", "quick")}
        return {**names, "size": (self.rows, self.cols), "candidate": [], "vendor": []}


def square_cases(kind: Kind, dtype: str, *targets: tuple[int, float]) -> list[Case]:
    """Return a case for each side and target; the first one is quick."""
    return [Case(kind, dtype, n, n, target, quick=i == 0) for i, (n, target) in enumerate(targets)]


CASES = (
    *(replace(case, ieee=True) for case in square_cases("syrk", "float32", (8192, 1.15), (16384, 1.30), (32768, 1.42))),
    *(replace(case, ieee=True) for case in square_cases("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32))),
    *square_cases("syrk", "float32", (8192, 1.15), (16384, 1.30)),
    *square_cases("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32)),
    *square_cases("matmul", "float32", (8192, 2.2), (16384, 2.5)),
    *square_cases("matmul", "float64", (8192, 2.2), (16384, 2.5)),
    *square_cases("matmul", "bfloat16", (4096, 1.4), (2048, 1.0), (8192, 1.75), (16384, 1.95), (32768, 2.1)),
    Case("matmul", "bfloat16", 4096, 16384, 1.5, quick=True),
    Case("matmul", "bfloat16", 16384, 2048, 1.5),
    Case("matmul", "bfloat16", 1024, 65536, 1.0),
    *square_cases("newton-schulz", "bfloat16", (4096, 1.2), (8192, 1.35)),
    *(
        Case("plan", "bfloat16", n, n, plan=plan)
        for n in (2048, 4096, 8192, 16384)
        for plan in ("tile", "gram.tile > vendor", "gram^3 > vendor")
    ),
)

# The compared calls


def product_calls(case: Case, x: Any) -> Calls:
    return (lambda x: fmm.matmul(x, x.T)), (lambda x: x @ x.T)


def syrk_calls(case: Case, x: Any) -> Calls:
    out = fmm.gram(x, rows=True, fill="lower")
    options: dict[str, Any] = {"rows": True, "fill": "lower", "out": out}
    return (lambda x: fmm.gram(x, **options)), (lambda x: fmm.gram(x, plan="vendor", **options))


def plan_calls(case: Case, x: Any) -> Calls:
    return (lambda x: fmm.gram(x, rows=True, plan=case.plan)), (lambda x: x @ x.T)


def newton_calls(case: Case, x: Any) -> Calls:
    from examples.newton_schulz import orthogonalised, step_by_fmm, step_by_torch

    own, vendor = (partial(orthogonalised, steps=NEWTON_STEPS, step=step) for step in (step_by_fmm, step_by_torch))
    return own, vendor


CALLS_BY_KIND: Mapping[Kind, Callable[[Case, Any], Calls]] = {
    "syrk": syrk_calls,
    "matmul": product_calls,
    "newton-schulz": newton_calls,
    "plan": plan_calls,
}


# Measuring


def measure_case(case: Case, rounds: int, seconds: float) -> Row:
    """Check a case, then time fmm and the vendor on two matrices in turn."""
    library = "torch" if find_spec("torch") else "cupy"  # CuPy has no bfloat16
    with environment_variable("FMM_EMULATION", "0" if case.ieee else None):
        xs = [random_matrix(library, (case.rows, case.cols), case.dtype, seed=seed) for seed in (1, 2)]
        own, vendor = CALLS_BY_KIND[case.kind](case, xs[0])
        if case.kind == "matmul":
            explained = fmm.explain(xs[0], xs[0].T)
        else:
            explained = fmm.explain_gram(xs[0], rows=True, plan=case.plan or None)
        decided = {"plan": str(explained.plan), "why": explained.reason}
        errors = checked_errors(case, own(xs[0]), vendor, xs[0], symmetric=decided["plan"] != "vendor")
        samples = paired_milliseconds({"candidate": own, "vendor": vendor}, xs, rounds, seconds)
    del xs
    free_gpu_memory()
    return {**case.fields, **decided, **samples, **errors}


def checked_errors(case: Case, c: Any, vendor: Callable[[Any], Any], x: Any, symmetric: bool) -> Row:
    """Return the relative errors of the results of fmm and the vendor.

    Raise RuntimeError for a wrong or unsymmetric result.
    """
    if case.kind == "newton-schulz":
        by_fmm, by_torch = (found.double() for found in (c, vendor(x)))
        distance = float((by_fmm - by_torch).norm() / by_torch.norm())
        if not distance < 0.1:
            raise RuntimeError(f"the results differ by {distance:.2g}")
        return {"error": distance, "vendor_error": None}
    if case.kind == "matmul" and symmetric and not bool((c == c.T).all()):
        raise RuntimeError("the result is not symmetric")
    error = relative_error(x, x.T, c, lower=True)
    if not error < TOLERANCE.get(case.dtype, LOOSE_TOLERANCE):
        raise RuntimeError(f"wrong result: relative error {error:.3g}")
    return {"error": error, "vendor_error": relative_error(x, x.T, vendor(x), lower=True)}


def paired_milliseconds(
    calls: Mapping[str, Callable[[Any], Any]], xs: Sequence[Any], rounds: int, seconds: float
) -> dict[str, list[float]]:
    """Return the samples of calls that alternate between the matrices; short calls first run until graphs exist."""
    turns: dict[str, Call] = {name: partial(next, map(call, cycle(xs))) for name, call in calls.items()}
    single = max(*(gpu_seconds(call, 2) for call in turns.values()), 1e-6)
    if single < LONG_CALL_SECONDS:
        for call in turns.values():
            gpu_seconds(call, 6)
        single = max(*(gpu_seconds(call, 2) for call in turns.values()), 1e-6)
    repeats = repeats_of(single, SAMPLE_SECONDS, most=1 << 20)
    count = rounds_within(seconds, 2 * single * repeats, 5, rounds)
    samples = shuffled_rounds(turns, count, repeats=repeats)
    return {name: [1e3 * x for x in found] for name, found in samples.items()}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    size, dtype = " x ".join(map(str, row["size"])), row["dtype"] + " ieee" * row["ieee"]
    what = f"{row['kind']:15}{dtype:13}{size:>15}"
    if row["failure"]:
        return f"{what}  {row['failure'][:100]}"
    speedup = paired_speedup(row["vendor"], row["candidate"])
    target = f", target {row['target']:.2f}" if row["target"] else ""
    error = row["error"] / row["vendor_error"] if row["vendor_error"] else row["error"]
    return f"{what}{median(row['candidate']):9.3f} ms{speedup:8.3f}{target}, error {error:.2g}  {row['plan']}"


def missing_rows(cases: Sequence[Case], measured_count: int) -> list[Row]:
    """Return a row for each case that the time limit left."""
    return [{**case.fields, "failure": NO_TIME} for case in cases[measured_count:]]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed or was left."""
    parser = benchmark_parser(
        "gram", __doc__, time_limit=420, quick="fewer cases and rounds, a second of timing for each"
    )
    add = parser.add_argument
    add("--only", default="", help="cases whose 'kind type m x k ' contains one of these, separated by commas")
    add("--rounds", type=int, default=15)
    add("--seconds", type=float, default=4, help="of timing a case, roughly")
    options = parser.parse_args(arguments)
    rounds, seconds = (7, min(options.seconds, 1.0)) if options.quick else (options.rounds, options.seconds)
    cases = [case for case in quick_cases(CASES, options.quick)]
    cases = [case for case in cases if any(x in f"{case.name} " for x in options.only.split(","))]
    cases.sort(key=lambda case: case.rows**2 * case.cols)  # the time limit leaves the longest
    measure = recorded_failure(partial(measure_case, rounds=rounds, seconds=seconds), lambda case: case.fields)
    left = partial(missing_rows, cases)
    return has_failures(run_cases(options, machine_of("0"), "gram.json", cases, measure, text_line, left=left))
