"""Run a caller's task on a worker thread, where no signal handler can interrupt the task.

Python runs signal handlers in the main thread, between two bytecodes. Therefore an exception of a handler (Ctrl-C) can
interrupt Python code anywhere, even in a `finally` block or just after a lock is acquired. Work that must not stop
halfway runs on a worker thread. The caller hands the task over and waits for the task's end in a single call of a C
function, during which no handler runs. When a signal handler raises an exception, the task therefore either has not
started or is complete. NumPy's own product also runs in one call of a C function.

This module uses only locks, queues and lists that Python implements in C. A forked child has none of its parent's
threads and starts its own threads. A `ForkSafeLock` is unlocked in a forked child.

An exiting interpreter does not wait for workers, and OpenBLAS hangs at exit if a worker is still in a product. Python
itself waits for the threads that are no daemons, and so for the tasks of these threads. For tasks of daemon threads,
`wait_for_tasks_at_exit` waits.
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
Job = Callable[[], object]  # work for a worker; a job raises no exception

START_TIMEOUT_SECONDS = 1.0  # time to wait for a new thread to start
RETRY_AFTER_SECONDS = 10.0  # time after a failed start of a thread until the next attempt
MAX_IDLE_WORKERS = max(os.cpu_count() or 1, 2)  # largest number of idle workers; additional workers end after their job
MAX_EXIT_WAIT_SECONDS = 60.0  # longest time that an exiting interpreter waits for running tasks
EXIT_CHECK_SECONDS = 0.002  # time between two checks of the running tasks at exit
MEMORY_PAUSE_SECONDS = 0.001  # time between two attempts of a call that failed with MemoryError


class NoThreadError(RuntimeError):
    """Raised if no thread can be started: no memory, too many threads, or the interpreter is exiting."""


def after_fork_in_child(callback: Callable[[], None]) -> Callable[[], None]:
    """Register a function that every forked child calls at its start."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=callback)
    return callback


class _ThreadState(threading.local):
    """The state of one worker thread: its inbox, its allowed processors, and whether the thread ends after its job."""

    inbox: Callable[[Job], None] | None = None
    processors: set[int] | None = None
    is_superfluous = False


_this_thread = _ThreadState()
_thread_numbers = count()
_idle_inboxes: list[
    Callable[[Job], None]
] = []  # inboxes of idle workers, which any caller may use; `pop` acquires a worker, and `append` releases it
_failed_start_times: list[float] = []  # time.monotonic() of the last failed start of a thread; at most one element
after_fork_in_child(_idle_inboxes.clear)
after_fork_in_child(_failed_start_times.clear)


def is_worker_thread() -> bool:
    """Return True if the calling thread is a worker thread."""
    return _this_thread.inbox is not None


class Worker:
    """A worker thread, which runs the jobs from its inbox one after the other."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        self.number = 0  # thread id of the operating system

    @staticmethod
    def start(idle: bool = False) -> Worker:
        """Start and return a worker; if `idle`, any caller may give jobs to the worker.

        `threading.Thread.start` is not used: it would wait forever if the new thread lacked the memory to start.
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
            return  # the caller waits for `ready` until the timeout, and then raises NoThreadError
        ready.release()
        while not _this_thread.is_superfluous:
            with suppress(BaseException):
                job = self.inbox.get()
                job()
            job = _do_nothing  # frees the job's arrays before the next job comes
        # Before Python 3.13, `threading._active` never forgets a thread that the threading module did not start.
        getattr(threading, "_active", {}).pop(threading.get_ident(), None)


def _do_nothing() -> None:
    pass


def try_claim_job(claim: list[bool]) -> bool:
    """Return True to the first thread that claims a job, and False to all others.

    Only the first thread may run or cancel the job.
    """
    try:
        return claim.pop()
    except IndexError:
        return False


def retry_until_done(step: Callable[[], object]) -> None:
    """Repeat a call until it does not raise MemoryError.

    On a worker thread, calls that release a lock or wait for a lock raise no other exception than MemoryError.
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
    """Return CPython's C library with CPython's lock functions, which release the GIL; None in other interpreters."""
    try:
        library = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
        library.PyThread_allocate_lock.argtypes, library.PyThread_allocate_lock.restype = [], ctypes.c_void_p
        library.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.PyThread_release_lock.argtypes, library.PyThread_release_lock.restype = [ctypes.c_void_p], None
    except AttributeError:
        return None
    return library


class UninterruptibleLock:
    """A lock that one thread releases once; another thread waits for the release without running signal handlers.

    `wait` is a C function that runs no signal handler. The `acquire` method of a Python lock would run signal handlers,
    which could raise an exception. The locks are reused, except the lock of an interrupted task: the few bytes of this
    lock are never freed.
    """

    def __init__(self) -> None:
        python = _python_lock_functions()
        if python is None:
            raise NoThreadError("this interpreter has no locks that signals do not interrupt")
        lock = python.PyThread_allocate_lock()
        if not lock:
            raise MemoryError
        self.release = partial(python.PyThread_release_lock, lock)
        self.wait = partial(python.PyThread_acquire_lock, lock, 1)
        self.wait()  # acquires the lock, so that the next `wait` waits for `release`

    @staticmethod
    def reuse_or_create() -> UninterruptibleLock:
        try:
            return _unused_locks.pop()
        except IndexError:
            return UninterruptibleLock()


_unused_locks: list[UninterruptibleLock] = []  # acquired locks for later tasks


# ---- tasks of callers


def run_on_worker(work: Callable[[], ResultT], last: Sequence[Callable[[], object]] = ()) -> ResultT:
    """Run `work` on a worker thread, where no signal handler can interrupt the work, and return the result.

    `last` is a list of functions; `work` can append functions to the list. When `work` has ended, the caller's thread
    calls these functions before any signal handler runs; each should be a C function. If no thread can be started,
    nothing is called, and NoThreadError is raised.
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
    """Call the functions in order, from one C function.

    If all functions are C functions, no signal handler runs between two of them.
    """
    deque(map(call, list(steps)), maxlen=0)


