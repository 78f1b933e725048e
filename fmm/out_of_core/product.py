"""fmm.matmul of NumPy's arrays on a CUDA device: what is asked, the schedule for it, and running that.

What NumPy rejects or alone can multiply is left to it, as ever. All else is multiplied in the type that NumPy's product
would have, tile by tile, each by the plan that fmm.matmul would choose for it on that device.
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

from fmm.arrays.library import product_shape
from fmm.arrays.numpy_library import NumpyLibrary
from fmm.config.environment import is_emulation_allowed
from fmm.config.files import current_settings
from fmm.dtypes import DTYPES
from fmm.kernels.cpu.parallel_products import share_elements
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.out_of_core.choose_schedule import DoesNotFitError, choose_schedule
from fmm.out_of_core.machine import Machine
from fmm.out_of_core.run_schedule import LaunchUnit, ScheduleRun, limited_unit, whole_unit
from fmm.out_of_core.schedule import Rates, Schedule, Times, spans
from fmm.out_of_core.transfers import Array, Transfers
from fmm.perfmodel.choose import Limits
from fmm.problem import Problem, Shape
from fmm.runtime import matmul
from fmm.runtime.decisions.decide import Decision, decide_plan, expected_seconds
from fmm.runtime.decisions.limits import PlanConstraints
from fmm.runtime.devices import Device
from fmm.runtime.progress import Progress, show_progress

SHARE = 0.9  # of the device's free memory
SPARED = 64 << 20  # bytes of it that are left in any case
STEPS = 3  # bits of a number of bytes that count: so that what is chosen for one is found again
TILES_OF_A_PLAN = 1.0, 0.7, 0.5, 0.35, 0.25  # of the room: for tiles, if a plan is given and needs the rest
SMALLER = 0.7  # of the room, if there was less memory than it seemed
ATTEMPTS = 4


@dataclass(frozen=True)
class Streamed:
    """What a product comes to: its schedule, how long it is expected to take, the bytes for its tiles' products, and
    how these are launched, by their sizes."""

    schedule: Schedule
    times: Times
    workspace: int
    dtype: str
    paces: Mapping[Shape, LaunchUnit] = field(repr=False)

    def launched(self, size: Shape) -> set[Shape]:
        """What is multiplied at once of a product of tiles of this size: all of it, or bands of its rows."""
        return {(last - first, *size[1:]) for first, last in spans(size[0], (self.paces[size].rows,))}


# ---- what is asked


def host_product(
    library: NumpyLibrary,
    a: Any,
    b: Any,
    out: Any,
    machine: Machine,
    constraints: PlanConstraints,
    progress: bool = False,
) -> Any:
    """What NumPy's matmul returns or raises, multiplied on the device."""
    a, b = plain(a), plain(b)
    dtype, shape = _type(library, a, b, out), product_shape(a.shape, b.shape)
    if not dtype or shape is None:
        return library.vendor(a, b, out)
    target = plain(out)
    if out is None or any(share_elements(x, target) for x in (a, b)):
        target = library.new_array(library.result_operand(a, b, shape, dtype))
    with show_progress(progress) as shown:
        if progress:
            shown.begin(target.size * a.shape[-1], _expected_seconds(a, b, target, dtype, machine, constraints))
        for x, y, z in matrices(a, b, target):
            _stream(x, y, z, dtype, machine, constraints, shown)
    if out is None:
        return library.returned(target)
    if not np.may_share_memory(target, out):
        library.copy(target, out)
    return out


def explained(
    library: NumpyLibrary, a: Any, b: Any, out: Any, machine: Machine, constraints: PlanConstraints
) -> Decision:
    """What `host_product` would do, and why."""
    a, b = plain(a), plain(b)
    dtype, shape = _type(library, a, b, out), product_shape(a.shape, b.shape)
    if not dtype or shape is None:
        return Decision(VENDOR, None, f"NumPy answers: {library.setting(a, b, out).refusal or 'nothing to multiply'}")
    found = list(matrices(a, b, np.broadcast_to(np.zeros((), dtype), shape)))
    (m, k), n = found[0][0].shape, found[0][1].shape[1]
    streamed = _streamed((m, k, n), dtype, machine, constraints, room(machine))
    return _decision(streamed, machine, constraints, len(found), any(map(is_mapped, (a, b, out))))


def plain(x: Any) -> Any:
    """What is mapped from a file as the array that it is; what NumPy makes arrays of, as such."""
    if isinstance(x, np.memmap):
        return x.view(np.ndarray)
    return x if x is None or isinstance(x, np.ndarray) else np.asanyarray(x)


def is_mapped(x: Any) -> bool:
    """Does the array lie in a file, or show a part of one that does?"""
    while x is not None and not isinstance(x, np.memmap | mmap):
        x = getattr(x, "base", None)
    return x is not None


