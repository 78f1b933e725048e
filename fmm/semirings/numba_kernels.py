"""Semiring products and the Floyd-Warshall algorithm, compiled by Numba if Numba is installed.

The inner loops run along contiguous rows, so that the compiler uses vector instructions. A row of the result is updated
for four indices k at a time. With more than four indices k at a time, the compiled code would have to test too many
pairs of addresses for overlap. INNER_STEPS rows of the right operand, with TASK_ROW_BYTES bytes each, stay in the
first-level cache. Matrices are passed as one-dimensional arrays with a leading dimension, since Numba cannot assume
that the rows of a submatrix are contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib.util import find_spec
from typing import Any, NamedTuple

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.semirings.host import Array, BestIndexRecord

# TASK_ROWS is the largest number of rows of the result in a task. INNER_STEPS is the number of rows of the right
# operand that stay in the first-level cache.
TASK_ROWS, INNER_STEPS = 128, 16
TASK_ROW_BYTES = 1024  # bytes of each row of a task's block of the result
# TASK_SUMS is the largest number of sums in a task; it is limited, since Ctrl-C is handled only between tasks.
# MIN_TASK_ROWS is the smallest number of rows in a task.
TASK_SUMS, MIN_TASK_ROWS = 1 << 26, 16


def is_numba_installed() -> bool:
    """Return True if Numba is installed; do not import Numba."""
    return find_spec("numba") is not None


@dataclass(frozen=True)
class NumbaSemiring:
    """Numba's semiring operations: dest[i, j] = best of old[i, j] and all sums left[i, k] + right[k, j]."""

    maximum: bool
    missing: Any
    threads: int

    def multiply_and_add(
        self, left: Array, right: Array, old: Array | None, dest: Array, arguments: BestIndexRecord | None = None
    ) -> None:
        kernels = _compiled_functions(dest.dtype.name, self.maximum)
        if old is None:
            dest[...] = self.missing
        elif old is not dest:
            dest[...] = old
        steps, wide = left.shape[1], TASK_ROW_BYTES // dest.itemsize
        operands: tuple[Any, ...] = (*_as_flat_matrix(left), *_as_flat_matrix(right), *_as_flat_matrix(dest), steps)
        kernel: Callable[..., None] = kernels.product
        step = np.full(dest.shape, -1, np.int32) if arguments else dest
        if arguments:
            operands, kernel = (*operands, *_as_flat_matrix(step)), kernels.product_with_arguments
        high = min(max(TASK_SUMS // (wide * max(steps, 1)), MIN_TASK_ROWS), TASK_ROWS)
        tasks = [
            partial(kernel, *operands, i, min(i + high, len(dest)), j, min(j + wide, dest.shape[1]))
            for i in range(0, len(dest), high)
            for j in range(0, dest.shape[1], wide)
        ]
        ThreadGroup(self.threads).run_tasks_interruptibly(tasks)
        if arguments:
            arguments.write_best_indices(step)

    def close_tile(self, d: Array, predecessors: Array | None = None) -> None:
        """Replace d by its closure with the Floyd-Warshall algorithm."""
        kernels, count = _compiled_functions(d.dtype.name, self.maximum), len(d)
        together = max(TASK_SUMS // max(count * count, 1), 1)
        # Ctrl-C is handled only between calls of the compiled function, so each call handles a limited number of nodes
        for first in range(0, count, together):
            last = min(first + together, count)
            if predecessors is None:
                kernels.close_tile(*_as_flat_matrix(d), count, first, last)
            else:
                kernels.close_with_predecessors(*_as_flat_matrix(d), *_as_flat_matrix(predecessors), count, first, last)


class _FlatMatrix(NamedTuple):
    """The memory of a matrix as a one-dimensional array, and the leading dimension."""

    memory: Array
    leading: int


def _as_flat_matrix(x: Array) -> _FlatMatrix:
    """Return the memory of a matrix as a one-dimensional array; copy the matrix if its rows are not contiguous."""
    rows, cols = x.shape
    if rows * cols == 0 or x.strides[0] < cols * x.itemsize:
        return _FlatMatrix(np.ascontiguousarray(x).ravel(), cols)
    leading = x.strides[0] // x.itemsize
    return _FlatMatrix(as_strided(x, ((rows - 1) * leading + cols,), (x.itemsize,)), leading)


class _CompiledFunctions(NamedTuple):
    """The compiled functions for one number type; Numba compiles a function when it is first called."""

    product: Any
    product_with_arguments: Any
    close_tile: Any
    close_with_predecessors: Any


@lru_cache(maxsize=16)
def _compiled_functions(dtype: str, maximum: bool) -> _CompiledFunctions:
    import numba

    number = getattr(numba, dtype)
    jit = numba.njit(nogil=True, error_model="numpy")
    better, best = jit(_is_greater if maximum else _is_less), jit(_larger_number if maximum else _smaller_number)
    product, close_tile = _make_product_function(best, number), _make_close_tile_function(best, number)
    product_with_arguments = _make_product_with_arguments(better, number)
    close_with_predecessors = _make_close_with_predecessors(better, number)
    return _CompiledFunctions(jit(product), jit(product_with_arguments), jit(close_tile), jit(close_with_predecessors))


# ---- the functions that Numba compiles


def _is_less(x: Any, y: Any) -> Any:
    return x < y


def _is_greater(x: Any, y: Any) -> Any:
    return x > y


def _smaller_number(x: Any, y: Any) -> Any:
    """Return the smaller of x and y; return y if x is NaN."""
    return x if x < y else y


def _larger_number(x: Any, y: Any) -> Any:
    return x if x > y else y


def _make_product_function(best: Any, number: Any) -> Any:
    def update_block_with_sums(
        a: Any, lda: int, b: Any, ldb: int, c: Any, ldc: int, steps: int, top: int, end: int, left: int, right: int
    ) -> None:
        """Set c[i, j] to the best of c[i, j] and all a[i, k] + b[k, j]; i in top:end, j in left:right."""
        count = right - left
        for k in range(0, steps, INNER_STEPS):
            last = min(k + INNER_STEPS, steps)
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

    return update_block_with_sums


def _make_product_with_arguments(better: Any, number: Any) -> Any:
    def update_block_with_sums(
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
        """Update c with the sums of all indices k.

        Where a sum is better than the entry of c, the entry of `arg` becomes the index k of the sum.
        """
        count = right - left
        for k in range(0, steps, INNER_STEPS):
            for i in range(top, end):
                x, found = c[i * ldc + left : i * ldc + right], arg[i * ldarg + left : i * ldarg + right]
                for step in range(k, min(k + INNER_STEPS, steps)):
                    at, f = step * ldb + left, a[i * lda + step]
                    line = b[at : at + count]
                    for n in range(count):
                        s = number(f + line[n])
                        won = better(s, x[n])
                        x[n] = s if won else x[n]
                        found[n] = np.int32(step) if won else found[n]

    return update_block_with_sums


def _make_close_tile_function(best: Any, number: Any) -> Any:
    def relax_paths_through_nodes(d: Any, leading: int, count: int, first: int, last: int) -> None:
        for k in range(first, last):
            line = d[k * leading : k * leading + count].copy()
            for i in range(count):
                row, f = d[i * leading : i * leading + count], d[i * leading + k]
                for j in range(count):
                    row[j] = best(number(f + line[j]), row[j])

    return relax_paths_through_nodes


def _make_close_with_predecessors(better: Any, number: Any) -> Any:
    def relax_paths_through_nodes(
        d: Any, leading: int, predecessors: Any, ldn: int, count: int, first: int, last: int
    ) -> None:
        for k in range(first, last):
            line, past = d[k * leading : k * leading + count].copy(), predecessors[k * ldn : k * ldn + count].copy()
            for i in range(count):
                row, found = d[i * leading : i * leading + count], predecessors[i * ldn : i * ldn + count]
                f = d[i * leading + k]
                for j in range(count):
                    s = number(f + line[j])
                    won = better(s, row[j])
                    row[j] = s if won else row[j]
                    found[j] = past[j] if won else found[j]

    return relax_paths_through_nodes
