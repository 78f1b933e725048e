"""What fmm gains on this CPU, and that it costs nothing elsewhere: `python -m benchmarks cpu [--quick] [--suite
NAME]`.

Suites: large products, random products, small calls, memory, errors, the check for overflow. Each row of a suite holds
plain numbers and raw samples; with --output (default: results/) a suite becomes results/<device>/<suite>.json.
"""

from __future__ import annotations

import argparse
import json
import random
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import write_result
from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.thread_pool import Threads, blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.workspace import workspace
from fmm.perfmodel.candidates import compared_plans
from fmm.perfmodel.stability import expected_error_growth
from fmm.runtime.overflow import may_overflow
from fmm.tuner.trials.environment import device_folder, environment_record, typed_command
from fmm.tuner.trials.paired import PairedRoundLimits, paired_rounds

Row = dict[str, Any]
Size = tuple[int, int, int]
TYPES = ("float64", "float32")


@dataclass(frozen=True)
class Effort:
    """How much is measured: the large sizes, how many random shapes, and the rounds of each."""

    large: tuple[Size, ...]
    shapes: int
    rounds: PairedRoundLimits
    error_side: int


EFFORTS = {
    "quick": Effort(((2048,) * 3, (4096,) * 3), 12, PairedRoundLimits(3, 9, 3.0), 2048),
    "full": Effort(((4096,) * 3, (8192,) * 3, (5000, 7000, 6000)), 60, PairedRoundLimits(5, 15, 14.0), 4096),
}

DISTRIBUTIONS: dict[str, Callable[[np.random.Generator, tuple[int, int]], Array]] = {
    "uniform [0,1]": lambda rng, shape: rng.random(shape),
    "uniform [-1,1]": lambda rng, shape: rng.uniform(-1, 1, shape),
    "normal": lambda rng, shape: rng.standard_normal(shape),
}


def speed(effort: Effort) -> Iterator[Row]:
    """Large products of random normal numbers, against numpy.matmul."""
    for dtype in TYPES:
        for size in effort.large:
            yield _row(size, dtype, effort.rounds)


def never_slower(effort: Effort) -> Iterator[Row]:
    """Random shapes with sides from 1 to 6000 and aspect ratios up to 50."""
    for index, size in enumerate(random_shapes(effort.shapes)):
        yield _row(size, TYPES[index % 2], PairedRoundLimits(7, 41, effort.rounds.seconds / 6))


def random_shapes(count: int, largest: int = 6000, aspect: float = 50, seed: int = 7) -> list[Size]:
    """Uniform sides; the aspect ratio is kept by redrawing. (Tiny products are the suite of small calls.)"""
    rng = random.Random(seed)
    shapes: list[Size] = []
    while len(shapes) < count:
        m, k, n = (rng.randint(1, largest) for _ in range(3))
        if max(m, k, n) <= aspect * min(m, k, n):
            shapes.append((m, k, n))
    return shapes


def small_calls(effort: Effort) -> Iterator[Row]:
    """What a call costs beyond numpy.matmul's own where nothing can be gained."""
    for side in (8, 64):
        x = np.random.default_rng(0).standard_normal((side, side))
        result = paired_rounds(
            partial(np.matmul, x, x.copy()), partial(fmm.matmul, x, x.copy()), PairedRoundLimits(31, 101, 2.0)
        )
        extra = median(c - v for v, c in zip(result.vendor, result.candidate, strict=True))
        yield {"side": side, "extra_microseconds": extra * 1e6, **result.as_dict()}


def memory(effort: Effort) -> Iterator[Row]:
    """Peak extra memory as Python's allocator hooks see it, against what the plan said."""
    for dtype in TYPES:
        for size in effort.large:
            a, b, c = _operands(size, dtype)
            plan = fast_plan(fmm.explain(a, b, out=c))
            fmm.release_workspace()
            tracemalloc.start()
            fmm.matmul(a, b, out=c, plan=plan)
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            said = workspace(plan, *size, a.itemsize)
            yield {"size": size, "dtype": dtype, "said_bytes": said, "peak_bytes": peak, "ratio": peak / max(said, 1)}


def errors(effort: Effort) -> Iterator[Row]:
    """Max error over that of numpy.matmul, on rows computed in longer precision."""
    side = effort.error_side
    for dtype in TYPES:
        for name, draw in DISTRIBUTIONS.items():
            rng = np.random.default_rng(1)
            a, b = (draw(rng, (side, side)).astype(dtype) for _ in range(2))
            rows = np.linspace(0, side - 1, 16).astype(int)
            exact = a[rows].astype(np.longdouble) @ b.astype(np.longdouble)
            plan = fast_plan(fmm.explain(a, b))
            results = fmm.matmul(a, b, plan=plan), np.matmul(a, b)
            ours, theirs = (float(np.abs(c[rows] - exact).max()) for c in results)
            yield {
                "side": side,
                "dtype": dtype,
                "data": name,
                "plan": str(plan),
                "error": ours,
                "vendor_error": theirs,
                "ratio": ours / theirs,
                "expected_growth": expected_error_growth(plan, dtype, in_pieces=True),
            }


