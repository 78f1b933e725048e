"""The schedule of a streamed product: the order in which tiles are loaded to the device, multiplied and stored back.

C is cut into as few blocks as the device's memory allows. A block of C stays on the device while tiles of A and B are
loaded, one range of the inner dimension after the other. The product of the last range is computed in bands of rows;
each band of C is stored while the next band is computed. A tile stays in its slot (a range of device memory) until the
slot is needed for another tile. If no slot is free, the tile with the latest next use is evicted.

This module counts, times and describes the steps of a schedule; fmm.out_of_core.run_schedule executes the steps. A step
waits for all earlier steps of its own class (LoadStep, MultiplyStep or StoreStep). A step also waits for the steps in
its field `after`, which belong to the other two classes.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from fmm.problem import Shape

IndexRange = tuple[int, int]  # start, stop
ROW_ALIGNMENT_BYTES = 16  # rows of tiles on the device begin at multiples of this number of bytes
SLOT_ALIGNMENT_BYTES = 512  # slots begin at multiples of this number of bytes


class StreamedTile(NamedTuple):
    """A rectangle of A or B that is loaded and multiplied as a unit."""

    name: Literal["A", "B"]
    rows: IndexRange
    cols: IndexRange


@dataclass(frozen=True)
class LoadStep:
    """A step that copies a tile into a slot of device memory.

    The step runs after the last product that reads the tile to be overwritten.
    """

    tile: StreamedTile
    slot: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class MultiplyStep:
    """A step that multiplies a range of rows of a tile of A by a tile of B, and writes or updates a block of C.

    The product for the first range of the inner dimension overwrites the memory (slot) of the block, after the previous
    block in the slot has been stored. The products for later ranges of the inner dimension are added to the block of C.
    """

    left: StreamedTile
    right: StreamedTile
    slots: tuple[int, int, int]  # slot indices of A's tile, B's tile and C's block
    rows: IndexRange  # range of C's rows in the band
    adds: bool
    after: tuple[int, ...] = ()

    @property
    def product_size(self) -> Shape:
        (top, bottom), (first, last), (left, right) = self.rows, self.left.cols, self.right.cols
        return bottom - top, last - first, right - left

    @property
    def first_row_in_block(self) -> int:
        """The first row that this step computes, counted from the first row of the block of C."""
        return self.rows[0] - self.left.rows[0]


@dataclass(frozen=True)
class StoreStep:
    """A step that copies a band of rows of a block of C to the host, after the product that finishes the band."""

    rows: IndexRange
    cols: IndexRange
    slot: int
    first_row_in_block: int  # first row of the band, relative to the first row of the block
    after: tuple[int, ...] = ()


ScheduleStep = LoadStep | MultiplyStep | StoreStep


class ProductCut(NamedTuple):
    """The sizes of C's blocks, of the ranges of the inner dimension, and of the bands (ranges of rows) of a block."""

    rows: int  # number of rows of the largest block of C
    cols: int
    pieces: tuple[int, ...]  # lengths of the pieces of the inner dimension
    bands: tuple[int, ...]  # number of rows of each band in which a block of C is finished
    slots: tuple[int, int, int] = (2, 2, 1)  # numbers of tiles of A, tiles of B and blocks of C on the device at a time


class CopyRates(NamedTuple):
    """The rates of copies to the device and of copies to the host, in bytes per second."""

    to_device: float
    to_host: float


class ScheduleTimes(NamedTuple):
    """The predicted seconds of a schedule from start to end, and the sums of its loads, its products and its stores."""

    seconds: float
    loading: float
    computing: float
    storing: float


