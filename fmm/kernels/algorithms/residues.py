"""Residues: products of integer matrices, computed modulo pairwise coprime moduli (Chinese remainder theorem).

If |a| <= 2^x and |b| <= 2^y for all entries of A and B, an entry of A B is at most k 2^(x + y) in magnitude, with inner
dimension k. The residues of an entry determine the entry if the product of all moduli is more than twice this bound:
integers with equal residues differ by a multiple of the product of all moduli.

An entry is reconstructed from a weighted sum of its residues. The weight of a modulus is 1 modulo this modulus, and 0
modulo all other moduli, so the weighted sum s differs from the entry by a multiple of M, the product of all moduli. The
factor of this multiple is s / M, rounded to an integer, if the computed quotient s / M has a small error.
`moduli_count_for_bound` leaves a margin of 2^-10 for the error of this quotient. In float64, the error of the quotient
is below 2^-29: at most 48 terms, each below 2^12, are added, so the additions round by at most 48^2 2^12 2^-53.

Matrices of float64 become integers by scaling rows and columns with powers of two; the bound on their products is
proved in kernels/cuda/device_code/residue_planes.cuh.

Products of integer types wrap around modulo 2^bits, so integers are reconstructed with weights modulo 2^64. Unsigned
integers are read as signed integers with the same bits: the values differ by a multiple of 2^bits.

The moduli are at most 256, so that residues fit into 8 signed bits (-128 to 127) for the tensor cores of GPUs. The
largest pairwise coprime moduli are chosen greedily: 256, 255, 253, 251, 247, ..., as in Ozaki's scheme II (Ozaki,
Uchino, Imamura, 2025).

Complex numbers need two products for each modulus instead of three (the scheme 2M of arXiv 2609.05419). The moduli for
complex numbers have only prime factors that are 1 modulo 4, so an integer j with j^2 = -1 exists modulo each modulus. A
complex matrix X becomes two integer matrices, X+ = Re X + j Im X and X- = Re X - j Im X. For C = A B, the two products
modulo each modulus are C+ = A+ B+ and C- = A- B-, because j^2 = -1. From C+ and C-, the real part of C is (C+ + C-) /
2, and the imaginary part is (C+ - C-) / (2j). (2 and j have inverses modulo each modulus, because the modulus is odd
and j (-j) = 1.) The factors 1 / 2 and 1 / (2j) are part of the weights of the reconstruction. The real and imaginary
parts of C have the same bound as real products, because |sum a b| <= |a| |b| also holds for complex vectors and their
2-norms. Conjugating a complex matrix exchanges its two integer matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, isqrt, prod, sqrt
from typing import Final

LARGEST_MODULUS: Final = 256  # the largest modulus, with residues from -128 to 127
MAX_MODULI_COUNT: Final = 48  # largest number of moduli for which the error bound in the module's docstring holds
# The product of the moduli is at least 1 + ROUNDING_MARGIN times twice the bound of the entries, so that rounding
# errors cannot change a reconstructed entry.
ROUNDING_MARGIN: Final = Fraction(1, 256)
# Upper bound of the norm of a scaled row or column, so that sums of four scaled numbers fit into 64-bit integers.
MAX_NORM: Final = 2.0**60
MAX_WEIGHT_PIECES: Final = 4  # largest number of pieces of a weight, as in residue_join.cuh
FLOAT64_EXACT_BITS: Final = 52  # number of bits of an integer that float64 stores exactly


@lru_cache(maxsize=2)
def _coprime_moduli(for_complex: bool = False) -> tuple[int, ...]:
    found: list[int] = []
    for candidate in range(LARGEST_MODULUS, 1, -1):
        if all(gcd(candidate, other) == 1 for other in found) and (not for_complex or has_imaginary_unit(candidate)):
            found.append(candidate)
    return tuple(found[:MAX_MODULI_COUNT])


def has_imaginary_unit(modulus: int) -> bool:
    """Return True if the modulus is odd and has an integer j with j^2 = -1: all its prime factors are 1 modulo 4."""
    return modulus % 2 == 1 and any((j * j + 1) % modulus == 0 for j in range(modulus))


def imaginary_unit(modulus: int) -> int:
    """Return the smallest j with j^2 = -1 modulo this modulus, for which `has_imaginary_unit` must be True."""
    return next(j for j in range(modulus) if (j * j + 1) % modulus == 0)


def first_moduli(count: int, for_complex: bool = False) -> tuple[int, ...]:
    """Return the first `count` moduli (pairwise coprime, from 256 downwards); raise ValueError if there are fewer.

    With `for_complex`, the moduli are those with an imaginary unit, from 241 downwards.
    """
    available = _coprime_moduli(for_complex)
    if not 0 <= count <= len(available):
        raise ValueError(f"there are {len(available)} moduli, not {count}")
    return available[:count]


def moduli_count_for_bound(bound: int) -> int:
    """Return the number of moduli that determine integers up to the magnitude `bound`, with ROUNDING_MARGIN."""
    needed, modulus_product = 2 * bound * (1 + ROUNDING_MARGIN), 1
    for count, modulus in enumerate(_coprime_moduli(), 1):
        modulus_product *= modulus
        if modulus_product >= needed:
            return count
    raise ValueError(f"integers of {bound.bit_length()} bits need more than {len(_coprime_moduli())} moduli")


def moduli_count_for_product(bits_a: int, bits_b: int, k: int) -> int:
    """Return the number of moduli for a product A B with |a| <= 2^bits_a, |b| <= 2^bits_b and inner dimension k."""
    return moduli_count_for_bound(max(k, 1) << (bits_a + bits_b))


@dataclass(frozen=True)
class RemainderWeights:
    """The weights of the Chinese remainder theorem for the first moduli of the list, as exact integers."""

    moduli: tuple[int, ...]
    product: int  # M, the product of the moduli
    weights: tuple[int, ...]  # weight i is 1 modulo moduli[i], and 0 modulo all other moduli

    @property
    def complex_weights(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the weights for the real and for the imaginary part of a complex entry.

        Modulo moduli[i], weight i is 1 / 2 for the real part and 1 / (2j) for the imaginary part, where j^2 = -1.
        """
        real = (w * pow(2, -1, p) for w, p in zip(self.weights, self.moduli, strict=True))
        imaginary = (w * pow(2 * imaginary_unit(p), -1, p) for w, p in zip(self.weights, self.moduli, strict=True))
        return tuple(w % self.product for w in real), tuple(w % self.product for w in imaginary)


