"""The CuPy backend: plays launch lists on a CUDA device. Sums by block_sums.cuh, products by cuBLAS or our own.

Handle, memory, stream and compiled code are CuPy's, so that both share them. Where products run side by side, every
lane but the first has a stream of its own, and a handle; its work starts after, and ends before, the caller's stream
goes on.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from fmm.kernels.cuda.launch.cublas import Gemm, Lane, Math, Pointers, begin, end, gemm, new_handle, own_memory
from fmm.kernels.cuda.launch.device_facts import chip
from fmm.kernels.cuda.launch.graphs import Kernel
from fmm.kernels.cuda.launch.tile_call import function as tile_function
from fmm.kernels.cuda.launch.tile_call import tile_calls, tile_kernels
from fmm.kernels.cuda.launch.wgmma_call import group_call
from fmm.kernels.cuda.launch_list import TILED, Op, Tape, Turn
from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tiled import Several, TileOp, settled
from fmm.kernels.cuda.products.tiled_gemm import is_tiled, tile_op
from fmm.kernels.cuda.products.tiled_source import TileKernel
from fmm.kernels.cuda.record import record
from fmm.kernels.cuda.sums import sum_source
from fmm.kernels.cuda.sums.sum_kernel import THREADS, Access, SumKernel
from fmm.kernels.cuda.sums.sum_launch import SumOp
from fmm.kernels.cuda.sums.sum_source import ENTRY, OPTIONS
from fmm.kernels.cuda.views import BASES
from fmm.kernels.plans.plan import Plan
from fmm.kernels.plans.workspace import GRAPH_SCRATCH
from fmm.problem import Layout, Problem

LAUNCH = driver.launchKernel
cublas_handle = cupy.cuda.device.get_cublas_handle
GRAPHS = 16  # graphs kept by a backend
SLOTS = 32  # pointers of parameter blocks up to which a loop is faster than NumPy


# ---- kernels


@lru_cache(maxsize=1024)
def _function(device: int, kernel: SumKernel, access: Access, flag: bool) -> tuple[int, Any]:
    """The address of a compiled kernel on the current device, and what keeps it loaded."""
    module = cupy.RawModule(code=sum_source.source(kernel, access, flag), options=OPTIONS)
    function = module.get_function(ENTRY)
    return function.kernel.ptr, (module, function)


Key = tuple[SumKernel, Access, bool]
TileKey = tuple[TileKernel, Access]


def _compiled(device: int, sums: set[Key], tiles: set[TileKey]) -> None:
    """Compile what is not there yet, all at once: three levels in one pass take the compiler ten seconds and more."""

    def compile_(job: Callable[[], object]) -> None:
        with cupy.cuda.Device(device):
            job()

    jobs: list[Callable[[], object]] = [partial(_function, device, *key) for key in sums]
    jobs += [partial(tile_function, device, *key) for key in tiles]
    if len(jobs) == 1:
        compile_(jobs[0])
    elif jobs:
        with ThreadPoolExecutor(min(len(jobs), 8)) as pool:
            list(pool.map(compile_, jobs))


def prepare(tapes: Iterable[Tape]) -> None:
    """Compile what these tapes launch on aligned arrays of the current device, all at once."""
    device = cupy.cuda.runtime.getDevice()
    ops = [(op, tape.problem.dtype) for tape in tapes for op in tape.ops]
    aligned = dict(zip(BASES, ALIGNED, strict=True))
    sums = {(op.kernel, op.access, False) for op, _ in ops if isinstance(op, SumOp)}
    tiles = (made for op, dtype in ops if (made := _tiled(op, device, dtype)))
    _compiled(device, sums, {key for op in tiles for key in tile_kernels(op, device, aligned, False)})


# ---- replaying

Grain = tuple[int, int, int, int]  # powers of two that divide the addresses of A, B, C and the workspace
MOST = 256  # bytes to which libraries align what they allocate: what divides an address is not looked for beyond
ALIGNED = (MOST, MOST, MOST, MOST)


class _Launch(NamedTuple):
    """A sum kernel: on which lane, the driver's call, which wants the stream and the parameters, and what it calls."""

    lane: int
    call: Callable[[int, int, int], None]
    function: int
    size: int  # bytes of its parameters


class _Product(NamedTuple):
    lane: int
    call: Gemm


class _Calls(NamedTuple):
    """What a tape does: the sums before the first product, then the rest."""

    first: list[_Launch]
    rest: list[_Launch | _Product | Turn]

    @property
    def launches(self) -> list[_Launch]:
        return [*self.first, *(call for call in self.rest if isinstance(call, _Launch))]


