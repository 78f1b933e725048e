"""Options that several commands of fmm-tune have, or that stand both before a command and after it."""

from __future__ import annotations

import argparse
from functools import partial
from pathlib import Path


def add_json(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Without a default of a command's own, which would undo --json before the command."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")


def add_output(parser: argparse._ActionsContainer, what: str, metavar: str = "PATH") -> None:
    """Where a command writes; likewise without a default. `--into`, as some commands once had it, is understood too."""
    add = partial(parser.add_argument, type=Path, default=argparse.SUPPRESS, metavar=metavar)
    add("--output", help=what)
    add("--into", dest="output", help=argparse.SUPPRESS)
