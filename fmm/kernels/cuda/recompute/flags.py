"""Flags on a device, one for each stream and thread: kernels raise them when they write an inf or NaN to C.

Nothing here waits for the device. A flag is raised and lowered on its stream. The device counts recomputed products in
host memory, which later calls read. Data with inf or NaN tend to recur, so the next few products on that stream go to
the vendor.

A thread holds the flags of the streams that it uses, at most MAX_FLAGS_PER_THREAD of them. When it ends, or uses ever
new streams, its flags go to the next thread on the same stream. Flags that no thread takes go to other streams, after
the host has waited for the device: once in thousands of threads and streams.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.recompute.recompute import VendorBackoff

FLAG_BYTES = 16  # bytes of struct Slot in nonfinite_flag.cuh, rounded up
FLAGS_PER_CHUNK = 4096  # number of flags that are allocated together
MAX_FLAGS_PER_THREAD = 256
StreamKey = tuple[int, int]  # a device and a stream on it


class _FlagChunk:
    """Device memory for flags and host memory for their counts; never freed, since kernels may still write it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(FLAGS_PER_CHUNK * FLAG_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * FLAGS_PER_CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, FLAGS_PER_CHUNK)
        self.counts[:] = 0


_FlagPlace = tuple[_FlagChunk, int]  # a flag in a chunk


class StreamFlag:
    """The flag of one stream and thread, with the host's count of recomputed products."""

    def __init__(self, place: _FlagPlace, stream: int) -> None:
        chunk, number = self.place = place
        self.address = chunk.device_memory + number * FLAG_BYTES
        self.count_address = chunk.host_memory.ptr + 4 * number
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._before = int(self._counts[number])  # products that were counted for earlier users of this place
        self._backoff = VendorBackoff(self._before)
        self.prepared: dict[int, Any] = {}  # the runtime's prepared calls for this stream and thread
        runtime.memsetAsync(self.address, 0, FLAG_BYTES, stream)

    @property
    def recomputed_count(self) -> int:
        """Products recomputed so far that the device has counted in host memory."""
        return int(self._counts[self._number]) - self._before

    def allows_plan(self) -> bool:
        """Return True if the next product may be a fast one."""
        return self._backoff.allows_plan(self._counts[self._number])


# ---- which thread has which flag

_abandoned_flags: deque[tuple[StreamKey, StreamFlag]] = (
    deque()
)  # flags of threads that ended or went on to other streams
_idle_flags: dict[StreamKey, list[StreamFlag]] = {}  # the same, sorted by device and stream by _collect_flags
_free_places: dict[int, list[_FlagPlace]] = {}
_flags_lock = threading.Lock()  # guards _idle_flags and _free_places


class _FlagsOfThread:
    """One thread's flags, which are left to other threads when it ends.

    That takes no lock, since a thread can end at any moment.
    """

    def __init__(self) -> None:
        self.by_stream: dict[StreamKey, StreamFlag] = {}

    def __del__(self, left: deque[tuple[StreamKey, StreamFlag]] = _abandoned_flags) -> None:
        left.extend(self.by_stream.items())


class _ThreadFlags(threading.local):
    def __init__(self) -> None:
        self.flags = _FlagsOfThread()


_thread_flags = _ThreadFlags()


def stream_flag(device: int, stream: int) -> StreamFlag:
    """Return this thread's flag on a stream of the current device.

    Two threads that use one stream have a flag each. Their launches may alternate, and one thread's recomputation would
    lower a flag that the other's plan has raised.
    """
    found = _thread_flags.flags.by_stream.get((device, stream))
    return found if found is not None else _acquire_flag((device, stream))


def reset_flags() -> None:
    """Reset this thread's flags on every stream, for tests."""
    _thread_flags.flags = _FlagsOfThread()
    with _flags_lock:
        _sort_abandoned_flags()
        for flags in _idle_flags.values():
            for flag in flags:
                flag.prepared.clear()
                flag._backoff = VendorBackoff(flag._before + flag.recomputed_count)


def _acquire_flag(key: StreamKey) -> StreamFlag:
    """Return a flag that another thread has left on this stream, where launches are ordered; else a new one."""
    device, stream = key
    with _flags_lock:
        _sort_abandoned_flags()
        made = _take_idle_flag(key) or StreamFlag(_allocate_flag_place(device), stream)
    own = _thread_flags.flags.by_stream
    if len(own) >= MAX_FLAGS_PER_THREAD:
        oldest = next(iter(own))
        _abandoned_flags.append((oldest, own.pop(oldest)))
    own[key] = made
    return made


def _take_idle_flag(key: StreamKey) -> StreamFlag | None:
    idle = _idle_flags.get(key)
    if not idle:
        return None
    found = idle.pop()
    if not idle:
        del _idle_flags[key]
    return found


def _sort_abandoned_flags() -> None:
    """Sort the flags that threads have left by stream. Only MAX_FLAGS_PER_THREAD streams keep their prepared calls."""
    while _abandoned_flags:
        key, flag = _abandoned_flags.popleft()
        if len(_idle_flags) >= MAX_FLAGS_PER_THREAD:
            flag.prepared.clear()
        _idle_flags.setdefault(key, []).append(flag)


def _allocate_flag_place(device: int) -> _FlagPlace:
    """Return a place for a flag that no launch writes any more."""
    free = _free_places.setdefault(device, [])
    if not free:
        idle = [key for key in _idle_flags if key[0] == device]
        if sum(len(_idle_flags[key]) for key in idle) >= FLAGS_PER_CHUNK // 2 and _is_device_idle():
            free += [flag.place for key in idle for flag in _idle_flags.pop(key)]
        else:
            chunk = _FlagChunk()
            free += [(chunk, number) for number in reversed(range(FLAGS_PER_CHUNK))]
    return free.pop()


def _is_device_idle() -> bool:
    """Wait for the current device. Return False where a stream is being captured, which forbids waiting."""
    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        return False
    return True
