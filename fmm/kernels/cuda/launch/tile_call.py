"""The tiled kernel on a CUDA device: compiled by CuPy, launched by the driver.

A launch that only adds to what the one before it writes may start before that one has ended (programmatic dependent
launch, from compute capability 9.0 on): small products then fill the device together. CuPy cannot ask for that; ctypes
can.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from fmm.kernels.cuda.launch.cublas import Gemm, Lane
from fmm.kernels.cuda.launch.device_facts import chip
from fmm.kernels.cuda.launch.tma_call import BulkCall, chosen
from fmm.kernels.cuda.products.tiled import WIDE, Several, TileOp, fitted, pointers
from fmm.kernels.cuda.products.tiled_source import ENTRY, OPTIONS, Access, TileKernel, source
from fmm.kernels.cuda.views import BASES

OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
OVERLAPPING, MULTIPLYING = 90, 80  # compute capability from which on launches overlap, warps multiply float64
FULL = 1.9  # thread blocks a multiprocessor: with fewer, launches that overlap were seen to slow each other down


@lru_cache(maxsize=64)
def most_shared(device: int) -> int:
    """Bytes of shared memory of a thread block that asks for them."""
    return int(cupy.cuda.Device(device).attributes["MaxSharedMemoryPerBlockOptin"])


@lru_cache(maxsize=64)
def capability(device: int) -> int:
    return int(cupy.cuda.Device(device).compute_capability)


@lru_cache(maxsize=1024)
def function(device: int, kernel: TileKernel, access: Access) -> Any:
    """The compiled kernel on the current device, allowed the shared memory that it wants."""
    made = cupy.RawModule(code=source(kernel, access), options=OPTIONS).get_function(ENTRY)
    made.max_dynamic_shared_size_bytes = kernel.shared
    return made


def _wanted(op: TileOp | Several, grain: Mapping[str, int], flagged: bool) -> tuple[TileKernel, Access]:
    """Which kernel, by what divides each base's address; with a flag, one that raises it if it writes C."""
    aligned = all(grain[piece.base] % WIDE == 0 for piece in op.pieces)
    kernel = replace(op.kernel, flag="raises") if flagged and op.writes_result else op.kernel
    return kernel, op.access if aligned else "scalar"


class TileCall:
    """A launch with everything but the pointers filled in; a flag's comes behind those of the bases."""

    def __init__(self, op: TileOp | Several, device: int, grain: Mapping[str, int], flagged: bool) -> None:
        kernel, access = _wanted(op, grain, flagged)
        self.made = function(device, kernel, access)
        shape = *op.grid, op.kernel.strategy.threads, 1, 1, op.kernel.shared
        full = prod(op.grid) >= FULL * chip(device).multiprocessors
        overlaps = op.follows and full and capability(device) >= OVERLAPPING
        launch = _overlapping if overlaps else _plain
        self.launch: Callable[[int, int], None] = partial(launch, self.made.kernel.ptr, shape)
        self.words = np.frombuffer(op.parameters, np.int64)
        self.where = [(word, BASES.index(x.base), x.offset) for word, x in zip(pointers(op), op.pieces, strict=True)]
        if kernel.flag:
            self.where.append((len(self.words) - 1, len(BASES), 0))

    def __call__(self, lane: Lane, bases: Sequence[int]) -> None:
        words: Any = self.words.copy()  # threads may call at once; the driver copies them when it is called
        for word, base, offset in self.where:
            words[word] = bases[base] + offset
        parameters = np.array([words.ctypes.data], np.int64)
        self.launch(lane.stream, parameters.ctypes.data)


def tile_kernels(
    op: TileOp | Several, device: int, grain: Mapping[str, int], flagged: bool
) -> set[tuple[TileKernel, Access]]:
    """The kernels that `tile_calls` wants compiled."""
    return set() if chosen(op, device, grain) else {_wanted(x, grain, flagged) for x in _launches(op, device)}


def tile_calls(op: TileOp | Several, device: int, grain: Mapping[str, int], flagged: bool) -> list[Gemm]:
    """One launch, or of products that the kernel cannot do at once, one after the other."""
    if bulk := chosen(op, device, grain):
        return [BulkCall(bulk, device, flagged and op.writes_result)]
    return [TileCall(x, device, grain, flagged) for x in _launches(op, device)]


def _launches(op: TileOp | Several, device: int) -> Sequence[TileOp | Several]:
    op = fitted(op, most_shared(device), capability(device) >= MULTIPLYING)
    return op.ops if isinstance(op, Several) and not op.at_once else (op,)


def _plain(kernel: int, shape: tuple[int, ...], stream: int, parameters: int) -> None:
    driver.launchKernel(kernel, *shape, stream, parameters, 0)


# ---- cuLaunchKernelEx


class _Attribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _Config(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.c_uint * 7),  # grid, block, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_Attribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def _launch_ex() -> Any:
    found = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    found.argtypes = [ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return found


def _overlapping(kernel: int, shape: tuple[int, ...], stream: int, parameters: int) -> None:
    attribute = _Attribute(OVERLAP, 0, (ctypes.c_int * 16)(1))
    config = _Config((ctypes.c_uint * 7)(*shape), stream, ctypes.pointer(attribute), 1)
    if status := _launch_ex()(ctypes.byref(config), kernel, parameters, None):
        raise RuntimeError(f"cuLaunchKernelEx failed with status {status}")
