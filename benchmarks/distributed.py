"""Products that several GPUs share: `torchrun --nproc-per-node 2 -m benchmarks.distributed --output FILE`.

DTensors are sharded by rows; with four processes or more also in blocks on a mesh of two dimensions. The calls are
torch's own product, the same with fmm installed, and fmm.distributed.matmul, the last two also without emulation
(FMM_EMULATION=0). Another call is a GPU's own part of the work, with its operands on the GPU. All processes start at
the same time, and a product ends with its last process. Every result is compared with products by a vector.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
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
from benchmarks.harness import environment_variable, gpu_environment, write_result
from fmm.distributed.layout import BlocksHeld
from fmm.tuner.trials.environment import environment_record as host_environment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without GPUs the times mean nothing
# Type, side and rounds; the largest, which need GPUs of more than 80 GB, last.
IN_ROWS = (
    ("float32", 32768, 7),
    ("float32", 65536, 3),
    ("float64", 32768, 5),
    ("bfloat16", 49152, 7),
    ("float64", 65536, 3),
    ("bfloat16", 98304, 3),
)
BLOCK_CASES = ("float32", 65536, 3), ("float64", 65536, 3), ("bfloat16", 98304, 3)
TOLERANCE = {"float32": 1e-4, "float64": 1e-12, "bfloat16": 3e-2}  # relative error of a right result
LONG_CALL_SECONDS = 2.0  # seconds of torch's product from which on its first time is a sample
LINK_BYTES = (1 << 24, 1 << 28, 1 << 30) if DEVICE == "cuda" else (1 << 16,)


class Call(NamedTuple):
    """A product and its settings."""

    run: Callable[[], Any]
    emulated: bool = True
    installed: bool = False
    explain: Callable[[], str] | None = None  # explains how the product is shared
    before: Callable[[], None] | None = None  # runs before the product, untimed


class CaseText(NamedTuple):
    """A case as --cases names it.

    The forms are type:side:rounds for all processes in a row, type:side@2x2:rounds for a mesh, and
    type:side:rounds:name+name for some calls alone.
    """

    dtype: str
    n: int
    mesh: tuple[int, ...]
    rounds: int
    who: tuple[str, ...]


def parse_case(text: str, count: int) -> CaseText:
    """Return the case that a text names, for this number of processes."""
    dtype, size, rounds, *who = text.split(":")
    side, _, mesh = size.partition("@")
    sides = tuple(int(x) for x in mesh.split("x")) if mesh else (count,)
    return CaseText(dtype, int(side), sides, int(rounds), tuple(who[0].split("+")) if who else ())


def usual_cases(count: int) -> list[str]:
    """Return all cases of a row of processes, and cases on a mesh of two dimensions if the processes form one."""
    rows = next((side for side in range(isqrt(count), 1, -1) if count % side == 0), 0)
    blocks = [(kind, f"{side}@{rows}x{count // rows}", rounds) for kind, side, rounds in BLOCK_CASES] if rows else []
    return [":".join(map(str, case)) for case in (*IN_ROWS, *blocks)]


class Case:
    """One product: its sharded operands, and its calls by name."""

    def __init__(self, dtype: str, n: int, mesh: Any) -> None:
        self.dtype, self.n, self.mesh = dtype, n, mesh
        self.places = [Shard(axis) for axis in range(mesh.ndim)]
        cuts = tuple(range(mesh.ndim))
        self.box = BlocksHeld((n, n), tuple(mesh.mesh.shape), cuts).block_of_rank(
            dist.get_rank()
        )  # of A, of B and of C
        self.a, self.b = (self._random_operand(seed) for seed in (1, 2))
        self.panels: Any = None

    def _random_operand(self, seed: int) -> Any:
        """Return a sharded matrix of normal numbers; each process draws its own part."""
        generator = torch.Generator(DEVICE).manual_seed(100 * seed + dist.get_rank())
        shape, kind = (self.box.rows.size, self.box.cols.size), getattr(torch, self.dtype)
        local = torch.empty(*shape, dtype=kind, device=DEVICE).normal_(generator=generator)
        whole = torch.Size((self.n, self.n))
        return DTensor.from_local(local, self.mesh, self.places, run_check=False, shape=whole, stride=(self.n, 1))

    def calls(self) -> dict[str, Call]:
        """Return the calls by name."""
        found = {"torch": Call(lambda: torch.mm(self.a, self.b))}
        modes = {"": True, "-ieee": False} if self.dtype == "float32" else {"": True}
        for name, allowed in modes.items():
            found[f"hook{name}"] = Call(lambda: torch.mm(self.a, self.b), allowed, installed=True)
            found[f"shared{name}"] = self._shared_call(allowed, None)
        alone = Call(self._own_part, before=self._gather_panels)
        return {**found, "shared-level": self._shared_call(True, "winograd"), "alone": alone}

    def _shared_call(self, emulated: bool, plan: str | None) -> Call:
        def run() -> Any:
            return fmm.distributed.matmul(self.a, self.b, plan=plan)

        return Call(run, emulated, explain=lambda: str(fmm.distributed.explain(self.a, self.b, plan=plan)))

    def _gather_panels(self) -> None:
        """Gather this GPU's rows of A and columns of B, for its own part of the product."""
        whole = [Replicate()] * (self.mesh.ndim - 1)
        rows = self.a.redistribute(placements=[Shard(0), *whole])
        columns = self.b.redistribute(placements=[Replicate(), *[Shard(1)] * len(whole)])
        locals_ = [x.to_local() for x in (rows, columns)]
        self.panels = [x.wait() if hasattr(x, "wait") else x for x in locals_]

    def _own_part(self) -> Any:
        """Multiply the gathered panels, which bounds any sharing; free them, since other calls need the memory."""
        panels, self.panels = self.panels, None
        return fmm.matmul(*panels)

    def error(self, found: Any) -> float:
        """Return the relative error of the result times a random vector."""
        v = torch.randn(self.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(DEVICE)
        expected = self._times_vector(self.a.to_local(), self._times_vector(self.b.to_local(), v))
        local = found.redistribute(placements=self.places).to_local() if isinstance(found, DTensor) else found
        return float((self._times_vector(local, v) - expected).norm() / expected.norm())

    def _times_vector(self, block: Any, v: Any) -> Any:
        """Return a sharded matrix times a replicated vector, in float64."""
        rows, cols = self.box
        found = torch.zeros_like(v)
        own = v[cols.start : cols.stop]
        found[rows.start : rows.stop] = torch.cat([part.double() @ own for part in block.split(2048)])
        dist.all_reduce(found)
        return found


def timed_call(call: Call) -> tuple[float, Any]:
    """Return the seconds of the slowest process from a common start, and the result."""
    if call.before is not None:
        call.before()
    with (
        environment_variable("FMM_EMULATION", "1" if call.emulated else "0"),
        fmm.installed("torch" if DEVICE == "cuda" else "torch-cpu") if call.installed else nullcontext(),
    ):
        synchronize()
        dist.barrier()
        synchronize()
        began = time.perf_counter()
        found = call.run()
        synchronize()
        taken = torch.tensor([time.perf_counter() - began], device=DEVICE, dtype=torch.float64)
    dist.all_reduce(taken, dist.ReduceOp.MAX)
    return float(taken), found


def measure_case(case: Case, rounds: int, names: Sequence[str], until: float) -> dict[str, Any]:
    """Check all calls of a case, then time them in shuffled rounds; no round begins after `until`."""
    calls = {name: call for name, call in case.calls().items() if not names or name in names}
    errors, explained = {}, {}
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for name, call in calls.items():  # the first call compiles, connects and decides
        if call.explain is not None:
            with environment_variable("FMM_EMULATION", "1" if call.emulated else "0"):
                explained[name] = call.explain().splitlines()
        taken, found = timed_call(call)
        if name == "torch" and taken > LONG_CALL_SECONDS:
            samples[name].append(taken)  # the preparations of a first call are short compared with this time
        errors[name] = case.error(found)
        del found
    shuffled = random.Random(case.n)  # the same order on all processes
    for number in range(rounds):
        if number and not broadcast_from_first(time.monotonic() < until):
            break
        incomplete = [name for name in calls if len(samples[name]) < rounds]
        for name in shuffled.sample(incomplete, len(incomplete)):
            samples[name].append(timed_call(calls[name])[0])
    mesh = list(case.mesh.mesh.shape)
    return {"dtype": case.dtype, "n": case.n, "mesh": mesh, "seconds": samples, "errors": errors, "ways": explained}


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def broadcast_from_first(answer: bool) -> bool:
    """Return the answer of the first process on all processes."""
    shared = torch.tensor([int(answer)], device=DEVICE)
    dist.broadcast(shared, 0)
    return bool(shared.item())


def link_rates() -> dict[str, dict[str, float]]:
    """Return the bytes per second that a process receives: from its neighbour while sending, and in an all-gather."""
    rank, count = dist.get_rank(), dist.get_world_size()
    found: dict[str, dict[str, float]] = {}
    for size in LINK_BYTES:
        own = torch.zeros(size, dtype=torch.uint8, device=DEVICE)
        every = torch.empty(count * size, dtype=torch.uint8, device=DEVICE)

        def exchange_with_neighbours(own: Any = own, every: Any = every, size: int = size) -> None:
            sends = dist.P2POp(dist.isend, own, (rank + 1) % count)
            receives = dist.P2POp(dist.irecv, every[:size], (rank - 1) % count)
            for work in dist.batch_isend_irecv([sends, receives]):
                work.wait()

        def gather_from_all(own: Any = own, every: Any = every) -> None:
            dist.all_gather_into_tensor(every, own)

        for name, call, moved in (
            ("neighbours", exchange_with_neighbours, size),
            ("all-gather", gather_from_all, (count - 1) * size),
        ):
            timed_call(Call(call))
            found.setdefault(name, {})[str(size)] = moved / median(timed_call(Call(call))[0] for _ in range(7))
    return found


def text_lines(row: dict[str, Any]) -> Iterator[str]:
    """Yield a line for each call: seconds, speedup over torch's own product, and the share of the GPU's own part."""
    yield f"{row['dtype']} {row['n']} on {' x '.join(map(str, row['mesh']))}"
    base, alone = (row["seconds"].get(name, []) for name in ("torch", "alone"))
    for name, taken in row["seconds"].items():
        if taken:
            ratio, share = (median([x / y for x, y in zip(z, taken, strict=False)] or [0.0]) for z in (base, alone))
            found = f"{median(taken):8.4f} s  {ratio:5.2f}  of own part {share:4.2f}"
            yield f"  {name:32} {found}  error {row['errors'][name]:.1e}"
    for name, way in row["ways"].items():
        yield f"  {name}: {way[1]}; {way[3]}"


def join_processes() -> None:
    """Join the group of processes that share the products."""
    own = None
    if DEVICE == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own else "gloo", timeout=timedelta(seconds=40), device_id=own)


