"""A simulated CUDA device for the kernels' tests: arrays and products are NumPy's, and every kernel is
recorded. `python -m pytest -p tests.support.numpy_device -m gpu tests/kernels/cuda` runs tests for a device
where there is none. Launch lists are recorded as for an H200, or for the chip that FMM_CHIP names (a pickle);
NumPy multiplies in place of playing them. This runs a test's own code and finds the sources of all kernels
that it would launch. They are written to the folder that FMM_KERNELS names, one file for each, for
`benchmarks.compile_ahead`.
"""

from __future__ import annotations

import ctypes
import functools
import os
import pickle
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np

from benchmarks.compile_ahead import write_kernel
from fmm.kernels.cuda.launch_list import Kernel, LaunchList
from fmm.problem import Problem
from tests.support import cuda_device
from tests.support.chips import H200

ALIGNED = 512  # bytes to which CuPy aligns its allocations
BACKENDS = ("", ".cuda", ".cuda.api", ".cuda.api.driver", ".cuda.api.runtime")
LIBRARIES = (".cuda.libs", ".cuda.libs.cublas", ".cuda.libs.nvrtc")


# ---- arrays


class Array(np.ndarray[Any, Any]):
    """NumPy's arrays with the attributes of CuPy's arrays that tests use."""

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self) -> Any:
        return np.array(self)


def allocated(x: Any) -> Any:
    """Return a copy that is aligned as on a device."""
    if not isinstance(x, np.ndarray):
        return x
    memory = np.empty(x.nbytes + ALIGNED, np.uint8)
    start = -memory.ctypes.data % ALIGNED
    order: Any = "F" if x.flags.f_contiguous and not x.flags.c_contiguous else "C"
    made = np.ndarray(x.shape, x.dtype, memory[start:], order=order)
    made[...] = x
    return made.view(Array)


class Generator:
    def __init__(self, seed: int) -> None:
        self.made = np.random.default_rng(seed)

    def standard_normal(self, size: Any, dtype: Any = np.float64) -> Any:
        return allocated(self.made.standard_normal(size, dtype))


class Stream:
    """A stream on which everything is done immediately."""

    ptr, done = 0, True

    def __init__(self, non_blocking: bool = False) -> None: ...

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *error: object) -> None: ...

    def synchronize(self) -> None: ...


class Device:
    compute_capability = "90"

    def __init__(self, device: int = 0) -> None: ...

    def synchronize(self) -> None: ...


class RawModule:
    def __init__(self, code: str, options: tuple[str, ...] = ()) -> None:
        record_kernel(Kernel(str, (code,), "", 0, options=options))

    def get_function(self, name: str) -> Any:
        return SimpleNamespace(local_size_bytes=0)


def fake_cupy() -> ModuleType:
    """Return NumPy as a module `cupy`, whose functions return arrays aligned as on a device."""
    made = ModuleType("cupy")

    def found(name: str) -> Any:
        x = getattr(np, name)
        if not callable(x) or isinstance(x, type):
            return x
        return functools.wraps(x)(lambda *arguments, **more: allocated(x(*arguments, **more)))

    made.__dict__.update(
        __getattr__=found,
        ndarray=Array,
        asnumpy=np.array,
        linalg=np.linalg,
        random=SimpleNamespace(
            default_rng=Generator,
            standard_normal=lambda size, dtype: Generator(0).standard_normal(size, dtype),
        ),
        RawModule=RawModule,
        get_default_memory_pool=lambda: SimpleNamespace(total_bytes=lambda: 0),
        cuda=SimpleNamespace(
            Device=Device,
            Stream=Stream,
            get_current_stream=Stream,
            using_allocator=lambda allocator: nullcontext(),
            runtime=SimpleNamespace(getDevice=lambda: 0),
            device=SimpleNamespace(get_cublas_handle=lambda: 0),
        ),
    )
    return made


# ---- launch lists


def record_kernel(kernel: Kernel) -> None:
    """Record a kernel that would be compiled, once in all processes."""
    folder = os.environ.get("FMM_KERNELS")
    if not folder or kernel in noted:
        return
    noted.add(kernel)
    write_kernel(kernel, Path(folder))


