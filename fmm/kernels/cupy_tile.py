"""The tiled kernel on a CUDA device: compiled by CuPy, launched by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import cupy
import numpy as np
from cupy_backends.cuda.api import driver

from fmm.kernels.cublas import Lane, Pointers
from fmm.kernels.tape import BASES
from fmm.kernels.tile import WIDE, TileOp
from fmm.kernels.tile_source import ENTRY, OPTIONS, Access, TileKernel, source

LAUNCH = driver.launchKernel
WORDS = 2  # of 8 bytes: a struct Block, its pointer first


@lru_cache(maxsize=1024)
def function(device: int, kernel: TileKernel, access: Access) -> Any:
    """The compiled kernel on the current device, allowed the shared memory that it wants."""
    made = cupy.RawModule(code=source(kernel, access), options=OPTIONS).get_function(ENTRY)
    made.max_dynamic_shared_size_bytes = kernel.shared
    return made


class TileCall:
    """A launch with everything but the pointers filled in; `grain`: what divides each base's address."""

    def __init__(self, op: TileOp, device: int, grain: Mapping[str, int]) -> None:
        aligned = all(grain[piece.base] % WIDE == 0 for piece in op.pieces)
        self.made = function(device, op.kernel, op.access if aligned else "scalar")
        self.pointer = self.made.kernel.ptr
        self.shape = *op.grid, op.kernel.strategy.threads, 1, 1, op.kernel.shared
        self.words = np.frombuffer(op.parameters, np.int64)
        self.where = [(WORDS * i, BASES.index(x.base), x.offset) for i, x in enumerate(op.pieces)]

    def __call__(self, lane: Lane, bases: Pointers) -> None:
        words: Any = self.words.copy()  # threads may call at once; the driver copies them when it is called
        for word, base, offset in self.where:
            words[word] = bases[base] + offset
        parameters = np.array([words.ctypes.data], np.int64)
        LAUNCH(self.pointer, *self.shape, lane.stream, parameters.ctypes.data, 0)
