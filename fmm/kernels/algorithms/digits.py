"""Products by digits: exact products of integer matrices, computed by a CPU's BLAS as products of float matrices.

A sum of products of integers is exact in float64 if the magnitudes of all terms add up to at most 2^53 (float32: 2^24).
Every partial sum is then an integer that the type represents exactly, in any order of additions. The entries of A and B
are cut into small digits, so that the magnitudes add up to at most 2^53 (or 2^24). All digits with the same index form
a floating-point matrix, a plane. The inner dimension is cut into blocks that are short enough for exact sums, and BLAS
multiplies planes block by block.

Integer types keep only the lowest bits of a product: C modulo 2^bits. (In two's complement, an unsigned integer can be
read as the signed integer with the same bits.)

Digits are signed: a digit of w bits has a magnitude of at most 2^(w - 1). To cut a number into digits, 2^(w - 1) is
added at the place of each digit except the last, the bits of the sum are cut into fields, and 2^(w - 1) is subtracted
from each field. The last digit has all remaining upper bits. If the lower digits have o bits together, the magnitude of
the last digit of x is at most |x| / 2^o + 1, and at most 2^(bits - 1 - o).

Two digits by two digits, (a_0 + 2^w a_1) (b_0 + 2^w b_1), need three products instead of four by Karatsuba's identity:
a_0 b_1 + a_1 b_0 = (a_0 + a_1) (b_0 + b_1) - a_0 b_0 - a_1 b_1.

Three digits by three digits would be nine products. Digits of 64-bit integers have 22, 20 and 22 bits, from the lowest
digit a_0 to the highest digit a_2, so that a_1 b_2, a_2 b_1 and a_2 b_2 vanish modulo 2^64. Karatsuba's identity leaves
five products: a_0 b_0, a_1 b_1, (a_0 + a_1) (b_0 + b_1), a_0 b_2 and a_2 b_0. One BLAS call of twice the inner length
computes a_0 b_2 + a_2 b_0, because the planes of a_0 and a_2 are adjacent in memory, and the planes of b_2 and b_0 too.
Residues would need seven products modulo primes of 21 bits, because residues must determine all 128 + log2 k bits of a
product of 64-bit integers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

RealType = Literal["float32", "float64"]
# The type represents all integers of at most this number of bits exactly.
MANTISSA_BITS: Final[dict[RealType, int]] = {"float32": 24, "float64": 53}
# Time of a product of planes in this type, as a multiple of the time of a float64 product.
RELATIVE_TIME: Final[dict[RealType, float]] = {"float32": 0.5, "float64": 1.0}
# Adding a product of planes to C takes as long as multiplying planes with this inner dimension.
ADDITION_COST_IN_TERMS: Final = 80
LOW_BITS, MIDDLE_BITS = 22, 20  # widths of the digits of 64-bit integers, in bits: 2 LOW_BITS + MIDDLE_BITS = 64
DigitSum = tuple[int, ...]  # indices of the digits that are added to form a plane


@dataclass(frozen=True)
class OperandPlanes:
    """The digits of an operand: the bits of every digit except the last, and the planes in their order in memory."""

    widths: tuple[int, ...] = ()
    order: tuple[DigitSum, ...] = ((0,),)

    @property
    def digit_offsets(self) -> tuple[int, ...]:
        return tuple(sum(self.widths[:i]) for i in range(len(self.widths) + 1))

    def digit_plane_bounds(self, magnitude: int, bits: int) -> tuple[int, ...]:
        """Return the largest possible magnitude in each plane; `magnitude` is the largest magnitude in the operand."""
        top = self.digit_offsets[-1]
        last = min((magnitude >> top) + 1, 1 << (bits - 1 - top)) if self.widths else magnitude
        digits = (*(1 << (width - 1) for width in self.widths), last)
        return tuple(sum(digits[i] for i in plane) for plane in self.order)


@dataclass(frozen=True)
class PlaneProduct:
    """One BLAS call: weight times the sum of A[left + i] B[right + i] for i < count, where A[p] is plane p of A."""

    left: int
    right: int
    weight: int
    count: int = 1


@dataclass(frozen=True)
class DigitProducts:
    """An exact product of integer matrices, as products of planes."""

    real: RealType
    left: OperandPlanes = field(default_factory=OperandPlanes)
    right: OperandPlanes = field(default_factory=OperandPlanes)
    products: tuple[PlaneProduct, ...] = (PlaneProduct(0, 0, 1),)

    @property
    def product_count(self) -> int:
        """Return the number of products of planes."""
        return sum(p.count for p in self.products)

    def max_inner_length(self, left: int, right: int, bits: int) -> int:
        """Return the largest inner dimension for which all products of planes are exact; 0 if none is exact.

        `left` and `right` are the largest magnitudes in A and B.
        """
        x, y = self.left.digit_plane_bounds(left, bits), self.right.digit_plane_bounds(right, bits)
        largest = max(sum(x[p.left + i] * y[p.right + i] for i in range(p.count)) for p in self.products)
        return (1 << MANTISSA_BITS[self.real]) // max(largest, 1)

    def __str__(self) -> str:
        what = f"{self.product_count} {self.real} product{'s' * (self.product_count != 1)}"
        widths = (*self.left.widths, *self.right.widths)
        return f"{what} of digits of {max(widths)} bits" if widths else what


# ---- the candidates


def _product_with_one_split_operand(width: int, digits: int, left: bool) -> DigitProducts:
    """Return the product with one operand cut into digits of `width` bits and the other operand uncut."""
    cut = OperandPlanes((width,) * (digits - 1), tuple((i,) for i in range(digits)))
    products = tuple(PlaneProduct(i if left else 0, 0 if left else i, 1 << (width * i)) for i in range(digits))
    return DigitProducts("float64", cut if left else OperandPlanes(), OperandPlanes() if left else cut, products)


def _two_digit_product(bits: int) -> DigitProducts:
    """Return the product of two digits by two digits modulo 2^bits.

    The product of the upper digits is a multiple of 2^bits, so it is not computed.
    """
    half = bits // 2
    products = (PlaneProduct(0, 1, 1), PlaneProduct(0, 0, 1 << half, 2))
    return DigitProducts(
        "float64", OperandPlanes((half,), ((0,), (1,))), OperandPlanes((half,), ((1,), (0,))), products
    )


def _karatsuba_product(left: int, right: int) -> DigitProducts:
    """Return the product modulo 2^64 by Karatsuba's identity; A has `left` digits and B has `right` digits (2 or 3)."""
    widths = {2: (LOW_BITS,), 3: (LOW_BITS, MIDDLE_BITS)}
    x: tuple[DigitSum, ...] = ((0,), (2,), (1,), (0, 1)) if left == 3 else ((0,), (1,), (0, 1))
    y: tuple[DigitSum, ...] = ((2,), (0,), (1,), (0, 1)) if right == 3 else ((0,), (1,), (0, 1))
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
    return DigitProducts("float64", OperandPlanes(widths[left], x), OperandPlanes(widths[right], y), tuple(products))


