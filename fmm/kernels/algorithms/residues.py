"""Residues: an integer product by products of small integers modulo pairwise coprime numbers (Chinese remainders).

The residues modulo p_1, ..., p_r, pairwise coprime, determine an integer c with |c| <= bound if the product M of the
moduli is larger than 2 bound: two integers in this range with the same residues differ by a multiple of M, and by at
most 2 bound < M, so they are equal. If C = A B with |a| <= 2^x, |b| <= 2^y, and K terms in a sum, every entry is at
most K 2^(x + y).

Reconstruction of c. Let M_i = M / p_i, and e_i the inverse of M_i modulo p_i. The weight w_i = M_i e_i is 1 modulo
p_i, and 0 modulo the others. So the sum s of c_i w_i, of c's residues c_i, has all of c's residues, and c = s - q M for
a whole number q: the sum of c_i w_i / M is q + c / M. Where |c / M| stays below 1/2 by a margin, q is that sum rounded,
however it was rounded in between. `moduli_for` asks for M >= 2 bound (1 + 2^-8), which leaves a margin of 2^-10. That
is more than enough for float64: 48 terms, each a share below 1 times a residue of at most 2^7, or a sum of a few
residues below 2^12, lose at most 48^2 2^12 2^-53 < 2^-29 in the additions.
Modulo 2^64 (the bits that integer types keep of a product) all of s - q M may be computed modulo 2^64, from w_i and M
modulo 2^64: it is a sum of products, and reducing commutes with both. Unsigned numbers are read as signed numbers with
equally many bits; the two differ by a multiple of 2^bits.

For the tensor cores of GPUs the moduli are at most 256, so that residues around zero fit into 8 signed bits. The
largest ones are taken, greedily: 256, 255, 253, 251, 247, ..., as in Ozaki's scheme II (Ozaki, Uchino, Imamura, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Final

LARGEST_MODULUS: Final = 256  # residues in [-128, 127]
MOST_MODULI: Final = 48  # the proof above holds for at most this number
MARGIN: Final = Fraction(1, 256)  # relative increase of 2 bound, so that rounding finds q


@lru_cache(maxsize=1)
def _all_moduli() -> tuple[int, ...]:
    found: list[int] = []
    for candidate in range(LARGEST_MODULUS, 1, -1):
        if all(gcd(candidate, other) == 1 for other in found):
            found.append(candidate)
    return tuple(found[:MOST_MODULI])


def moduli(count: int) -> tuple[int, ...]:
    """Return the first `count` moduli, the largest pairwise coprime numbers up to 256; raise ValueError if there are
    fewer."""
    available = _all_moduli()
    if not 0 <= count <= len(available):
        raise ValueError(f"there are {len(available)} moduli, not {count}")
    return available[:count]


def moduli_for(bound: int) -> int:
    """Return the number of moduli for integers of at most this magnitude, with the margin for rounding q."""
    needed, modulus_product = 2 * bound * (1 + MARGIN), 1
    for count, modulus in enumerate(_all_moduli(), 1):
        modulus_product *= modulus
        if modulus_product >= needed:
            return count
    raise ValueError(f"integers of {bound.bit_length()} bits need more than {len(_all_moduli())} moduli")


def moduli_needed(bits_a: int, bits_b: int, k: int) -> int:
    """Return the number of moduli of a product with |a| <= 2^bits_a and |b| <= 2^bits_b, and k terms in a sum."""
    return moduli_for(max(k, 1) << (bits_a + bits_b))


@dataclass(frozen=True)
class RemainderWeights:
    """The weights of the Chinese remainder theorem for some first moduli, as exact integers."""

    moduli: tuple[int, ...]
    product: int  # M
    weights: tuple[int, ...]  # 1 modulo one of them, 0 modulo the others


@lru_cache(maxsize=64)
def remainder_weights(count: int) -> RemainderWeights:
    """Return the weights for the first `count` moduli."""
    chosen = moduli(count)
    product = prod(chosen)
    return RemainderWeights(chosen, product, tuple(product // p * pow(product // p, -1, p) for p in chosen))


def symmetric_residue(value: int, modulus: int) -> int:
    """Return the residue in [-modulus/2, modulus/2): for 256 from -128 to 127."""
    half = modulus // 2
    return (value + half) % modulus - half
