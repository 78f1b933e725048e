"""Emulated products on a GPU and their peers: `python -m benchmarks gpu_emulation [--quick] [--random 100]`.

Whole calls of fmm.matmul, with scaling and splitting inside the time, against cuBLAS's product of the same type, by the
configs in force: float32 by three float16 products, complex64, and the lower triangle of a a^T. With --dtype float64 or
complex128: products by residues.

On squares and on few rows there are peers. All types have fmm with the smallest error growth (`fmm, accurate`), and the
best of cuBLASLt's first candidates. float64 and complex128 have cuBLAS's own emulation. float32 has fmm with a prepared
operand and with componentwise bounds, TF32, and three products in TF32. All types have GEMMul8 in its two modes
(benchmarks/gemmul8.py names the variable for its checkout). With --plans, these plans and GEMMul8 are the only
peers. Errors are on normal numbers and on numbers uniform in [0, 1], as multiples of cuBLAS's. Samples, in seconds, go
to results/<device>/emulation.json, or to the file that --file names.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks import gemmul8
from benchmarks.harness import (
    Call,
    Row,
    benchmark_parser,
    free_gpu_memory,
    gpu_seconds,
    has_failures,
    machine_of,
    paired_speedup,
    quick_cases,
    recorded_failure,
    repeats_of,
    run_cases,
    shuffled_rounds,
    write_result,
)
from benchmarks.matrices import random_matrix, relative_error
from benchmarks.random_shapes import LARGEST_SIDES, PRODUCT_PREFIX, measured_on_gpu, random_sides
from benchmarks.random_shapes import Case as RandomCase
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device

SAMPLE_SECONDS = 5e-3  # seconds of a sample: shorter calls are repeated
LONG_WORK = 1e12  # multiply-adds from which on peers multiply normal numbers only
HUGE_WORK = 1e13  # multiply-adds from which on a case has fewer samples
LT_CANDIDATES = 4  # candidates of cuBLASLt; half as many from LONG_WORK on, one from HUGE_WORK on
# Plans of the lower triangle: all blocks in one launch, fewer whole blocks, and fewer multiplications.
TRIANGLE_PLANS = (
    "f16x3",
    "gram > f16x3",
    "gram > strassen.batched.pad16 > f16x3",
    "gram^2 > strassen.batched.pad16 > f16x3",
    "gram^5 > strassen^2.batched.pad16 > f16x3",
)
RANDOM_SECONDS = 0.06  # of a random shape's samples, roughly
# The error growth that "fmm, accurate" allows: that of GEMMul8 and of cuBLAS's emulation.
ACCURATE_ERROR_GROWTHS = {"float32": 0.02, "float64": 0.1, "complex128": 0.1}
EMULATED_FLOAT64_MATH, EAGER_STRATEGY = 8, 2  # CUBLAS_FP64_EMULATED_FIXEDPOINT_MATH, CUBLAS_EMULATION_STRATEGY_EAGER
Peers = Callable[[Any, Any, Any], dict[str, Call]]  # takes A, B and C


@dataclass(frozen=True)
class Case:
    """A product; `target` is the wanted speedup, `half`: the lower triangle of a a^T, against syrk."""

    size: tuple[int, int, int]
    target: float
    quick: bool = False
    peers: bool = False
    dtype: str = "float32"
    half: bool = False

    @property
    def name(self) -> str:
        """The name for --cases: 8192, complex8192, half16384."""
        return f"{'half' * self.half}{'complex' * self.dtype.startswith('complex')}{self.size[0]}"

    @property
    def work(self) -> float:
        """The number of multiply-adds."""
        return float(np.prod(self.size))

    @property
    def fields(self) -> Row:
        """The fields of a row before anything is measured."""
        names = {name: value for name, value in asdict(self).items() if name not in ("quick", "peers")}
        return {**names, "plan": "", "samples": {}, "errors": {}}


def square_case(side: int, target: float, quick: bool = False, peers: bool = True, **more: Any) -> Case:
    return Case((side, side, side), target, quick, peers, **more)


CASES = (
    *(square_case(n, target, quick=True) for n, target in ((1024, 1.6), (2048, 2.6), (4096, 3.4), (8192, 3.9))),
    square_case(16384, 4.3, quick=True),
    square_case(32768, 4.7),
    square_case(8191, 3.3, quick=True, peers=False),
    square_case(10007, 3.3, peers=False),
    Case((4096, 14336, 4096), 3.3, quick=True),
    *(Case(size, 3.3) for size in ((16384, 1024, 16384), (100000, 2048, 2048), (2048, 50000, 2048))),
    *(Case((m, 8192, 8192), 1.0, peers=True) for m in (512, 128)),
    square_case(8192, 4.5, dtype="complex64"),
    *(square_case(n, target, half=True) for n, target in ((16384, 3.8), (8192, 1.0), (4096, 1.0))),
    Case((8191, 5000, 8191), 1.0, half=True),
    square_case(65536, 4.9, peers=False),
    *(Case(size, 1.0) for size in ((16, 16384, 16384), (32, 8192, 32768), (63, 16384, 16384))),
    *(square_case(n, 1.3, dtype="float64") for n in (4096, 8192, 16384, 24576)),
    *(square_case(n, 1.1, dtype="float64") for n in (1024, 2048)),
    *(square_case(n, 1.0, dtype="complex64") for n in (1024, 2048, 4096)),
    *(square_case(n, target, dtype="complex128") for n, target in ((1024, 1.0), (2048, 1.4), (4096, 2.2), (8192, 3.0))),
    *(square_case(n, 3.3, dtype="complex128") for n in (12288, 16384)),
)
USUAL_TYPES = ("float32", "complex64")  # the types that are measured without --dtype

# The compared calls


def own_calls(case: Case, a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return the calls of cuBLAS and fmm."""
    if case.half:
        gram = partial(fmm.gram, a, rows=True, out=c, fill="lower")
        return {"cublas": partial(gram, plan="vendor"), "fmm": gram}
    return {"cublas": partial(cupy.matmul, a, b, out=c), "fmm": partial(fmm.matmul, a, b, out=c)}