@dataclass(frozen=True)
class Schedule:
    """The steps of a product, in the order in which they are started."""

    size: Shape
    itemsize: int
    cut: ProductCut
    steps: tuple[ScheduleStep, ...] = field(repr=False)

    @cached_property
    def multiply_steps(self) -> tuple[MultiplyStep, ...]:
        return tuple(step for step in self.steps if isinstance(step, MultiplyStep))

    @cached_property
    def slot_bytes(self) -> dict[str, tuple[int, ...]]:
        """The bytes of device memory for a tile of A, for a tile of B, and for a block of C.

        Each number of bytes is enough for the largest tile or block, and for a tile in row-major or column-major
        layout.
        """
        largest: dict[tuple[str, int], int] = {}
        key: tuple[str, int]
        for step in self.steps:
            if isinstance(step, LoadStep):
                rows, cols = (last - first for first, last in (step.tile.rows, step.tile.cols))
                key, needed = (step.tile.name, step.slot), tile_slot_bytes(rows, cols, self.itemsize)
            elif isinstance(step, MultiplyStep):
                top, bottom = step.left.rows
                key, needed = ("C", step.slots[2]), block_slot_bytes(bottom - top, step.product_size[2], self.itemsize)
            else:
                continue
            largest[key] = max(largest.get(key, 0), needed)
        return {name: tuple(size for key, size in sorted(largest.items()) if key[0] == name) for name in "ABC"}

    @property
    def total_slot_bytes(self) -> int:
        """The bytes of device memory for all tiles of A and B and all blocks of C together."""
        return sum(map(sum, self.slot_bytes.values()))

    @property
    def bytes_loaded(self) -> int:
        return sum(self._rectangle_bytes(s.tile.rows, s.tile.cols) for s in self.steps if isinstance(s, LoadStep))

    @property
    def bytes_stored(self) -> int:
        return sum(self._rectangle_bytes(s.rows, s.cols) for s in self.steps if isinstance(s, StoreStep))

    def _rectangle_bytes(self, rows: IndexRange, cols: IndexRange) -> int:
        return (rows[1] - rows[0]) * (cols[1] - cols[0]) * self.itemsize

    def predict_times(self, rates: CopyRates, product_seconds: Callable[[Shape], float]) -> ScheduleTimes:
        """Return the predicted times; each step runs after the steps in `after` and after earlier steps of its class.

        The prediction ignores that a run needs time to start, and that concurrent copies slow down products, since both
        use device memory.
        """
        ends: list[float] = []
        free, busy = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for step in self.steps:
            if isinstance(step, LoadStep):
                queue, seconds = 0, self._rectangle_bytes(step.tile.rows, step.tile.cols) / rates.to_device
            elif isinstance(step, MultiplyStep):
                queue, seconds = 1, product_seconds(step.product_size)
            else:
                queue, seconds = 2, self._rectangle_bytes(step.rows, step.cols) / rates.to_host
            free[queue] = max([free[queue], *(ends[i] for i in step.after)]) + seconds
            busy[queue] += seconds
            ends.append(free[queue])
        return ScheduleTimes(max(free), *busy)


