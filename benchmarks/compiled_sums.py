"""Sums in compiled loops against NumPy's: `python -m benchmarks.compiled_sums [--side 8192] [--dtype float64]`.

Whole calls of fmm.matmul by two levels, one after the other and in one pass, each with NumPy's sums and with compiled
ones, beside NumPy's own product, in shuffled rounds; results are compared bit by bit. Needs llvmlite. Raw seconds go
to results/<device>/compiled-sums-<type>.json.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import write_result
from fmm.config.certify import median_interval, paired_ratios
from fmm.kernels.cpu import compiled_sums
from fmm.tuner.trials.environment import device_folder, environment

RESULTS = Path(__file__).parents[1] / "results"
PLANS = ("winograd > winograd > vendor", "winograd^2 > vendor", "winograd > winograd > winograd > vendor")
found_at_first = compiled_sums.compiler_found


def with_sums(compiled: bool, call: Callable[[], object]) -> object:
    """The call, its sums compiled or NumPy's."""
    compiled_sums.compiler_found = found_at_first if compiled else _never  # type: ignore[assignment]
    try:
        return call()
    finally:
        compiled_sums.compiler_found = found_at_first


def _never() -> bool:
    return False


def measured(side: int, dtype: str, rounds: int, limit: float) -> dict[str, Any]:
    """Seconds of every call in shuffled rounds, the first of which does not count; as many as there is time for."""
    began, rng, kind = perf_counter(), np.random.default_rng(side), np.dtype(dtype).type
    a, b = (rng.standard_normal((side, side), kind) for _ in range(2))
    c = np.empty_like(a)
    calls: dict[str, Callable[[], object]] = {"numpy": partial(np.matmul, a, b, out=c)}
    for plan in PLANS:
        for compiled in (False, True):
            call = partial(fmm.matmul, a, b, out=c, plan=plan)
            calls[f"{plan}, {'compiled' if compiled else 'NumPy'}"] = partial(with_sums, compiled, call)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    same = []
    for plan in PLANS:
        calls[f"{plan}, NumPy"]()
        expected = c.copy()
        calls[f"{plan}, compiled"]()
        same.append(bool(np.array_equal(expected, c)))
    for number in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            start = perf_counter()
            calls[name]()
            seconds[name].append(perf_counter() - start)
        if number and (perf_counter() - began) * (1 + 1 / (number + 1)) > limit:
            break
    return {"side": side, "dtype": dtype, "bitwise_equal": same, "seconds": seconds}


def lines(row: dict[str, Any]) -> list[str]:
    """NumPy's time over each, and a plan's with NumPy's sums over the same with compiled ones."""
    found, seconds = [f"{row['dtype']}, {row['side']}: equal bit by bit: {row['bitwise_equal']}"], row["seconds"]
    for name, own in seconds.items():
        low, high = median_interval(paired_ratios(tuple(seconds["numpy"]), tuple(own)))
        middle = float(np.median(np.array(seconds["numpy"]) / np.array(own)))
        found.append(f"  {name:52} {np.median(own):8.3f} s  {middle:.3f} ({low:.3f} to {high:.3f}) of NumPy's speed")
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--side", type=int, default=8192)
    parser.add_argument("--dtype", action="append", help="only this type (may be repeated)")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--time-limit", type=float, default=300, help="seconds of a type after which no round begins")
    parser.add_argument("--output", type=Path, help="a folder (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    if not compiled_sums.compiler_found():
        print("llvmlite is not installed, or does not work here", file=sys.stderr)
        return 2
    folder = options.output or RESULTS / device_folder()
    for dtype in options.dtype or ("float64", "float32"):
        row = measured(options.side, dtype, options.rounds, options.time_limit)
        where = environment(["python -m benchmarks.compiled_sums", *arguments])
        write_result(folder / f"compiled-sums-{dtype}.json", {"environment": where, "rows": [row]})
        print(*lines(row), sep="\n", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
