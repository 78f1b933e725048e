"""What a plan comes to on one chip: a straight list of launches of our own kernels and of the vendor's products.

Sizes and temporaries are known beforehand, so every address is a base (A, B, C or the workspace) and an offset. A
list is made once for a problem and then played: nothing is decided any more.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Literal, NamedTuple

from fmm.kernels.cuda.launch_list import Kernel, TensorMap
from fmm.kernels.cuda.ops import GemmOp, RankOp
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

# Names of the addresses that a launch may be given: those of the operands and the workspace, of the flag that is up if
# C has an inf or NaN, of the host's count of products that were computed again for that, and of a launch's own
# counters. There is one more, APART: what is added, if C does not hold it; it is aligned as C is.
BASES = ("A", "B", "C", "W")
FLAG, HOST_COUNT, COUNTERS = "flag", "host count", "counters"


class Slot(NamedTuple):
    """A word of a launch's parameters that holds an address: a base's, and so many bytes on."""

    word: int  # of 8 bytes
    base: str
    offset: int = 0


class Turn(Enum):
    """Where lanes wait for each other: all others for the first, then the first for all others."""

    FORK = "fork"
    JOIN = "join"


Work = Literal["sums", "product", "recompute"]


@dataclass(frozen=True, eq=False)
class Launch:
    """One launch of a kernel of ours, all but the addresses."""

    does: Work
    label: str  # what `explain` prints: which kernel it is, and how it is used
    kernel: Kernel
    grid: tuple[int, int, int]
    parameters: bytes  # the kernel's struct, in which every address and map is zero
    slots: tuple[Slot, ...]
    maps: tuple[tuple[int, TensorMap], ...] = ()  # each with the word of the parameters at which it begins
    counters: int = 0  # how many it needs, of 4 bytes each; they are zero before and after it
    overlaps: bool = False  # may it begin before the launch in front of it has ended?
    aligned: bool = True  # does it read and write 16 bytes at a time?


@dataclass(frozen=True, eq=False)
class VendorCall:
    """A product by the vendor's library."""

    op: GemmOp | RankOp
    label: str
    does: Work = "product"


Step = Launch | VendorCall | Turn


@dataclass(frozen=True, eq=False)
class LaunchList:
    """The steps of one plan on one problem and chip."""

    plan: Plan
    problem: Problem
    steps: tuple[Step, ...]
    lanes: tuple[int, ...]  # the lane of each step
    workspace: int  # bytes
    alignment: tuple[int, ...]  # powers of two by which the bases' addresses must be divisible, in the order of BASES

    @cached_property
    def stream_count(self) -> int:
        """How many lanes there are."""
        return max(self.lanes, default=0) + 1

    @cached_property
    def vendor_stream_count(self) -> int:
        """How many lanes, from the first on, must be able to call cuBLAS."""
        pairs = zip(self.steps, self.lanes, strict=True)
        return max((lane for step, lane in pairs if isinstance(step, VendorCall)), default=-1) + 1

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @cached_property
    def vendor_bases(self) -> tuple[int, ...]:
        """The numbers of the bases that the vendor's products read or write.

        In a captured list their addresses stay as they were, since nobody can change the vendor's parameters.
        """
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return tuple(sorted({BASES.index(x.base) for call in calls for x in call.op.pieces}))

    @cached_property
    def vendor_cuts_float32(self) -> bool:
        """Must cuBLAS multiply float32 numbers in TF32? It is set to that for the whole list."""
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return any(call.op.dtype == "tf32" for call in calls)

    @property
    def reads_aligned(self) -> bool:
        """Do all products of our own kernels read and write 16 bytes at a time?"""
        return all(launch.aligned for launch in self.launches if launch.does == "product")

    def describe(self) -> tuple[str, ...]:
        """The labels of the steps, in order. Equal neighbours are one line."""
        return tuple(_step_lines(self.steps))


def _step_lines(steps: tuple[Step, ...]) -> Iterator[str]:
    labels = (step.label for step in steps if not isinstance(step, Turn))
    for label, run in groupby(labels):
        count = sum(1 for _ in run)
        yield f"{count} x {label}" if count > 1 else label
