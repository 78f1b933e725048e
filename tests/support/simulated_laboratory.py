"""Runs `python -m benchmarks papers` on a simulated CUDA device, for the given experiments alone: `python -m
tests.support.simulated_laboratory li-fig30,li-fig32 missing --measure --device 0 ...`.

Plans are recorded as for an H200; NumPy multiplies where a GPU would run the launches. The test covers the benchmark's
own code for arrays, kernels, times and plans; its numbers mean nothing.
"""

from __future__ import annotations

import sys
import time
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.papers import command
from benchmarks.papers.figures import EXPERIMENTS
from fmm.runtime import devices
from tests.support import numpy_device  # takes CuPy's place
from tests.support.devices import H200

cupy: Any = sys.modules["cupy"]


class Generator(numpy_device.Generator):
    def random(self, size: Any) -> Any:
        return numpy_device.allocated(self.made.random(size))


class Device(numpy_device.Device):
    attributes = {"MultiProcessorCount": 132}  # noqa: RUF012

    def use(self) -> None: ...

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None: ...


class Event:
    seconds = 0.0

    def record(self) -> None:
        self.seconds = time.perf_counter()

    def synchronize(self) -> None: ...


class RowByColumn:
    """Replaces the only elementwise kernel of the experiments."""

    def __init__(self, *source: str, options: tuple[str, ...] = ()) -> None: ...

    def __call__(self, a: Any, b: Any, inner: int, cols: int, c: Any) -> None:
        assert (inner, cols) == b.shape
        c[...] = a @ b


class RawKernel:
    def __init__(self, code: str, name: str) -> None:
        assert name in code

    def __call__(self, blocks: Any, threads: Any, arguments: Any) -> None: ...


def install() -> None:
    vars(devices)["cuda_device"] = lambda index: H200
    pool = SimpleNamespace(free_all_blocks=lambda: None, free_bytes=lambda: 0, get_limit=lambda: 0)
    vars(cupy).update(
        __version__="14",
        ElementwiseKernel=RowByColumn,
        RawKernel=RawKernel,
        get_default_memory_pool=lambda: pool,
        random=SimpleNamespace(default_rng=Generator),
    )
    runtime = cupy.cuda.runtime
    runtime.getDeviceProperties = lambda index: {"name": b"NVIDIA H200"}
    runtime.runtimeGetVersion = lambda: 13000
    vars(cupy.cuda).update(
        alloc=None,
        Device=Device,
        Event=Event,
        get_elapsed_time=lambda start, stop: 1e3 * (stop.seconds - start.seconds),
        memory=SimpleNamespace(OutOfMemoryError=MemoryError),
    )
    library: Any = import_module("fmm.arrays.cupy_library")  # which loads CuPy
    library.CupyLibrary.free_bytes = lambda self, number: 1 << 36


if __name__ == "__main__":
    install()
    np.seterr(all="ignore")
    vars(command)["EXPERIMENTS"] = {name: EXPERIMENTS[name] for name in sys.argv[1].split(",")}
    sys.exit(command.main(sys.argv[2:]))
