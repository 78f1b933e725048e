"""Random shapes on a GPU, never slower than the vendor: `python -m benchmarks gpu_random [--workspace BYTES]`.

Whole calls as a user makes them, allocation and choice included, by the configs in force: CuPy's arrays, and torch's
tensors for bfloat16. Sides are spread evenly by logarithm; half of the shapes have odd sides. `--sizes 3072
4096x8192x4096` names shapes (m, or m x k x n). Samples go to results/<device>/random.json, with --workspace to
workspace.json.
"""

from __future__ import annotations

import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import cupy

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    paired_speedup,
    repeats_of,
    rounds_within,
    shuffled_rounds,
    write_result,
)

TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")
LARGEST, ASPECT = 20000, 64
SAMPLE = 4e-3  # seconds of a sample
SECONDS = 0.25  # of a shape's samples, about
DIGITS = 5  # significant digits of a sample that are written
SHOWN = 30  # slowest shapes that are printed
Size = tuple[int, int, int]


def random_shapes(count: int, seed: int) -> list[Size]:
    """Return random shapes with sides from 1 to LARGEST, none more than ASPECT times another; every second is odd."""
    rng = random.Random(seed)
    shapes: list[Size] = []
    while len(shapes) < count:
        size = tuple(int(LARGEST ** rng.random()) for _ in range(3))
        if max(size) <= ASPECT * min(size):
            even = len(shapes) % 2
            shapes.append(tuple(max(x - x % 2, 2) if even else x | 1 for x in size))  # type: ignore[arg-type]
    return shapes


def shape_of(text: str) -> Size:
    """Return the shape of `3072` (a cube) or `4096x8192x4096`."""
    sides = [int(x) for x in text.split("x")]
    m, k, n = sides * 3 if len(sides) == 1 else sides
    return m, k, n


def operands(size: Size, dtype: str) -> tuple[Any, Any, Callable[[Any, Any], Any]]:
    """Return random normal matrices, and the product of the library that they belong to."""
    m, k, n = size
    if dtype == "bfloat16":
        import torch

        a, b = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (k, n)))
        return a, b, torch.matmul
    drawn = "float32" if dtype in ("tf32", "float16") else dtype
    a, b = (cupy.random.standard_normal(shape, dtype=drawn) for shape in ((m, k), (k, n)))
    return (a.astype(cupy.float16), b.astype(cupy.float16), cupy.matmul) if dtype == "float16" else (a, b, cupy.matmul)


def measured(size: Size, dtype: str, limits: Mapping[str, Any], seconds: float = SECONDS) -> Row:
    """Measure one shape."""
    a, b, vendor = operands(size, dtype)
    samples = paired_milliseconds(partial(vendor, a, b), partial(fmm.matmul, a, b, **limits), seconds)
    return {"dtype": dtype, "size": size, **paired_fields(samples, fmm.explain(a, b, **limits))}


def paired_milliseconds(vendor: Call, own: Call, seconds: float = SECONDS) -> dict[str, list[float]]:
    """Return the milliseconds of both in shuffled rounds, after both are warm."""
    calls = {"vendor": vendor, "fmm": own}
    for call in calls.values():
        gpu_seconds(call, 2)
    single = max(gpu_seconds(vendor, 1), 1e-6)
    repeats = repeats_of(single, SAMPLE, most=1 << 20)
    samples = shuffled_rounds(calls, rounds_within(seconds, 2 * single * repeats, 5, 15), repeats=repeats)
    return {name: [float(f"{1e3 * x:.{DIGITS}g}") for x in found] for name, found in samples.items()}


def paired_fields(samples: Mapping[str, Sequence[float]], decision: Any) -> Row:
    """Return what a row says of paired samples: the median ratio, the plan, its source, and the samples."""
    ratio = paired_speedup(samples["vendor"], samples["fmm"])
    return {"ratio": float(f"{ratio:.{DIGITS}g}"), "plan": str(decision.plan), "step": decision.source, **samples}


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return the exit code."""
    parser = benchmark_parser("gpu_random", __doc__, time_limit=100)
    add = parser.add_argument
    add("--count", type=int, default=100, help="shapes of each type")
    add("--dtype", choices=TYPES, action="append", help="only this type (may be repeated)")
    add("--sizes", nargs="+", type=shape_of, help="these shapes instead of random ones")
    add("--workspace", type=int, help="workspace limit of fmm.matmul in bytes (default: none)")
    add("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    limits = {} if options.workspace is None else {"workspace": options.workspace}
    types, rows, began = options.dtype or TYPES, list[Row](), time.monotonic()
    for size in options.sizes or random_shapes(options.count, options.seed):
        for dtype in types:
            if time.monotonic() - began > options.time_limit:
                break
            cupy._core.set_compute_type(cupy.float32, 7 if dtype == "tf32" else 1)
            try:
                rows.append(measured(size, dtype, limits))
            finally:
                cupy._core.set_compute_type(cupy.float32, 1)
        free_gpu_memory()
    name = "workspace.json" if limits else "random.json"
    write_result((options.output or gpu_folder()) / name, gpu_environment(), rows)
    for row in sorted(rows, key=lambda row: row["ratio"])[:SHOWN]:
        shape, time_ms = " x ".join(map(str, row["size"])), f"{median(row['vendor']):9.4f} ms"
        print(f"{row['dtype']:9}{shape:24}{row['ratio']:7.3f} {time_ms}  {row['plan']}  ({row['step']})")
    for dtype in types:
        found = sorted(row["ratio"] for row in rows if row["dtype"] == dtype)
        fast = sum(row["plan"] != "vendor" for row in rows if row["dtype"] == dtype)
        if found:
            spread = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            print(f"{dtype:9} {len(found)} shapes, {fast} by fast plans: {spread}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
