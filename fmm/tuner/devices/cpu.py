"""The CPU as a device of the tuner: fmm.matmul runs the plans, and numpy.matmul is the vendor's product."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np

import fmm
from fmm.arrays import host_memory
from fmm.arrays.numpy_library import NUMPY
from fmm.config import identity
from fmm.config.identity import Identity
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Arena, Array, matmul
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.parallel_products import StepTimes, measure_step_times, threads_per_product
from fmm.kernels.cpu.thread_pool import blas_threads, usable_processors
from fmm.kernels.cpu.worker_threads import run_on_worker
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.kernels.plans.workspace import plan_workspace_bytes
from fmm.perfmodel.calibration import Calibration
from fmm.perfmodel.candidates import probed_plans
from fmm.perfmodel.default_calibration import cpu_calibration, with_concurrent_products
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Problem
from fmm.runtime.decisions.limits import default_workspace_bytes
from fmm.runtime.overflow import may_overflow
from fmm.tuner.devices.device import (
    CPU_EFFORTS,
    SHORTEST_SAMPLE_COUNT,
    SHORTEST_SAMPLE_PART,
    Effort,
    RunFailedError,
    TimedRun,
)

# smallest duration of a sample, in seconds: a short call is repeated, and the sample is the mean
MIN_SAMPLE_SECONDS = 2e-3
CHECKED_ROWS = 8  # largest number of rows of a result that `_check_result` compares with the exact product


class CpuDevice:
    """This machine's processor with the current number of BLAS threads, as a device of the tuner."""

    chip = None
    option_value = "cpu"

    def __init__(self) -> None:
        self.threads = blas_threads()
        self.concurrent_products = run_on_worker(partial(_concurrent_products, self.threads))
        self._normal: tuple[tuple[str, int], Array] | None = None

    @cached_property
    def identity(self) -> Identity:
        return identity.cpu_identity(self.threads)

    @property
    def measurement_conditions(self) -> Mapping[str, Any]:
        load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
        return {
            "processor": identity.processor_name(),
            "processors": usable_processors(),
            "threads": self.threads,
            "load": load,
            "memory": host_memory.total_bytes(),
        }

    @property
    def dtypes(self) -> Sequence[str]:
        return "float32", "float64", "complex64", "complex128"

    @property
    def memory_bytes(self) -> int:
        return default_workspace_bytes(NUMPY, self.threads)

    def untuned_model(self) -> Calibration:
        return with_concurrent_products(cpu_calibration(self.threads), self.concurrent_products)

    def prior_model(self, dtype: str) -> Calibration:
        return self.untuned_model()

    def candidate_plans(self) -> Sequence[Plan]:
        return probed_plans("cpu")

    def vendor_alternatives(self) -> Sequence[Plan]:
        return ()

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        return CPU_EFFORTS

    @contextmanager
    def open_session(self, problem: Problem, seed: int) -> Iterator[CpuSession]:
        m, k, n = problem.size
        kept = self._normal[1].nbytes if self._normal else 0
        if (m * k + k * n + m * n) * problem.itemsize > host_memory.available_bytes() + kept:
            raise MemoryError  # Linux would allocate the matrices, but kill this process when it fills them
        numbers = self._random_numbers(problem.dtype, seed, m * k + k * n)
        a, b = numbers[: m * k].reshape(m, k), numbers[m * k : m * k + k * n].reshape(k, n)
        b = a.conj().T if problem.writes_triangle else b
        yield CpuSession(problem, a, b, np.empty((m, n), problem.dtype), self.threads)

    def _random_numbers(self, dtype: str, seed: int, count: int) -> Array:
        """Return at least `count` normally distributed random numbers; the same type and seed give the same numbers."""
        if self._normal is None or self._normal[0] != (dtype, seed) or self._normal[1].size < count:
            rng = np.random.Generator(np.random.SFC64(seed))
            real = np.float64 if dtype in ("float64", "complex128") else np.float32
            parts = 2 if dtype.startswith("complex") else 1
            self._normal = None
            self._normal = (dtype, seed), rng.standard_normal(parts * count, dtype=real).view(dtype)
        return self._normal[1]

    def compile_ahead(self, dtypes: Sequence[str]) -> AbstractContextManager[object]:
        return nullcontext()

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return True


