"""A schedule run on an engine: one thread has tiles loaded, one has bands stored, the caller's multiplies.

Each does its steps in their order, as soon as what they wait for is done. Whatever is raised in one of them, Ctrl-C
included, ends all three before it leaves.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fmm.out_of_core.choose_schedule import STEP
from fmm.out_of_core.schedule import Load, Multiply, Range, Schedule, Store, Tile, padded, spans
from fmm.out_of_core.transfers import Array, Engine, Event, Place, Transfers
from fmm.problem import Shape

Done = Callable[[int], object]
NO_PACES: Mapping[Shape, Pace] = MappingProxyType({})


class EndedError(RuntimeError):
    """Another thread has failed, and says why."""


class _Outcomes:
    """What has become of each step."""

    def __init__(self, count: int) -> None:
        self.begun = [threading.Event() for _ in range(count)]
        self.events: dict[int, Event] = {}
        self.failure: BaseException | None = None

    def note(self, step: int, event: Event | None = None) -> None:
        """It is done, or will be when this has happened."""
        if event is not None:
            self.events[step] = event
        self.begun[step].set()

    def wait(self, step: int) -> None:
        self.begun[step].wait()
        if self.failure is not None:
            raise EndedError
        if (event := self.events.get(step)) is not None:
            event.wait()

    def fail(self, error: BaseException) -> None:
        if self.failure is None and not isinstance(error, EndedError):
            self.failure = error
        for flag in self.begun:
            flag.set()


class ScheduleRun:
    """One product C = A B of matrices on the host, by transfers that end with it. `workspace`: bytes that a tile's
    product may take; `reserved`: those that the largest one is expected to; `paces`: how products are launched, by
    their sizes, if not each as a whole."""

    def __init__(
        self,
        schedule: Schedule,
        engine: Engine,
        transfers: Transfers,
        dtype: np.dtype[Any],
        workspace: int,
        reserved: int = 0,
        paces: Mapping[Shape, Pace] = NO_PACES,
    ) -> None:
        self.schedule, self.engine, self.transfers = schedule, engine, transfers
        self.dtype, self.workspace, self.reserved = dtype, workspace, reserved
        self.paces, self.outcomes = paces, _Outcomes(len(schedule.steps))

    def multiply(self, a: Array, b: Array, c: Array, done: Done = lambda work: None) -> None:
        """`done` hears of multiply-adds as they are done."""
        self.host = {"A": a, "B": b, "C": c}
        self.turned = {name: is_column_major(x) for name, x in self.host.items() if name != "C"}
        self.starts, memory = self._slots()
        self.engine.reserve(self.reserved)
        workers = [threading.Thread(target=self._all_of, args=(kind,), daemon=True) for kind in (Load, Store)]
        try:
            for worker in workers:
                worker.start()
            self._products(done)
            for worker in workers:
                worker.join()
        except BaseException as error:
            self.outcomes.fail(error)
            self.transfers.ended = True
            raise self.outcomes.failure or error from None
        finally:
            self.outcomes.fail(EndedError())
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            self.transfers.close()  # nobody copies into memory that is given back
            self.engine.finish()
            del memory
        if self.outcomes.failure is not None:
            raise self.outcomes.failure

    # ---- memory of the device

    def _slots(self) -> tuple[dict[str, list[int]], Any]:
        """Where each slot begins."""
        address, memory = self.engine.allocate(self.schedule.memory)
        found: dict[str, list[int]] = {}
        for name, sizes in self.schedule.slots.items():
            found[name] = []
            for nbytes in sizes:
                found[name].append(address)
                address += nbytes
        return found, memory

    def _place(self, name: str, slot: int, length: int) -> Place:
        return Place(self.starts[name][slot], padded(length, self.dtype.itemsize), self.dtype)

    def _tile(self, tile: Tile, slot: int) -> tuple[Array, Place]:
        """On the host and on the device, its lines in rows on both."""
        host = self.host[tile.name][slice(*tile.rows), slice(*tile.cols)]
        host = host.T if self.turned[tile.name] else host
        return host, self._place(tile.name, slot, host.shape[1])

    # ---- the three

    def _all_of(self, kind: type[Load] | type[Store]) -> None:
        """In a thread of its own."""
        try:
            self.engine.begin_thread()
            for number, step in enumerate(self.schedule.steps):
                if isinstance(step, kind):
                    for other in step.after:
                        self.outcomes.wait(other)
                    self.outcomes.note(number, self._load(step) if isinstance(step, Load) else self._store(step))
        except BaseException as error:
            self.outcomes.fail(error)

    def _load(self, step: Load) -> Event:
        return self.transfers.load(*self._tile(step.tile, step.slot))

    def _store(self, step: Store) -> Event | None:
        band = self.host["C"][slice(*step.rows), slice(*step.cols)]
        place = self._place("C", step.slot, band.shape[1]).at_row(step.inside)
        self.transfers.store(place, band)
        return None

    def _products(self, done: Done) -> None:
        launched = Launched(done)
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, Multiply):
                for other in step.after:
                    self.outcomes.wait(other)
                rows, inner, cols = step.size
                pace = self.paces.get(step.size, Pace(rows, UNKNOWN))
                for first, last in spans(rows, (pace.rows,)):
                    launched.make_room(pace.seconds)
                    event = self._product(step, (first, last))
                    launched.add(event, pace.seconds, (last - first) * inner * cols)
                self.outcomes.note(number, event)
        launched.end_all()

    def _product(self, step: Multiply, rows: Range) -> Event:
        """Some rows of the step's."""
        left, right = (
            self._on_device(tile, slot) for tile, slot in zip((step.left, step.right), step.slots, strict=False)
        )
        cols, (first, last) = step.size[2], (step.inside + row for row in rows)
        place = self._place("C", step.slots[2], cols).at_row(first)
        into = self.engine.matrix(place.address, (last - first, cols), place.leading, self.dtype)
        return self.engine.multiply(left[first:last], right, into, step.adds, self.workspace)

    def _on_device(self, tile: Tile, slot: int) -> Any:
        host, place = self._tile(tile, slot)
        found = self.engine.matrix(place.address, host.shape, place.leading, self.dtype)
        return found.T if self.turned[tile.name] else found


