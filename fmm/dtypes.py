"""fmm/dtypes.py."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Element:
    """Bytes of an element, and flops of one multiply-add of it."""

    itemsize: int
    flops: int = 2


ELEMENTS = {
    "float64": Element(8),
    "float32": Element(4),
    "tf32": Element(4),  # float32 in memory, multiplied by tensor cores
    "float16": Element(2),
    "bfloat16": Element(2),
    "complex64": Element(8, 8),
    "complex128": Element(16, 8),
}
