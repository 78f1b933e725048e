"""A CUDA device of the tuner: plans run as launch lists, cuBLAS is the vendor, and CUDA events measure the time.

Consecutive calls use different sets of operands, so that no operand is still in the GPU's cache from the previous call.
"""

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

from fmm.config.environment import vendor_variables
from fmm.config.files import shipped_model
from fmm.config.identity import Identity
from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import LaunchList, LaunchPurpose, StreamSync
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.calibration import Calibration, ProductRate
from fmm.perfmodel.candidates import probed_plans, vendor_alternative_plans
from fmm.perfmodel.stability import expected_error_growth
from fmm.problem import Layout, Layouts, Problem
from fmm.runtime import devices
from fmm.runtime.device_backend import DeviceBackend, record_plan_for_device
from fmm.tuner.devices.compile_ahead import CompileWorkers, compile_in_background, plans_to_compile
from fmm.tuner.devices.device import (
    GPU_EFFORTS,
    SHORTEST_SAMPLE_COUNT,
    SHORTEST_SAMPLE_PART,
    Effort,
    RunFailedError,
    TimedRun,
)

# smallest duration of a sample, in milliseconds: a short run is repeated, and the sample is the mean
MIN_SAMPLE_MILLISECONDS = 5.0
# After a pause, an H200 runs 5 to 10 % faster until it reaches its power limit again. If the device was idle for more
# than MAX_IDLE_SECONDS, the session repeats the run for HEAT_MILLISECONDS before the next sample, until the GPU is at
# its power limit again.
MAX_IDLE_SECONDS, HEAT_MILLISECONDS = 0.004, 40.0
CHECKED_ROWS = 16  # largest number of rows of a result that `_check_result` compares with the exact product
# To time only the sums or only the leaf products of a plan (TimedRun.part), a session runs only the launches with this
# purpose.
LAUNCH_PURPOSE_BY_PART: Mapping[str, LaunchPurpose] = {"sums": "sums", "products": "product"}


class CudaDevice:
    """The CUDA device with this index, as a device of the tuner."""

    def __init__(self, index: int) -> None:
        self.index = index
        self._ahead: CompileWorkers | None = None

    @cached_property
    def identity(self) -> Identity:
        return devices.cuda_device(self.index).identity

    @property
    def chip(self) -> Chip | None:
        return devices.cuda_device(self.index).chip

    @property
    def option_value(self) -> str:
        return str(self.index)

    @property
    def measurement_conditions(self) -> Mapping[str, Any]:
        facts = cupy.cuda.runtime.getDeviceProperties(self.index)
        found = {"uuid": bytes(facts["uuid"]).hex() if "uuid" in facts else "", "memory": facts["totalGlobalMem"]}
        if variables := vendor_variables():  # record the environment variables that change how cuBLAS multiplies
            found["vendor_variables"] = variables
        with suppress(Exception):  # the program nvidia-smi may be missing or may fail
            found |= _nvidia_smi_fields(self.index)
        return found

    @property
    def dtypes(self) -> Sequence[str]:
        return "float32", "float64", "bfloat16", "tf32", "float16", "complex64", "complex128"

    @property
    def memory_bytes(self) -> int:
        with cupy.cuda.Device(self.index):
            free, _ = cupy.cuda.runtime.memGetInfo()
            pool = cupy.get_default_memory_pool()
            return int(0.9 * (free + pool.total_bytes() - pool.used_bytes()))

    def untuned_model(self) -> Calibration:
        """Return the model of the GPU's datasheet; for a GPU without a datasheet, a model with rough rates."""
        if (known := devices.cuda_device(self.index).guess) is not None:
            return known
        rates = {t: ProductRate(1e13, 1e6, 32.0) for t in DTYPES}
        return Calibration(self.identity.name, "unknown", MappingProxyType(rates), 1e12, 4e6, 4e-6, batches=True)

    def prior_model(self, dtype: str) -> Calibration:
        """Return the model that fmm ships for GPUs of this name; the untuned model if none is shipped."""
        return shipped_model(self.identity, dtype) or self.untuned_model()

    def candidate_plans(self) -> Sequence[Plan]:
        return probed_plans("cuda")

    def vendor_alternatives(self) -> Sequence[Plan]:
        return vendor_alternative_plans("cuda")

    @property
    def efforts_by_name(self) -> Mapping[str, Effort]:
        return GPU_EFFORTS

    @contextmanager
    def open_session(self, problem: Problem, seed: int) -> Iterator[CudaSession]:
        with cupy.cuda.Device(self.index):
            try:
                yield CudaSession(problem, seed)
            except cupy.cuda.memory.OutOfMemoryError as error:
                raise MemoryError(str(error)) from None
            finally:
                cupy.get_default_memory_pool().free_all_blocks()

    @contextmanager
    def compile_ahead(self, dtypes: Sequence[str]) -> Iterator[None]:
        plans = plans_to_compile(self.candidate_plans())
        with compile_in_background(self.index, dtypes, plans) as self._ahead:
            try:
                yield
            finally:
                self._ahead = None

    def wait_for_kernels(self, dtype: str, plan: Plan, seconds: float) -> bool:
        return self._ahead is None or self._ahead.wait_for_plan(dtype, plan, seconds)


