"""Products with an addend under torch's hook: `python -m benchmarks gpu_added [--cases float32:4096,...]`.

The products are `torch.addmm` of a bias (one row for all rows, as in nn.Linear) and of a matrix, and `addmm_` in place.
Each is timed by torch alone, with fmm installed, and with fmm installed as a product and a separate sum, which takes a
pass of its own. The product alone is timed too. Samples go to results/<device>/added.json.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from itertools import product
from statistics import median
from typing import Any

import torch

import fmm
from benchmarks.harness import (
    Row,
    benchmark_parser,
    gpu_seconds,
    machine_of,
    paired_speedup,
    repeats_of,
    run_cases,
    shuffled_rounds,
)

CASES = "float32:2048,float32:4096,float32:8192,bfloat16:8192,bfloat16:16384,float64:4096"
ADDEND_KINDS = ("row", "matrix", "in place")
SAMPLE_SECONDS = 2e-3  # seconds of a sample
WARM_CALLS = 5
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 2e-2}  # relative difference from torch's own result
# By name: the call, and whether fmm is installed.
VARIANTS = {"torch": ("addmm", False), "fmm": ("addmm", True), "apart": ("apart", True), "product": ("mm", True)}


def addend_calls(dtype: str, n: int, addend: str) -> dict[str, Callable[[], Any]]:
    """Return the product with its addend, the product and the sum in two steps, and the product alone."""
    a, b, c = (torch.randn(n, n, device="cuda").to(getattr(torch, dtype)) for _ in range(3))
    calls = {"mm": lambda: torch.mm(a, b)}
    if addend == "in place":
        scale = n**-0.5  # keeps the numbers in C equally large, call after call
        return calls | {
            "addmm": lambda: c.addmm_(a, b, beta=0.5, alpha=0.5 * scale),
            "apart": lambda: c.mul_(0.5).add_(torch.mm(a, b), alpha=0.5 * scale),
        }
    bias = c[0] if addend == "row" else c
    return calls | {"addmm": lambda: torch.addmm(bias, a, b), "apart": lambda: torch.mm(a, b).add_(bias)}


def measure_case(case: tuple[str, int, str], rounds: int) -> Row:
    """Return the seconds by variant, and the difference of torch's result and fmm's."""
    dtype, n, addend = case
    calls = addend_calls(*case)

    def variant_seconds(name: str, repeats: int) -> float:
        which, installed = VARIANTS[name]
        with fmm.installed("torch") if installed else nullcontext():
            calls[which]()
            return gpu_seconds(calls[which], repeats)

    for name in VARIANTS:
        variant_seconds(name, WARM_CALLS)
    repeats = repeats_of(variant_seconds("fmm", WARM_CALLS), SAMPLE_SECONDS, most=1 << 20)
    seconds = shuffled_rounds({name: name for name in VARIANTS}, rounds, variant_seconds, repeats)
    return {"dtype": dtype, "n": n, "added": addend, "seconds": seconds, "apart": relative_difference(*case)}


def relative_difference(dtype: str, n: int, addend: str) -> float:
    """Return the relative difference of torch's own result and fmm's in the Frobenius norm."""
    results = []
    for installed in (False, True):
        torch.manual_seed(n)
        with fmm.installed("torch") if installed else nullcontext():
            results.append(addend_calls(dtype, n, addend)["addmm"]().double())
    return float((results[0] - results[1]).norm() / results[0].norm())


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    times = ", ".join(f"{name} {1e3 * median(x):.3f}" for name, x in row["seconds"].items())
    gain = paired_speedup(row["seconds"]["torch"], row["seconds"]["fmm"])
    return f"{row['dtype']:9}{row['n']:6} {row['added']:9} {gain:5.2f}  ms: {times}; difference {row['apart']:.1e}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a result differs from torch's by more than the tolerance."""
    parser = benchmark_parser("gpu_added", __doc__)
    parser.add_argument("--cases", default=CASES, help="type:side, separated by commas")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    sides = [(dtype, int(n)) for dtype, _, n in (case.partition(":") for case in options.cases.split(","))]
    cases = [(*side, addend) for side, addend in product(sides, ADDEND_KINDS)]
    machine = machine_of("0")
    rows = run_cases(
        options,
        machine,
        "added.json",
        cases,
        lambda case: measure_case(case, options.rounds),
        text_line,
        torch=torch.__version__,
    )
    return int(any(row["apart"] > TOLERANCE[row["dtype"]] for row in rows))
