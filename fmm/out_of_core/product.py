"""Implement fmm.matmul of NumPy arrays on a CUDA device: check the arrays, then choose, explain and run a schedule.

NumPy itself handles calls with invalid arguments and calls that no device can compute. The products of valid calls are
computed tile by tile, in the type of NumPy's result. Each tile product uses the plan that fmm.matmul would choose on
the device.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import groupby
from math import prod
from mmap import mmap
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided

from fmm.arrays.library import Operand, product_shape
from fmm.arrays.numpy_library import NumpyLibrary
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.config.files import current_settings
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.parallel_products import may_share_elements
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.out_of_core.choose_schedule import TilesDoNotFitError, choose_schedule
from fmm.out_of_core.machine import StreamingDevice
from fmm.out_of_core.run_schedule import LaunchBand, ScheduleRun, limited_launch_band, whole_launch_band
from fmm.out_of_core.schedule import CopyRates, Schedule, ScheduleTimes, cut_ranges
from fmm.out_of_core.transfers import Array, CopyThreads
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem, Shape
from fmm.runtime import matmul
from fmm.runtime.decisions.decide import Decision, decide_plan, expected_seconds
from fmm.runtime.decisions.limits import PlanConstraints, limits_for_operation
from fmm.runtime.devices import Device
from fmm.runtime.progress import Progress, show_progress

FREE_MEMORY_SHARE = 0.9  # share of the device's free memory that a product may use
ALWAYS_FREE_BYTES = 64 << 20  # bytes of the device's memory that are never allocated
# A memory limit is rounded down to its leading bit and this number of further bits, so that similar limits share a
# cached schedule.
LIMIT_SIGNIFICANT_BITS = 3
# Fractions of the memory limit that tiles may use. If the workspace of the caller's plan does not fit into the
# remaining memory, the next smaller fraction is tried.
TILE_MEMORY_SHARES = 1.0, 0.7, 0.5, 0.35, 0.25
RETRY_MEMORY_RATIO = 0.7  # after the device ran out of memory, the memory limit is multiplied by this number
MAX_MEMORY_ATTEMPTS = 4


# ---- the calls


def streamed_matmul(
    library: NumpyLibrary,
    a: Any,
    b: Any,
    out: Any,
    machine: StreamingDevice,
    constraints: PlanConstraints,
    progress: bool = False,
) -> Any:
    """Return the product of host arrays, computed on the device; raise the same errors as numpy.matmul."""
    a, b = _as_ndarray(a), _as_ndarray(b)
    dtype, shape = _product_type(library, a, b, out), product_shape(a.shape, b.shape)
    if not dtype or shape is None:
        return library.vendor_product(a, b, out)
    target = _out_or_new_array(library, a, b, out, shape, dtype, library.new_array)
    with show_progress(progress) as shown:
        if progress:
            # The predicted time of a stack assumes that every product takes as long as the first product.
            x, y, z = _transpose_for_row_major_result(*next(split_stack(a, b, target)))
            size = x.shape[0], x.shape[1], y.shape[1]
            seconds = _plan_streamed_product(
                size, dtype, machine, constraints, usable_memory_bytes(machine)
            ).times.seconds
            shown.begin_count(target.size * a.shape[-1], seconds * target.size / z.size)
        for x, y, z in split_stack(a, b, target):
            _stream_product(x, y, z, dtype, machine, constraints, shown)
    if out is None:
        return library.unwrap_scalar(target)
    if not np.may_share_memory(target, out):
        library.copy_into(target, out)
    return out


def explain_streamed_matmul(
    library: NumpyLibrary, a: Any, b: Any, out: Any, machine: StreamingDevice, constraints: PlanConstraints
) -> Decision:
    """Return the decision of `streamed_matmul`: the plan of the largest tile product, and the schedule as text."""
    a, b = _as_ndarray(a), _as_ndarray(b)
    dtype, shape = _product_type(library, a, b, out), product_shape(a.shape, b.shape)
    if not dtype or shape is None:
        return Decision(
            VENDOR, None, f"NumPy multiplies: {library.product_setting(a, b, out).refusal or 'nothing to multiply'}"
        )
    stack = list(split_stack(a, b, _out_or_new_array(library, a, b, out, shape, dtype, _array_of_layout)))
    x, y, z = _transpose_for_row_major_result(*stack[0])
    size = x.shape[0], x.shape[1], y.shape[1]
    streaming = _plan_streamed_product(size, dtype, machine, constraints, usable_memory_bytes(machine))

    largest = max(
        (size for step in streaming.schedule.multiply_steps for size in streaming.tile_launch_sizes(step.product_size)),
        key=prod,
    )
    limits = _tile_limits(constraints, streaming.workspace, dtype, machine.device)
    problem = Problem(*largest, dtype, componentwise=limits.componentwise)
    decision = matmul.decide_without_arrays(problem, limits, machine.device, constraints.plan)
    memory = streaming.schedule.total_slot_bytes + _largest_workspace_bytes(streaming, machine.device, constraints)
    lines = list(_schedule_text_lines(streaming, machine.copy_rates, memory))
    if z is not stack[0][2]:
        lines.append("the result is column-major: C, A and B are the transposes of the result, of b and of a")
    if len(stack) > 1:
        lines.append(f"repeated {len(stack)} times, for each product of the stack")
    if any(map(_is_memory_mapped, (a, b, out))):
        lines.append("not predicted: reading and writing the mapped files of the arrays")
    reason = f"for the largest of {len(streaming.schedule.multiply_steps)} products of tiles: {decision.reason}"
    return replace(decision, reason=reason, kernels=(*lines, *decision.kernels))


def _out_or_new_array(
    library: NumpyLibrary,
    a: Array,
    b: Array,
    out: Any,
    shape: tuple[int, ...],
    dtype: str,
    new_array: Callable[[Operand], Array],
) -> Array:
    """Return `out` as a NumPy array; return a new array if `out` is None or shares elements with an operand."""
    target = _as_ndarray(out)
    if out is None or any(may_share_elements(x, target) for x in (a, b)):
        return new_array(library.describe_result(a, b, shape, dtype))
    return target  # type: ignore[no-any-return]


def _array_of_layout(result: Operand) -> Array:
    """Return an array with the shape and the strides of a result; only its first entry has memory."""
    entry = np.empty((), result.dtype)
    return as_strided(entry, result.shape, [step * entry.itemsize for step in result.strides or ()])


def _as_ndarray(x: Any) -> Any:
    """Return x as a NumPy array; for a memory-mapped array, a view of the class numpy.ndarray."""
    if isinstance(x, np.memmap):
        return x.view(np.ndarray)
    return x if x is None or isinstance(x, np.ndarray) else np.asanyarray(x)


def _is_memory_mapped(x: Any) -> bool:
    """Return True if the array is mapped from a file, or is a view of a mapped array."""
    while x is not None and not isinstance(x, np.memmap | mmap):
        x = getattr(x, "base", None)
    return x is not None


def _product_type(library: NumpyLibrary, a: Any, b: Any, out: Any) -> str:
    """Return the type in which the device computes the product; an empty string if NumPy must compute it.

    float16 products run on the device, since NumPy has no fast product of this type.
    """
    setting, shape = library.product_setting(a, b, _as_ndarray(out)), product_shape(a.shape, b.shape)
    if shape is None or 0 in (*a.shape, *b.shape) or not (out is None or out.shape == shape):
        return ""
    if not setting.refusal and setting.dtype in DTYPES:
        return str(setting.dtype)
    arrays = [a, b] if out is None else [a, b, _as_ndarray(out)]
    is_float16 = all(type(x) is np.ndarray and x.dtype == np.float16 for x in arrays) and not library.options
    return "float16" if is_float16 and (out is None or out.flags.writeable) else ""


def split_stack(a: Array, b: Array, c: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Yield a, b and c of each matrix product of a stack; a contiguous stack times one matrix is a single product."""
    if a.ndim == 1:
        c = np.expand_dims(c, -1 if b.ndim == 1 else -2)
    if b.ndim == 1:
        c = np.expand_dims(c, -1)
    a, b = a if a.ndim > 1 else a[None, :], b if b.ndim > 1 else b[:, None]
    if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and c.flags.c_contiguous:
        yield a.reshape(-1, a.shape[-1]), b, c.reshape(-1, c.shape[-1])
        return
    stack = c.shape[:-2]
    a, b = (np.broadcast_to(x, stack + x.shape[-2:]) for x in (a, b))
    for index in np.ndindex(*stack):
        yield a[index], b[index], c[index]


