"""Form sums of submatrices and write each sum directly as the planes hi and lo, for a batch of f16x3 products.

The kernels are in f16_sums.cuh. Without the kernels of f16_sums.cuh, a level would need two passes: the first writes
float32 sums of blocks (submatrices), and the second writes the planes of the sums. The power of two that scales a sum
depends on the sum's largest number, which is unknown before the sum is formed. In place of the sum's largest number,
the kernels use an upper bound: the sum of the largest numbers of the added blocks. The first of three launches finds
the largest magnitude in each row of A's blocks, or in each column of B's blocks. The second launch computes the
exponents of all sums. The third launch forms the sums and writes their planes.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import MAX_PARAMETER_BYTES, AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import GemmOp, OperandSide
from fmm.kernels.cuda.products.f16_planes import OPERAND_SIDES, OperandPlanes, operand_planes
from fmm.kernels.cuda.products.kernel_sizes import FLOAT32_BYTES
from fmm.kernels.cuda.products.tiling import VECTOR_BYTES
from fmm.kernels.cuda.sums.sum_kernel import SUM_THREADS, SumKernel, program_struct_lines
from fmm.kernels.cuda.sums.sum_launch import ARRAY_STRUCT_BYTES, MAX_GRID_BLOCKS, BlockArray, SumOp

# As in f16_sums.cuh: threads of a thread block, threads of a warp, and the number of A's rows (or B's columns) for
# which a thread block finds the largest magnitudes if the lines run along the outer dimension.
EXTENT_THREADS, WARP_THREADS, STRIP_POSITIONS = 256, 32, 32
MAX_BLOCKS_IN_SUM = 64  # largest number of blocks in a sum, because a 64-bit mask selects the blocks


@dataclass(frozen=True, eq=False)
class PlaneSums:
    """Sums of a level that are written as planes: the left or the right operands of a batch of f16x3 products."""

    split: SumOp
    planes: OperandPlanes
    side: OperandSide  # name of the operand in the row-major product
    separate: bool = False  # True if the complete plane hi precedes plane lo, as the vendor's products need

    @property
    def writes_result(self) -> bool:
        return False

    @cached_property
    def source_array(self) -> BlockArray:
        """The matrix that the sums read; each sum adds blocks of this matrix."""
        return self.split.arrays[self.split.kernel.reads[0].array]

    @property
    def block_counts(self) -> tuple[int, int]:
        """Number of rows and number of columns in the source matrix's grid of blocks."""
        reads = self.split.kernel.reads
        return 1 + max(x.i for x in reads), 1 + max(x.j for x in reads)

    @property
    def is_k_major(self) -> bool:
        """True if the planes' lines run along the inner dimension (K-major); then each line has one exponent."""
        return self.planes.along == "inner"

    @cached_property
    def block_bit_masks(self) -> tuple[int, ...]:
        """A bit mask for each sum, with a set bit for each block in the sum."""
        reads, across = self.split.kernel.reads, self.block_counts[1]
        return tuple(
            sum(1 << (x.i * across + x.j) for x, c in zip(reads, row, strict=True) if c)
            for row in self.split.kernel.program.coefficient_matrix()
        )

    @cached_property
    def sum_kernel(self) -> SumKernel:
        """The kernel that forms the sums of blocks; if the planes' lines are padded, it checks all array bounds."""
        kernel = self.split.kernel
        return kernel if self.planes.line_pitch == self.split.cols else replace(kernel, unchecked=frozenset())


def find_plane_sums(
    split: SumOp, product: GemmOp, alignment: Mapping[str, int], separate: bool = False
) -> PlaneSums | None:
    """Return the operation that writes the sums of `split` as planes of an operand of `product`, which is a batch.

    Return None if no operand of the batch consists of these sums, or if the kernel cannot write the sums as planes.
    """
    plain = product.alpha == 1 and not product.beta and not product.checked
    if product.count < 2 or not plain or product.left == product.right:
        return None
    planes, (size, bases) = operand_planes(product), split.vector_alignment
    sums = [
        PlaneSums(split, x, side, separate)
        for x, side in zip(planes, OPERAND_SIDES, strict=True)
        if _can_write_planes(split, x)
    ]
    return sums[0] if sums and not any(alignment[base] % size for base in bases) else None


