"""Random shapes, never slower than the vendor: `python -m benchmarks random_shapes [--device cpu|0] [--products]`.

Whole calls of each kind on random shapes, half of them with odd sides, by the configs in force. On a GPU: the lower
triangle of x x.T against CuPy's syrk (of bfloat16, which has no syrk, both triangles), x @ x.T as a user writes it, and
complex products. On a CPU: x times its adjoint by fmm.gram, x @ x.T, and complex products, against NumPy's into one
array each; a shape below the goal is measured once more at the end, longer and on other numbers. With --products, on a
GPU: plain products of CuPy's arrays, and of torch's tensors for bfloat16; --sizes 3072 4096x8192x4096 names shapes (n
for n x n x n, or m x k x n).

Each shape is measured as in a program that has no others. Samples, in milliseconds, go to results/<device>/: to
structured.json (a GPU), random-structured.json (a CPU), random.json (--products) or workspace.json (--workspace).
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.harness import (
    Call,
    Machine,
    Row,
    benchmark_parser,
    cupy_tf32,
    free_gpu_memory,
    gpu_seconds,
    has_failures,
    host_seconds,
    machine_of,
    paired_samples,
    paired_speedup,
    recorded_failure,
    repeats_of,
    rounds_within,
    run_cases,
    shuffled_rounds,
)
from benchmarks.matrices import REAL_PART_TYPES, library_of, library_product, random_matrix

MAX_ASPECT = 64  # largest ratio of two sides
GOAL_SPEEDUP = 0.98  # least speedup over the vendor for every structured shape
SHAPE_COUNT, QUICK_COUNT, PRODUCT_COUNT = 60, 8, 100  # shapes of each kind
GPU_TYPES, CPU_TYPES = ("float32", "float64", "bfloat16"), ("float64", "float32")
PRODUCT_TYPES = ("float32", "float64", "bfloat16", "float16", "tf32")
LARGEST_SIDES = {"gpu": 20000, "gpu complex": 14000, "cpu": 3000}  # sides
GPU_SAMPLE, CPU_SAMPLE = 4e-3, 2e-3  # seconds of a sample
CPU_ROUNDS, CPU_ROUNDS_AGAIN = 7, 21
SAMPLE_DIGITS = 5  # significant digits of a recorded sample
TOLERANCE = {"float32": 1e-4, "complex64": 1e-4}  # relative error, in norm, of a right result; other types:
DOUBLE_TOLERANCE = 1e-11
PRODUCT_PREFIX = "product "  # begins the kinds of plain products
Size = tuple[int, int, int]
Calls = tuple[Call, Call, Any]  # the vendor's call, fmm's call, and fmm's decision


class Case(NamedTuple):
    """A kind of product and its sides; `again`: the second measurement of a shape below the goal."""

    kind: str
    size: tuple[int, ...]
    again: bool = False

    @property
    def dtype(self) -> str:
        return self.kind.rpartition(" ")[2]

    @property
    def seed(self) -> int:
        return 2 if self.again else 1


# Shapes


def random_sides(count: int, number: int, largest: int, seed: int) -> list[tuple[int, ...]]:
    """Return shapes of `number` sides, spread evenly by logarithm up to `largest`; every second shape is odd.

    No side is more than MAX_ASPECT times another.
    """
    rng = random.Random(seed)
    shapes: list[tuple[int, ...]] = []
    while len(shapes) < count:
        size = [int(largest ** rng.random()) for _ in range(number)]
        if max(size) <= MAX_ASPECT * min(size):
            shapes.append(tuple(max(x - x % 2, 2) if len(shapes) % 2 else x | 1 for x in size))
    return shapes


def parse_size(text: str) -> Size:
    """Return the shape of `3072` (a cube) or `4096x8192x4096`."""
    sides = [int(x) for x in text.split("x")]
    m, k, n = sides * 3 if len(sides) == 1 else sides
    return m, k, n


# Calls on a GPU


def gpu_product_calls(case: Case, **limits: Any) -> Calls:
    """Return the product of two random matrices."""
    (m, k, n), library = case.size, library_of(case.dtype)
    a, b = (random_matrix(library, shape, case.dtype, seed=seed) for seed, shape in ((1, (m, k)), (2, (k, n))))
    vendor, own = partial(library_product(library), a, b), partial(fmm.matmul, a, b, **limits)
    return vendor, own, fmm.explain(a, b, **limits)


def gpu_triangle_calls(case: Case) -> Calls:
    """Return the lower triangle of x x.T into one array, checked; of bfloat16, which has no syrk, both triangles."""
    import cupy
    from cupy import cublas

    library = library_of(case.dtype)
    x, vendor = random_matrix(library, case.size, case.dtype), library_product(library)
    rows, cols = case.size
    if library == "torch":
        return (lambda: vendor(x, x.T)), partial(fmm.gram, x, rows=True), fmm.explain_gram(x, rows=True)
    vendor_out, own_out = (cupy.zeros((rows, rows), x.dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "fill": "lower", "out": own_out}
    calls = partial(cublas.syrk, "N", x, out=vendor_out, lower=True), partial(fmm.gram, x, **options)
    for call in calls:
        call()
    if not bool(cupy.allclose(cupy.tril(vendor_out), own_out, rtol=1e-3, atol=1e-3 * cols**0.5)):
        raise RuntimeError("CuPy's syrk and fmm.gram differ")
    return *calls, fmm.explain_gram(x, **options)


def gpu_transposed_calls(case: Case) -> Calls:
    """Return x @ x.T as a user writes it."""
    library = library_of(case.dtype)
    x, vendor = random_matrix(library, case.size, case.dtype), library_product(library)
    return (lambda: vendor(x, x.T)), (lambda: fmm.matmul(x, x.T)), fmm.explain(x, x.T)


def gpu_complex_calls(case: Case) -> Calls:
    m, k, n = case.size
    a, b = (random_matrix("cupy", shape, case.dtype, seed=i) for i, shape in enumerate(((m, k), (k, n))))
    return partial(library_product("cupy"), a, b), partial(fmm.matmul, a, b), fmm.explain(a, b)


GPU_KINDS: Mapping[str, Callable[[Case], Calls]] = {
    **{f"half {dtype}": gpu_triangle_calls for dtype in GPU_TYPES},
    **{f"x @ x.T {dtype}": gpu_transposed_calls for dtype in GPU_TYPES},
    **dict.fromkeys(REAL_PART_TYPES, gpu_complex_calls),
}


def measured_on_gpu(case: Case, seconds: float, **limits: Any) -> Row:
    """Measure one shape for about `seconds`; `limits` are arguments of fmm.matmul for plain products."""
    is_product = case.kind.startswith(PRODUCT_PREFIX)
    try:
        with cupy_tf32(case.dtype == "tf32"):
            vendor, own, decision = gpu_product_calls(case, **limits) if is_product else GPU_KINDS[case.kind](case)
            samples = paired_milliseconds(vendor, own, seconds)
        name = {"dtype": case.dtype} if is_product else {"kind": case.kind}
        return {**name, "size": case.size, **paired_fields(samples, decision)}
    finally:
        fmm.release_workspace()  # with the graphs of this shape
        free_gpu_memory()


def paired_milliseconds(vendor: Call, own: Call, seconds: float) -> dict[str, list[float]]:
    """Return the milliseconds of both calls in shuffled rounds, after a warm-up."""
    calls = {"vendor": vendor, "fmm": own}
    for call in calls.values():
        gpu_seconds(call, 2)
    single = max(gpu_seconds(vendor, 1), 1e-6)
    repeats = repeats_of(single, GPU_SAMPLE, most=1 << 20)
    samples = shuffled_rounds(calls, rounds_within(seconds, 2 * single * repeats, 5, 15), repeats=repeats)
    return {name: [float(f"{1e3 * x:.{SAMPLE_DIGITS}g}") for x in found] for name, found in samples.items()}


def paired_fields(samples: Mapping[str, Sequence[float]], decision: Any) -> Row:
    """Return the fields of a row from paired samples: the median ratio, the plan, its source, and the samples."""
    ratio = paired_speedup(samples["vendor"], samples["fmm"])
    return {
        "ratio": float(f"{ratio:.{SAMPLE_DIGITS}g}"),
        "plan": str(decision.plan),
        "step": decision.source,
        **samples,
    }


# Calls on a CPU


def cpu_gram_calls(case: Case) -> Calls:
    """Return x times its adjoint; of complex numbers the vendor's adjoint is a copy at every call."""
    x = random_matrix("numpy", case.size, case.dtype, seed=case.seed)
    vendor_out, own_out = (np.empty((case.size[0],) * 2, case.dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "out": own_out}
    is_complex = case.dtype in REAL_PART_TYPES
    vendor = (lambda: np.matmul(x, x.conj().T, vendor_out)) if is_complex else lambda: np.matmul(x, x.T, vendor_out)
    return vendor, partial(fmm.gram, x, **options), fmm.explain_gram(x, **options)


def cpu_transposed_calls(case: Case) -> Calls:
    """Return x @ x.T as a user writes it; NumPy calls BLAS's syrk for it."""
    x = random_matrix("numpy", case.size, case.dtype, seed=case.seed)
    vendor_out, own_out = (np.empty((case.size[0],) * 2, case.dtype) for _ in range(2))
    vendor, own = (lambda: np.matmul(x, x.T, vendor_out)), (lambda: fmm.matmul(x, x.T, own_out))
    return vendor, own, fmm.explain(x, x.T, out=own_out)


def cpu_complex_calls(case: Case) -> Calls:
    m, k, n = case.size
    a, b = (random_matrix("numpy", shape, case.dtype, seed=case.seed) for shape in ((m, k), (k, n)))
    vendor_out, own_out = (np.empty((m, n), case.dtype) for _ in range(2))
    return partial(np.matmul, a, b, vendor_out), partial(fmm.matmul, a, b, own_out), fmm.explain(a, b, out=own_out)


CPU_KINDS: Mapping[str, Callable[[Case], Calls]] = {
    **{f"gram {dtype}": cpu_gram_calls for dtype in (*CPU_TYPES, "complex128", "complex64")},
    **{f"x @ x.T {dtype}": cpu_transposed_calls for dtype in CPU_TYPES},
    **dict.fromkeys(("complex128", "complex64"), cpu_complex_calls),
}


def measured_on_cpu(case: Case) -> Row:
    """Check the result of a shape, then measure it."""
    vendor, own, decision = CPU_KINDS[case.kind](case)
    expected, found = np.asarray(vendor()), np.asarray(own())
    distance = float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-300)
    if not distance < TOLERANCE.get(case.dtype, DOUBLE_TOLERANCE):
        raise RuntimeError(f"wrong result: NumPy's is {distance:.3g} away")
    rounds = CPU_ROUNDS_AGAIN if case.again else CPU_ROUNDS
    seconds = paired_samples({"vendor": vendor, "fmm": own}, rounds, CPU_SAMPLE, host_seconds, warm=1)
    samples = {name: [float(f"{1e3 * x:.4g}") for x in values] for name, values in seconds.items()}
    return {**case._asdict(), **paired_fields(samples, decision)}


