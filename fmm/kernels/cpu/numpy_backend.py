"""Run a plan's steps with NumPy: products by numpy.matmul, and sums in panels that fit in a cache.

Sums use as many threads as BLAS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from fmm.kernels.cpu.compiled_sums import compiled_sum_tasks
from fmm.kernels.cpu.host_arrays import Array, matmul
from fmm.kernels.cpu.sum_schedule import ElementwiseCall, ElementwiseSchedule, schedule_elementwise_calls
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cpu.triangle_product import mirror_tasks, triangle_product
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import HostProductFunction, parse_leaf
from fmm.kernels.plans.sums import Mirror, RescaledCopy, RowOrColumnExponents, Sum

# Bytes of a panel, the part of an array that is processed at once. The panels of all arrays of a sum fit together in a
# third-level cache. Smaller panels would fit in a second-level cache, but the threads then spend their time waiting for
# the GIL (measured).
PANEL_BYTES = 256 * 1024
# Smallest number of columns of a panel, because shorter inner loops are slower in NumPy.
MIN_PANEL_COLUMNS = 1024

Window = tuple[slice, slice]
ProgressCallback = Callable[[int], object]  # called after each product with its number of multiply-adds


@dataclass(frozen=True)
class NumpyBackend:
    """A backend that runs the steps of a plan one after the other, each step on all threads."""

    threads: ThreadGroup
    on_progress: ProgressCallback | None = field(default=None, kw_only=True)

    def run_overflow_check(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        """Check A and B for overflow by calling `check` at once, before any product."""
        check()

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        """Multiply with the leaf's function for the CPU, or with numpy.matmul if the leaf has no such function."""
        self.with_progress_report(host_product(leaf))(left, right, dest)

    def with_progress_report(self, multiply: HostProductFunction) -> HostProductFunction:
        """Return a function that calls `multiply` and then reports the number of multiply-adds to `on_progress`."""
        on_progress = self.on_progress
        if on_progress is None:
            return multiply

        def multiply_and_report(left: Array, right: Array, dest: Array) -> None:
            multiply(left, right, dest)
            on_progress(dest.size * left.shape[1])

        return multiply_and_report

    def multiply_with_scratch(self, leaf: str, left: Array, right: Array, dest: Array, memory: Array) -> None:
        """Multiply with the leaf's host function that needs scratch memory and starts its own threads."""
        multiply = parse_leaf(leaf).leaf.host_product_with_scratch
        assert multiply is not None
        self.with_progress_report(lambda x, y, z: multiply(x, y, z, memory, self.threads))(left, right, dest)

    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None:
        """Compute the products one after the other, each product on all threads."""
        for left, right, dest in zip(lefts, rights, dests, strict=True):
            self.multiply(leaf, left, right, dest)

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, params: GemmParams) -> None:
        """Compute the lower triangle of a product with BLAS; the name of the leaf has no effect."""
        self.with_progress_report(partial(triangle_product, params=params))(left, right, dest)

    def mirror_triangle(self, step: Mirror, source: Array, dest: Array) -> None:
        self.threads.run_tasks(list(mirror_tasks(step, source, dest)))

    def compute_sums(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        """Compute a step's sums. Arrays in `reads` that are smaller than the results count as padded with zeros."""
        if isinstance(step, RowOrColumnExponents | RescaledCopy):
            rescale_arrays(step, reads, writes[0])
            return
        if abs(writes[0].strides[0]) < abs(writes[0].strides[1]):
            reads, writes = [x.T for x in reads], [x.T for x in writes]
        tasks: list[Callable[[], None]] = []
        for window in _regions_with_equal_coverage(reads, writes):
            present = tuple(_array_covers_window(x, window) for x in reads)
            wanted = tuple(_array_covers_window(x, window) for x in writes)
            if not any(wanted):  # the step writes nothing here: its results cover other rectangles
                continue
            schedule = schedule_elementwise_calls(step.program, present, wanted, step.in_place_pairs)
            slots = [x if p else None for x, p in zip([*reads, *writes], present + wanted, strict=True)]
            compiled = compiled_sum_tasks(schedule, slots, window)
            panels = _cache_sized_panels(window, slots)
            tasks += compiled or [partial(_run_sums_on_panel, schedule, slots, panel) for panel in panels]
        self.threads.run_tasks(tasks)


def numpy_product(left: Array, right: Array, dest: Array) -> None:
    matmul(left, right, out=dest)


def host_product(leaf: str) -> HostProductFunction:
    return parse_leaf(leaf).leaf.host_product or numpy_product


def _array_covers_window(x: Array, window: Window) -> bool:
    return bool(window[0].start < x.shape[0] and window[1].start < x.shape[1])


def _regions_with_equal_coverage(reads: Sequence[Array], writes: Sequence[Array]) -> Iterator[Window]:
    """Yield rectangles in which each array has either all elements or none, because arrays can differ in size."""
    rows, cols = (max(w.shape[axis] for w in writes) for axis in (0, 1))
    edges = [
        sorted({0, *(min(x.shape[axis], side) for x in (*reads, *writes))}) for axis, side in ((0, rows), (1, cols))
    ]
    for (top, bottom), (left, right) in product(pairwise(edges[0]), pairwise(edges[1])):
        yield slice(top, bottom), slice(left, right)


def _cache_sized_panels(window: Window, slots: Sequence[Array | None]) -> Iterator[Window]:
    """Yield parts of a rectangle, with at most about PANEL_BYTES bytes.

    The parts are wide rather than tall, because NumPy's inner loop runs along a row.
    """
    elements = PANEL_BYTES // next(x.itemsize for x in slots if x is not None)
    rows, cols = (s.stop - s.start for s in window)
    width = cols if cols <= 2 * MIN_PANEL_COLUMNS else -(-cols // max(cols // MIN_PANEL_COLUMNS, 1))
    height = max(min(elements // width, rows), 1)
    for top in range(window[0].start, window[0].stop, height):
        for left in range(window[1].start, window[1].stop, width):
            yield (
                slice(top, min(top + height, window[0].stop)),
                slice(left, min(left + width, window[1].stop)),
            )


def _run_sums_on_panel(schedule: ElementwiseSchedule, slots: Sequence[Array | None], window: Window) -> None:
    """Run a schedule's calls on one panel of the arrays."""
    views: list[Any] = [None if x is None else x[window] for x in slots]
    sample = next(v for v in views if v is not None)
    views += [np.empty(sample.shape, sample.dtype) for _ in range(schedule.scratch)]
    for call in schedule.calls:
        _NUMPY_OPERATIONS[call.op](views, call)


_NUMPY_OPERATIONS: dict[str, Callable[[list[Any], ElementwiseCall], Any]] = {
    "add": lambda v, c: np.add(v[c.first], v[c.second], out=v[c.dest]),
    "subtract": lambda v, c: np.subtract(v[c.first], v[c.second], out=v[c.dest]),
    # numpy.negative is not used: NumPy 2.3 and 2.4 read wrong elements of float32 arrays with strides of 16 bytes, and
    # of float64 arrays with strides of 64 bytes.
    "negate": lambda v, c: np.subtract(0, v[c.first], out=v[c.dest]),
    "copy": lambda v, c: np.copyto(v[c.dest], v[c.first]),
    "zero": lambda v, c: v[c.dest].fill(0),
    "scale": lambda v, c: np.multiply(v[c.first], c.factor, out=v[c.dest]),
}


# ---- scaling by powers of two

MAX_RESCALED_ELEMENTS = 256 * 1024  # largest number of elements that are read or scaled at once
ZERO_EXPONENT = -(1 << 20)  # exponent of the number zero, smaller than all others
# Exponent of a row or column of zeros. A fast algorithm adds rounding errors to the zeros of its result; scaled back by
# 2^-8192 they are zeros again, and numbers that are multiplied only by zeros take no part in the sums.
ZERO_LINE_EXPONENT = -8192


def rescale_arrays(step: RowOrColumnExponents | RescaledCopy, reads: Sequence[Array], dest: Array) -> None:
    """Compute an exponent for each row or each column, or scale rows and columns by 2^exponent.

    In symbolic proofs the arrays hold symbols, which have no magnitude, so all exponents are 0.
    """
    if isinstance(step, RowOrColumnExponents):
        dest[0, :] = 0 if dest.dtype == object else _exponents_of_lines(step, reads)
    elif dest.dtype == object:
        if dest is not reads[0]:
            dest[...] = reads[0]
    else:
        _rescale_matrix(step, reads, dest)


def _exponents_of_lines(step: RowOrColumnExponents, reads: Sequence[Array]) -> Array:
    source = reads[0] if step.axis == 0 else reads[0].T
    found = np.empty(len(source), np.int64)
    along = step.sign * _as_integers(reads[1]) if step.sign else None
    height = max(MAX_RESCALED_ELEMENTS // source.shape[1], 1)
    for top in range(0, len(source), height):
        found[top : top + height] = _largest_row_exponents(source[top : top + height], along)
    return np.right_shift(found - _as_integers(reads[-1]), 1) if step.against else found


def _largest_row_exponents(rows: Array, along: Array | None) -> Array:
    with np.errstate(all="ignore"):
        size = np.maximum(abs(rows.real), abs(rows.imag)) if rows.dtype.kind == "c" else abs(rows)
        finite = np.isfinite(size).all(axis=1)
        exponents = np.frexp(np.where(np.isfinite(size), size, 0))[1].astype(np.int64)
    exponents += 0 if along is None else along
    exponents[size == 0] = ZERO_EXPONENT
    largest = exponents.max(axis=1)
    return np.where(finite, np.maximum(largest, ZERO_LINE_EXPONENT), 0)


def _rescale_matrix(step: RescaledCopy, reads: Sequence[Array], dest: Array) -> None:
    source, vectors = reads[0], [_as_integers(x) for x in reads[1:]]
    rows = step.row_sign * vectors.pop(0)[:, None] if step.row_sign else 0
    cols = step.col_sign * vectors.pop(0)[None, :] if step.col_sign else 0
    exponents = np.broadcast_to(rows + cols, source.shape)
    height = max(MAX_RESCALED_ELEMENTS // source.shape[1], 1)
    with np.errstate(all="ignore"):
        for top in range(0, len(source), height):
            band = slice(top, top + height)
            by = exponents[band].astype(np.int32)
            if dest.dtype.kind == "c":
                np.ldexp(source[band].real, by, out=dest[band].real)
                np.ldexp(source[band].imag, by, out=dest[band].imag)
            else:
                np.ldexp(source[band], by, out=dest[band])


def _as_integers(vector: Array) -> Array:
    found: Array = vector[0].real.astype(np.int64)
    return found
