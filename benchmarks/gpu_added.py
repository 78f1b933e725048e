"""Products with an addend under torch's hook: `python -m benchmarks gpu_added [--cases float32:4096,...]`.

`torch.addmm` of a bias (a row for all rows, as nn.Linear has it) and of a matrix, and `addmm_` in place: torch's own,
with fmm installed, and with fmm installed as a product and a separate sum (`torch.mm(a, b).add_(...)`), the cost of
adding in a pass of its own. Beside them the product alone. Samples go to results/<device>/added.json.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from statistics import median
from typing import Any

import torch

import fmm
from benchmarks.harness import (
    Row,
    benchmark_parser,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    measure_cases,
    paired_speedup,
    repeats_of,
    shuffled_rounds,
)

CASES = "float32:2048,float32:4096,float32:8192,bfloat16:8192,bfloat16:16384,float64:4096"
ADDENDS = ("row", "matrix", "in place")
SAMPLE = 2e-3  # seconds of a sample
WARM = 5
TOLERANCE = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 2e-2}  # relative difference from torch's own result
# By name: the call, and whether fmm is installed.
VARIANTS = {"torch": ("addmm", False), "fmm": ("addmm", True), "apart": ("apart", True), "product": ("mm", True)}


def addend_calls(dtype: str, n: int, addend: str) -> dict[str, Callable[[], Any]]:
    """Return the product with its addend, the same in two steps, and the product alone."""
    kind = getattr(torch, dtype)
    a, b, full = (torch.randn(n, n, device="cuda", dtype=torch.float32).to(kind) for _ in range(3))
    added = full[0] if addend == "row" else full
    if addend == "in place":
        scale = n**-0.5  # keeps the numbers in C as large as they are, call after call
        return {
            "addmm": lambda: full.addmm_(a, b, beta=0.5, alpha=0.5 * scale),
            "apart": lambda: full.mul_(0.5).add_(torch.mm(a, b), alpha=0.5 * scale),
            "mm": lambda: torch.mm(a, b),
        }
    return {
        "addmm": lambda: torch.addmm(added, a, b),
        "apart": lambda: torch.mm(a, b).add_(added),
        "mm": lambda: torch.mm(a, b),
    }


def measured(dtype: str, n: int, addend: str, rounds: int) -> Row:
    """Measure one case: seconds by variant, and how far torch's result and fmm's differ."""
    calls = addend_calls(dtype, n, addend)
    with fmm.installed("torch"):
        for call in calls.values():
            gpu_seconds(call, WARM)

    def variant_seconds(name: str, repeats: int) -> float:
        which, installed = VARIANTS[name]
        with fmm.installed("torch") if installed else nullcontext():
            calls[which]()
            return gpu_seconds(calls[which], repeats)

    repeats = repeats_of(variant_seconds("fmm", WARM), SAMPLE, most=1 << 20)
    seconds = shuffled_rounds({name: name for name in VARIANTS}, rounds, variant_seconds, repeats)
    return {"dtype": dtype, "n": n, "added": addend, "seconds": seconds, "apart": difference(dtype, n, addend)}


def difference(dtype: str, n: int, addend: str) -> float:
    """Return how far torch's own result and fmm's, of the same numbers, differ in the Frobenius norm, relatively."""
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
    random.seed(1)
    named = [case.split(":") for case in options.cases.split(",")]
    cases = [(dtype, int(side), addend) for dtype, side in named for addend in ADDENDS]
    path = (options.output or gpu_folder()) / "added.json"
    rows = measure_cases(
        cases,
        lambda case: measured(case[0], case[1], case[2], options.rounds),
        path,
        text_line,
        lambda: gpu_environment(torch=torch.__version__),
    )
    return int(any(row["apart"] > TOLERANCE[row["dtype"]] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
