"""float32 by three float16 products on a GPU: `python -m benchmarks.gpu_emulation [--quick] [--random 100]`.

Whole calls of fmm.matmul as a user makes them, scaling and splitting inside, against cupy.matmul (cuBLAS in float32),
in shuffled rounds, with what fmm chooses by the configs in force; complex64 and one half of a gram likewise. Beside
them, on squares and on few rows, fmm with a prepared operand and with every entry checked, and what else multiplies
float32 faster: the best of cuBLASLt's first candidates, TF32, three products in TF32, and GEMMul8 in both of its modes
(benchmarks/gemmul8.py says where its checkout is expected). Errors are those of the Frobenius norm of sampled rows
against float64, on normal numbers and on numbers uniform in [0, 1], as multiples of cuBLAS's. With `--plans`, products
are beside these plans and GEMMul8's alone. Raw samples go to results/<device>/emulation.json, or the file that `--file`
names.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks import gemmul8, gpu_random
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.device_backend import DeviceBackend, record_for_device

LEAST = 5.0  # milliseconds of a sample: shorter calls are repeated
SAMPLED_ROWS = 64
HUGE = 1e13  # multiply-adds from which on a case has fewer samples, and from ten times as many on the fewest
LONG = 1e12  # and from which on others multiply normal numbers only
CANDIDATES = 4  # of cuBLASLt's that are tried, half as many from LONG on, and from HUGE on the first alone
# Of halves: all blocks by one launch's tiles, fewer of them whole, and fewer multiplications.
HALF_PLANS = (
    "f16x3",
    "gram > f16x3",
    "gram > strassen.batched.pad16 > f16x3",
    "gram^2 > strassen.batched.pad16 > f16x3",
    "gram^5 > strassen^2.batched.pad16 > f16x3",
)
RANDOM_SECONDS = 0.06  # of a random shape's samples, about
Call = Callable[[], Any]
Others = Callable[[Any, Any, Any], dict[str, Call]]  # who multiplies besides, of a, b and where the product goes


@dataclass(frozen=True)
class Case:
    size: tuple[int, int, int]
    target: float  # of the speed against cuBLAS's
    quick: bool = False
    peers: bool = False
    dtype: str = "float32"
    half: bool = False  # one half of a a^T, against syrk

    @property
    def name(self) -> str:
        """Its rows, and what it is besides a product of float32."""
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
class Row:
    """Paired samples of one case, in seconds, of fmm, cuBLAS and others by their names; and errors by data and name, as
    multiples of cuBLAS's."""

    size: tuple[int, int, int]
    target: float
    dtype: str = "float32"
    half: bool = False
    plan: str = ""
    samples: dict[str, list[float]] = field(default_factory=dict)
    errors: dict[str, dict[str, float]] = field(default_factory=dict)
    failure: str = ""

    def speedup(self, name: str = "fmm") -> float:
        return median(v / s for v, s in zip(self.samples["cublas"], self.samples[name], strict=True))

    def errors_of(self, name: str) -> str:
        return "".join(f"{found.get(name, np.nan):6.2f}" for found in self.errors.values())

    def __str__(self) -> str:
        size = " x ".join(map(str, self.size)) + " half" * self.half + " complex" * (self.dtype != "float32")
        if self.failure and not self.samples:
            return f"{size:>24}  {self.failure[:90]}"
        own = f"{1e3 * median(self.samples['fmm']):10.3f} ms{self.speedup():7.2f}{self.target:6.1f}"
        lines = [f"{size:>24}{own}{self.errors_of('fmm')}  {self.plan}"]
        for name in self.samples:
            if name not in ("fmm", "cublas"):
                lines.append(f"{name:>24}{'':13}{self.speedup(name):7.2f}{'':6}{self.errors_of(name)}")
        return "\n".join([*lines, *([f"{'':24}{self.failure[:90]}"] if self.failure else [])])


def drawn(shape: tuple[int, int], kind: str, seed: int, dtype: str = "float32") -> Any:
    rng = cupy.random.default_rng(seed)
    draw = rng.standard_normal if kind == "normal" else rng.random
    found = draw(shape, np.float32)
    return (found + 1j * draw(shape, np.float32)).astype(dtype) if dtype != "float32" else found


