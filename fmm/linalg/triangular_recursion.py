"""The recursion of triangular systems: half of the solution, a product, the other half."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from fmm import api
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.split_levels import TRIANGULAR_RULE, first_half, split_levels

# A GPU's own solver is slow with many right sides. With at least INVERTED_BLOCK_COLUMNS times as many right sides as
# rows, a diagonal block is inverted, and the solution is a product. The error of the product grows with the condition
# number of the block, so a block whose condition number exceeds MAX_BLOCK_CONDITION is left to the library's solver.
INVERTED_BLOCK_COLUMNS = 4
MAX_BLOCK_CONDITION = 1000.0


class TriangularForm(NamedTuple):
    """The form of a triangular system: a x = b (left) or x a = b."""

    lower: bool
    unit_diagonal: bool
    left: bool


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def solve_without_gradient(library: NumpySolvers, a: Any, b: Any, form: TriangularForm, limit: float | None) -> Any:
    """Return the solutions for stacks of matrices in a new array."""
    batch = np.broadcast_shapes(tuple(a.shape[:-2]), tuple(b.shape[:-2]))
    x = library.write(library.empty((*batch, *b.shape[-2:]), b), b)
    levels = triangular_levels(library, a, x.shape[-1 if form.left else -2], limit)
    a, stack, lower = library.module.broadcast_to(a, (*batch, *a.shape[-2:])), x, form.lower
    if not form.left:  # x a = b is a^T x^T = b^T
        a, stack, lower = library.transpose(a), library.transpose(x), not lower
    for i in np.ndindex(*batch):
        if not form.unit_diagonal:
            library.check_singular(a[i].diagonal())
        solve_in_place(library, a[i], stack[i], (lower, form.unit_diagonal), levels, limit)
    return x


def triangular_levels(library: NumpySolvers, a: Any, columns: int, limit: float | None) -> int:
    """Return how often to halve triangular matrices with this number of right sides."""
    return split_levels(a.shape[-1], columns, library.product_type(a), library.device(a), limit, TRIANGULAR_RULE)


def solve_in_place(
    library: NumpySolvers, a: Any, x: Any, lower_and_unit: tuple[bool, bool], levels: int, limit: float | None
) -> None:
    """Replace x by the solution of a y = x: half of y, the product of a block with that half, the other half."""
    n = a.shape[0]
    if levels == 0 or n < 2:
        solve_diagonal_block(library, a, x, lower_and_unit, limit)
        return
    h = first_half(n)
    first, second = slice(0, h), slice(h, n)
    if not lower_and_unit[0]:
        first, second = second, first
    solve_in_place(library, a[first, first], x[first], lower_and_unit, levels - 1, limit)
    api.gemm(a[second, first], x[first], x[second], alpha=-1, beta=1, out=x[second], max_error_growth=limit)
    solve_in_place(library, a[second, second], x[second], lower_and_unit, levels - 1, limit)


def solve_diagonal_block(
    library: NumpySolvers, a: Any, x: Any, lower_and_unit: tuple[bool, bool], limit: float | None
) -> None:
    """Replace x by the solution of a y = x for one block, on a GPU as a product with the block's inverse."""
    n, columns = x.shape
    if library.device(x) != "cpu" and columns >= INVERTED_BLOCK_COLUMNS * n > 0:
        inverse = library.identity(n, a)
        library.solve_block(a, inverse, *lower_and_unit)
        if library.condition_number(a, inverse, *lower_and_unit) <= MAX_BLOCK_CONDITION:
            library.write(x, api.matmul(inverse, x, max_error_growth=limit))
            return
    library.solve_block(a, x, *lower_and_unit)
