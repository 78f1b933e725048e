"""Products of a matrix and its transpose on this device: `python -m benchmarks.gram [--quick] [--output FOLDER]`.

Whole calls, in shuffled rounds, by CUDA events: fmm.gram's lower half against cuBLAS's syrk (also as FMM_EMULATION=0
has it), fmm.matmul(x, x.T) against the library's own product, and Newton-Schulz steps against torch's.
Results are checked first: symmetric bit for bit, and sampled rows against float64. Raw samples are written to gram.json
in results/<device>/.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Literal

import cupy
import numpy as np

import fmm
from benchmarks.harness import gpu_environment, gpu_folder
from fmm.tuner.devices.cuda import event_milliseconds

Kind = Literal["syrk", "matmul", "newton-schulz", "plan"]
SAMPLED_ROWS, SAMPLED_COLS = 16, 1024
LEAST = 4.0  # milliseconds of a sample: shorter calls are repeated
LONG = 15.0  # milliseconds of a call that nobody replays as a graph
STEPS = 5


@dataclass(frozen=True)
class Case:
    kind: Kind
    dtype: str
    rows: int
    cols: int
    target: float | None = None  # the speedup that is hoped for
    quick: bool = False
    plan: str = ""  # of fmm.gram, against the library's own product
    ieee: bool = False  # numbers are multiplied as what they are

    @property
    def name(self) -> str:
        return f"{self.kind} {self.dtype}{' ieee' * self.ieee} {self.rows} x {self.cols} {self.plan}".strip()


def squares(kind: Kind, dtype: str, *targets: tuple[int, float]) -> list[Case]:
    return [Case(kind, dtype, n, n, target, quick=i == 0) for i, (n, target) in enumerate(targets)]


CASES = (
    *(replace(case, ieee=True) for case in squares("syrk", "float32", (8192, 1.15), (16384, 1.30), (32768, 1.42))),
    *(replace(case, ieee=True) for case in squares("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32))),
    *squares("syrk", "float32", (8192, 1.15), (16384, 1.30)),
    *squares("syrk", "float64", (8192, 1.08), (16384, 1.25), (24576, 1.32)),
    *squares("matmul", "float32", (8192, 2.2), (16384, 2.5)),
    *squares("matmul", "float64", (8192, 2.2), (16384, 2.5)),
    *squares("matmul", "bfloat16", (4096, 1.4), (2048, 1.0), (8192, 1.75), (16384, 1.95), (32768, 2.1)),
    Case("matmul", "bfloat16", 4096, 16384, 1.5, quick=True),
    Case("matmul", "bfloat16", 16384, 2048, 1.5),
    Case("matmul", "bfloat16", 1024, 65536, 1.0),
    *squares("newton-schulz", "bfloat16", (4096, 1.2), (8192, 1.35)),
    *(
        Case("plan", "bfloat16", n, n, plan=plan)
        for n in (2048, 4096, 8192, 16384)
        for plan in ("tile", "gram.tile > vendor", "gram^3 > vendor")
    ),
)


@dataclass
class Row:
    """Paired samples of one case, in milliseconds."""

    kind: str
    dtype: str
    size: tuple[int, int]
    target: float | None
    plan: str = ""
    why: str = ""
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    error: float = float("nan")  # relative, in the Frobenius norm, of sampled rows
    vendor_error: float = float("nan")
    failure: str = ""
    ieee: bool = False

    @property
    def speedup(self) -> float:
        return median(v / c for v, c in zip(self.vendor, self.candidate, strict=True)) if self.candidate else 0.0


Calls = tuple[Callable[[int], Any], ...]  # of fmm, of the vendor; each is told which operands


def tensors(case: Case, count: int = 2) -> list[Any]:
    """Normal numbers: torch's where it is, which has bfloat16; else CuPy's."""
    try:
        import torch
    except ImportError:
        numbers = [cupy.random.standard_normal((case.rows, case.cols), cupy.float32) for _ in range(count)]
        return [x.astype(case.dtype) for x in numbers]
    torch.manual_seed(1)
    return [torch.randn(case.rows, case.cols, device="cuda", dtype=getattr(torch, case.dtype)) for _ in range(count)]


def product_calls(case: Case, xs: list[Any]) -> Calls:
    """fmm.matmul(x, x.T) as a user writes it, and the library's own."""
    return (lambda i: fmm.matmul(xs[i], xs[i].T)), (lambda i: xs[i] @ xs[i].T)


def syrk_calls(case: Case, xs: list[Any]) -> Calls:
    """The lower half into one place, by fmm's choice and by cuBLAS's function."""
    out = fmm.gram(xs[0], rows=True, fill="lower")
    given = {"rows": True, "fill": "lower", "out": out}
    return (lambda i: fmm.gram(xs[i], **given)), (lambda i: fmm.gram(xs[i], plan="vendor", **given))


def plan_calls(case: Case, xs: list[Any]) -> Calls:
    """Whole results by a plan that is named, and the library's own product."""
    return (lambda i: fmm.gram(xs[i], rows=True, plan=case.plan)), (lambda i: xs[i] @ xs[i].T)


def newton_calls(case: Case, xs: list[Any]) -> Calls:
    from examples.newton_schulz import orthogonalised, step_by_fmm, step_by_torch

    return tuple(
        partial(lambda step, i: orthogonalised(xs[i], STEPS, step), step) for step in (step_by_fmm, step_by_torch)
    )


CALLS: dict[Kind, Callable[[Case, list[Any]], Calls]] = {
    "syrk": syrk_calls,
    "matmul": product_calls,
    "newton-schulz": newton_calls,
    "plan": plan_calls,
}


