"""Exceptions at any moment: those of signals at random moments, once or several times, and those at each step
of some code. Tests run them in separate processes, which may hang.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from threading import get_ident
from types import CodeType, FrameType
from typing import Any

from tests.support import ROOT


def interpreter_output(*command: str, seconds: float = 240, quiet: bool = True) -> str:
    """Return the output of another interpreter. It must end in time with status 0 and, if `quiet`, report no
    lost exceptions."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, *command], env=env, capture_output=True, text=True, timeout=seconds)
    assert done.returncode == 0, done.stderr[-4000:]
    assert not (quiet and done.stderr), done.stderr
    return done.stdout


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End the process, with all tracebacks, if the block takes longer than `seconds`."""
    faulthandler.dump_traceback_later(seconds, exit=True)
    try:
        yield
    finally:
        faulthandler.cancel_dump_traceback_later()


class Alarm(BaseException):
    """The exception that the signal's handler raises."""


class SignalInterrupts:
    """Signals that raise exceptions, but only while `under` is on the stack, so that the code that counts
    them is not interrupted."""

    def __init__(self) -> None:
        self.hits = 0
        self.left, self.again = 0, 0.0  # exceptions of this call
        signal.signal(signal.SIGALRM, self._ring)

    def _ring(self, number: int, frame: FrameType | None) -> None:
        under = SignalInterrupts.under.__code__
        while frame is not None and frame.f_code is not under:
            frame = frame.f_back
        if frame is None or not self.left:
            return
        self.hits += 1
        self.left -= 1
        if self.left:
            signal.setitimer(signal.ITIMER_REAL, self.again)
        raise Alarm

    def under(self, call: Callable[[], Any]) -> Any:
        return call()

    def interrupted(self, call: Callable[[], Any], delay: float, again: float, times: int) -> bool:
        """Return True if a signal ended the call. The first signal comes after `delay` seconds, the others
        `again` seconds after each other."""
        self.left, self.again = times, again
        signal.setitimer(signal.ITIMER_REAL, delay)
        try:
            self.under(call)
        except Alarm:
            return True
        finally:
            self.left = 0
            signal.setitimer(signal.ITIMER_REAL, 0)
        return False


# ---- at each step


class StepInterrupts:
    """Raises KeyboardInterrupt before the n-th step of the interpreter within these files, in this thread.
    These are more places than those of a signal's handler, which runs only where a function begins, a loop
    continues, or a call has ended.
    """

    def __init__(self, files: Collection[str]) -> None:
        self.files = frozenset(files)
        self.left, self.thread = 0, 0

    def interrupted(self, call: Callable[[], Any], step: int) -> bool:
        """Return True if the interrupt ended the call. If not, the call has fewer steps."""
        self.left, self.thread = step, get_ident()
        try:
            with self._monitored() if MONITORING else self._traced():
                call()
        except KeyboardInterrupt:
            return True
        return False

    def _step(self) -> None:
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt

    def _watches(self, code: CodeType) -> bool:
        return code.co_filename.rpartition("/")[2] in self.files

    @contextmanager
    def _traced(self) -> Iterator[None]:
        """Trace the steps up to Python 3.11."""

        def within(frame: FrameType, event: str, argument: object) -> Any:
            if event == "opcode":
                self._step()
            return within

        def entered(frame: FrameType, event: str, argument: object) -> Any:
            if not self._watches(frame.f_code):
                return None
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
            return within

        sys.settrace(entered)
        try:
            yield
        finally:
            sys.settrace(None)

    @contextmanager
    def _monitored(self) -> Iterator[None]:
        def stepped(code: CodeType, offset: int) -> Any:
            if not self._watches(code):
                return MONITORING.DISABLE
            if get_ident() == self.thread:
                self._step()
            return None

        MONITORING.use_tool_id(TOOL, "steps")
        MONITORING.register_callback(TOOL, MONITORING.events.INSTRUCTION, stepped)
        MONITORING.set_events(TOOL, MONITORING.events.INSTRUCTION)
        try:
            yield
        finally:
            self.left = 0
            MONITORING.set_events(TOOL, 0)
            MONITORING.free_tool_id(TOOL)


MONITORING: Any = getattr(sys, "monitoring", None)  # from Python 3.12 on
TOOL = 4  # a number that no debugger, profiler or coverage tool uses
