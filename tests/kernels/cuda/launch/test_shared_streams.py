"""Threads that share a stream, interleaved step by step on a simulated driver, each check in a process of its own."""

from __future__ import annotations

import pytest

from tests.support.interrupts import interpreter_output

CHECKS = ("handed-over", "evicted", "interleaved", "code", "compile-once", "capture-streams", "preparation")


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("check", CHECKS)
def test_no_thread_misuses_what_threads_share(check: str) -> None:
    """Graphs, contexts, memory and compiled code: nothing is used after it is gone, or by two threads at once."""
    assert interpreter_output("-m", "tests.support.stream_sharers", check).split() == ["ok"]
