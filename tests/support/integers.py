"""Whole numbers of all kinds for tests, and their exact products by Python's integers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def uniform_integers(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    i = np.iinfo(dtype)
    return draw.integers(i.min, i.max, shape, dtype=dtype, endpoint=True)


def with_bits(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return random integers of up to `bits` bits, with both signs if the type has them."""
    bits, i = int(draw.integers(1, 8 * np.dtype(dtype).itemsize)), np.iinfo(dtype)
    most = min((1 << bits) - 1, int(i.max))
    return draw.integers(max(-most, int(i.min)), most, shape, dtype=dtype, endpoint=True)


def lowest_and_highest(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    i = np.iinfo(dtype)
    return draw.choice(np.array([i.min, i.max, i.min + 1, i.max - 1, 0, 1], dtype), shape)


def all_lowest(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, np.iinfo(dtype).min, dtype)


def all_highest(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    return np.full(shape, np.iinfo(dtype).max, dtype)


def alternating_signs(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    found = np.full(shape, np.iinfo(dtype).max, dtype)
    found.reshape(-1)[::2] = np.iinfo(dtype).min
    return found


def powers_of_two(draw: np.random.Generator, dtype: str, shape: tuple[int, ...]) -> Array:
    """Return powers of two, one more and one less, at which digits carry."""
    bits = 8 * np.dtype(dtype).itemsize
    found = np.uint64(1) << draw.integers(0, bits, shape).astype(np.uint64)
    return (found + draw.integers(0, 3, shape).astype(np.uint64) - np.uint64(1)).astype(dtype)


INTEGER_KINDS: list[Callable[..., Array]] = [
    uniform_integers,
    with_bits,
    lowest_and_highest,
    all_lowest,
    all_highest,
    alternating_signs,
    powers_of_two,
]


def draw_integers(draw: np.random.Generator, dtype: str, shape: tuple[int, ...], kind: int | None = None) -> Array:
    if dtype == "bool":
        return np.asarray(draw.random(shape) < draw.choice([0.02, 0.5, 1.0]))
    return INTEGER_KINDS[draw.integers(len(INTEGER_KINDS)) if kind is None else kind](draw, dtype, shape)


def python_product(a: Array, b: Array) -> Array:
    """Return the product by Python's unbounded integers, of which the lowest bits are kept."""
    if a.dtype == np.bool_:
        return np.asarray((a.astype(object) @ b.astype(object)) > 0)
    bits = 8 * a.dtype.itemsize
    whole = np.asarray(a.astype(object) @ b.astype(object)) % (1 << bits)
    return whole.astype(f"u{a.dtype.itemsize}").view(a.dtype) if whole.size else np.zeros(whole.shape, a.dtype)


def with_layout(x: Array, how: int) -> Array:
    """Return the same numbers in another memory layout."""
    if how == 1:
        return np.asfortranarray(x)
    if how == 2:
        return np.repeat(np.repeat(x, 2, 0), 3, 1)[::2, ::3]
    return x[::-1].copy()[::-1] if how == 3 else x
