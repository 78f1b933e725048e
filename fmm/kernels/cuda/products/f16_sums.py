"""Sums."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.launch_list import PARAMETER_BYTES, Kernel, Launch, Slot
from fmm.kernels.cuda.ops import GemmOp, OperandSide
from fmm.kernels.cuda.products.f16_planes import SIDES, OperandPlanes, operand_planes
from fmm.kernels.cuda.products.kernel_sizes import FLOAT32_BYTES
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.cuda.sums.sum_kernel import SUM_THREADS, SumKernel, step_lines
from fmm.kernels.cuda.sums.sum_launch import ARRAY_BYTES, GRID_LIMIT, BlockArray, SumOp

EXTENT_THREADS, WARP, STRIP = 256, 32, 32  # as in f16_sums.cuh
MASK = 64  # blocks that a mask can name


@dataclass(frozen=True, eq=False)
class PlaneSums:
    """A split whose sums are the operands of a batch of f16x3's products, of A or of B."""

    split: SumOp
    planes: OperandPlanes
    side: OperandSide  # which operand of the kernel's product
    apart: bool = False  # does all hi stand before all lo, as the vendor wants them?

    @property
    def writes_result(self) -> bool:
        return False

    @cached_property
    def source(self) -> BlockArray:
        """The matrix whose blocks are added up."""
        return self.split.arrays[self.split.kernel.reads[0].array]

    @property
    def blocks(self) -> tuple[int, int]:
        """How many blocks that matrix has below each other and side by side."""
        reads = self.split.kernel.reads
        return 1 + max(x.i for x in reads), 1 + max(x.j for x in reads)

    @property
    def lines(self) -> bool:
        """Do lines run along the inner dimension, so that each has an exponent?"""
        return self.planes.along == "inner"

    @cached_property
    def masks(self) -> tuple[int, ...]:
        """Of each sum, a bit for each block that is in it."""
        reads, across = self.split.kernel.reads, self.blocks[1]
        return tuple(
            sum(1 << (x.i * across + x.j) for x, c in zip(reads, row, strict=True) if c)
            for row in self.split.kernel.program.matrix()
        )

    @cached_property
    def kernel(self) -> SumKernel:
        """The split's kernel; where lines of planes are longer, it asks of every number whether there is one."""
        kernel = self.split.kernel
        return kernel if self.planes.room == self.split.cols else replace(kernel, whole=frozenset())


def plane_sums(split: SumOp, product: GemmOp, divides: Mapping[str, int], apart: bool = False) -> PlaneSums | None:
    """The split that writes planes, in the place of one that writes an operand of a batch of products.

    None if the split writes neither operand of the batch, or cannot write its planes.
    """
    plain = product.alpha == 1 and not product.beta and not product.checked
    if product.count < 2 or not plain or product.left == product.right:
        return None
    planes, (size, bases) = operand_planes(product), split.alignment
    sums = [PlaneSums(split, x, side, apart) for x, side in zip(planes, SIDES, strict=True) if _can_write(split, x)]
    return sums[0] if sums and not any(divides[base] % size for base in bases) else None


