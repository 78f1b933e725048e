"""Two products at a time: a plan's steps as tasks, each started as soon as its inputs are ready.

Each product runs on one thread. So a sum, which is memory-bound, runs concurrently with a product, which is not, and no
BLAS thread spins while the sums run. The walk puts the tasks into a queue in their serial order. Dependencies follow
from the memory that the tasks read and write, so that temporaries are reused as always.

Worker threads walk the plan and run the tasks, since no signal interrupts them. A Condition is entered by Python code,
and an exception from a signal handler there would leave its lock shut for ever.
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
from fmm.kernels.cpu.openblas import single_threaded_blas
from fmm.kernels.cpu.thread_pool import Threads, WorkerShare, start_on_workers
from fmm.kernels.cpu.triangle_product import MIRROR_BAND_ROWS, mirror_band, triangle_product
from fmm.kernels.cpu.worker_threads import on_worker_thread, retry_until_done, run_on_worker
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import HostProductFunction
from fmm.kernels.plans.sums import LineExponents, Mirror, RescaledCopy, Sum

CONCURRENT_PRODUCTS = 2  # number of products that run at a time; with more, a plan would have too few to share
MIN_CONCURRENT_FLOPS = 2 * 1024**3  # flops of a whole product from which handing tasks over pays
MAX_QUEUED_TASKS = 32  # tasks in the queue: the products of a level, and the sums of the next that can run concurrently
# A product with at most 1/32 of the flops of the whole starts before the check of A and B is done: a failed check then
# wastes little.
SMALL_PRODUCT_DIVISOR = 32
BANDS_PER_SUM = 4  # bands of rows of a sum, so that a band can start as soon as its rows are ready
MIN_PART_ROWS = 384  # least rows of a part of a product, since the other operand is packed for each part
PART_ROW_UNIT = 192  # products are cut at multiples of any BLAS's tile rows, so that the last digits do not change


@dataclass(eq=False)
class PlanTask:
    """Work on arrays, with the unfinished tasks that it waits for."""

    reads: Sequence[Array]
    writes: Sequence[Array]
    work: Callable[[], object]
    flops: int = 0  # flops of a product; 0 for a sum
    after: set[PlanTask] = field(default_factory=set)
    multiply: HostProductFunction | None = (
        None  # the function that multiplies a part, if the task is a product that may be cut
    )

    def __post_init__(self) -> None:
        self.read, self.written = [_byte_span(x) for x in self.reads], [_byte_span(x) for x in self.writes]

    @staticmethod
    def multiplying(multiply: HostProductFunction, left: Array, right: Array, dest: Array) -> PlanTask:
        work = partial(multiply, left, right, dest)
        return PlanTask((left, right), (dest,), work, flops=2 * dest.size * left.shape[1], multiply=multiply)

    def must_follow(self, other: PlanTask) -> bool:
        """Return True if one of the two tasks writes memory that the other reads or writes."""
        return (
            _spans_overlap(self.written, other.written)
            or _spans_overlap(self.written, other.read)
            or _spans_overlap(self.read, other.written)
        )

    def split_rows(self) -> list[PlanTask]:
        """Return two products of about half the rows each; none if the rows are too few or there is no `multiply`."""
        if self.multiply is None:
            return []
        (left, right), (dest,) = self.reads, self.writes
        middle = round(len(left) / 2 / PART_ROW_UNIT) * PART_ROW_UNIT
        parts = (slice(0, middle), slice(middle, None)) if min(middle, len(left) - middle) >= MIN_PART_ROWS else ()
        return [PlanTask.multiplying(self.multiply, left[part], right, dest[part]) for part in parts]


ByteSpan = tuple[int, int, Array]


def _byte_span(x: Array) -> ByteSpan:
    """Return the array's first byte, the byte behind its last one, and the array.

    Few pairs of arrays overlap in these spans; only those are compared by element.
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


def _spans_overlap(some: Sequence[ByteSpan], others: Sequence[ByteSpan]) -> bool:
    for low, high, x in some:
        for start, end, y in others:
            if low < end and start < high and share_elements(x, y):
                return True
    return False


