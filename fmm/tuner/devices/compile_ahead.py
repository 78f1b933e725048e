"""Kernels compiled ahead: worker processes fill CuPy's cache on disk while the tuner measures what needs none of them.

NVRTC takes up to ten seconds for each sum of three levels, and a tuning has a dozen of those for every element type;
seconds for product kernels of our own.
Processes, not threads: recording plans and writing sources is Python's work, which would hold up the launches that are
being timed; and a process dies at once, whatever the compiler is doing. A kernel that is not there when it is needed,
for whatever reason, is compiled where it is needed: what fails fails there, as a row of the trials.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import NamedTuple

from fmm.kernels.plans.plan import Plan

MOST = 16  # processes
# A size of each kind that has kernels of its own: sides that every level divides, sides of which rows are aligned but
# blocks must be padded, and odd sides.
SIZES = ((4096, 4096, 4096), (5000, 4000, 3000), (4133, 2053, 3001))
OWN_SIZES = (*((side,) * 3 for side in (1024, 2048, 4096, 8192)), (4133, 2053, 3001))  # each has its own tiles
# The kernels of a level with so many products are a job each, named by their labels, the one that takes longest first.
HEAVY = 7**3
FEW = 7  # products of a level whose kernels are compiled first of all
LABELS = ("join", "split A", "split B")
WORKER = (sys.executable, "-m", "fmm.tuner.devices.compile_worker")

# In which order kernels are compiled, and plans probed: those that are quick, our own product kernels, heavy sums.
SOON, OWN_KERNELS, LAST = TURNS = range(3)


class Job(NamedTuple):
    """Kernels to compile: those of a plan for a size; of sums, with a label, those alone that have it."""

    dtype: str
    plan: str
    size: tuple[int, int, int]
    label: str = ""
    flagged: bool = False  # as calls of fmm.matmul launch them, which raise a flag at an inf or NaN


# A type, a level that is asked for it, and whether the level is the last of its plan; or a leaf that multiplies by a
# kernel of ours, and whether sums are inside.
Place = tuple[str, str, bool]


def compile_jobs(dtypes: Iterable[str], plans: Iterable[Plan]) -> Iterator[Job]:
    """The jobs that compile all kernels of the plans: first what a first look needs, of every type, then turn by turn
    what is quick for all types, so that measuring can begin; the heavy ones last, type by type."""
    seen: set[Place] = set()
    plans = list(plans)
    covering = {t: _covering([p for p in plans if p.is_candidate_for(t)], t, seen) for t in dtypes}
    ranked = [(_compiled_when(p, rank), t, p) for t, found in covering.items() for rank, p in enumerate(found)]
    for _, dtype, plan in sorted(ranked, key=lambda x: x[0]):
        turn = compile_turn(plan)
        for size in OWN_SIZES if turn == OWN_KERNELS else SIZES:
            for label in LABELS if turn == LAST else ("",):
                yield Job(dtype, str(plan), size, label)


def _compiled_when(plan: Plan, rank: int) -> tuple[bool, int, int]:
    """Of equals the type's order decides; light kernels are compiled in turns, one plan of each type."""
    turn, first = compile_turn(plan), needed_first(plan)
    return not first, turn, rank if first or turn == SOON else 0


def needed_first(plan: Plan) -> bool:
    """Does a first look need it: a batch of few of the vendor's products, or a leaf alone that has its own rate?"""
    if plan.leaf_use.leaf.rate:
        return not plan.levels
    light = compile_turn(plan) == SOON and compile_weight(plan) <= FEW
    return light and plan.batched and len(plan.levels) == 1


def call_jobs(calls: Iterable[tuple[str, Plan, tuple[int, int, int]]]) -> Iterator[Job]:
    """The jobs that compile what calls of fmm.matmul launch, by type, plan and size; what takes longest first."""
    for dtype, plan, size in sorted(dict.fromkeys(calls), key=lambda call: -compile_weight(call[1])):
        for label in (*LABELS, "") if compile_turn(plan) == LAST else ("",):
            yield Job(dtype, str(plan), size, label, True)


def compile_turn(plan: Plan) -> int:
    """When its kernels are compiled."""
    if compile_weight(plan) >= HEAVY:
        return LAST
    return OWN_KERNELS if has_own_kernel(plan) else SOON


