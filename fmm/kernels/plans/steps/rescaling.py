"""Steps that scale by powers of two: finding the exponents of rows or columns, and copying a matrix scaled by them.

To whoever proves or bounds a plan they are sums of one term, copies: nothing is rounded. An exponent is kept as a
number of the matrix's own type, in a temporary of one row.
"""

from __future__ import annotations

from dataclasses import dataclass

from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.plans.steps.sums import Place, Sum

Signed = tuple[Place | None, int]  # a vector of exponents, if there is one, and the sign with which they are taken


@dataclass(frozen=True)
class LineExponents(Sum):
    """The exponent e of the largest number x of each row (axis 0) or column (axis 1): 2^(e-1) <= |x| < 2^e.

    It is 0 for lines of zeros, and for those with an inf or NaN. If `sign` is not 0, the numbers along a line are first
    scaled by exponents, the second read, with this sign. With `against`, half the difference (rounded down) between
    these exponents and others, the last read, is kept.
    """

    axis: int = 0
    sign: int = 0
    against: bool = False

    @property
    def source(self) -> Place:
        return self.reads[0]


@dataclass(frozen=True)
class Rescaled(Sum):
    """A copy whose rows are scaled by the exponents of one vector, and whose columns by those of another."""

    row_sign: int = 0  # with which the exponents are taken; 0: rows are not scaled
    col_sign: int = 0


def find_exponents(
    label: str, source: Place, axis: int, dest: Place, shifts: Place | None = None, sign: int = 0,
    against: Place | None = None,
) -> LineExponents:  # fmt: skip
    more = [place for place in (shifts, against) if place is not None]
    reads = (source, *more)
    options = axis, sign if shifts else 0, against is not None
    return LineExponents(f"exponents of {label}", _copy_of_first(len(reads)), reads, (dest,), *options)


def rescale(label: str, source: Place, dest: Place, rows: Signed, cols: Signed) -> Rescaled:
    given = [(place, sign) for place, sign in (rows, cols) if place is not None]
    reads = (source, *(place for place, _ in given))
    signs = (sign if place is not None else 0 for place, sign in (rows, cols))
    return Rescaled(label, _copy_of_first(len(reads)), reads, (dest,), *signs)


def _copy_of_first(reads: int) -> AdditionProgram:
    return AdditionProgram(reads, (), (0,))
