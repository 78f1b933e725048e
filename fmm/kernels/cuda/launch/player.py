"""Play a launch list on a CUDA device: fill in the addresses, prepare the calls, then make all calls in order.

A signal handler can raise at any step of this code, but not between the calls: one C function makes them all
(`make_calls`), and nothing writes C before it. After an exception, either the whole product is launched or C is
untouched, and the streams are synchronized. The only launches made earlier are leading sums on the caller's stream that
write the workspace alone.

cuBLAS handle, memory, streams and compiled code are CuPy's, so that both libraries share them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from fmm.kernels.cuda.launch.bound_calls import BoundCall, make_calls
from fmm.kernels.cuda.launch.compile import compile_kernels
from fmm.kernels.cuda.launch.cublas import (
    GemmCall,
    MathMode,
    StreamContext,
    math_mode,
    restore_calls,
    setup_calls,
    vendor_call,
    workspace_call,
)
from fmm.kernels.cuda.launch.graphs import KernelNode
from fmm.kernels.cuda.launch.kernel_call import BindLaunch, KernelCall
from fmm.kernels.cuda.launch.streams import (
    acquire_streams,
    make_context_current,
    new_counters,
    stream_counters,
    sync_calls,
    thread_handle,
)
from fmm.kernels.cuda.launch_list import (
    ADDRESS_BASES,
    COUNTERS,
    FLAG,
    HOST_COUNT,
    Launch,
    LaunchList,
    StreamSync,
    VendorCall,
)
from fmm.kernels.cuda.target import ALLOCATOR_ALIGNMENT, Alignment, address_alignment
from fmm.kernels.plans.sums import ADDEND
from fmm.kernels.plans.workspace import GRAPH_SCRATCH_BYTES

MAX_LOOP_SLOTS = 32  # number of addresses up to which a loop is faster than NumPy
# Bases that a launch may have without writing C. (All sums have the flag's address, but only sums that write C raise
# the flag.)
BASES_WITHOUT_C = frozenset(("A", "B", "W", ADDEND, FLAG))
# Index of each base's address among the addresses of a call; the counters' addresses follow.
ADDRESS_NUMBERS = {base: i for i, base in enumerate((*ADDRESS_BASES, FLAG, HOST_COUNT, ADDEND))}


class Addresses(NamedTuple):
    """The addresses of one call, in the order of ADDRESS_NUMBERS."""

    a: int
    b: int
    c: int
    workspace: int
    flag: int = 0  # address of the flag for inf and NaN
    host_count: int = 0  # address of the host's count of recomputed products
    addend: int = 0  # address of the addend; 0 if C holds the addend

    @property
    def alignment(self) -> Alignment:
        """The powers of two that divide the first four addresses; the addend counts as C does."""
        return address_alignment(self.a, self.b, self.c | self.addend, self.workspace)

    @property
    def aligned(self) -> bool:
        """True if all operands and the workspace have the alignment of memory that libraries allocate."""
        return not (self[0] | self[1] | self[2] | self[3] | self[6]) % ALLOCATOR_ALIGNMENT[0]

    @property
    def memory_addresses(self) -> tuple[int, ...]:
        """The addresses of the caller's memory and the workspace."""
        return (*self[:4], self.addend)


class _OwnLaunch(NamedTuple):
    """A launch of one of fmm's kernels."""

    stream: int
    bind: BindLaunch
    may_run_early: bool  # True if the kernel may be launched before the other calls are prepared


class _VendorProduct(NamedTuple):
    """A product by the vendor's library."""

    stream: int
    call: GemmCall


class _LaunchParameters:
    """The parameters of all launches of a list, in memory that does not move; the driver copies them at each launch.

    `pointers[i]` is the address of the parameters of launch i; `addresses[i]` is the address of `pointers[i]`, which
    the driver takes.
    """

    def __init__(self, blocks: list[Any]) -> None:
        starts = np.cumsum([0, *(8 * len(b) for b in blocks)])
        self.words: Any = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
        self.view: Any = self.words.data
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        self.filled_with: tuple[int, ...] | None = None  # the addresses and counters that are filled in now


class _SpareParameters(threading.local):
    """A thread's parameter blocks that are not in use.

    A call removes a parameter block from the list, and returns it when all kernels are launched, because a signal
    handler may play the same list meanwhile. The block of an interrupted call is not used again.

    A thread that uses a player for the first time may have no CUDA context yet, if its memory comes from a pool and its
    graph from a thread that has ended. The driver's functions need a context: without one, setting a graph's parameters
    crashes.
    """

    def __init__(self, device: int) -> None:
        make_context_current(device)
        self.free: list[_LaunchParameters] = []


