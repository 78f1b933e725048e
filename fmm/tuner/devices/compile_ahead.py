"""Compile CUDA kernels in background processes while the tuner measures plans with kernels that are compiled.

The processes write compiled kernels to CuPy's disk cache. NVRTC takes up to ten seconds to compile a sum kernel of
three fused levels, and each element type needs a dozen of these kernels. Each of fmm's product kernels also takes
seconds to compile. The compilers run in processes for two reasons: Python code in a thread of the tuner would delay
timed launches, and a process can be killed at once, a thread cannot. If a timed plan needs a kernel that no background
process has compiled, the tuner's process compiles the kernel. If the compilation in the tuner's process fails, the
tuner records the failure in the trials.
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

from fmm.kernels.cuda.products.kernel_sizes import H200_STRATEGIES, STRATEGIES, TMA_SIZES
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.candidates import device_candidate_plans

MAX_WORKER_PROCESSES = 16  # largest number of background processes
# Three sizes (m, k, n) for which a plan needs different kernels. The sides of the first of the three sizes are
# divisible by the block size of every level. The sides of the second of the three sizes are aligned but not divisible,
# so that blocks are padded. The sides of the third of the three sizes are odd.
COMPILED_SIZES = ((4096, 4096, 4096), (5000, 4000, 3000), (4133, 2053, 3001))
# For each of these sizes (m, k, n), the block model selects different tile sizes for fmm's own product kernel.
TILE_KERNEL_SIZES = (*((side,) * 3 for side in (1024, 2048, 4096, 8192)), (4133, 2053, 3001))
# If a level has at least this number of products, its sum kernels compile slowly, and each of them is compiled by a
# separate job with the kernel's label.
MIN_HEAVY_PRODUCTS = 7**3
# A first look measures levels with at most this number of products; the kernels of levels with few products therefore
# compile first.
MAX_FIRST_LOOK_PRODUCTS = 7
SUM_LABELS = ("join", "split A", "split B")  # labels of a level's sum kernels, the slowest to compile first
COMPILE_WORKER_COMMAND = (sys.executable, "-m", "fmm.tuner.devices.compile_worker")

# The kernels of a tuning are compiled in three phases: kernels that compile quickly, then fmm's own product kernels,
# then the sum kernels of levels with at least MIN_HEAVY_PRODUCTS products. The tuner times plans in the order of the
# three compile phases.
QUICK_KERNELS_PHASE, OWN_KERNELS_PHASE, HEAVY_KERNELS_PHASE = COMPILE_PHASES = range(3)


class CompileJob(NamedTuple):
    """A job for a background process: compile the kernels of a plan for one size (m, k, n).

    With a `label`, only the plan's sum kernels with this label are compiled.
    """

    dtype: str
    plan: str
    size: tuple[int, int, int]
    label: str = ""
    # True: compile the kernels that set a flag if an operand has inf or NaN, as fmm.matmul launches them
    flagged: bool = False


# Identifies kernels. The key of a level's sum kernels is (type, text of the level, True if the level is the plan's
# last). The key of a leaf's kernel is (type, text of the leaf, True if the last level's sums are fused into the
# kernel).
KernelKey = tuple[str, str, bool]


def tuning_compile_jobs(dtypes: Iterable[str], plans: Iterable[Plan]) -> Iterator[CompileJob]:
    """Yield the jobs that compile the kernels of all plans for all types, in the order in which a tuning needs them.

    The first jobs compile the kernels of the first looks at all types. Jobs for kernels that compile quickly follow,
    then jobs for all other kernels, type by type.
    """
    seen: set[KernelKey] = set()
    plans = list(plans)
    covering = {t: _plans_covering_all_kernels([p for p in plans if p.is_candidate_for(t)], t, seen) for t in dtypes}
    ranked = [(_compile_sort_key(p, rank), t, p) for t, found in covering.items() for rank, p in enumerate(found)]
    for _, dtype, plan in sorted(ranked, key=lambda x: x[0]):
        phase = compilation_phase(plan)
        for size in TILE_KERNEL_SIZES if phase == OWN_KERNELS_PHASE else COMPILED_SIZES:
            for label in SUM_LABELS if phase == HEAVY_KERNELS_PHASE else ("",):
                yield CompileJob(dtype, str(plan), size, label)


def plans_to_compile(probed: Sequence[Plan]) -> list[Plan]:
    """Return the plans that a tuning may time: the probed plans, and all candidates with the leaf of a probed plan."""
    leaves = {plan.leaf for plan in probed}
    return list(dict.fromkeys([*probed, *(plan for plan in device_candidate_plans(True) if plan.leaf in leaves)]))


def strategy_compile_jobs() -> Iterator[CompileJob]:
    """Yield a job for each tile strategy of fmm's own float32 kernel."""
    for strategy in (*STRATEGIES, *H200_STRATEGIES, *TMA_SIZES):
        yield CompileJob("float32", f"tile.{strategy.name.lower()}", TILE_KERNEL_SIZES[0])


