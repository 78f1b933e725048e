"""Room for planes of residues: how a product of float64, float32 or integers is cut, and where its parts stand."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

from fmm.dtypes import DTYPES, INTEGERS
from fmm.kernels.algorithms.residues import moduli_needed
from fmm.kernels.plans.memory_layout import whole

ITEM = 8  # bytes of a number, unless it is said
EXPONENT = 4  # bytes
LINE = 16  # bytes: lines of planes are multiples of it
ROOM = 256  # bytes: whatever stands in the workspace begins at a multiple of it
PRODUCTS = 7  # of a level of recursion below the residues
# Bytes of workspace from which on only some planes of A and B are there at a time, for which A and B are read again.
ENOUGH = 52 << 30


@dataclass(frozen=True)
class ResidueRoom:
    """How a batch of products by residues is cut into blocks, and how many bytes each part of it takes."""

    m: int
    k: int
    n: int
    count: int  # products in the batch
    moduli: int
    levels: int  # of Strassen's algorithm, below the residues
    item: int = ITEM  # bytes of a number

    @property
    def block(self) -> tuple[int, int, int]:
        """Rows, inner dimension and columns of a product of planes."""
        sides = 1 << self.levels
        return -(-self.m // sides), whole(-(-self.k // sides), LINE), whole(-(-self.n // sides), LINE)

    @property
    def products(self) -> int:
        """How many products of planes there are modulo one number."""
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
        """Numbers from one line of a turned operand to the next: a multiple of four, and of 16 bytes."""
        return whole(self.k, max(4, LINE // self.item))

    @property
    def turned(self) -> tuple[int, int]:
        """Bytes of A and of B along the inner dimension."""
        each = self.item * self.count * self.turned_room
        return whole(each * self.m, ROOM), whole(each * self.n, ROOM)

    @cached_property
    def together(self) -> int:
        """How many moduli A and B are split and multiplied for at a time: all, or as many as there is room for."""
        each, rest = sum(whole(x, ROOM) for x in self.planes[:2]), self._room(0)
        return (
            self.moduli if self._room(self.moduli) <= ENOUGH else max(min((ENOUGH - rest) // each, self.moduli - 1), 1)
        )

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where these begin: exponents of A, of B; planes of A, of B, of C; turned operands; the end. If all is split
        at once, turned operands are gone when C's planes come, and stand in their place."""
        left, right, result = self.planes
        sizes = [*self.exponents, *(whole(self.together * x, ROOM) for x in (left, right))]
        found = [0]
        for size in sizes:
            found.append(found[-1] + size)
        planes = found[-1]
        turned = planes if self.together == self.moduli else planes + whole(self.moduli * result, ROOM)
        return *found, turned, planes + self._behind(self.together)

    def _behind(self, together: int) -> int:
        """Bytes behind the planes of A and B."""
        result = whole(self.moduli * self.planes[2], ROOM)
        return max(result, sum(self.turned)) if together == self.moduli else result + sum(self.turned)

    def _room(self, together: int) -> int:
        return sum(self.exponents) + sum(whole(together * x, ROOM) for x in self.planes[:2]) + self._behind(together)

    @property
    def scratch(self) -> int:
        """Bytes of workspace."""
        return self.offsets[-1]


@lru_cache(maxsize=1024)
def whole_moduli(dtype: str, k: int) -> int:
    """How many moduli a product of integers needs with k terms to a sum: of the smallest ones 2^8 is enough, which is
    what they keep; of bool, whether the number of true terms is zero must be known."""
    kind = DTYPES[dtype]
    if dtype == "bool":
        return moduli_needed(0, 0, k)
    bits = 8 * kind.itemsize - 1
    return 1 if kind.itemsize == 1 else moduli_needed(bits, bits, k)


def whole_scratch(levels: int, itemsize: int, m: int, k: int, n: int, count: int) -> int:
    """Bytes of workspace for a batch of products of integers of so many bytes."""
    needed = max(whole_moduli(name, k) for name in INTEGERS if DTYPES[name].itemsize == itemsize)
    return max(ResidueRoom(*size, count, needed, levels, itemsize).scratch for size in ((m, k, n), (n, k, m)))


def residue_scratch(item: int, moduli: int, levels: int, m: int, k: int, n: int, count: int) -> int:
    """Bytes of workspace for a batch of products of numbers of so many bytes, whichever of C and its transpose is
    computed."""
    return max(ResidueRoom(*size, count, moduli, levels, item).scratch for size in ((m, k, n), (n, k, m)))


def kept_room(moduli: int, item: int, lines: int, length: int) -> tuple[int, int]:
    """Bytes of a matrix, and of exponents and planes that are kept behind it, whichever of its sides is the inner
    dimension; no levels are below."""
    planes = moduli * whole(lines, LINE) * whole(length, LINE)
    return whole(item * lines * length, ROOM), whole(EXPONENT * max(lines, length), ROOM) + planes
