"""A CUDA device as the tuner sees it: plans as lists of launches, cuBLAS as the vendor, events and rotated buffers."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

import cupy
import numpy as np

from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import LaunchList, Turn, Work
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, Rate
from fmm.perfmodel.candidates import peer_plans, probed_plans
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Layout, Layouts, Problem
from fmm.runtime import devices
from fmm.runtime.device_backend import DeviceBackend, record_for_device
from fmm.tuner.devices.compile_ahead import Ahead, compiling_ahead
from fmm.tuner.devices.cuda import Operands
from fmm.tuner.devices.device import BEST, GPU_EFFORTS, TRIES, Effort, FailedError, Run

LEAST = 5.0  # milliseconds of a sample: shorter runs are repeated
# A device that was idle runs for a while faster than its power limit allows for long (on an H200 the first products by
# 5 to 10 %). After so many idle seconds it is therefore kept busy for so many milliseconds before a sample.
IDLE, HEAT = 0.004, 40.0
ROWS = 16  # rows of a result that are checked
PARTS: Mapping[str, Work] = {"sums": "sums", "products": "product"}


class CudaDevice:
    """The device with this number."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._ahead: Ahead | None = None

    @cached_property
    def identity(self) -> Identity:
        return devices.cuda_device(self.index).identity

    @property
    def chip(self) -> Chip | None:
        return devices.cuda_device(self.index).chip

    @property
    def conditions(self) -> Mapping[str, Any]:
        facts = cupy.cuda.runtime.getDeviceProperties(self.index)
        found = {"uuid": bytes(facts["uuid"]).hex() if "uuid" in facts else "", "memory": facts["totalGlobalMem"]}
        with suppress(Exception):  # clocks and power come from a library that not every machine has
            found |= _clocks(self.index)
        return found

    @property
    def dtypes(self) -> Sequence[str]:
        return "float32", "float64", "bfloat16", "tf32", "float16", "complex64", "complex128"

    @property
    def memory(self) -> int:
        with cupy.cuda.Device(self.index):
            free, _ = cupy.cuda.runtime.memGetInfo()
            pool = cupy.get_default_memory_pool()
            return int(0.9 * (free + pool.total_bytes() - pool.used_bytes()))

    def untuned(self) -> Calibration:
        """By the datasheet; of an unknown device, numbers that the first measurements replace."""
        if (known := devices.cuda_device(self.index).guess) is not None:
            return known
        rates = {t: Rate(1e13, 1e6, 32.0) for t in DTYPES}
        return Calibration(self.identity.name, "unknown", MappingProxyType(rates), 1e12, 4e6, 4e-6, batches=True)

    def known(self, dtype: str) -> Calibration:
        """By tunings of other cards of this name, if such a model ships with the package."""
        return shipped_model(self.identity, dtype) or self.untuned()

    def candidates(self) -> Sequence[Plan]:
        return probed_plans("cuda")

    def peers(self) -> Sequence[Plan]:
        return peer_plans("cuda")

    @property
    def efforts(self) -> Mapping[str, Effort]:
        return GPU_EFFORTS

    @contextmanager
    def open(self, problem: Problem, seed: int) -> Iterator[CudaSession]:
        with cupy.cuda.Device(self.index):
            try:
                yield CudaSession(problem, seed)
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None
            finally:
                cupy.get_default_memory_pool().free_all_blocks()

    @contextmanager
    def ahead(self, dtypes: Sequence[str]) -> Iterator[None]:
        with compiling_ahead(self.index, dtypes, self.candidates()) as self._ahead:
            try:
                yield
            finally:
                self._ahead = None

    def wait(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return self._ahead is None or self._ahead.wait(dtype, plan, seconds)


def _clocks(index: int) -> dict[str, Any]:
    fields = ["clocks.sm", "clocks.mem", "power.limit", "temperature.gpu", "driver_version"]
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    values = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip().split(", ")
    return dict(zip(fields, values, strict=True))


def placed(problem: Problem) -> Layouts | tuple[()]:
    """How the operands of a session lie: row by row, but for A's adjoint, which lies as A does."""
    if not problem.writes_triangle:
        return ()
    rows, inner = Layout("C", max(problem.n, 1)), max(problem.k, 1)
    return Layout("C", inner), Layout("F", inner), rows


class CudaSession:
    """Sets of operands of one problem, and the launch lists that were made ready on them."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.backend = DeviceBackend()
        cupy.random.seed(seed)
        self.operands = Operands(problem.size, problem.dtype, ROWS, problem.writes_triangle)
        self.asked = Problem(*problem.size, problem.dtype, placed(problem), op=problem.op)
        self.sets = self.operands.sets
        self.workspace = cupy.empty(1, cupy.uint8)
        self._launches: dict[Run, LaunchList] = {}
        self._repeats: dict[Run, int] = {}
        self._busy = 0.0  # when the device last was

    def prepare(self, run: Run) -> None:
        try:
            whole = record_for_device(run.plan, self.asked)
            if whole.workspace > self.workspace.nbytes:
                self.workspace = cupy.empty(1, cupy.uint8)  # give it back before asking for more
                self.workspace = cupy.empty(whole.workspace, cupy.uint8)
            self._play(whole, 0)  # fills the workspace with numbers, for the parts
            if run.part == "whole" and run.plan != VENDOR:
                self._check(run.plan)
            kept = PARTS.get(run.part)
            steps = tuple(step for step in whole.steps if not isinstance(step, Turn) and step.does == kept)
            self._launches[run] = whole if kept is None else replace(whole, steps=steps, lanes=(0,) * len(steps))
            self._repeats[run] = max(int(LEAST / max(self._milliseconds(run, 2), 1e-3)), 1)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise FailedError(f"out of memory: {error}") from None
        except Exception as error:  # whatever a plan may do wrong, it is a row of the trials and not the end
            raise FailedError(f"{type(error).__name__}: {error}") from None

    def sample(self, run: Run) -> float:
        if time.perf_counter() - self._busy > IDLE:
            self._heat(run)
        if run.part == BEST:
            found = min(self._milliseconds(run, 1) for _ in range(TRIES))
        else:
            found = self._milliseconds(run, self._repeats[run])
        self._busy = time.perf_counter()
        return found / 1000

    def _heat(self, run: Run) -> None:
        spent = 0.0
        while spent < HEAT:
            spent += self._repeats[run] * self._milliseconds(run, self._repeats[run])

    def _milliseconds(self, run: Run, repeats: int) -> float:
        return event_milliseconds(lambda i: self._play(self._launches[run], i), repeats)

    def _play(self, launches: LaunchList, i: int) -> None:
        a, b, c = self.sets[i % len(self.sets)]
        self.backend.run(launches, a.data.ptr, b.data.ptr, c.data.ptr, self.workspace.data.ptr)

    # ---- is the result right?

    def _check(self, plan: Plan) -> None:
        error, _ = self.operands.errors()
        kind = self.problem.type
        # Where numbers are rounded to few bits only once, at the start or at the end, rounding errors do not add up.
        rounds_once = kind.sums_wider or bool(kind.stored_as)
        added_up = kind.unit_roundoff if rounds_once else 2 * kind.unit_roundoff * np.sqrt(self.problem.k)
        allowed = 20 * expected_error_growth(plan, kind.name) * added_up
        if not error <= allowed:
            raise FailedError(f"wrong result: relative error {error:.3g}, at most {allowed:.3g} is expected")


def event_milliseconds(call: Callable[[int], object], repeats: int) -> float:
    """Milliseconds of one call, the mean of `repeats` (each is told its number), by events on the current stream."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for i in range(repeats):
        call(i)
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / repeats
