"""Which levels over a grid of chunks, and how many products of chunks one task adds up: what is predicted to end first.

Each way's own table of tasks is made, and simulated on the workers that there are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fmm.distributed.chunk_grid import Cell, ChunkTasks, Grid, combined_chunks, multiplied_chunks
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.walk import walk_plan

# Bytes a second at which a worker is given a chunk that another made, on one machine or a fast network; and at which
# memory is written for the first time, which the system has to find and to clear.
LINK, FRESH = 1e9, 1e9
TOGETHER = (1, 2, 4)  # products that are one task: more would keep more chunks at once than plain Dask does
EACH = 4  # tasks for each thread at least, so that none waits long for the last one
LONG = 1.0  # seconds of products from which on ways are compared: that takes some time itself
SIDE = 8  # of the largest grid that is simulated; a larger one's ways compare as this one's do, on fewer workers
LEVEL_MARGIN = 0.1  # what a level must be predicted to save of the time without


class Way(NamedTuple):
    """Levels over the grid, and how many products are one task."""

    above: Plan
    together: int


@dataclass(frozen=True)
class ChunkCosts:
    """Seconds of a product of two chunks, bytes of a chunk, and bytes a second that sums move."""

    product: float
    chunk: float
    stream: float

    def seconds(self, function: Any, arguments: Sequence[Any]) -> float:
        """Of one task: what it multiplies, moves, and writes to new memory."""
        if function is multiplied_chunks:
            lefts, _, _, _, before, *_ = arguments
            products, passes = len(lefts), 2.0 * (len(lefts) - 1) + 2.0 * (before is not None)
        else:
            products, passes = 0, 1.0 + (len(arguments[1]) if function is combined_chunks else 1)
        return products * self.product + passes * self.chunk / self.stream + self.chunk / FRESH


def chosen_way(grid: tuple[int, int, int], plans: Sequence[Plan], costs: ChunkCosts, workers: tuple[int, int]) -> Way:
    """Of these plans the one that is predicted to end first; levels only if they clearly win. `workers`: how many
    processes, and threads of each."""
    if prod(grid) * costs.product < LONG:
        return Way(VENDOR if VENDOR in plans else plans[0], usual_together(grid, workers))
    small = tuple(min(side, SIDE) for side in grid)
    fewer = _in_proportion(workers, prod(small) / prod(grid))
    ways = [Way(plan, together) for plan, together in product(plans, TOGETHER)]
    seconds = {way: _simulated(small, way, costs, fewer).seconds for way in ways}
    best = min(ways, key=lambda way: seconds[way])
    plain = min((way for way in ways if way.above == VENDOR), key=lambda way: seconds[way], default=best)
    return best if seconds[best] <= (1 - LEVEL_MARGIN) * seconds[plain] else plain


def _in_proportion(workers: tuple[int, int], share: float) -> tuple[int, int]:
    """So many of the workers that each thread has as many of this share of the tasks as it has of all."""
    threads = max(round(prod(workers) * share), 1)
    processes = min(workers[0], threads)
    return processes, max(threads // processes, 1)


def usual_together(grid: tuple[int, int, int], workers: tuple[int, int]) -> int:
    """As many as leave every thread enough tasks."""
    return max((n for n in TOGETHER if prod(grid) >= n * EACH * prod(workers)), default=1)


@lru_cache(maxsize=256)
def _simulated(grid: tuple[int, int, int], way: Way, costs: ChunkCosts, workers: tuple[int, int]) -> Simulated:
    m, k, n = grid
    tasks = ChunkTasks("part", together=way.together)
    operands = {"A": _chunks("A", m, k), "B": _chunks("B", k, n), "C": np.full((m, n), None, dtype=object)}
    walk_plan(way.above, operands, tasks, "float64")
    homes = {**_homes("A", m, k, workers[0]), **_homes("B", k, n, workers[0])}
    every = [
        ChunkTask(key, _reads(rest), costs.seconds(function, rest)) for key, (function, *rest) in tasks.table.items()
    ]
    fetching = costs.chunk / LINK if workers[0] > 1 else 0.0
    return simulated_schedule(every, homes, Workers(*workers, fetching))


def _chunks(name: str, rows: int, cols: int) -> Grid:
    found: Grid = np.full((rows, cols), None, dtype=object)
    for i, j in np.ndindex(rows, cols):
        found[i, j] = Cell((name, i, j), 1, 1)
    return found


def _homes(name: str, rows: int, cols: int, workers: int) -> Mapping[Hashable, int]:
    """As Dask makes chunks: those that follow each other on one worker."""
    return {(name, i, j): (i * cols + j) * workers // (rows * cols) for i, j in np.ndindex(rows, cols)}


def _reads(arguments: Sequence[Any]) -> tuple[Hashable, ...]:
    """The chunks among a task's arguments."""
    found = [y for x in arguments for y in (x if isinstance(x, list) else [x])]
    return tuple(y for y in found if isinstance(y, tuple) and isinstance(y[0], str))


class ChunkTask(NamedTuple):
    """What one task reads and makes, and how long it works."""

    makes: Hashable
    reads: tuple[Hashable, ...]
    seconds: float


class Workers(NamedTuple):
    """So many processes, each with so many threads for tasks, and the seconds in which one is sent a chunk."""

    processes: int
    threads: int
    fetching: float


class Simulated(NamedTuple):
    """Seconds until the last task ends, of all tasks together, and how many chunks were sent."""

    seconds: float
    working: float
    sent: int


def simulated_schedule(tasks: Iterable[ChunkTask], homes: Mapping[Hashable, int], workers: Workers) -> Simulated:
    """`homes`: where the chunks are that no task makes."""
    free = [[0.0] * workers.threads for _ in range(workers.processes)]
    soonest = [0.0] * workers.processes  # when each of them has a thread for a task
    places = {key: {home} for key, home in homes.items()}
    ready = dict.fromkeys(homes, 0.0)
    sent, working = 0, 0.0
    for task in tasks:
        reads = set(task.reads)
        after = max((ready[key] for key in reads), default=0.0)
        # All that hold none of these chunks lack as many: of those only the first to be free is in question.
        asked = {_first_free(soonest, after)}.union(*(places[key] for key in reads))
        lacking = {who: sum(who not in places[key] for key in reads) for who in asked}
        begun = {who: max(soonest[who], after) + lacking[who] * workers.fetching for who in asked}
        chosen = min(asked, key=lambda who: (begun[who], lacking[who], who))
        end, threads = begun[chosen] + task.seconds, free[chosen]
        threads[threads.index(soonest[chosen])] = end
        soonest[chosen] = min(threads)
        for key in reads:
            places[key].add(chosen)
        places[task.makes], ready[task.makes] = {chosen}, end
        sent, working = sent + lacking[chosen], working + task.seconds
    return Simulated(max(map(max, free)), working, sent)


def _first_free(soonest: Sequence[float], after: float) -> int:
    """The first of those that have a thread by then, else the one that has one first."""
    least = min(soonest)
    return soonest.index(least) if least > after else next(who for who, when in enumerate(soonest) if when <= after)
