"""The GPU benchmark: `python -m benchmarks.gpu [--quick]` checks, then times plans against cuBLAS on this device.

On a host with two equal GPUs, half of the cases on each, at the same time:

    CUDA_VISIBLE_DEVICES=0 python -m benchmarks.gpu --part 1/2 --output part1 &
    CUDA_VISIBLE_DEVICES=1 python -m benchmarks.gpu --part 2/2 --output part2 & wait
    python -m benchmarks.gpu --merge part1 part2

Candidate and vendor are interleaved in shuffled rounds and timed with CUDA events, one after the other on one stream;
the speedup is the median of the paired ratios. Both go through the same backend. Raw samples are kept.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from statistics import median
from typing import Any

import cupy
import numpy as np

from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.plan import Plan, PlanError
from fmm.problem import Problem
from fmm.runtime.running.device_backend import DeviceBackend, compile_for, recorded_for_device
from fmm.tuner.devices.cuda import event_milliseconds
from fmm.tuner.devices.cuda_operands import Operands, random_normal
from fmm.tuner.trials.environment import source_commit

ROOT = Path(__file__).parents[1]
SAMPLED_ROWS = 24  # rows of the product that are compared with a float64 one


def one(scheme: str, leaf: str = "vendor") -> str:
    """All levels in one pass, their products as one batch."""
    return f"{scheme}.batched.pad16 > {leaf}"


def two(outer: str, inner: str, leaf: str = "vendor") -> str:
    """An outer step whose products run two at a time, below it one pass."""
    return f"{outer}.overlapped.pad16 > {one(inner, leaf)}"


S1, S2, S3 = "strassen", "strassen^2", "strassen^3"
W1, W2 = "winograd", "winograd^2"
ALIGNED = "aligned.pad16 > vendor"
LT = tuple(f"lt{i}" for i in range(8))  # cuBLASLt's own candidates for the whole product: the vendor at its best
LONG = 1 << 43  # multiply-adds from which only the first few candidates are tried
KEPT = 3  # plans, and candidates of cuBLASLt, that are measured in full, after one run of each


@dataclass(frozen=True)
class Case:
    dtype: str
    size: tuple[int, int, int]
    plans: tuple[str, ...]
    graph: bool = False  # also as a CUDA graph
    quick: bool = False

    @property
    def name(self) -> str:
        return named(self.dtype, self.size)


def named(dtype: str, size: Sequence[int]) -> str:
    return f"{dtype} {' x '.join(map(str, size))}"


def cube(n: int) -> tuple[int, int, int]:
    return n, n, n


CASES = (
    Case("float32", cube(8192), (one(S3), two(S1, S3)), quick=True),
    Case("float64", cube(8192), (one(S3), one(W2)), quick=True),
    Case("bfloat16", cube(16384), tuple(one(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6", "lt7")), quick=True),
    Case("float32", cube(1536), (one(S1), one(S1, "vendor.outer"), one(W1, "vendor.outer")), graph=True, quick=True),
    Case("float32", cube(2048), (one(S2), one(S2, "vendor.outer"), one(S2, "lt0")), graph=True),
    Case("float32", cube(4096), (one(S3), one(S2, "lt1")), graph=True, quick=True),
    Case("bfloat16", cube(8191), (one(S1), ALIGNED), quick=True),
    Case("float32", cube(16384), (two(S1, S3), two(S2, S3))),
    Case("float32", cube(32768), (two(S2, S3),)),
    Case("float64", cube(4096), (one(S2), one(W2)), graph=True),
    Case("float64", cube(16384), (two(S1, W2), two(S2, W2), two(S2, S2), two(S1, S3))),
    Case("float64", cube(24576), (two(S2, S2), two(S2, W2))),
    Case("bfloat16", cube(4096), ("tile",)),
    Case("bfloat16", cube(8192), (one(S1), one(S1, "tile"), "tile")),
    Case("bfloat16", cube(32768), tuple(one(S3, leaf) for leaf in ("vendor", "lt1", "tile"))),
    Case("bfloat16", cube(49152), (one(S3), one(S3, "lt1"), one(S3, "tile"))),
    Case("bfloat16", cube(10007), (one(S1), ALIGNED)),
    Case("float16", cube(8192), (one(S1),)),
    Case("float16", cube(16384), tuple(one(S2, leaf) for leaf in ("vendor", "lt1", "lt2", "lt6"))),
    Case("float16", cube(32768), tuple(one(S3, leaf) for leaf in ("vendor", "lt1", "lt2"))),
    Case("float16", cube(8191), (one(S1), ALIGNED)),
    Case("float16", cube(10007), (one(S1), ALIGNED)),
    Case("tf32", cube(16384), (one(S2, "lt2.inner"), one(W2, "lt2.inner"), one(S2, "tile.inner"))),
    Case("tf32", cube(32768), ("winograd^2.pad16 > vendor", one(S2, "lt0.inner"))),
    Case("float64", cube(8191), (one(S3), one(W2))),
    Case("float64", cube(10007), (one(S3), one(W2))),
    Case("float32", (16384, 4096, 16384), (one(S3),)),
    Case("float32", (8192, 32768, 8192), (one(S3), two(S1, S3))),
    Case("float32", (65536, 4096, 4096), (one(S3),)),
)


@dataclass
class Row:
    """One plan on one case: paired samples in milliseconds, against the vendor's of the same rounds."""

    dtype: str
    size: tuple[int, int, int]
    plan: str
    graph: bool
    workspace: int
    candidate: list[float] = field(default_factory=list)
    vendor: list[float] = field(default_factory=list)
    error: float = float("nan")  # relative, in the Frobenius norm
    vendor_error: float = float("nan")
    largest: float = float("nan")  # the largest absolute error
    vendor_largest: float = float("nan")
    failure: str = ""

    @property
    def speedup(self) -> float:
        return self.against(self.vendor)

    def against(self, other: list[float]) -> float:
        """The median of the paired ratios to another row of the same rounds."""
        pairs = zip(other, self.candidate, strict=True)
        return median(v / c for v, c in pairs) if self.candidate else float("nan")