def _can_write_planes(split: SumOp, x: OperandPlanes) -> bool:
    """Return True if the operand consists of the sums of `split`, and the kernel can write these sums as planes."""
    kernel = split.kernel
    if split.scalars or kernel.column_major or kernel.in_parts or kernel.element != "float32" or len(split.arrays) != 2:
        return False
    source, dest = kernel.reads[0].array, kernel.writes[0].array
    written, blocks = split.arrays[dest], [(s.i, s.j) for s in kernel.reads]
    below = all(s.j == 0 for s in kernel.writes)  # row-major sums are stacked, column-major sums are side by side
    layout = written.base, written.offset, written.row, written.down if below else written.right
    return (
        source != dest
        and {s.array for s in kernel.reads} == {source}
        and len(set(blocks)) == len(blocks)
        and [s[:3] for s in kernel.writes] == [(dest, i, 0) if below else (dest, 0, i) for i in range(x.count)]
        and layout == (x.source.base, x.source.offset, x.source.leading, x.source.stride)
        and (split.rows, split.cols) == (x.lines, x.length)
        and split.access == "vector"
        and kernel.vector_width > 1
        and all(c in (-1, 0, 1) for row in kernel.program.coefficient_matrix() for c in row)
        and (1 + max(i for i, _ in blocks)) * (1 + max(j for _, j in blocks)) <= MAX_BLOCKS_IN_SUM
        and 8 * x.count + VECTOR_BYTES + ARRAY_STRUCT_BYTES <= MAX_PARAMETER_BYTES
        and -(-x.line_pitch // (SUM_THREADS * kernel.vector_width)) <= MAX_GRID_BLOCKS
    )


# ---- the kernels


@lru_cache(maxsize=4)
def block_maxima_kernel_source(lines: bool, wide: bool) -> str:
    """Return the CUDA source of the kernel that finds the largest magnitudes in the rows or columns of blocks."""
    call = f"{'line' if lines else 'position'}_maxima<{str(wide).lower()}>"
    return _f16_sums_source("fmm::planes::Extent", f"fmm::planes::{call}(p)", EXTENT_THREADS)


@lru_cache(maxsize=16)
def sum_exponent_kernel_source(sums: int) -> str:
    """Return the CUDA source of the kernel that computes the exponents of sums from bounds of the sums."""
    return _f16_sums_source(f"fmm::planes::Bounds<{sums}>", "fmm::planes::bound_sums(p)", EXTENT_THREADS)


@lru_cache(maxsize=64)
def plane_sum_kernel_source(kernel: SumKernel, lines: bool, separate: bool) -> str:
    """Return the CUDA source of the kernel that forms sums of blocks and writes planes."""
    parameters = f"fmm::planes::PlaneSumParams<fmm::Parameters<{kernel.arrays}, {kernel.scalars}>>"
    arrangement = f"fmm::planes::{'Separate' if separate else 'Alternating'}"
    call = f"fmm::planes::sum_to_planes<Step, {arrangement}, {kernel.vector_width}, {str(lines).lower()}>(p.sums, p.to)"
    return _f16_sums_source(parameters, call, kernel.launch_bounds, program_struct_lines(kernel))


def _f16_sums_source(parameters: str, call: str, bounds: object, before: Iterable[str] = ()) -> str:
    return entry_source(parameters, f"{call};", "f16_sums.cuh", (bounds,), before=before)


# ---- the launches


def plane_sum_launches(x: PlaneSums, alignment: Mapping[str, int]) -> tuple[Launch, Launch, Launch]:
    """Return three launches, which find the blocks' largest magnitudes, compute exponents, and write planes of sums."""
    return _block_maxima_launch(x, alignment), _sum_exponent_launch(x), _plane_sum_launch(x)


def _block_maxima_launch(x: PlaneSums, alignment: Mapping[str, int]) -> Launch:
    """Return the launch that finds the largest magnitude in each row of A's blocks, or in each column of B's blocks.

    The memory for the level's float32 sums holds these magnitudes, because no kernel writes float32 sums.
    """
    a, (down, across) = x.source_array, x.block_counts
    parameters = struct.pack(
        "<5q6i", 0, 0, a.row, a.down, a.right, a.rows, a.cols, a.height, a.width, across, down * across
    )
    wide = all(step * FLOAT32_BYTES % VECTOR_BYTES == 0 for step in (a.row, a.down, a.right))
    wide = wide and a.offset % VECTOR_BYTES == 0 and alignment[a.base] % VECTOR_BYTES == 0
    blocks = down * across
    grid = (
        -(-blocks * a.height // (EXTENT_THREADS // WARP_THREADS))
        if x.is_k_major
        else blocks * -(-a.width // STRIP_POSITIONS)
    )
    kernel = Kernel(block_maxima_kernel_source, (x.is_k_major, wide), ENTRY_NAME, EXTENT_THREADS)
    label = f"f16_sums: largest numbers of {blocks} blocks of {a.base}"
    slots = AddressSlot(0, a.base, a.offset), _maxima_address(x, 1)
    return Launch("sums", label, kernel, (grid, 1, 1), parameters, slots)


def _sum_exponent_launch(x: PlaneSums) -> Launch:
    """Return the launch that bounds the largest magnitudes of each sum, and computes the sum's exponents."""
    down, across = x.block_counts
    parameters = struct.pack(f"<2q2i{x.planes.count}Q", 0, 0, x.planes.outer_size, down * across, *x.block_bit_masks)
    grid = -(-x.planes.outer_size // EXTENT_THREADS), x.planes.count, 1
    kernel = Kernel(sum_exponent_kernel_source, (x.planes.count,), ENTRY_NAME, EXTENT_THREADS)
    slots = _maxima_address(x, 0), AddressSlot(1, x.planes.base, x.planes.exponents_offset)
    return Launch("sums", f"f16_sums: exponents of {x.planes.count} sums", kernel, grid, parameters, slots)


def _maxima_address(x: PlaneSums, word: int) -> AddressSlot:
    """Return the AddressSlot for the address of the blocks' largest magnitudes, in word `word` of the parameters."""
    return AddressSlot(word, x.planes.source.base, x.planes.source.offset)


def _plane_sum_launch(x: PlaneSums) -> Launch:
    """Return the launch that forms the sums and writes their planes."""
    op, planes = replace(x.split, kernel=x.sum_kernel, cols=x.planes.line_pitch), x.planes
    parameters = op.parameters + struct.pack(
        "<3q4i", 0, 0, planes.line_pitch, planes.lines, planes.length, planes.count, 0
    )
    words, after = ARRAY_STRUCT_BYTES // 8, len(op.parameters) // 8
    slots = [AddressSlot(words * i, a.base, a.offset) for i, a in enumerate(op.arrays)]
    slots += [
        AddressSlot(after, planes.base, planes.offset),
        AddressSlot(after + 1, planes.base, planes.exponents_offset),
    ]
    grid = planes.lines, -(-planes.line_pitch // (SUM_THREADS * x.sum_kernel.vector_width)), 1
    kernel = Kernel(plane_sum_kernel_source, (x.sum_kernel, x.is_k_major, x.separate), ENTRY_NAME, SUM_THREADS)
    label = f"f16_sums, {op.label}: {planes.count} sums of {len(x.sum_kernel.reads)} blocks as two float16 numbers each"
    return Launch("sums", label, kernel, grid, parameters, tuple(slots))