class CallerTask(Generic[ResultT]):
    """The work that a caller hands to a worker, with the result or the exception of the work."""

    def __init__(self, work: Callable[[], ResultT], last: Sequence[Callable[[], object]]) -> None:
        self.work: Callable[[], ResultT] | None = work
        self.last = last
        self.end_lock, self.claim, self.ended = UninterruptibleLock.reuse_or_create(), [True], False
        self.caller = threading.get_ident()
        self.processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """Run the work on the worker thread, and make the worker idle again before the caller continues."""
        try:
            if try_claim_job(self.claim):
                self.run_and_store_result()
        finally:
            retry_until_done(_return_to_idle_workers)
            self.ended = True
            retry_until_done(self.end_lock.release)

    def run_and_store_result(self) -> None:
        work, self.work = self.work, None
        try:
            assert work is not None
            _running_tasks.append(self)
            if self.caller in _threads_left_at_exit:
                _sleep_until_process_ends(self)
            _set_processors(self.processors)
            self.result = work()
        except BaseException as error:
            self.error = error
        finally:
            with suppress(ValueError):  # raised if appending the task to the list failed with MemoryError
                _running_tasks.remove(self)

    def hand_over_and_wait(self) -> bool:
        """Give the task to an idle worker, wait until the task has ended, and call the functions in `last`.

        A single C function hands the task over, waits and makes the calls, so no signal handler runs meanwhile. Return
        False, without having started anything, if no worker is idle.
        """
        hand_task_over = map(call, map(call, (_idle_inboxes.pop,)), (self,))
        wait_for_end = map(call, (self.end_lock.wait,))
        try:
            deque(chain(hand_task_over, wait_for_end, map(call, self.last)), maxlen=0)
        except IndexError:
            if not self.claim:
                raise
            return False
        except MemoryError:
            if try_claim_job(self.claim):
                raise  # the caller has claimed the task, so no worker will run the task
            while not self.ended:
                retry_until_done(self.end_lock.wait)
            for step in self.last:
                step()
        else:
            _unused_locks.append(self.end_lock)
        return True

    def result_or_raise(self) -> ResultT:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # frees the work's arrays, to which the error's traceback refers
        result: ResultT = self.result
        return result


def _return_to_idle_workers() -> None:
    """Make this worker available to any caller; if MAX_IDLE_WORKERS workers are idle, let it end after its job."""
    if _this_thread.inbox is None:
        return
    with _idle_lock.now:
        if len(_idle_inboxes) < MAX_IDLE_WORKERS:
            _idle_inboxes.append(_this_thread.inbox)
        else:
            _this_thread.is_superfluous = True


def _set_processors(processors: set[int] | None) -> None:
    """Let this thread run on the caller's processors, if the system permits this."""
    if processors and processors != _this_thread.processors:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
        _this_thread.processors = processors


class ForkSafeLock:
    """A lock that is unlocked in a forked child; use `with lock.now`.

    The attribute `now` is the lock itself, by default a threading.Lock; after a fork, the child replaces `now` by a new
    lock. threading.Lock is implemented in C, so Ctrl-C cannot interrupt the methods of `now` and leave it locked.
    (Methods of ForkSafeLock would be Python code, which Ctrl-C can interrupt.) `kind` is the function that creates
    `now`, such as threading.RLock for a reentrant lock.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._renew_after_fork()
        after_fork_in_child(self._renew_after_fork)

    def _renew_after_fork(self) -> None:
        self.now = self._kind()


_idle_lock = ForkSafeLock()  # held while a worker compares the number of idle workers with MAX_IDLE_WORKERS


# ---- the interpreter's exit

_running_tasks: list[CallerTask[Any]] = []  # tasks that are running on workers
_threads_left_at_exit: set[int] = set()  # identifiers of daemon threads; empty until the interpreter exits
after_fork_in_child(_running_tasks.clear)


@atexit.register
def wait_for_tasks_at_exit() -> None:
    """Wait for the running tasks of daemon threads, and prevent later tasks of these threads from starting.

    Without this wait, OpenBLAS's exit function could wait forever for a thread that has missed the signal to end.
    Python has already waited for all threads that are no daemons. Exit functions that run later can still use the
    workers.
    """
    _threads_left_at_exit.update(x.ident for x in threading.enumerate() if x.daemon and x.ident is not None)
    end = time.monotonic() + MAX_EXIT_WAIT_SECONDS
    while _running_tasks and time.monotonic() < end:
        time.sleep(EXIT_CHECK_SECONDS)


def _sleep_until_process_ends(task: CallerTask[Any]) -> None:
    """Block this worker until the process ends; the daemon thread that waits for the task is blocked too."""
    _running_tasks.remove(task)
    lock = allocate_lock()
    while lock.acquire():
        pass
