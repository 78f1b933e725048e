"""The arrays of a sum kernel: how few of them hold all blocks that a step of sums reads and writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fmm.kernels.cuda.ops import View, constant_distance, transposed_view
from fmm.kernels.cuda.sums.sum_kernel import BlockIndex
from fmm.kernels.plans.steps.sums import APART, Place

Placed = tuple[Place, View]  # a rectangle as a level's steps name it, and where it lies in memory


class Array(NamedTuple):
    """What a kernel is told of one of its arrays: a grid of blocks of a matrix, or equal layers. In elements."""

    base: str
    offset: int  # in bytes
    row: int  # from one row to the next
    col: int  # from one column to the next
    down: int  # from one block to the one below it
    right: int  # from one block to the one right of it
    rows: int  # of the whole array, as far as there are numbers
    cols: int
    height: int  # of a block
    width: int


def block_size(array: Array, spot: BlockIndex) -> tuple[int, int]:
    """Rows and columns of a block, which are fewer at the edge of its array."""
    return (
        min(array.height, array.rows - spot.i * array.height),
        min(array.width, array.cols - spot.j * array.width),
    )


def holds_block(array: Array, spot: BlockIndex, rows: int, cols: int) -> bool:
    size = block_size(array, spot)
    return size[0] >= rows and size[1] >= cols


def turned_arrays(arrays: Sequence[Array], reads: Sequence[BlockIndex], writes: Sequence[BlockIndex]) -> frozenset[int]:
    """The arrays that are read, if they lie column by column and all that is written row by row; else none."""
    read, written = ({spot.array for spot in side} for side in (reads, writes))
    turned = all(arrays[a].col == 1 for a in written) and all(arrays[a].col != 1 == arrays[a].row for a in read)
    return frozenset(read) if turned else frozenset()


def same_places(reads: Sequence[Placed], writes: Sequence[Placed]) -> tuple[tuple[int, int], ...]:
    """Pairs (write, read) of the same place.

    What is added to C counts as C even where it lies elsewhere: in the same order of statements few values are alive,
    and the results are the same.
    """
    starts: dict[tuple[object, ...], list[int]] = {}
    for i, (p, v) in enumerate(reads):
        key = (p.row, p.col, p.part) if p.name == APART else (v.base, v.offset)
        starts.setdefault(key, []).append(i)
    keys = (((w.base, w.offset), *([(p.row, p.col, p.part)] if p.name == "C" else [])) for p, w in writes)
    return tuple((o, i) for o, found in enumerate(keys) for key in found for i in starts.get(key, ()))


def transposed_place(placed: Placed) -> Placed:
    """The same place of the transposed problem, whose fast index runs along the contiguous columns."""
    p, v = placed
    return Place(p.name, p.col, p.row, p.cols, p.rows, p.part), transposed_view(v)


def as_reals(x: Array) -> Array:
    return x._replace(row=2 * x.row, down=2 * x.down, right=2 * x.right, cols=2 * x.cols, width=2 * x.width)


class FittedArrays:
    """Finds few arrays that hold all places of a step: grids of blocks, equal layers, or a block on its own."""

    def __init__(self, placed: Sequence[Placed]) -> None:
        self.placed = placed
        self.arrays: list[Array] = []
        self.batches: list[int] = []  # the numbers of arrays that hold several temporaries
        self.parts: frozenset[int] = frozenset()  # those of arrays of complex numbers, of which parts are wanted
        self.spots: list[BlockIndex | None] = [None] * len(placed)

    def run(self) -> tuple[list[Array], tuple[BlockIndex, ...], list[int]]:
        """The arrays, the spot of each place, and the numbers of arrays that hold several temporaries."""
        by_matrix: dict[tuple[str, bool], list[int]] = {}
        for i, (place, _) in enumerate(self.placed):
            by_matrix.setdefault((place.name, place.part is not None), []).append(i)
        alone = [i for members in by_matrix.values() if not self._add_grid(members) for i in members]
        for run in self._layers(sorted(alone)):
            self._add_stack(run)
        return self.arrays, tuple(s for s in self.spots if s is not None), self.batches

    def _add_grid(self, members: Sequence[int]) -> bool:
        """Add one array for these places of one matrix; False if they are no grid of blocks.

        In a grid all stand at multiples of one block's size, none is shorter than the matrix's edge demands, and none
        is empty where the matrix has numbers.
        """
        places = [self.placed[i][0] for i in members]
        height, width = max(max(p.rows for p in places), 1), max(max(p.cols for p in places), 1)
        rows, cols = max(p.row + p.rows for p in places), max(p.col + p.cols for p in places)
        single, parts = len({(p.row, p.col) for p in places}) < 2, places[0].part is not None
        if single and not parts:
            return False
        corners = [(-(-p.row // height), -(-p.col // width)) for p in places]
        for p, (i, j) in zip(places, corners, strict=True):
            size = min(height, rows - i * height), min(width, cols - j * width)
            if p.rows and p.cols:
                if p.row % height or p.col % width or size != (p.rows, p.cols):
                    return False
            elif min(size) > 0:
                return False
        place, view = self.placed[members[0]]
        steps = place.row * view.down + place.col * view.right + (place.part == "im")
        blocks = (0, 0) if single else (height * view.down, width * view.right)
        if place.name not in "ABC" or single:
            self.batches.append(len(self.arrays))
        if parts:
            self.parts |= {len(self.arrays)}
        offset = view.offset - steps * view.itemsize
        self.arrays.append(Array(view.base, offset, *view.strides, *blocks, rows, cols, height, width))
        for i, p, corner in zip(members, places, corners, strict=True):
            self.spots[i] = BlockIndex(len(self.arrays) - 1, *corner, int(p.part == "im"))
        return True

    def _layers(self, members: Sequence[int]) -> Iterator[list[int]]:
        """Runs of equal blocks at equal distances."""
        run: list[int] = []
        for i in members:
            if run and not self._continues(run, i):
                yield run
                run = []
            run.append(i)
        if run:
            yield run

    def _continues(self, run: Sequence[int], i: int) -> bool:
        nearest = [self.placed[j][1] for j in (*run[:2], *run[-1:], i)]
        first, last = (constant_distance(pair) for pair in (nearest[:2], nearest[-2:]))
        return last not in (None, 0) and (len(run) == 1 or first == last)

    def _add_stack(self, run: Sequence[int]) -> None:
        """Add one array for equal blocks at equal distances, or for one block."""
        views = [self.placed[i][1] for i in run]
        v, distance = views[0], constant_distance(views) or 0
        array = Array(v.base, v.offset, *v.strides, distance, 0, v.rows * len(run), v.cols, v.rows, v.cols)
        if len(run) > 1:
            self.batches.append(len(self.arrays))
        self.arrays.append(array)
        for layer, i in enumerate(run):
            self.spots[i] = BlockIndex(len(self.arrays) - 1, layer, 0)
