"""Compute exact integer products on the CPU: BLAS multiplies planes of digits; the results are added modulo 2^bits.

fmm.kernels.algorithms.digits chooses the planes and explains why the result is exact. C is computed in blocks
(submatrices), which limits the memory of the planes. The workers write the planes of a block of A and a block of B,
panel by panel (a panel is a few consecutive rows). The planes are multiplied tile by tile, and each product is added to
C immediately. If BLAS can be limited to one thread, each worker multiplies and adds its own tile. If BLAS cannot be
limited, BLAS uses all threads for one product at a time, and the workers then add the product to C panel by panel.

The product of bool matrices (`or` of `and`) is one float32 product, because a rounded sum of zeros and ones is zero
only if all terms are zero.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from fmm.kernels.algorithms.digits import (
    DigitProducts,
    OperandPlanes,
    digit_products_for_any_input,
    fastest_digit_products,
)
from fmm.kernels.cpu.host_arrays import Arena, Array, matmul
from fmm.kernels.cpu.parallel_products import CONCURRENT_PRODUCTS, threads_per_product
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.cpu.worker_threads import is_worker_thread
from fmm.kernels.plans.memory_layout import temporary_bytes

BLOCK_SIDE = 2048  # largest number of rows and of columns of a block of C
PLANE_DEPTH = 4096  # largest total number of columns of A's planes in memory, and of rows of B's planes
TILE_ROWS = 512  # largest number of rows of a tile that one thread multiplies
MIN_TILE_SIDE = 64  # smallest number of rows or columns of a tile
PANEL_BYTES = 256 * 1024  # bytes of a panel: the band of rows that one task splits into digits, or adds to C
MIN_THREADED_ELEMENTS = 1 << 18  # smallest total number of elements of A and B for which several threads are used
MAX_PLANES = 4  # largest number of planes of an operand
WIDEST_ITEMSIZE = 8  # bytes of the largest element type of the planes

TileTask = Callable[[], None]
TilePart = tuple[slice, slice]


def exact_workspace_bytes(m: int, k: int, n: int, batch: int) -> int:
    """Return the bytes of workspace for planes and tiles, enough for any type.

    The products of a batch use the same workspace one after the other.
    """
    rows, cols = _equal_part_length(m, BLOCK_SIDE), _equal_part_length(n, BLOCK_SIDE)
    depth = min(MAX_PLANES * k, PLANE_DEPTH)
    tiles = max(
        count * temporary_bytes(min(high, TILE_ROWS * CONCURRENT_PRODUCTS // count), wide, WIDEST_ITEMSIZE)
        for high, wide in ((rows, cols), (cols, rows))  # the transposed product is computed if C is column-major
        for count in (1, CONCURRENT_PRODUCTS)
    )
    return temporary_bytes(rows, depth, WIDEST_ITEMSIZE) + temporary_bytes(depth, cols, WIDEST_ITEMSIZE) + tiles


def exact_product(left: Array, right: Array, dest: Array, memory: Array, threads: ThreadGroup) -> None:
    """Compute dest = left right modulo 2^bits, or the logical product for bool; `memory` is the workspace."""
    if not left.size or not right.size:
        dest.fill(0)
        return
    if left.size + right.size < MIN_THREADED_ELEMENTS:
        threads = ThreadGroup(1)
    if _is_column_major(dest):
        left, right, dest = right.T, left.T, dest.T
    logical, bits, k = dest.dtype == np.bool_, 8 * dest.itemsize, left.shape[1]
    if logical:
        a, b, c = left.view(np.uint8), right.view(np.uint8), dest
        digits, inner = DigitProducts("float32"), k
    else:
        a, b, c = (x.view(f"i{x.itemsize}") for x in (left, right, dest))
        digits, inner = fastest_digit_products(_largest_magnitude(a, threads), _largest_magnitude(b, threads), k, bits)
    concurrent = threads.count > 1 and is_worker_thread()
    with threads_per_product(threads.count) if concurrent else nullcontext((1, threads.count)) as (at_once, _):
        _BlockedProduct(digits, inner, (a, b, c), memory, threads, at_once).compute_product()


def describe_digit_products(dtype: str, k: int) -> str:
    """Return the text that `explain` prints for products of this type, valid for numbers of any magnitude."""
    if dtype == "bool":
        return "or-and by 1 float32 product"
    bits = 8 * np.dtype(dtype).itemsize
    digits, _ = digit_products_for_any_input(bits, k)
    max_length = "at most " if digits.product_count > 1 else ""
    fewer = ", fewer where the numbers are smaller" if digits.product_count > 1 else ""
    return f"exact: {dtype} by {max_length}{digits}{fewer}"


class _BlockedProduct:
    """The product C = A B, computed in blocks of all three dimensions."""

    def __init__(
        self,
        digits: DigitProducts,
        inner: int,
        matrices: tuple[Array, Array, Array],
        memory: Array,
        threads: ThreadGroup,
        at_once: int,
    ) -> None:
        self.digits, self.threads, self.at_once = digits, threads, at_once
        self.a, self.b, self.c = matrices
        (m, self.k), n = self.a.shape, self.b.shape[1]
        self.rows, self.cols = _equal_part_length(m, BLOCK_SIDE), _equal_part_length(n, BLOCK_SIDE)
        counts = [len(cut.order) for cut in (digits.left, digits.right)]
        self.depth = _equal_part_length(self.k, min(inner, PLANE_DEPTH // max(counts)))
        arena = Arena(memory, np.dtype(digits.real))
        self.left = arena.allocate(self.rows, counts[0] * self.depth, fortran=_is_column_major(self.a))
        self.right = arena.allocate(counts[1] * self.depth, self.cols, fortran=_is_column_major(self.b))
        high = min(self.rows, TILE_ROWS if at_once > 1 else CONCURRENT_PRODUCTS * TILE_ROWS)
        self.tiles = deque(arena.allocate(high, self.cols) for _ in range(at_once))

    def compute_product(self) -> None:
        (m, n), split_right = self.c.shape, None
        for col, row, start in product(range(0, n, self.cols), range(0, m, self.rows), range(0, self.k, self.depth)):
            rows, cols, inner = (
                slice(row, min(row + self.rows, m)),
                slice(col, min(col + self.cols, n)),
                slice(start, min(start + self.depth, self.k)),
            )
            depth = inner.stop - inner.start
            tasks = self._split_tasks(self.a[rows, inner], self.digits.left, self.left[: rows.stop - row], depth, 1)
            if split_right != (col, start):
                tasks += self._split_tasks(
                    self.b[inner, cols], self.digits.right, self.right[:, : cols.stop - col], depth, 0
                )
            self.threads.run_tasks(tasks)
            split_right = col, start
            self._multiply_block(self.c[rows, cols], depth, start == 0)

    def _split_tasks(self, x: Array, cut: OperandPlanes, planes: Array, depth: int, axis: int) -> list[TileTask]:
        """Return tasks that split an operand's block into planes, panel by panel.

        The planes are adjacent: below each other for `axis` 0, beside each other for `axis` 1.
        """
        spans = [slice(i * depth, (i + 1) * depth) for i in range(len(cut.order))]
        outs = [planes[:, span] if axis else planes[span] for span in spans]
        if _is_column_major(x):
            x, outs = x.T, [out.T for out in outs]
        return [partial(_split_panel, x[rows], cut, [out[rows] for out in outs]) for rows in _cache_sized_row_slices(x)]

    def _multiply_block(self, c: Array, depth: int, first: bool) -> None:
        """Multiply the planes in memory, and add the product to a block of C; if `first`, overwrite the block."""
        parts = list(_tile_slices(c.shape[0], c.shape[1], self.at_once))
        tasks = [partial(self._multiply_tile, rows, cols, c[rows, cols], depth, first) for rows, cols in parts]
        if self.at_once > 1:
            self.threads.run_tasks(tasks)
        else:
            for task in tasks:
                task()

    def _multiply_tile(self, rows: slice, cols: slice, c: Array, depth: int, first: bool) -> None:
        whole = self.tiles.pop()
        p = whole[: c.shape[0], : c.shape[1]]
        for number, x in enumerate(self.digits.products):
            a = self.left[rows, x.left * depth : (x.left + x.count) * depth]
            b = self.right[x.right * depth : (x.right + x.count) * depth, cols]
            matmul(a, b, out=p)
            tasks = [
                partial(_accumulate_scaled_panel, p[r], c[r], x.weight, first and not number)
                for r in _cache_sized_row_slices(p)
            ]
            if self.at_once > 1:
                for task in tasks:
                    task()
            else:
                self.threads.run_tasks(tasks)
        self.tiles.append(whole)


def _tile_slices(rows: int, cols: int, at_once: int) -> Iterator[TilePart]:
    """Yield the tiles of a block: each tile is several whole rows, or several whole columns if there are few rows.

    Every thread gets the same number of tiles.
    """
    high = TILE_ROWS if at_once > 1 else CONCURRENT_PRODUCTS * TILE_ROWS
    bands = -(-max(-(-rows // high), 1) // at_once) * at_once
    across = 1
    if rows < bands * MIN_TILE_SIDE and at_once > 1:
        bands, across = 1, at_once if cols >= at_once * MIN_TILE_SIDE else 1
    height, width = -(-rows // bands), -(-cols // across)
    for row, col in product(range(0, rows, height), range(0, cols, width)):
        yield slice(row, min(row + height, rows)), slice(col, min(col + width, cols))


def _equal_part_length(side: int, max_length: int) -> int:
    """Return the block length if a side is divided into the fewest equal blocks of at most `max_length`."""
    return -(-side // -(-side // max_length)) if side else 1


def _is_column_major(x: Array) -> bool:
    return bool(abs(x.strides[0]) < abs(x.strides[1]))


def _cache_sized_row_slices(x: Array) -> Iterator[slice]:
    """Yield slices of consecutive rows; the rows of a slice have at most PANEL_BYTES bytes and fit in a cache."""
    height = max(PANEL_BYTES // max(x.shape[1] * WIDEST_ITEMSIZE, 1), 1)
    for start in range(0, len(x), height):
        yield slice(start, min(start + height, len(x)))


# ---- work on one panel


def _largest_magnitude(x: Array, threads: ThreadGroup) -> int:
    """Return the largest absolute value in an integer matrix."""
    x = x.T if _is_column_major(x) else x
    found: list[tuple[Any, Any]] = []

    def scan_rows(rows: slice) -> None:
        found.append((x[rows].max(), x[rows].min()))

    threads.run_tasks([partial(scan_rows, rows) for rows in _cache_sized_row_slices(x)])
    return max(max(int(high), -int(low)) for high, low in found)


def _split_panel(x: Array, cut: OperandPlanes, outs: Sequence[Array]) -> None:
    """Split a panel of integers into planes of digits, and write the planes to `outs`."""
    if not cut.widths:
        np.copyto(outs[0], x, casting="unsafe")
        return
    kind, planes, (*low, top) = x.dtype.type, dict(zip(cut.order, outs, strict=True)), cut.digit_offsets
    halves = [1 << (width - 1) for width in cut.widths]
    moved = np.add(x, kind(sum(half << offset for half, offset in zip(halves, low, strict=True))))
    field = np.empty_like(moved)
    for number, (half, offset) in enumerate(zip(halves, low, strict=True)):
        shifted = np.right_shift(moved, kind(offset), out=field) if offset else moved
        np.bitwise_and(shifted, kind(2 * half - 1), out=field)
        out = planes[number,]
        np.copyto(out, field, casting="unsafe")
        np.subtract(out, out.dtype.type(half), out=out)
    np.right_shift(moved, kind(top), out=field)
    np.copyto(planes[len(low),], field, casting="unsafe")
    for plane, out in planes.items():
        if len(plane) > 1:
            np.add(planes[plane[0],], planes[plane[1],], out=out)


def _accumulate_scaled_panel(p: Array, c: Array, weight: int, first: bool) -> None:
    """Write c = weight * p if `first`, else c += weight * p, modulo 2^bits; all numbers in p are whole numbers."""
    if c.dtype == np.bool_:
        np.copyto(c, p > 0) if first else np.logical_or(c, p > 0, out=c)
        return
    straight = c.itemsize == WIDEST_ITEMSIZE
    exact = c if straight and first else np.empty(c.shape, np.int64)
    np.copyto(exact, p, casting="unsafe")
    if weight != 1:
        np.multiply(exact, np.int64(_as_signed_int64(weight)), out=exact)
    if straight and first:
        return
    if first:
        np.copyto(c, exact, casting="unsafe")
    else:
        np.add(c, exact if straight else exact.astype(c.dtype), out=c)


def _as_signed_int64(weight: int) -> int:
    """Return the signed 64-bit number that equals the weight modulo 2^64."""
    return (weight + (1 << 63)) % (1 << 64) - (1 << 63)
