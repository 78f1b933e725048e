"""Rectangles of memory: where operands, temporaries and their blocks lie, as a base and an offset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.plans.leaf import LeafUse, leaf_use
from fmm.kernels.plans.sums import ADDEND, Place
from fmm.problem import Problem


class View(NamedTuple):
    """A rectangle of memory; strides in elements of its own type, the offset from the base in bytes."""

    base: str
    offset: int
    rows: int
    cols: int
    down: int  # from one row to the next
    right: int  # from one column to the next
    dtype: str  # as it is stored
    unit: int = 1  # from one number to the next where they are contiguous: 2 for the parts of complex numbers

    @property
    def itemsize(self) -> int:
        return DTYPES[self.dtype].itemsize

    def block(self, place: Place) -> View:
        """The rectangle of this matrix or of its transpose, or the real or imaginary parts of the numbers in it."""
        if place.part == "transpose":
            return transposed_view(self.block(place.upright))
        offset = self.offset + (place.row * self.down + place.col * self.right) * self.itemsize
        rectangle = self._replace(offset=offset, rows=place.rows, cols=place.cols)
        if not place.part:
            return rectangle
        real = DTYPES[self.dtype].real
        shift = DTYPES[real].itemsize if place.part == "im" else 0
        return rectangle._replace(offset=offset + shift, down=2 * self.down, right=2 * self.right, dtype=real, unit=2)

    @property
    def strides(self) -> tuple[int, int]:
        return self.down, self.right

    @property
    def shape(self) -> tuple[int, int]:
        return self.rows, self.cols


class BlockTerm(NamedTuple):
    """A block of A, B or C in a tiled product."""

    base: str
    offset: int  # bytes
    rows: int
    cols: int
    factor: float = 1  # of a block in a sum, whose first has 1; in a destination, of the product
    keep: float = 0  # what a destination keeps of its old value: with 0 that is never read


class BlockStrides(NamedTuple):
    """How an operand's blocks lie, in elements."""

    leading: int  # from one line to the next
    layer: int = 0  # from one product of a batch to the next


class GemmOperand(NamedTuple):
    """One operand of a GEMM as BLAS sees it, column by column."""

    base: str
    offset: int  # bytes
    leading: int  # elements from one column to the next
    transposed: bool
    stride: int  # elements from one matrix of a batch to the next


def constant_distance(views: Sequence[View]) -> int | None:
    """The distance in elements from each of these views to the next; None if it varies, or if they are not alike."""
    base, _, *shape = views[0]
    if any(v[0] != base or [*v[2:]] != shape for v in views):  # (the offset is the second field)
        return None
    steps = {y.offset - x.offset for x, y in pairwise(views)} or {0}
    return steps.pop() // views[0].itemsize if len(steps) == 1 else None


def is_column_major(x: View) -> bool:
    """Are its columns contiguous?"""
    return x.down == x.unit and (x.right != x.unit or x.rows == 1)


def transposed_view(x: View) -> View:
    return x._replace(rows=x.cols, cols=x.rows, down=x.right, right=x.down)


def addend_view(problem: Problem) -> View | None:
    """The matrix that beta multiplies, if that is not C; else None."""
    if problem.added is None:
        return None
    return View(ADDEND, 0, problem.m, problem.n, *problem.added, problem.stored)


def has_matching_layout(added: View, dest: View) -> bool:
    """Are its numbers neighbours in memory where dest's are? (Its lines may all be the same one.)"""
    count, step = (dest.rows, added.down) if is_column_major(dest) else (dest.cols, added.right)
    return count == 1 or step == 1


def operand_views(problem: Problem) -> dict[str, View]:
    """A, B and C of a problem, each whole."""
    return {
        name: View(name, 0, *shape, *layout.strides, problem.stored)
        for name, shape, layout in zip("ABC", problem.shapes, problem.layouts, strict=True)
    }


TriangleExtent = Literal["loose", "lower", "full"]
OperandSide = Literal["left", "right"]


@dataclass(frozen=True)
class TriangleOutput:
    """What a product must write of a result that is its own adjoint and lies row by row.

    `loose`: the lower half, and the other half may get anything; `lower`: the lower half, and the other half stays as
    it is; `full`: the lower half and its mirror.
    """

    extent: TriangleExtent
    gram: bool = False  # is the right operand the left one's transpose?


@dataclass(frozen=True)
class PreparedOperands:
    """Operands of which that stands ready which the leaf makes of them before it multiplies: planes, say."""

    prepared_matrix: Literal["A", "B"] | None = None  # the matrix behind which it was kept by an earlier call
    written_by_sums: frozenset[OperandSide] = (
        frozenset()
    )  # operands of the kernel's for which the sums before have written it


NONE_PREPARED = PreparedOperands()


