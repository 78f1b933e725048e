"""Run sums and other independent tasks on a thread pool, with as many threads as BLAS uses for products."""

from __future__ import annotations

import os
import sys
import time
from _thread import allocate_lock
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from fmm.kernels.cpu import openblas
from fmm.kernels.cpu.worker_threads import (
    ForkSafeLock,
    NoThreadError,
    Worker,
    after_fork_in_child,
    retry_until_done,
    run_on_worker,
    try_claim_job,
)

# Environment variables that set the number of BLAS threads, in the order in which OpenBLAS reads them.
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "OMP_NUM_THREADS",
)

# Largest number of threads for sums. Sums are memory-bound and share the GIL, so more threads are not faster.
MAX_SUM_THREADS = 8
# Size of NumPy's iterator buffer during sums: the smallest possible. NumPy copies operands into the buffer if their
# rows are shorter than the buffer (8192 elements by default), even without a cast. With copies into the buffer, sums of
# blocks take two to three times as long.
NUMPY_BUFFER_ELEMENTS = 16
# Interruptible tasks run in groups that take about TURN_SECONDS seconds each; signal handlers can run between two
# groups. A group has at most MAX_TURN_GROWTH times as many tasks as the previous group.
TURN_SECONDS, MAX_TURN_GROWTH = 0.04, 4

Job = Callable[[], None]


@dataclass(frozen=True)
class ThreadGroup:
    """A group of `count` threads that runs independent tasks; each thread that is free takes the next task.

    The tasks are not divided equally in advance: BLAS threads spin for 0.1 seconds after a product, so a worker may get
    only half the time of a processor, and all other workers would wait for this worker. If no second thread can start,
    the calling thread runs all tasks. While plans compute several products at the same time, the threads are divided
    among the products.
    """

    count: int

    def run_tasks(self, tasks: Sequence[Job]) -> None:
        share = self.count // max(openblas.running_plan_products(), 1)
        count = min(share, MAX_SUM_THREADS, len(tasks))
        if count > 1:
            try:
                run_on_worker(partial(_run_on_workers, tasks, count))
                return
            except NoThreadError:
                pass
        _run_queue(deque(tasks))

    def run_tasks_interruptibly(self, tasks: Sequence[Job]) -> None:
        """Run the tasks in groups of about TURN_SECONDS seconds, so that signal handlers can run between groups."""
        together, first = max(self.count, 1), 0
        while first < len(tasks):
            begun = time.monotonic()
            self.run_tasks(tasks[first : first + together])
            first += together
            turns = TURN_SECONDS / max(time.monotonic() - begun, TURN_SECONDS / MAX_TURN_GROWTH)
            together = max(self.count, 1, int(together * turns))


def _run_on_workers(tasks: Sequence[Job], count: int) -> None:
    """Run the tasks on this worker thread and on `count` - 1 other workers."""
    queue = deque(tasks)
    shares = _start_workers(count - 1, queue)
    try:
        _run_queue(queue)
    finally:
        # Cancel the workers' jobs that have not started, and wait for the started jobs: an error must not reach the
        # caller while another thread still writes.
        for share in shares:
            retry_until_done(share.cancel_or_wait)
    for share in shares:
        share.raise_error()


def _run_queue(queue: deque[Job]) -> None:
    # NumPy's warnings are set for each thread separately. Tasks run without warnings: if the result overflows, the
    # vendor computes the whole product again.
    with np.errstate(all="ignore"):
        before = np.setbufsize(NUMPY_BUFFER_ELEMENTS)
        try:
            while queue:
                try:
                    task = queue.popleft()
                except IndexError:  # another thread has taken the last task
                    return
                task()
        finally:
            np.setbufsize(before)


# ---- the workers


