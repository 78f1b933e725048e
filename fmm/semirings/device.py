"""Semiring products and closures of CuPy arrays, computed on CuPy's current device and stream.

The first call compiles this package's kernels concurrently; CuPy would compile kernels for its array operations one by
one. To avoid CuPy's compilations, one kernel of this package finds the edges, and the CUDA driver copies rows and
diagonals.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.kernels.cuda.launch.player import LaunchSequence
from fmm.semirings.closure_launches import (
    ARGUMENT_BUFFER_PREFIX,
    ARGUMENT_BYTES,
    DOUBLED_BUFFER,
    WORKSPACE_BUFFER,
    closure_launches,
    padded_leading_dimension,
)
from fmm.semirings.closure_steps import CLOSED_MATRIX_NAME
from fmm.semirings.minplus_kernel import (
    TROPICAL_RINGS,
    VECTOR_BYTES,
    DeviceMatrix,
    SemiringProduct,
    TropicalRing,
    duplicate_entries_launch,
    fastest_minplus_sizes,
    graph_edges_launch,
    minplus_launch,
)
from fmm.semirings.path_request import EdgeRule


def device_product(ring_name: str, a: Any, b: Any, with_arguments: bool) -> tuple[Any, Any]:
    """Return the product and the best index k of each entry; the indices are None if `with_arguments` is False."""
    ring, (m, k), n = TROPICAL_RINGS[ring_name], a.shape, b.shape[1]
    left, right = _with_aligned_rows(a), _with_aligned_rows(b)
    c = cupy.empty((m, padded_leading_dimension(n)), a.dtype)
    args = cupy.empty((m, padded_leading_dimension(n)) if with_arguments else (1,), np.int32)
    device = int(a.data.device_id)
    leading = int(left.strides[0] // left.itemsize), int(right.strides[0] // right.itemsize)
    run = _product_launches(ring, (m, k, n), leading, with_arguments, device)
    addresses = {"A": left.data.ptr, "B": right.data.ptr, "C": c.data.ptr}
    addresses[ARGUMENT_BUFFER_PREFIX] = args.data.ptr
    if ring.per_word > 1:
        doubled = cupy.empty((m, padded_leading_dimension(k)), np.uint32)
        addresses[DOUBLED_BUFFER] = doubled.data.ptr
    run.launch_all(addresses, cupy.cuda.get_current_stream().ptr)
    return _copy_first_columns(c, n), _copy_first_columns(args, n) if with_arguments else None


def graph_edges_on_device(lengths: Any, rule: EdgeRule) -> tuple[Any, Any]:
    """Return a new matrix of a graph's edges, and the predecessors on paths of one edge (None if not requested).

    Zeros, inf, NaN, `rule.missing` and floating-point entries up to the magnitude `rule.smallest` are not edges. The
    new matrix has `rule.missing` where there is no edge, and zeros on the diagonal.
    """
    rows, cols = (int(step) // lengths.itemsize for step in lengths.strides)
    n, dtype, device = len(lengths), lengths.dtype.name, int(lengths.data.device_id)
    edges, predecessors = cupy.empty((n, n), dtype), None
    addresses = {"A": lengths.data.ptr, "C": edges.data.ptr}
    if rule.no_predecessor is not None:
        predecessors = cupy.empty((n, n), np.int32)
        addresses["P"] = predecessors.data.ptr
    _compiled_graph_edges_launch(dtype, n, (rows, cols), rule, device).launch_all(
        addresses, cupy.cuda.get_current_stream().ptr
    )
    return edges, predecessors


def device_diagonal(x: Any) -> Any:
    """Return the diagonal of a row-major square matrix as a NumPy array."""
    n, item = len(x), x.itemsize
    diagonal = cupy.empty(n, x.dtype)
    _copy_rows_on_device(diagonal.data.ptr, item, x.data.ptr, x.strides[0] + item, item, n)
    return diagonal.get()


def device_closure(ring_name: str, d: Any, predecessors: Any = None) -> tuple[Any, Any]:
    """Return the closure of an n x n matrix, and the last node but one of each path (None without `predecessors`).

    `d` and `predecessors` must be row-major. The matrix `d` is overwritten if its rows begin at multiples of 16 bytes.
    On entry, `predecessors` must contain for each edge the node where the edge begins.
    """
    n, ring = len(d), TROPICAL_RINGS[ring_name]
    run, numbers, doubled_bytes = _closure_launches(ring, n, predecessors is not None, int(d.data.device_id))
    values = d if n == padded_leading_dimension(n) else _with_padded_rows(d)
    memory = {CLOSED_MATRIX_NAME: values, WORKSPACE_BUFFER: cupy.empty(max(numbers, 1), d.dtype)}
    if doubled_bytes:
        memory[DOUBLED_BUFFER] = cupy.empty(doubled_bytes, np.uint8)
    if predecessors is not None:
        nodes = _with_padded_rows(predecessors)
        memory |= {
            ARGUMENT_BUFFER_PREFIX + CLOSED_MATRIX_NAME: nodes,
            ARGUMENT_BUFFER_PREFIX + WORKSPACE_BUFFER: cupy.empty(max(numbers, 1) * ARGUMENT_BYTES, np.uint8),
        }
    run.launch_all({base: array.data.ptr for base, array in memory.items()}, cupy.cuda.get_current_stream().ptr)
    return _copy_first_columns(values, n), None if predecessors is None else _copy_first_columns(nodes, n)


@lru_cache(maxsize=256)
def _product_launches(
    ring: TropicalRing, size: tuple[int, int, int], leading: tuple[int, int], with_arguments: bool, device: int
) -> LaunchSequence:
    """Return the compiled launches of a semiring product."""
    m, k, n = size
    left, right = DeviceMatrix("A", 0, m, k, leading[0]), DeviceMatrix("B", 0, k, n, leading[1])
    dest = DeviceMatrix("C", 0, m, n, padded_leading_dimension(n))
    launches = []
    if ring.per_word > 1:
        words = DeviceMatrix(DOUBLED_BUFFER, 0, m, k, padded_leading_dimension(k))
        launches.append(duplicate_entries_launch(left, words))
        left = words
    sizes = fastest_minplus_sizes(ring, with_arguments, [size], cuda_device_chip(device).multiprocessors)
    args = DeviceMatrix(ARGUMENT_BUFFER_PREFIX, 0, m, n, padded_leading_dimension(n)) if with_arguments else None
    launches.append(minplus_launch(ring, sizes, [SemiringProduct(left, right, dest, args=args)]))
    return LaunchSequence(launches, device)


@lru_cache(maxsize=64)
def _compiled_graph_edges_launch(
    dtype: str, n: int, strides: tuple[int, int], rule: EdgeRule, device: int
) -> LaunchSequence:
    """Return the compiled launch that writes the edges of a graph."""
    return LaunchSequence([graph_edges_launch(dtype, n, strides, rule)], device)


@lru_cache(maxsize=64)
def _closure_launches(
    ring: TropicalRing, n: int, with_predecessors: bool, device: int
) -> tuple[LaunchSequence, int, int]:
    """Return a closure's compiled launches, number of workspace entries, and `doubled_bytes` (see ClosureLaunches)."""
    closure = closure_launches(ring, n, with_predecessors, cuda_device_chip(device).multiprocessors)
    return LaunchSequence(closure.launches, device), closure.numbers, closure.doubled_bytes


