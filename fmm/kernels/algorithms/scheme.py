"""Schemes: bilinear algorithms <m,k,n;r> as data, with their proof, their additions, and their error growth.

A scheme multiplies an m x k grid of blocks by a k x n grid of blocks with r products. Product p is (sum_b U[b][p] A_b)
(sum_b V[b][p] B_b). Block c of the result is sum_p W[c][p] product_p. The coefficients are U, V and W; a scheme is
proved by the Brent equations.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from itertools import product
from math import lcm, prod, sqrt

import numpy as np

from fmm.kernels.algorithms import additions as programs
from fmm.kernels.algorithms.additions import (
    AdditionProgram,
    Matrix,
    Rational,
    compose_addition_programs,
    renumber_inputs,
)

# Factor by which the rounding of a level's additions increases the error, fitted to measured errors of products with a
# short inner dimension.
ADDITIONS_ERROR_FACTOR = 1.02


class SchemeError(ValueError):
    """Raised if a scheme is unknown or malformed, or does not compute A B."""


@dataclass(frozen=True)
class SchemePrograms:
    """The additions of a scheme: three programs, which form the left operands, the right operands and blocks of C."""

    left: AdditionProgram
    right: AdditionProgram
    join: AdditionProgram

    @property
    def addition_count(self) -> int:
        return self.left.addition_count + self.right.addition_count + self.join.addition_count


@dataclass(frozen=True)
class Scheme:
    """A scheme <m,k,n;r>. Each row of u, v and w belongs to a block of A, B and C; each column belongs to a product.

    `factors` are the schemes of a composition; for any other scheme, `factors` is empty.
    """

    name: str
    source: str
    m: int
    k: int
    n: int
    u: Matrix
    v: Matrix
    w: Matrix
    factors: tuple[Scheme, ...] = ()

    def __hash__(self) -> int:
        return hash((self.name, self.m, self.k, self.n, self.rank))

    @property
    def size(self) -> tuple[int, int, int]:
        return self.m, self.k, self.n

    @property
    def rank(self) -> int:
        """Return the number of products, r."""
        return len(self.u[0])

    def __str__(self) -> str:
        return f"{self.name} <{self.m},{self.k},{self.n};{self.rank}>"

    # ---- additions

    @cached_property
    def addition_programs(self) -> SchemePrograms:
        """Return the programs of the additions, with common sums computed once.

        The program of a composed scheme runs the additions of one factor after the other.
        """
        if self.factors:
            return _composed_programs(self.factors)
        columns = tuple(zip(*self.u, strict=True)), tuple(zip(*self.v, strict=True))
        return SchemePrograms(
            programs.shared_sums_program(columns[0], self.m * self.k),
            programs.shared_sums_program(columns[1], self.k * self.n),
            programs.shared_sums_program(self.w, self.rank),
        )

    @property
    def addition_count(self) -> int:
        """Return the number of block additions if common sums are computed once: 15 for Winograd's variant."""
        return self.addition_programs.addition_count

    @property
    def separate_addition_count(self) -> int:
        """Return the number of block additions if no sum is shared: 18 for Strassen's scheme."""
        operands = [sum(1 for c in column if c) - 1 for x in (self.u, self.v) for column in zip(*x, strict=True)]
        return sum(operands) + sum(sum(1 for c in row if c) - 1 for row in self.w)

    @property
    def nonzero_counts(self) -> tuple[int, int, int]:
        return tuple(sum(1 for row in x for c in row if c) for x in (self.u, self.v, self.w))  # type: ignore[return-value]

    def to_text(self) -> str:
        """Return the scheme in the text form that fmm.kernels.algorithms.scheme_text reads."""
        return "\n".join(_scheme_file_lines(self)) + "\n"

    # ---- error growth of one level. The growth of a composition is the product of the growths of its schemes.

    @cached_property
    def stability_factor(self) -> Fraction:
        """Return the factor by which one level increases the error bound: 12 for Strassen's scheme, 18 for Winograd's.

        The factor is max_c sum_p |w_cp| |u_p|_1 |v_p|_1, with blocks c of C, products p, and columns u_p and v_p of U
        and V. The formula is from Ballard, Benson, Druinsky, Lipshitz and Schwartz (2016), after Bini and Lotti (1980).
        """
        if self.factors:
            return Fraction(prod((f.stability_factor for f in self.factors), start=Fraction(1)))
        left, right = _column_norms(self.u), _column_norms(self.v)
        return max(
            sum((max(c, -c) * x * y for c, x, y in zip(row, left, right, strict=True)), Fraction(0)) for row in self.w
        )

    @cached_property
    def error_growth(self) -> float:
        """Return the expected error of one level, as a multiple of the classical product's error.

        The estimate assumes random entries of equal magnitude. The estimate also assumes that the error of a sum of
        length k grows like k (its variance like k^2), and that the errors of different products are independent. The
        variance of the error of block c of C is then sum_p w_cp^2 |u_p|_2^2 |v_p|_2^2 / k^2 times the variance of the
        classical product's error. The estimate ignores the rounding of the additions, and the smaller errors of sums
        that BLAS computes block by block.
        """
        if self.factors:
            return prod(f.error_growth for f in self.factors)
        return max(1.0, sqrt(max(self._block_error_variances)) / self.k)

    @cached_property
    def error_growth_blocked_sums(self) -> float:
        """Return the error growth for blocked sums, as a CPU's BLAS computes them, averaged over the blocks of C.

        BLAS computes short sums first, and then adds their results, so the error of a sum of length k grows like
        sqrt(k).
        """
        if self.factors:
            return prod(f.error_growth_blocked_sums for f in self.factors)
        found = sqrt(sum(self._block_error_variances) / len(self.w) / self.k)
        return ADDITIONS_ERROR_FACTOR * found if found > 1 else 1.0

    @cached_property
    def same_sign_error_growth(self) -> float:
        """Return the expected relative error of one level on entries of one sign, as a multiple of the classical error.

        If all entries have one sign, partial sums grow with their length, so the variance of the error of a sum of
        length k is proportional to k^3. If an operand of a product is a sum of blocks, the entries of the operand are
        proportional to the sum of the blocks' coefficients. The result is 1.22 for Strassen's scheme. For Winograd's
        scheme, the result is 0.5, because the sums of blocks cancel the mean of the entries.
        """
        if self.factors:
            return prod(f.same_sign_error_growth for f in self.factors)
        return self.same_sign_error_growth_blocked / self.k

    @cached_property
    def same_sign_error_growth_blocked(self) -> float:
        """Return the error growth on entries of one sign for blocked sums, as a CPU's BLAS computes them.

        With blocked sums and entries of one sign, the variance of a sum's error is proportional to the sum's length.
        The result is 2.45 for Strassen's scheme and 1.0 for Winograd's.
        """
        if self.factors:
            return prod(f.same_sign_error_growth_blocked for f in self.factors)
        left, right = (tuple(map(sum, zip(*x, strict=True))) for x in (self.u, self.v))
        variance = sum(c * c * x * x * y * y for row in self.w for c, x, y in zip(row, left, right, strict=True) if c)
        return sqrt(variance / len(self.w) / self.k)

    @property
    def _block_error_variances(self) -> list[Fraction]:
        """Return the error variance of each block of C, in units of the error variance of one block product."""
        left, right = _column_square_sums(self.u), _column_square_sums(self.v)
        return [sum((c * c * x * y for c, x, y in zip(row, left, right, strict=True)), Fraction(0)) for row in self.w]

    # ---- the proof

    def failed_brent_equation(self) -> str | None:
        """Return the text of the first Brent equation that fails; None if all equations hold exactly."""
        (u, du), (v, dv), (w, dw) = (_scaled_integer_matrix(x) for x in (self.u, self.v, self.w))
        largest = self.rank * prod(abs(x).max() for x in (u, v, w))
        # beyond int64, Python's integers
        exact = np.int64 if max(largest, du * dv * dw) <= np.iinfo(np.int64).max else object
        found = np.einsum("ap,bp,cp->abc", *(x.astype(exact) for x in (u, v, w)))
        expected = np.zeros(found.shape, dtype=exact)
        for i, j, q in product(range(self.m), range(self.k), range(self.n)):
            expected[i * self.k + j, j * self.n + q, i * self.n + q] = du * dv * dw
        wrong = np.argwhere(found != expected)
        if not len(wrong):
            return None
        a, b, c = (int(x) for x in wrong[0])
        names = block_name("A", a, self.k), block_name("B", b, self.n), block_name("C", c, self.n)
        value = Fraction(int(found[a, b, c]), du * dv * dw)
        right = expected[a, b, c] != 0
        return f"the coefficient of {names[0]} {names[1]} in {names[2]} is {value}, not {int(right)}"