class _Buffer(threading.local):
    """A thread's own parameter blocks of one tape: the driver copies them when it is called."""

    def __init__(self, blocks: list[bytes]) -> None:
        starts = np.cumsum([0, *(len(b) for b in blocks)])
        self.words: Any = np.frombuffer(b"".join(blocks), np.int64).copy() if blocks else np.empty(0, np.int64)
        self.view: Any = self.words.data
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        self.bases: tuple[int, ...] | None = None


def _tiled(op: Op, device: int, dtype: str) -> TileOp | Several | None:
    """The products of our own kernels that it is, if it is."""
    if isinstance(op, GemmOp) and is_tiled(op) and dtype in TILED:
        return tile_op(op, chip(device), dtype)
    if isinstance(op, TileOp):
        return settled(op, chip(device))
    return op if isinstance(op, Several) else None


class _Player:
    """A tape made ready for one device: compiled kernels, parameter blocks, products' calls."""

    def __init__(self, tape: Tape, device: int, math: Math, flagged: bool) -> None:
        self.tape, self.device, self.flagged = tape, device, flagged
        self.math: Math = "tf32" if tape.problem.dtype == "tf32" else math
        sums = [op for op in tape.ops if isinstance(op, SumOp)]
        blocks = [op.parameters for op in sums]
        starts = np.cumsum([0, *(len(b) for b in blocks)])[:-1] // 8
        slots = [
            (int(start) + 7 * i, x) for start, op in zip(starts, sums, strict=True) for i, x in enumerate(op.arrays)
        ]
        ends = [
            int(start) + 7 * len(op.arrays) + 2 * len(op.scalars) + 1 for start, op in zip(starts, sums, strict=True)
        ]
        self.slots = np.array([slot for slot, _ in slots] + ends, np.intp)
        self.which = np.array([BASES.index(x.base) for _, x in slots] + [len(BASES)] * len(ends), np.intp)
        self.offsets = np.array([x.offset for _, x in slots] + [0] * len(ends), np.int64)
        self.few = list(zip(*(x.tolist() for x in (self.slots, self.which, self.offsets)), strict=True))[: SLOTS + 1]
        self.buffer = _Buffer(blocks)
        products = (op for op in tape.ops if isinstance(op, GemmOp | TileOp | Several))
        self.fixed = sorted({BASES.index(x.base) for op in products for x in op.pieces})
        self.calls: dict[tuple[int, ...], _Calls] = {}

    def play(self, bases: Pointers, grain: Grain, flag: int, lanes: list[Lane], scratch: int) -> None:
        """Every launch and call of the tape, in order, on its lane.

        The first sums are on their way before cuBLAS is set up: an idle device starts some microseconds earlier.
        """
        buffer, ready = self.filled(bases, flag), self.ready(grain)
        stream, known = lanes[0].stream, (*bases, flag)
        for launch, address in zip(ready.first, buffer.addresses, strict=False):
            launch.call(stream, address, 0)
        calling = lanes[: self.tape.vendor_lanes]
        before = [begin(lane, self.math) for lane in calling]
        try:
            for i, lane in enumerate(calling if scratch else ()):
                own_memory(lane, scratch + i * GRAPH_SCRATCH, GRAPH_SCRATCH)
            addresses = iter(buffer.addresses[len(ready.first) :])
            for call in ready.rest:
                if isinstance(call, _Launch):
                    call.call(lanes[call.lane].stream, next(addresses), 0)
                elif isinstance(call, _Product):
                    call.call(lanes[call.lane], known)
                else:
                    _turn(call, lanes)
        finally:
            for lane, mode in zip(calling, before, strict=True):
                end(lane, self.math, mode)

    def filled(self, bases: Pointers, flag: int) -> _Buffer:
        """The thread's parameter blocks, with these pointers in them."""
        buffer, known = self.buffer, (*bases, flag)
        if buffer.bases != known:
            if len(self.few) <= SLOTS:
                for slot, which, offset in self.few:
                    buffer.view[slot] = known[which] + offset
            else:
                buffer.words[self.slots] = np.array(known, np.int64)[self.which] + self.offsets
            buffer.bases = known
        return buffer

    def ready(self, grain: Grain) -> _Calls:
        """The calls for pointers that are so aligned."""
        if grain not in self.calls:
            calls = self._calls(dict(zip(BASES, grain, strict=True)))
            first = list(takewhile(lambda call: isinstance(call, _Launch), calls))
            self.calls[grain] = _Calls(first, calls[len(first) :])  # type: ignore[arg-type]
        return self.calls[grain]

    def _calls(self, grain: dict[str, int]) -> list[_Launch | _Product | Turn]:
        keys = {i: self._key(op, grain) for i, op in enumerate(self.tape.ops) if isinstance(op, SumOp)}
        tiles = {
            i: made for i, op in enumerate(self.tape.ops) if (made := _tiled(op, self.device, self.tape.problem.dtype))
        }
        told = self.device, grain, self.flagged
        _compiled(self.device, set(keys.values()), {key for op in tiles.values() for key in tile_kernels(op, *told)})
        calls: list[_Launch | _Product | Turn] = []
        for i, (op, lane) in enumerate(zip(self.tape.ops, self.tape.lanes, strict=True)):
            if isinstance(op, SumOp):
                function, _ = _function(self.device, *keys[i])
                launch = partial(LAUNCH, function, *op.grid, THREADS, 1, 1, 0)
                calls.append(_Launch(lane, launch, function, len(op.parameters)))
            elif i in tiles:
                calls += [_Product(lane, call) for call in tile_calls(tiles[i], *told)]
            elif isinstance(op, GemmOp):
                calls.append(_Product(lane, self._gemm(op, grain)))
            elif isinstance(op, Turn):
                calls.append(op)
        return calls

    def _gemm(self, op: GemmOp, grain: dict[str, int]) -> Gemm:
        """The vendor's; also of what is not so aligned that warpgroups can read it, or where there are none."""
        grouped = group_call(op, self.tape.problem.dtype, self.device, grain) if is_tiled(op) else None
        op = replace(op, leaf="vendor") if is_tiled(op) else op
        return grouped or gemm(op, self.tape.problem, self.math, grain)

    def _key(self, op: SumOp, grain: dict[str, int]) -> tuple[SumKernel, Access, bool]:
        size, bases = op.alignment
        fits = all(grain[base] % size == 0 for base in bases)
        return op.kernel, op.access if fits else "scalar", self.flagged and op.writes_result