def _with_aligned_rows(x: Any) -> Any:
    """Return x if its rows are contiguous and begin at multiples of 16 bytes, else a copy with this layout."""
    rows, cols = x.shape
    contiguous = x.strides[1] == x.itemsize or cols == 1
    if (
        contiguous
        and x.strides[0] >= cols * x.itemsize
        and x.strides[0] % VECTOR_BYTES == 0
        and x.data.ptr % VECTOR_BYTES == 0
    ):
        return x
    copy = cupy.zeros((rows, padded_leading_dimension(cols)), x.dtype)
    copy[:, :cols] = x
    return copy[:, :cols]


def _with_padded_rows(x: Any) -> Any:
    """Return a copy with rows that begin at multiples of 16 bytes; the kernels do not read the padding."""
    rows, cols = x.shape
    copy = cupy.empty((rows, padded_leading_dimension(cols)), x.dtype)
    _copy_rows_on_device(copy.data.ptr, copy.strides[0], x.data.ptr, x.strides[0], cols * x.itemsize, rows)
    return copy


def _copy_first_columns(x: Any, cols: int) -> Any:
    if x.shape[1] == cols:
        return x
    copy = cupy.empty((len(x), cols), x.dtype)
    _copy_rows_on_device(copy.data.ptr, copy.strides[0], x.data.ptr, x.strides[0], cols * x.itemsize, len(x))
    return copy


def _copy_rows_on_device(dest: int, dest_step: int, source: int, source_step: int, nbytes: int, lines: int) -> None:
    """Copy `nbytes` bytes of each row on the current stream; `dest_step` and `source_step` are row strides in bytes."""
    kind, stream = runtime.memcpyDeviceToDevice, cupy.cuda.get_current_stream().ptr
    runtime.memcpy2DAsync(dest, dest_step, source, source_step, nbytes, lines, kind, stream)
