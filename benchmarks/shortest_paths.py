"""Shortest paths and min-plus products: `python -m benchmarks shortest_paths [--device cpu|0] [--quick]`.

On a CPU, fmm.shortest_paths (compiled by Numba, and by NumPy alone) against SciPy's floyd_warshall. On a GPU,
fmm.minplus in each type and fmm.shortest_paths. If FMM_TROPICAL_GEMM names a checkout of tropical-gemm, that project's
CUDA kernel of the same product is timed too; its package has the CPU's kernels alone. Results are checked first.
Samples, in seconds, go to results/<device>/shortest_paths.json.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import (
    Clock,
    Row,
    benchmark_parser,
    free_gpu_memory,
    machine_of,
    paired_speedup,
    run_cases,
    samples_with_first_call,
)
from fmm.semirings import numba_kernels

TROPICAL_KERNEL = "crates/tropical-gemm-cuda/kernels/tropical_gemm.cu"  # in the checkout of tropical-gemm
MINIMA_PER_CLOCK = 64  # minima of two numbers by one multiprocessor (FMNMX or VIADDMNMX)
LONG_CALL_SECONDS = 1.0  # seconds of a call from which on its first timing counts as a round
SAMPLE_SECONDS = 0.004  # seconds of a sample: shorter calls are repeated
HOST_SIZES = (512, 1024, 2048)
HOST_TYPES = ("float64", "float32", "int32", "int16")
LARGE_GRAPH_TYPES = ("float64", "float32")  # the types of graphs with 1024 nodes and more
MINPLUS_SIZES, QUICK_MINPLUS_SIZES = (1024, 2048, 4096, 8192), (4096,)
PATH_SIZES, QUICK_PATH_SIZES = (1024, 2048, 4096, 8191, 8192, 16384), (1024, 8192, 16384)
Calls = dict[str, Callable[[], Any]]


class Case(NamedTuple):
    """`what`: "minplus" or "paths"; on a GPU all types are one case."""

    what: str
    n: int
    dtype: str = "all"


def edges_of(xp: Any, n: int, dtype: str, rng: Any, negative: bool = False) -> Any:
    """Return the edge lengths of a random graph with half of all edges; 0: no edge."""
    whole = np.dtype(dtype).kind == "i"
    found = rng.integers(1, 100, (n, n)) if whole else rng.random((n, n)) + 0.01
    if negative:  # edges go downhill; no cycle is negative, since heights cancel around it
        heights = rng.random(n)
        found = found + heights[:, None] - heights
    return xp.where(rng.random((n, n)) < 0.5, found, 0).astype(dtype)


# ---- on a CPU


def processor_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the processor time of all threads, which other work on the machine disturbs less."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def by_numpy(call: Callable[[], Any]) -> Any:
    """Run a call without the kernels that Numba compiles."""
    before, numba_kernels.is_numba_installed = numba_kernels.is_numba_installed, lambda: False
    try:
        return call()
    finally:
        numba_kernels.is_numba_installed = before


def host_calls(case: Case) -> Calls:
    """Return shortest paths of a random graph on this processor, checked against SciPy's."""
    from scipy.sparse.csgraph import floyd_warshall

    edges = edges_of(np, case.n, case.dtype, np.random.default_rng(1))
    doubles = edges.astype(np.float64)
    calls: Calls = {
        "numpy": lambda: by_numpy(partial(fmm.shortest_paths, edges)),
        "scipy": partial(floyd_warshall, doubles),
    }
    if numba_kernels.is_numba_installed():
        calls["compiled"] = partial(fmm.shortest_paths, edges)
    expected = calls["scipy"]()
    for name in set(calls) - {"scipy"}:
        np.testing.assert_allclose(calls[name](), expected, rtol=1e-5)
    return calls


def host_cases(sizes: Sequence[int], dtypes: Sequence[str]) -> list[Case]:
    """Return every size and type; large graphs of floating-point numbers alone."""
    return [Case("paths", n, x) for n, x in product(sizes, dtypes) if n < 1024 or x in LARGE_GRAPH_TYPES]


# ---- on a GPU


def device_cases(sizes: Sequence[int], only: str, quick: bool) -> list[Case]:
    """Return min-plus products and shortest paths of these sizes, or of the usual ones."""
    products = sizes or (QUICK_MINPLUS_SIZES if quick else MINPLUS_SIZES)
    paths = sizes or (QUICK_PATH_SIZES if quick else PATH_SIZES)
    cases = [*(Case("minplus", n) for n in products), *(Case("paths", n) for n in paths)]
    return [case for case in cases if only in ("", case.what)]


def bound_seconds(n: int) -> float:
    """Return the seconds of n^3 minima at the chip's peak rate."""
    import cupy

    facts = cupy.cuda.Device().attributes
    return float(n**3 / (facts["MultiProcessorCount"] * MINIMA_PER_CLOCK * 1e3 * facts["ClockRate"]))


def product_calls(case: Case) -> Calls:
    """Return min-plus products of signed and of non-negative numbers in each type, checked against the definition."""
    import cupy

    n, rng = case.n, cupy.random.default_rng(2)
    signed = [rng.standard_normal((n, n)) for _ in range(2)]
    whole = [rng.integers(0, 10_000, (n, n)) for _ in range(2)]
    operands = {
        "float32": [x.astype(np.float32) for x in signed],
        "float32 >= 0": [abs(x).astype(np.float32) for x in signed],
        "float64": signed,
        "int32": [x.astype(np.int32) for x in whole],
        "int32 signed": [(x - 5000).astype(np.int32) for x in whole],
        "int16": [x.astype(np.int16) for x in whole],
    }
    rows, cols = (np.random.default_rng(3).integers(0, n, 8) for _ in range(2))
    for name, (a, b) in operands.items():
        sums = (a[rows][:, :, None] + b[:, cols][None]).min(axis=1)
        if not bool((fmm.minplus(a, b)[rows][:, cols] == sums).all()):
            raise RuntimeError(f"wrong products in {name}")
    calls: Calls = {name: (lambda ab=ab: fmm.minplus(*ab)) for name, ab in operands.items()}  # type: ignore[misc]
    if (peer := tropical_gemm(n)) is not None:
        calls["tropical-gemm float32"] = lambda: peer(*operands["float32"])
    return calls


