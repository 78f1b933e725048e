"""Playing a launch list on a CUDA device: addresses are filled in, calls prepared, then all are made in order.

A signal's handler can raise at any step of this code, but not between the calls: they are made by one call of C
(`prepared_calls`), before which nothing has written C. So the whole product is launched or nothing of C is written, and
the lanes have met again, when an exception leaves. What runs ahead are the first sums, if they write the workspace
alone, on the caller's stream.

Handle, memory, stream and compiled code are CuPy's, so that both share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import cupy
import numpy as np

from fmm.kernels.cuda.launch.compile import compile_kernels
from fmm.kernels.cuda.launch.cublas import (
    GemmCall,
    Math,
    StreamContext,
    math_mode,
    restore_calls,
    setup_calls,
    vendor_call,
    workspace_call,
)
from fmm.kernels.cuda.launch.graphs import KernelNode
from fmm.kernels.cuda.launch.kernel_call import KernelCall, Start
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall, make_calls
from fmm.kernels.cuda.launch.streams import acquire_streams, new_counters, stream_counters, sync_calls
from fmm.kernels.cuda.launch_list import BASES, COUNTERS, FLAG, HOST_COUNT, Launch, LaunchList, StreamSync, VendorCall
from fmm.kernels.cuda.target import ALIGNED, Alignment, alignment_of
from fmm.kernels.plans.steps.sums import APART
from fmm.kernels.plans.workspace import GRAPH_SCRATCH

cublas_handle = cupy.cuda.device.get_cublas_handle
FEW_SLOTS = 32  # addresses up to which a loop is faster than NumPy
# The bases of which a launch may be told without writing C. (All sums know the flag; those that write C may raise it.)
BASES_WITHOUT_C = frozenset(("A", "B", "W", APART, FLAG))
# The place of each base's address among all addresses of a call; counters stand behind them.
NUMBERS = {base: i for i, base in enumerate((*BASES, FLAG, HOST_COUNT, APART))}


class Addresses(NamedTuple):
    """The addresses that a call's launches are told, in the order of NUMBERS."""

    a: int
    b: int
    c: int
    workspace: int
    flag: int = 0  # for inf and NaN
    host_count: int = 0  # of products computed again
    added: int = 0  # what is added, if C does not hold it

    @property
    def alignment(self) -> Alignment:
        """The powers of two that divide the first four; what is added counts as C does."""
        return alignment_of(self.a, self.b, self.c | self.added, self.workspace)

    @property
    def aligned(self) -> bool:
        """Do all of these lie as libraries allocate memory?"""
        return not (self[0] | self[1] | self[2] | self[3] | self[6]) % ALIGNED[0]

    @property
    def places(self) -> tuple[int, ...]:
        """The addresses of the memory that a caller has given."""
        return (*self[:4], self.added)


class _OwnLaunch(NamedTuple):
    """A launch of our own kernel."""

    lane: int
    start: Start
    ahead: bool  # may it run before the other calls are prepared?


class _VendorProduct(NamedTuple):
    """A product by the vendor's library."""

    lane: int
    call: GemmCall


class _Parameters:
    """The parameters of all launches of a list, in memory that stays where it is; the driver copies them at the call.

    `pointers` holds the address of each launch's block, and `addresses` says where these pointers stand: that is what
    the driver is given.
    """

    def __init__(self, blocks: list[Any]) -> None:
        starts = np.cumsum([0, *(8 * len(b) for b in blocks)])
        self.words: Any = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
        self.view: Any = self.words.data
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        self.filled_with: tuple[int, ...] | None = None  # addresses and counters that stand in the words now


class _SpareParameters(threading.local):
    """A thread's own parameters that are not in use.

    Whoever plays the list takes them out until all is launched: a signal's handler may play the same list in between.
    What an exception interrupts does not come back.
    """

    def __init__(self) -> None:
        self.free: list[_Parameters] = []


