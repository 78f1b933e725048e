"""Running a prepared call on a CUDA device: memory from the library's pool, the plan on its stream, and behind it what
computes again if C has an inf or NaN.

A call that recurs is captured as a CUDA graph and replayed: one launch instead of five, and the device waits less
between its kernels. Graphs hold no memory: operands, workspace and C are the call's own, as ever. Where they do not lie
where they were captured, the graph's kernels are told so; only what cuBLAS itself reads or writes (the workspace, for
most plans) must lie where it did.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import nullcontext, suppress
from itertools import repeat
from typing import Any

import cupy
from cupy_backends.cuda.api import runtime

from fmm.arrays.host_memory import also_released
from fmm.arrays.library import DeviceLibrary
from fmm.kernels.cuda.launch.cublas import StreamContext, set_stream
from fmm.kernels.cuda.launch.device_facts import chip_of
from fmm.kernels.cuda.launch.graphs import GraphCache, KernelNode, MovableGraph, Replays
from fmm.kernels.cuda.launch.player import Addresses, Player, cublas_handle, player_of
from fmm.kernels.cuda.launch.prepared_calls import make_calls
from fmm.kernels.cuda.launch_list import LaunchList
from fmm.kernels.cuda.recompute.flags import StreamFlag, stream_flag
from fmm.kernels.cuda.recompute.recompute import may_create_nonfinite
from fmm.kernels.cuda.record import record_launches
from fmm.kernels.cuda.target import Alignment
from fmm.kernels.plans.plan import VENDOR, Plan, PlanError
from fmm.perfmodel.block_model import chip_target
from fmm.runtime.call_record import record_fallback
from fmm.runtime.devices import cuda_device, tuned_chip
from fmm.runtime.prepare import PreparedCall, cublas_scratch

GRAPHS = GraphCache()
DEFAULT_STREAM = 0  # the legacy one, which cannot be captured
SPARE = 16  # sets of parameters that a stack leaves for the next one
PREPARED = 256  # calls that are kept ready for one stream and thread
also_released(GRAPHS.clear)


def run_call(
    library: DeviceLibrary, call: PreparedCall, a: Any, b: Any, out: Any, given: bool, added: Any = None
) -> Any:
    """C by the call's plan, on the library's current stream; None if the vendor must multiply.

    `given`: the caller named the plan, which then runs even after products that had to be computed again. `added`: what
    is added, where C does not hold it, of C's shape.

    PlanError, before anything is launched, where the plan cannot run on operands that lie like these.
    """
    device = call.setting.device
    stream, context = library.current_stream(device)
    if context is None:
        return _run(library, call, a, b, out, given, device, stream, added)
    with context:
        return _run(library, call, a, b, out, given, device, stream, added)


def _run(
    library: DeviceLibrary,
    call: PreparedCall,
    a: Any,
    b: Any,
    out: Any,
    given: bool,
    device: int,
    stream: int,
    added: Any = None,
) -> Any:
    """Everything that may run out of memory is allocated before the first launch. Whatever leaves, `out` is untouched,
    or complete once the stream has come so far."""
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        if given:
            raise PlanError(f"the plan {call.plan} cannot run while its stream is captured")
        record_fallback("its stream is being captured")
        return None  # a plan may have to be compiled first, and its memory is not the graph's
    flag = stream_flag(device, stream)
    ready = flag.prepared.get(id(call))
    if ready is None:
        ready = _made_ready(call, flag, device)
    if ready.flagged and not (given or flag.trusted()):
        record_fallback("products on its stream had inf or NaN a moment ago")
        return None
    p, q, r, workspace, c, kept = library.allocate(call, a, b, out)
    if out is not None:
        library.written(out)
    try:
        ready.run(p, q, r, workspace, 0 if added is None else library.pointer(added), seen=out is not None)
    except PlanError:  # nothing was launched
        raise
    except Exception:
        # A launch has failed: what the others wrote is written over, if the device still can.
        if out is not None:
            with suppress(Exception):
                _completed(library, call, a, b, out, added)
        raise
    del kept  # given back in the stream's order: what is launched next may have it
    return c


def run_preparation(library: DeviceLibrary, launches: LaunchList, pointer: int, device: int) -> None:
    """What makes that which is kept of an operand at this address, on the library's current stream; and wait for it."""
    stream, context = library.current_stream(device)
    with context or nullcontext():
        if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
            raise PlanError("nothing can be prepared while its stream is captured")
        with cupy.cuda.Device(device):
            workspace = cupy.cuda.alloc(launches.workspace)
        player_of(launches, device).play(Addresses(pointer, pointer, 0, workspace.ptr), stream)
        runtime.streamSynchronize(stream)


