"""Launches of the kernel that finishes a matrix that is its own adjoint (mirror_half.cuh)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from fmm.dtypes import DTYPES
from fmm.kernels.cuda.device_code.entry_source import entry_source
from fmm.kernels.cuda.launch_list import FLAG, Kernel, Launch, Slot
from fmm.kernels.cuda.ops import View

THREADS = 256  # MIRROR_THREADS
ENTRY = "fmm_mirror"
TILE_BYTES = 128  # of a tile's row: a whole line of the second-level cache


@dataclass(frozen=True)
class MirrorOp:
    """The lower half of dest = alpha source + beta dest, and, if it is `full`, the upper one as its mirror."""

    source: View
    dest: View
    alpha: float = 1
    beta: float = 0
    full: bool = True

    @property
    def writes_result(self) -> bool:
        return self.dest.base == "C"

    @property
    def in_place(self) -> bool:
        """Is the lower half there already?"""
        return self.source == self.dest and (self.alpha, self.beta) == (1, 0)

    @property
    def tile(self) -> int:
        return min(max(TILE_BYTES // self.dest.itemsize, 16), 64)

    @property
    def tiles(self) -> int:
        """How many tiles stand on and below the diagonal."""
        side = -(-self.dest.rows // self.tile)
        return side * (side + 1) // 2


class MirrorVariant(NamedTuple):
    """What a kernel is compiled for: fmm::MirrorVariant of mirror_half.cuh."""

    in_place: bool  # does the lower half stand there already?
    reads_source: bool
    reads_dest: bool
    full: bool  # does it write the upper half too?
    raises_flag: bool


def mirror_launch(op: MirrorOp, flagged: bool) -> Launch:
    """The launch; `flagged`: is a flag raised where an inf or NaN is stored in C?"""
    x, y = op.source.strides, op.dest.strides
    parameters = struct.pack("<7q2dq", 0, *x, 0, *y, op.dest.rows, op.alpha, op.beta, 0)
    slots = [Slot(0, op.source.base, op.source.offset), Slot(3, op.dest.base, op.dest.offset)]
    raises = flagged and op.writes_result
    slots += [Slot(9, FLAG)] if raises else []
    variant = MirrorVariant(op.in_place, op.alpha != 0, op.beta != 0, op.full, raises)
    kernel = Kernel(mirror_source, (op.dest.dtype, op.tile, variant), ENTRY, THREADS)
    result = "the upper half is the lower one's mirror" if op.full else "the lower half"
    label = f"mirror_half: {result}{'' if op.in_place else ', from a temporary' if op.alpha else ', scaled'}"
    return Launch("sums", label, kernel, (op.tiles, 1, 1), parameters, tuple(slots))


@lru_cache(maxsize=256)
def mirror_source(dtype: str, tile: int, variant: MirrorVariant) -> str:
    """The whole CUDA source, entry point `ENTRY`."""
    flags = ", ".join(str(flag).lower() for flag in variant)
    body = (f"fmm::mirror_half<{DTYPES[dtype].cpp}, {tile}, fmm::MirrorVariant<{flags}>>(p);",)
    return entry_source("fmm::HalfMirror", body, "mirror_half.cuh", (THREADS,), entry=ENTRY)
