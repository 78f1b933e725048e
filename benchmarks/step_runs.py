"""Steps of `make gpu-check` as processes: some beside each other, each within its time, its output in a file."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from math import inf
from pathlib import Path
from typing import NamedTuple

from benchmarks.gpu_steps import Step

GRACE = 8.0  # seconds from Ctrl-C, which a process hears first, to its end
POLL = 0.2
ROUNDED_OFF = 0.85  # of a step's time is what it is told: what it has begun by then it may end
NEARLY = 0.9
SHOWN = 25  # last lines of what a step has said
TIME_WAS_UP = "time was up"


class Ended(NamedTuple):
    """How a step ended: `seconds` are those that it took, of so many that were `allowed`."""

    step: Step
    status: int
    seconds: float
    allowed: float
    stopped: bool
    log: Path

    @property
    def told(self) -> float:
        return ROUNDED_OFF * self.allowed if self.step.told else inf

    def outcome(self, whole: float) -> str:
        """In words; `whole`: the seconds that the call has, of which each step is given what is left.

        Time was up for a step that goes on when it is run again, and for one that had less than it may take because
        others came first. Else it has failed.
        """
        if self.status == 0 and not (self.step.goes_on and self.seconds >= NEARLY * self.told):
            return "passed"
        if self.status != 0 and not self.stopped:
            return f"failed with status {self.status}"
        if self.step.goes_on or self.allowed < min(self.step.most, NEARLY * whole):
            return f"{TIME_WAS_UP} after {self.seconds:.0f} s"
        return f"failed: stopped after {self.seconds:.0f} s"


class _Running:
    def __init__(self, step: Step, left: float, notes: Path) -> None:
        self.step, self.began, self.allowed = step, time.monotonic(), min(step.most, left)
        self.log, self.warned = notes / f"{step.name.replace(' ', '-')}.txt", inf
        told = (step.told, f"{ROUNDED_OFF * self.allowed:.0f}") if step.told else ()
        with self.log.open("w", encoding="utf-8") as file:
            # In a group of its own, so that all that it has begun can be ended with it.
            self.process = subprocess.Popen(
                (*step.command, *told), stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )

    def ended(self) -> Ended | None:
        """If it is; if its time is up, it is asked to end, and then ended."""
        status, now = self.process.poll(), time.monotonic()
        if status is not None:
            self.end(signal.SIGKILL)  # what it has left behind
            return Ended(self.step, status, now - self.began, self.allowed, self.warned < inf, self.log)
        if self.warned == inf and now - self.began > self.allowed:
            self.warned = now
            self.end(signal.SIGINT)
        elif now - self.warned > GRACE:
            self.end(signal.SIGKILL)
        return None

    def end(self, how: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, how)


def run_together(batch: Sequence[Step], left: float, notes: Path) -> list[Ended]:
    """All of these at the same time, within so many seconds; what they end as is said as they end."""
    notes.mkdir(parents=True, exist_ok=True)
    print(*(f"{step.name} begins" for step in batch), sep="\n", flush=True)
    running, found = [_Running(step, left, notes) for step in batch], list[Ended]()
    try:
        while running:
            for one in list(running):
                if (ended := one.ended()) is not None:
                    running.remove(one)
                    found.append(ended)
            time.sleep(POLL if running else 0)
    finally:
        for one in running:
            one.end(signal.SIGKILL)
    return found


def last_lines(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    return "\n".join(f"    {line[:200]}" for line in lines[-SHOWN:])
