"""The tiled product's kernel against cuBLAS: `python -m benchmarks.tile [--dtype float64] [--out FILE] [STRATEGY ...]`.

First every strategy is checked against float64 (float64 against twice its precision) on odd sizes, unaligned operands
and poisoned results. Then it is timed, interleaved with cuBLAS in shuffled rounds on random data; a row is the median
of the paired ratios and its quartiles. A strategy is a preset's name or its sizes: m_S x n_S x k_S : m_R x n_R :
threads of a warp : stages : blocks (: steps of an instruction, in float64), as in 128x128x8:8x16:8x4:3:2. `--schemes`
instead times Huang, Yu and van de Geijn's ways through a fused level's products: one after the other, in turns within a
launch (`tile`), on two streams, atomically, batched by variant; two levels at once, and one below another. `--li` times
Li, Ranka and Sahni's codes, with and without what texture memory became.
"""

from __future__ import annotations

import argparse
import json
import os
import random
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from benchmarks.clock import elapsed
from benchmarks.gpu import environment
from fmm.kernels.cuda.device_code.entry_source import ENTRY
from fmm.kernels.cuda.products.tiles.tile_sizes import DOUBLE, PRESETS, STRATEGIES, TileSizes
from fmm.kernels.cuda.products.tiles.tiled import TileGroup, TileOp, pointer_words
from fmm.kernels.cuda.products.tiles.tiled_source import OPTIONS, Access, TileKernel, tiled_source
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.cuda.views import Lines, Piece
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime.running.device_backend import DeviceBackend, recorded_for_device

ACCESSES: tuple[Access, ...] = ("scalar", "vector")
ODD = ((129, 127, 131), (1, 1, 1), (33, 250, 65), (300, 17, 257))  # m, k, n
BATCHED = tuple(f"strassen{level}.batched.pad16 > {leaf}" for level in ("", "^2") for leaf in ("vendor", "tile"))
USUAL = {
    "float32": (
        "tile",
        "tile.deep",
        *BATCHED,
        "strassen.fused > tile.half",
        "strassen.fused > tile",
        "strassen > strassen.fused > tile",
        "strassen.batched.pad16 > strassen.fused > tile",
    ),
    "float64": ("tile", *BATCHED[:2], "strassen.fused > tile"),
}
TASKS = ("", ".streams", ".atomic", ".variants", ".atomic.variants")
OUTER = ("strassen", "strassen.sequential", "strassen.batched.pad16")
SCHEMES = (
    *(f"strassen-huang.fused{tasks} > tile.{leaf}" for leaf, tasks in product(("half", "third"), TASKS)),
    *(f"strassen-huang^2.fused{tasks} > tile.third" for tasks in TASKS),
    *(
        f"{level} > strassen-huang.fused{tasks} > tile.half"
        for level, tasks in product(OUTER, ("", ".atomic.variants"))
    ),
    *(f"{x}strassen-huang{y}.fused > tile" for x, y in (("", ""), ("", "^2"), ("strassen.batched.pad16 > ", ""))),
    "strassen.batched.pad16 > vendor",
)
LI = (
    *(f"tile{leaf}" for leaf in ("", ".plain", ".texture", ".gpu8", ".gpu8.plain", ".gpu8.texture")),
    *(f"li-fig{figure} > {leaf}" for figure in (12, 13) for leaf in ("vendor", "tile", "tile.plain", "tile.texture")),
    *(f"li-fig13 > tile.gpu8{path}" for path in ("", ".plain", ".texture")),
    "li-fig16 > li-fig12 > tile",
    "li-fig23 > li-fig13 > tile",
)
SHORTEST = 2e-3  # seconds of one sample at least
SAMPLED = 64  # rows that are compared with more precise ones
RIGHT = 1e-4  # relative errors are smaller
PROCESSES = 16  # that compile
MUCH = 100  # roundoffs: of how many is wrong


class Case(NamedTuple):
    """Products of one size, some at a time."""

    m: int
    k: int
    n: int
    times: int = 1

    @property
    def flops(self) -> float:
        return 2.0 * self.m * self.k * self.n * self.times

    def __str__(self) -> str:
        sides = str(self.m) if self.m == self.k == self.n else f"{self.m}x{self.k}x{self.n}"
        return sides if self.times == 1 else f"{sides} x{self.times}"


CASES = (Case(512, 512, 512, 49), *(Case(n, n, n) for n in (1536, 2048, 2560, 4096, 8192)))
SCHEME_CASES = tuple(Case(n, n, n) for n in (1536, 2560, 4096, 8192))
SUITES = {
    (suite, dtype): (cases, plans)
    for dtype, usual in USUAL.items()
    for suite, cases, plans in (("usual", CASES, usual), ("schemes", SCHEME_CASES, SCHEMES), ("li", SCHEME_CASES, LI))
}


