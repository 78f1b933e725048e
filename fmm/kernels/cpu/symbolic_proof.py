"""Prove plans by running them on symbols that do not commute: each entry of AB must be exact.

The arrays hold polynomials: sums of words such as a01*b12. The same code runs plans on polynomials and on numbers. New
temporaries hold None, so reading unwritten memory raises an error. A plan computes all rows and columns of a block by
the same operations. This also holds for the fringe, the rows and columns that remain at the edge if the block size does
not divide the matrix. A proof therefore needs only one row and one column of each block and of the fringe: the sizes 2
and 3 in each dimension represent all sizes.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from itertools import product

import numpy as np

from fmm.kernels.cpu.execute import execute_plan
from fmm.kernels.cpu.host_arrays import Array
from fmm.kernels.cpu.numpy_backend import NumpyBackend
from fmm.kernels.cpu.thread_pool import ThreadGroup
from fmm.kernels.plans.levels.scheme_level import scheme_level
from fmm.kernels.plans.plan import Plan, PlanError

Word = tuple[str, ...]
Coefficient = int | Fraction


class Polynomial:
    """A sum of words (products of symbols) with exact coefficients; multiplication does not commute.

    Whole coefficients are ints, which Python adds and multiplies much faster than fractions.
    """

    __slots__ = ("terms",)

    def __init__(self, terms: dict[Word, Coefficient]) -> None:
        self.terms = {word: c for word, c in terms.items() if c}

    def __add__(self, other: object) -> Polynomial:
        terms = self.terms.copy()
        for word, c in _as_polynomial(other).terms.items():
            terms[word] = terms.get(word, 0) + c
        return Polynomial(terms)

    __radd__ = __add__

    def __mul__(self, other: object) -> Polynomial:
        terms: dict[Word, Coefficient] = {}
        for (x, c), (y, d) in product(self.terms.items(), _as_polynomial(other).terms.items()):
            terms[x + y] = terms.get(x + y, 0) + c * d
        return Polynomial(terms)

    def __rmul__(self, other: object) -> Polynomial:
        return _as_polynomial(other) * self

    def __neg__(self) -> Polynomial:
        return Polynomial({word: -c for word, c in self.terms.items()})

    def __sub__(self, other: object) -> Polynomial:
        return self + -_as_polynomial(other)

    def __rsub__(self, other: object) -> Polynomial:
        return _as_polynomial(other) - self

    def __eq__(self, other: object) -> bool:
        return self.terms == _as_polynomial(other).terms

    def __repr__(self) -> str:
        return " + ".join(f"{c} {'*'.join(w)}" for w, c in sorted(self.terms.items())) or "0"


def _as_polynomial(x: object) -> Polynomial:
    if isinstance(x, Polynomial):
        return x
    if isinstance(x, int | float | Fraction):
        exact = Fraction(x)
        return Polynomial({(): exact.numerator if exact.denominator == 1 else exact})
    raise TypeError(f"reads {x!r}: a place that nothing was written to")


class _SymbolicArena:
    """A workspace that allocates a new array for each temporary; all elements of the array are None."""

    used_bytes = 0

    def allocate(self, rows: int, cols: int, fortran: bool = False, dtype: str = "") -> Array:
        return np.full((rows, cols), None, dtype=object)

    def free_temporaries_since(self, mark: int) -> None:
        pass


def symbolic_matrix(letter: str, rows: int, cols: int) -> Array:
    """Return a matrix of distinct symbols, named by the letter and the indices."""
    x = np.empty((rows, cols), dtype=object)
    for i, j in np.ndindex(rows, cols):
        x[i, j] = Polynomial({(f"{letter}{i}.{j}",): 1})
    return x


def plan_defect(plan: Plan, m: int, k: int, n: int, alpha: int = 1, beta: int = 0) -> str | None:
    """Return a text about the first wrong entry of alpha A B + beta C; None if the plan computes all entries right."""
    a, b = symbolic_matrix("a", m, k), symbolic_matrix("b", k, n)
    c = symbolic_matrix("c", m, n) if beta else np.full((m, n), None, dtype=object)
    old = c.copy()
    try:
        execute_plan(plan, a, b, c, NumpyBackend(ThreadGroup(1)), _SymbolicArena(), alpha, beta)
    except (TypeError, PlanError) as error:
        return str(error)
    for i, j in np.ndindex(m, n):
        expected = sum((a[i, x] * b[x, j] for x in range(k)), Polynomial({})) * alpha
        expected = expected + old[i, j] * beta if beta else expected
        if c[i, j] is None or c[i, j] != expected:
            return f"entry {i},{j} is {c[i, j]}, not {expected}"
    return None


def first_plan_defect(plan: Plan, sizes: Iterable[tuple[int, ...]]) -> str | None:
    """Return the text of `plan_defect` for the first size with a wrong entry; None if all sizes are proved."""
    for size in sizes:
        if (found := plan_defect(plan, *size[:3])) is not None:
            return f"{'x'.join(map(str, size))}: {found}"
    return None


@lru_cache(maxsize=64)
def is_correct_with_unequal_blocks(table: str) -> bool:
    """Return True if the step table is proved to be correct when blocks differ by one row or one column."""
    plan = Plan((scheme_level(table, "sequential", "unequal"),))
    return first_plan_defect(plan, product((2, 3), repeat=3)) is None


def prove_fringe(table: str) -> str:
    """Return the fringe of a step table: "unequal" if the table is proved for blocks of unequal size, else "pad".

    Raise PlanError if the table does not compute AB.
    """
    if is_correct_with_unequal_blocks(table):
        return "unequal"
    plan = Plan((scheme_level(table, "sequential", "pad"),))
    if (found := first_plan_defect(plan, [scheme_level(table, "sequential", "pad").block_grid])) is not None:
        raise PlanError(f"the step table {table} does not compute AB: {found}")
    return "pad"
