"""A product in BLAS's own terms: column by column, so that a row-major C = A B is C^T = B^T A^T."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.rank import RankOp
from fmm.kernels.cuda.views import Factor, View, columns_contiguous, constant_distance, transposed_view
from fmm.kernels.plans.leaf import LeafUse, leaf_use


@dataclass(frozen=True)
class GemmOp:
    """`count` products dest = alpha left right + beta dest, in BLAS's column-major terms."""

    leaf: str
    dtype: str  # that is multiplied
    m: int
    n: int
    k: int
    left: Factor
    right: Factor
    dest: Factor
    count: int = 1
    alpha: complex = 1
    beta: complex = 0
    scratch: int = 0  # where in the workspace a leaf of cuBLASLt has its own
    # How much is wanted of a dest that is its own adjoint and lies row by row: its lower half, the other one may get
    # anything (`loose`) or must stay as it is (`lower`); or the lower half and its mirror (`full`).
    half: Literal["", "loose", "lower", "full"] = ""
    gram: bool = False  # is the right operand the left one's transpose?
    checked: bool = False  # is every entry to be right beside its own size, or the flag to be raised?
    kept: str = ""  # the base, A or B, behind whose matrix stands what the leaf makes of it
    by_sums: str = ""  # operands, L and R, whose planes the sums before it have written
    dest_dtype: str = ""  # of dest, where it is not that of the operands
    added: View | None = None  # to beta times which the product is added, if not to what dest holds; it lies as dest

    @property
    def pieces(self) -> tuple[Factor, Factor, Factor]:
        """Everything that it is given."""
        return self.left, self.right, self.dest

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"

    @property
    def dest_view(self) -> View:
        """The result of the first product, column by column."""
        x, stored = self.dest, DTYPES[self.dest_dtype or self.dtype].stored
        return View(x.base, x.offset, self.m, self.n, 1, x.leading, stored)

    @property
    def one_by_one(self) -> tuple[GemmOp, ...]:
        """The products of a batch, each by itself."""
        item = DTYPES[self.dtype].itemsize

        def of(x: Factor, i: int) -> Factor:
            return x._replace(offset=x.offset + i * x.stride * item, stride=0)

        parts = [tuple(of(x, i) for x in self.pieces) for i in range(self.count)]
        return tuple(replace(self, left=x, right=y, dest=z, count=1) for x, y, z in parts)

    @property
    def use(self) -> LeafUse:
        return leaf_use(self.leaf)

    @property
    def by_vendor(self) -> GemmOp:
        """The same product by the vendor's usual call."""
        return replace(self, leaf="vendor", half="", gram=False, checked=False, kept="", by_sums="")

    @property
    def by_rank_update(self) -> RankOp:
        """One half of a matrix's product with its own transpose by the vendor's function for that."""
        x = self.right if self.left.transposed else self.left
        factor, real = x._replace(transposed=self.left.transposed, stride=0), (complex(self.alpha), complex(self.beta))
        assert self.gram and self.count == 1
        return RankOp("vendor", self.dtype, self.n, self.k, factor, self.dest, True, *(number.real for number in real))


def gemm_op(
    leaf: str,
    products: Sequence[tuple[View, View, View]],
    dtype: str,
    alpha: complex = 1,
    beta: complex = 0,
    scratch: int = 0,
    added: View | None = None,
) -> GemmOp:
    """Products of one size and this type, at constant distances: a batch."""
    lefts, rights, dests = zip(*products, strict=True)
    m, n, k = lefts[0].rows, rights[0].cols, lefts[0].cols
    if not columns_contiguous(dests[0]):
        lefts, rights, dests = (tuple(transposed_view(v) for v in views) for views in (rights, lefts, dests))
        m, n, added = n, m, added and transposed_view(added)
    left, right, dest = (_batch_factor(views) for views in (lefts, rights, dests))
    return GemmOp(leaf, dtype, m, n, k, left, right, dest, len(products), alpha, beta, scratch, added=added)


def _batch_factor(views: Sequence[View]) -> Factor:
    x, distance = views[0], constant_distance(views)
    assert distance is not None and 1 in x.strides
    columns = columns_contiguous(x)
    return Factor(x.base, x.offset, max(x.right if columns else x.down, 1), not columns, distance)
