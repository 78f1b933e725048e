"""What the copy engine is told of a block of a matrix: a tensor map, before it has an address."""

from __future__ import annotations

from typing import NamedTuple

from fmm.kernels.cuda.ops import BlockTerm

MAP_BYTES = 128  # of a CUtensorMap
MAP_WORDS = MAP_BYTES // 8


class TensorMap(NamedTuple):
    """A block as lines of `length` numbers, and the box of them that is a tile."""

    piece: BlockTerm
    dtype: str
    length: int
    lines: int
    layers: int  # equal blocks of a batch
    leading: int  # elements from one line to the next
    layer: int  # and from one block of the batch to the next
    box: tuple[int, int]  # of a tile: numbers along a line, and lines
    swizzle: int  # bytes within which 16-byte chunks are exchanged, so that reads spread over the banks; 0: none
