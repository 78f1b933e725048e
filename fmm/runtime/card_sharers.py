"""How many processes share a CUDA device: each may take only its part of what memory is free.

NVIDIA's management library (NVML), which comes with the driver, counts the processes that have a context there.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

INSUFFICIENT_SIZE = 7  # NVML's answer where there are processes and no room was given for telling which
LIBRARY = "libnvidia-ml.so.1"


def processes_on(number: int) -> int:
    """Processes on this CUDA device, this one among them; 1 where nobody can tell."""
    handle = _handle(number)
    if handle is None:
        return 1
    count = ctypes.c_uint(0)
    status = _nvml().nvmlDeviceGetComputeRunningProcesses_v3(handle, ctypes.byref(count), None)
    return max(count.value, 1) if status in (0, INSUFFICIENT_SIZE) else 1


@lru_cache(maxsize=64)
def _handle(number: int) -> Any:
    """NVML's name of the device, which it counts in another order; None where there is none."""
    library = _nvml()
    if library is None:
        return None
    handle = ctypes.c_void_p()
    found = library.nvmlDeviceGetHandleByPciBusId_v2(_bus(number).encode(), ctypes.byref(handle))
    return handle if found == 0 else None


@lru_cache(maxsize=1)
def _nvml() -> Any:
    """The library, ready; None without it, or where it is too old."""
    try:
        library = ctypes.CDLL(LIBRARY)
        ready = library.nvmlInit_v2() == 0
        return library if ready and hasattr(library, "nvmlDeviceGetComputeRunningProcesses_v3") else None
    except (OSError, AttributeError):
        return None


def _bus(number: int) -> str:
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(number))
