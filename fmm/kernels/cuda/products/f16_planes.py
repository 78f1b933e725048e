"""float32 operands split into float16 planes (f16_planes.cuh, f16_spread.cuh): layout, sources of kernels, launches.

A number x of a line with exponent e becomes hi = float16(x 2^e) and lo = float16(2048 (x 2^e - hi)). `OperandPlanes`
says where the planes and exponents of one operand are; `plane_split_launch` makes them. Componentwise products also
record how the exponents of each row and column spread (`ExponentSpread`), and split again if that is needed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import BlockTerm, GemmOp, GemmOperand, OperandSide
from fmm.kernels.cuda.products.kernel_sizes import (
    FLOAT32_BYTES,
    PLANE_ALIGN,
    PLANE_CHUNK,
    PLANES_PER_OPERAND,
    exponent_bytes,
    matrix_bytes,
    plane_bytes,
)
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, Along, row_major_operands
from fmm.kernels.cuda.products.wgmma_tiles import LINE_BYTES
from fmm.kernels.plans.memory_layout import round_up

OPERAND_SIDES: tuple[OperandSide, OperandSide] = ("left", "right")  # sides of the kernel's operands A and B
SPLIT_THREADS = 256  # threads of a thread block that splits
SPLIT_CLUSTER = 8  # thread blocks that share the lines of 64 positions
WARP_THREADS = 32
MAX_REGISTER_LOADS = 16  # largest number of loads of a line that a thread holds in registers
# How numbers are scaled, and how the planes hi and lo are arranged. A line is a row of A or a column of B.
# default: each line has one exponent; hi and lo alternate in chunks.
# separate: scaled as by default; all of hi comes before all of lo, as the vendor's products need; no clusters.
# recorded: as by default, and the spread of exponents along the inner dimension is recorded.
# balanced: positions of the inner dimension are scaled too, if the earlier launches have found that they must be.
ScalingRule = Literal["default", "separate", "recorded", "balanced"]
SCALING_RULES: Mapping[ScalingRule, str] = {
    "default": "LineScaling<fmm::planes::Alternating, fmm::planes::CLUSTER>",
    "separate": "LineScaling<fmm::planes::Separate, 1>",
    "recorded": "Spread<false>",
    "balanced": "Spread<true>",
}


@dataclass(frozen=True)
class SplitKernel:
    """How one operand is split; `group` and `register_loads` count for lines along the inner dimension only."""

    along: Along
    group: int  # number of threads that split one line
    register_loads: int  # loads of a line that a thread holds in registers
    wide: bool  # True if 16 bytes are read at a time

    def call(self, rule: ScalingRule) -> str:
        """Return the function of f16_planes.cuh that splits, with its template arguments."""
        own = f"{self.group}, {self.register_loads}, " if self.along == "inner" else ""
        function = "by_line" if self.along == "inner" else "by_position"
        return f"{function}<fmm::planes::{SCALING_RULES[rule]}, {own}{str(self.wide).lower()}>"


@dataclass(frozen=True)
class OperandPlanes:
    """Layout of the planes of one operand of a batch; its exponents follow the planes.

    The planes are in the workspace, or behind the operand itself if an earlier call prepared them.
    """

    source: GemmOperand
    along: Along  # the dimension along which the operand's lines run
    lines: int
    length: int  # numbers in a line
    count: int  # number of products in the batch
    offset: int
    base: str = "W"

    @property
    def is_prepared(self) -> bool:
        """True if the planes are behind the operand, prepared by an earlier call."""
        return self.base != "W"

    def has_layout_of(self, other: OperandPlanes) -> bool:
        """Return True if both operands have the same layout in memory."""
        x, y = ((p.along, p.lines, p.length, p.source.leading, p.source.stride) for p in (self, other))
        return x == y

    @property
    def pitch(self) -> int:
        """Numbers from one line of a plane to the next."""
        return round_up(self.length, PLANE_CHUNK)

    @property
    def outer(self) -> int:
        """Rows of A, or columns of B."""
        return self.lines if self.along == "inner" else self.length

    @property
    def depth(self) -> int:
        """Length of the inner dimension."""
        return self.length if self.along == "inner" else self.lines

    @property
    def exponents(self) -> int:
        """Offset of the exponents in bytes."""
        return self.offset + plane_bytes(self.count * self.lines, self.length)

    @property
    def end_offset(self) -> int:
        """Offset behind the exponents in bytes."""
        return self.exponents + exponent_bytes(self.count * self.outer)

    def split_kernel(self, alignment: Mapping[str, int]) -> SplitKernel:
        """Return how the operand is split: a thread block for each long line, a warp for each short one."""
        wide = all(x * FLOAT32_BYTES % VECTOR_BYTES == 0 for x in (self.source.leading, self.source.stride))
        wide = wide and self.source.offset % VECTOR_BYTES == 0 and alignment[self.source.base] % VECTOR_BYTES == 0
        if self.along == "outer":
            return SplitKernel("outer", 0, 0, wide)
        group = WARP_THREADS if self.length <= 1024 else SPLIT_THREADS
        return SplitKernel("inner", group, min(-(-self.pitch // (4 * group)), MAX_REGISTER_LOADS), wide)

    def blocks(self, kernel: SplitKernel, rule: ScalingRule = "default") -> int:
        """Return the number of thread blocks that split the operand."""
        sharing = 1 if rule == "separate" else SPLIT_CLUSTER
        if kernel.along == "outer":
            return self.count * self.pitch // PLANE_CHUNK * sharing
        return round_up(-(-self.count * self.lines // (SPLIT_THREADS // kernel.group)), sharing)

    def parameters(self, kernel: SplitKernel, rule: ScalingRule = "default") -> bytes:
        """Return struct Operand of f16_planes.cuh; addresses are zero."""
        x = self.source
        counts = self.lines, self.length, self.count, self.blocks(kernel, rule)
        return struct.pack("<6q4i", 0, 0, 0, x.leading, x.stride, self.pitch, *counts)

    def slots(self, first: int) -> tuple[AddressSlot, ...]:
        """Return the addresses of operand, planes and exponents, for a struct that begins at word `first`."""
        x = self.source
        return (
            AddressSlot(first, x.base, x.offset),
            AddressSlot(first + 1, self.base, self.offset),
            AddressSlot(first + 2, self.base, self.exponents),
        )

    def tensor_map(self, most: int) -> TensorMap:
        """Return the map of planes in which hi and lo alternate by 64 numbers; one copy loads at most `most` lines."""
        length = PLANES_PER_OPERAND * self.pitch
        piece = BlockTerm(self.base, self.offset, self.lines, length)
        box = (PLANE_CHUNK, most if self.along == "inner" else PLANE_CHUNK)
        return TensorMap(piece, "float16", length, self.lines, self.count, length, length * self.lines, box, LINE_BYTES)


def operand_planes(op: GemmOp) -> tuple[OperandPlanes, OperandPlanes]:
    """Return the planes of the row-major product's A and B: in the leaf's workspace, or prepared behind the operand."""
    first, second, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    left = (m, k) if along[0] == "inner" else (k, m)
    right = (n, k) if along[1] == "inner" else (k, n)
    a = _prepared_or_new(op, OperandPlanes(first, along[0], *left, op.count, op.scratch))
    after = op.scratch if a.is_prepared else a.end_offset
    b = _prepared_or_new(op, OperandPlanes(second, along[1], *right, op.count, after))
    # In a Gram product the rows of A are the columns of B, so one set of planes serves both. A checked product records
    # different things of rows and of columns, and needs two sets.
    gram = op.triangle is not None and op.triangle.gram
    shared = (
        gram
        and not (op.checked or op.prepared.written_by_sums or a.is_prepared or b.is_prepared)
        and a.has_layout_of(b)
    )
    return a, a if shared else b


def _prepared_or_new(op: GemmOp, x: OperandPlanes) -> OperandPlanes:
    """Return these planes, or the prepared planes after the operand if there are any."""
    if op.prepared.prepared_matrix is None or op.prepared.prepared_matrix != x.source.base or op.checked:
        return x
    return replace(x, base=op.prepared.prepared_matrix, offset=matrix_bytes(x.lines, x.length))


def missing_planes(op: GemmOp, planes: tuple[OperandPlanes, OperandPlanes]) -> list[OperandPlanes]:
    """Return the planes of A and B that must still be made; one if both operands share them."""
    missing = [
        x
        for x, side in zip(planes, OPERAND_SIDES, strict=True)
        if not x.is_prepared and side not in op.prepared.written_by_sums
    ]
    return list(dict.fromkeys(missing))


@lru_cache(maxsize=64)
def plane_split_source(kernels: tuple[SplitKernel, ...], rule: ScalingRule) -> str:
    """Return the whole CUDA source of the kernel that splits one operand or two, entry point `ENTRY_NAME`."""
    records_spread = rule in ("recorded", "balanced")
    names = [f"x{i}" for i in range(len(kernels))]
    operands = f"    fmm::planes::{'SpreadOperand' if records_spread else 'Operand'} {', '.join(names)};"
    body = ["if (!*p.x0.balanced) return;"] if rule == "balanced" else []
    body.append("int block = blockIdx.x;")
    for name, kernel in zip(names, kernels, strict=True):
        forgets = f"fmm::planes::reset_inner(p.{name}, block), " if rule == "recorded" else ""
        body += [
            f"if (block < p.{name}.blocks) return {forgets}fmm::planes::{kernel.call(rule)}(p.{name}, block);",
            f"block -= p.{name}.blocks;",
        ]
    header, clusters = (
        "f16_spread.cuh" if records_spread else "f16_planes.cuh",
        0 if rule == "separate" else SPLIT_CLUSTER,
    )
    before = ("struct Operands {", operands, "};")
    return entry_source("Operands", body, header, (SPLIT_THREADS,), clusters=clusters, before=before)


def plane_split_launch(
    operands: Sequence[OperandPlanes], alignment: Mapping[str, int], rule: ScalingRule = "default"
) -> Launch:
    """Return the launch that makes the exponents and planes of these operands.

    `alignment` maps a base to the largest power of two that divides its address.
    """
    kernels = tuple(x.split_kernel(alignment) for x in operands)
    parameters = [x.parameters(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)]
    slots = tuple(slot for i, x in enumerate(operands) for slot in x.slots(i * len(parameters[0]) // 8))
    grid = sum(x.blocks(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)), 1, 1
    architecture = "" if rule == "separate" else "sm_90a"
    kernel = Kernel(plane_split_source, (kernels, rule), ENTRY_NAME, SPLIT_THREADS, architecture=architecture)
    names = " and ".join("AB"[i] if len(operands) > 1 else operands[i].source.base for i in range(len(operands)))
    label = f"f16_planes: splits {names} in two float16 numbers each"
    return Launch("sums", label, kernel, grid, b"".join(parameters), slots)


# ---- componentwise products: the spread of exponents, and a second split with the inner dimension balanced

BALANCE_BLOCKS = 2  # number of thread blocks on a multiprocessor that compare exponents along the inner dimension


@dataclass(frozen=True)
class ExponentSpread:
    """Both operands, and where the workspace holds the spread of their exponents.

    In order: the largest exponents along the inner dimension of A, those of B, and whether to balance the dimension.
    """

    left: OperandPlanes
    right: OperandPlanes
    offset: int

    @property
    def right_exponents_offset(self) -> int:
        """Offset of B's exponents in bytes."""
        return self.offset + exponent_bytes(self.left.count * self.left.depth)

    @property
    def balance_offset(self) -> int:
        """Offset of the decision whether to balance, in bytes."""
        return self.right_exponents_offset + exponent_bytes(self.right.count * self.right.depth)

    @property
    def end_offset(self) -> int:
        """Offset of the end of these parts, in bytes."""
        return self.balance_offset + PLANE_ALIGN

    def parameters(self, kernels: tuple[SplitKernel, SplitKernel]) -> tuple[bytes, tuple[AddressSlot, ...]]:
        """Return both structs SpreadOperand of f16_spread.cuh, and the slots of their addresses."""
        inner = (self.offset, self.right_exponents_offset)
        parts: list[bytes] = []
        slots: list[AddressSlot] = []
        for i, (x, kernel) in enumerate(zip((self.left, self.right), kernels, strict=True)):
            operand = x.parameters(kernel)
            first = sum(map(len, parts)) // 8
            after = first + len(operand) // 8
            parts.append(operand + struct.pack("<3q2i", 0, 0, 0, x.depth, -1 if i else 1))
            slots += [*x.slots(first), AddressSlot(after, "W", inner[i]), AddressSlot(after + 1, "W", inner[1 - i])]
            slots.append(AddressSlot(after + 2, "W", self.balance_offset))
        return b"".join(parts), tuple(slots)


