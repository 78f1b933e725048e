"""The schedule of a product whose arrays are not on the device: which tiles are brought there, multiplied, fetched.

C is cut into blocks, as few as the device's memory allows. A block stays on the device while A's and B's tiles of its
rows and columns pass by, one piece of the inner side after the other; with the last piece it is finished band by band,
and each band is brought back while the next ones are computed. Tiles stay in their slots until the slot is needed, and
that of the tile which is needed latest goes first.

Everybody reads the same steps: they are counted and timed here, described, and run (fmm.out_of_core.run_schedule). What
a step waits for, besides its turn among its own kind, stands in it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from typing import Literal, NamedTuple

from fmm.problem import Shape

Range = tuple[int, int]  # from, to
ALIGNED = 16  # bytes to which the rows of tiles are aligned on the device
BEGINNING = 512  # bytes to which slots are aligned


class Tile(NamedTuple):
    """A part of A or of B."""

    name: Literal["A", "B"]
    rows: Range
    cols: Range


@dataclass(frozen=True)
class Load:
    """A tile comes into a slot; `after`: the products that read what was there."""

    tile: Tile
    slot: int
    after: tuple[int, ...] = ()


@dataclass(frozen=True)
class Multiply:
    """A band of a block of C, or all of it: so many of A's rows times a piece of B; added to what is there, unless it
    is the first piece. `after`: the tiles' loads, and what brings back the block that was there before."""

    left: Tile
    right: Tile
    slots: tuple[int, int, int]  # of A's tile, B's tile, C's block
    rows: Range  # the band's
    adds: bool
    after: tuple[int, ...] = ()

    @property
    def size(self) -> Shape:
        (top, bottom), (first, last), (left, right) = self.rows, self.left.cols, self.right.cols
        return bottom - top, last - first, right - left

    @property
    def inside(self) -> int:
        """The band's first row, counted in the block."""
        return self.rows[0] - self.left.rows[0]


@dataclass(frozen=True)
class Store:
    """A band of C goes back to the host; `after`: the product that finishes it."""

    rows: Range
    cols: Range
    slot: int
    inside: int  # the band's first row, counted in the block
    after: tuple[int, ...] = ()


Step = Load | Multiply | Store


class Cut(NamedTuple):
    """How a product is cut: the largest block of C, the pieces of the inner side, the bands (rows) of a block that is
    finished, and how many tiles of A, tiles of B and blocks of C are on the device at a time."""

    rows: int
    cols: int
    pieces: tuple[int, ...]
    bands: tuple[int, ...]
    slots: tuple[int, int, int] = (2, 2, 1)


class Rates(NamedTuple):
    """Bytes a second that come to the device, and that go back, while it computes."""

    to_device: float
    to_host: float


class Times(NamedTuple):
    """Predicted seconds of a schedule: from its beginning to its end, and how long each of the three is at work."""

    seconds: float
    loading: float
    computing: float
    storing: float


@dataclass(frozen=True)
class Schedule:
    """A product's steps in the order in which they are begun."""

    size: Shape
    itemsize: int
    cut: Cut
    steps: tuple[Step, ...] = field(repr=False)

    @cached_property
    def products(self) -> tuple[Multiply, ...]:
        return tuple(step for step in self.steps if isinstance(step, Multiply))

    @cached_property
    def slots(self) -> dict[str, tuple[int, ...]]:
        """Bytes of each slot for tiles of A and B and blocks of C: of the largest that comes there, whichever way it
        lies in memory."""
        found: dict[tuple[str, int], int] = {}
        key: tuple[str, int]
        for step in self.steps:
            if isinstance(step, Load):
                rows, cols = (last - first for first, last in (step.tile.rows, step.tile.cols))
                key, needed = (step.tile.name, step.slot), tile_bytes(rows, cols, self.itemsize)
            elif isinstance(step, Multiply):
                top, bottom = step.left.rows
                key, needed = ("C", step.slots[2]), block_bytes(bottom - top, step.size[2], self.itemsize)
            else:
                continue
            found[key] = max(found.get(key, 0), needed)
        return {name: tuple(size for key, size in sorted(found.items()) if key[0] == name) for name in "ABC"}

    @property
    def memory(self) -> int:
        """Bytes of all slots."""
        return sum(map(sum, self.slots.values()))

    @property
    def bytes_loaded(self) -> int:
        return sum(self._area(s.tile.rows, s.tile.cols) for s in self.steps if isinstance(s, Load))

    @property
    def bytes_stored(self) -> int:
        return sum(self._area(s.rows, s.cols) for s in self.steps if isinstance(s, Store))

    def _area(self, rows: Range, cols: Range) -> int:
        return (rows[1] - rows[0]) * (cols[1] - cols[0]) * self.itemsize

    def times(self, rates: Rates, product_seconds: Callable[[Shape], float]) -> Times:
        """By turns: loads one after the other, products too, and stores; each when what it waits for is done.

        Leaves out how copies slow down products (they share the device's memory), and what it takes to begin.
        """
        ends: list[float] = []
        free, busy = [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]
        for step in self.steps:
            if isinstance(step, Load):
                lane, seconds = 0, self._area(step.tile.rows, step.tile.cols) / rates.to_device
            elif isinstance(step, Multiply):
                lane, seconds = 1, product_seconds(step.size)
            else:
                lane, seconds = 2, self._area(step.rows, step.cols) / rates.to_host
            free[lane] = max([free[lane], *(ends[i] for i in step.after)]) + seconds
            busy[lane] += seconds
            ends.append(free[lane])
        return Times(max(free), *busy)


