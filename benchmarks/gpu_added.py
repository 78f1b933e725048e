"""What is added to a product, under torch's hook: `python -m benchmarks.gpu_added --out FILE`.

`torch.addmm` of a bias (a row for all rows, as nn.Linear has it) and of a matrix, and `addmm_` in place: torch's own,
with fmm installed, and with fmm installed as a product and a sum of its own (`torch.mm(a, b).add_(...)`), which is what
adding costs where it is a pass by itself. Beside them the product alone. Shuffled rounds, raw seconds.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

import torch

import fmm
from benchmarks.harness import gpu_environment, gpu_seconds

CASES = "float32:2048,float32:4096,float32:8192,bfloat16:8192,bfloat16:16384,float64:4096"
LEAST = 2e-3  # seconds of a sample
WARM = 5
BOUND = {"float32": 1e-5, "float64": 1e-13, "bfloat16": 2e-2}  # of the difference from torch's own, relative
WAYS = {"torch": ("addmm", False), "fmm": ("addmm", True), "apart": ("apart", True), "product": ("mm", True)}


def calls(dtype: str, n: int, what: str) -> dict[str, Callable[[], Any]]:
    """The product with what is added, the same in two steps, and the product alone."""
    kind = getattr(torch, dtype)
    a, b, full = (torch.randn(n, n, device="cuda", dtype=torch.float32).to(kind) for _ in range(3))
    added = full[0] if what == "row" else full
    if what == "in place":
        scale = n**-0.5  # so that what is there stays as large as it is, call after call
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


def sampled(call: Callable[[], Any], installed: bool, repeats: int) -> float:
    with fmm.installed("torch") if installed else nullcontext():
        call()
        return gpu_seconds(call, repeats)


def measured(dtype: str, n: int, what: str, rounds: int) -> dict[str, Any]:
    found = calls(dtype, n, what)
    with fmm.installed("torch"):
        for call in found.values():
            gpu_seconds(call, WARM)
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    repeats = max(int(LEAST / sampled(found["addmm"], True, WARM)), 1)
    for _ in range(rounds):
        for name in random.sample(list(WAYS), len(WAYS)):
            which, installed = WAYS[name]
            seconds[name].append(sampled(found[which], installed, repeats))
    return {"dtype": dtype, "n": n, "added": what, "seconds": seconds, "apart": difference(dtype, n, what)}


def difference(dtype: str, n: int, what: str) -> float:
    """Between torch's own and fmm's, from the same numbers, relative in the Frobenius norm."""
    results = []
    for installed in (False, True):
        torch.manual_seed(n)
        with fmm.installed("torch") if installed else nullcontext():
            results.append(calls(dtype, n, what)["addmm"]().double())
    return float((results[0] - results[1]).norm() / results[0].norm())


def shown(row: dict[str, Any]) -> str:
    middle = {name: median(x) for name, x in row["seconds"].items()}
    named = ", ".join(f"{name} {1e3 * x:.3f}" for name, x in middle.items())
    gain = median(x / y for x, y in zip(row["seconds"]["torch"], row["seconds"]["fmm"], strict=True))
    return f"{row['dtype']:9}{row['n']:6} {row['added']:9} {gain:5.2f}  ms: {named}; apart by {row['apart']:.1e}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default=CASES, help="type:side")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args(arguments)
    random.seed(1)
    told: dict[str, Any] = {"environment": {**gpu_environment(), "torch": torch.__version__}, "rows": []}
    told["environment"]["command"] = " ".join(["python -m benchmarks.gpu_added", *(arguments or sys.argv[1:])])
    for case in given.cases.split(","):
        dtype, side = case.split(":")
        for what in ("row", "matrix", "in place"):
            told["rows"].append(measured(dtype, int(side), what, given.rounds))
            print(shown(told["rows"][-1]), flush=True)
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    return int(any(row["apart"] > BOUND[row["dtype"]] for row in told["rows"]))


if __name__ == "__main__":
    raise SystemExit(main())
