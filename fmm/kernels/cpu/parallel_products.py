"""Run two products of a plan concurrently: each step is a task that starts as soon as its inputs are ready.

Each product runs on one thread, so a memory-bound sum can run concurrently with a compute-bound product, and no BLAS
thread spins during a sum. The walk appends the tasks to a queue in the order of a serial run. The queue derives
dependencies from the memory that the tasks read and write, so the plan can reuse temporaries as in a serial run.

Worker threads walk the plan and run the tasks, because no signal handler interrupts a worker thread. In the main
thread, an exception of a signal handler could leave the lock of a `threading.Condition` locked forever, because
`threading.Condition` is Python code.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.numpy_backend import NumpyBackend, ProgressCallback, host_product
from fmm.kernels.cpu.openblas import counted_plan_product, single_threaded_blas
from fmm.kernels.cpu.thread_pool import ThreadGroup, WorkerJob, start_on_workers
from fmm.kernels.cpu.triangle_product import MIRROR_BAND_ROWS, mirror_rows, triangle_product
from fmm.kernels.cpu.worker_threads import is_worker_thread, retry_until_done, run_on_worker
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import HostProductFunction
from fmm.kernels.plans.sums import Mirror, RescaledCopy, RowOrColumnExponents, Sum

CONCURRENT_PRODUCTS = 2  # number of products at the same time; a plan has too few products for more threads
MIN_CONCURRENT_FLOPS = 2 * 1024**3  # smallest number of flops of a whole product for which concurrent tasks are faster
MAX_QUEUED_TASKS = 32  # largest number of unfinished tasks, enough for a level's products and the next level's sums
# A product with at most 1/SMALL_PRODUCT_DIVISOR of the total flops does not wait for the check of A and B for overflow,
# because little work is wasted if the check fails.
SMALL_PRODUCT_DIVISOR = 32
BANDS_PER_SUM = 4  # number of bands of rows in a sum; a band can start as soon as its own rows are ready
# Smallest number of rows in each half of a product that is divided between two threads. BLAS packs the right operand
# for each half, so two halves with fewer rows are slower than the whole product.
MIN_PART_ROWS = 384
# The first half has a multiple of this number of rows and so ends at an edge of BLAS's tiles. The divided product
# therefore equals the undivided product bit for bit.
PART_ROW_UNIT = 192


@dataclass(eq=False)
class PlanTask:
    """A task of a plan: the arrays that it reads and writes, its work, and the unfinished tasks that it waits for."""

    reads: Sequence[Array]
    writes: Sequence[Array]
    work: Callable[[], object]
    flops: int = 0  # flops of a product; 0 for a sum
    after: set[PlanTask] = field(default_factory=set)
    multiply: HostProductFunction | None = (
        None  # the function that multiplies a part of the product; None if the task cannot be divided
    )

    def __post_init__(self) -> None:
        self.read, self.written = [_byte_span(x) for x in self.reads], [_byte_span(x) for x in self.writes]

    @staticmethod
    def product_task(multiply: HostProductFunction, left: Array, right: Array, dest: Array) -> PlanTask:
        work = partial(multiply, left, right, dest)
        return PlanTask((left, right), (dest,), work, flops=2 * dest.size * left.shape[1], multiply=multiply)

    def conflicts_with(self, other: PlanTask) -> bool:
        """Return True if one of the two tasks writes memory that the other reads or writes."""
        return (
            _byte_spans_overlap(self.written, other.written)
            or _byte_spans_overlap(self.written, other.read)
            or _byte_spans_overlap(self.read, other.written)
        )

    def split_rows(self) -> list[PlanTask]:
        """Return two tasks with about half the rows each, or an empty list if the task cannot be divided."""
        if self.multiply is None:
            return []
        (left, right), (dest,) = self.reads, self.writes
        middle = round(len(left) / 2 / PART_ROW_UNIT) * PART_ROW_UNIT
        parts = (slice(0, middle), slice(middle, None)) if min(middle, len(left) - middle) >= MIN_PART_ROWS else ()
        return [PlanTask.product_task(self.multiply, left[part], right, dest[part]) for part in parts]


ByteSpan = tuple[int, int, Array]


def _byte_span(x: Array) -> ByteSpan:
    """Return the address of the array's first byte, the address after its last byte, and the array.

    `_byte_spans_overlap` compares the addresses first, and compares two arrays element by element only if their
    addresses overlap.
    """
    low = high = x.__array_interface__["data"][0]
    if not x.size:
        return low, low, x
    for length, stride in zip(x.shape, x.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + x.itemsize, x


def _byte_spans_overlap(spans: Sequence[ByteSpan], other_spans: Sequence[ByteSpan]) -> bool:
    for low, high, x in spans:
        for start, end, y in other_spans:
            if low < end and start < high and may_share_elements(x, y):
                return True
    return False


def may_share_elements(x: Array, y: Array) -> bool:
    """Return True if two arrays share an element, or if NumPy cannot decide this quickly."""
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]  # NumPy's stubs permit 0 and -1 only
    except RuntimeError:  # numpy.exceptions.TooHardError: NumPy cannot decide with `max_work` steps
        return True


class TaskQueue:
    """A queue of waiting and running tasks, in the order in which the walk added them."""

    def __init__(self, flops: int = 0) -> None:
        self.flops = flops  # flops of the whole product
        self.changed = threading.Condition()
        self.waiting: list[PlanTask] = []
        self.running: set[PlanTask] = set()
        self.check: PlanTask | None = None  # the check of A and B for overflow; large products wait for this task
        self.closed = False
        self.error: BaseException | None = None
        self.seconds = {False: 0.0, True: 0.0}  # CPU seconds of the workers: key False for sums, key True for products

    def add_task(self, task: PlanTask) -> None:
        """Wait until fewer than MAX_QUEUED_TASKS tasks are unfinished, then append a task."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or len(self.waiting) + len(self.running) < MAX_QUEUED_TASKS)
            if self.error:
                raise self.error
            before = [*self.running, *self.waiting]
            task.after = {other for other in before if task.conflicts_with(other)}
            if self.check in before and task.flops * SMALL_PRODUCT_DIVISOR > self.flops:
                task.after.add(self.check)
            self.waiting.append(task)
            self.changed.notify()

    def close(self) -> None:
        """Declare that no more tasks will be added; the workers end when all tasks are done."""
        self.closed = True
        retry_until_done(self._wake_all)

    def record_failure(self, error: BaseException) -> None:
        """Record an error, so that no more tasks start; the walk and the caller then raise the first error."""
        self.error = self.error or error
        retry_until_done(self._wake_all)

    def _wake_all(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def run_tasks(self) -> None:
        """Run tasks until the queue is closed and empty; each worker runs this loop."""
        try:
            while (task := self._wait_for_task()) is not None:
                start = time.thread_time()  # CPU time, which excludes waiting for a processor
                task.work()
                self._finish_task(task, time.thread_time() - start)
        except BaseException as error:
            self.record_failure(error)

    def _wait_for_task(self) -> PlanTask | None:
        with self.changed:
            while not self.error and not (self.closed and not self.waiting):
                if (task := self._pick_ready_task()) is not None:
                    self.running.add(task)
                    self.changed.notify()  # another worker may run the other part of a divided product
                    return task
                self.changed.wait()
            return None

    def _pick_ready_task(self) -> PlanTask | None:
        """Return the first task that does not wait for another task; None if all tasks wait.

        While another worker runs a sum, a product is preferred, because two sums compete for memory and the GIL. If a
        product is the only ready task, its rows are divided in two halves, so that another worker can compute the
        second half.
        """
        ready = [task for task in self.waiting if not task.after]
        if not ready:
            return None
        summing = any(not task.flops for task in self.running)
        task = next((task for task in ready if task.flops), ready[0]) if summing else ready[0]
        parts = task.split_rows() if task.flops and len(ready) == 1 else []
        if parts:
            self._replace_task_by_parts(task, parts)
            task = parts[0]
        self.waiting.remove(task)
        return task

    def _replace_task_by_parts(self, task: PlanTask, parts: Sequence[PlanTask]) -> None:
        place = self.waiting.index(task)
        self.waiting[place : place + 1] = parts
        for other in self.waiting:
            if task in other.after:
                other.after.remove(task)
                other.after.update(part for part in parts if other.conflicts_with(part))

    def _finish_task(self, task: PlanTask, seconds: float) -> None:
        with self.changed:
            self.seconds[task.flops > 0] += seconds
            self.running.discard(task)
            for other in self.waiting:
                other.after.discard(task)
            self.changed.notify_all()


@dataclass(frozen=True)
class ConcurrentBackend(NumpyBackend):
    """A NumPy backend that adds the steps of a plan to a task queue; workers run the tasks of the queue."""

    queue: TaskQueue

    def run_overflow_check(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        """Add the check of A and B for overflow to the queue; only large products wait for the check."""
        task = PlanTask(reads, (), check)
        self.queue.add_task(task)
        self.queue.check = task

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        self.queue.add_task(PlanTask.product_task(self.with_progress_report(host_product(leaf)), left, right, dest))

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, params: GemmParams) -> None:
        work = partial(self.with_progress_report(partial(triangle_product, params=params)), left, right, dest)
        self.queue.add_task(PlanTask((left, right), (dest,), work, flops=dest.size * left.shape[1]))

    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None:
        for top in range(0, len(dest), MIRROR_BAND_ROWS):
            rows, cols = slice(top, top + MIRROR_BAND_ROWS), slice(0, top + MIRROR_BAND_ROWS)
            read, written = source[rows, cols], [dest[rows, cols], *([dest[cols, rows]] if step.fill == "full" else [])]
            self.queue.add_task(PlanTask((read,), written, partial(mirror_rows, step, source, dest, top)))

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        if isinstance(step, RowOrColumnExponents | RescaledCopy):
            self.queue.add_task(PlanTask(reads, writes, partial(super().compute_sums, step, reads, writes)))
            return
        rows = max(x.shape[0] for x in writes)
        height = max(-(-rows // BANDS_PER_SUM), 1)
        for top in range(0, rows, height):
            ins, outs = ([x[top : top + height] for x in arrays] for arrays in (reads, writes))
            self.queue.add_task(PlanTask(ins, outs, partial(super().compute_sums, step, ins, outs)))


@contextmanager
def threads_per_product(count: int) -> Iterator[tuple[int, int]]:
    """Divide `count` threads among products; yield the number of concurrent products, and the threads for each."""
    with single_threaded_blas(count if count == CONCURRENT_PRODUCTS else 0) as single_threaded:
        yield (count, 1) if single_threaded else (1, count)


@contextmanager
def plan_backend(count: int, flops: int, on_progress: ProgressCallback | None = None) -> Iterator[NumpyBackend]:
    """Yield the backend that runs a plan on `count` threads.

    If possible, the backend runs two products concurrently on worker threads. If two products cannot run concurrently,
    or if the whole product is small, each product runs on all threads.
    """
    if not is_worker_thread():
        yield NumpyBackend(ThreadGroup(count), on_progress=on_progress)
        return
    with counted_plan_product(count):
        if flops < MIN_CONCURRENT_FLOPS:
            yield NumpyBackend(ThreadGroup(count), on_progress=on_progress)
            return
        with threads_per_product(count) as (at_a_time, each):
            if at_a_time == 1:
                yield NumpyBackend(ThreadGroup(count), on_progress=on_progress)
                return
            with _backend_with_workers(TaskQueue(flops), at_a_time, each, on_progress) as found:
                yield found


@contextmanager
def _backend_with_workers(
    queue: TaskQueue, count: int, threads_per_product: int, on_progress: ProgressCallback | None
) -> Iterator[NumpyBackend]:
    """Yield a backend that adds tasks to a queue, which `count` workers run; at the end, wait for the workers."""
    workers: list[WorkerJob] = start_on_workers(count, queue.run_tasks)
    if not workers:
        yield NumpyBackend(ThreadGroup(threads_per_product), on_progress=on_progress)
        return
    try:
        yield ConcurrentBackend(ThreadGroup(threads_per_product), queue, on_progress=on_progress)
    except BaseException as error:
        queue.record_failure(error)
        raise
    finally:
        queue.close()
        for worker in workers:  # no worker may write after the caller continues
            retry_until_done(worker.wait_until_done)
    if queue.error:
        raise queue.error


# ---- the times of sums and products
# The tuner, and the probe of a machine without a tuning, measure the time of sums with `measure_step_times`. Sums are
# timed within a plan, because the product that runs at the same time changes the time of a sum: the sum has one thread
# only, and the product uses part of the cache.


@dataclass
class StepTimes:
    """Seconds of the products, and seconds of all other steps (`sums`).

    If two threads run the steps at the same time, both values are the CPU seconds of the two threads divided by two.
    """

    sums: float = 0.0
    products: float = 0.0


def measure_step_times(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    """Run the steps of a product with `flops` flops on `count` threads as fmm.matmul does; return their times."""
    return run_on_worker(partial(_measure_steps, count, flops, steps))


def _measure_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    times = StepTimes()
    with plan_backend(count, flops) as backend:
        steps(backend if isinstance(backend, ConcurrentBackend) else _TimedBackend(backend.threads, times))
    if isinstance(backend, ConcurrentBackend):
        seconds = backend.queue.seconds
        return StepTimes(seconds[False] / CONCURRENT_PRODUCTS, seconds[True] / CONCURRENT_PRODUCTS)
    return times


@dataclass(frozen=True)
class _TimedBackend(NumpyBackend):
    """A NumPy backend that measures the time of each step."""

    spent: StepTimes = field(default_factory=StepTimes)

    def run_overflow_check(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        start = time.perf_counter()
        check()
        self.spent.sums += time.perf_counter() - start

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        start = time.perf_counter()
        super().multiply(leaf, left, right, dest)
        self.spent.products += time.perf_counter() - start

    def compute_sums(self, step: Sum, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        start = time.perf_counter()
        super().compute_sums(step, list(reads), list(writes))
        self.spent.sums += time.perf_counter() - start