@lru_cache(maxsize=16)
def balance_source(left: Along, right: Along) -> str:
    """Return the whole CUDA source of the kernel that decides whether to balance, entry point `ENTRY_NAME`."""
    along = ", ".join(str(x == "inner").lower() for x in (left, right))
    call = f"fmm::planes::balance<{along}>(p);"
    return entry_source("fmm::planes::Balance", call, "f16_spread.cuh", (SPLIT_THREADS,))


def checked_split_launches(
    x: ExponentSpread, multiprocessors: int, alignment: Mapping[str, int]
) -> tuple[Launch, Launch, Launch]:
    """Return three launches: split and record the spread, decide whether to balance, and split again if so."""
    kernels = x.left.split_kernel(alignment), x.right.split_kernel(alignment)
    parameters, slots = x.parameters(kernels)
    grid = x.left.blocks(kernels[0]) + x.right.blocks(kernels[1]), 1, 1

    def split(rule: ScalingRule, label: str) -> Launch:
        kernel = Kernel(plane_split_source, (kernels, rule), ENTRY_NAME, SPLIT_THREADS, architecture="sm_90a")
        return Launch("sums", f"f16_spread: {label}", kernel, grid, parameters, slots)

    source = Kernel(balance_source, (x.left.along, x.right.along), ENTRY_NAME, SPLIT_THREADS, architecture="sm_90a")
    balance = Launch(
        "sums",
        "f16_spread: decides whether to balance the inner dimension",
        source,
        (BALANCE_BLOCKS * multiprocessors, 1, 1),
        parameters + bytes(8),
        (*slots, AddressSlot(len(parameters) // 8, "W", x.balance_offset)),
    )
    first = split("recorded", "splits A and B in two float16 numbers each, records how rows and columns are spread")
    return first, balance, split("balanced", "splits again if the inner dimension is to be balanced")