def share_elements(x: Array, y: Array) -> bool:
    """Return True if two arrays share an element, or if NumPy cannot tell with little work."""
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]  # NumPy's stubs know 0 and -1
    except RuntimeError:  # numpy.exceptions.TooHardError
        return True


class TaskQueue:
    """Tasks that wait or run, in the order in which the walk added them."""

    def __init__(self, flops: int = 0) -> None:
        self.flops = flops  # flops of the whole product
        self.changed = threading.Condition()
        self.waiting: list[PlanTask] = []
        self.running: set[PlanTask] = set()
        self.check: PlanTask | None = None  # the check of A and B that large products wait for
        self.closed = False
        self.error: BaseException | None = None
        self.seconds = {False: 0.0, True: 0.0}  # the workers' CPU seconds: False for sums, True for products

    def add(self, task: PlanTask) -> None:
        """Append a task as soon as fewer than MAX_QUEUED_TASKS tasks are unfinished."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or len(self.waiting) + len(self.running) < MAX_QUEUED_TASKS)
            if self.error:
                raise self.error
            before = [*self.running, *self.waiting]
            task.after = {other for other in before if task.must_follow(other)}
            if self.check in before and task.flops * SMALL_PRODUCT_DIVISOR > self.flops:
                task.after.add(self.check)
            self.waiting.append(task)
            self.changed.notify()

    def close(self) -> None:
        """Declare that no more tasks will come: the workers end when all are done."""
        self.closed = True
        retry_until_done(self._wake_all)

    def fail(self, error: BaseException) -> None:
        """Start no more tasks; adding a task, or waiting for the end, raises the first error."""
        self.error = self.error or error
        retry_until_done(self._wake_all)

    def _wake_all(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def work(self) -> None:
        """Run tasks until the queue is closed and empty: the loop of each worker."""
        try:
            while (task := self._wait_for_task()) is not None:
                start = time.thread_time()  # CPU time: waiting for a processor is not the task's work
                task.work()
                self._finish(task, time.thread_time() - start)
        except BaseException as error:
            self.fail(error)

    def _wait_for_task(self) -> PlanTask | None:
        with self.changed:
            while not self.error and not (self.closed and not self.waiting):
                if (task := self._pick_ready_task()) is not None:
                    self.running.add(task)
                    self.changed.notify()  # the other part of a split product may be ready for another worker
                    return task
                self.changed.wait()
            return None

    def _pick_ready_task(self) -> PlanTask | None:
        """Return the first task whose inputs are ready, or None.

        While another worker runs a sum, a ready product is preferred, since two sums compete for memory and the GIL. If
        a product is the only ready task, it is cut in two, so that another worker computes one of the parts.
        """
        ready = [task for task in self.waiting if not task.after]
        if not ready:
            return None
        summing = any(not task.flops for task in self.running)
        task = next((task for task in ready if task.flops), ready[0]) if summing else ready[0]
        parts = task.split_rows() if task.flops and len(ready) == 1 else []
        if parts:
            self._replace_by_parts(task, parts)
            task = parts[0]
        self.waiting.remove(task)
        return task

    def _replace_by_parts(self, task: PlanTask, parts: Sequence[PlanTask]) -> None:
        place = self.waiting.index(task)
        self.waiting[place : place + 1] = parts
        for other in self.waiting:
            if task in other.after:
                other.after.remove(task)
                other.after.update(part for part in parts if other.must_follow(part))

    def _finish(self, task: PlanTask, seconds: float) -> None:
        with self.changed:
            self.seconds[task.flops > 0] += seconds
            self.running.discard(task)
            for other in self.waiting:
                other.after.discard(task)
            self.changed.notify_all()


@dataclass(frozen=True)
class ConcurrentBackend(NumpyBackend):
    """The NumPy backend that queues the steps of a plan as tasks."""

    queue: TaskQueue

    def run_check(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        """Queue a check of A and B. Large products wait for the check; sums and small products do not."""
        task = PlanTask(reads, (), check)
        self.queue.add(task)
        self.queue.check = task

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        self.queue.add(PlanTask.multiplying(self.with_progress(host_product(leaf)), left, right, dest))

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, params: GemmParams) -> None:
        work = partial(self.with_progress(partial(triangle_product, params=params)), left, right, dest)
        self.queue.add(PlanTask((left, right), (dest,), work, flops=dest.size * left.shape[1]))

    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None:
        for top in range(0, len(dest), MIRROR_BAND_ROWS):
            rows, cols = slice(top, top + MIRROR_BAND_ROWS), slice(0, top + MIRROR_BAND_ROWS)
            read, written = source[rows, cols], [dest[rows, cols], *([dest[cols, rows]] if step.fill == "full" else [])]
            self.queue.add(PlanTask((read,), written, partial(mirror_band, step, source, dest, top)))

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        if isinstance(step, LineExponents | RescaledCopy):
            self.queue.add(PlanTask(reads, writes, partial(super().compute_sums, step, reads, writes)))
            return
        rows = max(x.shape[0] for x in writes)
        height = max(-(-rows // BANDS_PER_SUM), 1)
        for top in range(0, rows, height):
            ins, outs = ([x[top : top + height] for x in arrays] for arrays in (reads, writes))
            self.queue.add(PlanTask(ins, outs, partial(super().compute_sums, step, ins, outs)))


@contextmanager
def threads_per_product(count: int) -> Iterator[tuple[int, int]]:
    """Divide `count` threads among products: yield the number of concurrent products, and the threads of each."""
    with single_threaded_blas(count if count == CONCURRENT_PRODUCTS else 0) as single_threaded:
        yield (count, 1) if single_threaded else (1, count)


@contextmanager
def backend_for(count: int, flops: int, on_progress: ProgressCallback | None = None) -> Iterator[NumpyBackend]:
    """Yield the backend that runs a plan on `count` threads.

    The backend runs two products at a time on worker threads, where that is possible; else one product on all threads.
    """
    if flops < MIN_CONCURRENT_FLOPS or not on_worker_thread():
        yield NumpyBackend(Threads(count), on_progress=on_progress)
        return
    with threads_per_product(count) as (at_a_time, each):
        if at_a_time == 1:
            yield NumpyBackend(Threads(count), on_progress=on_progress)
            return
        with _running_queue(TaskQueue(flops), at_a_time, each, on_progress) as found:
            yield found


@contextmanager
def _running_queue(
    queue: TaskQueue, count: int, each: int, on_progress: ProgressCallback | None
) -> Iterator[NumpyBackend]:
    """Yield a backend over a queue that `count` workers run; wait for them at the end."""
    workers: list[WorkerShare] = start_on_workers(count, queue.work)
    if not workers:
        yield NumpyBackend(Threads(each), on_progress=on_progress)
        return
    try:
        yield ConcurrentBackend(Threads(each), queue, on_progress=on_progress)
    except BaseException as error:
        queue.fail(error)
        raise
    finally:
        queue.close()
        for worker in workers:  # none may write once the caller continues
            retry_until_done(worker.wait)
    if queue.error:
        raise queue.error


# ---- the times of sums and products
#
# This is the only timer of sums, for the tuner and the probe. Sums are timed within a plan: where two products run at a
# time, a sum has one thread and the cache contents that the product on the other thread leaves.


@dataclass
class StepTimes:
    """Seconds of the whole processor: a second of one of two threads counts half. `sums` has all steps but products."""

    sums: float = 0.0
    products: float = 0.0


def time_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    """Run the steps of a product of `flops` on `count` threads, as fmm.matmul would, and return their times."""
    return run_on_worker(partial(_times_of_steps, count, flops, steps))


def _times_of_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    times = StepTimes()
    with backend_for(count, flops) as backend:
        steps(backend if isinstance(backend, ConcurrentBackend) else _TimedBackend(backend.threads, times))
    if isinstance(backend, ConcurrentBackend):
        seconds = backend.queue.seconds
        return StepTimes(seconds[False] / CONCURRENT_PRODUCTS, seconds[True] / CONCURRENT_PRODUCTS)
    return times


@dataclass(frozen=True)
class _TimedBackend(NumpyBackend):
    """The NumPy backend that times its steps."""

    spent: StepTimes = field(default_factory=StepTimes)

    def run_check(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
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
