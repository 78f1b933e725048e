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

from fmm.kernels.cuda.launch.blas_library import Lane
from fmm.kernels.cuda.launch.cublas import new_handle
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import LaunchList, Turn


def turn_calls(turn: Turn, lanes: list[Lane]) -> list[PreparedCall]:
    """By which the other lanes go on after what the first has done so far, or the first after all that the others
    did."""
    first, *others = lanes
    pairs = [(first, lane) if turn is Turn.FORK else (lane, first) for lane in others]
    runtime = cupy.cuda.runtime
    noted = dict.fromkeys((before.event, before.stream) for before, _ in pairs)
    calls: list[PreparedCall] = [partial(runtime.eventRecord, event, stream) for event, stream in noted]
    return calls + [partial(runtime.streamWaitEvent, then.stream, before.event) for before, then in pairs]


class _LaneOfOurs:
    """What a lane has of its own; of the first, which is the caller's, only the event is used."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.handle = 0


# By threads that ended: what is still on its way there comes before what the next thread begins.
_left: deque[tuple[int, _LaneOfOurs]] = deque()


class _OwnLanes:
    """One thread's lanes on each device, and the events by which they wait for each other. They go to other threads
    when the thread ends, since cuBLAS's handles are large; to say so takes no lock, for that can be at any moment."""

    def __init__(self) -> None:
        self.kept: dict[int, list[_LaneOfOurs]] = {}

    def __del__(self, left: deque[tuple[int, _LaneOfOurs]] = _left) -> None:
        left.extend((device, lane) for device, lanes in self.kept.items() for lane in lanes)


class _LanesOfThread(threading.local):
    def __init__(self) -> None:
        self.own = _OwnLanes()


_lanes = _LanesOfThread()


def _another_lane(device: int) -> _LaneOfOurs:
    """One that was left on the device, else a new one."""
    for _ in range(len(_left)):
        try:
            where, lane = _left.popleft()
        except IndexError:  # another thread was quicker
            break
        if where == device:
            return lane
        _left.append((where, lane))
    return _LaneOfOurs()


def lanes_for(launches: LaunchList, device: int, stream: int, handle: int) -> list[Lane]:
    """As many as the list uses, with a handle of cuBLAS where it calls that."""
    if launches.lanes_used == 1:
        return [Lane(handle, stream, 0)]
    kept = _lanes.own.kept.setdefault(device, [])
    while len(kept) < launches.lanes_used:
        kept.append(_another_lane(device))
    for own in kept[1 : launches.vendor_lanes]:
        own.handle = own.handle or new_handle()
    first, *others = kept[: launches.lanes_used]
    return [Lane(handle, stream, first.event.ptr), *(Lane(x.handle, x.stream.ptr, x.event.ptr) for x in others)]
