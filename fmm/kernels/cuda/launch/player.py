"""Run a launch list on a CUDA device: store the addresses, prepare the calls, then make all calls in order.

A signal handler can raise between two bytecodes of this code, but not between the calls, because a single C function
(`run_bound_calls`) makes all calls. After an exception, the streams are synchronized, and either all launches of the
product are made or C is unchanged. Only the leading sums are launched before `run_bound_calls`: the first launches of
the list, if they run on the caller's stream and write only to the workspace.

fmm takes device memory, streams and compiled code from CuPy, so that both libraries share these resources.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import takewhile
from typing import Any, NamedTuple

import numpy as np

from fmm.kernels.cuda.launch.bound_calls import BoundCall, StatusError, run_bound_calls
from fmm.kernels.cuda.launch.compile import compile_kernels
from fmm.kernels.cuda.launch.cublas import (
    GemmCall,
    MathMode,
    StreamContext,
    handle_setup_calls,
    math_mode,
    math_mode_restore_calls,
    require_float64_emulation,
    set_workspace_call,
    vendor_call,
)
from fmm.kernels.cuda.launch.graphs import KernelNode
from fmm.kernels.cuda.launch.kernel_call import BindLaunch, KernelCall
from fmm.kernels.cuda.launch.streams import (
    acquire_streams,
    make_context_current,
    new_counters,
    stream_counters,
    stream_sync_calls,
    thread_cublas_handle,
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

MAX_LOOP_SLOTS = 32  # largest number of addresses that a Python loop stores faster than NumPy
# The bases A, B, workspace, addend and flag: a launch that uses no other base does not write C. BASES_WITHOUT_C
# contains the flag, because all kernels of sums receive the flag's address, but only kernels that write C raise the
# flag.
BASES_WITHOUT_C = frozenset(("A", "B", "W", ADDEND, FLAG))
# For each base, the index of its address in the list of a call's addresses. The list of a call's addresses ends with
# the addresses of the launches' counters.
ADDRESS_INDICES = {base: i for i, base in enumerate((*ADDRESS_BASES, FLAG, HOST_COUNT, ADDEND))}


class Addresses(NamedTuple):
    """The memory addresses of one call, in the order of ADDRESS_INDICES."""

    a: int
    b: int
    c: int
    workspace: int
    flag: int = 0  # address of the flag for inf and NaN
    host_count: int = 0  # address in host memory of the number of recomputed products
    addend: int = 0  # address of the addend; 0 if C holds the addend

    @property
    def alignment(self) -> Alignment:
        """Powers of two that divide the addresses of A, B, C and the workspace.

        The power of two for C also divides the addend's address.
        """
        return address_alignment(self.a, self.b, self.c | self.addend, self.workspace)

    @property
    def is_aligned(self) -> bool:
        """True if the addresses of the operands and the workspace are multiples of ALLOCATOR_ALIGNMENT."""
        return not (self[0] | self[1] | self[2] | self[3] | self[6]) % ALLOCATOR_ALIGNMENT[0]

    @property
    def memory_addresses(self) -> tuple[int, ...]:
        """The addresses of A, B, C, the workspace and the addend."""
        return (*self[:4], self.addend)


class _KernelLaunch(NamedTuple):
    """A launch of one of fmm's kernels; `stream` is the index of its stream, 0 for the caller's stream."""

    stream: int
    bind: BindLaunch
    may_run_early: bool  # True if the kernel may be launched before the other calls are prepared


class _VendorProduct(NamedTuple):
    """A product by the vendor's library; `stream` is the index of its stream, 0 for the caller's stream."""

    stream: int
    call: GemmCall


class _LaunchParameters:
    """The parameters of all launches of a list, at fixed memory addresses; the driver copies them at each launch.

    `pointers[i]` is the address of the parameters of launch i. The driver takes `addresses[i]`, the address of
    `pointers[i]`.
    """

    def __init__(self, blocks: list[Any]) -> None:
        starts = np.cumsum([0, *(8 * len(b) for b in blocks)])
        self.words: Any = np.concatenate(blocks) if blocks else np.empty(0, np.int64)
        self.view: Any = self.words.data
        self.pointers = self.words.ctypes.data + starts[:-1].astype(np.int64)
        self.addresses = [self.pointers.ctypes.data + 8 * i for i in range(len(blocks))]
        # the addresses that `words` holds, including those of counters; None while `words` is being written
        self.filled_with: tuple[int, ...] | None = None


class _SpareParameterBlocks(threading.local):
    """The unused parameter blocks of one thread.

    A call removes a parameter block from `free`, and appends the block again when all kernels are launched. If a signal
    handler runs the same launch list in the meantime, the handler's call takes another parameter block. The parameter
    block of an interrupted call is never used again.

    A thread that takes over an ended thread's graph may have no current CUDA context. The driver crashes if a thread
    without a current context sets a graph's parameters. To prevent a crash of the driver, the constructor, which runs
    once in each thread, makes the device's context current.
    """

    def __init__(self, device: int) -> None:
        make_context_current(device)
        self.free: list[_LaunchParameters] = []


class Player:
    """A launch list prepared for one device, with its compiled kernels, parameters and vendor calls."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.launches, self.device = launches, device
        self.math: MathMode = "tf32" if launches.needs_tf32_mode else "ieee"
        if launches.needs_emulation_mode:
            require_float64_emulation()
            self.math = "emulated"
        compile_kernels(device, {launch.kernel for launch in launches.launches})
        self.calls = [KernelCall(launch, device) for launch in launches.launches]
        self._counting = [launch.counters for launch in launches.launches if launch.counters]
        self._list_address_words()
        self._spare = _SpareParameterBlocks(device)
        steps = list(self._prepare_steps())
        leading = takewhile(lambda step: isinstance(step, _KernelLaunch) and step.may_run_early, steps)
        self._leading_launches = [step.bind for step in leading if isinstance(step, _KernelLaunch)]
        self._remaining_steps = steps[len(self._leading_launches) :]
        # A list of a single launch or a single vendor call runs on the caller's stream alone.
        only = steps[0] if len(steps) == 1 else None
        self._only_launch = only.bind if isinstance(only, _KernelLaunch) else None
        self._only_vendor_call = only.call if isinstance(only, _VendorProduct) else None

    def _list_address_words(self) -> None:
        """Prepare the list of parameter words in which each call stores an address.

        An item of the list has three numbers: the index of the word in the parameters of all launches, the index of the
        address among the call's addresses, and an offset in bytes that is added to the address.
        """
        slots: list[tuple[int, int, int]] = []
        start = counting = 0
        for call in self.calls:
            for word, base, offset in call.launch.slots:
                number = len(ADDRESS_INDICES) + counting if base == COUNTERS else ADDRESS_INDICES[base]
                slots.append((start + word, number, offset))
            counting += call.launch.counters > 0
            start += len(call.words)
        self._few_slots = slots if len(slots) <= MAX_LOOP_SLOTS else None
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._words, self._address_indices, self._offsets = (
            columns[0].astype(np.intp),
            columns[1].astype(np.intp),
            columns[2],
        )

    def _prepare_steps(self) -> Iterator[_KernelLaunch | _VendorProduct | StreamSync]:
        calls = iter(self.calls)
        divides = dict(zip(ADDRESS_BASES, self.launches.alignment, strict=True))
        for step, stream in zip(self.launches.steps, self.launches.streams, strict=True):
            if isinstance(step, Launch):
                may_run_early = stream == 0 and BASES_WITHOUT_C.issuperset(slot.base for slot in step.slots)
                yield _KernelLaunch(stream, next(calls).bind, may_run_early)
            elif isinstance(step, VendorCall):
                yield _VendorProduct(stream, vendor_call(step.op, divides, self.device))
            else:
                yield step

    # ---- launching

    def launch_all(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None = None, scratch: int = 0
    ) -> None:
        """Make all kernel launches and vendor calls in order, each on its own stream, on the current device.

        `counters` and `scratch` are only for the capture of a graph. `counters` holds the addresses of the graph's own
        counters. `scratch` is the address of memory for cuBLAS, with GRAPH_SCRATCH_BYTES bytes for each stream that
        calls cuBLAS.

        The leading sums are launched before the other calls are prepared, so a device that has nothing else to do
        starts some microseconds earlier.
        """
        if self._only_launch is not None and not self._counting:
            parameters = self._parameters_with_addresses(addresses, ())
            self._only_launch(stream, parameters.addresses[0], 0)()
            self._spare.free.append(parameters)
            return
        if self._only_vendor_call is not None and not scratch:
            context = StreamContext(thread_cublas_handle(self.device), stream, 0)
            mode = math_mode(context)
            calls = [
                *handle_setup_calls(context, self.math, mode),
                self._only_vendor_call.bind_call(context, addresses),
            ]
            run_bound_calls(calls + math_mode_restore_calls(context, self.math, mode))
            return
        streams, parameters = self._streams_and_parameters(addresses, stream, counters)
        blocks = iter(parameters.addresses)
        for bind in self._leading_launches:
            if status := bind(stream, next(blocks), 0)():  # only the driver's call for overlapping launches returns one
                raise StatusError("cuLaunchKernelEx", status)
        run_bound_calls(self._calls_after_leading_launches(addresses, streams, blocks, scratch))
        self._spare.free.append(parameters)

    def prepare_calls(self, addresses: Addresses, stream: int) -> tuple[list[BoundCall], Callable[[], None]]:
        """Return the calls that `launch_all` would make, and a function that later frees the calls' parameters."""
        streams, parameters = self._streams_and_parameters(addresses, stream, None)
        blocks = iter(parameters.addresses)
        first = [bind(stream, next(blocks), 0) for bind in self._leading_launches]
        calls = first + self._calls_after_leading_launches(addresses, streams, blocks, 0)
        return calls, partial(self._spare.free.append, parameters)

    def _streams_and_parameters(
        self, addresses: Addresses, stream: int, counters: tuple[int, ...] | None
    ) -> tuple[list[StreamContext], _LaunchParameters]:
        """Return the streams of a call, and parameters that hold the call's addresses."""
        streams = acquire_streams(self.launches, self.device, stream)
        if counters is None:
            counters = self._stream_counters(streams) if self._counting else ()
        return streams, self._parameters_with_addresses(addresses, counters)

    def _calls_after_leading_launches(
        self, addresses: Addresses, streams: list[StreamContext], blocks: Iterator[int], scratch: int
    ) -> list[BoundCall]:
        """Return the calls that follow the leading launches (the sums at the start of the list).

        The returned list begins with calls that set up the cuBLAS handles, and ends with calls that restore the
        handles.
        """
        calls, restoring = list[BoundCall](), list[BoundCall]()
        for i, context in enumerate(streams[: self.launches.vendor_stream_count]):
            mode = math_mode(context)
            calls += handle_setup_calls(context, self.math, mode)
            restoring += math_mode_restore_calls(context, self.math, mode)
            if scratch:
                calls.append(set_workspace_call(context, scratch + i * GRAPH_SCRATCH_BYTES, GRAPH_SCRATCH_BYTES))
        for step in self._remaining_steps:
            if isinstance(step, _KernelLaunch):
                calls.append(step.bind(streams[step.stream].stream, next(blocks), 0))
            elif isinstance(step, _VendorProduct):
                calls.append(step.call.bind_call(streams[step.stream], addresses))
            else:
                calls += stream_sync_calls(step, streams)
        return calls + restoring

    def _parameters_with_addresses(self, addresses: Addresses, counters: tuple[int, ...]) -> _LaunchParameters:
        """Return a spare parameter block that holds the addresses of this call."""
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
                parameters.words[self._words] = np.array(wanted, np.int64)[self._address_indices] + self._offsets
            parameters.filled_with = wanted
        return parameters

    # ---- counters and graphs

    def _stream_counters(self, streams: list[StreamContext]) -> tuple[int, ...]:
        pairs = zip(self.launches.steps, self.launches.streams, strict=True)
        counting = ((step.counters, stream) for step, stream in pairs if isinstance(step, Launch) and step.counters)
        return tuple(stream_counters(self.device, streams[stream].stream, count) for count, stream in counting)

    def create_streams(self) -> None:
        """Create this thread's streams and cuBLAS handles, because neither can be created during a graph capture."""
        acquire_streams(self.launches, self.device, 0)

    def new_counters(self, stream: int) -> tuple[int, ...]:
        """Return the addresses of new counters for one graph. Graphs that run concurrently need separate counters."""
        return tuple(new_counters(count, stream) for count in self._counting)

    def kernel_nodes(self, addresses: Addresses, counters: tuple[int, ...]) -> Iterator[KernelNode]:
        """Yield a node for each of fmm's kernels in launch order; the nodes' parameters hold `addresses`."""
        parameters = self._parameters_with_addresses(addresses, counters)
        for call, block in zip(self.calls, parameters.addresses, strict=True):
            yield KernelNode(call.function, block, 8 * len(call.words))
        self._spare.free.append(parameters)


