"""Pairs of float32 matrices of every kind on which products by float16 numbers might go wrong, and the
promised error bounds."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Pair = tuple[Array, Array]

# |error| of an entry beside the norms of its row of A and its column of B: hi and lo lose 2^-22 of a number
# each, their lowest product as much; the tensor cores cut up to 17 numbers that they add, four times before
# their sum is promoted. The rounding errors of float32 sums are smaller, except in very long sums of numbers
# of one sign. (Measured: up to 5 times 2^-22.)
BOUND_BY_NORMS = 16 * 2.0**-22


def bound_by_entries(k: int) -> float:
    """|error| of an entry beside the same entry of |A| |B|, with componentwise: as of float32 sums one after the other;
    short ones are cut by the tensor cores, of 64 numbers at a time."""
    return max(k, 256) * 2.0**-24


def hard_matrices(m: int, k: int, n: int, seed: int = 5) -> dict[str, Pair]:
    rng = np.random.default_rng(seed)
    a, b = rng.standard_normal((m, k)), rng.standard_normal((k, n))
    found = _usual(rng, a, b) | _graded(rng, a, b) | _scaled(rng, a, b) | _sparse(rng, a, b)
    if m == k == n:
        found |= _structured(n)
    return {name: (x.astype(np.float32), y.astype(np.float32)) for name, (x, y) in found.items()}


def _usual(rng: np.random.Generator, a: Array, b: Array) -> dict[str, Pair]:
    left, right = tuple(a.shape), tuple(b.shape)
    found: dict[str, Pair] = {
        "normal": (a, b),
        "uniform [0, 1]": (rng.random(left), rng.random(right)),
        "uniform [-1, 1]": (rng.uniform(-1, 1, left), rng.uniform(-1, 1, right)),
        "whole numbers to 2^24": (rng.integers(-(2**24), 2**24, left), rng.integers(-(2**24), 2**24, right)),
        "rectified": (np.maximum(a, 0), b),
    }
    for sigma in (2, 4, 8):
        spread = [np.exp(sigma * rng.standard_normal(x.shape)) for x in (a, b)]
        found[f"log-normal, sigma {sigma}"] = a * spread[0], b * spread[1]
    return found


def _graded(rng: np.random.Generator, a: Array, b: Array) -> dict[str, Pair]:
    found = {"rows and columns": (a * _powers(rng, a.shape[:1])[:, None], b * _powers(rng, b.shape[1:]))}
    for bits in (12, 20, 40, 60):
        grade = np.exp2(np.linspace(-bits / 2, bits / 2, a.shape[1]))
        found[f"inner dimension alike, 2^{bits}"] = a * grade, b * grade[:, None]
        found[f"inner dimension opposite, 2^{bits}"] = a * grade, b / grade[:, None]
    found["every number its own size"] = a * _powers(rng, a.shape, 20), b * _powers(rng, b.shape, 20)
    return found


def _scaled(rng: np.random.Generator, a: Array, b: Array) -> dict[str, Pair]:
    return {
        "huge and tiny": (a * 1e37, b * 1e-37),
        "near overflow": (a * 1e18, b * 1e17),
        "subnormal": (a * 1e-40, b * 1e30),
        "results subnormal": (a * 1e-20, b * 1e-20),
        "one huge entry in a row": (_huge(rng, a), b),
        "one huge entry, its partners zero": _without_partners(a, b),
    }


def _sparse(rng: np.random.Generator, a: Array, b: Array) -> dict[str, Pair]:
    return {
        "zeros": (a * 0, b),
        "some rows and columns of zeros": (a * (rng.random((len(a), 1)) < 0.5), b * (rng.random(b.shape[1]) < 0.5)),
        "one number in a hundred": (a * (rng.random(a.shape) < 0.01), b * (rng.random(b.shape) < 0.01)),
    }


def _structured(n: int) -> dict[str, Pair]:
    """Return Kaporin's matrices, whose product is the identity (Li, Ranka and Sahni, 8.1.2), and Hilbert and
    Vandermonde matrices."""
    i = np.arange(1, n + 1)
    u, v = 1 / (n + 1 - i), np.sqrt(i)
    outer, hilbert = np.outer(u, v), 1 / (i[:, None] + i - 1)
    return {
        "Kaporin's": (np.eye(n) + outer, np.eye(n) - outer / (1 + v @ u)),
        "Hilbert's": (hilbert, hilbert),
        "powers": ((i[:, None] / n) ** np.minimum(i - 1, 40), hilbert),
    }


def _powers(rng: np.random.Generator, shape: tuple[int, ...], most: int = 40) -> Array:
    return np.exp2(rng.integers(-most, most, shape).astype(np.float64))


def _huge(rng: np.random.Generator, a: Array) -> Array:
    found = a.copy()
    found[np.arange(len(a)), rng.integers(0, a.shape[1], len(a))] = 1e20
    return found


def _without_partners(a: Array, b: Array) -> Pair:
    left, right = a.copy(), b.copy()
    left[:, 3], right[3] = 1e20, 0
    return left, right


# ---- errors


def relative_errors(a: Array, b: Array, c: Array) -> tuple[float, float]:
    """Return the largest errors relative to the norms of rows and columns, and to |A| |B|. An error below the
    smallest number counts as zero."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    off = np.maximum(np.abs(c.astype(np.float64) - x @ y) - 2.0**-149, 0)
    norms = np.outer(np.linalg.norm(x, axis=1), np.linalg.norm(y, axis=0))
    return _largest(off, norms), _largest(off, np.abs(x) @ np.abs(y))


def _largest(off: Array, size: Array) -> float:
    """Return the largest error relative to `size`; where the size is zero, any error is infinitely large."""
    shares = np.divide(off, size, out=np.where(off > 0, np.inf, 0.0), where=size > 0)
    return float(shares.max())
