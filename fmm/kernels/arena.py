"""The workspace of one call: a single block of memory, taken and given back like a stack."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.kernels.recipe import ALIGN, leading, temporary_bytes

Array = np.ndarray[Any, np.dtype[Any]]


class Arena:
    """`nbytes` allocated once; temporaries of all levels are views of it. Fresh pages cost more than the additions,
    so the products of a level reuse each other's memory."""

    def __init__(self, nbytes: int, dtype: np.dtype[Any]) -> None:
        self.nbytes, self.dtype = nbytes, dtype
        raw = np.empty(nbytes + ALIGN, np.uint8)
        start = -raw.ctypes.data % ALIGN
        self._buffer = raw[start : start + nbytes]
        self.used = self.peak = 0

    def take(self, rows: int, cols: int, fortran: bool = False) -> Array:
        """An uninitialised rows x cols array, rows (or columns, if `fortran`) contiguous."""
        if fortran:
            return self.take(cols, rows).T
        start, item = self.used, self.dtype.itemsize
        self.used += temporary_bytes(rows, cols, item)
        self.peak = max(self.peak, self.used)
        assert self.used <= self.nbytes, "the plan's workspace was counted too small"
        stride = leading(cols, item)
        flat = self._buffer[start : start + rows * stride * item].view(self.dtype)
        return flat.reshape(rows, stride)[:, :cols]

    def release(self, mark: int) -> None:
        """Give back everything taken since `used` was `mark`."""
        self.used = mark