def guard(effort: Effort) -> Iterator[Row]:
    """The share of a product's time that the check for overflow takes."""
    for dtype in TYPES:
        for size in effort.large:
            a, b, c = _operands(size, dtype)
            plan, threads = fast_plan(fmm.explain(a, b)), Threads(blas_threads())
            whole = median(_timed(partial(fmm.matmul, a, b, out=c, plan=plan)) for _ in range(2))
            check = median(_timed(partial(may_overflow, plan, a, b, threads)) for _ in range(9))
            yield {
                "size": size,
                "dtype": dtype,
                "check_seconds": check,
                "product_seconds": whole,
                "share": check / whole,
            }


def fast_plan(decision: fmm.Decision) -> Plan:
    """The chosen plan or, where that is the vendor's, the fastest other one: memory, errors and the check are measured
    on every machine. A certified entry considers no others: then the first candidate."""
    plans = (decision.plan, *(candidate.plan for candidate in decision.candidates), *compared_plans(False))
    return next(plan for plan in plans if plan != VENDOR)


def _timed(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


SUITES = {
    "speed": speed,
    "never_slower": never_slower,
    "small_calls": small_calls,
    "memory": memory,
    "errors": errors,
    "guard": guard,
}


def _operands(size: Size, dtype: str) -> tuple[Array, Array, Array]:
    m, k, n = size
    rng = np.random.default_rng([*size, np.dtype(dtype).itemsize])  # not hash(): it differs between processes
    a, b = (rng.standard_normal(shape, dtype=np.dtype(dtype).type) for shape in ((m, k), (k, n)))
    return a, b, np.empty((m, n), dtype)


def _row(size: Size, dtype: str, rounds: PairedRoundLimits) -> Row:
    a, b, c = _operands(size, dtype)
    decision = fmm.explain(a, b, out=c)
    result = paired_rounds(partial(np.matmul, a, b, out=c), partial(fmm.matmul, a, b, out=c), rounds)
    rate = 2e-9 * a.size * b.shape[1] / median(result.vendor)
    return {
        "size": size,
        "dtype": dtype,
        "plan": str(decision.plan),
        "workspace": decision.workspace,
        "vendor_gflops": rate,
        **result.as_dict(),
    }


# ---- the command


def main(arguments: Sequence[str]) -> int:
    """Run the suites, print a line for each row, and write each finished suite; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks cpu", description=__doc__)
    add = parser.add_argument
    add("--quick", action="store_true", help="two sizes, twelve shapes and few rounds")
    add("--suite", action="append", choices=SUITES, help="only this suite (may be repeated)")
    add("--output", type=Path, default=Path("results"), metavar="DIR", help="write below this folder (results)")
    add("--json", action="store_true", help="print the rows as JSON lines")
    options = parser.parse_args(arguments)
    where = environment_record(typed_command())
    if not options.json:
        print(f"{where['processor']}, {where['blas_threads']} threads, numpy {where['numpy']}, {where['blas']}")
    for name in options.suite or SUITES:
        rows: list[Row] = []
        for row in SUITES[name](EFFORTS["quick" if options.quick else "full"]):
            rows.append(row)
            print(json.dumps({"suite": name, **row}) if options.json else text_line(name, row), flush=True)
        write_result(options.output / device_folder() / f"{name}.json", where, rows)
    return 0


def text_line(suite: str, row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    size = "x".join(map(str, row["size"])) if "size" in row else str(row.get("side"))
    return f"{suite:13}{size:>16}  {row.get('dtype', ''):8} {VERDICTS[suite](row)}"


VERDICTS: dict[str, Callable[[Row], str]] = {
    "speed": lambda r: f"{r['speedup']:.3f} times numpy [{r['low']:.3f}, {r['high']:.3f}]  {r['plan']}",
    "never_slower": lambda r: f"{r['speedup']:.3f} times numpy [{r['low']:.3f}, {r['high']:.3f}]  {r['plan']}",
    "small_calls": lambda r: f"{r['extra_microseconds']:+.2f} microseconds a call",
    "memory": lambda r: f"peak {r['peak_bytes'] / 2**20:.1f} MiB, {r['ratio']:.4f} of the predicted workspace",
    "errors": lambda r: f"{r['ratio']:.2f} times numpy's error ({r['data']}; expected {r['expected_growth']:.1f})",
    "guard": lambda r: f"the overflow check takes {r['share']:.2%} of the time",
}