class WorkerJob:
    """A job for one worker. The caller can cancel the job before it starts."""

    def __init__(self, job: Job) -> None:
        self.work, self.claim, self.ended = job, [True], allocate_lock()
        self.error: BaseException | None = None
        self.ended.acquire()

    def __call__(self) -> None:
        try:
            if try_claim_job(self.claim):
                self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.release()

    def wait_until_done(self) -> None:
        """Wait until the work is done; the caller may call this method once."""
        self.ended.acquire()

    def cancel_or_wait(self) -> None:
        if try_claim_job(self.claim):
            self.work = _do_nothing  # frees the arrays of the cancelled work
        else:
            self.wait_until_done()

    def raise_error(self) -> None:
        """Raise the exception that the work raised, if any."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def _do_nothing() -> None:
    pass


_lock = ForkSafeLock()  # protects _sum_workers; acquired by worker threads only
_sum_workers: list[Worker] = []


def _start_workers(count: int, queue: deque[Job]) -> list[WorkerJob]:
    """Let up to `count` workers run the queue's tasks; fewer workers if no more threads can be started."""
    shares: list[WorkerJob] = []
    with suppress(NoThreadError, MemoryError):
        workers = _acquire_workers(count)
        _exclude_callers_processor(workers)
        for worker in workers:
            _assign_job(worker, partial(_run_queue, queue), shares)
    return shares


def _acquire_workers(count: int) -> list[Worker]:
    """Return the first `count` workers of the pool; raise NoThreadError if a worker cannot be started."""
    with _lock.now:
        while len(_sum_workers) < count:
            _sum_workers.append(Worker.start())
        return _sum_workers[:count]


def _assign_job(worker: Worker, task: Job, shares: list[WorkerJob]) -> None:
    """Give the worker a job, and append the job to the list `shares`.

    The job is in `shares` before the worker gets the job, so that an interrupted caller still waits for the job.
    """
    share = WorkerJob(task)
    shares.append(share)
    try:
        worker.inbox.put(share)
    except MemoryError:
        shares.pop()
        raise


def start_on_workers(count: int, task: Job) -> list[WorkerJob]:
    """Run the task on `count` workers, each on its own processor; return an empty list if the workers cannot start."""
    shares: list[WorkerJob] = []
    with suppress(NoThreadError, MemoryError):
        workers = _acquire_workers(count)
        _pin_to_processors(workers)
        for worker in workers:
            _assign_job(worker, partial(_run_queue, deque([task])), shares)
    return shares


def _exclude_callers_processor(workers: Sequence[Worker]) -> None:
    """Forbid the workers to run on the caller's processor.

    Linux often wakes workers on the caller's processor, where the workers would wait for the caller.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        others = os.sched_getaffinity(0) - {_current_processor()}
        for worker in workers if others else ():
            os.sched_setaffinity(worker.number, others)
    except (OSError, ValueError, IndexError):
        pass  # the system forbids the call, so the workers run on any processor


def _pin_to_processors(workers: Sequence[Worker]) -> None:
    """Pin each worker to its own processor if there are as many processors as workers.

    Linux itself distributes threads over the processors too slowly.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        allowed = sorted(os.sched_getaffinity(0))
        for worker, own in zip(workers, allowed, strict=False):
            os.sched_setaffinity(worker.number, {own} if len(allowed) == len(workers) else allowed)
    except OSError:
        pass


def _current_processor() -> int:
    with open("/proc/thread-self/stat", "rb", buffering=0) as file:
        return int(file.read().rpartition(b")")[2].split()[36])  # field 39 of proc(5)'s `stat`: the processor number


after_fork_in_child(_sum_workers.clear)


def blas_threads() -> int:
    """Return the number of threads that NumPy's BLAS uses for a product now.

    The number comes from threadpoolctl, if threadpoolctl is installed. Without threadpoolctl, the number follows from
    the environment variables and from the processors that this process may use, as in the BLAS libraries.
    """
    if (count := openblas.paused_blas_threads()) > 0:
        return count
    if (controller := _threadpool_controller()) is not None:
        counts = [lib.num_threads or 1 for lib in controller.lib_controllers if lib.user_api == "blas"]
        if counts:
            return max(counts)
    for name in THREAD_VARIABLES:
        value = os.environ.get(name, "").split(",")[0]
        if value.isdecimal() and int(value) > 0:
            return min(int(value), usable_processors())
    return usable_processors()


def usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _threadpool_controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
