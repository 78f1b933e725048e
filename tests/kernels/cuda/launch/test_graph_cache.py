"""Graph captures: which calls are captured, when, and which captures are dropped."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fmm.arrays import host_memory
from fmm.kernels.cuda.launch.graphs import CALLS_BEFORE_CAPTURE, MAX_COUNTED_KEYS, GraphCache, GraphCaptures
from tests.support.threads import at_once


def capturing(shelf: GraphCache, fails: bool = False) -> tuple[GraphCaptures, list[Any]]:
    """Return GraphCaptures with textual captures, and the list of captured keys."""
    made: list[Any] = []

    def make(key: Any) -> Any:
        made.append(key)
        return None if fails else f"graph of {key}"

    return GraphCaptures(make, shelf), made


def find(replays: GraphCaptures, key: Any) -> Any:
    return replays.find_capture(key, key)


def test_a_call_is_captured_when_it_recurs_and_replayed_from_then_on() -> None:
    replays, made = capturing(GraphCache())
    found = [find(replays, (1, 2, 3, 4)) for _ in range(CALLS_BEFORE_CAPTURE + 3)]
    assert found == [None] * (CALLS_BEFORE_CAPTURE - 1) + ["graph of (1, 2, 3, 4)"] * 4
    assert made == [(1, 2, 3, 4)]


def test_other_pointers_are_another_call() -> None:
    replays, made = capturing(GraphCache())
    for _ in range(CALLS_BEFORE_CAPTURE - 1):
        for key in ((1, 2, 3, 4), (1, 2, 5, 4)):
            assert find(replays, key) is None
    assert not made
    assert find(replays, (1, 2, 5, 4)) == "graph of (1, 2, 5, 4)"


def test_what_cannot_be_captured_is_not_tried_again() -> None:
    replays, made = capturing(GraphCache(), fails=True)
    assert [find(replays, 0) for _ in range(20)] == [None] * 20
    assert made == [0]


def test_many_keys_that_cannot_be_captured_hinder_no_other_key() -> None:
    replays, made = capturing(GraphCache(), fails=True)
    for key in range(3 * MAX_COUNTED_KEYS):
        for _ in range(CALLS_BEFORE_CAPTURE):
            find(replays, key)
    assert len(replays.captured) <= MAX_COUNTED_KEYS
    made.clear()
    for _ in range(CALLS_BEFORE_CAPTURE):
        assert find(replays, "x") is None and find(replays, "y") is None
    assert made == ["x", "y"]


def test_the_cache_is_bounded_and_captures_get_rarer() -> None:
    shelf = GraphCache(limit=3)
    owners = [capturing(shelf)[0] for _ in range(2)]
    for key in range(5):
        for _ in range(100):
            find(owners[key % 2], key)
    kept = {key for owner in owners for key in owner.captured}
    assert kept == {2, 3, 4}
    assert shelf.calls_before_capture == 4 * CALLS_BEFORE_CAPTURE
    assert shelf.clear() == 3 and shelf.calls_before_capture == CALLS_BEFORE_CAPTURE
    assert not any(owner.captured or owner.counts for owner in owners)


@given(st.lists(st.integers(0, 200), max_size=600))
def test_counts_are_bounded_and_captures_belong_to_their_keys(keys: list[int]) -> None:
    replays, made = capturing(GraphCache(limit=8))
    for key in keys:
        assert find(replays, key) in (None, f"graph of {key}")
        assert len(replays.captured) + len(replays.counts) <= MAX_COUNTED_KEYS + 8
    assert all(keys.count(key) >= CALLS_BEFORE_CAPTURE for key in made)


def test_threads_share_a_cache() -> None:
    shelf = GraphCache(limit=5)

    def work(number: int) -> None:
        replays, _ = capturing(shelf)
        for i in range(4000):
            key = number, i // 40 % 17
            assert find(replays, key) in (None, f"graph of {key}")
            if i % 1000 == 999:
                shelf.clear()

    at_once([partial(work, number) for number in range(4)])
    assert shelf.clear() <= 5


def test_release_workspace_calls_its_subscribers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_memory, "_release_callbacks", [])
    shelf = GraphCache()
    replays, _ = capturing(shelf)
    for _ in range(CALLS_BEFORE_CAPTURE):
        find(replays, "x")
    host_memory.register_release_callback(shelf.clear)
    host_memory.release_workspace()
    assert not replays.captured and not replays.counts
