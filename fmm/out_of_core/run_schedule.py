"""Run a schedule on an engine: one thread loads tiles, one stores rows of C, and the caller's thread multiplies.

Each thread executes its steps in order; a step starts after all steps in its field `after` are done. An exception in
one thread, including Ctrl-C, ends all three threads before the exception is raised.

A launched product cannot be stopped, so Ctrl-C waits until all launched products end. Behind the running product, the
device's queue has at most one product, or products of at most one second in all. A product of more than a second
(float64 on a GPU with few float64 units) is launched in bands (ranges of rows), if all bands together are predicted to
take at most 1 % longer than the whole product.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from fmm.out_of_core.choose_schedule import CUT_LENGTH_MULTIPLE
from fmm.out_of_core.schedule import (
    IndexRange,
    LoadStep,
    MultiplyStep,
    Schedule,
    StoreStep,
    StreamedTile,
    cut_ranges,
    padded_length,
)
from fmm.out_of_core.transfers import Array, CopyThreads, DeviceEngine, DeviceEvent, DeviceLocation
from fmm.problem import Shape

MAX_LAUNCH_SECONDS_AHEAD = 1.0  # seconds of products that may be launched ahead of the running product
# A product is launched in bands (ranges of rows) only if all bands together take at most this multiple of the time of
# the whole product.
MAX_BAND_SLOWDOWN = 1.01
MIN_BAND_ROWS = 256  # smallest number of rows of a band
ASSUMED_PRODUCT_SECONDS = MAX_LAUNCH_SECONDS_AHEAD / 4  # assumed seconds of a product that the model cannot predict


# ---- launching products


class LaunchBand(NamedTuple):
    """The number of rows in each launch of a tile product, and the predicted seconds of one launch."""

    rows: int
    seconds: float


def whole_launch_band(size: Shape, product_seconds: Callable[[Shape], float]) -> LaunchBand:
    """Return the LaunchBand with which a product is launched as a whole."""
    return LaunchBand(size[0], product_seconds(size) or ASSUMED_PRODUCT_SECONDS)


def limited_launch_band(size: Shape, product_seconds: Callable[[Shape], float]) -> LaunchBand:
    """Return the LaunchBand with the largest number of rows for which a launch takes at most a second.

    A launch takes more than a second if shorter launches would slow down the product by more than MAX_BAND_SLOWDOWN.
    """
    unit = whole = whole_launch_band(size, product_seconds)
    while unit.seconds > MAX_LAUNCH_SECONDS_AHEAD:
        rows = -(-unit.rows // (2 * CUT_LENGTH_MULTIPLE)) * CUT_LENGTH_MULTIPLE
        seconds = product_seconds((rows, size[1], size[2]))
        if not MIN_BAND_ROWS <= rows < unit.rows or seconds * size[0] > MAX_BAND_SLOWDOWN * whole.seconds * rows:
            break
        unit = LaunchBand(rows, seconds)
    return unit


class LaunchQueue:
    """The queue of launched products that may not have ended.

    When a product has ended, the queue calls `done` with the product's number of multiply-adds.
    """

    def __init__(self, done: Callable[[int], object]) -> None:
        self.done, self.seconds = done, 0.0
        self.running: deque[tuple[DeviceEvent, float, int]] = deque()

    def wait_to_launch(self, seconds: float) -> None:
        """Wait until a product that takes `seconds` may be launched.

        The wait ends when at most one product is in the queue, or when the new product and all products that have not
        begun take at most a second together.
        """
        while len(self.running) > 1 and self.seconds - self.running[0][1] + seconds > MAX_LAUNCH_SECONDS_AHEAD:
            self._wait_for_first_product()

    def add_product(self, event: DeviceEvent, seconds: float, work: int) -> None:
        self.running.append((event, seconds, work))
        self.seconds += seconds
        while self.running and self.running[0][0].has_happened():
            self._wait_for_first_product()

    def wait_for_all_products(self) -> None:
        while self.running:
            self._wait_for_first_product()

    def _wait_for_first_product(self) -> None:
        event, seconds, work = self.running[0]
        event.wait()
        self.running.popleft()
        self.seconds -= seconds
        self.done(work)


# ---- execution of a schedule

ProgressCallback = Callable[[int], object]
NO_LAUNCH_BANDS: Mapping[Shape, LaunchBand] = MappingProxyType({})


class OtherThreadFailedError(RuntimeError):
    """Raised in a thread that stops because another thread failed; the caller sees the other thread's error."""


