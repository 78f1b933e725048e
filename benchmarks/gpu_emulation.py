"""float32 by three float16 products on a GPU: `python -m benchmarks gpu_emulation [--quick] [--random 100]`.

Whole calls of fmm.matmul, scaling and splitting inside, against cuBLAS's float32, by the configs in force; complex64
and the lower triangle of a a^T likewise. Beside them, on squares and on few rows: fmm with a prepared operand and with
every entry checked, the best of cuBLASLt's first candidates, TF32, three products in TF32, and GEMMul8 in both of its
modes (benchmarks/gemmul8.py says where its checkout is expected). Errors are in the Frobenius norm of sampled rows
against float64, on normal numbers and on numbers uniform in [0, 1], as multiples of cuBLAS's. With --plans, these
plans and GEMMul8 are the only peers. Samples go to results/<device>/emulation.json, or the file that --file names.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks import gemmul8, gpu_random
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    cases_in_time,
    failure_text,
    free_gpu_memory,
    gpu_environment,
    gpu_folder,
    gpu_seconds,
    paired_speedup,
    repeats_of,
    shuffled_rounds,
    write_result,
)
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

SAMPLE = 5e-3  # seconds of a sample: shorter calls are repeated
SAMPLED_ROWS = 64
LONG = 1e12  # multiply-adds from which on peers multiply normal numbers only
HUGE = 1e13  # multiply-adds from which on a case has fewer samples, and from ten times as many on the fewest
LT_CANDIDATES = 4  # of cuBLASLt; half as many from LONG on, the first alone from HUGE on
# Plans of the lower triangle: all blocks by one launch's tiles, fewer of them whole, and fewer multiplications.
TRIANGLE_PLANS = (
    "f16x3",
    "gram > f16x3",
    "gram > strassen.batched.pad16 > f16x3",
    "gram^2 > strassen.batched.pad16 > f16x3",
    "gram^5 > strassen^2.batched.pad16 > f16x3",
)
RANDOM_SECONDS = 0.06  # of a random shape's samples, about
Peers = Callable[[Any, Any, Any], dict[str, Call]]  # of A, B and C


@dataclass(frozen=True)
class Case:
    """A product; `target` is the speedup hoped for, `half`: the lower triangle of a a^T, against syrk."""

    size: tuple[int, int, int]
    target: float
    quick: bool = False
    peers: bool = False
    dtype: str = "float32"
    half: bool = False

    @property
    def name(self) -> str:
        """As --cases names it: 8192, complex8192, half16384."""
        return f"{'half' * self.half}{'complex' * (self.dtype != 'float32')}{self.size[0]}"


def square(side: int, target: float, quick: bool = False, peers: bool = True) -> Case:
    return Case((side, side, side), target, quick, peers)


CASES = (
    square(1024, 1.6, quick=True),
    square(2048, 2.6, quick=True),
    square(4096, 3.4, quick=True),
    square(8192, 3.9, quick=True),
    square(16384, 4.3, quick=True),
    square(32768, 4.7),
    square(8191, 3.3, quick=True, peers=False),
    square(10007, 3.3, peers=False),
    Case((4096, 14336, 4096), 3.3, quick=True),
    Case((16384, 1024, 16384), 3.3),
    Case((100000, 2048, 2048), 3.3),
    Case((2048, 50000, 2048), 3.3),
    Case((512, 8192, 8192), 1.0, peers=True),
    Case((128, 8192, 8192), 1.0, peers=True),
    Case((8192, 8192, 8192), 4.5, dtype="complex64"),
    Case((16384, 16384, 16384), 3.8, peers=True, half=True),
    Case((8192, 8192, 8192), 1.0, peers=True, half=True),
    Case((4096, 4096, 4096), 1.0, peers=True, half=True),
    Case((8191, 5000, 8191), 1.0, half=True),
    square(65536, 4.9, peers=False),
    Case((16, 16384, 16384), 1.0),
    Case((32, 8192, 32768), 1.0),
    Case((63, 16384, 16384), 1.0),
)


@dataclass
class Result:
    """Paired samples of one case in seconds, of fmm, cuBLAS and peers; errors by data and name over cuBLAS's."""

    size: tuple[int, int, int]
    target: float
    dtype: str = "float32"
    half: bool = False
    plan: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    failure: str = ""


def random_matrix(shape: tuple[int, int], data: str, seed: int, dtype: str = "float32") -> Any:
    """Return normal or uniform numbers; the parts of a complex matrix are independent."""
    rng = cupy.random.default_rng(seed)
    draw = rng.standard_normal if data == "normal" else rng.random
    found = draw(shape, np.float32)
    return (found + 1j * draw(shape, np.float32)).astype(dtype) if dtype != "float32" else found


