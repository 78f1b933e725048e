"""Reports at the end of a process: on stderr, or in the file that FMM_REPORT or `--report=FILE` names."""

from __future__ import annotations

import atexit
import json
import os
import sys
from pathlib import Path

from fmm.config.environment import log_once
from fmm.config.store import replace_file
from fmm.integrations.report import begin_report, report, reporting
from fmm.kernels.cpu.threads.fork_safe import in_child

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


in_child(_wait_for_its_end)
