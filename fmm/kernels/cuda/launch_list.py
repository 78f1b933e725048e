"""The launch list of a plan on one chip: launches of fmm's kernels and calls of the vendor's library, in order.

All sizes and temporaries are fixed when a plan is recorded, so an address is a base (A, B, C or the workspace) plus
an offset. A launch list is recorded once for a problem and then played: playing decides nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Any, Literal, NamedTuple

from fmm.kernels.cuda.ops import BlockTerm, GemmOp, RankOp
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

# Bases of the addresses in a launch's parameters: the operands and the workspace, the flag that is up if C has an inf
# or NaN, the host's count of recomputed products, and a launch's own counters. One more base is ADDEND, for an
# addend that C does not hold; it is aligned as C is.
ADDRESS_BASES = ("A", "B", "C", "W")
FLAG, HOST_COUNT, COUNTERS = "flag", "host count", "counters"
MAX_PARAMETER_BYTES = 4096  # the largest parameter that every driver passes to a kernel
STANDARD_OPTIONS = ("--std=c++17",)  # options of the compiler NVRTC
TENSOR_MAP_BYTES = 128  # bytes of a CUtensorMap
TENSOR_MAP_WORDS = TENSOR_MAP_BYTES // 8


# ---- kernels and their parameters


@dataclass(frozen=True)
class Kernel:
    """A kernel to compile. `generate(*source_arguments)` writes its whole CUDA source when the source is needed.

    Equal kernels are compiled once.
    """

    generate: Callable[..., str]
    source_arguments: tuple[Hashable, ...]
    entry: str  # name of the __global__ function
    threads: int  # threads of a thread block
    shared: int = 0  # bytes of dynamic shared memory
    options: tuple[str, ...] = STANDARD_OPTIONS
    architecture: str = ""  # target such as sm_90a for architecture-specific instructions; empty for portable code

    @property
    def cuda_source(self) -> str:
        return self.generate(*self.source_arguments)

    @property
    def description(self) -> Any:
        """The first source argument: the description of the kernel."""
        return self.source_arguments[0]


class AddressSlot(NamedTuple):
    """A word of a launch's parameters that holds an address: a base plus an offset in bytes."""

    word: int  # index of the 8-byte word
    base: str
    offset: int = 0


class TensorMap(NamedTuple):
    """A tensor map for the copy engine (TMA), without its address: lines of `length` numbers, read in boxes."""

    piece: BlockTerm
    dtype: str
    length: int
    lines: int
    layers: int  # number of equal blocks in a batch
    leading: int  # elements from one line to the next
    layer: int  # elements from one block of the batch to the next
    box: tuple[int, int]  # box of a tile: numbers along a line, and number of lines
    swizzle: int  # bytes of the swizzle pattern that spreads 16-byte chunks over the banks; 0: none


# ---- steps


class StreamSync(Enum):
    """Where streams wait: at FORK all others wait for the first, at JOIN the first waits for all others."""

    FORK = "fork"
    JOIN = "join"


LaunchPurpose = Literal["sums", "product", "recompute"]


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel launch that is complete except for addresses."""

    does: LaunchPurpose
    label: str  # text for `explain`: the kernel, and its use
    kernel: Kernel
    grid: tuple[int, int, int]
    parameters: bytes  # the kernel's parameter struct, in which every address and tensor map is zero
    slots: tuple[AddressSlot, ...]
    # tensor maps, each with the index of the parameter word at which it begins
    maps: tuple[tuple[int, TensorMap], ...] = ()
    counters: int = 0  # 4-byte counters that the kernel uses; they are zero before and after the launch
    overlaps: bool = False  # True if the launch may start before the previous launch has ended
    aligned: bool = True  # True if the kernel reads and writes 16 bytes at a time


@dataclass(frozen=True, eq=False)
class VendorCall:
    """A product by the vendor's library."""

    op: GemmOp | RankOp
    label: str
    does: LaunchPurpose = "product"


LaunchStep = Launch | VendorCall | StreamSync


# ---- the list


@dataclass(frozen=True, eq=False)
class LaunchList:
    """The steps of one plan on one problem and chip."""

    plan: Plan
    problem: Problem
    steps: tuple[LaunchStep, ...]
    streams: tuple[int, ...]  # index of each step's stream; stream 0 is the caller's
    workspace: int  # bytes of workspace
    alignment: tuple[int, ...]  # powers of two that must divide the bases' addresses, in the order of ADDRESS_BASES

    @cached_property
    def stream_count(self) -> int:
        return max(self.streams, default=0) + 1

    @cached_property
    def vendor_stream_count(self) -> int:
        """The number of streams, counted from the first, that need a cuBLAS handle."""
        pairs = zip(self.steps, self.streams, strict=True)
        return max((stream for step, stream in pairs if isinstance(step, VendorCall)), default=-1) + 1

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @cached_property
    def vendor_bases(self) -> tuple[int, ...]:
        """Indices of the bases that vendor calls read or write.

        A captured graph keeps the addresses of these bases, since the vendor's kernel parameters cannot be changed.
        """
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return tuple(sorted({ADDRESS_BASES.index(x.base) for call in calls for x in call.op.pieces}))

    @cached_property
    def needs_tf32_mode(self) -> bool:
        """True if cuBLAS multiplies float32 in TF32. The math mode of cuBLAS is set for the whole list."""
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return any(call.op.dtype == "tf32" for call in calls)

    @property
    def has_vector_access(self) -> bool:
        """True if all of fmm's product kernels read and write 16 bytes at a time."""
        return all(launch.aligned for launch in self.launches if launch.does == "product")

    def step_labels(self) -> tuple[str, ...]:
        """Return the labels of the steps in order; equal neighbours share a line, with their count."""
        return tuple(_label_lines(self.steps))


def _label_lines(steps: tuple[LaunchStep, ...]) -> Iterator[str]:
    labels = (step.label for step in steps if not isinstance(step, StreamSync))
    for label, run in groupby(labels):
        count = sum(1 for _ in run)
        yield f"{count} x {label}" if count > 1 else label