class Player:
    """A launch list made ready for one device: compiled kernels, parameters, the vendor's calls."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.launches, self.device = launches, device
        self.math: Math = "tf32" if launches.vendor_uses_tf32 else "ieee"
        compile_kernels(device, {launch.kernel for launch in launches.launches})
        self.calls = [KernelCall(launch, device) for launch in launches.launches]
        self._counting = [launch.counters for launch in launches.launches if launch.counters]
        self._set_slots()
        self._spare = _SpareParameters()
        steps = list(self._steps())
        leading = takewhile(lambda step: isinstance(step, _OwnLaunch) and step.ahead, steps)
        self._first = [step.start for step in leading if isinstance(step, _OwnLaunch)]
        self._rest = steps[len(self._first) :]
        # Where one launch, or one call of the vendor's, is all, no lanes are to be prepared.
        only = steps[0] if len(steps) == 1 else None
        self._alone = only.start if isinstance(only, _OwnLaunch) else None
        self._vendors_alone = only.call if isinstance(only, _VendorProduct) else None

    def _set_slots(self) -> None:
        """Note which words of all parameters hold addresses: of each the word, the address's number, and an offset."""
        slots: list[tuple[int, int, int]] = []
        start = counting = 0
        for call in self.calls:
            for word, base, offset in call.launch.slots:
                number = len(NUMBERS) + counting if base == COUNTERS else NUMBERS[base]
                slots.append((start + word, number, offset))
            counting += call.launch.counters > 0
            start += len(call.words)
        self._few_slots = slots if len(slots) <= FEW_SLOTS else None
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._words, self._numbers, self._offsets = columns[0].astype(np.intp), columns[1].astype(np.intp), columns[2]

    def _steps(self) -> Iterator[_OwnLaunch | _VendorProduct | StreamSync]:
        calls = iter(self.calls)
        divides = dict(zip(BASES, self.launches.alignment, strict=True))
        for step, lane in zip(self.launches.steps, self.launches.lanes, strict=True):
            if isinstance(step, Launch):
                ahead = lane == 0 and BASES_WITHOUT_C.issuperset(slot.base for slot in step.slots)
                yield _OwnLaunch(lane, next(calls).start, ahead)
            elif isinstance(step, VendorCall):
                yield _VendorProduct(lane, vendor_call(step.op, divides))
            else:
                yield step

    # ---- playing

    def play(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None = None, scratch: int = 0
    ) -> None:
        """Make every launch and call, in order, each on its lane, on the current device.

        Only while the stream is captured: `counters` of the graph's own, and `scratch`, memory for cuBLAS,
        GRAPH_SCRATCH bytes for each lane that calls it.

        The first sums are on their way before the other calls are prepared: an idle device starts some microseconds
        earlier.
        """
        if self._alone is not None and not self._counting:
            parameters = self._filled_parameters(addresses, ())
            self._alone(stream, parameters.addresses[0], 0)()
            self._spare.free.append(parameters)
            return
        if self._vendors_alone is not None and not scratch:
            lane = StreamContext(cublas_handle(), stream, 0)
            mode = math_mode(lane)
            calls = [*setup_calls(lane, self.math, mode), self._vendors_alone.prepared(lane, addresses)]
            make_calls(calls + restore_calls(lane, self.math, mode))
            return
        lanes, parameters = self._lanes_and_parameters(addresses, stream, counters)
        blocks = iter(parameters.addresses)
        for start in self._first:
            start(stream, next(blocks), 0)()
        make_calls(self._prepared_rest(addresses, lanes, blocks, scratch))
        self._spare.free.append(parameters)

    def prepared_product(self, addresses: Addresses, stream: int) -> tuple[list[PreparedCall], Callable[[], None]]:
        """The same as calls that are still to be made; and what gives back their parameters when they are made."""
        lanes, parameters = self._lanes_and_parameters(addresses, stream, None)
        blocks = iter(parameters.addresses)
        first = [start(stream, next(blocks), 0) for start in self._first]
        calls = first + self._prepared_rest(addresses, lanes, blocks, 0)
        return calls, partial(self._spare.free.append, parameters)

    def _lanes_and_parameters(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None
    ) -> tuple[list[StreamContext], _Parameters]:
        """The lanes of this call, and parameters of its own with its addresses in them."""
        handle = cublas_handle() if self.launches.vendor_stream_count else 0  # a thread's own, which dies with it
        lanes = acquire_streams(self.launches, self.device, stream, handle)
        if counters is None:
            counters = self._stream_counters(lanes) if self._counting else ()
        return lanes, self._filled_parameters(addresses, counters)

    def _prepared_rest(
        self, addresses: Addresses, lanes: list[StreamContext], blocks: Iterator[int], scratch: int
    ) -> list[PreparedCall]:
        """All calls but the first ones, and around them those that set cuBLAS's handles and set them back."""
        calls, leaving = list[PreparedCall](), list[PreparedCall]()
        for i, lane in enumerate(lanes[: self.launches.vendor_stream_count]):
            mode = math_mode(lane)
            calls += setup_calls(lane, self.math, mode)
            leaving += restore_calls(lane, self.math, mode)
            if scratch:
                calls.append(workspace_call(lane, scratch + i * GRAPH_SCRATCH, GRAPH_SCRATCH))
        for step in self._rest:
            if isinstance(step, _OwnLaunch):
                calls.append(step.start(lanes[step.lane].stream, next(blocks), 0))
            elif isinstance(step, _VendorProduct):
                calls.append(step.call.prepared(lanes[step.lane], addresses))
            else:
                calls += sync_calls(step, lanes)
        return calls + leaving

    def _filled_parameters(self, addresses: Addresses, counters: tuple[int, ...]) -> _Parameters:
        """Parameters with these addresses in them, taken out of the spare ones.

        While they are being filled they are marked as holding none, should an exception come in between.
        """
        wanted = (*addresses, *counters)
        try:
            parameters = self._spare.free.pop()
        except IndexError:
            parameters = _Parameters([call.words for call in self.calls])
        if parameters.filled_with != wanted:
            parameters.filled_with = None
            if self._few_slots is not None:
                for word, number, offset in self._few_slots:
                    parameters.view[word] = wanted[number] + offset
            else:
                parameters.words[self._words] = np.array(wanted, np.int64)[self._numbers] + self._offsets
            parameters.filled_with = wanted
        return parameters

    # ---- counters and graphs

    def _stream_counters(self, lanes: list[StreamContext]) -> tuple[int, ...]:
        pairs = zip(self.launches.steps, self.launches.lanes, strict=True)
        counting = ((step.counters, lane) for step, lane in pairs if isinstance(step, Launch) and step.counters)
        return tuple(stream_counters(self.device, lanes[lane].stream, count) for count, lane in counting)

    def create_streams(self) -> None:
        """Make this thread's lanes, which cannot be made while a stream is captured."""
        acquire_streams(self.launches, self.device, 0, 0)

    def new_counters(self, stream: int) -> tuple[int, ...]:
        """Counters of a graph's own, since it may run beside others."""
        return tuple(new_counters(count, stream) for count in self._counting)

    def nodes(self, addresses: Addresses, counters: tuple[int, ...]) -> Iterator[KernelNode]:
        """Our kernels, in the order of their launches, with their parameters for these addresses."""
        parameters = self._filled_parameters(addresses, counters)
        for call, block in zip(self.calls, parameters.addresses, strict=True):
            yield KernelNode(call.function, block, 8 * len(call.words))
        self._spare.free.append(parameters)


