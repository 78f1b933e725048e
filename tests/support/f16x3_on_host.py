"""The arithmetic of f16_spread.cuh and gemm_f16x3.cuh in NumPy: planes, the recorded spread of rows and columns, the
balanced inner dimension, and sums promoted to float32 after 64 products."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

Array = np.ndarray[Any, Any]
TOP, CHUNK, BELOW, FURTHEST = 14, 64, 2048, 80


class Split(NamedTuple):
    """The split rows of a matrix: hi and lo, exponents, shares of large numbers, and for each row whether it
    has no small number."""

    hi: Array
    lo: Array
    exponents: Array
    shares: Array
    clean: Array


def split_rows(x: Array, shifts: Array) -> Split:
    """Split the rows of a matrix; `shifts` are exponents that scale the columns too."""
    wide = np.ldexp(x.astype(np.float64), shifts)
    most = np.abs(wide).max(axis=1)
    exponents = np.where(most > 0, TOP - np.frexp(most)[1] + 1, 0)
    scaled = np.ldexp(wide, exponents[:, None]).astype(np.float32)
    hi = scaled.astype(np.float16)
    lo = ((scaled - hi.astype(np.float32)) * BELOW).astype(np.float16)
    shares = np.where(most > 0, (np.abs(scaled) >= 8).sum(axis=1) * 2**14 // x.shape[1], 2**14)
    small = (x != 0) & (np.abs(scaled) < 2.0**-14)
    return Split(hi, lo, exponents, shares, ~small.any(axis=1))


def balancing_shifts(a: Array, b: Array) -> tuple[Array, Array]:
    """Return the exponents that scale A's columns and B's rows; very small ones where the other side is zero."""
    left, right = (np.abs(x).max(axis=axis).astype(np.float64) for x, axis in ((a, 0), (b, 1)))
    found = np.clip((np.frexp(right)[1] - np.frexp(left)[1]) // 2, -FURTHEST, FURTHEST)
    return np.where(right > 0, found, -FURTHEST), np.where(left > 0, -found, -FURTHEST)


def accurate_entries(a: Split, b: Split) -> Array:
    shares = a.shares[:, None] + b.shares >= 2**14 + 2**12
    return (a.clean[:, None] & b.clean) | shares


def product_on_host(a: Array, b: Array, checked: bool = True) -> tuple[Array, Array, bool]:
    """Return C, the mask of accurate entries, and whether the inner dimension was balanced, as in checked products
    only."""
    none = np.zeros(a.shape[1], np.int64)
    left, right = split_rows(a, none), split_rows(b.T, none)
    all_clean = bool(left.clean.all() and right.clean.all())
    balanced = checked and not all_clean and bool(left.shares.min() + right.shares.min() < 2**14 + 2**12)
    if balanced:
        shifts = balancing_shifts(a, b)
        left, right = split_rows(a, shifts[0]), split_rows(b.T, shifts[1])
    high, low = (np.zeros((a.shape[0], b.shape[1]), np.float32) for _ in range(2))
    for at in range(0, a.shape[1], CHUNK):
        u, x, v, y = (p[:, at : at + CHUNK].astype(np.float64) for p in (left.hi, left.lo, right.hi, right.lo))
        high += (u @ v.T).astype(np.float32)
        low += (u @ y.T + x @ v.T).astype(np.float32)
    whole = (high + low / np.float32(BELOW)).astype(np.float64)
    c = np.ldexp(whole, -left.exponents[:, None] - right.exponents)
    with np.errstate(over="ignore"):
        return c.astype(np.float32), accurate_entries(left, right), balanced
