"""Prepare a kernel launch for a device: compile the kernel, encode its tensor maps, and bind the driver's function."""

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

PROGRAMMATIC_SERIALIZATION = 6  # the driver's CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
MAP_ALIGNMENT_BYTES = 64  # alignment in bytes of a tensor map, as the driver requires
MAP_DIMENSIONS = 3  # dimensions of a tensor map: position in a line, line of a matrix, matrix of a batch
NO_INTERLEAVE, PROMOTE_256_BYTES, FILL_WITH_ZEROS = 0, 3, 0  # values of the driver's CU_TENSOR_MAP_* constants
SWIZZLE_MODES = {
    0: 0,
    32: 1,
    64: 2,
    128: 3,
}  # width of a swizzle pattern in bytes -> the driver's CU_TENSOR_MAP_SWIZZLE_*
PLACEHOLDER_ADDRESS = 1 << 20  # placeholder for the matrix's address while a tensor map is encoded
launch_kernel = driver.launchKernel
# A function that binds a launch to a stream, to the address of a pointer to the kernel's parameters, and to 0 for the
# driver's unused argument `extra`.
BindLaunch = Callable[[int, int, int], BoundCall]


class KernelCall:
    """A kernel launch whose arguments are prepared, except the stream and the addresses.

    `bind` returns the driver's call for a stream and a pointer to the parameters. The driver reads the parameters when
    the call is made. `words` holds the parameters as 64-bit words, with zero in place of each address.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        self.launch = launch
        self.kernel = compile_kernel(device, launch.kernel)  # this reference keeps the code loaded
        self.function = self.kernel.address
        shape = *launch.grid, launch.kernel.threads, 1, 1, launch.kernel.shared
        overlapping = partial(_bind_overlapping_launch, self.function, shape)
        self.bind: BindLaunch = (
            overlapping if launch.overlaps else partial(partial, launch_kernel, self.function, *shape)
        )
        self.words: Any = np.frombuffer(launch.parameters, np.int64).copy()
        for word, tensor_map in launch.maps:
            encoded = encode_tensor_map(tensor_map)
            self.words[word : word + len(encoded)] = encoded


# ---- cuLaunchKernelEx (programmatic dependent launch), which CuPy does not wrap
#
# Two launches that add to the same result may overlap: the second launch starts before the first has ended. Two small
# products that overlap can use all multiprocessors together.


class _LaunchAttribute(ctypes.Structure):
    _fields_ = (("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_int * 16))


class _LaunchConfig(ctypes.Structure):
    _fields_ = (
        ("shape", ctypes.c_uint * 7),  # three sizes of the grid, three of the thread block, and bytes of shared memory
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.POINTER(_LaunchAttribute)),
        ("count", ctypes.c_uint),
    )


@lru_cache(maxsize=1)
def _extended_launch_function() -> Any:
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.POINTER(_LaunchConfig), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return function


def _bind_overlapping_launch(kernel: int, shape: tuple[int, ...], stream: int, parameters: int, _: int) -> BoundCall:
    return partial(_extended_launch_function(), _overlapping_launch_config(shape, stream), kernel, parameters, None)


@lru_cache(maxsize=1024)
def _overlapping_launch_config(shape: tuple[int, ...], stream: int) -> Any:
    """Return a reference to the configuration of a launch that may start before the previous kernel has ended.

    The configuration is cached, because the driver only reads it.
    """
    attribute = _LaunchAttribute(PROGRAMMATIC_SERIALIZATION, 0, (ctypes.c_int * 16)(1))
    return ctypes.byref(_LaunchConfig((ctypes.c_uint * 7)(*shape), stream, ctypes.pointer(attribute), 1))


# ---- tensor maps


@lru_cache(maxsize=1)
def tensor_map_encoder() -> Any:
    """Return the driver's function cuTensorMapEncodeTiled; None if the driver has no such function."""
    try:
        return ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled
    except (OSError, AttributeError):
        return None


def encode_tensor_map(x: TensorMap) -> Any:
    """Return a tensor map as the driver's 64-bit words; the first word, which holds the address, is zero.

    The map is encoded for two addresses, to check that the first word is the only word that depends on the address.
    """
    words, others = (_encode_at_address(x, address) for address in (PLACEHOLDER_ADDRESS, 2 * PLACEHOLDER_ADDRESS))
    if words[0] != PLACEHOLDER_ADDRESS or others[0] != 2 * PLACEHOLDER_ADDRESS or (words[1:] != others[1:]).any():
        raise RuntimeError("this driver's tensor maps do not begin with their address")
    words[0] = 0
    return words


def _encode_at_address(x: TensorMap, address: int) -> Any:
    """Return the 64-bit words of the tensor map of a matrix at this address.

    The variables are named as in the driver's manual.
    """
    element = DTYPES.get(x.dtype, BYTE_TYPE)
    layer = x.layer if x.layers > 1 else x.leading * x.lines
    memory = np.zeros(2 * TENSOR_MAP_BYTES, np.uint8)
    start = -memory.ctypes.data % MAP_ALIGNMENT_BYTES
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
        SWIZZLE_MODES[x.swizzle],
        PROMOTE_256_BYTES,
        FILL_WITH_ZEROS,
    )
    if status:
        raise RuntimeError(f"cuTensorMapEncodeTiled failed with status {status} for {x}")
    return memory[start : start + TENSOR_MAP_BYTES].view(np.int64).copy()
