"""Threads of ours, which no signal interrupts, and how a caller has something done there.

Python runs the handlers of signals in the main thread, between two steps of its code. So what a handler raises (Ctrl-C)
can leave any Python code at any point, be it a `finally` block, a loop that waits, or a lock that Python code has just
taken. What must not be left in the middle is done in a thread of ours. The caller hands it over and waits for its end
in one call of C, in which no handler runs: for the caller it has not begun or it is done, like NumPy's own product.

The locks, queues and lists here are those that Python has in C. A forked child has none of its parent's threads, and
hires its own.
"""

from __future__ import annotations

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

Result = TypeVar("Result")
Job = Callable[[], object]  # it keeps what it raises to itself

PATIENCE = 1.0  # seconds until a new thread that does not begin is given up ...
REST = 10.0  # ... and until another is tried
PAUSE = 0.001  # seconds until something is tried again for which there was no memory


class NoThreadError(RuntimeError):
    """There is no thread to be had: no memory for it, too many of them, or the interpreter is exiting."""


def after_fork_in_child(renew: Callable[[], None]) -> Callable[[], None]:
    """Have this called in every forked child, before anything else runs there."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew)
    return renew


class _Here(threading.local):
    """What a thread of ours knows of itself: how a job is handed to it, and on which processors it may run."""

    inbox: Callable[[Job], None] | None = None
    processors: set[int] | None = None


_here = _Here()
_numbers = count()
# How a job is handed to each of the threads that wait for any caller's: taken by `pop`, given back by `append`.
_idle: list[Callable[[Job], None]] = []
_given_up: list[float] = []  # when a thread did not begin
after_fork_in_child(_idle.clear)
after_fork_in_child(_given_up.clear)


def on_worker_thread() -> bool:
    """Is this one of our threads?"""
    return _here.inbox is not None


class Worker:
    """A thread of ours, which does one job after the other as they come into its inbox."""

    def __init__(self) -> None:
        self.inbox: SimpleQueue[Job] = SimpleQueue()
        self.number = 0  # in the system

    @staticmethod
    def acquire(idle: bool = False) -> Worker:
        """A new one; `idle`: it does any caller's jobs.

        `threading` would wait for it to begin until it does, which it may never do for want of memory.
        """
        if _given_up and time.monotonic() - _given_up[-1] < REST:
            raise NoThreadError("a new thread did not begin a moment ago")
        helper, ready = Worker(), allocate_lock()
        ready.acquire()
        try:
            start_new_thread(helper._serve, (ready, idle))
        except (RuntimeError, MemoryError) as error:
            raise NoThreadError(str(error)) from None
        if not ready.acquire(timeout=PATIENCE):
            _given_up[:] = [time.monotonic()]
            raise NoThreadError("a new thread does not begin")
        return helper

    def _serve(self, ready: Any, idle: bool) -> None:
        try:
            self.number, _here.inbox = threading.get_native_id(), self.inbox.put
            with suppress(Exception):
                threading.current_thread().name = f"fmm-{next(_numbers)}"
            if idle:
                _idle.append(self.inbox.put)
        except MemoryError:
            return  # who waits for it gives it up
        ready.release()
        while True:
            with suppress(BaseException):
                job = self.inbox.get()
                job()
            job = _nothing  # its arrays are not kept until the next one comes


def _nothing() -> None:
    pass


def try_claim(claim: list[bool]) -> bool:
    """Take what can be taken once: by the thread that does a job, or by the one that cancels it."""
    try:
        return claim.pop()
    except IndexError:
        return False


def retry_until_done(step: Callable[[], object]) -> None:
    """In a thread of ours nothing but a lack of memory keeps a lock from being opened or waited for; that passes."""
    while True:
        try:
            step()
            return
        except MemoryError:
            time.sleep(PAUSE)


# ---- waiting without hearing of signals


@lru_cache(maxsize=1)
def _interpreter() -> Any:
    """Python's locks as C has them; None where this is another interpreter. They are called without Python's own."""
    try:
        library = ctypes.CDLL(None, handle=ctypes.pythonapi._handle)
        library.PyThread_allocate_lock.argtypes, library.PyThread_allocate_lock.restype = [], ctypes.c_void_p
        library.PyThread_acquire_lock.argtypes = [ctypes.c_void_p, ctypes.c_int]
        library.PyThread_release_lock.argtypes, library.PyThread_release_lock.restype = [ctypes.c_void_p], None
    except AttributeError:
        return None
    return library


class Gate:
    """Where one thread waits for another: shut at first, opened once, and deaf to signals.

    `wait` and `open` are C alone: a lock's own `acquire` would end with what a signal's handler raises. Gates are used
    again; one of a call that an exception ended is not, and its few bytes are never freed.
    """

    def __init__(self) -> None:
        python = _interpreter()
        if python is None:
            raise NoThreadError("this interpreter has no locks that signals leave alone")
        lock = python.PyThread_allocate_lock()
        if not lock:
            raise MemoryError
        self.open = partial(python.PyThread_release_lock, lock)
        self.wait = partial(python.PyThread_acquire_lock, lock, 1)
        self.wait()  # the first to come passes, and shuts it

    @staticmethod
    def taken() -> Gate:
        try:
            return _gates.pop()
        except IndexError:
            return Gate()


_gates: list[Gate] = []  # shut, and nobody's


# ---- a caller's job


class Task(Generic[Result]):
    """A caller's work, and what came of it."""

    def __init__(self, work: Callable[[], Result], last: Sequence[Callable[[], object]]) -> None:
        self.work: Callable[[], Result] | None = work
        self.last = last
        self.gate, self.claim, self.ended = Gate.taken(), [True], False
        self.processors = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else None
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self) -> None:
        """In the helper's thread, which any caller may have again before this one goes on."""
        try:
            if try_claim(self.claim):
                self.run()
        finally:
            retry_until_done(_idle_again)
            self.ended = True
            retry_until_done(self.gate.open)

    def run(self) -> None:
        work, self.work = self.work, None
        try:
            assert work is not None
            _move_to(self.processors)
            self.result = work()
        except BaseException as error:
            self.error = error

    def hand_over(self) -> bool:
        """To an idle helper, and wait for its end, and make the last calls, in one call of C: no signal is heard of in
        between. False if no helper is idle: then nothing has begun."""
        given = map(call, map(call, (_idle.pop,)), (self,))
        waited = map(call, (self.gate.wait,))
        try:
            deque(chain(given, waited, map(call, self.last)), maxlen=0)
        except IndexError:
            if not self.claim:
                raise
            return False
        except MemoryError:
            if try_claim(self.claim):
                raise  # the helper, if it has it, leaves it alone
            while not self.ended:
                retry_until_done(self.gate.wait)
            for step in self.last:
                step()
        else:
            _gates.append(self.gate)
        return True

    def outcome(self) -> Result:
        error, self.error = self.error, None
        try:
            if error is not None:
                raise error
        finally:
            del error  # whose traceback has all that the work had
        result: Result = self.result
        return result


