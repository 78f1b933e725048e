"""How long tasks on chunks take workers that each hold some of them: the tasks simulated one by one, in their order.

Each goes to the worker where it can end first, as a scheduler that knows where chunks are would have it; what that
worker lacks it is sent, and keeps. Left out: that chunks are let go and may have to be spilled, what others send at the
same time, and a scheduler's own time.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import NamedTuple


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
