"""Counting the products of a program, by what they were answered by, for whoever wants a report."""

from __future__ import annotations

import atexit
import json
import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fmm.config.environment import log_once
from fmm.config.store import replace_file
from fmm.integrations.install_targets import PLACES
from fmm.integrations.report_value import (
    Counted,
    Kind,
    Outcome,
    Report,
    outcome_at_once,
    outcome_of,
    unseen_products,
)
from fmm.kernels.cpu.worker_threads import ForkSafeLock, after_fork_in_child
from fmm.runtime.call_record import RECORDING, CallRecord, clear_record, last_record
from fmm.runtime.decisions.decide import Decision

_lock = ForkSafeLock()  # of all counts


@dataclass
class Counts:
    """How many products of which kind came to what."""

    counts: Counter[tuple[Kind, Outcome]] = field(default_factory=Counter)
    at_once: dict[Kind, Outcome] = field(default_factory=dict)  # of products that the library was asked for at once

    def note(self, kind: Kind, outcome: Outcome) -> None:
        with _lock.now:
            self.counts[kind, outcome] += 1

    def report(self, unseen: str = "") -> Report:
        with _lock.now:  # threads of the program may go on multiplying
            found = [Counted(times, *key) for key, times in self.counts.items()]
        return Report(tuple(sorted(found, key=lambda product: -product.flops)), unseen)

    def __str__(self) -> str:
        return str(self.report())


_counts: Counts | None = None
_watchers: list[Callable[[], None]] = []


def begin_report() -> Counts:
    """From now on products are counted."""
    global _counts
    _counts = Counts()
    _tell_watchers()
    return _counts


def end_report() -> None:
    global _counts
    _counts = None
    _tell_watchers()


def _tell_watchers() -> None:
    RECORDING.on = reporting()
    for told in tuple(_watchers):
        told()


def reporting() -> bool:
    return _counts is not None


def watch_counting(told: Callable[[], None]) -> Callable[[], None]:
    """Have this called when counting begins or ends; what ends that."""
    _watchers.append(told)
    return lambda: _watchers.remove(told)


def report() -> Report:
    """Which products of programs ran by plans so far, and which were left to the libraries, and why; print it.

    Counting begins with the first call of this, unless FMM_REPORT or `python -m fmm --report` began it. A forked
    process counts its own products.
    """
    counts = _counts or begin_report()
    return counts.report(unseen_products([name for name, place in PLACES.items() if place.was_in]))


def _begin_anew() -> None:
    if reporting():
        begin_report()


after_fork_in_child(_begin_anew)


# ---- one product


def counted(kind: Kind, product: Callable[[], Any], decided: Callable[[], Decision]) -> Any:
    """The product, counted by what answered it. `decided`: what would, where nothing was noted."""
    clear_record()
    try:
        c = product()
    except Exception as error:  # a call that the library rejects
        count(kind, Outcome("", str(error)))
        raise
    answer = last_record()
    if answer is None:
        count(kind, _at_once(kind, decided))
    else:
        count_answer(kind, answer)
    return c


def count(kind: Kind, outcome: Outcome) -> None:
    if (counts := _counts) is not None:
        counts.note(kind, outcome)


def count_answer(kind: Kind, answer: CallRecord) -> None:
    """By what was noted of the product; a decision knows its type better than the operands do (TF32, say)."""
    problem = answer.decision.problem
    count(kind if problem is None else kind._replace(dtype=problem.dtype), outcome_of(answer))


def _at_once(kind: Kind, decided: Callable[[], Decision]) -> Outcome:
    """Asked for once for each kind."""
    known = {} if _counts is None else _counts.at_once
    if kind not in known:
        try:
            known[kind] = outcome_at_once(decided())
        except Exception as error:  # a report is no place to reject a call
            known[kind] = Outcome("", str(error))
    return known[kind]


VARIABLE = "FMM_REPORT"
PROCESS = "%p"  # in a file's name: the number of the process
STDERR = ""
LAST = -100  # among what multiprocessing calls at a process's end

_wanted: dict[str, int] = {}  # where reports go, and in which process that was asked for


def report_as_told() -> None:
    """To the file that the environment variable FMM_REPORT names, for programs that say nothing themselves."""
    if name := os.environ.get(VARIABLE, ""):
        report_at_exit(name)


def report_at_exit(name: str = STDERR) -> None:
    """Products are counted from now on. The report comes when the process's threads have ended, and what it registered
    with atexit: of that, what was registered first is called last."""
    name = os.path.abspath(name) if name else STDERR  # the program may go to another folder
    if not reporting():
        begin_report()
    if name not in _wanted:
        _wanted[name] = os.getpid()
        atexit.register(_end, name)


def _end(name: str) -> None:
    """On stderr not in a process that was forked off."""
    if name:
        write_report(Path(name.replace(PROCESS, str(os.getpid()))))
    elif _wanted[STDERR] == os.getpid():
        print(report(), file=sys.stderr)


def write_report(path: Path) -> None:
    """As JSON, if the file's name says so, else as text; whole or not at all."""
    found = report()
    text = json.dumps(found.fields, indent=1) if path.suffix == ".json" else str(found)
    try:
        replace_file(path, text + "\n")
    except OSError as error:
        log_once(f"the report is not written to {str(path)!r}: {error.strerror}")


# ---- processes of multiprocessing that are forked: they end without what atexit knows (up to Python 3.13)


def _write_all() -> None:
    for name in filter(None, _wanted):
        _end(name)


def _wait_for_its_end() -> None:
    """In a forked child. What multiprocessing calls at its end, it forgets first: once it has, it is told."""
    util = sys.modules.get("multiprocessing.util")
    if util is not None and _wanted:
        util.register_after_fork(_write_all, lambda write: util.Finalize(None, write, exitpriority=LAST))


after_fork_in_child(_wait_for_its_end)