def _compile_sort_key(plan: Plan, rank: int) -> tuple[bool, int, int]:
    """Return the sort key of a plan; `rank` is the plan's position in the list of its type.

    Plans that a first look measures come first, then the plans of each compile phase. In a first look, and among the
    kernels that compile quickly, the first plan of every element type comes before the second plan of any type.
    """
    phase, first = compilation_phase(plan), is_needed_by_first_look(plan)
    return not first, phase, rank if first or phase == QUICK_KERNELS_PHASE else 0


def is_needed_by_first_look(plan: Plan) -> bool:
    """Return True if a first look, the coarse tuning before the longer tuning, measures this plan.

    A leaf with a separate rate in the calibration is measured in a plan without levels. All other leaves are measured
    in plans with one batched level of at most MAX_FIRST_LOOK_PRODUCTS products.
    """
    if plan.leaf_use.leaf.rate:
        return not plan.levels
    light = compilation_phase(plan) == QUICK_KERNELS_PHASE and largest_level_products(plan) <= MAX_FIRST_LOOK_PRODUCTS
    return light and plan.is_batched and len(plan.levels) == 1


def compile_jobs_of_calls(calls: Iterable[tuple[str, Plan, tuple[int, int, int]]]) -> Iterator[CompileJob]:
    """Yield the jobs that compile the kernels of these calls of fmm.matmul; the slowest jobs come first.

    Each call of fmm.matmul is described as a tuple (type, plan, size).
    """
    for dtype, plan, size in sorted(dict.fromkeys(calls), key=lambda call: -largest_level_products(call[1])):
        for label in (*SUM_LABELS, "") if compilation_phase(plan) == HEAVY_KERNELS_PHASE else ("",):
            yield CompileJob(dtype, str(plan), size, label, True)


def compilation_phase(plan: Plan) -> int:
    """Return the element of COMPILE_PHASES in which the plan's kernels are compiled."""
    if largest_level_products(plan) >= MIN_HEAVY_PRODUCTS:
        return HEAVY_KERNELS_PHASE
    return OWN_KERNELS_PHASE if uses_own_kernel(plan) else QUICK_KERNELS_PHASE


def uses_own_kernel(plan: Plan) -> bool:
    """Return True if one of fmm's kernels computes the plan's leaf products, False if the vendor computes them."""
    return plan.uses_tile_model or bool(plan.leaf_use.leaf.rate)


def _plans_covering_all_kernels(plans: Iterable[Plan], dtype: str, seen: set[KernelKey]) -> list[Plan]:
    """Return plans that together use every kernel of `plans` that is not in `seen`; quickly compiled plans come first.

    The function adds the kernels of the returned plans to the set `seen`.
    """
    found: list[Plan] = []
    for plan in sorted(plans, key=lambda p: (compilation_phase(p), largest_level_products(p))):
        if not kernel_keys(plan, dtype) <= seen:
            found.append(plan)
            seen |= kernel_keys(plan, dtype)
    return found


