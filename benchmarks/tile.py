"""The tiled product's kernel against cuBLAS: `python -m benchmarks.tile [--rounds 15] [--out FILE] [STRATEGY ...]`.

First every strategy is checked against float64 on odd sizes, unaligned operands and poisoned results. Then it is timed,
interleaved with cuBLAS in shuffled rounds on random data; a row is the median of the paired ratios and its quartiles.
A strategy is a preset's name or its sizes: m_S x n_S x k_S : m_R x n_R : threads of a warp : stages : blocks, as in
128x128x8:8x16:8x4:3:2. `--schemes` instead times Huang, Yu and van de Geijn's ways through a fused level's products:
one after the other, in turns within a launch (`tile`), on two streams, atomically, batched by variant; two levels at
once, and one below another. `--li` times Li, Ranka and Sahni's codes, with and without what texture memory became.
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
from fmm.kernels.cupy_backend import CupyBackend
from fmm.kernels.plan import Plan
from fmm.kernels.strategy import PRESETS, STRATEGIES, Strategy
from fmm.kernels.tape import Problem, record
from fmm.kernels.tile import Lines, Piece, Several, TileOp, pointers
from fmm.kernels.tile_source import ENTRY, OPTIONS, Access, TileKernel, source

ODD = ((129, 127, 131), (1, 1, 1), (33, 250, 65), (300, 17, 257))  # m, k, n
USUAL = (
    "tile",
    "tile.deep",
    *(f"strassen{level}.batched.pad16 > {leaf}" for level in ("", "^2") for leaf in ("vendor", "tile")),
    "strassen.fused > tile.half",
    "strassen.fused > tile",
    "strassen > strassen.fused > tile",
    "strassen.batched.pad16 > strassen.fused > tile",
)
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
SAMPLED = 64  # rows that are compared with float64
RIGHT = 1e-4  # relative errors are smaller


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
SUITES = {"usual": (CASES, USUAL), "schemes": (SCHEME_CASES, SCHEMES), "li": (SCHEME_CASES, LI)}


def strategy(text: str) -> Strategy:
    """A preset, or sizes as the module's help says."""
    for preset in PRESETS:
        if preset.name.casefold() == text.casefold():
            return preset
    block, thread, warp, stages, blocks = text.split(":")
    (m_s, n_s, k_s), (m_r, n_r), (down, across) = (map(int, part.split("x")) for part in (block, thread, warp))
    return Strategy(text, m_s, n_s, k_s, m_r, n_r, down, across, int(stages), int(blocks))


@lru_cache(maxsize=256)
def compiled(kernel: TileKernel, access: Access) -> Any:
    function = cupy.RawModule(code=source(kernel, access), options=OPTIONS).get_function(ENTRY)
    function.max_dynamic_shared_size_bytes = kernel.shared
    return function


def compile_ahead(kernels: Sequence[TileKernel]) -> None:
    """Side by side into CuPy's cache on disk; as processes, for the compiler takes turns in one."""
    count = min(len(kernels), os.cpu_count() or 1)
    with ProcessPoolExecutor(count, get_context("spawn")) as pool:
        list(pool.map(partial(_compile, access="vector"), kernels))


def _compile(kernel: TileKernel, access: Access) -> None:
    compiled(kernel, access)


def launcher(op: TileOp, access: Access, bases: dict[str, int]) -> Callable[[], None]:
    """A call of the driver with everything filled in."""
    words = np.frombuffer(op.parameters, np.int64).copy()
    for i, piece in zip(pointers(op), op.pieces, strict=True):
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


def plain(s: Strategy, case: Case, alpha: float = 1, beta: float = 0, gap: int = 0, shift: int = 0) -> TileOp:
    """C = alpha A B + beta C, row by row; `gap` numbers behind every row, `shift` before the first."""
    m, k, n, count = case
    lines = tuple(Lines(cols + gap, rows * (cols + gap)) for rows, cols in ((m, k), (k, n), (m, n)))
    a, b = (Piece(x, 4 * shift, rows, cols) for x, rows, cols in (("A", m, k), ("B", k, n)))
    c = Piece("C", 4 * shift, m, n, alpha, beta)
    return TileOp(TileKernel(s, "float32"), (a,), (b,), (c,), lines, m, n, k, count)


# ---- right?


def error(s: Strategy, case: Case, access: Access, gap: int, shift: int) -> float:
    """Relative to the product of the absolute values, in units of float32's roundoff; infinite if a gap was touched."""
    op = plain(s, case, 0.5, 2.0, gap, shift)
    rng = cupy.random.default_rng(7)
    sizes = [rows * x.leading + shift for rows, x in zip((case.m, case.k, case.m), op.lines, strict=True)]
    memory = {name: cupy.full(size + 64, cupy.nan, np.float32) for name, size in zip("ABC", sizes, strict=True)}
    whole = {}
    for (name, x), lines, piece in zip(memory.items(), op.lines, op.pieces, strict=True):
        rows = x[shift : shift + piece.rows * lines.leading].reshape(piece.rows, lines.leading)
        whole[name] = rows[:, : piece.cols]
        whole[name][...] = rng.standard_normal(whole[name].shape, np.float32)
    a, b, c = (x.astype(np.float64) for x in whole.values())
    beside = int(cupy.isnan(memory["C"]).sum())
    launcher(op, access, {name: x.data.ptr for name, x in memory.items()})()
    expected, scale = 0.5 * (a @ b) + 2 * c, 0.5 * (abs(a) @ abs(b)) + 2 * abs(c)
    worst = float((abs(whole["C"] - expected) / scale).max()) / 2.0**-24
    return worst if int(cupy.isnan(memory["C"]).sum()) == beside else float("inf")


