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

# Of C alone. It returns a status, which is zero or None where all went well, or raises.
PreparedCall = Callable[[], Any]


def make_calls(calls: Sequence[PreparedCall]) -> None:
    """All of them, in order. One that fails keeps no later one from being made, those by which streams wait for each
    other among them; its exception leaves in the end, or RuntimeError."""
    left, statuses = iter(calls), list[Any]()
    try:
        statuses.extend(map(call, left))
    except BaseException:
        _make_the_rest(left)
        raise
    if any(statuses):
        status = next(x for x in statuses if x)
        raise RuntimeError(f"a call of cuBLAS or of the driver failed with status {status}")


def _make_the_rest(left: Iterator[PreparedCall]) -> None:
    """After a failure, or an interrupt that came before the first call."""
    while length_hint(left):
        with suppress(BaseException):
            deque(map(call, left), maxlen=0)
