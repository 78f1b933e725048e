"""Measuring time so that a slow or busy machine fails no test: against a yardstick, by turns, the least of several."""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from time import perf_counter


def plain_loop() -> None:
    """18,000 rounds of a plain loop, 2 milliseconds where processors are fast: a measure of the interpreter's speed."""
    counts: dict[int, int] = {}
    for i in range(18_000):
        counts[i % 97] = counts.get(i % 97, 0) + i * i


def least_seconds(*calls: Callable[[], object], turns: int = 60) -> list[float]:
    """Of each call. They take turns, so that all meet the processor at its best, however busy it is in between."""
    least = [inf] * len(calls)
    for _ in range(turns):
        for i, call in enumerate(calls):
            start = perf_counter()
            call()
            least[i] = min(least[i], perf_counter() - start)
    return least


def least_of_tries(measure: Callable[[], float], enough: float, tries: int = 3) -> float:
    """What is measured, at the least of so many tries; they end with one that is below `enough`."""
    least = inf
    for _ in range(tries):
        least = min(least, measure())
        if least < enough:
            break
    return least
