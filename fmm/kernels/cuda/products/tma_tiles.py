"""Tma."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import ENTRY, entry_source
from fmm.kernels.cuda.kernel import PARAMETER_BYTES, Kernel
from fmm.kernels.cuda.launch_list import COUNTERS, FLAG, Launch, Slot
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_kernel import ASYNC, COMPILER_OPTIONS, adding_epilogue
from fmm.kernels.cuda.products.simt_tiles import BLOCK, TileGroup, TileOp
from fmm.kernels.cuda.products.split_k import TASK_COUNTS, Part, split_tail
from fmm.kernels.cuda.products.tiling import (
    RASTER_ROWS,
    TRIANGLE_LABELS,
    VECTOR_BYTES,
    Along,
    TriangleTiles,
    along_cpp,
    comma_list,
    count_triangle_tiles,
    strategy_cpp,
    triangle_cpp,
)
from fmm.kernels.cuda.tensor_map import MAP_BYTES, MAP_WORDS, TensorMap
from fmm.kernels.cuda.views import Lines, Piece

Counts = tuple[int, int, int]  # of A, B, C


@dataclass(frozen=True)
class TmaKernel:
    """Up to `tasks` products, of at most so many `terms` each, over so many `blocks` of A, B and C.

    `shapes`: the pairs (is A's operand a sum, is B's) that occur among the products.
    """

    strategy: TileSizes
    element: str
    terms: Counts
    blocks: Counts
    tasks: int
    shapes: frozenset[tuple[bool, bool]]
    order: str
    along: tuple[Along, Along]
    half: TriangleTiles | None = None

    @property
    def shared(self) -> int:
        """Bytes of shared memory: in every stage copies of all terms, their sum where there are several, or a tile of C
        in their place; two gates a stage."""
        s = self.strategy
        left, right = (terms + (terms > 1) for terms in self.terms[:2])
        numbers = max(s.stages * s.k_s * (s.m_s * left + s.n_s * right), s.m_s * s.n_s)
        return numbers * DTYPES[self.element].itemsize + 16 * s.stages


@lru_cache(maxsize=256)
def tma_source(kernel: TmaKernel) -> str:
    """The whole CUDA source of a kernel, entry point `ENTRY`."""
    s, element = kernel.strategy, DTYPES[kernel.element].cpp
    left, right = along_cpp(kernel.along)
    shapes = sum(1 << (2 * a + b) for a, b in kernel.shapes)
    order, half = f"fmm::Order::{kernel.order.upper()}", triangle_cpp(kernel.half)
    before = (
        f"using Task = fmm::Task<{element}, {comma_list(kernel.terms)}>;",
        f"using Launch = fmm::Launch<{element}, Task, {comma_list((*kernel.blocks, kernel.tasks))}>;",
        "",
    )
    body = (
        f"using Sizes = {strategy_cpp(s)};",
        f"extern __shared__ __align__(1024) {element} memory[];",
        f"fmm::multiply_all<{element}, Sizes, {left}, {right}, {comma_list(kernel.terms[:2])}, {shapes},",
        f"                  {order}, {half}>(p, memory);",
    )
    return entry_source("Launch", body, "gemm_tma.cuh", (s.threads, s.blocks), before=before)


ENGINE = 90  # the first compute capability whose copy engine brings tiles
SM90_SHARED_BYTES = 227 << 10  # bytes of shared memory that a thread block may have there


@dataclass(frozen=True)
class TmaOp:
    """One launch: parts of products, all described in its parameters."""

    kernel: TmaKernel
    maps: tuple[TensorMap, ...]  # of all blocks of A, then of B
    dest: tuple[Piece, ...]  # all blocks of C
    parts: tuple[Part, ...]
    tasks: bytes  # struct Task of gemm_tma.cuh for every part
    lines: Lines  # of C's blocks
    tiles: tuple[int, int]  # of a block of C, below each other and side by side
    count: int  # layers of the batch

    def __hash__(self) -> int:
        return id(self)

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.blocks * self.count, 1, 1

    @property
    def blocks(self) -> int:
        """Thread blocks for one layer of the batch."""
        return sum(part.tiles for part in self.parts)

    @property
    def turns(self) -> int:
        """How many counters the launch needs, of four bytes each, zero before and after it."""
        return self.tiles[0] * self.tiles[1] * len(self.dest) * self.count if self.kernel.order == "turns" else 0

    @property
    def parameters(self) -> bytes:
        """Those of a launch whose C is aligned."""
        return self.packed(True)

    def packed(self, aligned_result: bool) -> bytes:
        """struct Launch of gemm_tma.cuh; maps, pointers of blocks, counts and flag are zero."""
        item = DTYPES[self.kernel.element].itemsize
        blocks = b"".join(struct.pack(BLOCK[item], 0, x.rows, x.cols, 1, x.keep) for x in self.dest)
        wide = aligned_result and all(x * item % VECTOR_BYTES == 0 for x in self.lines)
        wide = wide and all(x.offset % VECTOR_BYTES == 0 for x in self.dest)
        sizes = struct.pack("<4q5i", 0, 0, *self.lines, *self.tiles, RASTER_ROWS, wide, self.blocks)
        unused = bytes(len(self.tasks) // len(self.parts) * (self.kernel.tasks - len(self.parts)))
        parameters = bytes(MAP_BYTES * len(self.maps)) + blocks + sizes + self.tasks + unused
        return parameters + bytes(-len(parameters) % 64)

    @property
    def map_words(self) -> range:
        """Where each map begins, in words of 8 bytes."""
        return range(0, MAP_WORDS * len(self.maps), MAP_WORDS)

    @property
    def dest_words(self) -> range:
        """Where each block of C has its pointer."""
        words = struct.calcsize(BLOCK[DTYPES[self.kernel.element].itemsize]) // 8
        first = MAP_WORDS * len(self.maps)
        return range(first, first + words * len(self.dest), words)

    @property
    def turns_word(self) -> int:
        return self.dest_words.stop

    @property
    def flag_word(self) -> int:
        return self.turns_word + 1


# ---- from products to a launch


@lru_cache(maxsize=4096)
def tma_op(op: TileOp | TileGroup, s: TileSizes, multiprocessors: int) -> TmaOp | None:
    """The launch of these products, whose operands are aligned.

    None if the kernel cannot do them, or if parameters or shared memory are not enough.
    """
    ops, largest = op.ops, op.largest
    if not _can_do(ops):
        return None
    lefts, rights, dests = (_distinct_blocks(x) for x in zip(*((o.left, o.right, o.dest) for o in ops), strict=True))
    tiles = -(-largest.m // s.m_s), -(-largest.n // s.n_s)
    steps, half = -(-largest.k // s.k_s), largest.kernel.half
    writes = sum(len(o.dest) for o in ops) / len(ops)
    if half:  # a tile that is written twice is made by one thread block
        parts: tuple[Part, ...] = (Part(0, 0, count_triangle_tiles(tiles, s.m_s, s.n_s), 0, steps),)
    else:
        parts = split_tail(len(ops), prod(tiles), largest.count, steps, s.k_s, writes, multiprocessors)
    room = next((x for x in TASK_COUNTS if x >= len(parts)), len(parts))
    terms = max(len(o.left) for o in ops), max(len(o.right) for o in ops), max(len(o.dest) for o in ops)
    order = "turns" if len(parts) > 1 else "free"
    shapes = frozenset((len(o.left) > 1, len(o.right) > 1) for o in ops)
    blocks = len(lefts), len(rights), len(dests)
    kernel = TmaKernel(s, largest.kernel.element, terms, blocks, room, shapes, order, largest.kernel.along, half)
    u, v, w, *_ = largest.lines
    maps = (
        *(_operand_map(x, True, kernel, u, largest.count) for x in lefts),
        *(_operand_map(x, False, kernel, v, largest.count) for x in rights),
    )
    tasks = b"".join(_task_words(ops, parts, kernel, (lefts, rights, dests)))
    into = tuple(_first_written(x, ops) for x in dests)
    launch = TmaOp(kernel, maps, into, parts, tasks, w, tiles, largest.count)
    return launch if kernel.shared <= SM90_SHARED_BYTES and len(launch.parameters) <= PARAMETER_BYTES else None


def rows_are_aligned(op: TileOp | TileGroup) -> bool:
    """May the copy engine read A and B, if their bases are aligned?"""
    ops, item = op.ops, DTYPES[op.kernel.element].itemsize
    steps = (step for o in ops for lines in o.lines[:2] for step in lines)
    return all(step * item % VECTOR_BYTES == 0 for step in steps) and all(
        x.offset % VECTOR_BYTES == 0 for o in ops for x in (*o.left, *o.right)
    )


def _can_do(ops: Sequence[TileOp]) -> bool:
    """Can the kernel do these products? It wants float32 numbers, destinations that lie alike and are only added to,
    and for each operand sums of one length (single blocks may be among them)."""
    lying = {(o.kernel.element, o.kernel.along, *o.lines[:2], frozenset(o.lines[2:]), o.count) for o in ops}
    alike = len(lying) == len(set(ops[0].lines[2:])) == 1 and ops[0].kernel.element == "float32"
    plain = all(o.kernel == replace(o.kernel, epilogue=adding_epilogue(len(o.dest)), paths=ASYNC) for o in ops)
    lengths = [{len(terms) for terms in side} - {1} for side in zip(*((o.left, o.right) for o in ops), strict=True)]
    return alike and plain and all(len(x) <= 1 for x in lengths)


def _distinct_blocks(sides: Iterable[Sequence[Piece]]) -> tuple[Piece, ...]:
    """The blocks that products touch, each once, without its coefficients."""
    return tuple(dict.fromkeys(_without_factors(x) for side in sides for x in side))


def _without_factors(x: Piece) -> Piece:
    return x._replace(factor=1, keep=0)


def _first_written(x: Piece, ops: Sequence[TileOp]) -> Piece:
    """A block of C, with the share of its old value that the first product to write it keeps."""
    return x._replace(keep=next(y.keep for o in ops for y in o.dest if _without_factors(y) == x))


def _operand_map(x: Piece, left: bool, kernel: TmaKernel, lines: Lines, count: int) -> TensorMap:
    s, along = kernel.strategy, kernel.along[0 if left else 1]
    out = s.m_s if left else s.n_s
    length, number = (x.cols, x.rows) if left == (along == "inner") else (x.rows, x.cols)
    inner = s.k_s * DTYPES[kernel.element].itemsize
    box, swizzle = ((s.k_s, out), inner) if along == "inner" else ((out, s.k_s), 0)
    return TensorMap(x, kernel.element, length, number, count, lines.leading, lines.layer, box, swizzle)


def _task_words(
    ops: Sequence[TileOp], parts: Sequence[Part], kernel: TmaKernel, blocks: tuple[Sequence[Piece], ...]
) -> Iterator[bytes]:
    """struct Task of gemm_tma.cuh, one for each part. `blocks`: the distinct blocks of A, B and C.

    Parts that write the same tiles take turns: each is told how many write before it, and whether it is the last.
    """
    # Where a product is cut, its tiles before the cut and those behind it are written by different tasks.
    cut = max(part.first for part in parts)
    all_writers = Counter(
        (_without_factors(x), behind)
        for part in parts
        for behind in _tile_ranges(part, cut)
        for x in ops[part.product].dest
    )
    remaining = Counter(all_writers)
    for part in parts:
        op, ranges = ops[part.product], _tile_ranges(part, cut)
        block_numbers = [
            [distinct.index(_without_factors(x)) for x in side]
            for distinct, side in zip(blocks, _all_pieces(op), strict=True)
        ]
        written = [(_without_factors(x), ranges[0]) for x in op.dest]
        turns = [all_writers[tiles] - remaining[tiles] for tiles in written]
        remaining.subtract((_without_factors(x), behind) for behind in ranges for x in op.dest)
        is_last = [int(not remaining[tiles]) for tiles in written]
        fields = (*block_numbers, turns, is_last)
        lengths = (*kernel.terms, kernel.terms[2], kernel.terms[2])
        numbers = [x for values, length in zip(fields, lengths, strict=True) for x in _zero_filled(values, length)]
        factors = [
            x
            for side, n in zip(_all_pieces(op), kernel.terms, strict=True)
            for x in _zero_filled([y.factor for y in side], n)
        ]
        counts = [len(side) for side in _all_pieces(op)]
        head = *counts, part.first, part.tiles, part.start * kernel.strategy.k_s, part.steps
        yield struct.pack(f"<{len(head) + len(numbers)}i{len(factors)}f", *head, *numbers, *factors)


def _tile_ranges(part: Part, cut: int) -> list[bool]:
    """On which sides of the cut the part has tiles: False for before it, True for behind it."""
    return [behind for behind in (False, True) if (part.first + part.tiles > cut if behind else part.first < cut)]


def _all_pieces(op: TileOp) -> tuple[tuple[Piece, ...], tuple[Piece, ...], tuple[Piece, ...]]:
    return op.left, op.right, op.dest


def _zero_filled(values: Sequence[float], length: int) -> list[float]:
    return [*values, *([0] * (length - len(values)))]


# ---- the launch on a chip


def tma_launch(op: TmaOp, alignment: Mapping[str, int], flagged: bool) -> Launch:
    """The launch for addresses of this alignment: by base, the power of two that divides its address.

    Those of A and B must be multiples of 16.
    """
    writes_wide = all(alignment[x.base] % VECTOR_BYTES == 0 for x in op.dest)
    slots = [Slot(word, x.piece.base, x.piece.offset) for word, x in zip(op.map_words, op.maps, strict=True)]
    slots += [Slot(word, x.base, x.offset) for word, x in zip(op.dest_words, op.dest, strict=True)]
    if op.turns:
        slots.append(Slot(op.turns_word, COUNTERS))
    if flagged and any(x.base == "C" for x in op.dest):
        slots.append(Slot(op.flag_word, FLAG))
    s = op.kernel.strategy
    kernel = Kernel(tma_source, (op.kernel,), ENTRY, s.threads, op.kernel.shared, COMPILER_OPTIONS)
    return Launch(
        "product",
        _tma_label(op),
        kernel,
        op.grid,
        op.packed(writes_wide),
        tuple(slots),
        tuple(zip(op.map_words, op.maps, strict=True)),
        op.turns,
    )


def _tma_label(op: TmaOp) -> str:
    s, products = op.kernel.strategy, len({part.product for part in op.parts})
    parts = [f"gemm_tma {s.name}: tiles of {s.m_s} x {s.n_s} x {s.k_s}"]
    parts += [f"{products} products in one launch, sums inside"] if products > 1 else []
    parts += [f"{len(op.parts)} parts in turns"] if len(op.parts) > products else []
    parts += [f"a batch of {op.count}"] if op.count > 1 else []
    return ", ".join([*parts, *([TRIANGLE_LABELS[op.kernel.half]] if op.kernel.half else [])])
