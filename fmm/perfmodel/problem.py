"""One product as the model sees it: sizes and element type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

Shape = tuple[int, int, int]  # (m, k, n)


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


@dataclass(frozen=True)
class Problem:
    """An m x k by k x n product."""

    m: int
    k: int
    n: int
    dtype: str = "float64"

    def __post_init__(self) -> None:
        if self.dtype not in ELEMENTS:
            raise ValueError(f"unknown dtype {self.dtype!r}; valid: {', '.join(ELEMENTS)}")
        for name, side in zip("mkn", self.size, strict=True):
            if side < 0:
                raise ValueError(f"{name} must be 0 or more, not {side}")

    @property
    def size(self) -> Shape:
        return self.m, self.k, self.n

    @cached_property
    def element(self) -> Element:
        return ELEMENTS[self.dtype]

    @property
    def itemsize(self) -> int:
        return self.element.itemsize

    @property
    def flops(self) -> int:
        """Of the classical product."""
        return self.element.flops * self.m * self.k * self.n


def positive(shape: Shape) -> Shape:
    """The shape; ValueError if it has nothing to multiply."""
    if min(shape) < 1:
        raise ValueError(f"sizes (m, k, n) must be positive, not {shape}")
    return shape
