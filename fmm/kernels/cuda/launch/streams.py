"""Lanes: the streams on which the steps of a launch list run side by side.

The first is the caller's stream. Every other has a stream and a cuBLAS handle of its own; its work starts after, and
ends before, the caller's stream goes on.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import cupy

from fmm.kernels.cuda.launch.cublas import Lane, new_handle
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


class _LanesOfThread(threading.local):
    """A thread's lanes on each device, and the events by which they wait for each other."""

    def __init__(self) -> None:
        self.kept: dict[int, list[_LaneOfOurs]] = {}


_lanes = _LanesOfThread()


def lanes_for(launches: LaunchList, device: int, stream: int, handle: int) -> list[Lane]:
    """As many as the list uses, with a handle of cuBLAS where it calls that."""
    if launches.lanes_used == 1:
        return [Lane(handle, stream, 0)]
    kept = _lanes.kept.setdefault(device, [])
    kept += [_LaneOfOurs() for _ in range(launches.lanes_used - len(kept))]
    for own in kept[1 : launches.vendor_lanes]:
        own.handle = own.handle or new_handle()
    first, *others = kept[: launches.lanes_used]
    return [Lane(handle, stream, first.event.ptr), *(Lane(x.handle, x.stream.ptr, x.event.ptr) for x in others)]
