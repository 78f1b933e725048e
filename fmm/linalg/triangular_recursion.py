"""The recursion of triangular systems: solve for one half of the solution, multiply, solve for the second half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fmm.linalg.diagonal_inverses import MAX_SKEEL_CONDITION, block_skeel_conditions, invert_diagonal_blocks
from fmm.linalg.halving_rules import (
    INVERTED_RULE,
    TRIANGULAR_RULE,
    block_side_after_halvings,
    diagonal_block_side,
    first_half_rows_rounded,
    solver_halving_count,
)
from fmm.linalg.products import aligned_copy, has_aligned_rows, multiply_in_place, subtract_product
from fmm.linalg.solver_library import NumpySolvers


class TriangularForm(NamedTuple):
    """The form of a triangular system: a x = b (left) or x a = b."""

    lower: bool
    unit_diagonal: bool
    left: bool


class TriangularBlocks(NamedTuple):
    """The blocks of a triangular matrix, and the inverses of the blocks on its diagonal."""

    library: NumpySolvers
    lower: bool
    unit_diagonal: bool
    side: int  # rows of a block on the diagonal
    limit: float | None  # largest error growth of the products
    inverses: Any = None  # stacked inverses of the blocks; None if the library's own function solves all blocks
    # For each block on the diagonal, True if its inverse is accurate; None if all inverses are accurate.
    is_usable: Sequence[bool] | None = None


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def solve_triangular_without_gradient(
    library: NumpySolvers, a: Any, b: Any, form: TriangularForm, limit: float | None
) -> Any:
    """Return the solutions of triangular systems for stacks of matrices, in a new array."""
    batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    side = triangular_block_side(library, a, b.shape[-1 if form.left else -2], limit)
    result, b = library.empty((*batch, *b.shape[-2:]), b), library.module.broadcast_to(b, (*batch, *b.shape[-2:]))
    by_products = side > 0 and inverts_diagonal_blocks(library, a)
    a = aligned_copy(library, a) if by_products and not has_aligned_rows(library, a) else a
    is_copied = by_products and not has_aligned_rows(library, result)
    x = aligned_copy(library, b) if is_copied else library.overwrite(result, b)
    a, stack, lower = library.module.broadcast_to(a, (*batch, *a.shape[-2:])), x, form.lower
    if not form.left:  # x a = b is a^T x^T = b^T
        a, stack, lower = library.transpose(a), library.transpose(x), not lower
    for i in np.ndindex(*batch):
        if not form.unit_diagonal:
            library.check_singular(a[i].diagonal())
        solve_in_place(library, a[i], stack[i], (lower, form.unit_diagonal), side, limit)
    return library.overwrite(result, x) if is_copied else x


def triangular_block_side(library: NumpySolvers, a: Any, columns: int, limit: float | None) -> int:
    """Return the number of rows of the blocks on the diagonal.

    Return 0 if the library's own function must solve the whole system.
    """
    if inverts_diagonal_blocks(library, a):
        return diagonal_block_side(library, a, columns, limit, INVERTED_RULE)
    levels = solver_halving_count(library, a, columns, limit, TRIANGULAR_RULE)
    return block_side_after_halvings(a.shape[-1], levels) if levels else 0


def triangular_halving_count(library: NumpySolvers, a: Any, columns: int, limit: float | None) -> int:
    """Return how many times the solver halves triangular matrices with `columns` right-hand sides."""
    side = triangular_block_side(library, a, columns, limit)
    return (-(-a.shape[-1] // side) - 1).bit_length() if side else 0


def solve_in_place(
    library: NumpySolvers, a: Any, x: Any, lower_and_unit: tuple[bool, bool], side: int, limit: float | None
) -> None:
    """Replace x by the solution y of a y = x.

    Blocks on the diagonal have `side` rows; 0 means that the whole matrix is one block.
    """
    solve_blocks(triangular_blocks(library, a, *lower_and_unit, side, limit), a, x)


def triangular_blocks(
    library: NumpySolvers, a: Any, lower: bool, unit_diagonal: bool, side: int, limit: float | None
) -> TriangularBlocks:
    """Return the blocks of a triangular matrix; on a GPU, invert the blocks and check the inverses."""
    if not side or not inverts_diagonal_blocks(library, a):
        return TriangularBlocks(library, lower, unit_diagonal, side or a.shape[0], limit)
    inverses = invert_diagonal_blocks(library, a, lower, unit_diagonal, side)
    growth = block_skeel_conditions(library, a, inverses, lower, unit_diagonal)
    is_usable = (growth <= MAX_SKEEL_CONDITION).tolist()
    return TriangularBlocks(library, lower, unit_diagonal, side, limit, inverses, is_usable)


def inverts_diagonal_blocks(library: NumpySolvers, a: Any) -> bool:
    """Return True if the blocks on the diagonal are inverted, which solvers do on a GPU only."""
    return library.device(a) != "cpu"


def solve_blocks(blocks: TriangularBlocks, a: Any, x: Any, index: int = 0) -> None:
    """Replace x by the solution y of a y = x: solve for half of y, subtract a product, solve for the second half.

    If `a` is a part of a larger triangular matrix, `index` is the number of diagonal blocks above `a`.
    """
    n, side = a.shape[0], blocks.side
    if n <= side:
        _solve_diagonal_block(blocks, a, x, index)
        return
    h = first_half_rows_rounded(n, side)
    parts = (slice(0, h), index), (slice(h, n), index + h // side)
    (first, first_index), (second, second_index) = parts if blocks.lower else parts[::-1]
    solve_blocks(blocks, a[first, first], x[first], first_index)
    subtract_product(blocks.library, a[second, first], x[first], x[second], blocks.limit)
    solve_blocks(blocks, a[second, second], x[second], second_index)


def _solve_diagonal_block(blocks: TriangularBlocks, a: Any, x: Any, index: int) -> None:
    """Replace x by the solution y of a y = x for one block on the diagonal.

    If the inverse of the block is accurate, x is multiplied by the inverse; else the library solves the system.
    """
    library, stacked = blocks.library, blocks.inverses
    is_inverted = stacked is not None and index < len(stacked) and a.shape[0] == blocks.side
    if is_inverted and (blocks.is_usable is None or blocks.is_usable[index]):
        multiply_in_place(library, stacked[index], x, blocks.limit)
    else:
        library.solve_block(a, x, blocks.lower, blocks.unit_diagonal)
