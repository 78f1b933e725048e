"""Describe what all tiled product kernels share: row-major operands, tile order, triangles of C, and C++ names.

BLAS stores matrices column by column, and the kernels read matrices row by row. A kernel therefore reads each matrix as
its transpose, and computes BLAS's C = A B as C^T = B^T A^T. No matrix is moved in memory: BLAS's right operand becomes
the kernel's left operand.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.ops import GemmOp, GemmOperand, TriangleExtent
from fmm.kernels.cuda.products.kernel_sizes import TileSizes

VECTOR_BYTES = 16  # size in bytes of a vector access; equal to the alignment that the copy engine (TMA) needs
RASTER_ROWS = 8  # number of rows of C's tiles that are computed together, so that tiles of B stay in the L2 cache

# The dimension along which an operand is contiguous: "inner" for the inner dimension (K-major), "outer" for A's rows or
# B's columns (MN-major).
ContiguousAxis = Literal["inner", "outer"]
# The tiles of C that a kernel writes if C is symmetric or Hermitian. "lower": the tiles on and below the diagonal.
# "full": the tiles on and below the diagonal, and their mirror images. None in place of these texts means that C is
# neither symmetric nor Hermitian, and that the kernel writes all tiles of C.
TriangleTiles = Literal["lower", "full"]
TRIANGLE_LABELS: Mapping[TriangleTiles, str] = {
    "lower": "on and below the diagonal",
    "full": "on and below the diagonal, and its mirror",
}


def row_major_operands(op: GemmOp) -> tuple[GemmOperand, GemmOperand, tuple[ContiguousAxis, ContiguousAxis]]:
    """Return the kernel's operands A and B, and the dimension along which each operand is contiguous.

    The kernel's A is the right operand of the BLAS call, because BLAS is column-major and the kernels are row-major.
    """
    left: ContiguousAxis = "inner" if not op.right.transposed else "outer"
    right: ContiguousAxis = "inner" if op.left.transposed else "outer"
    return op.right, op.left, (left, right)


def triangle_tiles(extent: TriangleExtent | None) -> TriangleTiles | None:
    """Return the tiles that a kernel writes for a triangle; a "loose" triangle may have entries above the diagonal."""
    return "lower" if extent == "loose" else extent


@lru_cache(maxsize=1024)
def count_triangle_tiles(tiles: tuple[int, int], height: int, width: int) -> int:
    """Return the number of tiles that overlap the lower triangle of C.

    `tiles` contains the number of rows of tiles and the number of columns of tiles in C. Each tile has `height` rows
    and `width` columns of elements.
    """
    rows, columns = tiles
    return sum(min(-(-(row + 1) * height // width), columns) for row in range(rows))


# ---- C++ names for generated source


def cpp_contiguous_axes(along: tuple[ContiguousAxis, ContiguousAxis]) -> tuple[str, str]:
    """Return the C++ enumerators of fmm::Along for A and B."""
    left, right = (f"fmm::Along::{x.upper()}" for x in along)
    return left, right


def cpp_triangle_value(triangle: TriangleTiles | None) -> str:
    """Return the C++ enumerator of fmm::Triangle for these tiles."""
    return f"fmm::Triangle::{(triangle or 'none').upper()}"


def cpp_strategy_type(s: TileSizes) -> str:
    """Return the C++ type that describes these tile sizes."""
    sizes = s.m_s, s.n_s, s.k_s, s.m_r, s.n_r, s.warp_m, s.warp_n, s.stages, int(s.transposed_sums)
    return f"fmm::Strategy<{template_arguments(sizes)}>"


def template_arguments(values: Iterable[int]) -> str:
    """Return the values separated by commas, as C++ template arguments."""
    return ", ".join(map(str, values))
