"""The host's time for a call on a GPU: `python -m benchmarks gpu_host [--tables NAME ...]`.

Five tables. host: microseconds of a one-level plan's call while the device is busy (launched one by one, replayed as a
graph, and as a graph that gets other operands at each call). small: whole small products against the library's own.
replayed: replays against launches where plans pay. declined: torch's small products with fmm installed and without.
transposed: x x.T by the library, fmm.matmul and fmm.gram. Samples go to results/<device>/host.json; some tables alone
go to files of their own.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import cycle
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import cupy
import numpy as np
import torch
from cupy import cublas

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    keep_gpu_busy,
    paired_speedup,
    shuffled_rounds,
    write_result,
)
from fmm.arrays.cupy_library import CUPY
from fmm.arrays.torch_library import TORCH
from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE
from fmm.kernels.plans.plan import Plan
from fmm.runtime import prepare, run_device
from fmm.runtime.decisions.decide import Decision

ONE_LEVEL = "strassen.batched.pad16 > vendor"
SMALL = (1, 16, 127, 128, 256, 512, 1024)
TYPES = ("float16", "bfloat16", "float32", "tf32", "float64")
REPLAYED = {1536: ONE_LEVEL, 2048: "strassen^2.batched.pad16 > vendor"}
REPLAYED |= {3072: "strassen^2.batched.pad16 > vendor", 4096: "strassen^2.batched.pad16 > vendor"}
NEVER = 1 << 60  # repetitions after which a call would be captured as a graph
QUEUED = 60  # small products of a sample, one after the other


def torch_type(dtype: str) -> Any:
    return torch.float32 if dtype == "tf32" else getattr(torch, dtype)


def operands(library: str, n: int, dtype: str) -> tuple[Any, Any]:
    """Return two random n x n matrices."""
    if library == "torch":
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.float64).to(torch_type(dtype)) for _ in range(2))
        return a, b
    kind = "float32" if dtype == "tf32" else dtype
    return cupy.random.standard_normal((n, n)).astype(kind), cupy.random.standard_normal((n, n)).astype(kind)


@contextmanager
def arithmetic(dtype: str) -> Iterator[None]:
    """Use TF32 in both libraries if the type is tf32."""
    tf32 = dtype == "tf32"
    cupy._core.set_compute_type("f4", 7 if tf32 else 1)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        cupy._core.set_compute_type("f4", 1)
        torch.backends.cuda.matmul.fp32_precision = "ieee"


@contextmanager
def decision_fixed(plan: str) -> Iterator[None]:
    """Give this plan to calls without a plan of their own."""

    def decide(problem: Any, limits: Any, device: Any) -> Decision:
        return Decision(Plan.parse(plan), problem, "for the benchmark")

    forget_calls()
    with patch.object(prepare, "decide_plan", decide):
        yield
    forget_calls()


def forget_calls() -> None:
    CUPY.calls.clear()
    TORCH.calls.clear()


@contextmanager
def graphs_allowed(allowed: bool) -> Iterator[None]:
    """Replay recurring calls as graphs, or never."""
    run_device.GRAPHS.clear()
    run_device.GRAPHS.calls_before_capture = CALLS_BEFORE_CAPTURE if allowed else NEVER
    try:
        yield
    finally:
        run_device.GRAPHS.clear()


# ---- the host's time up to the last launch


def launch_microseconds(call: Call, count: int, rounds: int) -> list[float]:
    """Return the host's microseconds of each call, while a spinning kernel keeps the device behind the host."""
    found = []
    for _ in range(CALLS_BEFORE_CAPTURE + 1):
        call()
    for _ in range(rounds):
        cupy.cuda.Device().synchronize()
        keep_gpu_busy(2e-3)
        for _ in range(count):
            began = time.perf_counter_ns()
            call()
            found.append((time.perf_counter_ns() - began) / 1000)
    cupy.cuda.Device().synchronize()
    return found


