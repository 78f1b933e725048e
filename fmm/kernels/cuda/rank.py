"""One half of X X^H in BLAS's own terms: column by column, its function syrk, of complex numbers herk."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.kernels.cuda.ops import GemmOperand, View, is_column_major, transposed_view


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
