"""Test matrices of the papers and of the error contract, and precise products as references.

A "precise" product has at least twice the precision of float64. Priest's doubly compensated sums check the precise
product.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log2
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

Array = Any  # an array of NumPy or CuPy
MatrixPair = tuple[Array, Array]
Family = Callable[[Any, Any, int], MatrixPair]  # takes an array library, a generator of its numbers, and a side

GRADED_RATIO = 1e-6  # ratio of the last row of a graded matrix to the first
LOW_RANK, LOW_RANK_NOISE = 8, 1e-3  # rank of a matrix of low rank, and the size of its noise


def kaporin_matrices(xp: Any, n: int, dtype: str) -> MatrixPair:
    """Return A = I + u v^T and B = I - u v^T/(1 + v^T u), inverses of each other, formed in working precision.

    u_i = 1/(n + 1 - i), v_i = sqrt(i), i from 1 to n (Kaporin 1999; Li, Ranka and Sahni, section 8.1.2).
    """
    i = xp.arange(1, n + 1).astype(dtype)
    u, v = 1 / (n + 1 - i), xp.sqrt(i)
    a = u[:, None] * v[None, :]
    b = a / -(1 + v @ u)
    for x in (a, b):
        x.reshape(-1)[:: n + 1] += 1
    return a, b


def _normal_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    return rng.standard_normal((n, n)), rng.standard_normal((n, n))


def _positive_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    return rng.random((n, n)), rng.random((n, n))


def uniform_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    """Return two matrices of numbers uniform in [-1, 1]."""
    return 2 * rng.random((n, n)) - 1, 2 * rng.random((n, n)) - 1


def _graded_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    """Return matrices whose rows (A) and columns (B) fall from 1 to GRADED_RATIO."""
    falls = GRADED_RATIO ** (xp.arange(n) / max(n - 1, 1))
    a, b = _normal_matrices(xp, rng, n)
    return a * falls[:, None], b * falls[None, :]


def inner_graded_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    """Return A with columns that fall from 1 to GRADED_RATIO, and B with rows that rise by the same factor."""
    falls = GRADED_RATIO ** (xp.arange(n) / max(n - 1, 1))
    a, b = _normal_matrices(xp, rng, n)
    return a * falls[None, :], b / falls[:, None]


def _low_rank_matrices(xp: Any, rng: Any, n: int) -> MatrixPair:
    """Return two matrices of rank LOW_RANK with noise."""
    return _low_rank_matrix(rng, n), _low_rank_matrix(rng, n)


def _low_rank_matrix(rng: Any, n: int) -> Array:
    left, right = rng.standard_normal((n, LOW_RANK)), rng.standard_normal((LOW_RANK, n))
    return left @ right / LOW_RANK**0.5 + LOW_RANK_NOISE * rng.standard_normal((n, n))


def _kaporin_family(xp: Any, rng: Any, n: int) -> MatrixPair:
    return kaporin_matrices(xp, n, "float64")


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "normal": _normal_matrices,
        "uniform [0,1]": _positive_matrices,
        "uniform [-1,1]": uniform_matrices,
        "Kaporin": _kaporin_family,
        "graded": _graded_matrices,
        "low rank": _low_rank_matrices,
    }
)


def matrices_of_family(xp: Any, rng: Any, family: Family, n: int, complex_numbers: bool) -> MatrixPair:
    """Return two float64 matrices of a family; real and imaginary parts of complex128 ones are drawn separately."""
    a, b = family(xp, rng, n)
    if complex_numbers:
        c, d = family(xp, rng, n)
        return a + 1j * c, b + 1j * d
    return a, b


# ---- precise products

MANTISSA_BITS = 53  # bits of a float64
SPLITTER = 2.0**27 + 1  # Veltkamp's constant for float64
MAX_SUMMED_NUMBERS = 1 << 22  # most numbers that Priest's sums hold at a time


def two_sum(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded sum and its rounding error; their sum is exactly x + y."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def two_product(x: Array, y: Array) -> tuple[Array, Array]:
    """Return the rounded product and its rounding error; their sum is exactly x y without under- or overflow."""
    product = x * y
    (a, b), (c, d) = _split_mantissa(x), _split_mantissa(y)
    return product, b * d - (((product - a * c) - b * c) - a * d)


def _split_mantissa(x: Array) -> tuple[Array, Array]:
    """Return two numbers of at most 26 bits each with the sum x."""
    scaled = SPLITTER * x
    high = scaled - (scaled - x)
    return high, x - high


# ---- one entry at a time, by Priest's summation


def doubly_compensated_sums(terms: Array) -> Array:
    """Return the sum of each column, with terms in descending order of magnitude.

    The steps and their names are Priest's.
    """
    order = np.argsort(-np.abs(terms), axis=0, kind="stable")
    x = np.take_along_axis(terms, order, axis=0)
    s, c = x[0].copy(), np.zeros_like(x[0])
    for term in x[1:]:
        y = c + term
        u = term - (y - c)
        t = y + s
        v = y - (t - s)
        z = u + v
        s = t + z
        c = z - (s - t)
    return s


def priest_product(a: Array, b: Array) -> Array:
    """Return a float64 product on the host, each entry a doubly compensated sum of exact products.

    This is D'Alberto and Nicolau's reference (section 3.2), except that they round the products to an extended
    precision.
    """
    (m, k), n = a.shape, b.shape[1]
    rows, cols = np.divmod(np.arange(m * n), n)
    found = np.empty(m * n)
    step = max(MAX_SUMMED_NUMBERS // (2 * k), 1)
    for some in (slice(start, start + step) for start in range(0, m * n, step)):
        terms = np.concatenate(two_product(a[rows[some]].T, b[:, cols[some]]))
        found[some] = doubly_compensated_sums(terms)
    return found.reshape(m, n)


# ---- whole products


class PreciseProduct(NamedTuple):
    """A product as the sum of two float64 (or complex128) parts; the second part is far smaller."""

    high: Array
    low: Array

    def distance(self, found: Array) -> Array:
        """Return the absolute error of each entry of a product."""
        return abs((found - self.high) - self.low)

    @property
    def rows(self) -> int:
        return int(self.high.shape[0])


def precise_product(xp: Any, a: Array, b: Array) -> PreciseProduct:
    """Return A B to about twice the precision of float64.

    The error is relative to the largest numbers of a row of A and a column of B. With A = A1 + A2 + A3 and B = B1 + B2
    + B3, the products A1 B1, A1 B2 and A2 B1 are exact, and the others are 2^-40 of them.
    """
    if a.dtype.kind == "c":
        return _complex_product(xp, a, b)
    a, b = a.astype(np.float64), b.astype(np.float64)
    bits = (MANTISSA_BITS - ceil(log2(max(a.shape[1], 2)))) // 2
    a1, a2, a3 = _leading_bit_slices(xp, a, bits, 1)
    b1, b2, b3 = _leading_bit_slices(xp, b, bits, 0)
    total, lost = two_sum(a1 @ b2, a2 @ b1)
    high, more = two_sum(a1 @ b1, total)
    return PreciseProduct(high, more + (lost + (a1 @ b3 + (a2 @ (b2 + b3) + a3 @ b))))


def _leading_bit_slices(xp: Any, x: Array, bits: int, axis: int) -> tuple[Array, Array, Array]:
    """Return the leading bits of each number relative to the largest along the axis, the next bits, and the rest."""
    found, rest = [], x
    for _ in range(2):
        largest = xp.max(xp.abs(rest), axis=axis, keepdims=True)
        _, exponent = xp.frexp(xp.where(largest > 0, largest, 1.0))
        shift = xp.ldexp(xp.ones_like(largest), exponent + (MANTISSA_BITS - bits))
        found.append((rest + shift) - shift)
        rest = rest - found[-1]
    return found[0], found[1], rest


def _complex_product(xp: Any, a: Array, b: Array) -> PreciseProduct:
    """Return a complex product by one real product of matrices with twice the sides."""
    left = xp.concatenate((xp.hstack((a.real, -a.imag)), xp.hstack((a.imag, a.real))))
    high, low = precise_product(xp, left, xp.concatenate((b.real, b.imag)))
    m = a.shape[0]
    return PreciseProduct(high[:m] + 1j * high[m:], low[:m] + 1j * low[m:])


def reference_product(xp: Any, a: Array, b: Array, unit_roundoff: float) -> PreciseProduct:
    """Return a product of float64 or complex128 matrices that can judge a product with this unit roundoff."""
    if unit_roundoff < COARSE_ROUNDOFF:
        return precise_product(xp, a, b)
    high = a @ b
    return PreciseProduct(high, xp.zeros((1, 1), high.dtype))


COARSE_ROUNDOFF = 2.0**-40  # unit roundoffs from here on show against a plain float64 product
