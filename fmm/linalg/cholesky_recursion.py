"""The recursion of Cholesky factors: the first half, the panel below, the rest less the panel's product."""

from __future__ import annotations

from typing import Any

import numpy as np

from fmm import api
from fmm.linalg.arguments import is_square
from fmm.linalg.solver_library import NumpySolvers
from fmm.linalg.split_levels import CHOLESKY_RULE, first_half, solver_levels
from fmm.linalg.triangular_recursion import solve_in_place, triangular_side


def cholesky_levels(library: NumpySolvers, a: Any, limit: float | None) -> int:
    """Return how often to halve; 0 where the library's own function factors, or rejects, the whole array."""
    if not is_square(a):
        return 0
    return solver_levels(library, a, None, limit, CHOLESKY_RULE)


@np.errstate(all="ignore")  # SciPy and numpy.linalg do not warn of inf and NaN
def factor_stacks(library: NumpySolvers, a: Any, limit: float | None, column_major: bool = False) -> Any:
    """Return the lower factors of a stack in a new array; `linalg_error` where a matrix has none."""
    levels, factor = cholesky_levels(library, a, limit), library.empty(tuple(a.shape), a)
    factor = library.write(library.transpose(factor) if column_major else factor, library.module.tril(a))
    failures: list[Any] = []
    for i in np.ndindex(*a.shape[:-2]):
        failures += factor_in_place(library, factor[i], levels, limit)
    if failures and bool((library.module.stack(failures) != 0).any()):
        raise library.linalg_error("a block is not positive definite")
    return factor


def factor_in_place(library: NumpySolvers, a: Any, levels: int, limit: float | None) -> list[Any]:
    """Replace a lower triangle by its Cholesky factor: the first half, the panel below, the rest less their product.

    Return numbers on the device, of which one is not zero if there is no factor.
    """
    n = a.shape[0]
    if levels == 0 or n < 2:
        block, failure = library.cholesky_block(a)
        library.write(a, block)
        return [] if failure is None else [failure]
    h = first_half(n)
    first, panel, rest = a[:h, :h], a[h:, :h], a[h:, h:]
    failures = factor_in_place(library, first, levels - 1, limit)
    # X L^H = P is conj(L) X^T = P^T
    side = triangular_side(library, first, n - h, limit)
    solve_in_place(library, library.conjugate(first), library.transpose(panel), (True, False), side, limit)
    api.gram(panel, out=rest, rows=True, fill="lower", alpha=-1, beta=1, max_error_growth=limit)
    return failures + factor_in_place(library, rest, levels - 1, limit)
