"""Random shapes of structured products, never slower than the vendor: `python -m benchmarks structured_random
[--device cpu|0] [--quick]`.

Whole calls of each kind, half of the shapes with odd sides. On a GPU: the lower triangle of x x.T against CuPy's syrk
(of bfloat16, without a syrk, the whole of it), x @ x.T as a user writes it, and complex products, against CuPy's or
torch's. On a CPU: x times its adjoint by fmm.gram, x @ x.T, and complex products, against NumPy's into one place each;
a shape below the goal is measured once more at the end, longer and on other numbers. Each shape is measured as in a
program that has no others, by the configs in force. Samples go to results/<device>/structured.json (a GPU) or
random-structured.json.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import numpy as np

import fmm
from benchmarks.harness import (
    RESULTS,
    Call,
    Row,
    benchmark_parser,
    cases_in_time,
    failure_text,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    host_seconds,
    paired_samples,
    write_result,
)
from fmm.tuner.trials.environment import device_folder, environment_record, typed_command

GOAL = 0.98  # of the vendor's speed, for every shape
COUNT, QUICK_COUNT = 60, 8
ASPECT = 64  # largest ratio of two sides
REAL = {"complex64": "float32", "complex128": "float64"}
Calls = tuple[Call, Call, Any]  # the vendor's, fmm's, and fmm's decision


def random_sides(count: int, number: int, largest: int, seed: int) -> list[tuple[int, ...]]:
    """Return random sides, spread evenly by logarithm; every second shape is odd."""
    rng = random.Random(seed)
    shapes: list[tuple[int, ...]] = []
    while len(shapes) < count:
        size = [int(largest ** rng.random()) for _ in range(number)]
        if max(size) <= ASPECT * min(size):
            shapes.append(tuple(max(x - x % 2, 2) if len(shapes) % 2 else x | 1 for x in size))
    return shapes


# ---- on a GPU

GPU_TYPES = ("float32", "float64", "bfloat16")
GPU_LARGEST, GPU_LARGEST_COMPLEX = 20000, 14000  # sides


def triangle_calls(dtype: str, rows: int, cols: int, seed: int) -> Calls:
    """The lower triangle of x x.T into one place, checked; of bfloat16, without a syrk, the whole of it."""
    import cupy
    from cupy import cublas

    from benchmarks.gpu_random import operands

    x, _, vendor = operands((rows, cols, 1), dtype)
    if dtype == "bfloat16":
        return (lambda: vendor(x, x.T)), partial(fmm.gram, x, rows=True), fmm.explain_gram(x, rows=True)
    theirs, ours = (cupy.zeros((rows, rows), x.dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "fill": "lower", "out": ours}
    calls = partial(cublas.syrk, "N", x, out=theirs, lower=True), partial(fmm.gram, x, **options)
    for call in calls:
        call()
    if not bool(cupy.allclose(cupy.tril(theirs), ours, rtol=1e-3, atol=1e-3 * cols**0.5)):
        raise RuntimeError("CuPy's syrk and fmm.gram differ")
    return *calls, fmm.explain_gram(x, **options)


def gpu_transposed_calls(dtype: str, rows: int, cols: int, seed: int) -> Calls:
    """x @ x.T as a user writes it."""
    from benchmarks.gpu_random import operands

    x, _, vendor = operands((rows, cols, 1), dtype)
    return (lambda: vendor(x, x.T)), (lambda: fmm.matmul(x, x.T)), fmm.explain(x, x.T)


def gpu_complex_calls(dtype: str, m: int, k: int, n: int, seed: int) -> Calls:
    import cupy

    def drawn(shape: tuple[int, int]) -> Any:
        real, imaginary = (cupy.random.standard_normal(shape, dtype=REAL[dtype]) for _ in range(2))
        return (real + 1j * imaginary).astype(dtype)

    a, b = drawn((m, k)), drawn((k, n))
    return partial(cupy.matmul, a, b), partial(fmm.matmul, a, b), fmm.explain(a, b)


GPU_KINDS: Mapping[str, Callable[..., Calls]] = {
    **{f"half {dtype}": partial(triangle_calls, dtype) for dtype in GPU_TYPES},
    **{f"x @ x.T {dtype}": partial(gpu_transposed_calls, dtype) for dtype in GPU_TYPES},
    **{dtype: partial(gpu_complex_calls, dtype) for dtype in REAL},
}


def measured_on_gpu(kind: str, size: tuple[int, ...], seconds: float) -> Row:
    """Measure one shape; one that fails is a row that says why."""
    from benchmarks.gpu_random import paired_fields, paired_milliseconds

    try:
        vendor, own, decision = GPU_KINDS[kind](*size, seed=1)
        return {"kind": kind, "size": size, **paired_fields(paired_milliseconds(vendor, own, seconds), decision)}
    except Exception as error:  # whatever may go wrong: the next shape is measured
        return {"kind": kind, "size": size, "failure": failure_text(error)}
    finally:
        fmm.release_workspace()  # with the graphs of this shape
        free_gpu_memory()


# ---- on a CPU

CPU_REAL, CPU_COMPLEX = ("float64", "float32"), ("complex128", "complex64")
CPU_LARGEST = 3000  # side
CPU_SAMPLE = 2e-3  # seconds of a sample
ROUNDS, ROUNDS_AGAIN = 7, 21
TOLERANCE = {"float32": 1e-4, "complex64": 1e-4}  # relative error, in norm, of a right result; other types:
DOUBLE_TOLERANCE = 1e-11


def random_matrix(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    """Return a matrix of normal numbers."""
    x = rng.standard_normal(shape)
    return (x + 1j * rng.standard_normal(shape) if dtype in CPU_COMPLEX else x).astype(dtype)


def gram_calls(dtype: str, rows: int, cols: int, seed: int) -> Calls:
    """x times its adjoint."""
    x = random_matrix((rows, cols), dtype, np.random.default_rng([seed, rows, cols]))
    theirs, ours = (np.empty((rows, rows), dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "out": ours}
    adjoint: Call = (
        (lambda: np.matmul(x, x.conj().T, theirs)) if dtype in CPU_COMPLEX else lambda: np.matmul(x, x.T, theirs)
    )
    return adjoint, partial(fmm.gram, x, **options), fmm.explain_gram(x, **options)


def cpu_transposed_calls(dtype: str, rows: int, cols: int, seed: int) -> Calls:
    """x @ x.T as a user writes it; NumPy calls BLAS's syrk for it."""
    x = random_matrix((rows, cols), dtype, np.random.default_rng([seed, rows, cols]))
    theirs, ours = (np.empty((rows, rows), dtype) for _ in range(2))
    vendor, own = (lambda: np.matmul(x, x.T, theirs)), (lambda: fmm.matmul(x, x.T, ours))
    return vendor, own, fmm.explain(x, x.T, out=ours)


