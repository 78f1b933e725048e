"""Tensor maps as the driver encodes them, for any address."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from fmm.dtypes import BYTE, DTYPES
from fmm.kernels.cuda.launch_list import MAP_BYTES, TensorMap

MAP_ALIGNMENT = 64  # bytes to which the driver wants a map to be aligned
DIMENSIONS = 3  # of a map: along a line, across lines, and from one block of a batch to the next
NO_INTERLEAVE, PROMOTE_256_BYTES, FILL_WITH_ZEROS = 0, 3, 0  # of CU_TENSOR_MAP_*
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes: CU_TENSOR_MAP_SWIZZLE_*
SOMEWHERE = 1 << 20  # an address to encode a map for: the true one is not known then


@lru_cache(maxsize=1)
def driver_encoder() -> Any:
    """cuTensorMapEncodeTiled; None where the driver has no such call."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None


def map_words(x: TensorMap) -> Any:
    """The words of a map, of which the first is to hold the address, and is zero.

    That the address stands there, and nowhere else, is checked by encoding the map for two addresses.
    """
    words, others = (_encoded_for(x, address) for address in (SOMEWHERE, 2 * SOMEWHERE))
    if words[0] != SOMEWHERE or others[0] != 2 * SOMEWHERE or (words[1:] != others[1:]).any():
        raise RuntimeError("this driver's tensor maps do not begin with their address")
    words[0] = 0
    return words


def _encoded_for(x: TensorMap, address: int) -> Any:
    """The words of a map of a matrix at this address. The names are those of the driver's manual."""
    element = DTYPES.get(x.dtype, BYTE)
    layer = x.layer if x.layers > 1 else x.leading * x.lines
    memory = np.zeros(2 * MAP_BYTES, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGNMENT
    tensor_map, global_address = ctypes.c_void_p(memory.ctypes.data + start), ctypes.c_void_p(address)
    global_dim = (ctypes.c_uint64 * DIMENSIONS)(x.length, x.lines, x.layers)
    global_strides = (ctypes.c_uint64 * (DIMENSIONS - 1))(x.leading * element.itemsize, layer * element.itemsize)
    box_dim = (ctypes.c_uint32 * DIMENSIONS)(*x.box, 1)
    element_strides = (ctypes.c_uint32 * DIMENSIONS)(1, 1, 1)
    status = driver_encoder()(
        tensor_map,
        element.tensor_map,
        DIMENSIONS,
        global_address,
        global_dim,
        global_strides,
        box_dim,
        element_strides,
        NO_INTERLEAVE,
        SWIZZLES[x.swizzle],
        PROMOTE_256_BYTES,
        FILL_WITH_ZEROS,
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with status {status} for {x}")
    return memory[start : start + MAP_BYTES].view(np.int64).copy()
