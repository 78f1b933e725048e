"""A sum kernel as data: which blocks a thread loads, adds and stores, how many numbers at a time, and how.

One thread owns one position of every block. In which order it does that sum_order.py decides; sum_source.py writes it
down as CUDA, and sum_launch.py says where the blocks lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.algorithms.additions import AdditionProgram
from fmm.kernels.cuda.sums.sum_order import Statement, best_order, peak_values

Access = Literal["vector", "scalar"]
THREADS, WARP = 128, 32  # of a thread block, as in block_sums.cuh
SECTOR = 32  # bytes that memory reads or writes at least
HIGH = 4  # warps of a block below each other where arrays lie crosswise
WIDEST = 16  # bytes of the widest memory access
# Registers that a kernel's live values may take; addresses and what the compiler loads ahead need the rest of the 255.
# (Three levels in one pass hold 84 values: two lanes of float32, one of float64.)
REGISTERS = 176
REGISTERS_AHEAD = 128  # the same where loads are started far ahead: their addresses need registers too
# Registers of live values up to which four thread blocks find room on a multiprocessor, where loads are started far
# ahead or a tile is turned.
FOUR_BLOCKS = 72
LONG = 400  # statements of a long program: more than two levels in one pass
MANY_HELD = 12  # live values beside which the addresses of several lanes find no registers
# A program with at least MANY_LOADS loads, and twice as many as it holds values at a time, has them started far ahead,
# through shared memory: BATCHES of them under way, BYTES_AHEAD in a thread block. Registers alone keep too few loads in
# flight: the join of three levels then moves 1.9 TB/s on an H200, so 3.7 to 4.1.
MANY_LOADS = 32
BATCHES = 8
BYTES_AHEAD = 32 << 10


class Spot(NamedTuple):
    """Where an input or output stands: block (i, j) of one of the kernel's arrays."""

    array: int
    i: int
    j: int
    part: int = 0  # of an array of complex numbers: 0 for the real parts, 1 for the imaginary ones


@dataclass(frozen=True)
class SumKernel:
    """What one kernel computes, and on which blocks; sizes, strides and scalars come with the launch.

    An array holds several blocks of one matrix, or equal layers on top of each other.
    """

    program: AdditionProgram  # its coefficients may be Scalars
    scalars: int  # how many coefficients come with the launch
    reads: tuple[Spot, ...]
    writes: tuple[Spot, ...]
    aliases: tuple[tuple[int, int], ...]  # pairs (write, read) that stand in the same place
    arrays: int
    whole: frozenset[int]  # arrays of equal layers, each as large as the launch: accesses to them need no tests
    element: str
    tall: frozenset[int] = frozenset()  # arrays that lie column by column, where all others lie row by row
    parts: frozenset[int] = frozenset()  # arrays of complex numbers, of which real and imaginary parts are loaded

    @cached_property
    def events(self) -> tuple[Statement, ...]:
        """The kernel's statements, in order."""
        return best_order(self.program, self.aliases)

    @cached_property
    def lanes(self) -> int:
        """Elements that a thread has: as many as one memory access moves, while their sums stay in registers."""
        element = DTYPES[self.element]
        lanes, room = WIDEST // element.itemsize, REGISTERS_AHEAD if self.ahead else REGISTERS
        while lanes > 1 and lanes * peak_values(self.events) * element.registers > room:
            lanes //= 2
        # With alpha and beta, three levels need more registers than those for values.
        if self.long and self.scalars:
            lanes = max(lanes // 2, 1)
        # Complex numbers come in two accesses, and go so: with four of them NVRTC spills the joins of two levels.
        return min(lanes, 2) if self.parts and len(self.events) > LONG else lanes

    @property
    def long(self) -> bool:
        """Are there so many statements that they should be compiled only once?"""
        return len(self.events) > LONG * (3 if self.parts else 1)  # (both parts of a number are one access)

    @property
    def apart(self) -> bool:
        """Do lanes that need an address each come one after the other, because not all of them fit in registers?"""
        return self.long or (self.ahead and peak_values(self.events) > MANY_HELD)

    @cached_property
    def ahead(self) -> bool:
        """Are loads started far ahead of their use, through shared memory?"""
        if self.tall or any(spot.array in self.parts for spot in self.reads):
            return False
        return sum(event.kind == "load" for event in self.events) >= max(MANY_LOADS, 2 * peak_values(self.events))

    @cached_property
    def batch(self) -> int:
        """How many loads are started together, far ahead of their use; 0 if each is done where it stands."""
        if not self.ahead:
            return 0
        return BYTES_AHEAD // (BATCHES * THREADS * self.lanes * DTYPES[self.element].itemsize)

    @property
    def slots(self) -> int:
        """Places in shared memory that each thread has for values under way."""
        return BATCHES * self.batch

    @property
    def bounds(self) -> str:
        """What the compiler is told of thread blocks: their threads, and how many a multiprocessor should hold.

        Left alone it aims at six of the joins of two levels, and at five of the splits that turn, and spills for that;
        with four nothing is spilled.
        """
        values = self.lanes * peak_values(self.events) * DTYPES[self.element].registers
        four = (self.ahead or bool(self.tall)) and values <= FOUR_BLOCKS and not (self.long and self.scalars)
        return f"{THREADS}, 4" if four else f"{THREADS}"

    @property
    def tile(self) -> tuple[int, int]:
        """Rows and columns of a thread block: all threads side by side, or a tile where arrays lie crosswise."""
        if not self.tall:
            return 1, THREADS * self.lanes
        down = SECTOR // DTYPES[self.element].itemsize
        return HIGH * down, THREADS // WARP // HIGH * (WARP // down) * self.lanes

    def partner(self, event: Statement) -> int | None:
        """The other part of a complex number that is loaded or stored: the number of its value, of a store its output.

        The two parts are neighbours. None if the event has no such part, or the other one is not wanted.
        """
        spots = self.reads if event.kind == "load" else self.writes
        number = event.value if event.kind == "load" else event.source
        spot = spots[number]
        neighbour = number + 1 - 2 * spot.part
        if spot.array not in self.parts or not 0 <= neighbour < len(spots):
            return None
        return neighbour if spots[neighbour] == spot._replace(part=1 - spot.part) else None
