"""The thread pool: as many threads as BLAS uses, errors raised, safe after a fork, results independent of threads."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import numpy as np
import pytest

from fmm.kernels.cpu import thread_pool
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, aligned_block
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import THREAD_VARIABLES, ThreadGroup, blas_threads, usable_processors
from fmm.kernels.cpu.worker_threads import run_on_worker
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import plan_workspace_bytes
from tests.support import ROOT


@pytest.fixture
def no_threadpoolctl(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A machine without threadpoolctl and without environment variables."""
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    for name in THREAD_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    thread_pool._threadpool_controller.cache_clear()
    yield monkeypatch
    thread_pool._threadpool_controller.cache_clear()


# ---- how many


@pytest.mark.parametrize("count", [1, 2])
def test_threadpoolctl_limits_are_honoured(count: int) -> None:
    if usable_processors() < count:
        pytest.skip("one processor")
    with pytest.importorskip("threadpoolctl").threadpool_limits(count):
        assert blas_threads() == count


def test_a_limit_ends_with_its_block() -> None:
    before = blas_threads()
    with pytest.importorskip("threadpoolctl").threadpool_limits(1):
        assert blas_threads() == 1
    assert blas_threads() == before


def test_the_default_is_all_processors(no_threadpoolctl: pytest.MonkeyPatch) -> None:
    assert blas_threads() == usable_processors()
    assert usable_processors() >= 1


@pytest.mark.parametrize("name", THREAD_VARIABLES)
def test_the_environment_is_read_without_threadpoolctl(name: str, no_threadpoolctl: pytest.MonkeyPatch) -> None:
    no_threadpoolctl.setattr(thread_pool, "usable_processors", lambda: 16)
    no_threadpoolctl.setenv(name, "3")
    assert blas_threads() == 3


ENVIRONMENTS: list[tuple[dict[str, str], int]] = [
    # what is set, threads on 16 processors
    ({"OPENBLAS_NUM_THREADS": "2", "OMP_NUM_THREADS": "5"}, 2),  # the library's own variable wins
    ({"MKL_NUM_THREADS": "4", "OMP_NUM_THREADS": "5"}, 4),
    ({"OMP_NUM_THREADS": "6,2"}, 6),  # nested levels: the outermost counts
    ({"OMP_NUM_THREADS": "99"}, 16),  # no more than there are processors
    ({"OMP_NUM_THREADS": "0"}, 16),
    ({"OMP_NUM_THREADS": ""}, 16),
    ({"OMP_NUM_THREADS": "-3"}, 16),
    ({"OMP_NUM_THREADS": "many"}, 16),
    ({"OPENBLAS_NUM_THREADS": "many", "OMP_NUM_THREADS": "7"}, 7),
]


@pytest.mark.parametrize(("values", "count"), ENVIRONMENTS)
def test_environment_variables_set_the_thread_count(
    values: dict[str, str], count: int, no_threadpoolctl: pytest.MonkeyPatch
) -> None:
    no_threadpoolctl.setattr(thread_pool, "usable_processors", lambda: 16)
    for name, value in values.items():
        no_threadpoolctl.setenv(name, value)
    assert blas_threads() == count


def test_processors_are_those_that_this_process_may_use() -> None:
    if not hasattr(os, "sched_getaffinity"):
        pytest.skip("no processor affinity on this system")
    assert usable_processors() == len(os.sched_getaffinity(0))


# ---- running


@pytest.mark.parametrize("count", [1, 2, 3, 8])
@pytest.mark.parametrize("tasks", [0, 1, 2, 7, 100])
def test_every_task_runs_once(count: int, tasks: int) -> None:
    done: list[int] = []
    ThreadGroup(count).run_tasks([partial(done.append, i) for i in range(tasks)])
    assert sorted(done) == list(range(tasks))


def test_tasks_run_concurrently() -> None:
    """Two tasks that wait for each other end only if both run at once, on worker threads."""
    barrier = threading.Barrier(2, timeout=10)
    names: list[str] = []

    def meet() -> None:
        barrier.wait()
        names.append(threading.current_thread().name)

    ThreadGroup(2).run_tasks([meet, meet])
    assert len(set(names)) == 2
    assert threading.current_thread().name not in names


