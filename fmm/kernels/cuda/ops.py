"""Describe GEMMs, rank updates and mirrors of triangles in BLAS's column-major terms, and views of device memory.

A row-major C = A B is the column-major C^T = B^T A^T. Every address is a base (A, B, C or the workspace) plus an offset
in bytes, so that an operation can be recorded before its memory is allocated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import LeafUse, parse_leaf
from fmm.kernels.plans.sums import ADDEND, Place
from fmm.problem import Problem

TriangleExtent = Literal["loose", "lower", "full"]
OperandSide = Literal["left", "right"]
MIRROR_TILE_ROW_BYTES = 128  # size of one row of a mirrored tile in bytes, equal to one line of the L2 cache


# ---- views of memory


class DeviceView(NamedTuple):
    """A matrix in device memory. Strides count elements of `dtype`; the offset counts bytes from the base."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # elements from one row to the next
    right: int  # elements from one column to the next
    dtype: str  # the element type in memory
    unit: int = 1  # stride along the contiguous axis: 2 for real or imaginary parts of complex numbers, else 1

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return DTYPES[self.dtype].itemsize

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols

    def block_view(self, place: Place) -> DeviceView:
        """Return the view of the block at `place`: a submatrix, its transpose, or its real or imaginary parts."""
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
    """A submatrix of A, B or C in a tiled product, with the coefficient of the submatrix."""

    base: str
    offset: int  # bytes from the base
    rows: int
    cols: int
    # For a block of A or B, the block's coefficient in a sum of blocks (1 for the first block). For a block of C, the
    # coefficient with which the product is added to the block.
    factor: float = 1
    keep: float = 0  # block of C: coefficient of the block's old value; if 0, the old value is never read


class BlockStrides(NamedTuple):
    """Strides of one operand's submatrices, in elements."""

    leading: int  # elements from one row or column to the next
    layer: int = 0  # elements from one product of a batch to the next


class GemmOperand(NamedTuple):
    """One column-major operand of a GEMM, described as BLAS expects it."""

    base: str
    offset: int  # bytes from the base
    leading: int  # elements from one column to the next
    transposed: bool
    stride: int  # elements from one matrix of a batch to the next


def distance_between_views(views: Sequence[DeviceView]) -> int | None:
    """Return the distance in elements between consecutive views.

    Return None if the distances differ, or if the views differ in base, shape or strides.
    """
    base, _, *shape = views[0]
    if any(v[0] != base or [*v[2:]] != shape for v in views):  # field 1 of a view is its offset
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // views[0].itemsize if len(steps) == 1 else None


def is_column_major(x: DeviceView) -> bool:
    """Return True if the columns of the matrix are contiguous."""
    return x.down == x.unit and (x.right != x.unit or x.rows == 1)


def transposed_view(x: DeviceView) -> DeviceView:
    """Return the view of the transposed matrix, on the same memory."""
    return x._replace(rows=x.cols, cols=x.rows, down=x.right, right=x.down)


def operand_views(problem: Problem) -> dict[str, DeviceView]:
    """Return the views of the complete matrices A, B and C."""
    return {
        name: DeviceView(name, 0, *shape, *layout.strides, problem.stored_type)
        for name, shape, layout in zip("ABC", problem.matrix_shapes, problem.layouts, strict=True)
    }


def product_views(problem: Problem) -> list[tuple[DeviceView, DeviceView, DeviceView]]:
    """Return the views of A, B and C for each product of a batch; for a single product, one triple."""
    views, strides = operand_views(problem), problem.batch_strides or (0, 0, 0)
    left, right, dest = (
        [x._replace(offset=x.offset + i * stride * x.itemsize) for i in range(problem.batch)]
        for x, stride in zip((views[name] for name in "ABC"), strides, strict=True)
    )
    return list(zip(left, right, dest, strict=True))


def addend_view(problem: Problem) -> DeviceView | None:
    """Return the view of the addend, which beta multiplies; None if beta multiplies C."""
    if problem.addend_strides is None:
        return None
    return DeviceView(ADDEND, 0, problem.m, problem.n, *problem.addend_strides, problem.stored_type)


