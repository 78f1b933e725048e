"""One product as the model sees it: sizes and element type."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from fmm.dtypes import ELEMENTS, Element

Shape = tuple[int, int, int]  # (m, k, n)


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
