"""Run a launch list repeatedly; if its addresses recur, the launches are captured as one CUDA graph.

A Newton-Schulz iteration has about fifteen short launches, and a graph starts all launches with one call of the driver.
Addresses recur because the memory pools of CuPy and torch return the same addresses to a program that repeats its
allocations, as a training loop does.
"""

from __future__ import annotations

import threading
from typing import Any

from cupy_backends.cuda.api import runtime

from fmm.kernels.cuda.launch.cublas import StreamContext, set_handle_stream
from fmm.kernels.cuda.launch.graphs import GraphCaptures
from fmm.kernels.cuda.launch.player import Addresses, Player
from fmm.kernels.cuda.launch.streams import return_capture_stream, take_capture_stream, thread_cublas_handle
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.plans.memory_layout import ALIGN_BYTES, round_up
from fmm.kernels.plans.workspace import GRAPH_SCRATCH_BYTES
from fmm.runtime.run_device import GRAPH_CACHE, LEGACY_STREAM


class RecurringLaunches:
    """A launch list on one device; addresses that recur on a stream are captured as a graph."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.player, self.device = Player(launches, device), device
        # offset of cuBLAS's scratch memory in the workspace, in bytes
        self.scratch = round_up(launches.workspace, ALIGN_BYTES)
        self.workspace = self.scratch + GRAPH_SCRATCH_BYTES * launches.vendor_stream_count  # bytes
        self.captures = GraphCaptures(self._capture_graph, GRAPH_CACHE)

    @property
    def calls_vendor(self) -> bool:
        """True if the list calls cuBLAS, which needs memory of its own while the caller captures the stream."""
        return self.player.launches.vendor_stream_count > 0

    def launch_all(self, addresses: tuple[int, int, int, int], stream: int) -> None:
        """Start all launches on the stream; `addresses` are the addresses of A, B, C and the workspace."""
        if stream == LEGACY_STREAM or not runtime.streamIsCapturing(stream):
            # Each thread and stream has its own graph: a graph must not be launched by two threads at once, and a
            # launch of a graph waits for the previous launch of the same graph.
            key = addresses, stream, threading.get_ident()
            graph = self.captures.find_capture(key, addresses, stream)
            if graph is not None:
                runtime.graphLaunch(graph.graphExec, stream)
                return
        self.player.launch_all(Addresses(*addresses), stream)

    def _capture_graph(self, addresses: tuple[int, int, int, int], stream: int) -> Any:
        """Return the launches as a graph, captured on a private stream; None if the driver refuses the capture."""
        private = take_capture_stream(self.device)
        try:
            try:
                private.begin_capture()
                scratch = addresses[3] + self.scratch if self.calls_vendor else 0
                self.player.launch_all(Addresses(*addresses), private.ptr, (), scratch)
            finally:
                graph = private.end_capture()
        except RuntimeError:
            return None
        finally:
            if self.calls_vendor:  # set cuBLAS's stream back to the caller's: later captures may use the private stream
                set_handle_stream(StreamContext(thread_cublas_handle(self.device), stream, 0))
            return_capture_stream(self.device, private)
        return graph
