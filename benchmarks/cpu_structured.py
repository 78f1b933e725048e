"""x x^T and complex products on this CPU: `python -m benchmarks cpu_structured [--quick]`, about four minutes.

Whole calls of fmm, by the configs in force or the model, against NumPy's own product: x @ x.T, for which NumPy calls
BLAS's syrk, and complex products. Results are checked first. Samples go to results/<device>/structured.json. Run it on
an idle machine.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import Call, Row, benchmark_parser, machine_of, quick_cases, run_cases
from benchmarks.matrices import random_matrix, relative_error
from fmm.tuner.trials.paired import PairedRoundLimits, paired_rounds

TOLERANCE = {"float32": 1e-4, "float64": 1e-11, "complex128": 1e-11}  # relative error, in norm, of a right result


class Case(NamedTuple):
    """A square product; `target` is the speedup hoped for, `seconds` the time of its samples, roughly."""

    kind: str
    dtype: str
    side: int
    target: float
    seconds: float
    quick: bool = False


CASES = (
    Case("x @ x.T", "float64", 4096, 1.00, 15, quick=True),
    Case("x @ x.T", "float32", 4096, 1.00, 10, quick=True),
    Case("x @ x.T", "float64", 8192, 1.05, 80),
    Case("complex", "complex128", 2048, 1.2, 20, quick=True),
    Case("complex", "complex128", 4096, 1.3, 60),
)


def compared_calls(case: Case, a: Any, b: Any) -> tuple[Call, Call, Any]:
    """Return NumPy's and fmm's call, into one place each, and fmm's decision."""
    theirs, ours = (np.empty(a.shape, a.dtype) for _ in range(2))
    if case.kind == "x @ x.T":
        options: dict[str, Any] = {"rows": True, "out": ours}
        return partial(np.matmul, a, b, theirs), partial(fmm.gram, a, **options), fmm.explain_gram(a, **options)
    return partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), fmm.explain(a, b, out=ours)


def measured(case: Case, most_seconds: float) -> Row:
    """Check, then time a case; RuntimeError for a wrong result."""
    a, b = (random_matrix("numpy", (case.side, case.side), case.dtype, seed=seed) for seed in (1, 2))
    b = a.T if case.kind == "x @ x.T" else b
    vendor, own, decision = compared_calls(case, a, b)
    errors = {"vendor": relative_error(a, b, vendor()), "fmm": relative_error(a, b, own())}
    if not errors["fmm"] < TOLERANCE[case.dtype]:
        raise RuntimeError(f"{case}: wrong result, relative error {errors['fmm']:.3g}")
    found = paired_rounds(vendor, own, PairedRoundLimits(5, 21, min(case.seconds, most_seconds)))
    return {**case._asdict(), "plan": str(decision.plan), "why": decision.reason, "errors": errors, **found.as_dict()}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    speed = f"{row['speedup']:.3f} ({row['low']:.3f} to {row['high']:.3f}), target {row['target']}"
    return f"{row['kind']:9}{row['dtype']:11}{row['side']:6}  {speed}  {row['plan']}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("cpu_structured", __doc__, quick="the small cases alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="most seconds of a case (five rounds at least)")
    options = parser.parse_args(arguments)
    measure = partial(measured, most_seconds=options.seconds)
    cases = quick_cases(CASES, options.quick)
    run_cases(options, machine_of("cpu"), "structured.json", cases, measure, text_line)
    return 0
