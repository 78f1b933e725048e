"""Run one named plan on CuPy's current device, for the tuner, tests and benchmarks.

A result with inf or NaN is computed again only if the address of a flag is passed.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import cupy

from fmm.kernels.cuda.launch.compile import compile_kernels
from fmm.kernels.cuda.launch.device_facts import cuda_device_chip
from fmm.kernels.cuda.launch.player import Addresses, Player, cached_player
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT, Alignment
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import GRAPH_SCRATCH_BYTES
from fmm.perfmodel.block_model import chip_target
from fmm.problem import Layout, Problem

MAX_GRAPHS = 16  # largest number of cached graphs of a backend


def record_plan_for_device(
    plan: Plan,
    problem: Problem,
    device: int | None = None,
    alignment: Alignment = ALLOCATOR_ALIGNMENT,
    flagged: bool = False,
) -> LaunchList:
    """Return the launch list of a plan on a device (default: the current one)."""
    index = cupy.cuda.runtime.getDevice() if device is None else device
    return record_launches(plan, problem, chip_target(cuda_device_chip(index), alignment, flagged))


def compile_launch_lists(launch_lists: Iterable[LaunchList]) -> None:
    """Compile all kernels of these launch lists for the current device."""
    compile_kernels(
        cupy.cuda.runtime.getDevice(), {launch.kernel for found in launch_lists for launch in found.launches}
    )


class CapturedGraph(NamedTuple):
    """A launch list captured as a CUDA graph, with fixed addresses of A, B, C and the workspace."""

    graph: Any
    scratch: Any

    def launch_graph(self, stream: Any = None) -> None:
        self.graph.launch(stream)


@dataclass(frozen=True)
class DeviceBackend:
    """A backend that runs launch lists on CuPy's current device and stream."""

    _graphs: OrderedDict[Any, CapturedGraph] = field(default_factory=OrderedDict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def run_launches(
        self,
        launches: LaunchList,
        a: int,
        b: int,
        c: int,
        workspace: int,
        stream: Any = None,
        flag: int = 0,
        count: int = 0,
    ) -> None:
        """Compute C = alpha A B + beta C; the arguments are device pointers to A, B, C and the workspace.

        `flag` and `count` are the addresses of a flag and of a counter in host memory. Only a launch list that checks C
        for inf and NaN uses `flag` and `count`. If the launch list was recorded for another alignment of the pointers,
        the plan is recorded again.
        """
        if stream is not None:
            with stream:
                self.run_launches(launches, a, b, c, workspace, None, flag, count)
            return
        addresses = Addresses(a, b, c, workspace, flag, count)
        self.player_for_addresses(launches, addresses).launch_all(addresses, cupy.cuda.get_current_stream().ptr)

    def player_for_addresses(self, launches: LaunchList, addresses: Addresses) -> Player:
        device, alignment = cupy.cuda.runtime.getDevice(), addresses.alignment
        if alignment != launches.alignment:
            launches = record_plan_for_device(launches.plan, launches.problem, device, alignment, addresses.flag != 0)
        return cached_player(launches, device)

    def captured_graph(self, launches: LaunchList, a: int, b: int, c: int, workspace: int) -> CapturedGraph:
        """Return the launch list as a CUDA graph captured with these pointers; MAX_GRAPHS graphs are cached."""
        key = (launches, cupy.cuda.runtime.getDevice(), a, b, c, workspace)
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
            made = self._graphs[key] = self._capture_graph(launches, Addresses(a, b, c, workspace))
            if len(self._graphs) > MAX_GRAPHS:
                self._graphs.popitem(last=False)
            return made

    def _capture_graph(self, launches: LaunchList, addresses: Addresses) -> CapturedGraph:
        player = self.player_for_addresses(launches, addresses)  # kernels must be compiled before the capture
        scratch = cupy.empty(GRAPH_SCRATCH_BYTES * player.launches.vendor_stream_count, cupy.uint8)
        stream = cupy.cuda.Stream(non_blocking=True)
        counters = player.new_counters(stream.ptr)
        player.create_streams()
        stream.synchronize()
        with stream:
            try:
                stream.begin_capture()
                player.launch_all(addresses, stream.ptr, counters, scratch.data.ptr)
            finally:
                captured = stream.end_capture()
        return CapturedGraph(captured, scratch)

    def multiply_by_plan(
        self,
        plan: Plan | str,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: complex = 1,
        beta: complex = 0,
        dtype: str | None = None,
    ) -> Any:
        """Return alpha a b + beta out on CuPy matrices; `dtype="bfloat16"` reads 16-bit integers as bfloat16."""
        kind = dtype or str(a.dtype)
        a, b = _contiguous_matrix(a), _contiguous_matrix(b)
        c = out if out is not None else cupy.empty((a.shape[0], b.shape[1]), a.dtype)
        target = c if matrix_layout(c) else cupy.ascontiguousarray(c)
        layouts = tuple(x for x in map(matrix_layout, (a, b, target)) if x)
        problem = Problem(a.shape[0], a.shape[1], b.shape[1], kind, layouts, alpha, beta)  # type: ignore[arg-type]
        launches = record_plan_for_device(Plan.parse(plan) if isinstance(plan, str) else plan, problem)
        workspace = cupy.empty(launches.workspace, cupy.uint8)
        self.run_launches(launches, a.data.ptr, b.data.ptr, target.data.ptr, workspace.data.ptr)
        if target is not c:
            c[...] = target
        return c


def matrix_layout(x: Any) -> Layout | None:
    """Return a matrix's layout; None if neither its rows nor its columns are contiguous, or if they overlap."""
    (rows, cols), (down, right), item = x.shape, x.strides, x.itemsize
    if (cols <= 1 or right == item) and (rows <= 1 or (down % item == 0 and down >= cols * item)):
        return Layout("C", max(down // item if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == item) and (cols <= 1 or (right % item == 0 and right >= rows * item)):
        return Layout("F", max(right // item if cols > 1 else rows, rows, 1))
    return None


def _contiguous_matrix(x: Any) -> Any:
    return x if matrix_layout(x) else cupy.ascontiguousarray(x)
