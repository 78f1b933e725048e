"""Planes."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.launch_list import Kernel, Launch, Slot, TensorMap
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
from fmm.kernels.plans.workspace import round_up

SIDES: tuple[OperandSide, OperandSide] = ("left", "right")  # of the kernel's product: its A, its B
SPLIT_THREADS = 256  # of a thread block that splits
SPLIT_CLUSTER = 8  # thread blocks that share the lines of 64 positions
WARP = 32
MAX_REGISTER_LOADS = 16  # loads of a line that a thread keeps in registers at most
# How numbers are scaled and where planes go. `usual`: by their line or position alone. `apart`: the same for the
# vendor, hi and lo apart, and without clusters. `noted`: the same, and it is noted how numbers are spread. `balanced`:
# with the inner dimension scaled too, if the launches before have found that it should be.
ScalingRule = Literal["usual", "apart", "noted", "balanced"]
SCALING_RULES: Mapping[ScalingRule, str] = {
    "usual": "Usual<fmm::planes::InTurns, fmm::planes::CLUSTER>",
    "apart": "Usual<fmm::planes::Apart, 1>",
    "noted": "Spread<false>",
    "balanced": "Spread<true>",
}


@dataclass(frozen=True)
class SplitKernel:
    """How one operand is split. `group` and `kept` count only for lines along the inner dimension."""

    along: Along
    group: int  # threads that split one line
    kept: int  # loads of a line that a thread keeps in registers
    wide: bool  # are 16 bytes read at a time?

    def call(self, rule: ScalingRule) -> str:
        """The function of f16_planes.cuh that does it."""
        own = f"{self.group}, {self.kept}, " if self.along == "inner" else ""
        function = "by_line" if self.along == "inner" else "by_position"
        return f"{function}<fmm::planes::{SCALING_RULES[rule]}, {own}{str(self.wide).lower()}>"


@dataclass(frozen=True)
class OperandPlanes:
    """The planes of one operand of a batch, and where they stand, with the exponents behind them.

    That is in the workspace, or, if they are kept for other products, behind the operand itself.
    """

    source: GemmOperand
    along: Along  # the dimension along which the operand's lines run
    lines: int
    length: int  # of a line
    count: int  # of products in the batch
    offset: int
    base: str = "W"

    @property
    def is_kept(self) -> bool:
        """Do they stand behind the operand, where an earlier call has left them?"""
        return self.base != "W"

    def lies_as(self, other: OperandPlanes) -> bool:
        """Does its operand lie in memory as the other one does?"""
        x, y = ((p.along, p.lines, p.length, p.source.leading, p.source.stride) for p in (self, other))
        return x == y

    @property
    def room(self) -> int:
        """Numbers from one line of a plane to the next."""
        return round_up(self.length, PLANE_CHUNK)

    @property
    def outer(self) -> int:
        """The rows of A, or the columns of B."""
        return self.lines if self.along == "inner" else self.length

    @property
    def depth(self) -> int:
        """The inner dimension."""
        return self.length if self.along == "inner" else self.lines

    @property
    def exponents(self) -> int:
        """Where the exponents begin."""
        return self.offset + plane_bytes(self.count * self.lines, self.length)

    @property
    def end(self) -> int:
        """Where they end."""
        return self.exponents + exponent_bytes(self.count * self.outer)

    def split_kernel(self, divides: Mapping[str, int]) -> SplitKernel:
        """How the operand is split: long lines by a whole thread block each, short ones by a warp."""
        wide = all(x * FLOAT32_BYTES % VECTOR_BYTES == 0 for x in (self.source.leading, self.source.stride))
        wide = wide and self.source.offset % VECTOR_BYTES == 0 and divides[self.source.base] % VECTOR_BYTES == 0
        if self.along == "outer":
            return SplitKernel("outer", 0, 0, wide)
        group = WARP if self.length <= 1024 else SPLIT_THREADS
        return SplitKernel("inner", group, min(-(-self.room // (4 * group)), MAX_REGISTER_LOADS), wide)

    def blocks(self, kernel: SplitKernel, rule: ScalingRule = "usual") -> int:
        """How many thread blocks split it."""
        sharing = 1 if rule == "apart" else SPLIT_CLUSTER
        if kernel.along == "outer":
            return self.count * self.room // PLANE_CHUNK * sharing
        return round_up(-(-self.count * self.lines // (SPLIT_THREADS // kernel.group)), sharing)

    def parameters(self, kernel: SplitKernel, rule: ScalingRule = "usual") -> bytes:
        """struct Operand of f16_planes.cuh, addresses zero."""
        x = self.source
        counts = self.lines, self.length, self.count, self.blocks(kernel, rule)
        return struct.pack("<6q4i", 0, 0, 0, x.leading, x.stride, self.room, *counts)

    def slots(self, first: int) -> tuple[Slot, ...]:
        """Where the operand's, the planes' and the exponents' addresses go, if the struct begins at word `first`."""
        x = self.source
        return (
            Slot(first, x.base, x.offset),
            Slot(first + 1, self.base, self.offset),
            Slot(first + 2, self.base, self.exponents),
        )

    def tensor_map(self, most: int) -> TensorMap:
        """The map of planes in which hi and lo take turns, 64 numbers each; one copy brings at most `most` lines."""
        length = PLANES_PER_OPERAND * self.room
        piece = BlockTerm(self.base, self.offset, self.lines, length)
        box = (PLANE_CHUNK, most if self.along == "inner" else PLANE_CHUNK)
        return TensorMap(piece, "float16", length, self.lines, self.count, length, length * self.lines, box, LINE_BYTES)


