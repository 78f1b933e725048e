"""The launch list of a plan on one chip: launches of fmm's kernels and calls of the vendor's library, in order.

All sizes and temporaries are fixed when a plan is recorded. An address is a base (A, B, C or the workspace) plus an
offset in bytes. A launch list is recorded once for a problem and played for each call. The player runs the list and
makes no decision.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple

from fmm.kernels.cuda.ops import BlockTerm, GemmOp, RankUpdateOp
from fmm.kernels.plans.plan import Plan
from fmm.problem import Problem

EMULATED_LEAF_NAME: Final = "vendor-emulated"  # the leaf for which cuBLAS runs in its emulation mode

# Every address in a launch's parameters is a base plus an offset. The bases of matrices are A, B, C, the workspace
# ("W"), and ADDEND if the addend is outside C. The base FLAG is the address of the flag that kernels raise for an inf
# or NaN in C. HOST_COUNT is the address, in host memory, of the number of recomputed products. COUNTERS is the address
# of the counters that order the writes of a launch to tiles of C.
ADDRESS_BASES = ("A", "B", "C", "W")
FLAG, HOST_COUNT, COUNTERS = "flag", "host count", "counters"
PER_THREAD_STREAM = 2  # handle of CUDA's default stream of the calling thread: another stream in each thread
MAX_PARAMETER_BYTES = 4096  # every driver accepts kernel parameters of this size in bytes
STANDARD_OPTIONS = ("--std=c++17",)  # options of the compiler NVRTC
# The architecture "device" of a kernel means that fmm itself compiles the kernel for the present device. CuPy would add
# the compiler option -ftz=true, which flushes subnormal numbers to zero.
DEVICE_ARCHITECTURE = "device"
TENSOR_MAP_BYTES = 128  # bytes of CUDA's struct CUtensorMap
TENSOR_MAP_WORDS = TENSOR_MAP_BYTES // 8


# ---- kernels and their parameters


@dataclass(frozen=True)
class Kernel:
    """A CUDA kernel to compile.

    `generate(*source_arguments)` returns the complete CUDA source. Kernels with equal fields are compiled once.
    """

    generate: Callable[..., str]
    source_arguments: tuple[Hashable, ...]
    entry: str  # name of the __global__ function
    threads: int  # threads of a thread block
    shared: int = 0  # bytes of dynamic shared memory of a thread block
    options: tuple[str, ...] = STANDARD_OPTIONS
    # the compiler's target architecture, such as sm_90a, or DEVICE_ARCHITECTURE; if empty, CuPy compiles the kernel
    architecture: str = ""

    @property
    def cuda_source(self) -> str:
        """The complete CUDA source of the kernel."""
        return self.generate(*self.source_arguments)

    @property
    def description(self) -> Any:
        """The object that describes the kernel, for example a `TileKernel`.

        `generate` takes the description of the kernel as its first argument.
        """
        return self.source_arguments[0]


class AddressSlot(NamedTuple):
    """An 8-byte word of a launch's parameters that holds an address: a base plus an offset in bytes."""

    word: int  # index of the 8-byte word in the parameters
    base: str
    offset: int = 0


class TensorMap(NamedTuple):
    """A tensor map: the description of a matrix for Hopper's copy engine (TMA), here without the matrix's address.

    A line is a contiguous row or column. The matrix has `lines` lines of `length` numbers. One copy by the copy engine
    reads a rectangular box of the matrix.
    """

    piece: BlockTerm
    dtype: str
    length: int
    lines: int
    layers: int  # number of matrices in a batch
    leading: int  # elements from one line to the next
    layer: int  # elements from one matrix of a batch to the next
    box: tuple[int, int]  # size of a copied box: its length along a line, and its number of lines
    swizzle: int  # width in bytes of the swizzle pattern of 16-byte chunks in shared memory; 0: no swizzle


# ---- steps


class StreamSync(Enum):
    """A synchronization of streams: at FORK all streams wait for stream 0; at JOIN stream 0 waits for all streams."""

    FORK = "fork"
    JOIN = "join"


LaunchPurpose = Literal["sums", "product", "recompute"]


