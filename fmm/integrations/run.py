"""`python -m fmm`: run a program with fmm installed into its libraries.

The program runs as under Python itself. The program's module stays `__main__` until the process ends, since pickle and
threads may need the module after its last line. sys.argv has the program's arguments, and sys.path begins with the
program's folder. The traceback of an exception has no frames of fmm, and the process ends with Python's exit status
for the exception.
"""

from __future__ import annotations

import argparse
import builtins
import json
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

from fmm.integrations.install_targets import INSTALL_TARGETS, INSTALL_VARIABLE, importable_default_targets, install
from fmm.integrations.report import PROCESS_ID_MARK, REPORT_VARIABLE, STDERR_FILE_NAME, report_at_exit
from fmm.output import EXIT_BROKEN_PIPE, redirect_stdout_to_null
from fmm.runtime.show_config import config_facts, show_config
from fmm.version import __version__

USAGE_TEXT = """python -m fmm [--report[=FILE]] [--install NAMES] (script.py | -m module | -c code | -) [its arguments]
       python -m fmm --version [--verbose | --json]"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program on the command line as Python itself would, or print the version."""
    options, program, rest = _parse_arguments(list(sys.argv[1:] if arguments is None else arguments))
    if options.version:
        return _print_version(options)
    if options.report is not None:
        report_at_exit(options.report)
        if PROCESS_ID_MARK in options.report:  # else child processes would overwrite the file
            os.environ[REPORT_VARIABLE] = os.path.abspath(options.report)
    names = _split_names(options.install)
    install(*names)
    os.environ[INSTALL_VARIABLE] = ",".join(names)  # for child processes
    run_program = _prepare_program(options, program, rest)
    try:
        run_program()
    except SystemExit:
        raise
    except BaseException as error:
        error.__traceback__ = _traceback_without_fmm_frames(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        # The exception has been printed, so the hook prints nothing more. The exception is raised again, so that Python
        # sets the exit status, or ends the process by the signal.
        sys.excepthook = _silent_excepthook
        raise
    return 0


def _print_version(options: argparse.Namespace) -> int:
    """Print the version of fmm, with --verbose or --json all that a bug report needs; return the exit code."""
    try:
        if options.json:
            print(json.dumps(config_facts(), indent=1))
        elif options.verbose:
            show_config()
        else:
            print(f"fmm {__version__}")
        print(end="", flush=True)
    except OSError as error:
        redirect_stdout_to_null()
        if isinstance(error, BrokenPipeError):  # the process that reads stdout, for example `head`, has ended
            return EXIT_BROKEN_PIPE
        print(f"fmm: cannot write the output: {error.strerror}", file=sys.stderr)
        return 1
    return 0


def _traceback_without_fmm_frames(trace: TracebackType | None) -> TracebackType | None:
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return trace


def _silent_excepthook(*_: object) -> None: ...


# ---- the program


def _prepare_program(options: argparse.Namespace, program: str, rest: list[str]) -> Callable[[], object]:
    """Set sys.argv, sys.path and `__main__`; return the function that runs the program."""
    if options.module:
        sys.argv = [program, *rest]
        _create_main_module()
        return partial(_run_module, program)  # if the module is missing, runpy prints the error
    if options.code:
        _set_first_sys_path("")
        sys.argv = ["-c", *rest]
        return partial(_run_source, _create_main_module(), program, "<string>")
    sys.argv = [program, *rest]
    if program == "-":
        _set_first_sys_path("")
        source = sys.stdin.read() if sys.stdin else ""  # sys.stdin is None if the shell has closed stdin
        return partial(_run_source, _create_main_module("<stdin>"), source, "<stdin>")
    return _prepare_script_or_archive(program)


def _prepare_script_or_archive(program: str) -> Callable[[], object]:
    """Prepare a script, a compiled script, or a folder or zip archive with a module `__main__`."""
    path = Path(program).absolute()
    if path.is_dir() or is_zipfile(path):
        sys.path.insert(0, str(path))
        if not sys.flags.safe_path:
            del sys.path[1]
        _create_main_module()
        return partial(_run_module, "__main__", False)
    _set_first_sys_path(str(path.resolve().parent))
    try:
        source = path.read_bytes()
    except OSError as error:
        why = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {str(path)!r}: {why}", file=sys.stderr)
        raise SystemExit(2) from None
    if source.startswith(MAGIC_NUMBER):
        return partial(runpy.run_path, program, run_name="__main__")
    module = _create_main_module(str(path), SourceFileLoader("__main__", str(path)))
    return partial(_run_source, module, source, str(path))


def _run_module(name: str, changes_arguments: bool = True) -> None:
    """Run a module by the function of runpy that the interpreter itself calls for `python -m`."""
    run: Callable[[str, bool], Any] = vars(runpy)["_run_module_as_main"]
    run(name, changes_arguments)


def _run_source(module: ModuleType, source: str | bytes, name: str) -> None:
    exec(compile(source, name, "exec", dont_inherit=True), vars(module))


def _create_main_module(file: str = "", loader: Any = BuiltinImporter) -> ModuleType:
    """Create the module `__main__`, with the attributes that Python sets for a program."""
    module = ModuleType("__main__")
    attributes: dict[str, Any] = {"__annotations__": {}, "__builtins__": builtins, "__loader__": loader}
    vars(module).update(attributes | ({"__file__": file, "__cached__": None} if file else {}))
    sys.modules["__main__"] = module
    return module


def _set_first_sys_path(folder: str) -> None:
    """Replace the first entry of sys.path; do nothing in safe-path mode, in which Python adds no entry."""
    if not sys.flags.safe_path:
        sys.path[0] = folder


# ---- the arguments of `python -m fmm`


def _parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, str, list[str]]:
    """Return fmm's options, the program, and the program's own arguments."""
    parser = argparse.ArgumentParser(prog="python -m fmm", usage=USAGE_TEXT, description=__doc__, allow_abbrev=False)
    report_help = "at exit, print which products ran by plans (to a FILE: JSON if it ends in .json, %%p is the process)"
    parser.add_argument("--report", metavar="FILE", help=report_help)
    parser.add_argument(
        "--install",
        default=",".join(importable_default_targets()),
        help=f"names separated by commas: {', '.join(INSTALL_TARGETS)}",
    )
    parser.add_argument("--version", action="store_true", help="print the version and exit")
    parser.add_argument("--verbose", action="store_true", help="after --version: print what a bug report needs")
    parser.add_argument("--json", action="store_true", help="after --version: print what a bug report needs as JSON")
    parser.add_argument("-m", dest="module", action="store_true", help="the program is a module")
    parser.add_argument("-c", dest="code", action="store_true", help="the program is this text")
    parser.add_argument("program", nargs=argparse.REMAINDER)
    options = parser.parse_args(_separated_words(arguments, parser))
    if options.version:
        return options, "", []
    if options.verbose or options.json:
        parser.error("--verbose and --json are options of --version")
    if not options.program:
        parser.error("no program is named")
    names = _split_names(options.install)
    if not names:
        parser.error(f"--install: nothing is named; valid: {', '.join(INSTALL_TARGETS)}")
    for name in names:
        if name not in INSTALL_TARGETS:
            parser.error(f"--install: {name!r} is none of {', '.join(INSTALL_TARGETS)}")
    return options, options.program[0], options.program[1:]


def _split_names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())


def _separated_words(arguments: Sequence[str], parser: argparse.ArgumentParser) -> list[str]:
    """Return the arguments as argparse needs them: `--report` with a file name, and `-mNAME` as two words.

    Without a file name, argparse would take the program's name as the file name of `--report`.
    """
    words, i = list(arguments), 0
    while i < len(words) and words[i].startswith("--"):
        if words[i] == "--report=":
            parser.error("--report=: no file is named; --report alone prints the report to stderr")
        if words[i] == "--report":
            words[i] = f"--report={STDERR_FILE_NAME}"
        i += 2 if words[i] == "--install" else 1
    if i < len(words) and words[i][:2] in ("-m", "-c") and len(words[i]) > 2:  # joined, as Python accepts the options
        words[i : i + 1] = [words[i][:2], words[i][2:]]
    return words
