"""A product in BLAS's own terms: column by column, so that a row-major C = A B is C^T = B^T A^T."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.ops import GemmOperand, RankOp, View, constant_distance, is_column_major, transposed_view
from fmm.kernels.plans.leaf import LeafUse, leaf_use

HalfExtent = Literal["loose", "lower", "full"]
Side = Literal["left", "right"]


@dataclass(frozen=True)
class WantedHalf:
    """What a product must write of a result that is its own adjoint and lies row by row.

    `loose`: the lower half, and the other half may get anything; `lower`: the lower half, and the other half stays as
    it is; `full`: the lower half and its mirror.
    """

    extent: HalfExtent
    gram: bool = False  # is the right operand the left one's transpose?


@dataclass(frozen=True)
class ReadyOperands:
    """Operands of which that stands ready which the leaf makes of them before it multiplies: planes, say."""

    prepared_matrix: Literal["A", "B"] | None = None  # the matrix behind which it was kept by an earlier call
    written_by_sums: frozenset[Side] = frozenset()  # operands of the kernel's for which the sums before have written it


NOTHING_READY = ReadyOperands()


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
    half: WantedHalf | None = None  # None: the whole result is wanted
    checked: bool = False  # must every entry be right beside its own size, or else the flag be raised?
    ready: ReadyOperands = NOTHING_READY
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
    def extent(self) -> HalfExtent | None:
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
        return replace(self, leaf="vendor", half=None, checked=False, ready=NOTHING_READY)

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
