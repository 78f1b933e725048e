"""Marks of tests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def quick_and_slow(quick: Iterable[Any], slow: Iterable[Any]) -> list[Any]:
    """Return pytest parameters: those of `quick`, and those of `slow` with the mark `slow`. An item may be a
    tuple of several arguments."""
    slow_tuples = (x if isinstance(x, tuple) else (x,) for x in slow)
    return [*quick, *(pytest.param(*x, marks=pytest.mark.slow) for x in slow_tuples)]


def mark_other_cases_slow(items: Iterable[pytest.Item]) -> None:
    """Of each test with the mark `quick_cases`, mark the cases that are not chosen as slow."""
    tests: dict[tuple[str, str], list[pytest.Function]] = defaultdict(list)
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        if isinstance(item, pytest.Function) and item.get_closest_marker("quick_cases") and not is_slow:
            tests[str(item.path), item.originalname].append(item)
    for cases in tests.values():
        mark = cases[0].get_closest_marker("quick_cases")
        assert mark is not None
        values = [frozenset((name, repr(value)) for name, value in x.callspec.params.items()) for x in cases]
        quick = covering_cases(values, *mark.args)
        for i, case in enumerate(cases):
            if i not in quick:
                case.add_marker(pytest.mark.slow)


def covering_cases(cases: Sequence[frozenset[Any]], count: int | None = None) -> set[int]:
    """Return the places of `count` cases, from everywhere in the list, that hold as many different values as possible;
    without a count, of few cases that hold all values."""
    chosen: set[int] = set()
    missing = frozenset[Any]().union(*cases)
    while missing if count is None else len(chosen) < min(count, len(cases)):
        start = len(chosen) * len(cases) // (count or len(cases))
        others = [i % len(cases) for i in range(start, start + len(cases)) if i % len(cases) not in chosen]
        best = max(others, key=lambda i: len(cases[i] & missing))
        chosen.add(best)
        missing -= cases[best]
    return chosen
