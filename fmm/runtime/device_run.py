"""Running a prepared call: memory from the library's pool, the plan on its stream, and the rescue behind it.

A call that recurs is captured as a CUDA graph and replayed: one launch instead of five, and the device waits less
between its kernels. Graphs hold no memory: operands, workspace and C are the call's own, as ever. Where they do not lie
where they were captured, the graph's sums and its rescue are told so; only what products themselves read or write, be
they cuBLAS's or tiled (the workspace, for most plans), must lie where it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.arrays.host_memory import also_released
from fmm.arrays.library import DeviceLibrary
from fmm.kernels.cuda.launch.cublas import Lane, Pointers, set_stream
from fmm.kernels.cuda.launch.graph_cache import Replays, Shelf
from fmm.kernels.cuda.launch.graphs import Kernel, Movable
from fmm.kernels.cuda.launch.player import MOST, CupyBackend, Grain, cublas_handle, grains
from fmm.kernels.cuda.launch_list import Tape
from fmm.kernels.cuda.recompute.flags import Rescue, Slot, slot
from fmm.kernels.cuda.recompute.recompute import needed
from fmm.kernels.plans.plan import VENDOR, Plan
from fmm.runtime.prepare import Call, scratch

BACKEND = CupyBackend()
GRAPHS = Shelf()
DEFAULT_STREAM = 0  # the legacy one, which cannot be captured
ROUTES = 256  # of one stream and thread
also_released(GRAPHS.clear)


def run(library: DeviceLibrary, call: Call, a: Any, b: Any, out: Any, whatever: bool) -> Any:
    """C by the call's plan, on the library's current stream; `whatever`: even after products that had to be rescued."""
    device = call.setting.device
    stream, context = library.current(device)
    if context is None:
        return _run(library, call, a, b, out, whatever, device, stream)
    with context:
        return _run(library, call, a, b, out, whatever, device, stream)


def _run(library: DeviceLibrary, call: Call, a: Any, b: Any, out: Any, whatever: bool, device: int, stream: int) -> Any:
    """Everything that may run out of memory is allocated before the first launch."""
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        return library.vendor(a, b, out)  # a plan may have to be compiled first, and its memory is not the graph's
    place = slot(device, stream)
    if not (whatever or place.trusted()):
        return library.vendor(a, b, out)
    way = place.routes.get(id(call))
    if way is None:
        way = _way(call, place, device)
    p, q, r, workspace, c, kept = library.places(call, a, b, out)
    way.run((p, q, r, workspace))
    del kept  # given back in the stream's order: what is launched next may have it
    if out is not None:
        library.written(out)
    return c


def _way(call: Call, place: Slot, device: int) -> _Way:
    if len(place.routes) >= ROUTES:
        place.routes.clear()
    found = place.routes[id(call)] = _Way(call, place, device)
    return found


class _Way:
    """How one thread runs a call on one stream: all that its launches need besides the pointers."""

    def __init__(self, call: Call, place: Slot, device: int) -> None:
        assert call.tape is not None
        self.call, self.place = call, place  # the call lives as long as its number is in use
        self.rescue = _rescue(call.tape, device)
        self.flag = place.flag if self.rescue is not None else 0
        self.route = BACKEND.route(call.tape, self.flag != 0)
        self.scratch = scratch(call.tape)
        self.replays = Replays(self._captured, GRAPHS) if call.recurs else None

    def run(self, bases: Pointers) -> None:
        grain = grains(bases)
        replay = self.replays.find(self.route.key(bases, grain), bases, grain) if self.replays is not None else None
        if replay is not None and replay.reaches(bases, grain):
            runtime.graphLaunch(replay.graph.executable, self.place.stream)
        else:
            self._launch(bases, grain, self.place.stream)

    def _products(self, bases: Pointers, grain: Grain) -> Iterator[tuple[Pointers, Grain]]:
        """The pointers of each product, and what divides them."""
        a, b, c, workspace = bases
        for x, y, z in self.call.offsets:
            own = a + x, b + y, c + z, workspace
            yield own, grains(own) if (x | y | z) % MOST else grain

    def _launch(self, bases: Pointers, grain: Grain, stream: int, scratch: int = 0) -> None:
        """`scratch`: memory for cuBLAS, while a graph is captured."""
        for own, whole in self._products(bases, grain):
            self.route.run(own, whole, stream, self.flag, scratch)
            if self.rescue is not None:
                self.place.follow(self.rescue, *own[:3], stream)

    def kernels(self, bases: Pointers, grain: Grain) -> Iterator[Kernel]:
        """Those of our own kernels that are told where to work at every call, in the order of their launches."""
        for own, whole in self._products(bases, grain):
            yield from self.route.kernels(own, whole, self.flag)
            if self.rescue is not None:
                yield from self.place.kernels(self.rescue, *own[:3])

    def _captured(self, bases: Pointers, grain: Grain) -> _Replay | None:
        """The launches as a graph, captured on a stream of its own; None if the driver would not."""
        stream = cupy.cuda.Stream(non_blocking=True)
        try:
            stream.begin_capture()
            try:
                self._launch(bases, grain, stream.ptr, bases[3] + self.scratch)
            finally:
                graph = stream.end_capture()
        except RuntimeError:
            return None
        finally:
            set_stream(Lane(cublas_handle(), self.place.stream, 0))  # the other one goes, and so may that memory
        return _Replay(self, graph, bases, grain)


class _Replay:
    """A way's graph, and the pointers that it has now."""

    def __init__(self, way: _Way, graph: Any, bases: Pointers, grain: Grain) -> None:
        self.way = way
        self.bases: Pointers | None = bases  # None: some kernels may have one call's, some another's
        self.graph = Movable(graph, way.kernels(bases, grain))

    def reaches(self, bases: Pointers, grain: Grain) -> bool:
        """Has the graph these pointers, or can it be given them?"""
        if bases != self.bases:
            self.bases = None
            if self.graph.move(self.way.kernels(bases, grain)):
                self.bases = bases
        return self.bases is not None


def measured(library: DeviceLibrary, call: Call, multiply: Callable[[Plan], Any]) -> Any:
    """A product that takes part in its shape's measurement; within a graph's capture nothing can be measured."""
    stream, _ = library.current(call.setting.device)
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        return multiply(VENDOR)
    assert call.decision.trial is not None
    return call.decision.trial.run(multiply, lambda: runtime.streamSynchronize(stream))


@lru_cache(maxsize=4096)
def _rescue(tape: Tape, device: int) -> Rescue | None:
    return Rescue(tape, device) if needed(tape) else None
