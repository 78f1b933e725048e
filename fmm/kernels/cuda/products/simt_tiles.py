"""Products by the tiled kernels of gemm_simt.cuh and gemm_mma_f64.cuh: a GEMM as one launch, its parameters, its grid.

In order: a `TileOp` is one product with its blocks, and a `TileGroup` several products; `tile_op` describes a GEMM in
the kernel's row-major terms; `tile_launches` makes the launches for a chip. Products with fused sums are in fused.py.
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
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm, GemmOp, MatrixView
from fmm.kernels.cuda.products.kernel_sizes import TileSizes, named_strategy
from fmm.kernels.cuda.products.simt_kernel import (
    COMPILER_OPTIONS,
    Access,
    CopyPath,
    Epilogue,
    LaunchScalar,
    TileKernel,
    simt_source,
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

BLOCK_FORMATS = {4: "<q2i2f", 8: "<q2i2d"}  # format of struct Block of gemm_common.cuh, by the bytes of a number


@dataclass(frozen=True)
class TileOp:
    """One launch of `count` products (sum of a_i A_i)(sum of b_j B_j), each with its epilogue.

    The epilogue is C_d = keep_d C_d + c_d product, unless it comes from a step table.
    """

    kernel: TileKernel
    left: tuple[BlockTerm, ...]
    right: tuple[BlockTerm, ...]
    dest: tuple[BlockTerm, ...]
    lines: tuple[BlockStrides, ...]  # strides of A's blocks, of B's blocks, and of each destination
    m: int
    n: int
    k: int
    count: int = 1  # products in the batch
    # True if the launch may overlap the previous one, because it only adds to that launch's results
    may_overlap: bool = False
    open_strategy: bool = False  # True if the strategy may be replaced by a faster one

    def __hash__(self) -> int:
        return id(self)

    def with_strategy(self, s: TileSizes) -> TileOp:
        """Return the same product with another strategy."""
        return self if s is self.kernel.strategy else replace(self, kernel=replace(self.kernel, strategy=s))

    @property
    def ops(self) -> tuple[TileOp, ...]:
        """The product alone, so that a TileOp reads like a TileGroup."""
        return (self,)

    @property
    def largest(self) -> TileOp:
        """The product itself, so that a TileOp reads like a TileGroup."""
        return self

    @property
    def pieces(self) -> tuple[BlockTerm, ...]:
        """All blocks, in the order of the launch's parameters."""
        return (*self.left, *self.right, *self.dest)

    @property
    def writes_result(self) -> bool:
        """True if a block of C is written, and not only temporaries."""
        return any(self.dest[d].base == "C" for d in self.kernel.epilogue.writes)

    @property
    def tiles(self) -> tuple[int, int]:
        """Rows and columns of tiles in C."""
        return -(-self.m // self.kernel.strategy.m_s), -(-self.n // self.kernel.strategy.n_s)

    @property
    def grid(self) -> tuple[int, int, int]:
        s = self.kernel.strategy
        tiles = count_triangle_tiles(self.tiles, s.m_s, s.n_s) if self.kernel.triangle else prod(self.tiles)
        return tiles * self.count, 1, 1

    @property
    def itemsize(self) -> int:
        return DTYPES[self.kernel.element].itemsize

    @cached_property
    def parameters(self) -> bytes:
        """struct Parameters of gemm_simt.cuh with null pointers: the first word of each block, and the flag (last)."""
        return self.sums + self.sizes

    @property
    def sums(self) -> bytes:
        """struct Sums: the blocks and coefficients of A, B and C."""
        return b"".join(struct.pack(BLOCK_FORMATS[self.itemsize], 0, *x[2:]) for x in self.pieces)

    @property
    def sizes(self) -> bytes:
        """The fields of struct Parameters behind `products`."""
        steps = *(x.leading for x in self.lines), *(x.layer for x in self.lines)
        return struct.pack(f"<{len(steps)}q6iq", *steps, self.m, self.n, self.k, *self.tiles, RASTER_ROWS, 0)

    @cached_property
    def access(self) -> Access:
        """ "vector" if all lines of all blocks are aligned whenever the bases are."""
        fits = all(x * self.itemsize % VECTOR_BYTES == 0 for lines in self.lines for x in lines)
        return "vector" if fits and all(p.offset % VECTOR_BYTES == 0 for p in self.pieces) else "scalar"


@dataclass(frozen=True)
class TileGroup:
    """Several products, in one launch if a kernel can do that.

    `order` is how they write blocks of C. "free": each block is written by one product; "turns": one product after the
    other writes; "atomic": atomic additions in any order.
    """

    ops: tuple[TileOp, ...]
    order: Literal["free", "turns", "atomic"] = "free"

    def __hash__(self) -> int:
        return id(self)

    @cached_property
    def fits_one_launch(self) -> bool:
        """True if gemm_simt.cuh can do all in one launch: one variant, no product waits for another."""
        alike = len({(op.kernel, op.lines, op.count) for op in self.ops}) == 1
        return alike and self.order != "turns" and len(self.parameters) <= MAX_PARAMETER_BYTES

    @cached_property
    def kernel(self) -> TileKernel:
        return replace(self.ops[0].kernel, products=len(self.ops))

    @property
    def pieces(self) -> tuple[BlockTerm, ...]:
        """All blocks, in the order of the launch's parameters."""
        return tuple(x for op in self.ops for x in op.pieces)

    @property
    def writes_result(self) -> bool:
        return any(op.writes_result for op in self.ops)

    @property
    def may_overlap(self) -> bool:
        return self.ops[0].may_overlap

    @cached_property
    def largest(self) -> TileOp:
        """A product with the largest size of the group in each dimension; smaller blocks count as padded with zeros."""
        m, n, k = (max(getattr(op, side) for op in self.ops) for side in ("m", "n", "k"))
        return replace(self.ops[0], m=m, n=n, k=k)

    @property
    def grid(self) -> tuple[int, int, int]:
        """Thread blocks of the launch; block index z is the product."""
        across, _, _ = self.largest.grid
        return across, 1, len(self.ops)

    @cached_property
    def parameters(self) -> bytes:
        """struct Parameters of gemm_simt.cuh for all products, with null pointers."""
        return b"".join(op.sums for op in self.ops) + self.largest.sizes

    @cached_property
    def access(self) -> Access:
        return "vector" if all(op.access == "vector" for op in self.ops) else "scalar"


def pointer_words(op: TileOp | TileGroup) -> range:
    """Return the 8-byte words of the parameters that hold the pointers of the pieces."""
    words = struct.calcsize(BLOCK_FORMATS[DTYPES[op.kernel.element].itemsize]) // 8
    return range(0, words * len(op.pieces), words)


# ---- a GEMM as a TileOp


@lru_cache(maxsize=4096)
def tile_op(op: GemmOp, dtype: str, s: TileSizes) -> TileOp:
    """Return the TileOp of a GEMM with this strategy; the row-major product is C^T = B^T A^T."""
    left, right, along = row_major_operands(op)
    kernel = TileKernel(
        s, dtype, along=along, paths=leaf_paths(op.leaf_use), triangle=triangle_tiles(op.triangle_extent)
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


# C_0 = factor_0 product + keep_1 C_1, where destination 1 is the addend: it is read, and never written.
_ADDEND_SUM: Terms = ((LaunchScalar("keep", 1), 1), (LaunchScalar("factor", 0), 0))  # type: ignore[assignment]
ADDEND_EPILOGUE = Epilogue(AdditionProgram(2, (_ADDEND_SUM,), (2,)), (1,), (0,))


def with_addend(op: TileOp, addend: MatrixView) -> TileOp:
    """Return the same product with a separate addend in place of old C; the addend has the layout of BLAS's C."""
    (into,) = op.dest
    dest = into._replace(keep=0), BlockTerm(addend.base, addend.offset, op.m, op.n, 1, into.keep)
    lines = *op.lines, BlockStrides(addend.right if op.m > 1 else 0)
    return replace(op, kernel=replace(op.kernel, epilogue=ADDEND_EPILOGUE), dest=dest, lines=lines)


# Options of a leaf's name, such as `tile.gpu8.texture`, that say how A's and B's tiles get to shared memory.
LEAF_PATHS: Mapping[str, tuple[CopyPath, CopyPath]] = {"plain": ("plain", "plain"), "texture": ("texture", "plain")}


def leaf_strategy(use: LeafUse) -> TileSizes | None:
    """Return the strategy that a leaf such as `tile.huge` names; None for `tile`, where the model chooses."""
    names = [option for option in use.options if option not in LEAF_PATHS]
    return named_strategy(names[0]) if names else None


def leaf_paths(use: LeafUse) -> tuple[CopyPath, CopyPath]:
    """Return the copy paths of A's and B's tiles that a leaf such as `tile.gpu8.texture` names."""
    return next((LEAF_PATHS[option] for option in use.options if option in LEAF_PATHS), ("async", "async"))


# ---- launches for a chip

# A launch may overlap the previous one only if it has this many thread blocks for each multiprocessor. Smaller launches
# were measured to slow each other down.
OVERLAP_MIN_WAVES = 1.9


def tile_launches(
    op: TileOp | TileGroup, chip: Chip, alignment: Mapping[str, int], flagged: bool
) -> tuple[Launch, ...]:
    """Return the launch of these products, or one launch for each if one kernel cannot do them all.

    `alignment` maps a base to the largest power of two that divides its address. If `flagged`, kernels that write C
    raise the flag where they store an inf or NaN.
    """
    op = fit_to_chip(op, chip)
    parts = op.ops if isinstance(op, TileGroup) and not op.fits_one_launch else (op,)
    return tuple(_tile_launch(part, chip, alignment, flagged) for part in parts)


def fit_to_chip(op: TileOp | TileGroup, chip: Chip) -> TileOp | TileGroup:
    """Return the same products with a smaller strategy if their own does not fit the chip.

    A strategy does not fit if its tiles exceed the shared memory. On a chip without a float64 mma instruction,
    strategies made for that instruction do not fit either: a thread would need more registers than it has.
    """
    if isinstance(op, TileGroup):
        return replace(op, ops=tuple(x for y in op.ops if isinstance(x := fit_to_chip(y, chip), TileOp)))
    names = ("Medium",) if op.kernel.mma_depth and not chip.has_float64_mma else ("", "Huge", "Medium")
    kernels = [replace(op.kernel, strategy=named_strategy(name)) if name else op.kernel for name in names]
    fits = next((kernel for kernel in kernels if kernel.shared <= chip.shared_bytes_per_block), kernels[-1])
    return op if fits is op.kernel else replace(op, kernel=fits)


def _tile_launch(op: TileOp | TileGroup, chip: Chip, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """Return the one launch of a product, or of a group that one kernel can do."""
    aligned = all(alignment[piece.base] % VECTOR_BYTES == 0 for piece in op.pieces)
    access: Access = op.access if aligned else "scalar"
    raises = flagged and op.writes_result
    spec = replace(op.kernel, flag="raises") if raises else op.kernel
    slots = [AddressSlot(word, x.base, x.offset) for word, x in zip(pointer_words(op), op.pieces, strict=True)]
    if raises:
        slots.append(AddressSlot(len(op.parameters) // 8 - 1, FLAG))
    fills_chip = prod(op.grid) >= OVERLAP_MIN_WAVES * chip.multiprocessors
    kernel = Kernel(simt_source, (spec, access), ENTRY_NAME, spec.strategy.threads, spec.shared, COMPILER_OPTIONS)
    return Launch(
        "product",
        tile_label(spec, access, op.largest.count, by_warps=spec.mma_depth > 0 and chip.has_float64_mma),
        kernel,
        op.grid,
        op.parameters,
        tuple(slots),
        overlaps=op.may_overlap and fills_chip and chip.can_overlap_launches,
        aligned=access == "vector",
    )


def tile_label(kernel: TileKernel, access: Access, count: int, by_warps: bool) -> str:
    """Return the label of a launch: the kernel, its tile sizes, and what it does beyond a plain product.

    `by_warps` is True if mma instructions multiply. On a chip without float64 mma, gemm_mma_f64.cuh compiles to the
    code of gemm_simt.cuh.
    """
    s, (left, right, dest) = kernel.strategy, kernel.operands
    written = len(kernel.epilogue.writes)
    parts = [f"{'gemm_mma_f64' if by_warps else 'gemm_simt'} {s.name}: tiles of {s.m_s} x {s.n_s} x {s.k_s}"]
    parts += [f"adds up {left} and {right} blocks"] if kernel.sums else []
    parts += [f"writes {written}"] if kernel.sums or dest > 1 else []
    parts += [f"{kernel.products} products in one launch"] if kernel.products > 1 else []
    parts += [f"a batch of {count}"] if count > 1 else []
    parts += [TRIANGLE_LABELS[kernel.triangle]] if kernel.triangle else []
    return ", ".join([*parts, *(["one number at a time"] if access == "scalar" else [])])
