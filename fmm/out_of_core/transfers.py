"""Threads that copy between NumPy arrays and a device, through page-locked host buffers.

Each copy between a NumPy array and the device has two steps, with a page-locked buffer between them, since the array
may be pageable, may be mapped from a file, or may have another type than the product. NumPy copies between the array
and the buffer, casts if needed, and releases the GIL. The device copies between the buffer and device memory. Several
threads copy at once; each thread has its own buffers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cpu.thread_pool import usable_processors
from fmm.out_of_core.schedule import CopyRates

Array = np.ndarray[Any, np.dtype[Any]]
COPY_CHUNK_BYTES = 8 << 20  # number of bytes of one copied chunk: several rows, or a part of one long row
MAX_COPY_THREADS = 8  # largest number of threads for each direction of copies; more threads would not copy faster
BUFFERS_PER_THREAD = 2  # number of buffers per thread: NumPy fills one buffer while the device copies the other


# ---- what a device provides


class PageLockedBuffer(Protocol):
    """Page-locked host memory that a device can read and write directly."""

    @property
    def byte_array(self) -> Array: ...

    def wait(self) -> None:
        """Wait until the last copy from this buffer to the device has ended."""


class DeviceEvent(Protocol):
    """A mark in a device's queue of work; the event happens when all earlier work in the queue is done."""

    def wait(self) -> None: ...

    def has_happened(self) -> bool: ...


