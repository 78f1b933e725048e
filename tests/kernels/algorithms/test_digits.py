"""Digits: every way is exact in the model of floating point that its docstring proves it in."""

from __future__ import annotations

import random

import pytest

from fmm.kernels.algorithms.digits import (
    MANTISSA_BITS,
    DigitProducts,
    OperandPlanes,
    digit_products_for_any_input,
    fastest_digit_products,
)


def digits_of(x: int, planes: OperandPlanes, bits: int) -> list[int]:
    """As the docstring cuts a number, in arithmetic modulo 2^bits."""
    offsets, widths = planes.digit_offsets, planes.widths
    total = x + sum(1 << (o + w - 1) for o, w in zip(offsets, widths, strict=False))
    total = (total + (1 << (bits - 1))) % (1 << bits) - (1 << (bits - 1))
    low = [(total >> o) % (1 << w) - (1 << (w - 1)) for o, w in zip(offsets, widths, strict=False)]
    return [*low, total >> offsets[-1]]


def product_by(way: DigitProducts, a: list[int], b: list[int], bits: int) -> tuple[int, int]:
    """The sum of products modulo 2^bits, and the largest sum of magnitudes that was added up."""
    x, y = ([_planes(v, cut, bits) for v in vs] for vs, cut in ((a, way.left), (b, way.right)))
    total = largest = 0
    for p in way.products:
        terms = [x[t][p.left + i] * y[t][p.right + i] for t in range(len(a)) for i in range(p.count)]
        largest = max(largest, sum(map(abs, terms)))
        total += p.weight * sum(terms)
    return total % (1 << bits), largest


def _planes(x: int, cut: OperandPlanes, bits: int) -> list[int]:
    digits = digits_of(x, cut, bits)
    return [sum(digits[i] for i in plane) for plane in cut.order]


SIZES = [1, 2, 7, 100, 2**10, 2**20, 2**22 - 1, 2**31, 2**41, 2**45, 2**62, 2**63 - 1, 2**63]


@pytest.mark.parametrize("bits", [8, 16, 32, 64])
def test_every_way_is_exact(bits: int) -> None:
    draw = random.Random(bits)
    for left in (size for size in SIZES if size <= 1 << (bits - 1)):
        for right in (size for size in SIZES if size <= 1 << (bits - 1)):
            for k in (1, 5, 4096):
                way, inner = fastest_digit_products(left, right, k, bits)
                assert 1 <= inner <= k
                terms = min(inner, 6)
                a, b = ([_drawn(size, bits, draw) for _ in range(terms)] for size in (left, right))
                found, largest = product_by(way, a, b, bits)
                assert found == sum(x * y for x, y in zip(a, b, strict=True)) % (1 << bits)
                assert largest * inner <= terms << MANTISSA_BITS[way.real]


def _drawn(size: int, bits: int, draw: random.Random) -> int:
    return draw.choice((-size, min(size, (1 << (bits - 1)) - 1), draw.randint(-size, size - 1)))


def test_planes_are_within_their_bounds() -> None:
    for bits, way in ((bits, digit_products_for_any_input(bits, 4096)[0]) for bits in (8, 16, 32, 64)):
        most = 1 << (bits - 1)
        bounds = way.left.digit_plane_bounds(most, bits)
        around = [s * (1 << e) + d for e in range(bits - 1) for s in (1, -1) for d in (-1, 0)]
        extremes = [-most, most - 1, 0, 1, -1, most // 3, *around]
        for x in extremes:
            assert all(abs(v) <= bound for v, bound in zip(_planes(x, way.left, bits), bounds, strict=True))


@pytest.mark.parametrize(
    ("left", "right", "bits", "count", "real", "inner"),
    [
        (2**63, 2**63, 64, 5, "float64", 1024),
        (2**63, 1000, 64, 2, "float64", None),
        (2**40, 2**40, 64, 3, "float64", None),
        (2**63, 2**40, 64, 4, "float64", None),
        (2**20, 2**20, 64, 1, "float64", 4096),
        (2**31, 2**31, 32, 3, "float64", 4096),
        (2**15, 2**15, 16, 1, "float64", 4096),
        (2**7, 2**7, 8, 1, "float32", 1024),
        (1, 1, 64, 1, "float32", 4096),
    ],
)
def test_how_many_products(left: int, right: int, bits: int, count: int, real: str, inner: int | None) -> None:
    way, found = fastest_digit_products(left, right, 4096, bits)
    assert (way.product_count, way.real) == (count, real)
    assert inner in (None, found)


def test_what_is_said() -> None:
    assert str(digit_products_for_any_input(64, 1024)[0]) == "5 float64 products of digits of 22 bits"
    assert str(digit_products_for_any_input(8, 1024)[0]) == "1 float32 product"
