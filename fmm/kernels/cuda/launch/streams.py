"""Lanes: the streams on which the steps of a launch list run side by side.

The first is the caller's stream. Every other has a stream and a cuBLAS handle of its own; its work starts after, and
ends before, the caller's stream goes on.
"""

from __future__ import annotations

import threading
from collections import deque
from functools import partial
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch.cublas import StreamContext, new_handle
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import LaunchList, StreamSync


def sync_calls(turn: StreamSync, lanes: list[StreamContext]) -> list[PreparedCall]:
    """The calls after which the other lanes wait for what the first has done so far (FORK), or it for them (JOIN)."""
    first, *others = lanes
    pairs = [(first, lane) if turn is StreamSync.FORK else (lane, first) for lane in others]
    runtime = cupy.cuda.runtime
    recorded = dict.fromkeys((before.event, before.stream) for before, _ in pairs)
    calls: list[PreparedCall] = [partial(runtime.eventRecord, event, stream) for event, stream in recorded]
    return calls + [partial(runtime.streamWaitEvent, then.stream, before.event) for before, then in pairs]


class _LaneOfOurs:
    """A lane's own stream, event and cuBLAS handle. The first lane is the caller's, and only its event is used."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.handle = 0


# Lanes, with their devices, of threads that ended. The next thread's work on such a lane comes behind what the last one
# has begun there.
_left: deque[tuple[int, _LaneOfOurs]] = deque()


class _OwnLanes:
    """One thread's lanes, by device.

    They go to other threads when the thread ends, since cuBLAS's handles are large. That takes no lock, since a thread
    can end at any moment.
    """

    def __init__(self) -> None:
        self.by_device: dict[int, list[_LaneOfOurs]] = {}

    def __del__(self, left: deque[tuple[int, _LaneOfOurs]] = _left) -> None:
        left.extend((device, lane) for device, lanes in self.by_device.items() for lane in lanes)


class _LanesOfThread(threading.local):
    def __init__(self) -> None:
        self.own = _OwnLanes()


_lanes = _LanesOfThread()


def _another_lane(device: int) -> _LaneOfOurs:
    """A lane that another thread has left on the device, or else a new one."""
    for _ in range(len(_left)):
        try:
            its_device, lane = _left.popleft()
        except IndexError:  # another thread was quicker
            break
        if its_device == device:
            return lane
        _left.append((its_device, lane))
    return _LaneOfOurs()


def acquire_streams(launches: LaunchList, device: int, stream: int, handle: int) -> list[StreamContext]:
    """As many lanes as the list uses, with a cuBLAS handle for each that calls it. The first is the caller's stream."""
    if launches.stream_count == 1:
        return [StreamContext(handle, stream, 0)]
    own_lanes = _lanes.own.by_device.setdefault(device, [])
    while len(own_lanes) < launches.stream_count:
        own_lanes.append(_another_lane(device))
    for lane in own_lanes[1 : launches.vendor_stream_count]:
        lane.handle = lane.handle or new_handle()
    first, *others = own_lanes[: launches.stream_count]
    return [
        StreamContext(handle, stream, first.event.ptr),
        *(StreamContext(x.handle, x.stream.ptr, x.event.ptr) for x in others),
    ]


_of_streams: dict[tuple[int, int, int], int] = {}


def stream_counters(device: int, stream: int, count: int) -> int:
    """The address of counters for a launch on this stream, whose launches share them: they come one after the other."""
    key = device, stream, 1 << (count - 1).bit_length()
    if key not in _of_streams:
        _of_streams[key] = new_counters(key[2], stream)
    return _of_streams[key]


def new_counters(count: int, stream: int) -> int:
    """The address of new counters, which are zero once the stream gets there.

    They are never given back, since kernels may still write them.
    """
    pointer = int(runtime.malloc(4 * count))
    runtime.memsetAsync(pointer, 0, 4 * count, stream)
    return pointer
