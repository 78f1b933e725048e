"""The rescue on a device: one flag per stream and thread, raised by what writes C, and what follows a plan.

Nothing here waits for the device. A slot's flag is raised and lowered on its stream; how often a product had to be
computed again is counted in host memory that the device writes, and read at later calls: such data tend to come again,
so the next few products on that stream are left to the vendor.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Iterator
from functools import lru_cache, partial
from math import prod
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver, runtime

from fmm.kernels import rescue
from fmm.kernels.cuda_graphs import Kernel
from fmm.kernels.plan import Level
from fmm.kernels.tape import GemmOp, Layout, Tape
from fmm.kernels.tile import Several, TileOp

SLOT_BYTES = 16  # of struct Slot in cuda/rescue.cuh, rounded up
CHUNK = 4096  # slots that are allocated together

LAUNCH = driver.launchKernel
_pack = struct.Struct("<QqqQqqQqqqqqQQ").pack_into  # struct Rescue in cuda/rescue.cuh


class _Chunk:
    """Device memory for slots, and host memory for their counts; never given back, since kernels may still write it."""

    def __init__(self) -> None:
        self.device_memory = runtime.malloc(CHUNK * SLOT_BYTES)
        self.host_memory = cupy.cuda.alloc_pinned_memory(4 * CHUNK)
        self.counts: Any = np.frombuffer(self.host_memory, np.uint32, CHUNK)
        self.counts[:] = 0
        self.used = 0


class Slot:
    """Flag, counter and parameter block of one stream as one thread uses it."""

    def __init__(self, chunk: _Chunk, number: int, stream: int) -> None:
        self.flag = chunk.device_memory + number * SLOT_BYTES
        self.stream = stream
        self._counts, self._number = memoryview(chunk.counts), number
        self._count_pointer = chunk.host_memory.ptr + 4 * number
        self._words: Any = np.zeros(14, np.int64)
        self._address = np.array([self._words.ctypes.data], np.int64)
        self._argument = int(self._address.ctypes.data)
        self._trust = rescue.Trust()
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
        argument = self._filled_for(call, a, b, c)
        for launch in call.launches:
            launch(stream, argument, 0)

    def kernels(self, call: Rescue, a: int, b: int, c: int) -> Iterator[Kernel]:
        """What `follow` would launch, in that order."""
        argument = self._filled_for(call, a, b, c)
        for function in call.functions:
            yield Kernel(function, argument, self._words.nbytes)

    def _filled_for(self, call: Rescue, a: int, b: int, c: int) -> int:
        if self._filled != (call, a, b, c):
            _pack(self._words, 0, a, *call.a, b, *call.b, c, *call.c, *call.size, self.flag, self._count_pointer)
            self._filled = call, a, b, c
        return self._argument


class Rescue:
    """What follows the plan of one tape on one device: kernels and strides."""

    def __init__(self, tape: Tape, device: int) -> None:
        problem = tape.problem
        self.a, self.b, self.c = (_strides(x) for x in problem.layouts)
        self.size = problem.m, problem.k, problem.n
        again, scan, blocks = _functions(device, problem.stored)
        self.functions = (scan, again) if unseen(tape) else (again,)
        self.launches = [partial(LAUNCH, kernel, blocks, 1, 1, rescue.THREADS, 1, 1, 0) for kernel in self.functions]


def needed(tape: Tape) -> bool:
    """Can its plan put an inf or NaN where the classical product has none? Not one whose levels save no product."""
    levels = [level for level in tape.plan.levels if isinstance(level, Level)]
    return any(level.products < prod(level.size) for level in levels)


def unseen(tape: Tape) -> bool:
    """Does a product write C, which raises no flag? (A plan that is one GEMM is the vendor's own.)"""
    return len(tape.ops) > 1 and any(_writes_result(op) for op in tape.ops)


def _writes_result(op: Any) -> bool:
    """A product that stands in C at once."""
    if isinstance(op, TileOp | Several):
        return any(piece.base == "C" for piece in op.pieces)
    return isinstance(op, GemmOp) and op.dest.base == "C"


@lru_cache(maxsize=256)
def _functions(device: int, dtype: str) -> tuple[int, int, int]:
    """Addresses of the two kernels on the current device, and how many thread blocks fill it."""
    module = cupy.RawModule(code=rescue.source(dtype), options=("--std=c++17",))
    again, scan = (module.get_function(name) for name in (rescue.RESCUE, rescue.SCAN))
    _loaded.append((module, again, scan))
    blocks = cupy.cuda.Device(device).attributes["MultiProcessorCount"]
    return again.kernel.ptr, scan.kernel.ptr, blocks


_loaded: list[Any] = []  # keeps the modules' code on the devices


def _strides(x: Layout) -> tuple[int, int]:
    return (x.leading, 1) if x.order == "C" else (1, x.leading)


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
