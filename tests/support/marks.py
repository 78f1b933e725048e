"""Marks of tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def quick_and_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Parameters: those of the quick run, then those of the slow one."""
    return [*quick, *(pytest.param(x, marks=pytest.mark.slow) for x in slow)]
