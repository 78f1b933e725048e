"""Exact integer products against the library's own: `python -m benchmarks.integers [--device 0] [--quick]
[--output FOLDER]`.

Whole calls of fmm.matmul and of the library's product (numpy.matmul; on a device cupy.matmul), by turns, on random
numbers of the whole range of their type or of fewer bits; some by plans that are named, to see what a level below the
residues gains. Every result is compared with the library's, of which all rows, or so many as there is time for, are
computed: NumPy's loops, like CuPy's kernel, take as long for each row, so its time for so many rows is that share of
the whole product's (`rows` says how many). Raw samples in seconds are written to integers.json in results/<device>/.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fmm
from fmm.tuner.trials.environment import device_folder, environment

ROOT = Path(__file__).parents[1]
# A library's product is given about so many multiply-adds at most; fmm's are repeated for so many seconds, so often.
MOST_WORK = {"cpu": 1e8, "cuda": 1e12}
SECONDS, LEAST_ROUNDS, MOST_ROUNDS = 2.0, 3, 25
QUICK = 0.01  # seconds below which the library's product is made as often as fmm's


@dataclass(frozen=True)
class Case:
    dtype: str
    side: int
    bits: int = 0  # of the magnitudes; 0: the whole range of the type
    target: float = 1.0  # the speedup that is asked for
    quick: bool = False
    plan: str = ""  # none: what fmm chooses


PLAIN, FAST = "residues > bytes", "residues > strassen > bytes"
CPU_CASES = (
    Case("int64", 128, target=1.0, quick=True),
    Case("int64", 256),
    Case("int64", 512),
    Case("int64", 1024, target=20.0, quick=True),
    Case("int64", 2048, bits=20, target=60.0, quick=True),
    Case("int64", 2048),
    Case("int64", 4096, target=40.0, quick=True),
    Case("int64", 1024, bits=40),
    Case("int32", 1024),
    Case("int32", 2048),
    Case("int16", 1024),
    Case("int8", 1024),
    Case("int8", 2048),
    Case("uint64", 1024),
    Case("bool", 1024),
)
CUDA_CASES = (
    Case("int64", 2048, quick=True),
    Case("int64", 4096, quick=True),
    Case("int64", 8192, target=20.0, quick=True),
    Case("int64", 8192, bits=20),
    Case("int32", 4096),
    Case("int32", 8192, quick=True),
    Case("int16", 8192, quick=True),
    Case("int8", 8192, quick=True),
    Case("int32", 8192, quick=True, plan=PLAIN),
    Case("int16", 8192, quick=True, plan=FAST),
    Case("int32", 16384, quick=True, plan=PLAIN),
    Case("int32", 16384, quick=True, plan=FAST),
)


@dataclass
class Row:
    """Samples of one case, in seconds; the library's are of `rows` rows of the product."""

    dtype: str
    side: int
    bits: int
    target: float
    plan: str = ""
    runs: list[str] = field(default_factory=list)
    workspace: int = 0
    rows: int = 1
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    equal: bool = False
    failure: str = ""

    @property
    def speedup(self) -> float:
        whole = median(self.vendor) * self.side / self.rows if self.vendor else 0.0
        return whole / median(self.candidate) if self.candidate else 0.0


def numbers(module: Any, case: Case, seed: int) -> Any:
    """A square matrix of such numbers, on the host or on the device."""
    draw = np.random.default_rng(seed)
    if case.dtype == "bool":
        return module.asarray(draw.random((case.side, case.side)) < 0.1)
    i = np.iinfo(case.dtype)
    least, most = (-(1 << case.bits) + 1, (1 << case.bits) - 1) if case.bits else (int(i.min), int(i.max))
    return module.asarray(draw.integers(least, most, (case.side,) * 2, dtype=case.dtype, endpoint=True))


def measured(module: Any, finished: Callable[[], Any], case: Case, most_work: float) -> Row:
    a, b = numbers(module, case, 1), numbers(module, case, 2)
    rows = int(min(max(most_work / case.side**2, 4), case.side))
    named = case.plan or None
    decision = fmm.explain(a, b, plan=named)
    plan, runs = str(decision.plan), list(decision.kernels)
    row = Row(case.dtype, case.side, case.bits, case.target, plan, runs, decision.workspace, rows)
    for _ in range(2):
        found = fmm.matmul(a, b, plan=named)  # compiles, and finds fresh pages
    finished()
    begin = time.perf_counter()
    while len(row.candidate) < MOST_ROUNDS and (
        len(row.candidate) < LEAST_ROUNDS or time.perf_counter() - begin < SECONDS
    ):
        row.candidate.append(seconds(lambda: fmm.matmul(a, b, plan=named), finished))
        if len(row.vendor) < LEAST_ROUNDS or row.vendor[-1] < QUICK:
            row.vendor.append(seconds(lambda: module.matmul(a[:rows], b), finished))
    row.equal = bool((found[:rows] == module.matmul(a[:rows], b)).all())
    return row


def seconds(call: Callable[[], Any], finished: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    finished()
    return time.perf_counter() - start


def measure_all(device: str, quick: bool) -> Iterator[Row]:
    """A case that fails is a row that says why."""
    module, finished = modules(device)
    for case in CPU_CASES if device == "cpu" else CUDA_CASES:
        if case.quick or not quick:
            try:
                yield measured(module, finished, case, MOST_WORK["cpu" if device == "cpu" else "cuda"])
            except Exception as error:
                failure = f"{type(error).__name__}: {error}"
                yield Row(case.dtype, case.side, case.bits, case.target, failure=failure)


def modules(device: str) -> tuple[Any, Callable[[], Any]]:
    """The library, and what waits until the device has done all."""
    if device == "cpu":
        return np, lambda: None
    import cupy

    cupy.cuda.Device(int(device)).use()
    return cupy, cupy.cuda.get_current_stream().synchronize


def line(row: Row) -> str:
    what = f"{row.dtype} {row.side}, {f'{row.bits} bits' if row.bits else 'whole range'}"
    if row.failure:
        return f"{what:28} FAILED {row.failure}"
    verdict = "equal" if row.equal else "NOT EQUAL"
    ours = median(row.candidate)
    return f"{what:28} {ours * 1e3:10.3f} ms  {row.speedup:8.2f} times  (asked {row.target:g})  {verdict}  {row.plan}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Exact integer products against the library's own.")
    parser.add_argument("--device", default="cpu", help="cpu, or the number of a CUDA device")
    parser.add_argument("--quick", action="store_true", help="the cases that have a target, and no others")
    parser.add_argument("--output", type=Path, help="a folder for integers.json (results/<device>/ unless given)")
    given = parser.parse_args()
    command = ["python", "-m", "benchmarks.integers", *sys.argv[1:]]
    if given.device == "cpu":
        where, folder = environment(command), ROOT / "results" / device_folder()
    else:
        from benchmarks.harness import gpu_environment, gpu_folder

        where, folder = gpu_environment(), gpu_folder()
    folder = given.output or folder
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in measure_all(given.device, given.quick):
        rows.append(row)
        print(line(row), flush=True)
        content = {"environment": where, "rows": [asdict(row) for row in rows]}
        (folder / "integers.json").write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return int(any(row.failure or not row.equal for row in rows))


if __name__ == "__main__":
    sys.exit(main())