def _idle_again() -> None:
    if _here.inbox is not None:
        _idle.append(_here.inbox)


def _move_to(processors: set[int] | None) -> None:
    """This thread runs where its caller may, if the system lets us say so."""
    if processors and processors != _here.processors:
        with suppress(OSError):
            os.sched_setaffinity(0, processors)
        _here.processors = processors


def run_on_worker(work: Callable[[], Result], last: Sequence[Callable[[], object]] = ()) -> Result:
    """work(), in a thread of ours: it has not begun or is done when an exception of a signal's leaves.

    `last`: a list that the work may change; what is in it then is called in the caller's thread, before any handler of
    a signal. Every such call should be one of C. NoThreadError: there is no thread, and nothing was done.
    """
    if on_worker_thread():
        return _at_once(work, last)
    errand = Task(work, last)
    while not errand.hand_over():
        if not _idle:
            Worker.acquire(idle=True)
    return errand.outcome()


def run_uninterrupted(steps: Iterable[Callable[[], object]]) -> None:
    """The steps one after the other in one call of C, if each is one: no signal is heard of in between."""
    deque(map(call, list(steps)), maxlen=0)


def _at_once(work: Callable[[], Result], last: Sequence[Callable[[], object]]) -> Result:
    try:
        return work()
    finally:
        for step in last:
            step()


class ForkSafeLock:
    """A lock that a forked child finds open: `with lock.now`.

    `now` is Python's own, which Ctrl-C cannot leave shut: a lock entered by Python code could be. `kind` makes it:
    threading.RLock for one that its holder may enter again.
    """

    def __init__(self, kind: Callable[[], Any] = threading.Lock) -> None:
        self._kind = kind
        self._renew()
        after_fork_in_child(self._renew)

    def _renew(self) -> None:
        self.now = self._kind()
