"""Calls of the CUDA libraries with all their arguments, made one after the other within one call of C.

What a signal's handler raises (Ctrl-C) comes between two steps of Python code. So all that may be interrupted is done
before the first of these calls, and nothing can come between them: a product is launched as a whole or not at all, and
a stream that others wait for is waited for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import call, length_hint
from typing import Any

# A call that runs no Python. It raises, or returns a status, which is zero or None if all went well.
PreparedCall = Callable[[], Any]


def make_calls(calls: Sequence[PreparedCall]) -> None:
    """Make all of these calls, in order.

    One that fails keeps no later one from being made, since streams wait for each other by some of them. Its exception
    leaves in the end; for a status that is an error, a RuntimeError.
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


def _make_the_rest(remaining: Iterator[PreparedCall]) -> None:
    """Make the calls that remain after a failure, or after an interrupt that came before the first call."""
    while length_hint(remaining):
        with suppress(BaseException):
            deque(map(call, remaining), maxlen=0)
