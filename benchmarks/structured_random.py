"""Never slower, of structured products on a GPU: `python -m benchmarks.structured_random [--quick]`.

Random shapes of each kind, half of them with odd sides: one half of x times x transposed against CuPy's syrk (of
bfloat16, which has none, all of it against the library's own x @ x.T), x @ x.T as a user writes it against that
product, and complex products against CuPy's. Whole calls, on whatever stands in the configs, each shape as in a program
that has no others; raw samples go to results/<device>/structured.json.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import cupy
from cupy import cublas

import fmm
from benchmarks.gpu_random import LARGEST, SECONDS, compared, operands, paired_samples, write_rows
from benchmarks.harness import gpu_environment, gpu_folder
from benchmarks.structured_shapes import COUNT, QUICK_COUNT, random_sides, summary

HALVES, COMPLEX = ("float32", "float64", "bfloat16"), {"complex64": "float32", "complex128": "float64"}
KINDS = (*(f"half {t}" for t in HALVES), *(f"x @ x.T {t}" for t in HALVES), *COMPLEX)
LONGEST = 14000  # side of a complex product
Calls = tuple[Callable[[], object], Callable[[], object], Any]  # the vendor's, fmm's, and what fmm decided


def half_calls(dtype: str, rows: int, cols: int) -> Calls:
    """The lower half into one place; of types without syrk, all of it."""
    x, _, vendor = operands((rows, cols, 1), dtype)
    if dtype == "bfloat16":
        return (lambda: vendor(x, x.T)), partial(fmm.gram, x, rows=True), fmm.explain_gram(x, rows=True)
    theirs, ours = (cupy.zeros((rows, rows), x.dtype) for _ in range(2))
    given: dict[str, Any] = {"rows": True, "fill": "lower", "out": ours}
    calls = partial(cublas.syrk, "N", x, out=theirs, lower=True), partial(fmm.gram, x, **given)
    for call in calls:
        call()
    if not bool(cupy.allclose(cupy.tril(theirs), ours, rtol=1e-3, atol=1e-3 * cols**0.5)):
        raise RuntimeError("CuPy's syrk and fmm.gram differ")
    return *calls, fmm.explain_gram(x, **given)


def recognised_calls(dtype: str, rows: int, cols: int) -> Calls:
    x, _, vendor = operands((rows, cols, 1), dtype)
    return (lambda: vendor(x, x.T)), (lambda: fmm.matmul(x, x.T)), fmm.explain(x, x.T)


def complex_calls(dtype: str, m: int, k: int, n: int) -> Calls:
    real = COMPLEX[dtype]
    a, b = (
        (cupy.random.standard_normal(shape, dtype=real) + 1j * cupy.random.standard_normal(shape, dtype=real)).astype(
            dtype
        )
        for shape in ((m, k), (k, n))
    )
    return partial(cupy.matmul, a, b), partial(fmm.matmul, a, b), fmm.explain(a, b)


def calls_of(kind: str, size: tuple[int, ...]) -> Calls:
    what, _, dtype = kind.rpartition(" ")
    make: dict[str, Callable[..., Calls]] = {"half": half_calls, "x @ x.T": recognised_calls, "": complex_calls}
    return make[what](dtype, *size)


def measured(kind: str, size: tuple[int, ...], seconds: float) -> dict[str, Any]:
    """A row; one that fails says why."""
    try:
        vendor, own, decision = calls_of(kind, size)
        return {"kind": kind, "size": size, **compared(paired_samples(vendor, own, seconds), decision)}
    except Exception as error:  # whatever may go wrong: the next shape is measured
        return {"kind": kind, "size": size, "failure": f"{type(error).__name__}: {error}"}
    finally:
        fmm.release_workspace()  # and graphs
        cupy.get_default_memory_pool().free_all_blocks()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help=f"{QUICK_COUNT} shapes of each kind instead of {COUNT}")
    parser.add_argument("--only", default="", help="kinds whose name contains this")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a shape's samples, about")
    parser.add_argument("--time-limit", type=float, default=200, help="seconds after which no shape is begun")
    parser.add_argument("--output", type=Path, help="where to write (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    env = {**gpu_environment(), "command": " ".join(["python -m benchmarks.structured_random", *arguments])}
    began, rows = time.perf_counter(), []
    count = QUICK_COUNT if options.quick else COUNT
    for pair, triple in zip(
        random_sides(count, 2, LARGEST, options.seed), random_sides(count, 3, LONGEST, options.seed), strict=True
    ):
        for kind in (kind for kind in KINDS if options.only in kind):
            if time.perf_counter() - began < options.time_limit:
                rows.append(measured(kind, triple if kind in COMPLEX else pair, options.seconds))
    write_rows((options.output or gpu_folder()) / "structured.json", env, rows)
    print("\n".join(summary(rows, KINDS)))
    return int(any("failure" in row for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
