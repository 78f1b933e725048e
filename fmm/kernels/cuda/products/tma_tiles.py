"""Describe products for the kernel of gemm_tma.cuh, where the copy engine (TMA) loads the tiles.

`tma_op` describes one or several TileOps as a single launch. The last tiles of C may be divided into parts along the
inner dimension (split_k.py). The thread blocks that compute the parts of one tile add them to C one after the other.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY_NAME, entry_source
from fmm.kernels.cuda.launch_list import (
    COUNTERS,
    FLAG,
    MAX_PARAMETER_BYTES,
    TENSOR_MAP_BYTES,
    TENSOR_MAP_WORDS,
    AddressSlot,
    Kernel,
    Launch,
    TensorMap,
)
from fmm.kernels.cuda.ops import BlockStrides, BlockTerm
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_kernel import ASYNC_PATHS, COMPILER_OPTIONS, adding_epilogue
from fmm.kernels.cuda.products.simt_tiles import BLOCK_STRUCT_FORMATS, TileGroup, TileOp
from fmm.kernels.cuda.products.split_k import TASK_COUNTS, ProductPart, split_last_tiles
from fmm.kernels.cuda.products.tiling import (
    RASTER_ROWS,
    TRIANGLE_LABELS,
    VECTOR_BYTES,
    ContiguousAxis,
    TriangleTiles,
    count_triangle_tiles,
    cpp_contiguous_axes,
    cpp_strategy_type,
    cpp_triangle_value,
    template_arguments,
)

SM90_SHARED_BYTES = 227 << 10  # largest shared memory of a thread block in bytes, on compute capability 9.0
BlockCounts = tuple[int, int, int]  # three numbers: the number of blocks of A, of B and of C


@dataclass(frozen=True)
class TmaKernel:
    """A compiled variant of the TMA kernel; each task of a launch is a product of sums, or a part of this product."""

    strategy: TileSizes
    element: str
    terms: BlockCounts  # largest number of blocks in a sum of A's blocks, in a sum of B's blocks, and in a destination
    blocks: BlockCounts  # number of distinct blocks of A, of B and of C
    tasks: int  # largest number of tasks in one launch
    shapes: frozenset[tuple[bool, bool]]  # for each kind of task: is the left operand a sum, and is the right operand?
    order: str
    along: tuple[ContiguousAxis, ContiguousAxis]
    triangle: TriangleTiles | None = None

    @property
    def shared_bytes(self) -> int:
        """Bytes of shared memory of a thread block.

        Each pipeline stage holds a tile of every block in a sum, and a tile of the sum itself if the sum has several
        blocks. At the end of a product, the tile of C takes the memory of the tiles of A and B. Each stage also has two
        barriers of 8 bytes.
        """
        s = self.strategy
        left, right = (terms + (terms > 1) for terms in self.terms[:2])
        numbers = max(s.stages * s.k_s * (s.m_s * left + s.n_s * right), s.m_s * s.n_s)
        return numbers * DTYPES[self.element].itemsize + 16 * s.stages


@lru_cache(maxsize=256)
def tma_kernel_source(kernel: TmaKernel) -> str:
    """Return the CUDA source of a kernel; its entry point is `ENTRY_NAME`."""
    s, element = kernel.strategy, DTYPES[kernel.element].cpp
    left, right = cpp_contiguous_axes(kernel.along)
    shapes = sum(1 << (2 * a + b) for a, b in kernel.shapes)
    order, triangle = f"fmm::Order::{kernel.order.upper()}", cpp_triangle_value(kernel.triangle)
    before = (
        f"using Task = fmm::Task<{element}, {template_arguments(kernel.terms)}>;",
        f"using Launch = fmm::Launch<{element}, Task, {template_arguments((*kernel.blocks, kernel.tasks))}>;",
        "",
    )
    body = (
        f"using Sizes = {cpp_strategy_type(s)};",
        f"extern __shared__ __align__(1024) {element} memory[];",
        f"fmm::multiply_all<{element}, Sizes, {left}, {right}, {template_arguments(kernel.terms[:2])}, {shapes},",
        f"                  {order}, {triangle}>(p, memory);",
    )
    return entry_source("Launch", body, "gemm_tma.cuh", (s.thread_count, s.blocks), before=before)


@dataclass(frozen=True)
class TmaOp:
    """One launch of the TMA kernel; each of its tasks computes a part of a product."""

    kernel: TmaKernel
    maps: tuple[TensorMap, ...]  # tensor maps of all blocks of A, then of all blocks of B
    dest: tuple[BlockTerm, ...]  # all distinct blocks of C
    parts: tuple[ProductPart, ...]
    tasks: bytes  # bytes of struct Task of gemm_tma.cuh for every part
    lines: BlockStrides  # strides of C's blocks
    tiles: tuple[int, int]  # number of rows of tiles and number of columns of tiles in a block of C
    count: int  # number of products in the batch

    def __hash__(self) -> int:
        return id(self)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.thread_blocks_per_product * self.count, 1, 1

    @property
    def thread_blocks_per_product(self) -> int:
        """Number of thread blocks for one product of the batch."""
        return sum(part.tiles for part in self.parts)

    @property
    def ordering_counter_count(self) -> int:
        """Number of 4-byte counters that order the writes to tiles of C; they are zero before and after the launch."""
        return self.tiles[0] * self.tiles[1] * len(self.dest) * self.count if self.kernel.order == "turns" else 0

    @property
    def parameter_bytes(self) -> bytes:
        """The bytes of the launch's parameters for a C with an address that is a multiple of 16 bytes."""
        return self.pack_parameters(True)

    def pack_parameters(self, aligned_result: bool) -> bytes:
        """Return the bytes of struct Launch of gemm_tma.cuh, with zeros in place of tensor maps and pointers."""
        item = DTYPES[self.kernel.element].itemsize
        blocks = b"".join(struct.pack(BLOCK_STRUCT_FORMATS[item], 0, x.rows, x.cols, 1, x.keep) for x in self.dest)
        vector = aligned_result and all(x * item % VECTOR_BYTES == 0 for x in self.lines)
        vector = vector and all(x.offset % VECTOR_BYTES == 0 for x in self.dest)
        sizes = struct.pack(
            "<4q5i", 0, 0, *self.lines, *self.tiles, RASTER_ROWS, vector, self.thread_blocks_per_product
        )
        unused = bytes(len(self.tasks) // len(self.parts) * (self.kernel.tasks - len(self.parts)))
        parameters = bytes(TENSOR_MAP_BYTES * len(self.maps)) + blocks + sizes + self.tasks + unused
        return parameters + bytes(-len(parameters) % 64)

    @property
    def tensor_map_word_indices(self) -> range:
        """The indices of the 8-byte words of the parameters at which the tensor maps start."""
        return range(0, TENSOR_MAP_WORDS * len(self.maps), TENSOR_MAP_WORDS)

    @property
    def dest_word_indices(self) -> range:
        """The indices of the 8-byte words of the parameters that hold the pointers to C's blocks."""
        words = struct.calcsize(BLOCK_STRUCT_FORMATS[DTYPES[self.kernel.element].itemsize]) // 8
        first = TENSOR_MAP_WORDS * len(self.maps)
        return range(first, first + words * len(self.dest), words)

    @property
    def counters_word_index(self) -> int:
        """The index of the 8-byte word of the parameters that holds the address of the counters."""
        return self.dest_word_indices.stop

    @property
    def flag_word_index(self) -> int:
        """The index of the 8-byte word of the parameters that holds the address of the flag."""
        return self.counters_word_index + 1


# ---- from products to one launch


@lru_cache(maxsize=4096)
def tma_op(op: TileOp | TileGroup, s: TileSizes, multiprocessors: int) -> TmaOp | None:
    """Describe these products of aligned operands as one launch of the TMA kernel.

    Return None if the kernel cannot compute the products, or if the launch exceeds the limits of parameters or of
    shared memory.
    """
    ops, largest = op.ops, op.largest_product
    if not _is_tma_supported(ops):
        return None
    lefts, rights, dests = (
        tuple(dict.fromkeys(_without_coefficients(x) for side in sides for x in side))  # without duplicates
        for sides in zip(*((o.left, o.right, o.dest) for o in ops), strict=True)
    )
    tiles = -(-largest.m // s.m_s), -(-largest.n // s.n_s)
    steps, triangle = -(-largest.k // s.k_s), largest.kernel.triangle
    writes = sum(len(o.dest) for o in ops) / len(ops)
    if triangle:  # a thread block writes a tile and the tile's mirror, so no tile is divided
        parts: tuple[ProductPart, ...] = (ProductPart(0, 0, count_triangle_tiles(tiles, s.m_s, s.n_s), 0, steps),)
    else:
        parts = split_last_tiles(len(ops), prod(tiles), largest.count, steps, s.k_s, writes, multiprocessors)
    tasks = next((x for x in TASK_COUNTS if x >= len(parts)), len(parts))
    terms = max(len(o.left) for o in ops), max(len(o.right) for o in ops), max(len(o.dest) for o in ops)
    order = "turns" if len(parts) > 1 else "free"
    shapes = frozenset((len(o.left) > 1, len(o.right) > 1) for o in ops)
    blocks = len(lefts), len(rights), len(dests)
    kernel = TmaKernel(s, largest.kernel.element, terms, blocks, tasks, shapes, order, largest.kernel.along, triangle)
    u, v, w, *_ = largest.lines
    maps = (
        *(_operand_block_tensor_map(x, True, kernel, u, largest.count) for x in lefts),
        *(_operand_block_tensor_map(x, False, kernel, v, largest.count) for x in rights),
    )
    task_words = b"".join(_pack_tasks(ops, parts, kernel, (lefts, rights, dests)))
    # The first product that writes a block of C multiplies the block's old value by `keep`; later products only add to
    # the block.
    into = tuple(
        x._replace(keep=next(y.keep for o in ops for y in o.dest if _without_coefficients(y) == x)) for x in dests
    )
    launch = TmaOp(kernel, maps, into, parts, task_words, w, tiles, largest.count)
    fits = kernel.shared_bytes <= SM90_SHARED_BYTES and len(launch.parameter_bytes) <= MAX_PARAMETER_BYTES
    return launch if fits else None


def has_tma_alignment(op: TileOp | TileGroup) -> bool:
    """Return True if the copy engine (TMA) can read A and B, provided that their base addresses are aligned."""
    ops, item = op.ops, DTYPES[op.kernel.element].itemsize
    steps = (step for o in ops for lines in o.lines[:2] for step in lines)
    return all(step * item % VECTOR_BYTES == 0 for step in steps) and all(
        x.offset % VECTOR_BYTES == 0 for o in ops for x in (*o.left, *o.right)
    )


def _is_tma_supported(ops: Sequence[TileOp]) -> bool:
    """Return True if the kernel can compute these products in one launch.

    The products must be float32, with one layout for all destinations and an `adding_epilogue`. All sums of A's blocks
    must have the same number of blocks, and all sums of B's blocks too. Single blocks may occur in place of sums.
    """
    layouts = {(o.kernel.element, o.kernel.along, *o.lines[:2], frozenset(o.lines[2:]), o.count) for o in ops}
    alike = len(layouts) == len(set(ops[0].lines[2:])) == 1 and ops[0].kernel.element == "float32"
    plain = all(o.kernel == replace(o.kernel, epilogue=adding_epilogue(len(o.dest)), paths=ASYNC_PATHS) for o in ops)
    lengths = [{len(terms) for terms in side} - {1} for side in zip(*((o.left, o.right) for o in ops), strict=True)]
    return alike and plain and all(len(x) <= 1 for x in lengths)


def _without_coefficients(x: BlockTerm) -> BlockTerm:
    """Return the block without its coefficients, so that terms with the same block in memory compare equal."""
    return x._replace(factor=1, keep=0)


def _operand_block_tensor_map(
    x: BlockTerm, left: bool, kernel: TmaKernel, lines: BlockStrides, count: int
) -> TensorMap:
    """Return the tensor map of a block of A (if `left` is True) or of B."""
    s, along = kernel.strategy, kernel.along[0 if left else 1]
    out = s.m_s if left else s.n_s
    length, number = (x.cols, x.rows) if left == (along == "inner") else (x.rows, x.cols)
    inner = s.k_s * DTYPES[kernel.element].itemsize
    box, swizzle = ((s.k_s, out), inner) if along == "inner" else ((out, s.k_s), 0)
    return TensorMap(x, kernel.element, length, number, count, lines.leading, lines.layer, box, swizzle)


def _pack_tasks(
    ops: Sequence[TileOp], parts: Sequence[ProductPart], kernel: TmaKernel, blocks: tuple[Sequence[BlockTerm], ...]
) -> Iterator[bytes]:
    """Yield the bytes of struct Task of gemm_tma.cuh for each part; `blocks` holds distinct blocks of A, of B and of C.

    Several tasks can write the same tiles of a block of C. For each block of C, a task contains the number of earlier
    tasks that write the same tiles, and a 1 if no later task writes these tiles.
    """
    # A task writes tiles before index `cut` of a block of C, or tiles from `cut` on, or both ranges of tiles.
    cut = max(part.first for part in parts)
    all_writers = Counter(
        (_without_coefficients(x), behind)
        for part in parts
        for behind in _written_tile_ranges(part, cut)
        for x in ops[part.product].dest
    )
    remaining = Counter(all_writers)
    for part in parts:
        op, ranges = ops[part.product], _written_tile_ranges(part, cut)
        sides = op.left, op.right, op.dest
        block_numbers = [
            [distinct.index(_without_coefficients(x)) for x in side]
            for distinct, side in zip(blocks, sides, strict=True)
        ]
        written = [(_without_coefficients(x), ranges[0]) for x in op.dest]
        turns = [all_writers[tiles] - remaining[tiles] for tiles in written]
        remaining.subtract((_without_coefficients(x), behind) for behind in ranges for x in op.dest)
        is_last = [int(not remaining[tiles]) for tiles in written]
        fields = (*block_numbers, turns, is_last)
        lengths = (*kernel.terms, kernel.terms[2], kernel.terms[2])
        numbers = [x for values, length in zip(fields, lengths, strict=True) for x in _pad_with_zeros(values, length)]
        factors = [
            x for side, n in zip(sides, kernel.terms, strict=True) for x in _pad_with_zeros([y.factor for y in side], n)
        ]
        counts = [len(side) for side in sides]
        head = *counts, part.first, part.tiles, part.start * kernel.strategy.k_s, part.steps
        yield struct.pack(f"<{len(head) + len(numbers)}i{len(factors)}f", *head, *numbers, *factors)


def _written_tile_ranges(part: ProductPart, cut: int) -> list[bool]:
    """Return a list: with False if the task has tiles before index `cut`, with True if it has tiles from `cut` on."""
    return [behind for behind in (False, True) if (part.first + part.tiles > cut if behind else part.first < cut)]


def _pad_with_zeros(values: Sequence[float], length: int) -> list[float]:
    return [*values, *([0] * (length - len(values)))]


# ---- the launch for a chip


def tma_launch(op: TmaOp, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """Return the launch of a TmaOp; the addresses of A and B must be multiples of 16 bytes.

    `alignment` maps the name of a base, such as A or C, to the largest power of two that divides the base's address. If
    `flagged` is True, the kernel raises the flag when it stores an inf or NaN to C.
    """
    vector_writes = all(alignment[x.base] % VECTOR_BYTES == 0 for x in op.dest)
    slots = [
        AddressSlot(word, x.piece.base, x.piece.offset)
        for word, x in zip(op.tensor_map_word_indices, op.maps, strict=True)
    ]
    slots += [AddressSlot(word, x.base, x.offset) for word, x in zip(op.dest_word_indices, op.dest, strict=True)]
    if op.ordering_counter_count:
        slots.append(AddressSlot(op.counters_word_index, COUNTERS))
    if flagged and any(x.base == "C" for x in op.dest):
        slots.append(AddressSlot(op.flag_word_index, FLAG))
    s = op.kernel.strategy
    kernel = Kernel(
        tma_kernel_source, (op.kernel,), ENTRY_NAME, s.thread_count, op.kernel.shared_bytes, COMPILER_OPTIONS
    )
    maps = tuple(zip(op.tensor_map_word_indices, op.maps, strict=True))
    return Launch(
        "product",
        _tma_label(op),
        kernel,
        op.grid,
        op.pack_parameters(vector_writes),
        tuple(slots),
        maps,
        op.ordering_counter_count,
    )


def _tma_label(op: TmaOp) -> str:
    s, products = op.kernel.strategy, len({part.product for part in op.parts})
    parts = [f"gemm_tma {s.name}: tiles of {s.m_s} x {s.n_s} x {s.k_s}"]
    parts += [f"{products} products in one launch, sums inside"] if products > 1 else []
    parts += [f"{len(op.parts)} parts in turns"] if len(op.parts) > products else []
    parts += [f"a batch of {op.count}"] if op.count > 1 else []
    return ", ".join([*parts, *([TRIANGLE_LABELS[op.kernel.triangle]] if op.kernel.triangle else [])])
