"""Manage the streams of a launch list, their synchronization, and counters in device memory.

Stream 0 is the caller's stream. Every other stream has its own event and its own cuBLAS handle. A fork makes the other
streams wait for stream 0, and a join makes stream 0 wait for the other streams.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from functools import partial
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch.bound_calls import BoundCall
from fmm.kernels.cuda.launch.cublas import StreamContext, create_handle
from fmm.kernels.cuda.launch_list import PER_THREAD_STREAM, LaunchList, StreamSync


def make_context_current(device: int) -> None:
    """Make the CUDA context of this device current in the calling thread; `device` is the thread's current device.

    The driver's functions need a current context, but only a call of CUDA's runtime makes a context current.
    """
    runtime.setDevice(device)


def acquire_streams(launches: LaunchList, device: int, stream: int) -> list[StreamContext]:
    """Return the streams of a launch list, the caller's stream first; each stream that needs cuBLAS has a handle."""
    if launches.stream_count == 1:
        return [StreamContext(thread_cublas_handle(device) if launches.vendor_stream_count else 0, stream, 0)]
    first, *others = _streams_of_thread(device, launches.stream_count, launches.vendor_stream_count)
    return [
        StreamContext(first.handle, stream, first.event.ptr),
        *(StreamContext(x.handle, x.stream.ptr, x.event.ptr) for x in others),
    ]


def thread_cublas_handle(device: int) -> int:
    """Return the calling thread's cuBLAS handle on the current device; `device` is the index of this device.

    CuPy's own handle is not used: when a thread ends, CuPy destroys the thread's handle and waits for the device, and
    driver 580.159 crashes if another thread ends during this wait. fmm never destroys a handle: a new thread takes over
    the handle of an ended thread.
    """
    streams = _thread_streams.own.by_device.get(device)
    first = streams[0] if streams and streams[0].handle else _streams_of_thread(device, 1, 1)[0]
    return first.handle


def stream_sync_calls(sync: StreamSync, streams: list[StreamContext]) -> list[BoundCall]:
    """Return the calls of a fork (all streams wait for stream 0) or of a join (stream 0 waits for all streams)."""
    first, *others = streams
    pairs = [(first, other) if sync is StreamSync.FORK else (other, first) for other in others]
    cupy_runtime = cupy.cuda.runtime
    recorded = dict.fromkeys((before.event, before.stream) for before, _ in pairs)
    calls: list[BoundCall] = [partial(cupy_runtime.eventRecord, event, stream) for event, stream in recorded]
    return calls + [partial(cupy_runtime.streamWaitEvent, then.stream, before.event) for before, then in pairs]


# ---- the pool of streams


class _PooledStream:
    """A stream with its own event and cuBLAS handle.

    Stream 0 of a launch list is the caller's stream, with the event and the handle of the thread's first pooled stream.
    """

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.handle = 0


# Streams of threads that have ended, with their device numbers. If a new thread takes a free stream, its launches run
# after all launches that the ended thread made on the stream.
_free_streams: deque[tuple[int, _PooledStream]] = deque()

_CounterKey = tuple[int, int, int]  # device number, stream, number of counters
# The keys and addresses of counters on PER_THREAD_STREAM of threads that have ended. Kernels of the ended threads may
# still write to these counters.
_abandoned_counters: deque[tuple[_CounterKey, int]] = deque()


class _StreamOwner:
    """The streams that one thread owns, by device number, and the counters of its PER_THREAD_STREAM.

    When the thread ends, its streams become free for other threads, because cuBLAS handles are large, and its counters
    are abandoned. `__del__` takes no lock, because a thread can end at any moment.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, list[_PooledStream]] = {}
        self.counters: dict[_CounterKey, int] = {}  # addresses of the counters for launches on PER_THREAD_STREAM

    def __del__(
        self,
        left: deque[tuple[int, _PooledStream]] = _free_streams,
        abandoned: deque[tuple[_CounterKey, int]] = _abandoned_counters,
    ) -> None:
        left.extend((device, stream) for device, streams in self.by_device.items() for stream in streams)
        abandoned.extend(self.counters.items())


class _ThreadStreams(threading.local):
    def __init__(self) -> None:
        self.own = _StreamOwner()


_thread_streams = _ThreadStreams()


def _streams_of_thread(device: int, count: int, handle_count: int) -> list[_PooledStream]:
    """Return the calling thread's first `count` streams on the device; the first `handle_count` have a handle."""
    streams = _thread_streams.own.by_device.setdefault(device, [])
    while len(streams) < count:
        streams.append(_reuse_or_create_stream(device))
    for pooled in streams[:handle_count]:
        pooled.handle = pooled.handle or create_handle()
    return streams[:count]


