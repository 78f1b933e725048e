"""The error bounds that papers state in closed form; the bound that a walk over a plan finds is compared with them."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from math import log2, prod, sqrt

from fmm.kernels.algorithms.scheme import Scheme
from fmm.kernels.plans.plan import Plan
from fmm.perfmodel.stability import classical_error_bound, error_bound, nonzero_counts, scheme_error_bounds


def brent_bound(levels: int, n: int) -> int:
    """4^levels n^2 (D'Alberto's post, Equation 7).

    With brent_recurrence's 44 it holds if n > 4.4 (6^levels - 1)/(4^levels - 3^levels): leaves of 11 and more suffice.
    """
    return int(4**levels) * n * n


def higham_bound(levels: int, n: int) -> int:
    """3^levels n^2 (D'Alberto, Nicolau 2007, Equation 1, second line).

    It leaves out 5n(6^levels - 1): that is how much the first line of Equation 1 is larger.
    """
    return int(3**levels) * n * n


def higham_exact(n: float, leaf: float) -> float:
    """(n/n1)^log2(12) (n1^2 + 5 n1) - 5n: Equation 1, first line; it solves f(n) = 12 f(n/2) + 50 n/2, f(n1) = n1^2."""
    return float((n / leaf) ** log2(12) * (leaf**2 + 5 * leaf) - 5 * n)


def brent_recurrence(n: int, roundings: int = 44) -> int:
    """f(n) = roundings n/2 + 12 f(n/2), f(1) = 1 (the post, Equation 5), n a power of two.

    With 44 the solution is 5.4 n^log2(12) - 4.4 n. Equation 6's constant 65 is 12 x 5.4, rounded up: for an n between
    powers of two, padded to the next one, at most 2n.
    """
    if n < 1 or n & (n - 1):
        raise ValueError(f"n = {n} is not a power of two")
    return 1 if n == 1 else roundings * (n // 2) + 12 * brent_recurrence(n // 2, roundings)


def same_algorithm(x: Scheme, y: Scheme) -> bool:
    """Equal up to the order of the products and the scales of their factors."""
    return x.size == y.size and _rank_ones(x) == _rank_ones(y)


def _rank_ones(scheme: Scheme) -> list[tuple[tuple[Fraction, ...], ...]]:
    """Each product's three columns, the first two with a leading coefficient of one, sorted."""
    found = []
    for columns in zip(*(zip(*x, strict=True) for x in (scheme.u, scheme.v, scheme.w)), strict=True):
        scales = [next((c for c in column if c), Fraction(1)) for column in columns[:2]]
        scales.append(1 / prod(scales))
        found.append(tuple(tuple(c / s for c in column) for column, s in zip(columns, scales, strict=True)))
    return sorted(found)


def prefactor(scheme: Scheme) -> int:
    """Q: the most roundings that any contribution to a block of C meets in one level, each sum formed on its own.

    max over C blocks of (terms in the block + most terms in the operands of one of its products).
    """
    left, right = (nonzero_counts(zip(*x, strict=True)) for x in (scheme.u, scheme.v))
    sizes = [x + y for x, y in zip(left, right, strict=True)]
    terms = nonzero_counts(scheme.w)
    return max(
        t + max((s for s, c in zip(sizes, row, strict=True) if c), default=0)
        for t, row in zip(terms, scheme.w, strict=True)
    )


def closed_bound(schemes: Sequence[Scheme], k: int) -> float:
    """(K + sum of Q)(K prod of E): K = k over the schemes' inner sizes, E the stability factors; any mix of schemes.

    Bini and Lotti's factors with the prefactor of Ballard et al.; coefficients are taken to be exact multipliers.
    """
    leaf = -(-k // prod(s.k for s in schemes))
    return float((leaf + sum(map(prefactor, schemes))) * leaf * prod(s.stability_factor for s in schemes))


def bound_growth(plan: Plan, m: int, k: int, n: int) -> float:
    """The bound as a multiple of the classical product's."""
    return error_bound(plan, m, k, n) / classical_error_bound(k)


def recurrence(scheme: Scheme) -> tuple[tuple[float, float], ...]:
    """(e, r) for every block of C: one level has f(k) = max of e f(k/k0) + r k/k0 (Brent's 12 and 44)."""
    factors = scheme_error_bounds(scheme, 0.0, 1.0)
    roundings = scheme_error_bounds(scheme, 1.0, 0.0)
    return tuple(zip(factors, roundings, strict=True))


def frobenius_growth(scheme: Scheme) -> float:
    """sum over products of |u_p| |v_p| |w_p| in the 2-norm: the growth per level of a bound in the Frobenius norm.

    (Dumas, Pernet, Sedoglavic 2024.) The classical algorithm's is the number of its products.
    """
    factors = (scheme.u, scheme.v, scheme.w)
    norms = [[sqrt(sum(c * c for c in column)) for column in zip(*x, strict=True)] for x in factors]
    return float(sum(map(prod, zip(*norms, strict=True))))