def _column_norms(x: Matrix) -> list[Fraction]:
    return [sum((abs(c) for c in column), Fraction(0)) for column in zip(*x, strict=True)]


def _column_square_sums(x: Matrix) -> list[Fraction]:
    return [sum((c * c for c in column), Fraction(0)) for column in zip(*x, strict=True)]


def _scaled_integer_matrix(x: Matrix) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.object_]], int]:
    """Return the Python integers x * d, and d, the common denominator of all entries of the matrix x."""
    scale = lcm(*(c.denominator for row in x for c in row))
    return np.array([[int(c * scale) for c in row] for row in x], dtype=object), scale


def block_name(letter: str, index: int, columns: int) -> str:
    """Return the name of a block: A23 for row 2 and column 3; A2,13 if the row or the column has two digits."""
    row, column = index // columns + 1, index % columns + 1
    return f"{letter}{row}{column}" if max(row, column) < 10 else f"{letter}{row},{column}"


# ---- writing


def _scheme_file_lines(scheme: Scheme) -> Iterator[str]:
    yield f"name    {scheme.name}"
    yield f"source  {scheme.source}"
    yield f"size    {scheme.m} {scheme.k} {scheme.n}"
    yield ""
    for p in range(scheme.rank):
        left = _sum_text("A", [row[p] for row in scheme.u], scheme.k)
        right = _sum_text("B", [row[p] for row in scheme.v], scheme.n)
        yield f"M{p + 1} = ({left})({right})"
    yield ""
    for c, row in enumerate(scheme.w):
        yield f"{block_name('C', c, scheme.n)} = {_sum_text('M', list(row), None)}"