def error(a: Any, b: Any, c: Any, half: bool = False) -> float:
    """Of sampled rows; of half a product their beginnings."""
    rows = np.linspace(0, a.shape[0] - 1, SAMPLED_ROWS).astype(np.intp)
    wide = np.result_type(a.dtype, np.float64)
    norms = []
    for first in range(0, b.shape[1], 4096):  # a float64 copy of all of B may not fit
        columns = np.arange(first, min(first + 4096, b.shape[1]))
        exact = a[rows].astype(wide) @ b[:, first : first + 4096].astype(wide)
        wanted = cupy.asarray(columns <= rows[:, None] if half else np.ones((len(rows), len(columns)), bool))
        off = cupy.where(wanted, c[rows, first : first + 4096].astype(wide) - exact, 0)  # (nobody wrote the rest)
        norms.append((float(cupy.linalg.norm(off)) ** 2, float(cupy.linalg.norm(exact * wanted)) ** 2))
    found, whole = (sum(x) for x in zip(*norms, strict=True))
    return float((found / whole) ** 0.5)


# ---- who multiplies


def own_calls(case: Case, a: Any, b: Any, c: Any) -> dict[str, Call]:
    """cuBLAS's function and fmm's."""
    if case.half:
        gram = partial(fmm.gram, a, rows=True, out=c, fill="lower")
        return {"cublas": partial(gram, plan="vendor"), "fmm": gram}
    return {"cublas": partial(cupy.matmul, a, b, out=c), "fmm": partial(fmm.matmul, a, b, out=c)}


def peer_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Those that run here; and fmm's own with a prepared operand, and with every entry checked."""
    found: dict[str, Call] = {}
    if float(a.size) * b.shape[1] < HUGE:
        found["fmm, prepared"] = partial(fmm.matmul, a, fmm.prepare(b), out=c)
        found["fmm, componentwise"] = partial(fmm.matmul, a, b, out=c, componentwise=True)
    work = float(a.size) * b.shape[1]
    tried = CANDIDATES if work < LONG else CANDIDATES // 2 if work < HUGE else 1
    candidates = [call for number in range(tried) if (call := recorded(a, b, c, f"lt{number}"))]
    if candidates:
        found["cublasLt"] = min(candidates, key=lambda call: gpu_seconds(call, 1)) if tried > 1 else candidates[0]
    tf32 = recorded(a, b, c, "vendor", "tf32")
    assert tf32 is not None
    found["TF32"] = tf32
    found["3xTF32"] = three_tf32(a, b, c)
    return found | gemmul8_calls(a, b, c)


def gemmul8_calls(a: Any, b: Any, c: Any) -> dict[str, Call]:
    """In both of its modes, where there is a checkout."""
    modes = (("GEMMul8 fast", True), ("GEMMul8 accurate", False)) if gemmul8.checkout() else ()
    return {name: gemmul8.Gemmul8Product(a, b, c, fast) for name, fast in modes}


def planned_calls(plans: Sequence[str], a: Any, b: Any, c: Any) -> dict[str, Call]:
    """Plans that are given, beside GEMMul8."""
    return {plan: partial(fmm.matmul, a, b, out=c, plan=plan) for plan in plans} | gemmul8_calls(a, b, c)


def half_calls(a: Any, c: Any) -> dict[str, Call]:
    """One half by plans that are given."""
    return {plan: partial(fmm.gram, a, rows=True, out=c, fill="lower", plan=plan) for plan in HALF_PLANS}


def recorded(a: Any, b: Any, c: Any, plan: str, dtype: str = "float32", beta: float = 0) -> Call | None:
    """A plan's launches alone; None where it cannot run."""
    (m, k), n = a.shape, b.shape[1]
    try:
        launches = record_for_device(Plan.parse(plan), Problem(m, k, n, dtype, beta=beta))
        workspace = cupy.empty(launches.workspace, cupy.uint8)
        run = partial(DeviceBackend().run, launches, a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr)
        run()
    except PlanError:
        return None
    return lambda: (run(), workspace)[0]


def three_tf32(a: Any, b: Any, c: Any) -> Call:
    """Each number as two of TF32: hi hi + hi lo + lo hi."""
    text = "hi = __int_as_float(__float_as_int(x) & 0xffffe000); lo = x - hi"
    kernel = cupy.ElementwiseKernel("float32 x", "float32 hi, float32 lo", text, "split_tf32")
    parts = [(cupy.empty_like(x), cupy.empty_like(x)) for x in (a, b)]
    (hi, lo), (high, low) = parts
    pairs = ((hi, low, 0), (lo, high, 1), (hi, high, 1))
    products = [recorded(x, y, c, "vendor", "tf32", beta) for x, y, beta in pairs]

    def run() -> None:
        for x, part in zip((a, b), parts, strict=True):
            kernel(x, *part)
        for multiply in products:
            assert multiply is not None
            multiply()

    return run


# ---- measuring


