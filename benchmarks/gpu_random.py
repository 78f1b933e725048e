"""Random shapes on a GPU, never slower than the vendor: `python -m benchmarks gpu_random [--workspace BYTES]`.

Whole calls as a user makes them, allocation and choice included, by the configs in force: CuPy's arrays, and torch's
tensors for bfloat16. Sides are spread evenly by logarithm; half of the shapes have odd sides. `--sizes 3072
4096x8192x4096` names shapes (n for n x n x n, or m x k x n). Samples, in milliseconds, go to
results/<device>/random.json, with --workspace to workspace.json.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import product
from statistics import median
from typing import Any

import fmm
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    cupy_tf32,
    free_gpu_memory,
    gpu_seconds,
    machine_of,
    paired_speedup,
    repeats_of,
    rounds_within,
    run_cases,
    shuffled_rounds,
)
from benchmarks.matrices import library_of, library_product, random_matrix

TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")
LARGEST, ASPECT = 20000, 64
SAMPLE = 4e-3  # seconds of a sample
SECONDS = 0.25  # of a shape's samples, roughly
DIGITS = 5  # significant digits of a sample that are written
Size = tuple[int, int, int]


def random_sides(count: int, number: int, largest: int, seed: int) -> list[tuple[int, ...]]:
    """Return shapes of `number` sides, spread evenly by logarithm up to `largest`; every second shape is odd.

    No side is more than ASPECT times another.
    """
    rng = random.Random(seed)
    shapes: list[tuple[int, ...]] = []
    while len(shapes) < count:
        size = [int(largest ** rng.random()) for _ in range(number)]
        if max(size) <= ASPECT * min(size):
            shapes.append(tuple(max(x - x % 2, 2) if len(shapes) % 2 else x | 1 for x in size))
    return shapes


def random_shapes(count: int, seed: int) -> list[Size]:
    """Return random shapes of products."""
    return [(m, k, n) for m, k, n in random_sides(count, 3, LARGEST, seed)]


def shape_of(text: str) -> Size:
    """Return the shape of `3072` (a cube) or `4096x8192x4096`."""
    sides = [int(x) for x in text.split("x")]
    m, k, n = sides * 3 if len(sides) == 1 else sides
    return m, k, n


def measured(size: Size, dtype: str, limits: Mapping[str, Any], seconds: float = SECONDS) -> Row:
    """Measure one shape."""
    (m, k, n), library = size, library_of(dtype)
    a, b = (random_matrix(library, shape, dtype, seed=seed) for seed, shape in ((1, (m, k)), (2, (k, n))))
    with cupy_tf32(dtype == "tf32"):
        own, vendor = partial(fmm.matmul, a, b, **limits), partial(library_product(library), a, b)
        samples = paired_milliseconds(vendor, own, seconds)
        decision = fmm.explain(a, b, **limits)
    return {"dtype": dtype, "size": size, **paired_fields(samples, decision)}


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
    """Return the fields of a row from paired samples: the median ratio, the plan, its source, and the samples."""
    ratio = paired_speedup(samples["vendor"], samples["fmm"])
    return {"ratio": float(f"{ratio:.{DIGITS}g}"), "plan": str(decision.plan), "step": decision.source, **samples}


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    name = f"{row.get('kind') or row['dtype']:18}{' x '.join(map(str, row['size'])):24}"
    if row.get("failure"):
        return f"{name}  {row['failure'][:100]}"
    return f"{name}{row['ratio']:7.3f} {median(row['vendor']):9.4f} ms  {row['plan']}"


def summary_lines(rows: Sequence[Row], key: str, goal: float = 1.0) -> Iterator[str]:
    """Yield a line for each kind or type: the number of shapes, those below the goal, and the extreme ratios."""
    for name in dict.fromkeys(row[key] for row in rows):
        found = sorted(row["ratio"] for row in rows if row[key] == name and "ratio" in row)
        if found:
            below = sum(x < goal for x in found)
            spread = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            yield f"{name:18}{len(found)} shapes, {below} below {goal:g}: {spread}"


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
    cases = product(options.sizes or random_shapes(options.count, options.seed), options.dtype or TYPES)

    def measure(case: tuple[Size, str]) -> Row:
        row = measured(*case, limits)
        free_gpu_memory()
        return row

    file = "workspace.json" if limits else "random.json"
    rows = run_cases(options, machine_of("0"), file, cases, measure, text_line)
    print(*summary_lines(rows, "dtype"), sep="\n")
    return 0
