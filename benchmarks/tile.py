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
import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import product
from pathlib import Path
from statistics import median, quantiles
from typing import Any, NamedTuple

import cupy
import numpy as np
from fmm.runtime.device_backend import DeviceBackend, record_for_device

from benchmarks.harness import gpu_environment, gpu_seconds
from benchmarks.tile_errors import checked, off
from benchmarks.tile_launch import Case, compile_ahead, compiled, launcher, plain
from fmm.kernels.cuda.products.kernel_sizes import DOUBLE, PRESETS, STRATEGIES, TileSizes
from fmm.kernels.cuda.products.simt_kernel import Access, TileKernel
from fmm.kernels.cuda.products.simt_tiles import TileGroup, TileOp
from fmm.kernels.cuda.record import record_operations
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

ACCESSES: tuple[Access, ...] = ("scalar", "vector")
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
RIGHT = 1e-4  # relative errors are smaller
MUCH = 100  # roundoffs: of how many is wrong


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
    return TileSizes(text, m_s, n_s, k_s, m_r, n_r, down, across, stages, blocks, mma_depth=deep)


DOUBLES = (  # as Solo: other instructions, more stages, longer tiles, larger ones, and small ones
    "128x128x16:8x8:8x4:3:1:4",
    "128x128x16:8x8:8x4:3:1:16",
    "128x128x16:8x8:8x4:4:1:8",
    "128x128x32:8x8:8x4:2:1:8",
    "160x128x16:10x8:8x4:3:1:4",
    "64x64x16:4x8:8x4:3:3:8",
)
CANDIDATES = {"float32": STRATEGIES, "float64": (*DOUBLE, *map(strategy, DOUBLES))}  # timed if none is named


def operands(case: Case, dtype: str = "float32") -> tuple[Any, Any, Any]:
    rng = cupy.random.default_rng(1)
    shapes = ((case.m, case.k), (case.k, case.n), (case.m, case.n))
    a, b, c = (rng.standard_normal((case.times, *shape), np.dtype(dtype).type) for shape in shapes)
    return a, b, c


def replayed(plan: str, case: Case, bases: dict[str, int], dtype: str) -> Callable[[], None]:
    """A plan as a CUDA graph, so that launches cost what the device takes."""
    launches = record_for_device(Plan.parse(plan), Problem(case.m, case.k, case.n, dtype))
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
    launched = (x for op in ops for x in (op.ops if isinstance(op, TileGroup) and not op.fits_one_launch else (op,)))
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
    once = gpu_seconds(calls["cuBLAS"], 3)
    order = list(calls)
    for _ in range(rounds):
        random.shuffle(order)
        for name in order:
            samples[name].append(gpu_seconds(calls[name], max(1, round(SHORTEST / once))))
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
    report: dict[str, Any] = {"environment": gpu_environment(), "dtype": dtype, "seconds": {}, "errors": {}}
    for case in (case for case in cases if str(case) in (options.sizes or map(str, cases))):
        found = measured(case, good, options.rounds, dtype, plans)
        report["seconds"][str(case)], report["errors"][str(case)] = found
        for name, times in found.seconds.items():
            print(row(case, name, times, found.seconds["cuBLAS"]) + f"  error {found.errors[name]:.1e}", flush=True)
        if options.out:
            options.out.write_text(json.dumps(report))


if __name__ == "__main__":
    main()
