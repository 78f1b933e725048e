"""Simulated tasks on chunks, compared with values computed by hand."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest

from fmm.distributed.chunk_grid import sum_of_chunk_products, weighted_chunk_sum
from fmm.distributed.dask_choice import (
    ChunkCosts,
    ChunkTask,
    GridPlan,
    SimulatedWorkers,
    SimulationResult,
    choose_grid_plan,
    default_products_per_task,
    simulate_tasks,
)
from fmm.kernels.plans.plan import VENDOR, Plan

HOMES: dict[Hashable, int] = {"x": 0, "y": 1}
WINOGRAD = Plan.parse("winograd > vendor")


def test_a_task_waits_for_what_it_reads() -> None:
    chain = [ChunkTask("a", ("x",), 2.0), ChunkTask("b", ("a",), 3.0), ChunkTask("c", ("x",), 4.0)]
    assert simulate_tasks(chain, HOMES, SimulatedWorkers(1, 1, 1.0)) == SimulationResult(9.0, 9.0, 0)
    # Two threads: c beside a and b.
    assert simulate_tasks(chain, HOMES, SimulatedWorkers(1, 2, 1.0)) == SimulationResult(6.0, 9.0, 0)


def test_what_is_elsewhere_is_sent_once() -> None:
    """The first task fetches a chunk; later tasks find the chunk on that worker."""
    tasks = [ChunkTask("a", ("x", "y"), 5.0), ChunkTask("b", ("x", "y"), 5.0), ChunkTask("c", ("x", "y"), 5.0)]
    assert simulate_tasks(tasks, HOMES, SimulatedWorkers(2, 1, 1.0)) == SimulationResult(11.0, 15.0, 2)
    # A link so slow that both stay where x is.
    alone = [ChunkTask("a", ("x",), 5.0), ChunkTask("b", ("x",), 5.0)]
    assert simulate_tasks(alone, HOMES, SimulatedWorkers(2, 1, 100.0)) == SimulationResult(10.0, 10.0, 0)


def test_tasks_cost_products_passes_and_new_memory() -> None:
    costs = ChunkCosts(product=1.0, chunk=1e9, stream=1e10)
    four = [["a"] * 4, ["b"] * 4, 1.0, 0.0, None, None]
    assert costs.task_seconds(sum_of_chunk_products, four) == pytest.approx(4 + 3 * 0.2 + 1.0)
    assert costs.task_seconds(weighted_chunk_sum, [(1, 1, 1), ["a", "b", "c"]]) == pytest.approx(0.4 + 1.0)


@pytest.mark.parametrize(
    ("workers", "expected"),
    [((1, 1), 4), ((2, 1), 4), ((4, 1), 4), ((4, 2), 2), ((8, 2), 1), ((100, 8), 1)],
)
def test_every_thread_has_enough_tasks(workers: tuple[int, int], expected: int) -> None:
    assert default_products_per_task((4, 4, 4), workers) == expected


def test_levels_only_where_they_clearly_win() -> None:
    """A level saves an eighth of expensive products, and nothing of products as cheap as a chunk."""
    grid, plans = (8, 8, 8), (VENDOR, WINOGRAD)
    dear, cheap = ChunkCosts(100.0, 1e6, 1e10), ChunkCosts(0.1, 1e8, 1e10)
    assert choose_grid_plan(grid, plans, dear, (1, 1)).outer_plan == WINOGRAD
    assert choose_grid_plan(grid, plans, cheap, (1, 1)) == GridPlan(VENDOR, 4)
    assert choose_grid_plan(grid, (WINOGRAD,), cheap, (1, 1)).outer_plan == WINOGRAD  # who asks for it has it
    assert choose_grid_plan(grid, (WINOGRAD,), ChunkCosts(1e-9, 1e8, 1e10), (1, 1)).outer_plan == WINOGRAD


def test_a_larger_grid_is_simulated_on_as_many_fewer_workers() -> None:
    """A simulated grid with 1/64 of the products gets 1/64 of the workers, so tasks per thread stay equal."""
    costs, plans = ChunkCosts(1.0, 1e8, 1e10), (VENDOR, WINOGRAD)
    assert choose_grid_plan((32, 32, 32), plans, costs, (128, 4)) == choose_grid_plan((8, 8, 8), plans, costs, (8, 1))
    assert choose_grid_plan((32, 32, 32), plans, costs, (64, 4)) == choose_grid_plan((8, 8, 8), plans, costs, (4, 1))


@pytest.mark.parametrize(("processes", "threads", "fetching"), [(1, 3, 0.5), (5, 2, 0.5), (40, 1, 3.0), (7, 1, 0.0)])
def test_the_worker_is_chosen_as_if_all_were_asked(processes: int, threads: int, fetching: float) -> None:
    rng = random.Random(processes)
    homes: dict[Hashable, int] = {("x", i): rng.randrange(processes) for i in range(12)}
    tasks, made = [], list(homes)
    for i in range(150):
        tasks.append(ChunkTask(i, tuple(rng.sample(made, rng.randrange(4))), rng.choice((0.25, 1.0, 1.5))))
        made.append(i)
    workers = SimulatedWorkers(processes, threads, fetching)
    assert simulate_tasks(tasks, homes, workers) == simulated_by_asking_all(tasks, homes, workers)


def simulated_by_asking_all(
    tasks: list[ChunkTask], homes: dict[Hashable, int], workers: SimulatedWorkers
) -> SimulationResult:
    free = [[0.0] * workers.threads for _ in range(workers.processes)]
    places, ready = {key: {home} for key, home in homes.items()}, dict.fromkeys(homes, 0.0)
    sent = 0
    for makes, reads, seconds in tasks:
        after = max((ready[key] for key in reads), default=0.0)
        ways = []
        for who in range(workers.processes):
            lacking = sum(who not in places[key] for key in reads)
            ways.append((max(min(free[who]), after) + lacking * workers.fetch_seconds, lacking, who))
        begun, lacking, who = min(ways)
        free[who][free[who].index(min(free[who]))] = ready[makes] = begun + seconds
        for key in reads:
            places[key].add(who)
        places[makes], sent = {who}, sent + lacking
    return SimulationResult(max(map(max, free)), sum(task.seconds for task in tasks), sent)


@pytest.mark.slow
def test_thousands_of_workers_take_no_longer_to_be_told_apart() -> None:
    tasks = [ChunkTask(i, (("x", i % 8), ("x", 8 + i % 5)), 1.0) for i in range(300)]
    found = simulate_tasks(tasks, {("x", i): i for i in range(16)}, SimulatedWorkers(20_000, 1, 0.1))
    assert found.seconds > 0, "a search through all workers for each task would take minutes"