def tile_slot_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Return the bytes of device memory for a tile, enough for row-major and for column-major layout."""
    return max(block_slot_bytes(rows, cols, itemsize), block_slot_bytes(cols, rows, itemsize))


def block_slot_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Return the bytes of device memory for a row-major block of C."""
    return -(-rows * padded_length(cols, itemsize) * itemsize // SLOT_ALIGNMENT_BYTES) * SLOT_ALIGNMENT_BYTES


def padded_length(length: int, itemsize: int) -> int:
    """Return the leading dimension on the device with which rows of `length` entries are aligned."""
    step = max(ROW_ALIGNMENT_BYTES // itemsize, 1)
    return -(-length // step) * step


def cut_ranges(total: int, lengths: Sequence[int]) -> list[IndexRange]:
    """Cut the range from 0 to `total` into ranges with these lengths; the last length repeats."""
    ends = [0]
    while ends[-1] < total:
        ends.append(min(ends[-1] + lengths[min(len(ends), len(lengths)) - 1], total))
    return list(pairwise(ends))


def build_schedule(size: Shape, itemsize: int, cut: ProductCut) -> Schedule:
    """Return the schedule of a product with this size and this cut."""
    return Schedule(size, itemsize, cut, tuple(_ScheduleBuilder(size, cut).steps))


class _ScheduleBuilder:
    """Builds the list of steps: for each product of tiles, the loads of missing tiles, the products and the stores."""

    def __init__(self, size: Shape, cut: ProductCut) -> None:
        self.cut, self.steps = cut, list[ScheduleStep]()
        products = list(_tile_products(size, cut))
        self.count = len(products)
        self.uses: dict[StreamedTile, list[int]] = {}  # indices of the products that read each tile
        for number, (_, _, _, left, right) in enumerate(products):
            for tile in (left, right):
                self.uses.setdefault(tile, []).append(number)
        self.places = {name: _TileSlots(count) for name, count in zip("AB", cut.slots, strict=False)}
        # slot of a block of C -> indices of the StoreSteps that store the slot's previous block
        self.stores: dict[int, list[int]] = {}
        for number, (block, first, last, left, right) in enumerate(products):
            slots = self._add_load_step(number, left), self._add_load_step(number, right), block % cut.slots[2]
            top, bottom = left.rows
            for start, stop in cut_ranges(bottom - top, cut.bands if last else (bottom,)):
                self._add_multiply_steps(left, right, slots, (top + start, top + stop), first, last)

    def _add_load_step(self, number: int, tile: StreamedTile) -> int:
        """Return the tile's slot (range of device memory); add a LoadStep if the tile is not on the device."""
        place = self.places[tile.name]
        if tile not in place.slot:
            slot, readers = place.take_slot(lambda other: self._next_product_with_tile(number, other))
            place.slot[tile], place.load[tile] = slot, len(self.steps)
            self.steps.append(LoadStep(tile, slot, readers))
        return place.slot[tile]

    def _next_product_with_tile(self, number: int, tile: StreamedTile) -> int:
        """Return the index of the next product, at index `number` or later, that reads the tile."""
        uses = self.uses[tile]
        later = bisect_left(uses, number)
        return uses[later] if later < len(uses) else self.count

    def _add_multiply_steps(
        self,
        left: StreamedTile,
        right: StreamedTile,
        slots: tuple[int, int, int],
        rows: IndexRange,
        first: bool,
        last: bool,
    ) -> None:
        after = [self.places[tile.name].load[tile] for tile in (left, right)]
        # The later bands run after the first band. Waiting for the store of the first band would delay them.
        if first and rows[0] == left.rows[0]:
            after += self.stores.pop(slots[2], [])
        number = len(self.steps)
        step = MultiplyStep(left, right, slots, rows, not first, tuple(after))
        self.steps.append(step)
        for tile in (left, right):
            self.places[tile.name].readers[self.places[tile.name].slot[tile]] = (number,)
        if last:
            self.stores.setdefault(slots[2], []).append(len(self.steps))
            self.steps.append(StoreStep(rows, right.cols, slots[2], step.first_row_in_block, (number,)))


class _TileSlots:
    """Assigns tiles of A or B to slots (ranges of device memory); records LoadSteps and the last readers of slots."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.slot: dict[StreamedTile, int] = {}
        self.load: dict[StreamedTile, int] = {}
        self.readers: dict[int, tuple[int, ...]] = {}

    def take_slot(self, next_use: Callable[[StreamedTile], int]) -> tuple[int, tuple[int, ...]]:
        """Return a slot and its last readers; if no slot is free, evict the tile with the latest next use."""
        if len(self.slot) < self.count:
            return len(self.slot), ()
        evicted = max(self.slot, key=next_use)
        slot = self.slot.pop(evicted)
        return slot, self.readers.get(slot, ())


def _tile_products(size: Shape, cut: ProductCut) -> Iterator[tuple[int, bool, bool, StreamedTile, StreamedTile]]:
    """Yield for each tile product: index of C's block, True for the first and the last range of k, tiles of A and B.

    To reuse a tile of the previous product, every second row of blocks runs from right to left, and every second block
    runs through the inner dimension backwards.
    """
    m, k, n = size
    block = 0
    for i, rows in enumerate(cut_ranges(m, (cut.rows,))):
        columns = cut_ranges(n, (cut.cols,))
        for cols in columns if i % 2 == 0 else columns[::-1]:
            pieces = cut_ranges(k, cut.pieces)
            pieces = pieces if block % 2 == 0 else pieces[::-1]
            for piece in pieces:
                left, right = StreamedTile("A", rows, piece), StreamedTile("B", piece, cols)
                yield block, piece == pieces[0], piece == pieces[-1], left, right
            block += 1
