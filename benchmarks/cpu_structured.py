"""x x^T and complex products on this CPU: `python -m benchmarks cpu_structured [--quick]`, about four minutes.

Whole calls of fmm, by the configs in force or the model, against NumPy's own product: x @ x.T, for which NumPy calls
BLAS's syrk, and complex products. Results are checked first. Samples go to results/<device>/structured.json. Run it on
an idle machine.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import RESULTS, Call, Row, benchmark_parser, measure_cases
from fmm.tuner.trials.environment import device_folder, environment_record, typed_command
from fmm.tuner.trials.paired import PairedRoundLimits, paired_rounds

SAMPLED = 4  # rows that are compared with a product in longer precision
TOLERANCE = {"float32": 1e-4, "float64": 1e-11, "complex128": 1e-11}  # relative error, in norm, of a right result


class Case(NamedTuple):
    """A square product; `target` is the speedup hoped for, `seconds` the time of its samples, about."""

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


def operands(case: Case) -> tuple[Any, Any]:
    """Return normal numbers."""
    rng, shape = np.random.default_rng(1), (case.side, case.side)
    if case.kind == "x @ x.T":
        x = rng.standard_normal(shape).astype(case.dtype)
        return x, x.T
    a, b = ((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(case.dtype) for _ in range(2))
    return a, b


def compared_calls(case: Case) -> tuple[Call, Call, Any]:
    """Return NumPy's and fmm's call, into one place each, and fmm's decision."""
    a, b = operands(case)
    theirs, ours = (np.empty(a.shape, a.dtype) for _ in range(2))
    if case.kind == "x @ x.T":
        options: dict[str, Any] = {"rows": True, "out": ours}
        return partial(np.matmul, a, b, theirs), partial(fmm.gram, a, **options), fmm.explain_gram(a, **options)
    return partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), fmm.explain(a, b, out=ours)


def relative_error(case: Case, c: Any) -> float:
    """Return the error of a few rows in norm."""
    a, b = operands(case)
    rows = np.linspace(0, case.side - 1, SAMPLED).astype(int)
    exact = (a[rows].astype(np.clongdouble if case.kind == "complex" else np.longdouble) @ b).astype(complex)
    return float(np.linalg.norm(c[rows] - exact) / np.linalg.norm(exact))


def measured(case: Case, most_seconds: float) -> Row:
    """Check, then time a case; RuntimeError for a wrong result."""
    vendor, own, decision = compared_calls(case)
    errors = {"vendor": relative_error(case, vendor()), "fmm": relative_error(case, own())}
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
    parser = benchmark_parser("cpu_structured", __doc__)
    parser.add_argument("--quick", action="store_true", help="the small cases alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="most seconds of a case (five rounds at least)")
    options = parser.parse_args(arguments)
    cases = [case for case in CASES if case.quick or not options.quick]
    path = (options.output or RESULTS / device_folder()) / "structured.json"
    measure_cases(
        cases,
        lambda case: measured(case, options.seconds),
        path,
        text_line,
        lambda: environment_record(typed_command()),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
