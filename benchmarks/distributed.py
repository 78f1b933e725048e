"""Products that several GPUs share: `torchrun --nproc-per-node 2 -m benchmarks.distributed --out FILE`.

Matrices sharded by rows, some of four processes or more in blocks on a mesh of two dimensions, as DTensors, in one
run: torch's own product, the same with fmm installed below it, and fmm.distributed.matmul, the latter two also without
emulation (FMM_EMULATION=0); and what one GPU takes for its own part of the work alone, the operands being there.
Everybody starts at the same time, and a product ends with its last process. Raw seconds are written, rounds in
shuffled order; every result is compared with products by a vector.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from functools import cache
from math import isqrt
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard

import fmm
import fmm.distributed
from fmm.distributed.layout import Holdings
from fmm.tuner.trials.environment import environment as host_environment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without GPUs it only shows that all of it runs
# Type, side and rounds; the largest last, which ask for GPUs of more than 80 GB.
IN_ROWS = (
    ("float32", 32768, 7),
    ("float32", 65536, 3),
    ("float64", 32768, 5),
    ("bfloat16", 49152, 7),
    ("float64", 65536, 3),
    ("bfloat16", 98304, 3),
)
IN_BLOCKS = ("float32", 65536, 3), ("float64", 65536, 3), ("bfloat16", 98304, 3)
BOUND = {"float32": 1e-4, "float64": 1e-12, "bfloat16": 3e-2}  # of the difference from torch's own, relative
LONG = 2.0  # seconds
LINK_BYTES = (1 << 24, 1 << 28, 1 << 30) if DEVICE == "cuda" else (1 << 16,)


@contextmanager
def emulation(allowed: bool) -> Iterator[None]:
    """float32 by products of float16, or not; as it was before, in the end."""
    before = os.environ.get("FMM_EMULATION")
    os.environ["FMM_EMULATION"] = "1" if allowed else "0"
    try:
        yield
    finally:
        del os.environ["FMM_EMULATION"]
        if before is not None:
            os.environ["FMM_EMULATION"] = before


class Call(NamedTuple):
    """A product, and what is in force around it."""

    run: Callable[[], Any]
    emulated: bool = True
    installed: bool = False
    way: Callable[[], str] | None = None  # how it is shared
    ready: Callable[[], None] | None = None  # what comes before it, untimed


class Asked(NamedTuple):
    """What is said of a case: type:side:rounds of a mesh in a row, type:side@2x2:rounds of another, and who, if not all
    of them, as type:side:rounds:who+who."""

    dtype: str
    n: int
    mesh: tuple[int, ...]
    rounds: int
    who: tuple[str, ...]


def asked(text: str, count: int) -> Asked:
    dtype, size, rounds, *who = text.split(":")
    side, _, mesh = size.partition("@")
    sides = tuple(int(x) for x in mesh.split("x")) if mesh else (count,)
    return Asked(dtype, int(side), sides, int(rounds), tuple(who[0].split("+")) if who else ())


def usual_cases(count: int) -> list[str]:
    """All of a row of processes; some on a mesh of two dimensions too, where there is one that is about square."""
    rows = next((side for side in range(isqrt(count), 1, -1) if count % side == 0), 0)
    blocks = [(kind, f"{side}@{rows}x{count // rows}", rounds) for kind, side, rounds in IN_BLOCKS] if rows else []
    return [":".join(map(str, case)) for case in (*IN_ROWS, *blocks)]


class Case:
    """One product: operands sharded by rows, or in blocks on a mesh of two dimensions, and who computes it."""

    def __init__(self, dtype: str, n: int, mesh: Any) -> None:
        self.dtype, self.n, self.mesh = dtype, n, mesh
        self.places = [Shard(axis) for axis in range(mesh.ndim)]
        cuts = tuple(range(mesh.ndim))
        self.box = Holdings((n, n), tuple(mesh.mesh.shape), cuts).box(dist.get_rank())  # of A, of B, of C
        self.a, self.b = (self._drawn(seed) for seed in (1, 2))
        self.panels: Any = None

    def _drawn(self, seed: int) -> Any:
        """Each process draws its own part."""
        generator = torch.Generator(DEVICE).manual_seed(100 * seed + dist.get_rank())
        shape, kind = (self.box.rows.size, self.box.cols.size), getattr(torch, self.dtype)
        local = torch.empty(*shape, dtype=kind, device=DEVICE).normal_(generator=generator)
        whole = torch.Size((self.n, self.n))
        return DTensor.from_local(local, self.mesh, self.places, run_check=False, shape=whole, stride=(self.n, 1))

    def calls(self) -> dict[str, Call]:
        """By name: what is in force around it, and the call."""
        found = {"torch": Call(lambda: torch.mm(self.a, self.b))}
        modes = {"": True, "-ieee": False} if self.dtype == "float32" else {"": True}
        for name, allowed in modes.items():
            found[f"hook{name}"] = Call(lambda: torch.mm(self.a, self.b), allowed, installed=True)
            found[f"shared{name}"] = self._shared(allowed, None)
        alone = Call(self._alone, ready=self._gather)
        return {**found, "shared-level": self._shared(True, "winograd"), "alone": alone}

    def _shared(self, emulated: bool, plan: str | None) -> Call:
        def run() -> Any:
            return fmm.distributed.matmul(self.a, self.b, plan=plan)

        return Call(run, emulated, way=lambda: str(fmm.distributed.explain(self.a, self.b, plan=plan)))

    def _gather(self) -> None:
        """A GPU's rows of A and columns of B, for its own part of the product."""
        whole = [Replicate()] * (self.mesh.ndim - 1)
        rows = self.a.redistribute(placements=[Shard(0), *whole])
        columns = self.b.redistribute(placements=[Replicate(), *[Shard(1)] * len(whole)])
        self.panels = [_arrived(x.to_local()) for x in (rows, columns)]

    def _alone(self) -> Any:
        """A GPU's own part of the work, a quarter of four, all being there: what no sharing can beat. What was gathered
        is given back: others need the memory."""
        panels, self.panels = self.panels, None
        return fmm.matmul(*panels)

    def error(self, found: Any) -> float:
        """Of a product with a vector, relative."""
        v = torch.randn(self.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(DEVICE)
        expected = self._applied(self.a.to_local(), self._applied(self.b.to_local(), v))
        local = found.redistribute(placements=self.places).to_local() if isinstance(found, DTensor) else found
        return float((self._applied(local, v) - expected).norm() / expected.norm())

    def _applied(self, block: Any, v: Any) -> Any:
        """A sharded matrix times a vector that all of them have."""
        rows, cols = self.box
        found = torch.zeros_like(v)
        found[rows.start : rows.stop] = _times(block, v[cols.start : cols.stop])
        dist.all_reduce(found)
        return found


def _arrived(x: Any) -> Any:
    """What torch has sent for, as the plain tensor that it becomes."""
    return x.wait() if hasattr(x, "wait") else x


def _times(matrix: Any, v: Any) -> Any:
    """In float64, some rows at a time."""
    return torch.cat([rows.double() @ v for rows in matrix.split(2048)])


def seconds(call: Call) -> tuple[float, Any]:
    """Of the slowest process, from a common start."""
    if call.ready is not None:
        call.ready()
    with (
        emulation(call.emulated),
        fmm.installed("torch" if DEVICE == "cuda" else "torch-cpu") if call.installed else nullcontext(),
    ):
        settle()
        dist.barrier()
        settle()
        began = time.perf_counter()
        found = call.run()
        settle()
        taken = torch.tensor([time.perf_counter() - began], device=DEVICE, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken), found


def measured(case: Case, rounds: int, who: Sequence[str], until: float) -> dict[str, Any]:
    calls = {name: call for name, call in case.calls().items() if not who or name in who}
    errors, ways = {}, {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():  # the first time compiles, connects and decides
        if call.way is not None:
            with emulation(call.emulated):
                ways[name] = call.way().splitlines()
        taken, found = seconds(call)
        if name == "torch" and taken > LONG:
            samples[name].append(taken)  # nothing of it is prepared by a first call that such a time would show
        errors[name] = case.error(found)
        del found
    shuffled = random.Random(case.n)  # the same order on all processes
    for number in range(rounds):
        if number and not agreed(time.monotonic() < until):
            break
        lacking = [name for name in calls if len(samples[name]) < rounds]
        for name in shuffled.sample(lacking, len(lacking)):
            samples[name].append(seconds(calls[name])[0])
    mesh = list(case.mesh.mesh.shape)
    return {"dtype": case.dtype, "n": case.n, "mesh": mesh, "seconds": samples, "errors": errors, "ways": ways}


def settle() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def agreed(mine: bool) -> bool:
    """As the first process says."""
    told = torch.tensor([int(mine)], device=DEVICE)
    dist.broadcast(told, 0)
    return bool(told.item())


def links() -> dict[str, dict[str, float]]:
    """Bytes a second that a process receives: from its neighbour, sending as much at once, and of an all-gather."""
    rank, count = dist.get_rank(), dist.get_world_size()
    found: dict[str, dict[str, float]] = {}
    for size in LINK_BYTES:
        own = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        every = torch.empty(count * size, dtype=torch.uint8, device=DEVICE)

        def neighbours(own: Any = own, every: Any = every, size: int = size) -> None:
            sends = dist.P2POp(dist.isend, own, (rank + 1) % count)
            receives = dist.P2POp(dist.irecv, every[:size], (rank - 1) % count)
            for work in dist.batch_isend_irecv([sends, receives]):
                work.wait()

        def gathered(own: Any = own, every: Any = every) -> None:
            dist.all_gather_into_tensor(every, own)

        for name, call, moved in (("neighbours", neighbours, size), ("all-gather", gathered, (count - 1) * size)):
            seconds(Call(call))
            found.setdefault(name, {})[str(size)] = moved / median(seconds(Call(call))[0] for _ in range(7))
    return found


def printed(row: dict[str, Any]) -> Iterator[str]:
    """Seconds, how many times as fast as torch's own product, and the share of that which is the GPU's own part."""
    yield f"{row['dtype']} {row['n']} on {' x '.join(map(str, row['mesh']))}"
    base, alone = (row["seconds"].get(name, []) for name in ("torch", "alone"))
    for name, taken in row["seconds"].items():
        if taken:
            ratio, share = (median([x / y for x, y in zip(z, taken, strict=False)] or [0.0]) for z in (base, alone))
            found = f"{median(taken):8.4f} s  {ratio:5.2f}  of own part {share:4.2f}"
            yield f"  {name:32} {found}  error {row['errors'][name]:.1e}"
    for name, way in row["ways"].items():
        yield f"  {name}: {way[1]}; {way[3]}"


def begun() -> None:
    """This process is one of those that multiply."""
    own = None
    if DEVICE == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own else "gloo", timeout=timedelta(seconds=40), device_id=own)


@cache
def mesh_of(sides: tuple[int, ...]) -> Any:
    """All processes, in a row or as a rectangle."""
    return init_device_mesh(DEVICE, sides)


def about(count: int) -> dict[str, Any]:
    """Where and with what it was measured."""
    if DEVICE == "cpu":
        return {**host_environment(sys.argv), "torch": torch.__version__, "processes": count}
    from benchmarks.harness import gpu_environment

    return {**gpu_environment(), "torch": torch.__version__, "nccl": str(torch.cuda.nccl.version()), "gpus": count}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", help=Asked.__doc__)
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no round and no case begins")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.time_limit
    begun()
    count, first = dist.get_world_size(), dist.get_rank() == 0
    told: dict[str, Any] = {"environment": about(count), "links": links(), "rows": []}
    if first:
        print("bytes a second:", json.dumps(told["links"]), flush=True)
    for text in given.cases.split(",") if given.cases else usual_cases(count):
        case = asked(text, count)
        if not agreed(time.monotonic() < until):
            break
        row = measured(Case(case.dtype, case.n, mesh_of(case.mesh)), case.rounds, case.who, until)
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        told["rows"].append(row)
        if first:
            print(*printed(row), sep="\n", flush=True)
            given.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    wrong = [row for row in told["rows"] if max(row["errors"].values()) > BOUND[row["dtype"]]]
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
