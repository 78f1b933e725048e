"""Operands on a CUDA device, drawn at random, and rows of their product in double precision to check others against."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import cupy
import numpy as np

FOOTPRINT = 192 << 20  # bytes: sets are rotated until together they are larger than any cache
SETS = 8
STEP = 2048  # rows of B that are widened at a time


class Operands:
    """Sets of A, B and room for C, as many as it takes to leave every cache.

    So many `rows` of the first set's C are checked. `adjoint`: B is A's adjoint, of real numbers in the same memory.
    """

    def __init__(self, size: tuple[int, int, int], dtype: str, rows: int, adjoint: bool = False) -> None:
        m, k, n = size
        self.kind = "float32" if dtype == "tf32" else dtype
        storage = stored_type(self.kind)
        each = (m * k + k * n + m * n) * np.dtype(storage).itemsize
        count = min(max(FOOTPRINT // each, 1), SETS)
        lefts = [random_normal((m, k), self.kind) for _ in range(count)]
        rights = [a.conj().T if adjoint else random_normal((k, n), self.kind) for a in lefts]
        self.sets = [(a, b, cupy.empty((m, n), storage)) for a, b in zip(lefts, rights, strict=True)]
        self._rows = min(rows, m)

    @cached_property
    def _exact(self) -> tuple[Any, Any]:
        """Which rows are checked, and those rows of the product in double precision."""
        a, b, c = self.sets[0]
        rows = cupy.asarray(np.linspace(0, len(a) - 1, self._rows).astype(np.int64))
        left = double_precision(a[rows], self.kind)
        exact = cupy.zeros((len(rows), c.shape[1]), left.dtype)
        for row in range(0, len(b), STEP):
            exact += left[:, row : row + STEP] @ double_precision(b[row : row + STEP], self.kind)
        return rows, exact

    def errors(self) -> tuple[float, float]:
        """Relative error in the Frobenius norm, and largest error, of what the first set's C holds now."""
        rows, exact = self._exact
        difference = double_precision(self.sets[0][2][rows], self.kind) - exact
        return float(cupy.linalg.norm(difference) / cupy.linalg.norm(exact)), float(abs(difference).max())


def stored_type(kind: str) -> Any:
    """The type of the numbers in memory; bfloat16 as its bits in 16-bit integers."""
    return np.uint16 if kind == "bfloat16" else np.dtype(kind).type


def random_normal(shape: tuple[int, int], kind: str) -> Any:
    """Random normal numbers (zeros would run faster)."""
    if kind.startswith("complex"):
        real = {"complex64": "float32", "complex128": "float64"}[kind]
        return random_normal((shape[0], 2 * shape[1]), real).view(kind)
    drawn = np.float64 if kind == "float64" else np.float32
    x = cupy.empty(shape, stored_type(kind))
    step = max((1 << 26) // max(shape[1], 1), 1)
    for row in range(0, shape[0], step):
        part = cupy.random.standard_normal((min(step, shape[0] - row), shape[1]), dtype=drawn)
        x[row : row + step] = bfloat16_bits(part) if kind == "bfloat16" else part
    return x


def bfloat16_bits(x: Any) -> Any:
    """float32 rounded to the nearest bfloat16, as bits."""
    bits = x.view(cupy.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(cupy.uint16)


def double_precision(x: Any, kind: str) -> Any:
    """The numbers in double precision."""
    if kind == "bfloat16":
        x = (x.astype(cupy.uint32) << 16).view(cupy.float32)
    return x.astype(cupy.complex128 if kind.startswith("complex") else cupy.float64)
