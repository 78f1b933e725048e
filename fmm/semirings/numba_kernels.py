"""Products over semirings and Floyd and Warshall's algorithm compiled by Numba, which need not be there.

The inner loops run along rows without gaps, so that the compiler uses the processor's vectors: a row of the result
takes four steps at a time (with more rows it would have to compare too many addresses before it may), and STEPS rows of
the right operand, ROW_BYTES long, stay in the first-level cache. Matrices come as flat memory and the distance of their
rows, since of a matrix that is a part of another one Numba does not know that its rows have no gaps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fmm.kernels.cpu.thread_pool import Threads
from fmm.semirings.host import Arguments, Array

ROWS, STEPS = 128, 16  # of a task; of the inner dimension at a time
ROW_BYTES = 1024  # of a task's row
TASK_SUMS, LEAST_ROWS = 1 << 26, 16  # of a task at most, so that it is soon done: between tasks an interrupt is heard


def can_compile() -> bool:
    """Is Numba there? (It is loaded when something is compiled.)"""
    return find_spec("numba") is not None


class Flat(NamedTuple):
    """A matrix, and how many numbers further its next row begins."""

    memory: Array
    leading: int


def flat(x: Array) -> Flat:
    """Of a matrix whose rows have no gaps."""
    rows, cols = x.shape
    if rows * cols == 0 or x.strides[0] < cols * x.itemsize:
        return Flat(np.ascontiguousarray(x).ravel(), cols)
    leading = x.strides[0] // x.itemsize
    return Flat(as_strided(x, ((rows - 1) * leading + cols,), (x.itemsize,)), leading)


@dataclass(frozen=True)
class CompiledSemiring:
    """dest = the best of old and of all sums of left and right; `none` is what no sum is worse than."""

    greatest: bool
    none: Any
    threads: int

    def product(
        self, left: Array, right: Array, old: Array | None, dest: Array, noted: Arguments | None = None
    ) -> None:
        kernels = _kernels(dest.dtype.name, self.greatest)
        if old is None:
            dest[...] = self.none
        elif old is not dest:
            dest[...] = old
        steps, wide = left.shape[1], ROW_BYTES // dest.itemsize
        given: tuple[Any, ...] = (*flat(left), *flat(right), *flat(dest), steps)
        kernel: Callable[..., None] = kernels.product
        step = np.full(dest.shape, -1, np.int32) if noted else dest
        if noted:
            given, kernel = (*given, *flat(step)), kernels.noted_product
        high = min(max(TASK_SUMS // (wide * max(steps, 1)), LEAST_ROWS), ROWS)
        tasks = [
            partial(kernel, *given, i, min(i + high, len(dest)), j, min(j + wide, dest.shape[1]))
            for i in range(0, len(dest), high)
            for j in range(0, dest.shape[1], wide)
        ]
        Threads(self.threads).run_interruptibly(tasks)
        if noted:
            noted.settle(step)

    def close(self, d: Array, nodes: Array | None = None) -> None:
        kernels, count = _kernels(d.dtype.name, self.greatest), len(d)
        together = max(TASK_SUMS // max(count * count, 1), 1)
        for first in range(0, count, together):  # nodes, one after the other
            last = min(first + together, count)
            if nodes is None:
                kernels.close(*flat(d), count, first, last)
            else:
                kernels.noted_close(*flat(d), *flat(nodes), count, first, last)


class _Kernels(NamedTuple):
    """What Numba makes for one type, at the first call of each."""

    product: Any
    noted_product: Any
    close: Any
    noted_close: Any


@lru_cache(maxsize=16)
def _kernels(dtype: str, greatest: bool) -> _Kernels:
    import numba

    number = getattr(numba, dtype)
    jit = numba.njit(nogil=True, error_model="numpy")
    better, best = jit(_greater if greatest else _less), jit(_greatest if greatest else _least)
    made = _product_of(best, number), _noted_product_of(better, number), _close_of(best, number)
    return _Kernels(*(jit(x) for x in (*made, _noted_close_of(better, number))))


# ---- what Numba compiles


def _less(x: Any, y: Any) -> Any:
    return x < y


def _greater(x: Any, y: Any) -> Any:
    return x > y


def _least(x: Any, y: Any) -> Any:
    """y if x is NaN."""
    return x if x < y else y


def _greatest(x: Any, y: Any) -> Any:
    return x if x > y else y


def _product_of(best: Any, number: Any) -> Any:
    def product(
        a: Any, lda: int, b: Any, ldb: int, c: Any, ldc: int, steps: int, top: int, end: int, left: int, right: int
    ) -> None:
        """All steps for these rows and columns of c."""
        count = right - left
        for k in range(0, steps, STEPS):
            last = min(k + STEPS, steps)
            for i in range(top, end):
                x = c[i * ldc + left : i * ldc + right]
                step = k
                while step + 3 < last:
                    at = step * ldb + left
                    b0, b1 = b[at : at + count], b[at + ldb : at + ldb + count]
                    b2, b3 = b[at + 2 * ldb : at + 2 * ldb + count], b[at + 3 * ldb : at + 3 * ldb + count]
                    at = i * lda + step
                    a0, a1, a2, a3 = a[at], a[at + 1], a[at + 2], a[at + 3]
                    for n in range(count):
                        found = best(number(a0 + b0[n]), x[n])
                        found = best(number(a1 + b1[n]), found)
                        found = best(number(a2 + b2[n]), found)
                        x[n] = best(number(a3 + b3[n]), found)
                    step += 4
                while step < last:
                    at, a0 = step * ldb + left, a[i * lda + step]
                    b0 = b[at : at + count]
                    for n in range(count):
                        x[n] = best(number(a0 + b0[n]), x[n])
                    step += 1

    return product


def _noted_product_of(better: Any, number: Any) -> Any:
    def product(
        a: Any,
        lda: int,
        b: Any,
        ldb: int,
        c: Any,
        ldc: int,
        steps: int,
        arg: Any,
        ldarg: int,
        top: int,
        end: int,
        left: int,
        right: int,
    ) -> None:
        """The same; `arg` becomes the step where a sum was better than what was there."""
        count = right - left
        for k in range(0, steps, STEPS):
            for i in range(top, end):
                x, found = c[i * ldc + left : i * ldc + right], arg[i * ldarg + left : i * ldarg + right]
                for step in range(k, min(k + STEPS, steps)):
                    at, f = step * ldb + left, a[i * lda + step]
                    line = b[at : at + count]
                    for n in range(count):
                        s = number(f + line[n])
                        won = better(s, x[n])
                        x[n] = s if won else x[n]
                        found[n] = np.int32(step) if won else found[n]

    return product


def _close_of(best: Any, number: Any) -> Any:
    def close(d: Any, leading: int, count: int, first: int, last: int) -> None:
        for k in range(first, last):
            line = d[k * leading : k * leading + count].copy()
            for i in range(count):
                row, f = d[i * leading : i * leading + count], d[i * leading + k]
                for j in range(count):
                    row[j] = best(number(f + line[j]), row[j])

    return close


def _noted_close_of(better: Any, number: Any) -> Any:
    def close(d: Any, leading: int, nodes: Any, ldn: int, count: int, first: int, last: int) -> None:
        for k in range(first, last):
            line, past = d[k * leading : k * leading + count].copy(), nodes[k * ldn : k * ldn + count].copy()
            for i in range(count):
                row, found = d[i * leading : i * leading + count], nodes[i * ldn : i * ldn + count]
                f = d[i * leading + k]
                for j in range(count):
                    s = number(f + line[j])
                    won = better(s, row[j])
                    row[j] = s if won else row[j]
                    found[j] = past[j] if won else found[j]

    return close
