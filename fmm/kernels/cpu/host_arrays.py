"""Provide the workspace of a call on the CPU, and NumPy's own product functions as they were when fmm was imported.

Every module of fmm that multiplies with NumPy imports `dot`, `inner` and `matmul` from this module. If fmm called
`numpy.matmul` itself, then after `numpy.matmul = fmm.matmul` fmm would call itself again and again.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy import dot, inner, matmul

from fmm.kernels.plans.memory_layout import ALIGN_BYTES, leading_dimension, temporary_bytes

Array = np.ndarray[Any, np.dtype[Any]]


def aligned_block(nbytes: int) -> Array:
    """Return an array of `nbytes` uninitialised bytes that starts on a cache line."""
    raw = np.empty(nbytes + ALIGN_BYTES, np.uint8)
    start = -raw.ctypes.data % ALIGN_BYTES
    return raw[start : start + nbytes]


class Arena:
    """The workspace of one call: a single array of bytes, allocated like a stack.

    All products of a level use the same memory, because the first access to new pages takes longer than the additions.
    """

    def __init__(self, memory: Array, dtype: np.dtype[Any]) -> None:
        self.memory, self.dtype = memory, dtype
        self.used_bytes = self.peak = 0

    def allocate(self, rows: int, cols: int, fortran: bool = False, dtype: str = "") -> Array:
        """Return an uninitialised rows x cols array, column-major if `fortran`.

        An empty `dtype` means the arena's type.
        """
        if fortran:
            return self.allocate(cols, rows, dtype=dtype).T
        kind = np.dtype(dtype) if dtype else self.dtype
        start, item = self.used_bytes, kind.itemsize
        self.used_bytes += temporary_bytes(rows, cols, item)
        self.peak = max(self.peak, self.used_bytes)
        assert self.used_bytes <= self.memory.nbytes, "the plan's workspace was counted too small"
        stride = leading_dimension(cols, item)
        flat = self.memory[start : start + rows * stride * item].view(kind)
        return flat.reshape(rows, stride)[:, :cols]

    def allocate_bytes(self, nbytes: int) -> Array:
        """Return an array of `nbytes` bytes that starts on a cache line."""
        start, self.used_bytes = self.used_bytes, self.used_bytes + -(-nbytes // ALIGN_BYTES) * ALIGN_BYTES
        self.peak = max(self.peak, self.used_bytes)
        assert self.used_bytes <= self.memory.nbytes, "the plan's workspace was counted too small"
        return self.memory[start : start + nbytes]

    def free_temporaries_since(self, mark: int) -> None:
        """Free everything that was allocated since `used_bytes` was `mark`."""
        self.used_bytes = mark


__all__ = ["dot", "inner", "matmul"]
