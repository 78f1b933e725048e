"""The NumPy backend: sums in panels that stay in cache, on as many threads as BLAS uses; products by numpy.matmul."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np

from fmm.kernels.cpu.compiled_sums import sum_tasks
from fmm.kernels.cpu.host_arrays import Array, matmul
from fmm.kernels.cpu.sum_schedule import CallSchedule, ElementwiseCall, schedule_calls
from fmm.kernels.cpu.thread_pool import Threads
from fmm.kernels.cpu.triangle_product import mirror_tasks, triangle_product
from fmm.kernels.plans.gemm_params import GemmParams
from fmm.kernels.plans.leaf import HostProduct, leaf_use
from fmm.kernels.plans.sums import LineExponents, Mirror, Rescaled, Sum

# What one panel of one array takes. The panels of a whole sum then fit in a third-level cache; smaller ones would fit
# in a second-level cache, but the threads would spend their time handing each other Python's lock (measured).
PANEL = 256 * 1024
# Panels are not cut narrower than this many elements: shorter inner loops would cost NumPy more than they save.
WIDTH = 1024

Window = tuple[slice, slice]
ProgressCallback = Callable[[int], object]  # hears how many multiply-adds are done


@dataclass(frozen=True)
class NumpyBackend:
    threads: Threads
    told: ProgressCallback | None = field(default=None, kw_only=True)

    def first(self, reads: Sequence[Array], check: Callable[[], object]) -> None:
        """Done before any product."""
        check()

    def multiply(self, leaf: str, left: Array, right: Array, dest: Array) -> None:
        """By the leaf's own function; leaves without one on the host are computed as NumPy does."""
        self.telling(host_product(leaf))(left, right, dest)

    def telling(self, multiply: HostProduct) -> HostProduct:
        """The same product, of which is told as soon as it is done."""
        told = self.told
        if told is None:
            return multiply

        def multiply_and_tell(left: Array, right: Array, dest: Array) -> None:
            multiply(left, right, dest)
            told(dest.size * left.shape[1])

        return multiply_and_tell

    def multiply_inside(self, leaf: str, left: Array, right: Array, dest: Array, memory: Array) -> None:
        """By the leaf's own function, which has scratch memory and shares out its work itself."""
        inside = leaf_use(leaf).leaf.host_product_with_scratch
        assert inside is not None
        self.telling(lambda x, y, z: inside(x, y, z, memory, self.threads))(left, right, dest)

    def multiply_batch(self, leaf: str, lefts: list[Array], rights: list[Array], dests: list[Array]) -> None:
        """One after the other: each uses all threads."""
        for left, right, dest in zip(lefts, rights, dests, strict=True):
            self.multiply(leaf, left, right, dest)

    def multiply_triangle(self, leaf: str, left: Array, right: Array, dest: Array, asked: GemmParams) -> None:
        """The lower half, whatever the leaf: BLAS has one way."""
        self.telling(partial(triangle_product, asked=asked))(left, right, dest)

    def mirror(self, step: Mirror, source: Array, dest: Array) -> None:
        self.threads.run(list(mirror_tasks(step, source, dest)))

    def sum(self, step: Sum, reads: list[Array], writes: list[Array]) -> None:
        """Run a program of sums; beyond the edge of a smaller read there are zeros."""
        if isinstance(step, LineExponents | Rescaled):
            rescale_arrays(step, reads, writes[0])
            return
        if abs(writes[0].strides[0]) < abs(writes[0].strides[1]):
            reads, writes = [x.T for x in reads], [x.T for x in writes]
        tasks: list[Callable[[], None]] = []
        for window in _uniform_regions(reads, writes):
            present = tuple(_reaches(x, window) for x in reads)
            wanted = tuple(_reaches(x, window) for x in writes)
            if not any(wanted):  # e.g. writes of 2 x 1 and 1 x 2 blocks: neither has the corner
                continue
            plan = schedule_calls(step.program, present, wanted, step.aliases)
            slots = [x if p else None for x, p in zip([*reads, *writes], present + wanted, strict=True)]
            compiled = sum_tasks(plan, slots, window)
            panels = _cache_panels(window, plan, slots)
            tasks += compiled or [partial(_sum_panel, plan, slots, panel) for panel in panels]
        self.threads.run(tasks)


def numpy_product(left: Array, right: Array, dest: Array) -> None:
    matmul(left, right, out=dest)


def host_product(leaf: str) -> HostProduct:
    return leaf_use(leaf).leaf.host_product or numpy_product


def _reaches(x: Array, window: Window) -> bool:
    return bool(window[0].start < x.shape[0] and window[1].start < x.shape[1])