def _transpose_for_row_major_result(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """Return A, B and C, or B^T, A^T and C^T if C is column-major, so that the result is row-major."""
    return (b.T, a.T, c.T) if c.flags.f_contiguous and not c.flags.c_contiguous else (a, b, c)


# ---- the schedule


@dataclass(frozen=True)
class StreamedProduct:
    """A schedule, its predicted times, the workspace limit of a tile product, and a LaunchBand for each tile size."""

    schedule: Schedule
    times: ScheduleTimes
    workspace: int
    dtype: str
    units: Mapping[Shape, LaunchBand] = field(repr=False)

    def tile_launch_sizes(self, size: Shape) -> set[Shape]:
        """Return the sizes of the launches of a tile product: the whole product, or bands of rows."""
        return {(last - first, *size[1:]) for first, last in cut_ranges(size[0], (self.units[size].rows,))}


def usable_memory_bytes(machine: StreamingDevice) -> int:
    """Return the number of bytes of the device's memory that a product may use, rounded down."""
    free = int(min(machine.free_bytes() * FREE_MEMORY_SHARE, machine.free_bytes() - ALWAYS_FREE_BYTES))
    return _round_bytes_down(free)


def _round_bytes_down(nbytes: int) -> int:
    step = 1 << max(nbytes.bit_length() - LIMIT_SIGNIFICANT_BITS - 1, 0)
    return max(nbytes, 0) // step * step


def _plan_streamed_product(
    size: Shape, dtype: str, machine: StreamingDevice, constraints: PlanConstraints, limit: int
) -> StreamedProduct:
    return _cached_streamed_product(
        size, dtype, limit, machine.copy_rates, machine.device, constraints, current_settings()
    )


@lru_cache(maxsize=256)
def _cached_streamed_product(
    size: Shape,
    dtype: str,
    limit: int,
    rates: CopyRates,
    device: Device,
    constraints: PlanConstraints,
    settings: Hashable,
) -> StreamedProduct:
    """Return the fastest schedule within `limit` bytes; `settings` is only a part of the key in the cache.

    If the workspace of the caller's plan does not fit beside the tiles, the function tries smaller fractions of the
    memory for tiles.
    """
    if constraints.plan is None:
        return _fastest_streamed_product(limit, size, dtype, limit, rates, device, constraints)
    for share in TILE_MEMORY_SHARES:
        streaming = _fastest_streamed_product(int(limit * share), size, dtype, limit, rates, device, constraints)
        if streaming.schedule.total_slot_bytes + _largest_workspace_bytes(streaming, device, constraints) <= limit:
            break
    return streaming


def _fastest_streamed_product(
    tile_limit: int, size: Shape, dtype: str, limit: int, rates: CopyRates, device: Device, constraints: PlanConstraints
) -> StreamedProduct:
    """Return the fastest schedule that uses at most `limit` bytes in all, and at most `tile_limit` bytes for tiles."""
    first_limits = _tile_limits(constraints, limit // 2, dtype, device)
    plans = {constraints.plan} if constraints.plan else _tile_plans(size, dtype, first_limits, device)

    @lru_cache(maxsize=4096)
    def tile_seconds(tile: Shape, limits: Limits) -> float:
        m, k, n = tile
        return expected_seconds(plans, Problem(m, k, n, dtype, componentwise=limits.componentwise), limits, device)

    def product_seconds(free_bytes: int) -> Callable[[Shape], float]:
        limits = _tile_limits(constraints, free_bytes, dtype, device)
        return lambda tile: tile_seconds(tile, limits)

    schedule, times = choose_schedule(
        size, dtype, tile_limit, rates, lambda free_bytes: product_seconds(free_bytes + limit - tile_limit)
    )
    # A plan that the caller passed may be invalid for bands with fewer rows, so its tile products are launched as a
    # whole.
    choose_unit = limited_launch_band if constraints.plan is None else whole_launch_band
    free_bytes = limit - schedule.total_slot_bytes
    seconds, workspace = product_seconds(free_bytes), _tile_workspace_limit(constraints, free_bytes)
    units = {tile: choose_unit(tile, seconds) for tile in {step.product_size for step in schedule.multiply_steps}}
    return StreamedProduct(schedule, times, workspace, dtype, units)


# Sizes of sample tiles, as fractions of the product's m, k and n. Plans are chosen for the sample tiles; for any other
# tile size, only the plans of the sample tiles are compared.
SAMPLE_TILE_SHARES = ((1, 1, 1), (1, 1 / 4, 1), (1, 1 / 16, 1), (1 / 4, 1, 1), (1 / 4, 1 / 4, 1), (1 / 2, 1 / 2, 1 / 2))


def _tile_plans(size: Shape, dtype: str, limits: Limits, device: Device) -> set[Plan]:
    shapes = {
        tuple(max(int(side * share), 1) for side, share in zip(size, shares, strict=True))
        for shares in SAMPLE_TILE_SHARES
    }
    problems = (Problem(m, k, n, dtype, componentwise=limits.componentwise) for m, k, n in shapes)
    return {decide_plan(problem, limits, device).plan for problem in problems}


def _tile_workspace_limit(constraints: PlanConstraints, free_bytes: int) -> int:
    """Return the workspace limit of a tile product, in bytes."""
    return _round_bytes_down(free_bytes) if constraints.workspace is None else min(constraints.workspace, free_bytes)


def _tile_limits(constraints: PlanConstraints, free_bytes: int, dtype: str, device: Device) -> Limits:
    growth = device.error_growth if constraints.error_growth is None else constraints.error_growth
    workspace = _tile_workspace_limit(constraints, free_bytes)
    componentwise = constraints.componentwise or is_componentwise_required()
    return limits_for_operation(Limits(workspace, growth, is_emulation_allowed(), componentwise), "product", dtype)


def _largest_workspace_bytes(streaming: StreamedProduct, device: Device, constraints: PlanConstraints) -> int:
    """Return the largest workspace of the schedule's tile products, in bytes."""
    limits = _tile_limits(constraints, streaming.workspace, streaming.dtype, device)
    steps = streaming.schedule.multiply_steps
    sizes = {(size, int(step.adds)) for step in steps for size in streaming.tile_launch_sizes(step.product_size)}
    problems = (Problem(*size, streaming.dtype, beta=adds, componentwise=limits.componentwise) for size, adds in sizes)
    return max(matmul.extra_bytes_of_call(problem, limits, device, constraints.plan) for problem in problems)


# ---- running it


def _stream_product(
    a: Array, b: Array, c: Array, dtype: str, machine: StreamingDevice, constraints: PlanConstraints, progress: Progress
) -> None:
    """Multiply two matrices on the device; retry with less memory if the device runs out of memory."""
    a, b, c = _transpose_for_row_major_result(a, b, c)
    size, done = (a.shape[0], a.shape[1], b.shape[1]), progress.done
    limit = usable_memory_bytes(machine)
    for attempt in range(MAX_MEMORY_ATTEMPTS):
        streaming = _plan_streamed_product(size, dtype, machine, constraints, limit)
        try:
            _run_schedule(streaming, a, b, c, machine, constraints, progress)
            return
        except machine.out_of_memory_error as error:
            if attempt == MAX_MEMORY_ATTEMPTS - 1 or isinstance(error, TilesDoNotFitError):
                raise
        # the product starts again from the beginning, so its finished multiply-adds no longer count as progress
        progress.add_done(done - progress.done)
        limit = _round_bytes_down(int(limit * RETRY_MEMORY_RATIO))


def _run_schedule(
    streaming: StreamedProduct,
    a: Array,
    b: Array,
    c: Array,
    machine: StreamingDevice,
    constraints: PlanConstraints,
    progress: Progress,
) -> None:
    with machine.open_engine(constraints) as engine:
        transfers = CopyThreads(engine)
        try:
            reserved = _largest_workspace_bytes(streaming, machine.device, constraints)
            dtype = np.dtype(streaming.dtype)
            run = ScheduleRun(
                streaming.schedule, engine, transfers, dtype, streaming.workspace, reserved, streaming.units
            )
            run.multiply_matrices(a, b, c, progress.add_done)
        finally:
            transfers.close()


# ---- explaining it


def _schedule_text_lines(streaming: StreamedProduct, rates: CopyRates, memory: int) -> Iterator[str]:
    """Yield the lines of text that explain a schedule."""
    schedule, times, gib = streaming.schedule, streaming.times, 1 << 30
    cut, (m, k, n) = schedule.cut, schedule.size
    blocks = -(-m // cut.rows) * -(-n // cut.cols)
    yield (
        f"streamed: C of {m} x {n} in {_count_with_noun(blocks, 'block')} of {cut.rows} x {cut.cols}, the inner"
        f" dimension in pieces of {_lengths_text(k, cut.pieces)}, each block finished in bands of"
        f" {_lengths_text(cut.rows, cut.bands)}"
    )
    tiles_a, tiles_b, blocks_c = map(len, schedule.slot_bytes.values())
    yield (
        f"on the device: {_count_with_noun(tiles_a, 'tile')} of A, {tiles_b} of B,"
        f" {_count_with_noun(blocks_c, 'block')} of C:"
        f" {schedule.total_slot_bytes / gib:.2f} GiB, with the workspace {memory / gib:.2f} GiB"
    )
    yield (
        f"copied: {schedule.bytes_loaded / gib:.2f} GiB to the device at {rates.to_device / 1e9:.1f} GB/s,"
        f" {schedule.bytes_stored / gib:.2f} GiB back at {rates.to_host / 1e9:.1f} GB/s"
    )
    yield (
        f"predicted: {times.seconds:.3g} s (products {times.computing:.3g}, concurrent copies {times.loading:.3g} to"
        f" the device and {times.storing:.3g} back)"
    )
    largest = max(streaming.units, key=prod)
    unit = streaming.units[largest]
    if unit.rows < largest[0]:
        yield f"launched in parts of {unit.rows} rows, {unit.seconds:.2g} s each: Ctrl-C waits for launched parts"


def _lengths_text(total: int, lengths: Sequence[int]) -> str:
    """Return the lengths into which a side is cut as text, for example "4096 + 12288" or "16 times 4096"."""
    cut_lengths = [last - first for first, last in cut_ranges(total, lengths)]
    runs = [(length, len(list(run))) for length, run in groupby(cut_lengths)]
    return " + ".join(f"{length}" if times == 1 else f"{times} times {length}" for length, times in runs)


def _count_with_noun(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"