# ---- timing


class Candidate:
    """A launch list that can be run on every set of operands, by plain launches or as graphs."""

    def __init__(self, case: Case, plan: Plan, operands: Operands, graph: bool, workspace: Any) -> None:
        self.backend = DeviceBackend()
        self.launches: LaunchList = recorded_for_device(plan, Problem(*case.size, case.dtype))
        self.pointers = [(a.data.ptr, b.data.ptr, c.data.ptr, workspace.data.ptr) for a, b, c in operands.sets]
        self.graphs = [self.backend.graph(self.launches, *p) for p in self.pointers] if graph else None

    def run(self, i: int) -> None:
        if self.graphs:
            self.graphs[i % len(self.graphs)].launch()
        else:
            self.backend.run(self.launches, *self.pointers[i % len(self.pointers)])

    def milliseconds(self, repeats: int) -> float:
        return event_milliseconds(self.run, repeats)


def measure(case: Case, rounds: int, seconds: float) -> list[Row]:
    """The best plans of a case in shuffled rounds; each is checked before it is timed."""
    operands = Operands(case.size, case.dtype, SAMPLED_ROWS)
    texts = ["vendor", *(LT if prod(case.size) < LONG else LT[:3]), *case.plans]
    pool = [(Plan.parse(text), graph) for text in texts for graph in ((False, True) if case.graph else (False,))]
    need = max(recorded_for_device(plan, Problem(*case.size, case.dtype)).workspace for plan, _ in pool)
    workspace = cupy.empty(max(need, 1), cupy.uint8)
    rows, ready = [], []
    for plan, graph in pool:
        row = Row(case.dtype, case.size, str(plan), graph, 0)
        try:
            candidate = Candidate(case, plan, operands, graph, workspace)
            row.workspace = candidate.launches.workspace
            check(case, candidate, operands, workspace, row)
            ready.append((row, candidate))
        except (PlanError, RuntimeError, cupy.cuda.driver.CUDADriverError, cupy.cuda.runtime.CUDARuntimeError) as error:
            row.failure = f"{type(error).__name__}: {error}"
        if not (row.failure and str(plan) in LT):  # cuBLASLt may have fewer candidates
            rows.append(row)
    if rows[0].failure:
        return rows
    ready = best(ready)
    sample(ready, rounds, seconds)
    for row in rows:
        row.vendor_error, row.vendor_largest = rows[0].error, rows[0].largest
    return [row for row in rows if row.candidate or row.failure]


def best(ready: list[tuple[Row, Candidate]]) -> list[tuple[Row, Candidate]]:
    """The vendor, and the fastest few plans and candidates of cuBLASLt, by two runs of each."""
    times = {id(row): candidate.milliseconds(2) for row, candidate in ready}
    ranked = sorted(ready, key=lambda pair: times[id(pair[0])])
    vendors = [pair for pair in ready if pair[0].plan == "vendor"]
    candidates = [pair for pair in ranked if pair[0].plan in LT]
    plans = [pair for pair in ranked if pair[0].plan not in ("vendor", *LT)]
    kept = KEPT if times[id(vendors[0][0])] < 200 else 1
    return vendors + candidates[:kept] + plans[:kept]