def _type(library: NumpyLibrary, a: Any, b: Any, out: Any) -> str:
    """The product's; empty where NumPy is to answer. (Of float16, NumPy's BLAS has no products, but a device has.)"""
    setting, shape = library.setting(a, b, plain(out)), product_shape(a.shape, b.shape)
    if shape is None or 0 in (*a.shape, *b.shape) or not (out is None or out.shape == shape):
        return ""
    if not setting.refusal and setting.dtype in DTYPES:
        return str(setting.dtype)
    arrays = [a, b] if out is None else [a, b, plain(out)]
    halves = all(type(x) is np.ndarray and x.dtype == np.float16 for x in arrays) and not library.options
    return "float16" if halves and (out is None or out.flags.writeable) else ""


def matrices(a: Array, b: Array, c: Array) -> Iterator[tuple[Array, Array, Array]]:
    """The products of two matrices that together fill c; a stack times one matrix is one, where its rows are so."""
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


# ---- the schedule


def room(machine: Machine) -> int:
    """Bytes of the device that a product may take, in round numbers."""
    free = int(min(machine.free_bytes() * SHARE, machine.free_bytes() - SPARED))
    return _rounded(free)


def _rounded(nbytes: int) -> int:
    step = 1 << max(nbytes.bit_length() - STEPS - 1, 0)
    return max(nbytes, 0) // step * step


def _streamed(size: Shape, dtype: str, machine: Machine, constraints: PlanConstraints, nbytes: int) -> Streamed:
    return _chosen(size, dtype, nbytes, machine.rates, machine.device, constraints, current_settings())


@lru_cache(maxsize=256)
def _chosen(
    size: Shape, dtype: str, nbytes: int, rates: Rates, device: Device, constraints: PlanConstraints, settings: Hashable
) -> Streamed:
    """(`settings`: what else plans are chosen by.) A plan that is given takes the workspace that it takes, so tiles
    have less and less room until both fit."""
    if constraints.plan is None:
        return _within(nbytes, size, dtype, nbytes, rates, device, constraints)
    for share in TILES_OF_A_PLAN:
        found = _within(int(nbytes * share), size, dtype, nbytes, rates, device, constraints)
        if found.schedule.memory + _most_workspace(found, device, constraints) <= nbytes:
            break
    return found


