"""Products by Hopper's warpgroups, on a CUDA device that has them.

CuPy compiles for what all devices of a compute capability have; these instructions are only in code for `sm_90a`, so
NVRTC is asked here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver
from cupy_backends.cuda.libs import nvrtc

from fmm.kernels.cuda.launch.cublas import Lane
from fmm.kernels.cuda.launch.device_facts import chip
from fmm.kernels.cuda.launch.tma_call import encoded, has_engine
from fmm.kernels.cuda.products.gemm import GemmOp
from fmm.kernels.cuda.products.tiled import WIDE
from fmm.kernels.cuda.products.tiled_source import ENTRY
from fmm.kernels.cuda.products.wgmma import CAPABILITY, GroupOp, group_op
from fmm.kernels.cuda.products.wgmma_source import GroupKernel, source
from fmm.kernels.cuda.views import BASES

OPTIONS = ("--gpu-architecture=sm_90a", "--std=c++17")
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES


@lru_cache(maxsize=64)
def has_groups(device: int) -> bool:
    return int(cupy.cuda.Device(device).compute_capability) == CAPABILITY and has_engine(device)


def group_call(op: GemmOp, dtype: str, device: int, grain: Mapping[str, int]) -> GroupCall | None:
    """The call of a GEMM; None where the kernel, or the device, cannot do it: `grain` divides each base's address."""
    if not has_groups(device) or any(grain[x.base] % WIDE for x in op.pieces):
        return None
    found = group_op(op, dtype, chip(device).multiprocessors)
    return GroupCall(found, device) if found else None


@lru_cache(maxsize=64)
def _function(device: int, kernel: GroupKernel) -> Any:
    """On the current device."""
    program = nvrtc.createProgram(source(kernel), f"{ENTRY}.cu", (), ())
    try:
        nvrtc.compileProgram(program, OPTIONS)
        module = cupy.cuda.function.Module()
        module.load(nvrtc.getCUBIN(program))
    finally:
        nvrtc.destroyProgram(program)
    made = module.get_function(ENTRY)
    driver.funcSetAttribute(made.ptr, MOST_SHARED, kernel.shared)
    return made


class GroupCall:
    """A launch with everything but the pointers filled in."""

    def __init__(self, op: GroupOp, device: int) -> None:
        self.made = _function(device, op.kernel)
        self.shape = *op.grid, op.kernel.sizes.threads, 1, 1, op.kernel.shared
        self.words = np.frombuffer(op.parameters, np.int64).copy()
        self.slots = []
        for i, x in enumerate(op.maps):
            map_ = encoded(x, op.kernel.element)
            self.words[i * len(map_) : (i + 1) * len(map_)] = map_
            self.slots.append((i * len(map_), BASES.index(x.piece.base), x.piece.offset))

    def __call__(self, lane: Lane, bases: Sequence[int]) -> None:
        words: Any = self.words.copy()  # threads may call at once; the driver copies them when it is called
        for word, base, offset in self.slots:
            words[word] = bases[base] + offset
        parameters = np.array([words.ctypes.data], np.int64)
        driver.launchKernel(self.made.ptr, *self.shape, lane.stream, parameters.ctypes.data, 0)
