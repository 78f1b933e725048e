"""Describe products for the tiled kernels of gemm_simt.cuh and gemm_mma_f64.cuh, and return their launches.

A `TileOp` is one product with its blocks, and a `TileGroup` is several products. `tile_op` describes a BLAS GEMM as a
row-major product. `tile_launches` returns the launches for a chip. Products with fused sums are in fused.py.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import prod
from typing import Literal

from fmm.dtypes import DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.algorithms.additions import AdditionProgram, Terms
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME
from fmm.kernels.cuda.launch_list import FLAG, MAX_PARAMETER_BYTES, AddressSlot, Kernel, Launch
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm, DeviceView, GemmOp
from fmm.kernels.cuda.products.kernel_sizes import TileSizes, named_strategy
from fmm.kernels.cuda.products.simt_kernel import (
    COMPILER_OPTIONS,
    CopyPath,
    Epilogue,
    LaunchScalar,
    MemoryAccess,
    TileKernel,
    simt_kernel_source,
)
from fmm.kernels.cuda.products.tiling import (
    RASTER_ROWS,
    TRIANGLE_LABELS,
    VECTOR_BYTES,
    count_triangle_tiles,
    row_major_operands,
    triangle_tiles,
)
from fmm.kernels.plans.leaf import LeafUse

# formats of struct Block of gemm_common.cuh for Python's module `struct`, by the size of an element in bytes
BLOCK_STRUCT_FORMATS = {4: "<q2i2f", 8: "<q2i2d"}


@dataclass(frozen=True)
class TileOp:
    """A launch of `count` products (sum of a_i A_i)(sum of b_j B_j), where A_i and B_j are blocks of A and B.

    The epilogue adds the product to destination blocks (blocks of C or temporaries), or computes a step table's sums.
    """

    kernel: TileKernel
    left: tuple[BlockTerm, ...]
    right: tuple[BlockTerm, ...]
    dest: tuple[BlockTerm, ...]
    lines: tuple[BlockStrides, ...]  # strides of A's blocks, of B's blocks, and of each destination block
    m: int
    n: int
    k: int
    count: int = 1  # number of products in the batch
    # True if this launch only adds to the previous launch's results, and therefore may overlap the previous launch
    may_overlap: bool = False
    open_strategy: bool = False  # True if a faster strategy may replace the kernel's strategy

    def __hash__(self) -> int:
        return id(self)

    def with_strategy(self, s: TileSizes) -> TileOp:
        """Return the same product with the tile sizes `s`."""
        return self if s is self.kernel.strategy else replace(self, kernel=replace(self.kernel, strategy=s))

    @property
    def ops(self) -> tuple[TileOp, ...]:
        """A tuple with only this product, for callers that accept a TileOp or a TileGroup."""
        return (self,)

    @property
    def largest_product(self) -> TileOp:
        """This product itself, for callers that accept a TileOp or a TileGroup."""
        return self

    @property
    def all_blocks(self) -> tuple[BlockTerm, ...]:
        """All blocks of A, B and C, in the order of the launch's parameters."""
        return (*self.left, *self.right, *self.dest)

    @property
    def writes_result(self) -> bool:
        """True if the launch writes a block of C, False if it writes only temporaries."""
        return any(self.dest[d].base == "C" for d in self.kernel.epilogue.writes)

    @property
    def tile_counts(self) -> tuple[int, int]:
        """Number of rows and number of columns of tiles in C."""
        return -(-self.m // self.kernel.strategy.m_s), -(-self.n // self.kernel.strategy.n_s)

    @property
    def grid(self) -> tuple[int, int, int]:
        s = self.kernel.strategy
        tiles = count_triangle_tiles(self.tile_counts, s.m_s, s.n_s) if self.kernel.triangle else prod(self.tile_counts)
        return tiles * self.count, 1, 1

    @property
    def itemsize(self) -> int:
        return DTYPES[self.kernel.element].itemsize

    @cached_property
    def parameter_bytes(self) -> bytes:
        """The bytes of struct Parameters of gemm_simt.cuh, with null pointers to each block and to the flag."""
        return self.block_sum_parameter_bytes + self.size_parameter_bytes

    @property
    def block_sum_parameter_bytes(self) -> bytes:
        """The bytes of struct Sums of gemm_simt.cuh: the blocks of A, B and C with their coefficients."""
        return b"".join(struct.pack(BLOCK_STRUCT_FORMATS[self.itemsize], 0, *x[2:]) for x in self.all_blocks)

    @property
    def size_parameter_bytes(self) -> bytes:
        """The bytes of the strides, sizes, tile counts and flag at the end of struct Parameters of gemm_simt.cuh."""
        steps = *(x.leading for x in self.lines), *(x.layer for x in self.lines)
        return struct.pack(f"<{len(steps)}q6iq", *steps, self.m, self.n, self.k, *self.tile_counts, RASTER_ROWS, 0)

    @cached_property
    def access(self) -> MemoryAccess:
        """Widest access to all blocks if base addresses are aligned: 16 bytes ("vector") or one element ("scalar")."""
        fits = all(x * self.itemsize % VECTOR_BYTES == 0 for lines in self.lines for x in lines)
        return "vector" if fits and all(p.offset % VECTOR_BYTES == 0 for p in self.all_blocks) else "scalar"


@dataclass(frozen=True)
class TileGroup:
    """Several tiled products, which one launch computes if one kernel can compute all of them.

    `order` is the order in which the products write blocks of C. "free": each block is written by one product only.
    "turns": if several products write a block, they write it in the order of `ops`. "atomic": the products add to C
    atomically, in any order.
    """

    ops: tuple[TileOp, ...]
    order: Literal["free", "turns", "atomic"] = "free"

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def fits_one_launch(self) -> bool:
        """True if one launch can compute all products.

        All products must have the same kernel, strides and batch size. `order` must not be "turns", and the parameters
        of all products together must have at most MAX_PARAMETER_BYTES bytes.
        """
        alike = len({(op.kernel, op.lines, op.count) for op in self.ops}) == 1
        return alike and self.order != "turns" and len(self.parameter_bytes) <= MAX_PARAMETER_BYTES

    @cached_property
    def kernel(self) -> TileKernel:
        return replace(self.ops[0].kernel, products=len(self.ops))

    @property
    def all_blocks(self) -> tuple[BlockTerm, ...]:
        """All blocks of A, B and C, in the order of the launch's parameters."""
        return tuple(x for op in self.ops for x in op.all_blocks)

    @property
    def writes_result(self) -> bool:
        return any(op.writes_result for op in self.ops)

    @property
    def may_overlap(self) -> bool:
        return self.ops[0].may_overlap

    @cached_property
    def largest_product(self) -> TileOp:
        """A product with the group's largest m, n and k; the kernel treats smaller products as padded with zeros."""
        m, n, k = (max(getattr(op, side) for op in self.ops) for side in ("m", "n", "k"))
        return replace(self.ops[0], m=m, n=n, k=k)

    @property
    def grid(self) -> tuple[int, int, int]:
        """The grid of the launch; blockIdx.z is the index of the product."""
        across, _, _ = self.largest_product.grid
        return across, 1, len(self.ops)

    @cached_property
    def parameter_bytes(self) -> bytes:
        """The bytes of struct Parameters of gemm_simt.cuh for all products, with null pointers."""
        return b"".join(op.block_sum_parameter_bytes for op in self.ops) + self.largest_product.size_parameter_bytes

    @cached_property
    def access(self) -> MemoryAccess:
        return "vector" if all(op.access == "vector" for op in self.ops) else "scalar"


def pointer_word_indices(op: TileOp | TileGroup) -> range:
    """Return the indices of the 8-byte words of the parameters that hold pointers to blocks."""
    words = struct.calcsize(BLOCK_STRUCT_FORMATS[DTYPES[op.kernel.element].itemsize]) // 8
    return range(0, words * len(op.all_blocks), words)


# ---- a GEMM as a TileOp


@lru_cache(maxsize=4096)
def tile_op(op: GemmOp, dtype: str, s: TileSizes) -> TileOp:
    """Return the TileOp of a GEMM with tile sizes `s`; the row-major product is C^T = B^T A^T."""
    left, right, along = row_major_operands(op)
    kernel = TileKernel(
        s, dtype, along=along, paths=leaf_copy_paths(op.leaf_use), triangle=triangle_tiles(op.triangle_extent)
    )
    alpha, beta = (complex(x).real for x in (op.alpha, op.beta))
    a = BlockTerm(left.base, left.offset, op.n, op.k)
    b = BlockTerm(right.base, right.offset, op.k, op.m)
    c = BlockTerm(op.dest.base, op.dest.offset, op.n, op.m, alpha, beta)
    u, v, w = (BlockStrides(x.leading, x.stride) for x in (left, right, op.dest))
    return TileOp(
        kernel,
        (a,),
        (b,),
        (c,),
        (u, v, w),
        op.n,
        op.m,
        op.k,
        op.count,
        open_strategy=leaf_strategy(op.leaf_use) is None,
    )


# The epilogue of a product with a separate addend: C = factor * product + keep * addend. The addend is destination 1,
# which the kernel reads and never writes.
_ADDEND_SUM: Terms = ((LaunchScalar("keep", 1), 1), (LaunchScalar("factor", 0), 0))  # type: ignore[assignment]
ADDEND_EPILOGUE = Epilogue(AdditionProgram(2, (_ADDEND_SUM,), (2,)), (1,), (0,))


def with_addend(op: TileOp, addend: DeviceView) -> TileOp:
    """Return the same product with a separate column-major addend: C's factor `keep` becomes the addend's factor."""
    (into,) = op.dest
    dest = into._replace(keep=0), BlockTerm(addend.base, addend.offset, op.m, op.n, 1, into.keep)
    lines = *op.lines, BlockStrides(addend.right if op.m > 1 else 0)
    return replace(op, kernel=replace(op.kernel, epilogue=ADDEND_EPILOGUE), dest=dest, lines=lines)


# LEAF_PATHS maps an option in a leaf's name (such as `texture` in `tile.gpu8.texture`) to the paths by which A's tiles
# and B's tiles are copied to shared memory.
LEAF_PATHS: Mapping[str, tuple[CopyPath, CopyPath]] = {"plain": ("plain", "plain"), "texture": ("texture", "plain")}


def leaf_strategy(use: LeafUse) -> TileSizes | None:
    """Return the strategy in the name of a leaf such as `tile.huge`; None for `tile`, because the model chooses."""
    names = [option for option in use.options if option not in LEAF_PATHS]
    return named_strategy(names[0]) if names else None


def leaf_copy_paths(use: LeafUse) -> tuple[CopyPath, CopyPath]:
    """Return the paths by which tiles of A and B are copied to shared memory, from the leaf's options."""
    return next((LEAF_PATHS[option] for option in use.options if option in LEAF_PATHS), ("async", "async"))


# ---- launches for a chip

# Smallest number of thread blocks per multiprocessor for which a launch may start before the previous launch has ended.
# In measurements, smaller launches slowed each other down when they overlapped.
OVERLAP_MIN_WAVES = 1.9


def tile_launches(
    op: TileOp | TileGroup, chip: Chip, alignment: Mapping[str, int], flagged: bool
) -> tuple[Launch, ...]:
    """Return one launch for all products of `op`, or one launch for each product if no kernel can compute all products.

    `alignment` maps the name of a base, such as A or C, to the largest power of two that divides the base's address. If
    `flagged` is True, kernels that write C raise the flag when they store an inf or NaN.
    """
    op = fit_to_chip(op, chip)
    parts = op.ops if isinstance(op, TileGroup) and not op.fits_one_launch else (op,)
    return tuple(_tile_launch(part, chip, alignment, flagged) for part in parts)


def fit_to_chip(op: TileOp | TileGroup, chip: Chip) -> TileOp | TileGroup:
    """Return the same products, with a smaller strategy if the present strategy does not fit the chip.

    A strategy does not fit if its tiles exceed the chip's shared memory. Strategies for float64 mma instructions
    also do not fit a chip without these instructions, where they would need too many registers.
    """
    if isinstance(op, TileGroup):
        return replace(op, ops=tuple(x for y in op.ops if isinstance(x := fit_to_chip(y, chip), TileOp)))
    names = ("Medium",) if op.kernel.mma_depth and not chip.has_float64_mma else ("", "Huge", "Medium")
    kernels = [replace(op.kernel, strategy=named_strategy(name)) if name else op.kernel for name in names]
    fits = next((kernel for kernel in kernels if kernel.shared_bytes <= chip.shared_bytes_per_block), kernels[-1])
    return op if fits is op.kernel else replace(op, kernel=fits)


def _tile_launch(op: TileOp | TileGroup, chip: Chip, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """Return the launch of a product, or of a `TileGroup` whose products one kernel can compute."""
    aligned = all(alignment[piece.base] % VECTOR_BYTES == 0 for piece in op.all_blocks)
    access: MemoryAccess = op.access if aligned else "scalar"
    raises = flagged and op.writes_result
    spec = replace(op.kernel, flag="raises") if raises else op.kernel
    slots = [
        AddressSlot(word, x.base, x.offset) for word, x in zip(pointer_word_indices(op), op.all_blocks, strict=True)
    ]
    if raises:
        slots.append(AddressSlot(len(op.parameter_bytes) // 8 - 1, FLAG))
    fills_chip = prod(op.grid) >= OVERLAP_MIN_WAVES * chip.multiprocessors
    kernel = Kernel(
        simt_kernel_source, (spec, access), ENTRY_NAME, spec.strategy.thread_count, spec.shared_bytes, COMPILER_OPTIONS
    )
    return Launch(
        "product",
        tile_label(spec, access, op.largest_product.count, by_warps=spec.mma_depth > 0 and chip.has_float64_mma),
        kernel,
        op.grid,
        op.parameter_bytes,
        tuple(slots),
        overlaps=op.may_overlap and fills_chip and chip.can_overlap_launches,
        aligned=access == "vector",
    )


def tile_label(kernel: TileKernel, access: MemoryAccess, count: int, by_warps: bool) -> str:
    """Return the label of a launch: its kernel, its tile sizes, and how the launch differs from one plain product.

    `by_warps` is True if the kernel uses mma instructions. For a chip without float64 mma instructions,
    gemm_mma_f64.cuh is compiled to the same code as gemm_simt.cuh.
    """
    s, (left, right, dest) = kernel.strategy, kernel.block_counts
    written = len(kernel.epilogue.writes)
    parts = [f"{'gemm_mma_f64' if by_warps else 'gemm_simt'} {s.name}: tiles of {s.m_s} x {s.n_s} x {s.k_s}"]
    parts += [f"adds up {left} and {right} blocks"] if kernel.has_sums else []
    parts += [f"writes {written}"] if kernel.has_sums or dest > 1 else []
    parts += [f"{kernel.products} products in one launch"] if kernel.products > 1 else []
    parts += [f"a batch of {count}"] if count > 1 else []
    parts += [TRIANGLE_LABELS[kernel.triangle]] if kernel.triangle else []
    return ", ".join([*parts, *(["one number at a time"] if access == "scalar" else [])])
