"""Structured products, never slower than the vendor: `python -m benchmarks structured_random [--device cpu|0]`.

Whole calls of each kind on random shapes, half of them with odd sides. On a GPU: the lower triangle of x x.T against
CuPy's syrk (of bfloat16, without a syrk, both triangles), x @ x.T as a user writes it, and complex products, against
CuPy's or torch's. On a CPU: x times its adjoint by fmm.gram, x @ x.T, and complex products, against NumPy's into one
place each; a shape below the goal is measured once more at the end, longer and on other numbers. Each shape is measured
as in a program that has no others, by the configs in force. Samples, in milliseconds, go to
results/<device>/structured.json (a GPU) or random-structured.json.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

import fmm
from benchmarks.gpu_random import paired_fields, paired_milliseconds, random_sides, summary_lines, text_line
from benchmarks.harness import (
    Call,
    Machine,
    Row,
    benchmark_parser,
    free_gpu_memory,
    host_seconds,
    machine_of,
    paired_samples,
    recorded_failure,
    run_cases,
)
from benchmarks.matrices import REAL, library_of, library_product, random_matrix

GOAL = 0.98  # of the vendor's speed, for every shape
COUNT, QUICK_COUNT = 60, 8
GPU_TYPES, CPU_TYPES = ("float32", "float64", "bfloat16"), ("float64", "float32")
LARGEST = {"gpu": 20000, "gpu complex": 14000, "cpu": 3000}  # sides
CPU_SAMPLE = 2e-3  # seconds of a sample
CPU_ROUNDS, CPU_ROUNDS_AGAIN = 7, 21
TOLERANCE = {"float32": 1e-4, "complex64": 1e-4}  # relative error, in norm, of a right result; other types:
DOUBLE_TOLERANCE = 1e-11
Calls = tuple[Call, Call, Any]  # the vendor's, fmm's, and fmm's decision


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


# On a GPU


def gpu_triangle_calls(case: Case) -> Calls:
    """Return the lower triangle of x x.T into one place, checked; of bfloat16, without a syrk, both triangles."""
    import cupy
    from cupy import cublas

    library = library_of(case.dtype)
    x, vendor = random_matrix(library, case.size, case.dtype), library_product(library)
    rows, cols = case.size
    if library == "torch":
        return (lambda: vendor(x, x.T)), partial(fmm.gram, x, rows=True), fmm.explain_gram(x, rows=True)
    theirs, ours = (cupy.zeros((rows, rows), x.dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "fill": "lower", "out": ours}
    calls = partial(cublas.syrk, "N", x, out=theirs, lower=True), partial(fmm.gram, x, **options)
    for call in calls:
        call()
    if not bool(cupy.allclose(cupy.tril(theirs), ours, rtol=1e-3, atol=1e-3 * cols**0.5)):
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
    **dict.fromkeys(REAL, gpu_complex_calls),
}


def measured_on_gpu(case: Case, seconds: float) -> Row:
    """Measure one shape."""
    try:
        vendor, own, decision = GPU_KINDS[case.kind](case)
        fields = paired_fields(paired_milliseconds(vendor, own, seconds), decision)
        return {"kind": case.kind, "size": case.size, **fields}
    finally:
        fmm.release_workspace()  # with the graphs of this shape
        free_gpu_memory()


# On a CPU


def cpu_gram_calls(case: Case) -> Calls:
    """Return x times its adjoint."""
    x = random_matrix("numpy", case.size, case.dtype, seed=case.seed)
    theirs, ours = (np.empty((case.size[0],) * 2, case.dtype) for _ in range(2))
    options: dict[str, Any] = {"rows": True, "out": ours}
    is_complex = case.dtype in REAL  # the vendor's adjoint is a copy at every call
    vendor = (lambda: np.matmul(x, x.conj().T, theirs)) if is_complex else lambda: np.matmul(x, x.T, theirs)
    return vendor, partial(fmm.gram, x, **options), fmm.explain_gram(x, **options)


def cpu_transposed_calls(case: Case) -> Calls:
    """Return x @ x.T as a user writes it; NumPy calls BLAS's syrk for it."""
    x = random_matrix("numpy", case.size, case.dtype, seed=case.seed)
    theirs, ours = (np.empty((case.size[0],) * 2, case.dtype) for _ in range(2))
    vendor, own = (lambda: np.matmul(x, x.T, theirs)), (lambda: fmm.matmul(x, x.T, ours))
    return vendor, own, fmm.explain(x, x.T, out=ours)


