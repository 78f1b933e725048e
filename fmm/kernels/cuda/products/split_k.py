"""Split-K for the last round of thread blocks: which tiles are computed in parts along the inner dimension.

Where the last round would leave multiprocessors idle, the last tiles are cut into parts. Each part is a task of its
own, and the tasks that write one tile do so in order. `split_tail` tries many cuts and takes the one with the least
makespan, by a model of when each thread block starts, computes and stores.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

MIN_PART_STEPS = 16  # least number of steps of a part: a shorter part costs more than the idle time that it fills
TASK_COUNTS = (1, 8, 24)  # task counts that kernels are compiled for; a launch takes the smallest sufficient one
MAX_TILE_PARTS = 16  # largest number of parts of one tile
# Times of a thread block in units of one step of the inner dimension: to start, to store a tile of C, and to store a
# tile in order with other thread blocks. On an H200 an ordered store took 45 where all thread blocks store at about the
# same time. With 30 the model finds the best of the cuts that were measured, because parts store at other times than
# whole tiles.
START_STEPS, STORE_STEPS, ORDERED_STORE_STEPS = 30, 18, 30


class ProductPart(NamedTuple):
    """A range of tiles of a product's C, over a range of steps of the inner dimension."""

    product: int
    first: int  # number of the first tile
    tiles: int
    start: int  # first step of the inner dimension
    steps: int


@lru_cache(maxsize=4096)
def split_tail(
    products: int, tiles: int, layers: int, steps: int, k_s: int, writes: float, multiprocessors: int
) -> tuple[ProductPart, ...]:
    """Return the tasks of all products: whole tiles, and the last tiles in parts if the last task then ends sooner.

    A product has `tiles` tiles of C, `steps` steps of `k_s` numbers along the inner dimension, and writes `writes`
    blocks; a batch repeats it `layers` times. In a batch, a product is either whole or all in parts.
    """
    over = products * tiles % multiprocessors
    last_rounds = {over, over + multiprocessors} - {0} if layers == 1 else set()
    cuts = sorted({n for n in last_rounds if n < products * tiles} | {tiles * n for n in range(1, products + 1)})
    most = min(steps // MIN_PART_STEPS, MAX_TILE_PARTS)
    candidates = [_cut_tail(products, tiles, steps, k_s, cut, each) for cut in cuts for each in range(2, most + 1)]

    def predicted_end(parts: tuple[ProductPart, ...]) -> float:
        edge = START_STEPS + writes * (STORE_STEPS if len(parts) == 1 else ORDERED_STORE_STEPS)
        return last_job_end(((part.tiles * layers, part.steps + edge / k_s) for part in parts), multiprocessors)

    whole = _cut_tail(products, tiles, steps, k_s, 0, 1)
    best = min((parts for parts in candidates if len(parts) <= TASK_COUNTS[-1]), key=predicted_end, default=whole)
    return best if predicted_end(best) < 0.995 * predicted_end(whole) else whole


def _cut_tail(products: int, tiles: int, steps: int, k_s: int, cut: int, each: int) -> tuple[ProductPart, ...]:
    """Return the whole tiles, then the last `cut` tiles in `each` parts each, in the order of the products.

    The cut is at some tile of some product. In later products, too, the tiles before and after that tile are different
    tasks.
    """
    first, before = divmod(products * tiles - cut, tiles)
    lengths = _part_lengths(steps, each, round(ORDERED_STORE_STEPS / k_s))
    ranges = [(start, length) for start, length in ((0, before), (before, tiles - before)) if length]
    whole = [ProductPart(p, 0, tiles, 0, steps) for p in range(first)]
    whole += [ProductPart(first, 0, before, 0, steps)] if before else []
    split = [
        ProductPart(p, start, length, sum(lengths[:i]), lengths[i])
        for p in range(first, products)
        for start, length in (ranges[-1:] if p == first else ranges)
        for i in range(each)
    ]
    return (*whole, *split)


def _part_lengths(steps: int, each: int, later: int) -> list[int]:
    """Return the steps of each part; a part ends `later` steps after the previous one, while that one stores C."""
    if each > 1:
        later = max(min(later, 2 * (steps // each - MIN_PART_STEPS) // (each - 1)), 0)
    least = (steps - later * (each * (each - 1) // 2)) // each
    lengths = [least + i * later for i in range(each)]
    return [*lengths[:-1], steps - sum(lengths[:-1])]


def last_job_end(groups: Iterable[tuple[int, float]], machines: int) -> float:
    """Return the time at which the last job ends, if each job starts on the machine that is free earliest.

    A group is a number of jobs and the time that each of them takes. Groups are started in order, all at time 0.
    """
    loads = [(0.0, machines)]
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
