"""float64 by residues of hostile numbers at random, kernels run on the host: what no row and column is an exception of.

Rows and columns are scaled by any power of two that there is, numbers in them by powers that differ by hundreds of
bits; all alike, all but a few of them zero, next to powers of two, subnormal. For every entry of C three things are
asked, in Python's fractions: that the whole numbers' product is below half of the moduli's, by which it is known from
its residues; that C is that product, rounded; and that it is as near to A B as the plan says.
"""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest

from fmm.kernels.algorithms.residues import first_moduli
from fmm.kernels.plans.levels.residues import residue_leaves
from tests.support.residue_products import Matrix, exact_product, product_on_host

SIDES = 1, 2, 5, 16, 17, 33
# The bound relative to the norms of a row and a column, in units of sqrt(k): powers of two of BOUNDS.
PROMISED = {13: Fraction(1, 2**48), 14: Fraction(1, 2**52), 15: Fraction(1, 2**52), 16: Fraction(1, 2**52)}
PLANS = (
    "residues(13) > bytes",
    "residues(14) > bytes",
    "residues(14) > strassen > bytes",
    "residues(14) > strassen^2 > bytes",
    "residues(15) > strassen > bytes",
    "residues(16) > bytes",
)
ROUNDED, LEAST = Fraction(1, 2**52), Fraction(1, 2**1073)  # to within a unit, and below the normal numbers two


def hostile_lines(rng: np.random.Generator, lines: int, length: int) -> Matrix:
    shape, kind = (lines, length), rng.integers(6)
    if kind == 0:
        x = rng.standard_normal(shape)
    elif kind == 1:
        x = np.ones(shape)
    elif kind == 2:
        x = rng.choice([1.0, -1.0], shape) * np.nextafter(2.0, rng.integers(0, 3))
    elif kind == 3:
        x = rng.standard_normal(shape) * np.exp2(rng.integers(-80, 80, shape))
    elif kind == 4:
        x = np.where(rng.random(shape) < 0.1, np.exp2(rng.integers(0, 52, shape)), rng.integers(-3, 4, shape))
    else:
        x = np.ldexp(rng.integers(1, 4, shape).astype(float), rng.integers(-300, 30, shape))
    if rng.random() < 0.2:
        x[rng.integers(lines)] = 0
    low, high = ((0, 1), (-1000, 940), (-1074, -1000), (700, 940), (-60, 60))[rng.integers(5)]
    return np.asarray(np.ldexp(x, rng.integers(low, high, (lines, 1))))


def judged(rng: np.random.Generator) -> bool:
    """Check that every entry is within the bound. With an inf or NaN the flag is up, and everything is recomputed."""
    m, k, n = (int(x) for x in rng.choice(SIDES, 3))
    a, b = hostile_lines(rng, m, k), hostile_lines(rng, n, k).T.copy()
    plan, layouts = str(rng.choice(PLANS)), "".join(rng.choice(list("CF"), 3))
    c, _ = product_on_host(a, b, plan, layouts)
    if not np.isfinite(c).all():
        return False
    count = residue_leaves()[plan].level.moduli
    exact, e, f = exact_product(a, b, count)
    x, y = ([[Fraction(float(v)) for v in line] for line in lines] for lines in (a, b.T))
    for i, j in np.ndindex(c.shape):
        assert 2 * abs(exact[i][j]) < prod(first_moduli(count))
        value, found = Fraction(exact[i][j]) / Fraction(2) ** int(e[i] + f[j]), Fraction(float(c[i, j]))
        assert abs(found - value) <= abs(value) * ROUNDED + LEAST, (plan, layouts, (m, k, n), (i, j))
        off = found - sum(p * q for p, q in zip(x[i], y[j], strict=True))
        norms = sum(p * p for p in x[i]) * sum(q * q for q in y[j])
        assert off**2 <= PROMISED[count] ** 2 * k * norms + LEAST**2, (plan, layouts, (m, k, n), (i, j))
    return True


@pytest.mark.quick_cases(1)
@pytest.mark.parametrize("seed", range(2))
def test_hostile_numbers(seed: int) -> None:
    assert sum(judged(np.random.default_rng((seed, i))) for i in range(4)) >= 2


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 110))
def test_more_hostile_numbers(seed: int) -> None:
    assert sum(judged(np.random.default_rng((seed, i))) for i in range(40)) >= 20
