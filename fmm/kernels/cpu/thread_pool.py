"""The thread pool that runs sums and other independent tasks, on as many threads as BLAS uses for products."""

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
    try_claim,
)

# Environment variables for the number of BLAS threads, in OpenBLAS's order.
THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "OMP_NUM_THREADS",
)

# Sums are memory-bound and share the GIL: more threads than this gain nothing.
MAX_SUM_THREADS = 8
# NumPy's iterator copies operands with rows shorter than its buffer (8192 elements) into that buffer, even without a
# cast; sums of blocks then take two to three times as long. With the smallest buffer it does not.
NUMPY_BUFFER_ELEMENTS = 16
# Interruptible tasks run in turns of about TURN_SECONDS; a signal handler can run between turns. A turn has at most
# MAX_TURN_GROWTH times as many tasks as the one before.
TURN_SECONDS, MAX_TURN_GROWTH = 0.04, 4

Job = Callable[[], None]


@dataclass(frozen=True)
class Threads:
    """Runs independent tasks on `count` worker threads; a thread that is free takes the next task.

    BLAS threads spin for a tenth of a second after a product, so a worker may get only half a processor. With equal
    shares, all other threads would wait for that worker. Without a second thread, the calling thread runs all tasks.
    """

    count: int

    def run_tasks(self, tasks: Sequence[Job]) -> None:
        count = min(self.count, MAX_SUM_THREADS, len(tasks))
        if count > 1:
            try:
                run_on_worker(partial(_run_on_workers, tasks, count))
                return
            except NoThreadError:
                pass
        _run_queue(deque(tasks))

    def run_tasks_interruptibly(self, tasks: Sequence[Job]) -> None:
        """Run the tasks in turns of about TURN_SECONDS seconds, so that signal handlers run in between."""
        together, first = max(self.count, 1), 0
        while first < len(tasks):
            begun = time.monotonic()
            self.run_tasks(tasks[first : first + together])
            first += together
            turns = TURN_SECONDS / max(time.monotonic() - begun, TURN_SECONDS / MAX_TURN_GROWTH)
            together = max(self.count, 1, int(together * turns))


def _run_on_workers(tasks: Sequence[Job], count: int) -> None:
    """Run the tasks on this worker thread and others."""
    queue = deque(tasks)
    shares = _start_workers(count - 1, queue)
    try:
        _run_queue(queue)
    finally:
        # A share that has not started is not needed; an error must not leave while another thread still writes.
        for share in shares:
            retry_until_done(share.cancel_or_wait)
    for share in shares:
        share.raise_error()


def _run_queue(queue: deque[Job]) -> None:
    with np.errstate(all="ignore"):  # set in each thread; a result with overflow is recomputed by the vendor
        before = np.setbufsize(NUMPY_BUFFER_ELEMENTS)
        try:
            while queue:
                try:
                    task = queue.popleft()
                except IndexError:  # another thread was quicker
                    return
                task()
        finally:
            np.setbufsize(before)


# ---- the workers


class WorkerShare:
    """A worker's job, which can be cancelled until it starts."""

    def __init__(self, work: Job) -> None:
        self.work, self.claim, self.ended = work, [True], allocate_lock()
        self.error: BaseException | None = None
        self.ended.acquire()

    def __call__(self) -> None:
        try:
            if try_claim(self.claim):
                self.work()
        except BaseException as error:
            self.error = error
        finally:
            self.ended.release()

    def wait_until_done(self) -> None:
        """Wait until the work is done; to be called once."""
        self.ended.acquire()

    def cancel_or_wait(self) -> None:
        if try_claim(self.claim):
            self.work = _do_nothing  # so that its arrays are freed at once
        else:
            self.wait_until_done()

    def raise_error(self) -> None:
        """Raise the exception of the work, if there was one."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def _do_nothing() -> None:
    pass


_lock = ForkSafeLock()  # acquired by worker threads only
_sum_workers: list[Worker] = []


def _start_workers(count: int, queue: deque[Job]) -> list[WorkerShare]:
    """Let up to `count` workers run the queue's tasks: fewer, or none, where no more threads can be started."""
    shares: list[WorkerShare] = []
    with suppress(NoThreadError, MemoryError):
        workers = _acquire_workers(count)
        _keep_off_callers_processor(workers)
        for worker in workers:
            _give_share(worker, partial(_run_queue, queue), shares)
    return shares


def _acquire_workers(count: int) -> list[Worker]:
    """Return the first `count` workers; NoThreadError where one cannot be started."""
    with _lock.now:
        while len(_sum_workers) < count:
            _sum_workers.append(Worker.start())
        return _sum_workers[:count]


def _give_share(worker: Worker, task: Job, shares: list[WorkerShare]) -> None:
    """Give the worker a share of the work. The share joins the list first, so that the caller always waits for it."""
    share = WorkerShare(task)
    shares.append(share)
    try:
        worker.inbox.put(share)
    except MemoryError:
        shares.pop()
        raise


def start_on_workers(count: int, task: Job) -> list[WorkerShare]:
    """Run the task on `count` workers, each on its own processor; return no shares where that is impossible."""
    shares: list[WorkerShare] = []
    with suppress(NoThreadError, MemoryError):
        workers = _acquire_workers(count)
        _pin_to_processors(workers)
        for worker in workers:
            _give_share(worker, partial(_run_queue, deque([task])), shares)
    return shares


def _keep_off_callers_processor(workers: Sequence[Worker]) -> None:
    """Keep workers off the caller's processor: Linux tends to wake them there, and moves them only after the sums."""
    if not sys.platform.startswith("linux"):
        return
    try:
        others = os.sched_getaffinity(0) - {_current_processor()}
        for worker in workers if others else ():
            os.sched_setaffinity(worker.number, others)
    except (OSError, ValueError, IndexError):
        pass  # the system forbids the call: the workers run on any processor


def _pin_to_processors(workers: Sequence[Worker]) -> None:
    """Pin each worker to one processor if there are just enough of them: Linux is slow to spread threads."""
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
        return int(file.read().rpartition(b")")[2].split()[36])  # field 39, the 37th after the command's name


after_fork_in_child(_sum_workers.clear)


def blas_threads() -> int:
    """Return the number of threads that NumPy's BLAS would use now.

    threadpoolctl knows the number, if it is installed. Without it, the environment and the processors that this process
    may use decide, as in the BLAS libraries.
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
