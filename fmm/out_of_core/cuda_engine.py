"""The engine that runs schedules on a CUDA device, with CuPy arrays and three streams."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Any

import cupy
import numpy as np

from fmm.out_of_core.transfers import Array

cuda_runtime = cupy.cuda.runtime
# Bytes that are reserved in addition to the workspace, since CuPy's pool rounds each array up to a multiple of 512
# bytes.
POOL_ROUNDING_BYTES = 1 << 16
# Function that multiplies tiles on the device. Parameters: A, B, C, True to add the product to C, workspace limit in
# bytes.
MultiplyTiles = Callable[[Any, Any, Any, bool, int], None]


class CudaEvent:
    """A CUDA event that happens when all work that was enqueued on a stream before the event is done."""

    def __init__(self, stream: Any) -> None:
        self.event = cupy.cuda.Event(block=True, disable_timing=True)
        self.event.record(stream)

    def wait(self) -> None:
        self.event.synchronize()

    def has_happened(self) -> bool:
        return bool(self.event.done)


class PinnedBuffer:
    """Page-locked host memory, and the event after the last copy from this memory to the device."""

    def __init__(self, nbytes: int) -> None:
        self.memory = cupy.cuda.alloc_pinned_memory(nbytes)
        self.byte_array: Array = np.frombuffer(self.memory, np.uint8, nbytes)
        self.sent: CudaEvent | None = None

    def wait(self) -> None:
        if self.sent is not None:
            self.sent.wait()
            self.sent = None


# Streams of closed engines by the index of their device. New engines reuse the streams of closed engines, since CuPy's
# pool returns freed memory only to the stream that used it.
_idle_streams: dict[int, list[tuple[Any, Any, Any]]] = {}


class CudaEngine:
    """The engine that runs a schedule on one CUDA device, a context manager."""

    def __init__(self, number: int, product: MultiplyTiles) -> None:
        self.number, self.product = number, product
        self.computing, self.sending, self.fetching = self.streams = _acquire_streams(number)
        self.current = ExitStack()

    def __enter__(self) -> CudaEngine:
        self.current.enter_context(cupy.cuda.Device(self.number))
        self.current.enter_context(self.computing)
        return self

    def __exit__(self, *error: object) -> None:
        self.current.close()
        _idle_streams.setdefault(self.number, []).append(self.streams)

    def prepare_thread(self) -> None:
        cupy.cuda.Device(self.number).use()

    def allocate_memory(self, nbytes: int) -> tuple[int, Any]:
        memory = cupy.cuda.alloc(nbytes)
        return int(memory.ptr), memory

    def reserve_workspace(self, nbytes: int) -> None:
        if nbytes:
            # the memory is freed at once into CuPy's pool, from which the products then allocate their workspaces
            cupy.cuda.alloc(nbytes + POOL_ROUNDING_BYTES)

    def create_buffer(self, nbytes: int) -> PinnedBuffer:
        return PinnedBuffer(nbytes)

    def copy_buffer_to_device(self, buffer: PinnedBuffer, nbytes: int, address: int) -> None:
        cuda_runtime.memcpyAsync(address, buffer.memory.ptr, nbytes, cuda_runtime.memcpyHostToDevice, self.sending.ptr)
        buffer.sent = CudaEvent(self.sending)

    def fetch_to_buffer(self, address: int, nbytes: int, buffer: PinnedBuffer) -> None:
        cuda_runtime.memcpyAsync(buffer.memory.ptr, address, nbytes, cuda_runtime.memcpyDeviceToHost, self.fetching.ptr)
        CudaEvent(self.fetching).wait()

    def arrival_event(self) -> CudaEvent:
        return CudaEvent(self.sending)

    def matrix_at_address(self, address: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
        memory = cupy.cuda.UnownedMemory(address, max(shape[0] * leading * dtype.itemsize, 1), self)
        strides = (leading * dtype.itemsize, dtype.itemsize)
        return cupy.ndarray(shape, dtype, cupy.cuda.MemoryPointer(memory, 0), strides=strides)

    def multiply_matrices(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> CudaEvent:
        self.product(a, b, c, adds, workspace)
        return CudaEvent(self.computing)

    def wait_until_idle(self) -> None:
        for stream in (self.computing, self.sending, self.fetching):
            stream.synchronize()


def _acquire_streams(number: int) -> tuple[Any, Any, Any]:
    """Return three streams (to compute, to send and to fetch) that no other engine uses."""
    with suppress(KeyError, IndexError):
        return _idle_streams[number].pop()
    with cupy.cuda.Device(number):
        return (
            cupy.cuda.Stream(non_blocking=True),
            cupy.cuda.Stream(non_blocking=True),
            cupy.cuda.Stream(non_blocking=True),
        )
