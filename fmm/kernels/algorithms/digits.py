"""Digits: an exact product of integers by a few floating point products, for the BLAS of a CPU.

A sum of products of integers is exact in floating point, in any order of additions, if the sum of the magnitudes of all
terms is at most 2^53 (float32: 2^24): every partial sum is then an integer that the type represents. So A and B are cut
into small digits, with a plane of floating point numbers for each digit, K is cut into blocks of at most `inner` terms,
and planes are multiplied.

Integer types keep the lowest bits of a product: C modulo 2^bits (in two's complement, so that unsigned numbers are read
as signed ones). Digits are signed. With widths w_0, w_1, ..., offsets o_i = w_0 + ... + w_(i - 1), and
H = sum of 2^(w_i - 1) 2^(o_i) over all digits but the last, x + H is cut at the offsets: the field at o_i, less
2^(w_i - 1), is digit i, of magnitude at most 2^(w_i - 1); the bits above the last offset are the last digit. The sum of
all digits, with weights 2^(o_i), is x, or differs from x by 2^bits where x + H wrapped around. The last digit, at
offset o, is at most |x| / 2^o + 1 in magnitude, and at most 2^(bits - 1 - o).

Two digits by two, a_0 + 2^w a_1 and b_0 + 2^w b_1, take three products (Karatsuba's
a_0 b_1 + a_1 b_0 = (a_0 + a_1) (b_0 + b_1) - a_0 b_0 - a_1 b_1). Three by three are nine products. Those with a weight
of 2^64 or more are not needed modulo 2^64: with widths 22, 20 and the rest, a_1 b_2 and a_2 b_1 (2^64) and a_2 b_2. The
others are a_0 b_0, a_1 b_1, Karatsuba's one, and a_0 b_2 + a_2 b_0. The last two have one weight: as adjacent planes
they are one product of twice the inner length. Together these are five products, as many as the product of two
polynomials modulo x^3 takes over any field. (By residues, all 128 + log2 K bits of the whole product would have to be
determined: seven products modulo primes of 21 bits.)
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

Real = Literal["float32", "float64"]
MANTISSA_BITS: Final[dict[Real, int]] = {
    "float32": 24,
    "float64": 53,
}  # bits of the integers that the type represents exactly
RELATIVE_TIME: Final[dict[Real, float]] = {"float32": 0.5, "float64": 1.0}  # of a product
# Adding a product to C takes the time of ADDING_STEPS steps of the inner dimension: the cost of a block of few terms.
ADDING_STEPS: Final = 80
LOW_BITS, MIDDLE_BITS = 22, 20  # widths of 64 bits: 2 LOW_BITS + MIDDLE_BITS = 64
Plane = tuple[int, ...]  # the digits that it is the sum of


@dataclass(frozen=True)
class Planes:
    """The digits of an operand: the widths of all digits but the last, and the planes in memory order."""

    widths: tuple[int, ...] = ()
    order: tuple[Plane, ...] = ((0,),)

    @property
    def offsets(self) -> tuple[int, ...]:
        return tuple(sum(self.widths[:i]) for i in range(len(self.widths) + 1))

    def bounds(self, magnitude: int, bits: int) -> tuple[int, ...]:
        """Return the largest magnitude of each plane, for this largest magnitude of the operand."""
        top = self.offsets[-1]
        last = min((magnitude >> top) + 1, 1 << (bits - 1 - top)) if self.widths else magnitude
        digits = (*(1 << (width - 1) for width in self.widths), last)
        return tuple(sum(digits[i] for i in plane) for plane in self.order)


@dataclass(frozen=True)
class PlaneProduct:
    """`count` neighbouring planes of A from `left` on, times those of B from `right` on; the sum has a weight in C."""

    left: int
    right: int
    weight: int
    count: int = 1


@dataclass(frozen=True)
class DigitProducts:
    """An exact product as products of planes."""

    real: Real
    left: Planes = field(default_factory=Planes)
    right: Planes = field(default_factory=Planes)
    products: tuple[PlaneProduct, ...] = (PlaneProduct(0, 0, 1),)

    @property
    def count(self) -> int:
        """The number of products of planes."""
        return sum(p.count for p in self.products)

    def inner(self, left: int, right: int, bits: int) -> int:
        """Return how many terms a sum may have, for operands of these magnitudes; 0: not even one."""
        x, y = self.left.bounds(left, bits), self.right.bounds(right, bits)
        largest = max(sum(x[p.left + i] * y[p.right + i] for i in range(p.count)) for p in self.products)
        return (1 << MANTISSA_BITS[self.real]) // max(largest, 1)

    def __str__(self) -> str:
        what = f"{self.count} {self.real} product{'s' * (self.count != 1)}"
        widths = (*self.left.widths, *self.right.widths)
        return f"{what} of digits of {max(widths)} bits" if widths else what


# ---- the candidates


def _one_cut(width: int, digits: int, left: bool) -> DigitProducts:
    """Return the product with one operand in digits, the other whole."""
    cut = Planes((width,) * (digits - 1), tuple((i,) for i in range(digits)))
    products = tuple(PlaneProduct(i if left else 0, 0 if left else i, 1 << (width * i)) for i in range(digits))
    return DigitProducts("float64", cut if left else Planes(), Planes() if left else cut, products)


def _two_by_two(bits: int) -> DigitProducts:
    """Return the product modulo 2^bits, where the product of the upper halves vanishes."""
    half = bits // 2
    products = (PlaneProduct(0, 1, 1), PlaneProduct(0, 0, 1 << half, 2))
    return DigitProducts("float64", Planes((half,), ((0,), (1,))), Planes((half,), ((1,), (0,))), products)


def _karatsuba(left: int, right: int) -> DigitProducts:
    """Return the product modulo 2^64, of two or three digits each."""
    widths = {2: (LOW_BITS,), 3: (LOW_BITS, MIDDLE_BITS)}
    x: tuple[Plane, ...] = ((0,), (2,), (1,), (0, 1)) if left == 3 else ((0,), (1,), (0, 1))
    y: tuple[Plane, ...] = ((2,), (0,), (1,), (0, 1)) if right == 3 else ((0,), (1,), (0, 1))
    if (left, right) == (2, 3):
        y = ((2,), (0,), (1,), (0, 1))
    one, both, cross = 1 << LOW_BITS, (1,), (0, 1)
    products = [
        PlaneProduct(x.index((0,)), y.index((0,)), 1 - one),
        PlaneProduct(x.index(both), y.index(both), (one - 1) * one),
        PlaneProduct(x.index(cross), y.index(cross), one),
    ]
    top = 1 << (LOW_BITS + MIDDLE_BITS)
    if left == right == 3:
        products.append(PlaneProduct(0, 0, top, 2))
    elif left == 3:
        products.append(PlaneProduct(x.index((2,)), y.index((0,)), top))
    elif right == 3:
        products.append(PlaneProduct(x.index((0,)), y.index((2,)), top))
    return DigitProducts("float64", Planes(widths[left], x), Planes(widths[right], y), tuple(products))


def _candidates(left: int, right: int, bits: int) -> Iterator[DigitProducts]:
    """Yield the candidates for operands of these magnitudes modulo 2^bits."""
    yield DigitProducts("float32")
    yield DigitProducts("float64")
    for digits in (2, 3):
        for magnitude, first in ((left, True), (right, False)):
            width = -(-(magnitude.bit_length() + 1) // digits)
            if width > 1 and width * (digits - 1) < bits:
                yield _one_cut(width, digits, first)
    if bits == 64:
        yield from (_karatsuba(x, y) for x, y in ((2, 2), (2, 3), (3, 2), (3, 3)))
    else:
        yield _two_by_two(bits)


@lru_cache(maxsize=1024)
def digit_products(left: int, right: int, k: int, bits: int) -> tuple[DigitProducts, int]:
    """Return the fastest product for operands of these magnitudes modulo 2^bits, and the terms of a floating point sum.

    `k`: terms of the whole sum. Bounds may replace the magnitudes.
    """
    best: tuple[float, DigitProducts, int] | None = None
    for candidate in _candidates(left, right, bits):
        inner = min(candidate.inner(left, right, bits), k)
        if inner:
            time = candidate.count * RELATIVE_TIME[candidate.real] + len(candidate.products) * ADDING_STEPS / inner
            if best is None or time < best[0]:
                best = time, candidate, inner
    assert best is not None, "digits by digits are always few enough"
    return best[1:]


def worst_case_digit_products(bits: int, k: int) -> tuple[DigitProducts, int]:
    """Return the same for any numbers of a type."""
    return digit_products(1 << (bits - 1), 1 << (bits - 1), max(k, 1), bits)
