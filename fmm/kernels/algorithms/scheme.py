"""Bilinear algorithms <m,k,n;r> as data: proved by the Brent equations, with their additions and error growth.

A scheme multiplies an m x k grid of blocks by a k x n grid with r products: product p is
(sum_b U[b][p] A_b) (sum_b V[b][p] B_b), and block c of the result is sum_p W[c][p] product_p.
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
from fmm.kernels.algorithms.additions import AdditionProgram, Matrix, Rational, chained_programs, renumbered_inputs

# Allowance for the rounding of a level's additions, as a factor of the error (on short products 1 % was measured
# beyond the rest).
ADDITIONS_ERROR_FACTOR = 1.02


class SchemeError(ValueError):
    """A scheme that is unknown, malformed or not a matrix multiplication."""


@dataclass(frozen=True)
class SchemePrograms:
    """The additions of one scheme: forming the left operands, the right operands and the blocks of the result."""

    left: AdditionProgram
    right: AdditionProgram
    join: AdditionProgram

    @property
    def additions(self) -> int:
        return self.left.additions + self.right.additions + self.join.additions


@dataclass(frozen=True)
class Scheme:
    """<m,k,n;r> with its coefficient matrices (blocks in row-major order x products) and, if composed, its factors."""

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
        """The number of products."""
        return len(self.u[0])

    def __str__(self) -> str:
        return f"{self.name} <{self.m},{self.k},{self.n};{self.rank}>"

    # ---- additions

    @cached_property
    def programs(self) -> SchemePrograms:
        """Additions with common sums shared; a composed scheme's are its factors' run level by level."""
        if self.factors:
            return _composed_programs(self.factors)
        columns = tuple(zip(*self.u, strict=True)), tuple(zip(*self.v, strict=True))
        return SchemePrograms(
            programs.shared_sums(columns[0], self.m * self.k),
            programs.shared_sums(columns[1], self.k * self.n),
            programs.shared_sums(self.w, self.rank),
        )

    @property
    def additions(self) -> int:
        """Block additions with common sums shared (15 for Winograd's variant)."""
        return self.programs.additions

    @property
    def additions_plain(self) -> int:
        """Block additions when every operand and every block of C is formed on its own (18 for Strassen's)."""
        operands = [sum(1 for c in column if c) - 1 for x in (self.u, self.v) for column in zip(*x, strict=True)]
        return sum(operands) + sum(sum(1 for c in row if c) - 1 for row in self.w)

    @property
    def nonzeros(self) -> tuple[int, int, int]:
        return tuple(sum(1 for row in x for c in row if c) for x in (self.u, self.v, self.w))  # type: ignore[return-value]

    def text(self) -> str:
        """Return the scheme in the form of its data file (fmm.kernels.algorithms.scheme_text reads it)."""
        return "\n".join(_text_lines(self)) + "\n"

    # ---- error growth of one level; a composition multiplies the growths of its factors

    @cached_property
    def stability_factor(self) -> Fraction:
        """max over C blocks of sum_p |w_cp| |u_p|_1 |v_p|_1: the growth of the error bound per level (Ballard et al.
        2016, after Bini and Lotti 1980): 12 for Strassen's, 18 for Winograd's."""
        if self.factors:
            return Fraction(prod((f.stability_factor for f in self.factors), start=Fraction(1)))
        left, right = _column_norms(self.u), _column_norms(self.v)
        return max(
            sum((max(c, -c) * x * y for c, x, y in zip(row, left, right, strict=True)), Fraction(0)) for row in self.w
        )

    @cached_property
    def error_growth(self) -> float:
        """Expected error of one level relative to the classical product's, on random data of one size.

        The error of a sum of length k is taken to grow like k (its variance like k^2), independently in each product:
        then block c has variance sum_p w_cp^2 |u_p|_2^2 |v_p|_2^2 / k^2 relative to the classical one's. Left out: the
        rounding of the additions themselves, the shorter sums' gain in blocked kernels, and structured data.
        """
        if self.factors:
            return prod(f.error_growth for f in self.factors)
        return max(1.0, sqrt(max(self._variances)) / self.k)

    @cached_property
    def error_growth_in_pieces(self) -> float:
        """The same where a product adds long sums in pieces, as BLAS does on a CPU, on average over the blocks of C.

        The error of a sum of length k then grows like the square root of k.
        """
        if self.factors:
            return prod(f.error_growth_in_pieces for f in self.factors)
        found = sqrt(sum(self._variances) / len(self.w) / self.k)
        return ADDITIONS_ERROR_FACTOR * found if found > 1 else 1.0

    @cached_property
    def positive_growth(self) -> float:
        """Expected error of one level on numbers of one sign, with sums that grow with their length.

        The error of a sum of length k then has a variance like k^3, and a product's operands are as large as the sums
        of their coefficients. (1.22 of Strassen's; 0.5 of Winograd's, where the sums cancel the mean.)
        """
        if self.factors:
            return prod(f.positive_growth for f in self.factors)
        return self.positive_growth_in_pieces / self.k

    @cached_property
    def positive_growth_in_pieces(self) -> float:
        """The same where a product adds long sums in pieces: the variance is then like k. (Measured: Strassen's 2.45,
        Winograd's 1.0.)"""
        if self.factors:
            return prod(f.positive_growth_in_pieces for f in self.factors)
        left, right = (tuple(map(sum, zip(*x, strict=True))) for x in (self.u, self.v))
        variance = sum(c * c * x * x * y * y for row in self.w for c, x, y in zip(row, left, right, strict=True) if c)
        return sqrt(variance / len(self.w) / self.k)

    @property
    def _variances(self) -> list[Fraction]:
        """The variance of each block of C, if every product of numbers has a variance of one."""
        left, right = _column_squares(self.u), _column_squares(self.v)
        return [sum((c * c * x * y for c, x, y in zip(row, left, right, strict=True)), Fraction(0)) for row in self.w]

    # ---- the proof

    def defect(self) -> str | None:
        """Return None if the Brent equations hold exactly, else the first one that does not."""
        (u, du), (v, dv), (w, dw) = (_integers(x) for x in (self.u, self.v, self.w))
        found = np.einsum("ap,bp,cp->abc", u, v, w)
        expected = np.zeros(found.shape, dtype=np.int64)
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


def _column_squares(x: Matrix) -> list[Fraction]:
    return [sum((c * c for c in column), Fraction(0)) for column in zip(*x, strict=True)]


def _integers(x: Matrix) -> tuple[np.ndarray[tuple[int, int], np.dtype[np.int64]], int]:
    """Return the matrix times its common denominator: exact integer arithmetic is what makes the check a proof."""
    scale = lcm(*(c.denominator for row in x for c in row))
    return np.array([[int(c * scale) for c in row] for row in x], dtype=np.int64), scale


def block_name(letter: str, index: int, columns: int) -> str:
    """Return A23 for row 2, column 3; with a comma where a number has two digits."""
    row, column = index // columns + 1, index % columns + 1
    return f"{letter}{row}{column}" if max(row, column) < 10 else f"{letter}{row},{column}"


# ---- writing


def _text_lines(scheme: Scheme) -> Iterator[str]:
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

Grid = tuple[int, int]  # rows and columns of blocks


def _composed_programs(factors: tuple[Scheme, ...]) -> SchemePrograms:
    """Return the additions of the composition of these schemes, the outermost first."""
    outer, rest = factors[0], factors[1:]
    if not rest:
        return outer.programs
    inner = _composed_programs(rest)
    m, k, n = outer.size
    p, q, r = (prod(sides) for sides in zip(*(f.size for f in rest), strict=True))
    return SchemePrograms(
        _split_twice(outer.programs.left, inner.left, (m, k), (p, q), outer.rank),
        _split_twice(outer.programs.right, inner.right, (k, n), (q, r), outer.rank),
        _join_twice(inner.join, outer.programs.join, (m, n), (p, r), outer.rank),
    )


def _split_twice(first: AdditionProgram, then: AdditionProgram, outer: Grid, inner: Grid, rank: int) -> AdditionProgram:
    """Return the outer sums for every inner position, followed by the inner sums of each of the outer products."""
    places = prod(inner)
    wiring = [[(place, r) for place in range(places)] for r in range(rank)]
    program = chained_programs([first] * places, [then] * rank, wiring)
    return renumbered_inputs(program, _by_inner_position(outer, inner))


def _join_twice(first: AdditionProgram, then: AdditionProgram, outer: Grid, inner: Grid, rank: int) -> AdditionProgram:
    """Return the inner joins of each outer product, followed by the outer join for every inner position."""
    wiring = [[(r, place) for r in range(rank)] for place in range(prod(inner))]
    program = chained_programs([first] * rank, [then] * prod(inner), wiring)
    order = _by_inner_position(outer, inner)
    outputs = [0] * len(order)
    for position, block in enumerate(order):
        outputs[block] = program.outputs[position]
    return AdditionProgram(program.inputs, program.lines, tuple(outputs))


def _by_inner_position(outer: Grid, inner: Grid) -> list[int]:
    """Return row-major block numbers of the composed grid, sorted by inner position first, then by outer block."""
    columns = outer[1] * inner[1]
    return [
        (i * inner[0] + s) * columns + j * inner[1] + t
        for s, t in product(range(inner[0]), range(inner[1]))
        for i, j in product(range(outer[0]), range(outer[1]))
    ]
