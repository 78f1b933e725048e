"""Worker threads: what runs there, who waits for it, and what happens without them."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.cpu import numpy_backend, openblas, worker_threads
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cpu.worker_threads import NoThreadError, Worker, is_worker_thread, run_on_worker
from fmm.kernels.plans.plan import VENDOR
from fmm.runtime import run_host


def test_work_runs_on_a_worker_and_returns_its_result() -> None:
    assert run_on_worker(threading.get_ident) != threading.get_ident()
    assert run_on_worker(is_worker_thread) and not is_worker_thread()


def test_one_thread_serves_one_call_after_another() -> None:
    run_on_worker(threading.get_ident)
    assert len({run_on_worker(threading.get_ident) for _ in range(50)}) == 1


def test_two_callers_use_two_workers() -> None:
    both, seen = threading.Barrier(2, timeout=10), list[int]()

    def meet() -> None:
        seen.append(threading.get_ident())
        both.wait()

    other = threading.Thread(target=run_on_worker, args=(meet,))
    other.start()
    run_on_worker(meet)
    other.join(10)
    assert not other.is_alive() and len({*seen, threading.get_ident(), other.ident}) == 4


def test_superfluous_workers_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A burst of callers leaves no more idle workers than the limit, and threads of no others."""
    monkeypatch.setattr(worker_threads, "_idle_inboxes", [])
    monkeypatch.setattr(worker_threads, "MAX_IDLE_WORKERS", 3)
    together, found = threading.Barrier(12, timeout=30), list[threading.Thread]()

    def meet() -> None:
        found.append(threading.current_thread())
        together.wait()

    for _ in range(2):
        callers = [threading.Thread(target=run_on_worker, args=(meet,)) for _ in range(12)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join(30)
        assert len(worker_threads._idle_inboxes) == 3
    assert len(found) == 24
    for _ in range(1000):
        if sum(thread in threading.enumerate() for thread in set(found)) == 3:
            break
        time.sleep(0.01)  # a superfluous thread ends a moment after its caller goes on
    assert sum(thread in threading.enumerate() for thread in set(found)) == 3
    assert len({run_on_worker(threading.get_ident) for _ in range(50)}) == 1


def test_nested_work_stays_on_its_worker() -> None:
    assert len(set(run_on_worker(lambda: (threading.get_ident(), run_on_worker(threading.get_ident))))) == 1


@pytest.mark.parametrize("error", [KeyboardInterrupt, IndexError, MemoryError, SystemExit])
def test_exceptions_are_raised_after_the_last_calls(error: type[BaseException]) -> None:
    log: list[int] = []

    def fail() -> None:
        log.append(threading.get_ident())
        raise error("mine")

    last: list[Callable[[], object]] = [partial(log.append, -1), lambda: log.append(threading.get_ident())]
    for _ in range(3):
        with pytest.raises(error, match="mine"):
            run_on_worker(fail, last)
        assert log[0] != threading.get_ident() and log[1:] == [-1, threading.get_ident()]
        log.clear()


def test_work_may_change_the_last_calls() -> None:
    done: list[str] = []
    last: list[Any] = [pytest.fail]

    def work() -> None:
        last[:] = [partial(done.append, "first"), partial(done.append, "second")]

    run_on_worker(work, last)
    assert done == ["first", "second"]


@pytest.mark.parametrize("error", [IndexError, MemoryError])
def test_exceptions_of_last_calls_are_raised(error: type[BaseException]) -> None:
    def fail() -> None:
        raise error("last")

    with pytest.raises(error, match="last"):
        run_on_worker(int, [fail])
    assert run_on_worker(lambda: 3) == 3


def test_work_and_its_arrays_are_released() -> None:
    """Neither the worker nor the traceback of an exception holds the arrays."""

    class Thing:
        pass

    def fail(thing: Thing) -> None:
        raise ValueError

    gc.disable()
    try:
        for work in (id, fail):
            thing = Thing()
            watched = weakref.ref(thing)
            with suppress(ValueError):
                run_on_worker(partial(work, thing))
            del thing
            for _ in range(100):
                if watched() is None:
                    break
                time.sleep(0.01)  # the thread lets it go a moment after the caller goes on
            assert watched() is None
    finally:
        gc.enable()


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no processor affinity on this system")
def test_a_worker_has_its_callers_affinity() -> None:
    everywhere = os.sched_getaffinity(0)
    try:
        for allowed in ({min(everywhere)}, {max(everywhere)}, everywhere):
            os.sched_setaffinity(0, allowed)
            assert run_on_worker(lambda: os.sched_getaffinity(0)) == allowed
    finally:
        os.sched_setaffinity(0, everywhere)


@pytest.mark.parametrize("out", [None, np.empty((40, 60, 60))])
def test_the_vendors_product_respects_the_callers_errstate(
    out: Any, small_by_plans: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stack times one matrix is one vendor product in the caller's thread, under the caller's errstate."""
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    seen, matmul = [], np.matmul

    def noted(*given: Any, **more: Any) -> Any:
        seen.append((is_worker_thread(), np.geterr()["over"]))
        return matmul(*given, **more)

    a, b = np.ones((40, 60, 60)), np.ones((60, 60))
    with np.errstate(over="raise"):
        monkeypatch.setattr(numpy_backend, "matmul", noted)
        fmm.matmul(a, b, out=out, plan="vendor")
    assert seen == [(False, "raise")]


# ---- where there are none


def no_start(*arguments: Any) -> int:
    raise RuntimeError("can't start new thread")


def no_begin(*arguments: Any) -> int:
    """Without memory a thread can end before it runs a line of Python."""
    return 0


@pytest.fixture(params=[no_start, no_begin])
def no_threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "start_new_thread", request.param)
    monkeypatch.setattr(worker_threads, "START_TIMEOUT_SECONDS", 0.01)
    monkeypatch.setattr(worker_threads, "_idle_inboxes", [])
    monkeypatch.setattr(worker_threads, "_failed_start_times", [])
    monkeypatch.setattr(sys.modules["fmm.kernels.cpu.thread_pool"], "_sum_workers", [])


def test_without_workers_an_error_is_raised_and_nothing_runs(no_threads: None) -> None:
    with pytest.raises(NoThreadError):
        run_on_worker(pytest.fail, [pytest.fail])
    with pytest.raises(NoThreadError):
        Worker.start()


def test_a_worker_that_does_not_start_is_waited_for_once(no_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_threads, "START_TIMEOUT_SECONDS", 0.5)
    start = time.monotonic()
    for _ in range(200):
        ThreadGroup(4).run_tasks([lambda: None] * 4)
    assert time.monotonic() - start < 50, "each wait takes half a second: 100 in all"


def test_the_caller_runs_its_tasks_alone(no_threads: None) -> None:
    done: list[int] = []
    ThreadGroup(4).run_tasks([partial(done.append, i) for i in range(9)])
    assert done == list(range(9))


@pytest.mark.parametrize("given", [True, False])
def test_an_explicit_plan_runs_on_the_callers_thread(
    given: bool, no_threads: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    a, b = rng.integers(-4, 5, (2, 300, 300)).astype(float)
    out = np.empty((300, 300)) if given else None
    filled: list[Any] = []
    fill = run_host._PlanMultiplier.compute_product

    def noted(self: Any, *arrays: Any) -> None:
        filled.append(arrays[2])
        fill(self, *arrays)

    monkeypatch.setattr(run_host._PlanMultiplier, "compute_product", noted)
    c = fmm.matmul(a, b, out=out, plan="winograd > vendor")
    np.testing.assert_array_equal(c, a @ b)
    assert len(filled) == 1 and filled[0] is not out, "what the caller sees is written by one copy"


@pytest.mark.usefixtures("eager", "no_threads")
def test_without_a_plan_numpy_multiplies(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    monkeypatch.setattr(run_host._PlanMultiplier, "compute_product", lambda *x: pytest.fail("a plan ran"))
    a, b = rng.standard_normal((2, 300, 300))
    assert fmm.explain(a, b).plan != VENDOR
    np.testing.assert_array_equal(fmm.matmul(a, b), a @ b)
    np.testing.assert_array_equal(fmm.matmul(a, b, out=np.empty((300, 300))), a @ b)


# ---- while the interpreter exits

# What runs after fmm's own exit function has been registered before it.
TASK_AT_EXIT = """
import atexit, threading, time

def report():
    before = list(found)
    time.sleep(0.05)  # time for a further task, if one could start
    print(before == found, found[-1])
    try:
        print(run_on_worker(lambda: "on a worker"))
    except NoThreadError:  # from Python 3.12 on no thread starts during exit
        print("on a worker, if there was one")

atexit.register(report)
from fmm.kernels.cpu import worker_threads
from fmm.kernels.cpu.worker_threads import NoThreadError, run_on_worker
worker_threads.MAX_EXIT_WAIT_SECONDS = 1e9  # a task that is not started is not waited for
found, has_begun = [], threading.Event()

def work():
    found.append("begun")
    has_begun.set()
    time.sleep(0.3)
    found.append("done")

def call_again_and_again():
    while True:
        run_on_worker(work)

threading.Thread(target=call_again_and_again, daemon=True).start()
has_begun.wait()
"""

PRODUCTS_AT_EXIT = """
import threading, time
import numpy as np
from fmm.kernels.cpu import openblas
from fmm.kernels.cpu.worker_threads import run_on_worker

openblas.loaded_openblas().limit(2)
a, has_begun = np.ones((2500, 2500)), threading.Event()

def multiply():
    a @ a
    has_begun.set()

def call_again_and_again():
    while True:
        run_on_worker(multiply)

threading.Thread(target=call_again_and_again, daemon=True).start()
has_begun.wait()
time.sleep(0.02)  # the thread is inside another product when the interpreter exits
"""


def _output_of(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, timeout=120, capture_output=True, text=True).stdout


@pytest.mark.slow
def test_the_exit_waits_for_a_daemon_threads_task_and_starts_no_other() -> None:
    """The main thread's own calls still run on a worker, or raise NoThreadError where Python starts no thread."""
    assert _output_of(TASK_AT_EXIT).startswith("True done\non a worker")


@pytest.mark.slow
@pytest.mark.skipif(openblas.loaded_openblas() is None, reason="NumPy's BLAS is not OpenBLAS")
def test_a_program_ends_while_daemon_threads_multiply() -> None:
    """OpenBLAS's exit function would wait for ever for a thread that was inside a product."""
    assert _output_of(PRODUCTS_AT_EXIT) == ""
