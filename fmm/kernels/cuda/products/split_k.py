"""Split the last tiles of C along the inner dimension (split-K), so that the launch ends sooner.

If the last thread blocks of a launch would leave multiprocessors idle, each of the last tiles is divided into parts
along the inner dimension. A task computes the same part of many tiles. The tasks of one tile add their results to the
tile one after the other. `split_last_tiles` compares many divisions of the tiles into tasks, and returns the division
with the earliest predicted end of the last task. The predicted time of a thread block is the sum of the times to start,
to compute and to store.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

MIN_PART_STEPS = 16  # smallest number of steps in a part; shorter parts cost more time than they save
TASK_COUNTS = (1, 8, 24)  # numbers of tasks for which kernels are compiled; a launch uses the smallest that suffices
MAX_TILE_PARTS = 16  # largest number of parts of one tile
# Times of a thread block: to start, to store a tile of C, and to store an ordered tile (a tile that several thread
# blocks write one after the other). The unit is the time to multiply one position of the inner dimension. On an H200,
# an ordered store took 45 units when all thread blocks stored at about the same time. Usually the thread blocks store
# at different times. With 30 units, the division into tasks with the smallest predicted time was also the fastest.
BLOCK_START_TIME, TILE_STORE_TIME, ORDERED_STORE_TIME = 30, 18, 30


class ProductPart(NamedTuple):
    """A task: a range of tiles of a product's C, over a range of steps of the inner dimension."""

    product: int
    first: int  # index of the first tile of C
    tiles: int
    start: int  # index of the first step of the inner dimension
    steps: int


@lru_cache(maxsize=4096)
def split_last_tiles(
    products: int, tiles: int, layers: int, steps: int, k_s: int, writes: float, multiprocessors: int
) -> tuple[ProductPart, ...]:
    """Return the tasks of all products; divide the last tiles into parts if the last task then ends earlier.

    A product has `tiles` tiles of C and `steps` steps of `k_s` positions along the inner dimension. `writes` is the
    mean number of blocks of C that a product writes. A batch repeats each product `layers` times. In a batch, a product
    has either no divided tile or only divided tiles.
    """
    over = products * tiles % multiprocessors
    last_rounds = {over, over + multiprocessors} - {0} if layers == 1 else set()
    cuts = sorted({n for n in last_rounds if n < products * tiles} | {tiles * n for n in range(1, products + 1)})
    most = min(steps // MIN_PART_STEPS, MAX_TILE_PARTS)
    candidates = [
        _divide_last_tiles(products, tiles, steps, k_s, cut, parts_per_tile)
        for cut in cuts
        for parts_per_tile in range(2, most + 1)
    ]

    def predict_finish_time(parts: tuple[ProductPart, ...]) -> float:
        edge = BLOCK_START_TIME + writes * (TILE_STORE_TIME if len(parts) == 1 else ORDERED_STORE_TIME)
        return last_job_end_time(((part.tiles * layers, part.steps + edge / k_s) for part in parts), multiprocessors)

    whole = _divide_last_tiles(products, tiles, steps, k_s, 0, 1)
    best = min((parts for parts in candidates if len(parts) <= TASK_COUNTS[-1]), key=predict_finish_time, default=whole)
    return best if predict_finish_time(best) < 0.995 * predict_finish_time(whole) else whole


def _divide_last_tiles(
    products: int, tiles: int, steps: int, k_s: int, cut: int, parts_per_tile: int
) -> tuple[ProductPart, ...]:
    """Return the tasks if each of the last `cut` tiles is divided into `parts_per_tile` parts.

    Let i be the index of the first divided tile in its product. In all later products, tiles before index i and tiles
    from index i on belong to different tasks.
    """
    first, before = divmod(products * tiles - cut, tiles)
    lengths = _split_part_lengths(steps, parts_per_tile, round(ORDERED_STORE_TIME / k_s))
    ranges = [(start, length) for start, length in ((0, before), (before, tiles - before)) if length]
    whole = [ProductPart(p, 0, tiles, 0, steps) for p in range(first)]
    whole += [ProductPart(first, 0, before, 0, steps)] if before else []
    split = [
        ProductPart(p, start, length, sum(lengths[:i]), lengths[i])
        for p in range(first, products)
        for start, length in (ranges[-1:] if p == first else ranges)
        for i in range(parts_per_tile)
    ]
    return (*whole, *split)


def _split_part_lengths(steps: int, parts_per_tile: int, later_steps: int) -> list[int]:
    """Return the number of steps along the inner dimension for each part of a divided tile.

    Each part has `later_steps` steps more than the previous part, so that the part is computed when the previous part
    has been stored.
    """
    if parts_per_tile > 1:
        later_steps = max(min(later_steps, 2 * (steps // parts_per_tile - MIN_PART_STEPS) // (parts_per_tile - 1)), 0)
    least = (steps - later_steps * (parts_per_tile * (parts_per_tile - 1) // 2)) // parts_per_tile
    lengths = [least + i * later_steps for i in range(parts_per_tile)]
    return [*lengths[:-1], steps - sum(lengths[:-1])]


def last_job_end_time(groups: Iterable[tuple[int, float]], processors: int) -> float:
    """Return the time when the last of a list of jobs ends; each job runs on the processor that becomes free first.

    `processors` is the number of processors. Each item of `groups` is the number of jobs of a group and the duration of
    each job. The jobs start in the order of `groups`, the first jobs at time 0.
    """
    loads = [(0.0, processors)]
    for jobs, length in groups:
        while jobs > 0:
            load, free = heappop(loads)
            while loads and loads[0][0] == load:
                free += heappop(loads)[1]
            taken = min(free, jobs)
            jobs -= taken
            if free > taken:
                heappush(loads, (load, free - taken))
            heappush(loads, (load + length, taken))
    return max(load for load, _ in loads)