def sample(ready: list[tuple[Row, Candidate]], rounds: int, seconds: float) -> None:
    """Shuffled rounds: one sample of every row in each."""
    single = max(ready[0][1].milliseconds(2), 1e-3)
    repeats = max(int(4 / single), 1)
    rounds = max(min(rounds, int(1000 * seconds / (single * repeats * len(ready)))), 5 if single < 500 else 3)
    for _ in range(rounds):
        samples = {}
        for row, candidate in random.sample(ready, len(ready)):
            samples[id(row)] = candidate.milliseconds(repeats)
        for row, _ in ready:
            row.candidate.append(samples[id(row)])
            row.vendor.append(samples[id(ready[0][0])])


def check(case: Case, candidate: Candidate, operands: Operands, workspace: Any, row: Row) -> None:
    """Run once on poisoned memory and compare with float64; a wrong plan is not timed."""
    workspace.fill(0xFF)
    operands.sets[0][2].view(cupy.uint8).fill(0xFF)
    candidate.run(0)
    row.error, row.largest = operands.errors()
    limit = {"float64": 1e-12, "float32": 1e-4, "tf32": 3e-2}.get(case.dtype, 2e-1)
    if not row.error < limit:
        raise RuntimeError(f"wrong result: relative error {row.error:.3g}")


def overhead() -> dict[str, float]:
    """Microseconds of host time from the call to the last launch, of plans on small matrices."""
    found = {}
    for plan in ("vendor", one(S1), one(S2), "strassen.pad16 > " + one(S1)):
        a = random_normal((512, 512), "float32")
        out, backend = cupy.empty_like(a), DeviceBackend()
        launches = recorded_for_device(Plan.parse(plan), Problem(512, 512, 512, "float32"))
        workspace = cupy.empty(max(launches.workspace, 1), cupy.uint8)
        samples = []
        for _ in range(60):
            cupy.cuda.get_current_stream().synchronize()
            start = time.perf_counter()
            backend.run(launches, a.data.ptr, a.data.ptr, out.data.ptr, workspace.data.ptr)
            samples.append(1e6 * (time.perf_counter() - start))
        found[plan] = median(samples)
    return found


# ---- report


def results_folder() -> Path:
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    name: str = properties["name"].decode()
    return ROOT / "results" / name.lower().replace(" ", "-")


def device_count() -> int:
    return int(cupy.cuda.runtime.getDeviceCount())