def _reuse_or_create_stream(device: int) -> _PooledStream:
    """Return a free stream of the device, or else a new stream."""
    for _ in range(len(_free_streams)):
        try:
            its_device, pooled = _free_streams.popleft()
        except IndexError:  # another thread has taken the last free stream since the check
            break
        if its_device == device:
            return pooled
        _free_streams.append((its_device, pooled))
    return _PooledStream()


# ---- streams for graph captures

_capture_streams: dict[int, deque[Any]] = {}  # device number -> streams that no capture uses now


def take_capture_stream(device: int) -> Any:
    """Return a stream of the current device for a graph capture; no other capture uses the stream.

    Streams for captures are never destroyed, because driver 580.159 can crash: at the end of a thread, CuPy waits for
    the device, and the driver crashes if another thread destroys a stream meanwhile.
    """
    try:
        return _capture_streams[device].pop()
    except (KeyError, IndexError):
        return cupy.cuda.Stream(non_blocking=True)


def return_capture_stream(device: int, stream: Any) -> None:
    """Return a stream to the pool of streams for graph captures."""
    _capture_streams.setdefault(device, deque()).append(stream)


# ---- counters that order the writes of thread blocks; all counters are zero before and after every launch

_cached_counters: dict[_CounterKey, int] = {}  # addresses of the counters for launches on other streams
_free_counters: dict[_CounterKey, deque[int]] = {}  # addresses of abandoned counters to which no kernel writes
MAX_ABANDONED_COUNTERS = 64  # number of abandoned counters on a device for which the host waits for the device


def stream_counters(device: int, stream: int, count: int) -> int:
    """Return the address of a stream's counters, which all launches on the stream use one after the other."""
    key = device, stream, 1 << (count - 1).bit_length()
    cached = _thread_streams.own.counters if stream == PER_THREAD_STREAM else _cached_counters
    found = cached.get(key)
    return found if found is not None else cached.setdefault(key, _reuse_counters(key) or new_counters(key[2], stream))


def _reuse_counters(key: _CounterKey) -> int | None:
    """Return the address of counters that an ended thread has abandoned; None if no such counters are free.

    PER_THREAD_STREAM is another stream in each thread. So another thread uses abandoned counters only after the host
    has waited for the device.
    """
    if len(_abandoned_counters) >= MAX_ABANDONED_COUNTERS:
        _free_abandoned_counters(key[0])
    try:
        return _free_counters[key].popleft()
    except (KeyError, IndexError):
        return None


def _free_abandoned_counters(device: int) -> None:
    """Move many abandoned counters of the current device to `_free_counters`, after a wait for the device."""
    abandoned: list[tuple[_CounterKey, int]] = []
    with suppress(IndexError):
        while True:
            abandoned.append(_abandoned_counters.popleft())
    is_free = sum(key[0] == device for key, _ in abandoned) >= MAX_ABANDONED_COUNTERS
    try:
        if is_free:
            runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:  # CUDA forbids waiting, as during the capture of a stream
        is_free = False
    for key, address in abandoned:
        if is_free and key[0] == device:
            _free_counters.setdefault(key, deque()).append(address)
        else:
            _abandoned_counters.append((key, address))


def new_counters(count: int, stream: int) -> int:
    """Return the address of `count` new counters of 4 bytes, which a memset on the stream sets to zero.

    The counters are never freed, because kernels may still write to the counters.
    """
    pointer = int(runtime.malloc(4 * count))
    runtime.memsetAsync(pointer, 0, 4 * count, stream)
    return pointer
