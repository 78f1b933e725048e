"""Which strategy is best for which shape: `python -m benchmarks.blocks --out FILE` times all of them on 40 shapes.

Huang's six strategies and the tuned ones in the plain float32 kernel, cuBLAS beside them, in shuffled rounds; on some
shapes the six also in the kernel of a fast algorithm's product: two blocks of A and of B are added, two of C updated.
Every call's result is first compared with float64. Operands stay where they are from call to call, so that small ones
are in the second-level cache. FILE is written anew after every shape.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import cupy
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm

from benchmarks.harness import gpu_environment, gpu_seconds
from benchmarks.tile import RIGHT, operands
from benchmarks.tile_errors import off
from benchmarks.tile_launch import Case, compile_ahead, compiled, launcher, plain
from fmm.kernels.cuda.products.kernel_sizes import STRATEGIES, TUNED, TileSizes
from fmm.kernels.cuda.products.simt_kernel import TileKernel, adding_epilogue
from fmm.kernels.cuda.products.simt_tiles import TileOp

SQUARES = (256, 384, 512, 640, 768, 1024, 1280, 1536, 2048, 2560, 3072, 4096, 5120, 6144, 8192)
EACH = 5  # shapes of every kind
GRAIN = 4  # numbers of a wide access: sides are multiples, of no tile's side in particular
FUSED = 10  # shapes whose products are also timed with sums
SHORTEST, AHEAD = 1e-3, 25e-6  # seconds of one sample at least; of the host's time for one call at most
MOST = 100  # calls of a sample
ATTRIBUTES = ("ClockRate", "MemoryClockRate", "L2CacheSize")
SECONDS, ROUNDS = 1.0, (4, 11)  # of a shape, about; and the fewest and most rounds


class Kind(NamedTuple):
    """Shapes of one kind: the least and greatest of each side."""

    name: str
    m: tuple[int, int]
    k: tuple[int, int]
    n: tuple[int, int]


LONG, SHORT, MIDDLE = (2048, 16384), (32, 512), (256, 4096)
KINDS = (
    Kind("tall", LONG, MIDDLE, SHORT),
    Kind("wide", SHORT, MIDDLE, LONG),
    Kind("deep", (64, 1024), (4096, 32768), (64, 1024)),
    Kind("thin", (1024, 8192), (16, 256), (1024, 8192)),
    Kind("any", (128, 6144), (128, 6144), (128, 6144)),
)


def cases(seed: int) -> list[tuple[str, Case]]:
    """Squares, and random shapes of each kind, spread evenly by logarithm; shuffled."""
    rng = random.Random(seed)

    def side(least: int, greatest: int) -> int:
        return int(least * pow(greatest / least, rng.random())) // GRAIN * GRAIN

    found = [("square", Case(n, n, n)) for n in SQUARES]
    found += [(x.name, Case(side(*x.m), side(*x.k), side(*x.n))) for x in KINDS for _ in range(EACH)]
    rng.shuffle(found)
    return found


def fused(s: TileSizes, case: Case) -> TileOp:
    """C11 += M, C22 -= M of M = (A11 + A22)(B11 + B22): blocks of matrices with sides twice as long."""
    m, k, n, _ = case
    kernel = TileKernel(s, "float32", 2, 2, adding_epilogue(2))

    def diagonal(base: str, rows: int, cols: int, factor: float = 1, keep: float = 0) -> tuple[BlockTerm, ...]:
        second = 4 * (2 * cols * rows + cols)
        return BlockTerm(base, 0, rows, cols, 1, keep), BlockTerm(base, second, rows, cols, factor, keep)

    lines = BlockStrides(2 * k), *[BlockStrides(2 * n)] * 3
    return TileOp(kernel, diagonal("A", m, k), diagonal("B", k, n), diagonal("C", m, n, -1, 1), lines, m, n, k)


def kernels() -> list[TileKernel]:
    case = Case(GRAIN, GRAIN, GRAIN)
    return [
        *(plain(s, case).kernel for s in (*STRATEGIES, *TUNED)),
        *(fused(s, case).kernel for s in STRATEGIES),
    ]


# ---- calls, and whether they are right


class Call(NamedTuple):
    """Something to time, and the relative error of what it computed when it ran once."""

    run: Callable[[], object]
    error: float


def plain_calls(case: Case) -> dict[str, Call]:
    a, b, c = (x[0] for x in operands(case))
    bases = _bases(a, b, c)
    runs: dict[str, Callable[[], object]] = {"cuBLAS": partial(cupy.matmul, a, b, out=c)}
    runs |= {s.name: launcher(plain(s, case), "vector", bases) for s in (*STRATEGIES, *TUNED)}

    def error(run: Callable[[], object]) -> float:
        c[...] = cupy.nan
        run()
        return off(a, b, c)

    return {name: Call(run, error(run)) for name, run in runs.items()}


def fused_calls(case: Case) -> dict[str, Call]:
    m, k, n, _ = case
    a, b, c = (x[0] for x in operands(Case(2 * m, 2 * k, 2 * n)))
    sums = a[:m, :k] + a[m:, k:], b[:k, :n] + b[k:, n:]
    bases = _bases(a, b, c)

    def error(run: Callable[[], object]) -> float:
        c[...] = 0
        run()
        beside = float(abs(c[:m, n:]).max() + abs(c[m:, :n]).max())
        return max(off(*sums, c[:m, :n]), off(*sums, -c[m:, n:]), beside)

    runs = {s.name: launcher(fused(s, case), "vector", bases) for s in STRATEGIES}
    return {name: Call(run, error(run)) for name, run in runs.items()}


def _bases(a: Any, b: Any, c: Any) -> dict[str, int]:
    return {"A": a.data.ptr, "B": b.data.ptr, "C": c.data.ptr}


# ---- timing


def timed(calls: Mapping[str, Call], seconds: float) -> dict[str, list[float]]:
    """Seconds of every round, by name."""
    runs = {name: call.run for name, call in calls.items()}
    once = {name: max(gpu_seconds(run, 2, 2 * AHEAD), 1e-6) for name, run in runs.items()}
    repeats = {name: min(max(round(SHORTEST / t), 1), MOST) for name, t in once.items()}
    least, most = ROUNDS
    rounds = min(max(int(seconds / sum(repeats[x] * (once[x] + AHEAD) for x in runs)), least), most)
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name in random.sample(list(runs), len(runs)):
            samples[name].append(gpu_seconds(runs[name], repeats[name], repeats[name] * AHEAD))
    return samples


def measured(kind: str, case: Case, calls: Mapping[str, Call], seconds: float) -> dict[str, Any]:
    wrong = [name for name, call in calls.items() if not call.error < RIGHT]
    samples = timed({name: call for name, call in calls.items() if name not in wrong}, seconds)
    errors = {name: call.error for name, call in calls.items()}
    return {"kind": kind, "m": case.m, "k": case.k, "n": case.n, "wrong": wrong, "errors": errors, "seconds": samples}


def compiled_rows() -> list[dict[str, Any]]:
    """What the compiler made of every kernel."""
    rows = []
    for x in kernels():
        made = compiled(x, "vector")
        taken = {"registers": made.num_regs, "local": made.local_size_bytes, "shared": x.shared}
        rows.append({"strategy": x.strategy.name, "operands": x.operands, **taken})
    return rows


# ---- what is printed


def shown(row: Mapping[str, Any], names: Iterable[str]) -> str:
    flops = 2e-12 * row["m"] * row["k"] * row["n"]
    rates = {name: flops / median(samples) for name, samples in row["seconds"].items()}
    cells = "".join(f"{rates[x]:8.2f}" if x in rates else f"{'-':>8}" for x in names)
    best = max((s.name for s in STRATEGIES if s.name in rates), key=lambda x: rates[x], default="-")
    return f"{row['kind']:7}{row['m']:6} x{row['k']:6} x{row['n']:6}{cells}  {best}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="where the samples go, as JSON")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=SECONDS, help="of a shape, about")
    parser.add_argument("--time-limit", type=float, default=90, help="seconds after which no shape is begun")
    options = parser.parse_args()
    began = time.perf_counter()
    random.seed(options.seed)
    compile_ahead(kernels())
    env = {**gpu_environment(), "command": f"python -m benchmarks.blocks --seed {options.seed}"}
    env |= {x: cupy.cuda.Device().attributes.get(x) for x in ATTRIBUTES}
    report: dict[str, Any] = {"environment": env, "kernels": compiled_rows(), "plain": [], "fused": []}
    names = ("cuBLAS", *(s.name for s in (*STRATEGIES, *TUNED)))
    print(f"compiled in {time.perf_counter() - began:.0f} s")
    print(f"TFLOP/s{'':18}" + "".join(f"{name:>8}" for name in names) + "  the best of the six")
    jobs: list[tuple[str, Callable[[Case], dict[str, Call]], str, Case]] = []
    for i, (kind, case) in enumerate(cases(options.seed)):
        jobs += [("plain", plain_calls, kind, case)]
        jobs += [("fused", fused_calls, kind, case)] if i < FUSED else []
    for table, calls, kind, case in jobs:
        if time.perf_counter() - began > options.time_limit:
            print(f"out of time: {kind} {case} and those behind it are missing")
            break
        row = measured(kind, case, calls(case), options.seconds if table == "plain" else options.seconds / 2)
        report[table].append(row)
        written(options.out, report)
        print(shown(row, names) + ("  with sums" if table == "fused" else ""), flush=True)
        if row["wrong"]:
            print(f"WRONG: {row['wrong']}, relative errors {row['errors']}", flush=True)
        cupy.get_default_memory_pool().free_all_blocks()
    print(f"{time.perf_counter() - began:.0f} s")


def written(path: Path, report: Mapping[str, Any]) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".part")
    beside.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    beside.replace(path)


if __name__ == "__main__":
    main()
