"""What a plan is recorded for: a chip, how the operands' addresses are aligned, whether inf and NaN raise a flag."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from fmm.hardware.chip import Chip
from fmm.kernels.cuda.launch_list import BASES
from fmm.kernels.cuda.products.kernel_sizes import TileSizes
from fmm.kernels.cuda.products.simt_tiles import TileOp
from fmm.kernels.plans.sums import ADDEND

Alignment = tuple[int, int, int, int]  # powers of two that divide the addresses of A, B, C and the workspace
ALIGNED: Alignment = (256, 256, 256, 256)  # to which libraries align what they allocate


def alignment_of(a: int, b: int, c: int, workspace: int) -> Alignment:
    """The powers of two that divide these addresses, up to those of ALIGNED: nobody asks for more."""
    most = ALIGNED[0]
    if not (a | b | c | workspace) % most:
        return ALIGNED
    x, y, z, w = (min(address & -address, most) or most for address in (a, b, c, workspace))
    return x, y, z, w


class TileModel(Protocol):
    """Which tile is the fastest: fmm.perfmodel.block_model has such a model."""

    def fastest(self, op: TileOp, chip: Chip) -> TileSizes:
        """The strategy for a product whose leaf leaves it open."""
        ...

    def fastest_by_engine(self, op: TileOp, chip: Chip) -> TileSizes | None:
        """The strategy with which the copy engine's kernel is faster than the tiled one; None if it is not."""
        ...


@dataclass(frozen=True)
class Target:
    """What a plan is recorded for."""

    chip: Chip
    tiles: TileModel
    alignment: Alignment = ALIGNED
    flagged: bool = False  # do kernels raise a flag where they store an inf or NaN in C?

    @cached_property
    def divides(self) -> Mapping[str, int]:
        """By base, the power of two that divides its address."""
        by_base = dict(zip(BASES, self.alignment, strict=True))
        return by_base | {ADDEND: by_base["C"]}
