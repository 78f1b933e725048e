"""Playing a launch list on a CUDA device: addresses are filled in, calls prepared, then all are made in order.

A signal's handler can raise at any step of this code, but not between the calls: they are made by one call of C
(`prepared_calls`), before which nothing has written C. So the whole product is launched or nothing of C is written, and
the lanes have met again, when an exception leaves. What runs ahead are the first sums, if they write the workspace
alone, on the caller's stream.

Handle, memory, stream and compiled code are CuPy's, so that both share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import cupy
import numpy as np

from fmm.kernels.cuda.launch.blas_library import GemmCall, Lane
from fmm.kernels.cuda.launch.compile import compile_all
from fmm.kernels.cuda.launch.counters import new_counters, stream_counters
from fmm.kernels.cuda.launch.cublas import (
    Math,
    entering_calls,
    leaving_calls,
    math_mode,
    memory_call,
    vendor_call,
)
from fmm.kernels.cuda.launch.graphs import KernelNode
from fmm.kernels.cuda.launch.kernel_call import KernelCall, Start
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall, make_calls
from fmm.kernels.cuda.launch.streams import lanes_for, turn_calls
from fmm.kernels.cuda.launch_list import BASES, COUNTERS, FLAG, HOST_COUNT, Launch, LaunchList, Turn, VendorCall
from fmm.kernels.cuda.select import ALIGNED, Alignment, alignment_of
from fmm.kernels.plans.steps.sums import APART
from fmm.kernels.plans.workspace import GRAPH_SCRATCH

cublas_handle = cupy.cuda.device.get_cublas_handle
FEW_SLOTS = 32  # addresses up to which a loop is faster than NumPy
# What a launch is told that does not write C. (All sums know the flag; those that write C may raise it.)
WRITES_NO_C = frozenset(("A", "B", "W", APART, FLAG))
NUMBERS = {base: i for i, base in enumerate((*BASES, FLAG, HOST_COUNT, APART))}


class Addresses(NamedTuple):
    """Of A, B, C and the workspace, of the flag for inf and NaN, of the host's count of products computed again, and of
    what is added, where C does not hold it."""

    a: int
    b: int
    c: int
    workspace: int
    flag: int = 0
    host_count: int = 0
    added: int = 0

    @property
    def alignment(self) -> Alignment:
        """Powers of two that divide the first four; what is added counts as C does."""
        return alignment_of(self.a, self.b, self.c | self.added, self.workspace)

    @property
    def aligned(self) -> bool:
        """Do all of these lie as libraries allocate memory?"""
        return not (self[0] | self[1] | self[2] | self[3] | self[6]) % ALIGNED[0]

    @property
    def places(self) -> tuple[int, ...]:
        """Of the memory that a caller has given."""
        return (*self[:4], self.added)


class _Started(NamedTuple):
    """A kernel of ours: on which lane; may it run ahead of the others?"""

    lane: int
    start: Start
    ahead: bool


class _Multiplied(NamedTuple):
    """A product of the vendor's: on which lane."""

    lane: int
    call: GemmCall


class _Parameters:
    """Parameters of all launches of a list: the driver copies them when it is called."""

    def __init__(self, blocks: list[Any]) -> None:
        starts = np.cumsum([0, *(8 * len(b) for b in blocks)])
        self.words: Any = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
        self.view: Any = self.words.data
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        self.known: tuple[int, ...] | None = None


class _Spare(threading.local):
    """A thread's own parameters that are not in use. Whoever plays the list takes them out until all is launched: a
    signal's handler may play the same list in between. What an exception interrupts does not come back."""

    def __init__(self) -> None:
        self.kept: list[_Parameters] = []


