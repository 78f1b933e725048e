"""Choose the schedule with the shortest predicted time among the candidates that fit into the device's memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fmm.dtypes import DTYPES
from fmm.out_of_core.schedule import (
    CopyRates,
    ProductCut,
    Schedule,
    ScheduleTimes,
    block_slot_bytes,
    build_schedule,
    cut_ranges,
    tile_slot_bytes,
)
from fmm.problem import Shape

# Candidates for the number of parts into which a side of C is cut.
CANDIDATE_PART_COUNTS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
# If the inner dimension is cut into equal ranges, a range has at least this length. Shorter ranges are candidates only
# if longer ranges do not fit into memory.
MIN_INNER_PIECE_LENGTH = 2048
# The lengths of ranges of the inner dimension, and of ranges of rows, are multiples of this number.
CUT_LENGTH_MULTIPLE = 64
# If the inner dimension is cut into growing ranges: candidate ratios of consecutive lengths, and candidate numbers of
# ranges. The first range is short, so that its tiles are soon loaded and the products begin. While one range is
# multiplied, the tiles of the next, longer range are loaded.
PIECE_GROWTHS, PIECE_COUNTS = (1.5, 2.0, 3.0, 4.0), (3, 4, 6)
MIN_FIRST_PIECE_LENGTH = 256  # smallest length of the first of several growing ranges
# A block of C is computed and stored in bands (ranges of rows). Each tuple is one way to cut the block: the heights of
# its bands from the top, as fractions of the block's height. All further bands are as high as the last one. Large bands
# are multiplied faster, but small last bands shorten the time of storing after the last product.
CANDIDATE_BAND_SHARES = ((1.0,), (0.5, 0.25, 0.125), (0.75, 0.1875, 0.0625), (0.4, 0.3, 0.2, 0.1), (0.25,))
# Candidates for the number of tiles of A, or of B, on the device at a time: one tile is multiplied, one is being
# loaded, and a third may already be loaded.
TILE_SLOT_COUNTS = 3, 2
MAX_TILE_PRODUCTS = 2048  # largest number of tile products in one schedule
MIN_PRODUCTS_FOR_ONE_BAND = (
    64  # from this number of tile products on, the start and the end of a schedule hardly affect its time
)

# workspace limit in bytes -> function that predicts the seconds of a tile product from its size
ProductSecondsByWorkspace = Callable[[int], Callable[[Shape], float]]


class TilesDoNotFitError(MemoryError):
    """Raised if the device's memory is too small for tiles of any size."""


def choose_schedule(
    size: Shape, dtype: str, memory_limit: int, rates: CopyRates, product_seconds: ProductSecondsByWorkspace
) -> tuple[Schedule, ScheduleTimes]:
    """Return the fastest schedule that needs at most `memory_limit` bytes on the device, including workspace."""
    best: tuple[Schedule, ScheduleTimes] | None = None
    for schedule in candidate_schedules(size, dtype, memory_limit):
        times = schedule.predict_times(rates, product_seconds(memory_limit - schedule.total_slot_bytes))
        if best is None or times.seconds < best[1].seconds:
            best = schedule, times
    if best is None:
        raise TilesDoNotFitError(f"{memory_limit} bytes of device memory are too few for tiles of a product of {size}")
    return best


