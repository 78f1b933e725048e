"""float32 by three float16 products on a GPU: `python -m benchmarks.gpu_emulation [--quick]`.

Whole calls of fmm.matmul as a user makes them, scaling and splitting inside, against cupy.matmul (cuBLAS in float32),
in shuffled rounds, with what fmm chooses by the configs in force. Errors are those of the Frobenius norm of sampled
rows against float64, on normal numbers and on numbers uniform in [0, 1], as multiples of cuBLAS's. Raw samples go to
results/<device>/emulation.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks.clock import elapsed
from benchmarks.gpu import environment, results_folder

LEAST = 5.0  # milliseconds of a sample: shorter calls are repeated
SAMPLED_ROWS = 64


@dataclass(frozen=True)
class Case:
    size: tuple[int, int, int]
    target: float  # of the speed against cuBLAS's
    quick: bool = False


def square(side: int, target: float, quick: bool = False) -> Case:
    return Case((side, side, side), target, quick)


CASES = (
    square(1024, 1.6, True),
    square(2048, 2.6, True),
    square(4096, 3.4, True),
    square(8192, 3.9, True),
    square(16384, 4.3, True),
    square(32768, 4.7),
    square(65536, 4.9),
    square(8191, 3.3, True),
    square(10007, 3.3),
    Case((4096, 14336, 4096), 3.3, True),
    Case((16384, 1024, 16384), 3.3),
    Case((100000, 2048, 2048), 3.3),
    Case((2048, 50000, 2048), 3.3),
)


@dataclass
class Row:
    """Paired samples of one case, in seconds, and errors as multiples of cuBLAS's."""

    size: tuple[int, int, int]
    target: float
    plan: str = ""
    seconds: list[float] = field(default_factory=list)
    vendor_seconds: list[float] = field(default_factory=list)
    normal_error: float = float("nan")
    uniform_error: float = float("nan")
    failure: str = ""

    @property
    def speedup(self) -> float:
        return median(v / s for v, s in zip(self.vendor_seconds, self.seconds, strict=True)) if self.seconds else 0.0

    def __str__(self) -> str:
        size = " x ".join(map(str, self.size))
        if self.failure:
            return f"{size:>24}  {self.failure[:90]}"
        errors = f"{self.normal_error:6.2f}{self.uniform_error:6.2f}"
        return (
            f"{size:>24}{1e3 * median(self.seconds):10.3f} ms{self.speedup:7.2f}{self.target:6.1f}{errors}  {self.plan}"
        )


def drawn(shape: tuple[int, int], kind: str, seed: int) -> Any:
    rng = cupy.random.default_rng(seed)
    return rng.standard_normal(shape, np.float32) if kind == "normal" else rng.random(shape, np.float32)


def error(a: Any, b: Any, c: Any) -> float:
    """Of sampled rows."""
    rows = cupy.asarray(np.linspace(0, a.shape[0] - 1, SAMPLED_ROWS).astype(np.intp))
    norms = []
    for first in range(0, b.shape[1], 4096):  # a float64 copy of all of B may not fit
        exact = a[rows].astype(np.float64) @ b[:, first : first + 4096].astype(np.float64)
        off = c[rows, first : first + 4096].astype(np.float64) - exact
        norms.append((float(cupy.linalg.norm(off)) ** 2, float(cupy.linalg.norm(exact)) ** 2))
    found, whole = (sum(x) for x in zip(*norms, strict=True))
    return float((found / whole) ** 0.5)


def measured(case: Case, rounds: int) -> Row:
    """A case; one that fails is a row that says why."""
    row = Row(case.size, case.target)
    try:
        m, k, n = case.size
        for kind in ("uniform", "normal"):
            a, b = drawn((m, k), kind, 1), drawn((k, n), kind, 2)
            c = cupy.matmul(a, b)
            vendor = error(a, b, c)
            fmm.matmul(a, b, out=c)
            setattr(row, f"{kind}_error", error(a, b, c) / vendor)
        row.plan = str(fmm.explain(a, b, c).plan)
        calls = {"seconds": partial(fmm.matmul, a, b, out=c), "vendor_seconds": partial(cupy.matmul, a, b, out=c)}
        sample(calls, row, rounds)
    except Exception as failure:  # whatever may go wrong: the next case is measured
        row.failure = f"{type(failure).__name__}: {failure}"
    finally:
        a = b = c = None
        calls = {}
        cupy.get_default_memory_pool().free_all_blocks()
    return row


def sample(calls: Mapping[str, Callable[[], Any]], row: Row, rounds: int) -> None:
    """In shuffled rounds; before them both until graphs are captured."""
    repeats = {}
    for name, call in calls.items():
        for _ in range(8 if np.prod(row.size) < 1e11 else 1):
            call()
        repeats[name] = min(max(round(LEAST / max(1e3 * elapsed(call, 1), 1e-3)), 1), 200)
    for _ in range(rounds if np.prod(row.size) < 1e13 else 3):
        for name in random.sample(list(calls), len(calls)):
            getattr(row, name).append(elapsed(calls[name], repeats[name]))


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    folder, rows = options.output or results_folder(), []
    print(f"{'m x k x n':>24}{'time':>13}{'speedup':>7}{'target':>6}  errors  plan")
    for case in CASES:
        if case.quick or not options.quick:
            rows.append(measured(case, 5 if options.quick else 9))
            print(rows[-1], flush=True)
            content = {"environment": environment(), "rows": [asdict(row) for row in rows]}
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "emulation.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(any(row.failure for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
