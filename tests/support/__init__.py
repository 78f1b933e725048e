"""Helpers that tests of several folders share."""

from pathlib import Path

ROOT = Path(__file__).parents[2]  # of the source tree
