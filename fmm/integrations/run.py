"""Running a program with fmm installed for its libraries: what `python -m fmm` does."""

from __future__ import annotations

import argparse
import os
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path

from fmm.integrations.places import PLACES, USUAL, VARIABLE, install
from fmm.integrations.report import begin_report

USAGE = "python -m fmm [--report] [--install NAMES] (script.py | -m module) [arguments of the program]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it as Python itself would; what it raises is Python's to show."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, program, rest = _parsed(given)
    report = begin_report() if options.report else None
    names = tuple(name.strip() for name in options.install.split(",") if name.strip())
    install(*names)
    os.environ[VARIABLE] = ",".join(names)  # for processes that the program starts
    try:
        if options.module:
            sys.argv = [program, *rest]
            sys.path.insert(0, os.getcwd())
            runpy.run_module(program, run_name="__main__", alter_sys=True)
        else:
            sys.argv = [program, *rest]
            sys.path[0] = str(Path(program).resolve().parent)
            runpy.run_path(program, run_name="__main__")
    finally:
        if report is not None:
            print(report, file=sys.stderr)
    return 0


def _parsed(given: list[str]) -> tuple[argparse.Namespace, str, list[str]]:
    """Our own options, which stand before the program; the program; what is the program's."""
    parser = argparse.ArgumentParser(prog="python -m fmm", usage=USAGE, description=__doc__)
    parser.add_argument("--report", action="store_true", help="at the end, say which products ran by plans")
    parser.add_argument("--install", default=",".join(USUAL), help=f"between commas: {', '.join(PLACES)}")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(given)
    if not options.program:
        parser.error("no program is named")
    for name in options.install.split(","):
        if name.strip() and name.strip() not in PLACES:
            parser.error(f"--install: {name.strip()!r} is none of {', '.join(PLACES)}")
    return options, options.program[0], options.program[1:]
