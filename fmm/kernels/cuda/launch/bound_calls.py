"""Calls of the CUDA libraries with all arguments bound, made one after the other by one C function.

A signal handler (Ctrl-C) raises between two steps of Python code. Therefore all work that may be interrupted happens
before the first of these calls, and no Python code runs between them: a product is launched as a whole or not at all,
and no stream is left without its synchronization.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import call, length_hint
from typing import Any

# A call that runs no Python. It raises, or returns a status: zero or None for success.
BoundCall = Callable[[], Any]


def make_calls(calls: Sequence[BoundCall]) -> None:
    """Make all of these calls in order.

    If a call fails, the later calls are still made, since some of them synchronize streams. The exception of the failed
    call is raised at the end; an error status becomes a RuntimeError.
    """
    remaining, statuses = iter(calls), list[Any]()
    try:
        statuses.extend(map(call, remaining))
    except BaseException:
        _make_the_rest(remaining)
        raise
    if any(statuses):
        status = next(x for x in statuses if x)
        raise RuntimeError(f"a call of cuBLAS or of the driver failed with status {status}")


def _make_the_rest(remaining: Iterator[BoundCall]) -> None:
    """Make the remaining calls after a failure, or after an interrupt that came before the first call."""
    while length_hint(remaining):
        with suppress(BaseException):
            deque(map(call, remaining), maxlen=0)
