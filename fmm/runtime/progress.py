"""Progress of products that take long, on stderr, where it was asked for: tqdm's bar, or without tqdm a line at times.

It appears once a product is predicted to take ten seconds, or has taken them: predictions know nothing of what it takes
to read files. A thread of its own shows it, so that no product waits for a terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

LONG = 10.0  # seconds, predicted or gone by, from which on it is shown
LABEL = "fmm.matmul"
BAR = "{desc} {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"
BAR_EVERY, LINE_EVERY = 0.5, 10.0  # seconds


class Progress:
    """How many multiply-adds of a call are done; a thread shows it from `begin` on, if that is wanted."""

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.total = self.done = 0
        self.predicted = self.began = 0.0  # seconds
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin(self, total: int, seconds: float) -> None:
        """So many multiply-adds begin, which are predicted to take so long; instead of those that had begun, if any."""
        self.total, self.done, self.predicted = total, 0, seconds
        if not self.wanted or self._thread is not None or sys.stderr is None:
            return
        self.began = time.monotonic()
        thread = threading.Thread(target=self._show, name="fmm-progress", daemon=True)
        with suppress(RuntimeError):  # there is no thread to be had
            thread.start()
            self._thread = thread

    def add(self, done: int) -> None:
        with self._lock:
            self.done += done

    def end(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show(self) -> None:
        if self.predicted < LONG and self._over.wait(LONG):
            return
        with suppress(OSError, ValueError):  # of a stderr that is closed
            shown = _shown_by(self.total)
            try:
                while True:
                    shown.show(min(self.done, self.total), self.total, time.monotonic() - self.began)
                    if self._over.wait(shown.every):
                        return
            finally:
                shown.close()


class _Shown(Protocol):
    """What people see."""

    @property
    def every(self) -> float: ...

    def show(self, done: int, total: int, elapsed: float) -> None: ...

    def close(self) -> None: ...


class _Bar:
    """By tqdm's class."""

    every = BAR_EVERY

    def __init__(self, tqdm: Any, total: int) -> None:
        self.bar = tqdm(total=total, desc=LABEL, bar_format=BAR, file=sys.stderr, leave=False)

    def show(self, done: int, total: int, elapsed: float) -> None:
        self.bar.n, self.bar.total = done, total
        self.bar.start_t = time.time() - elapsed  # which is not when it appeared
        self.bar.refresh()

    def close(self) -> None:
        self.bar.close()


class _Lines:
    """The bar's words, now and then."""

    every = LINE_EVERY

    def show(self, done: int, total: int, elapsed: float) -> None:
        left = clock_time(elapsed * (total - done) / done) if done else "?"
        print(f"{LABEL} {100 * done / total:3.0f}% {clock_time(elapsed)}<{left}", file=sys.stderr, flush=True)

    def close(self) -> None: ...


def _shown_by(total: int) -> _Shown:
    try:
        from tqdm import tqdm
    except ImportError:
        return _Lines()
    return _Bar(tqdm, total)


def clock_time(seconds: float) -> str:
    """Minutes and seconds, from an hour on with hours before them: 00:42, 1:02:03."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


@contextmanager
def show_progress(wanted: bool) -> Iterator[Progress]:
    """What is told how far a call is, and shows it if that is wanted."""
    found = Progress(wanted)
    try:
        yield found
    finally:
        found.end()


_of_plans: ContextVar[Progress | None] = ContextVar("fmm_progress", default=None)


@contextmanager
def plan_progress() -> Iterator[Progress]:
    """Plans that multiply for this caller on the host meanwhile tell how far they are, and that is shown."""
    with show_progress(True) as found:
        token = _of_plans.set(found)
        try:
            yield found
        finally:
            _of_plans.reset(token)


def current_progress() -> Progress | None:
    """Who is to be told how far a plan is; nobody, if the caller did not ask for it."""
    return _of_plans.get()
