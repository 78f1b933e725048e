"""Residues: an integer product by products of small integers modulo pairwise coprime moduli (Chinese remainders).

The residues modulo p_1, ..., p_r, pairwise coprime, determine an integer c with |c| <= bound if the product M of the
moduli is larger than 2 bound: two integers in this range with the same residues differ by a multiple of M, and by at
most 2 bound < M, so they are equal. If C = A B with |a| <= 2^x, |b| <= 2^y, and K terms in a sum, every entry is at
most K 2^(x + y).

Reconstruction of c. Let M_i = M / p_i, and e_i the inverse of M_i modulo p_i. The weight w_i = M_i e_i is 1 modulo p_i,
and 0 modulo every other p_j. If c has the residues c_i, the sum s of all c_i w_i therefore has the same residues as c,
so c = s - q M for an integer q. The sum of all c_i w_i / M is then q + c / M. If |c / M| is below 1/2 by a margin, q is
this sum rounded to an integer, despite rounding errors within the sum. `moduli_count_for_bound` requires M >= 2 bound
(1 + 2^-8), which leaves a margin of 2^-10. This margin is more than enough for float64: of 48 terms, each is a ratio
w_i / M below 1 times a residue of at most 2^7 (or a sum of a few residues below 2^12), so rounding errors of the
additions are at most 48^2 2^12 2^-53 < 2^-29. For integer types, which keep only the lowest 64 bits of a product, s - q
M may be computed modulo 2^64 from w_i and M modulo 2^64: reduction commutes with sums and products. Unsigned integers
are read as signed integers with the same bits, which differ by a multiple of 2^bits.

For the tensor cores of GPUs the moduli are at most 256, so that residues fit into 8 signed bits (-128 to 127). The
largest pairwise coprime moduli are chosen greedily: 256, 255, 253, 251, 247, ..., as in Ozaki's scheme II (Ozaki,
Uchino, Imamura, 2025).
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import gcd, prod
from typing import Final

LARGEST_MODULUS: Final = 256  # the largest modulus, with residues from -128 to 127
MAX_MODULI_COUNT: Final = 48  # largest number of moduli for which the error bound in the module's docstring holds
# M must exceed twice the bound by this share of it, so that rounding finds q in spite of rounding errors
ROUNDING_MARGIN: Final = Fraction(1, 256)


@lru_cache(maxsize=1)
def _all_moduli() -> tuple[int, ...]:
    found: list[int] = []
    for candidate in range(LARGEST_MODULUS, 1, -1):
        if all(gcd(candidate, other) == 1 for other in found):
            found.append(candidate)
    return tuple(found[:MAX_MODULI_COUNT])


def moduli(count: int) -> tuple[int, ...]:
    """Return the first `count` moduli (pairwise coprime, from 256 downwards); raise ValueError if there are fewer."""
    available = _all_moduli()
    if not 0 <= count <= len(available):
        raise ValueError(f"there are {len(available)} moduli, not {count}")
    return available[:count]


def moduli_count_for_bound(bound: int) -> int:
    """Return how many moduli determine integers of magnitude up to `bound`, with the margin for rounding q."""
    needed, modulus_product = 2 * bound * (1 + ROUNDING_MARGIN), 1
    for count, modulus in enumerate(_all_moduli(), 1):
        modulus_product *= modulus
        if modulus_product >= needed:
            return count
    raise ValueError(f"integers of {bound.bit_length()} bits need more than {len(_all_moduli())} moduli")


def moduli_count_for_product(bits_a: int, bits_b: int, k: int) -> int:
    """Return how many moduli a product with |a| <= 2^bits_a, |b| <= 2^bits_b and inner dimension k needs."""
    return moduli_count_for_bound(max(k, 1) << (bits_a + bits_b))


@dataclass(frozen=True)
class RemainderWeights:
    """The weights of the Chinese remainder theorem for the first few moduli of the list, as exact integers."""

    moduli: tuple[int, ...]
    product: int  # M, the product of the moduli
    weights: tuple[int, ...]  # weight i is 1 modulo moduli[i], and 0 modulo all other moduli


@lru_cache(maxsize=64)
def remainder_weights(count: int) -> RemainderWeights:
    """Return the weights of the Chinese remainder theorem for the first `count` moduli."""
    chosen = moduli(count)
    product = prod(chosen)
    return RemainderWeights(chosen, product, tuple(product // p * pow(product // p, -1, p) for p in chosen))


def symmetric_residue(value: int, modulus: int) -> int:
    """Return the residue of `value` in [-modulus/2, modulus/2); for modulus 256 from -128 to 127."""
    half = modulus // 2
    return (value + half) % modulus - half
