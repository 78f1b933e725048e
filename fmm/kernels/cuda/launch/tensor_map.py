"""Tensor maps as the driver encodes them, for any address."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from fmm.dtypes import BYTE, DTYPES
from fmm.kernels.cuda.tensor_map import MAP_BYTES, TensorMap

NO_INTERLEAVE, PROMOTE_256_BYTES, FILL_WITH_ZEROS = 0, 3, 0  # of CU_TENSOR_MAP_*
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CU_TENSOR_MAP_SWIZZLE_*
SOMEWHERE = 1 << 20  # an address, when a map is made


@lru_cache(maxsize=1)
def driver_encoder() -> Any:
    """cuTensorMapEncodeTiled; None where the driver has no such call."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None


def map_words(x: TensorMap) -> Any:
    """The map's words, with address zero in the first. That the address stands there, and nowhere else, is checked by
    encoding the map for two addresses."""
    first, second = (_encode_at(x, address) for address in (SOMEWHERE, 2 * SOMEWHERE))
    if first[0] != SOMEWHERE or second[0] != 2 * SOMEWHERE or (first[1:] != second[1:]).any():
        raise RuntimeError("this driver's tensor maps do not begin with their address")
    first[0] = 0
    return first


def _encode_at(x: TensorMap, address: int) -> Any:
    kind = DTYPES.get(x.dtype, BYTE)
    room = np.zeros(2 * MAP_BYTES, np.uint8)
    begin = -room.ctypes.data % 64
    sizes = (ctypes.c_uint64 * 3)(x.length, x.lines, x.layers)
    layer = x.layer if x.layers > 1 else x.leading * x.lines
    steps = (ctypes.c_uint64 * 2)(x.leading * kind.itemsize, layer * kind.itemsize)
    box, ones = (ctypes.c_uint32 * 3)(*x.box, 1), (ctypes.c_uint32 * 3)(1, 1, 1)
    to, source = ctypes.c_void_p(room.ctypes.data + begin), ctypes.c_void_p(address)
    told = kind.tensor_map, 3, source, sizes, steps, box, ones
    how = NO_INTERLEAVE, SWIZZLES[x.swizzle], PROMOTE_256_BYTES, FILL_WITH_ZEROS
    if status := driver_encoder()(to, *told, *how):
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with status {status} for {x}")
    return room[begin : begin + MAP_BYTES].view(np.int64).copy()
