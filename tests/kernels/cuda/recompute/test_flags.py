"""Flags for inf and NaN as threads and streams come and go, on a fake CuPy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from tests.support import numpy_cupy
from tests.support.threads import at_once

FLAGS = "fmm.kernels.cuda.recompute.flags"


@pytest.fixture
def flags() -> Iterator[Any]:
    """The module, imported anew: no thread has a flag."""
    with numpy_cupy.in_place(FLAGS):
        yield import_module(FLAGS)


def in_a_thread(call: Callable[[], Any]) -> Any:
    return at_once([call])[0]


def known(flags: Any) -> int:
    """Return the number of flags, in use or idle."""
    flags._collect_abandoned_flags()
    return len(flags._thread_flags.flags.by_stream) + sum(map(len, flags._idle_flags.values()))


def test_a_thread_has_one_flag_a_stream(flags: Any) -> None:
    assert flags.stream_flag(0, 7) is flags.stream_flag(0, 7)
    places = {flags.stream_flag(*key).address for key in ((0, 7), (0, 8), (1, 7), (1, 8))}
    assert len(places) == 4
    counts = {flags.stream_flag(*key).count_address for key in ((0, 7), (0, 8), (1, 7), (1, 8))}
    assert len(counts) == 4


def test_concurrent_threads_have_separate_flags(flags: Any) -> None:
    barrier = threading.Barrier(8, timeout=60)

    def use() -> Any:
        found = flags.stream_flag(0, 7)
        barrier.wait()
        return found

    assert len({flag.address for flag in at_once([use] * 8)}) == 8


def test_successive_threads_reuse_a_flag(flags: Any) -> None:
    """A thread takes the flag that another one left on the stream, with its prepared calls."""
    mine = flags.stream_flag(0, 7)
    first = in_a_thread(lambda: flags.stream_flag(0, 7))
    first.prepared[1] = "a call"
    assert first is not mine
    for _ in range(100):
        assert in_a_thread(lambda: flags.stream_flag(0, 7)) is first
    assert first.prepared and known(flags) == 2


def test_the_default_stream_of_an_ended_thread_leaves_no_flag(flags: Any) -> None:
    """CUDA gives the default stream of each thread the same handle, but launches on two of them run in any order."""
    left = [in_a_thread(lambda: flags.stream_flag(0, flags.PER_THREAD_STREAM)) for _ in range(5)]
    mine = flags.stream_flag(0, flags.PER_THREAD_STREAM)
    assert len({flag.address for flag in (*left, mine)}) == 6
    assert flags.stream_flag(0, flags.PER_THREAD_STREAM) is mine
    assert known(flags) == 6


@pytest.mark.slow
def test_a_flag_stays_with_its_stream(flags: Any) -> None:
    """Launches on the old stream may still be running."""
    left = [in_a_thread(lambda stream=stream: flags.stream_flag(0, stream)).address for stream in range(50)]  # type: ignore[misc]
    assert flags.stream_flag(0, 50).address not in left and flags.stream_flag(1, 0).address not in left
    assert len(set(left)) == 50


def test_a_thread_that_uses_ever_new_streams_keeps_the_newest(flags: Any) -> None:
    for stream in range(3 * flags.MAX_FLAGS_PER_THREAD):
        flags.stream_flag(0, stream).prepared[1] = "a call"
    kept = flags._thread_flags.flags.by_stream
    assert list(kept) == [
        (0, stream) for stream in range(2 * flags.MAX_FLAGS_PER_THREAD, 3 * flags.MAX_FLAGS_PER_THREAD)
    ]
    flags._collect_abandoned_flags()
    assert (
        sum(bool(flag.prepared) for idle in flags._idle_flags.values() for flag in idle) <= flags.MAX_FLAGS_PER_THREAD
    )


def test_flag_memory_stops_growing(flags: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unused flags go to another stream only after a wait for the device."""
    monkeypatch.setattr(flags, "FLAGS_PER_CHUNK", 64)
    monkeypatch.setattr(flags, "MAX_FLAGS_PER_THREAD", 8)
    done: list[int] = [0]
    made: list[Any] = []
    memory = flags._FlagChunk
    monkeypatch.setattr(flags, "_FlagChunk", lambda: made.append(memory()) or made[-1])  # type: ignore[func-returns-value]

    def synchronize() -> None:
        done[0] = stream

    monkeypatch.setattr(flags.runtime, "deviceSynchronize", synchronize)
    used: dict[int, int] = {}
    for stream in range(2000):
        address = flags.stream_flag(0, stream).address
        assert used.get(address, -1) < done[0] or address not in used  # not since the device was last waited for
        used[address] = stream
    assert len(made) == 1 and len(used) == 64 and done[0] > 1900
    assert known(flags) <= 64


def test_capture_allocates_instead_of_waiting(flags: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "FLAGS_PER_CHUNK", 64)
    monkeypatch.setattr(flags, "MAX_FLAGS_PER_THREAD", 8)

    def refuse() -> None:
        raise numpy_cupy.CUDARuntimeError("cudaErrorStreamCaptureUnsupported")

    monkeypatch.setattr(flags.runtime, "deviceSynchronize", refuse)
    assert len({flags.stream_flag(0, stream).address for stream in range(130)}) == 130


@pytest.mark.parametrize("recomputed", [1, 5])
def test_a_reused_flag_starts_its_count_anew(recomputed: int, flags: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flags, "FLAGS_PER_CHUNK", 4)
    monkeypatch.setattr(flags, "MAX_FLAGS_PER_THREAD", 1)
    first = flags.stream_flag(0, 0)
    chunk, number = first.entry
    chunk.counts[number] = 5
    assert first.recomputed_count == 5 and not first.allows_plan()
    again = next(flag for stream in range(1, 9) if (flag := flags.stream_flag(0, stream)).entry == first.entry)
    assert again.recomputed_count == 0 and again.allows_plan()
    chunk.counts[number] = recomputed  # the device counts from zero, since a new flag is set to zero
    assert again.recomputed_count == recomputed and not again.allows_plan()


def test_reset_flags(flags: Any) -> None:
    flag = flags.stream_flag(0, 7)
    chunk, number = flag.entry
    chunk.counts[number] = 5
    flag.prepared[1] = "a call"
    assert not flag.allows_plan()
    flags.reset_flags()
    found = flags.stream_flag(0, 7)
    assert found.allows_plan() and not found.prepared
