"""Counters for kernels whose thread blocks take turns: device memory that is zero before and after every launch."""

from __future__ import annotations

from cupy_backends.cuda.api import runtime

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
