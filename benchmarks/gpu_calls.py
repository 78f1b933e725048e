"""What fmm.matmul does on a GPU: `python -m benchmarks.gpu_calls [--large | --layouts]`.

Default calls, as a user makes them: the config that fmm reads chooses (what ships, unless the device was tuned), on
random normal data, into a given `out`, against the library's own product, in shuffled rounds. `float32-ieee` and
`float64-ieee` are these types with FMM_EMULATION=0. With `--large`, products of which operands and result fill a third
of the device's memory or more, and the same once others have taken two thirds of what is left beside them. With
`--layouts`, operands that lie row by row (N) or column by column (T), as `a @ b.T` has them. Errors are those of the
Frobenius norm of sampled rows against float64, as multiples of the library's. Raw samples go to
results/<device>/calls.json, large.json or layouts.json.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

import fmm
from benchmarks.harness import gpu_environment, gpu_folder, gpu_seconds
from benchmarks.held_out import IEEE, OWN, Size, paired
from benchmarks.timed_machines import Gpu
from benchmarks.tried_plans import element_type
from fmm.runtime.decisions.limits import FREE_MEMORY_SECONDS, WORKSPACE_SHARE
from fmm.tuner.devices.compile_ahead import call_jobs, working_ahead

LEAST = 5e-3  # seconds of a sample: shorter calls are repeated
WARM = 8  # calls before short products are timed: by then a recurring one is a graph
WARM_SECONDS = 0.1  # that long at least: a library's very first products are slower for longer than eight calls
LONG = 2.0  # seconds of a product of which every call counts
SAMPLED_ROWS = 32
TAKEN = 2 / 3  # of the memory beside the operands, that others have
COMPILING = 40.0  # seconds that are waited for compilers before anything is measured


@dataclass(frozen=True)
class Case:
    """A product, in one type or several that begin with the same numbers; how much others have of the memory; and how A
    and B lie, row by row (N) or column by column (T)."""

    dtypes: tuple[str, ...]
    size: Size
    taken: tuple[float, ...] = (0.0,)
    rounds: int = 7
    lie: str = "NN"


def cube(dtype: str, side: int, rounds: int = 7) -> Case:
    return Case((dtype,), (side, side, side), rounds=rounds)


CASES = (
    *(cube("float32", n) for n in (2048, 4096, 8192, 16384)),
    Case(("float32",), (4096, 14336, 4096)),
    *(cube(IEEE, n) for n in (1537, 3000, 4096, 8192, 16384)),
    Case((IEEE,), (16384, 1024, 16384)),
    *(cube(dtype, n) for dtype in ("float64", f"float64{OWN}") for n in (4096, 8191, 8192, 16384)),
    Case((f"float64{OWN}",), (30000, 3000, 3000)),
    *(cube("bfloat16", n) for n in (4096, 8191, 8192, 16384, 32768)),
    *(cube("tf32", n) for n in (8192, 16384)),
)
LARGE = (
    Case((IEEE, "float32"), (65536,) * 3, (0.0, TAKEN), 2),
    Case((f"float64{OWN}", "float64"), (49152,) * 3, (0.0, TAKEN), 2),
)
SIDES = (1537,) * 3, (3000,) * 3, (4096,) * 3, (3333, 1111, 4001), (1024, 4096, 4096)
LAYOUTS = tuple(
    Case((dtype,), size, rounds=5, lie=lie)
    for dtype in ("float32", IEEE, "float64", f"float64{OWN}", "bfloat16")
    for size in SIDES
    for lie in ("NN", "NT", "TN", "TT")
)


@dataclass
class Row:
    """A product in one type, so much of the memory taken: paired samples in seconds."""

    dtype: str
    size: Size
    taken: float
    lie: str = "NN"
    plan: str = ""
    step: str = ""
    workspace: int = 0
    seconds: list[float] = field(default_factory=list)
    vendor_seconds: list[float] = field(default_factory=list)
    error: float = float("nan")  # as a multiple of the library's
    failure: str = ""

    @property
    def whole(self) -> bool:
        return bool(self.seconds) and len(self.seconds) == len(self.vendor_seconds) and not self.failure

    def __str__(self) -> str:
        what = f"{self.dtype:12} {' x '.join(map(str, self.size)):22} {self.lie} {self.taken:4.0%} taken"
        if not self.whole:
            return f"{what}  {self.failure[:120] or 'not measured'}"
        speedup = paired(self.vendor_seconds, self.seconds)
        times = f"{1e3 * median(self.seconds):10.3f} of {1e3 * median(self.vendor_seconds):10.3f} ms {speedup:6.3f}"
        return f"{what} {times}  {self.error:5.2f} {self.workspace / 2**30:6.2f} GiB  {self.plan} ({self.step})"


# ---- memory that others have


@contextmanager
def others_take(share: float) -> Iterator[None]:
    """That share of the free memory. fmm asks for what is free once in a while."""
    if not share:
        yield
        return
    cupy.get_default_memory_pool().free_all_blocks()
    block = cupy.cuda.runtime.malloc(int(share * cupy.cuda.runtime.memGetInfo()[0]))
    try:
        time.sleep(1.1 * FREE_MEMORY_SECONDS)
        yield
    finally:
        cupy.get_default_memory_pool().free_all_blocks()
        cupy.cuda.runtime.free(block)
        time.sleep(1.1 * FREE_MEMORY_SECONDS)


# ---- errors


def double(x: Any) -> Any:
    return x.double() if hasattr(x, "double") else x.astype(np.float64)


def error(a: Any, b: Any, c: Any) -> float:
    """Of sampled rows, in the Frobenius norm."""
    rows = [int(i) for i in np.linspace(0, a.shape[0] - 1, SAMPLED_ROWS)]
    left, off, norm = double(a[rows]), 0.0, 0.0
    for first in range(0, b.shape[1], 4096):  # a float64 copy of all of B may not fit
        exact = left @ double(b[:, first : first + 4096])
        off += float(((double(c[rows, first : first + 4096]) - exact) ** 2).sum())
        norm += float((exact**2).sum())
    return float((off / norm) ** 0.5)


# ---- measuring


def lying(x: Any, order: str) -> Any:
    """The same numbers, column by column if that is asked for (T)."""
    if order == "N":
        return x
    return x.T.contiguous().T if hasattr(x, "contiguous") else x.T.copy().T


def measured(case: Case) -> list[Row]:
    """The rows of a case; what fails is a row that says why."""
    machine = Gpu()
    rows = [Row(dtype, case.size, taken, case.lie) for taken in case.taken for dtype in case.dtypes]
    try:
        with machine.as_type(case.dtypes[0]):
            a, b, vendor = machine.operands(case.size, case.dtypes[0])
            a, b = (lying(x, order) for x, order in zip((a, b), case.lie, strict=True))
            made: list[Any] = []
            first = gpu_seconds(lambda: made.append(vendor(a, b)), 1)
            c = made.pop()
            if first < LONG:  # a library's very first product is loaded as well
                first = gpu_seconds(lambda: vendor(a, b), 1)
            base = error(a, b, c)
        for row in rows:
            _prepare(machine, row, (a, b, c), base)
        _sample(machine, case, rows, (a, b, c), vendor, first)
    except Exception as failure:  # whatever may go wrong: the next case is measured
        for row in rows:
            row.failure = row.failure or f"{type(failure).__name__}: {failure}"
    finally:
        a = b = c = None
        machine.forget()
    return rows


def _prepare(machine: Gpu, row: Row, arrays: Sequence[Any], base: float) -> None:
    """What is chosen, and whether it is right; after that, its kernels are compiled."""
    a, b, c = arrays
    try:
        with machine.as_type(row.dtype), others_take(row.taken):
            decision = fmm.explain(a, b, c)
            row.plan, row.step, row.workspace = str(decision.plan), decision.source, decision.workspace
            c[...] = float("nan")
            fmm.matmul(a, b, out=c)
            row.error = error(a, b, c) / base
    except (MemoryError, RuntimeError, ValueError) as failure:
        row.failure = f"{type(failure).__name__}: {failure}"


def warmed(call: Callable[[], object]) -> float:
    """Seconds of a call, once it has been made often and for long enough."""
    until = time.monotonic() + WARM_SECONDS
    gpu_seconds(call, WARM)
    while time.monotonic() < until:
        gpu_seconds(call, WARM)
    return gpu_seconds(call, WARM)


def _sample(
    machine: Gpu, case: Case, rows: Sequence[Row], arrays: Sequence[Any], vendor: Callable[..., object], first: float
) -> None:
    """In shuffled rounds: the library's product and every row's call. Where it takes seconds, the library's first call,
    which compiles nothing, is one of its samples."""
    a, b, c = arrays
    theirs, ours = partial(vendor, a, b, out=c), partial(fmm.matmul, a, b, out=c)
    right = [row for row in rows if not row.failure]
    if first < LEAST:
        with machine.as_type(case.dtypes[0]):
            first = warmed(theirs)
        for row in right:
            with machine.as_type(row.dtype):
                warmed(ours)
    repeats, known = max(round(LEAST / first), 1), [first] if first > LONG else []
    takes = dict.fromkeys(row.taken for row in right)
    sample = first
    for _ in range(case.rounds):
        for taken in random.sample([None, *takes], 1 + len(takes)):
            if taken is None:
                with machine.as_type(case.dtypes[0]):
                    sample = known.pop() if known else gpu_seconds(theirs, repeats)
                continue
            with others_take(taken):
                for row in (r for r in right if r.taken == taken):
                    with machine.as_type(row.dtype):
                        row.seconds.append(gpu_seconds(ours, repeats))
        for row in right:
            row.vendor_seconds.append(sample)


def make_ready(cases: Sequence[Case]) -> None:
    """Compile what will be called, on all processors."""
    wanted = []
    total = cupy.cuda.runtime.memGetInfo()[1]
    for case in cases:
        for dtype in case.dtypes:
            m, k, n = case.size
            beside = total - (m * k + k * n + m * n) * np.dtype(np.float32).itemsize
            for taken in case.taken:
                room = int(WORKSPACE_SHARE * (1 - taken) * max(beside, 0))
                with Gpu().as_type(dtype):
                    found = fmm.plan(*case.size, dtype=element_type(dtype), device=0, workspace=room)
                wanted.append((element_type(dtype), found.plan, case.size))
    with working_ahead(0, list(call_jobs(wanted))) as ahead:
        ahead.wait_for_all(COMPILING)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--large", action="store_true", help="the largest products, with and without others' memory")
    which.add_argument("--layouts", action="store_true", help="operands that lie row by row and column by column")
    parser.add_argument("--dtype", action="append", help="only cases of this type (may be repeated)")
    parser.add_argument("--rounds", type=int, help="of each case (7; of the largest products 2)")
    parser.add_argument("--time-limit", type=float, default=300, help="seconds after which no case is begun")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    options = parser.parse_args(arguments)
    began, rows = time.monotonic(), list[Row]()
    name, every = ("large", LARGE) if options.large else ("layouts", LAYOUTS) if options.layouts else ("calls", CASES)
    wanted = set(options.dtype or chain.from_iterable(x.dtypes for x in every))
    known = [replace(x, dtypes=tuple(t for t in x.dtypes if t in wanted)) for x in every]
    cases = [replace(x, rounds=options.rounds or x.rounds) for x in known if x.dtypes]
    folder = options.output or gpu_folder()
    folder.mkdir(parents=True, exist_ok=True)
    make_ready(cases)
    for case in cases:
        if time.monotonic() - began > options.time_limit:
            break
        rows += measured(case)
        print(*rows[-len(case.dtypes) * len(case.taken) :], sep="\n", flush=True)
        content = {"environment": gpu_environment(), "rows": [asdict(row) for row in rows]}
        (folder / f"{name}.json").write_text(json.dumps(content, indent=1), encoding="utf-8")
    return int(any(row.failure for row in rows))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
