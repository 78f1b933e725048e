"""What all tiled product kernels share: operands in row-major terms, the order of tiles, triangles of C, C++ names.

BLAS describes matrices column by column and the kernels row by row. A kernel therefore computes C^T = B^T A^T, which is
the same memory with the operands swapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.ops import GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.kernel_sizes import TileSizes

VECTOR_BYTES = 16  # bytes of a vector access, and the alignment that the copy engine needs
RASTER_ROWS = 8  # rows of tiles computed together, so that the tiles of B that they read stay in the L2 cache

# The dimension along which an operand is contiguous: the inner dimension (K-major), or its rows or columns (MN-major).
ContiguousAxis = Literal["inner", "outer"]
# Tiles of a C that is its own adjoint. Both compute the tiles on and below the diagonal; "lower" writes these alone,
# and "full" writes their mirror too. A variable of this type that may be None computes all tiles of C then.
TriangleTiles = Literal["lower", "full"]
TRIANGLE_LABELS: Mapping[TriangleTiles, str] = {
    "lower": "on and below the diagonal",
    "full": "on and below the diagonal, and its mirror",
}


def row_major_operands(op: GemmOp) -> tuple[GemmOperand, GemmOperand, tuple[ContiguousAxis, ContiguousAxis]]:
    """Return the kernel's A and B, and the dimension along which each is contiguous.

    The operands of the BLAS call are swapped: BLAS counts columns where the kernels count rows.
    """
    left: ContiguousAxis = "inner" if not op.right.transposed else "outer"
    right: ContiguousAxis = "inner" if op.left.transposed else "outer"
    return op.right, op.left, (left, right)


def triangle_tiles(extent: TriangleExtent | None) -> TriangleTiles | None:
    """Return the tiles that a kernel computes for this extent; "loose" permits more than these kernels write."""
    return "lower" if extent == "loose" else extent


@lru_cache(maxsize=1024)
def count_triangle_tiles(tiles: tuple[int, int], height: int, width: int) -> int:
    """Return how many tiles touch the lower triangle of C.

    `tiles` are the rows and columns of tiles in C; each tile has `height` rows and `width` columns of numbers.
    """
    rows, columns = tiles
    return sum(min(-(-(row + 1) * height // width), columns) for row in range(rows))


# ---- C++ names in the stubs of sources


def along_cpp(along: tuple[ContiguousAxis, ContiguousAxis]) -> tuple[str, str]:
    """Return the enumerators of fmm::Along for A and B."""
    left, right = (f"fmm::Along::{x.upper()}" for x in along)
    return left, right


def triangle_cpp(triangle: TriangleTiles | None) -> str:
    """Return the enumerator of fmm::Triangle."""
    return f"fmm::Triangle::{(triangle or 'none').upper()}"


def strategy_cpp(s: TileSizes) -> str:
    """Return the C++ type of a strategy."""
    sizes = s.m_s, s.n_s, s.k_s, s.m_r, s.n_r, s.warp_m, s.warp_n, s.stages, int(s.transposed_sums)
    return f"fmm::Strategy<{comma_list(sizes)}>"


def comma_list(values: Iterable[int]) -> str:
    """Return the values as C++ template arguments."""
    return ", ".join(map(str, values))
