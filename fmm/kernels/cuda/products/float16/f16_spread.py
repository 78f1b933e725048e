"""Splitting where every entry of the product is to be certain: planes, what is noted of rows and columns, and planes
anew with the inner dimension balanced, where that is found to be needed."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.float16.f16_planes import ROOM, exponent_room
from fmm.kernels.cuda.products.float16.f16_split import THREADS, Planes, Rule, SplitKernel, split_source
from fmm.kernels.cuda.products.tiles.tiled_source import Along

BLOCKS = 2  # thread blocks on a multiprocessor that look for the largest numbers of the inner dimension


@dataclass(frozen=True)
class Spread:
    """Both operands, and where in the workspace it is noted how their numbers are spread.

    That is, one behind the other: the largest exponents along the inner dimension, A's and B's, and whether the inner
    dimension is to be balanced.
    """

    left: Planes
    right: Planes
    offset: int

    @property
    def right_exponents(self) -> int:
        """Where B's exponents begin."""
        return self.offset + exponent_room(self.left.count * self.left.depth)

    @property
    def balanced(self) -> int:
        """Where it is noted whether to balance."""
        return self.right_exponents + exponent_room(self.right.count * self.right.depth)

    @property
    def end(self) -> int:
        """Where all of it ends."""
        return self.balanced + ROOM

    def parameters(self, kernels: tuple[SplitKernel, SplitKernel]) -> tuple[bytes, tuple[Slot, ...]]:
        """Both SpreadOperands of f16_spread.cuh, addresses zero; and where these go."""
        inner = (self.offset, self.right_exponents)
        parts: list[bytes] = []
        slots: list[Slot] = []
        for i, (x, kernel) in enumerate(zip((self.left, self.right), kernels, strict=True)):
            usual = x.parameters(kernel)
            first = sum(map(len, parts)) // 8
            after = first + len(usual) // 8
            parts.append(usual + struct.pack("<3q2i", 0, 0, 0, x.depth, -1 if i else 1))
            slots += [*x.slots(first), Slot(after, "W", inner[i]), Slot(after + 1, "W", inner[1 - i])]
            slots.append(Slot(after + 2, "W", self.balanced))
        return b"".join(parts), tuple(slots)


@lru_cache(maxsize=16)
def balance_source(left: Along, right: Along) -> str:
    """The whole CUDA source of the launch between the two splits, entry point `ENTRY`."""
    along = ", ".join(str(x == "inner").lower() for x in (left, right))
    call = f"fmm::planes::balance<{along}>(p);"
    return entry_source("fmm::planes::Balance", call, "f16_spread.cuh", (THREADS,))


def spread_launches(x: Spread, multiprocessors: int, divides: Mapping[str, int]) -> tuple[Launch, Launch, Launch]:
    """The launches that make planes, look whether the inner dimension is to be balanced, and if so make planes anew."""
    kernels = x.left.split_kernel(divides), x.right.split_kernel(divides)
    parameters, slots = x.parameters(kernels)
    grid = x.left.blocks(kernels[0]) + x.right.blocks(kernels[1]), 1, 1

    def split(rule: Rule, label: str) -> Launch:
        kernel = Kernel(split_source, (kernels, rule), ENTRY, THREADS, architecture="sm_90a")
        return Launch("sums", f"f16_spread: {label}", kernel, grid, parameters, slots)

    source = Kernel(balance_source, (x.left.along, x.right.along), ENTRY, THREADS, architecture="sm_90a")
    balance = Launch(
        "sums",
        "f16_spread: looks whether to balance the inner dimension",
        source,
        (BLOCKS * multiprocessors, 1, 1),
        parameters + bytes(8),
        (*slots, Slot(len(parameters) // 8, "W", x.balanced)),
    )
    first = split("noted", "splits A and B in two float16 numbers each, notes how rows and columns are spread")
    return first, balance, split("balanced", "splits again if the inner dimension is to be balanced")
