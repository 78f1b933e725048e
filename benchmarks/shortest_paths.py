"""Shortest paths and min-plus products: `python -m benchmarks.shortest_paths [--device cpu|0] [--quick]`.

On a CPU, fmm.shortest_paths (compiled by Numba, and by NumPy alone) against SciPy's floyd_warshall. On a GPU,
fmm.minplus in each type, and fmm.shortest_paths; beside it, if FMM_TROPICAL_GEMM names a checkout of tropical-gemm
(whose package has its CPU's kernels alone), that project's CUDA kernel of the same product. Whole calls, in shuffled
rounds; results are checked first. Raw samples are written to shortest_paths.json in results/<device>/.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import fmm
from fmm.semirings import numba_kernels
from fmm.tuner.trials.environment import device_folder, environment

ROOT = Path(__file__).parents[1]
KERNEL = "crates/tropical-gemm-cuda/kernels/tropical_gemm.cu"  # of tropical-gemm
MINIMA = 64  # FMNMX, or VIADDMNMX, of a multiprocessor in a clock (docs/shortest_paths.md)
LONG = 1.0  # seconds of a way from which on its first timing is the first round
LEAST = 0.004  # seconds of a sample: shorter calls are repeated
HOST_SIZES = (512, 1024, 2048)
PATH_SIZES = (1024, 2048, 4096, 8191, 8192, 16384)
HOST_TYPES = ("float64", "float32", "int32", "int16")
LARGE = ("float64", "float32")  # the types of large graphs


@dataclass
class Row:
    """Paired samples of one case, in seconds; `ways`: who computed."""

    what: str
    dtype: str
    n: int
    samples: dict[str, list[float]] = field(default_factory=dict)
    bound: float = 0.0  # seconds that the chip's comparisons take, one a sum
    failure: str = ""

    def seconds(self, way: str) -> float:
        return median(self.samples[way])

    def speedup(self, way: str, peer: str) -> float:
        return median(p / w for w, p in zip(self.samples[way], self.samples[peer], strict=True))


Calls = dict[str, Callable[[], Any]]


def edges_of(xp: Any, n: int, dtype: str, rng: Any, negative: bool = False) -> Any:
    """Lengths of a graph with half of all edges."""
    whole = np.dtype(dtype).kind == "i"
    found = rng.integers(1, 100, (n, n)) if whole else rng.random((n, n)) + 0.01
    if negative:  # downhill; no cycle is negative, since heights cancel around it
        heights = rng.random(n)
        found = found + heights[:, None] - heights
    return xp.where(rng.random((n, n)) < 0.5, found, 0).astype(dtype)


def sampled(row: Row, calls: Calls, rounds: int, timed: Callable[[Callable[[], Any], int], float]) -> Row:
    """Each way in each round, in another order."""
    first = {way: timed(call, 1) for way, call in calls.items()}
    repeats = {way: max(int(LEAST / max(x, 1e-7)), 1) for way, x in first.items()}
    if max(first.values()) > LONG:
        row.samples, rounds = {way: [x] for way, x in first.items()}, rounds - 1
    for _ in range(rounds):
        for way in random.sample(list(calls), len(calls)):
            row.samples.setdefault(way, []).append(timed(calls[way], repeats[way]))
    return row


# ---- on a CPU


def host_seconds(call: Callable[[], Any], repeats: int, clock: Callable[[], float] = time.perf_counter) -> float:
    begin = clock()
    for _ in range(repeats):
        call()
    return (clock() - begin) / repeats


def processor_seconds(call: Callable[[], Any], repeats: int) -> float:
    """Of all threads together: what can be measured where others work beside."""
    return host_seconds(call, repeats, time.process_time)


def by_numpy(call: Callable[[], Any]) -> Any:
    """Without what Numba compiled."""
    kept, numba_kernels.can_compile = numba_kernels.can_compile, lambda: False
    try:
        return call()
    finally:
        numba_kernels.can_compile = kept


def host_rows(
    sizes: Sequence[int], dtypes: Sequence[str], rounds: int, timed: Callable[[Callable[[], Any], int], float]
) -> Iterator[Row]:
    from scipy.sparse.csgraph import floyd_warshall

    rng = np.random.default_rng(1)
    for n in sizes:
        for dtype in dtypes if n < 1024 else [x for x in dtypes if x in LARGE]:
            edges = edges_of(np, n, dtype, rng)
            given = edges.astype(np.float64)
            calls: Calls = {
                "numpy": lambda edges=edges: by_numpy(lambda: fmm.shortest_paths(edges)),  # type: ignore[misc]
                "scipy": lambda given=given: floyd_warshall(given),  # type: ignore[misc]
            }
            if numba_kernels.can_compile():
                calls["compiled"] = lambda edges=edges: fmm.shortest_paths(edges)  # type: ignore[misc]
            wanted = calls["scipy"]()
            for way in set(calls) - {"scipy"}:
                np.testing.assert_allclose(calls[way](), wanted, rtol=1e-5)
            yield sampled(Row("paths", dtype, n), calls, rounds, timed)


# ---- on a GPU


def device_seconds(call: Callable[[], Any], repeats: int) -> float:
    from fmm.tuner.devices.cuda import event_milliseconds

    return event_milliseconds(lambda _: call(), repeats) / 1e3


def device_rows(quick: bool, only: str, sizes: Sequence[int], most: int) -> Iterator[Row]:
    import cupy

    chip, clock = cupy.cuda.Device(), 1e3 * cupy.cuda.Device().attributes["ClockRate"]
    rate = chip.attributes["MultiProcessorCount"] * MINIMA * clock
    rng, rounds = cupy.random.default_rng(2), min(5 if quick else 11, most)
    for n in () if only == "paths" else sizes or ((4096,) if quick else (1024, 2048, 4096, 8192)):
        yield sampled(Row("minplus", "all", n, bound=n**3 / rate), product_calls(n, rng), rounds, device_seconds)
    for n in () if only == "minplus" else sizes or ((1024, 8192, 16384) if quick else PATH_SIZES):
        row = Row("paths", "all", n, bound=n**3 / rate)
        yield sampled(row, path_calls(n, rng), min(rounds, 3) if n > 8192 else rounds, device_seconds)
        cupy.get_default_memory_pool().free_all_blocks()


def product_calls(n: int, rng: Any) -> Calls:
    """Normal numbers, and ones of which none is negative, in each type; all are checked against the definition."""
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
    """Its CUDA kernel of float32 min-plus products, of matrices whose columns are contiguous; None where it is not."""
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
    import cupy

    graphs = {name: edges_of(cupy, n, name, rng) for name in ("float32", "int16")}
    graphs["float32 with negative edges"] = edges_of(cupy, n, "float32", rng, negative=True)
    calls: Calls = {}
    for name, given in graphs.items():
        check_paths(name, given, fmm.shortest_paths(given))
        calls[name] = lambda given=given: fmm.shortest_paths(given)  # type: ignore[misc]
    if n <= 8192:
        calls["float32, predecessors"] = lambda: fmm.shortest_paths(graphs["float32"], return_predecessors=True)
    return calls


def check_paths(name: str, edges: Any, found: Any) -> None:
    """No path by one more edge is shorter, and none is longer than an edge."""
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
            raise RuntimeError(f"{name}: row {i} is not what one more edge makes of it")


# ---- both


def table(rows: list[Row]) -> Iterator[str]:
    yield f"{'what':9}{'n':>7}  {'way':30}{'ms':>10}{'10^12 sums/s':>14}{'of bound':>10}{'x scipy':>9}"
    for row in rows:
        for way in row.samples:
            seconds = row.seconds(way)
            bound = f"{row.bound / seconds:10.1%}" if row.bound else f"{'':10}"
            peer = f"{row.speedup(way, 'scipy'):9.2f}" if "scipy" in row.samples else ""
            kind = way if row.dtype == "all" else f"{row.dtype} {way}"
            yield f"{row.what:9}{row.n:7}  {kind:30}{1e3 * seconds:10.3f}{row.n**3 / seconds / 1e12:14.3f}{bound}{peer}"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", help="cpu, or 0 for the first CUDA device")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and rounds")
    parser.add_argument("--only", choices=("", "minplus", "paths"), default="", help="on a GPU: these alone")
    parser.add_argument("--sizes", type=int, nargs="+", help="these alone")
    parser.add_argument("--dtypes", nargs="+", choices=HOST_TYPES, default=HOST_TYPES, help="on a CPU: these alone")
    parser.add_argument("--rounds", type=int, help="of each case, at most")
    parser.add_argument("--processor-time", action="store_true", help="on a CPU: of all threads, not of the clock")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    if options.device == "cpu":
        timed = processor_seconds if options.processor_time else host_seconds
        sizes = options.sizes or HOST_SIZES[: 2 if options.quick else 3]
        where = environment(["python -m benchmarks.shortest_paths", *arguments])
        made = host_rows(sizes, options.dtypes, options.rounds or 3, timed)
        folder = device_folder()
    else:
        from benchmarks.harness import gpu_environment, gpu_folder

        where, folder = gpu_environment(), gpu_folder().name
        made = device_rows(options.quick, options.only, options.sizes or (), options.rounds or 11)
    output = options.output or ROOT / "results" / folder
    output.mkdir(parents=True, exist_ok=True)
    rows: list[Row] = []
    for row in made:
        rows.append(row)
        print(*list(table([row]))[1:], sep="\n", flush=True)
        content = {"environment": where, "rows": [asdict(x) for x in rows]}
        (output / "shortest_paths.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    print(*table(rows), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