@dataclass
class CpuSession:
    """The operands and the result of one problem, with methods that time runs on these operands."""

    problem: Problem
    a: Array
    b: Array
    c: Array
    threads: int

    def __post_init__(self) -> None:
        self._repeats: dict[TimedRun, int] = {}
        self._spent: dict[Plan, dict[str, float]] = {}

    @cached_property
    def _exact_rows_to_check(self) -> tuple[Array, Array]:
        """Return the indices of the rows of C to check, and these rows of the exact product in double precision."""
        rows = np.linspace(0, self.problem.m - 1, min(CHECKED_ROWS, self.problem.m)).astype(np.intp)
        wide = np.result_type(self.a.dtype, np.float64)
        exact = self.a[rows].astype(wide) @ self.b.astype(wide, copy=False)
        return rows, exact

    def prepare_run(self, run: TimedRun) -> None:
        call = self._run_function(run)
        start = time.perf_counter()
        try:
            call()
        except PlanError as error:
            raise RunFailedError(str(error)) from None
        self._repeats[run] = max(int(MIN_SAMPLE_SECONDS / max(time.perf_counter() - start, 1e-7)), 1)
        if run.part == "whole" and run.plan != VENDOR:
            self._check_result(run.plan)

    def _check_result(self, plan: Plan) -> None:
        """Raise RunFailedError if the result of the last run differs too much from the exact product."""
        rows, exact = self._exact_rows_to_check
        found = _frobenius_distance(self.c[rows], exact)
        growth, eps = expected_error_growth(plan, self.problem.dtype, True), float(np.finfo(self.c.dtype).eps)
        allowed = 20 * growth * eps * np.sqrt(self.problem.k) * float(np.linalg.norm(exact))
        if not found <= allowed:
            raise RunFailedError(f"wrong result: error {found:.3g}, at most {allowed:.3g} is expected")

    def sample_seconds(self, run: TimedRun) -> float:
        if run.part == SHORTEST_SAMPLE_PART:
            return self._shortest_product_seconds()
        if run.part != "whole":
            return self._sums_or_products_seconds(run)
        call, repeats = self._run_function(run), self._repeats[run]
        _wake_blas_threads()
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def _shortest_product_seconds(self) -> float:
        """Return the shortest time of many products, in seconds: an estimate of the time on an idle machine."""
        found = float("inf")
        for _ in range(SHORTEST_SAMPLE_COUNT):
            start = time.perf_counter()
            matmul(self.a, self.b, out=self.c)
            found = min(found, time.perf_counter() - start)
        return found

    def _run_function(self, run: TimedRun) -> Callable[[], Any]:
        """Return a function without arguments that executes a run."""
        if run.part not in ("whole", SHORTEST_SAMPLE_PART):
            return partial(self._sums_or_products_seconds, run)
        if self.problem.writes_triangle:
            # With the vendor's plan, fmm.gram calls BLAS's syrk for one triangle and mirrors the triangle.
            return partial(fmm.gram, self.a, None, self.c, rows=True, plan=run.plan)
        if run.plan == VENDOR:
            return partial(matmul, self.a, self.b, out=self.c)
        return partial(fmm.matmul, self.a, self.b, out=self.c, plan=run.plan)

    def _sums_or_products_seconds(self, run: TimedRun) -> float:
        """Return the seconds that a plan spends in its sums, or in its leaf products, as `run.part` says.

        One execution of the plan measures two times, of its sums and of its products. The second of these times is
        saved, and a later call returns it without an execution.
        """
        kept = self._spent.setdefault(run.plan, {})
        if run.part not in kept:
            kept.update(vars(self._measure_step_seconds(run.plan)))
        return kept.pop(run.part)

    def _measure_step_seconds(self, plan: Plan) -> StepTimes:
        """Execute a plan; return the seconds spent in its sums, and the seconds spent in its leaf products."""
        m, k, n = self.problem.size
        with host_memory.borrow_cached_memory(plan_workspace_bytes(plan, m, k, n, self.problem.itemsize)) as block:
            arena = Arena(block, self.c.dtype)

            def execute_steps(backend: NumpyBackend) -> None:
                backend.run_overflow_check(
                    (self.a, self.b), partial(may_overflow, plan, self.a, self.b, backend.threads)
                )
                execute_plan(plan, self.a, self.b, self.c, backend, arena)

            return measure_step_times(self.threads, 2 * m * k * n, execute_steps)


def _concurrent_products(threads: int) -> int:
    """Return how many leaf products a plan runs concurrently with this number of BLAS threads."""
    with threads_per_product(threads) as (at_a_time, _):
        return at_a_time


def _wake_blas_threads() -> None:
    """Multiply two small matrices before a sample, so that all BLAS threads are awake.

    For 0.1 s after a product, OpenBLAS's threads wait in a busy loop and slow down the plan's own threads. Without the
    small product, a plan's time would depend on the time since the previous measurement.
    """
    matmul(WARM_UP_MATRIX, WARM_UP_MATRIX)


WARM_UP_MATRIX = np.ones((256, 256))  # both operands of the product in `_wake_blas_threads`


def _frobenius_distance(found: Array, exact: Array) -> float:
    """Return the Frobenius norm of `found` - `exact`, the error of a computed product."""
    return float(np.linalg.norm(found - exact))
