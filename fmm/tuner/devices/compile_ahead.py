"""Background compilation: worker processes fill CuPy's disk cache while the tuner measures runs without those kernels.

NVRTC takes up to ten seconds for a sum of three levels, and a tuning has a dozen of these for every type; fmm's own
product kernels take seconds. The workers are processes, since recording plans and writing sources in Python would delay
timed launches, and since a process ends at once. A kernel that is not yet compiled when a run needs it is compiled at
once; a failure is recorded in the trials.
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

MAX_WORKERS = 16  # largest number of worker processes
# A size of each kind with its own kernels: sides that every level divides, aligned sides whose blocks are padded, odd
# sides.
COMPILED_SIZES = ((4096, 4096, 4096), (5000, 4000, 3000), (4133, 2053, 3001))
# Sizes for each of which the model picks other tiles of fmm's own kernel.
TILE_KERNEL_SIZES = (*((side,) * 3 for side in (1024, 2048, 4096, 8192)), (4133, 2053, 3001))
# Each kernel of a level with at least this number of products is a job, named by its label; the slowest compiles first.
MIN_HEAVY_PRODUCTS = 7**3
MAX_FIRST_LOOK_PRODUCTS = 7  # kernels of levels with at most this number of products compile first
SUM_LABELS = ("join", "split A", "split B")
WORKER_COMMAND = (sys.executable, "-m", "fmm.tuner.devices.compile_worker")

# The order of compiling kernels and probing plans: quick kernels, fmm's own product kernels, heavy sums.
QUICK_KERNELS_PHASE, OWN_KERNELS_PHASE, HEAVY_KERNELS_PHASE = COMPILE_PHASES = range(3)


class CompileJob(NamedTuple):
    """Kernels to compile: all of a plan for a size, or the sums with a label."""

    dtype: str
    plan: str
    size: tuple[int, int, int]
    label: str = ""
    flagged: bool = False  # True if the kernels raise the flag for inf and NaN, as fmm.matmul's do


# A type, a level, and whether the level is the last of its plan; or a leaf with fmm's own kernel, and whether sums are
# inside.
KernelKey = tuple[str, str, bool]


def tuning_compile_jobs(dtypes: Iterable[str], plans: Iterable[Plan]) -> Iterator[CompileJob]:
    """Yield the jobs of all plans: kernels of every type's first look, then quick kernels, then heavy ones by type."""
    seen: set[KernelKey] = set()
    plans = list(plans)
    covering = {t: _covering_plans([p for p in plans if p.is_candidate_for(t)], t, seen) for t in dtypes}
    ranked = [(_compile_sort_key(p, rank), t, p) for t, found in covering.items() for rank, p in enumerate(found)]
    for _, dtype, plan in sorted(ranked, key=lambda x: x[0]):
        turn = compile_phase(plan)
        for size in TILE_KERNEL_SIZES if turn == OWN_KERNELS_PHASE else COMPILED_SIZES:
            for label in SUM_LABELS if turn == HEAVY_KERNELS_PHASE else ("",):
                yield CompileJob(dtype, str(plan), size, label)


def _compile_sort_key(plan: Plan, rank: int) -> tuple[bool, int, int]:
    """Return the sort key of a plan; quick kernels alternate between the types."""
    turn, first = compile_phase(plan), is_needed_by_first_look(plan)
    return not first, turn, rank if first or turn == QUICK_KERNELS_PHASE else 0


def is_needed_by_first_look(plan: Plan) -> bool:
    """Return True if a first look needs the plan: a batch of few vendor products, or a lone leaf with its own rate."""
    if plan.leaf_use.leaf.rate:
        return not plan.levels
    light = compile_phase(plan) == QUICK_KERNELS_PHASE and largest_level_products(plan) <= MAX_FIRST_LOOK_PRODUCTS
    return light and plan.batched and len(plan.levels) == 1


def call_compile_jobs(calls: Iterable[tuple[str, Plan, tuple[int, int, int]]]) -> Iterator[CompileJob]:
    """Yield the jobs of calls of fmm.matmul by type, plan and size, the slowest first."""
    for dtype, plan, size in sorted(dict.fromkeys(calls), key=lambda call: -largest_level_products(call[1])):
        for label in (*SUM_LABELS, "") if compile_phase(plan) == HEAVY_KERNELS_PHASE else ("",):
            yield CompileJob(dtype, str(plan), size, label, True)


def compile_phase(plan: Plan) -> int:
    """Return the turn in which the plan's kernels compile."""
    if largest_level_products(plan) >= MIN_HEAVY_PRODUCTS:
        return HEAVY_KERNELS_PHASE
    return OWN_KERNELS_PHASE if uses_own_kernel(plan) else QUICK_KERNELS_PHASE


