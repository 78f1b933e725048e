"""What the driver says of a CUDA device, as a Chip."""

from __future__ import annotations

from functools import lru_cache

import cupy

from fmm.hardware.chip import Chip
from fmm.hardware.datasheets import nearest_capability
from fmm.kernels.cuda.launch.kernel_call import tensor_map_encoder

USUAL_BYTES = 16  # of memory that a multiprocessor has in a clock


@lru_cache(maxsize=64)
def chip_of(device: int) -> Chip:
    """The device's facts. Its memory has two transfers a clock; a driver that hides that clock gets what is usual."""
    cupy_device = cupy.cuda.Device(device)
    attributes, version = cupy_device.attributes, str(cupy_device.compute_capability)
    limits = nearest_capability(f"{version[:-1]}.{version[-1]}")
    count, clock = attributes["MultiProcessorCount"], 1e3 * attributes["ClockRate"]
    bandwidth = 2e3 * attributes["MemoryClockRate"] * attributes["GlobalMemoryBusWidth"] / 8
    return Chip(
        limits,
        count,
        clock,
        bandwidth or USUAL_BYTES * count * clock,
        attributes["L2CacheSize"],
        version=int(version),
        shared=int(attributes["MaxSharedMemoryPerBlockOptin"]),
        tensor_maps=tensor_map_encoder() is not None,
    )
