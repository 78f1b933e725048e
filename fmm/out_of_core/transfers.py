"""Copies between NumPy arrays and a device, through page-locked host buffers.

A NumPy array may be pageable, mapped from a file, or of another type than the product. So each copy has two steps, by
several threads with buffers of their own. NumPy copies between the array and a buffer (it casts, and releases Python's
lock); the device copies between the buffer and its memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from threading import local
from typing import Any, NamedTuple, Protocol

import numpy as np

from fmm.kernels.cpu.thread_pool import usable_processors
from fmm.out_of_core.schedule import Rates

Array = np.ndarray[Any, np.dtype[Any]]
CHUNK_BYTES = 8 << 20  # copied at a time: rows, or parts of a longer row
MOST_THREADS = 8  # of one direction: more threads gain nothing
BUFFERS = 2  # of a thread: one is filled while the other is copied


# ---- what a device provides


class Buffer(Protocol):
    """Page-locked host memory, which a device can read and write by itself."""

    @property
    def bytes(self) -> Array: ...

    def wait(self) -> None:
        """Wait until the device has read the last copy sent from this buffer."""


class Event(Protocol):
    """A point in a device's queue."""

    def wait(self) -> None: ...

    def happened(self) -> bool: ...


class Engine(Protocol):
    """A device on which a schedule runs: it computes, copies to the device and copies to the host concurrently."""

    def begin_thread(self) -> None:
        """Prepare a new thread; its first call."""

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        """Return a device address, and the object that owns the memory."""
        ...

    def reserve(self, nbytes: int) -> None:
        """Allocate this much memory for the products' workspaces in advance, so that no product waits for memory."""

    def buffer(self, nbytes: int) -> Buffer: ...

    def send(self, buffer: Buffer, nbytes: int, address: int) -> None:
        """Enqueue a copy to the device."""

    def fetch(self, address: int, nbytes: int, buffer: Buffer) -> None:
        """Copy to the host and wait for the copy."""

    def sent(self) -> Event:
        """Return the event that all copies sent so far have arrived."""
        ...

    def matrix(self, address: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
        """Return a row-major array of the device's library with this leading dimension."""
        ...

    def multiply(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> Event:
        """Enqueue C = A B, or C = A B + C, with at most this many bytes of workspace."""
        ...

    def finish(self) -> None:
        """Wait for all work, and make the engine's stream no longer current."""


class Place(NamedTuple):
    """The place of a row-major matrix on the device."""

    address: int
    leading: int
    dtype: np.dtype[Any]

    def at_row(self, row: int) -> Place:
        return self.at(row, 0)

    def at(self, row: int, col: int) -> Place:
        return self._replace(address=self.address + row * self.row_bytes + col * self.dtype.itemsize)

    @property
    def row_bytes(self) -> int:
        return self.leading * self.dtype.itemsize


# ---- the threads that copy


class Transfers:
    """Threads that copy between host arrays and one device."""

    def __init__(self, engine: Engine, threads: int = 0) -> None:
        self.engine, self.chunk_bytes = engine, CHUNK_BYTES
        count = threads or max(1, min(usable_processors() // 2, MOST_THREADS))
        self.load_pool, self.store_pool = (
            ThreadPoolExecutor(count, f"fmm-{way}", initializer=self._begin_thread) for way in ("load", "store")
        )
        self.thread_state, self.ended = local(), False

    def load(self, host: Array, place: Place) -> Event:
        """Start copying a matrix to the device; return the event of its arrival.

        Further loads may be started meanwhile. Their chunks are queued behind those of this one, and no thread waits
        for another.
        """
        return _Loading(self.engine, self._submit_chunks(self.load_pool, self._load_chunk, host, place))

    def store(self, place: Place, host: Array) -> None:
        """Copy a matrix from the device and wait for the copy."""
        wait_for_all(self._submit_chunks(self.store_pool, self._store_chunk, host, place))

    def close(self) -> None:
        """End the threads; copies that have not begun are dropped."""
        self.ended = True
        for pool in (self.load_pool, self.store_pool):
            pool.shutdown(wait=True, cancel_futures=True)

    def _submit_chunks(
        self, pool: ThreadPoolExecutor, task: Callable[[Array, Place], None], host: Array, place: Place
    ) -> list[Future[None]]:
        return [
            pool.submit(task, host[rows, cols], place.at(rows.start, cols.start))
            for rows, cols in _chunks(host.shape, place, self.chunk_bytes)
        ]

    # ---- in the threads

    def _begin_thread(self) -> None:
        self.engine.begin_thread()
        self.thread_state.buffers = [self.engine.buffer(self.chunk_bytes) for _ in range(BUFFERS)]

    def _load_chunk(self, host: Array, place: Place) -> None:
        if self.ended:
            return
        buffer = self._free_buffer()
        np.copyto(_buffer_view(buffer, host, place), host, casting="unsafe")  # the caller has checked the cast
        self.engine.send(buffer, _chunk_bytes(host, place), place.address)

    def _store_chunk(self, host: Array, place: Place) -> None:
        if self.ended:
            return
        buffer = self._free_buffer()
        self.engine.fetch(place.address, _chunk_bytes(host, place), buffer)
        np.copyto(host, _buffer_view(buffer, host, place), casting="unsafe")

    def _free_buffer(self) -> Buffer:
        """Return this thread's least recently used buffer, once the device has read it."""
        buffers: list[Buffer] = self.thread_state.buffers
        buffers.append(buffers.pop(0))
        buffers[-1].wait()
        return buffers[-1]


class _Loading:
    """The event that all chunks of a matrix have arrived; `wait` raises the error of a failed thread."""

    def __init__(self, engine: Engine, tasks: list[Future[None]]) -> None:
        self.engine, self.tasks = engine, tasks
        self.sent: Event | None = None

    def wait(self) -> None:
        if self.sent is None:
            wait_for_all(self.tasks)
            self.sent = self.engine.sent()
        self.sent.wait()

    def happened(self) -> bool:
        if self.sent is None and all(task.done() for task in self.tasks):
            wait_for_all(self.tasks)
            self.sent = self.engine.sent()
        return self.sent is not None and self.sent.happened()


def _chunks(shape: tuple[int, ...], place: Place, nbytes: int) -> Iterator[tuple[slice, slice]]:
    """Yield chunks of as many rows as fit into `nbytes`; equal parts of a row where no row fits."""
    rows, cols = shape
    height = max(nbytes // place.row_bytes, 1)
    width = -(-cols // max(-(-cols * place.dtype.itemsize // nbytes), 1))
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, cols))


def _buffer_view(buffer: Buffer, host: Array, place: Place) -> Array:
    """Return the buffer as an array of the chunk's shape, with the device's leading dimension."""
    rows, cols = host.shape
    strides = (place.row_bytes, place.dtype.itemsize)
    return np.ndarray((rows, cols), place.dtype, buffer.bytes, strides=strides)


def _chunk_bytes(host: Array, place: Place) -> int:
    """Return the bytes from a chunk's first to its last number on the device."""
    rows, cols = host.shape
    nbytes: int = (rows - 1) * place.row_bytes + cols * place.dtype.itemsize
    return nbytes


def wait_for_all(futures: Sequence[Future[None]]) -> None:
    """Wait for all futures; raise the first error."""
    for future in futures:
        future.result()


# ---- measured rates

PROBE_BYTES, PROBE_ROUNDS = 512 << 20, 4


def measure_rates(engine: Engine, transfers: Transfers, clock: Callable[[], float], nbytes: int = PROBE_BYTES) -> Rates:
    """Measure the rate of copies in each direction alone: the best of a few rounds, as threads and pages are new."""
    host = np.ones((nbytes >> 16, 1 << 13))
    address, memory = engine.allocate(host.nbytes)
    place, loads, stores = Place(address, host.shape[1], host.dtype), [1.0], [1.0]
    for _ in range(PROBE_ROUNDS):
        start = clock()
        transfers.load(host, place).wait()
        loaded = clock()
        transfers.store(place, host)
        loads.append(host.nbytes / max(loaded - start, 1e-9))
        stores.append(host.nbytes / max(clock() - loaded, 1e-9))
    del memory
    return Rates(max(loads), max(stores))