@lru_cache(maxsize=64)
def remainder_weights(count: int, for_complex: bool = False) -> RemainderWeights:
    """Return the weights of the Chinese remainder theorem for the first `count` moduli."""
    chosen = first_moduli(count, for_complex)
    product = prod(chosen)
    return RemainderWeights(chosen, product, tuple(product // p * pow(product // p, -1, p) for p in chosen))


def symmetric_residue(value: int, modulus: int) -> int:
    """Return the residue of `value` in [-modulus/2, modulus/2). For modulus 256, residues are -128 to 127."""
    half = modulus // 2
    return (value + half) % modulus - half


# ---- floating-point numbers, scaled and rounded to integers


def max_scaled_norm(moduli: int, k: int, for_complex: bool = False) -> float:
    """Return the largest norm that a row of A or a column of B may have after scaling.

    The scalar product of a row and a column is at most the product of their norms (Cauchy-Schwarz). This scalar product
    must be smaller than M / 2, where M is the product of all moduli, so each norm must be smaller than sqrt(M / 2).
    Rounding to integers then changes each real number of a row or column by at most 1/2, and so increases the norm.
    """
    half = float(isqrt(remainder_weights(moduli, for_complex).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k * (1 + for_complex)), MAX_NORM)


@dataclass(frozen=True)
class CrtWeightPieces:
    """The weights of the Chinese remainder theorem, cut into groups of bits (pieces) so that float64 sums are exact."""

    moduli: int
    levels: int
    for_complex: bool = False

    @property
    def remainder_weights(self) -> RemainderWeights:
        """The weights as integers."""
        return remainder_weights(self.moduli, self.for_complex)

    @property
    def piece_bits(self) -> int:
        """Return the number of bits in each piece of a weight, so that a sum of pieces times residues is exact.

        A residue has 7 bits. Each level of Strassen's algorithm adds four residues, so the sum has 2 more bits. For
        complex numbers, the residues of two planes are added or subtracted, which needs 1 more bit. The sum over all
        moduli needs log2(number of moduli) more bits.
        """
        return FLOAT64_EXACT_BITS - 7 - 2 * self.levels - self.for_complex - (self.moduli - 1).bit_length()

    @property
    def weight_piece_count(self) -> int:
        return -(-self.remainder_weights.product.bit_length() // self.piece_bits)

    @property
    def inverse_moduli_product(self) -> float:
        """Return the value of the lowest bit of the most significant pieces, divided by the product of all moduli."""
        return float(2 ** (self.piece_bits * (self.weight_piece_count - 1)) / self.remainder_weights.product)

    def split_number(self, x: int) -> list[float]:
        """Return the pieces of a number, the most significant piece first, padded with zeros to MAX_WEIGHT_PIECES."""
        places = range(self.piece_bits * (self.weight_piece_count - 1), -1, -self.piece_bits)
        pieces = [float(x >> place & (1 << self.piece_bits) - 1) for place in places]
        return pieces + [0.0] * (MAX_WEIGHT_PIECES - len(pieces))