def relative_error(call: Call, a: Any, b: Any, c: Any, triangle: bool = False) -> float:
    """Run the call into a C full of NaN; return the error of sampled rows, of a triangle up to the diagonal."""
    c[...] = np.nan
    call()
    rows = np.linspace(0, a.shape[0] - 1, SAMPLED_ROWS).astype(np.intp)
    wide = np.result_type(a.dtype, np.float64)
    error = norm = 0.0
    for first in range(0, b.shape[1], 4096):  # a float64 copy of all of B may not fit
        columns = np.arange(first, min(first + 4096, b.shape[1]))
        exact = a[rows].astype(wide) @ b[:, first : first + 4096].astype(wide)
        mask = cupy.asarray(columns <= rows[:, None] if triangle else np.ones((len(rows), len(columns)), bool))
        off = cupy.where(mask, c[rows, first : first + 4096].astype(wide) - exact, 0)  # NaN outside of the triangle
        error += float(cupy.linalg.norm(off)) ** 2
        norm += float(cupy.linalg.norm(exact * mask)) ** 2
    return float((error / norm) ** 0.5)


# ---- the calls


def own_calls(case: Case, a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return cuBLAS's function and fmm's."""
    if case.half:
        gram = partial(fmm.gram, a, rows=True, out=c, fill="lower")
        return {"cublas": partial(gram, plan="vendor"), "fmm": gram}
    return {"cublas": partial(cupy.matmul, a, b, out=c), "fmm": partial(fmm.matmul, a, b, out=c)}


def peer_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return fmm with a prepared operand and with every entry checked, and whoever else multiplies float32 faster."""
    work = float(a.size) * b.shape[1]
    found: dict[str, Call] = {}
    if work < HUGE:
        found["fmm, prepared"] = partial(fmm.matmul, a, fmm.prepare(b), out=c)
        found["fmm, componentwise"] = partial(fmm.matmul, a, b, out=c, componentwise=True)
    count = LT_CANDIDATES if work < LONG else LT_CANDIDATES // 2 if work < HUGE else 1
    candidates = [call for number in range(count) if (call := recorded_call(a, b, c, f"lt{number}"))]
    if candidates:
        found["cublasLt"] = min(candidates, key=lambda call: gpu_seconds(call, 1)) if count > 1 else candidates[0]
    tf32 = recorded_call(a, b, c, "vendor", "tf32")
    assert tf32 is not None
    return found | {"TF32": tf32, "3xTF32": three_tf32_call(a, b, c)} | gemmul8_calls(a, b, c)


def gemmul8_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return GEMMul8 in both of its modes, where there is a checkout."""
    modes = (("GEMMul8 fast", True), ("GEMMul8 accurate", False)) if gemmul8.checkout() else ()
    return {name: gemmul8.Gemmul8Product(a, b, c, fast) for name, fast in modes}


def planned_calls(plans: Sequence[str], a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return these plans and GEMMul8."""
    return {plan: partial(fmm.matmul, a, b, out=c, plan=plan) for plan in plans} | gemmul8_calls(a, b, c)


def recorded_call(a: Any, b: Any, c: Any, plan: str, dtype: str = "float32", beta: float = 0) -> Call | None:
    """Return the launches of a plan alone; None where the plan cannot run."""
    (m, k), n = a.shape, b.shape[1]
    try:
        launches = record_for_device(Plan.parse(plan), Problem(m, k, n, dtype, beta=beta))
        workspace = cupy.empty(launches.workspace, cupy.uint8)
        run = partial(DeviceBackend().run, launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
        run()
    except PlanError:
        return None
    return lambda: (run(), workspace)[0]


def three_tf32_call(a: Any, b: Any, c: Any) -> Call:
    """Return the product with each number as two of TF32: hi hi + hi lo + lo hi."""
    text = "hi = __int_as_float(__float_as_int(x) & 0xffffe000); lo = x - hi"
    kernel = cupy.ElementwiseKernel("float32 x", "float32 hi, float32 lo", text, "split_tf32")
    parts = [(cupy.empty_like(x), cupy.empty_like(x)) for x in (a, b)]
    (hi, lo), (high, low) = parts
    pairs = ((hi, low, 0), (lo, high, 1), (hi, high, 1))
    products = [recorded_call(x, y, c, "vendor", "tf32", beta) for x, y, beta in pairs]

    def run() -> None:
        for x, part in zip((a, b), parts, strict=True):
            kernel(x, *part)
        for multiply in products:
            assert multiply is not None
            multiply()

    return run


# ---- measuring


def measured(case: Case, rounds: int, peers: Peers | None) -> Row:
    """Measure errors on uniform and normal numbers, times on normal ones; a failed case is a row that says why."""
    result = Result(case.size, case.target, case.dtype, case.half)
    (m, k, n), work = case.size, float(np.prod(case.size))
    calls: dict[str, Call] = {}
    a = b = c = None
    try:
        for data in ("uniform", "normal") if work < 10 * HUGE else ("normal",):
            a = b = None
            a = random_matrix((m, k), data, 1, case.dtype)
            b = a.T if case.half else random_matrix((k, n), data, 2, case.dtype)
            c = cupy.empty((m, n), case.dtype) if c is None else c
            calls = own_calls(case, a, b, c)
            if peers and case.peers and (data == "normal" or work < LONG):
                gram = partial(fmm.gram, a, rows=True, out=c, fill="lower")
                triangles = {plan: partial(gram, plan=plan) for plan in TRIANGLE_PLANS}
                calls |= triangles if case.half else peers(a, b, c)
            errors = {name: relative_error(call, a, b, c, case.half) for name, call in calls.items()}
            result.errors[data] = {name: x / errors["cublas"] for name, x in errors.items()}
        explained = fmm.explain_gram(a, rows=True, out=c, fill="lower") if case.half else fmm.explain(a, b, c)
        result.plan = str(explained.plan)
        result.samples = sampled(calls, work, rounds)
    except Exception as error:  # whatever may go wrong: the next case is measured
        result.failure = failure_text(error)
    a = b = c = None
    calls = {}
    free_gpu_memory()
    return asdict(result)


def sampled(calls: Mapping[str, Call], work: float, rounds: int) -> dict[str, list[float]]:
    """Return the samples in shuffled rounds; before them short calls run until graphs are captured."""
    repeats = dict.fromkeys(calls, 1)
    for name, call in calls.items() if work < HUGE else ():
        for _ in range(8 if work < 1e11 else 1):
            call()
        repeats[name] = repeats_of(gpu_seconds(call, 1), SAMPLE)
    return shuffled_rounds(calls, rounds if work < LONG else min(rounds, 5) if work < HUGE else 2, repeats=repeats)


def random_rows(count: int, seed: int, until: float) -> list[Row]:
    """Measure random shapes as benchmarks.gpu_random does, fewer if the time is up."""
    rows: list[Row] = []
    for size in gpu_random.random_shapes(count, seed):
        if time.monotonic() > until and rows:
            break
        rows.append(gpu_random.measured(size, "float32", {}, RANDOM_SECONDS))
        free_gpu_memory()
    for row in sorted(rows, key=lambda row: row["ratio"])[:12]:
        print(f"{' x '.join(map(str, row['size'])):>24}{row['ratio']:7.3f}  {row['plan']}")
    fast, middle = sum(row["plan"] != str(VENDOR) for row in rows), median(row["ratio"] for row in rows)
    print(f"{len(rows)} random shapes, {fast} by plans: median {middle:.2f}", flush=True)
    return rows


# ---- the command


def text_lines(row: Row) -> str:
    """Return what a terminal shows for a row: a line for fmm, and one for each peer."""
    size = " x ".join(map(str, row["size"])) + " half" * row["half"] + " complex" * (row["dtype"] != "float32")
    if row["failure"]:
        return f"{size:>24}  {row['failure'][:90]}"

    def numbers(name: str) -> str:
        errors = "".join(f"{found.get(name, np.nan):6.2f}" for found in row["errors"].values())
        speedup = paired_speedup(row["samples"]["cublas"], row["samples"][name])
        return f"{speedup:7.2f}{row['target'] if name == 'fmm' else '':>6}{errors}"

    lines = [f"{size:>24}{1e3 * median(row['samples']['fmm']):10.3f} ms{numbers('fmm')}  {row['plan']}"]
    peers = (name for name in row["samples"] if name not in ("fmm", "cublas"))
    return "\n".join([*lines, *(f"{name:>24}{'':13}{numbers(name)}" for name in peers)])


def main(arguments: Sequence[str]) -> int:
    """Run the benchmark; return 1 if a case failed."""
    parser = benchmark_parser("gpu_emulation", __doc__, time_limit=1e9)
    add = parser.add_argument
    add("--quick", action="store_true", help="fewer cases and rounds, and no peers")
    add("--cases", nargs="+", help="only these: 8192, complex8192, half16384, ...")
    add("--plans", nargs="+", help="these plans and GEMMul8 as the only peers")
    add("--random", type=int, default=0, metavar="COUNT", help="this many random shapes too")
    add("--seed", type=int, default=int(time.time()), help="of the random shapes (default: the clock)")
    add("--file", default="emulation.json", help="name of the file in the folder")
    options = parser.parse_args(arguments)
    path, began, rows = (options.output or gpu_folder()) / options.file, time.monotonic(), list[Row]()
    peers = partial(planned_calls, options.plans) if options.plans else None if options.quick else peer_calls
    known = [case for case in CASES if case.quick or not options.quick]
    cases = [case for case in known if not options.cases or case.name in options.cases]
    print(f"{'m x k x n':>24}{'time':>13}{'speedup':>7}{'target':>6}  errors (uniform, normal)  plan")
    for case in cases_in_time(cases, options.time_limit):
        rows.append(measured(case, 5 if options.quick else 7, peers))
        print(text_lines(rows[-1]), flush=True)
        write_result(path, gpu_environment(), rows)
    if options.random:
        shapes = random_rows(options.random, options.seed, began + options.time_limit)
        write_result(path, gpu_environment(), rows, seed=options.seed, random=shapes)
    return int(any(row["failure"] for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
