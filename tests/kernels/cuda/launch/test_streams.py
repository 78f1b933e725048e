"""The pool of streams as threads start and end, and handles of each device, on a fake CuPy."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import numpy_cupy
from tests.support.library_functions import Functions
from tests.support.threads import at_once

STREAMS, CUBLAS = "fmm.kernels.cuda.launch.streams", "fmm.kernels.cuda.launch.cublas"


@pytest.fixture
def streams(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """The module, imported anew; the created cuBLAS handles are counted."""
    made: list[int] = []
    with numpy_cupy.in_place(STREAMS, CUBLAS):
        found = import_module(STREAMS)
        monkeypatch.setattr(found, "create_handle", lambda: made.append(1) or len(made))  # type: ignore[func-returns-value]
        yield found, made


def launches(lanes: int, vendor: int) -> Any:
    return SimpleNamespace(stream_count=lanes, vendor_stream_count=vendor)


def in_a_thread(streams: Any, device: int, lanes: int, vendor: int) -> set[int]:
    """Return the streams that a thread has in addition to the caller's."""
    (found,) = at_once([lambda: {x.stream for x in streams.acquire_streams(launches(lanes, vendor), device, 5)[1:]}])
    return set(found)


def test_the_first_stream_is_the_callers(streams: Any) -> None:
    module, made = streams
    (only,) = module.acquire_streams(launches(1, 1), 0, 5)
    assert (only.handle, only.stream) == (1, 5)
    first, *others = module.acquire_streams(launches(4, 3), 0, 5)
    assert (first.handle, first.stream) == (1, 5)
    assert [lane.handle for lane in others] == [2, 3, 0] and len({lane.stream for lane in others}) == 3
    assert module.acquire_streams(launches(4, 3), 0, 5) == [first, *others] and len(made) == 3


def test_successive_threads_reuse_streams(streams: Any) -> None:
    """Streams with cuBLAS handles are reused, since handles are never destroyed."""
    module, made = streams
    mine = {lane.stream for lane in module.acquire_streams(launches(2, 2), 0, 5)}
    used: set[int] = set()
    for _ in range(20):
        used |= in_a_thread(module, 0, 3, 3)
    assert len(used) <= 3 and not mine & used
    assert len(made) <= 2 + 3  # one for each of my two streams, and of the other threads' three
    assert not in_a_thread(module, 1, 3, 3) & used  # another device has its own


def test_a_threads_cublas_handle_is_left_to_the_next_thread(streams: Any) -> None:
    """A handle that is destroyed with its thread crashes the driver where two threads end at once."""
    module, made = streams
    mine = module.thread_cublas_handle(0)
    handles = [at_once([lambda: module.thread_cublas_handle(0)])[0] for _ in range(20)]
    assert len(set(handles)) == 1 and mine not in handles and len(made) == 2
    assert module.thread_cublas_handle(0) == mine
    barrier = threading.Barrier(3, timeout=60)
    assert len(set(at_once([lambda: (module.thread_cublas_handle(0), barrier.wait())[0]] * 3))) == 3


def test_concurrent_threads_have_separate_streams(streams: Any) -> None:
    module, _ = streams
    barrier = threading.Barrier(4, timeout=60)

    def use() -> list[int]:
        found = [lane.stream for lane in module.acquire_streams(launches(3, 3), 0, 5)[1:]]
        barrier.wait()
        return found

    found = [stream for own in at_once([use] * 4) for stream in own]
    assert len(set(found)) == len(found) == 8


def test_each_device_has_a_cublaslt_handle_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuBLASLt ties a handle to the device that is current when the handle is created."""
    made: list[int] = []

    def create(handle: Any) -> int:
        made.append(len(made) + 1)
        handle._obj.value = made[-1]
        return 0

    with numpy_cupy.in_place(CUBLAS):
        cublas = import_module(CUBLAS)
        monkeypatch.setattr(cublas, "load_library", lambda name: Functions(lambda function: create))
        handles = [cublas._cublaslt_library(device)[1].value for device in (0, 1, 0, 1)]
    assert handles == [1, 2, 1, 2]


@pytest.mark.parametrize("major", [12, 13])
def test_cublas_is_the_version_that_cupy_uses(major: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Handles and functions must belong to one library, where both versions are installed."""
    with numpy_cupy.in_place(CUBLAS):
        cublas = import_module(CUBLAS)
        monkeypatch.setattr(cublas.runtime, "runtimeGetVersion", lambda: 1000 * major + 90, raising=False)
        monkeypatch.setattr(cublas.ctypes, "CDLL", lambda name: name)
        assert cublas.load_library("libcublas") == f"libcublas.so.{major}"

        def refuse(name: str) -> None:
            raise OSError(name)

        monkeypatch.setattr(cublas.ctypes, "CDLL", refuse)
        with pytest.raises(ImportError, match=f"libcublas.so.{major} was not found"):
            cublas.load_library("libcublas")


def test_counters_on_the_default_stream_of_each_thread_are_separate(streams: Any) -> None:
    """CUDA gives the default stream of each thread the same handle."""
    module, _ = streams
    barrier = threading.Barrier(4, timeout=60)

    def use(stream: int) -> int:
        found: int = module.stream_counters(0, stream, 8)
        barrier.wait()
        return found

    assert len(set(at_once([lambda: use(2)] * 4))) == 4
    assert len(set(at_once([lambda: use(5)] * 4))) == 1
    assert module.stream_counters(0, 2, 8) == module.stream_counters(0, 2, 5)


def _counters_of_ended_threads(module: Any, count: int) -> list[int]:
    """Return the addresses of the counters of threads that run and end one after the other."""
    return [at_once([lambda: module.stream_counters(0, module.PER_THREAD_STREAM, 8)])[0] for _ in range(count)]


def test_counters_of_ended_threads_are_reused_after_a_wait_for_the_device(
    streams: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels of an ended thread may still write to its counters."""
    module, _ = streams
    most, waits = module.MAX_ABANDONED_COUNTERS, list[int]()
    monkeypatch.setattr(module.runtime, "deviceSynchronize", lambda: waits.append(1))
    found = _counters_of_ended_threads(module, most)
    assert len(set(found)) == most and not waits
    own = module.stream_counters(0, module.PER_THREAD_STREAM, 8)
    assert own in found and len(waits) == 1
    other_device, other_size = module.stream_counters(1, 2, 8), module.stream_counters(0, 2, 16)
    later = _counters_of_ended_threads(module, 10 * most)
    assert {own, other_device, other_size}.isdisjoint(later) and set(later) < set(found) | {later[most - 1]}
    assert len(waits) <= 12


def test_counters_are_allocated_during_a_capture(streams: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    module, _ = streams

    def refuse() -> None:
        raise numpy_cupy.CUDARuntimeError("cudaErrorStreamCaptureUnsupported")

    monkeypatch.setattr(module.runtime, "deviceSynchronize", refuse)
    count = 2 * module.MAX_ABANDONED_COUNTERS
    assert len(set(_counters_of_ended_threads(module, count))) == count
