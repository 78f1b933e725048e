"""The steps of the recursions over halves: triangular systems, Cholesky factors and inverses."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from fmm.linalg.solver_steps import Step
from fmm.linalg.split_levels import first_half

LevelsOfSystem = Callable[[int, int], int]  # rows and right sides of a triangular system -> how often it is halved


def triangular_steps(n: int, columns: int, levels: int, lower: bool = True) -> Iterator[Step]:
    """Yield the steps of a triangular system of n rows: half of the solution, a product, the other half."""
    if levels == 0 or n < 2:
        yield Step("solve_triangular", columns, n, n)
        return
    h = first_half(n)
    first, second = (h, n - h) if lower else (n - h, h)
    yield from triangular_steps(first, columns, levels - 1, lower)
    yield Step("product", second, first, columns)
    yield from triangular_steps(second, columns, levels - 1, lower)


def cholesky_steps(n: int, levels: int, levels_of: LevelsOfSystem) -> Iterator[Step]:
    """Yield the steps of a Cholesky factor: the first half, the panel below, the panel's Gram matrix, the rest."""
    if levels == 0 or n < 2:
        yield Step("cholesky", n, n, n)
        return
    h = first_half(n)
    yield from cholesky_steps(h, levels - 1, levels_of)
    yield from triangular_steps(h, n - h, levels_of(h, n - h))
    yield Step("gram", n - h, h, n - h)
    yield from cholesky_steps(n - h, levels - 1, levels_of)


def positive_inverse_steps(n: int, factor_levels: int, levels: int, levels_of: LevelsOfSystem) -> Iterator[Step]:
    """Yield the steps of the inverse of a positive definite matrix: the factor, its inverse, and a Gram matrix."""
    yield from cholesky_steps(n, factor_levels, levels_of)
    yield from triangle_inverse_steps(n, levels, levels_of)
    yield Step("gram", n, n, n)


def triangle_inverse_steps(n: int, levels: int, levels_of: LevelsOfSystem) -> Iterator[Step]:
    """Yield the steps of the inverse of a triangular matrix in its place."""
    if levels == 0 or n < 2:
        yield Step("solve_triangular", n, n, n)
        return
    h = first_half(n)
    yield from triangle_inverse_steps(n - h, levels - 1, levels_of)
    yield Step("product", n - h, n - h, h)
    yield from triangular_steps(h, n - h, levels_of(h, n - h), lower=False)
    yield from triangle_inverse_steps(h, levels - 1, levels_of)


def general_inverse_steps(n: int, levels: int) -> Iterator[Step]:
    """Yield the steps of a general inverse: LU factors and two triangular systems."""
    yield Step("lu_factor", n, n, n)
    for lower in (True, False):
        yield from triangular_steps(n, n, levels, lower)