def operand_planes(op: GemmOp) -> tuple[OperandPlanes, OperandPlanes]:
    """The planes of a product's A and B, in the kernel's terms: in the leaf's scratch, or where they are kept."""
    first, second, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    left = (m, k) if along[0] == "inner" else (k, m)
    right = (n, k) if along[1] == "inner" else (k, n)
    a = _kept_or_made(op, OperandPlanes(first, along[0], *left, op.count, op.scratch))
    after = op.scratch if a.is_kept else a.end
    b = _kept_or_made(op, OperandPlanes(second, along[1], *right, op.count, after))
    # The rows of a matrix are the columns of its transpose, so that one set of planes serves both operands; unless
    # entries are checked, for which something else is noted of rows than of columns.
    gram = op.half is not None and op.half.gram
    shared = gram and not (op.checked or op.ready.written_by_sums or a.is_kept or b.is_kept) and a.lies_as(b)
    return a, a if shared else b


def _kept_or_made(op: GemmOp, x: OperandPlanes) -> OperandPlanes:
    """These planes, or in their place those that are kept behind the operand itself."""
    if op.ready.prepared_matrix is None or op.ready.prepared_matrix != x.source.base or op.checked:
        return x
    return replace(x, base=op.ready.prepared_matrix, offset=matrix_bytes(x.lines, x.length))


def missing_planes(op: GemmOp, planes: tuple[OperandPlanes, OperandPlanes]) -> list[OperandPlanes]:
    """Those of A's and B's planes that do not stand ready; one of them, if both are the same."""
    missing = [
        x for x, side in zip(planes, SIDES, strict=True) if not x.is_kept and side not in op.ready.written_by_sums
    ]
    return list(dict.fromkeys(missing))


@lru_cache(maxsize=64)
def plane_split_source(kernels: tuple[SplitKernel, ...], rule: ScalingRule) -> str:
    """The whole CUDA source of the kernel that splits one operand or two, entry point `ENTRY`."""
    noted = rule in ("noted", "balanced")
    names = [f"x{i}" for i in range(len(kernels))]
    operands = f"    fmm::planes::{'SpreadOperand' if noted else 'Operand'} {', '.join(names)};"
    body = ["if (!*p.x0.balanced) return;"] if rule == "balanced" else []
    body.append("int block = blockIdx.x;")
    for name, kernel in zip(names, kernels, strict=True):
        forgets = f"fmm::planes::forget_inner(p.{name}, block), " if rule == "noted" else ""
        body += [
            f"if (block < p.{name}.blocks) return {forgets}fmm::planes::{kernel.call(rule)}(p.{name}, block);",
            f"block -= p.{name}.blocks;",
        ]
    header, clusters = "f16_spread.cuh" if noted else "f16_planes.cuh", 0 if rule == "apart" else SPLIT_CLUSTER
    return entry_source(
        "Told", body, header, (SPLIT_THREADS,), clusters=clusters, before=("struct Told {", operands, "};")
    )


def plane_split_launch(
    operands: Sequence[OperandPlanes], divides: Mapping[str, int], rule: ScalingRule = "usual"
) -> Launch:
    """The launch that makes the exponents and planes of these operands."""
    kernels = tuple(x.split_kernel(divides) for x in operands)
    parameters = [x.parameters(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)]
    slots = tuple(slot for i, x in enumerate(operands) for slot in x.slots(i * len(parameters[0]) // 8))
    grid = sum(x.blocks(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)), 1, 1
    kernel = Kernel(
        plane_split_source, (kernels, rule), ENTRY, SPLIT_THREADS, architecture="" if rule == "apart" else "sm_90a"
    )
    names = " and ".join("AB"[i] if len(operands) > 1 else operands[i].source.base for i in range(len(operands)))
    label = f"f16_planes: splits {names} in two float16 numbers each"
    return Launch("sums", label, kernel, grid, b"".join(parameters), slots)


BLOCKS = 2  # thread blocks on a multiprocessor that look for the largest numbers of the inner dimension


@dataclass(frozen=True)
class ExponentSpread:
    """Both operands, and where in the workspace it is noted how their numbers are spread.

    That is, one behind the other: the largest exponents along the inner dimension, A's and B's, and whether the inner
    dimension is to be balanced.
    """

    left: OperandPlanes
    right: OperandPlanes
    offset: int

    @property
    def right_exponents(self) -> int:
        """Where B's exponents begin."""
        return self.offset + exponent_bytes(self.left.count * self.left.depth)

    @property
    def balanced(self) -> int:
        """Where it is noted whether to balance."""
        return self.right_exponents + exponent_bytes(self.right.count * self.right.depth)

    @property
    def end(self) -> int:
        """Where all of it ends."""
        return self.balanced + PLANE_ALIGN

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
    return entry_source("fmm::planes::Balance", call, "f16_spread.cuh", (SPLIT_THREADS,))


def checked_split_launches(
    x: ExponentSpread, multiprocessors: int, divides: Mapping[str, int]
) -> tuple[Launch, Launch, Launch]:
    """The launches that make planes, look whether the inner dimension is to be balanced, and if so make planes anew."""
    kernels = x.left.split_kernel(divides), x.right.split_kernel(divides)
    parameters, slots = x.parameters(kernels)
    grid = x.left.blocks(kernels[0]) + x.right.blocks(kernels[1]), 1, 1

    def split(rule: ScalingRule, label: str) -> Launch:
        kernel = Kernel(plane_split_source, (kernels, rule), ENTRY, SPLIT_THREADS, architecture="sm_90a")
        return Launch("sums", f"f16_spread: {label}", kernel, grid, parameters, slots)

    source = Kernel(balance_source, (x.left.along, x.right.along), ENTRY, SPLIT_THREADS, architecture="sm_90a")
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
