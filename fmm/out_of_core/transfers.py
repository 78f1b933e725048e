"""Copies between NumPy's arrays and a device, through buffers that the device can read and write by itself.

An array of NumPy may lie anywhere, be mapped from a file, or hold numbers of another type. So each copy is made in two
steps, by several threads at once, each with buffers of its own: between the array and a buffer by NumPy (which casts,
and does not hold Python's lock), between the buffer and the device by the device.
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
CHUNK = 8 << 20  # bytes that are copied at a time: rows, or parts of a row that is longer
MOST_THREADS = 8  # for one direction: more gain nothing
BUFFERS = 2  # of a thread: one is filled while the other is read


class Buffer(Protocol):
    """Memory of the host that a device can read and write by itself."""

    @property
    def bytes(self) -> Array: ...

    def wait(self) -> None:
        """Until the device has read what was last sent from here."""


class Event(Protocol):
    """Something that a device does in its turn."""

    def wait(self) -> None: ...

    def happened(self) -> bool: ...


class Engine(Protocol):
    """A device as a schedule is run on it: it computes, and copies both ways, all three at the same time."""

    def begin_thread(self) -> None:
        """In a new thread, before anything else."""

    def allocate(self, nbytes: int) -> tuple[int, Any]:
        """An address on the device, and what must live for as long as it is used."""
        ...

    def reserve(self, nbytes: int) -> None:
        """Have so many bytes ready: products will ask for them, and are not to wait until memory is found."""

    def buffer(self, nbytes: int) -> Buffer: ...

    def send(self, buffer: Buffer, nbytes: int, address: int) -> None:
        """To the device, in its turn."""

    def fetch(self, address: int, nbytes: int, buffer: Buffer) -> None:
        """To the host, now."""

    def sent(self) -> Event:
        """What happens when all that was sent so far has arrived."""
        ...

    def matrix(self, address: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
        """An array of the device's library; rows are contiguous, `leading` elements from one to the next."""
        ...

    def multiply(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> Event:
        """C = A B, or C = A B + C, in its turn; in so many bytes besides."""
        ...

    def finish(self) -> None:
        """Wait for everything, and be nobody's current stream."""


class Place(NamedTuple):
    """Where a matrix is on the device, its rows contiguous."""

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


class Transfers:
    """Threads that copy between arrays and one device."""

    def __init__(self, engine: Engine, threads: int = 0) -> None:
        self.engine, self.nbytes = engine, CHUNK
        count = threads or max(1, min(usable_processors() // 2, MOST_THREADS))
        self.pools = [
            ThreadPoolExecutor(count, f"fmm-{way}", initializer=self._begin_thread) for way in ("load", "store")
        ]
        self.own, self.ended = local(), False

    def load(self, host: Array, place: Place) -> Event:
        """A matrix to the device; what comes back happens when it is there. The next one may be asked for meanwhile:
        its chunks come behind those of this one, and no thread waits for another."""
        tasks = self._share_out(0, host, place, self._load_chunk)
        return _Loading(self.engine, tasks)

    def store(self, place: Place, host: Array) -> None:
        """A matrix from the device, which is there when this returns."""
        all_done(self._share_out(1, host, place, self._store_chunk))

    def close(self) -> None:
        """End the threads; copies that have not begun are dropped."""
        self.ended = True
        for pool in self.pools:
            pool.shutdown(wait=True, cancel_futures=True)

    # ---- in the threads

    def _load_chunk(self, host: Array, place: Place) -> None:
        if self.ended:
            return
        buffer = self._buffer()
        np.copyto(self._in_rows(buffer, host, place), host, casting="unsafe")  # whether it may be cast was asked before
        self.engine.send(buffer, _bytes_from_end_to_end(host, place), place.address)

    def _store_chunk(self, host: Array, place: Place) -> None:
        if self.ended:
            return
        buffer = self._buffer()
        self.engine.fetch(place.address, _bytes_from_end_to_end(host, place), buffer)
        np.copyto(host, self._in_rows(buffer, host, place), casting="unsafe")

    def _in_rows(self, buffer: Buffer, host: Array, place: Place) -> Array:
        rows, cols = host.shape
        strides = (place.row_bytes, place.dtype.itemsize)
        return np.ndarray((rows, cols), place.dtype, buffer.bytes, strides=strides)

    def _begin_thread(self) -> None:
        self.engine.begin_thread()
        self.own.buffers = [self.engine.buffer(self.nbytes) for _ in range(BUFFERS)]

    def _buffer(self) -> Buffer:
        """The one of this thread's that was in use longest ago, when it is free."""
        buffers: list[Buffer] = self.own.buffers
        buffers.append(buffers.pop(0))
        buffers[-1].wait()
        return buffers[-1]

    def _share_out(
        self, way: int, host: Array, place: Place, task: Callable[[Array, Place], None]
    ) -> list[Future[None]]:
        """In chunks, on all threads."""
        return [
            self.pools[way].submit(task, host[rows, cols], place.at(rows.start, cols.start))
            for rows, cols in _chunks(host.shape, place, self.nbytes)
        ]


class _Loading:
    """Happens when all chunks of a matrix have arrived. Whoever waits for it gets the error that a thread raised."""

    def __init__(self, engine: Engine, tasks: list[Future[None]]) -> None:
        self.engine, self.tasks = engine, tasks
        self.sent: Event | None = None

    def wait(self) -> None:
        if self.sent is None:
            all_done(self.tasks)
            self.sent = self.engine.sent()
        self.sent.wait()

    def happened(self) -> bool:
        if self.sent is None and all(task.done() for task in self.tasks):
            all_done(self.tasks)
            self.sent = self.engine.sent()
        return self.sent is not None and self.sent.happened()


def _chunks(shape: tuple[int, ...], place: Place, nbytes: int) -> Iterator[tuple[slice, slice]]:
    """As many rows as fit into so many bytes; where not one does, parts of each that are equally long."""
    rows, cols = shape
    height = max(nbytes // place.row_bytes, 1)
    width = -(-cols // max(-(-cols * place.dtype.itemsize // nbytes), 1))
    for top in range(0, rows, height):
        for left in range(0, cols, width):
            yield slice(top, min(top + height, rows)), slice(left, min(left + width, cols))


def _bytes_from_end_to_end(host: Array, place: Place) -> int:
    """That a chunk covers on the device, where its rows are as far apart as the place says."""
    rows, cols = host.shape
    nbytes: int = (rows - 1) * place.row_bytes + cols * place.dtype.itemsize
    return nbytes


def all_done(futures: Sequence[Future[None]]) -> None:
    for future in futures:
        future.result()


PROBED, ROUNDS = 512 << 20, 4  # bytes, and how often


def measured_rates(engine: Engine, transfers: Transfers, clock: Callable[[], float], nbytes: int = PROBED) -> Rates:
    """How fast arrays go there and come back, each alone: the best of a few times, since threads and pages are new."""
    host = np.ones((nbytes >> 16, 1 << 13))
    address, memory = engine.allocate(host.nbytes)
    place, loads, stores = Place(address, host.shape[1], host.dtype), [1.0], [1.0]
    for _ in range(ROUNDS):
        began = clock()
        transfers.load(host, place).wait()
        there = clock()
        transfers.store(place, host)
        loads.append(host.nbytes / max(there - began, 1e-9))
        stores.append(host.nbytes / max(clock() - there, 1e-9))
    del memory
    return Rates(max(loads), max(stores))