class Player:
    """A launch list prepared for one device: compiled kernels, parameters, and the vendor's calls."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.launches, self.device = launches, device
        self.math: MathMode = "tf32" if launches.needs_tf32_mode else "ieee"
        compile_kernels(device, {launch.kernel for launch in launches.launches})
        self.calls = [KernelCall(launch, device) for launch in launches.launches]
        self._counting = [launch.counters for launch in launches.launches if launch.counters]
        self._set_slots()
        self._spare = _SpareParameters(device)
        steps = list(self._steps())
        leading = takewhile(lambda step: isinstance(step, _OwnLaunch) and step.may_run_early, steps)
        self._first = [step.bind for step in leading if isinstance(step, _OwnLaunch)]
        self._rest = steps[len(self._first) :]
        # A list of a single launch or vendor call needs no streams.
        only = steps[0] if len(steps) == 1 else None
        self._only_launch = only.bind if isinstance(only, _OwnLaunch) else None
        self._only_vendor_call = only.call if isinstance(only, _VendorProduct) else None

    def _set_slots(self) -> None:
        """Note the parameter words that hold addresses: for each the word, the address's index, and an offset."""
        slots: list[tuple[int, int, int]] = []
        start = counting = 0
        for call in self.calls:
            for word, base, offset in call.launch.slots:
                number = len(ADDRESS_NUMBERS) + counting if base == COUNTERS else ADDRESS_NUMBERS[base]
                slots.append((start + word, number, offset))
            counting += call.launch.counters > 0
            start += len(call.words)
        self._few_slots = slots if len(slots) <= MAX_LOOP_SLOTS else None
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._words, self._random_numbers, self._offsets = (
            columns[0].astype(np.intp),
            columns[1].astype(np.intp),
            columns[2],
        )

    def _steps(self) -> Iterator[_OwnLaunch | _VendorProduct | StreamSync]:
        calls = iter(self.calls)
        divides = dict(zip(ADDRESS_BASES, self.launches.alignment, strict=True))
        for step, stream in zip(self.launches.steps, self.launches.streams, strict=True):
            if isinstance(step, Launch):
                may_run_early = stream == 0 and BASES_WITHOUT_C.issuperset(slot.base for slot in step.slots)
                yield _OwnLaunch(stream, next(calls).bind, may_run_early)
            elif isinstance(step, VendorCall):
                yield _VendorProduct(stream, vendor_call(step.op, divides))
            else:
                yield step

    # ---- playing

    def play(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None = None, scratch: int = 0
    ) -> None:
        """Make every launch and call in order, each on its stream, on the current device.

        Only while the stream is captured: `counters` are the graph's own, and `scratch` is memory for cuBLAS,
        GRAPH_SCRATCH_BYTES bytes for each stream that calls it.

        The leading sums are launched before the other calls are prepared, so that an idle device starts some
        microseconds earlier.
        """
        if self._only_launch is not None and not self._counting:
            parameters = self._filled_parameters(addresses, ())
            self._only_launch(stream, parameters.addresses[0], 0)()
            self._spare.free.append(parameters)
            return
        if self._only_vendor_call is not None and not scratch:
            context = StreamContext(thread_handle(self.device), stream, 0)
            mode = math_mode(context)
            calls = [*setup_calls(context, self.math, mode), self._only_vendor_call.prepared(context, addresses)]
            make_calls(calls + restore_calls(context, self.math, mode))
            return
        streams, parameters = self._streams_and_parameters(addresses, stream, counters)
        blocks = iter(parameters.addresses)
        for bind in self._first:
            bind(stream, next(blocks), 0)()
        make_calls(self._prepared_rest(addresses, streams, blocks, scratch))
        self._spare.free.append(parameters)

    def prepared_product(self, addresses: Addresses, stream: int) -> tuple[list[BoundCall], Callable[[], None]]:
        """Return the calls of `play`, not yet made, and the function that frees their parameters afterwards."""
        streams, parameters = self._streams_and_parameters(addresses, stream, None)
        blocks = iter(parameters.addresses)
        first = [bind(stream, next(blocks), 0) for bind in self._first]
        calls = first + self._prepared_rest(addresses, streams, blocks, 0)
        return calls, partial(self._spare.free.append, parameters)

    def _streams_and_parameters(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None
    ) -> tuple[list[StreamContext], _LaunchParameters]:
        """Return the streams of this call, and parameters that hold its addresses."""
        streams = acquire_streams(self.launches, self.device, stream)
        if counters is None:
            counters = self._stream_counters(streams) if self._counting else ()
        return streams, self._filled_parameters(addresses, counters)

    def _prepared_rest(
        self, addresses: Addresses, streams: list[StreamContext], blocks: Iterator[int], scratch: int
    ) -> list[BoundCall]:
        """Return all calls but the leading launches, between those that set up and restore the cuBLAS handles."""
        calls, restoring = list[BoundCall](), list[BoundCall]()
        for i, context in enumerate(streams[: self.launches.vendor_stream_count]):
            mode = math_mode(context)
            calls += setup_calls(context, self.math, mode)
            restoring += restore_calls(context, self.math, mode)
            if scratch:
                calls.append(workspace_call(context, scratch + i * GRAPH_SCRATCH_BYTES, GRAPH_SCRATCH_BYTES))
        for step in self._rest:
            if isinstance(step, _OwnLaunch):
                calls.append(step.bind(streams[step.stream].stream, next(blocks), 0))
            elif isinstance(step, _VendorProduct):
                calls.append(step.call.prepared(streams[step.stream], addresses))
            else:
                calls += sync_calls(step, streams)
        return calls + restoring

    def _filled_parameters(self, addresses: Addresses, counters: tuple[int, ...]) -> _LaunchParameters:
        """Take a spare parameter block and fill in these addresses.

        While it is being filled, the block is marked as holding none, in case an exception interrupts.
        """
        wanted = (*addresses, *counters)
        try:
            parameters = self._spare.free.pop()
        except IndexError:
            parameters = _LaunchParameters([call.words for call in self.calls])
        if parameters.filled_with != wanted:
            parameters.filled_with = None
            if self._few_slots is not None:
                for word, number, offset in self._few_slots:
                    parameters.view[word] = wanted[number] + offset
            else:
                parameters.words[self._words] = np.array(wanted, np.int64)[self._random_numbers] + self._offsets
            parameters.filled_with = wanted
        return parameters

    # ---- counters and graphs

    def _stream_counters(self, streams: list[StreamContext]) -> tuple[int, ...]:
        pairs = zip(self.launches.steps, self.launches.streams, strict=True)
        counting = ((step.counters, stream) for step, stream in pairs if isinstance(step, Launch) and step.counters)
        return tuple(stream_counters(self.device, streams[stream].stream, count) for count, stream in counting)

    def create_streams(self) -> None:
        """Create this thread's streams and cuBLAS handle, since none can be created while a stream is captured."""
        acquire_streams(self.launches, self.device, 0)

    def new_counters(self, stream: int) -> tuple[int, ...]:
        """Return counters for one graph, which may run concurrently with others."""
        return tuple(new_counters(count, stream) for count in self._counting)

    def nodes(self, addresses: Addresses, counters: tuple[int, ...]) -> Iterator[KernelNode]:
        """Yield fmm's kernels in launch order, with their parameters for these addresses."""
        parameters = self._filled_parameters(addresses, counters)
        for call, block in zip(self.calls, parameters.addresses, strict=True):
            yield KernelNode(call.function, block, 8 * len(call.words))
        self._spare.free.append(parameters)


