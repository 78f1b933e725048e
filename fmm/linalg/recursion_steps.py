"""The steps of solvers that halve their matrices again and again: triangular systems, Cholesky factors, inverses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fmm.linalg.halving_rules import first_half_rows_rounded, lu_split_column
from fmm.linalg.solver_steps import Step


class DiagonalBlocks(NamedTuple):
    """The blocks on the diagonal of a triangular system."""

    side: int  # rows of a block; 0 if the whole matrix is one block
    are_inverted: bool  # True if blocks of `side` rows are multiplied by their inverses


BlocksOfSystem = Callable[[int, int], DiagonalBlocks]  # rows and right-hand sides of a triangular system -> its blocks


def triangular_steps(n: int, columns: int, blocks: DiagonalBlocks, lower: bool = True) -> Iterator[Step]:
    """Yield the steps of a triangular system of n rows: one half of the solution, a product, the second half."""
    side = blocks.side or n
    if n <= side:
        is_product = blocks.are_inverted and n == blocks.side
        yield Step("product", n, n, columns) if is_product else Step("solve_triangular", columns, n, n)
        return
    h = first_half_rows_rounded(n, side)
    first, second = (h, n - h) if lower else (n - h, h)
    yield from triangular_steps(first, columns, blocks, lower)
    yield Step("product", second, first, columns)
    yield from triangular_steps(second, columns, blocks, lower)


def cholesky_steps(n: int, side: int, blocks: DiagonalBlocks) -> Iterator[Step]:
    """Yield the steps of a Cholesky factor: first half, panel below it, Gram matrix of the panel, second half.

    The library factors blocks of `side` rows; 0 means that the whole matrix is one block. `blocks` describes the
    diagonal blocks of the triangular systems that give the panels below the diagonal.
    """
    side = side or n
    if n <= side:
        yield Step("cholesky", n, n, n)
        return
    h = first_half_rows_rounded(n, side)
    yield from cholesky_steps(h, side, blocks)
    yield from triangular_steps(h, n - h, blocks)
    yield Step("gram", n - h, h, n - h)
    yield from cholesky_steps(n - h, side, blocks)


def positive_definite_inverse_steps(n: int, factor: Iterator[Step], blocks: DiagonalBlocks) -> Iterator[Step]:
    """Yield the steps of the inverse of a positive definite matrix: Cholesky factor, its inverse, Gram matrix."""
    yield from factor
    yield from triangle_inverse_steps(n, blocks)
    yield Step("gram", n, n, n)


def triangle_inverse_steps(n: int, blocks: DiagonalBlocks) -> Iterator[Step]:
    """Yield the steps that replace a triangular matrix by its inverse."""
    side = blocks.side or n
    if n <= side:
        if not (blocks.are_inverted and n == side):
            yield Step("solve_triangular", n, n, n)
        return
    h = first_half_rows_rounded(n, side)
    yield from triangle_inverse_steps(n - h, blocks)
    yield Step("product", n - h, n - h, h)
    yield from triangular_steps(h, n - h, blocks, lower=False)
    yield from triangle_inverse_steps(h, blocks)


def general_inverse_steps(n: int, width: int, blocks: DiagonalBlocks) -> Iterator[Step]:
    """Yield the steps of a general inverse: LU factors and two triangular systems."""
    yield from lu_steps(n, width, blocks.are_inverted)
    for lower in (True, False):
        yield from triangular_steps(n, n, blocks, lower)


def lu_steps(n: int, width: int, are_inverted: bool) -> Iterator[Step]:
    """Yield the steps of the LU factors of an n x n matrix with panels of `width` columns."""

    def factor_columns(first: int, last: int) -> Iterator[Step]:
        if last - first <= width:
            yield Step("lu_panel", n - first, last - first, last - first)
            return
        middle = lu_split_column(first, last, width)
        columns = last - middle
        yield from factor_columns(first, middle)
        blocks = DiagonalBlocks(width if middle - first == width else 2 * width, are_inverted)
        yield from triangular_steps(middle - first, columns, blocks)
        yield Step("product", n - middle, middle - first, columns)
        yield from factor_columns(middle, last)

    yield from factor_columns(0, n)
