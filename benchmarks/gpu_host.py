"""What a call costs the host, on a GPU: `python -m benchmarks.gpu_host` times the way from Python to the last launch.

Five tables: microseconds of a one-level plan's call while the device is kept busy (launched one by one, replayed as a
graph, and as a graph that is moved to other operands at each call), whole small products against the library's own,
replays against launches where plans pay, torch's small products with fmm installed and without, and products with a
transpose: the library's, fmm.matmul's and fmm.gram's. Calls are
interleaved in shuffled rounds; raw samples are kept. `--tables` measures some of them, into files of their own.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from functools import partial
from itertools import cycle
from pathlib import Path
from statistics import median, quantiles
from typing import Any
from unittest.mock import patch

import cupy
import numpy as np
import torch
from cupy import cublas

import fmm
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds, keep_gpu_busy
from fmm.arrays.cupy_library import CUPY
from fmm.arrays.torch_library import TORCH
from fmm.kernels.cuda.launch.graphs import REPEATS
from fmm.kernels.plans.plan import Plan
from fmm.runtime import prepare, run_device
from fmm.runtime.decisions.decide import Decision

ONE_LEVEL = "strassen.batched.pad16 > vendor"
SMALL = (1, 16, 127, 128, 256, 512, 1024)
TYPES = ("float16", "bfloat16", "float32", "tf32", "float64")
REPLAYED = {1536: ONE_LEVEL, 2048: "strassen^2.batched.pad16 > vendor"}
REPLAYED |= {3072: "strassen^2.batched.pad16 > vendor", 4096: "strassen^2.batched.pad16 > vendor"}
NEVER = 1 << 60


def torch_type(dtype: str) -> Any:
    return torch.float32 if dtype == "tf32" else getattr(torch, dtype)


def operands(library: str, n: int, dtype: str) -> tuple[Any, Any]:
    """Two random n x n matrices."""
    if library == "torch":
        a, b = (torch.randn(n, n, device="cuda", dtype=torch.float64).to(torch_type(dtype)) for _ in range(2))
        return a, b
    kind = "float32" if dtype == "tf32" else dtype
    return cupy.random.standard_normal((n, n)).astype(kind), cupy.random.standard_normal((n, n)).astype(kind)


@contextmanager
def arithmetic(dtype: str) -> Iterator[None]:
    """TF32 in both libraries, where that is asked for."""
    tf32 = dtype == "tf32"
    cupy._core.set_compute_type("f4", 7 if tf32 else 1)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if tf32 else "ieee"
    try:
        yield
    finally:
        cupy._core.set_compute_type("f4", 1)
        torch.backends.cuda.matmul.fp32_precision = "ieee"


@contextmanager
def decided(plan: str) -> Iterator[None]:
    """Calls that name no plan get this one."""

    def decide(problem: Any, limits: Any, device: Any) -> Decision:
        return Decision(Plan.parse(plan), problem, "for the benchmark")

    forget()
    with patch.object(prepare, "decide_plan", decide):
        yield
    forget()


def forget() -> None:
    CUPY.calls.clear()
    TORCH.calls.clear()


@contextmanager
def replays(wanted: bool) -> Iterator[None]:
    """Calls that recur as graphs, or never."""
    run_device.GRAPHS.clear()
    run_device.GRAPHS.repeats = REPEATS if wanted else NEVER
    try:
        yield
    finally:
        run_device.GRAPHS.clear()


# ---- the host's time up to the last launch


def microseconds(call: Callable[[], Any], count: int, rounds: int) -> list[float]:
    """Of each call, while the device is kept from ending before the host does."""
    found = []
    for _ in range(REPEATS + 1):
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


def host(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for library in ("cupy", "torch"):
        for n in (2048, 4096):
            a, b = operands(library, n, "float32")
            ours, vendor = partial(fmm.matmul, a, b), partial(product(library), a, b)
            moved = elsewhere([operands(library, n, "float32") for _ in range(5)])
            ways: dict[str, Callable[[], Any]] = {"launches": ours, "replay": ours, "moved": moved, "vendor": vendor}
            for name, call in ways.items():
                with decided(ONE_LEVEL), replays(name in ("replay", "moved")):
                    samples = microseconds(call, 12, rounds)
                rows.append({"table": "host", "library": library, "n": n, "way": name, "microseconds": samples})
    return rows


def elsewhere(pairs: list[tuple[Any, Any]]) -> Callable[[], Any]:
    """Products of these pairs in turn."""
    turns = cycle(pairs)
    return lambda: fmm.matmul(*next(turns))


def product(library: str) -> Callable[..., Any]:
    found: Callable[..., Any] = torch.matmul if library == "torch" else cupy.matmul
    return found


# ---- small products, whole calls one after the other


def run(call: Callable[[], Any], repeats: int) -> float:
    """Microseconds a call of so many, one after the other."""
    return 1e6 * gpu_seconds(call, repeats)


def paired(calls: Mapping[str, Callable[[], Any]], rounds: int, repeats: int) -> dict[str, list[float]]:
    """Of runs of each, in shuffled rounds."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for call in calls.values():
        run(call, 2 * REPEATS)
    for _ in range(rounds):
        for name in random.sample(list(calls), len(calls)):
            samples[name].append(run(calls[name], repeats))
    return samples


