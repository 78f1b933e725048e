"""Marks of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_and_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Return pytest parameters: those of `quick`, and those of `slow` with the mark `slow`. An item may be a
    tuple of several arguments."""
    slow_tuples = (x if isinstance(x, tuple) else (x,) for x in slow)
    return [*quick, *(pytest.param(*x, marks=pytest.mark.slow) for x in slow_tuples)]
