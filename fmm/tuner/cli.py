"""The command fmm-tune."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import fmm
from fmm.tuner import tune
from fmm.tuner.commands import config_file, measure, paper, predict, refit, report, show

CUT_OFF = 128 + 13  # as if by the signal SIGPIPE, which Python does not heed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    try:
        options = _parsed(arguments)
        run: Callable[[argparse.Namespace], int] = options.run
        code = run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("fmm-tune: interrupted; what was finished is kept", file=sys.stderr)
        return tune.INTERRUPTED
    except BrokenPipeError:  # as after `| head`; what is left in the buffer goes nowhere, silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_OFF


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options; of what a command does not know, the usage of that command."""
    parser, commands = _parsers()
    options, unknown = parser.parse_known_args(arguments)
    if unknown:
        commands.choices.get(options.command, parser).error(f"unrecognized arguments: {' '.join(unknown)}")
    return options


def _parsers() -> tuple[argparse.ArgumentParser, argparse._SubParsersAction[argparse.ArgumentParser]]:
    """Of the whole command, and of the commands in it."""
    parser = argparse.ArgumentParser(
        prog="fmm-tune",
        description="Measure this device once and write the config by which fmm.matmul chooses.",
    )
    parser.add_argument("--version", action="version", version=f"fmm-tune {fmm.__version__}")
    tune.add_options(parser)
    parser.set_defaults(run=tune.run_tune)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for group in (show, config_file, refit, measure, predict, report, paper):
        group.add_parser(commands)
    return parser, commands


if __name__ == "__main__":
    sys.exit(main())
