"""Describe the installed NVIDIA GPUs and their driver, by NVIDIA's management library (NVML), a part of the driver.

NVML needs neither CuPy nor a CUDA context. A CUDA context would not survive a fork; a process that has only used NVML
can still fork.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any, NamedTuple

NVML_FILE = "libnvidia-ml.so.1"
TEXT_BYTES = 96  # NVML's limit of the length of names and versions, in bytes


class InstalledGpu(NamedTuple):
    """A GPU as NVML describes it; NVML orders GPUs by their PCI bus, and ignores CUDA_VISIBLE_DEVICES."""

    name: str
    capability: str  # compute capability, such as "9.0"
    memory_bytes: int


class InstalledDriver(NamedTuple):
    """The version of the driver, and the newest CUDA version that the driver supports."""

    version: str
    cuda: str


class _MemoryInfo(ctypes.Structure):
    """The C structure nvmlMemory_t of NVML, with sizes in bytes."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


@lru_cache(maxsize=1)
def nvml_library() -> Any:
    """Return the initialised NVML library; None if no driver is installed."""
    try:
        library = ctypes.CDLL(NVML_FILE)
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None


def installed_gpus() -> list[InstalledGpu]:
    """Return the GPUs of this machine that NVML can describe; an empty list if no driver is installed."""
    library, count = nvml_library(), ctypes.c_uint(0)
    if library is None or library.nvmlDeviceGetCount_v2(ctypes.byref(count)):
        return []
    return [gpu for number in range(count.value) if (gpu := _describe_gpu(library, number)) is not None]


def _describe_gpu(library: Any, number: int) -> InstalledGpu | None:
    handle, name, memory = ctypes.c_void_p(), ctypes.create_string_buffer(TEXT_BYTES), _MemoryInfo()
    major, minor = ctypes.c_int(), ctypes.c_int()
    failed = (
        library.nvmlDeviceGetHandleByIndex_v2(number, ctypes.byref(handle))
        or library.nvmlDeviceGetName(handle, name, TEXT_BYTES)
        or library.nvmlDeviceGetCudaComputeCapability(handle, ctypes.byref(major), ctypes.byref(minor))
    )
    if failed:
        return None
    # this call fails on a GPU that shares its memory with the CPU; `memory.total` is then 0 bytes
    library.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
    return InstalledGpu(name.value.decode(errors="replace"), f"{major.value}.{minor.value}", int(memory.total))


def installed_driver() -> InstalledDriver | None:
    """Return the versions of the driver and of CUDA; None if no driver is installed."""
    library, version, cuda = nvml_library(), ctypes.create_string_buffer(TEXT_BYTES), ctypes.c_int(0)
    if library is None or library.nvmlSystemGetDriverVersion(version, TEXT_BYTES):
        return None
    library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    return InstalledDriver(version.value.decode(errors="replace"), f"{cuda.value // 1000}.{cuda.value % 1000 // 10}")