def strategy(text: str) -> TileSizes:
    """A preset, or sizes as the module's help says."""
    for preset in PRESETS:
        if preset.name.casefold() == text.casefold():
            return preset
    block, thread, warp, *rest = text.split(":")
    stages, blocks, deep = (*map(int, rest), 8)[:3]
    (m_s, n_s, k_s), (m_r, n_r), (down, across) = (map(int, part.split("x")) for part in (block, thread, warp))
    return TileSizes(text, m_s, n_s, k_s, m_r, n_r, down, across, stages, blocks, deep=deep)


DOUBLES = (  # as Solo: other instructions, more stages, longer tiles, larger ones, and small ones
    "128x128x16:8x8:8x4:3:1:4",
    "128x128x16:8x8:8x4:3:1:16",
    "128x128x16:8x8:8x4:4:1:8",
    "128x128x32:8x8:8x4:2:1:8",
    "160x128x16:10x8:8x4:3:1:4",
    "64x64x16:4x8:8x4:3:3:8",
)
CANDIDATES = {"float32": STRATEGIES, "float64": (*DOUBLE, *map(strategy, DOUBLES))}  # timed if none is named


@lru_cache(maxsize=256)
def compiled(kernel: TileKernel, access: Access) -> Any:
    function = cupy.RawModule(code=tiled_source(kernel, access), options=OPTIONS).get_function(ENTRY)
    function.max_dynamic_shared_size_bytes = kernel.shared
    return function


def compile_ahead(kernels: Iterable[TileKernel], accesses: Sequence[Access] = ("vector",)) -> None:
    """Side by side into CuPy's cache on disk; as processes, for the compiler takes turns in one."""
    jobs = list(dict.fromkeys(product(kernels, accesses)))
    count = min(len(jobs), os.cpu_count() or 1, PROCESSES)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        list(pool.map(_compile, jobs))


def _compile(job: tuple[TileKernel, Access]) -> None:
    compiled(*job)


def launcher(op: TileOp, access: Access, bases: dict[str, int]) -> Callable[[], None]:
    """A call of the driver with everything filled in."""
    words = np.frombuffer(op.parameters, np.int64).copy()
    for i, piece in zip(pointer_words(op), op.pieces, strict=True):
        words[i] = bases[piece.base] + piece.offset
    pointer = np.array([words.ctypes.data], np.int64)
    function = compiled(op.kernel, access)

    def launch(kept: Any = (words, pointer)) -> None:
        stream = cupy.cuda.get_current_stream().ptr
        threads = op.kernel.strategy.threads
        driver.launchKernel(
            function.kernel.ptr, *op.grid, threads, 1, 1, op.kernel.shared, stream, kept[1].ctypes.data, 0
        )

    return launch


class Scale(NamedTuple):
    """C = alpha A B + beta C."""

    alpha: float = 1
    beta: float = 0


class Spread(NamedTuple):
    """So many numbers behind every row, and before the first."""

    gap: int = 0
    shift: int = 0


PLAIN, DENSE = Scale(), Spread()


def plain(s: TileSizes, case: Case, scale: Scale = PLAIN, spread: Spread = DENSE, dtype: str = "float32") -> TileOp:
    """C = alpha A B + beta C, row by row."""
    (m, k, n, count), (gap, shift) = case, spread
    first = shift * np.dtype(dtype).itemsize
    lines = tuple(Lines(cols + gap, rows * (cols + gap)) for rows, cols in ((m, k), (k, n), (m, n)))
    a, b = (Piece(x, first, rows, cols) for x, rows, cols in (("A", m, k), ("B", k, n)))
    c = Piece("C", first, m, n, *scale)
    return TileOp(TileKernel(s, dtype), (a,), (b,), (c,), lines, m, n, k, count)


# ---- right?


