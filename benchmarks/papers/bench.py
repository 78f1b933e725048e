"""The devices on which experiments run: a bench multiplies by any plan, draws random numbers, and times calls.

A plan runs exactly as it is named: nothing is chosen or emulated, and no check for overflow hands a product to the
vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import cached_property, partial
from typing import Any, Protocol

import numpy as np

import fmm
from benchmarks.harness import environment_variable, host_seconds, samples_with_first_call
from fmm.arrays.host_memory import borrow_cached_memory
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, matmul
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup, blas_threads
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.problem import Problem
from fmm.runtime.devices import parse_cuda_index
from fmm.tuner.trials.environment import environment_record, results_folder_name

Array = Any
Call = Callable[[], object]


class Bench(Protocol):
    """A device for experiments."""

    xp: Any  # the library of its arrays
    on_host: bool
    side: int  # largest side of an experiment; larger experiments are scaled down by default

    @property
    def folder(self) -> str:
        """The name of the device's folder in results/."""

    def environment_record(self, command: list[str]) -> dict[str, Any]: ...

    def generator(self, seed: int) -> Any:
        """Return a random generator with NumPy's methods `random` and `standard_normal`."""

    def to_storage_type(self, x: Array, dtype: str) -> Array:
        """Return float64 or complex128 numbers as this type is stored in memory."""

    def to_double(self, x: Array, dtype: str) -> Array:
        """Return the numbers in float64 or complex128."""

    def multiply(self, plan: Plan, a: Array, b: Array, dtype: str = "") -> Array:
        """Return A B by this plan; raise PlanError if the plan cannot run."""

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        """Compile the kernels of all these products at once."""

    def choose_plan(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        """Return fmm's choice on this device."""

    @property
    def speed(self) -> float:
        """The approximate flops per second of the vendor's float64 product."""

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return some row numbers, and these rows of A B, each entry one sum in the order of k."""

    def call(self, plan: Plan, a: Array, b: Array) -> Call:
        """Return a call that multiplies once; its kernels are compiled and its memory is allocated."""

    def seconds(self, call: Call, repeats: int) -> float:
        """Return the seconds of one of `repeats` calls."""

    def stream(self, count: int) -> tuple[float, float]:
        """Return the rate of adding `count` float64 numbers: bytes and numbers per second."""

    def shared_memory(self) -> float | None:
        """Return the bytes per second that threads read from shared memory; None on a CPU."""

    def free(self) -> None:
        """Return cached memory to the device."""


class PlannedBench:
    """A device that plans experiments without measuring: a CUDA device that is absent, or a processor.

    Its `chosen` is always the vendor, because fmm's choice depends on the device.
    """

    def __init__(self, on_host: bool) -> None:
        self.on_host = on_host

    def choose_plan(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return VENDOR


def chosen_plan(problem: Problem, device: str | int, max_error_growth: float | None, emulation: bool) -> Plan:
    """Return fmm's choice for a problem by the public function; without emulation as under FMM_EMULATION=0."""
    m, k, n = problem.size
    request = {"op": problem.op, "dtype": problem.dtype, "device": device, "max_error_growth": max_error_growth}
    with nullcontext() if emulation else environment_variable("FMM_EMULATION", "0"):
        return fmm.plan(m, k, n, **request).plan  # type: ignore[arg-type]


# ---- timing

LONG_CALL_SECONDS = 2e-2  # seconds of a call from which on its first timing is as good as a later one
SAMPLE_SECONDS = 2e-3  # seconds of a sample: shorter calls are repeated


def time_in_rounds(bench: Bench, calls: Mapping[str, Call], rounds: int) -> dict[str, list[float]]:
    """Return the seconds of each call in shuffled rounds."""
    return samples_with_first_call(calls, rounds, SAMPLE_SECONDS, LONG_CALL_SECONDS, bench.seconds)


def time_plans(
    bench: Bench, plans: Mapping[str, str], a: Array, b: Array, rounds: int
) -> tuple[dict[str, list[float]], dict[str, str]]:
    """Return the seconds of each plan that runs, and the reason for each plan that does not run."""
    calls: dict[str, Call] = {}
    failed: dict[str, str] = {}
    for name, text in plans.items():
        try:
            calls[name] = bench.call(Plan.parse(text), a, b)
        except (PlanError, MemoryError) as error:
            failed[name] = str(error)
    return time_in_rounds(bench, calls, rounds), failed


def vendor_speed(bench: Bench, side: int) -> float:
    """Return the flops per second of the vendor's float64 product of this side, after a warm-up."""
    rng = bench.generator(0)
    a, b = rng.standard_normal((side, side)), rng.standard_normal((side, side))
    seconds, _ = time_plans(bench, {"vendor": "vendor"}, a, b, 3)
    bench.free()
    return float(2 * side**3 / min(seconds["vendor"]))


# ---- this processor

SAMPLED_ROWS = 65  # rows of a large product that are computed row by column on the host
MAX_WHOLE_ROWS = 192  # most rows of a product of which all rows are computed


class HostBench:
    """This processor, with as many threads as BLAS uses."""

    xp: Any = np
    on_host = True
    side = 2048

    @property
    def folder(self) -> str:
        return results_folder_name()

    def environment_record(self, command: list[str]) -> dict[str, Any]:
        return environment_record(command)

    def generator(self, seed: int) -> Any:
        return np.random.Generator(np.random.SFC64(seed))

    def to_storage_type(self, x: Array, dtype: str) -> Array:
        return x.astype(dtype)

    def to_double(self, x: Array, dtype: str) -> Array:
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
        with borrow_cached_memory(plan_workspace_bytes(plan, m, k, n, c.itemsize)) as block:
            execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(blas_threads())), Arena(block, c.dtype))

    def prepare(self, products: Sequence[tuple[Plan, Problem]]) -> None:
        return None

    def choose_plan(self, problem: Problem, max_error_growth: float | None = None, emulation: bool = True) -> Plan:
        return chosen_plan(problem, "cpu", max_error_growth, emulation)

    @cached_property
    def speed(self) -> float:
        return vendor_speed(self, 512)

    def row_by_column(self, a: Array, b: Array) -> tuple[Array, Array]:
        """Return some evenly spaced rows of a large product, summed in the order of one loop over k."""
        count = len(a) if len(a) <= MAX_WHOLE_ROWS else SAMPLED_ROWS
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
    """Return the bench of `cpu`, or of a CUDA device by its number or as `cuda:0`.

    Raise ValueError if the device does not answer.
    """
    if name == "cpu":
        return HostBench()
    index = parse_cuda_index(int(name) if name.isdecimal() else name)
    try:
        from benchmarks.papers.cuda_bench import CudaBench  # CuPy

        return CudaBench(index)
    except Exception as error:  # whatever the import or the driver raises
        raise ValueError(f"the device {name!r} does not answer: {type(error).__name__}: {error}") from None
