"""Flags on a device: one for each stream and thread, raised by what writes an inf or NaN to C.

Nothing here waits for the device. A flag is raised and lowered on its stream; how often a product had to be computed
again is counted in host memory that the device writes, and read at later calls: such data tend to come again, so the
next few products on that stream are left to the vendor.
"""

from __future__ import annotations

import threading
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.recompute.trust import Trust

FLAG_BYTES = 16  # of struct Slot in nonfinite_flag.cuh, rounded up
CHUNK = 4096  # flags that are allocated together


class _Chunk:
    """Device memory for flags, and host memory for their counts; never given back, since kernels may still write it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(CHUNK * FLAG_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, CHUNK)
        self.counts[:] = 0
        self.used = 0


class StreamFlag:
    """The flag of one stream as one thread uses it, and the host's count of what was computed again for it."""

    def __init__(self, chunk: _Chunk, number: int, stream: int) -> None:
        self.address = chunk.device_memory + number * FLAG_BYTES
        self.count_address = chunk.host_memory.ptr + 4 * number
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._trust = Trust()
        self.prepared: dict[int, Any] = {}  # the user's: what stands ready for this stream and thread
        runtime.memsetAsync(self.address, 0, FLAG_BYTES, stream)

    @property
    def recomputed(self) -> int:
        """Products computed again so far, as far as the host knows yet."""
        return int(self._counts[self._number])

    def trusted(self) -> bool:
        """May the next product be a fast one?"""
        return self._trust.holds(self._counts[self._number])


_flags: dict[tuple[int, int, int], StreamFlag] = {}
_chunks: dict[int, _Chunk] = {}
_lock = threading.Lock()


def stream_flag(device: int, stream: int) -> StreamFlag:
    """This thread's flag on a stream of the current device.

    Two threads that use one stream have a flag each: their launches may alternate, so that what one thread computes
    again would lower the flag that the other one's plan has raised.
    """
    key = device, stream, threading.get_ident()
    found = _flags.get(key)
    return found if found is not None else _new_flag(key)


def _new_flag(key: tuple[int, int, int]) -> StreamFlag:
    with _lock:
        chunk = _chunks.get(key[0])
        if chunk is None or chunk.used == CHUNK:
            chunk = _chunks[key[0]] = _Chunk()
        number, chunk.used = chunk.used, chunk.used + 1
        made = _flags[key] = StreamFlag(chunk, number, key[1])
    return made
