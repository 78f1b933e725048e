"""A fake CuPy made of NumPy, with the attributes that fmm reads: tests of dispatch need no device.

Nothing computes on a device: plans cannot run, and the library's own product is NumPy's.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

ALIGNED = 512  # bytes to which CuPy aligns its allocations
# Modules that are imported again when the module `cupy` is replaced.
ADAPTERS = ("fmm.arrays.cupy_library", "fmm.arrays.cupy_library")


class CUDARuntimeError(RuntimeError):
    """The error that CuPy's runtime raises."""


def _no_device() -> int:
    raise CUDARuntimeError("cudaErrorNoDevice: no CUDA-capable device is detected")


class Handle:
    """A stream or an event, which is a number."""

    def __init__(self, **options: bool) -> None:
        self.ptr = id(self)


def _addresses() -> Callable[[int], int]:
    """Return a function that allocates fake device memory, one block after the other."""
    ends = [1 << 20]

    def malloc(nbytes: int) -> int:
        ends.append(ends[-1] + nbytes)
        return ends[-2]

    return malloc


class PinnedMemory(bytearray):
    """Host memory with an address of its own."""

    @property
    def ptr(self) -> int:
        return id(self)


def allocated(shape: Any, dtype: Any) -> Any:
    """Return an array at an address aligned as CuPy's."""
    count, kind = math.prod(np.atleast_1d(shape)), np.dtype(dtype)
    memory = np.empty(count * kind.itemsize + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    return memory[start : start + count * kind.itemsize].view(kind).reshape(shape)


class Array:
    """An array like CuPy's, which has no buffer that NumPy could read."""

    __array_ufunc__ = None

    def __init__(self, shape: Any, dtype: Any = float, device: int = 0) -> None:
        self.host = shape if isinstance(shape, np.ndarray) else allocated(shape, dtype)
        self.data = SimpleNamespace(ptr=self.host.ctypes.data, device_id=device)

    def __getattr__(self, name: str) -> Any:
        if name in ("shape", "strides", "dtype", "ndim", "size", "nbytes", "itemsize", "flags"):
            return getattr(self.host, name)
        raise AttributeError(name)

    @property
    def T(self) -> Any:  # noqa: N802 - as CuPy names it
        return type(self)(self.host.T, device=self.data.device_id)

    @property
    def _c_contiguous(self) -> bool:
        return self.host.flags.c_contiguous

    @property
    def _f_contiguous(self) -> bool:
        return self.host.flags.f_contiguous

    def get(self) -> Any:
        return self.host


class CurrentDevice:
    """The current device, and CuPy's context manager `Device`."""

    def __init__(self) -> None:
        self.number = 0

    @contextmanager
    def changed(self, number: int) -> Iterator[None]:
        before, self.number = self.number, number
        try:
            yield
        finally:
            self.number = before


def fake_runtime(current: CurrentDevice) -> Any:
    return SimpleNamespace(
        getDevice=lambda: current.number,
        setDevice=lambda number: None,
        getDeviceCount=_no_device,
        memGetInfo=lambda: (1 << 36, 1 << 37),
        malloc=_addresses(),
        memsetAsync=lambda address, value, nbytes, stream: None,
        deviceSynchronize=lambda: None,
        CUDARuntimeError=CUDARuntimeError,
    )


def fake_cuda(current: CurrentDevice, runtime: Any) -> Any:
    return SimpleNamespace(
        alloc=None,
        alloc_pinned_memory=PinnedMemory,
        get_current_stream=lambda: SimpleNamespace(ptr=0),
        device=SimpleNamespace(get_cublas_handle=lambda: 0),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        Device=current.changed,
        Stream=Handle,
        Event=Handle,
        runtime=runtime,
    )


def fake_modules() -> dict[str, ModuleType]:
    """Return the modules of a fake CuPy, by name; `cupy.calls` records each call of its product, with the options."""
    calls: list[dict[str, Any]] = []
    ndarray: Any = type("ndarray", (Array,), {"__module__": "cupy"})  # a new type each time, like that of another CuPy

    def matmul(a: Any, b: Any, out: Any = None, **options: Any) -> Any:
        calls.append(options)
        found = np.matmul(a.host, b.host, out=None if out is None else out.host, **options)
        return ndarray(np.asarray(found)) if out is None else out

    current = CurrentDevice()
    runtime = fake_runtime(current)
    pool = SimpleNamespace(free_bytes=lambda: 0, get_limit=lambda: 0, used_bytes=lambda: 0)
    contents: dict[str, dict[str, Any]] = {
        "cupy": {
            "ndarray": ndarray,
            "matmul": matmul,
            "calls": calls,
            "get_default_memory_pool": lambda: pool,
            "cuda": fake_cuda(current, runtime),
        },
        "cupy.linalg._product": {"matmul": matmul},
        "cupy_backends.cuda.api": {"runtime": runtime},
        "cupy_backends.cuda.libs": {"cublas": SimpleNamespace(gemmEx=None)},
    }
    made = {name: ModuleType(name) for name in contents}
    for name, values in contents.items():
        vars(made[name]).update(values)
    return made


@contextmanager
def in_place(*modules: str) -> Iterator[Any]:
    """Replace CuPy by the fake, and import these modules of fmm anew with it, within the context."""
    homes = [(import_module(name.rpartition(".")[0]), name.rpartition(".")[2]) for name in modules]
    with pytest.MonkeyPatch.context() as patch:
        for name, module in fake_modules().items():
            patch.setitem(sys.modules, name, module)
        for name, (package, short) in zip(modules, homes, strict=True):
            patch.delitem(sys.modules, name, raising=False)
            patch.delattr(package, short, raising=False)
        yield sys.modules["cupy"]
        for name, (package, short) in zip(modules, homes, strict=True):
            sys.modules.pop(name, None)
            vars(package).pop(short, None)


def install() -> Any:
    """Replace CuPy by the fake for the rest of this process."""
    sys.modules.update(fake_modules())
    return sys.modules["cupy"]
