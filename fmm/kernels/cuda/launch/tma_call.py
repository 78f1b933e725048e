"""Tiled products whose operands the copy engine brings, on a CUDA device that has one."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver, runtime

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.launch.cublas import Lane
from fmm.kernels.cuda.launch.device_facts import chip
from fmm.kernels.cuda.products.tile_sizes import SUMMING_BULK, engine_strategy
from fmm.kernels.cuda.products.tiled import WIDE, Several, TileOp
from fmm.kernels.cuda.products.tiled_source import ENTRY, OPTIONS
from fmm.kernels.cuda.products.tma import ENGINE, MAP_BYTES, BulkOp, Map, aligned, best_bulk, bulk_op
from fmm.kernels.cuda.products.tma_source import BulkKernel, source
from fmm.kernels.cuda.views import BASES
from fmm.perfmodel.block_time import GEMM, seconds

TILED, PROMOTED = 0, 3  # CU_TENSOR_MAP_INTERLEAVE_NONE, _L2_PROMOTION_L2_256B
EXCHANGES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CU_TENSOR_MAP_SWIZZLE_*
SOMEWHERE = 1 << 20  # an address, when a map is made


@lru_cache(maxsize=64)
def has_engine(device: int) -> bool:
    return int(cupy.cuda.Device(device).compute_capability) >= ENGINE and _encode() is not None


def chosen(op: TileOp | Several, device: int, grain: Mapping[str, int]) -> BulkOp | None:
    """The launch by which these products are faster, if there is one."""
    on = chip(device)
    bases = {x.base for o in op.ops for x in (*o.left, *o.right)}
    if op.kernel.element != "float32":
        return None
    if not (has_engine(device) and aligned(op) and all(grain[base] % WIDE == 0 for base in bases)):
        return None
    if own := engine_strategy(op.kernel.strategy.name):
        return bulk_op(op, own, on.multiprocessors)
    if isinstance(op, Several):
        return bulk_op(op, SUMMING_BULK, on.multiprocessors) if op.order == "turns" else None
    time, s = best_bulk(op, on)
    faster = op.open and time < seconds(op.kernel.strategy, GEMM, (op.m, op.k, op.n), on, op.count, op.kernel.along)
    return bulk_op(op, s, on.multiprocessors) if faster else None


@lru_cache(maxsize=256)
def _function(device: int, kernel: BulkKernel) -> Any:
    made = cupy.RawModule(code=source(kernel), options=OPTIONS).get_function(ENTRY)
    made.max_dynamic_shared_size_bytes = kernel.shared
    return made


class BulkCall:
    """A launch with everything but the pointers filled in; `grain`: what divides each base's address."""

    def __init__(self, op: BulkOp, device: int, flagged: bool = False) -> None:
        self.made = _function(device, op.kernel)
        self.shape = *op.grid, op.kernel.strategy.threads, 1, 1, op.kernel.shared
        self.device, self.turns, self.flagged = device, op.turns, flagged
        self.words = np.frombuffer(op.parameters, np.int64).copy()
        # Counts for the next capture: a graph has its own, since graphs may run beside each other.
        self.spare: int | None = None
        if op.turns:
            self.spare = _zeros(op.turns, cupy.cuda.get_current_stream().ptr)
            cupy.cuda.get_current_stream().synchronize()
        for word, x in zip(op.map_words, op.maps, strict=True):
            self.words[word : word + MAP_BYTES // 8] = encoded(x, op.kernel.element)
        pieces = [
            *zip(op.map_words, (x.piece for x in op.maps), strict=True),
            *zip(op.dest_words, op.dest, strict=True),
        ]
        self.slots = [(word, BASES.index(x.base), x.offset) for word, x in pieces]
        self.turns_word, self.flag_word = op.turns_word, op.flag_word

    def __call__(self, lane: Lane, bases: Sequence[int]) -> None:
        words: Any = self.words.copy()  # threads may call at once; the driver copies them when it is called
        for word, base, offset in self.slots:
            words[word] = bases[base] + offset
        if self.flagged:
            words[self.flag_word] = bases[len(BASES)]
        if self.turns:
            words[self.turns_word] = self._counts(lane.stream)
        parameters = np.array([words.ctypes.data], np.int64)
        driver.launchKernel(self.made.kernel.ptr, *self.shape, lane.stream, parameters.ctypes.data, 0)

    def _counts(self, stream: int) -> int:
        """Zeros, to which every launch puts them back: of the stream, or, while it is captured, of the graph alone."""
        if stream and runtime.streamIsCapturing(stream):
            if self.spare is None:
                raise RuntimeError("no counts are ready for another graph")
            mine, self.spare = self.spare, None
            return mine
        if self.spare is None:
            self.spare = _zeros(self.turns, stream)
        return _stream_counts(self.device, stream, 1 << (self.turns - 1).bit_length())


_kept: dict[tuple[int, int, int], int] = {}


def _stream_counts(device: int, stream: int, count: int) -> int:
    """Of the launches on one stream: they come one after the other."""
    key = device, stream, count
    if key not in _kept:
        _kept[key] = _zeros(count, stream)
    return _kept[key]


def _zeros(count: int, stream: int) -> int:
    """Counts, once what the stream does before is done; never given back, since kernels may still write them."""
    pointer = int(runtime.malloc(4 * count))
    runtime.memsetAsync(pointer, 0, 4 * count, stream)
    return pointer


# ---- cuTensorMapEncodeTiled


@lru_cache(maxsize=1)
def _encode() -> Any:
    """None where the driver has no such call."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None


def encoded(x: Map, element: str) -> Any:
    """The map's words, with address zero in the first: that it stands there is seen from maps of two addresses."""
    first, second = (_encoded(x, element, address) for address in (SOMEWHERE, 2 * SOMEWHERE))
    if first[0] != SOMEWHERE or second[0] != 2 * SOMEWHERE or (first[1:] != second[1:]).any():
        raise RuntimeError("this driver's tensor maps do not begin with their address")
    first[0] = 0
    return first


def _encoded(x: Map, element: str, address: int) -> Any:
    item = DTYPES[element].itemsize
    room = np.zeros(2 * MAP_BYTES, np.uint8)
    begin = -room.ctypes.data % 64
    sizes = (ctypes.c_uint64 * 3)(x.length, x.lines, x.layers)
    layer = x.layer if x.layers > 1 else x.leading * x.lines
    steps = (ctypes.c_uint64 * 2)(x.leading * item, layer * item)
    box, ones = (ctypes.c_uint32 * 3)(*x.box, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    to, source_ = ctypes.c_void_p(room.ctypes.data + begin), ctypes.c_void_p(address)
    kind = DTYPES[element].tensor_map, 3, source_, sizes, steps, box, ones, TILED, EXCHANGES[x.exchange], PROMOTED, 0
    if status := _encode()(to, *kind):
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with status {status} for {x}")
    return room[begin : begin + MAP_BYTES].view(np.int64).copy()