@lru_cache(maxsize=1024)
def cached_player(launches: LaunchList, device: int) -> Player:
    """Return the cached player of a launch list for the current device; `device` is the index of this device."""
    return Player(launches, device)


# ---- launch sequences that belong to no plan


class LaunchSequence:
    """A sequence of kernel launches on one stream, prepared for one device. The shortest-path functions use this class.

    Several threads may launch a sequence at once, because `launch_all` does not change the sequence.
    """

    def __init__(self, launches: Sequence[Launch], device: int) -> None:
        compile_kernels(device, {launch.kernel for launch in launches})
        self.device = device
        self.calls = [KernelCall(launch, device) for launch in launches]
        starts = np.cumsum([0, *(len(call.words) for call in self.calls)])[:-1]
        # parameters of all launches
        self._words = np.concatenate([call.words for call in self.calls] or [np.empty(0, np.int64)])
        self._starts = starts  # index of the word at which each launch's parameters begin
        self.bases = tuple(dict.fromkeys(slot.base for launch in launches for slot in launch.slots))
        numbers = {base: i for i, base in enumerate(self.bases)}
        slots = [
            (start + slot.word, numbers[slot.base], slot.offset)
            for start, launch in zip(starts, launches, strict=True)
            for slot in launch.slots
        ]
        columns = np.array(slots, np.int64).reshape(-1, 3).T
        self._slots, self._address_indices, self._offsets = (
            columns[0].astype(np.intp),
            columns[1].astype(np.intp),
            columns[2],
        )

    def launch_all(self, addresses: Mapping[str, int], stream: int) -> None:
        """Make all launches on the current device; `addresses` maps the name of each base to a memory address."""
        make_context_current(self.device)
        words = self._words.copy()
        by_number = np.array([addresses[base] for base in self.bases], np.int64)
        words[self._slots] = by_number[self._address_indices] + self._offsets
        pointers = words.ctypes.data + 8 * self._starts.astype(np.int64)
        first_pointer = pointers.ctypes.data
        run_bound_calls([call.bind(stream, first_pointer + 8 * i, 0) for i, call in enumerate(self.calls)])
