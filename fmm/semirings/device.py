"""Products over semirings and closures of CuPy's arrays, on the current device and stream."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy
import numpy as np

from fmm.kernels.cuda.launch.device_facts import chip_of
from fmm.kernels.cuda.launch.player import LaunchSequence
from fmm.semirings.closure_launches import ARG_BYTES, ARGS, DOUBLED, WORKSPACE, closure_launches, padded
from fmm.semirings.closure_steps import MATRIX
from fmm.semirings.minplus_kernel import (
    RINGS,
    WIDE,
    Rect,
    Ring,
    SemiringProduct,
    doubling_launch,
    fastest_sizes,
    minplus_launch,
)


def device_product(name: str, a: Any, b: Any, noted: bool) -> tuple[Any, Any]:
    """The best sums, and if asked the steps that they come from; else None."""
    ring, (m, k), n = RINGS[name], a.shape, b.shape[1]
    left, right = _wide_rows(a), _wide_rows(b)
    c = cupy.empty((m, padded(n)), a.dtype)
    args = cupy.empty((m, padded(n)) if noted else (1,), np.int32)
    device = int(a.data.device_id)
    run = _product_run(ring, (m, k, n), (_leading(left), _leading(right)), noted, device)
    addresses = {"A": left.data.ptr, "B": right.data.ptr, "C": c.data.ptr}
    addresses[ARGS] = args.data.ptr
    if ring.per_word > 1:
        doubled = cupy.empty((m, padded(k)), np.uint32)
        addresses[DOUBLED] = doubled.data.ptr
    run.play(addresses, cupy.cuda.get_current_stream().ptr)
    return _cut(c, n), _cut(args, n) if noted else None


@lru_cache(maxsize=256)
def _product_run(
    ring: Ring, size: tuple[int, int, int], leading: tuple[int, int], noted: bool, device: int
) -> LaunchSequence:
    m, k, n = size
    left, right = Rect("A", 0, m, k, leading[0]), Rect("B", 0, k, n, leading[1])
    dest = Rect("C", 0, m, n, padded(n))
    launches = []
    if ring.per_word > 1:
        words = Rect(DOUBLED, 0, m, k, padded(k))
        launches.append(doubling_launch(left, words))
        left = words
    sizes = fastest_sizes(ring, noted, [size], chip_of(device).multiprocessors)
    args = Rect(ARGS, 0, m, n, padded(n)) if noted else None
    launches.append(minplus_launch(ring, sizes, [SemiringProduct(left, right, dest, args=args)]))
    return LaunchSequence(launches, device)


def _leading(x: Any) -> int:
    return int(x.strides[0] // x.itemsize)


def _wide_rows(x: Any) -> Any:
    """The matrix, or a copy of it, with rows without gaps that begin at multiples of 16 bytes."""
    rows, cols = x.shape
    alike = x.strides[1] == x.itemsize or cols == 1
    if alike and x.strides[0] >= cols * x.itemsize and x.strides[0] % WIDE == 0 and x.data.ptr % WIDE == 0:
        return x
    made = cupy.zeros((rows, padded(cols)), x.dtype)
    made[:, :cols] = x
    return made[:, :cols]


def _cut(x: Any, cols: int) -> Any:
    return x if x.shape[1] == cols else cupy.ascontiguousarray(x[:, :cols])


@lru_cache(maxsize=64)
def _closure_run(ring: Ring, n: int, noted: bool, device: int) -> tuple[LaunchSequence, int, int]:
    """The launches made ready; numbers of the temporaries, and bytes of what is written twice."""
    found = closure_launches(ring, n, noted, chip_of(device).multiprocessors)
    return LaunchSequence(found.launches, device), found.numbers, found.doubled_bytes


def device_closure(name: str, d: Any, none: Any, nodes: Any = None) -> tuple[Any, Any]:
    """The closure of an n x n matrix, and the last nodes before the ends of the ways, where `nodes` begins them."""
    n, ring = len(d), RINGS[name]
    run, numbers, doubled = _closure_run(ring, n, nodes is not None, int(d.data.device_id))
    values = cupy.full((n, padded(n)), none, d.dtype)
    values[:, :n] = d
    memory = {MATRIX: values, WORKSPACE: cupy.empty(max(numbers, 1), d.dtype)}
    if doubled:
        memory[DOUBLED] = cupy.empty(doubled, np.uint8)
    if nodes is not None:
        noted = cupy.empty((n, padded(n)), np.int32)
        noted[:, :n] = nodes
        memory |= {ARGS + MATRIX: noted, ARGS + WORKSPACE: cupy.empty(max(numbers, 1) * ARG_BYTES, np.uint8)}
    run.play({base: array.data.ptr for base, array in memory.items()}, cupy.cuda.get_current_stream().ptr)
    return _cut(values, n), None if nodes is None else _cut(noted, n)
