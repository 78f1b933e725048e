"""Make prepared calls of the CUDA libraries one after the other, inside one C function.

A signal handler (Ctrl-C) can raise an exception between two Python bytecodes, but not inside a C function. Therefore
all arguments are bound before the first call, and no Python code runs between the calls. So a product is launched
completely or not at all, and a join follows every fork of streams.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from operator import call, length_hint
from typing import Any

# A call of a C function with all arguments bound. The call raises an exception or returns a status; the statuses zero
# and None mean success.
BoundCall = Callable[[], Any]


class StatusError(RuntimeError):
    """The error raised if a function that is called through ctypes returns an error status."""

    def __init__(self, function: str, status: int) -> None:
        super().__init__(f"{function} failed with status {status}")
        self.status = status


def run_bound_calls(calls: Sequence[BoundCall]) -> None:
    """Make all calls in order.

    If a call fails, the later calls are still made, because some calls synchronize streams. At the end, the exception
    of the failed call is raised; an error status is raised as a StatusError.
    """
    remaining, statuses = iter(calls), list[Any]()
    try:
        statuses.extend(map(call, remaining))
    except BaseException:
        _run_remaining_calls(remaining)
        raise
    if any(statuses):
        status = next(x for x in statuses if x)
        raise StatusError("a call of cuBLAS or of the driver", status)


def _run_remaining_calls(remaining: Iterator[BoundCall]) -> None:
    """Make the calls that remain after a failed call or an interrupt, and ignore their exceptions."""
    while length_hint(remaining):
        with suppress(BaseException):
            deque(map(call, remaining), maxlen=0)