def grains(bases: Pointers) -> Grain:
    a, b, c, w = bases
    return ALIGNED if not (a | b | c | w) % MOST else (_grain(a), _grain(b), _grain(c), _grain(w))


def _grain(address: int) -> int:
    """The largest power of two, MOST at most, that divides an address."""
    return min(address & -address, MOST) or MOST


def _turn(turn: Turn, lanes: list[Lane]) -> None:
    """The other lanes go on after what the first has done so far, or the first after all that the others did."""
    first, *others = lanes
    pairs = [(first, lane) if turn is Turn.FORK else (lane, first) for lane in others]
    runtime = cupy.cuda.runtime
    for event, stream in dict.fromkeys((before.event, before.stream) for before, _ in pairs):
        runtime.eventRecord(event, stream)
    for before, then in pairs:
        runtime.streamWaitEvent(then.stream, before.event)


class _Side(threading.local):
    """A thread's other lanes on each device, and the events by which lanes wait for each other."""

    def __init__(self) -> None:
        self.kept: dict[int, list[_Own]] = {}

    def lanes(self, device: int, stream: int, handle: int, tape: Tape) -> list[Lane]:
        """As many as the tape uses, with a handle of cuBLAS where it calls that."""
        if tape.lanes_used == 1:
            return [Lane(handle, stream, 0)]
        kept = self.kept.setdefault(device, [])
        kept += [_Own() for _ in range(tape.lanes_used - len(kept))]
        for own in kept[1 : tape.vendor_lanes]:
            own.handle = own.handle or new_handle()
        first, *others = kept[: tape.lanes_used]
        return [Lane(handle, stream, first.event.ptr), *(Lane(x.handle, x.stream.ptr, x.event.ptr) for x in others)]


class _Own:
    """What a lane has of its own; of the first, which is the caller's, only the event is used."""

    def __init__(self) -> None:
        self.stream: Any = cupy.cuda.Stream(non_blocking=True)
        self.event: Any = cupy.cuda.Event(disable_timing=True)
        self.handle = 0


_side = _Side()


@lru_cache(maxsize=1024)
def _player(tape: Tape, device: int, math: Math, flagged: bool) -> _Player:
    return _Player(tape, device, math, flagged)


class Route(NamedTuple):
    """A tape made ready for a device, which is the current one when it runs."""

    player: _Player

    def run(self, bases: Pointers, grain: Grain, stream: int, flag: int = 0, scratch: int = 0) -> None:
        """`flag`: an int that becomes 1 if a sum or a tiled product gives C inf or NaN; `scratch`: memory for cuBLAS,
        GRAPH_SCRATCH bytes for each lane, if the stream is captured."""
        player, handle = self.player, cublas_handle()  # a thread's own, which dies with it
        player.play(bases, grain, flag, _side.lanes(player.device, stream, handle, player.tape), scratch)

    def key(self, bases: Pointers, grain: Grain) -> Hashable:
        """What a graph of the route depends on: how pointers are aligned, and those of them that products are given."""
        return grain, *[bases[i] for i in self.player.fixed]

    def kernels(self, bases: Pointers, grain: Grain, flag: int) -> Iterator[Kernel]:
        """The sums' kernels, in the order of their launches, with their parameters for these pointers."""
        addresses = self.player.filled(bases, flag).addresses
        for launch, address in zip(self.player.ready(grain).launches, addresses, strict=True):
            yield Kernel(launch.function, address, launch.size)