@lru_cache(maxsize=1)
def _dot() -> Any:
    """Dot products of float64 as if in twice its precision (Ogita, Rump, Oishi 2005: Dot2), rounded at the end."""
    return cupy.RawKernel(
        r"""
extern "C" __global__ void dot(const double* a, const double* b, double* c, int k, int n) {
    const int col = blockIdx.x * blockDim.x + threadIdx.x;
    if (col >= n) return;
    a += (long long)blockIdx.y * k;
    double sum = 0, lost = 0;  // what rounding took from the products and from their sum
    for (int i = 0; i < k; ++i) {
        const double x = a[i], y = b[(long long)i * n + col];
        const double product = __dmul_rn(x, y), next = __dadd_rn(sum, product), part = __dsub_rn(next, sum);
        lost = __dadd_rn(lost, __dadd_rn(__dsub_rn(sum, __dsub_rn(next, part)), __dsub_rn(product, part)));
        lost = __dadd_rn(lost, __fma_rn(x, y, -product));
        sum = next;
    }
    c[(long long)blockIdx.y * n + col] = sum + lost;
}
""",
        "dot",
    )


def exact(a: Any, b: Any) -> Any:
    """The product of two matrices, or of each pair, more precise than their type."""
    if a.dtype != np.float64:
        return a.astype(np.float64) @ b.astype(np.float64)
    if a.ndim > 2:
        return cupy.stack([exact(x, y) for x, y in zip(a, b, strict=True)])
    (m, k), n = a.shape, b.shape[1]
    a, b, c = cupy.ascontiguousarray(a), cupy.ascontiguousarray(b), cupy.empty((m, n))
    _dot()((-(-n // 128), m), (128,), (a, b, c, np.int32(k), np.int32(n)))
    return c


def error(s: TileSizes, case: Case, access: Access, spread: Spread, dtype: str) -> float:
    """Relative to the product of absolute values, in units of the type's roundoff; infinite if a gap was touched."""
    op, shift = plain(s, case, Scale(0.5, 2.0), spread, dtype), spread.shift
    rng = cupy.random.default_rng(7)
    sizes = [rows * x.leading + shift for rows, x in zip((case.m, case.k, case.m), op.lines, strict=True)]
    memory = {name: cupy.full(size + 64, cupy.nan, dtype) for name, size in zip("ABC", sizes, strict=True)}
    whole = {}
    for (name, x), lines, piece in zip(memory.items(), op.lines, op.pieces, strict=True):
        rows = x[shift : shift + piece.rows * lines.leading].reshape(piece.rows, lines.leading)
        whole[name] = rows[:, : piece.cols]
        whole[name][...] = rng.standard_normal(whole[name].shape, np.dtype(dtype).type)
    a, b, c = (x.copy() for x in whole.values())
    beside = int(cupy.isnan(memory["C"]).sum())
    launcher(op, access, {name: x.data.ptr for name, x in memory.items()})()
    wide = c.astype(np.float64)
    expected, scale = 0.5 * exact(a, b) + 2 * wide, 0.5 * exact(abs(a), abs(b)) + 2 * abs(wide)
    worst = float((abs(whole["C"] - expected) / scale).max() / (np.finfo(dtype).eps / 2))
    return worst if int(cupy.isnan(memory["C"]).sum()) == beside else float("inf")


def checked(s: TileSizes, dtype: str) -> float:
    """The worst error over odd sizes, gaps and shifts, both kinds of access."""
    worst = 0.0
    for m, k, n in ODD:
        spreads = [Spread(*x) for x in product((0, 3), (0, 1))]
        worst = max(worst, *(error(s, Case(m, k, n), "scalar", spread, dtype) for spread in spreads))
        fours = Case(m, -(-k // 4) * 4, -(-n // 4) * 4)
        worst = max(worst, *(error(s, fours, "vector", Spread(gap, 4), dtype) for gap in (0, 4)))
    return worst


# ---- fast?


def operands(case: Case, dtype: str = "float32") -> tuple[Any, Any, Any]:
    rng = cupy.random.default_rng(1)
    shapes = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    a, b, c = (rng.standard_normal((case.times, *shape), np.dtype(dtype).type) for shape in shapes)
    return a, b, c


def off(a: Any, b: Any, c: Any) -> float:
    """Relative Frobenius error of some rows from the first to the last."""
    rows = cupy.linspace(0, a.shape[-2] - 1, SAMPLED).astype(np.int64)
    expected = exact(a[..., rows, :], b)
    return float(cupy.linalg.norm((c[..., rows, :] - expected).ravel()) / cupy.linalg.norm(expected.ravel()))


def replayed(plan: str, case: Case, bases: dict[str, int], dtype: str) -> Callable[[], None]:
    """A plan as a CUDA graph, so that launches cost what the device takes."""
    launches = recorded_for_device(Plan.parse(plan), Problem(case.m, case.k, case.n, dtype))
    workspace = cupy.empty(launches.workspace, cupy.uint8)
    graph = DeviceBackend().graph(launches, bases["A"], bases["B"], bases["C"], workspace.data.ptr)

    def launch(kept: Any = (graph, workspace)) -> None:
        graph.launch(cupy.cuda.get_current_stream())

    return launch


def scheme_kernels(dtype: str) -> list[TileKernel]:
    """What the plans of `--schemes` launch; the same for every size, since all are multiples of a wide access.

    Left out: the kernel that does products in turns, which depends on the device and the size.
    """
    case = SCHEME_CASES[0]
    launch_lists = (record_operations(Plan.parse(x), Problem(case.m, case.k, case.n, dtype)) for x in SCHEMES)
    ops = (op for launches in launch_lists for op in launches.ops if isinstance(op, TileOp | TileGroup))
    launched = (x for op in ops for x in (op.ops if isinstance(op, TileGroup) and not op.at_once else (op,)))
    return list({op.kernel: 0 for op in launched})


class Found(NamedTuple):
    """Seconds of every round and relative error, by name; `cuBLAS` and, for the noise, `cuBLAS again` among them."""

    seconds: dict[str, list[float]]
    errors: dict[str, float]


def measured(case: Case, strategies: Iterable[TileSizes], rounds: int, dtype: str, plans: Sequence[str]) -> Found:
    a, b, c = operands(case, dtype)
    bases = {"A": a.data.ptr, "B": b.data.ptr, "C": c.data.ptr}
    a, b, c = (a, b, c) if case.times > 1 else (a[0], b[0], c[0])
    vendor = partial(cupy.matmul, a, b, out=c)
    calls: dict[str, Callable[[], object]] = {"cuBLAS": vendor, "cuBLAS again": vendor}
    calls |= {s.name: launcher(plain(s, case, dtype=dtype), "vector", bases) for s in strategies}
    calls |= {plan: replayed(plan, case, bases, dtype) for plan in (plans if case.times == 1 else ())}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    errors: dict[str, float] = {}
    for name, call in calls.items():
        c[...] = cupy.nan
        call()
        errors[name] = off(a, b, c)
        if not errors[name] < RIGHT * np.finfo(dtype).eps / np.finfo(np.float32).eps:
            print(f"{case} {name}: WRONG, relative error {errors[name]:.1e}")
    once = elapsed(calls["cuBLAS"], 3)
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(elapsed(calls[name], max(1, round(SHORTEST / once))))
    return Found(samples, errors)


def row(case: Case, name: str, samples: Sequence[float], vendor: Sequence[float]) -> str:
    ratios = [v / s for v, s in zip(vendor, samples, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    us, rate = 1e6 * median(samples), case.flops / median(samples) / 1e12
    return f"{case!s:>10}  {name:<52} {us:10.1f} us {rate:6.1f} TFLOP/s  {median(ratios):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "strategies",
        nargs="*",
        type=strategy,
        help="with the usual plans, if none is named: the paper's six, or float64's",
    )
    parser.add_argument("--dtype", choices=tuple(CANDIDATES), default="float32")
    parser.add_argument("--sizes", nargs="+", metavar="CASE", help="such as 4096: not all that are usual")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where the samples go, as JSON")
    for name, what in (("schemes", "the ways through a fused level's products"), ("li", "Li, Ranka and Sahni's codes")):
        parser.add_argument(f"--{name}", dest="suite", action="store_const", const=name, help=f"time {what}")
    parser.set_defaults(suite="usual")
    options = parser.parse_args()
    dtype, suite = options.dtype, options.suite
    cases, plans = SUITES[suite, dtype]
    chosen = options.strategies or (CANDIDATES[dtype] if suite == "usual" else ())
    if suite == "schemes":
        compile_ahead(scheme_kernels(dtype))
    if chosen:
        compile_ahead([TileKernel(s, dtype) for s in chosen], ACCESSES)
    good: list[TileSizes] = []
    for s in chosen:
        worst, made = checked(s, dtype), compiled(TileKernel(s, dtype), "vector")
        local = f", {made.local_size_bytes} bytes of local memory" if made.local_size_bytes else ""
        print(f"{s.name}: {made.num_regs} registers{local}, error {worst:.1f} roundoffs", flush=True)
        good += [s] if worst < MUCH else []
    report: dict[str, Any] = {"environment": environment(), "dtype": dtype, "seconds": {}, "errors": {}}
    for case in (case for case in cases if str(case) in (options.sizes or map(str, cases))):
        found = measured(case, good, options.rounds, dtype, plans)
        report["seconds"][str(case)], report["errors"][str(case)] = found
        for name, times in found.seconds.items():
            print(row(case, name, times, found.seconds["cuBLAS"]) + f"  error {found.errors[name]:.1e}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
