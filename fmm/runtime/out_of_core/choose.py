"""Which schedule: of those that fit into the device's memory, the one with the least predicted time."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fmm.dtypes import DTYPES
from fmm.problem import Shape
from fmm.runtime.out_of_core.schedule import Cut, Rates, Schedule, Times, scheduled, spans

PARTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)  # into which C's sides are cut
LEAST_DEPTH = 2048  # of equal pieces of the inner side, unless nothing deeper fits
STEP = 64  # of which pieces and bands are multiples
# Pieces that grow by this factor, so many of them: the first is soon there, and products are large nevertheless.
GROWTH, GROWING = 4, (2, 3, 4)
# The shares of a block that its bands have: the fewer and the larger, the faster its products; the smaller the last
# one, the sooner it is back.
BANDS = ((1.0,), (0.5, 0.25, 0.125), (0.75, 0.1875, 0.0625), (0.25,))
SLOTS = 3  # tiles of one matrix: one is read, one is ready, one is on its way
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
        for cut in _with_few_blocks(size, pieces, row.itemsize, room, row.exact):
            found = True
            for shares in BANDS if _count(size, cut) < FEW_STEPS else BANDS[:1]:
                bands = tuple(_multiple(cut.rows * share, cut.rows) for share in shares)
                yield scheduled(size, row.itemsize, cut._replace(bands=bands))


def _count(size: Shape, cut: Cut) -> int:
    return -(-size[0] // cut.rows) * -(-size[2] // cut.cols) * len(spans(size[1], cut.pieces))


def _pieces(k: int) -> Iterator[tuple[int, ...]]:
    """Ways to cut the inner side, from the largest pieces to the smallest."""
    yield (k,)
    for count in GROWING:
        whole = sum(GROWTH**i for i in range(count))
        growing = [_multiple(k / whole, k) * GROWTH**i for i in range(count - 1)]
        if sum(growing) < k and k / whole >= STEP:
            yield (*growing, k - sum(growing))
    parts = 2
    while parts < 2 * k:
        equal = _multiple(k / parts, k) if k / parts >= STEP else -(-k // parts)
        yield (equal,)
        if equal >= LEAST_DEPTH:
            yield (equal // GROWTH**2, equal // GROWTH, equal)
        parts *= 2


def _multiple(length: float, most: int) -> int:
    return min(max(-(-int(length) // STEP), 1) * STEP, most)


def _with_few_blocks(size: Shape, pieces: tuple[int, ...], itemsize: int, room: int, exact: bool) -> Iterator[Cut]:
    """The smallest number of blocks, as nearly square as they can be, that fits: with few tiles on the device, and with
    all of a row of blocks, where A's come again."""
    (m, _, n), count = size, len(spans(size[1], pieces))
    few = (SLOTS, SLOTS), (2, 2), (count, SLOTS), (count, count)
    for parts in PARTS:
        for rows, cols in (_block(m, n, parts, across) for across in PARTS if across <= parts):
            down, across = -(-m // rows), -(-n // cols)
            if down * across * count > MOST_STEPS:
                continue
            found = []
            for of_a, of_b in sorted({(min(count * down, x), min(count * across, y)) for x, y in few}):
                cut = Cut(rows, cols, pieces, (rows,), (of_a, of_b, min(down * across, 2)))
                left = room - (rows * cols * itemsize if exact else 0)  # whose product is a matrix of its own
                if _bytes_about(size, cut, itemsize) <= left and scheduled(size, itemsize, cut).memory <= left:
                    found.append(cut)
            yield from found
            if found:
                return


def _bytes_about(size: Shape, cut: Cut, itemsize: int) -> int:
    """Of all slots, rows not rounded up."""
    (m, k, n), (of_a, of_b, of_c), depth = size, cut.slots, max(cut.pieces)
    found = min(m * k, of_a * cut.rows * depth) + min(k * n, of_b * depth * cut.cols) + of_c * cut.rows * cut.cols
    return found * itemsize


def _block(m: int, n: int, parts: int, across: int) -> tuple[int, int]:
    """C in so many parts along its longer side, and so many along the other one."""
    rows, cols = (parts, across) if m >= n else (across, parts)
    return -(-m // rows), -(-n // cols)
