"""The matrices of the papers' experiments, and the families on which error growth is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Array = Any  # of NumPy or CuPy
Pair = tuple[Array, Array]
Family = Callable[[Any, Any, int], Pair]  # of an array library, a generator of its numbers, a side

GRADED = 1e-6  # the last row of a graded matrix beside its first
RANK, NOISE = 8, 1e-3  # of a matrix of low rank


def kaporin(xp: Any, n: int, dtype: str) -> Pair:
    """A = I + u v^T and B = I - u v^T/(1 + v^T u), each other's inverse, formed in working precision.

    u_i = 1/(n + 1 - i), v_i = sqrt(i), i from 1 to n (Kaporin 1999; Li, Ranka and Sahni, section 8.1.2).
    """
    i = xp.arange(1, n + 1).astype(dtype)
    u, v = 1 / (n + 1 - i), xp.sqrt(i)
    a = u[:, None] * v[None, :]
    b = a / -(1 + v @ u)
    for x in (a, b):
        x.reshape(-1)[:: n + 1] += 1
    return a, b


def _normal(xp: Any, rng: Any, n: int) -> Pair:
    return rng.standard_normal((n, n)), rng.standard_normal((n, n))


def _positive(xp: Any, rng: Any, n: int) -> Pair:
    return rng.random((n, n)), rng.random((n, n))


def uniform(xp: Any, rng: Any, n: int) -> Pair:
    """Uniform in [-1, 1]."""
    return 2 * rng.random((n, n)) - 1, 2 * rng.random((n, n)) - 1


def _graded(xp: Any, rng: Any, n: int) -> Pair:
    """Rows of A and columns of B fall from 1 to GRADED."""
    falls = GRADED ** (xp.arange(n) / max(n - 1, 1))
    a, b = _normal(xp, rng, n)
    return a * falls[:, None], b * falls[None, :]


def graded_inside(xp: Any, rng: Any, n: int) -> Pair:
    """Columns of A fall from 1 to GRADED, and rows of B rise as much."""
    falls = GRADED ** (xp.arange(n) / max(n - 1, 1))
    a, b = _normal(xp, rng, n)
    return a * falls[None, :], b / falls[:, None]


def _low_rank(xp: Any, rng: Any, n: int) -> Pair:
    """Of rank RANK, plus noise."""
    return _low_rank_matrix(rng, n), _low_rank_matrix(rng, n)


def _low_rank_matrix(rng: Any, n: int) -> Array:
    left, right = rng.standard_normal((n, RANK)), rng.standard_normal((RANK, n))
    return left @ right / RANK**0.5 + NOISE * rng.standard_normal((n, n))


def _kaporins(xp: Any, rng: Any, n: int) -> Pair:
    return kaporin(xp, n, "float64")


FAMILIES: Mapping[str, Family] = MappingProxyType(
    {
        "normal": _normal,
        "uniform [0,1]": _positive,
        "uniform [-1,1]": uniform,
        "Kaporin": _kaporins,
        "graded": _graded,
        "low rank": _low_rank,
    }
)


def pair_of(xp: Any, rng: Any, family: Family, n: int, complex_numbers: bool) -> Pair:
    """Two float64 matrices of a family; complex128 ones have parts of two draws."""
    a, b = family(xp, rng, n)
    if complex_numbers:
        c, d = family(xp, rng, n)
        return a + 1j * c, b + 1j * d
    return a, b