def small(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for library in ("cupy", "torch"):
        for dtype in TYPES:
            if library == "cupy" and dtype == "bfloat16":
                continue
            for n in SMALL:
                a, b = operands(library, n, dtype)
                calls = {"vendor": partial(product(library), a, b), "fmm": partial(fmm.matmul, a, b)}
                with arithmetic(dtype):
                    samples = paired(calls, rounds, 60)
                rows.append({"table": "small", "library": library, "dtype": dtype, "n": n, **samples})
    return rows


# ---- replays against launches


def replayed(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for n, plan in REPLAYED.items():
        a, b = operands("cupy", n, "float32")
        ours, vendor = partial(fmm.matmul, a, b), partial(cupy.matmul, a, b)
        ways = {"launches": ours, "replay": ours, "vendor": vendor}
        queued: dict[str, list[float]] = {name: [] for name in ways}
        alone: dict[str, list[float]] = {name: [] for name in ways}
        for _ in range(rounds):
            for name in random.sample(list(ways), len(ways)):
                with decided(plan), replays(name == "replay"):
                    run(ways[name], 2 * REPEATS)
                    queued[name].append(run(ways[name], max(int(1e11 / n**3), 4)))
                    alone[name] += [latency(ways[name]) for _ in range(5)]
        rows.append({"table": "replayed", "n": n, "plan": plan, "queued": queued, "alone": alone})
    return rows


def latency(call: Callable[[], Any]) -> float:
    """Microseconds until the result of a single call is there."""
    device = cupy.cuda.Device()
    device.synchronize()
    began = time.perf_counter_ns()
    call()
    device.synchronize()
    return (time.perf_counter_ns() - began) / 1000


# ---- small products of torch that fmm, installed, declines

CALLS = 300  # of a sample


def declined(rounds: int) -> list[dict[str, Any]]:
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
            for way in random.sample(list(samples), 2):
                with fmm.installed("torch") if way == "with" else nullcontext():
                    call()
                    samples[way].append(launched(call))
        rows.append({"table": "declined", "operator": name, **samples})
    return rows


def launched(call: Callable[[], Any]) -> float:
    """Microseconds of the host for one of many calls; the device has little to do."""
    torch.cuda.synchronize()
    began = time.perf_counter_ns()
    for _ in range(CALLS):
        call()
    taken = time.perf_counter_ns() - began
    torch.cuda.synchronize()
    return taken / CALLS / 1000


# ---- a matrix times its transpose

TRANSPOSED = {"cupy": ("float32", "float64"), "torch": ("float32", "bfloat16")}


def transposed_calls(library: str, n: int, dtype: str) -> dict[str, Callable[[], Any]]:
    """As a user writes them: the transpose is part of the call."""
    x, out = operands(library, n, dtype)
    own = product(library)
    calls: dict[str, Callable[[], Any]] = {
        "x @ x.T": lambda: own(x, x.T),
        "fmm.matmul": lambda: fmm.matmul(x, x.T),
        "fmm.gram": lambda: fmm.gram(x, rows=True),
        "fmm.gram, lower": partial(fmm.gram, x, rows=True, fill="lower", out=out),
    }
    if library == "cupy":
        calls["syrk"] = partial(cublas.syrk, "N", x, out=out, lower=True)
    return calls


def transposed(rounds: int) -> list[dict[str, Any]]:
    rows = []
    for library, dtypes in TRANSPOSED.items():
        for dtype in dtypes:
            for n in (64, 256, 512, 1024):
                samples = paired(transposed_calls(library, n, dtype), rounds, 60)
                rows.append({"table": "transposed", "library": library, "dtype": dtype, "n": n, **samples})
    return rows


TABLES = {"host": host, "small": small, "replayed": replayed, "declined": declined, "transposed": transposed}


# ---- what is printed


def spread(samples: list[float]) -> str:
    low, *_, high = quantiles(samples, n=10)
    return f"{median(samples):7.1f} us ({low:.1f} to {high:.1f})"


def ratio(x: list[float], y: list[float]) -> float:
    return median(a / b for a, b in zip(x, y, strict=True))


def shown(row: dict[str, Any]) -> str:
    if row["table"] == "host":
        return f"{row['library']:6}{row['n']:6}  {row['way']:9} {spread(row['microseconds'])}"
    if row["table"] == "small":
        name = f"{row['library']:6}{row['dtype']:9}{row['n']:6}"
        return (
            f"{name} {ratio(row['vendor'], row['fmm']):6.3f}  vendor {spread(row['vendor'])}, fmm {spread(row['fmm'])}"
        )
    if row["table"] == "transposed":
        named = {name: median(x) for name, x in row.items() if isinstance(x, list)}
        name = f"{row['library']:6}{row['dtype']:9}{row['n']:6}"
        return f"{name}  {', '.join(f'{way} {took:.1f}' for way, took in named.items())} us"
    if row["table"] == "declined":
        more = [x - y for x, y in zip(row["with"], row["without"], strict=True)]
        return f"torch.{row['operator']:6} without fmm {spread(row['without'])}, with it {median(more):+.2f} us"
    ways = [
        f"{what}: {name} {ratio(x['vendor'], x[name]):.3f}" for what, x in timed(row) for name in ("launches", "replay")
    ]
    gains = [f"replay over launches, {what}: {ratio(x['launches'], x['replay']):.3f}" for what, x in timed(row)]
    return f"{row['n']:6} {row['plan']}: {'; '.join([*ways, *gains])}"


def timed(row: dict[str, Any]) -> list[tuple[str, dict[str, list[float]]]]:
    return [(name, row[name]) for name in ("queued", "alone")]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--tables", nargs="+", choices=TABLES, default=list(TABLES))
    parser.add_argument("--output", type=Path, help="where to write (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    env = {**gpu_environment(), "torch": torch.__version__}
    env["command"] = " ".join(["python -m benchmarks.gpu_host", *arguments])
    random.seed(1)
    np.random.seed(1)
    rows = [row for name in options.tables for row in TABLES[name](options.rounds)]
    folder = options.output or gpu_folder()
    folder.mkdir(parents=True, exist_ok=True)
    name = "host" if options.tables == list(TABLES) else "-".join(["host", *options.tables])
    (folder / f"{name}.json").write_text(json.dumps({"environment": env, "rows": rows}, indent=1), encoding="utf-8")
    print(*map(shown, rows), sep="\n")
    for library in ("cupy", "torch"):
        found = [ratio(r["vendor"], r["fmm"]) for r in rows if r["table"] == "small" and r["library"] == library]
        if found:
            print(f"{library}: small products, median {median(found):.3f}, worst {min(found):.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
