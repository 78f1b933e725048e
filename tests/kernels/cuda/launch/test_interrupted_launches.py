"""Launches, whatever is raised when: on a driver that only notes what it is told, in a process of its own."""

from __future__ import annotations

import pytest

from tests.support.interrupts import printed


@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.slow)])
def test_an_interrupt_at_each_step(every: int) -> None:
    """A product is launched as a whole or not at all, a stack too; no call is told another one's addresses."""
    found = printed("-m", "tests.support.interrupted_player", str(every), seconds=1500)
    steps = [count * every for count in map(int, found.split())]
    assert all(count >= least for count, least in zip(steps, (15000, 1500, 50), strict=True)), steps


def test_a_launch_that_fails_keeps_no_other_from_being_made() -> None:
    """Streams that wait for each other still do, and cuBLAS is set back."""
    assert int(printed("-m", "tests.support.interrupted_player", "failures")) > 100


def test_a_candidate_that_is_not_there_is_refused_before_anything_is_launched() -> None:
    """Whether `out` was given or not, the vendor does not multiply in its place behind the caller's back."""
    assert int(printed("-m", "tests.support.interrupted_player", "refusals")) == 4
