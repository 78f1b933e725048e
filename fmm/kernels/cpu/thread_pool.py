"""As many threads for the sums as BLAS uses for the products."""

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

# Where BLAS libraries look for their number of threads, in the order in which OpenBLAS does.
VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "GOTO_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "OMP_NUM_THREADS",
)

# Sums share the memory and Python's lock: more threads than this gain nothing.
MAX_SUM_THREADS = 8
# NumPy's iterator copies operands whose rows are shorter than its buffer (8192 elements) into that buffer, although
# nothing needs a cast: sums of blocks then take two to three times as long. With the smallest buffer it does not.
BUFFER = 16
# An interrupt is heard between the turns of tasks that may be left in the middle: so many seconds each, as far as one
# can tell beforehand, and at most so many times as many tasks as in the turn before.
TURN, MOST_TURNS = 0.04, 4

Job = Callable[[], None]


@dataclass(frozen=True)
class Threads:
    """Runs independent tasks on `count` threads of ours; whoever is free takes the next task.

    BLAS keeps its own threads spinning for a tenth of a second after a product, so a helper may have only half a
    processor: equal shares would wait for it. What does not need two threads is done by the caller.
    """

    count: int

    def run(self, tasks: Sequence[Job]) -> None:
        count = min(self.count, MAX_SUM_THREADS, len(tasks))
        if count > 1:
            try:
                run_on_worker(partial(_share_out, tasks, count))
                return
            except NoThreadError:
                pass
        _work_off(deque(tasks))

    def run_interruptibly(self, tasks: Sequence[Job]) -> None:
        """The same, some tasks at a time, so that an interrupt is heard in between: as many as take TURN seconds
        if they take as long as those before."""
        together, first = max(self.count, 1), 0
        while first < len(tasks):
            begun = time.monotonic()
            self.run(tasks[first : first + together])
            first += together
            turns = TURN / max(time.monotonic() - begun, TURN / MOST_TURNS)  # it took so many
            together = max(self.count, 1, int(together * turns))


def _share_out(tasks: Sequence[Job], count: int) -> None:
    """In a thread of ours: the tasks on this and others."""
    queue = deque(tasks)
    shares = _start_helpers(count - 1, queue)
    try:
        _work_off(queue)
    finally:
        # Who has not begun by now is not needed; an error must not leave while another thread still writes.
        for share in shares:
            retry_until_done(share.cancel_or_wait)
    for share in shares:
        share.check()


def _work_off(queue: deque[Job]) -> None:
    with np.errstate(all="ignore"):  # per thread; what overflows here is computed again by the vendor
        before = np.setbufsize(BUFFER)
        try:
            while queue:
                try:
                    task = queue.popleft()
                except IndexError:  # another thread was quicker
                    return
                task()
        finally:
            np.setbufsize(before)


# ---- the helpers


class Share:
    """What a helper is to do, unless it is cancelled before it begins."""

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

    def wait(self) -> None:
        """Until the work is done; to be called once."""
        self.ended.acquire()

    def cancel_or_wait(self) -> None:
        if try_claim(self.claim):
            self.work = _nothing  # its arrays are not kept until the helper comes to it
        else:
            self.wait()

    def check(self) -> None:
        """Raise what the work raised."""
        error, self.error = self.error, None
        if error is not None:
            raise error


def _nothing() -> None:
    pass


_lock = ForkSafeLock()  # taken by threads of ours alone
_helpers: list[Worker] = []


def _start_helpers(count: int, queue: deque[Job]) -> list[Share]:
    """Helpers at work on the queue; fewer, or none, where there are no more threads to be had."""
    shares: list[Share] = []
    with suppress(NoThreadError, MemoryError):
        helpers = _hire_helpers(count)
        _keep_off(helpers)
        for helper in helpers:
            _hand_out(helper, partial(_work_off, queue), shares)
    return shares


def _hire_helpers(count: int) -> list[Worker]:
    """The first `count` helpers; NoThreadError where there is no such thread to be had."""
    with _lock.now:
        while len(_helpers) < count:
            _helpers.append(Worker.acquire())
        return _helpers[:count]


def _hand_out(helper: Worker, task: Job, shares: list[Share]) -> None:
    """A share for the helper, noted before it is handed over."""
    share = Share(task)
    shares.append(share)
    try:
        helper.inbox.put(share)
    except MemoryError:
        shares.pop()
        raise


def start_on_workers(count: int, task: Job) -> list[Share]:
    """The task on `count` helpers at a time, each on a processor of its own; none where they are not to be had."""
    shares: list[Share] = []
    with suppress(NoThreadError, MemoryError):
        helpers = _hire_helpers(count)
        _pin_to_processors(helpers)
        for helper in helpers:
            _hand_out(helper, partial(_work_off, deque([task])), shares)
    return shares


def _keep_off(helpers: Sequence[Worker]) -> None:
    """Keep helpers off the processor that the caller runs on: Linux likes to wake them there, and moves them away only
    after the sums are done."""
    if not sys.platform.startswith("linux"):
        return
    try:
        elsewhere = os.sched_getaffinity(0) - {_current_processor()}
        for helper in helpers if elsewhere else ():
            os.sched_setaffinity(helper.number, elsewhere)
    except (OSError, ValueError, IndexError):
        pass  # a system that does not let us: the helpers run where they like


def _pin_to_processors(helpers: Sequence[Worker]) -> None:
    """Give each helper one of the processors that there are just enough of: Linux takes its time to spread them."""
    if not sys.platform.startswith("linux"):
        return
    try:
        allowed = sorted(os.sched_getaffinity(0))
        for helper, own in zip(helpers, allowed, strict=False):
            os.sched_setaffinity(helper.number, {own} if len(allowed) == len(helpers) else allowed)
    except OSError:
        pass


def _current_processor() -> int:
    with open("/proc/thread-self/stat", "rb", buffering=0) as file:
        return int(file.read().rpartition(b")")[2].split()[36])  # field 39, the 37th after the command's name


after_fork_in_child(_helpers.clear)


def blas_threads() -> int:
    """How many threads numpy's BLAS would use now: asked of threadpoolctl if it is installed, else guessed as the
    libraries do, from the environment and the processors that this process may use."""
    if (count := openblas.paused_blas_threads()) > 0:
        return count
    if (controller := _controller()) is not None:
        counts = [lib.num_threads or 1 for lib in controller.lib_controllers if lib.user_api == "blas"]
        if counts:
            return max(counts)
    for name in VARIABLES:
        value = os.environ.get(name, "").split(",")[0]
        if value.isdecimal() and int(value) > 0:
            return min(int(value), usable_processors())
    return usable_processors()


def usable_processors() -> int:
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1


@lru_cache(maxsize=1)
def _controller() -> Any:
    try:
        from threadpoolctl import ThreadpoolController
    except ImportError:
        return None
    return ThreadpoolController()
