"""LU factors with partial pivoting, in place, by recursion over the columns.

One step factors the left columns of the matrix, and exchanges rows of the right columns by the pivots of the left
columns. Then the step replaces the upper block of the right columns by the solution of a triangular system, and
subtracts a product from the lower block of the right columns. Last, the step factors the lower block of the right
columns, and exchanges rows of the left columns by the new pivots. The recursion ends at panels of `width` columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm.linalg.diagonal_inverses import MAX_SKEEL_CONDITION, block_skeel_conditions, write_inverses
from fmm.linalg.halving_rules import (
    HOST_LU_RULE,
    LU_SIDES,
    SmallestProductSides,
    is_large_enough_for_products,
    lu_split_column,
    solver_halving_count,
)
from fmm.linalg.products import ROW_ALIGNMENT, aligned_copy, multiply_in_place, subtract_product
from fmm.linalg.solver_library import InvertedBlock, LuFactors, NumpySolvers
from fmm.linalg.triangular_recursion import TriangularBlocks, inverts_diagonal_blocks, solve_blocks


def lu_panel_width(
    library: NumpySolvers, a: Any, limit: float | None, smallest: SmallestProductSides = LU_SIDES
) -> int:
    """Return the number of columns of a panel; 0 if the library's own function must factor the whole matrix."""
    if library.device(a) == "cpu":
        return library.panel_width(a) if solver_halving_count(library, a, None, limit, HOST_LU_RULE) else 0
    return library.panel_width(a) if is_large_enough_for_products(library, a, smallest) else 0


def factor_matrix(library: NumpySolvers, a: Any, width: int, limit: float | None, lu: Any = None) -> LuFactors | None:
    """Return the LU factors of a square matrix, written to `lu` or a new array.

    Return None if the matrix is singular or has inf or NaN, or if the inverse of a block is not accurate.
    """
    n = a.shape[0]
    work = aligned_copy(library, a) if lu is None or n % ROW_ALIGNMENT else library.overwrite(lu, a)
    factorization = _BlockedFactorization(library, work, width, limit)
    factorization.factor_columns(0, n)
    if not factorization.is_factorization_usable():
        return None
    return LuFactors(
        library.overwrite(lu, work) if lu is not None and n % ROW_ALIGNMENT else work, factorization.pivots
    )


class _BlockedFactorization:
    """The state of one factorization: the matrix, its pivots, and the inverses of the diagonal blocks of L.

    Diagonal blocks of L are as wide as two panels. The inverse of a diagonal block is computed from the inverses of two
    smaller blocks, each as wide as one panel.
    """

    def __init__(self, library: NumpySolvers, a: Any, width: int, limit: float | None) -> None:
        n = a.shape[0]
        self.library, self.a, self.width, self.side, self.limit = library, a, width, 2 * width, limit
        self.pivots = library.empty_pivots(n, a)
        inverts = inverts_diagonal_blocks(library, a)
        self.inverses: Any = library.zeros((-(-n // self.side), self.side, self.side), a) if inverts else None
        self.lower = TriangularBlocks(library, True, True, self.side, limit, self.inverses)

    def factor_columns(self, first: int, last: int) -> None:
        """Factor the columns first to last - 1, from row `first` on; the caller exchanges the rows of other columns."""
        if last - first <= self.width:
            self._factor_panel(first, last)
            return
        middle = lu_split_column(first, last, self.width)
        left, right, below = slice(first, middle), slice(middle, last), slice(middle, None)
        self.factor_columns(first, middle)
        self._exchange_rows(left, right)
        upper = self.a[left, right]
        self._solve_lower(first, middle, upper)
        subtract_product(self.library, self.a[below, left], upper, self.a[below, right], self.limit)
        self.factor_columns(middle, last)
        self._exchange_rows(right, left)
        if last - first == self.side < self.a.shape[0] - first:
            self._invert_block(first, self.side, self.width)

    def _factor_panel(self, first: int, last: int) -> None:
        """Factor a panel; unless it is the last panel, also invert the panel's diagonal block of L."""
        pivots = self.pivots[first:last]
        self.library.factor_panel(self.a[first:, first:last], pivots)
        pivots += first
        if last < self.a.shape[0]:
            self._invert_block(first, self.width, 0)

    def _invert_block(self, first: int, side: int, known_side: int) -> None:
        """Write the inverse of the block of L at row `first`.

        The inverses of all blocks of `known_side` rows exist already; if `known_side` is 0, no inverse exists.
        """
        if self.inverses is not None:
            rows, block = slice(first, first + side), InvertedBlock(self.side, side, known_side, True, True)
            write_inverses(self.library, self.a[rows, rows], self._block_inverse_view(first, side), block)

    def _block_inverse_view(self, first: int, side: int) -> Any:
        """Return the view in the stacked inverses for the block of `side` rows that begins at row `first`."""
        start = first % self.side
        rows = slice(start, start + side)
        return self.inverses[first // self.side][rows, rows]

    def _exchange_rows(self, pivots: slice, columns: slice) -> None:
        """Exchange the rows of the columns in the range `columns`, by the pivots in the range `pivots`."""
        self.library.exchange_rows(self.a[pivots.start :, columns], self.pivots[pivots], pivots.start)

    def _solve_lower(self, first: int, middle: int, x: Any) -> None:
        """Replace x by the solution y of L y = x, where L is the block of rows and columns first to middle - 1."""
        if self.inverses is not None and middle - first == self.width:
            multiply_in_place(self.library, self._block_inverse_view(first, self.width), x, self.limit)
        else:
            solve_blocks(self.lower, self.a[first:middle, first:middle], x, first // self.side)

    def is_factorization_usable(self) -> bool:
        """Return True if no pivot is zero, inf or NaN, and all inverses used in products are accurate."""
        library, diagonal = self.library, abs(self.a.diagonal())
        result = ((diagonal > 0) & (diagonal < np.inf)).all()
        if self.inverses is not None:
            whole, rest = divmod(len(self.a), self.side)
            checked = [(self.a, self.inverses[:whole])]
            if rest > self.width:  # `_solve_lower` multiplies by the inverse of the first panel's block
                first = whole * self.side
                checked.append((self.a[first:, first:], self.inverses[whole:, : self.width, : self.width]))
            for a, inverses in checked:
                growth = block_skeel_conditions(library, a, inverses, True, True)
                result = result & (growth <= MAX_SKEEL_CONDITION).all()
        return bool(result)