def measured(case: Case, rounds: int, seconds: float) -> Row:
    """A case, checked, then timed; one that fails is a row that says why."""
    row = Row(case.kind, case.dtype, (case.rows, case.cols), case.target, ieee=case.ieee)
    emulation = os.environ.pop("FMM_EMULATION", None)
    os.environ |= {"FMM_EMULATION": "0"} if case.ieee else {}
    try:
        xs = tensors(case)
        calls = CALLS[case.kind](case, xs)
        _explain(case, xs[0], row)
        _check(case, calls, xs[0], row)
        sample(calls, row, rounds, seconds)
    except Exception as error:  # whatever may go wrong: the next case is measured
        row.failure = f"{type(error).__name__}: {error}"
    finally:
        os.environ.pop("FMM_EMULATION", None)
        os.environ |= {"FMM_EMULATION": emulation} if emulation is not None else {}
        xs = []
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
    return row


def _explain(case: Case, x: Any, row: Row) -> None:
    found = fmm.explain(x, x.T) if case.kind == "matmul" else fmm.explain_gram(x, rows=True, plan=case.plan or None)
    row.plan, row.why = str(found.plan), found.reason


def _host(x: Any, rows: Any) -> Any:
    """Sampled rows in float64."""
    if isinstance(x, cupy.ndarray):
        return cupy.asnumpy(x[rows]).astype(np.float64)
    return x[rows.tolist()].double().cpu().numpy()


def _check(case: Case, calls: Calls, x: Any, row: Row) -> None:
    if case.kind == "newton-schulz":
        by_fmm, by_torch = (call(0).double() for call in calls)
        row.error = float((by_fmm - by_torch).norm() / by_torch.norm())
        if not row.error < 0.1:
            raise RuntimeError(f"the results differ by {row.error:.2g}")
        return
    rows = np.linspace(0, case.rows - 1, SAMPLED_ROWS).astype(np.intp)
    cols = np.unique(np.linspace(0, case.rows - 1, SAMPLED_COLS).astype(np.intp))
    exact = _host(x, rows) @ _host(x, cols).T
    below = cols[None, :] <= rows[:, None]
    errors = []
    for call in calls:
        c = call(0)
        if case.kind == "matmul" and call is calls[0] and row.plan != "vendor" and not bool((c == c.T).all()):
            raise RuntimeError("the result is not symmetric")
        errors.append(float(np.linalg.norm((_host(c, rows)[:, cols] - exact)[below]) / np.linalg.norm(exact[below])))
    row.error, row.vendor_error = errors[:2]
    if not row.error < {"float64": 1e-12, "float32": 1e-4}.get(case.dtype, 5e-2):
        raise RuntimeError(f"wrong result: relative error {row.error:.3g}")


def sample(calls: Calls, row: Row, rounds: int, seconds: float) -> None:
    """Shuffled rounds, both in each, on two sets of operands in turns; before them short ones until graphs are
    captured."""
    single = max(*(event_milliseconds(lambda i, call=call: call(i % 2), 2) for call in calls), 1e-3)  # type: ignore[misc]
    if single < LONG:
        for call in calls:
            for i in range(6):
                call(i % 2)
        single = max(*(event_milliseconds(lambda i, call=call: call(i % 2), 2) for call in calls), 1e-3)  # type: ignore[misc]
    repeats = max(int(LEAST / single), 1)
    rounds = max(min(rounds, int(1000 * seconds / (2 * single * repeats))), 5)
    for _ in range(rounds):
        samples = {}
        for name, call in random.sample(list(zip(("candidate", "vendor"), calls, strict=True)), 2):
            samples[name] = event_milliseconds(lambda i, call=call: call(i % 2), repeats)  # type: ignore[misc]
        row.candidate.append(samples["candidate"])
        row.vendor.append(samples["vendor"])


def table(rows: list[Row]) -> Iterator[str]:
    yield f"{'what':15}{'type':13}{'size':>15}{'ms':>9}{'vendor':>9}{'speedup':>9}{'target':>8}{'error':>7}  plan"
    for row in rows:
        size, kind = " x ".join(map(str, row.size)), row.dtype + " ieee" * row.ieee
        if row.failure:
            yield f"{row.kind:15}{kind:13}{size:>15}  {row.failure[:100]}"
            continue
        target = f"{row.target:.2f}" if row.target else ""
        ratio = row.error / row.vendor_error if row.vendor_error == row.vendor_error and row.vendor_error else row.error
        yield (
            f"{row.kind:15}{kind:13}{size:>15}{median(row.candidate):9.3f}{median(row.vendor):9.3f}"
            f"{row.speedup:9.3f}{target:>8}{ratio:7.2g}  {row.plan}"
        )


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds, a second of timing for each")
    parser.add_argument("--only", default="", help="cases whose 'kind type m x k ' contains one of these")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--seconds", type=float, default=4, help="of timing per case, about")
    parser.add_argument("--time-limit", type=float, default=420, help="seconds after which no case is started")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    began, rows = time.perf_counter(), []
    folder = options.output or gpu_folder()
    for case in sorted(CASES, key=lambda case: case.rows**2 * case.cols):  # what a time limit cuts off are the longest
        named = any(x in f"{case.name} " for x in options.only.split(","))
        if not named or (options.quick and not case.quick):
            continue
        if time.perf_counter() - began > options.time_limit:
            rows.append(Row(case.kind, case.dtype, (case.rows, case.cols), case.target, failure="no time"))
            continue
        rounds, seconds = (7, min(options.seconds, 1.0)) if options.quick else (options.rounds, options.seconds)
        rows.append(measured(case, rounds, seconds))
        print(list(table(rows[-1:]))[-1], flush=True)
        content = {"environment": gpu_environment(), "rows": [asdict(row) for row in rows]}
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "gram.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    print("\n".join(table(rows)))
    return int(any(row.failure for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