class Graph(NamedTuple):
    """A captured tape: its memory must stay where it is."""

    graph: Any
    scratch: Any

    def launch(self, stream: Any = None) -> None:
        self.graph.launch(stream)


@dataclass(frozen=True)
class CupyBackend:
    """Runs tapes on CuPy's current device and stream; `math` says whether float32 products may use TF32."""

    math: Math = "ieee"
    _graphs: OrderedDict[Any, Graph] = field(default_factory=OrderedDict, repr=False, compare=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False, compare=False)

    def run(self, tape: Tape, a: int, b: int, c: int, workspace: int, stream: Any = None, flag: int = 0) -> None:
        """C = alpha A B + beta C on device pointers; `flag`: an int that becomes 1 if C is given inf or NaN."""
        if stream is not None:
            with stream:
                self.run(tape, a, b, c, workspace, None, flag)
            return
        bases = a, b, c, workspace
        self.route(tape, bool(flag)).run(bases, grains(bases), cupy.cuda.get_current_stream().ptr, flag)

    def route(self, tape: Tape, flagged: bool) -> Route:
        """`flagged`: to be run with a flag for inf and NaN."""
        return Route(_player(tape, cupy.cuda.runtime.getDevice(), self.math, flagged))

    def graph(self, tape: Tape, a: int, b: int, c: int, workspace: int) -> Graph:
        """The tape on these pointers as a CUDA graph; one launch replays it all. The newest few are kept."""
        key = (tape, cupy.cuda.runtime.getDevice(), a, b, c, workspace)
        with self._lock:
            if key in self._graphs:
                self._graphs.move_to_end(key)
                return self._graphs[key]
            made = self._graphs[key] = self._capture(tape, (a, b, c, workspace))
            if len(self._graphs) > GRAPHS:
                self._graphs.popitem(last=False)
            return made

    def _capture(self, tape: Tape, bases: Pointers) -> Graph:
        # Compiled, and lanes made, before, not during the capture.
        device = cupy.cuda.runtime.getDevice()
        _player(tape, device, self.math, False).ready(grains(bases))
        _side.lanes(device, 0, 0, tape)
        scratch = cupy.empty(GRAPH_SCRATCH * tape.vendor_lanes, cupy.uint8)
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            stream.begin_capture()
            try:
                self.route(tape, False).run(bases, grains(bases), stream.ptr, 0, scratch.data.ptr)
            finally:
                captured = stream.end_capture()
        return Graph(captured, scratch)

    def multiply(
        self,
        plan: Plan | str,
        a: Any,
        b: Any,
        out: Any = None,
        alpha: complex = 1,
        beta: complex = 0,
        dtype: str | None = None,
    ) -> Any:
        """alpha a b + beta out on CuPy matrices; `dtype="bfloat16"` reads 16-bit integers as bfloat16."""
        kind = dtype or str(a.dtype)
        a, b = _packed(a), _packed(b)
        c = out if out is not None else cupy.empty((a.shape[0], b.shape[1]), a.dtype)
        target = c if layout(c) else cupy.ascontiguousarray(c)
        layouts = tuple(x for x in map(layout, (a, b, target)) if x)
        problem = Problem(a.shape[0], a.shape[1], b.shape[1], kind, layouts, alpha, beta)  # type: ignore[arg-type]
        tape = record(Plan.parse(plan) if isinstance(plan, str) else plan, problem)
        workspace = cupy.empty(tape.workspace, cupy.uint8)
        self.run(tape, a.data.ptr, b.data.ptr, target.data.ptr, workspace.data.ptr)
        if target is not c:
            c[...] = target
        return c


def layout(x: Any) -> Layout | None:
    """How a matrix lies in memory; None if neither its rows nor its columns are contiguous, or they overlap."""
    (rows, cols), (down, right), item = x.shape, x.strides, x.itemsize
    if (cols <= 1 or right == item) and (rows <= 1 or (down % item == 0 and down >= cols * item)):
        return Layout("C", max(down // item if rows > 1 else cols, cols, 1))
    if (rows <= 1 or down == item) and (cols <= 1 or (right % item == 0 and right >= rows * item)):
        return Layout("F", max(right // item if cols > 1 else rows, rows, 1))
    return None


def _packed(x: Any) -> Any:
    return x if layout(x) else cupy.ascontiguousarray(x)
