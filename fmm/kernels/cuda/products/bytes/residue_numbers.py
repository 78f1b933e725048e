"""Numbers for the kernels of residues: moduli, with what reduces by them, and those of the remainder theorem."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import isqrt, sqrt

from fmm.kernels.algorithms.residues import remainder_weights, symmetric_residue

MOST_MODULI, MOST_PIECES = 20, 4  # as in the device code
SUMS = 2**18 + 2**9  # of bytes, as modulus.cuh bounds them
WHOLE_BITS = 0x4B000000  # the bits of 2^23 as a float32 number
EXACT_BITS = 52  # of whole numbers: up to these, sums and multiples of pieces are exact in float64
LARGEST_NORM = 2.0**60  # to which rows and columns are scaled at most: sums of four such numbers have 62 bits


@lru_cache(maxsize=64)
def modulus_bytes(p: int) -> bytes:
    """struct Modulus of modulus.cuh."""

    def packed(powers: range) -> int:
        return int.from_bytes(bytes(symmetric_residue(256**i, p) % 256 for i in powers), "little", signed=True)

    multiple = WHOLE_BITS + p * -(-(2**23 + SUMS) // p) - 2**23
    begins = multiple - 2**31 % p, multiple - 2**63 % p
    return struct.pack("<if6i", p, 1 / p, packed(range(4)), packed(range(4, 8)), *begins, 0, 0)


def table_of_moduli(moduli: tuple[int, ...]) -> bytes:
    """An array of struct Modulus, as long as the device code has it."""
    table = b"".join(modulus_bytes(p) for p in moduli)
    return table + bytes(MOST_MODULI * len(modulus_bytes(256)) - len(table))


@dataclass(frozen=True)
class Pieces:
    """The numbers of the Chinese remainder theorem in pieces of so few bits that all sums of theirs are exact."""

    moduli: int
    levels: int

    @property
    def bits(self) -> int:
        """The bits of a piece.

        It is multiplied by residues, which have 7 bits, sums of four of them two more for each level; and as many such
        products as there are moduli are added up.
        """
        return EXACT_BITS - 7 - 2 * self.levels - (self.moduli - 1).bit_length()

    @property
    def count(self) -> int:
        """How many pieces a number has."""
        return -(-remainder_weights(self.moduli).product.bit_length() // self.bits)

    def cut(self, x: int) -> list[float]:
        """The pieces of a number, the highest first; zeros behind the last."""
        places = range(self.bits * (self.count - 1), -1, -self.bits)
        pieces = [float(x >> place & (1 << self.bits) - 1) for place in places]
        return pieces + [0.0] * (MOST_PIECES - len(pieces))

    @cached_property
    def packed(self) -> bytes:
        """The fields `up` to `weights` of struct Join in residue_join.cuh."""
        numbers = remainder_weights(self.moduli)
        inverse = 2 ** (self.bits * (self.count - 1)) / numbers.product
        rows = [self.cut(w) for w in numbers.weights]
        rows += [[0.0] * MOST_PIECES] * (MOST_MODULI - len(rows))
        flat = [x for row in (self.cut(numbers.product), *rows) for x in row]
        return struct.pack(f"<{3 + len(flat)}d", 2.0**self.bits, 2.0**-self.bits, inverse, *flat)


def largest_norm(moduli: int, k: int) -> float:
    """The norm to which rows and columns may be scaled.

    Rows and columns of whole numbers with norms x and y have products of at most x y, which must be below half of the
    product of the moduli; and rounding to whole numbers adds half to each of k numbers.
    """
    half = float(isqrt(remainder_weights(moduli).product // 2))
    return min(half * (1 - 2.0**-20) - sqrt(k), LARGEST_NORM)
