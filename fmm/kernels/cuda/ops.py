"""Operations on device memory, in BLAS's column-major terms: views, GEMM, rank update, and mirror of a triangle.

A row-major C = A B is the column-major C^T = B^T A^T. Every address is a base (A, B, C or the workspace) plus an
offset, so an operation is recorded before any memory exists.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import LeafUse, leaf_use
from fmm.kernels.plans.sums import ADDEND, Place
from fmm.problem import Problem

TriangleExtent = Literal["loose", "lower", "full"]
OperandSide = Literal["left", "right"]
MIRROR_TILE_ROW_BYTES = 128  # bytes of one row of a mirrored tile: one line of the second-level cache


# ---- views of memory


class MatrixView(NamedTuple):
    """A matrix in memory. Strides count elements of its type; the offset counts bytes from the base."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # elements from one row to the next
    right: int  # elements from one column to the next
    dtype: str  # the type in memory
    unit: int = 1  # elements between neighbours along the contiguous axis: 2 for parts of complex numbers

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    def block_view(self, place: Place) -> MatrixView:
        """Return a block of this matrix or of its transpose, or the real or imaginary parts of a block."""
        if place.part == "transpose":
            return transposed_view(self.block_view(place.untransposed_place))
        offset = self.offset + (place.row * self.down + place.col * self.right) * self.itemsize
        rectangle = self._replace(offset=offset, rows=place.rows, cols=place.cols)
        if not place.part:
            return rectangle
        real = DTYPES[self.dtype].real
        shift = DTYPES[real].itemsize if place.part == "im" else 0
        return rectangle._replace(offset=offset + shift, down=2 * self.down, right=2 * self.right, dtype=real, unit=2)


class BlockTerm(NamedTuple):
    """A block of A, B or C in a tiled product, with its coefficient."""

    base: str
    offset: int  # bytes from the base
    rows: int
    cols: int
    factor: float = 1  # coefficient in a sum of blocks (1 for the first); for a destination, of the product
    keep: float = 0  # coefficient of a destination's old value; with 0 the old value is never read


class BlockStrides(NamedTuple):
    """Strides of an operand's blocks, in elements."""

    leading: int  # elements from one line to the next
    layer: int = 0  # elements from one product of a batch to the next


class GemmOperand(NamedTuple):
    """One operand of a GEMM as BLAS reads it, column-major."""

    base: str
    offset: int  # bytes from the base
    leading: int  # elements from one column to the next
    transposed: bool
    stride: int  # elements from one matrix of a batch to the next


def distance_between_views(views: Sequence[MatrixView]) -> int | None:
    """Return the distance in elements between consecutive views; None if it varies or the views differ in shape."""
    base, _, *shape = views[0]
    if any(v[0] != base or [*v[2:]] != shape for v in views):  # (the offset is the second field)
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // views[0].itemsize if len(steps) == 1 else None


def is_column_major(x: MatrixView) -> bool:
    """Return True if the columns are contiguous."""
    return x.down == x.unit and (x.right != x.unit or x.rows == 1)


def transposed_view(x: MatrixView) -> MatrixView:
    return x._replace(rows=x.cols, cols=x.rows, down=x.right, right=x.down)


def operand_views(problem: Problem) -> dict[str, MatrixView]:
    """Return the views of A, B and C, each of the whole matrix."""
    return {
        name: MatrixView(name, 0, *shape, *layout.strides, problem.stored)
        for name, shape, layout in zip("ABC", problem.shapes, problem.layouts, strict=True)
    }


def addend_view(problem: Problem) -> MatrixView | None:
    """Return the view of the matrix that beta multiplies; None if that matrix is C."""
    if problem.addend_strides is None:
        return None
    return MatrixView(ADDEND, 0, problem.m, problem.n, *problem.addend_strides, problem.stored)


def has_matching_layout(addend: MatrixView, dest: MatrixView) -> bool:
    """Return True if the addend is contiguous along dest's contiguous axis. (Its lines may be one line, repeated.)"""
    count, step = (dest.rows, addend.down) if is_column_major(dest) else (dest.cols, addend.right)
    return count == 1 or step == 1


# ---- GEMM


