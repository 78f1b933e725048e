"""This processor for experiments: plans on NumPy's arrays, with as many threads as BLAS uses."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
from fmm.kernels.cpu.host_arrays import Arena, matmul
from fmm.kernels.cpu.thread_pool import Threads, blas_threads

from benchmarks.papers.bench import Array, Call, chosen_plan, vendor_speed
from fmm.arrays.host_memory import borrowed_block
from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import workspace
from fmm.problem import Problem
from fmm.tuner.trials.environment import device_folder, environment

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

    def environment(self, command: list[str]) -> dict[str, Any]:
        return environment(command)

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
        """Of a large product so many rows, evenly spaced; the order of the sums is that of one loop over k."""
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
        start = time.perf_counter()
        for _ in range(repeats):
            call()
        return (time.perf_counter() - start) / repeats

    def stream(self, count: int) -> tuple[float, float]:
        x, y, z = (np.ones(count) for _ in range(3))
        seconds = min(self.seconds(partial(np.add, x, y, out=z), 1) for _ in range(5))
        return 24 * count / seconds, count / seconds

    def shared_memory(self) -> float | None:
        return None

    def free(self) -> None:
        return None
