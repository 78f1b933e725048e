"""Two products at a time: a plan's steps as tasks, each begun as soon as what it needs is there.

Each product runs on one thread, so that a sum, which waits for memory, runs beside a product, which does not, and no
thread of BLAS's spins while the sums run. The tasks are found while the executor walks the plan in its usual order;
what must wait for what is read off the memory that they touch, so that temporaries are reused as ever.

The plan is walked, as the tasks are worked off, in threads of ours, which no signal interrupts: a Condition is entered
by Python code, and what a signal's handler raises there would leave its lock shut for ever.
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
from fmm.kernels.cpu.thread_pool import Share, Threads, start_on_workers
from fmm.kernels.cpu.triangle_product import BAND, mirror_band, triangle_product
from fmm.kernels.cpu.worker_threads import on_worker_thread, retry_until_done, run_on_worker
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import HostProduct
from fmm.kernels.plans.sums import LineExponents, Mirror, Rescaled, Sum

CONCURRENT_PRODUCTS = 2  # measured with two; with more, a plan would have too few products to share
MIN_CONCURRENT_FLOPS = 2 * 1024**3  # flops below which a whole product is not worth the hand-overs
WINDOW = 32  # tasks looked ahead: the products of a level, and the sums of the next that can begin beside them
SMALL_SHARE = 32  # products below this part of the whole begin before the check is done: little is lost should it fail
BANDS = 4  # of rows, that a sum is cut into, so that it can begin where the rows that it needs are there
LEAST_ROWS = 384  # a product is not cut into fewer rows: the other operand is packed for each part ...
ROW_UNIT = 192  # ... nor elsewhere than between whole tiles of any BLAS's: the last digits would depend on the cut


@dataclass(eq=False)
class PlanTask:
    """Work on arrays, and the unfinished tasks that it must wait for."""

    reads: Sequence[Array]
    writes: Sequence[Array]
    work: Callable[[], object]
    flops: int = 0  # of a product; a sum has none that count
    after: set[PlanTask] = field(default_factory=set)
    multiply: HostProduct | None = None  # of a product that may be cut: by what

    def __post_init__(self) -> None:
        self.read, self.written = [_byte_span(x) for x in self.reads], [_byte_span(x) for x in self.writes]

    @staticmethod
    def multiplying(multiply: HostProduct, left: Array, right: Array, dest: Array) -> PlanTask:
        work = partial(multiply, left, right, dest)
        return PlanTask((left, right), (dest,), work, flops=2 * dest.size * left.shape[1], multiply=multiply)

    def must_follow(self, other: PlanTask) -> bool:
        return (
            _spans_meet(self.written, other.written)
            or _spans_meet(self.written, other.read)
            or _spans_meet(self.read, other.written)
        )

    def halves(self) -> list[PlanTask]:
        """Two products of about half the rows each; none if those would be too few, or nobody knows how to cut it."""
        if self.multiply is None:
            return []
        (left, right), (dest,) = self.reads, self.writes
        middle = round(len(left) / 2 / ROW_UNIT) * ROW_UNIT
        parts = (slice(0, middle), slice(middle, None)) if min(middle, len(left) - middle) >= LEAST_ROWS else ()
        return [PlanTask.multiplying(self.multiply, left[part], right, dest[part]) for part in parts]


Span = tuple[int, int, Array]


def _byte_span(x: Array) -> Span:
    """The array's first byte and the one behind its last, and the array. Few pairs of arrays overlap in these, and only
    of those is it asked whether they share elements."""
    low = high = x.__array_interface__["data"][0]
    if not x.size:
        return low, low, x
    for length, stride in zip(x.shape, x.strides, strict=True):
        if stride < 0:
            low += (length - 1) * stride
        else:
            high += (length - 1) * stride
    return low, high + x.itemsize, x


def _spans_meet(some: Sequence[Span], others: Sequence[Span]) -> bool:
    for low, high, x in some:
        for start, end, y in others:
            if low < end and start < high and share_elements(x, y):
                return True
    return False


def share_elements(x: Array, y: Array) -> bool:
    """Have two arrays an element in common? In doubt, yes: the question can be hard."""
    try:
        return np.shares_memory(x, y, max_work=10_000)  # type: ignore[arg-type]  # NumPy's stubs know 0 and -1
    except RuntimeError:  # numpy.exceptions.TooHardError
        return True


class TaskQueue:
    """Tasks that wait or run, in the order in which they were added."""

    def __init__(self, flops: int = 0) -> None:
        self.flops = flops  # of the whole product
        self.changed = threading.Condition()
        self.waiting: list[PlanTask] = []
        self.running: set[PlanTask] = set()
        self.gate: PlanTask | None = None  # large products wait for it
        self.closed = False
        self.error: BaseException | None = None
        self.seconds = {False: 0.0, True: 0.0}  # of the workers: on sums, on products

    def add(self, task: PlanTask) -> None:
        """Append a task, as soon as there is room in the window."""
        with self.changed:
            self.changed.wait_for(lambda: self.error or len(self.waiting) + len(self.running) < WINDOW)
            if self.error:
                raise self.error
            before = [*self.running, *self.waiting]
            task.after = {other for other in before if task.must_follow(other)}
            if self.gate in before and task.flops * SMALL_SHARE > self.flops:
                task.after.add(self.gate)
            self.waiting.append(task)
            self.changed.notify()

    def close(self) -> None:
        """No more tasks will come: the workers end when all are done."""
        self.closed = True
        retry_until_done(self._wake_all)

    def fail(self, error: BaseException) -> None:
        """No task is begun any more; whoever adds one, or waits for the end, gets the first error."""
        self.error = self.error or error
        retry_until_done(self._wake_all)

    def _wake_all(self) -> None:
        with self.changed:
            self.changed.notify_all()

    def work(self) -> None:
        """What each worker does until the end."""
        try:
            while (task := self._next()) is not None:
                start = time.thread_time()  # what it waits for its processor is no work of the task's
                task.work()
                self._finish(task, time.thread_time() - start)
        except BaseException as error:
            self.fail(error)

    def _next(self) -> PlanTask | None:
        with self.changed:
            while not self.error and not (self.closed and not self.waiting):
                if (task := self._ready()) is not None:
                    self.running.add(task)
                    self.changed.notify()  # a half of it may be left for another worker
                    return task
                self.changed.wait()
            return None

    def _ready(self) -> PlanTask | None:
        """The first task that need not wait; a product if another worker is summing already, for sums share the memory
        and Python's lock. What is alone is shared with the next worker who asks."""
        ready = [task for task in self.waiting if not task.after]
        if not ready:
            return None
        summing = any(not task.flops for task in self.running)
        task = next((task for task in ready if task.flops), ready[0]) if summing else ready[0]
        parts = task.halves() if task.flops and len(ready) == 1 else []
        if parts:
            self._replace(task, parts)
            task = parts[0]
        self.waiting.remove(task)
        return task

    def _replace(self, task: PlanTask, parts: Sequence[PlanTask]) -> None:
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
    """The NumPy backend whose steps become tasks of a flow."""

    flow: TaskQueue

    def first(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        """Done before the first large product, beside the sums."""
        gate = PlanTask(reads, (), check)
        self.flow.add(gate)
        self.flow.gate = gate

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        self.flow.add(PlanTask.multiplying(self.telling(host_product(leaf)), left, right, dest))

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, asked: GemmParams) -> None:
        work = partial(self.telling(partial(triangle_product, asked=asked)), left, right, dest)
        self.flow.add(PlanTask((left, right), (dest,), work, flops=dest.size * left.shape[1]))

    def mirror(self, step: Mirror, source: Array, dest: Array) -> None:
        for top in range(0, len(dest), BAND):
            rows, cols = slice(top, top + BAND), slice(0, top + BAND)
            read, written = source[rows, cols], [dest[rows, cols], *([dest[cols, rows]] if step.fill == "full" else [])]
            self.flow.add(PlanTask((read,), written, partial(mirror_band, step, source, dest, top)))

    def sum(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        if isinstance(step, LineExponents | Rescaled):
            self.flow.add(PlanTask(reads, writes, partial(super().sum, step, reads, writes)))
            return
        rows = max(x.shape[0] for x in writes)
        height = max(-(-rows // BANDS), 1)
        for top in range(0, rows, height):
            ins, outs = ([x[top : top + height] for x in arrays] for arrays in (reads, writes))
            self.flow.add(PlanTask(ins, outs, partial(super().sum, step, ins, outs)))


@contextmanager
def threads_per_product(count: int) -> Iterator[tuple[int, int]]:
    """How `count` threads are shared meanwhile: how many products run at a time, and threads for each."""
    with single_threaded_blas(count if count == CONCURRENT_PRODUCTS else 0) as alone:
        yield (count, 1) if alone else (1, count)


@contextmanager
def backend_for(count: int, flops: int, told: ProgressCallback | None = None) -> Iterator[NumpyBackend]:
    """What runs a plan on `count` threads: two products at a time where that is possible, in a thread of ours, else one
    on all threads."""
    if flops < MIN_CONCURRENT_FLOPS or not on_worker_thread():
        yield NumpyBackend(Threads(count), told=told)
        return
    with threads_per_product(count) as (at_a_time, each):
        if at_a_time == 1:
            yield NumpyBackend(Threads(count), told=told)
            return
        with _running_queue(TaskQueue(flops), at_a_time, each, told) as found:
            yield found


@contextmanager
def _running_queue(flow: TaskQueue, count: int, each: int, told: ProgressCallback | None) -> Iterator[NumpyBackend]:
    workers: list[Share] = start_on_workers(count, flow.work)
    if not workers:
        yield NumpyBackend(Threads(each), told=told)
        return
    try:
        yield ConcurrentBackend(Threads(each), flow, told=told)
    except BaseException as error:
        flow.fail(error)
        raise
    finally:
        flow.close()
        for worker in workers:  # none may write any more when the caller goes on
            retry_until_done(worker.wait)
    if flow.error:
        raise flow.error


@dataclass
class StepTimes:
    """Seconds of the whole processor: what one of two threads does takes half of it. Sums: all that is no product."""

    sums: float = 0.0
    products: float = 0.0


def time_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    """Run steps of a product of so many flops on `count` threads, as fmm.matmul would, and say what they took."""
    return run_on_worker(partial(_times_of_steps, count, flops, steps))


def _times_of_steps(count: int, flops: int, steps: Callable[[NumpyBackend], object]) -> StepTimes:
    found = StepTimes()
    with backend_for(count, flops) as usual:
        steps(usual if isinstance(usual, ConcurrentBackend) else _Timed(usual.threads, found))
    if isinstance(usual, ConcurrentBackend):
        seconds = usual.flow.seconds
        return StepTimes(seconds[False] / CONCURRENT_PRODUCTS, seconds[True] / CONCURRENT_PRODUCTS)
    return found


@dataclass(frozen=True)
class _Timed(NumpyBackend):
    """One step at a time, each on all threads."""

    spent: StepTimes = field(default_factory=StepTimes)

    def first(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        start = time.perf_counter()
        check()
        self.spent.sums += time.perf_counter() - start

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        start = time.perf_counter()
        super().multiply(leaf, left, right, dest)
        self.spent.products += time.perf_counter() - start

    def sum(self, step: Sum, reads: Sequence[Array], writes: Sequence[Array]) -> None:
        start = time.perf_counter()
        super().sum(step, list(reads), list(writes))
        self.spent.sums += time.perf_counter() - start
