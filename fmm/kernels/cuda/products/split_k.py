"""Split."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

MIN_PART_STEPS = 16  # of a part: a shorter one costs more than the idle time that it fills
TASK_COUNTS = (
    1,
    8,
    24,
)  # the numbers of tasks for which kernels are compiled; a launch takes the smallest that is enough
MAX_PARTS = 16  # of a tile
# How long a thread block takes to begin, to write a tile of C alone, and to write it in turns: in units of the time
# that one step of the inner dimension takes it. (On an H200 a turn took 45 where all blocks write at about the same
# time. With 30 the model finds the best of the cuts that were tried: parts write at other times than whole tiles.)
START_STEPS, STORE_STEPS, ORDERED_STORE_STEPS = 30, 18, 30


class Part(NamedTuple):
    """Some tiles of a product's C, computed over some steps of the inner dimension."""

    product: int
    first: int  # tile
    tiles: int
    start: int  # step
    steps: int


@lru_cache(maxsize=4096)
def split_tail(
    products: int, tiles: int, layers: int, steps: int, k_s: int, writes: float, multiprocessors: int
) -> tuple[Part, ...]:
    """All tiles of some products, the last of them in parts where all end sooner that way.

    A product has `tiles` tiles of C and `steps` steps of `k_s` numbers along the inner dimension; it writes `writes`
    blocks, and there are `layers` of it. Of several layers, a product is done as a whole or wholly in parts.
    """
    over = products * tiles % multiprocessors
    last_rounds = {over, over + multiprocessors} - {0} if layers == 1 else set()
    cuts = sorted({n for n in last_rounds if n < products * tiles} | {tiles * n for n in range(1, products + 1)})
    most = min(steps // MIN_PART_STEPS, MAX_PARTS)
    candidates = [_cut_tail(products, tiles, steps, k_s, cut, each) for cut in cuts for each in range(2, most + 1)]

    def end(parts: tuple[Part, ...]) -> float:
        edge = START_STEPS + writes * (STORE_STEPS if len(parts) == 1 else ORDERED_STORE_STEPS)
        return makespan(((part.tiles * layers, part.steps + edge / k_s) for part in parts), multiprocessors)

    whole = _cut_tail(products, tiles, steps, k_s, 0, 1)
    best = min((parts for parts in candidates if len(parts) <= TASK_COUNTS[-1]), key=end, default=whole)
    return best if end(best) < 0.995 * end(whole) else whole


def _cut_tail(products: int, tiles: int, steps: int, k_s: int, cut: int, each: int) -> tuple[Part, ...]:
    """Whole tiles first, then the last `cut` of them in `each` parts each, in the order of products.

    The cut falls at some tile of some product. Of later products too, the tiles before that one and those from it on
    are different tasks.
    """
    first, before = divmod(products * tiles - cut, tiles)
    lengths = _part_lengths(steps, each, round(ORDERED_STORE_STEPS / k_s))
    ranges = [(start, length) for start, length in ((0, before), (before, tiles - before)) if length]
    whole = [Part(p, 0, tiles, 0, steps) for p in range(first)]
    whole += [Part(first, 0, before, 0, steps)] if before else []
    split = [
        Part(p, start, length, sum(lengths[:i]), lengths[i])
        for p in range(first, products)
        for start, length in (ranges[-1:] if p == first else ranges)
        for i in range(each)
    ]
    return (*whole, *split)


def _part_lengths(steps: int, each: int, later: int) -> list[int]:
    """The steps of each part. Every one ends `later` steps after the one before, which writes C meanwhile."""
    if each > 1:
        later = max(min(later, 2 * (steps // each - MIN_PART_STEPS) // (each - 1)), 0)
    least = (steps - later * (each * (each - 1) // 2)) // each
    lengths = [least + i * later for i in range(each)]
    return [*lengths[:-1], steps - sum(lengths[:-1])]


def makespan(groups: Iterable[tuple[int, float]], machines: int) -> float:
    """When all jobs are done if each goes to the machine that is free first; a group is so many jobs of one length."""
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
