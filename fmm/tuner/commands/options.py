"""Options that stand both before a command of fmm-tune and after it."""

from __future__ import annotations

import argparse


def add_json(parser: argparse._ActionsContainer, what: str = "JSON") -> None:
    """Without a default of a command's own, which would undo --json before the command."""
    parser.add_argument("--json", action="store_true", default=argparse.SUPPRESS, help=f"print {what}")