# The command


def text_line(row: Row) -> str:
    """Return the line that a terminal shows for a row."""
    name = f"{row.get('kind') or row['dtype']:18}{' x '.join(map(str, row['size'])):24}"
    if row.get("failure"):
        return f"{name}  {row['failure'][:100]}"
    return f"{name}{row['ratio']:7.3f} {median(row['vendor']):9.4f} ms  {row['plan']}"


def summary_lines(rows: Sequence[Row], goal: float) -> Iterator[str]:
    """Yield a line for each kind or type: the number of shapes, those below the goal, and the extreme ratios."""
    names = [row.get("kind") or row["dtype"] for row in rows]
    for kind in dict.fromkeys(names):
        found = sorted(row["ratio"] for row, name in zip(rows, names, strict=True) if name == kind and "ratio" in row)
        if found:
            below = sum(x < goal for x in found)
            spread = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            yield f"{kind:18}{len(found)} shapes, {below} below {goal:g}: {spread}"


def better_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each shape: the better of its two measurements."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row.get("kind", ""), row.get("dtype", ""), *map(str, row["size"]))
        if key not in best or row.get("ratio", 0) > best[key].get("ratio", 0):
            best[key] = row
    return list(best.values())


def structured_cases(machine: Machine, options: argparse.Namespace) -> list[Case]:
    """Return every structured kind with every shape, the kinds in turn."""
    count = QUICK_COUNT if options.quick else options.count or SHAPE_COUNT
    kinds = [kind for kind in (GPU_KINDS if machine.on_gpu else CPU_KINDS) if options.only in kind]
    largest = ("gpu", "gpu complex") if machine.on_gpu else ("cpu", "cpu")
    seed = options.seed
    pairs, triples = (
        random_sides(count, n, LARGEST_SIDES[name], seed) for n, name in zip((2, 3), largest, strict=True)
    )
    return [Case(kind, triples[i] if kind in REAL_PART_TYPES else pairs[i]) for i in range(count) for kind in kinds]