def host_rows(rounds: int) -> list[Row]:
    """Return the host's time of a one-level plan's call, by library, side and kind of call."""
    rows = []
    for library in ("cupy", "torch"):
        for n in (2048, 4096):
            a, b = operands(library, n, "float32")
            ours, vendor = partial(fmm.matmul, a, b), partial(library_product(library), a, b)
            pairs = cycle([operands(library, n, "float32") for _ in range(5)])
            moved = partial(lambda pairs: fmm.matmul(*next(pairs)), pairs)
            calls: dict[str, Call] = {"launches": ours, "replay": ours, "moved": moved, "vendor": vendor}
            for name, call in calls.items():
                with decision_fixed(ONE_LEVEL), graphs_allowed(name in ("replay", "moved")):
                    samples = launch_microseconds(call, 12, rounds)
                rows.append({"table": "host", "library": library, "n": n, "way": name, "microseconds": samples})
    return rows


def library_product(library: str) -> Callable[..., Any]:
    found: Callable[..., Any] = torch.matmul if library == "torch" else cupy.matmul
    return found


# ---- small products, whole calls one after the other


def gpu_microseconds(call: Call, repeats: int) -> float:
    """Return the microseconds of one of `repeats` calls, one after the other."""
    return 1e6 * gpu_seconds(call, repeats)