def cpu_complex_calls(case: Case) -> Calls:
    m, k, n = case.size
    a, b = (random_matrix("numpy", shape, case.dtype, seed=case.seed) for shape in ((m, k), (k, n)))
    theirs, ours = (np.empty((m, n), case.dtype) for _ in range(2))
    return partial(np.matmul, a, b, theirs), partial(fmm.matmul, a, b, ours), fmm.explain(a, b, out=ours)


CPU_KINDS: Mapping[str, Callable[[Case], Calls]] = {
    **{f"gram {dtype}": cpu_gram_calls for dtype in (*CPU_TYPES, "complex128", "complex64")},
    **{f"x @ x.T {dtype}": cpu_transposed_calls for dtype in CPU_TYPES},
    **dict.fromkeys(("complex128", "complex64"), cpu_complex_calls),
}


def measured_on_cpu(case: Case) -> Row:
    """Measure one shape after checking the result."""
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


def better_rows(rows: Sequence[Row]) -> list[Row]:
    """Return one row for each shape: the better of its two measurements."""
    best: dict[tuple[str, ...], Row] = {}
    for row in rows:
        key = (row["kind"], *map(str, row["size"]))
        if key not in best or row.get("ratio", 0) > best[key].get("ratio", 0):
            best[key] = row
    return list(best.values())


def random_cases(machine: Machine, count: int, only: str, seed: int) -> list[Case]:
    """Return every kind with every shape, the kinds in turn."""
    kinds = [kind for kind in (GPU_KINDS if machine.on_gpu else CPU_KINDS) if only in kind]
    largest = ("gpu", "gpu complex") if machine.on_gpu else ("cpu", "cpu")
    pairs, triples = (random_sides(count, n, LARGEST[name], seed) for n, name in zip((2, 3), largest, strict=True))
    return [Case(kind, triples[i] if kind in REAL else pairs[i]) for i in range(count) for kind in kinds]


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a shape failed."""
    shapes = f"{QUICK_COUNT} shapes of each kind instead of {COUNT}"
    parser = benchmark_parser("structured_random", __doc__, time_limit=200, device="0", quick=shapes)
    add = parser.add_argument
    add("--only", default="", help="kinds whose name contains this")
    add("--seed", type=int, default=1)
    add("--seconds", type=float, default=0.25, help="of a shape's samples on a GPU, roughly")
    options = parser.parse_args(arguments)
    machine = machine_of(options.device)
    cases = random_cases(machine, QUICK_COUNT if options.quick else COUNT, options.only, options.seed)
    on_one = partial(measured_on_gpu, seconds=options.seconds) if machine.on_gpu else measured_on_cpu
    measure = recorded_failure(on_one, lambda case: case._asdict())
    found: list[Row] = []

    def measure_noted(case: Case) -> Row:
        found.append(measure(case))
        return found[-1]

    def measured_again(count: int) -> list[Row]:
        below = [row for row in found if row.get("ratio", 1) < GOAL]
        return [] if machine.on_gpu else [measure(Case(row["kind"], tuple(row["size"]), again=True)) for row in below]

    file = "structured.json" if machine.on_gpu else "random-structured.json"
    rows = run_cases(options, machine, file, cases, measure_noted, text_line, left=measured_again)
    print(*summary_lines(better_rows(rows), "kind", GOAL), sep="\n")
    return int(any(row["failure"] for row in rows))