def uses_own_kernel(plan: Plan) -> bool:
    """Return True if fmm's own kernel computes the leaf products."""
    return plan.uses_tile_model or bool(plan.leaf_use.leaf.rate)


def _covering_plans(plans: Iterable[Plan], dtype: str, seen: set[KernelKey]) -> list[Plan]:
    """Return a few plans that together have all levels not yet in `seen`, the quickest to compile first."""
    found: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (compile_phase(p), largest_level_products(p))):
        if not kernel_keys(plan, dtype) <= seen:
            found.append(plan)
            seen |= kernel_keys(plan, dtype)
    return found


def kernel_keys(plan: Plan, dtype: str) -> frozenset[KernelKey]:
    """Return what determines a plan's kernels: each level with its type and place, and a leaf with own kernels."""
    found: list[KernelKey] = []
    for step in plan.levels:
        found.append((storage_type(dtype), str(step), step is plan.levels[-1]))
        dtype = step.dtype_below(dtype)
    if uses_own_kernel(plan):
        found.append((dtype, plan.leaf, bool(plan.levels) and plan.levels[-1].sums_inside))
    return frozenset(found)


def largest_level_products(plan: Plan) -> int:
    """Return the products of the largest level, which grow with the compile time."""
    return max((step.products for step in plan.levels), default=1)


def _job_kernel_keys(job: CompileJob) -> frozenset[KernelKey]:
    return kernel_keys(Plan.parse(job.plan), job.dtype)


def storage_type(dtype: str) -> str:
    """Return the type in which a type's matrices are stored and added: float32 for tf32."""
    return "float32" if dtype == "tf32" else dtype


class CompileWorkers:
    """Worker processes that compile jobs in order; `wait` returns once the kernels of a plan are compiled."""

    def __init__(
        self, device: int, wanted: Sequence[CompileJob], workers: int, worker: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self._queue = deque(wanted)
        self._pending_kernels = Counter(key for job in wanted for key in _job_kernel_keys(job))
        self._changed = threading.Condition()
        self._claims = tempfile.TemporaryDirectory(prefix="fmm-")
        command = [*worker, str(device), self._claims.name]
        self._workers = [_start_worker(command) for _ in range(min(workers, len(wanted)))]
        self._threads = [threading.Thread(target=self._send_jobs, args=(w,), daemon=True) for w in self._workers]
        self._alive = len(self._threads)
        for thread in self._threads:
            thread.start()

    def _send_jobs(self, worker: subprocess.Popen[str]) -> None:
        """Send jobs to one worker until none is left, or the worker has ended."""
        assert worker.stdin and worker.stdout
        with suppress(OSError, ValueError, IndexError):
            while True:
                job = self._queue.popleft()
                worker.stdin.write(json.dumps(job) + "\n")
                worker.stdin.flush()
                if not worker.stdout.readline():
                    break
                with self._changed:
                    self._pending_kernels.subtract(_job_kernel_keys(job))
                    self._changed.notify_all()
        with self._changed:
            self._alive -= 1
            self._changed.notify_all()

    def wait_for_plan(self, dtype: str, plan: Plan, seconds: float) -> bool:
        """Wait until a plan's kernels are compiled or no worker is left; return False after this many seconds."""
        needed = kernel_keys(plan, dtype)
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._pending_kernels[x] <= 0 for x in needed) or not self._alive,
                min(seconds, 3600.0),
            )

    def wait_for_all(self, seconds: float) -> bool:
        """Wait until all jobs are done; return False after this many seconds."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._pending_kernels.values()) or not self._alive, seconds)

    def close(self) -> None:
        """End the workers at once."""
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


def _start_worker(command: Sequence[str]) -> subprocess.Popen[str]:
    """Return a worker with this process's import path; the compiler's output is dropped."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=found)


@contextmanager
def compile_in_background(device: int, dtypes: Sequence[str], plans: Sequence[Plan]) -> Iterator[CompileWorkers]:
    """Compile the kernels of a tuning in the background."""
    with run_compile_workers(
        device, list(tuning_compile_jobs(dict.fromkeys(map(storage_type, dtypes)), plans))
    ) as made:
        yield made


@contextmanager
def run_compile_workers(device: int, wanted: Sequence[CompileJob]) -> Iterator[CompileWorkers]:
    """Run workers on all processors but two, which the timing needs, until the context ends."""
    made = CompileWorkers(device, wanted, min(max((os.cpu_count() or 2) - 2, 1), MAX_WORKERS))
    try:
        yield made
    finally:
        made.close()