def environment() -> dict[str, Any]:
    properties = cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())
    return {
        "device": properties["name"].decode(),
        "compute_capability": f"{properties['major']}.{properties['minor']}",
        "multiprocessors": properties["multiProcessorCount"],
        "memory": properties["totalGlobalMem"],
        "driver": cupy.cuda.runtime.driverGetVersion(),
        "cuda": cupy.cuda.runtime.runtimeGetVersion(),
        "cublas": cupy.cuda.cublas.getVersion(cupy.cuda.device.get_cublas_handle()),
        "cupy": cupy.__version__,
        "numpy": np.__version__,
        "python": sys.version.split()[0],
        "commit": source_commit() or "unknown",
        "command": " ".join([f"python -m {_module()}", *sys.argv[1:]]),
        "time": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def _module() -> str:
    """The benchmark that was started."""
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    return spec.name if spec else Path(sys.argv[0]).stem


def table(rows: list[Row]) -> Iterator[str]:
    """Every plan against cuBLAS as it comes and the best of cuBLASLt's candidates; errors over the vendor's."""
    yield (
        f"{'type':9}{'m x k x n':22}{'ms':>9}{'vendor':>9}{'speedup':>9}{'/ Lt':>7}{'error':>7}{'max':>6}{'GiB':>7}"
        "  plan"
    )
    for row in rows:
        size = " x ".join(map(str, row.size))
        if row.failure:
            yield f"{row.dtype:9}{size:22}{row.failure[:90]}  {row.plan}"
            continue
        if row.plan == "vendor" and not row.graph:
            continue
        name = row.plan.replace(".batched.pad16 > vendor", "").replace(".pad16", "") + (" graph" if row.graph else "")
        yield (
            f"{row.dtype:9}{size:22}{median(row.candidate):9.3f}{median(row.vendor):9.3f}{row.speedup:9.3f}"
            f"{row.against(peer(row, rows)):7.3f}{row.error / row.vendor_error:7.2f}"
            f"{row.largest / row.vendor_largest:6.1f}{row.workspace / 2**30:7.2f}  {name}"
        )


def peer(row: Row, rows: list[Row]) -> list[float]:
    """The samples of the fastest of cuBLASLt's candidates on the row's case."""
    same = [r for r in rows if (r.dtype, r.size) == (row.dtype, row.size) and r.plan in LT and r.candidate]
    return min((r.candidate for r in same), key=median, default=row.vendor)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer cases and rounds")
    parser.add_argument("--time-limit", type=float, default=480, help="seconds after which no case is started")
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--seconds", type=float, default=8, help="of timing per case, about")
    parser.add_argument("--only", default="", help="cases whose 'type m x k x n' contains this")
    parser.add_argument("--plans", default="", help="these plans instead, separated by commas")
    parser.add_argument("--output", type=Path, help="folder to write to (results/<device>/ unless given)")
    parser.add_argument("--part", default="1/1", metavar="I/N", help="every N-th case, from the I-th on")
    parser.add_argument(
        "--merge", type=Path, nargs="+", metavar="FOLDER", help="join what parts wrote, measure nothing"
    )
    options = parser.parse_args(arguments)
    if options.merge:
        parts = [json.loads((folder / "gpu.json").read_text(encoding="utf-8")) for folder in options.merge]
        content = merged(parts)
        keep(options, content)
    else:
        content = measured(chosen(CASES, options), options, partial(keep, options))
    rows = [Row(**row) for row in content["rows"]]
    print("\n".join(table(rows)))
    microseconds = content["environment"]["overhead_microseconds"]
    print("host microseconds per call:", {k: round(v, 1) for k, v in microseconds.items()})
    if content["skipped"]:
        print("no time for:", ", ".join(content["skipped"]))
    return int(any(row.failure for row in rows))


def keep(options: argparse.Namespace, content: dict[str, Any]) -> None:
    folder = options.output or results_folder()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gpu.json").write_text(json.dumps(content, indent=1), encoding="utf-8")


def chosen(cases: Sequence[Case], options: argparse.Namespace) -> list[Case]:
    """The cases that the command line asks for, with its plans."""
    first, _, step = options.part.partition("/")
    found = [c for c in cases if options.only in c.name and (c.quick or not options.quick)][int(first) - 1 :: int(step)]
    plans = tuple(p.strip() for p in options.plans.split(",")) if options.plans else ()
    return [replace(case, plans=plans) if plans else case for case in found]


def measured(
    cases: Sequence[Case], options: argparse.Namespace, write: Callable[[dict[str, Any]], None]
) -> dict[str, Any]:
    """Every case, as long as there is time, and kept at once; kernels are compiled together, before."""
    began = time.perf_counter()
    content: dict[str, Any] = {"environment": environment(), "skipped": [], "rows": []}
    compile_for(launches for case in cases for launches in launch_lists(case))
    print(f"kernels: {time.perf_counter() - began:.1f} s", flush=True)
    content["environment"]["overhead_microseconds"] = overhead()
    for case in cases:
        start = time.perf_counter()
        if start - began > options.time_limit:
            content["skipped"].append(case.name)
            continue
        content["rows"] += map(asdict, attempt(case, 5 if options.quick else options.rounds, options.seconds))
        content["environment"]["seconds"] = round(time.perf_counter() - began, 1)
        write(content)
        print(f"{case.name}: {time.perf_counter() - start:.1f} s", flush=True)
    write(content)
    return content


def attempt(case: Case, rounds: int, seconds: float) -> list[Row]:
    """Its rows, or one that says that there is not enough memory; the next case finds the device empty."""
    try:
        return measure(case, rounds, seconds)
    except cupy.cuda.memory.OutOfMemoryError as error:
        return [Row(case.dtype, case.size, "vendor", False, 0, failure=str(error))]
    finally:
        gc.collect()
        cupy.get_default_memory_pool().free_all_blocks()


def launch_lists(case: Case) -> Iterator[LaunchList]:
    for text in case.plans:
        try:
            yield recorded_for_device(Plan.parse(text), Problem(*case.size, case.dtype))
        except PlanError:  # becomes a row when it is measured
            continue


def merged(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What one run would have written; all parts must be of one kind of device and one commit."""
    environments = [part["environment"] for part in parts]
    for key in ("device", "driver", "cublas", "commit"):
        if len({env[key] for env in environments}) > 1:
            raise SystemExit(
                f"parts that do not belong together: {key} is {', '.join(str(e[key]) for e in environments)}"
            )
    commands = "; ".join(env["command"] for env in environments)
    order = {case.name: i for i, case in enumerate(CASES)}
    rows = [row for part in parts for row in part["rows"]]
    rows.sort(key=lambda row: order.get(named(row["dtype"], row["size"]), len(order)))
    skipped = [name for part in parts for name in part["skipped"]]
    return {"environment": {**environments[0], "command": commands}, "skipped": skipped, "rows": rows}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
