"""Choose the levels over the chunk grid of a Dask product, and the number of products per task.

The tasks of each candidate are recorded, and simulated one by one on the workers. The candidate with
the shortest simulated time is chosen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod
from typing import Any, NamedTuple

import numpy as np

from fmm.distributed.chunk_grid import ChunkCell, ChunkGrid, ChunkTasks, sum_of_chunk_products, weighted_chunk_sum
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.kernels.plans.walk import walk_plan

# Assumed rates in bytes per second: of sending a chunk from one worker to another, and of the first write to new
# memory. The first write to new memory is slow, since the operating system must find and clear the pages.
LINK_BYTES_PER_SECOND, NEW_MEMORY_BYTES_PER_SECOND = 1e9, 1e9
CANDIDATE_PRODUCTS_PER_TASK = (1, 2, 4)  # larger numbers would use more memory than Dask's own matmul
MIN_TASKS_PER_THREAD = 4  # smallest number of tasks per thread, so that no thread waits long for the last task
# A product of two Dask arrays that is predicted to take fewer than this number of seconds gets the default plan: a
# comparison of candidates would take too long.
MIN_SECONDS_TO_COMPARE = 1.0
# Largest side of a simulated grid, in chunks. For the simulation, a grid with a larger side is reduced to
# MAX_SIMULATED_GRID_SIDE, and the number of workers is reduced in proportion.
MAX_SIMULATED_GRID_SIDE = 8
LEVEL_MARGIN = 0.1  # levels are chosen only if they are predicted to save this share of the time


# ---- the choice


class GridPlan(NamedTuple):
    """The levels over the grid of chunks, and the number of products per task."""

    outer_plan: Plan
    products_per_task: int


@dataclass(frozen=True)
class ChunkCosts:
    """The costs of tasks: seconds of a product of two chunks, bytes of a chunk, bytes per second of sums."""

    product: float
    chunk: float
    stream: float

    def task_seconds(self, function: Any, arguments: Sequence[Any]) -> float:
        """Return a task's predicted seconds: products of chunks, passes over memory, first writes to new memory."""
        if function is sum_of_chunk_products:
            lefts, _, _, _, before, *_ = arguments
            products, passes = len(lefts), 2.0 * (len(lefts) - 1) + 2.0 * (before is not None)
        else:
            products, passes = 0, 1.0 + (len(arguments[1]) if function is weighted_chunk_sum else 1)
        return products * self.product + passes * self.chunk / self.stream + self.chunk / NEW_MEMORY_BYTES_PER_SECOND


def choose_grid_plan(
    grid: tuple[int, int, int], plans: Sequence[Plan], costs: ChunkCosts, workers: tuple[int, int]
) -> GridPlan:
    """Return the candidate with the smallest predicted time; levels must save the fraction LEVEL_MARGIN of the time.

    `workers` is (number of processes, number of threads in each process).
    """
    if prod(grid) * costs.product < MIN_SECONDS_TO_COMPARE:
        return GridPlan(VENDOR if VENDOR in plans else plans[0], default_products_per_task(grid, workers))
    simulated_grid = tuple(min(side, MAX_SIMULATED_GRID_SIDE) for side in grid)
    fewer_workers = _scaled_worker_counts(workers, prod(simulated_grid) / prod(grid))
    candidates = [
        GridPlan(plan, products_per_task) for plan, products_per_task in product(plans, CANDIDATE_PRODUCTS_PER_TASK)
    ]
    seconds = {x: _simulate_product(simulated_grid, x, costs, fewer_workers).seconds for x in candidates}
    best = min(candidates, key=lambda candidate: seconds[candidate])
    plain = [candidate for candidate in candidates if candidate.outer_plan == VENDOR]
    best_plain = min(plain, key=lambda candidate: seconds[candidate], default=best)
    return best if seconds[best] <= (1 - LEVEL_MARGIN) * seconds[best_plain] else best_plain


