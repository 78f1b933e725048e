"""Which schedule: of those that fit into the device's memory, the one with the least predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fmm.dtypes import DTYPES
from fmm.out_of_core.schedule import Cut, Rates, Schedule, Times, block_bytes, build_schedule, spans, tile_bytes
from fmm.problem import Shape

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # into which C's sides are cut
LEAST_DEPTH = 2048  # of equal pieces of the inner side, unless nothing deeper fits
STEP = 64  # of which pieces and bands are multiples
# Pieces each of which is so many times as long as the one before, so many of them: the first is soon there, and while
# one is multiplied, there is time to load the next.
GROWTHS, COUNTS = (1.5, 2.0, 3.0, 4.0), (3, 4, 6)
LEAST_FIRST = 256  # length of the first one
# The shares of a block that its bands have: the fewer and the larger, the faster its products; the smaller the last
# one, the sooner it is back.
BANDS = ((1.0,), (0.5, 0.25, 0.125), (0.75, 0.1875, 0.0625), (0.4, 0.3, 0.2, 0.1), (0.25,))
SLOTS = 3, 2  # tiles of one matrix: one is read, one on its way, and one may be ready
MOST_STEPS = 2048
FEW_STEPS = 64  # from which on a schedule's beginning and end make no difference

# How long products of tiles take with so many bytes of workspace: seconds by size.
ProductTime = Callable[[int], Callable[[Shape], float]]


class DoesNotFitError(MemoryError):
    """There is too little of the device's memory for any tiles."""


def chosen_schedule(
    size: Shape, dtype: str, room: int, rates: Rates, product_seconds: ProductTime
) -> tuple[Schedule, Times]:
    """The best schedule that takes at most so many bytes of the device's memory, workspace and all."""
    best: tuple[Schedule, Times] | None = None
    for found in schedules(size, dtype, room):
        times = found.times(rates, product_seconds(room - found.memory))
        if best is None or times.seconds < best[1].seconds:
            best = found, times
    if best is None:
        raise DoesNotFitError(f"{room} bytes of device memory are too few for tiles of a product of {size}")
    return best


def schedules(size: Shape, dtype: str, room: int) -> Iterator[Schedule]:
    """What is compared: for each way to cut the inner side, as few blocks as fit, finished in several ways.

    Sums of pieces are rounded once more for each piece: 16-bit types, which feel that, have one where it fits; whole
    numbers, whose pieces are added in a pass of their own, too.
    """
    row, found = DTYPES[dtype], False
    for pieces in _pieces(size[1]):
        if found and (row.exact or row.itemsize == 2 or max(pieces) < LEAST_DEPTH):
            return
        for cut in _cuts(size, pieces, row.itemsize, room, row.exact):
            found = True
            for shares in BANDS if _count(size, cut) < FEW_STEPS else BANDS[:1]:
                bands = tuple(_multiple(cut.rows * share, cut.rows) for share in shares)
                yield build_schedule(size, row.itemsize, cut._replace(bands=bands))


def _count(size: Shape, cut: Cut) -> int:
    return -(-size[0] // cut.rows) * -(-size[2] // cut.cols) * len(spans(size[1], cut.pieces))


def _pieces(k: int) -> Iterator[tuple[int, ...]]:
    """Ways to cut the inner side: not at all, in pieces that grow, in equal ones, smaller and smaller."""
    yield (k,)
    for growth in GROWTHS:
        for count in COUNTS:
            shares = [growth**i for i in range(count)]
            growing = [_multiple(k * share / sum(shares), k) for share in shares[:-1]]
            if sum(growing) < k and k / sum(shares) >= LEAST_FIRST:
                yield (*growing, k - sum(growing))
    parts = 2
    while parts < 2 * k:
        equal = _multiple(k / parts, k) if k / parts >= STEP else -(-k // parts)
        yield (equal,)
        if equal >= LEAST_DEPTH:
            yield (equal // 4, equal // 2, equal)
        parts *= 2


def _multiple(length: float, most: int) -> int:
    return min(max(-(-int(length) // STEP), 1) * STEP, most)


def _cuts(size: Shape, pieces: tuple[int, ...], itemsize: int, room: int, exact: bool) -> Iterator[Cut]:
    """With fewer tiles on the device there is room for larger blocks; with all of A's for a row of blocks, where they
    come again, these are loaded once. With one of each there is nothing to do while the next one comes."""
    count, found = len(spans(size[1], pieces)), list[Cut]()
    for of_a, of_b in (*((slots, slots) for slots in SLOTS), (count, max(SLOTS)), (1, 1)):
        cut = _with_few_blocks(size, pieces, (of_a, of_b), itemsize, room, exact)
        again = cut is not None and cut.cols < size[2]
        if cut is not None and cut not in found and (again or of_a in SLOTS or not found):
            found.append(cut)
            yield cut


def _with_few_blocks(
    size: Shape, pieces: tuple[int, ...], slots: tuple[int, int], itemsize: int, room: int, exact: bool
) -> Cut | None:
    """The smallest number of blocks that fits, as nearly square as they can be."""
    (m, _, n), count = size, len(spans(size[1], pieces))
    for parts in PARTS:
        for rows, cols in (_block(m, n, parts, across) for across in PARTS if across <= parts):
            down, across = -(-m // rows), -(-n // cols)
            if down * across * count > MOST_STEPS:
                continue
            tiles = min(count * down, slots[0]), min(count * across, slots[1]), min(down * across, 2)
            cut = Cut(rows, cols, pieces, (rows,), tiles)
            # The product of whole numbers is a matrix of its own, that is then added.
            left = room - (block_bytes(rows, cols, itemsize) if exact else 0)
            if _bytes_about(size, cut, itemsize) <= left and build_schedule(size, itemsize, cut).memory <= left:
                return cut
    return None


def _bytes_about(size: Shape, cut: Cut, itemsize: int) -> int:
    """Of all slots: where all of a matrix is there, about; else as many as its largest tiles take."""
    (m, k, n), (of_a, of_b, of_c), depth = size, cut.slots, max(cut.pieces)
    all_of_a, all_of_b = m * k * itemsize, k * n * itemsize
    of_c *= block_bytes(cut.rows, cut.cols, itemsize)
    tiles_of_a = of_a * tile_bytes(cut.rows, depth, itemsize)
    return min(all_of_a, tiles_of_a) + min(all_of_b, of_b * tile_bytes(depth, cut.cols, itemsize)) + of_c


def _block(m: int, n: int, parts: int, across: int) -> tuple[int, int]:
    """C in so many parts along its longer side, and so many along the other one."""
    rows, cols = (parts, across) if m >= n else (across, parts)
    return -(-m // rows), -(-n // cols)