def has_own_kernel(plan: Plan) -> bool:
    """Are its leaf products by a kernel of ours?"""
    return plan.uses_tile_model or bool(plan.leaf_use.leaf.rate)


def _covering(plans: Iterable[Plan], dtype: str, seen: set[Place]) -> list[Plan]:
    """A few plans that have all levels of all plans between them, but for those that were seen before; those that
    compile quickly first."""
    found: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (compile_turn(p), compile_weight(p))):
        if not kernel_places(plan, dtype) <= seen:
            found.append(plan)
            seen |= kernel_places(plan, dtype)
    return found


def kernel_places(plan: Plan, dtype: str) -> frozenset[Place]:
    """A plan's levels, each with the type that it is asked for, and whether leaf products are below it: which kernels
    it has depends on both. And its leaf, if that has kernels of ours."""
    found: list[Place] = []
    for step in plan.levels:
        found.append((stored_type(dtype), str(step), step is plan.levels[-1]))
        dtype = step.dtype_below(dtype)
    if has_own_kernel(plan):
        found.append((dtype, plan.leaf, bool(plan.levels) and plan.levels[-1].sums_inside))
    return frozenset(found)


def compile_weight(plan: Plan) -> int:
    """A number that grows with the compiler's time: the products of the largest level."""
    return max((step.products for step in plan.levels), default=1)


def _makes(job: Job) -> frozenset[Place]:
    return kernel_places(Plan.parse(job.plan), job.dtype)


def stored_type(dtype: str) -> str:
    """The type in whose numbers a type's sums are done."""
    return "float32" if dtype == "tf32" else dtype


class Ahead:
    """Workers that do jobs in order; whoever needs a plan's kernels waits here for its jobs."""

    def __init__(self, device: int, wanted: Sequence[Job], workers: int, worker: Sequence[str] = WORKER) -> None:
        self._queue, self._left = deque(wanted), Counter(made for job in wanted for made in _makes(job))
        self._changed = threading.Condition()
        self._claims = tempfile.TemporaryDirectory(prefix="fmm-")
        command = [*worker, str(device), self._claims.name]
        self._workers = [_started(command) for _ in range(min(workers, len(wanted)))]
        self._threads = [threading.Thread(target=self._serve, args=(w,), daemon=True) for w in self._workers]
        self._alive = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _serve(self, worker: subprocess.Popen[str]) -> None:
        """Hand jobs to one worker until none is left, or it is dead."""
        assert worker.stdin and worker.stdout
        with suppress(OSError, ValueError, IndexError):
            while True:
                job = self._queue.popleft()
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()
                if not worker.stdout.readline():
                    break
                with self._changed:
                    self._left.subtract(_makes(job))
                    self._changed.notify_all()
        with self._changed:
            self._alive -= 1
            self._changed.notify_all()

    def wait(self, dtype: str, plan: Plan, seconds: float) -> bool:
        """Until all that a plan needs is done, or nobody is there to do it; False if the seconds were not enough."""
        needed = kernel_places(plan, dtype)
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._left[x] <= 0 for x in needed) or not self._alive, min(seconds, 3600.0)
            )

    def wait_for_all(self, seconds: float) -> bool:
        """Until everything is done; False if the seconds were not enough."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._left.values()) or not self._alive, seconds)

    def close(self) -> None:
        self._queue.clear()
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            thread.join()
        for worker in self._workers:
            worker.wait()
            for pipe in (worker.stdin, worker.stdout):
                with suppress(OSError):
                    if pipe:
                        pipe.close()
        self._claims.cleanup()


def _started(command: Sequence[str]) -> subprocess.Popen[str]:
    """A worker that finds what this process finds; what its compiler says is not for the user's eyes."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=found)


@contextmanager
def compiling_ahead(device: int, dtypes: Sequence[str], plans: Sequence[Plan]) -> Iterator[Ahead]:
    """Workers that compile what a tuning measures."""
    with working_ahead(device, list(compile_jobs(dict.fromkeys(map(stored_type, dtypes)), plans))) as made:
        yield made


@contextmanager
def working_ahead(device: int, wanted: Sequence[Job]) -> Iterator[Ahead]:
    """Workers on all processors but two, which the timing needs; they end when this does, however it ends."""
    made = Ahead(device, wanted, min(max((os.cpu_count() or 2) - 2, 1), MOST))
    try:
        yield made
    finally:
        made.close()