class Player:
    """A launch list made ready for one device: compiled kernels, parameters, the vendor's calls."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.launches, self.device = launches, device
        self.math: Math = "tf32" if launches.vendor_cuts_float32 else "ieee"
        compile_all(device, {launch.kernel for launch in launches.launches})
        self.calls = [KernelCall(launch, device) for launch in launches.launches]
        self._counting = [launch.counters for launch in launches.launches if launch.counters]
        self._set_slots()
        self._spare = _Spare()
        steps = list(self._steps())
        leading = takewhile(lambda step: isinstance(step, _Started) and step.ahead, steps)
        self._first = [step.start for step in leading if isinstance(step, _Started)]
        self._rest = steps[len(self._first) :]
        # Where one launch, or one call of the vendor's, is all, no lanes are to be prepared.
        only = steps[0] if len(steps) == 1 else None
        self._alone = only.start if isinstance(only, _Started) else None
        self._vendors_alone = only.call if isinstance(only, _Multiplied) else None

    def _set_slots(self) -> None:
        """Which word of all parameters is told which address, and how much more."""
        found: list[tuple[int, int, int]] = []
        start = counting = 0
        for call in self.calls:
            for word, base, offset in call.launch.slots:
                number = len(NUMBERS) + counting if base == COUNTERS else NUMBERS[base]
                found.append((start + word, number, offset))
            counting += call.launch.counters > 0
            start += len(call.words)
        self._few = found if len(found) <= FEW_SLOTS else None
        columns = np.array(found, np.int64).reshape(-1, 3).T
        self._words, self._numbers, self._offsets = columns[0].astype(np.intp), columns[1].astype(np.intp), columns[2]

    def _steps(self) -> Iterator[_Started | _Multiplied | Turn]:
        calls = iter(self.calls)
        divides = dict(zip(BASES, self.launches.alignment, strict=True))
        for step, lane in zip(self.launches.steps, self.launches.lanes, strict=True):
            if isinstance(step, Launch):
                ahead = lane == 0 and WRITES_NO_C.issuperset(slot.base for slot in step.slots)
                yield _Started(lane, next(calls).start, ahead)
            elif isinstance(step, VendorCall):
                yield _Multiplied(lane, vendor_call(step.op, divides))
            else:
                yield step

    # ---- playing

    def play(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None = None, scratch: int = 0
    ) -> None:
        """Every launch and call, in order, on its lane, on the current device. While the stream is captured: counters
        of the graph's own, and `scratch`, memory for cuBLAS, GRAPH_SCRATCH bytes for each lane that calls it.

        The first sums are on their way before the other calls are prepared: an idle device starts some microseconds
        earlier.
        """
        if self._alone is not None and not self._counting:
            parameters = self._filled(addresses, ())
            self._alone(stream, parameters.addresses[0], 0)()
            self._spare.kept.append(parameters)
            return
        if self._vendors_alone is not None and not scratch:
            lane = Lane(cublas_handle(), stream, 0)
            mode = math_mode(lane)
            calls = [*entering_calls(lane, self.math, mode), self._vendors_alone.prepared(lane, addresses)]
            make_calls(calls + leaving_calls(lane, self.math, mode))
            return
        lanes, parameters = self._made_ready(addresses, stream, counters)
        blocks = iter(parameters.addresses)
        for start in self._first:
            start(stream, next(blocks), 0)()
        make_calls(self._prepared(addresses, lanes, blocks, scratch))
        self._spare.kept.append(parameters)

    def prepared_product(self, addresses: Addresses, stream: int) -> tuple[list[PreparedCall], Callable[[], None]]:
        """The same as calls that are still to be made; and what gives back their parameters when they are."""
        lanes, parameters = self._made_ready(addresses, stream, None)
        blocks = iter(parameters.addresses)
        first = [start(stream, next(blocks), 0) for start in self._first]
        calls = first + self._prepared(addresses, lanes, blocks, 0)
        return calls, partial(self._spare.kept.append, parameters)

    def _made_ready(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None
    ) -> tuple[list[Lane], _Parameters]:
        """The lanes, and parameters of this call's own with its addresses in them."""
        handle = cublas_handle() if self.launches.vendor_lanes else 0  # a thread's own, which dies with it
        lanes = lanes_for(self.launches, self.device, stream, handle)
        if counters is None:
            counters = self._stream_counters(lanes) if self._counting else ()
        return lanes, self._filled(addresses, counters)

    def _prepared(
        self, addresses: Addresses, lanes: list[Lane], blocks: Iterator[int], scratch: int
    ) -> list[PreparedCall]:
        """All calls but those that ran ahead, and around them those that set cuBLAS's handles and set them back."""
        calls, leaving = list[PreparedCall](), list[PreparedCall]()
        for i, lane in enumerate(lanes[: self.launches.vendor_lanes]):
            mode = math_mode(lane)
            calls += entering_calls(lane, self.math, mode)
            leaving += leaving_calls(lane, self.math, mode)
            if scratch:
                calls.append(memory_call(lane, scratch + i * GRAPH_SCRATCH, GRAPH_SCRATCH))
        for step in self._rest:
            if isinstance(step, _Started):
                calls.append(step.start(lanes[step.lane].stream, next(blocks), 0))
            elif isinstance(step, _Multiplied):
                calls.append(step.call.prepared(lanes[step.lane], addresses))
            else:
                calls += turn_calls(step, lanes)
        return calls + leaving

    def _filled(self, addresses: Addresses, counters: tuple[int, ...]) -> _Parameters:
        """Parameters with these addresses in them, taken out of the spare ones. Half filled, they are for none."""
        known = (*addresses, *counters)
        try:
            found = self._spare.kept.pop()
        except IndexError:
            found = _Parameters([call.words for call in self.calls])
        if found.known != known:
            found.known = None
            if self._few is not None:
                for word, number, offset in self._few:
                    found.view[word] = known[number] + offset
            else:
                found.words[self._words] = np.array(known, np.int64)[self._numbers] + self._offsets
            found.known = known
        return found

    # ---- counters and graphs

    def _stream_counters(self, lanes: list[Lane]) -> tuple[int, ...]:
        pairs = zip(self.launches.steps, self.launches.lanes, strict=True)
        counting = ((step.counters, lane) for step, lane in pairs if isinstance(step, Launch) and step.counters)
        return tuple(stream_counters(self.device, lanes[lane].stream, count) for count, lane in counting)

    def make_lanes(self) -> None:
        """This thread's, which cannot be made while a stream is captured."""
        lanes_for(self.launches, self.device, 0, 0)

    def new_counters(self, stream: int) -> tuple[int, ...]:
        """For a graph, which may run beside others."""
        return tuple(new_counters(count, stream) for count in self._counting)

    def nodes(self, addresses: Addresses, counters: tuple[int, ...]) -> Iterator[KernelNode]:
        """Our kernels, in the order of their launches, with their parameters for these addresses."""
        parameters = self._filled(addresses, counters)
        for call, block in zip(self.calls, parameters.addresses, strict=True):
            yield KernelNode(call.function, block, 8 * len(call.words))
        self._spare.kept.append(parameters)


@lru_cache(maxsize=1024)
def player_of(launches: LaunchList, device: int) -> Player:
    """The list made ready on the current device, whose number it is."""
    return Player(launches, device)
