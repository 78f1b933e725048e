"""Portable kernels (mma.sync) on a Hopper GPU: `FMM_CAPABILITY=8.0 python -m benchmarks portable`.

The variable has fmm record plans as for compute capability 8.0; the driver translates the kernels. Whole calls by named
plans are timed against the library's product, in shuffled rounds. Samples, in milliseconds, go to
results/<device>/portable.json. Without the variable, Hopper's own kernels are measured.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import cupy

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    free_gpu_memory,
    machine_of,
    paired_samples,
    paired_speedup,
    rounded_samples,
    run_cases,
)
from benchmarks.matrices import random_matrix

ROUNDS, LONG_ROUNDS, LONG_SIDE = 8, 4, 16384
SAMPLE_SECONDS = 3e-3  # seconds of a sample of short calls
F16X3 = ("f16x3", "strassen.batched.pad16 > f16x3", "strassen^2.batched.pad16 > f16x3")
RESIDUES = ("residues(14) > bytes", "residues(14) > strassen > bytes")


class Case(NamedTuple):
    """A square product, or a matrix times its transpose of which the lower triangle is written ("gram")."""

    operation: str
    dtype: str
    side: int
    plans: tuple[str, ...]


CASES = (
    *(Case("matmul", "float32", n, F16X3[: 1 + (n > 2048) + (n > 4096)]) for n in (1024, 2048, 4096, 8192, 16384)),
    *(Case("matmul", "float64", n, RESIDUES[: 1 + (n > 4096)]) for n in (2048, 4096, 8192, 16384)),
    *(Case("matmul", "complex64", n, ("3m > f16x3",)) for n in (2048, 4096)),
    *(Case("matmul", "complex128", n, ("residues2m(15) > bytes",)) for n in (4096, 8192)),
    *(Case("gram", "float32", n, ("f16x3",)) for n in (4096, 8192)),
    *(Case("matmul", "int64", n, ("residues > bytes",)) for n in (2048, 8192)),
)


def operand(case: Case, seed: int) -> Any:
    """Return a random matrix; integers have 31 bits."""
    shape = case.side, case.side
    if case.dtype != "int64":
        return random_matrix("cupy", shape, case.dtype, seed=seed)
    return cupy.random.default_rng(seed).integers(-(1 << 31), 1 << 31, shape, dtype=case.dtype)


def product_call(case: Case, a: Any, b: Any, out: Any, plan: str) -> Call:
    """Return the call of the case's product by a plan; the plan "vendor" is the library's own product."""
    if case.operation == "gram":
        return partial(fmm.gram, a, rows=True, fill="lower", out=out, plan=plan)
    return partial(cupy.matmul, a, b, out=out) if plan == "vendor" else partial(fmm.matmul, a, b, out=out, plan=plan)


def measure_case(case: Case) -> Row:
    """Return the samples and speedups of the case's plans."""
    a, b = operand(case, 1), operand(case, 2)
    out = cupy.zeros_like(a)
    calls = {plan: product_call(case, a, b, out, plan) for plan in ("vendor", *case.plans)}
    rounds = LONG_ROUNDS if case.side >= LONG_SIDE or case.dtype == "int64" else ROUNDS
    seconds = paired_samples(calls, rounds, SAMPLE_SECONDS)
    samples = rounded_samples({name: [1e3 * x for x in found] for name, found in seconds.items()})
    del a, b, out
    free_gpu_memory()
    speedups = {plan: round(paired_speedup(samples["vendor"], samples[plan]), 3) for plan in case.plans}
    return {**case._asdict(), "speedups": speedups, "samples": samples}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    found = ", ".join(f"{plan} {speedup:.2f}" for plan, speedup in row["speedups"].items())
    return f"{row['operation']} {row['dtype']} {row['side']}: {found}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    options = benchmark_parser("portable", __doc__, device="0").parse_args(arguments)
    capability = os.environ.get("FMM_CAPABILITY", "")
    run_cases(
        options,
        machine_of(options.device),
        "portable.json",
        CASES,
        measure_case,
        text_line,
        forced_capability=capability,
    )
    return 0