def cpu_complex_calls(dtype: str, m: int, k: int, n: int, seed: int) -> Calls:
    rng = np.random.default_rng([seed, m, k, n])
    a, b = random_matrix((m, k), dtype, rng), random_matrix((k, n), dtype, rng)
    theirs, ours = (np.empty((m, n), dtype) for _ in range(2))
    return partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), fmm.explain(a, b, out=ours)


CPU_KINDS: Mapping[str, Callable[..., Calls]] = {
    **{f"gram {dtype}": partial(gram_calls, dtype) for dtype in (*CPU_REAL, *CPU_COMPLEX)},
    **{f"x @ x.T {dtype}": partial(cpu_transposed_calls, dtype) for dtype in CPU_REAL},
    **{dtype: partial(cpu_complex_calls, dtype) for dtype in CPU_COMPLEX},
}


def measured_on_cpu(kind: str, size: tuple[int, ...], again: bool = False) -> Row:
    """Measure one shape, in milliseconds, after checking the result; one that fails is a row that says why."""
    names: Row = {"kind": kind, "size": list(size), **({"again": True} if again else {})}
    try:
        vendor, own, decision = CPU_KINDS[kind](*size, seed=1 + again)
        expected, found = np.asarray(vendor()), np.asarray(own())
        distance = float(np.linalg.norm(found - expected)) / max(float(np.linalg.norm(expected)), 1e-300)
        if not distance < TOLERANCE.get(kind.rpartition(" ")[2], DOUBLE_TOLERANCE):
            raise RuntimeError(f"wrong result: NumPy's is {distance:.3g} away")
        calls = {"vendor": vendor, "fmm": own}
        seconds = paired_samples(calls, ROUNDS_AGAIN if again else ROUNDS, CPU_SAMPLE, host_seconds, warm=1)
        samples = {name: [float(f"{1e3 * x:.4g}") for x in values] for name, values in seconds.items()}
        ratio = median(x / y for x, y in zip(samples["vendor"], samples["fmm"], strict=True))
        return {**names, "ratio": round(ratio, 4), "plan": str(decision.plan), **samples}
    except Exception as error:  # whatever may go wrong: the next shape is measured
        return {**names, "failure": failure_text(error)}