def _within(
    tiles: int, size: Shape, dtype: str, nbytes: int, rates: Rates, device: Device, constraints: PlanConstraints
) -> Streamed:
    """The best schedule whose tiles take at most so many of all those bytes."""
    limits = _limits(constraints, nbytes // 2, device)
    plans = {constraints.plan} if constraints.plan else _tile_plans(size, dtype, limits, device)

    @lru_cache(maxsize=4096)
    def tile_seconds(tile: Shape, within: Limits) -> float:
        m, k, n = tile
        return expected_seconds(plans, Problem(m, k, n, dtype), within, device)

    def product_time(left: int) -> Callable[[Shape], float]:
        within = _limits(constraints, left, device)
        return lambda tile: tile_seconds(tile, within)

    schedule, times = choose_schedule(size, dtype, tiles, rates, lambda left: product_time(left + nbytes - tiles))
    pace = limited_unit if constraints.plan is None else whole_unit  # a plan that is given may be none for fewer rows
    seconds, left = product_time(nbytes - schedule.memory), _workspace(constraints, nbytes - schedule.memory)
    paces = {tile: pace(tile, seconds) for tile in {step.size for step in schedule.products}}
    return Streamed(schedule, times, left, dtype, paces)


# Shares of the three sides: what tiles may be like. Of these, plans are chosen, and compared for all other tiles.
TILES = ((1, 1, 1), (1, 1 / 4, 1), (1, 1 / 16, 1), (1 / 4, 1, 1), (1 / 4, 1 / 4, 1), (1 / 2, 1 / 2, 1 / 2))


def _tile_plans(size: Shape, dtype: str, limits: Limits, device: Device) -> set[Plan]:
    shapes = {tuple(max(int(side * share), 1) for side, share in zip(size, shares, strict=True)) for shares in TILES}
    return {decide_plan(Problem(m, k, n, dtype), limits, device).plan for m, k, n in shapes}


def _workspace(constraints: PlanConstraints, left: int) -> int:
    """Bytes that a tile's product may take, of so many that are left."""
    return _rounded(left) if constraints.workspace is None else min(constraints.workspace, left)


def _limits(constraints: PlanConstraints, left: int, device: Device) -> Limits:
    growth = device.error_growth if constraints.error_growth is None else constraints.error_growth
    return Limits(_workspace(constraints, left), growth, is_emulation_allowed(), constraints.componentwise)


def _decision(streamed: Streamed, machine: Machine, constraints: PlanConstraints, count: int, mapped: bool) -> Decision:
    """That of the tiles' product which takes most of the time, and the schedule around it."""
    steps, device = streamed.schedule.products, machine.device
    largest = max((size for step in steps for size in streamed.launched(step.size)), key=prod)
    limits = _limits(constraints, streamed.workspace, device)
    found = matmul.decide_without_arrays(Problem(*largest, streamed.dtype), limits, device, constraints.plan)
    needed = streamed.schedule.memory + _most_workspace(streamed, device, constraints)
    lines = list(described(streamed, machine.rates, needed))
    if count > 1:
        lines.append(f"so it is done {count} times, for each product of the stack")
    if mapped:
        lines.append("not counted in that: what it takes to read and write the files in which arrays lie")
    why = f"for the largest of {len(steps)} products of tiles: {found.reason}"
    return replace(found, reason=why, kernels=(*lines, *found.kernels))


def described(streamed: Streamed, rates: Rates, memory: int) -> Iterator[str]:
    """A schedule in words."""
    schedule, times, gib = streamed.schedule, streamed.times, 1 << 30
    cut, (m, k, n) = schedule.cut, schedule.size
    blocks = -(-m // cut.rows) * -(-n // cut.cols)
    yield (
        f"streamed: C of {m} x {n} in {_counted(blocks, 'block')} of {cut.rows} x {cut.cols}, the inner side in pieces"
        f" of {_lengths(k, cut.pieces)}, each block finished in bands of {_lengths(cut.rows, cut.bands)}"
    )
    of_a, of_b, of_c = map(len, schedule.slots.values())
    yield (
        f"on the device: {_counted(of_a, 'tile')} of A, {of_b} of B, {_counted(of_c, 'block')} of C:"
        f" {schedule.memory / gib:.2f} GiB, with the workspace {memory / gib:.2f} GiB"
    )
    yield (
        f"moved: {schedule.bytes_loaded / gib:.2f} GiB there at {rates.to_device / 1e9:.1f} GB/s,"
        f" {schedule.bytes_stored / gib:.2f} GiB back at {rates.to_host / 1e9:.1f} GB/s"
    )
    yield (
        f"predicted: {times.seconds:.3g} s (products {times.computing:.3g}, beside them {times.loading:.3g} there and"
        f" {times.storing:.3g} back)"
    )
    largest = max(streamed.paces, key=prod)
    pace = streamed.paces[largest]
    if pace.rows < largest[0]:
        yield f"launched in parts of {pace.rows} rows, {pace.seconds:.2g} s each: Ctrl-C waits for what is launched"


def _lengths(total: int, lengths: Sequence[int]) -> str:
    """What it is cut into: 4096 + 12288, or 16 times 4096."""
    found = [last - first for first, last in spans(total, lengths)]
    runs = [(length, len(list(run))) for length, run in groupby(found)]
    return " + ".join(f"{length}" if times == 1 else f"{times} times {length}" for length, times in runs)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


# ---- running it


def _by_rows(a: Array, b: Array, c: Array) -> tuple[Array, Array, Array]:
    """The same product, or that of the transposes, so that C's rows are contiguous if anything is."""
    return (b.T, a.T, c.T) if c.flags.f_contiguous and not c.flags.c_contiguous else (a, b, c)


def _expected_seconds(
    a: Array, b: Array, c: Array, dtype: str, machine: Machine, constraints: PlanConstraints
) -> float:
    """Of all products of a stack, each as the first one."""
    x, y, z = _by_rows(*next(matrices(a, b, c)))
    size = x.shape[0], x.shape[1], y.shape[1]
    return _streamed(size, dtype, machine, constraints, room(machine)).times.seconds * c.size / z.size


def _stream(
    a: Array, b: Array, c: Array, dtype: str, machine: Machine, constraints: PlanConstraints, progress: Progress
) -> None:
    a, b, c = _by_rows(a, b, c)
    size, done = (a.shape[0], a.shape[1], b.shape[1]), progress.done
    nbytes = room(machine)
    for attempt in range(ATTEMPTS):
        streamed = _streamed(size, dtype, machine, constraints, nbytes)
        try:
            _run(streamed, a, b, c, machine, constraints, progress)
            return
        except machine.out_of_memory as error:
            if attempt == ATTEMPTS - 1 or isinstance(error, DoesNotFitError):
                raise
        progress.add(done - progress.done)  # it begins anew
        nbytes = _rounded(int(nbytes * SMALLER))


def _run(
    streamed: Streamed, a: Array, b: Array, c: Array, machine: Machine, constraints: PlanConstraints, progress: Progress
) -> None:
    schedule, dtype = streamed.schedule, np.dtype(streamed.dtype)
    with machine.engine(constraints) as engine:
        transfers = Transfers(engine)
        try:
            reserved = _most_workspace(streamed, machine.device, constraints)
            run = ScheduleRun(schedule, engine, transfers, dtype, streamed.workspace, reserved, streamed.paces)
            run.multiply(a, b, c, progress.add)
        finally:
            transfers.close()


def _most_workspace(streamed: Streamed, device: Device, constraints: PlanConstraints) -> int:
    """Bytes that the tile's product takes which takes most."""
    limits, steps = _limits(constraints, streamed.workspace, device), streamed.schedule.products
    sizes = {(size, int(step.adds)) for step in steps for size in streamed.launched(step.size)}
    problems = (Problem(*size, streamed.dtype, beta=adds) for size, adds in sizes)
    return max(matmul.planned_call_bytes(problem, limits, device, constraints.plan) for problem in problems)
