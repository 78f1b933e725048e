"""A CuPy without a device, whose driver only records its calls: kernels, graphs and events, in order."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

Note = tuple[Any, ...]
log: list[Note] = []  # the calls of the driver, in order
fails: list[int] = []  # the number of calls until one fails
modes: dict[int, int] = {}  # modes of cuBLAS's handles
sizes: dict[int, int] = {}  # function -> bytes of its parameters


def note(*what: Any) -> None:
    log.append(what)
    if fails:
        fails[0] -= 1
        if not fails[0]:
            fails.clear()
            raise RuntimeError("for the test")


def launch_kernel(function: int, *shape_and_more: int) -> None:
    """Read the parameters at the call, as the driver does."""
    *_, stream, pointers, _ = shape_and_more
    note("kernel", function, stream, words_at(pointers, sizes[function]))


def words_at(pointers: int, size: int) -> bytes:
    return ctypes.string_at(ctypes.c_void_p.from_address(pointers).value or 0, size)


def set_mode(handle: int, mode: int) -> None:
    modes[handle] = mode
    note("mode", handle, mode)


def noted_call(name: str, status: int = 0) -> Callable[..., int]:
    """Return a library function that records its arguments except arrays, and returns this status."""

    def call(*arguments: Any) -> int:
        note(name, *(x.value if hasattr(x, "value") else x for x in arguments if not isinstance(x, ctypes.Array)))
        return status

    return call


class Numbered:
    """A stream or an event."""

    count = 100

    def __init__(self, **options: Any) -> None:
        Numbered.count += 1
        self.ptr = Numbered.count

    def begin_capture(self) -> None:
        pass

    def end_capture(self) -> Any:
        pass


class WrapperError(RuntimeError):
    """An error of CuPy's wrappers, with the status of the failed call."""

    def __init__(self, status: int) -> None:
        super().__init__(f"status {status}")
        self.status = status


class DriverError(WrapperError):
    """An error of CUDA's driver."""


class RuntimeApiError(WrapperError):
    """An error of CUDA's runtime."""


class CublasError(WrapperError):
    """An error of cuBLAS."""


def install() -> None:
    """Replace CuPy and its driver before fmm's modules are imported."""
    cupy, runtime, driver, cublas = MagicMock(), MagicMock(), MagicMock(), MagicMock()
    runtime.eventRecord = lambda event, stream: note("record", event, stream)
    runtime.streamWaitEvent = lambda stream, event: note("wait", stream, event)
    runtime.graphLaunch = lambda graph, stream: note("graph", stream, *graph)
    runtime.malloc = lambda size: 1 << 40
    driver.launchKernel = launch_kernel
    runtime.CUDARuntimeError, driver.CUDADriverError, cublas.CUBLASError = RuntimeApiError, DriverError, CublasError
    cublas.getMathMode = lambda handle: modes.get(handle, 0)
    cublas.setMathMode = set_mode
    cupy.cuda = SimpleNamespace(
        runtime=runtime,
        Stream=Numbered,
        Event=Numbered,
        device=SimpleNamespace(get_cublas_handle=lambda: 77),
        memory=MagicMock(),
    )
    api = SimpleNamespace(runtime=runtime, driver=driver)
    names: dict[str, Any] = {"": MagicMock(), ".cuda": MagicMock(), ".cuda.api": api, ".cuda.api.runtime": runtime}
    names |= {".cuda.api.driver": driver, ".cuda.libs": SimpleNamespace(cublas=cublas, nvrtc=MagicMock())}
    names |= {".cuda.libs.cublas": cublas, ".cuda.libs.nvrtc": MagicMock()}
    sys.modules["cupy"] = cupy
    sys.modules.update({"cupy_backends" + name: module for name, module in names.items()})