@dataclass(frozen=True)
class TriangleOutput:
    """Which triangle a product writes of a row-major result that is its own adjoint.

    `loose`: the lower triangle; the upper one may get any numbers. `lower`: the lower triangle; the upper one stays
    unchanged. `full`: the lower triangle and its mirror.
    """

    extent: TriangleExtent
    gram: bool = False  # True if the right operand is the left one's transpose


@dataclass(frozen=True)
class PreparedOperands:
    """Operands that are already in the form that the leaf multiplies, such as float16 planes."""

    prepared_matrix: Literal["A", "B"] | None = None  # stored behind this matrix by an earlier call
    written_by_sums: frozenset[OperandSide] = frozenset()  # the kernel's operands that the preceding sums write


NO_PREPARED_OPERANDS = PreparedOperands()


@dataclass(frozen=True)
class GemmOp:
    """`count` products dest = alpha left right + beta dest, column-major."""

    leaf: str
    dtype: str  # the type that is multiplied
    m: int
    n: int
    k: int
    left: GemmOperand
    right: GemmOperand
    dest: GemmOperand
    count: int = 1
    alpha: complex = 1
    beta: complex = 0
    scratch: int = 0  # offset of the leaf's scratch memory in the workspace, in bytes
    triangle: TriangleOutput | None = None  # None: the whole result is written
    checked: bool = False  # True if the kernel must raise the flag for entries that may exceed the componentwise bound
    prepared: PreparedOperands = NO_PREPARED_OPERANDS
    dest_dtype: str | None = None  # the type of dest where it differs from the operands' type
    addend: MatrixView | None = None  # the matrix that beta multiplies where it is not dest; its layout is dest's

    @property
    def pieces(self) -> tuple[GemmOperand, GemmOperand, GemmOperand]:
        """The operands and the result."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        """Whether dest is in C and not a temporary."""
        return self.dest.base == "C"

    @property
    def dest_view(self) -> MatrixView:
        """The result of the first product, column-major."""
        x, stored = self.dest, DTYPES[self.dest_dtype or self.dtype].stored
        return MatrixView(x.base, x.offset, self.m, self.n, 1, x.leading, stored)

    @property
    def triangle_extent(self) -> TriangleExtent | None:
        """Which triangle is written of a result that is its own adjoint; None if the whole product is computed."""
        return self.triangle.extent if self.triangle else None

    @property
    def single_products(self) -> tuple[GemmOp, ...]:
        """The products of a batch, one operation each."""
        itemsize = DTYPES[self.dtype].itemsize

        def at(x: GemmOperand, i: int) -> GemmOperand:
            return x._replace(offset=x.offset + i * x.stride * itemsize, stride=0)

        operands = [tuple(at(x, i) for x in self.pieces) for i in range(self.count)]
        return tuple(replace(self, left=x, right=y, dest=z, count=1) for x, y, z in operands)

    @property
    def leaf_use(self) -> LeafUse:
        """The registered leaf that multiplies."""
        return leaf_use(self.leaf)

    @property
    def as_vendor_gemm(self) -> GemmOp:
        """The same product by the vendor's GEMM, which computes the whole result from the unprepared operands."""
        return replace(self, leaf="vendor", triangle=None, checked=False, prepared=NO_PREPARED_OPERANDS)

    @property
    def as_rank_update(self) -> RankOp:
        """The same triangle of A A^T by the vendor's syrk."""
        assert self.triangle is not None and self.triangle.gram and self.count == 1
        x = self.right if self.left.transposed else self.left
        factor = x._replace(transposed=self.left.transposed, stride=0)
        alpha, beta = complex(self.alpha).real, complex(self.beta).real
        return RankOp("vendor", self.dtype, self.n, self.k, factor, self.dest, True, alpha, beta)


def gemm_op(
    leaf: str,
    products: Sequence[tuple[MatrixView, MatrixView, MatrixView]],
    dtype: str,
    alpha: complex = 1,
    beta: complex = 0,
    scratch: int = 0,
    addend: MatrixView | None = None,
) -> GemmOp:
    """Return the operation of products (left, right, dest) of one size at constant distances: one batch."""
    lefts, rights, dests = zip(*products, strict=True)
    m, n, k = lefts[0].rows, rights[0].cols, lefts[0].cols
    if not is_column_major(dests[0]):
        lefts, rights, dests = (tuple(transposed_view(v) for v in views) for views in (rights, lefts, dests))
        m, n, addend = n, m, addend and transposed_view(addend)
    left, right, dest = (_batch_operand(views) for views in (lefts, rights, dests))
    return GemmOp(leaf, dtype, m, n, k, left, right, dest, len(products), alpha, beta, scratch, addend=addend)


