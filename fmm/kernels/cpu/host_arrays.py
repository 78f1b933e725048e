"""The workspace of one call: a single block of memory, taken and given back like a stack."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import dot, inner, matmul

from fmm.kernels.plans.memory_layout import ALIGN, leading_dimension, temporary_bytes

Array = np.ndarray[Any, np.dtype[Any]]


def aligned_block(nbytes: int) -> Array:
    """`nbytes` of uninitialised memory that starts on a cache line."""
    raw = np.empty(nbytes + ALIGN, np.uint8)
    start = -raw.ctypes.data % ALIGN
    return raw[start : start + nbytes]


class Arena:
    """Temporaries of all levels as views of one block, so that the products of a level reuse each other's memory:
    fresh pages cost more than the additions."""

    def __init__(self, memory: Array, dtype: np.dtype[Any]) -> None:
        self.memory, self.dtype = memory, dtype
        self.used = self.peak = 0

    def take(self, rows: int, cols: int, fortran: bool = False, dtype: str = "") -> Array:
        """An uninitialised rows x cols array, rows (or columns, if `fortran`) contiguous; of another type if named."""
        if fortran:
            return self.take(cols, rows, dtype=dtype).T
        kind = np.dtype(dtype) if dtype else self.dtype
        start, item = self.used, kind.itemsize
        self.used += temporary_bytes(rows, cols, item)
        self.peak = max(self.peak, self.used)
        assert self.used <= self.memory.nbytes, "the plan's workspace was counted too small"
        stride = leading_dimension(cols, item)
        flat = self.memory[start : start + rows * stride * item].view(kind)
        return flat.reshape(rows, stride)[:, :cols]

    def take_bytes(self, nbytes: int) -> Array:
        """So many bytes, from a cache line on."""
        start, self.used = self.used, self.used + -(-nbytes // ALIGN) * ALIGN
        self.peak = max(self.peak, self.used)
        assert self.used <= self.memory.nbytes, "the plan's workspace was counted too small"
        return self.memory[start : start + nbytes]

    def release(self, mark: int) -> None:
        """Give back everything taken since `used` was `mark`."""
        self.used = mark


__all__ = ["dot", "inner", "matmul"]
