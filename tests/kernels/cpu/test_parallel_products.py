"""Two products at a time: exact for every plan, dependencies respected, errors raised, BLAS threads restored."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import fmm
from fmm.kernels.cpu import numpy_backend, openblas, parallel_products, thread_pool
from fmm.kernels.cpu.numpy_backend import NumpyBackend, numpy_product
from fmm.kernels.cpu.parallel_products import ConcurrentBackend, PlanTask, TaskQueue, measure_step_times
from fmm.kernels.cpu.thread_pool import ThreadGroup, blas_threads, usable_processors
from fmm.kernels.cpu.worker_threads import run_on_worker
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem
from fmm.runtime import probe, run_host
from fmm.tuner.devices.cpu import CpuDevice
from fmm.tuner.devices.device import TimedRun
from tests.support import ROOT
from tests.support.marks import quick_and_slow

Array = np.ndarray[Any, Any]

pytestmark = pytest.mark.skipif(
    openblas.loaded_openblas() is None or usable_processors() < 2,
    reason="needs OpenBLAS with its own threads, and two processors",
)


@pytest.fixture
def eager(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Two BLAS threads, and flows for products of any size, cut into small parts."""
    monkeypatch.setattr(parallel_products, "MIN_CONCURRENT_FLOPS", 0)
    monkeypatch.setattr(run_host, "SMALL_ARRAY_BYTES", 0)
    monkeypatch.setattr(parallel_products, "MIN_PART_ROWS", 8)
    monkeypatch.setattr(parallel_products, "PART_ROW_UNIT", 8)
    library = openblas.loaded_openblas()
    assert library is not None
    before = library.count()
    library.limit(2)
    yield
    assert library.count() == 2, "BLAS is left as it was"
    library.limit(before)


def whole_numbers(rng: np.random.Generator, *shape: int) -> Array:
    return rng.integers(-4, 5, shape).astype(float)


PLANS = (
    "winograd > vendor",
    "winograd > winograd > vendor",
    "winograd^2 > vendor",
    "strassen.sequential > winograd > vendor",
    "li-fig3.peel > winograd > vendor",
    "hasa > li-fig3.peel > vendor",
    "hasa > strassen.pad > vendor",
    "balanced(2) > adaptive-winograd > laderman > vendor",
)


@pytest.mark.quick_cases(2)
@pytest.mark.parametrize(
    ("plan", "order"),
    quick_and_slow(zip(PLANS, ("C", "F") * 4, strict=True), zip(PLANS, ("F", "C") * 4, strict=True)),
)
def test_every_plan_is_exact(plan: str, order: Any, eager: None, rng: np.random.Generator) -> None:
    """Integers reveal a step that starts too early or overwrites another step's input."""
    a, b = (np.asarray(whole_numbers(rng, *shape), order=order) for shape in ((203, 301), (301, 155)))
    for _ in range(5):
        np.testing.assert_array_equal(fmm.matmul(a, b, plan=plan), a @ b)


