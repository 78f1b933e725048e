"""Products of JAX arrays on a GPU under jit: `python -m benchmarks jax_products [--quick]`.

fmm.jax.matmul and fmm.jax.gram are timed beside jnp.matmul with precision="highest", in shuffled rounds. "gradient" is
the gradient of a sum of products with respect to both operands: three products. Errors are relative to float64; for
float64 they are the difference of both results. Samples go to results/<device>/jax.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

# JAX reserves most of the memory when it starts, unless this variable is set first. fmm's workspace is CuPy's.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

import jax
import jax.numpy as jnp

import fmm.jax
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    has_failures,
    machine_of,
    paired_samples,
    paired_speedup,
    recorded_failure,
    rounded_samples,
    run_cases,
)

ROUNDS, QUICK_ROUNDS, SAMPLE_SECONDS = 7, 3, 0.03


@dataclass(frozen=True)
class Case:
    """A function of square matrices under jit."""

    function: str
    dtype: str
    side: int
    quick: bool = False


CASES = (
    *(Case("matmul", "float32", side, quick=side == 4096) for side in (2048, 4096, 8192)),
    *(Case("matmul", "float64", side) for side in (4096, 8192)),
    Case("matmul", "complex64", 4096),
    *(Case("gram", dtype, 8192) for dtype in ("float32", "float64")),
    *(Case("gradient", dtype, 4096) for dtype in ("float32", "float64")),
)

xla_matmul = partial(jnp.matmul, precision="highest")


def gradient_of(matmul: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    """Return the function that computes the gradient of the sum of the squares of a product's entries."""
    gradient: Callable[[Any, Any], Any] = jax.grad(lambda a, b: (matmul(a, b) ** 2).sum(), (0, 1))
    return gradient


FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], Callable[[Any, Any], Any]]] = {
    "matmul": (xla_matmul, fmm.jax.matmul),
    "gram": (lambda a, b: xla_matmul(a.T, a), lambda a, b: fmm.jax.gram(a)),
    "gradient": (gradient_of(xla_matmul), gradient_of(fmm.jax.matmul)),
}


def blocking_seconds(call: Call, repeats: int) -> float:
    """Return the seconds of one of `repeats` calls until the last result is complete."""
    start, result = time.perf_counter(), None
    for _ in range(repeats):
        result = call()
    jax.block_until_ready(result)
    return (time.perf_counter() - start) / repeats


def relative_error(found: Any, exact: Any) -> float:
    """Return the Frobenius norm of the difference of two results over that of the second one."""
    pairs = list(zip(jax.tree.leaves(found), jax.tree.leaves(exact), strict=True))
    return float(max(jnp.linalg.norm(x - y) / jnp.linalg.norm(y) for x, y in pairs))


def measure_case(case: Case, rounds: int) -> Row:
    """Return the errors and the paired samples of both functions, and whether fmm's has a callback."""
    keys = jax.random.split(jax.random.key(case.side), 2)
    a, b = (jax.random.normal(key, (case.side, case.side), case.dtype) for key in keys)
    xla, own = (jax.jit(function) for function in FUNCTIONS[case.function])
    wide = "complex128" if case.dtype.startswith("complex") else "float64"
    exact = xla(a.astype(wide), b.astype(wide))
    errors = {name: float(f"{relative_error(f(a, b), exact):.3g}") for name, f in (("jax", xla), ("fmm", own))}
    del exact
    calls: dict[str, Call] = {"jax": partial(xla, a, b), "fmm": partial(own, a, b)}
    samples = rounded_samples(paired_samples(calls, rounds, SAMPLE_SECONDS, blocking_seconds))
    is_by_fmm = "custom_call" in own.lower(a, b).as_text()
    speedup = round(paired_speedup(samples["jax"], samples["fmm"]), 4)
    return {**case_fields(case), "errors": errors, "by_fmm": is_by_fmm, "speedup": speedup, "samples": samples}


def case_fields(case: Case) -> Row:
    """Return the fields that name a case in a row."""
    return {name: value for name, value in asdict(case).items() if name != "quick"}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    head = f"{row['function']:10}{row['dtype']:10}{row['side']:6}"
    if row["failure"]:
        return f"{head}  {row['failure'][:90]}"
    times = ", ".join(f"{name} {1e3 * median(seconds):.3f} ms" for name, seconds in row["samples"].items())
    errors = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
    return f"{head}{row['speedup']:7.2f}  {times}; errors: {errors}" + "  XLA's" * (not row["by_fmm"])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("jax_products", __doc__, time_limit=1e9, quick="one case, few rounds")
    options = parser.parse_args(arguments)
    jax.config.update("jax_enable_x64", True)
    cases = [case for case in CASES if case.quick or not options.quick]
    rounds = QUICK_ROUNDS if options.quick else ROUNDS
    measure = recorded_failure(lambda case: measure_case(case, rounds), case_fields)
    return has_failures(run_cases(options, machine_of("0"), "jax.json", cases, measure, text_line, jax=jax.__version__))
