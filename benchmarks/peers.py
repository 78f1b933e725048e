"""Every peer that is present, in one run: `python -m benchmarks peers [--device cpu] [--quick]`.

On a CPU: numpy.matmul, MKL where the package `mkl` is installed, and fmm's default call; times, and errors as
multiples of NumPy's. Samples, in seconds, go to results/<device>/peers.json. On a GPU: `gpu_emulation` with all types;
its options are valid here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from statistics import median
from typing import NamedTuple

import numpy as np

import fmm
from benchmarks.cpu import EXACT_ROWS, operands
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    host_seconds,
    machine_of,
    paired_samples,
    paired_speedup,
    quick_cases,
    rounded_samples,
    run_cases,
)
from benchmarks.mkl import mkl_product, mkl_version
from fmm.kernels.cpu.host_arrays import Array

GPU_TYPES = ("float32", "complex64", "float64", "complex128")
SAMPLE_SECONDS = 0.2  # shorter calls are repeated
CASE_SECONDS = 60.0


class Case(NamedTuple):
    """A product of square matrices of this side."""

    side: int
    dtype: str
    quick: bool = False


CASES = tuple(Case(side, dtype, side <= 4096) for dtype in ("float64", "float32") for side in (2048, 4096, 8192))


def measure_case(case: Case, rounds: int) -> Row:
    """Time all calls in shuffled rounds, and compare the errors of some rows of C."""
    a, b, c = operands((case.side,) * 3, case.dtype)
    decision = fmm.explain(a, b, out=c)
    calls: dict[str, Call] = {"numpy": partial(np.matmul, a, b, out=c), "fmm": partial(fmm.matmul, a, b, out=c)}
    if (mkl := mkl_product(a, b, c)) is not None:
        calls["mkl"] = mkl
    errors = {name: error_of(call, a, b, c) for name, call in calls.items()}
    samples = paired_samples(calls, rounds, SAMPLE_SECONDS, host_seconds, warm=1, seconds=CASE_SECONDS)
    return {
        "size": (case.side,) * 3,
        "dtype": case.dtype,
        "plan": str(decision.plan),
        "workspace": decision.workspace,
        "errors": {name: error / errors["numpy"] for name, error in errors.items()},
        "samples": rounded_samples(samples),
    }


def error_of(call: Call, a: Array, b: Array, c: Array) -> float:
    """Return the relative error, in the Frobenius norm, of some rows of C, which is full of NaN before the call."""
    c[...] = np.nan
    call()
    rows = np.linspace(0, len(a) - 1, EXACT_ROWS).astype(int)
    exact = a[rows].astype(np.longdouble) @ b.astype(np.longdouble)
    return float(np.linalg.norm((c[rows] - exact).astype(float)) / np.linalg.norm(exact.astype(float)))


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row: each call's time, speedup over NumPy's and error."""
    samples = row["samples"]
    cells = (
        f"{name} {median(seconds):.4g} s {paired_speedup(samples['numpy'], seconds):.2f}x ({row['errors'][name]:.2f})"
        for name, seconds in samples.items()
    )
    return f"{row['size'][0]:>6}  {row['dtype']:8} {'   '.join(cells)}   {row['plan']}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("peers", __doc__, device="cpu", quick="smaller products and few rounds", time_limit=900)
    options, others = parser.parse_known_args(arguments)
    if options.device == "cpu":
        parser.parse_args(arguments)
        cases = quick_cases(CASES, options.quick)
        measure = partial(measure_case, rounds=3 if options.quick else 9)
        run_cases(options, machine_of("cpu"), "peers.json", cases, measure, text_line, mkl=mkl_version())
        return 0
    from benchmarks import gpu_emulation

    limit = "--time-limit", str(options.time_limit), *(("--output", str(options.output)) if options.output else ())
    types = () if "--dtype" in others else ("--dtype", *GPU_TYPES)
    return gpu_emulation.main([*types, *limit, *["--quick"] * options.quick, *others])