def test_a_worker_that_calls_takes_part() -> None:
    barrier = threading.Barrier(2, timeout=10)
    names: list[str] = []

    def meet() -> None:
        barrier.wait()
        names.append(threading.current_thread().name)

    def caller() -> str:
        ThreadGroup(2).run_tasks([meet, meet])
        return threading.current_thread().name

    assert run_on_worker(caller) in names
    assert len(set(names)) == 2


def test_one_thread_is_the_callers() -> None:
    names: set[str] = set()
    ThreadGroup(1).run_tasks([lambda: names.add(threading.current_thread().name)] * 5)
    assert names == {threading.current_thread().name}


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("place", range(4))
def test_an_error_of_any_task_is_raised(count: int, place: int) -> None:
    def fail() -> None:
        raise MemoryError("no room")

    tasks = [lambda: None] * 4
    with pytest.raises(MemoryError, match="no room"):
        ThreadGroup(count).run_tasks([fail if i == place else task for i, task in enumerate(tasks)])
    done: list[int] = []
    ThreadGroup(count).run_tasks([partial(done.append, i) for i in range(4)])
    assert sorted(done) == [0, 1, 2, 3], "the pool still works"


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3))
def test_no_task_runs_after_an_error_is_raised(place: int) -> None:
    """The caller may reuse the arrays as soon as the error is raised."""
    started, begun, ended = threading.Semaphore(0), [], []

    def slow(i: int) -> None:
        begun.append(i)
        started.release()
        time.sleep(0.1)
        ended.append(i)

    def fail() -> None:
        if place:  # not the caller, who fails while the others may not even have begun
            started.acquire(timeout=10)
        raise ValueError("mine")

    # The caller's own task is the first: it is done at once, unless it is the one that fails.
    others: list[Callable[[], None]] = [lambda: None, partial(slow, 1), partial(slow, 2)]
    tasks = [fail if i == place else task for i, task in enumerate(others)]
    with pytest.raises(ValueError, match="mine"):
        ThreadGroup(3).run_tasks(tasks)
    assert sorted(ended) == sorted(begun)
    assert place == 0 or sorted(begun) == [i for i in (1, 2) if i != place]
    time.sleep(0.2)
    assert sorted(ended) == sorted(begun), "nothing begins once the error is out"


@pytest.mark.parametrize("count", [1, 3])
def test_floating_point_warnings_stay_inside(count: int) -> None:
    """Overflow raises no warning here, and the caller's errstate is unchanged."""
    big = np.full(4, 1.5e308)
    before = np.geterr()
    ThreadGroup(count).run_tasks([lambda: np.copyto(big[:2], big[2:] + big[2:])] * 6)
    assert np.geterr() == before


@pytest.mark.parametrize("count", [1, 3])
def test_sums_run_without_numpys_buffers(count: int) -> None:
    """NumPy would copy rows shorter than its buffer into it: two to three times the time. The caller's stays."""
    sizes: list[int] = []
    before = np.getbufsize()
    ThreadGroup(count).run_tasks([lambda: sizes.append(np.getbufsize())] * 6)
    assert set(sizes) == {thread_pool.NUMPY_BUFFER_ELEMENTS}
    assert np.getbufsize() == before > thread_pool.NUMPY_BUFFER_ELEMENTS


def test_a_free_thread_takes_the_next_task() -> None:
    """One long task does not delay the others: the second thread runs them all."""
    release, done = threading.Event(), []

    def long() -> None:
        assert release.wait(10)

    def short() -> None:
        done.append(threading.get_ident())
        if len(done) == 20:
            release.set()

    ThreadGroup(2).run_tasks([long, *[short] * 20])
    assert len(done) == 20
    assert len(set(done)) == 1


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="affinity and /proc are Linux's")
def test_workers_keep_off_the_callers_processor() -> None:
    if usable_processors() < 2:
        pytest.skip("one processor")
    everywhere, seen = os.sched_getaffinity(0), {}
    here = min(everywhere)
    os.sched_setaffinity(0, {here})
    try:
        assert thread_pool._current_processor() == here
    finally:
        os.sched_setaffinity(0, everywhere)
    barrier = threading.Barrier(2, timeout=10)

    def look() -> None:
        barrier.wait()
        seen[threading.current_thread().name] = os.sched_getaffinity(0)

    def caller() -> str:
        ThreadGroup(2).run_tasks([look, look])
        return threading.current_thread().name

    assert seen.pop(run_on_worker(caller)) == everywhere, "the caller's own affinity is left alone"
    assert [len(allowed) for allowed in seen.values()] == [len(everywhere) - 1]
    assert os.sched_getaffinity(0) == everywhere