def has_matching_layout(addend: DeviceView, dest: DeviceView) -> bool:
    """Return True if the addend is contiguous along dest's contiguous axis.

    Along the axis where dest is not contiguous, the addend may have any stride, for example the stride 0 of a bias
    vector.
    """
    count, step = (dest.rows, addend.down) if is_column_major(dest) else (dest.cols, addend.right)
    return count == 1 or step == 1


# ---- GEMM


@dataclass(frozen=True)
class TriangleOutput:
    """The triangle that a product writes if the row-major result is symmetric or Hermitian.

    If `extent` is "loose", the kernel writes the lower triangle and may overwrite elements above the diagonal with any
    values. If `extent` is "lower", the kernel writes the lower triangle and does not change the upper triangle. If
    `extent` is "full", the kernel writes the lower triangle, and mirrors it into the upper triangle.
    """

    extent: TriangleExtent
    gram: bool = False  # True if the right operand is the transpose of the left operand


@dataclass(frozen=True)
class PreparedOperands:
    """The operands of a product that are already converted to planes, for example to float16 planes."""

    prepared_matrix: Literal["A", "B"] | None = None  # the matrix that fmm.prepare has converted
    written_by_sums: frozenset[OperandSide] = frozenset()  # operands that preceding sums write in the leaf's form


NO_PREPARED_OPERANDS = PreparedOperands()


@dataclass(frozen=True)
class GemmOp:
    """A batch of `count` column-major products dest = alpha * left right + beta * dest."""

    leaf: str
    dtype: str  # the type in which the leaf multiplies
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
    triangle: TriangleOutput | None = None  # None: the kernel writes the whole result
    checked: bool = False  # True if the kernel raises the flag for entries that may exceed the componentwise bound
    prepared: PreparedOperands = NO_PREPARED_OPERANDS
    dest_dtype: str | None = None  # the element type of dest; None: dest has the operands' type
    addend: DeviceView | None = None  # matrix that beta multiplies, with the layout of dest; None: beta multiplies dest
    addend_stride: int = 0  # elements from one addend of a batch to the next

    @property
    def operands_and_result(self) -> tuple[GemmOperand, GemmOperand, GemmOperand]:
        """The matrices of the product: the left operand, the right operand and the result."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        """True if dest is in C and not a temporary."""
        return self.dest.base == "C"

    @property
    def dest_view(self) -> DeviceView:
        """The column-major view of the result of the batch's first product."""
        x, stored = self.dest, DTYPES[self.dest_dtype or self.dtype].stored_type
        return DeviceView(x.base, x.offset, self.m, self.n, 1, x.leading, stored)

    @property
    def triangle_extent(self) -> TriangleExtent | None:
        """The triangle of the result that the product writes; None if the product writes both triangles."""
        return self.triangle.extent if self.triangle else None

    @property
    def gemms_of_batch(self) -> tuple[GemmOp, ...]:
        """One operation for each product of the batch."""
        itemsize = DTYPES[self.dtype].itemsize

        def operand_of_product(x: GemmOperand, i: int) -> GemmOperand:
            return x._replace(offset=x.offset + i * x.stride * itemsize, stride=0)

        operands = [tuple(operand_of_product(x, i) for x in self.operands_and_result) for i in range(self.count)]
        return tuple(replace(self, left=x, right=y, dest=z, count=1) for x, y, z in operands)

    @property
    def leaf_use(self) -> LeafUse:
        """The leaf that computes the product, with its options."""
        return parse_leaf(self.leaf)

    @property
    def as_vendor_gemm(self) -> GemmOp:
        """The same product by the vendor's GEMM, with the original operands and both triangles of the result."""
        return replace(self, leaf="vendor", triangle=None, checked=False, prepared=NO_PREPARED_OPERANDS)

    @property
    def as_rank_update(self) -> RankUpdateOp:
        """The same product A A^T, computed by the vendor's syrk, which writes only the lower triangle."""
        assert self.triangle is not None and self.triangle.gram and self.count == 1
        x = self.right if self.left.transposed else self.left
        factor = x._replace(transposed=self.left.transposed, stride=0)
        alpha, beta = complex(self.alpha).real, complex(self.beta).real
        return RankUpdateOp("vendor", self.dtype, self.n, self.k, factor, self.dest, True, alpha, beta)


