"""The problem: operation, sizes, type and layouts of one product, for the model, the recorder and the tuner."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES, DType

Shape = tuple[int, int, int]  # (m, k, n)
# The operations. "product" means A B. "gram" means A B with B = A^H. "symmetric" means A B where the caller guarantees
# that A B is its own adjoint. For "gram" and "symmetric", only one triangle of C is computed.
Operation = Literal["product", "gram", "symmetric"]
OPERATIONS: tuple[Operation, ...] = ("product", "gram", "symmetric")
# `Fill` says which part of a self-adjoint C is written. `"full"` writes all of C. `"lower"` writes the lower triangle
# and leaves the upper triangle unchanged. `"loose"` writes the lower triangle and leaves the upper triangle undefined;
# only steps inside a plan have the fill "loose".
Fill = Literal["full", "lower", "loose"]
VALID_FILLS: tuple[Fill, ...] = ("full", "lower")  # the fills that a problem may have; "loose" is for plans only


class Layout(NamedTuple):
    """A matrix's memory layout: row-major (`C`) or column-major (`F`), with a leading dimension in elements."""

    order: Literal["C", "F"]
    leading: int

    @property
    def strides(self) -> tuple[int, int]:
        """The distances from row to row and from column to column, in elements."""
        return (self.leading, 1) if self.order == "C" else (1, self.leading)


Layouts = tuple[Layout, Layout, Layout]


@dataclass(frozen=True)
class Problem:
    """C = alpha A B + beta C for an m x k matrix A and a k x n matrix B, or a batch of products of these sizes.

    If `layouts` is empty, A, B and C are row-major, and their leading dimensions are their numbers of columns.
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
    componentwise: bool = False  # True to bound each entry's error relative to (|A| |B|)ij
    prepared_side: Literal["A", "B"] | None = None  # the operand that a leaf has prepared (fmm.prepare)
    # Row and column strides of an addend outside C, in elements; the stride of a broadcast axis is 0.
    addend_strides: tuple[int, int] | None = None
    # Distances from one matrix of the batch to the next, in elements, for A, B and C. `batch_strides` is None if each
    # product of the batch has launches of its own.
    batch_strides: tuple[int, int, int] | None = None

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"unknown dtype {self.dtype!r}; valid: {', '.join(DTYPES)}")
        if self.op not in OPERATIONS:
            raise ValueError(f"unknown operation {self.op!r}; valid: {', '.join(OPERATIONS)}")
        if self.fill not in VALID_FILLS or (self.fill != "full" and not self.writes_triangle):
            raise ValueError(f"{self.op} cannot have fill {self.fill!r}; valid: {', '.join(VALID_FILLS)}")
        if self.addend_strides is not None and (self.writes_triangle or not self.beta):
            raise ValueError("an addend outside C needs beta, and the operation 'product'")
        if self.writes_triangle and self.m != self.n:
            raise ValueError(f"a product that is its own adjoint is square, not {self.m} x {self.n}")
        if self.batch_strides is not None and not (self.fill == "full" and (self.writes_triangle or not self.beta)):
            raise ValueError("a batch writes complete results; beta needs products that are their own adjoints")
        for name, side in zip("mkn", self.size, strict=True):
            if side < 0:
                raise ValueError(f"{name} must be 0 or more, not {side}")
        if not self.layouts:
            object.__setattr__(self, "layouts", tuple(Layout("C", max(cols, 1)) for _, cols in self.matrix_shapes))
        for name, layout, (rows, cols) in zip("ABC", self.layouts, self.matrix_shapes, strict=True):
            least = cols if layout.order == "C" else rows
            if layout.order not in ("C", "F") or layout.leading < max(least, 1):
                raise ValueError(f"{name} is {rows} x {cols}: its layout cannot be {layout}")

    @property
    def size(self) -> Shape:
        return self.m, self.k, self.n

    @property
    def has_factors(self) -> bool:
        """True if alpha is not 1 or beta is not 0."""
        return self.alpha != 1 or self.beta != 0

    @property
    def writes_triangle(self) -> bool:
        """True if C is its own adjoint; only one triangle of C is computed."""
        return self.op != "product"

    @property
    def matrix_shapes(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int]]:
        """The shapes of A, B and C."""
        return (self.m, self.k), (self.k, self.n), (self.m, self.n)

    @cached_property
    def element_type(self) -> DType:
        return DTYPES[self.dtype]

    @property
    def stored_type(self) -> str:
        """The type in memory: TF32 is stored as float32."""
        return self.element_type.stored_type

    @property
    def itemsize(self) -> int:
        return self.element_type.itemsize

    @property
    def flops(self) -> int:
        """The number of floating-point operations of the classical algorithm."""
        return self.element_type.flops * self.m * self.k * self.n * self.batch


def check_positive_shape(shape: Shape) -> Shape:
    """Return the shape; raise ValueError unless all sizes are positive."""
    if min(shape) < 1:
        raise ValueError(f"sizes (m, k, n) must be positive, not {shape}")
    return shape


@lru_cache(maxsize=4096)
def reduced_problem(problem: Problem) -> Problem:
    """Return the problem with row-major matrices, alpha 1, beta 0 and no addend: the cache key of chosen plans."""
    plain = Problem(*problem.size, problem.dtype, op=problem.op, fill=problem.fill)
    if problem.componentwise or problem.prepared_side:
        plain = replace(plain, componentwise=problem.componentwise, prepared_side=problem.prepared_side)
    return plain