class DeviceEngine(Protocol):
    """Interface of a device that runs a schedule; products, loads and stores run concurrently."""

    def prepare_thread(self) -> None:
        """Prepare the calling thread for this device; each thread calls this method first."""

    def allocate_memory(self, nbytes: int) -> tuple[int, Any]:
        """Allocate device memory; return the address, and the object that owns the memory."""
        ...

    def reserve_workspace(self, nbytes: int) -> None:
        """Reserve `nbytes` bytes of memory for workspaces, so that no product waits for an allocation."""

    def create_buffer(self, nbytes: int) -> PageLockedBuffer: ...

    def copy_buffer_to_device(self, buffer: PageLockedBuffer, nbytes: int, address: int) -> None:
        """Enqueue a copy of `nbytes` bytes from the buffer to a device address."""

    def fetch_to_buffer(self, address: int, nbytes: int, buffer: PageLockedBuffer) -> None:
        """Copy `nbytes` bytes from a device address to the buffer, and wait for the copy."""

    def arrival_event(self) -> DeviceEvent:
        """Return an event that happens when all copies enqueued so far have arrived on the device."""
        ...

    def matrix_at_address(self, address: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
        """Return a row-major array of the device's library at this address, with this leading dimension."""
        ...

    def multiply_matrices(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> DeviceEvent:
        """Enqueue C = A B, or C = C + A B if `adds` is True, with at most `workspace` bytes of workspace."""
        ...

    def wait_until_idle(self) -> None:
        """Wait until all enqueued work is done."""


class DeviceLocation(NamedTuple):
    """The location of a row-major matrix in device memory: the address, the leading dimension and the element type."""

    address: int
    leading: int
    dtype: np.dtype[Any]

    def location_of_row(self, row: int) -> DeviceLocation:
        return self.location_of_entry(row, 0)

    def location_of_entry(self, row: int, col: int) -> DeviceLocation:
        return self._replace(address=self.address + row * self.row_bytes + col * self.dtype.itemsize)

    @property
    def row_bytes(self) -> int:
        return self.leading * self.dtype.itemsize


# ---- the threads that copy


class CopyThreads:
    """Threads that copy between host arrays and one device."""

    def __init__(self, engine: DeviceEngine, threads: int = 0) -> None:
        self.engine, self.chunk_bytes = engine, COPY_CHUNK_BYTES
        count = threads or max(1, min(usable_processors() // 2, MAX_COPY_THREADS))
        self.load_pool, self.store_pool = (
            ThreadPoolExecutor(count, f"fmm-{way}", initializer=self._create_thread_buffers)
            for way in ("load", "store")
        )
        self.thread_state, self.ended = local(), False

    def start_load(self, host: Array, place: DeviceLocation) -> DeviceEvent:
        """Start a copy of a matrix to the device; return the event that marks the arrival of the matrix.

        The caller may start further loads before the first load has ended. The chunks of further loads wait in a queue
        behind the chunks of earlier loads, so that all threads copy at all times.
        """
        return _LoadedEvent(self.engine, self._submit_chunks(self.load_pool, self._load_chunk, host, place))

    def store_matrix(self, place: DeviceLocation, host: Array) -> None:
        """Copy a matrix from the device to the host and wait for the copy."""
        wait_for_futures(self._submit_chunks(self.store_pool, self._store_chunk, host, place))

    def close(self) -> None:
        """End the threads; copies that have not begun are not made."""
        self.ended = True
        for pool in (self.load_pool, self.store_pool):
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit_chunks(
        self,
        pool: ThreadPoolExecutor,
        task: Callable[[Array, DeviceLocation], None],
        host: Array,
        place: DeviceLocation,
    ) -> list[Future[None]]:
        return [
            pool.submit(task, host[rows, cols], place.location_of_entry(rows.start, cols.start))
            for rows, cols in _chunk_ranges(host.shape, place, self.chunk_bytes)
        ]

    # ---- functions that run in the copying threads

    def _create_thread_buffers(self) -> None:
        self.engine.prepare_thread()
        self.thread_state.buffers = [self.engine.create_buffer(self.chunk_bytes) for _ in range(BUFFERS_PER_THREAD)]

    def _load_chunk(self, host: Array, place: DeviceLocation) -> None:
        if self.ended:
            return
        buffer = self._next_free_buffer()
        # casting is "unsafe", since the caller has checked that the cast is allowed
        np.copyto(_buffer_view(buffer, host, place), host, casting="unsafe")
        self.engine.copy_buffer_to_device(buffer, _chunk_bytes(host, place), place.address)

    def _store_chunk(self, host: Array, place: DeviceLocation) -> None:
        if self.ended:
            return
        buffer = self._next_free_buffer()
        self.engine.fetch_to_buffer(place.address, _chunk_bytes(host, place), buffer)
        np.copyto(host, _buffer_view(buffer, host, place), casting="unsafe")

    def _next_free_buffer(self) -> PageLockedBuffer:
        """Wait until this thread's least recently used buffer is free, and return the buffer."""
        buffers: list[PageLockedBuffer] = self.thread_state.buffers
        buffers.append(buffers.pop(0))
        buffers[-1].wait()
        return buffers[-1]


class _LoadedEvent:
    """An event that happens when all chunks of a matrix are on the device; `wait` raises the error of a failed copy."""

    def __init__(self, engine: DeviceEngine, tasks: list[Future[None]]) -> None:
        self.engine, self.tasks = engine, tasks
        self.sent: DeviceEvent | None = None

    def wait(self) -> None:
        if self.sent is None:
            wait_for_futures(self.tasks)
            self.sent = self.engine.arrival_event()
        self.sent.wait()

    def has_happened(self) -> bool:
        if self.sent is None and all(task.done() for task in self.tasks):
            wait_for_futures(self.tasks)
            self.sent = self.engine.arrival_event()
        return self.sent is not None and self.sent.has_happened()


def _chunk_ranges(shape: tuple[int, ...], place: DeviceLocation, nbytes: int) -> Iterator[tuple[slice, slice]]:
    """Yield chunks of at most `nbytes` bytes: several rows of the matrix, or equal parts of a row with more bytes."""
    rows, cols = shape
    height = max(nbytes // place.row_bytes, 1)
    width = -(-cols // max(-(-cols * place.dtype.itemsize // nbytes), 1))
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, cols))


def _buffer_view(buffer: PageLockedBuffer, host: Array, place: DeviceLocation) -> Array:
    """Return the buffer as an array with the chunk's shape and the leading dimension of the device matrix."""
    rows, cols = host.shape
    strides = (place.row_bytes, place.dtype.itemsize)
    return np.ndarray((rows, cols), place.dtype, buffer.byte_array, strides=strides)


def _chunk_bytes(host: Array, place: DeviceLocation) -> int:
    """Return the number of device bytes from a chunk's first entry to its last, including the gaps between rows."""
    rows, cols = host.shape
    nbytes: int = (rows - 1) * place.row_bytes + cols * place.dtype.itemsize
    return nbytes


def wait_for_futures(futures: Sequence[Future[None]]) -> None:
    """Wait for all futures; raise the error of the first future that failed."""
    for future in futures:
        future.result()


# ---- measured rates

PROBE_BYTES, PROBE_ROUNDS = 512 << 20, 4


def measure_copy_rates(
    engine: DeviceEngine, transfers: CopyThreads, clock: Callable[[], float], nbytes: int = PROBE_BYTES
) -> CopyRates:
    """Measure the copy rate in each direction without concurrent work; return the best of PROBE_ROUNDS measurements.

    A measurement copies `nbytes` bytes, rounded down to a multiple of 64 KiB, and at least 64 KiB.
    """
    host = np.ones((max(nbytes >> 16, 1), 1 << 13))
    address, memory = engine.allocate_memory(host.nbytes)
    place, loads, stores = DeviceLocation(address, host.shape[1], host.dtype), [1.0], [1.0]
    for _ in range(PROBE_ROUNDS):
        start = clock()
        transfers.start_load(host, place).wait()
        loaded = clock()
        transfers.store_matrix(place, host)
        loads.append(host.nbytes / max(loaded - start, 1e-9))
        stores.append(host.nbytes / max(clock() - loaded, 1e-9))
    del memory
    return CopyRates(max(loads), max(stores))
