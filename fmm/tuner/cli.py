"""Run the command fmm-tune: parse the arguments, and return the exit code, even after Ctrl-C or for a closed pipe."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from types import MappingProxyType

import fmm
from fmm.output import EXIT_BROKEN_PIPE, redirect_stdout_to_null
from fmm.tuner import tune
from fmm.tuner.commands import bench, export, merge, paper, predict, refit, report, show, verify


def main(
    arguments: Sequence[str] | None = None,
    ignored: Mapping[str, str] = MappingProxyType({}),
    began: float | None = None,
) -> int:
    """Run fmm-tune with these arguments, and return the exit code.

    `ignored` has the environment variables that the caller removed from os.environ before NumPy was imported.
    `began` is the value of time.monotonic() when the command began, by default now.
    """
    began = monotonic() if began is None else began
    for stream in ("stdout", "stderr"):  # sys.stdout is None if the shell has closed stdout, as in `fmm-tune show >&-`
        if getattr(sys, stream) is None:
            setattr(sys, stream, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    code, options = 0, None
    try:
        options = parse_arguments(arguments)
        options.ignored_variables, options.began = ignored, began
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        note = "; finished results are written" if options is not None and options.command is None else ""
        print(f"fmm-tune: interrupted{note}", file=sys.stderr)
        return tune.EXIT_INTERRUPTED
    except BrokenPipeError:  # the process that reads stdout, for example `head`, has ended
        redirect_stdout_to_null()
        return EXIT_BROKEN_PIPE
    # The output could not be written to stdout, for example on a full disk. Only errors of stdout are caught here: each
    # command catches and reports errors of its files.
    except OSError as error:
        redirect_stdout_to_null()
        if not code:
            print(f"fmm-tune: cannot write the output: {error.strerror or error}", file=sys.stderr)
        return code or 1


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the parsed options; for an unknown option print the usage of the command and exit with code 2."""
    parser, commands = build_parsers()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices.get(options.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.refit_part is not None and options.refit is None:
        parser.error("--refit-part is an option of --refit")
    if options.command is None and options.refit is not None:
        options.run = refit.run_refit
    return options


def build_parsers() -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]]:
    """Return the parser of fmm-tune, and the parsers of its subcommands."""
    parser = argparse.ArgumentParser(
        prog="fmm-tune",
        description="Without a COMMAND: measure this device, which takes minutes, and write the config by which "
        "fmm.matmul chooses.",
    )
    parser.add_argument("--version", action="version", version=f"fmm-tune {fmm.__version__}")
    tune.add_options(parser)
    refit.add_options(parser)
    parser.set_defaults(run=tune.run_tune)
    commands = parser.add_subparsers(title="commands", metavar="[COMMAND]", dest="command")
    for module in (show, predict, bench, verify, report, export, merge, paper):
        module.add_parser(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