def tile_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Of a slot for such a tile, whichever way it lies in memory."""
    return max(block_bytes(rows, cols, itemsize), block_bytes(cols, rows, itemsize))


def block_bytes(rows: int, cols: int, itemsize: int) -> int:
    """Of a slot for a block, its rows contiguous."""
    return -(-rows * padded(cols, itemsize) * itemsize // BEGINNING) * BEGINNING


def padded(length: int, itemsize: int) -> int:
    """Elements from one row of a tile to the next."""
    step = max(ALIGNED // itemsize, 1)
    return -(-length // step) * step


def spans(total: int, lengths: Sequence[int]) -> list[Range]:
    """From 0 to the total in ranges of these lengths, the last one again and again."""
    ends = [0]
    while ends[-1] < total:
        ends.append(min(ends[-1] + lengths[min(len(ends), len(lengths)) - 1], total))
    return list(pairwise(ends))


def scheduled(size: Shape, itemsize: int, cut: Cut) -> Schedule:
    """The steps of a product of this size that is cut so."""
    return Schedule(size, itemsize, cut, tuple(_Steps(size, cut).made))


class _Steps:
    """Makes the steps."""

    def __init__(self, size: Shape, cut: Cut) -> None:
        self.cut, self.made = cut, list[Step]()
        self.asked = list(_products(size, cut))
        self.uses: dict[Tile, list[int]] = {}
        for at, (_, _, _, left, right) in enumerate(self.asked):
            for tile in (left, right):
                self.uses.setdefault(tile, []).append(at)
        self.places = {name: _Places(count) for name, count in zip("AB", cut.slots, strict=False)}
        self.leaves: dict[int, list[int]] = {}  # by block's slot: what brought back the block that was there
        for at, (block, first, last, left, right) in enumerate(self.asked):
            slots = self._slot(at, left), self._slot(at, right), block % cut.slots[2]
            bands = _bands(left.rows, cut.bands if last else (left.rows[1],))
            for rows in bands:
                self._product(left, right, slots, rows, first, last)

    def _slot(self, at: int, tile: Tile) -> int:
        """Where the tile is, if need be by a load from now on."""
        place = self.places[tile.name]
        if tile not in place.slot:
            slot, readers = place.freed(lambda other: self._next_use(at, other))
            place.slot[tile], place.load[tile] = slot, len(self.made)
            self.made.append(Load(tile, slot, readers))
        return place.slot[tile]

    def _next_use(self, at: int, tile: Tile) -> int:
        """When the tile is asked for again."""
        uses = self.uses[tile]
        later = bisect_left(uses, at)
        return uses[later] if later < len(uses) else len(self.asked)

    def _product(
        self, left: Tile, right: Tile, slots: tuple[int, int, int], rows: Range, first: bool, last: bool
    ) -> None:
        after = [self.places[tile.name].load[tile] for tile in (left, right)]
        after += self.leaves.pop(slots[2], []) if first else []
        number = len(self.made)
        step = Multiply(left, right, slots, rows, not first, tuple(after))
        self.made.append(step)
        for tile in (left, right):
            self.places[tile.name].readers[self.places[tile.name].slot[tile]] = (number,)
        if last:
            self._store(step, number)

    def _store(self, step: Multiply, number: int) -> None:
        self.leaves.setdefault(step.slots[2], []).append(len(self.made))
        self.made.append(Store(step.rows, step.right.cols, step.slots[2], step.inside, (number,)))


class _Places:
    """The slots for tiles of one matrix: what is where, which load brings it, which product is the last to read it."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.slot: dict[Tile, int] = {}
        self.load: dict[Tile, int] = {}
        self.readers: dict[int, tuple[int, ...]] = {}

    def freed(self, next_use: Callable[[Tile], int]) -> tuple[int, tuple[int, ...]]:
        """A slot that is free, or is made so by giving up what is needed latest; and who read it last."""
        if len(self.slot) < self.count:
            return len(self.slot), ()
        gone = max(self.slot, key=next_use)
        slot = self.slot.pop(gone)
        return slot, self.readers.get(slot, ())


def _products(size: Shape, cut: Cut) -> Iterator[tuple[int, bool, bool, Tile, Tile]]:
    """Which block, whether it is its first piece, whether its last, and the two tiles: blocks row by row of them, to
    and fro, and so the pieces, so that what is there last is needed next."""
    m, k, n = size
    block = 0
    for i, rows in enumerate(spans(m, (cut.rows,))):
        columns = spans(n, (cut.cols,))
        for cols in columns if i % 2 == 0 else columns[::-1]:
            pieces = spans(k, cut.pieces)
            pieces = pieces if block % 2 == 0 else pieces[::-1]
            for piece in pieces:
                left, right = Tile("A", rows, piece), Tile("B", piece, cols)
                yield block, piece == pieces[0], piece == pieces[-1], left, right
            block += 1


def _bands(rows: Range, heights: Sequence[int]) -> list[Range]:
    top, bottom = rows
    return [(top + first, top + last) for first, last in spans(bottom - top, heights)]
