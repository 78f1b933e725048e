"""Complex products on a GPU: `python -m benchmarks gpu_complex [--quick] [--chosen] [--update]`.

Whole calls of fmm.matmul, splitting and joining inside, against cupy.matmul: fmm's own choice, named plans (the level
3m above plans of real numbers), the three real products alone, which bound the gain of 3m, and cuBLAS's own complex
product by three real ones. With --update: fmm.gemm in place (beta 1) against cuBLAS's gemm. Samples go to
results/<device>/complex.json or update.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import cupy
import numpy as np

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    environment_variable,
    free_gpu_memory,
    gpu_folder,
    measure_cases,
    paired_samples,
    paired_speedup,
)

ROUNDS, QUICK_ROUNDS = 11, 5
SAMPLE = 10e-3  # seconds of a sample
SAMPLED = 4, 256  # rows and columns of C that are compared with a product in higher precision
REAL = {"complex64": "float32", "complex128": "float64"}


class Case(NamedTuple):
    """A product of square matrices, plans beside fmm's choice, and the speedup hoped for."""

    dtype: str
    side: int
    plans: tuple[str, ...]
    target: float
    quick: bool = False


ONE, TWO = "3m(strassen.pad16) > vendor", "3m(strassen^2.pad16) > vendor"  # with a level of each product, in one pass
B1, B2, B3 = (f"strassen{power}.batched.pad16 > vendor" for power in ("", "^2", "^3"))
OUTER = f"strassen.overlapped.pad16 > {B3}"
CASES = (
    Case("complex64", 2048, ("3m.batched > vendor", ONE, f"3m > {B1}"), 1.25, quick=True),
    Case("complex64", 4096, (ONE, TWO, f"3m > {B3}", f"3m.overlapped > {B3}"), 1.55, quick=True),
    Case("complex64", 8192, (TWO, f"3m > {B3}", f"3m.overlapped > {B3}"), 1.70, quick=True),
    Case("complex64", 16384, (f"3m.overlapped > {B3}", f"3m > {OUTER}", f"3m.sequential > {OUTER}"), 2.02),
    Case("complex128", 2048, ("3m.batched > vendor", "3m > vendor", ONE), 1.20, quick=True),
    Case("complex128", 4096, (ONE, TWO, f"3m > {B2}", f"3m.overlapped > {B3}"), 1.48, quick=True),
    Case("complex128", 8192, (f"3m > {B3}", f"3m.overlapped > {B3}", f"3m > {OUTER}"), 1.75),
    Case("complex128", 12288, (f"3m.overlapped > {B3}", f"3m > {OUTER}", f"3m.sequential > {B3}"), 1.92),
)
UPDATES = (("float32", 8192), ("float64", 8192), ("bfloat16", 8192), ("complex64", 8192), ("float32", 2048))


