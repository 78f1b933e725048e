"""Launches with an exception at every step: on a driver that only records its calls, in a separate process."""

from __future__ import annotations

import pytest

from tests.support.interrupts import interpreter_output


@pytest.mark.slow
@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_each_step(every: int) -> None:
    """A product or a stack is launched as a whole or not at all; no call gets another one's addresses."""
    found = interpreter_output("-m", "tests.support.interrupted_player", str(every), seconds=1500)
    steps = [count * every for count in map(int, found.split())]
    assert all(count >= least for count, least in zip(steps, (15000, 1500, 50), strict=True)), steps


@pytest.mark.slow
def test_later_launches_are_made_after_a_failure() -> None:
    """Streams are still synchronized, and cuBLAS is restored."""
    assert int(interpreter_output("-m", "tests.support.interrupted_player", "failures")) > 100


def test_the_status_of_a_leading_overlapping_launch_is_raised() -> None:
    assert int(interpreter_output("-m", "tests.support.interrupted_player", "leading")) > 1


def test_a_missing_candidate_is_refused_before_any_launch() -> None:
    """With and without `out`, the vendor does not multiply in its place."""
    assert int(interpreter_output("-m", "tests.support.interrupted_player", "refusals")) == 4


def test_memory_that_runs_out_is_the_librarys_error() -> None:
    """Of CUDA's runtime, its driver and cuBLAS; a capture without memory for its counters is given up."""
    assert interpreter_output("-m", "tests.support.interrupted_player", "memory").split() == ["33", "2"]


def test_a_graph_that_cannot_be_updated_is_replayed_at_its_own_addresses() -> None:
    assert int(interpreter_output("-m", "tests.support.interrupted_player", "fixed")) == 3