def _candidate_digit_products(left: int, right: int, bits: int) -> Iterator[DigitProducts]:
    """Yield the candidates for products modulo 2^bits; `left` and `right` are the largest magnitudes in A and B."""
    yield DigitProducts("float32")
    yield DigitProducts("float64")
    for digits in (2, 3):
        for magnitude, first in ((left, True), (right, False)):
            width = -(-(magnitude.bit_length() + 1) // digits)
            if width > 1 and width * (digits - 1) < bits:
                yield _product_with_one_split_operand(width, digits, first)
    if bits == 64:
        yield from (_karatsuba_product(x, y) for x, y in ((2, 2), (2, 3), (3, 2), (3, 3)))
    else:
        yield _two_digit_product(bits)


@lru_cache(maxsize=1024)
def fastest_digit_products(left: int, right: int, k: int, bits: int) -> tuple[DigitProducts, int]:
    """Return the fastest exact product modulo 2^bits, and the largest inner dimension of one BLAS call.

    `left` and `right` are upper bounds of the magnitudes in A and B. `k` is the inner dimension of A B.
    """
    best: tuple[float, DigitProducts, int] | None = None
    for candidate in _candidate_digit_products(left, right, bits):
        inner = min(candidate.max_inner_length(left, right, bits), k)
        if inner:
            time = (
                candidate.product_count * RELATIVE_TIME[candidate.real]
                + len(candidate.products) * ADDITION_COST_IN_TERMS / inner
            )
            if best is None or time < best[0]:
                best = time, candidate, inner
    assert best is not None, "digits by digits are always few enough"
    return best[1:]


def digit_products_for_any_input(bits: int, k: int) -> tuple[DigitProducts, int]:
    """Return the fastest product that is exact for all `bits`-bit integers, and the largest k of one BLAS call."""
    return fastest_digit_products(1 << (bits - 1), 1 << (bits - 1), max(k, 1), bits)