def candidate_schedules(size: Shape, dtype: str, memory_limit: int) -> Iterator[Schedule]:
    """Yield candidate schedules: for each cut of the inner dimension, the schedules with the fewest blocks of C.

    Each range of the inner dimension adds a product to C. 16-bit types lose accuracy, since each addition rounds C, and
    integers need an extra pass over memory for each range. For 16-bit types and integers, the inner dimension is cut
    only if its uncut tiles do not fit into memory.
    """
    row, fits = DTYPES[dtype], False
    for pieces in _candidate_inner_cuts(size[1]):
        if fits and (row.exact or row.itemsize == 2 or max(pieces) < MIN_INNER_PIECE_LENGTH):
            return
        for cut in _cuts_within_memory(size, pieces, row.itemsize, memory_limit, row.exact):
            fits = True
            products = -(-size[0] // cut.rows) * -(-size[2] // cut.cols) * len(cut_ranges(size[1], cut.pieces))
            for shares in CANDIDATE_BAND_SHARES if products < MIN_PRODUCTS_FOR_ONE_BAND else CANDIDATE_BAND_SHARES[:1]:
                bands = tuple(_rounded_cut_length(cut.rows * share, cut.rows) for share in shares)
                yield build_schedule(size, row.itemsize, cut._replace(bands=bands))


def _candidate_inner_cuts(k: int) -> Iterator[tuple[int, ...]]:
    """Yield the candidates for cutting the inner dimension: no cut, growing ranges, equal ranges of falling length."""
    yield (k,)
    for growth in PIECE_GROWTHS:
        for count in PIECE_COUNTS:
            shares = [growth**i for i in range(count)]
            growing = [_rounded_cut_length(k * share / sum(shares), k) for share in shares[:-1]]
            if sum(growing) < k and k / sum(shares) >= MIN_FIRST_PIECE_LENGTH:
                yield (*growing, k - sum(growing))
    parts = 2
    while parts < 2 * k:
        equal = _rounded_cut_length(k / parts, k) if k / parts >= CUT_LENGTH_MULTIPLE else -(-k // parts)
        yield (equal,)
        if equal >= MIN_INNER_PIECE_LENGTH:
            yield (equal // 4, equal // 2, equal)
        parts *= 2


def _rounded_cut_length(length: float, most: int) -> int:
    return min(max(-(-int(length) // CUT_LENGTH_MULTIPLE), 1) * CUT_LENGTH_MULTIPLE, most)


def _cuts_within_memory(
    size: Shape, pieces: tuple[int, ...], itemsize: int, memory_limit: int, exact: bool
) -> Iterator[ProductCut]:
    """Yield cuts with different numbers of tiles on the device; fewer tiles leave more memory for blocks of C.

    If C has several columns of blocks, one candidate holds on the device all tiles of A for a row of blocks, so that
    each tile of A is loaded only once. The last candidate has one tile of A and one tile of B on the device; the device
    is then idle while the next tile is loaded.
    """
    count, cuts = len(cut_ranges(size[1], pieces)), list[ProductCut]()
    for slots_a, slots_b in (*((slots, slots) for slots in TILE_SLOT_COUNTS), (count, max(TILE_SLOT_COUNTS)), (1, 1)):
        cut = _cut_with_fewest_blocks(size, pieces, (slots_a, slots_b), itemsize, memory_limit, exact)
        has_more_columns = cut is not None and cut.cols < size[2]
        if cut is not None and cut not in cuts and (has_more_columns or slots_a in TILE_SLOT_COUNTS or not cuts):
            cuts.append(cut)
            yield cut


def _cut_with_fewest_blocks(
    size: Shape, pieces: tuple[int, ...], slots: tuple[int, int], itemsize: int, memory_limit: int, exact: bool
) -> ProductCut | None:
    """Return the cut that fits into memory and has the fewest and most nearly square blocks of C; None if none fits."""
    (m, _, n), count = size, len(cut_ranges(size[1], pieces))
    for parts in CANDIDATE_PART_COUNTS:
        for parts_across in CANDIDATE_PART_COUNTS:
            if parts_across > parts:
                continue
            down, across = (parts, parts_across) if m >= n else (parts_across, parts)
            rows, cols = -(-m // down), -(-n // across)
            down, across = -(-m // rows), -(-n // cols)
            if down * across * count > MAX_TILE_PRODUCTS:
                continue
            tiles = min(count * down, slots[0]), min(count * across, slots[1]), min(down * across, 2)
            cut = ProductCut(rows, cols, pieces, (rows,), tiles)
            # An integer product needs memory for one more block: it is written to a separate block and then added to C.
            limit = memory_limit - (block_slot_bytes(rows, cols, itemsize) if exact else 0)
            if _estimate_slot_bytes(size, cut, itemsize) > limit:
                continue
            if build_schedule(size, itemsize, cut).total_slot_bytes <= limit:
                return cut
    return None


def _estimate_slot_bytes(size: Shape, cut: ProductCut, itemsize: int) -> int:
    """Return an upper bound of the device memory for all tiles and blocks, in bytes."""
    (m, k, n), (slots_a, slots_b, slots_c), depth = size, cut.slots, max(cut.pieces)
    bytes_a = min(m * k * itemsize, slots_a * tile_slot_bytes(cut.rows, depth, itemsize))
    bytes_b = min(k * n * itemsize, slots_b * tile_slot_bytes(depth, cut.cols, itemsize))
    return bytes_a + bytes_b + slots_c * block_slot_bytes(cut.rows, cut.cols, itemsize)