@dataclass(frozen=True)
class GemmOp:
    """`count` products dest = alpha left right + beta dest, in BLAS's column-major terms."""

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
    scratch: int = 0  # where the leaf's scratch begins in the workspace
    half: TriangleOutput | None = None  # None: the whole result is wanted
    checked: bool = False  # must every entry be right beside its own size, or else the flag be raised?
    ready: PreparedOperands = NONE_PREPARED
    dest_dtype: str | None = None  # the type of dest, if it is not that of the operands
    added: View | None = None  # the matrix to beta times which the product is added, if it is not dest; it lies as dest

    @property
    def pieces(self) -> tuple[GemmOperand, GemmOperand, GemmOperand]:
        """The operands and the result: every matrix that it is given."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        """Does it write C, and not a temporary?"""
        return self.dest.base == "C"

    @property
    def dest_view(self) -> View:
        """The result of the first product, column by column."""
        x, stored = self.dest, DTYPES[self.dest_dtype or self.dtype].stored
        return View(x.base, x.offset, self.m, self.n, 1, x.leading, stored)

    @property
    def extent(self) -> TriangleExtent | None:
        """How much is wanted of a result that is its own adjoint; None if the whole product is computed."""
        return self.half.extent if self.half else None

    @property
    def one_by_one(self) -> tuple[GemmOp, ...]:
        """The products of a batch, each by itself."""
        itemsize = DTYPES[self.dtype].itemsize

        def factor_of(x: GemmOperand, i: int) -> GemmOperand:
            return x._replace(offset=x.offset + i * x.stride * itemsize, stride=0)

        factors = [tuple(factor_of(x, i) for x in self.pieces) for i in range(self.count)]
        return tuple(replace(self, left=x, right=y, dest=z, count=1) for x, y, z in factors)

    @property
    def use(self) -> LeafUse:
        """The registered leaf that multiplies."""
        return leaf_use(self.leaf)

    @property
    def as_vendor_gemm(self) -> GemmOp:
        """The same product by the vendor's usual call, which computes all of it from the operands themselves."""
        return replace(self, leaf="vendor", half=None, checked=False, ready=NONE_PREPARED)

    @property
    def as_rank_update(self) -> RankOp:
        """The wanted half of a matrix's product with its own transpose, by the vendor's function for that."""
        assert self.half is not None and self.half.gram and self.count == 1
        x = self.right if self.left.transposed else self.left
        factor = x._replace(transposed=self.left.transposed, stride=0)
        alpha, beta = complex(self.alpha).real, complex(self.beta).real
        return RankOp("vendor", self.dtype, self.n, self.k, factor, self.dest, True, alpha, beta)


def gemm_op(
    leaf: str,
    products: Sequence[tuple[View, View, View]],
    dtype: str,
    alpha: complex = 1,
    beta: complex = 0,
    scratch: int = 0,
    added: View | None = None,
) -> GemmOp:
    """The operation of products (left, right, dest) of one size, at constant distances from each other: a batch."""
    lefts, rights, dests = zip(*products, strict=True)
    m, n, k = lefts[0].rows, rights[0].cols, lefts[0].cols
    if not is_column_major(dests[0]):
        lefts, rights, dests = (tuple(transposed_view(v) for v in views) for views in (rights, lefts, dests))
        m, n, added = n, m, added and transposed_view(added)
    left, right, dest = (_batch_factor(views) for views in (lefts, rights, dests))
    return GemmOp(leaf, dtype, m, n, k, left, right, dest, len(products), alpha, beta, scratch, added=added)


def _batch_factor(views: Sequence[View]) -> GemmOperand:
    """The same operand of all products of a batch."""
    x, distance = views[0], constant_distance(views)
    assert distance is not None and 1 in x.strides
    columns = is_column_major(x)
    return GemmOperand(x.base, x.offset, max(x.right if columns else x.down, 1), not columns, distance)


@dataclass(frozen=True)
class RankOp:
    """One half of dest = alpha X X^H + beta dest (or of X^H X, where `factor` is transposed), in column-major terms."""

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
        """Every matrix that it is given."""
        return self.factor, self.dest

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"


def rank_op(leaf: str, dtype: str, left: View, right: View, dest: View, alpha: float, beta: float) -> RankOp | None:
    """The lower half of dest = alpha left right + beta dest, where right is left's adjoint.

    None if neither of the two lies so that BLAS can read it. If dest lies row by row, BLAS sees its transpose, and is
    asked for the upper half of that.
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
    target = GemmOperand(dest.base, dest.offset, max(dest.right, 1), False, 0)
    return RankOp(leaf, dtype, dest.rows, left.cols, factor, target, upper, alpha, beta)


MIRROR_TILE_BYTES = 128  # of a tile's row: a whole line of the second-level cache


@dataclass(frozen=True)
class MirrorOp:
    """The lower half of dest = alpha source + beta dest, and, if it is `full`, the upper one as its mirror."""

    source: View
    dest: View
    alpha: float = 1
    beta: float = 0
    full: bool = True

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"

    @property
    def in_place(self) -> bool:
        """Is the lower half there already?"""
        return self.source == self.dest and (self.alpha, self.beta) == (1, 0)

    @property
    def tile(self) -> int:
        return min(max(MIRROR_TILE_BYTES // self.dest.itemsize, 16), 64)

    @property
    def tiles(self) -> int:
        """How many tiles stand on and below the diagonal."""
        side = -(-self.dest.rows // self.tile)
        return side * (side + 1) // 2


@dataclass(frozen=True)
class MirroredOp:
    """A product that makes the lower half of a matrix that is its own adjoint, and the mirror that makes the rest."""

    product: GemmOp  # it leaves arbitrary numbers in the other half
    mirror: MirrorOp

    @property
    def writes_result(self) -> bool:
        """Does it write C, and not a temporary?"""
        return self.product.writes_result

    @property
    def whole(self) -> GemmOp:
        """The same by one kernel that writes both halves."""
        assert self.product.half is not None
        return replace(self.product, half=TriangleOutput("full", self.product.half.gram))


def mirrored_op(op: object, source: View, mirror: MirrorOp) -> MirroredOp | None:
    """An operation and the mirror in place that follows it, as one; None if it makes more or less than that half."""
    if not (isinstance(op, GemmOp) and op.extent == "loose" and op.count == 1 and mirror.in_place and mirror.full):
        return None
    here = (op.dest.base, op.dest.offset, op.dest.leading) == (source.base, source.offset, source.down)
    return MirroredOp(op, mirror) if here and op.m == op.n == source.rows else None
