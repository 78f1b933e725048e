"""Describe the tiles of products by a warp's matrix instructions (mma.sync), for compute capability 8.0 and newer.

f16x3_mma.py and residues_mma.py use these tiles in the kernels gemm_f16x3_mma.cuh and gemm_residues_mma.cuh. The
kernels need neither clusters nor the copy engine (TMA). Asynchronous copies fill the stages of a pipeline.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, replace
from math import prod

from fmm.dtypes import BYTE_TYPE, DTYPES
from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import TensorMap
from fmm.kernels.cuda.products.tiling import RASTER_ROWS, count_triangle_tiles

TILE_LINE_BYTES = 128  # bytes of a line of a tile in shared memory, as LINE_BYTES in mma_tiles.cuh
LINES_STRUCT_BYTES = 32  # bytes of struct Lines in mma_tiles.cuh
MAX_STAGES = 4  # largest number of stages: more stages were not faster
TILE_OVERHEAD_COLUMNS = 24  # start and end of a tile together take as long as computing this number of columns
# Time for one column of a narrow tile, divided by the time for one column of the largest tile, if a multiprocessor runs
# a single thread block with a narrow tile. (A multiprocessor has registers for two thread blocks with narrow tiles.)
ALONE_SLOWDOWN = 1.3


@dataclass(frozen=True)
class MmaSizes:
    """Tile sizes: a thread block computes an m_s x n_s tile of C, and each of its warps an m_w x n_w part."""

    m_s: int
    n_s: int
    m_w: int
    n_w: int
    blocks: int = 1  # number of resident thread blocks per multiprocessor
    slowdown: float = 1.0  # time for one element of C on a full device, divided by the time with the largest tile
    stages: int = 2  # number of tiles of each operand in shared memory

    @property
    def thread_count(self) -> int:
        return 32 * (self.m_s // self.m_w) * (self.n_s // self.n_w)

    @property
    def stage_bytes(self) -> int:
        """Bytes of shared memory for a tile of A and a tile of B."""
        return (self.m_s + self.n_s) * TILE_LINE_BYTES

    @property
    def shared_bytes(self) -> int:
        return self.stages * self.stage_bytes

    def cpp_sizes_type(self, triangle: str | None) -> str:
        """Return the C++ type that describes these sizes for all of C, or for a triangle ("lower" or "full")."""
        sizes = f"{self.m_s}, {self.n_s}, {self.m_w}, {self.n_w}, {self.stages}"
        if triangle is None:
            return f"fmm::MmaSizes<{sizes}>"
        return f"fmm::LowerMmaSizes<{sizes}, {str(triangle == 'full').lower()}>"


def tile_counts(m: int, n: int, s: MmaSizes) -> tuple[int, int]:
    """Return the number of rows of tiles and the number of columns of tiles in C."""
    return -(-m // s.m_s), -(-n // s.n_s)


def count_tiles(m: int, n: int, s: MmaSizes, triangle: bool) -> int:
    """Return the number of tiles in C, or in the lower triangle of C."""
    tiles = tile_counts(m, n, s)
    return count_triangle_tiles(tiles, s.m_s, s.n_s) if triangle else prod(tiles)


def tile_rows_computed_together(s: MmaSizes) -> int:
    """Return how many rows of tiles are computed together, so that the tiles share data in the L2 cache.

    The total height of these rows of tiles, in matrix rows, is a multiple of the tile width n_s.
    """
    return next(rows for rows in range(RASTER_ROWS, 0, -1) if rows * s.m_s % s.n_s == 0)


def best_mma_sizes(
    m: int, n: int, count: int, chip: Chip, among: tuple[MmaSizes, ...], triangle: bool = False
) -> MmaSizes:
    """Return the tile sizes with the earliest predicted end of the last thread block, and the most pipeline stages."""

    def last_block_end_time(s: MmaSizes) -> float:
        at_once = chip.multiprocessors * s.blocks
        full, rest = divmod(count_tiles(m, n, s, triangle) * count, at_once)
        together = s.slowdown * s.blocks * s.n_s + TILE_OVERHEAD_COLUMNS
        if not rest:
            return full * together
        alone = s.n_s * (ALONE_SLOWDOWN if s.blocks > 1 else 1.0) + TILE_OVERHEAD_COLUMNS
        return full * together + (alone if rest <= chip.multiprocessors else together)

    return _with_max_pipeline_stages(min(among, key=last_block_end_time), chip)


def _with_max_pipeline_stages(s: MmaSizes, chip: Chip) -> MmaSizes:
    """Return the sizes with the most pipeline stages for which all resident thread blocks fit in shared memory."""
    fitting = chip.shared_bytes_per_block // s.blocks // s.stage_bytes
    return replace(s, stages=max(2, min(fitting, MAX_STAGES)))


def pack_lines_struct(x: TensorMap) -> bytes:
    """Return the bytes of struct Lines of mma_tiles.cuh for the matrix of a tensor map, with zero as the address."""
    item = BYTE_TYPE.itemsize if x.dtype == BYTE_TYPE.name else DTYPES[x.dtype].itemsize
    return struct.pack("<3q2i", 0, x.leading * item, x.layer * item, x.lines, x.length * item)
