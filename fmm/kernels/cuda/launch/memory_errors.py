"""Recognize the errors of CUDA and cuBLAS which report that memory ran out."""

from __future__ import annotations

from cupy_backends.cuda.api import driver, runtime
from cupy_backends.cuda.libs import cublas

from fmm.kernels.cuda.launch.bound_calls import StatusError

# Statuses that report that memory ran out: cudaErrorMemoryAllocation and CUDA_ERROR_OUT_OF_MEMORY, and
# CUBLAS_STATUS_ALLOC_FAILED
CUDA_OUT_OF_MEMORY, CUBLAS_OUT_OF_MEMORY = 2, 3


def is_out_of_memory(error: Exception) -> bool:
    """Return True if the error reports that memory ran out on the host or on the device."""
    if isinstance(error, StatusError):  # cuBLAS has no status 2, and the driver's status 3 is not an error of a launch
        return error.status in (CUDA_OUT_OF_MEMORY, CUBLAS_OUT_OF_MEMORY)
    if isinstance(error, (runtime.CUDARuntimeError, driver.CUDADriverError)):
        return bool(error.status == CUDA_OUT_OF_MEMORY)
    if isinstance(error, cublas.CUBLASError):
        return bool(error.status == CUBLAS_OUT_OF_MEMORY)
    return isinstance(error, MemoryError)  # CuPy's OutOfMemoryError is a MemoryError
