"""Flags on a device: one for each stream and thread, raised by what writes an inf or NaN to C.

Nothing here waits for the device. A flag is raised and lowered on its stream; how often a product had to be computed
again is counted in host memory that the device writes, and read at later calls: such data tend to come again, so the
next few products on that stream are left to the vendor.

A thread keeps the flags of the streams that it uses, of so many at most. What it leaves behind, when it ends or uses
ever new streams, is for the next thread on the same stream; what nobody takes up again is given to other streams, for
which the host waits for the device: once in thousands of threads and streams.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.recompute.recompute import Backoff

FLAG_BYTES = 16  # of struct Slot in nonfinite_flag.cuh, rounded up
CHUNK = 4096  # flags that are allocated together
STREAMS = 256  # whose flags a thread keeps
Key = tuple[int, int]  # a device and a stream on it


class _Chunk:
    """Device memory for flags, and host memory for their counts; never freed, since kernels may still write it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(CHUNK * FLAG_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, CHUNK)
        self.counts[:] = 0


_Place = tuple[_Chunk, int]  # a flag in a chunk


class StreamFlag:
    """The flag of one stream as one thread uses it, and the host's count of what was computed again for it."""

    def __init__(self, place: _Place, stream: int) -> None:
        chunk, number = self.place = place
        self.address = chunk.device_memory + number * FLAG_BYTES
        self.count_address = chunk.host_memory.ptr + 4 * number
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._before = int(self._counts[number])  # counted for others, who had the place before
        self._trust = Backoff(self._before)
        self.prepared: dict[int, Any] = {}  # the user's: what stands ready for this stream and thread
        runtime.memsetAsync(self.address, 0, FLAG_BYTES, stream)

    @property
    def recomputed(self) -> int:
        """Products computed again so far, as far as the host knows yet."""
        return int(self._counts[self._number]) - self._before

    def trusted(self) -> bool:
        """May the next product be a fast one?"""
        return self._trust.holds(self._counts[self._number])


# ---- whose flags they are

_left: deque[tuple[Key, StreamFlag]] = deque()  # flags that threads left: they ended, or went on to other streams
_idle: dict[Key, list[StreamFlag]] = {}  # of these, what _collect has sorted by device and stream
_free: dict[int, list[_Place]] = {}
_lock = threading.Lock()  # around the latter two


class _OwnFlags:
    """One thread's flags. When it ends they are left to others. That takes no lock, since a thread can end at any
    moment."""

    def __init__(self) -> None:
        self.kept: dict[Key, StreamFlag] = {}

    def __del__(self, left: deque[tuple[Key, StreamFlag]] = _left) -> None:
        left.extend(self.kept.items())


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.flags = _OwnFlags()


_own = _OfThread()


def stream_flag(device: int, stream: int) -> StreamFlag:
    """This thread's flag on a stream of the current device.

    Two threads that use one stream have a flag each: their launches may alternate, so that what one thread computes
    again would lower the flag that the other one's plan has raised.
    """
    found = _own.flags.kept.get((device, stream))
    return found if found is not None else _new_flag((device, stream))


def reset_flags() -> None:
    """Have this thread begin anew on every stream, for tests: nothing is known of earlier products."""
    _own.flags = _OwnFlags()
    with _lock:
        _collect()
        for flags in _idle.values():
            for flag in flags:
                flag.prepared.clear()
                flag._trust = Backoff(flag._before + flag.recomputed)


def _new_flag(key: Key) -> StreamFlag:
    """One that another thread has left on this stream, where launches come one after the other; else a new one."""
    device, stream = key
    with _lock:
        _collect()
        made = _taken_up(key) or StreamFlag(_free_place(device), stream)
    kept = _own.flags.kept
    if len(kept) >= STREAMS:
        oldest = next(iter(kept))
        _left.append((oldest, kept.pop(oldest)))
    kept[key] = made
    return made


def _taken_up(key: Key) -> StreamFlag | None:
    idle = _idle.get(key)
    if not idle:
        return None
    found = idle.pop()
    if not idle:
        del _idle[key]
    return found


def _collect() -> None:
    """Sort by streams what threads have left. The calls that stand ready with a flag are kept for some streams only."""
    while _left:
        key, flag = _left.popleft()
        if len(_idle) >= STREAMS:
            flag.prepared.clear()
        _idle.setdefault(key, []).append(flag)


def _free_place(device: int) -> _Place:
    """A place for a flag that no launch writes any more."""
    free = _free.setdefault(device, [])
    if not free:
        idle = [key for key in _idle if key[0] == device]
        if sum(len(_idle[key]) for key in idle) >= CHUNK // 2 and _all_done():
            free += [flag.place for key in idle for flag in _idle.pop(key)]
        else:
            chunk = _Chunk()
            free += [(chunk, number) for number in reversed(range(CHUNK))]
    return free.pop()


def _all_done() -> bool:
    """Wait for the current device; False where that is not allowed, since a stream of it is being captured."""
    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        return False
    return True
