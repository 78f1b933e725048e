"""Structured products on this processor: `python -m benchmarks.cpu_structured [--quick]`, about four minutes.

Whole calls of fmm, by whatever the configs in force or the model choose, against NumPy's own product: x @ x.T, for
which NumPy calls BLAS's syrk, and complex products. Results are checked first; raw samples are written to
structured.json in results/<device>/. (Wants a machine with nothing else to do.)
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import RESULTS
from fmm.tuner.trials.environment import device_folder, environment, typed_command
from fmm.tuner.trials.paired import Rounds, paired_rounds

SAMPLED = 4  # rows that are compared with a product in longer precision
TOO_FAR = {"float32": 1e-4, "float64": 1e-11, "complex128": 1e-11}  # relative error, in norm, of a wrong result


class Case(NamedTuple):
    """A square product; `target`: the hoped for speed, NumPy's being 1."""

    kind: str
    dtype: str
    side: int
    target: float
    seconds: float  # of timing, about
    quick: bool = False


CASES = (
    Case("x @ x.T", "float64", 4096, 1.00, 15, quick=True),
    Case("x @ x.T", "float32", 4096, 1.00, 10, quick=True),
    Case("x @ x.T", "float64", 8192, 1.05, 80),
    Case("complex", "complex128", 2048, 1.2, 20, quick=True),
    Case("complex", "complex128", 4096, 1.3, 60),
)


def operands(case: Case) -> tuple[Any, Any]:
    """Normal numbers."""
    rng, shape = np.random.default_rng(1), (case.side, case.side)
    if case.kind == "x @ x.T":
        x = rng.standard_normal(shape).astype(case.dtype)
        return x, x.T
    a, b = ((rng.standard_normal(shape) + 1j * rng.standard_normal(shape)).astype(case.dtype) for _ in range(2))
    return a, b


def calls_of(case: Case) -> tuple[Callable[[], Any], Callable[[], Any], Any]:
    """NumPy's and fmm's call, into one place each, and what fmm decided."""
    a, b = operands(case)
    theirs, ours = (np.empty(a.shape, a.dtype) for _ in range(2))
    if case.kind == "x @ x.T":
        given: dict[str, Any] = {"rows": True, "out": ours}
        return partial(np.matmul, a, b, theirs), partial(fmm.gram, a, **given), fmm.explain_gram(a, **given)
    return partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), fmm.explain(a, b, out=ours)


def relative_errors(case: Case, calls: dict[str, Callable[[], Any]]) -> dict[str, float]:
    """Of each call, in norm, of a few rows."""
    a, b = operands(case)
    rows = np.linspace(0, case.side - 1, SAMPLED).astype(int)
    exact = (a[rows].astype(np.clongdouble if case.kind == "complex" else np.longdouble) @ b).astype(complex)
    found = {name: call()[rows] for name, call in calls.items()}
    return {name: float(np.linalg.norm(x - exact) / np.linalg.norm(exact)) for name, x in found.items()}


def measured(case: Case, most: float) -> dict[str, Any]:
    """A row of raw samples; a wrong result is an error."""
    vendor, own, decision = calls_of(case)
    errors = relative_errors(case, {"vendor": vendor, "fmm": own})
    if not errors["fmm"] < TOO_FAR[case.dtype]:
        raise RuntimeError(f"{case}: wrong result, relative error {errors['fmm']:.3g}")
    found = paired_rounds(vendor, own, Rounds(5, 21, min(case.seconds, most)))
    return {**case._asdict(), "plan": str(decision.plan), "why": decision.reason, "errors": errors, **found.as_dict()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="the small cases alone")
    parser.add_argument("--seconds", type=float, default=1e9, help="of timing a case, at most (five rounds at least)")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    folder, began, rows = options.output or RESULTS / device_folder(), time.perf_counter(), []
    folder.mkdir(parents=True, exist_ok=True)
    for case in (case for case in CASES if case.quick or not options.quick):
        rows.append(row := measured(case, options.seconds))
        speed = f"{row['speedup']:.3f} ({row['low']:.3f} to {row['high']:.3f}), target {case.target}"
        print(f"{case.kind:9}{case.dtype:11}{case.side:6}  {speed}  {row['plan']}", flush=True)
        content = {"environment": environment(typed_command()), "rows": rows}
        (folder / "structured.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    print(f"{time.perf_counter() - began:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
