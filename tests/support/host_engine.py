"""A simulated device that runs schedules: NumPy multiplies, in separate memory, as slowly as a test wants.
Copies are only recorded; data that was sent arrives when a step waits for it, and reading data that has not
arrived is an error. So a step that does not wait for its data is found.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fmm.out_of_core.schedule import CopyRates
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.devices import Device
from tests.support.devices import H200


class HostEvent:
    def __init__(self, begin: Callable[[], object] | None = None) -> None:
        self.begin, self.lock, self.over = begin, threading.Lock(), begin is None

    def wait(self) -> None:
        with self.lock:
            if not self.over and self.begin is not None:
                self.begin()
            self.over = True

    def has_happened(self) -> bool:
        return self.over


class HostBuffer:
    def __init__(self, nbytes: int) -> None:
        self.byte_array = np.full(nbytes, 0xFF, np.uint8)  # NaN
        self.waiting: HostEvent | None = None

    def wait(self) -> None:
        if self.waiting is not None:
            self.waiting.wait()


def wait_for_all(events: Iterable[HostEvent]) -> None:
    for event in events:
        event.wait()


def _after(other: HostEvent, begin: Callable[[], object]) -> HostEvent:
    """Return an event that calls `begin` after the other event has happened."""

    def both() -> None:
        other.wait()
        begin()

    return HostEvent(both)


@dataclass
class HostEngine:
    """The simulated engine. `fails` is called with the name of each operation, and may raise."""

    fails: Callable[[str], None] = lambda what: None
    workspaces: list[int] = field(default_factory=list)
    products: list[tuple[int, int, int, bool]] = field(default_factory=list)  # sizes, and if the product is added to C
    allocated: list[int] = field(default_factory=list)
    reserved: list[int] = field(default_factory=list)
    buffers: list[int] = field(default_factory=list)
    pending: list[HostEvent] = field(default_factory=list)
    sent_bytes: int = 0
    fetched_bytes: int = 0
    latest: HostEvent = field(default_factory=HostEvent)  # of the products
    finished: bool = False
    late: int = 0  # what was sent after that, to memory that may have another owner by then
    lock: Any = field(default_factory=threading.Lock)

    def prepare_thread(self) -> None: ...

    def allocate_memory(self, nbytes: int) -> tuple[int, Any]:
        self.fails("allocate")
        memory = np.full(nbytes + 512, 0xFF, np.uint8)
        self.allocated.append(nbytes)
        address = memory.ctypes.data
        return address + -address % 512, memory

    def reserve_workspace(self, nbytes: int) -> None:
        self.fails("reserve")
        self.reserved.append(nbytes)

    def create_buffer(self, nbytes: int) -> HostBuffer:
        self.buffers.append(nbytes)
        return HostBuffer(nbytes)

    def copy_buffer_to_device(self, buffer: Any, nbytes: int, address: int) -> None:
        self.fails("send")
        self.late += self.finished
        source = buffer.byte_array.ctypes.data
        event = buffer.waiting = HostEvent(lambda: ctypes.memmove(address, source, nbytes))
        with self.lock:
            self.sent_bytes += nbytes
            self.pending.append(event)

    def arrival_event(self) -> HostEvent:
        with self.lock:
            events = list(self.pending)
        return HostEvent(lambda: wait_for_all(events))

    def fetch_to_buffer(self, address: int, nbytes: int, buffer: Any) -> None:
        self.fails("fetch")
        ctypes.memmove(buffer.byte_array.ctypes.data, address, nbytes)
        with self.lock:
            self.fetched_bytes += nbytes

    def matrix_at_address(self, address: int, shape: tuple[int, int], leading: int, dtype: np.dtype[Any]) -> Any:
        nbytes = shape[0] * leading * dtype.itemsize
        memory: Any = (ctypes.c_char * nbytes).from_address(address)
        return np.ndarray(shape, dtype, memory, strides=(leading * dtype.itemsize, dtype.itemsize))

    def multiply_matrices(self, a: Any, b: Any, c: Any, adds: bool, workspace: int) -> HostEvent:
        self.fails("multiply")
        self.workspaces.append(workspace)
        self.products.append((*a.shape, b.shape[1], adds))

        def begin() -> None:
            with np.errstate(all="ignore"):
                found = np.matmul(a, b)
                c[...] = c + found if adds else found

        self.latest = _after(self.latest, begin)  # in their turn
        return self.latest

    def wait_until_idle(self) -> None:
        wait_for_all([*self.pending, self.latest])
        self.finished = True


RATES = CopyRates(40e9, 40e9)


@dataclass(frozen=True)
class HostMachine:
    """A simulated H200 with a given amount of memory, on which a host engine multiplies."""

    memory: int
    made: HostEngine = field(default_factory=HostEngine)
    device: Device = H200
    copy_rates: CopyRates = RATES
    out_of_memory_error: type[BaseException] = MemoryError

    def free_bytes(self) -> int:
        return self.memory

    @contextmanager
    def open_engine(self, constraints: PlanConstraints) -> Iterator[HostEngine]:
        yield self.made
