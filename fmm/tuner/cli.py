"""The command fmm-tune."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import fmm
from fmm.tuner import agreement, config_commands, measured, papers, predictions, report, tuning


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except KeyboardInterrupt:
        print("fmm-tune: interrupted; what was finished is kept", file=sys.stderr)
        return tuning.INTERRUPTED


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
