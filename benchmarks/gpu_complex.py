"""Complex products on a GPU: `python -m benchmarks gpu_complex [--quick] [--chosen | --emulation]`.

Whole calls of fmm.matmul, with splitting and joining inside the time, against cupy.matmul: fmm's own choice, named
plans (the level 3m, then plans of real numbers), cuBLAS's own complex product by three real ones, and the three real
products alone, which bound the gain of 3m. With --emulation, the named plans are those of EMULATING_PLANS. Samples, in
milliseconds, go to results/<device>/complex.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import cupy

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    environment_variable,
    free_gpu_memory,
    machine_of,
    paired_samples,
    paired_speedup,
    quick_cases,
    run_cases,
)
from benchmarks.matrices import REAL_PART_TYPES, random_matrix, relative_error

ROUNDS, QUICK_ROUNDS = 11, 5
SAMPLE_SECONDS = 10e-3  # seconds of a sample


class Case(NamedTuple):
    """A product of square matrices, named plans, and the target of the speedup."""

    dtype: str
    side: int
    plans: tuple[str, ...] = ()
    target: float = 1.0
    quick: bool = False


# one and two levels of each real product, in one pass
ONE_LEVEL_EACH, TWO_LEVELS_EACH = "3m(strassen.pad16) > vendor", "3m(strassen^2.pad16) > vendor"
ONE_PASS_1, ONE_PASS_2, ONE_PASS_3 = (f"strassen{power}.batched.pad16 > vendor" for power in ("", "^2", "^3"))
OUTER_AND_PASS_3 = f"strassen.overlapped.pad16 > {ONE_PASS_3}"
CASES = (
    Case("complex64", 2048, ("3m.batched > vendor", ONE_LEVEL_EACH, f"3m > {ONE_PASS_1}"), 1.25, quick=True),
    Case(
        "complex64",
        4096,
        (ONE_LEVEL_EACH, TWO_LEVELS_EACH, f"3m > {ONE_PASS_3}", f"3m.overlapped > {ONE_PASS_3}"),
        1.55,
        quick=True,
    ),
    Case("complex64", 8192, (TWO_LEVELS_EACH, f"3m > {ONE_PASS_3}", f"3m.overlapped > {ONE_PASS_3}"), 1.70, quick=True),
    Case(
        "complex64",
        16384,
        (f"3m.overlapped > {ONE_PASS_3}", f"3m > {OUTER_AND_PASS_3}", f"3m.sequential > {OUTER_AND_PASS_3}"),
        2.02,
    ),
    Case("complex128", 2048, ("3m.batched > vendor", "3m > vendor", ONE_LEVEL_EACH), 1.20, quick=True),
    Case(
        "complex128",
        4096,
        (ONE_LEVEL_EACH, TWO_LEVELS_EACH, f"3m > {ONE_PASS_2}", f"3m.overlapped > {ONE_PASS_3}"),
        1.48,
        quick=True,
    ),
    Case("complex128", 8192, (f"3m > {ONE_PASS_3}", f"3m.overlapped > {ONE_PASS_3}", f"3m > {OUTER_AND_PASS_3}"), 1.75),
    Case(
        "complex128",
        12288,
        (f"3m.overlapped > {ONE_PASS_3}", f"3m > {OUTER_AND_PASS_3}", f"3m.sequential > {ONE_PASS_3}"),
        1.92,
    ),
)
EMULATING_PLANS = {
    "complex64": ("3m.batched > f16x3", *(f"residues2m({count}) > bytes" for count in (7, 8))),
    "complex128": (
        "3m > residues(14) > bytes",
        *(f"residues2m({count}) > bytes" for count in (15, 17)),
        "residues2m(15) > strassen > bytes",
    ),
}


def three_real_products(side: int, dtype: str) -> Call:
    """Return the call of the three real products that 3m leaves to be multiplied."""
    x, y = (random_matrix("cupy", (side, side), REAL_PART_TYPES[dtype], seed=seed) for seed in (1, 2))
    out = cupy.empty_like(x)
    return lambda: [fmm.matmul(x, y, out) for _ in range(3)]


def measure_case(case: Case, rounds: int, chosen_only: bool, emulation: bool = False) -> Row:
    """Measure fmm's choice with and without emulation and, unless `chosen_only`, the case's plans.

    With `emulation`, the plans of EMULATING_PLANS replace the case's plans.
    """
    a, b = (random_matrix("cupy", (case.side, case.side), case.dtype, seed=seed) for seed in (1, 2))
    plans = EMULATING_PLANS[case.dtype] if emulation else () if chosen_only else (*case.plans, "vendor3m")
    calls: dict[str, Callable[[], Any]] = {"vendor": partial(cupy.matmul, a, b), "fmm": partial(fmm.matmul, a, b)}
    calls |= {plan: partial(fmm.matmul, a, b, plan=plan) for plan in plans}
    with environment_variable("FMM_EMULATION", "0"):
        without_emulation = str(fmm.explain(a, b).plan)
    calls["without emulation"] = partial(fmm.matmul, a, b, plan=without_emulation)
    errors = {name: relative_error(a, b, call()) for name, call in calls.items()}
    if not (chosen_only or emulation):
        calls["three real products"] = three_real_products(case.side, case.dtype)
    chosen, seconds = fmm.explain(a, b), paired_samples(calls, rounds, SAMPLE_SECONDS)
    samples = {name: [1e3 * x for x in found] for name, found in seconds.items()}
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


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    found = ", ".join(f"{name} {ratio:.3f}" for name, ratio in row["speedups"].items() if name != "vendor")
    return f"{row['dtype']} {row['side']}: {found}, target {row['target']}; chosen {row['chosen']} ({row['answered']})"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_complex", __doc__, quick="fewer cases and rounds")
    add = parser.add_argument
    add("--only", default="", help="cases whose 'type side ' contains one of these, separated by commas")
    add("--chosen", action="store_true", help="fmm's choice alone, with and without emulation")
    add("--emulation", action="store_true", help="fmm's choice, and plans by products of bytes or float16 numbers")
    add("--rounds", type=int, help=f"({ROUNDS}, with --quick {QUICK_ROUNDS})")
    options = parser.parse_args(arguments)
    rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    cases = quick_cases(CASES, options.quick)
    cases = [case for case in cases if any(x in f"{case.dtype} {case.side} " for x in options.only.split(","))]
    measure = partial(measure_case, rounds=rounds, chosen_only=options.chosen, emulation=options.emulation)
    run_cases(options, machine_of("0"), "complex.json", cases, measure, text_line)
    return 0
