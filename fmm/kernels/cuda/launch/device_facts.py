"""Read a CUDA device's facts from the driver, as a Chip."""

from __future__ import annotations

from functools import lru_cache

import cupy

from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import nearest_capability
from fmm.kernels.cuda.launch.kernel_call import tensor_map_encoder

BYTES_PER_CLOCK = 16  # of memory traffic for a multiprocessor, where the driver hides the memory clock


@lru_cache(maxsize=64)
def chip_of(device: int) -> Chip:
    """Return the device's chip. Memory makes two transfers a clock; a hidden memory clock means a typical bandwidth."""
    cupy_device = cupy.cuda.Device(device)
    attributes, version = cupy_device.attributes, str(cupy_device.compute_capability)
    limits = nearest_capability(f"{version[:-1]}.{version[-1]}")
    count, clock = attributes["MultiProcessorCount"], 1e3 * attributes["ClockRate"]
    bandwidth = 2e3 * attributes["MemoryClockRate"] * attributes["GlobalMemoryBusWidth"] / 8
    return Chip(
        limits,
        count,
        clock,
        bandwidth or BYTES_PER_CLOCK * count * clock,
        attributes["L2CacheSize"],
        version=int(version),
        shared=int(attributes["MaxSharedMemoryPerBlockOptin"]),
        tensor_maps=tensor_map_encoder() is not None,
    )
