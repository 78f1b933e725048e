"""Running a program with fmm installed for its libraries: what `python -m fmm` does.

The program finds what it would find if Python itself ran it: its own module as `__main__`, as long as the process lives
(what it pickles, and threads that go on after its last line, look there), its arguments, its folder first among the
paths. What it raises is shown without our frames, and ends the process as it would without us.
"""

from __future__ import annotations

import argparse
import builtins
import os
import runpy
import sys
from collections.abc import Callable, Sequence
from functools import partial
from importlib.machinery import BuiltinImporter, SourceFileLoader
from importlib.util import MAGIC_NUMBER
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any
from zipfile import is_zipfile

from fmm.integrations.install_targets import PLACES, VARIABLE, install, usual_here
from fmm.integrations.report import PROCESS, STDERR, report_at_exit
from fmm.integrations.report import VARIABLE as REPORT_VARIABLE

USAGE = "python -m fmm [--report[=FILE]] [--install NAMES] (script.py | -m module | -c code | -) [its arguments]"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs it as Python itself would."""
    options, program, rest = _parsed(list(sys.argv[1:] if arguments is None else arguments))
    if options.report is not None:
        report_at_exit(options.report)
        if PROCESS in options.report:  # else they would all write the same file
            os.environ[REPORT_VARIABLE] = os.path.abspath(options.report)
    names = _names(options.install)
    install(*names)
    os.environ[VARIABLE] = ",".join(names)  # for processes that the program starts
    work = _prepared(options, program, rest)
    try:
        work()
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = _own_frames_left_out(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        sys.excepthook = _shown_already  # and the rest is Python's: the status, or the signal's end
        raise
    return 0


def _own_frames_left_out(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _shown_already(*_: object) -> None: ...


# ---- the program


def _prepared(options: argparse.Namespace, program: str, rest: list[str]) -> Callable[[], object]:
    """What runs it, all that it may look at being in its place."""
    if options.module:
        sys.argv = [program, *rest]
        _main_module()
        return partial(_run_module, program)  # which finds the module, and says so if there is none
    if options.code:
        _put_first("")
        sys.argv = ["-c", *rest]
        return partial(_run_source, _main_module(), program, "<string>")
    sys.argv = [program, *rest]
    if program == "-":
        _put_first("")
        return partial(_run_source, _main_module("<stdin>"), sys.stdin.read(), "<stdin>")
    return _prepared_file(program)


def _prepared_file(program: str) -> Callable[[], object]:
    """A script; a folder or an archive with a module `__main__`; what a compiler made of a script."""
    path = Path(program).absolute()
    if path.is_dir() or is_zipfile(path):
        sys.path.insert(0, str(path))
        if not sys.flags.safe_path:
            del sys.path[1]
        _main_module()
        return partial(_run_module, "__main__", False)
    _put_first(str(path.resolve().parent))
    try:
        source = path.read_bytes()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {str(path)!r}: {why}", file=sys.stderr)
        raise SystemExit(2) from None
    if source.startswith(MAGIC_NUMBER):
        return partial(runpy.run_path, program, run_name="__main__")
    module = _main_module(str(path), SourceFileLoader("__main__", str(path)))
    return partial(_run_source, module, source, str(path))


def _run_module(name: str, changes_arguments: bool = True) -> None:
    """As the interpreter itself does it, by the function that it calls for that."""
    run: Callable[[str, bool], Any] = vars(runpy)["_run_module_as_main"]
    run(name, changes_arguments)


def _run_source(module: ModuleType, source: str | bytes, name: str) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))


def _main_module(file: str = "", loader: Any = BuiltinImporter) -> ModuleType:
    """The module `__main__`, as a program finds it."""
    module = ModuleType("__main__")
    found: dict[str, Any] = {"__annotations__": {}, "__builtins__": builtins, "__loader__": loader}
    vars(module).update(found | ({"__file__": file, "__cached__": None} if file else {}))
    sys.modules["__main__"] = module
    return module


def _put_first(folder: str) -> None:
    """In the place of the current folder, which `python -m fmm` has put first, unless it was told to put nothing
    there."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


# ---- our own arguments


def _parsed(given: list[str]) -> tuple[argparse.Namespace, str, list[str]]:
    """Our own options, which stand before the program; the program; what is the program's."""
    parser = argparse.ArgumentParser(prog="python -m fmm", usage=USAGE, description=__doc__, allow_abbrev=False)
    told = (
        "at the end, say on stderr which products ran by plans; in a file: JSON if it ends in .json, %%p is the process"
    )
    parser.add_argument("--report", metavar="FILE", help=told)
    parser.add_argument("--install", default=",".join(usual_here()), help=f"between commas: {', '.join(PLACES)}")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("-c", dest="code", action="store_true", help="the program is this text")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(_with_report_named(given, parser))
    if not options.program:
        parser.error("no program is named")
    names = _names(options.install)
    if not names:
        parser.error(f"--install: nothing is named; valid: {', '.join(PLACES)}")
    for name in names:
        if name not in PLACES:
            parser.error(f"--install: {name!r} is none of {', '.join(PLACES)}")
    return options, options.program[0], options.program[1:]


def _names(between_commas: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in between_commas.split(",") if name.strip())


def _with_report_named(given: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """`--report` alone, among our own options, names no file: argparse would take the program for one."""
    words, i = list(given), 0
    while i < len(words) and words[i].startswith("--"):
        if words[i] == "--report=":
            parser.error("--report=: no file is named; --report alone prints the report on stderr")
        if words[i] == "--report":
            words[i] = f"--report={STDERR}"
        i += 2 if words[i] == "--install" else 1
    return words
