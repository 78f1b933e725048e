"""Shortest paths and min-plus products: `python -m benchmarks shortest_paths [--device cpu|0] [--quick]`.

On a CPU, fmm.shortest_paths (compiled by Numba, and by NumPy alone) against SciPy's floyd_warshall. On a GPU,
fmm.minplus in each type, and fmm.shortest_paths; if FMM_TROPICAL_GEMM names a checkout of tropical-gemm (its package
has the CPU's kernels alone), that project's CUDA kernel of the same product beside it. Results are checked first.
Samples go to results/<device>/shortest_paths.json.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import (
    RESULTS,
    Clock,
    benchmark_parser,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    host_seconds,
    paired_speedup,
    repeats_of,
    shuffled_rounds,
    write_result,
)
from fmm.semirings import numba_kernels
from fmm.tuner.trials.environment import device_folder, environment_record, typed_command

KERNEL = "crates/tropical-gemm-cuda/kernels/tropical_gemm.cu"  # of tropical-gemm
MINIMA = 64  # FMNMX, or VIADDMNMX, of a multiprocessor in a clock
LONG = 1.0  # seconds of a call from which on its first timing is the first round
SAMPLE = 0.004  # seconds of a sample: shorter calls are repeated
HOST_SIZES = (512, 1024, 2048)
PATH_SIZES = (1024, 2048, 4096, 8191, 8192, 16384)
HOST_TYPES = ("float64", "float32", "int32", "int16")
LARGE = ("float64", "float32")  # the types of large graphs


@dataclass
class Row:
    """Paired samples of one case by the name of the call, in seconds."""

    what: str
    dtype: str
    n: int
    samples: dict[str, list[float]] = field(default_factory=dict)
    bound: float = 0.0  # seconds of the comparisons at the chip's peak rate, one for each sum
    failure: str = ""


Calls = dict[str, Callable[[], Any]]


def edges_of(xp: Any, n: int, dtype: str, rng: Any, negative: bool = False) -> Any:
    """Return the edge lengths of a random graph with half of all edges; 0: no edge."""
    whole = np.dtype(dtype).kind == "i"
    found = rng.integers(1, 100, (n, n)) if whole else rng.random((n, n)) + 0.01
    if negative:  # edges go downhill; no cycle is negative, since heights cancel around it
        heights = rng.random(n)
        found = found + heights[:, None] - heights
    return xp.where(rng.random((n, n)) < 0.5, found, 0).astype(dtype)


def sampled(row: Row, calls: Calls, rounds: int, clock: Clock) -> Row:
    """Add the samples of shuffled rounds; where a call is long, the first timing of every call is the first round."""
    first = {name: clock(call, 1) for name, call in calls.items()}
    repeats = {name: repeats_of(seconds, SAMPLE, most=1 << 20) for name, seconds in first.items()}
    long = max(first.values()) > LONG
    samples = shuffled_rounds(calls, rounds - long, clock, repeats)
    row.samples = {name: [first[name]] * long + found for name, found in samples.items()}
    return row


# ---- on a CPU


def processor_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Return the processor time of all threads, a measure that other work on the machine disturbs less."""
    start = time.process_time()
    for _ in range(repeats):
        call()
    return (time.process_time() - start) / repeats


def by_numpy(call: Callable[[], Any]) -> Any:
    """Make a call without the kernels that Numba compiles."""
    before, numba_kernels.can_compile = numba_kernels.can_compile, lambda: False
    try:
        return call()
    finally:
        numba_kernels.can_compile = before


def host_rows(sizes: Sequence[int], dtypes: Sequence[str], rounds: int, clock: Clock) -> Iterator[Row]:
    """Yield shortest paths on this processor, by size and type."""
    from scipy.sparse.csgraph import floyd_warshall

    rng = np.random.default_rng(1)
    for n in sizes:
        for dtype in dtypes if n < 1024 else [x for x in dtypes if x in LARGE]:
            edges = edges_of(np, n, dtype, rng)
            doubles = edges.astype(np.float64)
            calls: Calls = {
                "numpy": lambda edges=edges: by_numpy(lambda: fmm.shortest_paths(edges)),  # type: ignore[misc]
                "scipy": lambda doubles=doubles: floyd_warshall(doubles),  # type: ignore[misc]
            }
            if numba_kernels.can_compile():
                calls["compiled"] = lambda edges=edges: fmm.shortest_paths(edges)  # type: ignore[misc]
            expected = calls["scipy"]()
            for name in set(calls) - {"scipy"}:
                np.testing.assert_allclose(calls[name](), expected, rtol=1e-5)
            yield sampled(Row("paths", dtype, n), calls, rounds, clock)


