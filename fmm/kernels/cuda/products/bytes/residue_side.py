"""One operand of a product by residues: how it is measured, turned and split, and where its planes stand."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Literal

from fmm.dtypes import BYTE
from fmm.kernels.cuda.launch_list import Slot
from fmm.kernels.cuda.products.bytes.residue_numbers import largest_norm
from fmm.kernels.cuda.products.bytes.residues_source import CLUSTER, SIDE, THREADS, MeasureKernel
from fmm.kernels.cuda.products.tiles.tiled import WIDE
from fmm.kernels.cuda.products.tiles.tiled_source import Along
from fmm.kernels.cuda.products.tiles.wgmma_source import LINE
from fmm.kernels.cuda.tensor_map import TensorMap
from fmm.kernels.cuda.views import Factor, Piece
from fmm.kernels.plans.levels.residue_room import ResidueRoom
from fmm.kernels.plans.memory_layout import whole

WARP, SHORT = 32, 1024  # a warp measures a line of up to SHORT numbers, a thread block a longer one
# Where bytes are multiplied that are residues themselves: where they lie; or turned, in the place of a plane.
BytesFrom = Literal["source", "planes"]


@dataclass(frozen=True)
class Side:
    """One operand of a batch, and where its exponents, planes and a turned copy of it stand."""

    source: Factor
    along: Along  # the dimension along which it is contiguous
    lines: int  # rows of A, or columns of B
    geometry: ResidueRoom
    block: tuple[int, int]  # lines and length of a plane
    exponents: int
    planes: int
    turned: int  # in the workspace
    bytes_from: BytesFrom | None = None  # None: its numbers are split into residues
    base: str = "W"  # where exponents and planes stand: in the workspace, or behind the operand, if they are kept
    is_ready: bool = False  # do the planes stand there already?

    def measure_kernel(self, aligned: bool, scaled: bool) -> MeasureKernel | None:
        """The kernel that measures or turns it; None if neither is to be done, as of integers along the inner
        dimension."""
        if self.is_ready or (self.along == "inner" and not scaled):
            return None
        group = WARP if self.geometry.k <= SHORT else THREADS
        return MeasureKernel(self.along, group if self.along == "inner" else 0, self.reads_wide(aligned))

    def reads_wide(self, aligned: bool) -> bool:
        """Do all lines begin at multiples of four numbers, or of 16 bytes?"""
        x, item = self.source, self.geometry.item
        unit = min(4 * item, WIDE)
        return aligned and all(step * item % unit == 0 for step in (x.leading, x.stride)) and x.offset % unit == 0

    def splits_wide(self, aligned: bool) -> bool:
        """The same of what is split, which may be a turned copy."""
        return self.is_ready or self.along == "outer" or self.reads_wide(aligned)

    def measure_blocks(self, kernel: MeasureKernel | None) -> int:
        """How many thread blocks measure it."""
        if kernel is None:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.lines // SIDE) * CLUSTER
        return whole(-(-self.geometry.count * self.lines // (THREADS // kernel.group)), CLUSTER)

    @property
    def split_blocks(self) -> int:
        """How many thread blocks split it."""
        if self.bytes_from or self.is_ready:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // THREADS)

    def parameters(self, blocks: int) -> bytes:
        """struct Operand of residue_planes.cuh, addresses zero."""
        x, g = self.source, self.geometry
        top = max(largest_norm(g.moduli, g.k), 0.0)
        room = self.block[1] if self.bytes_from else g.turned_room
        distances = x.leading, x.stride, room
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *distances, top, self.lines, g.k, g.count, blocks, *self.block)

    def slots(self, first: int) -> tuple[Slot, ...]:
        """Where the addresses go, if the struct begins at word `first`."""
        x = self.source
        turned_copy = self.planes if self.bytes_from else self.turned
        turned = (Slot(first + 1, "W", turned_copy),) if self.along == "outer" else ()
        return (
            Slot(first, x.base, x.offset),
            *turned,
            Slot(first + 2, self.base, self.exponents),
            Slot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int) -> TensorMap:
        """The map of planes modulo `moduli` numbers from number `first` on. One copy brings at most `most` lines."""
        lines, length = self.block
        if self.bytes_from == "source":
            return bytes_as_they_lie(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # (Behind the end of a line that was turned anything may stand.)
        filled = self.geometry.k if self.bytes_from else length
        # (In the workspace there are those of one group of moduli at a time.)
        before = 0 if self.base == "W" else first * self.geometry.products * lines * length
        place = Piece(self.base, self.planes + before, lines, length)
        return byte_map(place, self.geometry.products * moduli, most, filled)


def byte_map(piece: Piece, layers: int, most: int, filled: int | None = None) -> TensorMap:
    """The map of planes. If only so much of each line is `filled`, zeros are brought in the place of the rest."""
    lines, length = piece.rows, piece.cols
    read = length if filled is None else filled
    return TensorMap(piece, BYTE.name, read, lines, layers, length, lines * length, (LINE, most), LINE)


def bytes_as_they_lie(x: Factor, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """The map of an operand or of C itself."""
    piece = Piece(x.base, x.offset, lines, length)
    return TensorMap(piece, BYTE.name, length, lines, layers, x.leading, x.stride, (LINE, most), LINE)
