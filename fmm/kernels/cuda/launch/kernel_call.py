"""A launch of one of our kernels made ready on a device: compiled, its tensor maps encoded, the driver's call all but
prepared."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any

import numpy as np
from cupy_backends.cuda.api import driver

from fmm.kernels.cuda.launch.compile import compile_kernel
from fmm.kernels.cuda.launch.kernel_call import encode_tensor_map
from fmm.kernels.cuda.launch.prepared_calls import PreparedCall
from fmm.kernels.cuda.launch_list import Launch

OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
launch_kernel = driver.launchKernel
Start = Callable[[int, int, int], PreparedCall]  # start(stream, address of the pointer to the parameters, 0)


class KernelCall:
    """A launch with everything but addresses.

    `start` prepares the driver's call from a stream and the place of the parameters, which are read when that call is
    made. `words` are the parameters with every address zero.
    """

    def __init__(self, launch: Launch, device: int) -> None:
        self.launch = launch
        self.function = compile_kernel(device, launch.kernel).address
        shape = *launch.grid, launch.kernel.threads, 1, 1, launch.kernel.shared
        overlapping = partial(_overlapping_launch, self.function, shape)
        self.start: Start = overlapping if launch.overlaps else partial(partial, launch_kernel, self.function, *shape)
        self.words: Any = np.frombuffer(launch.parameters, np.int64).copy()
        for word, tensor_map in launch.maps:
            encoded = encode_tensor_map(tensor_map)
            self.words[word : word + len(encoded)] = encoded


# ---- cuLaunchKernelEx: a launch that only adds to what the one before it writes may start before that one has ended
# (programmatic dependent launch), so that small products fill the device together. CuPy cannot ask for that.


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
    function = ctypes.CDLL("libcuda.so.1").cuLaunchKernelEx
    function.argtypes = [ctypes.POINTER(_Config), ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
    return function


def _overlapping_launch(kernel: int, shape: tuple[int, ...], stream: int, parameters: int, _: int) -> PreparedCall:
    attribute = _Attribute(OVERLAP, 0, (ctypes.c_int * 16)(1))
    config = _Config((ctypes.c_uint * 7)(*shape), stream, ctypes.pointer(attribute), 1)
    return partial(_launch_ex(), ctypes.byref(config), kernel, parameters, None)