@dataclass(frozen=True, eq=False)
class Launch:
    """One kernel launch with all parameters except addresses."""

    does: LaunchPurpose
    label: str  # text that `explain` prints: the kernel and its purpose
    kernel: Kernel
    grid: tuple[int, int, int]
    parameters: bytes  # bytes of the kernel's parameter struct, with zeros in place of every address and tensor map
    slots: tuple[AddressSlot, ...]
    # Pairs: the index of the 8-byte parameter word at which a tensor map begins, and the tensor map.
    maps: tuple[tuple[int, TensorMap], ...] = ()
    counters: int = 0  # number of 4-byte counters that the kernel uses; each is zero before and after the launch
    overlaps: bool = False  # True if the launch may start before the previous launch has ended
    aligned: bool = True  # True if the kernel reads and writes 16 bytes at a time


@dataclass(frozen=True, eq=False)
class VendorCall:
    """One call of the vendor's library: a GEMM or a rank update."""

    op: GemmOp | RankUpdateOp
    label: str
    does: LaunchPurpose = "product"


LaunchStep = Launch | VendorCall | StreamSync


# ---- the list


@dataclass(frozen=True, eq=False)
class LaunchList:
    """The launches, vendor calls and synchronizations of one plan for one problem and chip, in order."""

    plan: Plan
    problem: Problem
    steps: tuple[LaunchStep, ...]
    streams: tuple[int, ...]  # index of each step's stream; stream 0 is the caller's
    workspace: int  # bytes of workspace
    alignment: tuple[int, ...]  # for each of ADDRESS_BASES, the power of two that must divide the base's address

    @cached_property
    def stream_count(self) -> int:
        """The number of streams that the steps use."""
        return max(self.streams, default=0) + 1

    @cached_property
    def vendor_stream_count(self) -> int:
        """The number of streams that need a cuBLAS handle: stream 0 up to the last stream with a vendor call."""
        pairs = zip(self.steps, self.streams, strict=True)
        return max((stream for step, stream in pairs if isinstance(step, VendorCall)), default=-1) + 1

    @cached_property
    def launches(self) -> tuple[Launch, ...]:
        """The kernel launches among the steps, without vendor calls."""
        return tuple(step for step in self.steps if isinstance(step, Launch))

    @cached_property
    def vendor_bases(self) -> tuple[int, ...]:
        """Indices in ADDRESS_BASES of the bases that vendor calls read or write.

        fmm cannot change the parameters of the vendor's kernels in a captured CUDA graph. A graph with vendor calls is
        therefore valid only while the bases of the vendor calls have the same addresses as at the capture. The
        workspace is such a base for every vendor call, since it contains the vendor's scratch memory.
        """
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        bases = {x.base for call in calls for x in call.op.operands_and_result}
        return tuple(sorted(ADDRESS_BASES.index(base) for base in ({*bases, "W"} if bases else ())))

    @cached_property
    def needs_tf32_mode(self) -> bool:
        """True if a vendor call multiplies float32 in TF32. cuBLAS runs all calls of the list in one math mode."""
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return any(call.op.dtype == "tf32" for call in calls)

    @cached_property
    def needs_emulation_mode(self) -> bool:
        """True if a vendor call is cuBLAS's own emulation. cuBLAS then runs all calls of the list in this mode."""
        calls = (step for step in self.steps if isinstance(step, VendorCall))
        return any(isinstance(x.op, GemmOp) and x.op.leaf_use.leaf.name == EMULATED_LEAF_NAME for x in calls)

    @property
    def has_vector_access(self) -> bool:
        """True if each of fmm's product kernels in the list reads and writes 16 bytes at a time."""
        return all(launch.aligned for launch in self.launches if launch.does == "product")

    def step_labels(self) -> tuple[str, ...]:
        """Return the labels of the steps in order; n consecutive equal labels become one text, "n x label"."""
        return tuple(_label_lines(self.steps))


def _label_lines(steps: tuple[LaunchStep, ...]) -> Iterator[str]:
    labels = (step.label for step in steps if not isinstance(step, StreamSync))
    for label, run in groupby(labels):
        count = sum(1 for _ in run)
        yield f"{count} x {label}" if count > 1 else label
