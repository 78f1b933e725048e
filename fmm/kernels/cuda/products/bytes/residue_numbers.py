"""What kernels of residues are told: moduli, with what reduces by them, and the Chinese remainder theorem's numbers."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt, sqrt

from fmm.kernels.algorithms.residues import remainder_weights, symmetric_residue

MOST_MODULI, MOST_PIECES = 20, 4  # as in the device code
SUMS, WHOLE_BITS = 2**18 + 2**9, 0x4B000000  # of bytes, in modulus.cuh; the bits of 2^23 in float32
EXACT_BITS = 52  # up to which sums and multiples of pieces are exact in float64
LARGEST = 2.0**60  # up to which norms are scaled at most: sums of four such numbers have 62 bits


@lru_cache(maxsize=64)
def modulus_bytes(p: int) -> bytes:
    """struct Modulus of modulus.cuh."""

    def packed(powers: range) -> int:
        return int.from_bytes(bytes(symmetric_residue(256**i, p) % 256 for i in powers), "little", signed=True)

    multiple = WHOLE_BITS + p * -(-(2**23 + SUMS) // p) - 2**23
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    return struct.pack("<if6i", p, 1 / p, packed(range(4)), packed(range(4, 8)), *begins, 0, 0)


def table_of_moduli(moduli: tuple[int, ...]) -> bytes:
    found = b"".join(modulus_bytes(p) for p in moduli)
    return found + bytes(MOST_MODULI * len(modulus_bytes(256)) - len(found))


@dataclass(frozen=True)
class Pieces:
    """The numbers of the Chinese remainder theorem in pieces of so few bits that all sums of theirs are exact."""

    moduli: int
    levels: int

    @property
    def bits(self) -> int:
        """Of a piece: residues have 7, sums of four of them two more for each level, and there are `moduli` terms."""
        return EXACT_BITS - 7 - 2 * self.levels - (self.moduli - 1).bit_length()

    @property
    def count(self) -> int:
        return -(-remainder_weights(self.moduli).product.bit_length() // self.bits)

    def cut(self, x: int) -> list[float]:
        """From the highest piece on; zeros behind the last."""
        places = range(self.bits * (self.count - 1), -1, -self.bits)
        found = [float(x >> place & (1 << self.bits) - 1) for place in places]
        return found + [0.0] * (MOST_PIECES - len(found))

    @cached_property
    def told(self) -> bytes:
        """From `up` to `weights` of struct Join."""
        numbers = remainder_weights(self.moduli)
        inverse = 2 ** (self.bits * (self.count - 1)) / numbers.product
        rows = [self.cut(w) for w in numbers.weights]
        rows += [[0.0] * MOST_PIECES] * (MOST_MODULI - len(rows))
        flat = [x for row in (self.cut(numbers.product), *rows) for x in row]
        return struct.pack(f"<{3 + len(flat)}d", 2.0**self.bits, 2.0**-self.bits, inverse, *flat)


def largest_norm(moduli: int, k: int) -> float:
    """Up to which rows and columns may be scaled: whole numbers of norms x and y have products of at most x y, which
    must be below half of the product of the moduli; rounding adds half to each of k numbers."""
    half = float(isqrt(remainder_weights(moduli).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k), LARGEST)
