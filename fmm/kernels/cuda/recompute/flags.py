"""Allocate the flags that kernels raise for an inf or NaN in C: one flag for each pair of a stream and a thread.

Only kernels on the flag's stream raise and lower a flag, so the host does not wait for the device. The device writes
the number of recomputed products to host memory, and later calls read the number. An inf or NaN tends to occur again,
so after a recomputed product the vendor computes the next products on the stream.

A thread owns at most MAX_FLAGS_PER_THREAD flags, one for each of its streams. A thread that needs one more flag
abandons its oldest flag, and a thread that ends abandons all its flags. The next thread on the same stream takes an
abandoned flag; PER_THREAD_STREAM is another stream in each thread, so no thread takes its flags. If thousands of flags
are abandoned, the host waits for the device once, and reuses the memory of these flags for other streams.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch_list import PER_THREAD_STREAM
from fmm.kernels.cuda.recompute.recompute import RecomputeBackoff

FLAG_BYTES = 16  # bytes of struct Slot in nonfinite_flag.cuh, rounded up
FLAGS_PER_CHUNK = 4096  # number of flags in one allocation
MAX_FLAGS_PER_THREAD = 256  # largest number of flags that a thread owns
StreamKey = tuple[int, int]  # the index of a device, and the handle of a stream on the device


class _FlagChunk:
    """Memory for many flags and their counts; it is never freed, because kernels may still write to it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(FLAGS_PER_CHUNK * FLAG_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * FLAGS_PER_CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, FLAGS_PER_CHUNK)
        self.counts[:] = 0


_ChunkEntry = tuple[_FlagChunk, int]  # a chunk, and the index of a flag in the chunk


class StreamFlag:
    """The flag of one stream and one thread, with the count of recomputed products in host memory."""

    def __init__(self, entry: _ChunkEntry, stream: int) -> None:
        chunk, number = self.entry = entry
        self.address = chunk.device_memory + number * FLAG_BYTES
        self.count_address = chunk.host_memory.ptr + 4 * number
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._backoff = RecomputeBackoff()
        self.prepared: dict[int, Any] = {}  # prepared calls of the runtime for this stream and thread
        runtime.memsetAsync(self.address, 0, FLAG_BYTES, stream)

    @property
    def recomputed_count(self) -> int:
        """The number of recomputed products that the device has counted in host memory."""
        return int(self._counts[self._number])

    def allows_plan(self) -> bool:
        """Return True if the next product may run by a plan, False if the vendor must compute the next product."""
        return self._backoff.allows_plan(self._counts[self._number])


# ---- the owner of each flag

# Flags without an owner, because the owning thread has ended or had too many flags.
_abandoned_flags: deque[tuple[StreamKey, StreamFlag]] = deque()
_idle_flags: dict[StreamKey, list[StreamFlag]] = {}  # abandoned flags by device and stream
_free_entries: dict[int, list[_ChunkEntry]] = {}  # unused memory of flags, by device
_flags_lock = threading.Lock()  # guards _idle_flags and _free_entries


class _FlagsOfThread:
    """The flags that one thread owns. When the thread ends, its flags are abandoned.

    `__del__` can run at any moment, also in a thread that holds `_flags_lock`. It therefore takes no lock.
    """

    def __init__(self) -> None:
        self.by_stream: dict[StreamKey, StreamFlag] = {}

    def __del__(self, abandoned: deque[tuple[StreamKey, StreamFlag]] = _abandoned_flags) -> None:
        abandoned.extend(self.by_stream.items())


class _ThreadFlags(threading.local):
    """Thread-local storage of the current thread's flags."""

    def __init__(self) -> None:
        self.flags = _FlagsOfThread()


_thread_flags = _ThreadFlags()


def stream_flag(device: int, stream: int) -> StreamFlag:
    """Return this thread's flag on a stream of the current device.

    Two threads that use the same stream have separate flags. With one common flag, the recomputation of one thread
    would lower a flag that the plan of the other thread has raised.
    """
    found = _thread_flags.flags.by_stream.get((device, stream))
    return found if found is not None else _acquire_flag((device, stream))


def reset_flags() -> None:
    """Drop this thread's stream flags, and reset all abandoned stream flags as if no product had been recomputed.

    Only tests call this function.
    """
    _thread_flags.flags = _FlagsOfThread()
    with _flags_lock:
        _collect_abandoned_flags()
        for flags in _idle_flags.values():
            for flag in flags:
                flag.prepared.clear()
                flag._backoff = RecomputeBackoff(flag.recomputed_count)


def _acquire_flag(key: StreamKey) -> StreamFlag:
    """Return a flag for this thread on a stream: an abandoned flag of this stream, else a new flag.

    Taking over an abandoned flag is safe: launches on one stream run in order, so all earlier launches that use the
    flag end before the first launch of the new owner.
    """
    device, stream = key
    with _flags_lock:
        _collect_abandoned_flags()
        made = _reuse_abandoned_flag(key) or StreamFlag(_allocate_flag_memory(device), stream)
    own = _thread_flags.flags.by_stream
    if len(own) >= MAX_FLAGS_PER_THREAD:
        oldest = next(iter(own))
        _abandoned_flags.append((oldest, own.pop(oldest)))
    own[key] = made
    return made


def _reuse_abandoned_flag(key: StreamKey) -> StreamFlag | None:
    """Remove and return an abandoned flag of a stream; return None if the stream has no abandoned flag.

    Return None for PER_THREAD_STREAM, which is another stream in each thread.
    """
    idle = _idle_flags.get(key)
    if not idle or key[1] == PER_THREAD_STREAM:
        return None
    found = idle.pop()
    if not idle:
        del _idle_flags[key]
    return found


def _collect_abandoned_flags() -> None:
    """Move the abandoned flags into `_idle_flags`, by stream.

    `_idle_flags` keeps the prepared calls of at most MAX_FLAGS_PER_THREAD streams; the flags of further streams and of
    PER_THREAD_STREAM are kept without prepared calls. This limits the memory of prepared calls.
    """
    while _abandoned_flags:
        key, flag = _abandoned_flags.popleft()
        if len(_idle_flags) >= MAX_FLAGS_PER_THREAD or key[1] == PER_THREAD_STREAM:
            flag.prepared.clear()
        _idle_flags.setdefault(key, []).append(flag)


def _allocate_flag_memory(device: int) -> _ChunkEntry:
    """Return memory for a new flag: an entry of a chunk that no flag uses and no running kernel writes."""
    free = _free_entries.setdefault(device, [])
    if not free:
        idle = [key for key in _idle_flags if key[0] == device]
        if sum(len(_idle_flags[key]) for key in idle) >= FLAGS_PER_CHUNK // 2 and _wait_for_device():
            free += [flag.entry for key in idle for flag in _idle_flags.pop(key)]
            for chunk, number in free:  # a new flag's memset sets the device's count to zero, too
                chunk.counts[number] = 0
        else:
            chunk = _FlagChunk()
            free += [(chunk, number) for number in reversed(range(FLAGS_PER_CHUNK))]
    return free.pop()


def _wait_for_device() -> bool:
    """Wait for the current device; return False if CUDA forbids waiting, as during the capture of a stream."""
    try:
        runtime.deviceSynchronize()
    except runtime.CUDARuntimeError:
        return False
    return True
