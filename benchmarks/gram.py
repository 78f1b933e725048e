"""A matrix times its transpose on a GPU: `python -m benchmarks gram [--quick] [--only TEXT,...]`.

Whole calls by CUDA events: fmm.gram's lower triangle against cuBLAS's syrk (also with FMM_EMULATION=0), fmm.matmul(x,
x.T) against the library's own product, Newton-Schulz steps against torch's, and named plans of fmm.gram. Results are
checked first: symmetric bit for bit, and sampled rows against float64. Samples go to results/<device>/gram.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from statistics import median
from typing import Any, Literal

import cupy
import numpy as np

import fmm
from benchmarks.harness import (
    Row,
    benchmark_parser,
    cases_in_time,
    environment_variable,
    failure_text,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    paired_speedup,
    repeats_of,
    rounds_within,
    shuffled_rounds,
    write_result,
)

Kind = Literal["syrk", "matmul", "newton-schulz", "plan"]
Calls = tuple[Callable[[int], Any], ...]  # fmm's and the vendor's; the number picks one of two sets of operands
SAMPLED_ROWS, SAMPLED_COLS = 16, 1024
SAMPLE = 4e-3  # seconds of a sample: shorter calls are repeated
LONG = 15e-3  # seconds of a call that nobody replays as a graph
STEPS = 5  # of Newton-Schulz
TOLERANCE = {"float64": 1e-12, "float32": 1e-4}  # relative error of a right result; other types:
LOOSE_TOLERANCE = 5e-2


@dataclass(frozen=True)
class Case:
    """One comparison; `target` is the speedup hoped for."""

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


def squares(kind: Kind, dtype: str, *targets: tuple[int, float]) -> list[Case]:
    """Return a case for each side and target; the first one is quick."""
    return [Case(kind, dtype, n, n, target, quick=i == 0) for i, (n, target) in enumerate(targets)]


CASES = (
    *(replace(case, ieee=True) for case in squares("syrk", "float32", (8192, 1.15), (16384, 1.30), (32768, 1.42))),
    *(replace(case, ieee=True) for case in squares("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32))),
    *squares("syrk", "float32", (8192, 1.15), (16384, 1.30)),
    *squares("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32)),
    *squares("matmul", "float32", (8192, 2.2), (16384, 2.5)),
    *squares("matmul", "float64", (8192, 2.2), (16384, 2.5)),
    *squares("matmul", "bfloat16", (4096, 1.4), (2048, 1.0), (8192, 1.75), (16384, 1.95), (32768, 2.1)),
    Case("matmul", "bfloat16", 4096, 16384, 1.5, quick=True),
    Case("matmul", "bfloat16", 16384, 2048, 1.5),
    Case("matmul", "bfloat16", 1024, 65536, 1.0),
    *squares("newton-schulz", "bfloat16", (4096, 1.2), (8192, 1.35)),
    *(
        Case("plan", "bfloat16", n, n, plan=plan)
        for n in (2048, 4096, 8192, 16384)
        for plan in ("tile", "gram.tile > vendor", "gram^3 > vendor")
    ),
)


@dataclass
class Result:
    """Paired samples of one case, in milliseconds; errors are relative, in the Frobenius norm of sampled rows."""

    kind: str
    dtype: str
    size: tuple[int, int]
    target: float | None
    plan: str = ""
    why: str = ""
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    error: float = float("nan")
    vendor_error: float = float("nan")
    failure: str = ""
    ieee: bool = False


# ---- what is compared


def random_matrices(case: Case, count: int = 2) -> list[Any]:
    """Return normal numbers: torch's tensors where torch is installed (it has bfloat16), else CuPy's arrays."""
    try:
        import torch
    except ImportError:
        numbers = [cupy.random.standard_normal((case.rows, case.cols), cupy.float32) for _ in range(count)]
        return [x.astype(case.dtype) for x in numbers]
    torch.manual_seed(1)
    return [torch.randn(case.rows, case.cols, device="cuda", dtype=getattr(torch, case.dtype)) for _ in range(count)]


def product_calls(case: Case, xs: list[Any]) -> Calls:
    return (lambda i: fmm.matmul(xs[i], xs[i].T)), (lambda i: xs[i] @ xs[i].T)


def syrk_calls(case: Case, xs: list[Any]) -> Calls:
    out = fmm.gram(xs[0], rows=True, fill="lower")
    options: dict[str, Any] = {"rows": True, "fill": "lower", "out": out}
    return (lambda i: fmm.gram(xs[i], **options)), (lambda i: fmm.gram(xs[i], plan="vendor", **options))


def plan_calls(case: Case, xs: list[Any]) -> Calls:
    return (lambda i: fmm.gram(xs[i], rows=True, plan=case.plan)), (lambda i: xs[i] @ xs[i].T)


def newton_calls(case: Case, xs: list[Any]) -> Calls:
    from examples.newton_schulz import orthogonalised, step_by_fmm, step_by_torch

    return tuple(
        partial(lambda step, i: orthogonalised(xs[i], STEPS, step), step) for step in (step_by_fmm, step_by_torch)
    )


CALLS: Mapping[Kind, Callable[[Case, list[Any]], Calls]] = {
    "syrk": syrk_calls,
    "matmul": product_calls,
    "newton-schulz": newton_calls,
    "plan": plan_calls,
}


# ---- measuring


def measured(case: Case, rounds: int, seconds: float) -> Row:
    """Check a case, then time it; a case that fails is a row that says why."""
    result = Result(case.kind, case.dtype, (case.rows, case.cols), case.target, ieee=case.ieee)
    with environment_variable("FMM_EMULATION", "0" if case.ieee else None):
        try:
            xs = random_matrices(case)
            calls = CALLS[case.kind](case, xs)
            if case.kind == "matmul":
                explained = fmm.explain(xs[0], xs[0].T)
            else:
                explained = fmm.explain_gram(xs[0], rows=True, plan=case.plan or None)
            result.plan, result.why = str(explained.plan), explained.reason
            check_results(case, calls, xs[0], result)
            sample_calls(calls, result, rounds, seconds)
        except Exception as error:  # whatever may go wrong: the next case is measured
            result.failure = failure_text(error)
    xs = []
    free_gpu_memory()
    return asdict(result)


def check_results(case: Case, calls: Calls, x: Any, result: Result) -> None:
    """Record the errors of both calls; RuntimeError for a wrong or unsymmetric result."""
    if case.kind == "newton-schulz":
        by_fmm, by_torch = (call(0).double() for call in calls)
        result.error = float((by_fmm - by_torch).norm() / by_torch.norm())
        if not result.error < 0.1:
            raise RuntimeError(f"the results differ by {result.error:.2g}")
        return
    rows = np.linspace(0, case.rows - 1, SAMPLED_ROWS).astype(np.intp)
    cols = np.unique(np.linspace(0, case.rows - 1, SAMPLED_COLS).astype(np.intp))
    exact = host_rows(x, rows) @ host_rows(x, cols).T
    below = cols[None, :] <= rows[:, None]
    errors = []
    for call in calls:
        c = call(0)
        if case.kind == "matmul" and call is calls[0] and result.plan != "vendor" and not bool((c == c.T).all()):
            raise RuntimeError("the result is not symmetric")
        error = np.linalg.norm((host_rows(c, rows)[:, cols] - exact)[below]) / np.linalg.norm(exact[below])
        errors.append(float(error))
    result.error, result.vendor_error = errors
    if not result.error < TOLERANCE.get(case.dtype, LOOSE_TOLERANCE):
        raise RuntimeError(f"wrong result: relative error {result.error:.3g}")


def host_rows(x: Any, rows: Any) -> Any:
    """Return these rows in float64, on the host."""
    if isinstance(x, cupy.ndarray):
        return cupy.asnumpy(x[rows]).astype(np.float64)
    return x[rows.tolist()].double().cpu().numpy()


def sample_calls(calls: Calls, result: Result, rounds: int, seconds: float) -> None:
    """Time both calls on two sets of operands in turn; short calls first run until graphs are captured."""
    turns = {name: alternating(call) for name, call in zip(("candidate", "vendor"), calls, strict=True)}
    single = max(*(gpu_seconds(call, 2) for call in turns.values()), 1e-6)
    if single < LONG:
        for call in turns.values():
            gpu_seconds(call, 6)
        single = max(*(gpu_seconds(call, 2) for call in turns.values()), 1e-6)
    repeats = repeats_of(single, SAMPLE, most=1 << 20)
    count = rounds_within(seconds, 2 * single * repeats, 5, rounds)
    samples = shuffled_rounds(turns, count, repeats=repeats)
    result.candidate, result.vendor = ([1e3 * x for x in samples[name]] for name in ("candidate", "vendor"))


def alternating(call: Callable[[int], Any]) -> Callable[[], Any]:
    """Return a call without arguments that uses the two sets of operands in turn."""
    count = [0]

    def run() -> Any:
        count[0] += 1
        return call(count[0] % 2)

    return run


# ---- the command


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    size, kind = " x ".join(map(str, row["size"])), row["dtype"] + " ieee" * row["ieee"]
    what = f"{row['kind']:15}{kind:13}{size:>15}"
    if row["failure"]:
        return f"{what}  {row['failure'][:100]}"
    target = f"{row['target']:.2f}" if row["target"] else ""
    vendor_error = row["vendor_error"]
    error = row["error"] / vendor_error if vendor_error == vendor_error and vendor_error else row["error"]
    speedup = paired_speedup(row["vendor"], row["candidate"])
    times = f"{median(row['candidate']):9.3f}{median(row['vendor']):9.3f}{speedup:9.3f}{target:>8}"
    return f"{what}{times}{error:7.2g}  {row['plan']}"


HEAD = f"{'what':15}{'type':13}{'size':>15}{'ms':>9}{'vendor':>9}{'speedup':>9}{'target':>8}{'error':>7}  plan"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("gram", __doc__, time_limit=420)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer cases and rounds, a second of timing for each")
    add("--only", default="", help="cases whose 'kind type m x k ' contains one of these, separated by commas")
    add("--rounds", type=int, default=15)
    add("--seconds", type=float, default=4, help="of timing a case, about")
    options = parser.parse_args(arguments)
    rounds, seconds = (7, min(options.seconds, 1.0)) if options.quick else (options.rounds, options.seconds)
    named = [case for case in CASES if any(x in f"{case.name} " for x in options.only.split(","))]
    cases = [case for case in named if case.quick or not options.quick]
    cases.sort(key=lambda case: case.rows**2 * case.cols)  # a time limit cuts off the longest
    path = (options.output or gpu_folder()) / "gram.json"
    rows: list[Row] = []
    print(HEAD)
    for case in cases_in_time(cases, options.time_limit):
        rows.append(measured(case, rounds, seconds))
        print(text_line(rows[-1]), flush=True)
        write_result(path, gpu_environment(), rows)
    for case in cases[len(rows) :]:
        rows.append(asdict(Result(case.kind, case.dtype, (case.rows, case.cols), case.target, failure="no time")))
    return int(any(row["failure"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