@pytest.mark.slow
@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_the_last_digits_do_not_depend_on_the_schedule(
    dtype: str, order: Any, eager: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    """Where a product is cut depends on chance; a row's digits are the same for any cut."""
    monkeypatch.setattr(parallel_products, "PART_ROW_UNIT", 192)
    shapes = ((2301, 450), (450, 303))
    a, b = (np.asarray(rng.standard_normal(shape), dtype, order=order) for shape in shapes)
    first = fmm.matmul(a, b, plan="winograd > vendor")
    for _ in range(20):
        np.testing.assert_array_equal(fmm.matmul(a, b, plan="winograd > vendor"), first)


def test_two_products_run_concurrently(eager: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    """The first two wait for each other."""
    barrier, names = threading.Barrier(2, timeout=10), set()
    matmul, firsts = np.matmul, iter("12")

    def meeting(*arguments: Any, **options: Any) -> Any:
        names.add(threading.current_thread().name)
        if next(firsts, ""):
            barrier.wait()
        return matmul(*arguments, **options)

    a, b = whole_numbers(rng, 64, 64), whole_numbers(rng, 64, 64)
    expected = a @ b
    monkeypatch.setattr(numpy_backend, "matmul", meeting)
    np.testing.assert_array_equal(fmm.matmul(a, b, plan="winograd > vendor"), expected)
    assert len(names) == 2 and threading.current_thread().name not in names


def test_a_small_product_is_not_run_concurrently(monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator) -> None:
    monkeypatch.setattr(parallel_products, "TaskQueue", lambda: pytest.fail("a flow for nothing"))
    fmm.matmul(*rng.standard_normal((2, 256, 256)), plan="winograd > vendor")


@pytest.mark.parametrize("count", [1, 3, 16])
def test_other_thread_counts_run_one_product_at_a_time(count: int) -> None:
    def look() -> None:
        with parallel_products.plan_backend(count, 1 << 60) as found:
            assert type(found) is NumpyBackend and found.threads == ThreadGroup(count)

    run_on_worker(look)


def test_tasks_never_run_on_the_main_thread(eager: None) -> None:
    with parallel_products.plan_backend(2, 1 << 60) as found:
        assert type(found) is NumpyBackend


# ---- what its steps take


def sums_of_the_probe() -> None:
    probe._sum_rate(2)


def sums_of_the_tuner() -> None:
    with CpuDevice().open_session(Problem(300, 300, 300), 0) as session:
        assert 0 < session.sample_seconds(TimedRun(Plan.parse("winograd > vendor"), "sums")) < 1


@pytest.mark.parametrize("timer", [sums_of_the_probe, sums_of_the_tuner])
def test_sums_are_timed_as_they_run_within_a_plan(timer: Any, eager: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sum has one thread while BLAS has one for each product, as in a plan."""
    seen, original = set(), NumpyBackend.compute_sums

    def watched(self: NumpyBackend, *arguments: Any) -> None:
        seen.add((self.threads.count, openblas.paused_blas_threads(), threading.current_thread().name[:3]))
        original(self, *arguments)

    monkeypatch.setattr(NumpyBackend, "compute_sums", watched)
    timer()
    assert seen == {(1, 2, "fmm")}


@pytest.mark.parametrize("count", [1, 2])
def test_sums_and_products_are_timed_separately(count: int, eager: None) -> None:
    x = np.ones((1500, 1500))

    def steps(backend: NumpyBackend) -> None:
        backend.multiply("vendor", x[:600], x, np.empty((600, 1500)))

    found = measure_step_times(count, 1 << 60, steps)
    assert found.sums == 0 < found.products


# ---- tasks


def test_dependencies_follow_from_memory() -> None:
    x = np.zeros((8, 8))
    top, bottom, left, right = x[:4], x[4:], x[:, :4], x[:, 4:]
    write = PlanTask([], [top], lambda: None)
    assert PlanTask([x], [], lambda: None).conflicts_with(write), "reads what is written"
    assert PlanTask([], [left], lambda: None).conflicts_with(write), "writes it again"
    assert write.conflicts_with(PlanTask([left], [], lambda: None)), "writes what is still read"
    assert not PlanTask([bottom], [bottom], lambda: None).conflicts_with(write)
    assert not PlanTask([top], [], lambda: None).conflicts_with(PlanTask([top], [], lambda: None)), "both only read"
    assert not PlanTask([], [left], lambda: None).conflicts_with(PlanTask([], [right], lambda: None)), (
        "interleaved rows"
    )


def test_tasks_conflict_where_their_arrays_share_elements() -> None:
    """Views of all kinds, also empty ones and negative strides."""
    x = np.zeros((12, 10))
    rows = [x[:6], x[6:], x[5:7], x[::-1], x[:0], x[3:3, 2:], x[-1:], x[::2], x[1::2], x[11:4:-3]]
    views = [y for r in rows for y in (r, r.T, r[:, :5], r[:, 5:], r[:, ::-2], r[:, 4:1:-1], r[..., None])]
    met = 0
    for left in views:
        for right in views:
            share = np.shares_memory(left, right)
            met += share
            assert PlanTask([], [left], lambda: None).conflicts_with(PlanTask([right], [], lambda: None)) == share
    assert 0.1 < met / len(views) ** 2 < 0.9


def test_the_window_is_bounded_and_in_order() -> None:
    flowing, x, done = TaskQueue(), np.zeros(4), []
    for i in range(parallel_products.MAX_QUEUED_TASKS):
        flowing.add_task(PlanTask([x], [x], lambda i=i: done.append(i)))  # type: ignore[misc]
    late = threading.Thread(target=flowing.add_task, args=(PlanTask([x], [x], lambda: done.append(-1)),))
    late.start()
    late.join(0.05)
    assert late.is_alive() and len(flowing.waiting) == parallel_products.MAX_QUEUED_TASKS
    worker = threading.Thread(target=flowing.run_tasks)
    worker.start()
    late.join(10)
    flowing.close()
    worker.join(10)
    assert done == [*range(parallel_products.MAX_QUEUED_TASKS), -1]


@pytest.mark.slow
@pytest.mark.parametrize(("share", "order"), [(8, ["sum", "check", "product"]), (64, ["sum", "product", "check"])])
def test_large_products_wait_for_the_check(share: int, order: list[str]) -> None:
    flowing, log, done = TaskQueue(share * 128), list[str](), {name: threading.Event() for name in order}
    backend = ConcurrentBackend(ThreadGroup(1), flowing)
    x, y = np.ones((2, 4, 4))

    def note(name: str) -> None:
        log.append(name)
        done[name].set()

    def check() -> None:
        """Ends once all is done that need not wait for it, and a moment in which no more may be."""
        assert done[order[order.index("check") - 1]].wait(10)
        time.sleep(0.05)
        note("check")

    backend.run_overflow_check([x], check)
    flowing.add_task(PlanTask([y], [y], lambda: note("sum")))
    flowing.add_task(PlanTask((x, y), (np.empty((4, 4)),), lambda: note("product"), flops=128))
    flowing.close()
    workers = [threading.Thread(target=flowing.run_tasks) for _ in range(2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(10)
    assert log == order


def test_the_only_ready_product_is_split() -> None:
    flowing = TaskQueue()
    x, y, z = np.ones((2400, 8)), np.ones((8, 8)), np.empty((2400, 8))
    after = PlanTask((z[-1:],), (), lambda: None)
    flowing.add_task(PlanTask.product_task(numpy_product, x, y, z))
    flowing.add_task(after)
    parts = [flowing._pick_ready_task(), flowing._pick_ready_task(), flowing._pick_ready_task()]
    assert [len(part.writes[0]) for part in parts if part] == [1152, 576, 672]
    assert after.after == {parts[2]}, "it needs the last rows alone"
    for part in parts:
        assert part is not None
        part.work()
    np.testing.assert_array_equal(z, x @ y)


# ---- errors


@pytest.mark.parametrize("error", [MemoryError, ZeroDivisionError, KeyboardInterrupt])
@pytest.mark.parametrize("at", [1, 4, 9])
def test_an_error_is_raised_after_all_writes_have_ended(
    error: type[BaseException], at: int, eager: None, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    calls: list[int] = []
    run = NumpyBackend.compute_sums

    def failing(self: NumpyBackend, *arguments: Any) -> None:
        calls.append(1)
        if len(calls) == at:
            raise error
        run(self, *arguments)

    monkeypatch.setattr(NumpyBackend, "compute_sums", failing)
    a, b, out = whole_numbers(rng, 200, 200), whole_numbers(rng, 200, 200), np.full((200, 200), 0.5)
    with pytest.raises(error):
        fmm.matmul(a, b, out=out, plan="winograd > vendor")
    np.testing.assert_array_equal(out, a @ b)
    assert blas_threads() == 2


@pytest.mark.parametrize("bad", [np.inf, np.nan, 1e300])
def test_nonfinite_products_fall_back_to_numpy(bad: float, eager: None, rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((2, 150, 150))
    a[3, 4] = b[4, 5] = bad
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(fmm.matmul(a, b, plan="winograd > vendor"), a @ b)


# ---- BLAS's threads


def test_blas_threads_reports_the_paused_count(eager: None) -> None:
    with openblas.single_threaded_blas(2) as alone:
        library = openblas.loaded_openblas()
        assert alone and library is not None and library.count() == 1
        assert blas_threads() == 2
        with openblas.single_threaded_blas(2) as second:
            assert not second, "one call at a time"
    assert openblas.paused_blas_threads() == 0


def test_products_of_several_threads_use_one_blas_thread_each(eager: None) -> None:
    library = openblas.loaded_openblas()
    assert library is not None
    with openblas.counted_plan_product(2):
        assert library.count() == 2, "one product has all threads"
        with openblas.counted_plan_product(2), openblas.counted_plan_product(2):
            assert library.count() == 1 and blas_threads() == 2
            with openblas.single_threaded_blas(2) as alone:
                assert not alone
        assert library.count() == 2 and openblas.paused_blas_threads() == 0
    with openblas.counted_plan_product(3), openblas.counted_plan_product(3):
        assert library.count() == 2, "on more processors OpenBLAS keeps its threads"
    assert openblas.running_plan_products() == 0


def test_products_during_a_concurrent_plan_leave_its_limit_to_it(eager: None) -> None:
    library = openblas.loaded_openblas()
    assert library is not None
    with openblas.counted_plan_product(2), openblas.counted_plan_product(2):
        assert library.count() == 1
    with openblas.single_threaded_blas(2) as alone:
        with openblas.counted_plan_product(2), openblas.counted_plan_product(2):
            assert alone and library.count() == 1
        assert library.count() == 1
    assert library.count() == 2


def test_sums_of_several_products_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    counts: list[int] = []
    monkeypatch.setattr(thread_pool, "_run_on_workers", lambda tasks, count: counts.append(count))

    def threads_used() -> int:
        counts[:] = [1]  # one thread needs no other worker
        ThreadGroup(4).run_tasks([lambda: None] * 12)
        return counts[-1]

    assert threads_used() == 4
    with openblas.counted_plan_product(4), openblas.counted_plan_product(4):
        assert threads_used() == 2
        with openblas.counted_plan_product(4), openblas.counted_plan_product(4), openblas.counted_plan_product(4):
            assert threads_used() == 1
    assert threads_used() == 4


def test_a_limited_blas_is_left_unchanged(eager: None) -> None:
    library = openblas.loaded_openblas()
    assert library is not None
    library.limit(1)
    try:
        with openblas.single_threaded_blas(2) as alone:
            assert not alone and library.count() == 1
    finally:
        library.limit(2)


AT_EXIT = """
import atexit, sys, threading
import numpy as np
import fmm
from fmm.kernels.cpu import parallel_products
from fmm.kernels.cpu import openblas as blas
from fmm.runtime import run_host
parallel_products.MIN_CONCURRENT_FLOPS = run_host.SMALL_ARRAY_BYTES = 0
blas.loaded_openblas().limit(2)
a = np.arange(4096.0).reshape(64, 64)

def last():
    assert (fmm.matmul(a, a, plan="winograd > vendor") == a @ a).all()
    print("done", blas.loaded_openblas().count())

threading._register_atexit(last) if "late" in sys.argv else atexit.register(last)
"""


@pytest.mark.slow
@pytest.mark.parametrize("when", ["usual", "late"])
def test_without_worker_threads_the_caller_computes(when: str) -> None:
    """While the interpreter exits, no thread can be started."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    code = [sys.executable, "-c", AT_EXIT, when]
    out = subprocess.run(code, env=env, check=True, timeout=120, capture_output=True, text=True).stdout
    assert out == "done 2\n"


AFTER_FORK = """
import os, warnings
warnings.simplefilter("ignore")
from fmm.kernels.cpu import openblas as blas
library = blas.loaded_openblas()
library.limit(2)
with blas.single_threaded_blas(2):
    child = os.fork()
    if not child:
        with blas.single_threaded_blas(2) as alone:
            os._exit(0 if alone and library.count() == 1 else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert library.count() == 1
assert library.count() == 2
with blas.counted_plan_product(2), blas.counted_plan_product(2):
    assert library.count() == 1
    child = os.fork()
    if not child:
        os._exit(0 if library.count() == 2 and blas.running_plan_products() == 0 else 1)
    assert os.waitpid(child, 0)[1] == 0
assert library.count() == 2
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_has_its_blas_threads_back() -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", AFTER_FORK], env=env, check=True, timeout=120)