def record_kernels(device: int, kernels: Iterable[Kernel]) -> None:
    for kernel in kernels:
        record_kernel(kernel)


noted: set[Kernel] = set()


class Player:
    """Replaces the player of fmm.kernels.cuda.launch.player."""

    def __init__(self, launches: LaunchList, device: int) -> None:
        self.launches = launches

    def launch_all(self, addresses: Any, stream: int, counters: Any = None, scratch: int = 0) -> None:
        for launch in self.launches.launches:
            record_kernel(launch.kernel)
        problem = self.launches.problem
        shapes = zip(addresses[:3], problem.matrix_shapes, problem.layouts, strict=True)
        a, b, c = (_matrix(address, shape, layout, problem.dtype) for address, shape, layout in shapes)
        with np.errstate(all="ignore"):
            found = problem.alpha * (_wide(a) @ _wide(b))
            found = found + problem.beta * _wide(c) if problem.beta else found
            _store(c, _half(problem, found, _wide(c)) if problem.writes_triangle else found)
        if addresses.flag and not np.isfinite(_wide(c)).all():
            ctypes.c_int.from_address(addresses.flag).value = 1


def _half(problem: Problem, found: Any, old: Any) -> Any:
    """Return the lower half, with its mirror image or the old entries above the diagonal."""
    above = found.conj().T if problem.fill == "full" else old
    return np.where(np.tri(problem.m) > 0, found, above)


def _matrix(address: int, shape: tuple[int, int], layout: Any, dtype: str) -> Any:
    kind = np.dtype({"bfloat16": "uint16", "tf32": "float32"}.get(dtype, dtype))
    rows, cols = shape
    if 0 in shape:
        return np.empty(shape, kind)
    lines, length = shape if layout.order == "C" else (cols, rows)
    nbytes = ((lines - 1) * layout.leading + length) * kind.itemsize
    memory = np.frombuffer((ctypes.c_char * nbytes).from_address(address), np.uint8)
    step = layout.leading * kind.itemsize
    strides = (step, kind.itemsize) if layout.order == "C" else (kind.itemsize, step)
    return np.ndarray(shape, kind, memory, strides=strides)


def _wide(x: Any) -> Any:
    """Return numbers in double precision; 16-bit integers are taken as bits of bfloat16."""
    if x.dtype == np.uint16:
        return (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
    return x.astype(np.complex128 if x.dtype.kind == "c" else np.float64)


def _store(dest: Any, found: Any) -> None:
    if dest.dtype == np.uint16:
        bits = found.astype(np.float32).view(np.uint32)
        dest[...] = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    else:
        dest[...] = (found if dest.dtype.kind == "c" else found.real).astype(dest.dtype)


# ---- taking a device's place


def chip() -> Any:
    if path := os.environ.get("FMM_CHIP"):
        return pickle.loads(Path(path).read_bytes())
    return replace(H200, version=90, shared=H200.limits.shared_per_block)


def install() -> None:
    """Replace CuPy and the player before any test module is imported."""
    sys.modules["cupy"] = fake_cupy()
    for name in (*BACKENDS, *LIBRARIES):
        sys.modules["cupy_backends" + name] = MagicMock()
    from fmm.kernels.cuda.launch import device_facts
    from fmm.runtime import device_backend

    found = functools.cache(lambda device: chip())
    vars(device_facts)["cuda_device_chip"] = vars(device_backend)["cuda_device_chip"] = found
    vars(device_backend)["cached_player"] = Player
    vars(device_backend)["compile_kernels"] = record_kernels
    device_backend.DeviceBackend._capture_graph = _captured  # type: ignore[method-assign]
    vars(cuda_device)["no_device"] = lambda: None


def _captured(self: Any, launches: LaunchList, addresses: Any) -> Any:
    from fmm.runtime.device_backend import CapturedGraph

    player = self.player_for_addresses(launches, addresses)
    return CapturedGraph(SimpleNamespace(launch=lambda stream=None: player.launch_all(addresses, 0)), None)


install()