def _completed(library: DeviceLibrary, call: PreparedCall, a: Any, b: Any, out: Any, added: Any) -> None:
    """What is asked of a call, by the library's own functions; but nothing if the call adds to what `out` held, which
    may be written over by now."""
    problem = call.launches.problem if call.launches else None
    if problem is None or call.launches is None or any(call.launches.plan.conjugates):
        return
    if problem.op == "gram" and b is a:  # in the place of its transpose: who asks so completes it
        return
    alpha = problem.alpha
    if added is not None:
        library.copy(added, out)
        library.updated(a, b, out, alpha, problem.beta)
    elif problem.beta:
        return
    elif problem.writes_triangle:
        library.write_triangle(library.vendor(a, b), out, complex(alpha).real, 0.0, problem.fill)
    elif alpha != 1:
        library.updated(a, b, out, alpha, 0)
    else:
        library.vendor(a, b, out)


def _made_ready(call: PreparedCall, flag: StreamFlag, device: int) -> StreamCall:
    if len(flag.prepared) >= PREPARED:
        flag.prepared.clear()
    found = flag.prepared[id(call)] = StreamCall(call, flag, device)
    return found


class StreamCall:
    """A call as one thread runs it on one stream: all that its launches need besides the addresses."""

    def __init__(self, call: PreparedCall, flag: StreamFlag, device: int) -> None:
        assert call.launches is not None
        self.call = call  # so that it lives as long as its number is in use
        self.stream, self.device = flag.stream, device
        self.launches = call.launches
        self.flagged = may_create_nonfinite(call.launches.plan)  # is it computed again where it has an inf or NaN?
        self.told = (flag.address, flag.count_address) if self.flagged else (0, 0)
        self.scratch = cublas_scratch(call.launches)
        self.replays = Replays(self._captured, GRAPHS) if call.uses_graph else None
        self._latest: Hashable = None  # the key of the last replay: usually all lies where it lay then
        self._players: dict[Alignment, Player | str] = {}  # or why there is none
        self._alone: Player | None = None  # of one product, for what lies as libraries allocate it
        self._fixed: dict[Alignment, tuple[int, ...]] = {}  # which addresses a graph of the vendor's calls depends on

    def run(self, *bases: int, seen: bool = True) -> None:
        """The call, with A, B, C, the workspace and what is added at these addresses. `seen`: the caller could look
        into C if an exception left in the middle."""
        if self.replays is not None:
            replay = self.replays.made(self._latest)
            if type(replay) is not _Replay or replay.bases != bases:
                replay = self._replay(bases)
            if replay is not None:
                runtime.graphLaunch(replay.graph.executable, self.stream)
                return
        addresses = self._addresses(bases)
        if self._alone is not None and addresses.aligned:
            self._alone.play(addresses, self.stream)
        else:
            self._launch(addresses, self.stream, seen)

    def _addresses(self, bases: tuple[int, ...]) -> Addresses:
        return Addresses(*bases[:4], *self.told, *bases[4:])

    def _replay(self, bases: tuple[int, ...]) -> _Replay | None:
        """The graph for these addresses, if the call came often enough and the graph can have them."""
        assert self.replays is not None
        addresses = self._addresses(bases)
        key = self._latest = self._key(addresses)
        found: _Replay | None = self.replays.find(key, addresses)
        return found if found is not None and (found.bases == bases or found.reaches(addresses)) else None

    def player(self, alignment: Alignment) -> Player:
        """The plan recorded for addresses that are so aligned, made ready."""
        found = self._players.get(alignment)
        if found is None:
            found = self._players[alignment] = self._made_player(alignment)
        if isinstance(found, str):
            raise PlanError(found)
        return found

    def _made_player(self, alignment: Alignment) -> Player | str:
        """The player, or why there is none: a candidate of cuBLASLt, say, may want lines that are better aligned."""
        chip = tuned_chip(cuda_device(self.device)) or chip_of(self.device)
        target = chip_target(chip, alignment, self.flagged)
        try:
            return player_of(record_launches(self.launches.plan, self.launches.problem, target), self.device)
        except PlanError as error:
            return f"the plan {self.launches.plan} cannot run here: {error}"

    def _products(self, addresses: Addresses) -> Iterator[tuple[Player, Addresses]]:
        """Each product of the call: who plays it, and its addresses."""
        a, b, c, workspace, flag, count, d = addresses
        for (x, y, z), w in zip(self.call.offsets, self.call.addend_offsets or repeat(0), strict=False):
            own = addresses
            if x | y | z | w:
                own = Addresses(a + x, b + y, c + z, workspace, flag, count, d + w)
            yield self.player(own.alignment), own

    def _key(self, addresses: Addresses) -> Hashable:
        """What a graph depends on: the addresses that the vendor's products are given, how all are aligned."""
        alignment = addresses.alignment
        fixed = self._fixed.get(alignment)
        if fixed is None:
            fixed = self._fixed[alignment] = self.player(alignment).launches.vendor_bases
        aligned = alignment if len(self.call.offsets) == 1 else tuple(x % 256 for x in addresses.places)
        return aligned, *[addresses[i] for i in fixed]

    def _launch(self, addresses: Addresses, stream: int, seen: bool) -> None:
        """A product is launched as a whole or not at all. So is a stack whose C is `seen`: all of its calls are
        prepared before the first one is made."""
        products = list(self._products(addresses))  # all are there before the first one plays
        if len(products) == 1 and addresses.aligned and products[0][1] is addresses:
            self._alone = products[0][0]
        if len(products) == 1 or not seen:
            for player, own in products:
                player.play(own, stream)
            return
        prepared = [player.prepared_product(own, stream) for player, own in products]
        make_calls([call for calls, _ in prepared for call in calls])
        for _, give_back in prepared[:SPARE]:
            give_back()

    def _captured(self, addresses: Addresses) -> _Replay | None:
        """The launches as a graph, captured on a stream of its own; None if the driver would not, or if cuBLAS wants
        more memory of its own than was asked for."""
        products = list(self._products(addresses))
        if any(player.launches.vendor_stream_count > self.launches.vendor_stream_count for player, _ in products):
            return None
        counters = {player: player.new_counters(self.stream) for player, _ in products}
        if any(counters.values()):
            runtime.streamSynchronize(self.stream)  # their zeros are there
        stream = cupy.cuda.Stream(non_blocking=True)
        try:
            try:
                stream.begin_capture()
                for player, own in products:
                    player.play(own, stream.ptr, counters[player], addresses.workspace + self.scratch)
            finally:
                graph = stream.end_capture()
        except RuntimeError:
            return None
        finally:
            set_stream(StreamContext(cublas_handle(), self.stream, 0))  # the other one goes, and so may that memory
        return _Replay(self, graph, addresses, counters)

    def nodes(self, addresses: Addresses, counters: dict[Player, tuple[int, ...]]) -> Iterator[KernelNode]:
        """Our own kernels, which are told where to work at every call, in the order of their launches."""
        for player, own in self._products(addresses):
            yield from player.nodes(own, counters[player])


class _Replay:
    """A call's graph, and where A, B, C and the workspace are for it now."""

    def __init__(
        self, call: StreamCall, graph: Any, addresses: Addresses, counters: dict[Player, tuple[int, ...]]
    ) -> None:
        self.call, self.counters = call, counters
        self.bases: tuple[int, ...] | None = addresses.places  # None: some kernels may have one call's, some another's
        self.graph = MovableGraph(graph, call.nodes(addresses, counters))

    def reaches(self, addresses: Addresses) -> bool:
        """Can the graph be given these addresses?"""
        self.bases = None
        if self.graph.move(self.call.nodes(addresses, self.counters)):
            self.bases = addresses.places
        return self.bases is not None


def run_trial(library: DeviceLibrary, call: PreparedCall, multiply: Callable[[Plan], Any]) -> Any:
    """A product that takes part in its shape's measurement; within a graph's capture nothing can be measured."""
    stream, _ = library.current_stream(call.setting.device)
    if stream != DEFAULT_STREAM and runtime.streamIsCapturing(stream):
        return multiply(VENDOR)
    assert call.decision.trial is not None
    return call.decision.trial.run(multiply, lambda: runtime.streamSynchronize(stream))
