"""Read the properties of a CUDA device from the driver."""

from __future__ import annotations

from functools import lru_cache

import cupy

from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import nearest_capability
from fmm.kernels.cuda.launch.compile import forced_capability
from fmm.kernels.cuda.launch.kernel_call import tensor_map_encoder

# Bytes that one multiprocessor and global memory exchange in one clock cycle. The value 16 is an assumption, and is
# used only if the driver reports no memory clock.
MEMORY_BYTES_PER_CLOCK = 16


@lru_cache(maxsize=64)
def cuda_device_chip(device: int) -> Chip:
    """Return the `Chip` that describes the CUDA device with this index.

    The memory bandwidth is computed from the memory clock, with two transfers per cycle. If the driver reports a memory
    clock of 0, the bandwidth is MEMORY_BYTES_PER_CLOCK x (number of multiprocessors) x (their clock rate). The
    environment variable FMM_CAPABILITY replaces the compute capability.
    """
    cupy_device, forced = cupy.cuda.Device(device), forced_capability()
    attributes, version = cupy_device.attributes, forced or str(cupy_device.compute_capability)
    limits = nearest_capability(f"{version[:-1]}.{version[-1]}")
    count, clock = attributes["MultiProcessorCount"], 1e3 * attributes["ClockRate"]
    bandwidth = 2e3 * attributes["MemoryClockRate"] * attributes["GlobalMemoryBusWidth"] / 8
    return Chip(
        limits,
        count,
        clock,
        bandwidth or MEMORY_BYTES_PER_CLOCK * count * clock,
        attributes["L2CacheSize"],
        version=int(version),
        shared=0 if forced else int(attributes["MaxSharedMemoryPerBlockOptin"]),
        tensor_maps=tensor_map_encoder() is not None,
    )