@cache
def mesh_of(sides: tuple[int, ...]) -> Any:
    """Return the mesh of all processes, in a row or as a rectangle."""
    return init_device_mesh(DEVICE, sides)


def machine_record(count: int) -> dict[str, Any]:
    """Return the record of the machine."""
    if DEVICE == "cpu":
        return {**host_environment(sys.argv), "torch": torch.__version__, "processes": count}
    return gpu_environment(torch=torch.__version__, nccl=str(torch.cuda.nccl.version()), gpus=count)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark in each process; return 1 if a result is wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the first process writes it")
    parser.add_argument("--cases", help=CaseText.__doc__)
    parser.add_argument("--time-limit", type=float, default=1e9, help="begin no round and no case after S seconds")
    options = parser.parse_args(arguments)
    until = time.monotonic() + options.time_limit
    join_processes()
    count, first = dist.get_world_size(), dist.get_rank() == 0
    where, links, rows = machine_record(count), link_rates(), list[dict[str, Any]]()
    if first:
        print("bytes a second:", links, flush=True)
    for text in options.cases.split(",") if options.cases else usual_cases(count):
        case = parse_case(text, count)
        if not broadcast_from_first(time.monotonic() < until):
            break
        rows.append(measure_case(Case(case.dtype, case.n, mesh_of(case.mesh)), case.rounds, case.who, until))
        if DEVICE == "cuda":
            torch.cuda.empty_cache()
        if first:
            print(*text_lines(rows[-1]), sep="\n", flush=True)
            write_result(options.output, where, rows, links=links)
    wrong = [row for row in rows if max(row["errors"].values()) > TOLERANCE[row["dtype"]]]
    dist.barrier()
    dist.destroy_process_group()
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