def milliseconds(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Return the samples of every call in shuffled rounds, in milliseconds."""
    samples = paired_samples(calls, rounds, SAMPLE)
    return {name: [1e3 * x for x in found] for name, found in samples.items()}


def random_normal(side: int, dtype: str) -> Any:
    """Return a square matrix of normal numbers; the parts of a complex matrix are independent."""
    if dtype in REAL:
        parts = [cupy.random.standard_normal((side, side), dtype=REAL[dtype]) for _ in range(2)]
        return parts[0] + cupy.asarray(1j, dtype) * parts[1]
    return cupy.random.standard_normal((side, side), dtype=dtype)


def three_real_products(side: int, dtype: str) -> Call:
    """Return the call of the three real products that 3m leaves to be multiplied."""
    x, y = (cupy.random.standard_normal((side, side), dtype=REAL[dtype]) for _ in range(2))
    out = cupy.empty_like(x)

    def run() -> None:
        for _ in range(3):
            fmm.matmul(x, y, out)

    return run


def relative_error(c: Any, a: Any, b: Any) -> float:
    """Return the error of a few rows and columns in norm, against NumPy in extended precision."""
    rows, cols = SAMPLED
    left, right = (x.get().astype(np.clongdouble) for x in (a[:rows], b[:, :cols]))
    expected = left @ right
    found = c[:rows, :cols].get()
    return float(np.linalg.norm((found - expected).astype(complex)) / np.linalg.norm(expected.astype(complex)))


def measured_product(case: Case, rounds: int, chosen_only: bool) -> Row:
    """Measure fmm's choice with and without emulation and, unless `chosen_only`, the case's plans beside it."""
    a, b = (random_normal(case.side, case.dtype) for _ in range(2))
    plans = () if chosen_only else (*case.plans, "vendor3m")
    calls: dict[str, Callable[[], Any]] = {"vendor": partial(cupy.matmul, a, b), "fmm": partial(fmm.matmul, a, b)}
    calls |= {plan: partial(fmm.matmul, a, b, plan=plan) for plan in plans}
    with environment_variable("FMM_EMULATION", "0"):
        without_emulation = str(fmm.explain(a, b).plan)
    calls["without emulation"] = partial(fmm.matmul, a, b, plan=without_emulation)
    errors = {name: relative_error(call(), a, b) for name, call in calls.items()}
    if not chosen_only:
        calls["three real products"] = three_real_products(case.side, case.dtype)
    samples = milliseconds(calls, rounds)
    chosen = fmm.explain(a, b)
    free_gpu_memory()
    return {
        "kind": "product",
        "chosen_without_emulation": without_emulation,
        **case._asdict(),
        "chosen": str(chosen.plan),
        "answered": chosen.source,
        "errors": errors,
        "speedups": {name: paired_speedup(samples["vendor"], found) for name, found in samples.items()},
        "samples": samples,
    }


def measured_update(dtype: str, side: int, rounds: int) -> Row:
    """Measure C = 1.5 A B + C in place; bfloat16 by torch, since CuPy has no such type."""
    calls: dict[str, Call]
    if dtype == "bfloat16":
        import torch

        a, b, c = (torch.randn((side, side), device="cuda", dtype=torch.bfloat16) for _ in range(3))
        calls = {"vendor": partial(torch.addmm, c, a, b, alpha=1.5, beta=1, out=c)}
    else:
        a, b, c = (random_normal(side, dtype) for _ in range(3))
        calls = {"vendor": partial(fmm.gemm, a, b, c, alpha=1.5, beta=1, out=c, plan="vendor")}
    calls["fmm"] = partial(fmm.gemm, a, b, c, alpha=1.5, beta=1, out=c)
    samples = milliseconds(calls, rounds)
    chosen = fmm.explain_gemm(a, b, c, alpha=1.5, beta=1, out=c)
    free_gpu_memory()
    speedups = {"fmm": paired_speedup(samples["vendor"], samples["fmm"])}
    names = {"kind": "update", "dtype": dtype, "side": side, "chosen": str(chosen.plan), "answered": chosen.source}
    return {**names, "speedups": speedups, "samples": samples}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    found = ", ".join(f"{name} {ratio:.3f}" for name, ratio in row["speedups"].items() if name != "vendor")
    target = f", target {row['target']}" if "target" in row else ""
    return f"{row['kind']} {row['dtype']} {row['side']}: {found}{target}; chosen {row['chosen']} ({row['answered']})"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_complex", __doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer cases and rounds")
    add("--update", action="store_true", help="fmm.gemm instead of fmm.matmul")
    add("--only", default="", help="cases whose 'type side ' contains one of these, separated by commas")
    add("--chosen", action="store_true", help="fmm's choice alone, with and without emulation")
    add("--rounds", type=int, help=f"{ROUNDS}, with --quick {QUICK_ROUNDS}, unless given")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    tasks: list[Callable[[], Row]]
    if options.update:
        tasks = [partial(measured_update, *x, rounds) for x in (UPDATES[:2] if options.quick else UPDATES)]
    else:
        named = [case for case in CASES if any(x in f"{case.dtype} {case.side} " for x in options.only.split(","))]
        cases = [case for case in named if case.quick or not options.quick]
        tasks = [partial(measured_product, case, rounds, options.chosen) for case in cases]
    path = (options.output or gpu_folder()) / ("update.json" if options.update else "complex.json")
    measure_cases(tasks, lambda task: task(), path, text_line)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
