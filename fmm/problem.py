"""One product, as everybody asks for it: the model, the recorder, the tuner's trials and the config's keys."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES, DType

Shape = tuple[int, int, int]  # (m, k, n)
# A B; A B where B is A's adjoint (its transpose; of complex numbers, the conjugate one); A B that is known to be its
# own adjoint for another reason. Of the latter two only one half is computed.
Operation = Literal["product", "gram", "symmetric"]
OPERATIONS: tuple[Operation, ...] = ("product", "gram", "symmetric")
# What is written of a C that is its own adjoint: all; the lower half, and nothing of the upper one; the lower half,
# where the upper one may be left with anything (inside a plan).
Fill = Literal["full", "lower", "loose"]
FILLS: tuple[Fill, ...] = ("full", "lower")  # that may be asked for


class Layout(NamedTuple):
    """How a matrix lies in memory: rows (`C`) or columns (`F`) contiguous, the next one `leading` elements further."""

    order: Literal["C", "F"]
    leading: int

    @property
    def strides(self) -> tuple[int, int]:
        """Elements from one row to the next, and from one column to the next."""
        return (self.leading, 1) if self.order == "C" else (1, self.leading)


Layouts = tuple[Layout, Layout, Layout]


@dataclass(frozen=True)
class Problem:
    """C = alpha A B + beta C, for an m x k matrix A and a k x n matrix B; `batch` equal ones of them.

    Without layouts, A, B and C lie row by row, without gaps.
    """

    m: int
    k: int
    n: int
    dtype: str = "float64"
    layouts: Layouts | tuple[()] = ()
    alpha: complex = 1
    beta: complex = 0
    op: Operation = "product"
    batch: int = 1
    fill: Fill = "full"
    componentwise: bool = False  # is every entry to be right beside its own size, not beside the largest ones alone?
    prepared_side: Literal["A", "B"] | None = None  # behind which matrix stands what a leaf has made of it
    # Where beta's matrix is not what C holds: elements from one of its rows, one of its columns to the next, zero along
    # an axis along which all are the same.
    addend_strides: tuple[int, int] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; valid: {', '.join(DTYPES)}")
        if self.op not in OPERATIONS:
            raise ValueError(f"unknown operation {self.op!r}; valid: {', '.join(OPERATIONS)}")
        if self.fill not in FILLS or (self.fill != "full" and not self.writes_triangle):
            raise ValueError(f"{self.op} cannot have fill {self.fill!r}; valid: {', '.join(FILLS)}")
        if self.addend_strides is not None and (self.writes_triangle or not self.beta):
            raise ValueError("only what a whole product is added to can lie elsewhere")
        if self.writes_triangle and self.m != self.n:
            raise ValueError(f"a product that is its own adjoint is square, not {self.m} x {self.n}")
        for name, side in zip("mkn", self.size, strict=True):
            if side < 0:
                raise ValueError(f"{name} must be 0 or more, not {side}")
        if not self.layouts:
            object.__setattr__(self, "layouts", tuple(Layout("C", max(cols, 1)) for _, cols in self.shapes))
        for name, layout, (rows, cols) in zip("ABC", self.layouts, self.shapes, strict=True):
            least = cols if layout.order == "C" else rows
            if layout.order not in ("C", "F") or layout.leading < max(least, 1):
                raise ValueError(f"{name} is {rows} x {cols}: its layout cannot be {layout}")

    @property
    def size(self) -> Shape:
        return self.m, self.k, self.n

    @property
    def updates(self) -> bool:
        """Is C more than the product: a multiple of it, or added to what C holds?"""
        return self.alpha != 1 or self.beta != 0

    @property
    def writes_triangle(self) -> bool:
        """Is C its own adjoint, so that half of it is enough?"""
        return self.op != "product"

    @property
    def shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """Of A, B and C."""
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)

    @cached_property
    def type(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def stored(self) -> str:
        """The type of the numbers in memory: TF32 is only a way to multiply float32."""
        return self.type.stored

    @property
    def itemsize(self) -> int:
        return self.type.itemsize

    @property
    def flops(self) -> int:
        """Of the classical products."""
        return self.type.flops * self.m * self.k * self.n * self.batch


def positive_shape(shape: Shape) -> Shape:
    """The shape; ValueError if it has nothing to multiply."""
    if min(shape) < 1:
        raise ValueError(f"sizes (m, k, n) must be positive, not {shape}")
    return shape


@lru_cache(maxsize=4096)
def without_layouts(problem: Problem) -> Problem:
    """The same product of matrices that lie row by row, neither scaled nor added to: what choices are made for."""
    own = Problem(*problem.size, problem.dtype, op=problem.op, fill=problem.fill)
    if problem.componentwise or problem.prepared_side:
        own = replace(own, componentwise=problem.componentwise, prepared_side=problem.prepared_side)
    return own