def _batch_operand(views: Sequence[MatrixView]) -> GemmOperand:
    """Return one operand of a batch, from its views in all products."""
    x, distance = views[0], distance_between_views(views)
    assert distance is not None and 1 in x.strides
    column_major = is_column_major(x)
    return GemmOperand(x.base, x.offset, max(x.right if column_major else x.down, 1), not column_major, distance)


# ---- rank update (syrk, herk)


@dataclass(frozen=True)
class RankOp:
    """One triangle of dest = alpha X X^H + beta dest, or of X^H X if `factor` is transposed; column-major."""

    leaf: str
    dtype: str
    n: int
    k: int
    factor: GemmOperand
    dest: GemmOperand
    upper: bool
    alpha: float = 1
    beta: float = 0

    @property
    def pieces(self) -> tuple[GemmOperand, GemmOperand]:
        """X and the result."""
        return self.factor, self.dest

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"


def rank_op(
    leaf: str, dtype: str, left: MatrixView, right: MatrixView, dest: MatrixView, alpha: float, beta: float
) -> RankOp | None:
    """Return the lower triangle of dest = alpha left right + beta dest, where right is left's adjoint.

    None if BLAS can read neither operand. If dest is row-major, BLAS sees its transpose and writes the upper triangle
    of that.
    """
    upper = not is_column_major(dest)
    if upper:
        left, right, dest = transposed_view(right), transposed_view(left), transposed_view(dest)
    if is_column_major(left):
        factor = GemmOperand(left.base, left.offset, max(left.right, 1), False, 0)
    elif is_column_major(right):
        factor = GemmOperand(right.base, right.offset, max(right.right, 1), True, 0)
    else:
        return None
    result = GemmOperand(dest.base, dest.offset, max(dest.right, 1), False, 0)
    return RankOp(leaf, dtype, dest.rows, left.cols, factor, result, upper, alpha, beta)


# ---- mirror of a triangle


@dataclass(frozen=True)
class MirrorOp:
    """The lower triangle of dest = alpha source + beta dest and, if `full`, the upper triangle as its mirror."""

    source: MatrixView
    dest: MatrixView
    alpha: float = 1
    beta: float = 0
    full: bool = True

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"

    @property
    def is_in_place(self) -> bool:
        """Whether dest holds the lower triangle already."""
        return self.source == self.dest and (self.alpha, self.beta) == (1, 0)

    @property
    def tile_side(self) -> int:
        return min(max(MIRROR_TILE_ROW_BYTES // self.dest.itemsize, 16), 64)

    @property
    def tile_count(self) -> int:
        """The number of tiles on and below the diagonal."""
        side = -(-self.dest.rows // self.tile_side)
        return side * (side + 1) // 2


@dataclass(frozen=True)
class MirroredGemm:
    """A product that writes a lower triangle, and the mirror that writes the upper one; one kernel may do both."""

    product: GemmOp  # leaves arbitrary numbers in the upper triangle
    mirror: MirrorOp

    @property
    def writes_result(self) -> bool:
        """Whether dest is in C and not a temporary."""
        return self.product.writes_result

    @property
    def as_full_product(self) -> GemmOp:
        """The same result by one kernel that writes both triangles."""
        assert self.product.triangle is not None
        return replace(self.product, triangle=TriangleOutput("full", self.product.triangle.gram))


def mirrored_gemm(op: object, source: MatrixView, mirror: MirrorOp) -> MirroredGemm | None:
    """Return an operation and the in-place mirror after it as one; None unless the operation writes that triangle."""
    if not (
        isinstance(op, GemmOp)
        and op.triangle_extent == "loose"
        and op.count == 1
        and mirror.is_in_place
        and mirror.full
    ):
        return None
    here = (op.dest.base, op.dest.offset, op.dest.leading) == (source.base, source.offset, source.down)
    return MirroredGemm(op, mirror) if here and op.m == op.n == source.rows else None
