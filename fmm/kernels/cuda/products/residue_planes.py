"""Room for planes of residues: how a product of float64 or of integers is cut, and where its parts stand."""

from __future__ import annotations

from dataclasses import dataclass

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.residues import moduli_needed
from fmm.kernels.cuda.products.f16_planes import whole

ITEM = 8  # bytes of a float64
EXPONENT = 4  # bytes
LINE = 16  # bytes: lines of planes are multiples of it
ROOM = 256  # bytes: whatever stands in the workspace begins at a multiple of it
PRODUCTS = 7  # of a level below the residues
# What a leaf's name says: modulo how many numbers, and how many levels are below.
LEAVES = {
    f"oz{moduli}{suffix}": (moduli, levels)
    for moduli in (13, 14, 15, 16)
    for levels, suffix in enumerate(("", "x7", "x49"))
}
WHOLE_LEAF = "residues"  # of integers


@dataclass(frozen=True)
class Residues:
    """A batch of products m x k x n by residues modulo `moduli` numbers, with `levels` of Strassen's algorithm below:
    its blocks, and bytes of each part."""

    m: int
    k: int
    n: int
    count: int
    moduli: int
    levels: int
    item: int = ITEM  # bytes of a number

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, inner dimension and columns of a product of planes."""
        sides = 1 << self.levels
        return -(-self.m // sides), whole(-(-self.k // sides), LINE), whole(-(-self.n // sides), LINE)

    @property
    def products(self) -> int:
        """Of planes, modulo one number."""
        return int(self.count * PRODUCTS**self.levels)

    @property
    def planes(self) -> tuple[int, int, int]:
        """Bytes of A's, B's and C's planes modulo one number."""
        m, k, n = self.block
        return self.products * m * k, self.products * n * k, self.products * m * n

    @property
    def exponents(self) -> tuple[int, int]:
        """Bytes of the exponents of A's rows and of B's columns."""
        return tuple(whole(EXPONENT * self.count * lines, ROOM) for lines in (self.m, self.n))  # type: ignore[return-value]

    @property
    def turned_room(self) -> int:
        """Numbers from one line of a turned operand to the next."""
        return whole(self.k, 4)

    @property
    def turned(self) -> tuple[int, int]:
        """Bytes of A and of B along the inner dimension."""
        each = self.item * self.count * self.turned_room
        return whole(each * self.m, ROOM), whole(each * self.n, ROOM)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where these begin: exponents of A, of B; planes of A, of B, of C; the end. Turned operands are gone when C's
        planes come, and stand in their place."""
        sizes = [*self.exponents, *(whole(self.moduli * x, ROOM) for x in self.planes)]
        sizes[-1] = max(sizes[-1], sum(self.turned))
        found = [0]
        for size in sizes:
            found.append(found[-1] + size)
        return tuple(found)

    @property
    def scratch(self) -> int:
        """Bytes of workspace."""
        return self.offsets[-1]


def whole_moduli(dtype: str, k: int) -> int:
    """How many moduli a product of integers needs with k terms to a sum: of the smallest ones 2^8 is enough, which is
    what they keep; of bool, whether the number of true terms is zero must be known."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return moduli_needed(0, 0, k)
    bits = 8 * kind.itemsize - 1
    return 1 if kind.itemsize == 1 else moduli_needed(bits, bits, k)


def whole_scratch(m: int, k: int, n: int, count: int) -> int:
    """Bytes of workspace for a batch of products of the longest integers."""
    return residue_scratch(whole_moduli("int64", k), 0, m, k, n, count)


def residue_scratch(moduli: int, levels: int, m: int, k: int, n: int, count: int) -> int:
    """Bytes of workspace for a batch of products, whichever of C and its transpose is computed."""
    return max(Residues(*size, count, moduli, levels).scratch for size in ((m, k, n), (n, k, m)))
