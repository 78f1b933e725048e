"""Split float32 operands into float16 planes: the memory layout of planes, the kernel sources and the launches.

The kernels are in f16_planes.cuh and f16_spread.cuh. Each row of A and each column of B has one exponent e. A number x
in a row or column with the exponent e becomes hi = float16(x 2^e) and lo = float16(2048 (x 2^e - hi)). `OperandPlanes`
describes where the planes and exponents of an operand are stored; the launch of `plane_split_launch` computes planes
and exponents. For componentwise products, the kernel also records how much the magnitudes in a row or column differ
(`ComponentwisePlanes`). If the magnitudes differ too much, the operands are split a second time.

A line of an operand is contiguous in memory: a row or a column of A or B.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import DEVICE_ARCHITECTURE, AddressSlot, Kernel, Launch, TensorMap
from fmm.kernels.cuda.ops import BlockTerm, GemmOp, GemmOperand, OperandSide
from fmm.kernels.cuda.products.kernel_sizes import (
    FLOAT32_BYTES,
    PLANE_ALIGN_BYTES,
    PLANE_CHUNK_LENGTH,
    PLANES_PER_OPERAND,
    exponent_bytes,
    padded_matrix_bytes,
    plane_bytes,
)
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES, ContiguousAxis, row_major_operands
from fmm.kernels.cuda.products.wgmma_tiles import TILE_LINE_BYTES
from fmm.kernels.plans.memory_layout import round_up

OPERAND_SIDES: tuple[OperandSide, OperandSide] = ("left", "right")  # names of the kernel's operands A and B
SPLIT_THREADS = 256  # number of threads in a thread block of the split kernels
# Number of thread blocks in a cluster of the split kernels. A cluster splits 64 rows of A or 64 columns of B of an
# operand that is contiguous along the outer dimension.
SPLIT_CLUSTER_BLOCKS = 8
STRIP_POSITIONS = 16  # without clusters: number of rows of A, or of columns of B, that one thread block splits
WARP_THREADS = 32
MAX_REGISTER_LOADS = 16  # largest number of loads from one line that a thread holds in registers
# Rules for scaling an operand and for arranging its planes hi and lo. All rules scale each row of A or column of B.
# With the rule "default", chunks of PLANE_CHUNK_LENGTH numbers of plane hi and of plane lo alternate in memory. With
# the rule "separate", the complete plane hi precedes plane lo, as cuBLAS needs, and the splitting kernel uses no
# clusters. The rule "recorded" is like "default", but the splitting kernel also records the spread of each row or
# column: the fraction of large numbers, and whether any number is small. The rule "balanced" is like "default", but the
# splitting kernel also scales each position of the inner dimension. SCALING_RULES maps each rule to a C++ type; the
# braces stand for the number of thread blocks of a cluster.
ScalingRule = Literal["default", "separate", "recorded", "balanced"]
SCALING_RULES: Mapping[ScalingRule, str] = {
    "default": "LineScaling<fmm::planes::Alternating, {}>",
    "separate": "LineScaling<fmm::planes::Separate, {}>",
    "recorded": "Spread<false, {}>",
    "balanced": "Spread<true, {}>",
}


@dataclass(frozen=True)
class SplitKernel:
    """A compiled variant of the kernel that splits an operand into planes."""

    along: ContiguousAxis
    group: int  # number of threads that split one line; 0 if lines run along the outer dimension
    # number of loads from one line that a thread holds in registers; 0 if lines run along the outer dimension
    register_loads: int
    wide: bool  # True if each load reads 16 bytes

    def cpp_split_function_name(self, rule: ScalingRule, cluster: int) -> str:
        """Return the name and template arguments of the C++ function of f16_planes.cuh that splits the operand."""
        own = f"{self.group}, {self.register_loads}, " if self.along == "inner" else ""
        function = "split_by_line" if self.along == "inner" else "split_by_position"
        return f"{function}<fmm::planes::{SCALING_RULES[rule].format(cluster)}, {own}{str(self.wide).lower()}>"


@dataclass(frozen=True)
class OperandPlanes:
    """The memory layout of an operand's planes and exponents for a batch; the exponents follow the planes.

    Planes are in the workspace, except the planes that `fmm.prepare` has stored behind the operand's matrix.
    """

    source: GemmOperand
    along: ContiguousAxis  # the dimension along which the operand's lines run
    lines: int
    length: int  # number of elements in a line
    count: int  # number of products in the batch
    offset: int
    base: str = "W"

    @property
    def is_prepared(self) -> bool:
        """True if `fmm.prepare` has stored the planes behind the operand's matrix."""
        return self.base != "W"

    def has_same_layout_as(self, other: OperandPlanes) -> bool:
        """Return True if both operands have the same memory layout and the same shape."""
        x, y = ((p.along, p.lines, p.length, p.source.leading, p.source.stride) for p in (self, other))
        return x == y

    @property
    def line_pitch(self) -> int:
        """Distance from one line of a plane to the next, in elements."""
        return round_up(self.length, PLANE_CHUNK_LENGTH)

    @property
    def outer_size(self) -> int:
        """Number of rows of A, or of columns of B."""
        return self.lines if self.along == "inner" else self.length

    @property
    def inner_size(self) -> int:
        """Length of the product's inner dimension."""
        return self.length if self.along == "inner" else self.lines

    @property
    def exponents_offset(self) -> int:
        """Offset of the exponents from the base address, in bytes."""
        return self.offset + plane_bytes(self.count * self.lines, self.length)

    @property
    def end_offset(self) -> int:
        """Offset of the first byte after the exponents."""
        return self.exponents_offset + exponent_bytes(self.count * self.outer_size)

    def split_kernel(self, alignment: Mapping[str, int]) -> SplitKernel:
        """Return the kernel that splits this operand: a thread block splits a long line, a warp splits a short line."""
        wide = all(x * FLOAT32_BYTES % VECTOR_BYTES == 0 for x in (self.source.leading, self.source.stride))
        wide = wide and self.source.offset % VECTOR_BYTES == 0 and alignment[self.source.base] % VECTOR_BYTES == 0
        if self.along == "outer":
            return SplitKernel("outer", 0, 0, wide)
        group = WARP_THREADS if self.length <= 1024 else SPLIT_THREADS
        return SplitKernel("inner", group, min(-(-self.line_pitch // (4 * group)), MAX_REGISTER_LOADS), wide)

    def thread_block_count(self, kernel: SplitKernel, cluster: int) -> int:
        """Return the number of thread blocks that split the operand.

        `cluster` is the number of thread blocks in a cluster; 1 means no clusters.
        """
        if kernel.along == "outer":
            strip = PLANE_CHUNK_LENGTH if cluster > 1 else STRIP_POSITIONS
            return self.count * self.line_pitch // strip * cluster
        return round_up(-(-self.count * self.lines // (SPLIT_THREADS // kernel.group)), cluster)

    def elements_per_thread_block(self, kernel: SplitKernel, cluster: int) -> float:
        """Return the mean number of elements that a thread block splits."""
        return self.count * self.lines * self.length / max(self.thread_block_count(kernel, cluster), 1)

    def pack_parameters(self, kernel: SplitKernel, cluster: int) -> bytes:
        """Return the bytes of struct Operand of f16_planes.cuh, with zeros in place of addresses."""
        x = self.source
        counts = self.lines, self.length, self.count, self.thread_block_count(kernel, cluster)
        return struct.pack("<6q4i", 0, 0, 0, x.leading, x.stride, self.line_pitch, *counts)

    def parameter_addresses(self, first: int) -> tuple[AddressSlot, ...]:
        """Return the AddressSlots of a struct Operand that starts at word `first`: operand, planes, exponents."""
        x = self.source
        return (
            AddressSlot(first, x.base, x.offset),
            AddressSlot(first + 1, self.base, self.offset),
            AddressSlot(first + 2, self.base, self.exponents_offset),
        )

    def tensor_map(self, most: int) -> TensorMap:
        """Return the tensor map of planes in which hi and lo alternate; one copy loads at most `most` lines."""
        length = PLANES_PER_OPERAND * self.line_pitch
        piece = BlockTerm(self.base, self.offset, self.lines, length)
        box = (PLANE_CHUNK_LENGTH, most if self.along == "inner" else PLANE_CHUNK_LENGTH)
        return TensorMap(
            piece, "float16", length, self.lines, self.count, length, length * self.lines, box, TILE_LINE_BYTES
        )


def operand_planes(op: GemmOp) -> tuple[OperandPlanes, OperandPlanes]:
    """Return the layouts of A's planes and B's planes for the row-major product; some planes may be prepared."""
    first, second, along = row_major_operands(op)
    m, n, k = op.n, op.m, op.k
    left = (m, k) if along[0] == "inner" else (k, m)
    right = (n, k) if along[1] == "inner" else (k, n)
    a = _reuse_prepared_planes(op, OperandPlanes(first, along[0], *left, op.count, op.scratch))
    after = op.scratch if a.is_prepared else a.end_offset
    b = _reuse_prepared_planes(op, OperandPlanes(second, along[1], *right, op.count, after))
    # In a Gram product the rows of A are the columns of B, so both operands share one set of planes. A componentwise
    # product may scale column k of A and row k of B by different factors, so a componentwise Gram product needs two
    # sets of planes.
    gram = op.triangle is not None and op.triangle.gram
    shared = (
        gram
        and not (op.checked or op.prepared.written_by_sums or a.is_prepared or b.is_prepared)
        and a.has_same_layout_as(b)
    )
    return a, a if shared else b


def _reuse_prepared_planes(op: GemmOp, x: OperandPlanes) -> OperandPlanes:
    """Return `x` at the address where `fmm.prepare` has stored this operand's planes; `x` itself if there is none."""
    if op.prepared.prepared_matrix is None or op.prepared.prepared_matrix != x.source.base or op.checked:
        return x
    return replace(x, base=op.prepared.prepared_matrix, offset=padded_matrix_bytes(x.lines, x.length))


def missing_planes(op: GemmOp, planes: tuple[OperandPlanes, OperandPlanes]) -> list[OperandPlanes]:
    """Return the planes of A and B that the product still has to compute; planes that A and B share appear once."""
    missing = [
        x
        for x, side in zip(planes, OPERAND_SIDES, strict=True)
        if not x.is_prepared and side not in op.prepared.written_by_sums
    ]
    return list(dict.fromkeys(missing))


def _compiled_split_kernel(kernels: tuple[SplitKernel, ...], rule: ScalingRule, cluster: int) -> Kernel:
    architecture = "sm_90a" if cluster > 1 else DEVICE_ARCHITECTURE
    arguments = kernels, rule, cluster
    return Kernel(plane_split_kernel_source, arguments, ENTRY_NAME, SPLIT_THREADS, architecture=architecture)


@lru_cache(maxsize=64)
def plane_split_kernel_source(kernels: tuple[SplitKernel, ...], rule: ScalingRule, cluster: int) -> str:
    """Return the CUDA source of the kernel that splits one or two operands; its entry point is `ENTRY_NAME`."""
    records_spread = rule in ("recorded", "balanced")
    names = [f"x{i}" for i in range(len(kernels))]
    operands = f"    fmm::planes::{'SpreadOperand' if records_spread else 'Operand'} {', '.join(names)};"
    body = ["if (!*p.x0.balanced) return;"] if rule == "balanced" else []
    body.append("int block = blockIdx.x;")
    for name, kernel in zip(names, kernels, strict=True):
        forgets = f"fmm::planes::reset_inner(p.{name}, block), " if rule == "recorded" else ""
        split = f"fmm::planes::{kernel.cpp_split_function_name(rule, cluster)}(p.{name}, block)"
        body += [
            f"if (block < p.{name}.blocks) return {forgets}{split};",
            f"block -= p.{name}.blocks;",
        ]
    header, before = "f16_spread.cuh" if records_spread else "f16_planes.cuh", ("struct Operands {", operands, "};")
    clusters = cluster if cluster > 1 else 0
    return entry_source("Operands", body, header, (SPLIT_THREADS,), clusters=clusters, before=before)


def plane_split_launch(
    operands: Sequence[OperandPlanes],
    alignment: Mapping[str, int],
    rule: ScalingRule = "default",
    cluster: int = SPLIT_CLUSTER_BLOCKS,
) -> Launch:
    """Return the launch that computes the exponents and planes of these operands.

    `alignment` maps the name of a base, such as A or C, to the largest power of two that divides the base's address.
    `cluster` is the number of thread blocks in a cluster; 1 on GPUs without clusters (before compute capability 9.0).
    Thread blocks that split the most elements come first in the grid, so that a few long thread blocks (for a matrix B
    with few columns) run at the same time as many short ones.
    """
    names = " and ".join("AB"[i] if len(operands) > 1 else operands[i].source.base for i in range(len(operands)))
    operands = sorted(operands, key=lambda x: -x.elements_per_thread_block(x.split_kernel(alignment), cluster))
    kernels = tuple(x.split_kernel(alignment) for x in operands)
    parameters = [x.pack_parameters(kernel, cluster) for x, kernel in zip(operands, kernels, strict=True)]
    slots = tuple(slot for i, x in enumerate(operands) for slot in x.parameter_addresses(i * len(parameters[0]) // 8))
    grid = sum(x.thread_block_count(kernel, cluster) for x, kernel in zip(operands, kernels, strict=True)), 1, 1
    kernel = _compiled_split_kernel(kernels, rule, cluster)
    label = f"f16_planes: splits {names} in two float16 numbers each"
    return Launch("sums", label, kernel, grid, b"".join(parameters), slots)


# ---- componentwise products: recorded magnitudes, and a second split that balances the inner dimension

BALANCE_BLOCKS_PER_SM = 2  # number of thread blocks of the balance kernel for each multiprocessor


@dataclass(frozen=True)
class ComponentwisePlanes:
    """The planes of both operands of a componentwise product, and the memory that balances the inner dimension.

    To balance the inner dimension, each column k of A is multiplied by a power of two, and row k of B is divided by
    this power. From `offset` on, the workspace holds the largest exponent of each column of A, then of each row of B.
    The balance flag follows: a number that is not zero if the inner dimension is to be balanced.
    """

    left: OperandPlanes
    right: OperandPlanes
    offset: int

    @property
    def right_exponents_offset(self) -> int:
        """Offset in the workspace of the largest exponents of B's rows, in bytes."""
        return self.offset + exponent_bytes(self.left.count * self.left.inner_size)

    @property
    def balance_flag_offset(self) -> int:
        """Offset of the balance flag in the workspace, in bytes."""
        return self.right_exponents_offset + exponent_bytes(self.right.count * self.right.inner_size)

    @property
    def end_offset(self) -> int:
        """Offset in the workspace of the first byte after the balance flag and its padding."""
        return self.balance_flag_offset + PLANE_ALIGN_BYTES

    def pack_parameters(
        self, kernels: tuple[SplitKernel, SplitKernel], cluster: int
    ) -> tuple[bytes, tuple[AddressSlot, ...]]:
        """Return the bytes of two structs SpreadOperand of f16_spread.cuh, and the AddressSlots of these structs."""
        inner = (self.offset, self.right_exponents_offset)
        parts: list[bytes] = []
        slots: list[AddressSlot] = []
        for i, (x, kernel) in enumerate(zip((self.left, self.right), kernels, strict=True)):
            operand = x.pack_parameters(kernel, cluster)
            first = sum(map(len, parts)) // 8
            after = first + len(operand) // 8
            parts.append(operand + struct.pack("<3q2i", 0, 0, 0, x.inner_size, -1 if i else 1))
            slots += [
                *x.parameter_addresses(first),
                AddressSlot(after, "W", inner[i]),
                AddressSlot(after + 1, "W", inner[1 - i]),
            ]
            slots.append(AddressSlot(after + 2, "W", self.balance_flag_offset))
        return b"".join(parts), tuple(slots)


@lru_cache(maxsize=16)
def balance_decision_kernel_source(left: ContiguousAxis, right: ContiguousAxis) -> str:
    """Return the CUDA source of the kernel that decides whether the operands must be split again."""
    along = ", ".join(str(x == "inner").lower() for x in (left, right))
    call = f"fmm::planes::balance<{along}>(p);"
    return entry_source("fmm::planes::Balance", call, "f16_spread.cuh", (SPLIT_THREADS,))


def balanced_split_launches(
    x: ComponentwisePlanes, multiprocessors: int, alignment: Mapping[str, int], cluster: int = SPLIT_CLUSTER_BLOCKS
) -> tuple[Launch, Launch, Launch]:
    """Return three launches: a split that records magnitudes, a check of the magnitudes, and a second split.

    The second launch sets a flag in device memory if the magnitudes in a row of A or a column of B differ too much. The
    third launch splits the operands again, with a scale for each index of the inner dimension, if the flag is set.
    """
    kernels = x.left.split_kernel(alignment), x.right.split_kernel(alignment)
    parameters, slots = x.pack_parameters(kernels, cluster)
    blocks = x.left.thread_block_count(kernels[0], cluster) + x.right.thread_block_count(kernels[1], cluster)

    def split_launch(rule: ScalingRule, label: str) -> Launch:
        kernel = _compiled_split_kernel(kernels, rule, cluster)
        return Launch("sums", f"f16_spread: {label}", kernel, (blocks, 1, 1), parameters, slots)

    source = Kernel(balance_decision_kernel_source, (x.left.along, x.right.along), ENTRY_NAME, SPLIT_THREADS)
    balance = Launch(
        "sums",
        "f16_spread: decides whether to balance the inner dimension",
        source,
        (BALANCE_BLOCKS_PER_SM * multiprocessors, 1, 1),
        parameters + bytes(8),
        (*slots, AddressSlot(len(parameters) // 8, "W", x.balance_flag_offset)),
    )
    first = split_launch(
        "recorded", "splits A and B in two float16 numbers each, records the spread of rows and columns"
    )
    return first, balance, split_launch("balanced", "splits again if the inner dimension is to be balanced")