@lru_cache(maxsize=1024)
def player_of(launches: LaunchList, device: int) -> Player:
    """Return the list prepared for the current device, which has the number `device`."""
    return Player(launches, device)


# ---- launches without a plan


class LaunchSequence:
    """Launches of fmm's kernels, one after the other on one stream, prepared for one device: shortest paths use them.

    Several threads may play a sequence at once, since playing changes nothing in it.
    """

    def __init__(self, launches: Sequence[Launch], device: int) -> None:
        compile_kernels(device, {launch.kernel for launch in launches})
        self.device = device
        self.calls = [KernelCall(launch, device) for launch in launches]
        starts = np.cumsum([0, *(len(call.words) for call in self.calls)])[:-1]
        self._words = np.concatenate([call.words for call in self.calls] or [np.empty(0, np.int64)])  # all parameters
        self._starts = starts  # index of the word at which each launch's parameters begin
        self.bases = tuple(dict.fromkeys(slot.base for launch in launches for slot in launch.slots))
        numbers = {base: i for i, base in enumerate(self.bases)}
        slots = [
            (start + slot.word, numbers[slot.base], slot.offset)
            for start, launch in zip(starts, launches, strict=True)
            for slot in launch.slots
        ]
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._slots, self._random_numbers, self._offsets = (
            columns[0].astype(np.intp),
            columns[1].astype(np.intp),
            columns[2],
        )

    def play(self, addresses: Mapping[str, int], stream: int) -> None:
        """Make all launches on the current device; the driver copies the parameters during each call."""
        make_context_current(self.device)
        words = self._words.copy()
        by_number = np.array([addresses[base] for base in self.bases], np.int64)
        words[self._slots] = by_number[self._random_numbers] + self._offsets
        pointers = words.ctypes.data + 8 * self._starts.astype(np.int64)
        first_pointer = pointers.ctypes.data
        make_calls([call.bind(stream, first_pointer + 8 * i, 0) for i, call in enumerate(self.calls)])
