"""One kernel launch prepared on a device: compiled kernel, encoded tensor maps, and a driver call without addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from cupy_backends.cuda.api import driver

from fmm.dtypes import BYTE_TYPE, DTYPES
from fmm.kernels.cuda.launch.bound_calls import BoundCall
from fmm.kernels.cuda.launch.compile import compile_kernel
from fmm.kernels.cuda.launch_list import TENSOR_MAP_BYTES, Launch, TensorMap

PROGRAMMATIC_SERIALIZATION = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MAP_ALIGNMENT = 64  # bytes to which the driver needs a tensor map to be aligned
MAP_DIMENSIONS = 3  # dimensions of a tensor map: along a line, across lines, and across the matrices of a batch
NO_INTERLEAVE, PROMOTE_256_BYTES, FILL_WITH_ZEROS = 0, 3, 0  # enumerators CU_TENSOR_MAP_*
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # bytes of a swizzle pattern -> enumerator CU_TENSOR_MAP_SWIZZLE_*
PROBE_ADDRESS = 1 << 20  # a placeholder address, with which a map is encoded before its address exists
launch_kernel = driver.launchKernel
# argument types: a stream, the address of the pointer to the parameters, and 0
BindLaunch = Callable[[int, int, int], BoundCall]


class KernelCall:
    """A launch that is complete except for addresses.

    `bind` binds the driver's call to a stream and to the parameters' place; the driver reads the parameters when the
    call is made. `words` are the parameters with every address zero.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        self.launch = launch
        self.kernel = compile_kernel(device, launch.kernel)  # a reference, so that the code stays loaded
        self.function = self.kernel.address
        shape = *launch.grid, launch.kernel.threads, 1, 1, launch.kernel.shared
        overlapping = partial(_overlapping_launch, self.function, shape)
        self.bind: BindLaunch = (
            overlapping if launch.overlaps else partial(partial, launch_kernel, self.function, *shape)
        )
        self.words: Any = np.frombuffer(launch.parameters, np.int64).copy()
        for word, tensor_map in launch.maps:
            encoded = encode_tensor_map(tensor_map)
            self.words[word : word + len(encoded)] = encoded


# ---- cuLaunchKernelEx: a launch that only adds to what the one before it writes may start before that one has ended
# (programmatic dependent launch), so that small products fill the device together. CuPy does not wrap this function of
# the driver.


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.c_uint * 7),  # grid, block, bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def _launch_ex() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.POINTER(_LaunchConfig), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return function


def _overlapping_launch(kernel: int, shape: tuple[int, ...], stream: int, parameters: int, _: int) -> BoundCall:
    attribute = _LaunchAttribute(PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
    config = _LaunchConfig((ctypes.c_uint * 7)(*shape), stream, ctypes.pointer(attribute), 1)
    return partial(_launch_ex(), ctypes.byref(config), kernel, parameters, None)


# ---- tensor maps


@lru_cache(maxsize=1)
def tensor_map_encoder() -> Any:
    """Return the driver's cuTensorMapEncodeTiled; None where the driver lacks it."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None


def encode_tensor_map(x: TensorMap) -> Any:
    """Return the words of an encoded map; the first word, which holds the address, is zero.

    Encoding the map for two addresses checks that the address is in the first word and nowhere else.
    """
    words, others = (_encoded_for(x, address) for address in (PROBE_ADDRESS, 2 * PROBE_ADDRESS))
    if words[0] != PROBE_ADDRESS or others[0] != 2 * PROBE_ADDRESS or (words[1:] != others[1:]).any():
        raise RuntimeError("this driver's tensor maps do not begin with their address")
    words[0] = 0
    return words


def _encoded_for(x: TensorMap, address: int) -> Any:
    """Return the words of a map of a matrix at this address. The variables are named as in the driver's manual."""
    element = DTYPES.get(x.dtype, BYTE_TYPE)
    layer = x.layer if x.layers > 1 else x.leading * x.lines
    memory = np.zeros(2 * TENSOR_MAP_BYTES, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGNMENT
    tensor_map, global_address = ctypes.c_void_p(memory.ctypes.data + start), ctypes.c_void_p(address)
    global_dim = (ctypes.c_uint64 * MAP_DIMENSIONS)(x.length, x.lines, x.layers)
    global_strides = (ctypes.c_uint64 * (MAP_DIMENSIONS - 1))(x.leading * element.itemsize, layer * element.itemsize)
    box_dim = (ctypes.c_uint32 * MAP_DIMENSIONS)(*x.box, 1)
    element_strides = (ctypes.c_uint32 * MAP_DIMENSIONS)(1, 1, 1)
    status = tensor_map_encoder()(
        tensor_map,
        element.tensor_map,
        MAP_DIMENSIONS,
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
    return memory[start : start + TENSOR_MAP_BYTES].view(np.int64).copy()