def _can_write(split: SumOp, x: OperandPlanes) -> bool:
    """Is the operand just what the split writes, formed of blocks of one matrix, each at most once in a sum?"""
    kernel = split.kernel
    if split.scalars or kernel.tall or kernel.parts or kernel.element != "float32" or len(split.arrays) != 2:
        return False
    source, dest = kernel.reads[0].array, kernel.writes[0].array
    written, blocks = split.arrays[dest], [(s.i, s.j) for s in kernel.reads]
    below = all(s.j == 0 for s in kernel.writes)  # or, of what lies column by column, side by side
    place = written.base, written.offset, written.row, written.down if below else written.right
    return (
        source != dest
        and {s.array for s in kernel.reads} == {source}
        and len(set(blocks)) == len(blocks)
        and [s[:3] for s in kernel.writes] == [(dest, i, 0) if below else (dest, 0, i) for i in range(x.count)]
        and place == (x.source.base, x.source.offset, x.source.leading, x.source.stride)
        and (split.rows, split.cols) == (x.lines, x.length)
        and split.access == "vector"
        and kernel.lanes > 1
        and all(c in (-1, 0, 1) for row in kernel.program.matrix() for c in row)
        and (1 + max(i for i, _ in blocks)) * (1 + max(j for _, j in blocks)) <= MASK
        and 8 * x.count + VECTOR_BYTES + ARRAY_BYTES <= PARAMETER_BYTES
        and -(-x.room // (SUM_THREADS * kernel.lanes)) <= GRID_LIMIT
    )


# ---- the kernels


@lru_cache(maxsize=4)
def extent_source(lines: bool, wide: bool) -> str:
    """The whole CUDA source of the kernel that finds how far blocks reach, entry point `ENTRY`."""
    call = f"{'line' if lines else 'position'}_maxima<{str(wide).lower()}>"
    return _source("fmm::planes::Extent", f"fmm::planes::{call}(p)", EXTENT_THREADS)


@lru_cache(maxsize=16)
def bounds_source(sums: int) -> str:
    """The whole CUDA source of the kernel that bounds how far sums reach, entry point `ENTRY`."""
    return _source(f"fmm::planes::Bounds<{sums}>", "fmm::planes::bound_sums(p)", EXTENT_THREADS)


@lru_cache(maxsize=64)
def plane_sum_source(kernel: SumKernel, lines: bool, apart: bool) -> str:
    """The whole CUDA source of the kernel that forms sums and writes their planes, entry point `ENTRY`."""
    parameters = f"fmm::planes::Told<fmm::Parameters<{kernel.arrays}, {kernel.scalars}>>"
    placing = f"fmm::planes::{'Apart' if apart else 'InTurns'}"
    call = f"fmm::planes::sum_to_planes<Step, {placing}, {kernel.lanes}, {str(lines).lower()}>(p.sums, p.to)"
    return _source(parameters, call, kernel.bounds, step_lines(kernel))


def _source(parameters: str, call: str, bounds: object, before: Iterable[str] = ()) -> str:
    return entry_source(parameters, f"{call};", "f16_sums.cuh", (bounds,), before=before)


# ---- the launches


def plane_sum_launches(x: PlaneSums, divides: Mapping[str, int]) -> tuple[Launch, Launch, Launch]:
    """The launches that find how far blocks reach, bound how far sums reach, and form these."""
    return _extent_launch(x, divides), _bound_launch(x), _sum_launch(x)


def _extent_launch(x: PlaneSums, divides: Mapping[str, int]) -> Launch:
    """What it finds goes to where the sums would have stood, which nobody writes now."""
    a, (down, across) = x.source, x.blocks
    parameters = struct.pack(
        "<5q6i", 0, 0, a.row, a.down, a.right, a.rows, a.cols, a.height, a.width, across, down * across
    )
    wide = all(step * FLOAT32_BYTES % VECTOR_BYTES == 0 for step in (a.row, a.down, a.right))
    wide = wide and a.offset % VECTOR_BYTES == 0 and divides[a.base] % VECTOR_BYTES == 0
    blocks = down * across
    grid = -(-blocks * a.height // (EXTENT_THREADS // WARP)) if x.lines else blocks * -(-a.width // STRIP)
    kernel = Kernel(extent_source, (x.lines, wide), ENTRY, EXTENT_THREADS)
    label = f"f16_sums: how far {blocks} blocks of {a.base} reach"
    slots = Slot(0, a.base, a.offset), _extents_slot(x, 1)
    return Launch("sums", label, kernel, (grid, 1, 1), parameters, slots)


def _bound_launch(x: PlaneSums) -> Launch:
    down, across = x.blocks
    parameters = struct.pack(f"<2q2i{x.planes.count}Q", 0, 0, x.planes.outer, down * across, *x.masks)
    grid = -(-x.planes.outer // EXTENT_THREADS), x.planes.count, 1
    kernel = Kernel(bounds_source, (x.planes.count,), ENTRY, EXTENT_THREADS)
    slots = _extents_slot(x, 0), Slot(1, x.planes.base, x.planes.exponents)
    return Launch("sums", f"f16_sums: how far {x.planes.count} sums reach", kernel, grid, parameters, slots)


def _extents_slot(x: PlaneSums, word: int) -> Slot:
    """Where it stands how far blocks reach."""
    return Slot(word, x.planes.source.base, x.planes.source.offset)


def _sum_launch(x: PlaneSums) -> Launch:
    op, planes = replace(x.split, kernel=x.kernel, cols=x.planes.room), x.planes
    parameters = op.parameters + struct.pack("<3q4i", 0, 0, planes.room, planes.lines, planes.length, planes.count, 0)
    words, after = ARRAY_BYTES // 8, len(op.parameters) // 8
    slots = [Slot(words * i, a.base, a.offset) for i, a in enumerate(op.arrays)]
    slots += [Slot(after, planes.base, planes.offset), Slot(after + 1, planes.base, planes.exponents)]
    grid = planes.lines, -(-planes.room // (SUM_THREADS * x.kernel.lanes)), 1
    kernel = Kernel(plane_sum_source, (x.kernel, x.lines, x.apart), ENTRY, SUM_THREADS)
    label = f"f16_sums, {op.label}: {planes.count} sums of {len(x.kernel.reads)} blocks as two float16 numbers each"
    return Launch("sums", label, kernel, grid, parameters, tuple(slots))