def tropical_gemm(n: int) -> Callable[[Any, Any], Any] | None:
    """Return tropical-gemm's CUDA kernel of float32 min-plus products; None without a checkout.

    The kernel multiplies column-major matrices, so the call computes B^T A^T.
    """
    import cupy

    folder = os.environ.get("FMM_TROPICAL_GEMM")
    if folder is None or n % 64:
        return None
    text = (Path(folder) / TROPICAL_KERNEL).read_text(encoding="utf-8")
    kernel = cupy.RawModule(code=text).get_function("tropical_minplus_f32_nn")
    size, out = np.int32(n), cupy.empty((n, n), np.float32)

    def call(a: Any, b: Any) -> Any:
        kernel(((n // 64) ** 2,), (16, 16), (b, a, out, size, size, size))
        return out

    return call


def path_calls(case: Case) -> Calls:
    """Return shortest paths of several graphs, checked."""
    import cupy

    n, rng = case.n, cupy.random.default_rng(2)
    graphs = {name: edges_of(cupy, n, name, rng) for name in ("float32", "int16")}
    graphs["float32 with negative edges"] = edges_of(cupy, n, "float32", rng, negative=True)
    calls: Calls = {}
    for name, edges in graphs.items():
        check_paths(name, edges, fmm.shortest_paths(edges))
        calls[name] = lambda edges=edges: fmm.shortest_paths(edges)  # type: ignore[misc]
    if n <= 8192:
        calls["float32, predecessors"] = lambda: fmm.shortest_paths(graphs["float32"], return_predecessors=True)
    return calls


def check_paths(name: str, edges: Any, found: Any) -> None:
    """Raise RuntimeError if a path is longer than an edge, or if one more edge makes a path shorter."""
    import cupy

    n, whole = len(edges), edges.dtype.kind == "i"
    slack = 0 if whole else 1e-5
    if bool(((edges != 0) & (found > edges + slack)).any()):
        raise RuntimeError(f"{name}: a path is longer than an edge")
    lengths = cupy.where(edges == 0, cupy.float32(np.inf), edges)
    for i in (0, n // 2, n - 1):
        onward = (found[i][:, None] + lengths).min(axis=0)
        onward[i] = 0
        if not bool((abs(onward - found[i]) <= slack).all()):
            raise RuntimeError(f"{name}: row {i} gets shorter by one more edge")


# ---- the command


def measure_case(case: Case, rounds: int, clock: Clock, on_gpu: bool) -> Row:
    """Check, then time, the calls of a case; `bound`: seconds at the peak rate, 0 on a CPU."""
    calls = (product_calls if case.what == "minplus" else path_calls if on_gpu else host_calls)(case)
    if on_gpu and case.what == "paths" and case.n > 8192:
        rounds = min(rounds, 3)
    samples = samples_with_first_call(calls, rounds, SAMPLE_SECONDS, LONG_CALL_SECONDS, clock)
    if on_gpu:
        free_gpu_memory()
    bound = bound_seconds(case.n) if on_gpu else 0.0
    return {"what": case.what, "dtype": case.dtype, "n": case.n, "samples": samples, "bound": bound, "failure": ""}


def text_lines(row: Row) -> str:
    """Return a line for each call: the time, the rate of sums, the share of the bound, and the speedup over SciPy."""
    lines = []
    for name, samples in row["samples"].items():
        seconds, n = median(samples), row["n"]
        bound = f", {row['bound'] / seconds:.1%} of the bound" if row["bound"] else ""
        scipy = row["samples"].get("scipy")
        peer = f", {paired_speedup(scipy, samples):.2f} times scipy" if scipy else ""
        kind = name if row["dtype"] == "all" else f"{row['dtype']} {name}"
        rate = f"{n**3 / seconds / 1e12:9.3f} 10^12 sums/s"
        lines.append(f"{row['what']:9}{n:7}  {kind:30}{1e3 * seconds:10.3f} ms {rate}{bound}{peer}")
    return "\n".join(lines)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("shortest_paths", __doc__, device="cpu", quick="fewer sizes and rounds")
    add = parser.add_argument
    add("--only", choices=("", "minplus", "paths"), default="", help="on a GPU: these alone")
    add("--sizes", type=int, nargs="+", default=(), help="these alone")
    add("--dtypes", nargs="+", choices=HOST_TYPES, default=HOST_TYPES, help="on a CPU: these alone")
    add("--rounds", type=int, help="of each case, at most")
    add("--processor-time", action="store_true", help="on a CPU: time all threads' processor time")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    clock = processor_seconds if options.processor_time and not machine.on_gpu else machine.clock
    if machine.on_gpu:
        cases = device_cases(options.sizes, options.only, options.quick)
        rounds = min(5 if options.quick else 11, options.rounds or 11)
    else:
        sizes = options.sizes or HOST_SIZES[: 2 if options.quick else 3]
        cases, rounds = host_cases(sizes, options.dtypes), options.rounds or 3
    measure = partial(measure_case, rounds=rounds, clock=clock, on_gpu=machine.on_gpu)
    run_cases(options, machine, "shortest_paths.json", cases, measure, text_lines)
    return 0
