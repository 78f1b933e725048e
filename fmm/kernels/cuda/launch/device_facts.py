"""What the driver says of a CUDA device, as a Chip."""

from __future__ import annotations

from functools import lru_cache

import cupy

from fmm.hardware.capability import nearest_capability
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch.tensor_map import driver_encoder

USUAL = 16  # bytes of memory for each multiprocessor and clock


@lru_cache(maxsize=64)
def chip_of(device: int) -> Chip:
    """Memory has two transfers a clock; if its clock is a secret, what is usual."""
    found = cupy.cuda.Device(device)
    says, version = found.attributes, str(found.compute_capability)
    limits = nearest_capability(f"{version[:-1]}.{version[-1]}")
    count, clock = says["MultiProcessorCount"], 1e3 * says["ClockRate"]
    bandwidth = 2e3 * says["MemoryClockRate"] * says["GlobalMemoryBusWidth"] / 8 or USUAL * count * clock
    return Chip(
        limits,
        count,
        clock,
        bandwidth,
        says["L2CacheSize"],
        version=int(version),
        shared=int(says["MaxSharedMemoryPerBlockOptin"]),
        tensor_maps=driver_encoder() is not None,
    )
