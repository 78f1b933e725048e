"""Residues: products of integer matrices, computed modulo pairwise coprime moduli (Chinese remainder theorem).

Let M be the product of pairwise coprime moduli p_1, ..., p_r. If M > 2 bound, the residues modulo p_1, ..., p_r
determine an integer c with |c| <= bound. Proof: two integers with equal residues differ by a multiple of M. If both
magnitudes are also at most `bound`, the two integers differ by at most 2 bound < M, so the integers are equal. Let C =
A B with |a| <= 2^x, |b| <= 2^y and inner dimension k. Then the magnitude of every entry of C is at most k 2^(x + y).

The integer c is reconstructed from its residues c_i as follows. Let M_i = M / p_i, and let e_i be the inverse of M_i
modulo p_i. The weight w_i = M_i e_i is 1 modulo p_i, and 0 modulo every other p_j. The sum s of all c_i w_i therefore
has the same residues as c, and c = s - q M for an integer q. The sum of all c_i w_i / M is q + c / M. Rounding this sum
gives q, if |c / M| is less than 1/2 by a margin larger than the rounding errors of the sum. `moduli_count_for_bound`
requires M >= 2 bound (1 + 2^-8); the margin is then 2^-10. In float64, the rounding errors of the sum are below 2^-29.
Proof: the sum has at most 48 terms. Each term is w_i / M, which is below 1, times a residue of at most 2^7 or a sum of
residues below 2^12. The additions therefore round by at most 48^2 2^12 2^-53.

Integer types keep only the lowest 64 bits of a product. For integer types, s - q M may be computed modulo 2^64 from w_i
and M modulo 2^64, because reduction commutes with sums and products. Unsigned integers are read as signed integers with
the same bits; the values differ by a multiple of 2^bits.

The moduli are at most 256, so that residues fit into 8 signed bits (-128 to 127) for the tensor cores of GPUs. The
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
# The product of the moduli must be at least 2 bound (1 + ROUNDING_MARGIN), so that rounding errors cannot change c.
ROUNDING_MARGIN: Final = Fraction(1, 256)


@lru_cache(maxsize=1)
def _all_moduli() -> tuple[int, ...]:
    found: list[int] = []
    for candidate in range(LARGEST_MODULUS, 1, -1):
        if all(gcd(candidate, other) == 1 for other in found):
            found.append(candidate)
    return tuple(found[:MAX_MODULI_COUNT])


def first_moduli(count: int) -> tuple[int, ...]:
    """Return the first `count` moduli (pairwise coprime, from 256 downwards); raise ValueError if there are fewer."""
    available = _all_moduli()
    if not 0 <= count <= len(available):
        raise ValueError(f"there are {len(available)} moduli, not {count}")
    return available[:count]


def moduli_count_for_bound(bound: int) -> int:
    """Return the number of moduli that determine integers of magnitude up to `bound`, with ROUNDING_MARGIN."""
    needed, modulus_product = 2 * bound * (1 + ROUNDING_MARGIN), 1
    for count, modulus in enumerate(_all_moduli(), 1):
        modulus_product *= modulus
        if modulus_product >= needed:
            return count
    raise ValueError(f"integers of {bound.bit_length()} bits need more than {len(_all_moduli())} moduli")


def moduli_count_for_product(bits_a: int, bits_b: int, k: int) -> int:
    """Return the number of moduli for a product A B with |a| <= 2^bits_a, |b| <= 2^bits_b and inner dimension k."""
    return moduli_count_for_bound(max(k, 1) << (bits_a + bits_b))


@dataclass(frozen=True)
class RemainderWeights:
    """The weights of the Chinese remainder theorem for the first moduli of the list, as exact integers."""

    moduli: tuple[int, ...]
    product: int  # M, the product of the moduli
    weights: tuple[int, ...]  # weight i is 1 modulo moduli[i], and 0 modulo all other moduli


@lru_cache(maxsize=64)
def remainder_weights(count: int) -> RemainderWeights:
    """Return the weights of the Chinese remainder theorem for the first `count` moduli."""
    chosen = first_moduli(count)
    product = prod(chosen)
    return RemainderWeights(chosen, product, tuple(product // p * pow(product // p, -1, p) for p in chosen))


def symmetric_residue(value: int, modulus: int) -> int:
    """Return the residue of `value` in [-modulus/2, modulus/2). For modulus 256, residues are -128 to 127."""
    half = modulus // 2
    return (value + half) % modulus - half
