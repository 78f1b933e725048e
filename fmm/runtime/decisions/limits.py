"""The limits of a plan: the caller's constraints, or defaults.

The default workspace limit is a fraction of the free memory. Each device has a default limit of the error growth.
"""

from __future__ import annotations

import ctypes
import time
from dataclasses import replace
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fmm.arrays.library import Library
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.dtypes import DTYPES
from fmm.hardware.nvml import nvml_library
from fmm.kernels.plans.gemm_params import PLAIN, GemmParams
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.perfmodel.choose import Limits
from fmm.problem import Layout, Operation, Problem


class PreparedOperandLayout(NamedTuple):
    """The operand that a leaf has prepared (A or B), with the operand's size and layout.

    The leaf's prepared form is stored directly behind the operand in memory.
    """

    base: Literal["A", "B"]
    rows: int
    cols: int
    layout: Layout

    def matches_operand_of_problem(self, problem: Problem) -> bool:
        """Return True if the problem's operand has the prepared operand's size and layout."""
        i = "AB".index(self.base)
        return problem.matrix_shapes[i] == (self.rows, self.cols) and problem.layouts[i] == self.layout


class PlanConstraints(NamedTuple):
    """The caller's constraints on the plan (None: no constraint), and the product's parameters, such as alpha."""

    plan: Plan | None = None
    error_growth: float | None = None  # upper limit of the error growth; None: the device's default
    workspace: int | None = None  # upper limit in bytes; None: a fraction of the free memory
    params: GemmParams = PLAIN  # alpha, beta, op and fill of the product
    replaceable: bool = False  # True if another plan may replace the plan, since fmm and not the caller chose it
    componentwise: bool = False  # True to bound the error of each entry relative to (|A| |B|)ij
    prepared_side: PreparedOperandLayout | None = None
    reproducible: bool = False  # True to run only plans whose result has the same bits on every device
    # Strides of the addend in elements, after it was broadcast to C's shape; None if C holds the addend.
    addend_strides: tuple[int, ...] | None = None

    @property
    def is_plan_required(self) -> bool:
        """True if the call must run this plan, or a reproducible plan, or raise an error."""
        return (self.plan is not None or self.reproducible) and not self.replaceable

    @property
    def forbids_vendor(self) -> bool:
        """True if the vendor's product must not replace the plan."""
        return self.reproducible or self.plan not in (None, VENDOR)


NO_CONSTRAINTS = PlanConstraints()


class GramKey(NamedTuple):
    """The cache key of a matrix times its own transpose, with alpha 1, beta 0 and no constraints."""

    rows: bool
    fill: Literal["full", "lower", "upper"]
    workspace: None = None


def limits_without_arrays(op: Operation, dtype: str, workspace: int, error_growth: float) -> Limits:
    """Return the limits for a decision without arrays: the caller's limits, and limits by environment variables."""
    limits = Limits(workspace, error_growth, is_emulation_allowed(), is_componentwise_required())
    return limits_for_operation(limits, op, dtype)


def limits_for_operation(limits: Limits, op: Operation, dtype: str) -> Limits:
    """Return the limits that hold for an operation and a type.

    For integers the constraint `componentwise` is dropped, since integer products are exact. For one triangle of a
    product, `componentwise` forbids emulation, because emulated triangles have no componentwise error bound.
    """
    componentwise = limits.componentwise and not DTYPES[dtype].exact
    emulation = limits.emulation and (op == "product" or not componentwise)
    return replace(limits, emulation=emulation, componentwise=componentwise)


# ---- the default workspace limit

WORKSPACE_SHARE = 0.5  # default workspace limit as a fraction of the free memory
FREE_MEMORY_SECONDS = 1.0  # seconds for which a reading of the free memory is used
# For each library and device: the time at which the reading of the free memory expires, and the workspace limit in
# bytes.
_workspace_readings: dict[tuple[str, int], tuple[float, int]] = {}


def default_workspace_bytes(library: Library, number: int) -> int:
    """Return the default workspace limit in bytes; the free memory is read at most once per second.

    Processes that share a GPU read the same free memory, so the limit is divided by the number of processes. The limit
    is rounded down, so that small changes of the free memory leave cached calls valid.
    """
    cached, now = _workspace_readings.get((library.name, number)), time.monotonic()
    if cached is None or cached[0] < now:
        processes = count_gpu_processes(number) if library.processor == "cuda" else 1
        share = workspace_limit_for_free_bytes(library.free_bytes(number), processes)
        cached = _workspace_readings[library.name, number] = now + FREE_MEMORY_SECONDS, share
    return cached[1]


def workspace_limit_for_free_bytes(free: int, processes: int = 1) -> int:
    """Return the default workspace limit for `free` bytes of free memory, rounded down to three significant bits."""
    share = max(int(free * WORKSPACE_SHARE / processes), 0)
    step = 1 << max(share.bit_length() - 3, 0)
    return share // step * step


def next_free_memory_read(library: Library, number: int) -> float:
    """Return the time.monotonic() at which the free memory is read again."""
    return _workspace_readings[library.name, number][0]


# ---- processes on a GPU, counted by NVML

# NVML's status code if the caller's array is too short for the list of the device's processes
NVML_INSUFFICIENT_SIZE = 7


def count_gpu_processes(number: int) -> int:
    """Return the number of processes on a CUDA device, including this process; 1 if NVML is missing."""
    handle = _nvml_handle(number)
    if handle is None:
        return 1
    count = ctypes.c_uint(0)
    status = nvml_library().nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    return max(count.value, 1) if status in (0, NVML_INSUFFICIENT_SIZE) else 1


@lru_cache(maxsize=64)
def _nvml_handle(number: int) -> Any:
    """Return NVML's handle of the device, found by its PCI bus: NVML and CUDA number devices differently."""
    library = nvml_library()
    if library is None or not hasattr(library, "nvmlDeviceGetComputeRunningProcesses_v3"):  # an old driver
        return None
    handle = ctypes.c_void_p()
    status = library.nvmlDeviceGetHandleByPciBusId_v2(_pci_bus_id(number).encode(), ctypes.byref(handle))
    return handle if status == 0 else None


def _pci_bus_id(number: int) -> str:
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(number))