def is_column_major(x: Array) -> bool:
    """Are the columns nearer to each other in memory than the rows?"""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))


AHEAD = 1.0  # seconds of products that are launched behind the one that runs
SLOWER = 1.01  # times as long as the whole product its bands may take together
LEAST_ROWS = 256  # of a band
UNKNOWN = AHEAD / 4  # seconds, for products of which the model knows nothing


class Pace(NamedTuple):
    """How a product of one size is launched: so many rows at a time, which take so long."""

    rows: int
    seconds: float


def whole_pace(size: Shape, product_seconds: Callable[[Shape], float]) -> Pace:
    return Pace(size[0], product_seconds(size) or UNKNOWN)


def paced(size: Shape, product_seconds: Callable[[Shape], float]) -> Pace:
    """In the largest bands of at most a second; in larger ones where smaller ones would cost time."""
    found = whole = whole_pace(size, product_seconds)
    while found.seconds > AHEAD:
        rows = -(-found.rows // (2 * STEP)) * STEP
        seconds = product_seconds((rows, size[1], size[2]))
        if not LEAST_ROWS <= rows < found.rows or seconds * size[0] > SLOWER * whole.seconds * rows:
            break
        found = Pace(rows, seconds)
    return found


class Launched:
    """Products that are launched and not known to have ended; `done` hears of the multiply-adds of those that have."""

    def __init__(self, done: Callable[[int], object]) -> None:
        self.done, self.seconds = done, 0.0
        self.running: deque[tuple[Event, float, int]] = deque()

    def make_room(self, seconds: float) -> None:
        """Wait until a product that takes so long may be launched: behind one alone always, else within a second."""
        while len(self.running) > 1 and self.seconds - self.running[0][1] + seconds > AHEAD:
            self._end_first()

    def add(self, event: Event, seconds: float, work: int) -> None:
        self.running.append((event, seconds, work))
        self.seconds += seconds
        while self.running and self.running[0][0].happened():
            self._end_first()

    def end_all(self) -> None:
        while self.running:
            self._end_first()

    def _end_first(self) -> None:
        event, seconds, work = self.running[0]
        event.wait()
        self.running.popleft()
        self.seconds -= seconds
        self.done(work)
