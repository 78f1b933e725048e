"""The interface of a device that runs streamed products of host arrays, and the interface's implementation for CUDA."""

from __future__ import annotations

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Protocol

from fmm.arrays.select_library import cupy_library
from fmm.out_of_core.schedule import CopyRates
from fmm.out_of_core.transfers import PROBE_BYTES, CopyThreads, DeviceEngine, measure_copy_rates
from fmm.runtime import matmul
from fmm.runtime.decisions.limits import PlanConstraints, count_gpu_processes
from fmm.runtime.devices import Device, cuda_device
from fmm.runtime.gemm import BlasGemmParams, run_gemm

PROBE_MEMORY_SHARE = 1 / 4  # largest share of the device's free memory with which copy rates are measured


class StreamingDevice(Protocol):
    """Interface of a device that runs the schedules of streamed products."""

    @property
    def device(self) -> Device: ...

    @property
    def copy_rates(self) -> CopyRates: ...

    def free_bytes(self) -> int: ...

    def open_engine(self, constraints: PlanConstraints) -> AbstractContextManager[DeviceEngine]: ...

    @property
    def out_of_memory_error(self) -> type[BaseException]: ...


@dataclass(frozen=True)
class CudaStreamingDevice:
    """The CUDA device with this index, used through CuPy."""

    number: int

    @property
    def device(self) -> Device:
        return cuda_device(self.number)

    @property
    def copy_rates(self) -> CopyRates:
        return _measured_cuda_rates(self.number)

    @property
    def out_of_memory_error(self) -> type[BaseException]:
        return cupy_library().out_of_memory_error

    def free_bytes(self) -> int:
        return cupy_library().free_bytes(self.number) // count_gpu_processes(self.number)

    def open_engine(self, constraints: PlanConstraints) -> AbstractContextManager[DeviceEngine]:
        from fmm.out_of_core import cuda_engine  # loads CuPy

        product = partial(_multiply_tiles, cupy_library(), constraints)
        engine: Any = cuda_engine.CudaEngine(self.number, product)
        return engine  # type: ignore[no-any-return]


def _multiply_tiles(
    library: Any, constraints: PlanConstraints, a: Any, b: Any, c: Any, adds: bool, workspace: int
) -> None:
    """Compute C = A B, or C = C + A B if `adds` is True, for arrays on the device."""
    limited = constraints._replace(workspace=workspace)
    if adds:
        run_gemm(library, a, b, c, c, BlasGemmParams(1, 1), limited)
    else:
        matmul.run_matmul(library, a, b, c, limited)


@lru_cache(maxsize=16)
def _measured_cuda_rates(number: int) -> CopyRates:
    machine = CudaStreamingDevice(number)
    nbytes = min(PROBE_BYTES, int(machine.free_bytes() * PROBE_MEMORY_SHARE))
    with machine.open_engine(PlanConstraints()) as engine:
        transfers = CopyThreads(engine)
        try:
            return measure_copy_rates(engine, transfers, time.perf_counter, nbytes)
        finally:
            engine.wait_until_idle()
            transfers.close()