def test_a_busy_worker_is_not_waited_for() -> None:
    """While another call keeps the worker busy, the caller runs everything itself."""
    busy, release = threading.Semaphore(0), threading.Event()

    def hold() -> None:
        busy.release()
        assert release.wait(10)

    first = threading.Thread(target=ThreadGroup(2).run_tasks, args=([hold, hold],))
    first.start()
    assert all(busy.acquire(timeout=10) for _ in range(2))  # both of the first call's threads hold a task now
    done: list[int] = []
    ThreadGroup(2).run_tasks([partial(done.append, i) for i in range(5)])
    release.set()
    first.join(10)
    assert sorted(done) == list(range(5))


AFTER_FORK = """
import os, signal, threading, warnings
warnings.simplefilter("ignore")  # a fork with threads alive is what is tested
from fmm.kernels.cpu.thread_pool import ThreadGroup
done = []
barrier = threading.Barrier(3)  # so that both threads of the pool have been started
ThreadGroup(3).run_tasks([lambda: (barrier.wait(10), done.append(os.getpid()))] * 3)
child = os.fork()
signal.alarm(60)  # ends a child that waits for ever, which the test's own limit would not
ThreadGroup(3).run_tasks([lambda: done.append(os.getpid())] * 9)
if child:
    _, status = os.waitpid(child, 0)
    assert status == 0, status
assert len(done) == 12
print("child" if not child else "parent", done.count(os.getpid()), flush=True)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_gets_threads_of_its_own() -> None:
    """The parent's threads do not exist in the child: a pool that was copied would wait for ever."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", AFTER_FORK]
    out = subprocess.run(code, env=env, check=True, text=True, capture_output=True, timeout=120).stdout
    assert sorted(out.splitlines()) == ["child 9", "parent 12"]


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("text", ["winograd > vendor", "li-fig3.peel > vendor", "dps.sequential > vendor"])
def test_results_do_not_depend_on_the_threads(text: str, rng: np.random.Generator) -> None:
    """Panels are cut by size alone, so the same additions are done in the same order."""
    plan, (m, k, n) = Plan.parse(text), (901, 850, 1003)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    found = []
    with pytest.importorskip("threadpoolctl").threadpool_limits(1):  # BLAS may differ with its own threads
        for count in (1, 2, 4):
            c = np.full((m, n), np.nan)
            arena = Arena(aligned_block(plan_workspace_bytes(plan, m, k, n, 8)), a.dtype)
            execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(count)), arena)
            found.append(c)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
    assert np.allclose(found[0], a @ b)


def test_an_interrupt_is_raised_between_turns() -> None:
    """The interrupt is raised in the main thread after a turn; the first turn has one task a thread."""
    done: list[int] = []

    def task(number: int) -> None:
        if number == 0:
            os.kill(os.getpid(), signal.SIGINT)
        done.append(number)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # jobs in the background are born deaf to it
    try:
        with pytest.raises(KeyboardInterrupt):
            ThreadGroup(2).run_tasks_interruptibly([partial(task, number) for number in range(100)])
    finally:
        signal.signal(signal.SIGINT, before)
    assert sorted(done) == [0, 1]
    ThreadGroup(2).run_tasks_interruptibly([partial(done.append, number) for number in range(100, 200)])
    assert sorted(done)[2:] == list(range(100, 200))


def test_turns_adapt_to_the_duration_of_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns have more tasks while tasks are short, and fewer when they are long; every task runs."""
    now, turns, done = [0.0], list[int](), list[int]()

    def run(self: ThreadGroup, tasks: Sequence[Callable[[], None]]) -> None:
        turns.append(len(tasks))
        for task in tasks:
            task()

    def task(number: int) -> None:
        now[0] += 1 / 16 if number < 300 else 1 / 2
        done.append(number)

    monkeypatch.setattr(thread_pool, "TURN_SECONDS", 1.0)
    monkeypatch.setattr(ThreadGroup, "run_tasks", run)
    monkeypatch.setattr("fmm.kernels.cpu.thread_pool.time.monotonic", lambda: now[0])
    ThreadGroup(2).run_tasks_interruptibly([partial(task, number) for number in range(400)])
    assert done == list(range(400))
    assert turns[:5] == [2, 8, 16, 16, 16] and set(turns[-40:]) == {2}