@lru_cache(maxsize=1024)
def player_of(launches: LaunchList, device: int) -> Player:
    """The list made ready on the current device, whose number it is."""
    return Player(launches, device)


class LaunchSequence:
    """Launches made ready for one device. Several threads may play them at once, since nothing in here changes."""

    def __init__(self, launches: Sequence[Launch], device: int) -> None:
        compile_kernels(device, {launch.kernel for launch in launches})
        self.calls = [KernelCall(launch, device) for launch in launches]
        starts = np.cumsum([0, *(len(call.words) for call in self.calls)])[:-1]
        self._words = np.concatenate([call.words for call in self.calls] or [np.empty(0, np.int64)])  # all parameters
        self._starts = starts  # the word at which those of each launch begin
        self.bases = tuple(dict.fromkeys(slot.base for launch in launches for slot in launch.slots))
        numbers = {base: i for i, base in enumerate(self.bases)}
        slots = [
            (start + slot.word, numbers[slot.base], slot.offset)
            for start, launch in zip(starts, launches, strict=True)
            for slot in launch.slots
        ]
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._slots, self._numbers, self._offsets = columns[0].astype(np.intp), columns[1].astype(np.intp), columns[2]

    def play(self, addresses: Mapping[str, int], stream: int) -> None:
        """Launch all of them on the current device; the driver copies the parameters while it is called."""
        words = self._words.copy()
        by_number = np.array([addresses[base] for base in self.bases], np.int64)
        words[self._slots] = by_number[self._numbers] + self._offsets
        pointers = words.ctypes.data + 8 * self._starts.astype(np.int64)
        first_pointer = pointers.ctypes.data
        make_calls([call.start(stream, first_pointer + 8 * i, 0) for i, call in enumerate(self.calls)])
