"""Worker threads, which no signal interrupts, and how a caller runs a task on one.

Python runs signal handlers in the main thread, between two steps of its code. So an exception of a handler (Ctrl-C) can
leave any Python code at any point: a `finally` block, a loop that waits, or a lock just acquired. Work that must not
stop halfway runs on a worker thread. The caller hands the task over and waits for its end within a single call of a C
function, during which no handler runs. As with NumPy's own product, an exception finds the task not started or done.

The locks, queues and lists here are those that Python implements in C. A forked child has none of its parent's threads,
and starts its own; `ForkSafeLock` is a lock that the child finds open.

An exiting interpreter waits for no worker. OpenBLAS hangs at exit if a thread is inside a product then, so that
`wait_for_tasks_at_exit` first waits for the tasks of daemon threads; Python itself waits for all other callers.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import time
from _thread import allocate_lock, start_new_thread
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from itertools import chain, count
from operator import call
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

ResultT = TypeVar("ResultT")
Job = Callable[[], object]  # work that raises no exception

START_TIMEOUT_SECONDS = 1.0  # seconds to wait for a new thread to start
RETRY_AFTER_SECONDS = 10.0  # seconds after a failed start of a thread until the next start is tried
MAX_IDLE_WORKERS = max(os.cpu_count() or 1, 2)  # largest number of idle workers; further ones end after their job
MAX_EXIT_WAIT_SECONDS = 60.0  # seconds for which an exiting interpreter waits for running tasks
EXIT_CHECK_SECONDS = 0.002  # seconds between two checks of the running tasks at exit
MEMORY_PAUSE_SECONDS = 0.001  # seconds between two attempts of a step that lacks memory


class NoThreadError(RuntimeError):
    """No thread can be started: no memory, too many threads, or the interpreter is exiting."""


def after_fork_in_child(renew: Callable[[], None]) -> Callable[[], None]:
    """Register a function that every forked child calls first."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return renew


class _ThreadState(threading.local):
    """A worker thread's own state: its inbox, the processors that it may run on, and whether it ends after its job."""

    inbox: Callable[[Job], None] | None = None
    processors: set[int] | None = None
    is_superfluous = False


_this_thread = _ThreadState()
_thread_numbers = count()
_idle_inboxes: list[
    Callable[[Job], None]
] = []  # inboxes of idle workers for any caller: `pop` acquires, `append` releases
_failed_start_times: list[float] = []  # time.monotonic() of the last failed start of a thread, at most one
after_fork_in_child(_idle_inboxes.clear)
after_fork_in_child(_failed_start_times.clear)


def is_worker_thread() -> bool:
    """Return True on a worker thread."""
    return _this_thread.inbox is not None


class Worker:
    """A worker thread, which runs the jobs in its inbox one after the other."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        self.number = 0  # the system's thread id

    @staticmethod
    def start(idle: bool = False) -> Worker:
        """Start a worker; with `idle`, any caller may give the worker jobs.

        `threading.Thread.start` would wait for ever for a thread that cannot start for want of memory.
        """
        if _failed_start_times and time.monotonic() - _failed_start_times[-1] < RETRY_AFTER_SECONDS:
            raise NoThreadError("a new thread did not start a moment ago")
        worker, ready = Worker(), allocate_lock()
        ready.acquire()
        try:
            start_new_thread(worker._run_jobs, (ready, idle))
        except (RuntimeError, MemoryError) as error:
            raise NoThreadError(str(error)) from None
        if not ready.acquire(timeout=START_TIMEOUT_SECONDS):
            _failed_start_times[:] = [time.monotonic()]
            raise NoThreadError("a new thread does not start")
        return worker

    def _run_jobs(self, ready: Any, idle: bool) -> None:
        try:
            self.number, _this_thread.inbox = threading.get_native_id(), self.inbox.put
            with suppress(Exception):
                threading.current_thread().name = f"fmm-{next(_thread_numbers)}"
            if idle:
                _idle_inboxes.append(self.inbox.put)
        except MemoryError:
            return  # the caller's wait for `ready` times out
        ready.release()
        while not _this_thread.is_superfluous:
            with suppress(BaseException):
                job = self.inbox.get()
                job()
            job = _do_nothing  # so that the job's arrays are freed before the next job comes
        # Before Python 3.13 the threading module lists a thread for ever that it did not start itself.
        getattr(threading, "_active", {}).pop(threading.get_ident(), None)


def _do_nothing() -> None:
    pass


def try_claim(claim: list[bool]) -> bool:
    """Return True to the first thread that claims a job, in order to run the job or to cancel it."""
    try:
        return claim.pop()
    except IndexError:
        return False


def retry_until_done(step: Callable[[], object]) -> None:
    """Repeat a step until it does not fail for want of memory.

    On a worker thread only a lack of memory can keep a lock from being opened or waited for.
    """
    while True:
        try:
            step()
            return
        except MemoryError:
            time.sleep(MEMORY_PAUSE_SECONDS)


# ---- waiting without running signal handlers


@lru_cache(maxsize=1)
def _python_lock_functions() -> Any:
    """Return CPython's C library with its lock functions; None in another interpreter. Calls release the GIL."""
    try:
        library = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
        library.PyThread_allocate_lock.argtypes, library.PyThread_allocate_lock.restype = [], ctypes.c_void_p
        library.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.PyThread_release_lock.argtypes, library.PyThread_release_lock.restype = [ctypes.c_void_p], None
    except AttributeError:
        return None
    return library


