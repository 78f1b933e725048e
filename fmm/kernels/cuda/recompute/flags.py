"""The rescue on a device: one flag per stream and thread, raised by what writes C, and what follows a plan.

Nothing here waits for the device. A slot's flag is raised and lowered on its stream; how often a product had to be
computed again is counted in host memory that the device writes, and read at later calls: such data tend to come again,
so the next few products on that stream are left to the vendor.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple

import cupy
import numpy as np
from cupy_backends.cuda.api import driver, runtime

from fmm.kernels.cuda.launch.device_facts import chip
from fmm.kernels.cuda.launch.graphs import Kernel
from fmm.kernels.cuda.launch.tile_call import function
from fmm.kernels.cuda.launch_list import Tape
from fmm.kernels.cuda.products.tiled import WIDE
from fmm.kernels.cuda.recompute import recompute
from fmm.kernels.cuda.recompute.recompute import Again, Classical, unseen

SLOT_BYTES = 16  # of struct Slot in nonfinite_flag.cuh, rounded up
CHUNK = 4096  # slots that are allocated together
BLOCK = 512  # bytes: room for what one launch is told

LAUNCH = driver.launchKernel


class _Chunk:
    """Device memory for slots, and host memory for their counts; never given back, since kernels may still write it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(CHUNK * SLOT_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, CHUNK)
        self.counts[:] = 0
        self.used = 0


class Slot:
    """Flag, counter and parameter blocks of one stream as one thread uses it."""

    def __init__(self, chunk: _Chunk, number: int, stream: int) -> None:
        self.flag = chunk.device_memory + number * SLOT_BYTES
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._count_pointer = chunk.host_memory.ptr + 4 * number
        self._blocks: Any = np.zeros(2 * BLOCK, np.uint8)
        self._pointers = self._blocks.ctypes.data + BLOCK * np.arange(2)
        self._arguments = [int(self._pointers.ctypes.data) + 8 * i for i in range(2)]
        self._trust = recompute.Trust()
        self._filled: tuple[Any, int, int, int] = (None, 0, 0, 0)
        self.routes: dict[int, Any] = {}  # the user's: what stands ready for this stream and thread
        runtime.memsetAsync(self.flag, 0, SLOT_BYTES, stream)

    @property
    def rescues(self) -> int:
        """Products computed again so far, as far as the host knows yet."""
        return int(self._counts[self._number])

    def trusted(self) -> bool:
        """May the next product be a fast one?"""
        return self._trust.holds(self._counts[self._number])

    def follow(self, call: Rescue, a: int, b: int, c: int, stream: int | None = None) -> None:
        """To be called after a plan that was given this slot's flag, on the same stream.

        `stream`: another one, that captures what will be launched on the slot's own.
        """
        stream = self.stream if stream is None else stream
        self._fill(call, a, b, c)
        for launch in call.launches(a, b, c):
            launch.call(stream, self._arguments[launch.block], 0)

    def kernels(self, call: Rescue, a: int, b: int, c: int) -> Iterator[Kernel]:
        """What `follow` would launch, in that order."""
        self._fill(call, a, b, c)
        for launch in call.launches(a, b, c):
            yield Kernel(launch.function, self._arguments[launch.block], 8 * call.told[launch.block].words)

    def _fill(self, call: Rescue, a: int, b: int, c: int) -> None:
        if self._filled != (call, a, b, c):
            for i, told in enumerate(call.told):
                told.fill(self._blocks, i * BLOCK, (a, b, c), self.flag, self._count_pointer)
            self._filled = call, a, b, c


class Launch(NamedTuple):
    """The driver's call, which wants the stream and the parameters; what it calls, and which block it is told."""

    call: Callable[[int, int, int], None]
    function: int
    block: int


class Rescue:
    """What follows the plan of one tape on one device: kernels, and what they are told."""

    def __init__(self, tape: Tape, device: int) -> None:
        problem, self.device = tape.problem, device
        self.scans, tiled = unseen(tape), problem.stored in recompute.AGAIN
        self.again = Again(problem) if tiled else None
        self.told: list[Classical | Again] = [Classical(problem)] if self.scans or not tiled else []
        self.told += [self.again] if self.again else []
        self._simple = _functions(device, problem.stored) if self.told[0] is not self.again else None
        self._launches: dict[bool, Sequence[Launch]] = {}

    def launches(self, a: int, b: int, c: int) -> Sequence[Launch]:
        """By how these pointers are aligned."""
        wide = not (a | b | c) % WIDE
        if wide not in self._launches:
            self._launches[wide] = list(self._made(wide))
        return self._launches[wide]

    def _made(self, wide: bool) -> Iterator[Launch]:
        if self._simple:
            again, scan, blocks = self._simple
            for kernel in [*([scan] if self.scans else []), *([] if self.again else [again])]:
                yield Launch(partial(LAUNCH, kernel, blocks, 1, 1, recompute.THREADS, 1, 1, 0), kernel, 0)
        if self.again:
            op = self.again.op
            made = function(self.device, op.kernel, op.access if wide else "scalar").kernel.ptr
            shape = self.again.blocks(chip(self.device).multiprocessors), 1, 1, op.kernel.strategy.threads, 1, 1
            yield Launch(partial(LAUNCH, made, *shape, op.kernel.shared), made, len(self.told) - 1)


@lru_cache(maxsize=256)
def _functions(device: int, dtype: str) -> tuple[int, int, int]:
    """Addresses of the two kernels on the current device, and how many thread blocks fill it."""
    module = cupy.RawModule(code=recompute.source(dtype), options=("--std=c++17",))
    again, scan = (module.get_function(name) for name in (recompute.RESCUE, recompute.SCAN))
    _loaded.append((module, again, scan))
    blocks = cupy.cuda.Device(device).attributes["MultiProcessorCount"]
    return again.kernel.ptr, scan.kernel.ptr, blocks


_loaded: list[Any] = []  # keeps the modules' code on the devices


_slots: dict[tuple[int, int, int], Slot] = {}
_chunks: dict[int, _Chunk] = {}
_lock = threading.Lock()


def slot(device: int, stream: int) -> Slot:
    """This thread's slot on a stream of the current device.

    Two threads that use one stream have a slot each: their launches may alternate, so that one thread's rescue would
    lower the flag that the other one's plan has raised.
    """
    key = device, stream, threading.get_ident()
    found = _slots.get(key)
    return found if found is not None else _new_slot(key)


def _new_slot(key: tuple[int, int, int]) -> Slot:
    with _lock:
        chunk = _chunks.get(key[0])
        if chunk is None or chunk.used == CHUNK:
            chunk = _chunks[key[0]] = _Chunk()
        number, chunk.used = chunk.used, chunk.used + 1
        made = _slots[key] = Slot(chunk, number, key[1])
    return made