# ---- on a GPU


def device_rows(quick: bool, only: str, sizes: Sequence[int], most: int) -> Iterator[Row]:
    """Yield min-plus products and shortest paths on the GPU, by size."""
    import cupy

    chip, clock = cupy.cuda.Device(), 1e3 * cupy.cuda.Device().attributes["ClockRate"]
    rate = chip.attributes["MultiProcessorCount"] * MINIMA * clock
    rng, rounds = cupy.random.default_rng(2), min(5 if quick else 11, most)
    for n in () if only == "paths" else sizes or ((4096,) if quick else (1024, 2048, 4096, 8192)):
        yield sampled(Row("minplus", "all", n, bound=n**3 / rate), product_calls(n, rng), rounds, gpu_seconds)
    for n in () if only == "minplus" else sizes or ((1024, 8192, 16384) if quick else PATH_SIZES):
        row = Row("paths", "all", n, bound=n**3 / rate)
        yield sampled(row, path_calls(n, rng), min(rounds, 3) if n > 8192 else rounds, gpu_seconds)
        free_gpu_memory()


def product_calls(n: int, rng: Any) -> Calls:
    """Return min-plus products of signed and of non-negative numbers in each type, checked against the definition."""
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
    """Return tropical-gemm's CUDA kernel of float32 min-plus products, which takes column-major matrices, or None."""
    import cupy

    folder = os.environ.get("FMM_TROPICAL_GEMM")
    if folder is None or n % 64:
        return None
    text = (Path(folder) / KERNEL).read_text(encoding="utf-8")
    kernel = cupy.RawModule(code=text).get_function("tropical_minplus_f32_nn")
    size, out = np.int32(n), cupy.empty((n, n), np.float32)

    def call(a: Any, b: Any) -> Any:
        kernel(((n // 64) ** 2,), (16, 16), (b, a, out, size, size, size))  # B^T A^T, so that rows are contiguous
        return out

    return call


def path_calls(n: int, rng: Any) -> Calls:
    """Return shortest paths of several graphs, checked."""
    import cupy

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
    """RuntimeError if a path is longer than an edge, or if one more edge makes a path shorter."""
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


def table_lines(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a line for each call of each row."""
    yield f"{'what':9}{'n':>7}  {'call':30}{'ms':>10}{'10^12 sums/s':>14}{'of bound':>10}{'x scipy':>9}"
    for row in rows:
        for name, samples in row.samples.items():
            seconds = median(samples)
            bound = f"{row.bound / seconds:10.1%}" if row.bound else f"{'':10}"
            peer = f"{paired_speedup(row.samples['scipy'], samples):9.2f}" if "scipy" in row.samples else ""
            kind = name if row.dtype == "all" else f"{row.dtype} {name}"
            yield f"{row.what:9}{row.n:7}  {kind:30}{1e3 * seconds:10.3f}{row.n**3 / seconds / 1e12:14.3f}{bound}{peer}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("shortest_paths", __doc__)
    add = parser.add_argument
    add("--device", default="cpu", help="cpu, or 0 for the first CUDA device")
    add("--quick", action="store_true", help="fewer sizes and rounds")
    add("--only", choices=("", "minplus", "paths"), default="", help="on a GPU: these alone")
    add("--sizes", type=int, nargs="+", help="these alone")
    add("--dtypes", nargs="+", choices=HOST_TYPES, default=HOST_TYPES, help="on a CPU: these alone")
    add("--rounds", type=int, help="of each case, at most")
    add("--processor-time", action="store_true", help="on a CPU: time all threads' processor time")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        clock = processor_seconds if options.processor_time else host_seconds
        sizes = options.sizes or HOST_SIZES[: 2 if options.quick else 3]
        where, folder = environment_record(typed_command()), RESULTS / device_folder()
        found = host_rows(sizes, options.dtypes, options.rounds or 3, clock)
    else:
        where, folder = gpu_environment(), gpu_folder()
        found = device_rows(options.quick, options.only, options.sizes or (), options.rounds or 11)
    path, rows = (options.output or folder) / "shortest_paths.json", list[Row]()
    for row in found:
        rows.append(row)
        print(*list(table_lines([row]))[1:], sep="\n", flush=True)
        write_result(path, where, [asdict(x) for x in rows])
    print(*table_lines(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