def paired_microseconds(calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Run all calls until graphs are captured; return their samples in shuffled rounds."""
    for call in calls.values():
        gpu_microseconds(call, 2 * CALLS_BEFORE_CAPTURE)
    return shuffled_rounds(calls, rounds, gpu_microseconds, QUEUED)


def small_rows(rounds: int) -> list[Row]:
    """Return whole small products, by library, type and side."""
    rows = []
    for library in ("cupy", "torch"):
        for dtype in TYPES:
            if library == "cupy" and dtype == "bfloat16":
                continue
            for n in SMALL:
                a, b = operands(library, n, dtype)
                calls = {"vendor": partial(library_product(library), a, b), "fmm": partial(fmm.matmul, a, b)}
                with arithmetic(dtype):
                    samples = paired_microseconds(calls, rounds)
                rows.append({"table": "small", "library": library, "dtype": dtype, "n": n, **samples})
    return rows


# ---- replays against launches


def replayed_rows(rounds: int) -> list[Row]:
    """Return replays and launches of plans that pay, queued and alone."""
    rows = []
    for n, plan in REPLAYED.items():
        a, b = operands("cupy", n, "float32")
        ours, vendor = partial(fmm.matmul, a, b), partial(cupy.matmul, a, b)
        calls: dict[str, Call] = {"launches": ours, "replay": ours, "vendor": vendor}
        queued: dict[str, list[float]] = {name: [] for name in calls}
        alone: dict[str, list[float]] = {name: [] for name in calls}
        for _ in range(rounds):
            for name in random.sample(list(calls), len(calls)):
                with decision_fixed(plan), graphs_allowed(name == "replay"):
                    gpu_microseconds(calls[name], 2 * CALLS_BEFORE_CAPTURE)
                    queued[name].append(gpu_microseconds(calls[name], max(int(1e11 / n**3), 4)))
                    alone[name] += [latency(calls[name]) for _ in range(5)]
        rows.append({"table": "replayed", "n": n, "plan": plan, "queued": queued, "alone": alone})
    return rows


def latency(call: Call) -> float:
    """Return the microseconds until the result of a single call is there."""
    device = cupy.cuda.Device()
    device.synchronize()
    began = time.perf_counter_ns()
    call()
    device.synchronize()
    return (time.perf_counter_ns() - began) / 1000


# ---- small products of torch that fmm, installed, leaves to torch

DECLINED_CALLS = 300  # of a sample


def declined_rows(rounds: int) -> list[Row]:
    """Return the host's time of torch's small products, with fmm installed and without."""
    a, stack, bias = (torch.randn(*shape, device="cuda") for shape in ((64, 64), (4, 64, 64), (64,)))
    calls: dict[str, Callable[[], Any]] = {
        "mm": lambda: torch.mm(a, a),
        "addmm": lambda: torch.addmm(bias, a, a),
        "bmm": lambda: torch.bmm(stack, stack),
    }
    rows = []
    for name, call in calls.items():
        samples: dict[str, list[float]] = {"without": [], "with": []}
        for _ in range(rounds):
            for variant in random.sample(list(samples), 2):
                with fmm.installed("torch") if variant == "with" else nullcontext():
                    call()
                    samples[variant].append(host_microseconds(call))
        rows.append({"table": "declined", "operator": name, **samples})
    return rows


def host_microseconds(call: Call) -> float:
    """Return the host's microseconds of one of many calls; the device has little to do."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    for _ in range(DECLINED_CALLS):
        call()
    taken = time.perf_counter_ns() - began
    torch.cuda.synchronize()
    return taken / DECLINED_CALLS / 1000


# ---- a matrix times its transpose

TRANSPOSED = {"cupy": ("float32", "float64"), "torch": ("float32", "bfloat16")}


def transposed_calls(library: str, n: int, dtype: str) -> dict[str, Call]:
    """Return x x.T as a user writes it: the transpose is part of the call."""
    x, out = operands(library, n, dtype)
    own = library_product(library)
    calls: dict[str, Call] = {
        "x @ x.T": lambda: own(x, x.T),
        "fmm.matmul": lambda: fmm.matmul(x, x.T),
        "fmm.gram": lambda: fmm.gram(x, rows=True),
        "fmm.gram, lower": partial(fmm.gram, x, rows=True, fill="lower", out=out),
    }
    if library == "cupy":
        calls["syrk"] = partial(cublas.syrk, "N", x, out=out, lower=True)
    return calls


def transposed_rows(rounds: int) -> list[Row]:
    """Return products with a transpose, by library, type and side."""
    rows = []
    for library, dtypes in TRANSPOSED.items():
        for dtype in dtypes:
            for n in (64, 256, 512, 1024):
                samples = paired_microseconds(transposed_calls(library, n, dtype), rounds)
                rows.append({"table": "transposed", "library": library, "dtype": dtype, "n": n, **samples})
    return rows


TABLES = {
    "host": host_rows,
    "small": small_rows,
    "replayed": replayed_rows,
    "declined": declined_rows,
    "transposed": transposed_rows,
}


# ---- the command


def spread(samples: Sequence[float]) -> str:
    """Return the median and the outer deciles."""
    low, *_, high = quantiles(samples, n=10)
    return f"{median(samples):7.1f} us ({low:.1f} to {high:.1f})"


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    name = f"{row.get('library', ''):6}{row.get('dtype', ''):9}{row.get('n', 0):6}"
    if row["table"] == "host":
        return f"{name}  {row['way']:9} {spread(row['microseconds'])}"
    if row["table"] == "small":
        vendor, own = row["vendor"], row["fmm"]
        return f"{name} {paired_speedup(vendor, own):6.3f}  vendor {spread(vendor)}, fmm {spread(own)}"
    if row["table"] == "transposed":
        times = (f"{call} {median(x):.1f}" for call, x in row.items() if isinstance(x, list))
        return f"{name}  {', '.join(times)} us"
    if row["table"] == "declined":
        more = [x - y for x, y in zip(row["with"], row["without"], strict=True)]
        return f"torch.{row['operator']:6} without fmm {spread(row['without'])}, with it {median(more):+.2f} us"
    ratios = [
        f"{what}: {call} {paired_speedup(row[what]['vendor'], row[what][call]):.3f}"
        for what in ("queued", "alone")
        for call in ("launches", "replay")
    ]
    return f"{row['n']:6} {row['plan']}, of the vendor's speed: {'; '.join(ratios)}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_host", __doc__)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES), help="these alone")
    options = parser.parse_args(arguments)
    random.seed(1)
    np.random.seed(1)
    rows = [row for name in options.tables for row in TABLES[name](options.rounds)]
    name = "host" if options.tables == list(TABLES) else "-".join(["host", *options.tables])
    write_result((options.output or gpu_folder()) / f"{name}.json", gpu_environment(torch=torch.__version__), rows)
    print(*map(text_line, rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