# ---- the command


def summary_lines(rows: Sequence[Row], kinds: Sequence[str]) -> Iterator[str]:
    """Yield the slowest shapes, the failed ones, and a line for each kind; the vendor's times are in milliseconds."""
    good = [row for row in rows if "ratio" in row]
    for row in sorted(good, key=lambda row: row["ratio"])[:20]:
        size = " x ".join(map(str, row["size"]))
        yield f"{row['kind']:18}{size:22}{row['ratio']:7.3f} {median(row['vendor']):9.4f} ms  {row['plan']}"
    for row in rows:
        if "failure" in row:
            yield f"{row['kind']:18}{row['size']}  {row['failure'][:100]}"
    for kind in kinds:
        found = sorted(row["ratio"] for row in good if row["kind"] == kind)
        if found:
            below = sum(x < GOAL for x in found)
            spread = f"worst {found[0]:.3f}, median {median(found):.3f}, best {found[-1]:.3f}"
            yield f"{kind:18}{len(found)} shapes, {below} below {GOAL}: {spread}"


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a shape failed."""
    parser = benchmark_parser("structured_random", __doc__, time_limit=200)
    add = parser.add_argument
    add("--device", default="0", help="cpu, or 0 for CuPy's GPU (0)")
    add("--quick", action="store_true", help=f"{QUICK_COUNT} shapes of each kind instead of {COUNT}")
    add("--only", default="", help="kinds whose name contains this")
    add("--seed", type=int, default=1)
    add("--seconds", type=float, default=0.25, help="of a shape's samples on a GPU, about")
    options = parser.parse_args(arguments)
    on_cpu = options.device == "cpu"
    kinds = [kind for kind in (CPU_KINDS if on_cpu else GPU_KINDS) if options.only in kind]
    largest, largest_complex = (CPU_LARGEST,) * 2 if on_cpu else (GPU_LARGEST, GPU_LARGEST_COMPLEX)
    count = QUICK_COUNT if options.quick else COUNT
    pairs = random_sides(count, 2, largest, options.seed)
    triples = random_sides(count, 3, largest_complex, options.seed)
    cases = [
        (kind, triple if kind in REAL else pair) for pair, triple in zip(pairs, triples, strict=True) for kind in kinds
    ]
    rows: list[Row] = []
    for kind, size in cases_in_time(cases, options.time_limit):
        rows.append(measured_on_cpu(kind, size) if on_cpu else measured_on_gpu(kind, size, options.seconds))
    if on_cpu:
        for row in [row for row in rows if row.get("ratio", 0) < GOAL]:
            rows.append(measured_on_cpu(row["kind"], tuple(row["size"]), again=True))
        folder, where, name = RESULTS / device_folder(), environment_record(typed_command()), "random-structured.json"
    else:
        folder, where, name = gpu_folder(), gpu_environment(), "structured.json"
    write_result((options.output or folder) / name, where, rows)
    print("\n".join(summary_lines(better_looks(rows), kinds)))
    return int(any("failure" in row for row in rows))


def better_looks(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each shape: the better of its two measurements."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row["kind"], *map(str, row["size"]))
        if key not in best or row.get("ratio", 0) > best[key].get("ratio", 0):
            best[key] = row
    return list(best.values())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
