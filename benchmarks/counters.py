"""Li, Ranka and Sahni's T and V against a GPU's counters: `python -m benchmarks.counters [--size 2048] [--out FILE]`.

One-level Strassen and Winograd (Figures 12 and 13) and a product alone run under Nsight Compute, by GPU8's block and by
a tuned one. Every kernel call is one launch, so a row is one of section 5's ten kernels on blocks of half the size.

In 2011 a transaction was a 64- or 128-byte segment that half a warp touched, and with no cache on the way the volume
was what device memory gave. Today a warp's request is taken apart in sectors of 32 bytes before any cache: volume is
compared with 32 bytes times these, of all loads, copies and stores. A transaction is so many sectors: 4 of what is
moved 16 bytes a thread (what GPU8's block reads of A and B here, and the sums), 2 of its 4-byte accesses to C.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from statistics import mean
from typing import NamedTuple

import numpy as np

from benchmarks import ncu
from fmm.kernels.algorithms.table_kernel import Kernel, kernel_table
from fmm.kernels.cuda.products.kernel_sizes import GPU8, TileSizes, named_strategy
from fmm.kernels.plans.levels.scheme_level import Level
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.papers.li_counts import FUSED, LEAVES, Polynomial, kernel_cost

SECTOR, SEGMENT = 32, 128  # bytes
L1, L2 = "l1tex__t_sectors_pipe_lsu_mem_global_op_", "lts__t_sectors_op_"
COPIED, LOADED, STORED = (f"{L1}{op}.sum" for op in ("ldgsts", "ld", "st"))
HALVES = tuple(
    f"{L1}ldgsts_cache_{way}.sum" for way in ("access", "bypass")
)  # of the copies, should all have no counter
READ, WRITTEN = (f"{L2}{op}.sum" for op in ("read", "write"))
FROM_DRAM, TO_DRAM = "dram__bytes_read.sum", "dram__bytes_write.sum"
REQUESTS = tuple(f"l1tex__t_requests_pipe_lsu_mem_global_op_{op}.sum" for op in ("ldgsts", "ld", "st"))
EXECUTED = tuple(f"smsp__inst_executed_op_{op}.sum" for op in ("ldgsts", "global_ld", "global_st"))
METRICS = (COPIED, *HALVES, LOADED, STORED, *REQUESTS, *EXECUTED, READ, WRITTEN, FROM_DRAM, TO_DRAM)
TILES = ("tile.gpu8", "tile.square")
SECONDS = 300.0  # after which the profiled run is given up


# ---- what is run, and what the paper's model says of it


def plans() -> tuple[Plan, ...]:
    levels = ("li-fig12 > ", "li-fig13 > ", "")
    return tuple(Plan.parse(f"{level}{leaf}") for leaf in TILES for level in levels)


def calls(plan: Plan) -> list[str]:
    """The kernels that a plan calls, in order."""
    if not plan.levels:
        return ["mul"]
    first = plan.levels[0]
    assert isinstance(first, Level) and first.table
    return [step.kernel.name for step in first.table.steps]


def volume(kernel: Kernel, s: TileSizes) -> Polynomial:
    """V of a kernel on m x m blocks, of GPU8 the printed one: a thread block reads its rows of A and columns of B."""
    leaf = Polynomial.parse(f"4n^3/{s.m_s} + 4n^3/{s.n_s}")
    return kernel_cost(kernel, "volume", leaf + FUSED["volume"])


def transactions(kernel: Kernel, m: int) -> tuple[float, float]:
    """T of a kernel by GPU8's block: as printed, and with A and B moved 16 bytes a thread, so in whole segments."""
    once = FUSED["transactions"]
    segments = Polynomial.parse(f"4n^3/{GPU8.m_s} + 4n^3/{GPU8.n_s}").times(Fraction(1, SEGMENT))
    printed, here = (
        kernel_cost(kernel, "transactions", leaf) for leaf in (LEAVES["gpu8"]["transactions"], segments + once)
    )
    return float(printed(m)), float(here(m))


# ---- what was counted


class Counted(NamedTuple):
    """A kernel's launches in one plan: predicted and measured, on m x m blocks."""

    plan: str
    kernel: str
    m: int
    times: int
    printed: float | None  # T; None for a block that is not the paper's
    expected: float | None
    transactions: float | None
    volume: float
    moved: float  # bytes between first-level cache and threads
    second: float  # bytes between the caches
    memory: float  # bytes of device memory
    compulsory: float  # bytes of each block that is read or written, once


def counted(plan: Plan, kernel: Kernel, m: int, found: Sequence[Mapping[str, float]]) -> Counted:
    def count(*names: str) -> float:
        return mean(sum(counters.get(name, 0.0) for name in names) for counters in found)

    s = named_strategy(plan.leaf.rpartition(".")[2])
    old = s == GPU8
    printed, expected = transactions(kernel, m)
    copied = count(COPIED) or count(*HALVES)
    rest = count(LOADED, STORED) / (2 if kernel.product else 4)
    blocks = len(kernel.reads) + len(kernel.writes) + len(kernel.product or ())
    return Counted(
        str(plan),
        kernel.name,
        m,
        len(found),
        printed if old else None,
        expected if old else None,
        copied / 4 + rest if old else None,
        float(volume(kernel, s)(m)),
        SECTOR * (copied + count(LOADED, STORED)),
        SECTOR * count(READ, WRITTEN),
        count(FROM_DRAM, TO_DRAM),
        4.0 * blocks * m * m,
    )


