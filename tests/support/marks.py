"""Marks of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_and_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Parameters, of which each is one or a tuple of several: those of the quick run, then those of the slow one."""
    slow_tuples = (x if isinstance(x, tuple) else (x,) for x in slow)
    return [*quick, *(pytest.param(*x, marks=pytest.mark.slow) for x in slow_tuples)]
