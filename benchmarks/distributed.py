"""Products that several GPUs share: `torchrun --nproc-per-node 2 -m benchmarks.distributed --out FILE`.

Matrices sharded by rows, as DTensors, in one run: torch's own product, the same with fmm installed below it, and
fmm.distributed.matmul, the latter two also without emulation (FMM_EMULATION=0); and what one GPU takes for its own part
of the work alone, the operands being there. Everybody starts at the same time, and a product ends with its last
process. Raw seconds are written, rounds in shuffled order; every result is compared with products by a vector.
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
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import fmm
import fmm.distributed
from fmm.tuner.trials.environment import environment as host_environment

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"  # without GPUs it only shows that all of it runs
CASES = "float32:32768:7,float32:65536:3,float64:32768:5,bfloat16:49152:7"
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


class Case:
    """One product: operands sharded by rows, and who computes it."""

    def __init__(self, dtype: str, n: int, mesh: Any) -> None:
        self.dtype, self.n, self.mesh = dtype, n, mesh
        self.a, self.b = (self._drawn(seed) for seed in (1, 2))
        self.whole: Any = None

    def _drawn(self, seed: int) -> Any:
        """Each process draws its own rows."""
        count, rank = self.mesh.size(), self.mesh.get_local_rank()
        rows = len(range(self.n)[rank * -(-self.n // count) : (rank + 1) * -(-self.n // count)])
        generator = torch.Generator(DEVICE).manual_seed(100 * seed + rank)
        kind = getattr(torch, self.dtype)
        local = torch.empty(rows, self.n, dtype=kind, device=DEVICE).normal_(generator=generator)
        shape = torch.Size((self.n, self.n))
        return DTensor.from_local(local, self.mesh, [Shard(0)], run_check=False, shape=shape, stride=(self.n, 1))

    def calls(self) -> dict[str, Call]:
        """By name: what is in force around it, and the call."""
        found = {"torch": Call(lambda: torch.mm(self.a, self.b))}
        modes = {"": True, "-ieee": False} if self.dtype == "float32" else {"": True}
        for name, allowed in modes.items():
            found[f"hook{name}"] = Call(lambda: torch.mm(self.a, self.b), allowed, installed=True)
            found[f"shared{name}"] = self._shared(allowed, None)
        return {**found, "shared-level": self._shared(True, "winograd"), "alone": Call(self._alone)}

    def _shared(self, emulated: bool, plan: str | None) -> Call:
        def run() -> Any:
            return fmm.distributed.matmul(self.a, self.b, plan=plan)

        return Call(run, emulated, way=lambda: str(fmm.distributed.explain(self.a, self.b, plan=plan)))

    def _alone(self) -> Any:
        """A GPU's own part, all of B being there: what no sharing can beat."""
        if self.whole is None:
            self.whole = self.b.full_tensor()
        return fmm.matmul(self.a.to_local(), self.whole)

    def error(self, found: Any) -> float:
        """Of a product with a vector, relative."""
        v = torch.randn(self.n, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(9)).to(DEVICE)
        part = _times(self.b.to_local(), v)
        every = [torch.empty_like(part) for _ in range(self.mesh.size())]
        dist.all_gather(every, part)
        expected = _times(self.a.to_local(), torch.cat(every))
        local = found.redistribute(placements=[Shard(0)]).to_local() if isinstance(found, DTensor) else found
        return float((_times(local, v) - expected).norm() / expected.norm())


def _times(matrix: Any, v: Any) -> Any:
    """In float64, some rows at a time."""
    return torch.cat([rows.double() @ v for rows in matrix.split(2048)])


def seconds(call: Call) -> tuple[float, Any]:
    """Of the slowest process, from a common start."""
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


def measured(case: Case, rounds: int, who: str, until: float) -> dict[str, Any]:
    calls = {name: call for name, call in case.calls().items() if not who or name in who.split("+")}
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
    return {"dtype": case.dtype, "n": case.n, "seconds": samples, "errors": errors, "ways": ways}


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
    """Seconds, and how many times as fast as torch's own product."""
    yield f"{row['dtype']} {row['n']}"
    base = row["seconds"].get("torch", [])
    for name, taken in row["seconds"].items():
        if taken:
            ratio = median([x / y for x, y in zip(base, taken, strict=False)] or [0.0])
            yield f"  {name:32} {median(taken):8.4f} s  {ratio:5.2f}  error {row['errors'][name]:.1e}"
    for name, way in row["ways"].items():
        yield f"  {name}: {way[1]}; {way[3]}"


def begun() -> Any:
    """The mesh of all processes."""
    own = None
    if DEVICE == "cuda":
        own = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
        torch.cuda.set_device(own)
    dist.init_process_group("nccl" if own else "gloo", timeout=timedelta(seconds=40), device_id=own)
    return init_device_mesh(DEVICE, (dist.get_world_size(),))


def about(mesh: Any) -> dict[str, Any]:
    """Where and with what it was measured."""
    if DEVICE == "cpu":
        return {**host_environment(sys.argv), "torch": torch.__version__, "processes": mesh.size()}
    from benchmarks.this_gpu import environment

    return {**environment(), "torch": torch.__version__, "nccl": str(torch.cuda.nccl.version()), "gpus": mesh.size()}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", default=CASES, help="type:side:rounds, or type:side:rounds:who+who")
    parser.add_argument("--time-limit", type=float, default=1e9, help="seconds after which no round and no case begins")
    given = parser.parse_args(arguments)
    until = time.monotonic() + given.time_limit
    mesh = begun()
    first = dist.get_rank() == 0
    told: dict[str, Any] = {"environment": about(mesh), "links": links(), "rows": []}
    if first:
        print("bytes a second:", json.dumps(told["links"]), flush=True)
    for text in given.cases.split(","):
        dtype, side, rounds, *who = text.split(":")
        if not agreed(time.monotonic() < until):
            break
        row = measured(Case(dtype, int(side), mesh), int(rounds), who[0] if who else "", until)
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
