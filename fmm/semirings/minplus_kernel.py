"""CUDA launches for min-plus and max-plus semirings: products (minplus.cuh) and closures of tiles (close_tile.cuh).

`fastest_minplus_sizes` selects the tile sizes with the fewest predicted clock cycles.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.launch_list import AddressSlot, Kernel, Launch
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.tiling import cpp_strategy_type
from fmm.semirings.path_request import EdgeRule

ENTRY_POINT = "fmm_minplus"
# Number of threads in a thread block of the kernels that compute the closure of a tile, that write 16-bit entries
# twice, and that write edges.
TILE_THREADS = 256
VECTOR_BYTES = 16  # bytes of one vector load or store


@dataclass(frozen=True)
class TropicalRing:
    """A min-plus or max-plus semiring on a device: its number type, and the C++ class that selects the better sum."""

    name: str
    cpp: str  # C++ class of the ring in the device code
    word: str  # C++ type of a word, which holds `per_word` entries
    word_bytes: int
    code: str  # format character of a word in Python's module struct
    per_word: int = 1  # number of entries of B or C in a word; a word of A contains one entry `per_word` times
    tile_cpp: str = ""  # C++ class of the ring for the closure of a tile, if it differs from `cpp`
    stored: str = ""  # C++ type of the entries in memory, if it differs from `word`

    @property
    def entry_bytes(self) -> int:
        return self.word_bytes // self.per_word


TROPICAL_RINGS = {
    ring.name: ring
    for ring in (
        TropicalRing("float32", "SignedFloats", "float", 4, "f", tile_cpp="Floats<false>"),
        TropicalRing("float32, greatest", "Floats<true>", "float", 4, "f"),
        TropicalRing("float32, none negative", "NonnegativeFloats", "float", 4, "f"),
        TropicalRing("float64", "Doubles<false>", "double", 8, "d"),
        TropicalRing("float64, greatest", "Doubles<true>", "double", 8, "d"),
        TropicalRing("int32", "Integers", "int", 4, "i"),
        TropicalRing("int32, none negative", "Naturals<0x7fffffff>", "unsigned", 4, "I"),
        TropicalRing(
            "int16, none negative", "NaturalPairs", "unsigned", 4, "I", 2, "Naturals<0x7fff>", "unsigned short"
        ),
    )
}

# Tile sizes of kernels that record no best index k, for words of at most 4 bytes. The first sizes in the list are
# fastest for large products; the last sizes give enough thread blocks for the smallest products.
TILE_SIZES_4_BYTES = (
    TileSizes("Square", 128, 128, 16, m_r=8, n_r=16, warp_m=8, warp_n=4, stages=3, blocks=2),
    TileSizes("Medium", 64, 64, 16, m_r=4, n_r=8, warp_m=8, warp_n=4, stages=3, blocks=4),
    TileSizes("Small", 32, 32, 16, m_r=2, n_r=4, warp_m=8, warp_n=4, stages=3, blocks=6),
)
# In kernels that record the best index k, and in kernels for 8-byte entries, each entry of C needs two registers, so a
# thread computes half as many entries.
HALF_SQUARE_TILE_SIZES = replace(TILE_SIZES_4_BYTES[0], name="Half", m_s=64, n_r=8)
ARGUMENT_TILE_SIZES_4_BYTES = (HALF_SQUARE_TILE_SIZES, *TILE_SIZES_4_BYTES[1:])
TILE_SIZES_8_BYTES = (
    replace(HALF_SQUARE_TILE_SIZES, stages=2),
    replace(TILE_SIZES_4_BYTES[1], blocks=3),
    TILE_SIZES_4_BYTES[2],
)
ARGUMENT_TILE_SIZES_8_BYTES = (replace(TILE_SIZES_4_BYTES[1], blocks=2), TILE_SIZES_4_BYTES[2])


def candidate_tile_sizes(ring: TropicalRing, with_arguments: bool) -> tuple[TileSizes, ...]:
    """Return the candidate tile sizes of the kernel for products over this ring."""
    if ring.word_bytes > 4:
        return ARGUMENT_TILE_SIZES_8_BYTES if with_arguments else TILE_SIZES_8_BYTES
    return ARGUMENT_TILE_SIZES_4_BYTES if with_arguments else TILE_SIZES_4_BYTES


def largest_tile_side(with_arguments: bool) -> int:
    """Return the side of the largest tile whose closure a thread block can compute in registers."""
    return 64 if with_arguments else 128


# ---- launches


@dataclass(frozen=True)
class MinplusKernel:
    """The parameters for compiling the kernel of products over a ring."""

    ring: str
    sizes: TileSizes
    with_arguments: bool = False  # True if the kernel also records the best sum's index k for each entry of C

    @property
    def minplus_shared_memory_bytes(self) -> int:
        """The bytes of shared memory for the tiles of A, which have padded rows, and the tiles of B."""
        s, item = self.sizes, TROPICAL_RINGS[self.ring].word_bytes
        return s.stages * item * (s.m_s * (s.k_s + VECTOR_BYTES // item) + s.k_s * s.n_s)


class DeviceMatrix(NamedTuple):
    """A row-major matrix in device memory."""

    base: str
    offset: int  # bytes from the base address to the first entry
    rows: int
    cols: int
    leading: int  # leading dimension: entries from the start of a row to the start of the next row


class SemiringProduct(NamedTuple):
    """The operands of a product: dest[i, j] becomes the best of old[i, j] and all sums left[i, k] + right[k, j].

    If the ring stores two entries in one word, `left` is a copy of the left operand in which each entry is written
    twice. `args[i, j]` receives the index k of the best sum for `dest[i, j]`, or, if `via` is not None, the entry
    `via[k, j]`.
    """

    left: DeviceMatrix
    right: DeviceMatrix
    dest: DeviceMatrix
    old: DeviceMatrix | None = None
    args: DeviceMatrix | None = None
    old_args: DeviceMatrix | None = None
    via: DeviceMatrix | None = None


def minplus_launch(ring: TropicalRing, sizes: TileSizes, products: Sequence[SemiringProduct]) -> Launch:
    """Return the launch that computes one product or two independent products."""
    with_arguments = products[0].args is not None
    kernel = MinplusKernel(ring.name, sizes, with_arguments)
    packed, slots, blocks = b"", [], []
    for product in products:
        words, product_slots, count = _pack_kernel_parameters(ring, sizes, product)
        slots += [AddressSlot(slot.word + len(packed) // 8, slot.base, slot.offset) for slot in product_slots]
        packed += words
        blocks.append(count)
    packed += b"\0" * (len(packed) * (2 - len(products))) + struct.pack("<ii", blocks[0], 0)
    compiled = Kernel(minplus_source, (kernel,), ENTRY_POINT, sizes.thread_count, kernel.minplus_shared_memory_bytes)
    label = f"minplus.{sizes.name.casefold()} over {ring.name}{', with arguments' * with_arguments}"
    return Launch("product", label, compiled, (sum(blocks), 1, 1), packed, tuple(slots))


def _pack_kernel_parameters(
    ring: TropicalRing, sizes: TileSizes, product: SemiringProduct
) -> tuple[bytes, list[AddressSlot], int]:
    """Return a product's packed kernel parameters, the positions of addresses in them, and the thread block count."""
    left, right, dest, old, *arguments = product
    pairs = ring.per_word
    m, k, n = left.rows, left.cols, -(-dest.cols // pairs)
    down, across = -(-m // sizes.m_s), -(-n // sizes.n_s)
    rects = [*(x if x is None else (x.base, x.offset) for x in (left, right, dest, old, *arguments))]
    block = f"<qii2{ring.code}"
    operands = struct.pack(block, 0, m, k, 0, 0), struct.pack(block, 0, k, n, 0, 0)
    at = [0, len(operands[0]) // 8]
    at += [2 * at[1] + i for i in range(5)]
    leading = [left.leading, right.leading // pairs, dest.leading // pairs, old.leading // pairs if old else 0]
    leading += [x.leading if x else 0 for x in arguments]
    item = ring.entry_bytes
    wide = all(x is None or not (x.offset % VECTOR_BYTES or x.leading * item % VECTOR_BYTES) for x in (dest, old))
    tail = struct.pack("<5q7q8i", *[0] * 5, *leading, m, n, k, down, across, min(down, 8), wide, 0)
    slots = [AddressSlot(word, *where) for word, where in zip(at, rects, strict=True) if where is not None]
    return b"".join(operands) + tail, slots, down * across


def close_tile_launch(ring: TropicalRing, tile: DeviceMatrix, args: DeviceMatrix | None = None) -> Launch:
    """Return the launch that replaces a tile by its closure; the tile's side must be at most `largest_tile_side`."""
    leading = args.leading if args else 0
    parameters = struct.pack("<4q2i", 0, tile.leading, 0, leading, tile.rows, 0)
    slots = [AddressSlot(0, tile.base, tile.offset), *([AddressSlot(2, args.base, args.offset)] if args else [])]
    side = largest_tile_side(args is not None)
    shared = (2 * 2 * ring.word_bytes + 2 * 4) * side
    kernel = Kernel(close_tile_source, (ring.name, side, args is not None), ENTRY_POINT, TILE_THREADS, shared)
    label = f"close_tile over {ring.name}{', with arguments' * (args is not None)}"
    return Launch("product", label, kernel, (1, 1, 1), parameters, tuple(slots))


def duplicate_entries_launch(source: DeviceMatrix, dest: DeviceMatrix) -> Launch:
    """Return the launch that writes each 16-bit entry twice, as one 32-bit word."""
    parameters = struct.pack("<4q2i", 0, 0, source.leading, dest.leading, source.rows, source.cols)
    slots = AddressSlot(0, source.base, source.offset), AddressSlot(1, dest.base, dest.offset)
    kernel = Kernel(duplicate_entries_source, (), ENTRY_POINT, TILE_THREADS)
    blocks = min(max(-(-source.rows * source.cols // (8 * TILE_THREADS)), 1), 4096)
    return Launch("sums", "write_twice: numbers of 16 bits", kernel, (blocks, 1, 1), parameters, slots)


CPP_LENGTH_TYPES = {
    "float32": "float",
    "float64": "double",
    "int32": "int",
    "int16": "short",
}  # C++ type by element type


def graph_edges_launch(dtype: str, n: int, strides: tuple[int, int], rule: EdgeRule) -> Launch:
    """Return the launch that reads n x n lengths from buffer "A", and writes edges to "C" and predecessors to "P".

    `strides` are the strides of A in entries.
    """
    none, predecessors = rule.no_predecessor, () if rule.no_predecessor is None else (AddressSlot(2, "P", 0),)
    parameters = struct.pack(
        "<5q2d4i", 0, 0, 0, *strides, rule.missing, rule.smallest, n, rule.unweighted, none or 0, 0
    )
    kernel = Kernel(graph_edges_source, (CPP_LENGTH_TYPES[dtype],), ENTRY_POINT, TILE_THREADS)
    label = f"edges: entries of {dtype} that are no edges become {rule.missing:g}"
    slots = AddressSlot(0, "A", 0), AddressSlot(1, "C", 0), *predecessors
    return Launch("sums", label, kernel, (min(n, 4096), 1, 1), parameters, slots)


# ---- CUDA sources, each with the entry point ENTRY_POINT


@lru_cache(maxsize=64)
def minplus_source(kernel: MinplusKernel) -> str:
    """Return the CUDA source of a kernel for products over a ring."""
    ring, s = TROPICAL_RINGS[kernel.ring], kernel.sizes
    body = (
        f"using Sizes = {cpp_strategy_type(s)};",
        "extern __shared__ float4 memory[];",
        f"fmm::tropical::minplus<fmm::tropical::{ring.cpp}, Sizes, {str(kernel.with_arguments).lower()}>(",
        f"    p, reinterpret_cast<{ring.word}*>(memory));",
    )
    parameters = f"fmm::tropical::Tasks<{ring.word}>"
    return entry_source(parameters, body, "minplus.cuh", (s.thread_count, s.blocks), entry=ENTRY_POINT)


@lru_cache(maxsize=64)
def close_tile_source(ring_name: str, side: int, with_arguments: bool) -> str:
    """Return the CUDA source of the kernel that replaces a tile by its closure."""
    ring = TROPICAL_RINGS[ring_name]
    stored = ring.stored or ring.word
    body = (
        "extern __shared__ float4 memory[];",
        f"using Ring = fmm::tropical::{ring.tile_cpp or ring.cpp};",
        f"fmm::tropical::close_tile<Ring, {stored}, {side}, {str(with_arguments).lower()}>(p, memory);",
    )
    parameters = f"fmm::tropical::DiagonalTile<{stored}>"
    return entry_source(parameters, body, "close_tile.cuh", (TILE_THREADS, 1), entry=ENTRY_POINT)


@lru_cache(maxsize=1)
def duplicate_entries_source() -> str:
    """Return the CUDA source of the kernel that writes each 16-bit entry twice."""
    body = ("fmm::tropical::write_twice(p);",)
    return entry_source("fmm::tropical::Doubling", body, "minplus.cuh", (TILE_THREADS,), entry=ENTRY_POINT)


@lru_cache(maxsize=len(CPP_LENGTH_TYPES))
def graph_edges_source(cpp_type: str) -> str:
    """Return the CUDA source of the kernel that writes the edges of a graph."""
    parameters, body = f"fmm::tropical::Lengths<{cpp_type}>", "fmm::tropical::write_edges(p);"
    return entry_source(parameters, body, "edges.cuh", (TILE_THREADS,), entry=ENTRY_POINT)


# ---- the fastest tile sizes

ProductSize = tuple[int, int, int]  # m, k, n
# Clock cycles that a thread block needs before the first and after the last index k of the inner dimension.
THREAD_BLOCK_OVERHEAD_CLOCKS = 2500.0


class SumsPerClock(NamedTuple):
    """The number of sums of words per clock cycle on a multiprocessor.

    `alone` is the number with one thread block, and `full` the number with as many thread blocks as fit on the
    multiprocessor.
    """

    alone: float
    full: float


# The rates were measured on an H200 at 1.98 GHz on square products of side 128 to 4096
# (results/nvidia-h200/tiles/minplus.json).
FLOAT_SUM_RATES = {"Square": SumsPerClock(21, 44), "Medium": SumsPerClock(33, 45.5), "Small": SumsPerClock(19, 38)}
NONNEGATIVE_FLOAT_SUM_RATES = {
    "Square": SumsPerClock(27, 53.5),
    "Medium": SumsPerClock(38, 56),
    "Small": SumsPerClock(20, 43),
}
INTEGER_SUM_RATES = {"Square": SumsPerClock(45, 57), "Medium": SumsPerClock(40, 54), "Small": SumsPerClock(20, 43)}
# Rates of kernels that also record the best index k: three of their four instructions run at half the rate. The kernels
# that record the best index k were measured on large products only.
ARGUMENT_SUM_RATES = {"Half": SumsPerClock(12, 15.5), "Medium": SumsPerClock(10, 13.5), "Small": SumsPerClock(8, 12)}
DOUBLE_SUM_RATES = {"Half": SumsPerClock(10, 18.3), "Medium": SumsPerClock(10.7, 18.4), "Small": SumsPerClock(9, 17)}


def predicted_product_cycles(
    ring: TropicalRing, with_arguments: bool, sizes: TileSizes, products: Sequence[ProductSize], multiprocessors: int
) -> float:
    """Return the predicted clock cycles from the start of a launch until its last thread block ends.

    The prediction ignores the time of device memory, and assumes that thread blocks that start together end together.
    """
    tiles = sum(-(-m // sizes.m_s) * -(-n // (sizes.n_s * ring.per_word)) for m, _, n in products)
    steps = max(k for _, k, _ in products)
    blocks = -(-tiles // multiprocessors)  # number of thread blocks on the busiest multiprocessor
    floats = NONNEGATIVE_FLOAT_SUM_RATES if ring.cpp == "NonnegativeFloats" else FLOAT_SUM_RATES
    rates = (
        ARGUMENT_SUM_RATES
        if with_arguments
        else {"double": DOUBLE_SUM_RATES, "float": floats}.get(ring.word, INTEGER_SUM_RATES)
    )
    rate = rates[sizes.name]
    return THREAD_BLOCK_OVERHEAD_CLOCKS + blocks * sizes.m_s * sizes.n_s * steps / min(rate.alone * blocks, rate.full)


def fastest_minplus_sizes(
    ring: TropicalRing, with_arguments: bool, products: Sequence[ProductSize], multiprocessors: int
) -> TileSizes:
    """Return the tile sizes with which the launch of these products needs the fewest predicted clock cycles."""
    return min(
        candidate_tile_sizes(ring, with_arguments),
        key=lambda sizes: predicted_product_cycles(ring, with_arguments, sizes, products, multiprocessors),
    )
