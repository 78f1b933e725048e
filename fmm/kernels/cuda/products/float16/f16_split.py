"""Splitting operands in planes of float16 numbers: where these stand, the kernels' sources, the launches."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.gemm import GemmOp, Side
from fmm.kernels.cuda.kernel import Kernel
from fmm.kernels.cuda.launch_list import Launch, Slot
from fmm.kernels.cuda.products.float16.f16_planes import (
    CHUNK,
    ITEM,
    PLANES,
    exponent_room,
    matrix_room,
    plane_room,
)
from fmm.kernels.cuda.products.tiles.tiled import WIDE
from fmm.kernels.cuda.products.tiles.tiled_gemm import kernel_operands
from fmm.kernels.cuda.products.tiles.tiled_source import Along
from fmm.kernels.cuda.products.tiles.wgmma_source import LINE
from fmm.kernels.cuda.tensor_map import TensorMap
from fmm.kernels.cuda.views import Factor, Piece
from fmm.kernels.plans.memory_layout import whole

SIDES: tuple[Side, Side] = ("left", "right")  # of the kernel's product: its A, its B
THREADS = 256  # of a thread block that splits
CLUSTER = 8  # thread blocks that share the lines of 64 positions
WARP = 32
MOST_KEPT = 16  # loads of a line that a thread keeps in registers at most
# How numbers are scaled and where planes go. `usual`: by their line or position alone. `apart`: the same for the
# vendor, hi and lo apart, and without clusters. `noted`: the same, and it is noted how numbers are spread. `balanced`:
# with the inner dimension scaled too, if the launches before have found that it should be.
Rule = Literal["usual", "apart", "noted", "balanced"]
RULES: Mapping[Rule, str] = {
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

    def call(self, rule: Rule) -> str:
        """The function of f16_planes.cuh that does it."""
        own = f"{self.group}, {self.kept}, " if self.along == "inner" else ""
        function = "by_line" if self.along == "inner" else "by_position"
        return f"{function}<fmm::planes::{RULES[rule]}, {own}{str(self.wide).lower()}>"


@dataclass(frozen=True)
class Planes:
    """The planes of one operand of a batch, and where they stand, with the exponents behind them.

    That is in the workspace, or, if they are kept for other products, behind the operand itself.
    """

    source: Factor
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

    def lies_as(self, other: Planes) -> bool:
        """Does its operand lie in memory as the other one does?"""
        x, y = ((p.along, p.lines, p.length, p.source.leading, p.source.stride) for p in (self, other))
        return x == y

    @property
    def room(self) -> int:
        """Numbers from one line of a plane to the next."""
        return whole(self.length, CHUNK)

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
        return self.offset + plane_room(self.count * self.lines, self.length)

    @property
    def end(self) -> int:
        """Where they end."""
        return self.exponents + exponent_room(self.count * self.outer)

    def split_kernel(self, divides: Mapping[str, int]) -> SplitKernel:
        """How the operand is split: long lines by a whole thread block each, short ones by a warp."""
        wide = all(x * ITEM % WIDE == 0 for x in (self.source.leading, self.source.stride))
        wide = wide and self.source.offset % WIDE == 0 and divides[self.source.base] % WIDE == 0
        if self.along == "outer":
            return SplitKernel("outer", 0, 0, wide)
        group = WARP if self.length <= 1024 else THREADS
        return SplitKernel("inner", group, min(-(-self.room // (4 * group)), MOST_KEPT), wide)

    def blocks(self, kernel: SplitKernel, rule: Rule = "usual") -> int:
        """How many thread blocks split it."""
        sharing = 1 if rule == "apart" else CLUSTER
        if kernel.along == "outer":
            return self.count * self.room // CHUNK * sharing
        return whole(-(-self.count * self.lines // (THREADS // kernel.group)), sharing)

    def parameters(self, kernel: SplitKernel, rule: Rule = "usual") -> bytes:
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
        length = PLANES * self.room
        piece = Piece(self.base, self.offset, self.lines, length)
        box = (CHUNK, most if self.along == "inner" else CHUNK)
        return TensorMap(piece, "float16", length, self.lines, self.count, length, length * self.lines, box, LINE)


def operand_planes(op: GemmOp) -> tuple[Planes, Planes]:
    """The planes of a product's A and B, in the kernel's terms: in the leaf's scratch, or where they are kept."""
    first, second, along = kernel_operands(op)
    m, n, k = op.n, op.m, op.k
    left = (m, k) if along[0] == "inner" else (k, m)
    right = (n, k) if along[1] == "inner" else (k, n)
    a = _kept_or_made(op, Planes(first, along[0], *left, op.count, op.scratch))
    after = op.scratch if a.is_kept else a.end
    b = _kept_or_made(op, Planes(second, along[1], *right, op.count, after))
    # The rows of a matrix are the columns of its transpose, so that one set of planes serves both operands; unless
    # entries are checked, for which something else is noted of rows than of columns.
    gram = op.half is not None and op.half.gram
    shared = gram and not (op.checked or op.ready.from_sums or a.is_kept or b.is_kept) and a.lies_as(b)
    return a, a if shared else b


def _kept_or_made(op: GemmOp, x: Planes) -> Planes:
    """These planes, or in their place those that are kept behind the operand itself."""
    if op.ready.kept_of is None or op.ready.kept_of != x.source.base or op.checked:
        return x
    return replace(x, base=op.ready.kept_of, offset=matrix_room(x.lines, x.length))


def planes_to_make(op: GemmOp, planes: tuple[Planes, Planes]) -> list[Planes]:
    """Those of A's and B's planes that do not stand ready; one of them, if both are the same."""
    missing = [x for x, side in zip(planes, SIDES, strict=True) if not x.is_kept and side not in op.ready.from_sums]
    return list(dict.fromkeys(missing))


@lru_cache(maxsize=64)
def split_source(kernels: tuple[SplitKernel, ...], rule: Rule) -> str:
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
    header, clusters = "f16_spread.cuh" if noted else "f16_planes.cuh", 0 if rule == "apart" else CLUSTER
    return entry_source("Told", body, header, (THREADS,), clusters=clusters, before=("struct Told {", operands, "};"))


def split_launch(operands: Sequence[Planes], divides: Mapping[str, int], rule: Rule = "usual") -> Launch:
    """The launch that makes the exponents and planes of these operands."""
    kernels = tuple(x.split_kernel(divides) for x in operands)
    parameters = [x.parameters(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)]
    slots = tuple(slot for i, x in enumerate(operands) for slot in x.slots(i * len(parameters[0]) // 8))
    grid = sum(x.blocks(kernel, rule) for x, kernel in zip(operands, kernels, strict=True)), 1, 1
    kernel = Kernel(split_source, (kernels, rule), ENTRY, THREADS, architecture="" if rule == "apart" else "sm_90a")
    names = " and ".join("AB"[i] if len(operands) > 1 else operands[i].source.base for i in range(len(operands)))
    label = f"f16_planes: splits {names} in two float16 numbers each"
    return Launch("sums", label, kernel, grid, b"".join(parameters), slots)
