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

WARP, SHORT = 32, 1024  # threads that measure a line of up to so many numbers


@dataclass(frozen=True)
class Side:
    """One operand of a batch: its lines along the inner dimension or not, and where its parts stand."""

    source: Factor
    along: Along
    lines: int
    geometry: ResidueRoom
    block: tuple[int, int]  # lines and length of a plane
    exponents: int
    planes: int
    turned: int
    # Bytes modulo 2^8 are residues themselves. They are multiplied as they lie (`source`), or as they are turned, where
    # a plane has its place (`planes`).
    bytes_from: Literal["", "source", "planes"] = ""
    base: str = "W"  # where exponents and planes stand: in the workspace, or behind the operand, where they are kept
    is_ready: bool = False  # is nothing to be done before the products?

    def measure_kernel(self, aligned: bool, scaled: bool) -> MeasureKernel | None:
        """None where there is nothing to be done: for integers along the inner dimension."""
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
        return self.is_ready or self.along == "outer" or self.reads_wide(aligned)

    def measure_blocks(self, kernel: MeasureKernel | None) -> int:
        if kernel is None:
            return 0
        if self.along == "outer":
            return self.geometry.count * -(-self.lines // SIDE) * CLUSTER
        return whole(-(-self.geometry.count * self.lines // (THREADS // kernel.group)), CLUSTER)

    @property
    def split_blocks(self) -> int:
        if self.bytes_from or self.is_ready:
            return 0
        return -(-self.geometry.count * self.block[0] * (self.block[1] // 4) // THREADS)

    def parameters(self, blocks: int) -> bytes:
        """struct Operand of residue_planes.cuh, addresses zero."""
        x, g = self.source, self.geometry
        top = max(largest_norm(g.moduli, g.k), 0.0)
        room = self.block[1] if self.bytes_from else g.turned_room
        lying = x.leading, x.stride, room, top
        return struct.pack("<4q3qd6i", 0, 0, 0, 0, *lying, self.lines, g.k, g.count, blocks, *self.block)

    def slots(self, first: int) -> tuple[Slot, ...]:
        x = self.source
        there = self.planes if self.bytes_from else self.turned
        turned = (Slot(first + 1, "W", there),) if self.along == "outer" else ()
        return (
            Slot(first, x.base, x.offset),
            *turned,
            Slot(first + 2, self.base, self.exponents),
            Slot(first + 3, self.base, self.planes),
        )

    def tensor_map(self, first: int, moduli: int, most: int) -> TensorMap:
        """The planes modulo so many numbers, layer by layer, behind the first; one copy brings at most `most` lines."""
        lines, length = self.block
        if self.bytes_from == "source":
            return bytes_as_they_lie(self.source, self.lines, self.geometry.k, self.geometry.count, most)
        # (Behind the end of a line that was turned anything may stand.)
        known = self.geometry.k if self.bytes_from else length
        # (In the workspace there are those of one group of moduli at a time.)
        before = 0 if self.base == "W" else first * self.geometry.products * lines * length
        place = Piece(self.base, self.planes + before, lines, length)
        return byte_map(place, self.geometry.products * moduli, most, known)


def byte_map(piece: Piece, layers: int, most: int, known: int = 0) -> TensorMap:
    """Of planes; of lines of which only so much is `known`, zeros are brought behind that."""
    lines, length = piece.rows, piece.cols
    return TensorMap(piece, BYTE.name, known or length, lines, layers, length, lines * length, (LINE, most), LINE)


def bytes_as_they_lie(x: Factor, lines: int, length: int, layers: int, most: int) -> TensorMap:
    """Of an operand or of C."""
    piece = Piece(x.base, x.offset, lines, length)
    return TensorMap(piece, BYTE.name, length, lines, layers, x.leading, x.stride, (LINE, most), LINE)
