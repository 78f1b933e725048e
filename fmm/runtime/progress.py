"""The progress of long products on stderr, for progress=True: tqdm's bar, or without tqdm a line every ten seconds.

The bar appears at once if a product is predicted to take ten seconds, else after ten seconds. (Predictions ignore the
time to read memory-mapped files.) A separate thread prints, so no product waits for a terminal.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, Protocol

MIN_SHOWN_SECONDS = 10.0  # progress is shown if a product is predicted to take, or has taken, this many seconds
BAR_LABEL = "fmm.matmul"
BAR_FORMAT = "{desc} {percentage:3.0f}%|{bar:30}| {elapsed}<{remaining}"
BAR_UPDATE_SECONDS, LINE_UPDATE_SECONDS = 0.5, 10.0  # seconds between two updates of the bar, and between two lines


class Progress:
    """The count of a call's finished multiply-adds.

    If `wanted` is True, `begin_count` starts a thread that shows the progress on stderr.
    """

    def __init__(self, wanted: bool) -> None:
        self.wanted = wanted
        self.total = self.done = 0
        self.predicted = self.began = 0.0  # predicted seconds of the product, and time.monotonic() at its start
        self._lock, self._over = threading.Lock(), threading.Event()
        self._thread: threading.Thread | None = None

    def begin_count(self, total: int, seconds: float) -> None:
        """Start a new count of `total` multiply-adds, which are predicted to take `seconds`."""
        self.total, self.done, self.predicted = total, 0, seconds
        if not self.wanted or self._thread is not None or sys.stderr is None:
            return
        self.began = time.monotonic()
        thread = threading.Thread(target=self._show_until_end, name="fmm-progress", daemon=True)
        with suppress(RuntimeError):  # RuntimeError if no thread can be started
            thread.start()
            self._thread = thread

    def add_done(self, done: int) -> None:
        with self._lock:
            self.done += done

    def end_display(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def _show_until_end(self) -> None:
        if self.predicted < MIN_SHOWN_SECONDS and self._over.wait(MIN_SHOWN_SECONDS):
            return
        with suppress(OSError, ValueError):  # stderr is closed
            display = _new_display(self.total)
            try:
                while True:
                    display.show_counts(min(self.done, self.total), self.total, time.monotonic() - self.began)
                    if self._over.wait(display.update_seconds):
                        return
            finally:
                display.close()


class _ProgressText(Protocol):
    """The display of progress on stderr: tqdm's bar, or lines."""

    @property
    def update_seconds(self) -> float: ...

    def show_counts(self, done: int, total: int, elapsed: float) -> None: ...

    def close(self) -> None: ...


class _TqdmBar:
    update_seconds = BAR_UPDATE_SECONDS

    def __init__(self, tqdm: Any, total: int) -> None:
        self.bar = tqdm(total=total, desc=BAR_LABEL, bar_format=BAR_FORMAT, file=sys.stderr, leave=False)

    def show_counts(self, done: int, total: int, elapsed: float) -> None:
        self.bar.n, self.bar.total = done, total
        self.bar.start_t = time.time() - elapsed  # the bar counts time from the start of the call
        self.bar.refresh()

    def close(self) -> None:
        self.bar.close()


class _LineProgress:
    """Progress as lines of text, one every ten seconds."""

    update_seconds = LINE_UPDATE_SECONDS

    def show_counts(self, done: int, total: int, elapsed: float) -> None:
        left = clock_time_text(elapsed * (total - done) / done) if done else "?"
        print(f"{BAR_LABEL} {100 * done / total:3.0f}% {clock_time_text(elapsed)}<{left}", file=sys.stderr, flush=True)

    def close(self) -> None: ...


def _new_display(total: int) -> _ProgressText:
    try:
        from tqdm import tqdm
    except ImportError:
        return _LineProgress()
    return _TqdmBar(tqdm, total)


def clock_time_text(seconds: float) -> str:
    """Return the time as minutes and seconds (00:42), or as hours, minutes and seconds (1:02:03)."""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes:02d}:{rest:02d}"


@contextmanager
def show_progress(wanted: bool) -> Iterator[Progress]:
    """Yield a call's Progress object; show the progress if `wanted` is True."""
    found = Progress(wanted)
    try:
        yield found
    finally:
        found.end_display()


_plan_progress: ContextVar[Progress | None] = ContextVar("fmm_progress", default=None)


@contextmanager
def show_plan_progress() -> Iterator[Progress]:
    """Show the progress of the plans that this caller runs on the host inside the `with` block."""
    with show_progress(True) as found:
        token = _plan_progress.set(found)
        try:
            yield found
        finally:
            _plan_progress.reset(token)


def current_progress() -> Progress | None:
    """Return the progress object of this call; None without the option progress=True."""
    return _plan_progress.get()
