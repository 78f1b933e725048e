"""What a plan may cost: what the caller asks for, else a share of the memory that is free, and a usual error."""

from __future__ import annotations

import ctypes
import time
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from fmm.arrays.library import Library
from fmm.config.environment import is_componentwise_required, is_emulation_allowed
from fmm.dtypes import DTYPES
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.steps.asked import PLAIN, Asked
from fmm.perfmodel.choose import Limits
from fmm.problem import Layout, Operation, Problem

WORKSPACE_SHARE = 0.5  # of the free memory that a workspace may take, unless the caller says otherwise
FREE_MEMORY_SECONDS = 1.0  # seconds for which the free memory is taken for known


class PreparedSide(NamedTuple):
    """Behind which operand stands what a leaf has made of it, and what that operand was like."""

    base: Literal["A", "B"]
    rows: int
    cols: int
    layout: Layout

    def is_of(self, problem: Problem) -> bool:
        """Is it the problem's operand, as it was then?"""
        i = "AB".index(self.base)
        return problem.shapes[i] == (self.rows, self.cols) and problem.layouts[i] == self.layout


class PlanConstraints(NamedTuple):
    """What the caller asks of a plan; None: nothing."""

    plan: Plan | None = None  # this one
    error_growth: float | None = None  # at most; else what is usual on the device
    workspace: int | None = None  # bytes at most; else a share of what is free
    asked: Asked = PLAIN  # besides A B
    replaceable: bool = False  # is the plan fmm's own idea, so that another may take its place?
    componentwise: bool = False  # every entry right beside its own size
    kept: PreparedSide | None = None  # of which operand something is kept
    added: tuple[int, ...] | None = None  # strides of what is added, of C's shape, where that is not what C holds

    @property
    def plan_required(self) -> bool:
        """Must it be this plan, or an error?"""
        return self.plan is not None and not self.replaceable


NO_CONSTRAINTS = PlanConstraints()


class GramKey(NamedTuple):
    """What is asked of a matrix and its own transpose, where that is all; no limit is among it."""

    rows: bool
    fill: Literal["full", "lower", "upper"]
    workspace: None = None


def limits_without_arrays(op: Operation, dtype: str, room: int, growth: float) -> Limits:
    """What a plan may cost where it is decided without arrays, besides that what the environment says of all calls."""
    entries = is_componentwise_required() and op == "product" and not DTYPES[dtype].exact
    return Limits(room, growth, is_emulation_allowed(), entries)


_shares: dict[tuple[str, int], tuple[float, int]] = {}  # by library and device: until when it is good, and the share


def default_workspace_bytes(library: Library, number: int) -> int:
    """Bytes that a workspace may take if the caller names no limit: asked for at most once a second.

    Of a device that several processes use, each takes its part of that: all of them see the same memory free. Rounded
    down, so that calls and choices under it are found again.
    """
    known, now = _shares.get((library.name, number)), time.monotonic()
    if known is None or known[0] < now:
        sharers = count_gpu_processes(number) if library.processor == "cuda" else 1
        known = _shares[library.name, number] = (
            now + FREE_MEMORY_SECONDS,
            workspace_share(library.free_bytes(number), sharers),
        )
    return known[1]


def workspace_share(free: int, sharers: int = 1) -> int:
    """Bytes that a workspace may take of so many that are free, rounded down."""
    share = max(int(free * WORKSPACE_SHARE / sharers), 0)
    step = 1 << max(share.bit_length() - 3, 0)
    return share // step * step


def workspace_valid_until(library: Library, number: int) -> float:
    """When that share will be asked for again."""
    return _shares[library.name, number][0]


INSUFFICIENT_SIZE = 7  # NVML's answer where there are processes and no room was given for telling which
NVML = "libnvidia-ml.so.1"


def count_gpu_processes(number: int) -> int:
    """Processes on this CUDA device, this one among them; 1 where nobody can tell."""
    handle = _handle(number)
    if handle is None:
        return 1
    count = ctypes.c_uint(0)
    status = _nvml().nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    return max(count.value, 1) if status in (0, INSUFFICIENT_SIZE) else 1


@lru_cache(maxsize=64)
def _handle(number: int) -> Any:
    """NVML's name of the device, which it counts in another order; None where there is none."""
    library = _nvml()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    found = library.nvmlDeviceGetHandleByPciBusId_v2(_bus(number).encode(), ctypes.byref(handle))
    return handle if found == 0 else None


@lru_cache(maxsize=1)
def _nvml() -> Any:
    """The library, ready; None without it, or where it is too old."""
    try:
        library = ctypes.CDLL(NVML)
        ready = library.nvmlInit_v2() == 0
        return library if ready and hasattr(library, "nvmlDeviceGetComputeRunningProcesses_v3") else None
    except (OSError, AttributeError):
        return None


def _bus(number: int) -> str:
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(number))