def compared(found: Sequence[ncu.Launch], size: int) -> list[Counted]:
    """Every launch is put beside the call that it must be; ValueError if the run was another one."""
    expected = [(plan, i, name) for plan in plans() for i, name in enumerate(calls(plan))]
    kernels = kernel_table()
    if len(found) != len(expected):
        raise ValueError(f"{len(found)} launches where the plans have {len(expected)}")
    groups: dict[tuple[Plan, str], list[Mapping[str, float]]] = {}
    for launch, (plan, i, name) in zip(found, expected, strict=True):
        if ("fmm_tile" in launch.kernel) != bool(kernels[name].product):
            raise ValueError(f"call {i} of {plan} is {name}, but the launch is {launch.kernel}")
        groups.setdefault((plan, name), []).append(launch.counters)
    return [
        counted(plan, kernels[name], size // 2 if plan.levels else size, counters)
        for (plan, name), counters in groups.items()
    ]


# ---- the table


COUNTS = ("T printed", "T here", "T measured", "/", "V", "V measured", "/", "L2", "DRAM", "once")
COLUMNS = ("kernel", "m", "calls", *COUNTS)
NOTES = """
T, V       thousands of transactions, MB; `/` is measured over predicted (T: over `T here`).
T here     GPU8 moved B 4 bytes a thread, in 64-byte transactions; here it is 16 bytes a thread, so in 128-byte ones:
           9m^3/4096 for A and B where T printed has 17m^3/4096. The volume does not depend on that.
V          of GPU8's block as printed; of another block of m_S x n_S, 4m^3/m_S + 4m^3/n_S for A and B.
above 1    the sectors of what the model leaves out: accesses that are not whole sectors.
L2         between the caches: less than V by what the first-level cache keeps (loads; copies of 16 bytes go past it),
           more by what is written through.
DRAM       what is left behind a second-level cache that holds whole blocks: near `once` (each block read or written
           once) or below it, since what was written last is still in the cache when the counting ends.
"""


def line(x: Counted) -> tuple[str, ...]:
    def number(value: float | None, unit: float) -> str:
        return "" if value is None else f"{value / unit:.1f}"

    def ratio(measured: float | None, predicted: float | None) -> str:
        return f"{measured / predicted:.3f}" if measured is not None and predicted else ""

    return (
        *(x.kernel, str(x.m), str(x.times)),
        *(number(value, 1e3) for value in (x.printed, x.expected, x.transactions)),
        ratio(x.transactions, x.expected),
        *(number(value, 1e6) for value in (x.volume, x.moved)),
        ratio(x.moved, x.volume),
        *(number(value, 1e6) for value in (x.second, x.memory, x.compulsory)),
    )


def table(rows: Sequence[Counted]) -> str:
    """A part for each plan, its total last: Figure 14's one-level T and V where the block is GPU8's."""
    parts = []
    for plan in dict.fromkeys(x.plan for x in rows):
        own = [x for x in rows if x.plan == plan]
        parts.append("\n".join([plan, *_aligned([COLUMNS, *(line(x) for x in own), line(total(own))])]))
    return "\n\n".join(parts) + "\n" + NOTES


def total(rows: Sequence[Counted]) -> Counted:
    """Of a plan: every number times its calls."""

    def added(values: Iterator[float | None]) -> float | None:
        pairs = [(v, x.times) for v, x in zip(values, rows, strict=True)]
        return None if any(v is None for v, _ in pairs) else sum((v or 0.0) * times for v, times in pairs)

    first = rows[0]
    sums = [added(iter(column)) for column in zip(*(x[4:] for x in rows), strict=True)]
    return Counted(first.plan, "all", first.m, sum(x.times for x in rows), *sums)  # type: ignore[arg-type]


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *rest in rows:
        yield "  ".join([first.ljust(widths[0]), *(x.rjust(w) for x, w in zip(rest, widths[1:], strict=True))])


# ---- running


def run(size: int) -> None:
    """Every plan once, what is compiled being so before: the profiler counts between start and stop."""
    import cupy
    from fmm.runtime.device_backend import DeviceBackend

    driver, backend, rng = ctypes.CDLL("libcuda.so.1"), DeviceBackend(), cupy.random.default_rng(1)
    a, b = (rng.standard_normal((size, size), np.float32) for _ in "AB")
    c = cupy.empty_like(a)
    for started in (False, True):
        if started:
            driver.cuProfilerStart()
        for plan in plans():
            backend.multiply(plan, a, b, c)
        cupy.cuda.runtime.deviceSynchronize()
    driver.cuProfilerStop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=2048, help="of the whole matrices; a multiple of 256")
    parser.add_argument("--out", type=Path, help="where the table's numbers and the CSV go, as JSON")
    parser.add_argument("--run", action="store_true", help="only run the plans (what is profiled)")
    options = parser.parse_args()
    if options.run:
        run(options.size)
        return 0
    if (profiler := ncu.found()) is None:
        print("no Nsight Compute (ncu) on this machine", file=sys.stderr)
        return 1
    command = [sys.executable, "-m", "benchmarks.counters", "--run", "--size", str(options.size)]
    text = ncu.profiled(profiler, command, METRICS, SECONDS)
    rows: list[Counted] = []
    try:
        rows = compared(ncu.launches(text), options.size)
        print(table(rows))
    except ValueError as error:
        print(f"{text}\n{error}", file=sys.stderr)
    if options.out:
        found = {
            "command": " ".join(["python -m benchmarks.counters", *sys.argv[1:]]),
            "size": options.size,
            "rows": [x._asdict() for x in rows],
            "csv": text,
        }
        options.out.write_text(json.dumps(found))
    return 0 if rows else 1


if __name__ == "__main__":
    sys.exit(main())