class Gate:
    """A lock on which one thread waits for another without running signal handlers: shut at first, opened once.

    `wait` and `open` are C functions. A Python lock's `acquire` would end with an exception of a signal handler. Gates
    are reused, except the gate of a task that an exception interrupted; its few bytes are never freed.
    """

    def __init__(self) -> None:
        python = _python_lock_functions()
        if python is None:
            raise NoThreadError("this interpreter has no locks that signals do not interrupt")
        lock = python.PyThread_allocate_lock()
        if not lock:
            raise MemoryError
        self.open = partial(python.PyThread_release_lock, lock)
        self.wait = partial(python.PyThread_acquire_lock, lock, 1)
        self.wait()  # acquires the lock, which shuts the gate

    @staticmethod
    def reuse_or_create() -> Gate:
        try:
            return _unused_gates.pop()
        except IndexError:
            return Gate()


_unused_gates: list[Gate] = []  # shut gates for the next tasks


# ---- a caller's task


def run_on_worker(work: Callable[[], ResultT], last: Sequence[Callable[[], object]] = ()) -> ResultT:
    """Run `work` on a worker thread and return its result; an exception of a signal handler never interrupts `work`.

    `last` is a list that `work` may change. When `work` has ended, the functions in `last` are called in the caller's
    thread, before any signal handler runs; each should be a C function. NoThreadError if no thread can be started; then
    nothing has been called.
    """
    if is_worker_thread():
        try:
            return work()
        finally:
            for step in last:
                step()
    task = CallerTask(work, last)
    while not task.hand_over_and_wait():
        if not _idle_inboxes:
            Worker.start(idle=True)
    return task.result_or_raise()


def run_uninterrupted(steps: Iterable[Callable[[], object]]) -> None:
    """Call the steps in order within a single call of a C function; if the steps are C functions, no handler runs."""
    deque(map(call, list(steps)), maxlen=0)


class CallerTask(Generic[ResultT]):
    """A caller's work and its result_or_raise."""

    def __init__(self, work: Callable[[], ResultT], last: Sequence[Callable[[], object]]) -> None:
        self.work: Callable[[], ResultT] | None = work
        self.last = last
        self.gate, self.claim, self.ended = Gate.reuse_or_create(), [True], False
        self.caller = threading.get_ident()
        self.processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """Run the work on the worker thread; the worker becomes idle, or ends, before the caller continues."""
        try:
            if try_claim(self.claim):
                self.run_work()
        finally:
            retry_until_done(_become_idle)
            self.ended = True
            retry_until_done(self.gate.open)

    def run_work(self) -> None:
        work, self.work = self.work, None
        try:
            assert work is not None
            _running_tasks.append(self)
            if self.caller in _threads_left_at_exit:
                _block_forever(self)
            _set_processors(self.processors)
            self.result = work()
        except BaseException as error:
            self.error = error
        finally:
            with suppress(ValueError):  # not in the list: there was no memory to append it
                _running_tasks.remove(self)

    def hand_over_and_wait(self) -> bool:
        """Give the task to an idle worker, wait for its end, and call the functions in `last`.

        All of this is a single call of a C function, during which no signal handler runs. Return False if no worker is
        idle; then nothing has started.
        """
        hand_task_over = map(call, map(call, (_idle_inboxes.pop,)), (self,))
        wait_for_end = map(call, (self.gate.wait,))
        try:
            deque(chain(hand_task_over, wait_for_end, map(call, self.last)), maxlen=0)
        except IndexError:
            if not self.claim:
                raise
            return False
        except MemoryError:
            if try_claim(self.claim):
                raise  # a worker that has the task will not run it
            while not self.ended:
                retry_until_done(self.gate.wait)
            for step in self.last:
                step()
        else:
            _unused_gates.append(self.gate)
        return True

    def result_or_raise(self) -> ResultT:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # its traceback refers to the work's arrays
        result: ResultT = self.result
        return result


def _become_idle() -> None:
    """Offer this worker to any caller; where enough workers are idle, let it end after its job."""
    if _this_thread.inbox is None:
        return
    with _idle_lock.now:
        if len(_idle_inboxes) < MAX_IDLE_WORKERS:
            _idle_inboxes.append(_this_thread.inbox)
        else:
            _this_thread.is_superfluous = True


def _set_processors(processors: set[int] | None) -> None:
    """Allow this thread the caller's processors, where the system permits."""
    if processors and processors != _this_thread.processors:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
        _this_thread.processors = processors


class ForkSafeLock:
    """A lock that a forked child finds open: `with lock.now`.

    `now` is a lock of Python's own, implemented in C: Ctrl-C cannot leave it shut. `kind` creates it, such as
    threading.RLock for a reentrant lock.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._renew_after_fork()
        after_fork_in_child(self._renew_after_fork)

    def _renew_after_fork(self) -> None:
        self.now = self._kind()


_idle_lock = ForkSafeLock()  # acquired by worker threads only, which count idle workers before they join them


# ---- the interpreter's exit

_running_tasks: list[CallerTask[Any]] = []  # tasks that workers run now
_threads_left_at_exit: set[int] = set()  # identifiers of the daemon threads, once the interpreter is exiting
after_fork_in_child(_running_tasks.clear)


@atexit.register
def wait_for_tasks_at_exit() -> None:
    """Start no more tasks of daemon threads, and wait for those that run.

    Without the wait, OpenBLAS's exit function would wait for a thread that has missed its signal to end. Python has
    waited for all but daemon threads. Functions that are called later during exit may still use the workers.
    """
    _threads_left_at_exit.update(x.ident for x in threading.enumerate() if x.daemon and x.ident is not None)
    end = time.monotonic() + MAX_EXIT_WAIT_SECONDS
    while _running_tasks and time.monotonic() < end:
        time.sleep(EXIT_CHECK_SECONDS)


def _block_forever(task: CallerTask[Any]) -> None:
    """Block this worker, and with it the daemon thread that waits for the task, until the process ends."""
    _running_tasks.remove(task)
    lock = allocate_lock()
    while lock.acquire():
        pass