def measured(case: Case, rounds: int, others: Others | None) -> Row:
    """A case; one that fails is a row that says why."""
    row = Row(case.size, case.target, case.dtype, case.half)
    calls: dict[str, Call] = {}
    a = b = c = None
    try:
        m, k, n = case.size
        work = float(np.prod(case.size))
        for kind in ("uniform", "normal") if work < 10 * HUGE else ("normal",):
            a = b = None
            a = drawn((m, k), kind, 1, case.dtype)
            b = a.T if case.half else drawn((k, n), kind, 2, case.dtype)
            c = cupy.empty((m, n), case.dtype) if c is None else c
            calls = own_calls(case, a, b, c)
            if others and case.peers and (kind == "normal" or work < LONG):
                calls |= half_calls(a, c) if case.half else others(a, b, c)
            row.errors[kind] = {name: found_error(call, a, b, c, case.half) for name, call in calls.items()}
            vendor = row.errors[kind]["cublas"]
            row.errors[kind] = {name: x / vendor for name, x in row.errors[kind].items()}
        explained = fmm.explain_gram(a, rows=True, out=c, fill="lower") if case.half else fmm.explain(a, b, c)
        row.plan = str(explained.plan)
        row.samples = sampled(calls, work, rounds)
    except Exception as failure:  # whatever may go wrong: the next case is measured
        row.failure = f"{type(failure).__name__}: {failure}"
    finally:
        a = b = c = None
        calls = {}
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()
    return row


def found_error(call: Call, a: Any, b: Any, c: Any, half: bool) -> float:
    c[...] = np.nan
    call()
    return error(a, b, c, half)


def sampled(calls: Mapping[str, Call], work: float, rounds: int) -> dict[str, list[float]]:
    """In shuffled rounds; before them all until graphs are captured."""
    found: dict[str, list[float]] = {name: [] for name in calls}
    repeats = dict.fromkeys(calls, 1)
    for name, call in calls.items() if work < HUGE else ():
        for _ in range(8 if work < 1e11 else 1):
            call()
        repeats[name] = min(max(round(LEAST / max(1e3 * gpu_seconds(call, 1), 1e-3)), 1), 200)
    for _ in range(rounds if work < LONG else min(rounds, 5) if work < HUGE else 2):
        for name in random.sample(list(calls), len(calls)):
            found[name].append(gpu_seconds(calls[name], repeats[name]))
    return found


def random_rows(count: int, seed: int, until: float) -> list[dict[str, Any]]:
    """Shapes that nobody looked at before, as benchmarks.gpu_random draws and measures them; fewer if time is up."""
    found: list[dict[str, Any]] = []
    for size in gpu_random.shapes(count, seed):
        if time.perf_counter() > until and found:
            break
        found.append(gpu_random.measured(size, "float32", {}, RANDOM_SECONDS))
        cupy.get_default_memory_pool().free_all_blocks()
    slowest = sorted(found, key=lambda row: row["ratio"])
    for row in slowest[:12]:
        print(f"{' x '.join(map(str, row['size'])):>24}{row['ratio']:7.3f}  {row['plan']}")
    fast, middle = sum(row["plan"] != str(VENDOR) for row in found), median(row["ratio"] for row in found)
    print(f"{len(found)} random shapes, {fast} by plans: median {middle:.2f}", flush=True)
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds, and no peers")
    parser.add_argument("--cases", nargs="+", help="only these, by their rows: 8192, complex8192, half16384, ...")
    parser.add_argument("--plans", nargs="+", help="beside these plans and GEMMul8, and no other peers")
    parser.add_argument("--random", type=int, default=0, metavar="COUNT", help="so many random shapes too")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of these (the clock unless given)")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no case is begun")
    parser.add_argument("--file", default="emulation.json", help="its name in the folder")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    folder, rows, began = options.output or gpu_folder(), list[Row](), time.perf_counter()
    folder.mkdir(parents=True, exist_ok=True)
    content: dict[str, Any] = {"environment": gpu_environment()}
    others = partial(planned_calls, options.plans) if options.plans else None if options.quick else peer_calls

    def write() -> None:
        (folder / options.file).write_text(json.dumps(content, indent=1), encoding="utf-8")

    print(f"{'m x k x n':>24}{'time':>13}{'speedup':>7}{'target':>6}  errors (uniform, normal)  plan")
    for case in CASES:
        if options.cases and case.name not in options.cases:
            continue
        if (case.quick or not options.quick) and time.perf_counter() - began < options.time_limit:
            rows.append(measured(case, 5 if options.quick else 7, others))
            print(rows[-1], flush=True)
            content["rows"] = [asdict(row) for row in rows]
            write()
    if options.random:
        content["random"] = random_rows(options.random, options.seed, began + options.time_limit)
        write()
    return int(any(row.failure for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