def kernel_keys(plan: Plan, dtype: str) -> frozenset[KernelKey]:
    """Return the keys of a plan's kernels: one key for each level, and one for the leaf if its kernel is fmm's."""
    found: list[KernelKey] = []
    for step in plan.levels:
        found.append((storage_type(dtype), str(step), step is plan.levels[-1]))
        dtype = step.dtype_of_products(dtype)
    if uses_own_kernel(plan):
        found.append((dtype, plan.leaf, bool(plan.levels) and plan.levels[-1].sums_inside))
    return frozenset(found)


def largest_level_products(plan: Plan) -> int:
    """Return the number of products of the plan's largest level; with more products, sum kernels compile longer."""
    return max((step.products for step in plan.levels), default=1)


def _job_kernel_keys(job: CompileJob) -> frozenset[KernelKey]:
    """Return the keys of all kernels of the job's plan."""
    return kernel_keys(Plan.parse(job.plan), job.dtype)


def storage_type(dtype: str) -> str:
    """Return the type in which matrices of a type are stored and added: float32 for tf32, else the type itself."""
    return "float32" if dtype == "tf32" else dtype


class CompileWorkers:
    """Background processes that compile the kernels of jobs, in the order of the jobs.

    Parameters
    ----------
    device
        Index of the CUDA device for which kernels are compiled.
    wanted
        The jobs, in the order of compilation.
    workers
        Largest number of background processes.
    worker
        The command that starts a background process.
    """

    def __init__(
        self, device: int, wanted: Sequence[CompileJob], workers: int, worker: Sequence[str] = COMPILE_WORKER_COMMAND
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
        """Send one job after the other to a background process, until no job is left or the process has ended."""
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
        """Wait until a plan's kernels are compiled or all background processes have ended; return False at the timeout.

        A kernel that no job compiles is not waited for, since the plan's first run compiles this kernel. With `seconds`
        = 0, the result is False if the plan has a kernel that no job compiles.
        """
        needed = kernel_keys(plan, dtype)
        if not seconds and any(x not in self._pending_kernels for x in needed):
            return False
        with self._changed:
            return self._changed.wait_for(
                lambda: all(self._pending_kernels[x] <= 0 for x in needed) or not self._alive,
                min(seconds, 3600.0),
            )

    def wait_for_all(self, seconds: float) -> bool:
        """Wait until all jobs are done, or until all background processes have ended; return False at the timeout."""
        with self._changed:
            return self._changed.wait_for(lambda: not any(self._pending_kernels.values()) or not self._alive, seconds)

    def close(self) -> None:
        """Kill the background processes at once, and remove their temporary folder."""
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
    """Start a background process with the import path of this process; the background process's stderr is discarded."""
    found = {**os.environ, "PYTHONPATH": os.pathsep.join(p or "." for p in sys.path)}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=found)


@contextmanager
def compile_in_background(device: int, dtypes: Sequence[str], plans: Sequence[Plan]) -> Iterator[CompileWorkers]:
    """Compile the kernels of a tuning in background processes until the context ends."""
    types = list(dict.fromkeys(map(storage_type, dtypes)))
    wanted = [*tuning_compile_jobs(types, plans), *(strategy_compile_jobs() if "float32" in types else ())]
    with run_compile_workers(device, wanted) as made:
        yield made


@contextmanager
def run_compile_workers(device: int, wanted: Sequence[CompileJob]) -> Iterator[CompileWorkers]:
    """Compile these jobs in background processes until the context ends.

    If the machine has more than two processors, at least two remain free for the measurements.
    """
    made = CompileWorkers(device, wanted, min(max((os.cpu_count() or 2) - 2, 1), MAX_WORKER_PROCESSES))
    try:
        yield made
    finally:
        made.close()