def peer_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return the peers; in float32 also fmm with a prepared operand and with componentwise bounds."""
    work = float(a.size) * b.shape[1]
    found: dict[str, Call] = {}
    if a.dtype == np.float32 and work < HUGE_WORK:
        found["fmm, prepared"] = partial(fmm.matmul, a, fmm.prepare(b), out=c)
        found["fmm, componentwise"] = partial(fmm.matmul, a, b, out=c, componentwise=True)
    count = LT_CANDIDATES if work < LONG_WORK else LT_CANDIDATES // 2 if work < HUGE_WORK else 1
    candidates = [call for number in range(count) if (call := recorded_call(a, b, c, f"lt{number}", str(a.dtype)))]
    if candidates:
        found["cublasLt"] = min(candidates, key=lambda call: gpu_seconds(call, 1)) if count > 1 else candidates[0]
    if a.dtype == np.float32:
        tf32 = recorded_call(a, b, c, "vendor", "tf32")
        assert tf32 is not None
        found |= {"TF32": tf32, "3xTF32": three_tf32_call(a, b, c)}
    if (growth := ACCURATE_ERROR_GROWTHS.get(str(a.dtype))) is not None:
        found["fmm, accurate"] = partial(fmm.matmul, a, b, out=c, max_error_growth=growth)
    if str(a.dtype) in ("float64", "complex128") and (emulated := cublas_emulated_call(a, b, c)) is not None:
        found["cuBLAS emulated"] = emulated
    return found | gemmul8_calls(a, b, c)


def cublas_emulated_call(a: Any, b: Any, c: Any) -> Call | None:
    """Return cuBLAS's float64 or complex128 product by its own emulation; None if this cuBLAS has no emulation.

    The call has a handle of its own, so that no other product is emulated. The strategy `eager` emulates every product;
    the default strategy never emulates on an H100 or H200.
    """
    library = ctypes.CDLL(f"libcublas.so.{cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()) // 10000}")
    if not hasattr(library, "cublasSetEmulationStrategy"):
        return None
    handle = cupy.cuda.cublas.create()
    cupy.cuda.cublas.setMathMode(handle, EMULATED_FLOAT64_MATH)
    if library.cublasSetEmulationStrategy(ctypes.c_void_p(handle), EAGER_STRATEGY):
        return None
    scalars = np.array([1, 0], c.dtype)  # alpha and beta
    multiply = getattr(cupy.cuda.cublas, "dgemm" if c.dtype == np.float64 else "zgemm")
    (m, k), n = a.shape, b.shape[1]

    def run() -> None:
        # cuBLAS's matrices are stored column by column: the call computes the transpose of C.
        cupy.cuda.cublas.setStream(handle, cupy.cuda.get_current_stream().ptr)
        alpha, beta = scalars.ctypes.data, scalars.ctypes.data + scalars.itemsize
        operands = alpha, b.data.ptr, n, a.data.ptr, k, beta, c.data.ptr, n
        multiply(handle, 0, 0, n, m, k, *operands)

    return run


def gemmul8_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return GEMMul8 in its two modes, if there is a checkout and GEMMul8 has the type (benchmarks/gemmul8.py)."""
    if not gemmul8.source_checkout() or str(a.dtype) not in gemmul8.MODULI:
        return {}
    return {f"GEMMul8 {mode}": gemmul8.Gemmul8Product(a, b, c, mode == "fast") for mode in ("fast", "accurate")}