def product_cases(options: argparse.Namespace) -> list[Case]:
    """Return every type with every shape, the types in turn."""
    count = QUICK_COUNT if options.quick else options.count or PRODUCT_COUNT
    sizes = options.sizes or random_sides(count, 3, LARGEST_SIDES["gpu"], options.seed)
    return [Case(f"{PRODUCT_PREFIX}{dtype}", size) for size in sizes for dtype in options.dtype or PRODUCT_TYPES]


def parsed_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Return the options of the command line."""
    shapes = f"{QUICK_COUNT} shapes of each kind instead of {SHAPE_COUNT}"
    parser = benchmark_parser("random_shapes", __doc__, time_limit=200, device="0", quick=shapes)
    add = parser.add_argument
    add("--only", default="", help="structured kinds whose name contains this")
    add("--count", type=int, help=f"shapes of each kind ({SHAPE_COUNT}; {PRODUCT_COUNT} with --products)")
    add("--seed", type=int, default=1)
    add("--seconds", type=float, default=0.25, help="of a shape's samples on a GPU, roughly")
    add("--products", action="store_true", help="plain products on a GPU")
    add("--dtype", choices=PRODUCT_TYPES, action="append", help="with --products: only this type (may be repeated)")
    add("--sizes", nargs="+", type=parse_size, help="with --products: these shapes instead of random ones")
    add("--workspace", type=int, help="with --products: workspace limit of fmm.matmul in bytes (default: none)")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a shape failed."""
    options = parsed_options(arguments)
    machine = machine_of(options.device)
    limits = {} if options.workspace is None else {"workspace": options.workspace}
    if options.products:
        cases, file = product_cases(options), "workspace.json" if limits else "random.json"
    else:
        cases = structured_cases(machine, options)
        file = "structured.json" if machine.on_gpu else "random-structured.json"
    on_one = partial(measured_on_gpu, seconds=options.seconds, **limits) if machine.on_gpu else measured_on_cpu
    measure = recorded_failure(on_one, lambda case: {**case._asdict(), "dtype": case.dtype})
    found: list[Row] = []

    def measure_noted(case: Case) -> Row:
        found.append(measure(case))
        return found[-1]

    def measured_again(count: int) -> list[Row]:
        below = [row for row in found if row.get("ratio", 1) < GOAL_SPEEDUP]
        return [] if machine.on_gpu else [measure(Case(row["kind"], tuple(row["size"]), again=True)) for row in below]

    rows = run_cases(options, machine, file, cases, measure_noted, text_line, left=measured_again)
    print(*summary_lines(better_rows(rows), 1.0 if options.products else GOAL_SPEEDUP), sep="\n")
    return has_failures(rows)