def _nvidia_smi_fields(index: int) -> dict[str, Any]:
    """Return clocks (MHz), power limit (W), temperature (Celsius) and driver version, as nvidia-smi prints them."""
    fields = ["clocks.sm", "clocks.mem", "power.limit", "temperature.gpu", "driver_version"]
    command = ["nvidia-smi", f"--id={index}", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits"]
    values = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip().split(", ")
    return dict(zip(fields, values, strict=True))


def operand_layouts(problem: Problem) -> Layouts | tuple[()]:
    """Return the layouts of A, B and C for a gram product; an empty tuple for other products.

    In a gram product, B is the adjoint of A, stored in the memory of A, and therefore column-major. The empty tuple
    means that all operands are row-major.
    """
    if not problem.writes_triangle:
        return ()
    rows, inner = Layout("C", max(problem.n, 1)), max(problem.k, 1)
    return Layout("C", inner), Layout("F", inner), rows


class CudaSession:
    """Several sets of operands of one problem in device memory, and the launch lists of the prepared runs."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.backend = DeviceBackend()
        cupy.random.seed(seed)
        self.operands = OperandSets(problem.size, problem.dtype, CHECKED_ROWS, problem.writes_triangle)
        self.problem_with_layouts = Problem(*problem.size, problem.dtype, operand_layouts(problem), op=problem.op)
        self.sets = self.operands.sets
        self.workspace = cupy.empty(1, cupy.uint8)
        self._launches: dict[TimedRun, LaunchList] = {}
        self._repeats: dict[TimedRun, int] = {}
        self._last_sample_end = 0.0  # value of time.perf_counter() at the end of the last sample

    def prepare_run(self, run: TimedRun) -> None:
        try:
            whole = record_plan_for_device(run.plan, self.problem_with_layouts)
            if whole.workspace > self.workspace.nbytes:
                # free the old workspace before the larger workspace is allocated
                self.workspace = cupy.empty(1, cupy.uint8)
                self.workspace = cupy.empty(whole.workspace, cupy.uint8)
            # run the whole plan once: sums or products alone would read uninitialized temporaries
            self._launch_on_operands(whole, 0)
            if run.part == "whole" and run.plan != VENDOR:
                self._check_result(run.plan)
            kept = LAUNCH_PURPOSE_BY_PART.get(run.part)
            steps = tuple(step for step in whole.steps if not isinstance(step, StreamSync) and step.does == kept)
            self._launches[run] = whole if kept is None else replace(whole, steps=steps, streams=(0,) * len(steps))
            self._repeats[run] = max(int(MIN_SAMPLE_MILLISECONDS / max(self._mean_milliseconds(run, 2), 1e-3)), 1)
        except cupy.cuda.memory.OutOfMemoryError as error:
            raise RunFailedError(f"out of memory: {error}") from None
        # any failure of a plan becomes a RunFailedError, which the tuner records in the trials
        except Exception as error:
            raise RunFailedError(f"{type(error).__name__}: {error}") from None

    def sample_seconds(self, run: TimedRun) -> float:
        if time.perf_counter() - self._last_sample_end > MAX_IDLE_SECONDS:
            self._heat_device(run)
        if run.part == SHORTEST_SAMPLE_PART:
            found = min(self._mean_milliseconds(run, 1) for _ in range(SHORTEST_SAMPLE_COUNT))
        else:
            found = self._mean_milliseconds(run, self._repeats[run])
        self._last_sample_end = time.perf_counter()
        return found / 1000

    def _heat_device(self, run: TimedRun) -> None:
        """Repeat a run for HEAT_MILLISECONDS, so that the GPU has reached its power limit before the next sample."""
        spent = 0.0
        while spent < HEAT_MILLISECONDS:
            spent += self._repeats[run] * self._mean_milliseconds(run, self._repeats[run])

    def _mean_milliseconds(self, run: TimedRun, repeats: int) -> float:
        """Return the mean time of `repeats` executions of a run, on alternating sets of operands, in milliseconds."""
        return mean_event_milliseconds(lambda i: self._launch_on_operands(self._launches[run], i), repeats)

    def _launch_on_operands(self, launches: LaunchList, i: int) -> None:
        """Start all launches of a launch list on a set of operands; `i` modulo the number of sets selects the set."""
        a, b, c = self.sets[i % len(self.sets)]
        self.backend.run_launches(launches, a.data.ptr, b.data.ptr, c.data.ptr, self.workspace.data.ptr)

    # ---- the check of results

    def _check_result(self, plan: Plan) -> None:
        """Raise RunFailedError if C of the first set of operands differs too much from the exact product."""
        error, _ = self.operands.checked_result_errors()
        kind = self.problem.element_type
        # For a type that is accumulated in a wider type, each element of C is rounded once, so the error does not grow
        # with k.
        rounds_once = kind.sums_wider or bool(kind.stored_as)
        added_up = kind.unit_roundoff if rounds_once else 2 * kind.unit_roundoff * np.sqrt(self.problem.k)
        allowed = 20 * expected_error_growth(plan, kind.name) * added_up
        if not error <= allowed:
            raise RunFailedError(f"wrong result: relative error {error:.3g}, at most {allowed:.3g} is expected")


def mean_event_milliseconds(call: Callable[[int], object], repeats: int) -> float:
    """Return the mean time of call(0), call(1), ..., call(repeats - 1) in milliseconds, measured by CUDA events."""
    start, stop = cupy.cuda.Event(), cupy.cuda.Event()
    start.record()
    for i in range(repeats):
        call(i)
    stop.record()
    stop.synchronize()
    return float(cupy.cuda.get_elapsed_time(start, stop)) / repeats


TOTAL_OPERAND_BYTES = 192 << 20  # approximate total bytes of all sets of operands, larger than any GPU's cache
MAX_OPERAND_SETS = 8  # largest number of sets of operands
MAX_CONVERTED_ROWS = 2048  # largest number of rows of B that are converted to double precision at a time


class OperandSets:
    """Sets of random operands A and B with a result C, together larger than the GPU's cache.

    Parameters
    ----------
    size
        (m, k, n) of the product.
    dtype
        Element type of A, B and C.
    rows
        Number of rows of the first set's C that `checked_result_errors` compares with the exact product.
    adjoint
        True if B is the adjoint of A. For real types, an adjoint B shares A's memory.
    """

    def __init__(self, size: tuple[int, int, int], dtype: str, rows: int, adjoint: bool = False) -> None:
        m, k, n = size
        self.kind = "float32" if dtype == "tf32" else dtype
        storage = storage_dtype(self.kind)
        each = (m * k + k * n + m * n) * np.dtype(storage).itemsize
        count = min(max(TOTAL_OPERAND_BYTES // each, 1), MAX_OPERAND_SETS)
        lefts = [random_normal_matrix((m, k), self.kind) for _ in range(count)]
        rights = [a.conj().T if adjoint else random_normal_matrix((k, n), self.kind) for a in lefts]
        self.sets = [(a, b, cupy.empty((m, n), storage)) for a, b in zip(lefts, rights, strict=True)]
        self._rows = min(rows, m)

    @cached_property
    def _exact_rows_to_check(self) -> tuple[Any, Any]:
        """Return the indices of the rows of C to check, and these rows of the exact product in double precision."""
        a, b, c = self.sets[0]
        rows = cupy.asarray(np.linspace(0, len(a) - 1, self._rows).astype(np.int64))
        left = to_double_precision(a[rows], self.kind)
        exact = cupy.zeros((len(rows), c.shape[1]), left.dtype)
        for row in range(0, len(b), MAX_CONVERTED_ROWS):
            exact += left[:, row : row + MAX_CONVERTED_ROWS] @ to_double_precision(
                b[row : row + MAX_CONVERTED_ROWS], self.kind
            )
        return rows, exact

    def checked_result_errors(self) -> tuple[float, float]:
        """Return the relative Frobenius error and the largest absolute error in the checked rows of the first C."""
        rows, exact = self._exact_rows_to_check
        difference = to_double_precision(self.sets[0][2][rows], self.kind) - exact
        return float(cupy.linalg.norm(difference) / cupy.linalg.norm(exact)), float(abs(difference).max())


def storage_dtype(kind: str) -> Any:
    """Return the NumPy type in which elements are stored: 16-bit integers for bfloat16, else the type itself."""
    return np.uint16 if kind == "bfloat16" else np.dtype(kind).type


def random_normal_matrix(shape: tuple[int, int], kind: str) -> Any:
    """Return a matrix of normally distributed random numbers in device memory; products of zeros would run faster."""
    if kind.startswith("complex"):
        real = {"complex64": "float32", "complex128": "float64"}[kind]
        return random_normal_matrix((shape[0], 2 * shape[1]), real).view(kind)
    drawn = np.float64 if kind == "float64" else np.float32
    x = cupy.empty(shape, storage_dtype(kind))
    step = max((1 << 26) // max(shape[1], 1), 1)
    for row in range(0, shape[0], step):
        part = cupy.random.standard_normal((min(step, shape[0] - row), shape[1]), dtype=drawn)
        x[row : row + step] = bfloat16_bits(part) if kind == "bfloat16" else part
    return x


def bfloat16_bits(x: Any) -> Any:
    """Round float32 numbers to the nearest bfloat16; return the bits of each number as a 16-bit integer."""
    bits = x.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def to_double_precision(x: Any, kind: str) -> Any:
    """Convert numbers of an element type to float64 or complex128; bfloat16 numbers are stored as 16-bit integers."""
    if kind == "bfloat16":
        x = (x.astype(cupy.uint32) << 16).view(cupy.float32)
    return x.astype(cupy.complex128 if kind.startswith("complex") else cupy.float64)