def gemm_op(
    leaf: str,
    products: Sequence[tuple[DeviceView, DeviceView, DeviceView]],
    dtype: str,
    alpha: complex = 1,
    beta: complex = 0,
    scratch: int = 0,
    addend: DeviceView | None = None,
) -> GemmOp:
    """Return one operation for products (left, right, dest) of equal size at constant distances in memory."""
    lefts, rights, dests = zip(*products, strict=True)
    m, n, k = lefts[0].rows, rights[0].cols, lefts[0].cols
    if not is_column_major(dests[0]):
        lefts, rights, dests = (tuple(transposed_view(v) for v in views) for views in (rights, lefts, dests))
        m, n, addend = n, m, addend and transposed_view(addend)
    left, right, dest = (_batch_operand(views) for views in (lefts, rights, dests))
    return GemmOp(leaf, dtype, m, n, k, left, right, dest, len(products), alpha, beta, scratch, addend=addend)


def _batch_operand(views: Sequence[DeviceView]) -> GemmOperand:
    """Return one batched operand for the matrices with these views."""
    x, distance = views[0], distance_between_views(views)
    assert distance is not None and 1 in x.strides
    column_major = is_column_major(x)
    return GemmOperand(x.base, x.offset, max(x.right if column_major else x.down, 1), not column_major, distance)


# ---- rank update (syrk, herk)


@dataclass(frozen=True)
class RankUpdateOp:
    """One triangle of a column-major dest = alpha * X X^H + beta * dest; X^H X replaces X X^H if X is transposed."""

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
    def operands_and_result(self) -> tuple[GemmOperand, GemmOperand]:
        """The matrices of the rank update: the operand X and the result."""
        return self.factor, self.dest

    @property
    def writes_result(self) -> bool:
        """True if dest is in C and not a temporary."""
        return self.dest.base == "C"


def rank_update_op(
    leaf: str, dtype: str, left: DeviceView, right: DeviceView, dest: DeviceView, alpha: float, beta: float
) -> RankUpdateOp | None:
    """Return the rank update for the lower triangle of dest = alpha * left right + beta * dest.

    The operand `right` is the adjoint of `left`. Return None if neither operand is column-major, as BLAS requires. BLAS
    treats a row-major dest as its column-major transpose, and writes the upper triangle of the transpose.
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
    return RankUpdateOp(leaf, dtype, dest.rows, left.cols, factor, result, upper, alpha, beta)


# ---- mirror of a triangle


@dataclass(frozen=True)
class MirrorOp:
    """The lower triangle of dest = alpha * source + beta * dest.

    If `full` is True, the operation also mirrors this triangle into the upper triangle.
    """

    source: DeviceView
    dest: DeviceView
    alpha: float = 1
    beta: float = 0
    full: bool = True

    @property
    def writes_result(self) -> bool:
        """True if dest is in C and not a temporary."""
        return self.dest.base == "C"

    @property
    def is_in_place(self) -> bool:
        """True if source and dest are the same matrix, and its lower triangle stays unchanged."""
        return self.source == self.dest and (self.alpha, self.beta) == (1, 0)

    @property
    def tile_side(self) -> int:
        """Number of rows, and of columns, in a square tile of dest."""
        return min(max(MIRROR_TILE_ROW_BYTES // self.dest.itemsize, 16), 64)

    @property
    def tile_count(self) -> int:
        """The number of tiles on and below the diagonal."""
        side = -(-self.dest.rows // self.tile_side)
        return side * (side + 1) // 2


@dataclass(frozen=True)
class MirroredGemm:
    """A product that writes a lower triangle, and the mirror operation that then writes the upper triangle.

    If the leaf has a kernel that writes both triangles, select.py replaces the product and the mirror by one product.
    """

    product: GemmOp  # may write any values above the diagonal
    mirror: MirrorOp

    @property
    def writes_result(self) -> bool:
        """True if dest is in C and not a temporary."""
        return self.product.writes_result

    @property
    def as_full_product(self) -> GemmOp:
        """The product and the mirror as one product, for a kernel that writes both triangles."""
        assert self.product.triangle is not None
        return replace(self.product, triangle=TriangleOutput("full", self.product.triangle.gram))


def mirrored_gemm(op: object, source: DeviceView, mirror: MirrorOp) -> MirroredGemm | None:
    """Return one operation for a product and the mirror that follows the product.

    Return None if `op` is a batch of several products, or if the mirror does not copy the product's lower triangle to
    its upper triangle in place.
    """
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