def _sum_text(letter: str, coefficients: list[Rational], columns: int | None) -> str:
    words: list[str] = []
    for index, c in enumerate(coefficients):
        if c:
            name = f"{letter}{index + 1}" if columns is None else block_name(letter, index, columns)
            sign = ("- " if c < 0 else "+ ") if words else ("-" if c < 0 else "")
            words.append(f"{sign}{'' if abs(c) == 1 else f'{abs(c)} '}{name}")
    return " ".join(words)


# ---- additions of a composition

GridSize = tuple[int, int]  # number of rows of blocks, and number of columns of blocks


def _composed_programs(factors: tuple[Scheme, ...]) -> SchemePrograms:
    """Return the additions of the composition of these schemes; the first scheme is the outermost level."""
    outer, rest = factors[0], factors[1:]
    if not rest:
        return outer.addition_programs
    inner = _composed_programs(rest)
    m, k, n = outer.size
    p, q, r = (prod(sides) for sides in zip(*(f.size for f in rest), strict=True))
    return SchemePrograms(
        _compose_operand_programs(outer.addition_programs.left, inner.left, (m, k), (p, q), outer.rank),
        _compose_operand_programs(outer.addition_programs.right, inner.right, (k, n), (q, r), outer.rank),
        _compose_output_programs(inner.join, outer.addition_programs.join, (m, n), (p, r), outer.rank),
    )


def _compose_operand_programs(
    first: AdditionProgram, second: AdditionProgram, outer: GridSize, inner: GridSize, rank: int
) -> AdditionProgram:
    """Return the program that forms the outer scheme's sums, and then the inner scheme's sums for every outer product.

    Each block of the outer scheme is a grid of inner blocks; the outer sums are formed once for each position in the
    grid.
    """
    places = prod(inner)
    wiring = [[(place, r) for place in range(places)] for r in range(rank)]
    program = compose_addition_programs([first] * places, [second] * rank, wiring)
    return renumber_inputs(program, _blocks_by_inner_position(outer, inner))


def _compose_output_programs(
    first: AdditionProgram, second: AdditionProgram, outer: GridSize, inner: GridSize, rank: int
) -> AdditionProgram:
    """Return the program that forms the outer scheme's products from inner products, and then the blocks of C."""
    wiring = [[(r, place) for r in range(rank)] for place in range(prod(inner))]
    program = compose_addition_programs([first] * rank, [second] * prod(inner), wiring)
    order = _blocks_by_inner_position(outer, inner)
    outputs = [0] * len(order)
    for position, block in enumerate(order):
        outputs[block] = program.outputs[position]
    return AdditionProgram(program.inputs, program.lines, tuple(outputs))


def _blocks_by_inner_position(outer: GridSize, inner: GridSize) -> list[int]:
    """Return the row-major indices of all blocks of the composed grid, sorted by inner position, then by outer block.

    The inner position of a block is its position in the block of the outer grid that contains it.
    """
    columns = outer[1] * inner[1]
    return [
        (i * inner[0] + s) * columns + j * inner[1] + t
        for s, t in product(range(inner[0]), range(inner[1]))
        for i, j in product(range(outer[0]), range(outer[1]))
    ]
