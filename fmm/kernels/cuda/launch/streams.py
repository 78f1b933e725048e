"""The streams of a launch list, their synchronization, and counters in device memory.

Stream 0 is the caller's. Every other stream has an event and a cuBLAS handle of its own; its work starts after, and
ends before, the caller's stream goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch.bound_calls import BoundCall
from fmm.kernels.cuda.launch.cublas import StreamContext, new_handle
from fmm.kernels.cuda.launch_list import LaunchList, StreamSync


def make_context_current(device: int) -> None:
    """Make the context of the device, which is the current one, the calling thread's current context.

    CUDA's runtime makes a context current at a thread's first call that needs one; the driver's own functions do not.
    """
    runtime.setDevice(device)


def acquire_streams(launches: LaunchList, device: int, stream: int) -> list[StreamContext]:
    """Return the streams that a list uses, the first of them the caller's; streams that call cuBLAS have a handle."""
    if launches.stream_count == 1:
        return [StreamContext(thread_handle(device) if launches.vendor_stream_count else 0, stream, 0)]
    first, *others = _own_streams(device, launches.stream_count, launches.vendor_stream_count)
    return [
        StreamContext(first.handle, stream, first.event.ptr),
        *(StreamContext(x.handle, x.stream.ptr, x.event.ptr) for x in others),
    ]


def thread_handle(device: int) -> int:
    """Return the calling thread's cuBLAS handle on the current device, which has the number `device`.

    CuPy destroys its own handle of a thread when the thread ends, and waits for the device; the driver crashes
    (580.159) if another thread ends meanwhile. This handle is left to another thread.
    """
    streams = _thread_streams.own.by_device.get(device)
    first = streams[0] if streams and streams[0].handle else _own_streams(device, 1, 1)[0]
    return first.handle


def sync_calls(sync: StreamSync, streams: list[StreamContext]) -> list[BoundCall]:
    """Return the calls that make the other streams wait for the first (FORK), or the first for the others (JOIN)."""
    first, *others = streams
    pairs = [(first, other) if sync is StreamSync.FORK else (other, first) for other in others]
    cupy_runtime = cupy.cuda.runtime
    recorded = dict.fromkeys((before.event, before.stream) for before, _ in pairs)
    calls: list[BoundCall] = [partial(cupy_runtime.eventRecord, event, stream) for event, stream in recorded]
    return calls + [partial(cupy_runtime.streamWaitEvent, then.stream, before.event) for before, then in pairs]


# ---- the pool of streams


class _PooledStream:
    """A stream with its event and cuBLAS handle. In place of the caller's stream only event and handle are used."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.handle = 0


# Streams of threads that ended, with their devices. The next thread's work on such a stream follows what the previous
# thread has started there.
_streams_left: deque[tuple[int, _PooledStream]] = deque()


class _OwnStreams:
    """One thread's streams, by device.

    When the thread ends, its streams are left to other threads, since cuBLAS handles are large. Leaving them takes no
    lock, since a thread can end at any moment.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, list[_PooledStream]] = {}

    def __del__(self, left: deque[tuple[int, _PooledStream]] = _streams_left) -> None:
        left.extend((device, stream) for device, streams in self.by_device.items() for stream in streams)


class _ThreadStreams(threading.local):
    def __init__(self) -> None:
        self.own = _OwnStreams()


_thread_streams = _ThreadStreams()


def _own_streams(device: int, count: int, handle_count: int) -> list[_PooledStream]:
    """Return the calling thread's first `count` streams on the device; the first `handle_count` have a handle."""
    streams = _thread_streams.own.by_device.setdefault(device, [])
    while len(streams) < count:
        streams.append(_reuse_or_create(device))
    for pooled in streams[:handle_count]:
        pooled.handle = pooled.handle or new_handle()
    return streams[:count]


def _reuse_or_create(device: int) -> _PooledStream:
    """Return a stream that another thread has left on the device, or else a new one."""
    for _ in range(len(_streams_left)):
        try:
            its_device, pooled = _streams_left.popleft()
        except IndexError:  # another thread has taken the stream
            break
        if its_device == device:
            return pooled
        _streams_left.append((its_device, pooled))
    return _PooledStream()


# ---- streams on which calls are captured

_capture_streams: dict[int, deque[Any]] = {}  # streams by device that no capture uses now


def take_capture_stream(device: int) -> Any:
    """Return a stream of the current device that no other capture uses.

    These streams are never destroyed. When a thread ends, CuPy destroys its cuBLAS handle and waits for the device; the
    driver crashes (580.159) if another thread destroys a stream meanwhile.
    """
    try:
        return _capture_streams[device].pop()
    except (KeyError, IndexError):
        return cupy.cuda.Stream(non_blocking=True)


def return_capture_stream(device: int, stream: Any) -> None:
    """Leave a stream to the next capture."""
    _capture_streams.setdefault(device, deque()).append(stream)


# ---- counters by which thread blocks take turns: zero before and after every launch

_counters: dict[tuple[int, int, int], int] = {}  # counters by device, stream and size


def stream_counters(device: int, stream: int, count: int) -> int:
    """Return the address of a stream's counters; its launches share them, since they run one after the other."""
    key = device, stream, 1 << (count - 1).bit_length()
    found = _counters.get(key)
    return found if found is not None else _counters.setdefault(key, new_counters(key[2], stream))


def new_counters(count: int, stream: int) -> int:
    """Return the address of new counters, which are zero once the stream gets there.

    The counters are never freed, since kernels may still write to them.
    """
    pointer = int(runtime.malloc(4 * count))
    runtime.memsetAsync(pointer, 0, 4 * count, stream)
    return pointer
