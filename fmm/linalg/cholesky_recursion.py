"""The recursion of Cholesky factors, by halves of the matrix.

One step factors the first half of the rows and columns, and solves a triangular system for the panel below this half.
Then the step subtracts the panel times its adjoint from the second half, and factors the second half. The library's own
function factors the blocks on the diagonal. On a GPU, blocks on the diagonals of the Cholesky factors are inverted
once. The panel below a factor is computed by products with the inverses of the factor's diagonal blocks. With torch,
all kernels are launched before the host waits for the GPU.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm import api
from fmm.linalg.arguments import is_square
from fmm.linalg.diagonal_inverses import MAX_SKEEL_CONDITION, block_skeel_conditions, write_inverses
from fmm.linalg.halving_rules import (
    CHOLESKY_RULE,
    INVERTED_RULE,
    POSITIVE_RULE,
    block_side_after_halvings,
    diagonal_block_rows,
    diagonal_block_side,
    first_half_rows_rounded,
    solver_halving_count,
)
from fmm.linalg.products import aligned_copy, has_aligned_rows
from fmm.linalg.solver_library import InvertedBlock, NumpySolvers
from fmm.linalg.triangular_recursion import TriangularBlocks, inverts_diagonal_blocks, solve_blocks


def cholesky_block_side(library: NumpySolvers, a: Any, limit: float | None) -> int:
    """Return the number of rows of the blocks on the diagonal.

    Return 0 if the library's own function must factor the whole matrix, or must reject it.
    """
    if not is_square(a):
        return 0
    if inverts_diagonal_blocks(library, a):
        return diagonal_block_side(library, a, a.shape[-1], limit, POSITIVE_RULE)
    levels = solver_halving_count(library, a, None, limit, CHOLESKY_RULE)
    return block_side_after_halvings(a.shape[-1], levels) if levels else 0


def inverted_block_side(library: NumpySolvers, a: Any, side: int) -> int:
    """Return the number of rows of the inverted blocks if the library factors blocks of `side` rows."""
    return min(side, diagonal_block_rows(library, a, INVERTED_RULE)) if inverts_diagonal_blocks(library, a) else side


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def cholesky_of_stacks(library: NumpySolvers, a: Any, limit: float | None, column_major: bool = False) -> Any:
    """Return the lower factors of a stack in a new array; raise `linalg_error` if a matrix has no factor.

    If an inverse of a block is not accurate, the library's own function factors the whole stack.
    """
    side, module = cholesky_block_side(library, a, limit) or a.shape[-1], library.module
    factor = library.transpose(module.triu(library.transpose(a))) if column_major else module.tril(a)
    work = factor if has_aligned_rows(library, factor) or side >= a.shape[-1] else aligned_copy(library, factor)
    factorizations = [CholeskyFactorization(library, work[i], side, limit) for i in np.ndindex(*a.shape[:-2])]
    for factorization in factorizations:
        factorization.factor_diagonal_block(0, a.shape[-1])
    if any(factorization.has_block_without_factor() for factorization in factorizations):
        raise library.linalg_error("a block is not positive definite")
    if all(factorization.are_inverses_accurate() for factorization in factorizations):
        return factor if work is factor else library.overwrite(factor, work)
    return library.overwrite(factor, library.cholesky(a))


class CholeskyFactorization:
    """The state of one factorization: the matrix, and on a GPU the inverses of blocks on its diagonal.

    The library factors blocks of `side` rows. On the diagonal of each factor, blocks of `small` rows are inverted. For
    each factored block, `failures` has a number in device memory, which is not 0 if the block has no Cholesky factor.
    """

    def __init__(self, library: NumpySolvers, a: Any, side: int, limit: float | None) -> None:
        self.library, self.a, self.side, self.limit = library, a, side, limit
        self.small = small = inverted_block_side(library, a, side)
        is_inverted = side < a.shape[0] and inverts_diagonal_blocks(library, a)
        self.inverses: Any = library.zeros((a.shape[0] // small, small, small), a) if is_inverted else None
        self.failures: list[Any] = []

    def factor_diagonal_block(self, first: int, last: int) -> None:
        """Replace the lower triangle of a square block by its Cholesky factor: rows and columns first to last - 1."""
        if last - first <= self.side:
            self._factor_block(first, last)
            return
        middle = first + first_half_rows_rounded(last - first, self.side)
        left, rest = slice(first, middle), slice(middle, last)
        self.factor_diagonal_block(first, middle)
        self._solve_panel(left, rest)
        panel, trailing = self.a[rest, left], self.a[rest, rest]
        api.gram(panel, out=trailing, rows=True, fill="lower", alpha=-1, beta=1, max_error_growth=self.limit)
        self.factor_diagonal_block(middle, last)

    def _factor_block(self, first: int, last: int) -> None:
        """Factor a block on the diagonal; if rows follow below, also invert blocks on the factor's diagonal."""
        library, block, small = self.library, self.a[first:last, first:last], self.small
        factor, failure = library.cholesky_block(block)
        library.overwrite(block, factor)
        if failure is not None:
            self.failures.append(failure)
        if self.inverses is not None and last < self.a.shape[0]:
            inverses = self.inverses[first // small : last // small]
            write_inverses(library, block, inverses, InvertedBlock(small, small, 0, True, False))

    def _solve_panel(self, left: slice, rest: slice) -> None:
        """Replace the panel P below the factor L by the solution X of X L^H = P, computed as conj(L) X^T = P^T."""
        library, inverses, small = self.library, self.inverses, self.small
        if inverses is not None:
            inverses = library.conjugate(inverses[left.start // small : left.stop // small])
        blocks = TriangularBlocks(library, True, False, small, self.limit, inverses)
        solve_blocks(blocks, library.conjugate(self.a[left, left]), library.transpose(self.a[rest, left]))

    def has_block_without_factor(self) -> bool:
        """Return True if a block has no factor."""
        return bool(self.failures) and bool((self.library.module.stack(self.failures) != 0).any())

    def are_inverses_accurate(self) -> bool:
        """Return True if all inverses that were used as factors of products are accurate."""
        if self.inverses is None:
            return True
        return bool(
            (block_skeel_conditions(self.library, self.a, self.inverses, True, False) <= MAX_SKEEL_CONDITION).all()
        )
