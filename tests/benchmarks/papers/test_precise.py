"""Precise products: exact against rationals, and more precise than the products that they judge."""

from __future__ import annotations

from fractions import Fraction
from math import fsum

import numpy as np
import pytest

from benchmarks.papers.matrices import (
    doubly_compensated_sums,
    precise_product,
    priest_product,
    reference_product,
    two_product,
    two_sum,
)

UNIT = 2.0**-53


def wild(rng: np.random.Generator, *shape: int) -> np.ndarray:
    """Return numbers of very different sizes."""
    return np.asarray(rng.standard_normal(shape) * 2.0 ** rng.integers(-30, 30, shape))


def exact_product(a: np.ndarray, b: np.ndarray) -> list[list[Fraction]]:
    rows = [[Fraction(x) for x in row] for row in a]
    cols = [[Fraction(x) for x in col] for col in b.T]
    return [[sum((x * y for x, y in zip(row, col, strict=True)), Fraction(0)) for col in cols] for row in rows]


def test_sums_and_products_lose_nothing(rng: np.random.Generator) -> None:
    x, y = wild(rng, 200), wild(rng, 200)
    for (high, low), operation in ((two_sum(x, y), Fraction.__add__), (two_product(x, y), Fraction.__mul__)):
        for a, b, h, lo in zip(x, y, high, low, strict=True):
            assert Fraction(h) + Fraction(lo) == operation(Fraction(a), Fraction(b))
            assert abs(lo) <= UNIT * abs(h)


def test_priests_sum_is_right_where_nearly_everything_cancels(rng: np.random.Generator) -> None:
    """The sum is within two roundings, as Priest proved; plain summation is not."""
    terms = wild(rng, 500, 40)
    terms = np.concatenate((terms, -terms, rng.standard_normal((1, 40)) * 1e-12))
    terms = rng.permuted(terms, axis=0)
    found, plain = doubly_compensated_sums(terms), terms.sum(axis=0)
    exact = np.array([fsum(column) for column in terms.T])
    assert np.all(np.abs(found - exact) <= 2 * UNIT * np.abs(exact))
    assert np.abs(plain - exact).max() > 1e3 * np.abs(exact).max() * UNIT


@pytest.mark.parametrize("shape", [(5, 7, 4), (1, 1, 1), (3, 130, 2)])
def test_priests_products_are_right_to_the_last_digit(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    m, k, n = shape
    a, b = wild(rng, m, k), wild(rng, k, n)
    exact = exact_product(a, b)
    for row, right in zip(priest_product(a, b), exact, strict=True):
        for x, y in zip(row, right, strict=True):
            assert abs(Fraction(x) - y) <= 2 * Fraction(UNIT) * abs(y)


@pytest.mark.parametrize("shape", [(5, 7, 4), (1, 1, 1), (3, 300, 5), (4, 2, 6)])
def test_whole_products_have_twice_the_precision(shape: tuple[int, int, int], rng: np.random.Generator) -> None:
    """The precision is relative to the largest of a row of A and a column of B."""
    m, k, n = shape
    a, b = wild(rng, m, k), wild(rng, k, n)
    found, exact = precise_product(np, a, b), exact_product(a, b)
    for i in range(m):
        for j in range(n):
            size = Fraction(float(np.abs(a[i]).max() * np.abs(b[:, j]).max()))
            assert (
                abs(Fraction(found.high[i, j]) + Fraction(found.low[i, j]) - exact[i][j])
                <= k * size * Fraction(2) ** -85
            )


def test_both_references_agree_where_a_plain_product_does_not(rng: np.random.Generator) -> None:
    a, b = rng.standard_normal((40, 400)), rng.standard_normal((400, 40))
    whole, priest = precise_product(np, a, b), priest_product(a, b)
    assert np.abs((whole.high - priest) + whole.low).max() <= 2 * UNIT * np.abs(priest).max()
    assert whole.distance(a @ b).max() > 4 * UNIT * np.abs(priest).max() / 10


def test_complex_products(rng: np.random.Generator) -> None:
    a, b = (wild(rng, 6, 6) + 1j * wild(rng, 6, 6) for _ in range(2))
    found = precise_product(np, a, b)
    parts = precise_product(np, a.real, b.real), precise_product(np, a.imag, b.imag)
    real = (parts[0].high - parts[1].high) + (parts[0].low - parts[1].low)
    assert np.allclose((found.high + found.low).real, real, rtol=1e-14, atol=0)
    assert found.distance(found.high).max() == np.abs(found.low).max()


def test_zeros_and_rough_types() -> None:
    assert not precise_product(np, np.zeros((3, 4)), np.ones((4, 2))).high.any()
    a, b = np.ones((2, 3)), np.ones((3, 2))
    assert np.array_equal(reference_product(np, a, b, 2.0**-24).distance(np.full((2, 2), 3.5)), np.full((2, 2), 0.5))
    assert np.array_equal(reference_product(np, a, b, 2.0**-53).high, np.full((2, 2), 3.0))
