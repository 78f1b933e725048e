"""Benches: the devices on which experiments run. A bench multiplies by any plan, draws numbers, and times calls.

Plans run as named: no choosing, no emulation, no check for overflow that would hand them to the vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

import fmm
from benchmarks.harness import environment_variable, host_seconds, samples_with_first_call
from fmm.arrays.host_memory import borrowed_block
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, matmul
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import Threads, blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import workspace
from fmm.problem import Problem
from fmm.runtime.devices import parse_cuda_index
from fmm.tuner.trials.environment import device_folder, environment_record

Array = Any
Call = Callable[[], object]


class Bench(Protocol):
    """A device for experiments."""

    xp: Any  # the library of its arrays
    on_host: bool
    side: int  # the largest side to which an experiment is scaled down by default

    @property
    def folder(self) -> str:
        """Its name under results/."""

    def environment_record(self, command: list[str]) -> dict[str, Any]: ...

    def generator(self, seed: int) -> Any:
        """With `random` and `standard_normal`, as NumPy's."""

    def stored(self, x: Array, dtype: str) -> Array:
        """float64 or complex128 numbers, as numbers of this type lie in memory."""

    def widened(self, x: Array, dtype: str) -> Array:
        """Return the numbers in float64 or complex128."""

    def multiply(self, plan: Plan, a: Array, b: Array, dtype: str = "") -> Array:
        """A B by this plan; PlanError if it cannot be done."""

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        """Whatever can be made ready for all of them at once."""

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        """What fmm chooses on this device."""

    @property
    def speed(self) -> float:
        """Flops a second of the vendor's float64 product, roughly."""

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Which rows, and those rows of the product, one accumulator an entry, in the order of k."""

    def call(self, plan: Plan, a: Array, b: Array) -> Call:
        """What multiplies once, everything prepared and warm."""

    def seconds(self, call: Call, repeats: int) -> float:
        """Return the seconds of one of `repeats` calls."""

    def stream(self, count: int) -> tuple[float, float]:
        """Return the rate of an addition of `count` float64 numbers: bytes and numbers a second."""

    def shared_memory(self) -> float | None:
        """Bytes a second that threads read from memory that their block shares; None where there is none."""

    def free(self) -> None:
        """Give back memory that is held for later."""


class PlannedBench:
    """What an experiment asks of a device before it measures: a CUDA device that is not there, or a processor. Of what
    fmm itself would choose it knows nothing."""

    def __init__(self, on_host: bool) -> None:
        self.on_host = on_host

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return VENDOR


def chosen_plan(problem: Problem, device: str | int, max_error_growth: float | None, emulation: bool) -> Plan:
    """What fmm chooses for a problem, by the public function; without emulation as if FMM_EMULATION=0 were set."""
    m, k, n = problem.size
    request = {"op": problem.op, "dtype": problem.dtype, "device": device, "max_error_growth": max_error_growth}
    with nullcontext() if emulation else environment_variable("FMM_EMULATION", "0"):
        return fmm.plan(m, k, n, **request).plan  # type: ignore[arg-type]


# ---- timing

LONG = 2e-2  # seconds of a call from which on its first timing is as good as a later one
SHORTEST = 2e-3  # seconds of a sample: shorter calls are repeated


def timed_in_turns(bench: Bench, calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in shuffled rounds."""
    return samples_with_first_call(calls, rounds, SHORTEST, LONG, bench.seconds)


def time_plans(
    bench: Bench, plans: Mapping[str, str], a: Array, b: Array, rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Seconds of each plan that runs, and why the others do not."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for name, text in plans.items():
        try:
            calls[name] = bench.call(Plan.parse(text), a, b)
        except (PlanError, MemoryError) as error:
            failed[name] = str(error)
    return timed_in_turns(bench, calls, rounds), failed


def vendor_speed(bench: Bench, side: int) -> float:
    """Flops a second of the vendor's float64 product of this side, warm."""
    rng = bench.generator(0)
    a, b = rng.standard_normal((side, side)), rng.standard_normal((side, side))
    seconds, _ = time_plans(bench, {"vendor": "vendor"}, a, b, 3)
    bench.free()
    return float(2 * side**3 / min(seconds["vendor"]))


# ---- this processor

ROWS = 65  # of a large product that are computed row by column on the host, the last one among them
WHOLE = 192  # rows of a product that is small enough for all


class HostBench:
    """This processor, with as many threads as BLAS uses."""

    xp: Any = np
    on_host = True
    side = 2048

    @property
    def folder(self) -> str:
        return device_folder()

    def environment_record(self, command: list[str]) -> dict[str, Any]:
        return environment_record(command)

    def generator(self, seed: int) -> Any:
        return np.random.Generator(np.random.SFC64(seed))

    def stored(self, x: Array, dtype: str) -> Array:
        return x.astype(dtype)

    def widened(self, x: Array, dtype: str) -> Array:
        return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)

    def multiply(self, plan: Plan, a: Array, b: Array, dtype: str = "") -> Array:
        c = np.empty((a.shape[0], b.shape[1]), a.dtype)
        self._run(plan, a, b, c)
        return c

    def _run(self, plan: Plan, a: Array, b: Array, c: Array) -> None:
        if not plan.levels:
            matmul(a, b, out=c)
            return
        (m, k), n = a.shape, b.shape[1]
        with borrowed_block(workspace(plan, m, k, n, c.itemsize)) as block:
            execute_plan(plan, a, b, c, NumpyBackend(Threads(blas_threads())), Arena(block, c.dtype))

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        return None

    def chosen(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return chosen_plan(problem, "cpu", max_error_growth, emulation)

    @cached_property
    def speed(self) -> float:
        return vendor_speed(self, 512)

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return some evenly spaced rows of a large product, summed in the order of one loop over k."""
        count = len(a) if len(a) <= WHOLE else ROWS
        rows = np.unique(np.linspace(0, len(a) - 1, count).astype(np.intp))
        left, found = a[rows], np.zeros((len(rows), b.shape[1]), a.dtype)
        for i in range(len(b)):
            found += left[:, i : i + 1] * b[i]
        return rows, found

    def call(self, plan: Plan, a: Array, b: Array) -> Call:
        c = np.empty((a.shape[0], b.shape[1]), a.dtype)
        made = partial(self._run, plan, a, b, c)
        made()
        return made

    def seconds(self, call: Call, repeats: int) -> float:
        return host_seconds(call, repeats)

    def stream(self, count: int) -> tuple[float, float]:
        x, y, z = (np.ones(count) for _ in range(3))
        seconds = min(self.seconds(partial(np.add, x, y, out=z), 1) for _ in range(5))
        return 24 * count / seconds, count / seconds

    def shared_memory(self) -> float | None:
        return None

    def free(self) -> None:
        return None


# ---- by name


def bench_of(name: str) -> Bench:
    """`cpu`, or a CUDA device by its number or as `cuda:0`; ValueError if it does not answer."""
    if name == "cpu":
        return HostBench()
    index = parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        from benchmarks.papers.cuda_bench import CudaBench  # CuPy

        return CudaBench(index)
    except Exception as error:  # whatever the import or the driver raises
        raise ValueError(f"the device {name!r} does not answer: {type(error).__name__}: {error}") from None