def _uniform_regions(reads: Sequence[Array], writes: Sequence[Array]) -> Iterator[Window]:
    """Cut the writes into rectangles within which every array is either wholly there or wholly absent."""
    rows, cols = (max(w.shape[axis] for w in writes) for axis in (0, 1))
    edges = [
        sorted({0, *(min(x.shape[axis], side) for x in (*reads, *writes))}) for axis, side in ((0, rows), (1, cols))
    ]
    for (top, bottom), (left, right) in product(pairwise(edges[0]), pairwise(edges[1])):
        yield slice(top, bottom), slice(left, right)


def _cache_panels(window: Window, plan: CallSchedule, slots: Sequence[Array | None]) -> Iterator[Window]:
    """Panels of a region, wide rather than high."""
    room = PANEL // next(x.itemsize for x in slots if x is not None)
    rows, cols = (s.stop - s.start for s in window)
    width = cols if cols <= 2 * WIDTH else -(-cols // max(cols // WIDTH, 1))
    height = max(min(room // width, rows), 1)
    for top in range(window[0].start, window[0].stop, height):
        for left in range(window[1].start, window[1].stop, width):
            yield (
                slice(top, min(top + height, window[0].stop)),
                slice(left, min(left + width, window[1].stop)),
            )


def _sum_panel(plan: CallSchedule, slots: Sequence[Array | None], window: Window) -> None:
    views: list[Any] = [None if x is None else x[window] for x in slots]
    sample = next(v for v in views if v is not None)
    views += [np.empty(sample.shape, sample.dtype) for _ in range(plan.scratch)]
    for call in plan.calls:
        _OPERATIONS[call.op](views, call)


_OPERATIONS: dict[str, Callable[[list[Any], ElementwiseCall], Any]] = {
    "add": lambda v, c: np.add(v[c.first], v[c.second], out=v[c.dest]),
    "subtract": lambda v, c: np.subtract(v[c.first], v[c.second], out=v[c.dest]),
    # Not numpy.negative: NumPy 2.3 and 2.4 read float32 16 bytes, or float64 64 bytes, apart wrongly.
    "negate": lambda v, c: np.subtract(0, v[c.first], out=v[c.dest]),
    "copy": lambda v, c: np.copyto(v[c.dest], v[c.first]),
    "zero": lambda v, c: v[c.dest].fill(0),
    "scale": lambda v, c: np.multiply(v[c.first], c.factor, out=v[c.dest]),
}


ROWS = 256 * 1024  # numbers that are looked at or scaled at a time


def rescale_arrays(step: LineExponents | Rescaled, reads: Sequence[Array], dest: Array) -> None:
    """Do the step. Symbols, which have no size, have the exponent 0."""
    if isinstance(step, LineExponents):
        dest[0, :] = 0 if dest.dtype == object else _exponents(step, reads)
    elif dest.dtype == object:
        if dest is not reads[0]:
            dest[...] = reads[0]
    else:
        _rescale(step, reads, dest)


def _exponents(step: LineExponents, reads: Sequence[Array]) -> Array:
    source = reads[0] if step.axis == 0 else reads[0].T
    found = np.empty(len(source), np.int64)
    along = step.sign * _whole(reads[1]) if step.sign else None
    height = max(ROWS // source.shape[1], 1)
    for top in range(0, len(source), height):
        found[top : top + height] = _largest_exponents(source[top : top + height], along)
    return np.right_shift(found - _whole(reads[-1]), 1) if step.against else found


def _largest_exponents(rows: Array, along: Array | None) -> Array:
    with np.errstate(all="ignore"):
        size = np.maximum(abs(rows.real), abs(rows.imag)) if rows.dtype.kind == "c" else abs(rows)
        finite = np.isfinite(size).all(axis=1)
        exponents = np.frexp(np.where(np.isfinite(size), size, 0))[1].astype(np.int64)
    exponents += 0 if along is None else along
    exponents[size == 0] = LEAST
    largest = exponents.max(axis=1)
    return np.where(finite & (largest > LEAST), largest, 0)


LEAST = -(1 << 20)


def _rescale(step: Rescaled, reads: Sequence[Array], dest: Array) -> None:
    source, vectors = reads[0], [_whole(x) for x in reads[1:]]
    rows = step.row_sign * vectors.pop(0)[:, None] if step.row_sign else 0
    cols = step.col_sign * vectors.pop(0)[None, :] if step.col_sign else 0
    exponents = np.broadcast_to(rows + cols, source.shape)
    height = max(ROWS // source.shape[1], 1)
    with np.errstate(all="ignore"):
        for top in range(0, len(source), height):
            band = slice(top, top + height)
            by = exponents[band].astype(np.int32)
            if dest.dtype.kind == "c":
                np.ldexp(source[band].real, by, out=dest[band].real)
                np.ldexp(source[band].imag, by, out=dest[band].imag)
            else:
                np.ldexp(source[band], by, out=dest[band])


def _whole(vector: Array) -> Array:
    found: Array = vector[0].real.astype(np.int64)
    return found