def _scaled_worker_counts(workers: tuple[int, int], share: float) -> tuple[int, int]:
    """Return the numbers of processes and of threads per process that simulate the fraction `share` of the tasks.

    Each thread has as many tasks in the simulation as in the complete product.
    """
    threads = max(round(prod(workers) * share), 1)
    processes = min(workers[0], threads)
    return processes, max(threads // processes, 1)


def default_products_per_task(grid: tuple[int, int, int], workers: tuple[int, int]) -> int:
    """Return the largest number of products per task with which each thread has MIN_TASKS_PER_THREAD tasks or more."""
    return max(
        (n for n in CANDIDATE_PRODUCTS_PER_TASK if prod(grid) >= n * MIN_TASKS_PER_THREAD * prod(workers)), default=1
    )


@lru_cache(maxsize=256)
def _simulate_product(
    grid: tuple[int, int, int], candidate: GridPlan, costs: ChunkCosts, workers: tuple[int, int]
) -> SimulationResult:
    m, k, n = grid
    tasks = ChunkTasks("part", products_per_task=candidate.products_per_task)
    operands = {
        "A": _one_entry_chunk_grid("A", m, k),
        "B": _one_entry_chunk_grid("B", k, n),
        "C": np.full((m, n), None, dtype=object),
    }
    walk_plan(candidate.outer_plan, operands, tasks, "float64")
    worker_by_chunk = {**_worker_by_chunk("A", m, k, workers[0]), **_worker_by_chunk("B", k, n, workers[0])}
    chunk_tasks = [
        ChunkTask(key, _chunk_keys_read(rest), costs.task_seconds(function, rest))
        for key, (function, *rest) in tasks.table.items()
    ]
    fetch_seconds = costs.chunk / LINK_BYTES_PER_SECOND if workers[0] > 1 else 0.0
    return simulate_tasks(chunk_tasks, worker_by_chunk, SimulatedWorkers(*workers, fetch_seconds))


def _one_entry_chunk_grid(name: str, rows: int, cols: int) -> ChunkGrid:
    cells: ChunkGrid = np.full((rows, cols), None, dtype=object)
    for i, j in np.ndindex(rows, cols):
        cells[i, j] = ChunkCell((name, i, j), 1, 1)
    return cells


def _worker_by_chunk(name: str, rows: int, cols: int, workers: int) -> Mapping[Hashable, int]:
    """Return the worker that holds each chunk, by chunk key; Dask creates consecutive chunks on one worker."""
    return {(name, i, j): (i * cols + j) * workers // (rows * cols) for i, j in np.ndindex(rows, cols)}


def _chunk_keys_read(arguments: Sequence[Any]) -> tuple[Hashable, ...]:
    """Return the keys of the chunks that a task reads, found among the task's arguments."""
    flat = [y for x in arguments for y in (x if isinstance(x, list) else [x])]
    return tuple(y for y in flat if isinstance(y, tuple) and isinstance(y[0], str))


# ---- the simulation
#
# In the simulation, each task runs on the worker where the task can end first. The chunks that the worker lacks are
# sent to the worker and stay in its memory. The simulation ignores that chunks are freed or spilled to disk, that
# messages overlap, and that the scheduler itself takes time.


class ChunkTask(NamedTuple):
    """A simulated task: the key of the computed chunk, the keys of the chunks that the task reads, and its seconds."""

    makes: Hashable
    reads: tuple[Hashable, ...]
    seconds: float


class SimulatedWorkers(NamedTuple):
    """The workers: number of processes, threads per process, and seconds to send a chunk to a process."""

    processes: int
    threads: int
    fetch_seconds: float


class SimulationResult(NamedTuple):
    """Simulated seconds until the last task ends, sum of the seconds of all tasks, and number of chunks sent."""

    seconds: float
    task_seconds: float
    sent: int


def simulate_tasks(
    tasks: Iterable[ChunkTask], worker_by_chunk: Mapping[Hashable, int], workers: SimulatedWorkers
) -> SimulationResult:
    """Simulate the tasks in order; `worker_by_chunk` has the worker that holds each chunk of A and B at the start."""
    free_at = [[0.0] * workers.threads for _ in range(workers.processes)]
    # earliest time at which each process has a free thread, in seconds
    first_free_at = [0.0] * workers.processes
    places = {key: {home} for key, home in worker_by_chunk.items()}
    ready_at = dict.fromkeys(worker_by_chunk, 0.0)
    sent, task_seconds = 0, 0.0
    for task in tasks:
        reads = set(task.reads)
        start = max((ready_at[key] for key in reads), default=0.0)
        # Candidates are the workers that hold a chunk that this task reads, and the first free worker. Of the workers
        # without these chunks, the first free worker is the best: all these workers need the same transfers.
        candidates = {_first_free_process(first_free_at, start)}.union(*(places[key] for key in reads))
        missing = {worker: sum(worker not in places[key] for key in reads) for worker in candidates}
        started = {x: max(first_free_at[x], start) + missing[x] * workers.fetch_seconds for x in candidates}
        chosen = min(candidates, key=lambda worker: (started[worker], missing[worker], worker))
        end, threads = started[chosen] + task.seconds, free_at[chosen]
        threads[threads.index(first_free_at[chosen])] = end
        first_free_at[chosen] = min(threads)
        for key in reads:
            places[key].add(chosen)
        places[task.makes], ready_at[task.makes] = {chosen}, end
        sent, task_seconds = sent + missing[chosen], task_seconds + task.seconds
    return SimulationResult(max(map(max, free_at)), task_seconds, sent)


def _first_free_process(first_free_at: Sequence[float], start: float) -> int:
    """Return the first process with a free thread at time `start`, else the process with the earliest free thread."""
    least = min(first_free_at)
    if least > start:
        return first_free_at.index(least)
    return next(worker for worker, when in enumerate(first_free_at) if when <= start)
