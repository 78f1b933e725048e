"""The command fmm-tune."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Sequence

import fmm
from fmm.tuner import agreement, config_commands, measured, papers, predictions, report, tuning

CUT_OFF = 128 + 13  # as if by the signal SIGPIPE, which Python does not heed


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        code = run(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("fmm-tune: interrupted; what was finished is kept", file=sys.stderr)
        return tuning.INTERRUPTED
    except BrokenPipeError:  # as after `| head`; what is left in the buffer goes nowhere, silently
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return CUT_OFF


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="fmm-tune",
        description="Measure this device once and write the config by which fmm.matmul chooses.",
    )
    parser.add_argument("--version", action="version", version=f"fmm-tune {fmm.__version__}")
    tuning.add_options(parser)
    parser.set_defaults(run=tuning.run)
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")
    for group in (config_commands, agreement, measured, predictions, report, papers):
        group.add_parser(commands)
    return parser


if __name__ == "__main__":
    sys.exit(main())