class _StepStates:
    """The state of each step of a schedule: True if the step has started, and the event that marks its end."""

    def __init__(self, count: int) -> None:
        self.started = [threading.Event() for _ in range(count)]
        self.events: dict[int, DeviceEvent] = {}
        self.failure: BaseException | None = None

    def set_step_started(self, step: int, event: DeviceEvent | None = None) -> None:
        """Record that the step has started; the step is done when `event` happens, or at once if `event` is None."""
        if event is not None:
            self.events[step] = event
        self.started[step].set()

    def wait_for_step(self, step: int) -> None:
        self.started[step].wait()
        if self.failure is not None:
            raise OtherThreadFailedError
        if (event := self.events.get(step)) is not None:
            event.wait()

    def record_failure(self, error: BaseException) -> None:
        """Record the first error of a thread, and wake all threads that wait for a step."""
        if self.failure is None and not isinstance(error, OtherThreadFailedError):
            self.failure = error
        for flag in self.started:
            flag.set()


class ScheduleRun:
    """Executes a schedule for one product C = A B of host matrices; closes `transfers` at the end.

    `workspace` is the workspace limit of a tile product in bytes, `reserved` the expected bytes of the largest
    workspace. `units` maps a tile product's size to a LaunchBand (the rows in each launch); products of other sizes are
    launched as a whole.
    """

    def __init__(
        self,
        schedule: Schedule,
        engine: DeviceEngine,
        transfers: CopyThreads,
        dtype: np.dtype[Any],
        workspace: int,
        reserved: int = 0,
        units: Mapping[Shape, LaunchBand] = NO_LAUNCH_BANDS,
    ) -> None:
        self.schedule, self.engine, self.transfers = schedule, engine, transfers
        self.dtype, self.workspace, self.reserved = dtype, workspace, reserved
        self.units, self.states = units, _StepStates(len(schedule.steps))

    def multiply_matrices(self, a: Array, b: Array, c: Array, done: ProgressCallback = lambda work: None) -> None:
        """Run all steps; call `done` with the multiply-adds of each launch that has ended."""
        self.host = {"A": a, "B": b, "C": c}
        self.column_major = {name: is_column_major(x) for name, x in self.host.items() if name != "C"}
        self.addresses, memory = self._allocate_slots()
        self.engine.reserve_workspace(self.reserved)
        workers = [
            threading.Thread(target=self._run_copy_steps, args=(kind,), daemon=True) for kind in (LoadStep, StoreStep)
        ]
        try:
            for worker in workers:
                worker.start()
            self._run_products(done)
            for worker in workers:
                worker.join()
        except BaseException as error:
            self.states.record_failure(error)
            self.transfers.ended = True
            raise self.states.failure or error from None
        finally:
            self.states.record_failure(OtherThreadFailedError())
            for worker in workers:
                if worker.ident is not None:
                    worker.join()
            self.transfers.close()  # close the transfers before their device memory is freed
            self.engine.wait_until_idle()
            del memory
        if self.states.failure is not None:
            raise self.states.failure

    def _allocate_slots(self) -> tuple[dict[str, list[int]], Any]:
        """Allocate device memory (slots) for tiles and blocks; return each slot's address, and the memory's owner."""
        address, memory = self.engine.allocate_memory(self.schedule.total_slot_bytes)
        addresses: dict[str, list[int]] = {}
        for name, sizes in self.schedule.slot_bytes.items():
            addresses[name] = []
            for nbytes in sizes:
                addresses[name].append(address)
                address += nbytes
        return addresses, memory

    # ---- the threads that load and store

    def _run_copy_steps(self, kind: type[LoadStep] | type[StoreStep]) -> None:
        """Run all steps of type `kind` (LoadStep or StoreStep); each of two threads runs this method."""
        try:
            self.engine.prepare_thread()
            for number, step in enumerate(self.schedule.steps):
                if isinstance(step, kind):
                    for other in step.after:
                        self.states.wait_for_step(other)
                    self.states.set_step_started(
                        number, self._load_tile(step) if isinstance(step, LoadStep) else self._store_rows(step)
                    )
        except BaseException as error:
            self.states.record_failure(error)

    def _load_tile(self, step: LoadStep) -> DeviceEvent:
        return self.transfers.start_load(*self._host_tile_and_location(step.tile, step.slot))

    def _store_rows(self, step: StoreStep) -> DeviceEvent | None:
        band = self.host["C"][slice(*step.rows), slice(*step.cols)]
        self.transfers.store_matrix(
            self._slot_location("C", step.slot, band.shape[1]).location_of_row(step.first_row_in_block), band
        )
        return None  # there is no event to wait for, since the copy to the host has ended

    # ---- the caller's thread

    def _run_products(self, done: ProgressCallback) -> None:
        queue = LaunchQueue(done)
        for number, step in enumerate(self.schedule.steps):
            if isinstance(step, MultiplyStep):
                for other in step.after:
                    self.states.wait_for_step(other)
                rows, inner, cols = step.product_size
                unit = self.units.get(step.product_size, LaunchBand(rows, ASSUMED_PRODUCT_SECONDS))
                for first, last in cut_ranges(rows, (unit.rows,)):
                    queue.wait_to_launch(unit.seconds)
                    event = self._launch_product_rows(step, (first, last))
                    queue.add_product(event, unit.seconds, (last - first) * inner * cols)
                self.states.set_step_started(number, event)
        queue.wait_for_all_products()

    def _launch_product_rows(self, step: MultiplyStep, rows: IndexRange) -> DeviceEvent:
        """Launch the product for a range of the step's rows, and return the event that marks its end."""
        left, right = (
            self._device_tile(tile, slot) for tile, slot in zip((step.left, step.right), step.slots, strict=False)
        )
        cols, (first, last) = step.product_size[2], (step.first_row_in_block + row for row in rows)
        place = self._slot_location("C", step.slots[2], cols).location_of_row(first)
        dest = self.engine.matrix_at_address(place.address, (last - first, cols), place.leading, self.dtype)
        return self.engine.multiply_matrices(left[first:last], right, dest, step.adds, self.workspace)

    # ---- tiles

    def _device_tile(self, tile: StreamedTile, slot: int) -> Any:
        host, place = self._host_tile_and_location(tile, slot)
        array = self.engine.matrix_at_address(place.address, host.shape, place.leading, self.dtype)
        return array.T if self.column_major[tile.name] else array

    def _host_tile_and_location(self, tile: StreamedTile, slot: int) -> tuple[Array, DeviceLocation]:
        """Return the tile as a host array, and its location on the device; transpose both if A or B is column-major."""
        host = self.host[tile.name][slice(*tile.rows), slice(*tile.cols)]
        host = host.T if self.column_major[tile.name] else host
        return host, self._slot_location(tile.name, slot, host.shape[1])

    def _slot_location(self, name: str, slot: int, length: int) -> DeviceLocation:
        return DeviceLocation(self.addresses[name][slot], padded_length(length, self.dtype.itemsize), self.dtype)


def is_column_major(x: Array) -> bool:
    """Return True if the stride along columns of x is smaller than the stride along rows."""
    return bool(abs(x.strides[0]) < abs(x.strides[1]))