def planned_calls(plans: Sequence[str], a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Return these plans and GEMMul8."""
    return {plan: partial(fmm.matmul, a, b, out=c, plan=plan) for plan in plans} | gemmul8_calls(a, b, c)


def recorded_call(a: Any, b: Any, c: Any, plan: str, dtype: str = "float32", beta: float = 0) -> Call | None:
    """Return the launches of a plan alone; None if the plan cannot run."""
    (m, k), n = a.shape, b.shape[1]
    try:
        launches = record_plan_for_device(Plan.parse(plan), Problem(m, k, n, dtype, beta=beta))
        workspace = cupy.empty(launches.workspace, cupy.uint8)
        run = partial(DeviceBackend().run_launches, launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
        run()
    except PlanError:
        return None
    return lambda: (run(), workspace)[0]


def three_tf32_call(a: Any, b: Any, c: Any) -> Call:
    """Return a product of numbers that are each split into two of TF32: hi hi + hi lo + lo hi."""
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


# Measuring


def error_of(call: Call, a: Any, b: Any, c: Any, lower: bool) -> float:
    """Return the relative error of a call into a C full of NaN."""
    c[...] = np.nan
    call()
    return relative_error(a, b, c, lower)


def measure_case(case: Case, rounds: int, peers: Peers | None) -> Row:
    """Measure errors on uniform and normal numbers, and times on normal numbers."""
    (m, k, n), work = case.size, case.work
    row = case.fields
    calls: dict[str, Call] = {}
    c = cupy.empty((m, n), case.dtype)
    for data in ("uniform", "normal") if work < 10 * HUGE_WORK else ("normal",):
        a = b = None
        calls.clear()  # the calls hold the matrices of the other kind of data
        a = random_matrix("cupy", (m, k), case.dtype, data, 1)
        b = a.T if case.half else random_matrix("cupy", (k, n), case.dtype, data, 2)
        calls = own_calls(case, a, b, c)
        if peers and case.peers and (data == "normal" or work < LONG_WORK):
            gram = partial(fmm.gram, a, rows=True, out=c, fill="lower")
            calls |= {plan: partial(gram, plan=plan) for plan in TRIANGLE_PLANS} if case.half else peers(a, b, c)
        errors = {name: error_of(call, a, b, c, case.half) for name, call in calls.items()}
        row["errors"][data] = {name: x / errors["cublas"] for name, x in errors.items()}
    explained = fmm.explain_gram(a, rows=True, out=c, fill="lower") if case.half else fmm.explain(a, b, c)
    row["plan"], row["samples"] = str(explained.plan), sample_calls(calls or {}, work, rounds)
    return row


def sample_calls(calls: Mapping[str, Call], work: float, rounds: int) -> dict[str, list[float]]:
    """Return the samples in shuffled rounds; before them short calls run until graphs are captured."""
    repeats = dict.fromkeys(calls, 1)
    for name, call in calls.items() if work < HUGE_WORK else ():
        for _ in range(8 if work < 1e11 else 1):
            call()
        repeats[name] = repeats_of(gpu_seconds(call, 1), SAMPLE_SECONDS)
    return shuffled_rounds(
        calls, rounds if work < LONG_WORK else min(rounds, 5) if work < HUGE_WORK else 2, repeats=repeats
    )


def random_rows(count: int, seed: int, until: float) -> list[Row]:
    """Measure random products of float32 as benchmarks.random_shapes does, fewer if the time is up."""
    rows: list[Row] = []
    for size in random_sides(count, 3, LARGEST_SIDES["gpu"], seed):
        if time.monotonic() > until and rows:
            break
        rows.append(measured_on_gpu(RandomCase(f"{PRODUCT_PREFIX}float32", size), RANDOM_SECONDS))
    fast, middle = sum(row["plan"] != str(VENDOR) for row in rows), median(row["ratio"] for row in rows)
    print(f"{len(rows)} random shapes, {fast} by plans: median {middle:.2f}", flush=True)
    return rows


# The command


def text_lines(row: Row) -> str:
    """Return the lines that a terminal shows for a row: one for fmm, and one for each peer."""
    size = " x ".join(map(str, row["size"])) + " half" * row["half"] + f" {row['dtype']}" * (row["dtype"] != "float32")
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
    parser = benchmark_parser("gpu_emulation", __doc__, time_limit=1e9, quick="fewer cases and rounds, and no peers")
    add = parser.add_argument
    add("--cases", nargs="+", help="only these: 8192, complex8192, half16384, ...")
    add("--dtype", nargs="+", default=USUAL_TYPES, help="only cases of these types (float32 complex64)")
    add("--plans", nargs="+", help="these plans and GEMMul8 as the only peers")
    add("--random", type=int, default=0, metavar="COUNT", help="this many random shapes too")
    add("--seed", type=int, default=int(time.time()), help="of the random shapes (default: the clock)")
    add("--file", default="emulation.json", help="name of the file in the folder")
    options = parser.parse_args(arguments)
    machine, until = machine_of("0"), time.monotonic() + options.time_limit
    peers = partial(planned_calls, options.plans) if options.plans else None if options.quick else peer_calls
    cases = [case for case in quick_cases(CASES, options.quick) if case.dtype in options.dtype]
    cases = [case for case in cases if not options.cases or case.name in options.cases]
    record = recorded_failure(partial(measure_case, rounds=5 if options.quick else 7, peers=peers), lambda c: c.fields)

    def measure(case: Case) -> Row:
        row = record(case)
        free_gpu_memory()
        return row

    rows = run_cases(options, machine, options.file, cases, measure, text_lines)
    if options.random:
        shapes = random_rows(options.random, options.seed, until)
        path = (options.output or machine.folder) / options.file
        write_result(path, machine.environment(), rows, seed=options.seed, random=shapes)
    return has_failures(rows)
