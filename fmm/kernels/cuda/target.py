"""Describe the target of a recorded plan: a chip, the alignment of addresses, and whether kernels flag inf and NaN."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import ADDRESS_BASES
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.plans.sums import ADDEND

Alignment = tuple[int, int, int, int]  # powers of two that divide the addresses of A, B, C and the workspace
ALLOCATOR_ALIGNMENT: Alignment = (256, 256, 256, 256)  # alignment in bytes of the memory that CuPy and torch allocate


def address_alignment(a: int, b: int, c: int, workspace: int) -> Alignment:
    """Return for each address the largest power of two that divides the address, but at most 256 bytes."""
    most = ALLOCATOR_ALIGNMENT[0]
    if not (a | b | c | workspace) % most:
        return ALLOCATOR_ALIGNMENT
    x, y, z, w = (min(address & -address, most) or most for address in (a, b, c, workspace))
    return x, y, z, w


class TileSizeModel(Protocol):
    """A model that predicts the fastest tile sizes of a product; fmm.perfmodel.block_model implements the model."""

    def fastest_tile_sizes(self, op: TileOp, chip: Chip) -> TileSizes:
        """Return the fastest tile sizes of the SIMT kernel for a product."""
        ...

    def fastest_tma_tile_sizes(self, op: TileOp, chip: Chip) -> TileSizes | None:
        """Return the TMA kernel's fastest tile sizes; None if the SIMT kernel is faster."""
        ...


@dataclass(frozen=True)
class ChipTarget:
    """The values on which the choice of kernels depends: a chip, a model of tile sizes, and properties of a call."""

    chip: Chip
    tiles: TileSizeModel
    alignment: Alignment = ALLOCATOR_ALIGNMENT
    flagged: bool = False  # True if kernels raise the flag when they store an inf or NaN in C

    @cached_property
    def alignment_by_base(self) -> Mapping[str, int]:
        """The power of two that divides the address of each base. The addend has the alignment of C."""
        by_base = dict(zip(ADDRESS_BASES, self.alignment, strict=True))
        return by_base | {ADDEND: by_base["C"]}