def checked(s: Strategy) -> float:
    """The worst error over odd sizes, gaps and shifts, both kinds of access."""
    worst = 0.0
    for m, k, n in ODD:
        worst = max(worst, *(error(s, Case(m, k, n), "scalar", gap, shift) for gap, shift in product((0, 3), (0, 1))))
        fours = Case(m, -(-k // 4) * 4, -(-n // 4) * 4)
        worst = max(worst, *(error(s, fours, "vector", gap, 4) for gap in (0, 4)))
    return worst


# ---- fast?


def operands(case: Case) -> tuple[Any, Any, Any]:
    rng = cupy.random.default_rng(1)
    shapes = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    a, b, c = (rng.standard_normal((case.times, *shape), np.float32) for shape in shapes)
    return a, b, c


def off(a: Any, b: Any, c: Any) -> float:
    """Relative Frobenius error of some rows from the first to the last, against float64."""
    rows = cupy.linspace(0, a.shape[-2] - 1, SAMPLED).astype(np.int64)
    exact = a[..., rows, :].astype(np.float64) @ b.astype(np.float64)
    return float(cupy.linalg.norm((c[..., rows, :] - exact).ravel()) / cupy.linalg.norm(exact.ravel()))


def replayed(plan: str, case: Case, bases: dict[str, int]) -> Callable[[], None]:
    """A plan as a CUDA graph, so that launches cost what the device takes."""
    tape = record(Plan.parse(plan), Problem.contiguous(case.m, case.k, case.n, "float32"))
    workspace = cupy.empty(tape.workspace, cupy.uint8)
    graph = CupyBackend().graph(tape, bases["A"], bases["B"], bases["C"], workspace.data.ptr)

    def launch(kept: Any = (graph, workspace)) -> None:
        graph.launch(cupy.cuda.get_current_stream())

    return launch


def scheme_kernels() -> list[TileKernel]:
    """What the plans of `--schemes` launch; the same for every size, since all are multiples of a wide access.

    Left out: the kernel that does products in turns, which depends on the device and the size.
    """
    case = SCHEME_CASES[0]
    tapes = (record(Plan.parse(x), Problem.contiguous(case.m, case.k, case.n, "float32")) for x in SCHEMES)
    ops = (op for tape in tapes for op in tape.ops if isinstance(op, TileOp | Several))
    launched = (x for op in ops for x in (op.ops if isinstance(op, Several) and not op.at_once else (op,)))
    return list({op.kernel: 0 for op in launched})


def measured(case: Case, strategies: Iterable[Strategy], rounds: int, plans: Sequence[str]) -> dict[str, list[float]]:
    """Seconds of every round, by name; `cuBLAS` and, for the noise, `cuBLAS again` among them."""
    a, b, c = operands(case)
    bases = {"A": a.data.ptr, "B": b.data.ptr, "C": c.data.ptr}
    a, b, c = (a, b, c) if case.times > 1 else (a[0], b[0], c[0])
    vendor = partial(cupy.matmul, a, b, out=c)
    calls: dict[str, Callable[[], object]] = {"cuBLAS": vendor, "cuBLAS again": vendor}
    calls |= {s.name: launcher(plain(s, case), "vector", bases) for s in strategies}
    calls |= {plan: replayed(plan, case, bases) for plan in (plans if case.times == 1 else ())}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():
        c[...] = cupy.nan
        call()
        if (worst := off(a, b, c)) > RIGHT:
            print(f"{case} {name}: WRONG, relative error {worst:.1e}")
    once = elapsed(calls["cuBLAS"], 3)
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(elapsed(calls[name], max(1, round(SHORTEST / once))))
    return samples


def row(case: Case, name: str, samples: Sequence[float], vendor: Sequence[float]) -> str:
    ratios = [v / s for v, s in zip(vendor, samples, strict=True)]
    low, _, high = quantiles(ratios, n=4)
    us, rate = 1e6 * median(samples), case.flops / median(samples) / 1e12
    return f"{case!s:>10}  {name:<52} {us:10.1f} us {rate:6.1f} TFLOP/s  {median(ratios):.3f} [{low:.3f}, {high:.3f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("strategies", nargs="*", type=strategy, help="with the usual plans: the paper's six")
    parser.add_argument("--sizes", nargs="+", metavar="CASE", help="such as 4096: not all that are usual")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path, help="where the samples go, as JSON")
    for name, what in (("schemes", "the ways through a fused level's products"), ("li", "Li, Ranka and Sahni's codes")):
        parser.add_argument(f"--{name}", dest="suite", action="store_const", const=name, help=f"time {what}")
    parser.set_defaults(suite="usual")
    options = parser.parse_args()
    cases, plans = SUITES[options.suite]
    good: list[Strategy] = []
    if options.suite == "schemes":
        compile_ahead(scheme_kernels())
    for s in options.strategies or (STRATEGIES if options.suite == "usual" else ()):
        worst = checked(s)
        print(
            f"{s.name}: {compiled(plain(s, CASES[0]).kernel, 'vector').num_regs} registers, error {worst:.1f} roundoffs"
        )
        good += [s] if worst < 100 else []
    found = {}
    for case in (case for case in cases if str(case) in (options.sizes or map(str, cases))):
        samples = found[str(case)] = measured(case, good, options.rounds, plans)
        for name, times in samples.items():
            print(row(case, name, times, samples["cuBLAS"]), flush=True)
    if options.out:
        options.out.write_text(json.dumps(found))


if __name__ == "__main__":
    main()
