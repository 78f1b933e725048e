"""Tiling."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Literal

from fmm.kernels.cuda.gemm import GemmOp, HalfExtent
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.views import Factor

Along = Literal["inner", "outer"]
# How a kernel makes a C that is its own adjoint: only tiles on and below the diagonal, and it writes nothing else; or
# the same tiles, and it writes their mirror too. None in its place: all tiles.
TriangleTiles = Literal["lower", "full"]


def along_cpp(along: tuple[Along, Along]) -> tuple[str, str]:
    """How A and B are contiguous, in C++."""
    left, right = (f"fmm::Along::{x.upper()}" for x in along)
    return left, right


def triangle_tiles(extent: HalfExtent | None) -> TriangleTiles | None:
    """How kernels make so much of a C that is its own adjoint: beside a lower half they never write anything."""
    return "lower" if extent == "loose" else extent


def triangle_cpp(half: TriangleTiles | None) -> str:
    """The name of fmm::Half in the device code."""
    return f"fmm::Half::{(half or 'none').upper()}"


def strategy_cpp(s: TileSizes) -> str:
    """The strategy as a C++ type."""
    return (
        f"fmm::Strategy<{comma_list((s.m_s, s.n_s, s.k_s, s.m_r, s.n_r, s.warp_m, s.warp_n, s.stages, int(s.turned)))}>"
    )


def comma_list(values: Iterable[int]) -> str:
    return ", ".join(map(str, values))


RASTER_ROWS = 8  # rows of tiles that are done together: what they read stays in the second-level cache


@lru_cache(maxsize=1024)
def count_triangle_tiles(tiles: tuple[int, int], height: int, width: int) -> int:
    """How many tiles reach the diagonal or lie below it.

    `tiles`: how many there are below each other and side by side; each has `height` rows and `width` columns.
    """
    down, across = tiles
    return sum(min(-(-(row + 1) * height // width), across) for row in range(down))


VECTOR_BYTES = 16  # bytes of an access of `vector`


TRIANGLE_LABELS: Mapping[TriangleTiles, str] = {
    "lower": "on and below the diagonal",
    "full": "on and below the diagonal, and its mirror",
}


def row_major_operands(op: GemmOp) -> tuple[Factor, Factor, tuple[Along, Along]]:
    """The kernel's left and right operand, and the dimensions along which they are contiguous.

    BLAS's terms are column by column and the kernels' row by row, so the operands are swapped.
    """
    return op.right, op.left, (_factor_along(op.right), _factor_along(op.left, True))


def _factor_along(x: Factor, second: bool = False) -> Along:
    """A transposed factor's rows are contiguous in BLAS's terms, so the kernel's columns."""
    return "inner" if x.transposed == second else "outer"
